//! Line charts as SVG, drawn here so that a report needs no script and no network. Colours are classes of the page's
//! style sheet.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 246.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 36.0;

pub struct Chart<'a> {
    pub title: &'a str,
    /// The description for screen readers.
    pub summary: String,
    pub x_label: &'a str,
    pub is_log: bool,
    pub lines: Vec<ChartLine<'a>>,
    /// Positions on the x axis with their labels; if empty, round numbers.
    pub x_ticks: Vec<(f64, String)>,
    pub format_y: fn(f64) -> String,
}

pub struct ChartLine<'a> {
    pub name: &'a str,
    pub points: Vec<(f64, f64)>,
}

struct Scale {
    x: (f64, f64),
    y: (f64, f64),
    is_log: bool,
}

impl Chart<'_> {
    /// Renders a figure with its legend; empty if there is nothing to draw.
    pub fn render(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let drawable = points().filter(|(_, y)| y.is_finite() && (!self.is_log || *y > 0.0));
        if drawable.count() < 2 {
            return String::new();
        }
        let scale = self.scale();
        let mut svg = String::new();
        let title = escaped(self.title);
        let _ = write!(
            svg,
            "<figure><figcaption>{title}{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            self.legend(),
            escaped(&self.summary)
        );
        self.grid(&mut svg, &scale);
        for (index, line) in self.lines.iter().enumerate() {
            let _ = write!(svg, "<path class=\"line c{index}\" d=\"{}\"/>", path(line, &scale));
        }
        svg.push_str("</svg></figure>");
        svg
    }

    fn legend(&self) -> String {
        let entry = |(index, line): (usize, &ChartLine<'_>)| {
            format!(" <span class=\"key k{index}\">{}</span>", escaped(line.name))
        };
        self.lines.iter().enumerate().map(entry).collect()
    }

    fn scale(&self) -> Scale {
        let (mut x, mut y) = ((f64::MAX, f64::MIN), (f64::MAX, f64::MIN));
        for (at, value) in self.lines.iter().flat_map(|line| &line.points) {
            x = (x.0.min(*at), x.1.max(*at));
            if value.is_finite() && (!self.is_log || *value > 0.0) {
                y = (y.0.min(*value), y.1.max(*value));
            }
        }
        let y = match self.is_log {
            true => (
                10f64.powf(y.0.log10().floor()),
                10f64.powf(y.1.log10().ceil().max(y.0.log10().floor() + 1.0)),
            ),
            false => (0.0, nice_above(y.1)),
        };
        let x = if x.1 > x.0 { x } else { (x.0, x.0 + 1.0) };
        Scale {
            x,
            y,
            is_log: self.is_log,
        }
    }

    fn grid(&self, svg: &mut String, scale: &Scale) {
        for value in self.y_values(scale) {
            let y = scale.y(value);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                escaped(&(self.format_y)(value))
            );
        }
        let ticks = match self.x_ticks.is_empty() {
            true => round_ticks(scale.x),
            false => self.x_ticks.clone(),
        };
        for (at, words) in ticks {
            let x = scale.x(at);
            let y = HEIGHT - BOTTOM + 16.0;
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
                escaped(&words)
            );
        }
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 5.0,
            escaped(self.x_label)
        );
    }

    fn y_values(&self, scale: &Scale) -> Vec<f64> {
        if !self.is_log {
            return (0..=4).map(|n| scale.y.1 * f64::from(n) / 4.0).collect();
        }
        let decades = (scale.y.1 / scale.y.0).log10().round() as i32;
        (0..=decades).map(|n| scale.y.0 * 10f64.powi(n)).collect()
    }
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value / self.y.0).log10() / (self.y.1 / self.y.0).log10(),
            false => value / self.y.1,
        };
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// Returns the path of a line, with a gap where a value is missing.
fn path(line: &ChartLine<'_>, scale: &Scale) -> String {
    let mut path = String::new();
    let mut is_down = false;
    for (x, y) in &line.points {
        let is_drawn = y.is_finite() && (!scale.is_log || *y > 0.0);
        if is_drawn {
            let letter = if is_down { 'L' } else { 'M' };
            let _ = write!(path, "{letter}{:.1} {:.1}", scale.x(*x), scale.y(*y));
        }
        is_down = is_drawn;
    }
    path
}

/// Returns the next larger value of the form 1, 2, 2.5, 4, 5 or 8 times a power of ten.
fn nice_above(value: f64) -> f64 {
    next_step(value, &[1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0])
}

fn next_step(value: f64, steps: &[f64]) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let step = steps.iter().find(|step| **step * power >= value).unwrap_or(&10.0);
    step * power
}

fn round_ticks((from, to): (f64, f64)) -> Vec<(f64, String)> {
    let step = next_step((to - from) / 8.0, &[1.0, 2.0, 5.0, 10.0]);
    let first = (from / step).ceil() as i64;
    let last = (to / step).floor() as i64;
    (first..=last)
        .map(|n| {
            (
                n as f64 * step,
                format!("{}", (n as f64 * step * 100.0).round() / 100.0),
            )
        })
        .collect()
}

/// Escapes text for HTML and its attributes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
