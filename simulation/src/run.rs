//! Runs of seeds: one, many, and the shortest that still fails.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::plan::{Durability, Plan};
use crate::trace::Trace;
use crate::world::{Outcome, World};

/// What all seeds of a session have in common.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub steps: usize,
    pub durability: Durability,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            steps: 500,
            durability: Durability::Fsync,
        }
    }
}

/// A seed that failed, cut to the fewest steps that still do.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub steps: usize,
    pub violation: String,
    pub lines: Vec<String>,
}

impl Failure {
    /// What led to it, and the one line with which it happens again. `settings` are those that it was found with.
    pub fn report(&self, settings: Settings) -> String {
        let Failure {
            seed,
            steps,
            violation,
            lines,
        } = self;
        format!(
            "{}\nseed {seed} failed: {violation}\nagain: cargo run -p tidewire-simulation --profile simulate -- --seed {seed} --steps {steps} --durability {} --trace\n",
            lines.join("\n"),
            settings.durability.name(),
        )
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// One run. A panic of the broker is a violation like any other.
pub fn replay(seed: u64, settings: Settings, mut trace: Trace) -> Outcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // In a build that aborts this is all that is seen.
            if !IS_QUIET.get() || cfg!(panic = "abort") {
                hook(info);
            }
        }));
    });
    let plan = Plan::of(seed, settings.steps, settings.durability);
    trace.line(|| format!("{plan:?}"));
    IS_QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(|| World::new(plan, trace).run()));
    IS_QUIET.set(false);
    result.unwrap_or_else(|payload| Outcome {
        violation: Some(format!("panic: {}", message_of(payload.as_ref()))),
        hash: 0,
        lines: Vec::new(),
        steps: settings.steps,
    })
}

fn message_of(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("something that is not text")
}

/// Runs a seed; of one that fails, finds the shortest run that does.
pub fn check(seed: u64, settings: Settings) -> Result<Outcome, Failure> {
    let outcome = replay(seed, settings, Trace::default());
    let Some(violation) = &outcome.violation else {
        return Ok(outcome);
    };
    let (steps, violation) = shortest(seed, settings, outcome.steps, violation.clone());
    let lines = replay(seed, Settings { steps, ..settings }, Trace::with_lines(false)).lines;
    Err(Failure {
        seed,
        steps,
        violation,
        lines,
    })
}

/// Bisects the number of steps. More steps need not fail because fewer do, so it is only a shorter run, not the shortest.
fn shortest(seed: u64, settings: Settings, steps: usize, violation: String) -> (usize, String) {
    let (mut low, mut high, mut found) = (0, steps.min(settings.steps), violation);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        let shorter = Settings {
            steps: middle,
            ..settings
        };
        match replay(seed, shorter, Trace::default()).violation {
            Some(violation) => (high, found) = (middle, violation),
            None => low = middle,
        }
    }
    (high, found)
}
