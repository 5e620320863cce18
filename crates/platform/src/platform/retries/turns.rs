//! Decides which waiting messages run next: those that are due, one of each tenant in turn.

use std::time::{Duration, Instant};

use super::super::slices::LANES_TIME_MAX;
use super::{HashMap, PlatformCall, Retries};
use crate::ids::TenantId;

/// Time for retries before new messages are processed, if there is one tenant, or too many messages wait.
const RETRY_TIME_MAX: Duration = Duration::from_millis(200);

impl Retries {
    pub fn is_due(&self, now_ms: i64) -> bool {
        self.next_due_ms <= now_ms
    }

    /// Makes the message due at once. It is retried when there is time for retries.
    fn make_due(&mut self, number: u64, now_ms: i64) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.due_ms = now_ms;
            self.next_due_ms = self.next_due_ms.min(now_ms);
        }
    }

    /// Returns due messages: one of each tenant in turn, the longest due first. There may not be time for all of
    /// them.
    fn due_by_tenant(&self, now_ms: i64) -> Vec<(u64, TenantId)> {
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.due_ms <= now_ms);
        let mut due: Vec<_> = due
            .map(|(number, waiting)| (waiting.due_ms, *number, waiting.tenant))
            .collect();
        due.sort_unstable();
        let mut turns: HashMap<TenantId, usize> = HashMap::default();
        let mut in_turns: Vec<(usize, i64, u64, TenantId)> = Vec::with_capacity(due.len());
        for (due_ms, number, tenant) in due {
            let turn = turns.entry(tenant).or_default();
            *turn += 1;
            in_turns.push((*turn, due_ms, number, tenant));
        }
        in_turns.sort_unstable();
        let in_turns = in_turns.into_iter();
        in_turns.map(|(_, _, number, tenant)| (number, tenant)).collect()
    }
}

impl PlatformCall<'_> {
    /// Retries messages whose pause has ended, and those that wait behind them.
    pub fn retry_due(&mut self) {
        if self.core.retries.next_due_ms > self.now_ms {
            return;
        }
        for (number, tenant) in self.core.retries.due_by_tenant(self.now_ms) {
            if self.is_retry_time_over() {
                break;
            }
            if !self.is_over_budget(tenant) {
                self.retry(number);
            }
        }
        let next = self.core.retries.waiting.values().map(|waiting| waiting.due_ms).min();
        self.core.retries.next_due_ms = next.unwrap_or(i64::MAX);
    }

    fn is_retry_time_over(&mut self) -> bool {
        let time_max = match self.has_several_tenants() && !self.core.retries.is_full() {
            true => LANES_TIME_MAX,
            false => RETRY_TIME_MAX,
        };
        self.retrying_since.get_or_insert_with(Instant::now).elapsed() > time_max
    }

    /// Retries a message and those that waited behind it, until the time for retries is over.
    pub(super) fn retry(&mut self, number: u64) {
        let mut next = Some(number);
        while let Some(number) = next {
            if self.is_retry_time_over() {
                return self.core.retries.make_due(number, self.now_ms);
            }
            next = self.retry_one(number);
            // Deferred work is part of the attempt, which must end before the next one.
            self.drain_queue();
        }
    }
}
