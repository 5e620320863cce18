//! Decides which waiting messages run next: those that are due, one of each tenant in turn.

use std::time::{Duration, Instant};

use super::super::slices::LANES_TIME_MAX;
use super::{HashMap, PendingRetry, PlatformCall, Retries};
use crate::ids::TenantId;

/// Time for retries before new messages are processed, if there is one tenant, or too many messages wait.
const RETRY_TIME_MAX: Duration = Duration::from_millis(200);

impl Retries {
    /// Whether a message may run. If too many wait, none waits for CPU time of its tenant.
    pub fn is_due(&self, now_ms: i64) -> bool {
        self.next_due_ms <= now_ms || (self.is_full() && !self.budget_pauses.is_empty())
    }

    pub fn next_due_ms(&self) -> i64 {
        self.next_due_ms
    }

    /// When the message may run: after its own pause and that of its tenant.
    pub(super) fn due_ms(&self, waiting: &PendingRetry) -> i64 {
        let paused_until = self.budget_pauses.get(&waiting.tenant);
        paused_until.map_or(waiting.due_ms, |until| waiting.due_ms.max(*until))
    }

    /// Makes the message due at once. It is retried when there is time for retries.
    fn make_due(&mut self, number: u64, now_ms: i64) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.due_ms = now_ms;
            self.next_due_ms = self.next_due_ms.min(now_ms);
        }
    }

    fn end_budget_pauses(&mut self, now_ms: i64) {
        match self.is_full() {
            true => self.budget_pauses.clear(),
            false => self.budget_pauses.retain(|_, until| *until > now_ms),
        }
    }

    /// Returns due messages: one of each tenant in turn, the longest due first. There may not be time for all of
    /// them.
    fn due_by_tenant(&self, now_ms: i64) -> Vec<(u64, TenantId)> {
        let due = self
            .waiting
            .iter()
            .filter(|(_, waiting)| self.due_ms(waiting) <= now_ms);
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
    /// Retries messages whose pause has ended, and those that wait behind them. Returns whether any ran.
    pub fn retry_due(&mut self) -> bool {
        if !self.core.retries.is_due(self.now_ms) {
            return false;
        }
        self.core.retries.end_budget_pauses(self.now_ms);
        let mut has_run = false;
        for (number, tenant) in self.core.retries.due_by_tenant(self.now_ms) {
            if self.is_retry_time_over() {
                break;
            }
            if !self.waits_for_cpu_time(tenant) {
                self.retry(number);
                has_run = true;
            }
        }
        let retries = &mut self.core.retries;
        let next = retries.waiting.values().map(|waiting| retries.due_ms(waiting)).min();
        retries.next_due_ms = next.unwrap_or(i64::MAX);
        has_run
    }

    /// Whether the messages of the tenant wait, because it has used its CPU time. They are not due until the end of that
    /// pause.
    fn waits_for_cpu_time(&mut self, tenant: TenantId) -> bool {
        if self.core.retries.budget_pauses.contains_key(&tenant) {
            return true;
        }
        let pause = self.budget_pause(tenant);
        if pause.is_zero() {
            return false;
        }
        let pause_ms = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
        let until_ms = self.now_ms.saturating_add(pause_ms).saturating_add(1);
        self.core.retries.budget_pauses.insert(tenant, until_ms);
        true
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
