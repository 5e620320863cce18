//! What continuous integration runs: some hundred seeds, and that a seed is a run.

#![allow(clippy::unwrap_used, reason = "tests")]

use simulation::trace::Trace;
use simulation::{Settings, check, replay};

#[test]
fn no_seed_breaks_a_promise() {
    for seed in 1..=400 {
        if let Err(failure) = check(seed, Settings::default()) {
            panic!(
                "{}\nseed {}, {} steps: {}",
                failure.lines.join("\n"),
                failure.seed,
                failure.steps,
                failure.violation
            );
        }
    }
}

/// Were it not so, a failure could not be looked at again.
#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..=60 {
        let first = replay(seed, Settings::default(), Trace::default());
        let second = replay(seed, Settings::default(), Trace::with_lines(false));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.steps, second.steps, "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_runs() {
    let mut hashes: Vec<u64> = (1..=60)
        .map(|seed| replay(seed, Settings::default(), Trace::default()).hash)
        .collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 60);
}
