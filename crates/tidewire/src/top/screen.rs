//! The screen of `tidewire top`, and the same as plain text.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use super::numbers::{Numbers, RATES};
use super::terminal::{Line, Style};

/// Readings in a chart; a terminal is no wider.
const CHART_POINTS: usize = 512;

/// What the charts are called, in the order of `RATES`.
const CHARTS: [&str; RATES.len()] = ["received", "sent", "dropped", "bytes in", "bytes out"];

/// Of them, the one that should be empty.
const DROPPED: usize = 2;

/// From nothing to the most.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

const HELP: &str = "\
q  F10  end
space   stop and go on
+  -    longer, shorter delay
r       forget the charts
h  F1   this help
";

/// What is on the screen.
pub struct View {
    pub delay: Duration,
    pub is_paused: bool,
    pub is_help: bool,
    /// Why the last question had no answer.
    pub problem: Option<String>,
    numbers: Option<Numbers>,
    charts: [VecDeque<u64>; RATES.len()],
}

impl View {
    pub fn new(delay: Duration) -> View {
        View {
            delay,
            is_paused: false,
            is_help: false,
            problem: None,
            numbers: None,
            charts: Default::default(),
        }
    }

    pub fn take(&mut self, numbers: Numbers) {
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

/// The screen, from top to bottom.
pub fn lines(view: &View, columns: usize, rows: usize) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    match &view.numbers {
        None => lines.push(plainly("asking …")),
        Some(numbers) => {
            lines.push(vec![(Style::Bold, head_text(numbers))]);
            lines.extend(state_text(numbers).lines().map(plainly));
            lines.extend(alarms(numbers));
            lines.push(Vec::new());
            for index in 0..RATES.len() {
                lines.push(chart(view, numbers, index, columns));
            }
            lines.push(Vec::new());
            lines.extend(listeners(numbers));
            lines.push(Vec::new());
            lines.extend(drops(numbers));
        }
    }
    if view.is_help {
        lines = HELP.lines().map(plainly).collect();
    }
    // What does not fit is left out; the last row is always there.
    lines.resize(rows.saturating_sub(1), Vec::new());
    if let (Some(problem), Some(last)) = (&view.problem, lines.last_mut()) {
        let text = problem.lines().next().unwrap_or_default().to_owned();
        *last = vec![(Style::Red, text)];
    }
    lines.push(foot(view));
    lines
}

fn plainly(text: &str) -> Line {
    vec![(Style::Plain, text.to_owned())]
}

fn foot(view: &View) -> Line {
    let (style, state) = match (view.is_paused, &view.problem) {
        (true, _) => (Style::Reversed, " stopped ".to_owned()),
        (false, Some(_)) => (Style::Red, " no answer ".to_owned()),
        (false, None) => (Style::Reversed, format!(" every {} s ", view.delay.as_secs())),
    };
    vec![
        (style, state),
        (Style::Plain, "  q end  space stop  +/- delay  h help".to_owned()),
    ]
}

fn head_text(numbers: &Numbers) -> String {
    format!(
        "tidewire {} · {} · up {} · {}",
        numbers.text("/node/version"),
        numbers.text("/node/name"),
        duration(numbers.number("/node/uptime_s")),
        numbers.text("/node/durability"),
    )
}

fn state_text(numbers: &Numbers) -> String {
    let of = |pointer: &str| grouped(numbers.number(pointer));
    let cpu = numbers
        .cpu_cores
        .map_or_else(|| "?".to_owned(), |cores| format!("{:.0} %", cores * 100.0));
    format!(
        "clients   {:>12}   most {:>12}   refused {:>12}\n\
         sessions  {:>12}   subscriptions {:>12}\n\
         waiting   {:>12}   {:>10}   in flight {:>12}\n\
         retained  {:>12}   {:>10}\n\
         processor {:>12}   memory {:>12}   shards {}\n\
         disk free {:>12}   of {:>16}   journal {:>12}   not on disk {:>9}\n\
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

fn known_bytes(numbers: &Numbers, pointer: &str) -> String {
    let known = numbers.stats.pointer(pointer).and_then(serde_json::Value::as_u64);
    known.map_or_else(|| "–".to_owned(), bytes)
}

/// Of publishers of QoS 1 and 2, in the last second.
fn wait(numbers: &Numbers, pointer: &str) -> String {
    let ms = numbers.stats.pointer(pointer).and_then(serde_json::Value::as_f64);
    ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.2} ms"))
}

/// What is wrong with the node, on one line: the names say what.
fn alarms(numbers: &Numbers) -> Option<Line> {
    let names = numbers.alarms();
    let text = format!("alarms    {}", names.join("  "));
    (!names.is_empty()).then(|| vec![(Style::Red, text)])
}

/// The rate, and how it was, the highest of what is shown being a full block.
fn chart(view: &View, numbers: &Numbers, index: usize, columns: usize) -> Line {
    let label = rate_text(numbers, index) + "  ";
    let points = &view.charts[index];
    let shown = columns.saturating_sub(label.chars().count());
    let points = points.iter().skip(points.len().saturating_sub(shown));
    let highest = points.clone().copied().max().unwrap_or(0).max(1);
    let last = BLOCKS.len() as u64 - 1;
    let bars = points.map(|point| BLOCKS[(point * last).div_ceil(highest) as usize]);
    let style = if index == DROPPED { Style::Red } else { Style::Cyan };
    vec![(Style::Plain, label), (style, bars.collect())]
}

fn rate_text(numbers: &Numbers, index: usize) -> String {
    let rate = numbers.per_s[index].round() as u64;
    let is_bytes = RATES[index].0.starts_with("bytes");
    let text = if is_bytes { bytes(rate) } else { grouped(rate) };
    format!("{:<10}{text:>12}/s", CHARTS[index])
}

fn listeners(numbers: &Numbers) -> Vec<Line> {
    let head = format!(
        "{:<12}{:<34}{:>12}{:>10}",
        "LISTENER", "ADDRESS", "CONNECTIONS", "REFUSED"
    );
    let mut lines = vec![vec![(Style::Green, head)]];
    for listener in numbers.listeners.as_array().into_iter().flatten() {
        let text = |name: &str| listener[name].as_str().unwrap_or_default();
        let refused = listener["refused"].as_object().into_iter().flatten();
        let refused: u64 = refused.filter_map(|(_, count)| count.as_u64()).sum();
        lines.push(plainly(&format!(
            "{:<12}{:<34}{:>12}{:>10}",
            text("name"),
            format!("{}://{}", text("transport"), text("address")),
            grouped(listener["connections"].as_u64().unwrap_or(0)),
            grouped(refused),
        )));
    }
    lines
}

fn drops(numbers: &Numbers) -> Vec<Line> {
    let head = format!("{:<46}{:>12}", "NOT DELIVERED, BY REASON", "MESSAGES");
    let mut lines = vec![vec![(Style::Green, head)]];
    for (reason, count) in numbers.largest("/drops") {
        lines.push(plainly(&format!("{reason:<46}{:>12}", grouped(count))));
    }
    lines
}

/// Without a terminal.
pub fn plain(numbers: &Numbers) -> String {
    let mut text = format!("{}\n{}\n", head_text(numbers), state_text(numbers));
    for index in 0..RATES.len() {
        text.push_str(&rate_text(numbers, index));
        text.push('\n');
    }
    for (reason, count) in numbers.largest("/drops") {
        writeln!(text, "not delivered, {reason}: {}", grouped(count)).expect("a String takes everything");
    }
    text
}

/// `1 234 567`.
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
    use super::super::numbers::tests::numbers;
    use super::*;

    fn shown(view: &View, columns: usize, rows: usize) -> String {
        let lines = lines(view, columns, rows);
        assert_eq!(lines.len(), rows);
        let line = |line: &Line| line.iter().map(|(_, text)| text.as_str()).collect::<String>();
        lines.iter().map(|one| line(one) + "\n").collect()
    }

    #[test]
    fn the_screen_has_what_matters() {
        let mut view = View::new(Duration::from_secs(5));
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
            "disk free     21.0 GiB   of        252.0 GiB   journal     64.0 MiB   not on disk   4.0 KiB",
            "acknowledged within   0.25 ms (half),   3.50 ms (99 of 100)",
            "default     tcp://0.0.0.0:1883                      12 345         2",
            "queue_full_by_count                                     24",
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
        let mut view = View::new(Duration::from_secs(1));
        view.take(numbers());
        view.is_help = true;
        for (columns, rows) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            assert!(shown(&view, columns, rows).contains("q end"));
        }
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
