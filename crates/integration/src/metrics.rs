//! Counters of rules and sources. JSON names follow EMQX.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

macro_rules! counts {
    ($($(#[$about:meta])* $name:ident $json:literal,)*) => {
        /// Counters of a rule since the start of the server or the last reset.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct RuleCounts { $($(#[$about])* #[serde(rename = $json)] pub $name: u64,)* }

        /// Counters since the start of the process.
        #[derive(Debug, Default)]
        pub struct RuleMetrics { $($name: AtomicU64,)* last_error: Mutex<LastRuleError> }

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
    /// Events with at least one output.
    passed "passed",
    /// Events whose evaluation failed.
    failed "failed",
    /// Events whose evaluation failed because it reached a limit of time, steps or memory.
    failed_at_limit "failed.limit",
    /// Events for which WHERE was false, or that had no output.
    no_result "failed.no_result",
    /// Events, and messages without a waiting publisher, that a slow rule dropped because its queue was full.
    dropped_queue_full "dropped.queue_full",
    /// Outputs sent to actions.
    actions "actions.total",
    /// Outputs that an action accepted.
    actions_success "actions.success",
    /// Outputs whose templates could not be rendered, or that an action did not accept.
    actions_failed "actions.failed",
    /// Outputs for an action that does not exist or is disabled.
    actions_out_of_service "actions.failed.out_of_service",
    /// Outputs dropped because the action's buffer was full.
    actions_discarded "actions.discarded",
    /// Outputs dropped because their message had already passed the action's connector and would loop.
    actions_looped "actions.looped",
}

#[derive(Debug, Default)]
struct LastRuleError {
    text: Option<String>,
    logged_at: Option<Instant>,
}

/// Minimum interval of log lines about errors of a rule.
const LOG_EVERY: Duration = Duration::from_secs(60);

impl RuleMetrics {
    /// Records an error. `of` is its place: the rule, or the delivery of its output.
    pub fn record_error(&self, rule: &str, of: &'static str, error: &str) {
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        if last.logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            last.logged_at = Some(Instant::now());
            tracing::warn!(
                rule,
                of,
                error,
                "a rule failed; further failures are counted, and logged at most once a minute"
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

/// Counters of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceCounts {
    /// Messages received.
    pub received: u64,
    /// Messages that could not be published as the source's `publish` says.
    pub failed: u64,
    /// Batches that could not be processed yet and were passed again.
    pub refused_batches: u64,
}

/// Counters since the start of the process. They survive a change of the source.
#[derive(Debug, Default)]
pub struct SourceMetrics {
    received: AtomicU64,
    failed: AtomicU64,
    refused_batches: AtomicU64,
}

impl SourceMetrics {
    pub fn add_received(&self, messages: usize, failed: u64) {
        self.received.fetch_add(messages as u64, Ordering::Relaxed);
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }

    pub fn add_refused(&self) {
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
