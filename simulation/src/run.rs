//! Runs a seed, and shortens failing runs.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::plan::{PlannedDurability, SimulationPlan};
use crate::trace::Trace;
use crate::world::{RunOutcome, World};

/// Settings common to all seeds.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub steps: usize,
    pub durability: PlannedDurability,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            steps: 500,
            durability: PlannedDurability::Fsync,
        }
    }
}

/// A failing seed, shortened to few steps.
#[derive(Debug)]
pub struct SeedFailure {
    pub seed: u64,
    pub steps: usize,
    pub violation: String,
    pub lines: Vec<String>,
}

impl SeedFailure {
    /// Returns the last events and the command that reproduces the failure. `settings` are those of the failing run.
    pub fn report(&self, settings: Settings) -> String {
        let SeedFailure {
            seed,
            steps,
            violation,
            lines,
        } = self;
        format!(
            "{}\nseed {seed} failed: {violation}\nreproduce: cargo run -p tidewire-simulation --profile simulate -- --seed {seed} --steps {steps} --durability {} --trace\n",
            lines.join("\n"),
            settings.durability.name(),
        )
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs a seed once. A panic of the broker counts as a violation.
pub fn replay(seed: u64, settings: Settings, mut trace: Trace) -> RunOutcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // In a build that aborts, this is the only output.
            if !IS_QUIET.get() || cfg!(panic = "abort") {
                hook(info);
            }
        }));
    });
    let plan = SimulationPlan::of(seed, settings.steps, settings.durability);
    trace.line(|| format!("{plan:?}"));
    IS_QUIET.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(|| World::new(plan, trace).run()));
    IS_QUIET.set(false);
    result.unwrap_or_else(|payload| RunOutcome {
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
        .unwrap_or("payload is not text")
}

/// Runs a seed. Shortens the run if it fails.
pub fn check(seed: u64, settings: Settings) -> Result<RunOutcome, SeedFailure> {
    let outcome = replay(seed, settings, Trace::default());
    let Some(violation) = &outcome.violation else {
        return Ok(outcome);
    };
    let (steps, violation) = shortest(seed, settings, outcome.steps, violation.clone());
    let lines = replay(seed, Settings { steps, ..settings }, Trace::with_lines(false)).lines;
    Err(SeedFailure {
        seed,
        steps,
        violation,
        lines,
    })
}

/// Bisects the number of steps. A failure with n steps need not occur with more, so the result is shorter but not
/// minimal.
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
