//! `--require 'p99<10ms'`: a condition on the result. One measure, one comparison, one number with a unit.
//!
//! ```text
//! threshold  := measure ("<" | "<=" | ">" | ">=" | "==") number unit
//! number     := digits, a fraction, an exponent, then k, M or G
//! unit       := us | ms | s (latency, CPU) | B | kB | KiB | MB | MiB | GB | GiB | % | /s, or none: ms, bytes, 1
//! ```

use std::fmt;
use std::str::FromStr;

use super::measure::{self, Measure, MeasureUnit};
use crate::result::{RunResult, ThresholdVerdict};

#[derive(Clone)]
pub struct Threshold {
    text: String,
    measure: &'static Measure,
    comparison: Comparison,
    bound: f64,
}

impl fmt::Debug for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    More,
    AtLeast,
    Equal,
}

/// Longer operators come first, so that `<=` is not read as `<`.
const COMPARISONS: [(&str, Comparison); 6] = [
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("==", Comparison::Equal),
    ("<", Comparison::Less),
    (">", Comparison::More),
    ("=", Comparison::Equal),
];

/// An error in a threshold, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThresholdError {
    text: String,
    /// Position in characters.
    at: usize,
    expected: String,
}

impl fmt::Display for ThresholdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}^ {}", self.text, " ".repeat(self.at), self.expected)
    }
}

impl std::error::Error for ThresholdError {}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Threshold, ThresholdError> {
        let wrong = |rest: &str, expected: String| ThresholdError {
            text: text.into(),
            at: text.chars().count() - rest.chars().count(),
            expected,
        };
        let rest = text.trim_start();
        let name_end = rest
            .find(|c: char| "<>=".contains(c) || c.is_whitespace())
            .unwrap_or(rest.len());
        let (name, after) = rest.split_at(name_end);
        let measure = measure::find(name).ok_or_else(|| wrong(rest, unknown_measure_error(name)))?;
        let after = after.trim_start();
        let (sign, comparison) = COMPARISONS
            .into_iter()
            .find(|(sign, _)| after.starts_with(sign))
            .ok_or_else(|| wrong(after, "expected <, <=, >, >= or ==".into()))?;
        let number = after[sign.len()..].trim_start();
        let (value, unit) = split_number(number).ok_or_else(|| wrong(number, "expected a number".into()))?;
        let factor = factor(measure.unit, unit.trim()).ok_or_else(|| wrong(unit, units_of(measure)))?;
        Ok(Threshold {
            text: text.trim().into(),
            measure,
            comparison,
            bound: value * factor,
        })
    }
}

impl Threshold {
    pub fn verdict(&self, result: &RunResult) -> ThresholdVerdict {
        let found = (self.measure.of)(result);
        let unit = self.measure.unit;
        ThresholdVerdict {
            rule: self.text.clone(),
            found: found.map_or("not measured in this run".into(), |value| {
                measure::format_value(unit, value)
            }),
            is_met: found.is_some_and(|value| self.comparison.is_met(value, self.bound)),
        }
    }
}

impl Comparison {
    fn is_met(self, value: f64, bound: f64) -> bool {
        match self {
            Comparison::Less => value < bound,
            Comparison::AtMost => value <= bound,
            Comparison::More => value > bound,
            Comparison::AtLeast => value >= bound,
            Comparison::Equal => value == bound,
        }
    }
}

fn unknown_measure_error(name: &str) -> String {
    let names = || measure::MEASURES.iter().map(|measure| measure.name);
    let near = names().find(|known| known.starts_with(name) || name.starts_with(known));
    match near.filter(|_| !name.is_empty()) {
        Some(near) => format!("unknown measure `{name}`; did you mean `{near}`?"),
        None => format!(
            "unknown measure `{name}`; known measures are {}",
            names().collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Returns the number, multiplied by a following k, M or G, and the rest of the text.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let is_part = |(index, c): (usize, char)| {
        let before = text[..index].chars().next_back();
        c.is_ascii_digit() || c == '.' || c == '-' && matches!(before, None | Some('e' | 'E')) || {
            let next = text[index + c.len_utf8()..].chars().next();
            matches!(c, 'e' | 'E') && next.is_some_and(|next| next.is_ascii_digit() || next == '-')
        }
    };
    let end = text
        .char_indices()
        .find(|at| !is_part(*at))
        .map_or(text.len(), |(index, _)| index);
    let value: f64 = text[..end].parse().ok()?;
    let rest = &text[end..];
    let scales = [("k", 1e3), ("M", 1e6), ("G", 1e9)];
    let is_unit = |rest: &str| rest.is_empty() || rest.starts_with('/') || rest.starts_with(char::is_whitespace);
    let scaled = scales.into_iter().find_map(|(letter, scale)| {
        let rest = rest.strip_prefix(letter)?;
        is_unit(rest).then_some((value * scale, rest))
    });
    Some(scaled.unwrap_or((value, rest)))
}

fn factor(unit: MeasureUnit, text: &str) -> Option<f64> {
    let known: &[(&str, f64)] = match unit {
        MeasureUnit::Milliseconds => &[("", 1.0), ("ms", 1.0), ("us", 1e-3), ("µs", 1e-3), ("s", 1e3)],
        MeasureUnit::Seconds => &[("", 1.0), ("s", 1.0), ("ms", 1e-3)],
        MeasureUnit::Bytes => &[
            ("", 1.0),
            ("B", 1.0),
            ("kB", 1e3),
            ("KB", 1e3),
            ("KiB", 1024.0),
            ("MB", 1e6),
            ("MiB", 1_048_576.0),
            ("GB", 1e9),
            ("GiB", 1_073_741_824.0),
        ],
        MeasureUnit::PerSecond => &[("", 1.0), ("/s", 1.0)],
        MeasureUnit::Share => &[("", 1.0), ("%", 0.01)],
        MeasureUnit::Count | MeasureUnit::Cores => &[("", 1.0)],
    };
    known.iter().find(|(name, _)| *name == text).map(|(_, factor)| *factor)
}

fn units_of(measure: &Measure) -> String {
    let units = match measure.unit {
        MeasureUnit::Milliseconds => "us, ms or s",
        MeasureUnit::Seconds => "s or ms",
        MeasureUnit::Bytes => "B, kB, KiB, MB, MiB, GB or GiB",
        MeasureUnit::PerSecond => "/s",
        MeasureUnit::Share => "%",
        MeasureUnit::Count | MeasureUnit::Cores => "no unit",
    };
    format!("expected {units} for {}", measure.name)
}
