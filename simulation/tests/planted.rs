//! Tests that the simulator finds faults: the broker plants one fault at a time, and at least one of the first seeds
//! must fail.
//!
//! If `PLANTED_SEEDS` is set, the test runs that many seeds with each fault and prints how many of them fail.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use broker::fault::{Fault, plant};
use simulation::trace::Trace;
use simulation::{Settings, replay};

const SEEDS: u64 = 2_000;

#[test]
fn every_planted_fault_is_found() {
    let asked = std::env::var("PLANTED_SEEDS")
        .ok()
        .map(|text| text.parse::<u64>().unwrap());
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(fault) = Fault::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !is_found(*fault, asked.unwrap_or(SEEDS), asked.is_some()) {
                        missed.lock().unwrap().push(*fault);
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

fn violation_with(fault: Fault, seed: u64) -> Option<String> {
    plant(fault);
    let violation = replay(seed, Settings::default(), Trace::default()).violation;
    plant(Fault::None);
    violation
}

fn is_found(fault: Fault, seeds: u64, is_counted: bool) -> bool {
    // A seed that fails without the fault proves nothing.
    let mut failing = (1..=seeds)
        .filter_map(|seed| Some((seed, violation_with(fault, seed)?)))
        .filter(|(seed, _)| violation_with(Fault::None, *seed).is_none());
    let Some((seed, violation)) = failing.next() else {
        println!("{fault:?}: not found");
        return false;
    };
    let text: String = violation.chars().take(100).collect();
    let more = if is_counted { failing.count() } else { 0 };
    println!("{fault:?}: seed {seed} and {more} more: {text}");
    true
}
