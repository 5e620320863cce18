//! Decides which waiting messages run next: those that are due, one of each tenant in turn.

use std::time::{Duration, Instant};

use super::super::slices::LANES_TIME_MAX;
use super::{HashMap, PendingRetry, PlatformCall, Retries};
use crate::ids::TenantId;

/// Time for retries before new messages are processed, if there is one tenant, or too many messages wait.
const RETRY_TIME_MAX: Duration = Duration::from_millis(200);

impl Retries {
    /// Whether a message may run. If too many wait, those of tenants within their share do not wait for CPU time.
    pub fn is_due(&mut self, now_ms: i64) -> bool {
        if now_ms < self.latest_ms {
            self.limit_pauses(now_ms);
        }
        self.latest_ms = now_ms;
        self.next_due_ms <= now_ms || self.budget_pauses.keys().any(|tenant| self.needs_no_cpu_time(*tenant))
    }

    pub fn next_due_ms(&self) -> i64 {
        self.next_due_ms
    }

    /// When the message may run: after its own pause and that of its tenant.
    pub(super) fn due_ms(&self, waiting: &PendingRetry) -> i64 {
        let paused_until = self.budget_pauses.get(&waiting.tenant);
        paused_until.map_or(waiting.due_ms, |until| waiting.due_ms.max(*until))
    }

    /// Ends pauses that are too long because the clock was set back. Messages wait for at most the pause of their last
    /// retry. Pauses for CPU time begin again, because a monotonic clock measures CPU time.
    fn limit_pauses(&mut self, now_ms: i64) {
        for waiting in self.waiting.values_mut() {
            if waiting.due_ms < i64::MAX {
                let pause_ms = waiting.pause_s.max(0).saturating_mul(1000);
                waiting.due_ms = waiting.due_ms.min(now_ms.saturating_add(pause_ms));
            }
        }
        self.budget_pauses.clear();
        self.next_due_ms = 0;
    }

    /// Makes the message due at once. It is retried when there is time for retries.
    fn make_due(&mut self, number: u64, now_ms: i64) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.due_ms = waiting.due_ms.min(now_ms);
        }
        let due_ms = self.waiting.get(&number).map(|waiting| self.due_ms(waiting));
        self.next_due_ms = self.next_due_ms.min(due_ms.unwrap_or(i64::MAX));
    }

    fn end_budget_pauses(&mut self, now_ms: i64) {
        let mut pauses = std::mem::take(&mut self.budget_pauses);
        pauses.retain(|tenant, until| *until > now_ms && !self.needs_no_cpu_time(*tenant));
        self.budget_pauses = pauses;
    }

    /// Returns due messages: one of each tenant in turn, the longest due first. There may not be time for all of
    /// them. Paused messages of a tenant are first, because their rests take memory.
    fn due_by_tenant(&self, now_ms: i64) -> Vec<u64> {
        let due = self
            .waiting
            .iter()
            .filter(|(_, waiting)| self.due_ms(waiting) <= now_ms);
        let mut due: Vec<_> = due
            .map(|(number, waiting)| (waiting.paused.is_none(), waiting.due_ms, *number, waiting.tenant))
            .collect();
        due.sort_unstable();
        let mut turns: HashMap<TenantId, usize> = HashMap::default();
        let mut in_turns: Vec<(usize, i64, u64)> = Vec::with_capacity(due.len());
        for (_, due_ms, number, tenant) in due {
            let turn = turns.entry(tenant).or_default();
            *turn += 1;
            in_turns.push((*turn, due_ms, number));
        }
        in_turns.sort_unstable();
        in_turns.into_iter().map(|(_, _, number)| number).collect()
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
        for number in self.core.retries.due_by_tenant(self.now_ms) {
            if self.is_retry_time_over() {
                break;
            }
            has_run |= self.retry(number);
        }
        let retries = &mut self.core.retries;
        let next = retries.waiting.values().map(|waiting| retries.due_ms(waiting)).min();
        retries.next_due_ms = next.unwrap_or(i64::MAX);
        has_run
    }

    /// Whether the message waits, because its tenant has used its CPU time. The messages of the tenant are not due
    /// until the end of that pause.
    fn waits_for_cpu_time(&mut self, number: u64) -> bool {
        let Some(tenant) = self.core.retries.waiting.get(&number).map(|waiting| waiting.tenant) else {
            return false;
        };
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

    /// Starts the next message of a lane after the work that the previous one deferred.
    pub(super) fn retry_next(&mut self, next: Option<u64>) {
        if let Some(next) = next {
            self.drain_queue();
            self.retry(next);
        }
    }

    /// Retries a message and those that waited behind it, until the time for retries is over, or the tenant has used
    /// its CPU time. Returns whether any ran.
    fn retry(&mut self, number: u64) -> bool {
        let (mut next, mut has_run) = (Some(number), false);
        while let Some(number) = next {
            if self.is_retry_time_over() || self.waits_for_cpu_time(number) {
                self.core.retries.make_due(number, self.now_ms);
                break;
            }
            next = self.retry_one(number);
            has_run = true;
            // Deferred work is part of the attempt, which must end before the next one.
            self.drain_queue();
        }
        has_run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::PausedRun;
    use crate::ids::Uuid;
    use crate::platform::budget::MessageBudget;
    use crate::platform::retries::RetryWork;
    use crate::platform::slices::PausedMessage;

    const TENANT: TenantId = TenantId(Uuid([1; 16]));

    fn waiting(due_ms: i64, pause_s: i64) -> PendingRetry {
        PendingRetry {
            due_ms,
            pause_s,
            ..PendingRetry::new("Main", TENANT, RetryWork::Failed(Vec::new()))
        }
    }

    #[test]
    fn clock_set_back_limits_pauses() {
        let hour_ms = 3_600_000;
        let now_ms = 2 * hour_ms;
        let mut retries = Retries::new(10);
        retries.insert(1, waiting(now_ms, 0));
        retries.insert(2, waiting(now_ms + 5000, 10));
        retries.insert(3, waiting(i64::MAX, 10));
        retries.is_due(now_ms);
        retries.budget_pauses.insert(TENANT, now_ms + 1000);
        let due = |retries: &Retries| [1, 2, 3].map(|number| retries.waiting[&number].due_ms);
        assert_eq!(due(&retries), [now_ms, now_ms + 5000, i64::MAX]);
        retries.is_due(now_ms + 1);
        assert!(!retries.budget_pauses.is_empty());
        let earlier_ms = now_ms - hour_ms;
        assert!(retries.is_due(earlier_ms) && retries.budget_pauses.is_empty());
        assert_eq!(due(&retries), [earlier_ms, earlier_ms + 10_000, i64::MAX]);
    }

    #[test]
    fn paused_message_continues_before_others_of_its_tenant() {
        let mut retries = Retries::new(10);
        retries.insert(1, waiting(1, 0));
        let mut paused = waiting(2, 0);
        paused.put_paused(PausedMessage {
            run: PausedRun::default(),
            bytes: 1,
            budget: MessageBudget::default(),
            depth: 0,
        });
        retries.insert(2, paused);
        let other = PendingRetry {
            tenant: TenantId(Uuid([2; 16])),
            ..waiting(3, 0)
        };
        retries.insert(3, other);
        assert_eq!(retries.due_by_tenant(3), [2, 3, 1]);
    }

    /// The clock was set back while the platform was down.
    #[test]
    fn first_turn_limits_pauses() {
        let mut retries = Retries::new(10);
        retries.insert(1, waiting(1_000_000, 10));
        assert!(retries.is_due(1000));
        assert_eq!(retries.waiting[&1].due_ms, 11_000);
    }
}
