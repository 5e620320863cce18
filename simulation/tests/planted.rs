//! Whether the simulator would notice: each of a list of mistakes is made on purpose, and must be found within so many seeds.
//!
//! One test, because a fault is planted in the whole process. `PLANTED_SEEDS` looks at so many, and says how many of them find each.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use broker::fault::{Fault, plant};
use simulation::trace::Trace;
use simulation::{Settings, replay};

const SEEDS: u64 = 200;

#[test]
fn every_planted_fault_is_found() {
    let asked = std::env::var("PLANTED_SEEDS")
        .ok()
        .map(|text| text.parse::<u64>().unwrap());
    plant(Fault::None);
    // A seed that fails in any case says nothing.
    let seeds: Vec<u64> = (1..=asked.unwrap_or(SEEDS))
        .filter(|seed| violation_of(*seed).is_none())
        .collect();
    let missed: Vec<Fault> = Fault::ALL
        .into_iter()
        .filter(|fault| !is_found(*fault, &seeds, asked.is_some()))
        .collect();
    plant(Fault::None);
    assert!(missed.is_empty(), "not found in {} seeds: {missed:?}", seeds.len());
}

fn violation_of(seed: u64) -> Option<String> {
    replay(seed, Settings::default(), Trace::default()).violation
}

fn is_found(fault: Fault, seeds: &[u64], is_counted: bool) -> bool {
    plant(fault);
    let mut failing = seeds.iter().filter_map(|seed| Some((seed, violation_of(*seed)?)));
    let Some((seed, violation)) = failing.next() else {
        println!("{fault:?}: not found");
        return false;
    };
    let text: String = violation.chars().take(100).collect();
    let more = if is_counted { failing.count() } else { 0 };
    println!("{fault:?}: seed {seed} and {more} more: {text}");
    true
}
