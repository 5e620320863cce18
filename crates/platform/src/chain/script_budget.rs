//! Decides which script runs next. Calls of a tenant run one after the other. Among tenants with waiting calls, the one
//! whose scripts have used the least CPU time is next. A tenant that has used its CPU time waits until it regains some.
//! The time of expensive messages in other nodes counts as well.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::script::{ScriptCall, TenantScriptUsage};
use crate::ids::TenantId;

/// A tenant may use its CPU time of this period at once.
const WINDOW: Duration = Duration::from_secs(10);
/// A call that uses more CPU time is expensive. Most use about ten microseconds.
const EXPENSIVE: Duration = Duration::from_micros(200);
/// CPU time that a tenant's first call of a process takes for its realm.
const FIRST_CALL: Duration = Duration::from_millis(15);
/// CPU time of expensive calls per second for which the thread of the rule chains waits, for each tenant.
const INLINE_MAX: Duration = Duration::from_millis(100);
const INLINE_WINDOW: Duration = Duration::from_secs(1);
/// The rule chains do not wait for the scripts of a tenant for this time after an expensive call.
const SLOW_FOR: Duration = Duration::from_secs(30);
/// A tenant counts as over its budget for this time after its last pause began, so that the alarm does not flicker.
const OVER_BUDGET_FOR: Duration = Duration::from_secs(10);

/// A call that waits or runs.
#[derive(Debug)]
pub struct QueuedCall {
    pub call: ScriptCall,
    pub number: u64,
    /// Processes that ended while they ran the call.
    pub lost_processes: u32,
}

#[derive(Debug)]
pub struct TenantQueues {
    /// CPU seconds per second.
    share: f64,
    tenants: HashMap<TenantId, TenantScripts>,
    waiting: usize,
}

#[derive(Debug, Default)]
struct TenantScripts {
    waiting: VecDeque<QueuedCall>,
    is_running: bool,
    cpu: Duration,
    /// CPU time in the order of turns: at least that of the other tenants when the tenant began to wait.
    turn: Duration,
    /// CPU time that is not regained yet, at `spent_at`.
    spent: Duration,
    spent_at: Option<Instant>,
    slow_until: Option<Instant>,
    inline: Duration,
    inline_since: Option<Instant>,
    over_budget_until: Option<Instant>,
    /// The tenant was deleted. It is removed when its last call ends.
    is_deleted: bool,
}

impl TenantScripts {
    /// Time until the tenant has CPU time, and zero if it has.
    fn pause(&mut self, share: f64, now: Instant) -> Duration {
        self.regain(share, now);
        let above = self.spent.saturating_sub(WINDOW.mul_f64(share));
        above.div_f64(share)
    }

    /// As [`TenantScripts::pause`]. A tenant that has to wait counts as over its budget.
    fn begin_pause(&mut self, share: f64, now: Instant) -> Duration {
        let pause = self.pause(share, now);
        if !pause.is_zero() {
            self.over_budget_until = Some(now + pause.max(OVER_BUDGET_FOR));
        }
        pause
    }

    /// Subtracts the CPU time that the tenant has regained. Called before time is added, because the tenant regains
    /// none before it has spent some.
    fn regain(&mut self, share: f64, now: Instant) {
        let since = now.saturating_duration_since(self.spent_at.unwrap_or(now));
        self.spent = self.spent.saturating_sub(since.mul_f64(share));
        self.spent_at = self.spent_at.max(Some(now));
    }

    fn has_calls(&self) -> bool {
        self.is_running || !self.waiting.is_empty()
    }

    fn is_slow(&self, now: Instant) -> bool {
        self.slow_until.is_some_and(|until| now < until)
    }
}

impl TenantQueues {
    /// `percent` is the CPU time of a tenant in percent of one core.
    pub fn new(percent: u32) -> TenantQueues {
        TenantQueues {
            share: f64::from(percent.max(1)) / 100.0,
            tenants: HashMap::new(),
            waiting: 0,
        }
    }

    /// Starts a call for which the rule chains wait, if the tenant's scripts are fast and none of them waits.
    pub fn begin_inline(&mut self, tenant: TenantId, now: Instant) -> bool {
        let share = self.share;
        let of_tenant = self.tenants.entry(tenant).or_default();
        let is_free = of_tenant.waiting.is_empty() && !of_tenant.is_running && !of_tenant.is_slow(now);
        if is_free && of_tenant.pause(share, now).is_zero() {
            of_tenant.is_running = true;
            return true;
        }
        false
    }

    /// Ends a call for which the rule chains waited. `is_first` is set for the tenant's first call of a process, which
    /// takes longer.
    pub fn end_inline(&mut self, tenant: TenantId, cpu: Duration, is_first: bool, now: Instant) {
        let of_tenant = self.tenants.entry(tenant).or_default();
        let counted = match is_first {
            true => cpu.saturating_sub(FIRST_CALL),
            false => cpu,
        };
        if counted >= EXPENSIVE {
            let since = *of_tenant.inline_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= INLINE_WINDOW {
                of_tenant.inline_since = Some(now);
                of_tenant.inline = Duration::ZERO;
            }
            of_tenant.inline += counted;
            if of_tenant.inline >= INLINE_MAX {
                of_tenant.slow_until = Some(now + SLOW_FOR);
            }
        }
        self.end(tenant, cpu);
    }

    /// The rule chains no longer wait for a call that runs.
    pub fn mark_slow(&mut self, tenant: TenantId, now: Instant) {
        self.tenants.entry(tenant).or_default().slow_until = Some(now + SLOW_FOR);
    }

    /// Ends a call that [`TenantQueues::pop`] returned, or that was marked as slow.
    pub fn end_queued(&mut self, tenant: TenantId, cpu: Duration, now: Instant) {
        if cpu >= EXPENSIVE {
            self.mark_slow(tenant, now);
        }
        self.end(tenant, cpu);
    }

    /// Counts time of nodes other than scripts, up to the CPU time of two windows. Nodes also run while the tenant does
    /// not have to wait. Without this limit their time could stop the tenant for hours.
    pub fn add_node_time(&mut self, tenant: TenantId, took: Duration, now: Instant) {
        let of_tenant = self.tenants.entry(tenant).or_default();
        of_tenant.regain(self.share, now);
        of_tenant.turn += took;
        let most = WINDOW.mul_f64(2.0 * self.share);
        // Scripts may have spent more: each call begins only if the tenant has CPU time.
        of_tenant.spent = of_tenant.spent.max(most.min(of_tenant.spent + took));
    }

    /// Time for which the tenant has to wait, because it has used its CPU time.
    pub fn budget_pause(&mut self, tenant: TenantId, now: Instant) -> Duration {
        let share = self.share;
        let of_tenant = self.tenants.get_mut(&tenant);
        of_tenant.map_or(Duration::ZERO, |of_tenant| of_tenant.begin_pause(share, now))
    }

    /// Removes a deleted tenant after its last call.
    pub fn remove(&mut self, tenant: TenantId) {
        if let Some(of_tenant) = self.tenants.get_mut(&tenant) {
            of_tenant.is_deleted = true;
        }
        self.remove_if_deleted(tenant);
    }

    fn remove_if_deleted(&mut self, tenant: TenantId) {
        let of_tenant = self.tenants.get(&tenant);
        if of_tenant.is_some_and(|of_tenant| of_tenant.is_deleted && !of_tenant.has_calls()) {
            self.tenants.remove(&tenant);
        }
    }

    fn end(&mut self, tenant: TenantId, cpu: Duration) {
        let of_tenant = self.tenants.entry(tenant).or_default();
        of_tenant.is_running = false;
        of_tenant.cpu += cpu;
        of_tenant.turn += cpu;
        of_tenant.spent += cpu;
        self.remove_if_deleted(tenant);
    }

    pub fn push(&mut self, queued: QueuedCall) {
        let active = self.tenants.values().filter(|tenant| !tenant.waiting.is_empty());
        let least = active.map(|tenant| tenant.turn).min().unwrap_or_default();
        let of_tenant = self.tenants.entry(queued.call.tenant).or_default();
        if of_tenant.waiting.is_empty() {
            of_tenant.turn = of_tenant.turn.max(least);
        }
        of_tenant.waiting.push_back(queued);
        self.waiting += 1;
    }

    /// Puts a call back that did not end.
    pub fn push_again(&mut self, queued: QueuedCall) {
        let of_tenant = self.tenants.entry(queued.call.tenant).or_default();
        of_tenant.is_running = false;
        of_tenant.waiting.push_front(queued);
        self.waiting += 1;
    }

    /// Starts the next call.
    pub fn pop(&mut self, now: Instant) -> Option<QueuedCall> {
        let share = self.share;
        let mut next: Option<(Duration, TenantId)> = None;
        for (id, of_tenant) in &mut self.tenants {
            if of_tenant.waiting.is_empty() || of_tenant.is_running {
                continue;
            }
            if !of_tenant.begin_pause(share, now).is_zero() {
                continue;
            }
            let turn = (of_tenant.turn, *id);
            if next.is_none_or(|first| turn < first) {
                next = Some(turn);
            }
        }
        let of_tenant = self.tenants.get_mut(&next?.1)?;
        let queued = of_tenant.waiting.pop_front()?;
        of_tenant.is_running = true;
        self.waiting -= 1;
        Some(queued)
    }

    /// Time until a waiting tenant has CPU time again.
    pub fn next_pause_end(&mut self, now: Instant) -> Option<Duration> {
        let share = self.share;
        let waiting = self
            .tenants
            .values_mut()
            .filter(|tenant| !tenant.waiting.is_empty() && !tenant.is_running);
        waiting.map(|tenant| tenant.pause(share, now)).min()
    }

    pub fn cancel(&mut self, tenant: TenantId, number: u64) {
        if let Some(of_tenant) = self.tenants.get_mut(&tenant) {
            let before = of_tenant.waiting.len();
            of_tenant.waiting.retain(|queued| queued.number != number);
            self.waiting -= before - of_tenant.waiting.len();
            self.remove_if_deleted(tenant);
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// By tenant, in the order of the identifiers.
    pub fn usage(&self, now: Instant) -> Vec<TenantScriptUsage> {
        let mut all: Vec<TenantScriptUsage> = self
            .tenants
            .iter()
            .map(|(tenant, of_tenant)| TenantScriptUsage {
                tenant: *tenant,
                cpu: of_tenant.cpu,
                is_over_budget: of_tenant.over_budget_until.is_some_and(|until| now < until),
            })
            .collect();
        all.sort_unstable_by_key(|usage| usage.tenant);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    const A: TenantId = TenantId(Uuid([1; 16]));
    const B: TenantId = TenantId(Uuid([2; 16]));

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn queued(tenant: TenantId, number: u64) -> QueuedCall {
        QueuedCall {
            call: ScriptCall {
                tenant,
                source: "".into(),
                data: String::new(),
                metadata: String::new(),
                kind: String::new(),
            },
            number,
            lost_processes: 0,
        }
    }

    impl TenantQueues {
        fn is_over_budget(&mut self, tenant: TenantId, now: Instant) -> bool {
            !self.budget_pause(tenant, now).is_zero()
        }
    }

    #[test]
    fn tenants_take_turns_by_cpu_time() {
        let (mut queues, now) = (TenantQueues::new(100), Instant::now());
        (0..4).for_each(|number| queues.push(queued(A, number)));
        (10..14).for_each(|number| queues.push(queued(B, number)));
        let mut order = Vec::new();
        while let Some(next) = queues.pop(now) {
            assert!(
                queues.tenants[&next.call.tenant].is_running,
                "one call of a tenant at a time"
            );
            order.push(next.number);
            let cpu = if next.call.tenant == A { ms(400) } else { ms(100) };
            queues.end_queued(next.call.tenant, cpu, now);
        }
        assert_eq!(order, [0, 10, 11, 12, 13, 1, 2, 3]);
        assert_eq!(queues.waiting(), 0);
        // A tenant saves no time while its scripts do not run.
        (4..8).for_each(|number| queues.push(queued(A, number)));
        queues.push(queued(B, 14));
        assert_eq!(queues.tenants[&B].turn, queues.tenants[&A].turn);
    }

    #[test]
    fn tenant_over_its_cpu_budget_waits() {
        let (mut queues, start) = (TenantQueues::new(20), Instant::now());
        for number in 0..6 {
            queues.push(queued(A, number));
        }
        // 2 s of CPU time in 10 s.
        for _ in 0..5 {
            assert!(queues.pop(start).is_some());
            queues.end_queued(A, ms(500), start);
        }
        assert!(queues.pop(start).is_none());
        assert!(queues.usage(start)[0].is_over_budget);
        assert_eq!(queues.usage(start)[0].cpu, ms(2500));
        assert_eq!(queues.next_pause_end(start), Some(ms(2500)));
        queues.push(queued(B, 9));
        assert_eq!(queues.pop(start).map(|next| next.number), Some(9), "another tenant");
        queues.end_queued(B, ms(1), start);
        let later = start + ms(2501);
        assert_eq!(queues.pop(later).map(|next| next.number), Some(5));
        assert!(!queues.usage(start + OVER_BUDGET_FOR)[0].is_over_budget);
    }

    #[test]
    fn time_of_nodes_counts_toward_the_budget() {
        let (mut queues, now) = (TenantQueues::new(20), Instant::now());
        assert!(!queues.is_over_budget(A, now));
        queues.push(queued(A, 0));
        queues.push(queued(B, 1));
        queues.add_node_time(A, ms(2500), now);
        assert_eq!(queues.budget_pause(A, now), ms(2500));
        assert!(!queues.is_over_budget(B, now));
        assert_eq!(queues.pop(now).map(|next| next.number), Some(1));
        assert!(queues.pop(now).is_none() && queues.usage(now)[0].is_over_budget);
        let later = now + ms(2501);
        assert!(!queues.is_over_budget(A, later));
        assert_eq!(queues.pop(later).map(|next| next.number), Some(0));
    }

    #[test]
    fn deleted_tenant_is_removed_after_its_calls() {
        let (mut queues, now) = (TenantQueues::new(20), Instant::now());
        queues.push(queued(A, 0));
        queues.add_node_time(B, ms(1), now);
        for tenant in [A, B] {
            queues.remove(tenant);
        }
        assert!(queues.usage(now).iter().map(|usage| usage.tenant).eq([A]));
        queues.push(queued(A, 1));
        queues.pop(now);
        queues.end_queued(A, ms(1), now);
        assert_eq!(queues.usage(now).len(), 1, "a call waits");
        queues.cancel(A, 1);
        assert!(queues.usage(now).is_empty());
        // Also if its last call runs.
        assert!(queues.begin_inline(B, now));
        queues.remove(B);
        queues.end_inline(B, ms(1), false, now);
        assert!(queues.usage(now).is_empty());
    }

    #[test]
    fn pause_after_long_node_time_is_limited() {
        for percent in [1, 20] {
            let (mut queues, now) = (TenantQueues::new(percent), Instant::now());
            for _ in 0..3000 {
                queues.add_node_time(A, ms(10), now);
            }
            let pause = queues.budget_pause(A, now);
            assert!(pause > WINDOW - ms(1) && pause < WINDOW + ms(1), "{pause:?}");
        }
        // The time of a script counts in full, and node time after it changes nothing.
        let (mut queues, now) = (TenantQueues::new(20), Instant::now());
        queues.push(queued(A, 0));
        queues.pop(now);
        queues.end_queued(A, ms(6000), now);
        queues.add_node_time(A, ms(1000), now);
        let pause = queues.budget_pause(A, now);
        assert!(pause > ms(19_999) && pause < ms(20_001), "{pause:?}");
    }

    #[test]
    fn time_of_nodes_is_regained_before_the_first_check() {
        let (mut queues, start) = (TenantQueues::new(20), Instant::now());
        // 2 % of a core for a day.
        let end = (0..86_400).fold(start, |now, _| {
            queues.add_node_time(A, ms(20), now);
            now + ms(1000)
        });
        assert!(!queues.is_over_budget(A, end));
        // The tenant has regained half a second of 2.5 s when it is checked for the first time.
        queues.add_node_time(B, ms(2500), start);
        assert!(!queues.is_over_budget(B, start + ms(2501)));
        queues.add_node_time(B, ms(500), start + ms(2501));
        assert!(queues.is_over_budget(B, start + ms(2501)));
        assert!(!queues.is_over_budget(B, start + ms(5002)));
    }

    #[test]
    fn chains_wait_only_for_fast_scripts() {
        let (mut queues, now) = (TenantQueues::new(100), Instant::now());
        for _ in 0..10_000 {
            assert!(queues.begin_inline(A, now));
            queues.end_inline(A, Duration::from_micros(50), false, now);
        }
        assert!(queues.begin_inline(A, now));
        assert!(!queues.begin_inline(A, now), "one call at a time");
        queues.end_inline(A, FIRST_CALL, true, now);
        for _ in 0..25 {
            assert!(queues.begin_inline(A, now));
            queues.end_inline(A, ms(4), false, now);
        }
        assert!(!queues.begin_inline(A, now), "100 ms of expensive calls in a second");
        assert!(queues.begin_inline(B, now));
        queues.end_inline(B, ms(4), false, now);
        for _ in 0..3 {
            assert!(queues.begin_inline(B, now));
            queues.end_inline(B, ms(50), true, now);
        }
        assert!(!queues.begin_inline(B, now), "expensive first calls");
        let later = now + SLOW_FOR;
        assert!(queues.begin_inline(A, later));
        queues.mark_slow(A, later);
        queues.end_queued(A, ms(1), later);
        assert!(!queues.begin_inline(A, later + SLOW_FOR - ms(1)));
        assert!(queues.begin_inline(A, later + SLOW_FOR));
        queues.end_inline(A, ms(0), false, later);
        queues.push(queued(A, 1));
        assert!(
            !queues.begin_inline(A, later + SLOW_FOR),
            "a call does not overtake a waiting one"
        );
        queues.cancel(A, 1);
        assert!(queues.begin_inline(A, later + SLOW_FOR));
    }
}
