//! Compares the broker with a naive model, on virtual time: random scripts of clients, lossy links, malformed bytes.
//!
//! The seed determines a run. `TIDEWIRE_SEED` sets another first seed. Without it a run takes seconds and is always the
//! same.

#![allow(clippy::unwrap_used)]

mod bytes;
mod client;
mod judge;
mod node;
mod run;
mod script;
mod torture;

use std::cell::Cell;
use std::panic;
use std::sync::Once;

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use script::{Script, script};

use crate::scale::scaled;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().expect("a number"))
}

/// Returns the number of cases that a test with this default runs.
fn cases(default: u32) -> u32 {
    scaled(default.into()) as u32
}

fn seed() -> u64 {
    variable("TIDEWIRE_SEED", 1)
}

fn runner(default_cases: u32) -> TestRunner {
    let config = Config {
        cases: cases(default_cases),
        failure_persistence: None,
        max_shrink_iters: 4000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// xorshift64*, for values that no proptest strategy generates.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a property on scripts. Prints only the smallest failing script.
fn check(default_cases: u32, property: impl Fn(&Script)) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                hook(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = runner(default_cases).run(&script(), |script| {
        property(&script);
        Ok(())
    });
    IS_QUIET.set(false);
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn broker_agrees_with_the_model() {
    check(2500, |script| drop(run::run(script)));
}

#[test]
fn same_script_gives_the_same_trace() {
    check(60, |script| {
        let (first, second) = (run::run(script), run::run(script));
        assert_eq!(first.len(), second.len());
        assert!(first == second, "the traces differ");
    });
}
