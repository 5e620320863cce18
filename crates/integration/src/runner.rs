//! Evaluates the rules of an event and sends their outputs to actions. Each shard, each source and the alarm events
//! have their own [`Runner`].
//!
//! Records are collected per action and appended once per tick (`flush`). Before the tap accepts a message, it checks
//! whether a buffer is full (`is_full_for`). A full buffer therefore holds publishers back before their messages are
//! accepted. If a buffer becomes full during a tick, the collector holds the records of that tick until there is space.

use std::sync::Arc;

use broker::MessageLimits;
use broker::tap::{OffloadedResult, Receipt, TapPublication};
use connectors::Records;
use rules::{EvalOutcome, Evaluator, Map, RuleEvent};

use crate::cause::{EventCause, GENERATIONS_MAX, OutputContext};
use crate::clock::cpu_time;
use crate::collector::RecordCollector;
use crate::environment::LiveEnvironment;
use crate::meter::RuleMeter;
use crate::metrics::RuleCounts;
use crate::offload::{LazySnapshot, Offload, result_of};
use crate::output::{OutputLoss, OutputWriter, RuleEvaluation, RuleOutlet};
use crate::set::{ActiveRules, LiveAction, RuleOutput, RuleSet};
use crate::slow_lane::{FinishedJob, RenderedOutput};

pub struct RuleRunner {
    active_rules: Arc<ActiveRules>,
    number: u64,
    pub set: Arc<RuleSet>,
    evaluator: Evaluator,
    pub environment: LiveEnvironment,
    outputs: Vec<Map>,
    /// Counts by number of the rule.
    counts: Vec<RuleCounts>,
    /// Rules with counts since the last tick.
    counted: Vec<u32>,
    collector: RecordCollector,
    pub republished: Vec<TapPublication>,
    /// Limits of republished messages. `None` for sources and alarm events: the shard checks their messages.
    pub message_limits: Option<MessageLimits>,
    /// `None` for sources and alarm events: their runners evaluate slow rules themselves.
    offload: Option<Offload>,
    meter: RuleMeter,
}

impl RuleRunner {
    pub fn new(active_rules: Arc<ActiveRules>, environment: LiveEnvironment) -> RuleRunner {
        let mut runner = RuleRunner {
            active_rules,
            number: u64::MAX,
            set: Arc::default(),
            evaluator: Evaluator::new(),
            environment,
            outputs: Vec::new(),
            counts: Vec::new(),
            counted: Vec::new(),
            collector: RecordCollector::default(),
            republished: Vec::new(),
            message_limits: None,
            offload: None,
            meter: RuleMeter::default(),
        };
        runner.update();
        runner
    }

    /// Makes the runner evaluate slow rules in the slow lane.
    pub fn with_offload(mut self, offload: Offload) -> RuleRunner {
        self.offload = Some(offload);
        self
    }

    /// Switches to the current rules.
    pub fn update(&mut self) {
        let Some((number, set)) = self.active_rules.newer_than(self.number) else {
            return;
        };
        self.count();
        self.counts.resize(set.numbers(), RuleCounts::default());
        if !Arc::ptr_eq(&self.set.actions, &set.actions) {
            self.collector.set_actions(&set.actions, self.environment.unix_ms);
        }
        self.environment.rule_time = set.rule_time;
        if let Some(offload) = &mut self.offload {
            offload.rule_time = set.rule_time;
        }
        (self.number, self.set) = (number, set);
    }

    /// Runs rules on an event. Returns a receipt if the publisher must wait for effects to be durable.
    pub fn run(&mut self, rules: &[u32], event: &dyn RuleEvent, cause: EventCause<'_>) -> Option<Receipt> {
        if cause.generation >= GENERATIONS_MAX {
            return None;
        }
        let set = &*self.set;
        let unix_ms = self.environment.unix_ms;
        let mut message = self.evaluator.message(event, &mut self.environment);
        let mut snapshot = LazySnapshot::new(event);
        for &number in rules {
            let Some(live) = set.rule(number).filter(|live| !cause.is_own(live.mark)) else {
                continue;
            };
            let counts = &mut self.counts[number as usize];
            if counts.matched == 0 {
                self.counted.push(number);
            }
            counts.matched += 1;
            let evaluation = RuleEvaluation {
                live,
                actions: &set.actions,
                cause,
                unix_ms,
            };
            if let Some(offload) = &mut self.offload
                && offload.must_offload(live)
            {
                let is_accepted = offload.send(evaluation, &mut snapshot, &mut self.collector);
                counts.dropped_queue_full += u64::from(!is_accepted);
                continue;
            }
            let started = self.meter.start();
            let result = message.run(&live.rule, &mut self.outputs);
            counts.count(live, &result);
            live.tail.show(event, &self.outputs, &result);
            let mut direct = DirectOutlet {
                collector: &mut self.collector,
                made: &mut self.republished,
                limits: self.message_limits,
            };
            let mut writer = OutputWriter::new(evaluation, counts, &mut direct);
            self.outputs.drain(..).for_each(|output| writer.write(&output));
            if let Some(offload) = &self.offload {
                self.meter.stop(started, live, &offload.lane);
            }
        }
        self.collector.take_receipt()
    }

    /// Returns whether results of the slow lane are outstanding.
    pub fn is_offloading(&self) -> bool {
        self.offload.as_ref().is_some_and(Offload::is_waiting)
    }

    /// Processes the next result of the slow lane.
    pub fn take_offloaded(&mut self) -> Option<OffloadedResult> {
        let FinishedJob {
            job,
            mut counts,
            outputs,
        } = self.offload.as_mut()?.next_result()?;
        let bridges = job.cause.bridges();
        let cause = job.cause.with(&bridges);
        for item in outputs.items {
            let result = match item {
                RenderedOutput::Republish(made) => {
                    let checked = check_limits(&made, self.message_limits);
                    checked.map(|()| self.republished.push(made))
                }
                RenderedOutput::Record { action, records } => {
                    self.add_rendered(&job.actions, action, records, false, cause)
                }
                // The slow lane has already counted this output as failed.
                RenderedOutput::Diverted { action, records } => {
                    let _ = self.add_rendered(&job.actions, action, records, true, cause);
                    Ok(())
                }
            };
            if let Err(lost) = result {
                counts.actions_success -= 1;
                counts.count_lost(&job.live, lost);
            }
        }
        job.live.metrics.add(&counts);
        Some(result_of(self.collector.take_receipt(), job.is_durable))
    }

    /// Adds a record for an action. `action` is an index into `actions`, the actions at the time of the evaluation.
    fn add_rendered(
        &mut self,
        actions: &[LiveAction],
        action: usize,
        mut records: Records,
        is_for_fallbacks: bool,
        cause: EventCause<'_>,
    ) -> Result<(), OutputLoss> {
        let id = &actions[action].id;
        match self.set.position(id) {
            Some(current) => {
                let set = &self.set;
                let collector = &mut self.collector;
                collector.add_rendered(&set.actions, current, &mut records, is_for_fallbacks, cause)
            }
            None => Err(OutputLoss::out_of_service(id)),
        }
    }

    /// Returns whether an event would have an output for an action with a full buffer. The evaluation does not change
    /// the key-value store, because the rules evaluate the event again when it is accepted.
    pub fn is_full_for(&mut self, rules: &[u32], event: &dyn RuleEvent) -> bool {
        let set = &*self.set;
        let mut trial = self.environment.trial();
        let mut message = self.evaluator.message(event, &mut trial);
        let mut live = rules.iter().filter_map(|number| set.rule(*number));
        let is_full = live.any(|live| {
            let has_full_action =
                |output: &RuleOutput| matches!(output, RuleOutput::Action(action) if self.collector.is_full(*action));
            let is_any_full = live.outputs.iter().any(has_full_action);
            match &self.offload {
                // Evaluating the rule to find out whether it has an output would take too long.
                Some(offload) if offload.must_offload(live) => is_any_full || offload.is_full(live),
                Some(offload) if is_any_full => {
                    let started = cpu_time();
                    let is_passed = matches!(message.run(&live.rule, &mut self.outputs), Ok(EvalOutcome::Passed(_)));
                    let took = cpu_time().saturating_sub(started);
                    offload.lane.measure(live, took, self.environment.unix_ms);
                    is_passed
                }
                _ => is_any_full && matches!(message.run(&live.rule, &mut self.outputs), Ok(EvalOutcome::Passed(_))),
            }
        });
        self.outputs.clear();
        is_full
    }

    /// Appends the collected records. Returns the number of the tick, for `committed_tick`.
    pub fn flush(&mut self) -> u64 {
        let tick = self.collector.end_tick();
        if let Some(offload) = &mut self.offload {
            offload.submit();
            self.meter.end_window(&offload.lane);
        }
        self.append();
        self.count();
        tick
    }

    /// Begins a tick. Returns whether publishers must be checked before their messages are accepted, because a buffer,
    /// or the queue of a slow rule, is full or nearly full.
    pub fn begin_tick(&mut self) -> bool {
        self.meter.begin_tick();
        let is_pressed = self
            .offload
            .as_ref()
            .is_some_and(|offload| offload.lane.has_half_full_queue());
        self.append() || is_pressed
    }

    /// Appends records to buffers with space. Returns whether publishers for any action have to wait.
    pub fn append(&mut self) -> bool {
        let is_any_full = self.collector.append(self.environment.unix_ms);
        match self.collector.take_discarded() {
            0 => {}
            abandoned => self.active_rules.add_discarded(abandoned),
        }
        is_any_full
    }

    /// Returns the tick up to which everything that publishers wait for is committed.
    pub fn committed_tick(&mut self) -> u64 {
        self.collector.committed_tick_of_all()
    }

    /// Like [`Self::committed_tick`], for one lane.
    pub fn committed_tick_in(&mut self, lane: u16) -> u64 {
        self.collector.committed_tick(lane)
    }

    pub fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        self.collector.join(one, other)
    }

    fn count(&mut self) {
        for number in self.counted.drain(..) {
            let counts = std::mem::take(&mut self.counts[number as usize]);
            if let Some(live) = self.set.rule(number) {
                live.metrics.add(&counts);
            }
        }
    }
}

/// Checks a republished message against the limits of clients.
fn check_limits(made: &TapPublication, limits: Option<MessageLimits>) -> Result<(), OutputLoss> {
    let checked = limits.map_or(Ok(()), |limits| limits.check(&made.limited()));
    checked.map_err(|limit| OutputLoss::Failed(format!("republish: topic {:?}: {limit}", made.topic)))
}

/// Sends outputs to the buffers of actions and to the broker.
struct DirectOutlet<'a> {
    collector: &'a mut RecordCollector,
    made: &'a mut Vec<TapPublication>,
    limits: Option<MessageLimits>,
}

impl RuleOutlet for DirectOutlet<'_> {
    fn record(
        &mut self,
        actions: &[LiveAction],
        action: usize,
        output: &Map,
        cause: EventCause<'_>,
        stamp: OutputContext<'_>,
    ) -> Result<(), OutputLoss> {
        self.collector.add(actions, action, output, cause, stamp)
    }

    fn publish(&mut self, made: TapPublication) -> Result<(), OutputLoss> {
        check_limits(&made, self.limits)?;
        self.made.push(made);
        Ok(())
    }
}
