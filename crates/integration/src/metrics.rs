//! What a rule counts: EMQX's names.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

macro_rules! counts {
    ($($(#[$about:meta])* $name:ident $json:literal,)*) => {
        /// Counted by one thread, added to the rule's metrics once per tick.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct RuleCounts { $($(#[$about])* #[serde(rename = $json)] pub $name: u64,)* }

        /// From the start of the process.
        #[derive(Debug, Default)]
        pub struct RuleMetrics { $($name: AtomicU64,)* last_error: Mutex<LastError> }

        impl RuleMetrics {
            pub fn add(&self, counts: &RuleCounts) {
                $(if counts.$name > 0 { self.$name.fetch_add(counts.$name, Ordering::Relaxed); })*
            }

            pub fn counts(&self) -> RuleCounts {
                RuleCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            pub fn reset(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counts! {
    /// Messages and events from the rule's sources.
    matched "matched",
    /// Of them, those that had at least one output.
    passed "passed",
    /// Of them, those that could not be evaluated.
    failed "failed",
    /// Of them, those that WHERE refused, or that had no output.
    no_result "failed.no_result",
    /// Outputs given to actions.
    actions "actions.total",
    /// Outputs that an action has taken.
    actions_success "actions.success",
    /// Outputs for which an action's templates could not be filled in, or that it did not take.
    actions_failed "actions.failed",
    /// Of those that failed, outputs for an action that does not exist or is not enabled.
    actions_out_of_service "actions.failed.out_of_service",
    /// Outputs that were given up because the action's buffer was full.
    actions_discarded "actions.discarded",
    /// Outputs of messages that had gone out through the action's connector before: they would go round for ever.
    actions_came_back "actions.came_back",
}

#[derive(Debug, Default)]
struct LastError {
    text: Option<String>,
    told: Option<Instant>,
}

/// The log hears of a rule's errors no more often.
const TELL_EVERY: Duration = Duration::from_secs(60);

impl RuleMetrics {
    /// Something went wrong with one message; `of`: in the rule, or in handing its output on.
    pub fn tell_error(&self, rule: &str, of: &'static str, error: &str) {
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        if last.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            last.told = Some(Instant::now());
            tracing::warn!(
                rule,
                of,
                error,
                "a rule fails; more of it is counted, and told at most once a minute"
            );
        }
        if last.text.as_deref() != Some(error) {
            last.text = Some(error.to_owned());
        }
    }

    pub fn last_error(&self) -> Option<String> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .text
            .clone()
    }
}

/// What a source has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceCounts {
    /// Messages.
    pub received: u64,
    /// Of them, those that could not be published as the source says.
    pub failed: u64,
    /// Times that a batch was not taken yet: it comes again.
    pub refused_batches: u64,
}

/// From the start of the process; outlives a change of the source.
#[derive(Debug, Default)]
pub struct SourceMetrics {
    received: AtomicU64,
    failed: AtomicU64,
    refused_batches: AtomicU64,
}

impl SourceMetrics {
    pub fn taken(&self, messages: usize, failed: u64) {
        self.received.fetch_add(messages as u64, Ordering::Relaxed);
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }

    pub fn refused(&self) {
        self.refused_batches.fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self) -> SourceCounts {
        SourceCounts {
            received: self.received.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            refused_batches: self.refused_batches.load(Ordering::Relaxed),
        }
    }
}
