//! Tests of the timer wheel: never early, at most a tick late, in order, and memory.

use proptest::prelude::*;

use super::*;

const YEAR_MS: u64 = 365 * 24 * 3_600_000;

fn advance(wheel: &mut TimerWheel<u64>, now_ms: u64) -> Vec<u64> {
    let mut fired = Vec::new();
    wheel.advance(now_ms, &mut fired);
    fired
}

#[test]
fn fires_within_a_tick_and_never_early() {
    for start in [0, 1, 1_000_003, 5 * YEAR_MS + 7] {
        for delay in [1, 15, 16, 17, 999, 1024, 60_000, 3_600_000, 90_000_000, 10 * YEAR_MS] {
            let mut wheel = TimerWheel::new(start);
            let deadline = start + delay;
            wheel.insert(deadline, 1);
            assert_eq!(advance(&mut wheel, deadline - 1), [], "early: {start} + {delay}");
            assert_eq!(
                advance(&mut wheel, deadline + TICK_MS - 1),
                [1],
                "late: {start} + {delay}"
            );
            assert!(wheel.is_empty());
        }
    }
}

#[test]
fn passed_deadline_fires_at_the_next_advance() {
    let mut wheel = TimerWheel::new(5_000);
    wheel.insert(0, 1);
    wheel.insert(5_000, 2);
    assert!(wheel.next_deadline().unwrap() <= 5_000);
    assert_eq!(advance(&mut wheel, 5_000 + TICK_MS), [1, 2]);
}

#[test]
fn clock_that_goes_back_fires_nothing() {
    let mut wheel = TimerWheel::new(100_000);
    wheel.insert(100_050, 1);
    assert_eq!(advance(&mut wheel, 1_000), []);
    assert_eq!(advance(&mut wheel, 100_100), [1]);
}

#[test]
fn deadline_at_the_end_of_time_never_fires() {
    let mut wheel = TimerWheel::new(0);
    wheel.insert(u64::MAX, 1);
    assert_eq!(advance(&mut wheel, 1000 * YEAR_MS), []);
    assert_eq!(wheel.len(), 1);
}

#[test]
fn waking_at_next_deadline_fires_each_in_time() {
    let mut wheel = TimerWheel::new(0);
    let deadlines = [40, 1_000, 70_000, 5_000_000, 400_000_000, 2 * YEAR_MS];
    deadlines.iter().for_each(|&deadline| wheel.insert(deadline, deadline));
    let (mut fired, mut wakes) = (Vec::new(), 0);
    while let Some(now_ms) = wheel.next_deadline() {
        for deadline in advance(&mut wheel, now_ms) {
            assert!((deadline..deadline + TICK_MS).contains(&now_ms));
            fired.push(deadline);
        }
        wakes += 1;
    }
    assert_eq!(fired, deadlines);
    assert!(wakes <= deadlines.len() * LEVELS);
}

#[test]
fn memory_is_freed_after_a_burst() {
    let mut wheel = TimerWheel::new(0);
    (0..200_000u64).for_each(|n| wheel.insert(60_000 + n % 3000, n));
    let bytes = capacity(&wheel) * size_of::<WheelTimer<u64>>();
    assert!(bytes <= 200_000 * 24, "{bytes}");
    assert_eq!(advance(&mut wheel, 70_000).len(), 200_000);
    assert_eq!(capacity(&wheel), 0);
}

fn capacity(wheel: &TimerWheel<u64>) -> usize {
    let slots = wheel.levels.iter().flat_map(|level| &level.slots);
    wheel.due.capacity() + slots.map(Vec::capacity).sum::<usize>()
}

#[derive(Clone, Debug)]
enum WheelStep {
    Insert(u64),
    Advance(u64),
    Wake,
}

fn any_step() -> impl Strategy<Value = WheelStep> {
    let delay = prop_oneof![0..200u64, 0..100_000u64, 0..10 * YEAR_MS];
    let jump = prop_oneof![0..40u64, 0..5_000u64, 0..10_000_000u64, 0..YEAR_MS];
    prop_oneof![
        4 => delay.prop_map(WheelStep::Insert),
        2 => jump.prop_map(WheelStep::Advance),
        2 => Just(WheelStep::Wake),
    ]
}

/// Compares the wheel with a sorted list of (deadline, number).
struct WheelAndModel {
    wheel: TimerWheel<u64>,
    model: Vec<(u64, u64)>,
    now_ms: u64,
    inserted: u64,
}

impl WheelAndModel {
    fn apply(&mut self, step: WheelStep) {
        match step {
            WheelStep::Insert(delay) => {
                // Half of them are in the past.
                let deadline = (self.now_ms + delay).saturating_sub(if delay % 2 == 0 { 0 } else { 100 });
                self.wheel.insert(deadline, self.inserted);
                self.model.push((deadline, self.inserted));
                self.inserted += 1;
            }
            WheelStep::Advance(jump) => self.advance(self.now_ms + jump),
            WheelStep::Wake => match self.wheel.next_deadline() {
                None => assert!(self.model.is_empty()),
                Some(wake) => {
                    let earliest = self.model.iter().map(|timer| timer.0).min().unwrap();
                    assert!(wake < earliest.max(self.now_ms) + TICK_MS);
                    self.advance(wake.max(self.now_ms));
                }
            },
        }
        assert_eq!(self.wheel.len(), self.model.len());
    }

    fn advance(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let fired = advance(&mut self.wheel, now_ms);
        let fired: Vec<(u64, u64)> = fired
            .into_iter()
            .map(|number| {
                let at = self
                    .model
                    .iter()
                    .position(|timer| timer.1 == number)
                    .expect("fired once");
                self.model.swap_remove(at)
            })
            .collect();
        assert!(fired.is_sorted());
        assert!(fired.iter().all(|timer| timer.0 <= now_ms), "never early");
        assert!(
            self.model.iter().all(|timer| timer.0 + TICK_MS > now_ms),
            "at most a tick late"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn behaves_like_a_sorted_list(start in 0..3 * YEAR_MS, steps in prop::collection::vec(any_step(), 1..200)) {
        let mut pair = WheelAndModel { wheel: TimerWheel::new(start), model: Vec::new(), now_ms: start, inserted: 0 };
        for step in steps {
            pair.apply(step);
        }
        pair.advance(pair.now_ms + 40 * YEAR_MS);
        prop_assert!(pair.model.is_empty() && pair.wheel.is_empty() && pair.wheel.next_deadline().is_none());
    }
}
