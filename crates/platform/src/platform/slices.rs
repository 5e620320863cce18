//! Divides the time of rule nodes among the tenants, so that the messages of one tenant do not delay those of others.
//!
//! - A run ends after a time slice. The rest of its message waits in the lane of its tenant.
//! - Messages of a tenant whose nodes take long wait in its lane, too. Scripts that take long use the same lane.
//! - Tenants take turns: lanes get a slice before a batch, at most half of the time while batches arrive, and all of it
//!   otherwise.
//! - The time of expensive messages counts toward the CPU time of the tenant's scripts. The lane of a tenant over its
//!   CPU time waits.
//!
//! Times are wall-clock times, because reading the CPU time of a thread takes as long as several nodes. On a busy
//! machine more messages wait in lanes, but none is lost or overtaken. All of this needs several tenants with a root
//! chain.

use std::time::{Duration, Instant};

use super::host::PlatformCall;
use super::retries::{PendingRetry, ProcessingLane, RetryWork};
use super::{HashMap, IngestError, Platform, PlatformOutlet};
use crate::chain::{ChainRun, PausedRun};
use crate::ids::TenantId;
use crate::queue_statistics::MessageResult;

/// Node time after which a run is paused.
const SLICE: Duration = Duration::from_millis(10);
/// Time for the lanes before a batch.
pub(super) const LANES_TIME_MAX: Duration = Duration::from_millis(20);
/// A message whose nodes take longer is expensive. Most take ten to twenty microseconds.
const EXPENSIVE: Duration = Duration::from_micros(200);
/// Node time of expensive messages per window after which the messages of a tenant wait in its lane.
const DIRECT_MAX: Duration = Duration::from_millis(100);
const WINDOW: Duration = Duration::from_secs(1);
/// They wait for this time after the last such window.
const SLOW_FOR: Duration = Duration::from_secs(30);

const TOO_MANY_WAIT: &str = "the message was dropped: too many messages of this tenant wait for its rule chains";

/// Node time of tenants with expensive messages. Those without any for a while are removed.
#[derive(Default)]
pub(super) struct NodeTimes {
    by_tenant: HashMap<TenantId, TenantNodeTime>,
    next_removal: Option<Instant>,
}

struct TenantNodeTime {
    since: Instant,
    used: Duration,
    slow_until: Option<Instant>,
}

impl NodeTimes {
    /// Counts the node time of an expensive message.
    fn add(&mut self, tenant: TenantId, took: Duration, now: Instant) {
        if self.next_removal.is_none_or(|at| at <= now) {
            self.by_tenant.retain(|_, of_tenant| of_tenant.is_needed(now));
            self.next_removal = Some(now + SLOW_FOR);
        }
        let of_tenant = self.by_tenant.entry(tenant).or_insert(TenantNodeTime {
            since: now,
            used: Duration::ZERO,
            slow_until: None,
        });
        if now.saturating_duration_since(of_tenant.since) >= WINDOW {
            (of_tenant.since, of_tenant.used) = (now, Duration::ZERO);
        }
        of_tenant.used += took;
        if of_tenant.used >= DIRECT_MAX {
            of_tenant.slow_until = Some(now + SLOW_FOR);
        }
    }

    pub fn remove(&mut self, tenant: TenantId) {
        self.by_tenant.remove(&tenant);
    }

    fn is_slow(&self, tenant: TenantId, now: impl FnOnce() -> Instant) -> bool {
        let until = self.by_tenant.get(&tenant).and_then(|of_tenant| of_tenant.slow_until);
        until.is_some_and(|until| now() < until)
    }
}

impl TenantNodeTime {
    fn is_needed(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < WINDOW || self.slow_until.is_some_and(|until| now < until)
    }
}

/// A message whose run was paused.
#[derive(Debug)]
pub(super) struct PausedMessage {
    pub run: PausedRun,
    pub bytes: usize,
    /// The budget of the message, and the number of its deferrals.
    pub budget: super::budget::MessageBudget,
    pub depth: usize,
}

impl Platform {
    /// Whether messages wait for their turn or are due for a retry.
    pub fn has_due_messages(&self, now_ms: i64) -> bool {
        self.core().retries.is_due(now_ms)
    }

    /// When the next waiting message may run, as Unix time in milliseconds.
    pub fn next_due_ms(&self) -> i64 {
        self.core().retries.next_due_ms()
    }

    /// Continues waiting messages for a short time. Returns whether any continued. The caller uses this while no new
    /// messages arrive.
    pub fn continue_waiting(&self, now_ms: i64, outlet: &mut dyn PlatformOutlet) -> Result<bool, IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        let has_run = visit.take_turn();
        visit.drain_queue();
        visit.decide_batch();
        Ok(has_run)
    }
}

impl PlatformCall<'_> {
    /// Begins the time slice of a message, or of deferred work.
    pub fn begin_slice(&mut self) {
        (self.slice_time, self.node_time) = (Duration::ZERO, Duration::ZERO);
    }

    pub fn has_several_tenants(&self) -> bool {
        self.core.roots.len() > 1
    }

    pub fn is_time_slice_over(&self) -> bool {
        self.slice_time >= SLICE && !self.is_replay && self.has_several_tenants()
    }

    /// Counts the node time since the last call, if it or that of the message with its deferred work is long. Messages
    /// of a deleted tenant may still wait; their time does not count.
    pub fn count_node_time(&mut self, tenant: TenantId) {
        let took = std::mem::take(&mut self.node_time);
        let is_expensive = took.max(self.budget.node_time()) >= EXPENSIVE;
        let is_known = self.core.roots.contains_key(&tenant);
        if !is_expensive || took.is_zero() || !self.has_several_tenants() || !is_known {
            return;
        }
        self.core.node_times.add(tenant, took, Instant::now());
        if let Some(scripts) = &self.platform.options.scripts {
            scripts.add_node_time(tenant, took);
        }
    }

    /// Counts the time that a message takes outside of its nodes, for example until it is stored, as node time of the
    /// tenant, but not of the message. `work` must not call this function again, because its time would count twice.
    pub fn timed<R>(&mut self, tenant: TenantId, work: impl FnOnce(&mut Self) -> R) -> R {
        let begun = Instant::now();
        let result = work(self);
        self.node_time += begun.elapsed();
        self.count_node_time(tenant);
        result
    }

    /// Whether a message of the tenant waits in its lane: the nodes of the tenant take long, or this is deferred work
    /// of a message that has used a time slice.
    pub fn is_held(&self, tenant: TenantId) -> bool {
        let has_used_slice = self.depth > 0 && self.has_several_tenants() && self.budget.node_time() >= SLICE;
        has_used_slice || self.core.node_times.is_slow(tenant, Instant::now)
    }

    /// Begins a run that no queue holds back, such as the one after an answer. If the nodes of the tenant take long,
    /// it pauses before its next node, and continues in the lane of the tenant.
    pub fn begin_unqueued(&mut self, tenant: TenantId) {
        if self.core.node_times.is_slow(tenant, Instant::now) {
            self.slice_time = SLICE;
        }
    }

    /// Continues waiting messages before a batch, with at most half of the time. If too many wait, the batch is not
    /// accepted, so they have all of it.
    pub fn continue_before_batch(&mut self) {
        let is_full = self.core.retries.is_full();
        if is_full || self.core.next_turn.is_none_or(|at| Instant::now() >= at) {
            self.take_turn();
        }
    }

    /// Returns whether a message continued.
    fn take_turn(&mut self) -> bool {
        let begun = Instant::now();
        let has_run = self.retry_due();
        self.core.next_turn = Some(begun + 2 * begun.elapsed());
        has_run
    }

    /// Time for which the tenant's lane has to wait, because the tenant has used its CPU time. Too many waiting
    /// messages stop the messages of all tenants, so then tenants within their share do not wait.
    pub fn budget_pause(&self, tenant: TenantId) -> Duration {
        if !self.has_several_tenants() || self.core.retries.needs_no_cpu_time(tenant) {
            return Duration::ZERO;
        }
        let scripts = self.platform.options.scripts.as_ref();
        scripts.map_or(Duration::ZERO, |scripts| scripts.budget_pause(tenant))
    }

    /// Stores the rest of a message whose run was paused. It continues in the lane of the tenant, before messages that
    /// came later.
    pub fn store_paused(&mut self, tenant: TenantId, queue: Option<&str>, run: PausedRun, done: ChainRun) {
        let queue = self.core.queues.named(queue).map(|queue| queue.name.clone());
        let has_capacity = self.has_capacity_in_retries(tenant);
        // Inserting the message counts its own time.
        let waiting = self.timed(tenant, |visit| {
            let work = RetryWork::Paused(run.clone());
            let mut waiting = PendingRetry::new(&queue.unwrap_or_default(), tenant, work);
            waiting.failed = done;
            waiting.added_bytes = visit.budget.added_bytes();
            if has_capacity {
                visit.put_paused(&mut waiting, run);
            }
            waiting
        });
        match has_capacity {
            true => self.insert_in_lane(waiting, ProcessingLane::of_scripts(tenant)),
            false => self.drop_waiting(waiting, TOO_MANY_WAIT),
        }
    }

    /// Keeps the rest of a run until the next turn of its tenant, after the rest of an earlier run for the message.
    pub fn pause(&mut self, waiting: &mut PendingRetry, run: PausedRun) {
        self.timed(waiting.tenant, |visit| visit.put_paused(waiting, run));
    }

    fn put_paused(&self, waiting: &mut PendingRetry, run: PausedRun) {
        let mut run = run;
        if let Some(mut first) = waiting.take_paused() {
            first.run.append(run);
            run = first.run;
        }
        waiting.put_paused(PausedMessage {
            bytes: run.weight(),
            run,
            budget: self.budget.clone(),
            depth: self.depth,
        });
    }

    /// Counts a message as failed that cannot wait. The failures before its pause are reported, too.
    pub fn drop_waiting(&mut self, mut waiting: PendingRetry, problem: &str) {
        let done = std::mem::take(&mut waiting.failed);
        let earlier = done.failures.iter();
        waiting
            .failures
            .extend(earlier.map(|failure| (failure.node.clone(), failure.error.clone())));
        waiting.failures.push((String::new(), problem.to_owned()));
        let (tenant, queue) = (waiting.tenant, waiting.queue.clone());
        self.count_result(tenant, Some(&queue), MessageResult::Failed, &done);
        self.drop_failed(&waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    #[test]
    fn tenant_with_expensive_messages_is_slow_for_a_while() {
        let [slow, other] = [1, 2].map(|n| TenantId(Uuid([n; 16])));
        let (mut times, start) = (NodeTimes::default(), Instant::now());
        let half = DIRECT_MAX / 2;
        times.add(slow, half, start);
        times.add(slow, half, start + WINDOW);
        assert!(!times.is_slow(slow, || start + WINDOW), "half per window");
        times.add(slow, half, start + WINDOW);
        assert!(times.is_slow(slow, || start + WINDOW) && !times.is_slow(other, || start));
        assert!(!times.is_slow(slow, || start + WINDOW + SLOW_FOR));
    }

    #[test]
    fn times_of_tenants_without_expensive_messages_are_removed() {
        let (mut times, start) = (NodeTimes::default(), Instant::now());
        for tenant in 1..100 {
            times.add(TenantId(Uuid([tenant; 16])), DIRECT_MAX, start);
        }
        let last = TenantId(Uuid([100; 16]));
        times.add(last, EXPENSIVE, start + SLOW_FOR);
        assert_eq!(times.by_tenant.keys().collect::<Vec<_>>(), [&last]);
    }
}
