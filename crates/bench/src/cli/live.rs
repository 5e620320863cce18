//! Progress of `run` on a terminal: two lines that are drawn anew every second, with a bar, rates, latencies, errors and the time to go.
//!
//! They are gone when the run has ended, however that came about, so that what stays on the screen is the report. Where standard output or
//! error is no terminal, [`super::lines::Seconds`] writes lines instead.

use std::io::{IsTerminal, stderr, stdout};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::driver::Counts;
use crate::observe::{Moment, Observer, Phase};
use crate::report::measure::whole;
use crate::result::{RunResult, Second};

const BAR: &str = "{bar:24} {msg}";
/// For phases of which nobody knows how long they take.
const NO_BAR: &str = "{spinner} {msg}";

#[derive(Debug)]
pub struct Live {
    bar: ProgressBar,
    is_first: bool,
}

impl Live {
    /// `None` where a line that changes would not be seen.
    pub fn on_terminal() -> Option<Live> {
        if !stdout().is_terminal() || !stderr().is_terminal() {
            return None;
        }
        let target = ProgressDrawTarget::stderr();
        (!target.is_hidden()).then(|| Live::new(target))
    }

    fn new(target: ProgressDrawTarget) -> Live {
        Live {
            bar: ProgressBar::with_draw_target(None, target),
            is_first: true,
        }
    }

    /// `share` of the way that this phase has to go, where that is known.
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

impl Observer for Live {
    fn phase(&mut self, phase: Phase) {
        if std::mem::take(&mut self.is_first) || matches!(phase, Phase::Returning | Phase::Comparing) {
            self.draw(None, name(phase).into());
        }
    }

    fn second(&mut self, moment: &Moment<'_>) {
        self.draw(share(moment), words(moment));
    }

    fn end(&mut self, _: &RunResult) {
        self.bar.finish_and_clear();
    }
}

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Connecting => "connecting",
        Phase::WarmUp => "warming up",
        Phase::Measuring => "measuring",
        Phase::Returning => "the others come",
        Phase::Comparing => "waiting for what is missing",
    }
}

fn share(moment: &Moment<'_>) -> Option<f64> {
    match (moment.phase, moment.remaining_s) {
        (Phase::Connecting, _) => Some(moment.second.connected as f64 / moment.clients.max(1) as f64),
        // From the start of publishing, warm-up included.
        (Phase::WarmUp | Phase::Measuring, Some(rest)) => {
            let past = moment.second.at_s.max(0.0);
            Some(past / (past + rest).max(f64::MIN_POSITIVE))
        }
        _ => None,
    }
}

/// Two lines, each short enough for 80 columns: how far the run is, and how it goes.
fn words(moment: &Moment<'_>) -> String {
    format!(
        "{}\n{}",
        progress(moment).join(" · "),
        measured(moment.second).join(" · ")
    )
}

fn progress(moment: &Moment<'_>) -> Vec<String> {
    let mut words = vec![name(moment.phase).to_owned()];
    if moment.phase == Phase::Connecting {
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
    // Publishers whose messages nobody here receives have acknowledgements at least.
    let latency = match second.end_to_end.count {
        0 => second.acknowledgement,
        _ => second.end_to_end,
    };
    if latency.count > 0 {
        words.push(format!("p50 {:.2} ms, p99 {:.2} ms", latency.p50_ms, latency.p99_ms));
    }
    words
}

/// What has gone wrong so far, as far as it is known before the comparison.
fn errors(totals: &Counts) -> u64 {
    totals.connects_failed + totals.subscribes_failed + totals.disconnects + totals.refused
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;
    use crate::driver::Interval;
    use crate::histogram::{Histogram, Latency};

    /// All that was ever drawn.
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

    /// Of the bar that was drawn last: how much is behind and how much ahead.
    fn marks(drawn: &str) -> (usize, usize) {
        let last = drawn.rsplit("<cleared>").next().unwrap();
        let count = |mark: char| last.chars().filter(|char| *char == mark).count();
        (count('━'), count('─'))
    }

    #[test]
    fn a_second_shows_bar_rates_latencies_errors_and_the_time_to_go() {
        let screen = Screen::default();
        let mut live = Live::new(ProgressDrawTarget::term_like(Box::new(screen.clone())));
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
        let totals = Counts {
            connects_failed: 1,
            refused: 2,
            ..Counts::default()
        };
        let (interval, end_to_end) = (Interval::default(), Histogram::default());
        let mut moment = Moment {
            phase: Phase::Measuring,
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
        // Six of 24, of which the last is its own sign.
        assert_eq!(marks(&drawn), (7, 17), "{drawn}");
        (moment.phase, moment.remaining_s) = (Phase::Connecting, None);
        live.second(&moment);
        let drawn = screen.drawn();
        assert!(drawn.contains("connecting · 30 of 40"), "{drawn}");
        assert_eq!(marks(&drawn), (19, 5), "{drawn}");
    }

    #[test]
    fn what_has_no_planned_end_has_no_bar() {
        let second = Second::default();
        let (interval, totals, end_to_end) = (Interval::default(), Counts::default(), Histogram::default());
        let moment = Moment {
            phase: Phase::Measuring,
            elapsed_s: 6.0,
            remaining_s: None,
            clients: 0,
            second: &second,
            interval: &interval,
            totals: &totals,
            end_to_end: &end_to_end,
        };
        assert_eq!(
            (share(&moment), words(&moment)),
            (None, "measuring · 0 errors\n".to_owned())
        );
    }
}
