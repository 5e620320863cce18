//! Lanes of waiting messages: those of sequential queues, and those of tenants whose scripts or nodes take long.

use std::sync::Arc;

use super::{PendingRetry, PlatformCall, Retries};
use crate::chain::Continuation;
use crate::ids::{EntityId, TenantId, Uuid};
use crate::model::{Queue, SubmitKind};
use crate::platform::Platform;

/// The queue of lanes of messages that wait for scripts. No queue has this name.
pub const SCRIPT_LANE: &str = "$scripts";

/// Messages of one lane are processed one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessingLane {
    pub queue: Box<str>,
    pub key: Uuid,
}

impl ProcessingLane {
    pub fn of_scripts(tenant: TenantId) -> ProcessingLane {
        ProcessingLane {
            queue: SCRIPT_LANE.into(),
            key: tenant.0,
        }
    }

    pub fn is_of_scripts(&self) -> bool {
        &*self.queue == SCRIPT_LANE
    }
}

impl Queue {
    pub(super) fn lane(&self, originator: EntityId, tenant: TenantId) -> Option<ProcessingLane> {
        let of = match self.submit() {
            SubmitKind::Burst | SubmitKind::Batch => return None,
            SubmitKind::SequentialByOriginator => originator.id,
            SubmitKind::SequentialByTenant => tenant.0,
            SubmitKind::Sequential => Uuid::NULL,
        };
        Some(ProcessingLane {
            queue: self.name.as_str().into(),
            key: of,
        })
    }
}

impl Retries {
    /// Removes the message from its lane, and returns the next one.
    pub fn leave_lane(&mut self, number: u64, lane: Option<&ProcessingLane>) -> Option<u64> {
        let lane = lane?;
        self.first_records.remove(&number);
        let numbers = self.lanes.get_mut(lane)?;
        let was_first = numbers.front() == Some(&number);
        match was_first {
            true => drop(numbers.pop_front()),
            false => numbers.retain(|known| *known != number),
        }
        let next = numbers.front().copied();
        if next.is_none() {
            self.lanes.remove(lane);
        }
        next.filter(|_| was_first)
    }

    /// Adds a stored continuation to a lane: after the one that it replaces, or as the last one.
    pub fn join_lane(&mut self, number: u64, lane: ProcessingLane, continued: Option<u64>) {
        if let Some(continued) = continued {
            let first = self.first_record(continued);
            self.first_records.insert(number, first);
        }
        let numbers = self.lanes.entry(lane).or_default();
        let index = continued.and_then(|continued| numbers.iter().position(|known| *known == continued));
        numbers.insert(index.map_or(numbers.len(), |index| index + 1), number);
    }

    /// Number of the first record of a message that waits for scripts one after the other.
    pub(super) fn first_record(&self, number: u64) -> u64 {
        self.first_records.get(&number).copied().unwrap_or(number)
    }

    /// Whether a message of the tenant waits for a script or for its turn.
    pub fn waits_for_script(&self, tenant: TenantId) -> bool {
        self.lanes.contains_key(&ProcessingLane::of_scripts(tenant))
    }

    /// Tenants that use so much of their share of the waiting messages that their devices should send no more.
    pub fn tenants_near_limit(&self) -> Vec<TenantId> {
        let of_scripts = self.lanes.iter().filter(|(lane, _)| lane.is_of_scripts());
        let tenants = of_scripts.map(|(lane, _)| TenantId(lane.key));
        let is_near = |tenant: &TenantId| self.shares.is_near_limit(*tenant, self.rest_bytes(*tenant));
        tenants.filter(is_near).collect()
    }
}

impl PendingRetry {
    /// Lets later messages of the tenant wait for this one, unless those of its queue wait anyway.
    pub(super) fn join_script_lane(&mut self) {
        let tenant = self.tenant;
        self.lane.get_or_insert_with(|| ProcessingLane::of_scripts(tenant));
    }
}

impl Platform {
    /// Tenants with so many messages that wait for scripts or for their turn that their devices should send no more.
    pub fn tenants_behind_scripts(&self) -> Vec<TenantId> {
        self.core().retries.tenants_near_limit()
    }
}

impl PlatformCall<'_> {
    /// Returns the queue of a message that may have to wait: it retries failed messages, or messages of the tenant or
    /// this one wait for a script or for their turn.
    pub fn waiting_queue(&mut self, tenant: TenantId, name: Option<&str>) -> Option<Arc<Queue>> {
        let queue = self.core.queues.named(name)?;
        let may_wait = queue.is_retrying() || self.core.retries.waits_for_script(tenant) || self.is_held(tenant);
        (may_wait && !self.is_replay).then(|| Arc::clone(queue))
    }

    /// As [`PlatformCall::store_continuation`], for a message that waits for a script. Later messages of the tenant
    /// wait for it.
    pub fn store_script(&mut self, tenant: TenantId, then: &Continuation) -> u64 {
        let lane = ProcessingLane::of_scripts(tenant);
        // The time of a script does not include this.
        let number = self.timed(tenant, |visit| visit.store_node(tenant, then, Some(lane.clone())));
        self.core.retries.join_lane(number, lane, self.continuing);
        number
    }

    /// Ends the wait for a script, and starts the next message of the tenant.
    pub fn leave_script_lane(&mut self, number: u64, tenant: TenantId) {
        let lane = ProcessingLane::of_scripts(tenant);
        let next = self.core.retries.leave_lane(number, Some(&lane));
        self.retry_next(next);
    }

    /// Only a sequential queue lets later messages wait until a failed message is retried.
    pub(super) fn leave_lane_for_retry(&mut self, number: u64, waiting: &mut PendingRetry) -> Option<u64> {
        let of_scripts = waiting.lane.as_ref().filter(|lane| lane.is_of_scripts());
        if waiting.outstanding > 0 || of_scripts.is_none() {
            return None;
        }
        self.core.retries.leave_lane(number, waiting.lane.take().as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::PausedRun;
    use crate::platform::budget::MessageBudget;
    use crate::platform::retries::{RetryWork, WAITING_BYTES_MAX};
    use crate::platform::slices::PausedMessage;

    #[test]
    fn rest_of_a_paused_message_is_load_of_its_tenant_only() {
        let [slow, other] = [1, 2].map(|n| TenantId(Uuid([n; 16])));
        let mut retries = Retries::new(10);
        let mut waiting = PendingRetry::new("Main", slow, RetryWork::Failed(Vec::new()));
        waiting.bytes = 10;
        for bytes in [100, WAITING_BYTES_MAX] {
            waiting.put_paused(PausedMessage {
                run: PausedRun::default(),
                bytes,
                budget: MessageBudget::default(),
                depth: 0,
            });
            retries.insert(1, waiting);
            assert_eq!((retries.shares.used().bytes, retries.rest_bytes(slow)), (10, bytes));
            assert!(!retries.is_full() && retries.has_capacity(other));
            let is_large = bytes == WAITING_BYTES_MAX;
            assert_eq!(retries.has_capacity(slow), !is_large);
            assert_eq!(retries.tenants_near_limit().contains(&slow), is_large);
            waiting = retries.take(1).unwrap();
            assert!(retries.rests.is_empty());
            assert!(waiting.take_paused().is_some());
        }
        assert_eq!(waiting.lane, Some(ProcessingLane::of_scripts(slow)));
    }

    #[test]
    fn tenants_within_their_share_need_no_cpu_time_if_too_many_wait() {
        let [large, small] = [1, 2].map(|n| TenantId(Uuid([n; 16])));
        let mut retries = Retries::new(3);
        let waiting = |tenant| PendingRetry {
            due_ms: 5,
            ..PendingRetry::new("Main", tenant, RetryWork::Failed(Vec::new()))
        };
        retries.insert(1, waiting(large));
        retries.insert(2, waiting(large));
        retries.insert(3, waiting(small));
        assert!(retries.is_full());
        assert!(!retries.needs_no_cpu_time(large) && retries.needs_no_cpu_time(small));
        retries.take(1);
        assert!(!retries.needs_no_cpu_time(small));
    }

    #[test]
    fn only_the_first_of_a_lane_is_due() {
        let tenant = TenantId(Uuid([1; 16]));
        let waiting = || PendingRetry {
            due_ms: 5,
            lane: Some(ProcessingLane::of_scripts(tenant)),
            ..PendingRetry::new("Main", tenant, RetryWork::Failed(Vec::new()))
        };
        let due = |retries: &Retries| {
            let all = [1, 2].map(|number| retries.waiting[&number].due_ms);
            (all, retries.next_due_ms())
        };
        let mut retries = Retries::new(10);
        retries.insert(1, waiting());
        retries.insert(2, waiting());
        assert_eq!(due(&retries).0, [5, i64::MAX]);
        // After a restart, too. The second may have been the first when it was stored.
        let mut retries = Retries::new(10);
        for number in [2, 1] {
            retries.restore(super::super::id_of(number), &waiting().to_bytes());
        }
        retries.sort_lanes();
        assert_eq!(due(&retries), ([0, i64::MAX], 0));
        assert_eq!(
            retries.leave_lane(1, Some(&ProcessingLane::of_scripts(tenant))),
            Some(2)
        );
    }
}
