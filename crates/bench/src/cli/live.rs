//! Progress of `run` on a terminal: two lines that are redrawn every second, with a bar, rates, latencies, errors and
//! the remaining time.
//!
//! They are erased when the run ends, also after a failure, so that the report remains on the screen. If standard
//! output or standard error is not a terminal, [`super::lines::Seconds`] writes lines instead.

use std::io::{IsTerminal, stderr, stdout};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::driver::LoadCounts;
use crate::observe::{RunObserver, RunPhase, RunSecond};
use crate::report::measure::whole;
use crate::result::{RunResult, Second};

const BAR: &str = "{bar:24} {msg}";
/// For phases of unknown length.
const NO_BAR: &str = "{spinner} {msg}";

#[derive(Debug)]
pub struct LiveProgress {
    bar: ProgressBar,
    is_first: bool,
}

impl LiveProgress {
    /// Returns `None` unless standard output and standard error are terminals.
    pub fn on_terminal() -> Option<LiveProgress> {
        if !stdout().is_terminal() || !stderr().is_terminal() {
            return None;
        }
        let target = ProgressDrawTarget::stderr();
        (!target.is_hidden()).then(|| LiveProgress::new(target))
    }

    fn new(target: ProgressDrawTarget) -> LiveProgress {
        LiveProgress {
            bar: ProgressBar::with_draw_target(None, target),
            is_first: true,
        }
    }

    /// Draws the lines; `share` is the completed part of the phase, if it is known.
    fn draw(&mut self, share: Option<f64>, words: String) {
        const STEPS: u64 = 1_000;
        let template = if share.is_some() { BAR } else { NO_BAR };
        let style = ProgressStyle::with_template(template).expect("the templates of this file are valid");
        self.bar.set_style(style.progress_chars("━━─"));
        if let Some(share) = share {
            self.bar.set_length(STEPS);
            self.bar.set_position((share.clamp(0.0, 1.0) * STEPS as f64) as u64);
        }
        self.bar.set_message(words);
        self.bar.tick();
    }
}

impl RunObserver for LiveProgress {
    fn phase(&mut self, phase: RunPhase) {
        if std::mem::take(&mut self.is_first) || matches!(phase, RunPhase::Returning | RunPhase::Comparing) {
            self.draw(None, name(phase).into());
        }
    }

    fn second(&mut self, moment: &RunSecond<'_>) {
        self.draw(share(moment), progress_lines(moment));
    }

    fn end(&mut self, _: &RunResult) {
        self.bar.finish_and_clear();
    }
}

fn name(phase: RunPhase) -> &'static str {
    match phase {
        RunPhase::Connecting => "connecting",
        RunPhase::WarmUp => "warming up",
        RunPhase::Measuring => "measuring",
        RunPhase::Returning => "connecting the absent clients",
        RunPhase::Comparing => "waiting for missing messages",
    }
}

fn share(moment: &RunSecond<'_>) -> Option<f64> {
    match (moment.phase, moment.remaining_s) {
        (RunPhase::Connecting, _) => Some(moment.second.connected as f64 / moment.clients.max(1) as f64),
        // Since the start of publishing, warm-up included.
        (RunPhase::WarmUp | RunPhase::Measuring, Some(rest)) => {
            let past = moment.second.at_s.max(0.0);
            Some(past / (past + rest).max(f64::MIN_POSITIVE))
        }
        _ => None,
    }
}

/// Returns two lines, each short enough for 80 columns: the progress of the run, and its rates.
fn progress_lines(moment: &RunSecond<'_>) -> String {
    format!(
        "{}\n{}",
        progress(moment).join(" · "),
        measured(moment.second).join(" · ")
    )
}

fn progress(moment: &RunSecond<'_>) -> Vec<String> {
    let mut words = vec![name(moment.phase).to_owned()];
    if moment.phase == RunPhase::Connecting {
        let [connected, clients] = [moment.second.connected, moment.clients].map(|count| whole(count as f64));
        words.push(format!("{connected} of {clients}"));
    }
    words.extend(moment.remaining_s.map(|rest| format!("{rest:.0} s to go")));
    words.push(match errors(moment.totals) {
        1 => "1 error".into(),
        errors => format!("{} errors", whole(errors as f64)),
    });
    words
}

fn measured(second: &Second) -> Vec<String> {
    let mut words = Vec::new();
    for (rate, noun) in [(second.published, "published/s"), (second.delivered, "delivered/s")] {
        if rate > 0.0 {
            words.push(format!("{} {noun}", whole(rate)));
        }
    }
    // If no client receives the messages, there is at least the latency of the acknowledgements.
    let latency = match second.end_to_end.count {
        0 => second.acknowledgement,
        _ => second.end_to_end,
    };
    if latency.count > 0 {
        words.push(format!("p50 {:.2} ms, p99 {:.2} ms", latency.p50_ms, latency.p99_ms));
    }
    words
}

/// Counts the errors that are known before the comparison.
fn errors(totals: &LoadCounts) -> u64 {
    totals.connects_failed + totals.subscribes_failed + totals.disconnects + totals.refused
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;
    use crate::driver::LoadInterval;
    use crate::histogram::{Histogram, Latency};

    /// Records everything that was drawn.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl Screen {
        fn drawn(&self) -> String {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            160
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.write_line(text)
        }

        fn clear_line(&self) -> io::Result<()> {
            self.write_line("<cleared>")
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns how many marks of the bar that was drawn last are done and how many remain.
    fn marks(drawn: &str) -> (usize, usize) {
        let last = drawn.rsplit("<cleared>").next().unwrap();
        let count = |mark: char| last.chars().filter(|char| *char == mark).count();
        (count('━'), count('─'))
    }

    #[test]
    fn live_second_shows_bar_rates_errors_and_time() {
        let screen = Screen::default();
        let mut live = LiveProgress::new(ProgressDrawTarget::term_like(Box::new(screen.clone())));
        let second = Second {
            at_s: 5.0,
            connected: 30,
            published: 1_000.0,
            delivered: 123_456.0,
            end_to_end: Latency {
                count: 9,
                p50_ms: 0.125,
                p99_ms: 3.5,
                ..Latency::default()
            },
            ..Second::default()
        };
        let totals = LoadCounts {
            connects_failed: 1,
            refused: 2,
            ..LoadCounts::default()
        };
        let (interval, end_to_end) = (LoadInterval::default(), Histogram::default());
        let mut moment = RunSecond {
            phase: RunPhase::Measuring,
            elapsed_s: 6.0,
            remaining_s: Some(15.0),
            clients: 40,
            second: &second,
            interval: &interval,
            totals: &totals,
            end_to_end: &end_to_end,
        };
        live.second(&moment);
        let drawn = screen.drawn();
        for words in [
            "measuring · 15 s to go · 3 errors",
            "1,000 published/s · 123,456 delivered/s · p50 0.12 ms, p99 3.50 ms",
        ] {
            assert!(drawn.contains(words), "{drawn}");
        }
        // Six of 24 are done; the head of the bar counts as one more mark.
        assert_eq!(marks(&drawn), (7, 17), "{drawn}");
        (moment.phase, moment.remaining_s) = (RunPhase::Connecting, None);
        live.second(&moment);
        let drawn = screen.drawn();
        assert!(drawn.contains("connecting · 30 of 40"), "{drawn}");
        assert_eq!(marks(&drawn), (19, 5), "{drawn}");
    }

    #[test]
    fn live_without_planned_end_has_no_bar() {
        let second = Second::default();
        let (interval, totals, end_to_end) = (LoadInterval::default(), LoadCounts::default(), Histogram::default());
        let moment = RunSecond {
            phase: RunPhase::Measuring,
            elapsed_s: 6.0,
            remaining_s: None,
            clients: 0,
            second: &second,
            interval: &interval,
            totals: &totals,
            end_to_end: &end_to_end,
        };
        assert_eq!(
            (share(&moment), progress_lines(&moment)),
            (None, "measuring · 0 errors\n".to_owned())
        );
    }
}
