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
use rules::{EvalError, EvalOutcome, Evaluator, JsonForm, Map, RuleEvent, Value};

use crate::collector::{OutputContext, OutputLoss, RecordCollector};
use crate::dry_run::to_json;
use crate::environment::LiveEnvironment;
use crate::loops;
use crate::metrics::RuleCounts;
use crate::offload::{LazySnapshot, Offload, result_of};
use crate::republish::republish;
use crate::set::{ActiveRules, LiveAction, LiveRule, RuleOutput, RuleSet};
use crate::slow_lane::{FinishedJob, RenderedOutput};
use crate::tail::TailEntry;
use crate::timing::{RuleMeter, cpu_time};

/// Maximum number of times in a row that rules republish a message. Rules do not see the last message.
pub(crate) const GENERATIONS_MAX: u32 = 8;

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

/// Origin of an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventCause<'a> {
    /// Whether a publisher waits until the outputs for this event are durable.
    pub delays_acknowledgement: bool,
    /// Hash of the client id. Outputs for events of one client keep their order.
    pub key: u64,
    /// `LiveRule::mark` of the rule that made the message; 0 for none.
    pub rule: u32,
    pub generation: u32,
    /// Marks of the bridges that the message has passed (`loops.rs`).
    pub bridges: &'a [&'a str],
}

impl EventCause<'_> {
    /// Returns the cause of a message with this `TapPublication::mark`, or 0.
    pub fn of_mark(mark: u64) -> Self {
        EventCause {
            rule: mark as u32,
            generation: (mark >> 32) as u32,
            ..EventCause::default()
        }
    }

    /// Returns whether this rule has made the message. A rule does not process its own messages.
    fn is_own(self, live: &LiveRule) -> bool {
        live.mark == self.rule
    }

    fn mark(self, live: &LiveRule) -> u64 {
        u64::from(self.generation + 1) << 32 | u64::from(live.mark)
    }
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
            let Some(live) = set.rule(number).filter(|live| !cause.is_own(live)) else {
                continue;
            };
            let counts = &mut self.counts[number as usize];
            if counts.matched == 0 {
                self.counted.push(number);
            }
            counts.matched += 1;
            if let Some(offload) = &mut self.offload
                && offload.must_offload(live)
            {
                let is_accepted = offload.send(live, &set.actions, &mut snapshot, cause, unix_ms, &mut self.collector);
                counts.dropped_queue_full += u64::from(!is_accepted);
                continue;
            }
            let started = self.meter.start();
            let result = message.run(&live.rule, &mut self.outputs);
            counts.count(live, &result);
            show_in_tail(live, event, &self.outputs, &result);
            let mut direct = DirectOutlet {
                collector: &mut self.collector,
                made: &mut self.republished,
                limits: self.message_limits,
            };
            let mut writer = OutputWriter::new(&set.actions, live, counts, cause, unix_ms, &mut direct);
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

/// Receives the outputs of a rule.
pub trait RuleOutlet {
    fn record(
        &mut self,
        actions: &[LiveAction],
        action: usize,
        output: &Map,
        cause: EventCause<'_>,
        stamp: OutputContext<'_>,
    ) -> Result<(), OutputLoss>;

    fn publish(&mut self, made: TapPublication) -> Result<(), OutputLoss>;
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

/// Writes the outputs of one rule for one event.
pub struct OutputWriter<'a, O> {
    actions: &'a [LiveAction],
    live: &'a LiveRule,
    counts: &'a mut RuleCounts,
    cause: EventCause<'a>,
    stamp: OutputContext<'a>,
    outlet: &'a mut O,
}

impl<'a, O: RuleOutlet> OutputWriter<'a, O> {
    pub fn new(
        actions: &'a [LiveAction],
        live: &'a LiveRule,
        counts: &'a mut RuleCounts,
        cause: EventCause<'a>,
        unix_ms: u64,
        outlet: &'a mut O,
    ) -> Self {
        OutputWriter {
            actions,
            live,
            counts,
            cause,
            stamp: OutputContext {
                unix_ms,
                mark: cause.mark(live),
                bridges: cause.bridges,
            },
            outlet,
        }
    }

    pub fn write(&mut self, output: &Map) {
        for target in &self.live.outputs {
            self.counts.actions += 1;
            match self.send(target, output) {
                Ok(()) => self.counts.actions_success += 1,
                Err(lost) => self.counts.count_lost(self.live, lost),
            }
        }
    }

    fn send(&mut self, target: &RuleOutput, output: &Map) -> Result<(), OutputLoss> {
        match target {
            RuleOutput::Action(action) => {
                return self
                    .outlet
                    .record(self.actions, *action, output, self.cause, self.stamp);
            }
            RuleOutput::Republish(templates) => {
                let mut made = republish(templates, output, self.stamp.mark).map_err(OutputLoss::Failed)?;
                loops::mark(&mut made, self.stamp.bridges);
                self.outlet.publish(made)?;
            }
            RuleOutput::OutOfService(id) => return Err(OutputLoss::out_of_service(id)),
            RuleOutput::Console => {
                let text = rules::encode_json(&Value::Map(output.clone()), JsonForm::UndefinedAsString);
                tracing::info!(rule = %self.live.id, output = %String::from_utf8_lossy(&text), "rule");
            }
        }
        Ok(())
    }
}

impl RuleCounts {
    /// Adds the result of an evaluation.
    #[inline]
    pub fn count(&mut self, live: &LiveRule, result: &Result<EvalOutcome, EvalError>) {
        match result {
            Ok(EvalOutcome::Passed(_)) => self.passed += 1,
            Ok(_) => self.no_result += 1,
            Err(error) => {
                self.failed += 1;
                self.failed_at_limit += u64::from(error.is_limit);
                live.metrics.record_error(&live.id, "evaluation", &error.to_string());
            }
        }
    }

    /// Adds an output that did not reach its action.
    fn count_lost(&mut self, live: &LiveRule, lost: OutputLoss) {
        let error = match lost {
            OutputLoss::Discarded => return self.actions_discarded += 1,
            OutputLoss::Loop => return self.actions_looped += 1,
            OutputLoss::OutOfService(error) => {
                self.actions_out_of_service += 1;
                error
            }
            OutputLoss::Failed(error) => error,
        };
        self.actions_failed += 1;
        live.metrics.record_error(&live.id, "action", &error);
    }
}

impl OutputLoss {
    fn out_of_service(id: &str) -> OutputLoss {
        OutputLoss::OutOfService(format!(
            "action {id} does not exist or is not running; the output is lost"
        ))
    }
}

/// Sends an evaluation to the listeners of the rule's tail.
#[inline]
pub fn show_in_tail(live: &LiveRule, event: &dyn RuleEvent, outputs: &[Map], result: &Result<EvalOutcome, EvalError>) {
    if live.tail.has_listeners() {
        let error = result.as_ref().err().map(ToString::to_string);
        live.tail.send(event_time(event), || tail_entry(event, outputs, error));
    }
}

/// Returns a mark with the highest generation, so that no rule processes the message.
pub fn without_rules(mark: u64) -> u64 {
    u64::from(GENERATIONS_MAX) << 32 | (mark & u64::from(u32::MAX))
}

pub fn hash(bytes: &[u8]) -> u64 {
    use std::hash::BuildHasher;
    foldhash::quality::FixedState::default().hash_one(bytes)
}

fn event_time(event: &dyn RuleEvent) -> u64 {
    match event.column(rules::Column::Timestamp) {
        Value::Int(unix_ms) => unix_ms as u64,
        _ => 0,
    }
}

fn tail_entry(event: &dyn RuleEvent, outputs: &[Map], error: Option<String>) -> TailEntry {
    let columns = event.kind().columns().map(|column| {
        let value = match column {
            rules::Column::Payload => Value::text(event.payload()),
            column => event.column(column),
        };
        (rules::Text::from(column.name()), value)
    });
    let input = columns.filter(|(_, value)| *value != Value::Undefined).collect::<Map>();
    TailEntry {
        unix_ms: event_time(event),
        input: to_json(&input),
        outputs: outputs.iter().map(to_json).collect(),
        error,
        omitted: 0,
    }
}
