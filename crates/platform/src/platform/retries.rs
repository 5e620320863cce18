//! Messages that failed in a rule chain, and wait for their next try, as the strategy of their queue says.
//!
//! A message that waits is in the repository, in the transaction that has the position of its batch: so it is tried again after a crash.
//! It stays there until the points of tries that no replay of the log makes are durable, with the work that made them though a later try
//! has less to do; so such a try may happen twice, and points replace themselves. Nobody else waits for it, unless the queue is sequential: then what is of the same originator (or tenant, or all of the
//! queue) waits behind it, in order. What waits is bounded: when it is full no batch is taken. One tenant among others does not fill it:
//! what fails of it beyond its share is given up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use timeseries::Position;

use super::host::Visit;
use super::{Core, HashMap, Platform};
use crate::chain::{self, Continuation, Data, FailedAt, Message, Metadata, Run};
use crate::ids::{CustomerId, EntityId, RuleChainId, TenantId, Uuid};
use crate::model::{MAIN_QUEUE, ProcessingKind, Queue, SubmitKind};
use crate::queue_statistics::Fate;
use crate::repository::{Change, StateKind};
use crate::shares::{Load, Shares};

/// Of all messages that wait, as they are stored.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The same in the middle of a batch that was taken when there was room: of one message much may wait.
const BATCH_BYTES_MAX: usize = 4 * WAITING_BYTES_MAX;

/// Messages that are done and stay until what they stored is durable: the store is to be flushed when there are more. All of them are done
/// again after a kill.
const DONE_MAX: usize = 10_000;

/// Tries again that are made before something new has its turn.
const RETRIED_FOR: Duration = Duration::from_millis(200);
const NO_ROOM: &str = "too many messages of this tenant wait for their retries: it is not tried again";

/// Queues by their names.
#[derive(Default)]
pub(super) struct Queues(HashMap<Box<str>, Arc<Queue>>);

impl Queues {
    /// Stored ones, over the three that are always there.
    pub fn of(stored: impl IntoIterator<Item = Queue>) -> Queues {
        let all = Queue::defaults().into_iter().chain(stored);
        Queues(all.map(|queue| (queue.name.as_str().into(), Arc::new(queue))).collect())
    }

    /// One that is not there is Main.
    pub fn named(&self, name: Option<&str>) -> Option<&Arc<Queue>> {
        let named = name.and_then(|name| self.0.get(name));
        named.or_else(|| self.0.get(MAIN_QUEUE))
    }
}

/// What has to be done again.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    /// From the first node on, with the alarm rules beside the chain.
    Message {
        chain: RuleChainId,
        message: Message<'static>,
    },
    /// Behind a checkpoint.
    Resume(Continuation),
    /// At the nodes that failed.
    Failed(Vec<(RuleChainId, FailedAt)>),
}

impl Work {
    fn originator(&self) -> Option<EntityId> {
        match self {
            Work::Message { message, .. } => Some(message.originator),
            Work::Resume(then) => Some(then.message.originator),
            Work::Failed(all) => all.first().map(|(_, at)| at.message.originator),
        }
    }

    fn to_json(&self) -> Json {
        match self {
            Work::Message { chain, message } => {
                json!({"kind": "message", "chain": chain, "message": message_json(message)})
            }
            Work::Resume(then) => json!({
                "kind": "resume", "chain": then.chain, "node": then.node, "name": then.name, "returns": then.returns, "message": message_json(&then.message),
            }),
            Work::Failed(all) => {
                let all = all.iter().map(|(chain, at)| {
                    json!({
                        "chain": chain, "node": at.node, "name": at.name, "returns": at.returns, "message": message_json(&at.message),
                    })
                });
                json!({"kind": "failed", "at": all.collect::<Vec<_>>()})
            }
        }
    }
}

/// Messages of one lane are done one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lane {
    queue: Box<str>,
    of: Uuid,
}

#[derive(Debug)]
struct Waiting {
    queue: Box<str>,
    tenant: TenantId,
    work: Work,
    /// Tries that failed.
    tries: i64,
    pause_s: i64,
    /// `i64::MAX`: when those before it in the lane are done.
    due_ms: i64,
    lane: Option<Lane>,
    /// Of the last try.
    failures: Vec<(String, String)>,
    bytes: usize,
    /// What other systems have not answered yet, and what failed meanwhile. After a restart the try is made again.
    under_way: usize,
    failed: Run,
    /// What this try has kept so far.
    kept_bytes: usize,
    /// Tries that no replay of the log makes have stored points: not durable before what is behind this position is.
    stored: Option<Position>,
    /// What made them, if there is less to do now. A restart begins with it.
    made_by: Option<Work>,
}

pub(super) struct Retries {
    /// By their numbers, in the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    lanes: HashMap<Lane, VecDeque<u64>>,
    next_number: u64,
    next_due_ms: i64,
    most: Load,
    shares: Shares,
    /// Done, and forgotten when what was written behind this position is durable.
    done: Vec<(Position, u64)>,
    /// By queue, of the batch at hand: how many there were, and which failed.
    batch: HashMap<Box<str>, (u64, Vec<u64>)>,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries::new(0)
    }
}

impl Retries {
    pub fn new(most: usize) -> Retries {
        let most = Load {
            count: most,
            bytes: WAITING_BYTES_MAX,
        };
        Retries {
            waiting: BTreeMap::new(),
            lanes: HashMap::default(),
            next_number: 0,
            next_due_ms: 0,
            most,
            shares: Shares::new(most),
            done: Vec::new(),
            batch: HashMap::default(),
        }
    }

    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_full(&self) -> bool {
        let used = self.shares.used();
        used.count >= self.most.count || used.bytes >= self.most.bytes
    }

    /// What a start finds; what cannot be read is gone.
    pub fn restore(&mut self, id: Uuid, bytes: &[u8]) {
        let number = number_of(id);
        self.next_number = self.next_number.max(number + 1);
        if let Some(waiting) = Waiting::from_bytes(bytes) {
            self.insert(number, waiting);
        }
    }

    /// After all were restored: they are in the order of their numbers.
    pub fn restored(&mut self) {
        for numbers in self.lanes.values_mut() {
            numbers.make_contiguous().sort_unstable();
        }
        let heads: Vec<u64> = self.lanes.values().filter_map(|lane| lane.front().copied()).collect();
        for head in heads {
            if let Some(waiting) = self.waiting.get_mut(&head)
                && waiting.due_ms == i64::MAX
            {
                waiting.due_ms = 0;
            }
        }
        self.next_due_ms = 0;
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    fn insert(&mut self, number: u64, waiting: Waiting) {
        self.shares.add(waiting.tenant, waiting.bytes);
        self.next_due_ms = self.next_due_ms.min(waiting.due_ms);
        if let Some(lane) = &waiting.lane {
            let numbers = self.lanes.entry(lane.clone()).or_default();
            // One that was tried again is still the first.
            if numbers.front() != Some(&number) {
                numbers.push_back(number);
            }
        }
        self.waiting.insert(number, waiting);
    }

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.shares.remove(waiting.tenant, waiting.bytes);
        Some(waiting)
    }

    /// It is the first that may go on when there is time.
    fn put_off(&mut self, number: u64, now_ms: i64) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.due_ms = now_ms;
            self.next_due_ms = self.next_due_ms.min(now_ms);
        }
    }

    /// One of each tenant in turn, and of each what is due for longest: there may be more than there is time for.
    fn due_in_turns(&self, now_ms: i64) -> Vec<u64> {
        let due = self.waiting.iter().filter(|(_, waiting)| waiting.due_ms <= now_ms);
        let mut due: Vec<_> = due
            .map(|(number, waiting)| (waiting.due_ms, *number, waiting.tenant))
            .collect();
        due.sort_unstable();
        let mut turns: HashMap<TenantId, usize> = HashMap::default();
        let mut in_turns: Vec<(usize, i64, u64)> = Vec::with_capacity(due.len());
        for (due_ms, number, tenant) in due {
            let turn = turns.entry(tenant).or_default();
            *turn += 1;
            in_turns.push((*turn, due_ms, number));
        }
        in_turns.sort_unstable();
        in_turns.into_iter().map(|(_, _, number)| number).collect()
    }

    /// The next one of its lane.
    fn leave_lane(&mut self, number: u64, lane: Option<&Lane>) -> Option<u64> {
        let lane = lane?;
        let numbers = self.lanes.get_mut(lane)?;
        numbers.retain(|known| *known != number);
        let next = numbers.front().copied();
        if next.is_none() {
            self.lanes.remove(lane);
        }
        next
    }
}

impl Queue {
    fn lane(&self, originator: EntityId, tenant: TenantId) -> Option<Lane> {
        let of = match self.submit() {
            SubmitKind::Burst | SubmitKind::Batch => return None,
            SubmitKind::SequentialByOriginator => originator.id,
            SubmitKind::SequentialByTenant => tenant.0,
            SubmitKind::Sequential => Uuid::NULL,
        };
        Some(Lane {
            queue: self.name.as_str().into(),
            of,
        })
    }
}

impl Platform {
    /// So that what is done can be forgotten.
    pub fn wants_flush(&self) -> bool {
        self.core().retries.done.len() >= DONE_MAX
    }

    /// After a queue was changed or deleted.
    pub fn reload_queues(&self) -> Result<(), crate::repository::RepositoryError> {
        let queues = Queues::of(self.entities.stored_queues()?);
        self.core().queues = queues;
        Ok(())
    }
}

impl Core {
    /// What was done is forgotten once nothing of it can be lost.
    pub(super) fn forget_done(&mut self, durable: Position) {
        let pending = &mut self.pending;
        self.retries.done.retain(|(before, number)| {
            let is_kept = durable > *before;
            if is_kept {
                pending.push_change(forget(*number));
            }
            !is_kept
        });
    }

    fn keep(&mut self, number: u64, waiting: &mut Waiting) {
        let bytes = waiting.to_bytes();
        let less = waiting.made_by.as_ref().map(|_| waiting.work.to_json());
        waiting.bytes = bytes.len() + less.map_or(0, |less| less.to_string().len());
        self.pending.push_change(Change::PutState {
            state: StateKind::Retry,
            id: id_of(number),
            bytes: Some(bytes),
        });
    }
}

impl Visit<'_> {
    /// The queue of this name, if what fails in it is tried again. What is replayed is tried again by what was kept of it.
    pub fn retrying_queue(&self, name: Option<&str>) -> Option<Arc<Queue>> {
        let queue = self.core.queues.named(name)?;
        (queue.is_retrying() && !self.is_replay).then(|| Arc::clone(queue))
    }

    /// At once, unless it has to wait behind others.
    pub fn run_in_queue(&mut self, queue: &Queue, tenant: TenantId, work: Work) {
        let lane = work.originator().and_then(|originator| queue.lane(originator, tenant));
        let is_held = lane
            .as_ref()
            .is_some_and(|lane| self.core.retries.lanes.contains_key(lane));
        let mut waiting = Waiting {
            lane,
            ..Waiting::new(&queue.name, tenant, work)
        };
        let counts = self.core.retries.batch.entry(waiting.queue.clone()).or_default();
        counts.0 += 1;
        let number = self.core.retries.number();
        if !is_held && self.try_once(number, &mut waiting) {
            return;
        }
        if waiting.under_way == 0 && !self.has_room_in_retries(tenant) {
            waiting.failures.push((String::new(), NO_ROOM.to_owned()));
            self.count_fate(tenant, Some(&waiting.queue), Fate::Failed, &Run::default());
            return self.give_up(&waiting);
        }
        if !is_held
            && waiting.under_way == 0
            && let Some((_, failed)) = self.core.retries.batch.get_mut(&waiting.queue)
        {
            failed.push(number);
        }
        self.core.keep(number, &mut waiting);
        self.core.retries.insert(number, waiting);
    }

    /// Alone, a tenant fills it, and its devices are held, but for one batch, which has so much beside it. With others it would hold theirs.
    fn has_room_in_retries(&self, tenant: TenantId) -> bool {
        let shares = &self.core.retries.shares;
        match self.core.roots.len() > 1 {
            true => shares.has_room(tenant, 0),
            false => shares.used().bytes < BATCH_BYTES_MAX,
        }
    }

    /// Those whose pause is over, and what waits behind them.
    pub fn retry_due(&mut self) {
        if self.core.retries.next_due_ms > self.now_ms {
            return;
        }
        for number in self.core.retries.due_in_turns(self.now_ms) {
            if self.has_retried_enough() {
                break;
            }
            self.retry(number);
        }
        let next = self.core.retries.waiting.values().map(|waiting| waiting.due_ms).min();
        self.core.retries.next_due_ms = next.unwrap_or(i64::MAX);
    }

    fn has_retried_enough(&mut self) -> bool {
        self.retrying_since.get_or_insert_with(Instant::now).elapsed() > RETRIED_FOR
    }

    /// With those that waited behind it, until something new has its turn.
    fn retry(&mut self, number: u64) {
        let mut next = Some(number);
        while let Some(number) = next {
            if self.has_retried_enough() {
                return self.core.retries.put_off(number, self.now_ms);
            }
            next = self.retry_one(number);
            // It is a part of the try, which is to be over before the next one.
            self.drain_queue();
        }
    }

    /// The number of the one that may go on.
    fn retry_one(&mut self, number: u64) -> Option<u64> {
        let mut waiting = self.core.retries.take(number)?;
        self.core.stats.retried_messages_total += u64::from(waiting.tries > 0);
        self.begin_message();
        if self.try_once(number, &mut waiting) {
            return self.is_done(number, &waiting);
        }
        self.core.keep(number, &mut waiting);
        self.core.retries.insert(number, waiting);
        None
    }

    /// The number of the one that may go on.
    fn is_done(&mut self, number: u64, waiting: &Waiting) -> Option<u64> {
        self.forget_when_kept(number, waiting.stored);
        self.core.retries.leave_lane(number, waiting.lane.as_ref())
    }

    /// A message of a queue that does not try again waits for another system: it is sent again after a kill, as from a queue that does. Behind its
    /// node only, and it is not counted here: it waits with the calls. Returns its number.
    pub fn keep_alone(&mut self, tenant: TenantId, then: &Continuation) -> u64 {
        let at = FailedAt {
            message: then.message.clone(),
            node: then.node,
            name: then.name.clone().unwrap_or_default(),
            returns: then.returns.clone(),
        };
        let waiting = Waiting {
            due_ms: 0,
            ..Waiting::new(MAIN_QUEUE, tenant, Work::Failed(vec![(then.chain, at)]))
        };
        let number = self.core.retries.number();
        self.core.pending.push_change(Change::PutState {
            state: StateKind::Retry,
            id: id_of(number),
            bytes: Some(waiting.to_bytes()),
        });
        number
    }

    /// The other system has said something to it. It is forgotten when what is stored behind its node is durable: no replay of the log stores it.
    pub fn go_on_alone(&mut self, number: u64, go_on: impl FnOnce(&mut Self) -> Run) -> Run {
        let (done, has_stored) = self.watch_points(go_on);
        self.forget_when_kept(number, has_stored.then_some(self.core.processed));
        done
    }

    /// Whether points came of it, or may come of what it has put aside.
    fn watch_points(&mut self, run: impl FnOnce(&mut Self) -> Run) -> (Run, bool) {
        let points = self.core.pending.point_count();
        let done = run(self);
        let has_stored = self.core.pending.point_count() > points || !self.core.queue.is_empty();
        (done, has_stored)
    }

    fn forget_when_kept(&mut self, number: u64, stored: Option<Position>) {
        match stored {
            Some(before) => self.core.retries.done.push((before, number)),
            None => self.core.pending.push_change(forget(number)),
        }
    }

    /// Another system has said something to a message that waits for it: it goes on, and is judged when all of them have.
    pub fn go_on_waiting(&mut self, number: u64, go_on: impl FnOnce(&mut Self) -> Run) {
        self.begin_message();
        let known = self.core.retries.waiting.get(&number);
        self.budget.keep(known.map_or(0, |waiting| waiting.kept_bytes));
        let before = (self.keeps_failed, self.waiting, self.under_way);
        (self.keeps_failed, self.waiting, self.under_way) = (true, Some(number), 0);
        let (done, has_stored) = self.watch_points(go_on);
        let more = self.under_way;
        (self.keeps_failed, self.waiting, self.under_way) = before;
        let Some(mut waiting) = self.core.retries.take(number) else {
            return;
        };
        if has_stored {
            waiting.stored = Some(self.core.processed);
        }
        self.count_run(waiting.tenant, &done);
        waiting.failed.add(Run {
            failures: done.failures,
            ..Run::default()
        });
        waiting.kept_bytes = self.budget.kept_bytes();
        waiting.under_way = (waiting.under_way + more).saturating_sub(1);
        let done = std::mem::take(&mut waiting.failed);
        if waiting.under_way > 0 {
            waiting.failed = done;
            return self.core.retries.insert(number, waiting);
        }
        if !self.judge(&mut waiting, done) {
            self.core.keep(number, &mut waiting);
            return self.core.retries.insert(number, waiting);
        }
        if let Some(next) = self.is_done(number, &waiting) {
            self.retry(next);
        }
    }

    /// True: it went well, or it is given up. False: it has to wait, as it is now.
    fn try_once(&mut self, number: u64, waiting: &mut Waiting) -> bool {
        (self.keeps_failed, self.waiting, self.under_way) = (true, Some(number), 0);
        // What is done with a message of the log as it is read, a replay does as well.
        let is_replayed = self.at.is_some() && waiting.tries == 0;
        let (done, has_stored) = {
            let work = &waiting.work;
            self.watch_points(|visit| visit.perform(work))
        };
        if !is_replayed && has_stored {
            waiting.stored = Some(self.core.processed);
        }
        waiting.under_way = self.under_way;
        waiting.kept_bytes = self.budget.kept_bytes();
        (self.keeps_failed, self.waiting, self.under_way) = (false, None, 0);
        self.count_run(waiting.tenant, &done);
        if waiting.under_way > 0 {
            waiting.failed = Run {
                failures: done.failures,
                ..Run::default()
            };
            waiting.due_ms = i64::MAX;
            return false;
        }
        self.judge(waiting, done)
    }

    /// What becomes of it after a try.
    fn judge(&mut self, waiting: &mut Waiting, done: Run) -> bool {
        if done.failures.is_empty() {
            self.count_fate(waiting.tenant, Some(&waiting.queue), Fate::Successful, &done);
            return true;
        }
        let durable = self.platform.store.durable_position();
        if waiting.stored.is_some_and(|before| durable > before) {
            (waiting.stored, waiting.made_by) = (None, None);
        }
        waiting.tries += 1;
        let failures = done.failures.iter();
        waiting.failures = failures
            .map(|failure| (failure.node.clone(), failure.error.clone()))
            .collect();
        let queue = self.core.queues.named(Some(&waiting.queue)).cloned();
        let strategy = queue.filter(|queue| queue.is_retrying());
        let Some(strategy) = strategy.as_ref().and_then(|queue| queue.processing_strategy.as_ref()) else {
            self.count_fate(waiting.tenant, Some(&waiting.queue), Fate::Failed, &done);
            self.give_up(waiting);
            return true;
        };
        let is_last = strategy.retries > 0 && waiting.tries > strategy.retries;
        let is_last = is_last || done.failures.iter().all(|failure| failure.at.is_none());
        let fate = if is_last { Fate::Failed } else { Fate::FailedForNow };
        self.count_fate(waiting.tenant, Some(&waiting.queue), fate, &done);
        let failed: Vec<_> = done
            .failures
            .into_iter()
            .filter_map(|failure| Some((failure.chain, *failure.at?)))
            .collect();
        if is_last {
            self.give_up(waiting);
            return true;
        }
        if strategy.kind != ProcessingKind::RetryAll {
            let tried = std::mem::replace(&mut waiting.work, Work::Failed(failed));
            if waiting.stored.is_some() {
                waiting.made_by.get_or_insert(tried);
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

    fn perform(&mut self, work: &Work) -> Run {
        match work {
            Work::Message { chain, message } => {
                let tenant = self.tenant_of(message.originator);
                match self.core.chain_or_root(Some(*chain), tenant) {
                    Some(chain) => {
                        self.apply_rules_beside(&chain, message);
                        chain::run(&chain, message.clone(), self)
                    }
                    None => Run::failed(*chain, "the rule chain was deleted while the message waited"),
                }
            }
            Work::Resume(then) => chain::resume(then.clone(), "Success", None, self),
            Work::Failed(all) => {
                let mut whole = Run::default();
                for (chain, at) in all {
                    whole.add(chain::retry(*chain, at.clone(), self));
                }
                whole
            }
        }
    }

    fn give_up(&mut self, waiting: &Waiting) {
        self.core.stats.failed_messages_total += 1;
        let originator = waiting.work.originator().unwrap_or(waiting.tenant.entity());
        for (node, error) in &waiting.failures {
            self.outlet.failed(originator, node, error);
        }
    }

    /// The end of a batch: where too much of it has failed, nothing of that is tried again.
    pub fn judge_batch(&mut self) {
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
                self.give_up(&waiting);
                if let Some(next) = self.is_done(number, &waiting) {
                    self.retry(next);
                }
            }
        }
    }
}

/// Of the state in the repository.
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

impl Waiting {
    fn new(queue: &str, tenant: TenantId, work: Work) -> Waiting {
        Waiting {
            queue: queue.into(),
            tenant,
            work,
            tries: 0,
            pause_s: 0,
            due_ms: i64::MAX,
            lane: None,
            failures: Vec::new(),
            bytes: 0,
            under_way: 0,
            failed: Run::default(),
            kept_bytes: 0,
            stored: None,
            made_by: None,
        }
    }

    /// What was under way begins anew; in a lane, when those before it are done.
    fn due_after_restart(&self) -> i64 {
        match (self.under_way, &self.lane) {
            (0, _) => self.due_ms,
            (_, Some(_)) => i64::MAX,
            (_, None) => 0,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let waiting = json!({
            "queue": self.queue,
            "tenant": self.tenant,
            "tries": self.tries,
            "pause": self.pause_s,
            "due": self.due_after_restart(),
            "lane": self.lane.as_ref().map(|lane| lane.of),
            "failures": self.failures,
            "work": self.made_by.as_ref().unwrap_or(&self.work).to_json(),
        });
        waiting.to_string().into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Waiting> {
        let json: Json = serde_json::from_slice(bytes).ok()?;
        let queue: Box<str> = json["queue"].as_str()?.into();
        let of: Option<Uuid> = serde_json::from_value(json["lane"].clone()).ok()?;
        let work = &json["work"];
        let chain = |json: &Json| serde_json::from_value(json["chain"].clone()).ok();
        let node = |json: &Json| usize::try_from(json["node"].as_u64()?).ok();
        let work = match work["kind"].as_str()? {
            "message" => Work::Message {
                chain: chain(work)?,
                message: message_of(&work["message"])?,
            },
            "resume" => Work::Resume(Continuation {
                chain: chain(work)?,
                node: node(work)?,
                name: work["name"].as_str().map(str::to_owned),
                message: message_of(&work["message"])?,
                // Earlier versions had none.
                returns: serde_json::from_value(work["returns"].clone()).unwrap_or_default(),
            }),
            "failed" => {
                let at = |json: &Json| {
                    let at = FailedAt {
                        message: message_of(&json["message"])?,
                        node: node(json)?,
                        name: json["name"].as_str()?.to_owned(),
                        returns: serde_json::from_value(json["returns"].clone()).ok()?,
                    };
                    Some((chain(json)?, at))
                };
                Work::Failed(work["at"].as_array()?.iter().map(at).collect::<Option<_>>()?)
            }
            _ => return None,
        };
        Some(Waiting {
            lane: of.map(|of| Lane {
                queue: queue.clone(),
                of,
            }),
            tries: json["tries"].as_i64()?,
            pause_s: json["pause"].as_i64()?,
            due_ms: json["due"].as_i64()?,
            failures: serde_json::from_value(json["failures"].clone()).ok()?,
            bytes: bytes.len(),
            ..Waiting::new(&queue, serde_json::from_value(json["tenant"].clone()).ok()?, work)
        })
    }
}

fn forget(number: u64) -> Change {
    Change::PutState {
        state: StateKind::Retry,
        id: id_of(number),
        bytes: None,
    }
}

fn message_json(message: &Message<'_>) -> Json {
    json!({
        "type": message.kind,
        "originator": message.originator,
        "customer": message.customer,
        "metadata": message.metadata.to_json(),
        "data": message.json(),
        "ts": message.ts_ms,
    })
}

fn message_of(json: &Json) -> Option<Message<'static>> {
    Some(Message {
        kind: json["type"].as_str()?.to_owned().into(),
        originator: serde_json::from_value(json["originator"].clone()).ok()?,
        customer: serde_json::from_value::<CustomerId>(json["customer"].clone()).ok()?,
        metadata: Metadata::from_json(&json["metadata"]),
        data: Data::Json(json["data"].clone()),
        ts_ms: json["ts"].as_i64()?,
    })
}
