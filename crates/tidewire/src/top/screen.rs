//! The screen of `tidewire top`, and the same as text.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Row, Sparkline, Table};

use super::numbers::{RATES, ServerNumbers};

/// Number of readings in a chart, which is the maximum width.
const CHART_POINTS: usize = 512;

/// Titles of the charts, in the order of `RATES`.
const CHARTS: [&str; RATES.len()] = ["received", "sent", "dropped", "bytes in", "bytes out"];

/// Index of the chart that should be empty.
const DROPPED: usize = 2;

/// Width of a number with its short name.
const CELL: usize = 19;
const BETWEEN: &str = "  ";
/// Below this width, tables are narrow.
const NARROW: u16 = 60;
/// From this width on, tables are side by side.
const WIDE: u16 = 140;

const HELP: &str = "\
q  F10  end
space   stop and go on
+  -    longer, shorter delay
r       forget the charts
h  F1   this help
";

/// Contents of the screen.
pub struct ScreenView {
    pub delay: Duration,
    pub is_paused: bool,
    pub is_help: bool,
    /// Why the last request failed.
    pub problem: Option<String>,
    numbers: Option<ServerNumbers>,
    charts: [VecDeque<u64>; RATES.len()],
}

impl ScreenView {
    pub fn new(delay: Duration) -> ScreenView {
        ScreenView {
            delay,
            is_paused: false,
            is_help: false,
            problem: None,
            numbers: None,
            charts: Default::default(),
        }
    }

    pub fn take(&mut self, numbers: ServerNumbers) {
        for (chart, rate) in self.charts.iter_mut().zip(numbers.per_s) {
            if chart.len() == CHART_POINTS {
                chart.pop_front();
            }
            chart.push_back(rate.round() as u64);
        }
        self.numbers = Some(numbers);
        self.problem = None;
    }

    pub fn forget(&mut self) {
        self.charts = Default::default();
    }
}

/// Whether colours are used.
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    pub is_coloured: bool,
}

impl Palette {
    /// See <https://no-color.org>.
    pub fn of_environment() -> Palette {
        Palette {
            is_coloured: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        }
    }

    fn of(self, colour: Color) -> Style {
        match self.is_coloured {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    /// Highlighted without colours as well.
    fn wrong(self) -> Style {
        match self.is_coloured {
            true => self.of(Color::Red),
            false => Style::new().add_modifier(Modifier::BOLD),
        }
    }
}

/// Draws the screen from top to bottom. Rows that do not fit are omitted, except the last.
pub fn draw(frame: &mut Frame<'_>, view: &ScreenView, palette: Palette) {
    let [body, foot] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    match &view.numbers {
        _ if view.is_help => frame.render_widget(Paragraph::new(HELP), body),
        None => frame.render_widget("asking …", body),
        Some(numbers) => draw_numbers(frame, view, numbers, body, palette),
    }
    if let Some(problem) = &view.problem
        && body.height > 0
    {
        let row = Rect {
            y: body.bottom() - 1,
            height: 1,
            ..body
        };
        frame.render_widget(Clear, row);
        frame.render_widget(
            Line::styled(problem.lines().next().unwrap_or_default(), palette.wrong()),
            row,
        );
    }
    frame.render_widget(foot_line(view, palette), foot);
}

fn draw_numbers(frame: &mut Frame<'_>, view: &ScreenView, numbers: &ServerNumbers, area: Rect, palette: Palette) {
    let state = state_lines(numbers, area.width);
    let alarms = alarms(numbers);
    let heights = [1, state.len(), usize::from(alarms.is_some()), 1, RATES.len(), 1];
    let [head, values, wrong, _, charts, _, tables] = areas(area, heights);
    frame.render_widget(Line::styled(head_text(numbers), Modifier::BOLD), head);
    frame.render_widget(Paragraph::new(state.join("\n")), values);
    if let Some(alarms) = alarms {
        frame.render_widget(Line::styled(alarms, palette.wrong()), wrong);
    }
    for (row, index) in charts.rows().zip(0..RATES.len()) {
        draw_chart(frame, view, numbers, index, row, palette);
    }
    let (listeners, drops) = (listeners(numbers, area.width, palette), drops(numbers, palette));
    if area.width >= WIDE {
        let [left, _, right] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Length(4), Constraint::Fill(1)]).areas(tables);
        frame.render_widget(listeners, left);
        frame.render_widget(drops, right);
        return;
    }
    let count = numbers.listeners.as_array().map_or(0, Vec::len);
    let [above, _, below] = areas(tables, [count + 1, 1]);
    frame.render_widget(listeners, above);
    frame.render_widget(drops, below);
}

/// Returns areas of these heights from the top, as far as there is space, and the rest.
fn areas<const GIVEN: usize, const ALL: usize>(area: Rect, heights: [usize; GIVEN]) -> [Rect; ALL] {
    let mut top = area.top();
    std::array::from_fn(|index| {
        let left = area.bottom() - top;
        let height = heights.get(index).map_or(left, |height| {
            u16::try_from(*height).map_or(left, |height| height.min(left))
        });
        let row = Rect { y: top, height, ..area };
        top += height;
        row
    })
}

fn foot_line(view: &ScreenView, palette: Palette) -> Line<'static> {
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let (style, state) = match (view.is_paused, &view.problem) {
        (true, _) => (reversed, " stopped ".to_owned()),
        (false, Some(_)) => (palette.wrong(), " no answer ".to_owned()),
        (false, None) => (reversed, format!(" every {} s ", view.delay.as_secs())),
    };
    Line::from(vec![
        Span::styled(state, style),
        Span::raw("  q end  space stop  +/- delay  h help"),
    ])
}

/// Returns as many columns as fit.
fn state_lines(numbers: &ServerNumbers, columns: u16) -> Vec<String> {
    let text = state_text(numbers);
    let is_wide = text.lines().all(|line| line.chars().count() <= usize::from(columns));
    if is_wide {
        return text.lines().map(str::to_owned).collect();
    }
    let cells = cells(numbers);
    let beside = ((usize::from(columns) + BETWEEN.len()) / (CELL + BETWEEN.len())).max(1);
    let rows = cells.chunks(beside).map(|row| {
        let row: Vec<String> = row
            .iter()
            .map(|(name, value)| format!("{name:<9}{value:>10}"))
            .collect();
        row.join(BETWEEN)
    });
    rows.collect()
}

/// The same numbers with short names.
fn cells(numbers: &ServerNumbers) -> Vec<(&'static str, String)> {
    let of = |pointer: &str| grouped(numbers.number(pointer));
    vec![
        ("clients", of("/connections/current")),
        ("refused", of("/connections/refused")),
        ("sessions", of("/sessions/current")),
        ("filters", of("/subscriptions/current")),
        ("waiting", of("/queued/messages")),
        ("in flight", of("/inflight_messages")),
        ("retained", of("/retained/messages")),
        ("processor", cpu_text(numbers)),
        ("memory", bytes(numbers.number("/process/resident_bytes"))),
        ("disk free", known_bytes(numbers, "/disk/free_bytes")),
        ("journal", known_bytes(numbers, "/journal/file_bytes")),
        ("unsynced", known_bytes(numbers, "/journal/backlog_bytes")),
        ("ack half", wait(numbers, "/publish_ack/p50_ms")),
        ("ack 99 %", wait(numbers, "/publish_ack/p99_ms")),
    ]
}

fn head_text(numbers: &ServerNumbers) -> String {
    format!(
        "tidewire {} · {} · up {} · {}",
        numbers.text("/node/version"),
        numbers.text("/node/name"),
        duration(numbers.number("/node/uptime_s")),
        numbers.text("/node/durability"),
    )
}

fn state_text(numbers: &ServerNumbers) -> String {
    let of = |pointer: &str| grouped(numbers.number(pointer));
    let cpu = cpu_text(numbers);
    format!(
        "clients   {:>12}   most {:>12}   refused {:>12}\n\
         sessions  {:>12}   subscriptions {:>12}\n\
         waiting   {:>12}   {:>10}   in flight {:>12}\n\
         retained  {:>12}   {:>10}\n\
         processor {:>12}   memory {:>12}   shards {}\n\
         disk free {:>12}   of {:>14}\n\
         journal   {:>12}   not on disk {:>9}\n\
         acknowledged within {:>9} (half), {:>9} (99 of 100)",
        of("/connections/current"),
        of("/connections/maximum"),
        of("/connections/refused"),
        of("/sessions/current"),
        of("/subscriptions/current"),
        of("/queued/messages"),
        bytes(numbers.number("/queued/bytes")),
        of("/inflight_messages"),
        of("/retained/messages"),
        bytes(numbers.number("/retained/bytes")),
        cpu,
        bytes(numbers.number("/process/resident_bytes")),
        of("/node/shards"),
        known_bytes(numbers, "/disk/free_bytes"),
        known_bytes(numbers, "/disk/total_bytes"),
        known_bytes(numbers, "/journal/file_bytes"),
        known_bytes(numbers, "/journal/backlog_bytes"),
        wait(numbers, "/publish_ack/p50_ms"),
        wait(numbers, "/publish_ack/p99_ms"),
    )
}

fn cpu_text(numbers: &ServerNumbers) -> String {
    let cores = numbers.cpu_cores;
    cores.map_or_else(|| "?".to_owned(), |cores| format!("{:.0} %", cores * 100.0))
}

fn known_bytes(numbers: &ServerNumbers, pointer: &str) -> String {
    let known = numbers.stats.pointer(pointer).and_then(serde_json::Value::as_u64);
    known.map_or_else(|| "–".to_owned(), bytes)
}

/// Latency for publishers of QoS 1 and 2 in the last second.
fn wait(numbers: &ServerNumbers, pointer: &str) -> String {
    let ms = numbers.stats.pointer(pointer).and_then(serde_json::Value::as_f64);
    ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.2} ms"))
}

/// Active alarms in one line.
fn alarms(numbers: &ServerNumbers) -> Option<String> {
    let names = numbers.alarms();
    (!names.is_empty()).then(|| format!("alarms    {}", names.join("  ")))
}

/// The rate and its history. A full block is the highest value shown.
fn draw_chart(
    frame: &mut Frame<'_>,
    view: &ScreenView,
    numbers: &ServerNumbers,
    index: usize,
    area: Rect,
    palette: Palette,
) {
    let label = rate_text(numbers, index) + "  ";
    let width = u16::try_from(label.chars().count()).unwrap_or(u16::MAX);
    let [left, right] = Layout::horizontal([Constraint::Length(width), Constraint::Fill(1)]).areas(area);
    frame.render_widget(label, left);
    let points = &view.charts[index];
    let shown = points
        .iter()
        .skip(points.len().saturating_sub(right.width.into()))
        .copied();
    let style = if index == DROPPED {
        palette.wrong()
    } else {
        palette.of(Color::Cyan)
    };
    frame.render_widget(Sparkline::default().data(shown).style(style), right);
}

fn rate_text(numbers: &ServerNumbers, index: usize) -> String {
    let rate = numbers.per_s[index].round() as u64;
    let is_bytes = RATES[index].0.starts_with("bytes");
    let text = if is_bytes { bytes(rate) } else { grouped(rate) };
    format!("{:<10}{text:>12}/s", CHARTS[index])
}

/// A narrow terminal omits the rejected connections per listener: the address is more useful, and the sum is shown
/// above.
fn listeners(numbers: &ServerNumbers, columns: u16, palette: Palette) -> Table<'static> {
    let is_narrow = columns < NARROW;
    let shown_columns = if is_narrow { 3 } else { 4 };
    let rows = numbers.listeners.as_array().into_iter().flatten().map(|listener| {
        let text = |name: &str| listener[name].as_str().unwrap_or_default();
        let refused = listener["refused"].as_object().into_iter().flatten();
        let refused: u64 = refused.filter_map(|(_, count)| count.as_u64()).sum();
        let cells = [
            Line::from(text("name").to_owned()),
            Line::from(format!("{}://{}", text("transport"), text("address"))),
            number_line(listener["connections"].as_u64().unwrap_or(0)),
            number_line(refused),
        ];
        Row::new(cells.into_iter().take(shown_columns))
    });
    let (name, connections) = if is_narrow { (8, 7) } else { (12, 12) };
    let widths = [
        Constraint::Length(name),
        Constraint::Max(34),
        Constraint::Length(connections),
        Constraint::Length(10),
    ];
    let word = if is_narrow { "CLIENTS" } else { "CONNECTIONS" };
    let head = [
        Line::from("LISTENER"),
        Line::from("ADDRESS"),
        Line::from(word).right_aligned(),
        Line::from("REFUSED").right_aligned(),
    ];
    let head = Row::new(head.into_iter().take(shown_columns)).style(palette.of(Color::Green));
    Table::new(rows, widths.into_iter().take(shown_columns)).header(head)
}

fn drops(numbers: &ServerNumbers, palette: Palette) -> Table<'static> {
    let largest = numbers.largest("/drops").into_iter();
    let rows = largest.map(|(reason, count)| Row::new([Line::from(reason.to_owned()), number_line(count)]));
    let head = Row::new([
        Line::from("NOT DELIVERED, BY REASON"),
        Line::from("MESSAGES").right_aligned(),
    ]);
    let widths = [Constraint::Max(46), Constraint::Length(12)];
    Table::new(rows, widths).header(head.style(palette.of(Color::Green)))
}

fn number_line(number: u64) -> Line<'static> {
    Line::from(grouped(number)).right_aligned()
}

/// Prints text, for use without a terminal.
pub fn plain(numbers: &ServerNumbers) -> String {
    let mut text = format!("{}\n{}\n", head_text(numbers), state_text(numbers));
    for index in 0..RATES.len() {
        text.push_str(&rate_text(numbers, index));
        text.push('\n');
    }
    for (reason, count) in numbers.largest("/drops") {
        writeln!(text, "not delivered, {reason}: {}", grouped(count)).expect("a String accepts all text");
    }
    text
}

/// Formats a number as `1 234 567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{number} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match days {
        0 => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        days => format!("{days} d {hours}:{minutes:02}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Cell;

    use super::super::numbers::tests::numbers;
    use super::*;

    fn drawn(view: &ScreenView, columns: u16, rows: u16, is_coloured: bool) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal
            .draw(|frame| draw(frame, view, Palette { is_coloured }))
            .unwrap();
        terminal
    }

    fn shown(view: &ScreenView, columns: u16, rows: u16) -> String {
        let terminal = drawn(view, columns, rows, true);
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(columns.into());
        let line = |row: &[Cell]| row.iter().map(Cell::symbol).collect::<String>().trim_end().to_owned() + "\n";
        rows.map(line).collect()
    }

    #[test]
    fn the_screen_has_what_matters() {
        let mut view = ScreenView::new(Duration::from_secs(5));
        assert!(shown(&view, 100, 30).contains("asking"));
        for _ in 0..700 {
            view.take(numbers());
        }
        let text = shown(&view, 100, 30);
        for part in [
            "tidewire 0.1.0 · n1 · up 1 d 2:03 · every acknowledged message is on disk",
            "clients         12 345   most       20 000   refused            3",
            "received         2 000/s",
            "bytes in    1000.0 KiB/s",
            "processor         25 %   memory     19.1 MiB   shards 2",
            "disk free     21.0 GiB   of      252.0 GiB",
            "journal       64.0 MiB   not on disk   4.0 KiB",
            "acknowledged within   0.25 ms (half),   3.50 ms (99 of 100)",
            "default      tcp://0.0.0.0:1883                       12 345          2",
            "queue_full_by_count                                      24",
            "alarms    journal_full  action:http:web",
            "every 5 s",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(text.contains('█'), "a chart\n{text}");
        view.is_paused = true;
        view.is_help = true;
        let text = shown(&view, 100, 30);
        assert!(
            text.contains(" stopped ") && text.contains("longer, shorter delay"),
            "{text}"
        );
        view.is_paused = false;
        view.problem = Some("connection refused".into());
        assert!(shown(&view, 100, 30).contains("connection refused"));
    }

    #[test]
    fn a_small_terminal_is_no_reason_to_fail() {
        let mut view = ScreenView::new(Duration::from_secs(1));
        view.take(numbers());
        view.is_help = true;
        for (columns, rows) in [(1, 1), (20, 5), (40, 20), (80, 24), (300, 100)] {
            let text = shown(&view, columns, rows);
            assert!(columns < 20 || text.contains("q end"), "{text}");
        }
        view.is_help = false;
        for (columns, rows) in [(1, 1), (1, 40), (20, 5), (80, 3)] {
            shown(&view, columns, rows);
        }
    }

    #[test]
    fn a_narrow_terminal_has_the_numbers_and_a_wide_one_tables_side_by_side() {
        let mut view = ScreenView::new(Duration::from_secs(1));
        view.take(numbers());
        let text = shown(&view, 40, 20);
        for part in [
            "clients      12 345  refused           3",
            "retained          7  processor      25 %",
            "ack half    0.25 ms  ack 99 %    3.50 ms",
            "received         2 000/s",
            "alarms    journal_full",
            "default  tcp://0.0.0.0:1883       12 345",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let text = shown(&view, 200, 50);
        let row = text.lines().find(|row| row.starts_with("LISTENER")).unwrap();
        assert!(row.contains("NOT DELIVERED"), "{text}");
    }

    #[test]
    fn colours_are_left_out_where_they_are_not_wanted() {
        let mut view = ScreenView::new(Duration::from_secs(1));
        view.take(numbers());
        view.problem = Some("gone".into());
        let has_colour = |is_coloured| {
            let terminal = drawn(&view, 80, 40, is_coloured);
            let mut cells = terminal.backend().buffer().content().iter();
            cells.any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(has_colour(true) && !has_colour(false));
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!((grouped(7), grouped(1_234_567)), ("7".into(), "1 234 567".into()));
        assert_eq!((bytes(1023), bytes(1536)), ("1023 B".into(), "1.5 KiB".into()));
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(duration(3661), "1:01:01");
        assert!(plain(&numbers()).contains("not delivered, queue_full_by_count: 24\n"));
    }
}
