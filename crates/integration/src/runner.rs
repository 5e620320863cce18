//! Evaluates the rules of an event and hands what comes out to their actions. One for each thread that evaluates; off
//! the data plane too, where a source brings messages.
//!
//! Records gather per action and are appended once per tick (`flush`). The tap asks before it accepts a message (`would_be_held`),
//! so a buffer that is full holds publishers back before anything is accepted for it; what was accepted in the tick that filled it
//! waits here and is appended as soon as there is room.

use std::sync::Arc;

use broker::tap::{MadeMessage, Receipt};
use rules::{Evaluator, Event, JsonForm, Map, Outcome, Value};

use crate::dry_run::to_json;
use crate::environment::Surroundings;
use crate::handover::{Handover, Lost, Stamp};
use crate::loops;
use crate::metrics::RuleCounts;
use crate::republish::republish;
use crate::set::{InForce, LiveRule, Output, RuleSet};
use crate::tail::Entry;

/// What was made of what was made of … so often is not made into anything more.
const GENERATIONS_MAX: u32 = 8;

pub struct Runner {
    in_force: Arc<InForce>,
    number: u64,
    pub set: Arc<RuleSet>,
    evaluator: Evaluator,
    pub surroundings: Surroundings,
    outputs: Vec<Map>,
    /// By number of rule.
    counts: Vec<RuleCounts>,
    /// Rules that have counted something since the last tick.
    counted: Vec<u32>,
    handover: Handover,
    pub made: Vec<MadeMessage>,
}

/// What an event comes from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cause<'a> {
    /// Its publisher is acknowledged when all of it is kept that has to be.
    pub is_waited_for: bool,
    /// Hash of its client's id: what comes out of events of one client keeps its order.
    pub key: u64,
    /// `LiveRule::mark` of the rule that made it; 0 for none.
    pub rule: u32,
    pub generation: u32,
    /// Of the bridges that the message has gone through: `loops.rs`.
    pub bridges: &'a [&'a str],
}

impl Cause<'_> {
    /// Of a message with this mark: `MadeMessage::mark`, or 0.
    pub fn of_mark(mark: u64) -> Self {
        Cause {
            rule: mark as u32,
            generation: (mark >> 32) as u32,
            ..Cause::default()
        }
    }

    /// A rule does not see what it has made itself.
    fn is_own(self, live: &LiveRule) -> bool {
        live.mark == self.rule
    }

    fn mark(self, live: &LiveRule) -> u64 {
        u64::from(self.generation + 1) << 32 | u64::from(live.mark)
    }
}

impl Runner {
    pub fn new(in_force: Arc<InForce>, surroundings: Surroundings) -> Runner {
        let mut runner = Runner {
            in_force,
            number: u64::MAX,
            set: Arc::default(),
            evaluator: Evaluator::new(),
            surroundings,
            outputs: Vec::new(),
            counts: Vec::new(),
            counted: Vec::new(),
            handover: Handover::default(),
            made: Vec::new(),
        };
        runner.renew();
        runner
    }

    /// Takes the rules that are in force now.
    pub fn renew(&mut self) {
        let Some((number, set)) = self.in_force.newer_than(self.number) else {
            return;
        };
        self.count();
        self.counts.resize(set.numbers(), RuleCounts::default());
        if !Arc::ptr_eq(&self.set.actions, &set.actions) {
            self.handover.renew(&set.actions, self.surroundings.unix_ms);
        }
        (self.number, self.set) = (number, set);
    }

    /// Runs rules on an event. The receipt is for what has to be kept of it before its publisher is told.
    pub fn run(&mut self, rules: &[u32], event: &dyn Event, cause: Cause<'_>) -> Option<Receipt> {
        if cause.generation >= GENERATIONS_MAX {
            return None;
        }
        let set = &*self.set;
        let unix_ms = self.surroundings.unix_ms;
        let mut message = self.evaluator.message(event, &mut self.surroundings);
        for &number in rules {
            let Some(live) = set.rule(number).filter(|live| !cause.is_own(live)) else {
                continue;
            };
            let counts = &mut self.counts[number as usize];
            if counts.matched == 0 {
                self.counted.push(number);
            }
            counts.matched += 1;
            let result = message.run(&live.rule, &mut self.outputs);
            match &result {
                Ok(Outcome::Passed(_)) => counts.passed += 1,
                Ok(_) => counts.no_result += 1,
                Err(error) => {
                    counts.failed += 1;
                    live.metrics.tell_error(&live.id, "evaluation", &error.to_string());
                }
            }
            if live.tail.is_heard() {
                let error = result.as_ref().err().map(ToString::to_string);
                live.tail
                    .tell(event_time(event), || tail_entry(event, &self.outputs, error));
            }
            let mut hands = Hands {
                set,
                live,
                counts,
                cause,
                stamp: Stamp {
                    unix_ms,
                    mark: cause.mark(live),
                    bridges: cause.bridges,
                },
                handover: &mut self.handover,
                made: &mut self.made,
            };
            self.outputs.drain(..).for_each(|output| hands.put_out(&output));
        }
        self.handover.take_receipt()
    }

    /// Whether an event would give something to an action that holds publishers back. What rules put into their store for the question does
    /// not stay: the event may come again, and if not it is run.
    pub fn would_be_held(&mut self, rules: &[u32], event: &dyn Event) -> bool {
        let set = &*self.set;
        let mut trial = self.surroundings.trial();
        let mut message = self.evaluator.message(event, &mut trial);
        let mut live = rules.iter().filter_map(|number| set.rule(*number));
        let is_held = live.any(|live| {
            let is_full = |output: &Output| matches!(output, Output::Action(action) if self.handover.is_full(*action));
            live.outputs.iter().any(is_full)
                && matches!(message.run(&live.rule, &mut self.outputs), Ok(Outcome::Passed(_)))
        });
        self.outputs.clear();
        is_held
    }

    /// Appends what has gathered. Returns the number of the tick, for `kept`.
    pub fn flush(&mut self) -> u64 {
        let tick = self.handover.end_tick();
        self.append();
        self.count();
        tick
    }

    /// Appends what there is room for, and looks which actions hold publishers back. True if any does.
    pub fn append(&mut self) -> bool {
        let is_any_full = self.handover.append(self.surroundings.unix_ms);
        match self.handover.take_abandoned() {
            0 => {}
            abandoned => self.in_force.abandon(abandoned),
        }
        is_any_full
    }

    /// Up to which tick all that publishers wait for is kept.
    pub fn kept(&mut self) -> u64 {
        self.handover.kept_by_all()
    }

    /// The same of a lane.
    pub fn kept_in(&mut self, lane: u16) -> u64 {
        self.handover.kept(lane)
    }

    pub fn join(&mut self, one: Receipt, other: Receipt) -> Receipt {
        self.handover.join(one, other)
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

/// What takes the outputs of one rule.
struct Hands<'a> {
    set: &'a RuleSet,
    live: &'a LiveRule,
    counts: &'a mut RuleCounts,
    cause: Cause<'a>,
    stamp: Stamp<'a>,
    handover: &'a mut Handover,
    made: &'a mut Vec<MadeMessage>,
}

impl Hands<'_> {
    fn put_out(&mut self, output: &Map) {
        for target in &self.live.outputs {
            self.counts.actions += 1;
            match self.give(target, output) {
                Ok(()) => self.counts.actions_success += 1,
                Err(Lost::Discarded) => self.counts.actions_discarded += 1,
                Err(Lost::CameBack) => self.counts.actions_came_back += 1,
                Err(Lost::OutOfService(error)) => {
                    self.counts.actions_failed += 1;
                    self.counts.actions_out_of_service += 1;
                    self.live.metrics.tell_error(&self.live.id, "action", &error);
                }
                Err(Lost::Failed(error)) => {
                    self.counts.actions_failed += 1;
                    self.live.metrics.tell_error(&self.live.id, "action", &error);
                }
            }
        }
    }

    fn give(&mut self, target: &Output, output: &Map) -> Result<(), Lost> {
        match target {
            Output::Action(action) => {
                return self.handover.record(self.set, *action, output, self.cause, self.stamp);
            }
            Output::Republish(templates) => {
                let mut made = republish(templates, output, self.stamp.mark).map_err(Lost::Failed)?;
                loops::mark(&mut made, self.stamp.bridges);
                self.made.push(made);
            }
            Output::OutOfService(id) => {
                let error = format!("there is no action {id} that runs: what the rule has for it is lost");
                return Err(Lost::OutOfService(error));
            }
            Output::Console => {
                let text = rules::encode_json(&Value::Map(output.clone()), JsonForm::UndefinedAsString);
                tracing::info!(rule = %self.live.id, output = %String::from_utf8_lossy(&text), "rule");
            }
        }
        Ok(())
    }
}

/// The mark of a message of which rules make nothing.
pub fn seen_by_no_rule(mark: u64) -> u64 {
    u64::from(GENERATIONS_MAX) << 32 | (mark & u64::from(u32::MAX))
}

pub fn hash(bytes: &[u8]) -> u64 {
    use std::hash::BuildHasher;
    foldhash::quality::FixedState::default().hash_one(bytes)
}

fn event_time(event: &dyn Event) -> u64 {
    match event.column(rules::Column::Timestamp) {
        Value::Int(unix_ms) => unix_ms as u64,
        _ => 0,
    }
}

fn tail_entry(event: &dyn Event, outputs: &[Map], error: Option<String>) -> Entry {
    let columns = event.kind().columns().map(|column| {
        let value = match column {
            rules::Column::Payload => Value::text(event.payload()),
            column => event.column(column),
        };
        (rules::Text::from(column.name()), value)
    });
    let input = columns.filter(|(_, value)| *value != Value::Undefined).collect::<Map>();
    Entry {
        unix_ms: event_time(event),
        input: to_json(&input),
        outputs: outputs.iter().map(to_json).collect(),
        error,
        left_out: 0,
    }
}
