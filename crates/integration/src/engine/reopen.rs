//! Reopens the buffers of actions that could not be opened or whose journal has failed. Until then publishers are held
//! back, as for a full buffer, if the action's overflow policy says so.

use std::time::Instant;
use std::{io, thread};

use connectors::{Backoff, RetryConfig};

use super::*;

/// How often the buffers are checked for failures.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// Pauses between attempts to open a buffer.
const RETRY: RetryConfig = RetryConfig {
    first_ms: 1_000,
    longest_ms: 60_000,
    tries_max: None,
};

/// The next attempt to open a buffer.
struct Attempt {
    at: Instant,
    backoff: Backoff,
}

impl Engine {
    /// Starts the thread that reopens buffers. It ends when the engine is dropped.
    pub(super) fn start_reopening(&self) -> io::Result<()> {
        let engine = Arc::downgrade(&self.inner);
        let mut attempts = BTreeMap::new();
        let check = move || {
            loop {
                thread::sleep(CHECK_EVERY);
                let Some(inner) = engine.upgrade() else {
                    return;
                };
                Engine { inner }.reopen_due(&mut attempts);
            }
        };
        thread::Builder::new().name("buffers".to_owned()).spawn(check)?;
        Ok(())
    }

    /// Returns the actions whose buffer has failed, and why.
    fn failed_buffers(&self) -> BTreeMap<String, String> {
        let state = self.state();
        let running = state
            .actions
            .iter()
            .filter_map(|(id, it)| Some((id, it.as_ref().ok()?)));
        running
            .filter_map(|(id, running)| Some((id.clone(), running.action.buffer().failure()?)))
            .collect()
    }

    /// Returns why publishers are held back: each failed buffer of an action that does not drop messages instead.
    pub fn readiness_problems(&self) -> Vec<String> {
        let state = self.state();
        let running = state
            .actions
            .iter()
            .filter_map(|(id, it)| Some((id, it.as_ref().ok()?)));
        running
            .filter(|(_, running)| running.free_bytes_min.is_some())
            .filter_map(|(id, running)| {
                let failure = running.action.buffer().failure()?;
                Some(format!("the buffer of the action {id} has failed: {failure}"))
            })
            .collect()
    }

    fn reopen_due(&self, attempts: &mut BTreeMap<String, Attempt>) {
        let failed = self.failed_buffers();
        attempts.retain(|id, _| {
            let is_failed = failed.contains_key(id);
            if !is_failed && self.with_action(id, |_| ()).is_ok() {
                tracing::info!(action = %id, "the buffer of the action is open again");
            }
            is_failed
        });
        for (id, error) in failed {
            let attempt = attempts.entry(id.clone()).or_insert_with(|| {
                tracing::error!(action = %id, error, "the buffer of an action has failed: it accepts no messages until it is open again");
                let mut backoff = Backoff::new(&RETRY);
                let at = Instant::now() + backoff.pause();
                Attempt { at, backoff }
            });
            if attempt.at <= Instant::now() {
                self.reopen(&id);
                attempt.at = Instant::now() + attempt.backoff.pause();
            }
        }
    }

    /// Opens the buffer of an action again, unless definitions are being changed.
    fn reopen(&self, id: &str) {
        let Ok(_changes) = self.inner.changes.try_lock() else {
            return;
        };
        let (definition, is_due) = {
            let state = self.state();
            let running = state.actions.get(id).and_then(|it| it.as_ref().ok());
            let is_due = running.map(|running| running.action.buffer());
            let is_due = is_due.is_some_and(|buffer| buffer.failure().is_some());
            (state.definitions.actions.get(id).cloned(), is_due)
        };
        if let Some(definition) = definition.filter(|_| is_due) {
            self.change_action(&definition);
        }
    }
}
