//! A shard's side of the slow lane: selects messages, submits them, and receives the results.
//!
//! A message for a rule goes to the slow lane if the rule is slow, or if the lane still has an earlier message of this
//! rule from this shard. A rule that becomes slow or fast therefore evaluates messages in order.
//!
//! The shard collects jobs during a tick and submits them at its end. Before that it requests to be woken by results.
//! Otherwise it could miss a result that arrives before it sleeps.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Release};

use broker::tap::{OffloadedResult, Receipt};
use rules::RuleEvent;

use crate::cause::OwnedEventCause;
use crate::collector::RecordCollector;
use crate::environment::RuleTime;
use crate::output::RuleEvaluation;
use crate::set::{LiveAction, LiveRule, RuleOutput};
use crate::slow_lane::{EvaluationJob, EventSnapshot, FinishedJob, ResultInbox, SlowLane};

pub struct Offload {
    pub lane: Arc<SlowLane>,
    /// Time limit of the evaluations, for jobs that are submitted from now on.
    pub rule_time: RuleTime,
    inbox: Arc<ResultInbox>,
    /// Jobs of the current tick.
    unsubmitted: Vec<EvaluationJob>,
    /// Unfinished jobs by mark of the rule.
    outstanding: HashMap<u32, OutstandingJobs>,
    /// Results that are not processed yet.
    returned: VecDeque<FinishedJob>,
}

/// Counts of one rule's unfinished jobs.
#[derive(Default)]
struct OutstandingJobs {
    messages: usize,
    /// Jobs in `Offload::unsubmitted`, which `messages` includes.
    unsubmitted: usize,
    unsubmitted_bytes: usize,
}

impl Offload {
    pub fn new(lane: Arc<SlowLane>) -> Offload {
        Offload {
            inbox: lane.inbox(),
            lane,
            rule_time: RuleTime::default(),
            unsubmitted: Vec::new(),
            outstanding: HashMap::new(),
            returned: VecDeque::new(),
        }
    }

    /// Returns whether the rule's next message must go to the slow lane.
    #[inline]
    pub fn must_offload(&self, live: &LiveRule) -> bool {
        live.timing.is_slow() || !self.outstanding.is_empty() && self.outstanding.contains_key(&live.mark)
    }

    /// Returns whether publishers must be rejected because the rule's queue is full.
    pub fn is_full(&self, live: &LiveRule) -> bool {
        self.lane.is_full(&live.timing.load, self.unsubmitted(live))
    }

    fn unsubmitted(&self, live: &LiveRule) -> (usize, usize) {
        let outstanding = self.outstanding.get(&live.mark);
        outstanding.map_or((0, 0), |outstanding| {
            (outstanding.unsubmitted, outstanding.unsubmitted_bytes)
        })
    }

    /// Sends an event to the slow lane. Returns false if it is dropped because the queue is full and no publisher waits
    /// for it.
    pub fn send(
        &mut self,
        evaluation: RuleEvaluation<'_>,
        event: &mut LazySnapshot<'_>,
        collector: &mut RecordCollector,
    ) -> bool {
        let RuleEvaluation { live, cause, .. } = evaluation;
        let (load, unsubmitted) = (&live.timing.load, self.unsubmitted(live));
        let is_dropped = match (cause.delays_acknowledgement, cause.generation) {
            (false, _) => self.lane.is_full(load, unsubmitted),
            (true, 0) => false,
            (true, _) => self.lane.is_full_for_republished(load, unsubmitted),
        };
        if is_dropped {
            return false;
        }
        let is_awaited = cause.delays_acknowledgement && needs_durable_effects(live, evaluation.actions);
        let (event, bytes) = event.snapshot();
        let outstanding = self.outstanding.entry(live.mark).or_default();
        outstanding.messages += 1;
        outstanding.unsubmitted += 1;
        outstanding.unsubmitted_bytes += bytes;
        self.unsubmitted.push(EvaluationJob {
            live: Arc::clone(live),
            actions: Arc::clone(evaluation.actions),
            event,
            bytes,
            cause: OwnedEventCause::of(cause),
            unix_ms: evaluation.unix_ms,
            rule_time: self.rule_time,
            is_durable: is_awaited.then(|| collector.await_evaluation(live.mark)),
        });
        true
    }

    /// Submits the jobs of a tick.
    pub fn submit(&mut self) {
        if self.unsubmitted.is_empty() {
            return;
        }
        for outstanding in self.outstanding.values_mut() {
            (outstanding.unsubmitted, outstanding.unsubmitted_bytes) = (0, 0);
        }
        self.lane.submit(&mut self.unsubmitted, &self.inbox);
    }

    pub fn is_waiting(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Returns the next result, in the order of its rule's messages.
    pub fn next_result(&mut self) -> Option<FinishedJob> {
        if self.returned.is_empty() {
            self.returned = self.inbox.take();
        }
        let finished = self.returned.pop_front()?;
        let mark = finished.job.live.mark;
        if let Some(outstanding) = self.outstanding.get_mut(&mark) {
            outstanding.messages -= 1;
            if outstanding.messages == 0 {
                self.outstanding.remove(&mark);
            }
        }
        Some(finished)
    }
}

/// An event, and its copy for slow rules. The copy is made only if a slow rule needs it.
pub struct LazySnapshot<'a> {
    pub event: &'a dyn RuleEvent,
    snapshot: Option<(Arc<EventSnapshot>, usize)>,
}

impl<'a> LazySnapshot<'a> {
    pub fn new(event: &'a dyn RuleEvent) -> LazySnapshot<'a> {
        LazySnapshot { event, snapshot: None }
    }

    fn snapshot(&mut self) -> (Arc<EventSnapshot>, usize) {
        let (snapshot, bytes) = self.snapshot.get_or_insert_with(|| {
            let snapshot = EventSnapshot::of(self.event);
            let bytes = snapshot.bytes();
            (Arc::new(snapshot), bytes)
        });
        (Arc::clone(snapshot), *bytes)
    }
}

/// Returns whether the effects of a rule must be durable before the publisher is acknowledged.
fn needs_durable_effects(live: &LiveRule, actions: &[LiveAction]) -> bool {
    live.outputs.iter().any(|output| match output {
        RuleOutput::Action(index) => actions.get(*index).is_some_and(|action| action.is_awaited),
        RuleOutput::Republish(_) => true,
        RuleOutput::Console | RuleOutput::OutOfService(_) => false,
    })
}

/// Makes the broker set the flag when the records and the republished messages are durable.
pub fn result_of(receipt: Option<Receipt>, is_durable: Option<Arc<AtomicBool>>) -> OffloadedResult {
    OffloadedResult {
        receipt,
        on_durable: is_durable.map(|flag| {
            let set: Box<dyn FnOnce() + Send> = Box::new(move || flag.store(true, Release));
            set
        }),
    }
}
