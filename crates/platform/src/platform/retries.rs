//! Messages that failed in a rule chain and wait for a retry, according to the processing strategy of their queue.
//!
//! A waiting message is stored in the same transaction as the position of its batch, so it is retried after a crash.
//! The record stays until the points written by its retries are durable, because log replay does not recreate them. The
//! record contains all work that wrote these points, even if a later retry has less to do. After a crash this work runs
//! again, and its points overwrite the same points.
//!
//! Other messages do not wait for a failed message, unless the queue is sequential. In a sequential queue, later
//! messages of the same originator, tenant or queue wait until it succeeds or is dropped.
//!
//! A message whose script or nodes take long waits here, too, and so do later messages of its tenant: they form the
//! lane of the tenant (`slices.rs`). Messages of a sequential queue wait in their own lane instead.
//!
//! The number and size of waiting messages are limited. At the limit the platform accepts no batch. If there are
//! several tenants, it drops failed messages that exceed a tenant's share. The rests of paused messages count only as
//! load of their tenant, so a tenant with a large rest does not stop the messages of others.

mod lanes;
mod records;
mod turns;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use timeseries::LogPosition;

use super::budget::MessageBudget;
use super::host::PlatformCall;
use super::slices::PausedMessage;
use super::{HashMap, Platform, PlatformCore};
use crate::chain::{self, ChainMessage, ChainRun, Continuation, FailedAt, POST_ATTRIBUTES, POST_TELEMETRY, PausedRun};
use crate::ids::{EntityId, RuleChainId, TenantId, Uuid};
use crate::model::{MAIN_QUEUE, ProcessingKind, Queue};
use crate::queue_statistics::MessageResult;
use crate::repository::{RepositoryChange, StateKind};
use crate::shares::{TenantLoad, TenantShares};
pub(super) use lanes::ProcessingLane;

/// Largest stored size of all waiting messages.
pub(super) const WAITING_BYTES_MAX: usize = 64 << 20;

/// Limit while a batch is processed. It is higher than `WAITING_BYTES_MAX`, at which no further batch is accepted,
/// because a single message may create much waiting work.
const BATCH_BYTES_MAX: usize = 4 * WAITING_BYTES_MAX;

/// Finished messages whose stored points are not durable yet. Beyond that the store is asked to flush. After a crash
/// all of them are retried.
const DONE_MAX: usize = 10_000;

const LANE_EXCEEDED: &str =
    "the message was dropped: too many messages of this tenant wait for its scripts and rule chains";
const RETRIES_EXCEEDED: &str = "the message is not retried: too many messages of this tenant wait for a retry";

/// Queues by name.
#[derive(Default)]
pub(super) struct QueuesByName(HashMap<Box<str>, Arc<Queue>>);

impl QueuesByName {
    /// The three default queues, replaced and extended by the stored ones.
    pub fn of(stored: impl IntoIterator<Item = Queue>) -> QueuesByName {
        let all = Queue::defaults().into_iter().chain(stored);
        QueuesByName(all.map(|queue| (queue.name.as_str().into(), Arc::new(queue))).collect())
    }

    /// Unknown queue names fall back to Main.
    pub fn named(&self, name: Option<&str>) -> Option<&Arc<Queue>> {
        let named = name.and_then(|name| self.0.get(name));
        named.or_else(|| self.0.get(MAIN_QUEUE))
    }
}

/// The work of a retry.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RetryWork {
    /// The whole chain from its first node, including the alarm rules.
    Message {
        chain: RuleChainId,
        message: ChainMessage<'static>,
    },
    /// The chain after a checkpoint.
    Resume(Continuation),
    /// The nodes that failed.
    Failed(Vec<(RuleChainId, FailedAt)>),
    /// The rest of a paused run.
    Paused(PausedRun),
}

impl RetryWork {
    fn originator(&self) -> Option<EntityId> {
        match self {
            RetryWork::Message { message, .. } => Some(message.originator),
            RetryWork::Resume(then) => Some(then.message.originator),
            RetryWork::Failed(all) => all.first().map(|(_, at)| at.message.originator),
            RetryWork::Paused(run) => run.tasks.first().map(|task| task.message.originator),
        }
    }
}

#[derive(Debug)]
pub(super) struct PendingRetry {
    pub queue: Box<str>,
    pub tenant: TenantId,
    work: RetryWork,
    /// Failed attempts.
    tries: i64,
    pause_s: i64,
    /// `i64::MAX` while it waits for the messages before it in the lane.
    due_ms: i64,
    lane: Option<ProcessingLane>,
    /// Number of the first record of the message, if it waited for an earlier script.
    first_record: Option<u64>,
    /// Failures of the last attempt.
    pub failures: Vec<(String, String)>,
    bytes: usize,
    /// The rest of an attempt that was paused. After a restart the attempt is repeated.
    paused: Option<Box<PausedMessage>>,
    /// Outstanding external requests and scripts, and the failures so far. After a restart the attempt is repeated.
    outstanding: usize,
    pub failed: ChainRun,
    /// The budget of the message that deferred this work, and the number of deferrals. After a restart it has a budget
    /// of its own.
    deferred: Option<(MessageBudget, usize)>,
    /// Bytes taken from the budget by this attempt.
    pub added_bytes: usize,
    /// Attempts that log replay does not repeat have stored points. They are durable when everything up to this
    /// position is.
    stored: Option<LogPosition>,
    /// The work that stored them, if less is left to do. A restart repeats this work.
    stored_by: Option<RetryWork>,
}

pub(super) struct Retries {
    /// By number, in the order of arrival.
    waiting: BTreeMap<u64, PendingRetry>,
    lanes: HashMap<ProcessingLane, VecDeque<u64>>,
    /// First records of messages that wait for a second or later script.
    first_records: HashMap<u64, u64>,
    next_number: u64,
    next_due_ms: i64,
    /// Time of the latest check for due messages, which detects a clock that was set back. `i64::MAX` before the first.
    latest_ms: i64,
    /// Tenants whose messages wait, because they have used their CPU time, and the end of that pause.
    budget_pauses: HashMap<TenantId, i64>,
    capacity: TenantLoad,
    shares: TenantShares,
    /// Memory of the rests of paused messages by tenant. `shares` does not include it.
    rests: HashMap<TenantId, usize>,
    /// Finished messages, removed when everything up to the position is durable.
    done: Vec<(LogPosition, u64)>,
    /// Per queue, for the current batch: number of messages, and the failed ones.
    batch: HashMap<Box<str>, (u64, Vec<u64>)>,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries::new(0)
    }
}

impl Retries {
    pub fn new(most: usize) -> Retries {
        let most = TenantLoad {
            count: most,
            bytes: WAITING_BYTES_MAX,
        };
        Retries {
            waiting: BTreeMap::new(),
            lanes: HashMap::default(),
            first_records: HashMap::default(),
            next_number: 0,
            next_due_ms: 0,
            latest_ms: i64::MAX,
            budget_pauses: HashMap::default(),
            capacity: most,
            shares: TenantShares::new(most),
            rests: HashMap::default(),
            done: Vec::new(),
            batch: HashMap::default(),
        }
    }

    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_full(&self) -> bool {
        let used = self.shares.used();
        used.count >= self.capacity.count || used.bytes >= self.capacity.bytes
    }

    pub(super) fn rest_bytes(&self, tenant: TenantId) -> usize {
        self.rests.get(&tenant).copied().unwrap_or_default()
    }

    /// Whether a message of the tenant may wait, if there are several tenants.
    fn has_capacity(&self, tenant: TenantId) -> bool {
        self.shares.has_capacity(tenant, self.rest_bytes(tenant))
    }

    /// Whether the tenant does not wait for CPU time: too many messages wait, but the tenant is within its share.
    pub fn needs_no_cpu_time(&self, tenant: TenantId) -> bool {
        self.is_full() && self.shares.is_within_equal_part(tenant, self.rest_bytes(tenant))
    }

    /// Loads a stored message. A record that cannot be decoded is skipped.
    pub fn restore(&mut self, id: Uuid, bytes: &[u8]) {
        let number = number_of(id);
        self.next_number = self.next_number.max(number + 1);
        if let Some(waiting) = PendingRetry::from_bytes(bytes) {
            self.enter_lane(number, &waiting);
            self.add(number, waiting);
        }
    }

    /// Sorts the lanes in the order of arrival after all messages are loaded. Only the first of a lane is due. The lane
    /// of a tenant continues at once.
    pub fn sort_lanes(&mut self) {
        let first_record = |number: &u64| self.waiting.get(number).and_then(|waiting| waiting.first_record);
        for numbers in self.lanes.values_mut() {
            let order = |number: &u64| (first_record(number).unwrap_or(*number), *number);
            numbers.make_contiguous().sort_unstable_by_key(order);
        }
        for (lane, numbers) in &self.lanes {
            for (index, number) in numbers.iter().enumerate() {
                if let Some(waiting) = self.waiting.get_mut(number) {
                    waiting.due_ms = match (index, waiting.due_ms) {
                        (0, i64::MAX) => 0,
                        (0, _) if lane.is_of_scripts() => 0,
                        (0, due_ms) => due_ms,
                        _ => i64::MAX,
                    };
                }
            }
        }
        self.next_due_ms = 0;
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Adds a message. It is not due before the messages before it have left its lane.
    fn insert(&mut self, number: u64, mut waiting: PendingRetry) {
        if !self.enter_lane(number, &waiting) {
            waiting.due_ms = i64::MAX;
        }
        self.next_due_ms = self.next_due_ms.min(self.due_ms(&waiting));
        self.add(number, waiting);
    }

    fn add(&mut self, number: u64, waiting: PendingRetry) {
        self.shares.add(waiting.tenant, waiting.bytes);
        if let Some(paused) = &waiting.paused {
            *self.rests.entry(waiting.tenant).or_default() += paused.bytes;
        }
        self.waiting.insert(number, waiting);
    }

    /// Adds the message to its lane, unless it is there. Returns whether it is the first, or has no lane.
    fn enter_lane(&mut self, number: u64, waiting: &PendingRetry) -> bool {
        let Some(lane) = &waiting.lane else { return true };
        let numbers = self.lanes.entry(lane.clone()).or_default();
        // A message that was retried or continued is still in its lane.
        let is_last = numbers.back().is_none_or(|last| *last < number);
        let is_new = is_last && !self.first_records.contains_key(&number);
        if is_new || !numbers.contains(&number) {
            numbers.push_back(number);
        }
        numbers.front() == Some(&number)
    }

    fn take(&mut self, number: u64) -> Option<PendingRetry> {
        let waiting = self.waiting.remove(&number)?;
        self.shares.remove(waiting.tenant, waiting.bytes);
        if let Some(paused) = &waiting.paused
            && let Some(rest) = self.rests.get_mut(&waiting.tenant)
        {
            *rest -= paused.bytes;
            if *rest == 0 {
                self.rests.remove(&waiting.tenant);
            }
        }
        Some(waiting)
    }
}

impl Platform {
    /// Whether the store must flush, so that finished messages can be removed.
    pub fn wants_flush(&self) -> bool {
        self.core().retries.done.len() >= DONE_MAX
    }

    /// Applies a changed or deleted queue.
    pub fn reload_queues(&self) -> Result<(), crate::repository::RepositoryError> {
        let queues = QueuesByName::of(self.entities.stored_queues()?);
        self.core().queues = queues;
        Ok(())
    }
}

impl PlatformCore {
    /// Removes finished messages whose points are durable.
    pub(super) fn remove_done(&mut self, durable: LogPosition) {
        let pending = &mut self.pending;
        self.retries.done.retain(|(before, number)| {
            let is_durable = durable > *before;
            if is_durable {
                pending.push_change(removal(*number));
            }
            !is_durable
        });
    }

    fn store(&mut self, number: u64, waiting: &mut PendingRetry) {
        let bytes = waiting.to_bytes();
        let less = waiting.stored_by.as_ref().map(|_| waiting.work.to_json());
        waiting.bytes = bytes.len() + less.map_or(0, |less| less.to_string().len());
        self.pending.push_change(RepositoryChange::PutState {
            state: StateKind::Retry,
            id: id_of(number),
            bytes: Some(bytes),
        });
    }
}

impl PlatformCall<'_> {
    /// Runs the work at once, unless it must wait behind other messages of its lane.
    pub fn run_in_queue(&mut self, queue: &Queue, tenant: TenantId, work: RetryWork) {
        let own = work.originator().filter(|_| queue.is_retrying());
        let lane = own.and_then(|originator| queue.lane(originator, tenant));
        let must_wait = self.is_held(tenant);
        let lane = lane.or_else(|| {
            let waits = must_wait || self.core.retries.waits_for_script(tenant);
            waits.then(|| ProcessingLane::of_scripts(tenant))
        });
        let is_behind = lane
            .as_ref()
            .is_some_and(|lane| self.core.retries.lanes.contains_key(lane));
        let is_held = is_behind || must_wait;
        let mut waiting = PendingRetry {
            lane,
            ..PendingRetry::new(&queue.name, tenant, work)
        };
        let counts = self.core.retries.batch.entry(waiting.queue.clone()).or_default();
        counts.0 += 1;
        let number = self.core.retries.number();
        if !is_held && self.try_once(number, &mut waiting) {
            return;
        }
        if is_held && !is_behind {
            waiting.due_ms = self.now_ms;
        }
        if is_held && self.depth > 0 {
            waiting.deferred = Some((self.budget.clone(), self.depth));
        }
        if waiting.outstanding == 0 && !self.has_capacity_in_retries(tenant) {
            let waits_for_script = waiting.lane.as_ref().is_some_and(ProcessingLane::is_of_scripts);
            let problem = if waits_for_script {
                LANE_EXCEEDED
            } else {
                RETRIES_EXCEEDED
            };
            return self.drop_waiting(waiting, problem);
        }
        if !is_held
            && waiting.outstanding == 0
            && waiting.paused.is_none()
            && let Some((_, failed)) = self.core.retries.batch.get_mut(&waiting.queue)
        {
            failed.push(number);
        }
        self.store(number, &mut waiting);
        self.core.retries.insert(number, waiting);
    }

    /// Whether the message may wait. A single tenant may exceed the limit by one batch; after that, no batch is
    /// accepted. If there are several tenants, a tenant may use only its share.
    pub fn has_capacity_in_retries(&self, tenant: TenantId) -> bool {
        let retries = &self.core.retries;
        match self.core.roots.len() > 1 {
            true => retries.has_capacity(tenant),
            false => retries.shares.used().bytes < BATCH_BYTES_MAX,
        }
    }

    fn store(&mut self, number: u64, waiting: &mut PendingRetry) {
        self.timed(waiting.tenant, |visit| visit.core.store(number, waiting));
    }

    /// Retries one message. Returns the number of the next one in its lane that may run.
    fn retry_one(&mut self, number: u64) -> Option<u64> {
        let mut waiting = self.core.retries.take(number)?;
        // It became the first of its lane while it waits for an answer.
        if waiting.outstanding > 0 {
            waiting.due_ms = i64::MAX;
            self.core.retries.insert(number, waiting);
            return None;
        }
        self.core.stats.retried_messages_total += u64::from(waiting.tries > 0);
        self.begin_message();
        let is_done = self.try_once(number, &mut waiting);
        self.depth = 0;
        if is_done {
            return self.finish_waiting(number, &waiting);
        }
        // Its record repeats the whole attempt after a restart.
        if waiting.paused.is_some() {
            self.core.retries.insert(number, waiting);
            return None;
        }
        let next = self.leave_lane_for_retry(number, &mut waiting);
        self.store(number, &mut waiting);
        self.core.retries.insert(number, waiting);
        next
    }

    /// Finishes a message. Returns the number of the next one in its lane that may run.
    fn finish_waiting(&mut self, number: u64, waiting: &PendingRetry) -> Option<u64> {
        self.remove_when_durable(number, waiting.stored);
        self.core.retries.leave_lane(number, waiting.lane.as_ref())
    }

    /// Stores a message of a queue without retries while it waits for an external system, so that it is sent again
    /// after a crash. Stores only the continuation after its node. Not counted here; it counts as a waiting call.
    /// Returns its number.
    pub fn store_continuation(&mut self, tenant: TenantId, then: &Continuation) -> u64 {
        self.store_node(tenant, then, None)
    }

    fn store_node(&mut self, tenant: TenantId, then: &Continuation, lane: Option<ProcessingLane>) -> u64 {
        let at = FailedAt {
            message: then.message.clone(),
            node: then.node,
            name: then.name.clone().unwrap_or_default(),
            returns: then.returns.clone(),
        };
        let waiting = PendingRetry {
            due_ms: 0,
            first_record: lane
                .as_ref()
                .and(self.continuing)
                .map(|number| self.core.retries.first_record(number)),
            lane,
            ..PendingRetry::new(MAIN_QUEUE, tenant, RetryWork::Failed(vec![(then.chain, at)]))
        };
        let number = self.core.retries.number();
        self.core.pending.push_change(RepositoryChange::PutState {
            state: StateKind::Retry,
            id: id_of(number),
            bytes: Some(waiting.to_bytes()),
        });
        number
    }

    /// Continues a message after the external system answered. It is removed when the results after its node are
    /// durable, because log replay does not recreate them.
    pub fn resume_continuation(&mut self, number: u64, run: impl FnOnce(&mut Self) -> ChainRun) -> ChainRun {
        let (done, has_stored) = self.watch_points(run);
        self.remove_when_durable(number, has_stored.then_some(self.core.processed));
        done
    }

    /// Calls `run`. Also returns whether it stored points, or may store points in its deferred work.
    fn watch_points(&mut self, run: impl FnOnce(&mut Self) -> ChainRun) -> (ChainRun, bool) {
        let points = self.core.pending.point_count();
        let done = run(self);
        let has_stored = self.core.pending.point_count() > points || !self.core.queue.is_empty();
        (done, has_stored)
    }

    fn remove_when_durable(&mut self, number: u64, stored: Option<LogPosition>) {
        match stored {
            Some(before) => self.core.retries.done.push((before, number)),
            None => self.core.pending.push_change(removal(number)),
        }
    }

    /// Continues a waiting message after an external system answered. Its result is decided when all have answered.
    pub fn resume_waiting(&mut self, number: u64, run: impl FnOnce(&mut Self) -> ChainRun) {
        self.begin_message();
        if let Some(known) = self.core.retries.waiting.get(&number) {
            let tenant = known.tenant;
            self.budget.take(known.added_bytes);
            self.begin_unqueued(tenant);
        }
        let before = (self.records_failed, self.waiting, self.outstanding);
        (self.records_failed, self.waiting, self.outstanding) = (true, Some(number), 0);
        let (mut done, has_stored) = self.watch_points(run);
        let more = self.outstanding;
        (self.records_failed, self.waiting, self.outstanding) = before;
        let waits_for_script = std::mem::take(&mut self.waits_for_script);
        let Some(mut waiting) = self.core.retries.take(number) else {
            return;
        };
        if waits_for_script {
            waiting.join_script_lane();
        }
        if has_stored {
            waiting.stored = Some(self.core.processed);
        }
        self.count_run(waiting.tenant, &done);
        if let Some(rest) = done.paused.take() {
            self.pause(&mut waiting, *rest);
        }
        waiting.failed.add(ChainRun {
            failures: done.failures,
            ..ChainRun::default()
        });
        waiting.added_bytes = self.budget.added_bytes();
        waiting.outstanding = (waiting.outstanding + more).saturating_sub(1);
        if waiting.outstanding > 0 || waiting.paused.is_some() {
            if waiting.outstanding == 0 {
                waiting.due_ms = self.now_ms;
            }
            return self.core.retries.insert(number, waiting);
        }
        let done = std::mem::take(&mut waiting.failed);
        let next = match self.decide(&mut waiting, done) {
            true => self.finish_waiting(number, &waiting),
            false => {
                let next = self.leave_lane_for_retry(number, &mut waiting);
                self.store(number, &mut waiting);
                self.core.retries.insert(number, waiting);
                next
            }
        };
        // The next message has a budget of its own.
        self.depth = 0;
        self.retry_next(next);
    }

    /// Returns true if the message succeeded or was dropped, and false if it has to wait, in its present state.
    fn try_once(&mut self, number: u64, waiting: &mut PendingRetry) -> bool {
        (self.records_failed, self.waiting, self.outstanding) = (true, Some(number), 0);
        // Log replay repeats the first attempt of a message read from the log.
        let is_replayed = self.at.is_some() && waiting.tries == 0;
        let (mut done, has_stored) = match waiting.take_paused() {
            Some(paused) => {
                (self.budget, self.depth) = (paused.budget, paused.depth);
                self.watch_points(|visit| chain::run_on(paused.run, visit))
            }
            None => {
                if let Some(of_cause) = waiting.deferred.take() {
                    (self.budget, self.depth) = of_cause;
                }
                let (work, tenant) = (&waiting.work, waiting.tenant);
                self.watch_points(|visit| visit.run_work(work, tenant))
            }
        };
        if !is_replayed && has_stored {
            waiting.stored = Some(self.core.processed);
        }
        if std::mem::take(&mut self.waits_for_script) {
            waiting.join_script_lane();
        }
        waiting.outstanding = self.outstanding;
        waiting.added_bytes = self.budget.added_bytes();
        (self.records_failed, self.waiting, self.outstanding) = (false, None, 0);
        self.count_run(waiting.tenant, &done);
        let rest = done.paused.take();
        waiting.failed.add(ChainRun {
            failures: done.failures,
            ..ChainRun::default()
        });
        if let Some(rest) = rest {
            self.pause(waiting, *rest);
            waiting.due_ms = self.now_ms;
        }
        if waiting.outstanding > 0 {
            waiting.due_ms = i64::MAX;
        }
        if waiting.outstanding > 0 || waiting.paused.is_some() {
            return false;
        }
        let done = std::mem::take(&mut waiting.failed);
        self.decide(waiting, done)
    }

    /// Decides the result of an attempt: success, retry or drop.
    fn decide(&mut self, waiting: &mut PendingRetry, done: ChainRun) -> bool {
        if done.failures.is_empty() {
            self.count_result(waiting.tenant, Some(&waiting.queue), MessageResult::Successful, &done);
            return true;
        }
        let durable = self.platform.store.durable_position();
        if waiting.stored.is_some_and(|before| durable > before) {
            (waiting.stored, waiting.stored_by) = (None, None);
        }
        waiting.tries += 1;
        let failures = done.failures.iter();
        waiting.failures = failures
            .map(|failure| (failure.node.clone(), failure.error.clone()))
            .collect();
        let queue = self.core.queues.named(Some(&waiting.queue)).cloned();
        let strategy = queue.filter(|queue| queue.is_retrying());
        let Some(strategy) = strategy.as_ref().and_then(|queue| queue.processing_strategy.as_ref()) else {
            self.count_result(waiting.tenant, Some(&waiting.queue), MessageResult::Failed, &done);
            self.drop_failed(waiting);
            return true;
        };
        let is_last = strategy.retries > 0 && waiting.tries > strategy.retries;
        let is_last = is_last || done.failures.iter().all(|failure| failure.at.is_none());
        let result = if is_last {
            MessageResult::Failed
        } else {
            MessageResult::WillRetry
        };
        self.count_result(waiting.tenant, Some(&waiting.queue), result, &done);
        let failed: Vec<_> = done
            .failures
            .into_iter()
            .filter_map(|failure| Some((failure.chain, *failure.at?)))
            .collect();
        if is_last {
            self.drop_failed(waiting);
            return true;
        }
        if strategy.kind != ProcessingKind::RetryAll {
            let tried = std::mem::replace(&mut waiting.work, RetryWork::Failed(failed));
            if waiting.stored.is_some() {
                waiting.stored_by.get_or_insert(tried);
            }
        }
        waiting.pause_s = match waiting.tries {
            1 => strategy.pause_between_retries,
            _ if strategy.max_pause_between_retries > strategy.pause_between_retries => {
                (waiting.pause_s.saturating_mul(2)).min(strategy.max_pause_between_retries)
            }
            _ => strategy.pause_between_retries,
        };
        let pause_ms = waiting.pause_s.max(0).saturating_mul(1000);
        waiting.due_ms = self.now_ms.saturating_add(pause_ms).min(i64::MAX - 1);
        false
    }

    fn run_work(&mut self, work: &RetryWork, tenant: TenantId) -> ChainRun {
        match work {
            RetryWork::Message { chain, message } => {
                let tenant = match self.tenant_of(message.originator) {
                    // The events of a deleted entity still run. A deleted device stores no more values.
                    TenantId::NULL if !matches!(&*message.kind, POST_TELEMETRY | POST_ATTRIBUTES) => tenant,
                    known => known,
                };
                match self.core.chain_or_root(Some(*chain), tenant) {
                    Some(chain) => {
                        self.apply_rules_separately(&chain, message);
                        chain::run(&chain, message.clone(), self)
                    }
                    None => ChainRun::failed(
                        *chain,
                        "the rule chain was deleted while the message waited for its retry",
                    ),
                }
            }
            RetryWork::Resume(then) => chain::resume(then.clone(), "Success", None, self),
            RetryWork::Failed(all) => {
                let mut whole = ChainRun::default();
                for (chain, at) in all {
                    whole.add(chain::retry(*chain, at.clone(), self));
                }
                whole
            }
            RetryWork::Paused(rest) => chain::run_on(rest.clone(), self),
        }
    }

    /// Adds a message to a lane: after the one that continues, or as the last one.
    pub fn insert_in_lane(&mut self, mut waiting: PendingRetry, lane: ProcessingLane) {
        let number = self.core.retries.number();
        waiting.first_record = self.continuing.map(|number| self.core.retries.first_record(number));
        self.core.retries.join_lane(number, lane.clone(), self.continuing);
        let is_first = self.core.retries.lanes[&lane].front() == Some(&number);
        waiting.due_ms = if is_first { self.now_ms } else { i64::MAX };
        waiting.lane = Some(lane);
        self.store(number, &mut waiting);
        self.core.retries.insert(number, waiting);
    }

    pub fn drop_failed(&mut self, waiting: &PendingRetry) {
        self.core.stats.failed_messages_total += 1;
        let originator = waiting.work.originator().unwrap_or(waiting.tenant.entity());
        for (node, error) in &waiting.failures {
            self.outlet.failed(originator, node, error);
        }
    }

    /// Ends a batch. In a queue where too large a part of the batch failed, the failed messages are not retried.
    pub fn decide_batch(&mut self) {
        let batch = std::mem::take(&mut self.core.retries.batch);
        for (name, (total, failed)) in batch {
            let queue = self.core.queues.named(Some(&name));
            let strategy = queue.and_then(|queue| queue.processing_strategy.as_ref());
            let most = strategy.map_or(0.0, |strategy| strategy.failure_percentage);
            if most <= 0.0 || failed.len() as f64 * 100.0 <= most * total as f64 {
                continue;
            }
            for number in failed {
                let Some(waiting) = self.core.retries.take(number) else {
                    continue;
                };
                self.drop_failed(&waiting);
                let next = self.finish_waiting(number, &waiting);
                self.retry_next(next);
            }
        }
    }
}

/// The id of the state in the repository.
fn id_of(number: u64) -> Uuid {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    Uuid(id)
}

fn number_of(id: Uuid) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&id.0[8..]);
    u64::from_be_bytes(number)
}

impl PendingRetry {
    pub fn new(queue: &str, tenant: TenantId, work: RetryWork) -> PendingRetry {
        PendingRetry {
            queue: queue.into(),
            tenant,
            work,
            tries: 0,
            pause_s: 0,
            due_ms: i64::MAX,
            lane: None,
            first_record: None,
            failures: Vec::new(),
            bytes: 0,
            paused: None,
            outstanding: 0,
            failed: ChainRun::default(),
            deferred: None,
            added_bytes: 0,
            stored: None,
            stored_by: None,
        }
    }

    /// Keeps the rest of a paused attempt. Later messages of the tenant wait for it.
    pub fn put_paused(&mut self, paused: PausedMessage) {
        self.paused = Some(Box::new(paused));
        self.join_script_lane();
    }

    pub fn take_paused(&mut self) -> Option<PausedMessage> {
        self.paused.take().map(|paused| *paused)
    }

    /// Restarts outstanding attempts. A message in a lane starts after the messages before it.
    fn due_after_restart(&self) -> i64 {
        match (self.outstanding, &self.lane) {
            (0, _) => self.due_ms,
            (_, Some(_)) => i64::MAX,
            (_, None) => 0,
        }
    }
}

fn removal(number: u64) -> RepositoryChange {
    RepositoryChange::PutState {
        state: StateKind::Retry,
        id: id_of(number),
        bytes: None,
    }
}
