//! Combines the intervals of all drivers: sums over the parts of a run, and one [`Second`] after the other.
//!
//! An interval is complete when every driver has reported until its end or later. It is then counted once, to the part
//! of the run in which it ended. Rates use the measured part alone. Latencies also use deliveries after the end of
//! publishing: without them, a broker that falls behind would look better the later it delivers.

use std::collections::BTreeMap;

use crate::driver::{LoadCounts, LoadInterval};
use crate::load::{add_counts, add_parallel};
use crate::result::Second;

pub const SECOND_NS: u64 = 1_000_000_000;
/// Longest series; longer runs are shown in steps of several seconds.
const SECONDS_MAX: usize = 7_200;

#[derive(Debug)]
pub struct Timeline {
    /// By driver: the time until which it has reported, and how many of its clients are connected.
    reported_ns: Vec<u64>,
    connected: Vec<u64>,
    pending: BTreeMap<u64, LoadInterval>,
    pub window: RunTimes,
    pub connecting: IntervalSum,
    pub warm_up: IntervalSum,
    pub measured: IntervalSum,
    /// Between the end of publishing and the return of absent clients, or the end.
    pub tail: IntervalSum,
    pub replay: IntervalSum,
    pub totals: LoadCounts,
    /// Connect, handshake and subscribe times of the whole run.
    pub whole: LoadInterval,
    second: LoadInterval,
    series: Vec<(u64, Second)>,
}

/// The times on the run clock that separate the parts, as they become known.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunTimes {
    pub start_ns: Option<u64>,
    pub warm_up_ns: u64,
    pub duration_ns: u64,
    pub sent_ns: Option<u64>,
    pub return_ns: Option<u64>,
}

/// A sum over consecutive intervals.
#[derive(Clone, Debug, Default)]
pub struct IntervalSum {
    pub interval: LoadInterval,
}

impl IntervalSum {
    pub fn seconds(&self) -> f64 {
        self.interval.length_ns as f64 / 1e9
    }

    fn add(&mut self, next: &LoadInterval) {
        append(&mut self.interval, next);
    }
}

/// Adds the next interval to a sum.
fn append(sum: &mut LoadInterval, next: &LoadInterval) {
    let (length_ns, busiest, longest) = (
        sum.length_ns,
        sum.counts.busiest_thread_cpu_ns,
        sum.counts.longest_wait_ns,
    );
    add_parallel(sum, next);
    sum.length_ns = length_ns + next.length_ns;
    sum.counts.busiest_thread_cpu_ns = busiest + next.counts.busiest_thread_cpu_ns;
    sum.counts.longest_wait_ns = longest + next.counts.longest_wait_ns;
    sum.counts.connected = next.counts.connected;
}

/// A complete second.
#[derive(Clone, Debug)]
pub struct CompleteSecond {
    pub second: Second,
    pub interval: LoadInterval,
}

impl Timeline {
    pub fn new(drivers: usize, window: RunTimes) -> Timeline {
        Timeline {
            reported_ns: vec![0; drivers],
            connected: vec![0; drivers],
            pending: BTreeMap::new(),
            window,
            connecting: IntervalSum::default(),
            warm_up: IntervalSum::default(),
            measured: IntervalSum::default(),
            tail: IntervalSum::default(),
            replay: IntervalSum::default(),
            totals: LoadCounts::default(),
            whole: LoadInterval::default(),
            second: LoadInterval::default(),
            series: Vec::new(),
        }
    }

    /// Adds a report and returns the seconds that it completes.
    pub fn add(&mut self, driver: usize, interval: LoadInterval) -> Vec<CompleteSecond> {
        self.reported_ns[driver] = self.reported_ns[driver].max(interval.end_ns);
        self.connected[driver] = interval.counts.connected;
        match self.pending.get_mut(&interval.end_ns) {
            Some(sum) => add_parallel(sum, &interval),
            None => drop(self.pending.insert(interval.end_ns, interval)),
        }
        self.complete()
    }

    /// Records that a driver reports no more, and returns the seconds that this completes.
    pub fn end(&mut self, driver: usize) -> Vec<CompleteSecond> {
        self.reported_ns[driver] = u64::MAX;
        self.complete()
    }

    fn complete(&mut self) -> Vec<CompleteSecond> {
        let whole_ns = self.reported_ns.iter().copied().min().unwrap_or(0);
        let mut done = Vec::new();
        while let Some(first) = self.pending.first_entry().filter(|first| *first.key() <= whole_ns) {
            let mut interval = first.remove();
            interval.counts.connected = self.connected.iter().sum();
            self.count(&interval);
            done.extend(self.advance(&interval));
        }
        done
    }

    /// Adds an interval to the part of the run in which it ended.
    fn count(&mut self, interval: &LoadInterval) {
        let RunTimes {
            start_ns,
            warm_up_ns,
            duration_ns,
            sent_ns,
            return_ns,
        } = self.window;
        let end_ns = interval.end_ns;
        let start_ns = start_ns.unwrap_or(u64::MAX);
        let warm_ns = start_ns.saturating_add(warm_up_ns);
        let last_ns = sent_ns.unwrap_or(u64::MAX).min(warm_ns.saturating_add(duration_ns));
        let part = if end_ns <= start_ns {
            &mut self.connecting
        } else if return_ns.is_some_and(|return_ns| end_ns > return_ns) {
            &mut self.replay
        } else if end_ns > last_ns {
            &mut self.tail
        } else if end_ns <= warm_ns {
            &mut self.warm_up
        } else {
            &mut self.measured
        };
        part.add(interval);
        let before = self.totals;
        add_counts(&mut self.totals, &interval.counts);
        self.totals.connected = interval.counts.connected;
        self.totals.busiest_thread_cpu_ns = before.busiest_thread_cpu_ns + interval.counts.busiest_thread_cpu_ns;
        self.totals.longest_wait_ns = before.longest_wait_ns + interval.counts.longest_wait_ns;
        self.whole.connect.add(&interval.connect);
        self.whole.handshake.add(&interval.handshake);
        self.whole.subscribe.add(&interval.subscribe);
    }

    /// Adds an interval to the current second. Seconds end at whole seconds after the start; before the start, after
    /// one second each.
    fn advance(&mut self, interval: &LoadInterval) -> Option<CompleteSecond> {
        append(&mut self.second, interval);
        let end_ns = interval.end_ns;
        let is_boundary = match self.window.start_ns {
            Some(start_ns) if end_ns >= start_ns => (end_ns - start_ns).is_multiple_of(SECOND_NS),
            _ => self.second.length_ns >= SECOND_NS,
        };
        is_boundary.then(|| self.close()).flatten()
    }

    /// Ends the current second, complete or not.
    pub fn close(&mut self) -> Option<CompleteSecond> {
        let interval = std::mem::take(&mut self.second);
        if interval.length_ns == 0 {
            return None;
        }
        let per_s = |count: u64| count as f64 * 1e9 / interval.length_ns as f64;
        let at_s = self
            .window
            .start_ns
            .map_or(0.0, |start_ns| seconds_between(start_ns, interval.end_ns));
        let second = Second {
            at_s,
            connected: interval.counts.connected,
            published: per_s(interval.counts.published),
            acknowledged: per_s(interval.counts.acknowledged),
            delivered: per_s(interval.counts.received),
            end_to_end: interval.end_to_end.summary(),
            acknowledgement: interval.acknowledgement.summary(),
            broker_cores: None,
            broker_resident_bytes: None,
            generator_cores: interval.counts.cpu_ns as f64 / interval.length_ns as f64,
        };
        Some(CompleteSecond { second, interval })
    }

    /// Returns the part that rates are computed from: the measured time; the warm-up if publishing ended within it;
    /// everything if publishing ended before the first interval did.
    pub fn basis(&self) -> IntervalSum {
        let parts = [&self.measured, &self.warm_up];
        if let Some(part) = parts.into_iter().find(|part| part.interval.length_ns > 0) {
            return part.clone();
        }
        let mut all = self.tail.clone();
        if let (Some(start_ns), Some(sent_ns)) = (self.window.start_ns, self.window.sent_ns) {
            all.interval.length_ns = sent_ns.saturating_sub(start_ns);
        }
        all
    }

    /// Returns the latencies of the measured time and of what arrived after the end of publishing.
    pub fn latencies(&self) -> LoadInterval {
        let first = match self.measured.interval.length_ns {
            0 => &self.warm_up,
            _ => &self.measured,
        };
        let mut sum = LoadInterval::default();
        for part in [first, &self.tail, &self.replay] {
            sum.end_to_end.add(&part.interval.end_to_end);
            sum.acknowledgement.add(&part.interval.acknowledgement);
        }
        sum
    }

    /// Stores a second for the report, after the broker's use was added to it.
    pub fn keep(&mut self, end_ns: u64, second: Second) {
        self.series.push((end_ns, second));
        if self.series.len() >= SECONDS_MAX {
            let pairs = self.series.chunks(2).map(|pair| match pair {
                [one, other] => (other.0, merged(&one.1, &other.1)),
                rest => rest[0],
            });
            self.series = pairs.collect();
        }
    }

    pub fn take_series(&mut self) -> Vec<Second> {
        let start_ns = self.window.start_ns;
        let placed = self.series.drain(..).map(|(end_ns, second)| Second {
            at_s: start_ns.map_or(second.at_s, |start_ns| seconds_between(start_ns, end_ns)),
            ..second
        });
        placed.collect()
    }
}

fn seconds_between(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e9
}

/// Merges two adjacent seconds: the mean of the rates, and the larger of the latencies, because there are no histograms
/// here.
fn merged(one: &Second, other: &Second) -> Second {
    let mean = |a: f64, b: f64| (a + b) / 2.0;
    let worse =
        |a: &crate::histogram::Latency, b: &crate::histogram::Latency| if a.p99_ms > b.p99_ms { *a } else { *b };
    Second {
        at_s: other.at_s,
        connected: other.connected,
        published: mean(one.published, other.published),
        acknowledged: mean(one.acknowledged, other.acknowledged),
        delivered: mean(one.delivered, other.delivered),
        end_to_end: worse(&one.end_to_end, &other.end_to_end),
        acknowledgement: worse(&one.acknowledgement, &other.acknowledgement),
        broker_cores: one.broker_cores.zip(other.broker_cores).map(|(a, b)| mean(a, b)),
        broker_resident_bytes: other.broker_resident_bytes.max(one.broker_resident_bytes),
        generator_cores: mean(one.generator_cores, other.generator_cores),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(end_s: f64, length_s: f64, received: u64) -> LoadInterval {
        let counts = LoadCounts {
            received,
            connected: 5,
            cpu_ns: 100,
            busiest_thread_cpu_ns: 100,
            ..LoadCounts::default()
        };
        LoadInterval {
            end_ns: (end_s * 1e9) as u64,
            length_ns: (length_s * 1e9) as u64,
            counts,
            ..LoadInterval::default()
        }
    }

    fn timeline(drivers: usize) -> Timeline {
        let window = RunTimes {
            warm_up_ns: 1_500_000_000,
            duration_ns: 2 * SECOND_NS,
            ..RunTimes::default()
        };
        Timeline::new(drivers, window)
    }

    #[test]
    fn interval_is_counted_to_part_in_which_it_ends() {
        let mut timeline = timeline(1);
        timeline.add(0, interval(1.0, 1.0, 1));
        timeline.window.start_ns = Some(2 * SECOND_NS);
        for (end_s, length_s) in [
            (2.0, 1.0),
            (3.0, 1.0),
            (3.5, 0.5),
            (4.0, 0.5),
            (5.0, 1.0),
            (5.5, 0.5),
            (6.0, 0.5),
        ] {
            for done in timeline.add(0, interval(end_s, length_s, 10)) {
                timeline.keep(done.interval.end_ns, done.second);
            }
        }
        assert_eq!(timeline.connecting.interval.counts.received, 11);
        assert_eq!(timeline.warm_up.interval.counts.received, 20);
        assert_eq!(
            (timeline.measured.interval.counts.received, timeline.measured.seconds()),
            (30, 2.0)
        );
        assert_eq!(timeline.tail.interval.counts.received, 10);
        assert_eq!((timeline.totals.received, timeline.totals.connected), (71, 5));
        let at: Vec<f64> = timeline.take_series().iter().map(|second| second.at_s).collect();
        assert_eq!(at, [0.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn second_without_report_of_all_drivers_is_pending() {
        let mut timeline = timeline(2);
        timeline.window.start_ns = Some(0);
        timeline.window.warm_up_ns = 0;
        assert!(timeline.add(0, interval(1.0, 1.0, 3)).is_empty());
        assert!(timeline.add(0, interval(2.0, 1.0, 3)).is_empty());
        let done = timeline.add(1, interval(1.0, 1.0, 4));
        assert_eq!(
            (done.len(), done[0].second.delivered, done[0].second.connected),
            (1, 7.0, 10)
        );
        assert_eq!(timeline.end(1).len(), 1);
        assert_eq!(
            (timeline.measured.interval.counts.received, timeline.measured.seconds()),
            (10, 2.0)
        );
        assert_eq!(timeline.measured.interval.counts.busiest_thread_cpu_ns, 200);
    }

    #[test]
    fn run_with_message_limit_is_measured_until_its_end() {
        let mut timeline = timeline(1);
        timeline.window.start_ns = Some(0);
        timeline.window.warm_up_ns = 0;
        timeline.add(0, interval(1.0, 1.0, 5));
        timeline.window.sent_ns = Some(1_400_000_000);
        timeline.add(0, interval(2.0, 1.0, 2));
        assert_eq!(
            (
                timeline.measured.interval.counts.received,
                timeline.tail.interval.counts.received
            ),
            (5, 2)
        );
    }

    #[test]
    fn run_within_one_interval_has_its_own_length() {
        let mut timeline = timeline(1);
        timeline.window.start_ns = Some(0);
        timeline.window.warm_up_ns = 0;
        timeline.window.sent_ns = Some(250_000_000);
        let mut only = interval(1.0, 1.0, 50);
        only.end_to_end.record(5_000_000);
        timeline.add(0, only);
        let basis = timeline.basis();
        assert_eq!((basis.interval.counts.received, basis.seconds()), (50, 0.25));
        assert_eq!(timeline.latencies().end_to_end.count(), 1);
    }

    #[test]
    fn series_of_long_run_is_bounded() {
        let mut timeline = timeline(1);
        for second in 0..20_000u64 {
            let delivered = 7.0;
            timeline.keep(
                second * SECOND_NS,
                Second {
                    delivered,
                    ..Second::default()
                },
            );
        }
        let series = timeline.take_series();
        assert!(series.len() < SECONDS_MAX && series.iter().all(|second| second.delivered == 7.0));
    }
}
