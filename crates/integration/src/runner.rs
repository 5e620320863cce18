//! Evaluates the rules of an event and hands what comes out to their actions. One for each thread that evaluates; off
//! the data plane too, where a source brings messages.
//!
//! Records gather per action and are appended once per tick (`flush`). The tap asks before it accepts a message (`would_be_held`),
//! so a buffer that is full holds publishers back before anything is accepted for it; what was accepted in the tick that filled it
//! waits here and is appended as soon as there is room.

use std::sync::Arc;

use broker::tap::MadeMessage;
use connectors::{Action, Records, Ticket};
use rules::{Evaluator, Event, JsonForm, Map, Missing, Outcome, Template, Value};

use crate::dry_run::to_json;
use crate::environment::Surroundings;
use crate::metrics::RuleCounts;
use crate::republish::republish;
use crate::set::{InForce, Output, RuleSet};
use crate::tail::Entry;

/// What was made of what was made of … so often is not made into anything more.
const GENERATIONS_MAX: u32 = 8;

/// Bytes that may wait here for one action whose buffer is full; more is given up and counted. Only QoS 0, events and messages of
/// the server come to that: publishers of QoS 1 and 2 are held back before.
const LEFT_OVER_MAX: usize = 4 << 20;

pub struct Runner {
    in_force: Arc<InForce>,
    number: u64,
    pub set: Arc<RuleSet>,
    evaluator: Evaluator,
    pub surroundings: Surroundings,
    outputs: Vec<Map>,
    /// By index of rule.
    counts: Vec<RuleCounts>,
    /// By index of action.
    pending: Vec<Pending>,
    /// Actions with something to append, or that were full when last looked at.
    touched: Vec<u32>,
    pub made: Vec<MadeMessage>,
    /// What is not known to be kept, by tick.
    in_flight: Vec<Flight>,
    ticks: u64,
    scratch: Vec<u8>,
}

#[derive(Default)]
struct Pending {
    records: Records,
    is_touched: bool,
    /// The first tick in which something came that a publisher waits for.
    waited_for_since: Option<u64>,
    is_full: bool,
}

struct Flight {
    /// The first tick of which it has something.
    since: u64,
    tickets: Vec<(Arc<Action>, Ticket)>,
}

/// What an event comes from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cause {
    /// Its publisher is acknowledged when all of it is kept that has to be.
    pub is_waited_for: bool,
    /// Hash of its client's id: what comes out of events of one client keeps its order.
    pub key: u64,
    /// The rule that made it, from 1; 0 for none.
    pub rule: u32,
    pub generation: u32,
}

impl Cause {
    /// Of a message with this mark: `MadeMessage::mark`, or 0.
    pub fn of_mark(mark: u64) -> Cause {
        Cause {
            rule: mark as u32,
            generation: (mark >> 32) as u32,
            ..Cause::default()
        }
    }

    /// A rule does not see what it has made itself.
    fn is_own(self, rule: u32) -> bool {
        rule + 1 == self.rule
    }

    fn mark(self, rule: u32) -> u64 {
        u64::from(self.generation + 1) << 32 | u64::from(rule + 1)
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
            pending: Vec::new(),
            touched: Vec::new(),
            made: Vec::new(),
            in_flight: Vec::new(),
            ticks: 0,
            scratch: Vec::new(),
        };
        runner.renew();
        runner
    }

    /// Takes the rules that are in force now. What waits for a buffer that is full goes there first, or the old set stays.
    pub fn renew(&mut self) {
        let Some((number, set)) = self.in_force.newer_than(self.number) else {
            return;
        };
        if self.has_left_over() {
            return;
        }
        self.count();
        self.counts = vec![RuleCounts::default(); set.rules.len()];
        self.pending.clear();
        self.pending.resize_with(set.actions.len(), Pending::default);
        self.touched.clear();
        (self.number, self.set) = (number, set);
    }

    fn has_left_over(&self) -> bool {
        self.pending.iter().any(|pending| !pending.records.is_empty())
    }

    /// Runs rules on an event. True if something of it has to be kept before its publisher is told.
    pub fn run(&mut self, rules: &[u32], event: &dyn Event, cause: Cause) -> bool {
        let set = self.set.clone();
        let mut outputs = std::mem::take(&mut self.outputs);
        let mut is_kept = false;
        let mut message = self.evaluator.message(event, &mut self.surroundings);
        let mut ran: Vec<(u32, usize, usize)> = Vec::new();
        for &index in rules {
            if cause.is_own(index) || cause.generation >= GENERATIONS_MAX {
                continue;
            }
            let live = &set.rules[index as usize];
            let counts = &mut self.counts[index as usize];
            counts.matched += 1;
            let start = outputs.len();
            let result = message.run(&live.rule, &mut outputs);
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
                    .tell(event_time(event), || tail_entry(event, &outputs[start..], error));
            }
            if outputs.len() > start {
                ran.push((index, start, outputs.len()));
            }
        }
        for (index, start, end) in ran {
            for output in &outputs[start..end] {
                is_kept |= self.put_out(&set, index, output, cause);
            }
        }
        outputs.clear();
        self.outputs = outputs;
        is_kept
    }

    fn put_out(&mut self, set: &RuleSet, index: u32, output: &Map, cause: Cause) -> bool {
        let live = &set.rules[index as usize];
        let mut is_kept = false;
        for target in &live.outputs {
            self.counts[index as usize].actions += 1;
            let is_taken = match target {
                Output::Action(action) => {
                    is_kept |= set.actions[*action].is_kept;
                    self.record(set, *action, output, cause.key, cause.is_waited_for)
                }
                Output::Republish(templates) => match republish(templates, output, cause.mark(index)) {
                    Ok(message) => {
                        self.made.push(message);
                        Ok(())
                    }
                    Err(error) => Err(Lost::Failed(error)),
                },
                Output::Console => {
                    let text = rules::encode_json(&Value::Map(output.clone()), JsonForm::UndefinedAsString);
                    tracing::info!(rule = %live.id, output = %String::from_utf8_lossy(&text), "rule");
                    Ok(())
                }
            };
            let counts = &mut self.counts[index as usize];
            match is_taken {
                Ok(()) => counts.actions_success += 1,
                Err(Lost::Discarded) => counts.actions_discarded += 1,
                Err(Lost::Failed(error)) => {
                    counts.actions_failed += 1;
                    live.metrics.tell_error(&live.id, "action", &error);
                }
            }
        }
        is_kept
    }

    fn record(&mut self, set: &RuleSet, index: usize, output: &Map, key: u64, is_waited_for: bool) -> Result<(), Lost> {
        let live = &set.actions[index];
        let pending = &mut self.pending[index];
        if pending.is_full && !is_waited_for && pending.records.len() > LEFT_OVER_MAX {
            return Err(Lost::Discarded);
        }
        if !std::mem::replace(&mut pending.is_touched, true) {
            self.touched.push(index as u32);
        }
        if is_waited_for && live.is_kept {
            pending.waited_for_since.get_or_insert(self.ticks + 1);
        }
        let key = match &live.ordering_key {
            None => key,
            Some(template) => {
                self.scratch.clear();
                let rendered = template.render(output, Missing::Empty, &mut self.scratch);
                rendered.map_err(|error| Lost::Failed(error.to_string()))?;
                hash(&self.scratch)
            }
        };
        let mut problem = None;
        let unix_ms = self.surroundings.unix_ms;
        pending.records.write(unix_ms, key, live.templates.len(), |writer| {
            for template in &live.templates {
                if is_nothing(template, output) {
                    writer.null();
                    continue;
                }
                writer.field(|out| problem = template.render(output, Missing::Undefined, out).err().or(problem));
            }
        });
        problem.map_or(Ok(()), |problem| Err(Lost::Failed(problem.to_string())))
    }

    /// Whether an event would give something to an action that holds publishers back.
    pub fn would_be_held(&mut self, rules: &[u32], event: &dyn Event) -> bool {
        let set = self.set.clone();
        let mut outputs = std::mem::take(&mut self.outputs);
        let mut message = self.evaluator.message(event, &mut self.surroundings);
        let is_held = rules.iter().any(|&index| {
            let live = &set.rules[index as usize];
            let is_full = |output: &Output| matches!(output, Output::Action(action) if self.pending[*action].is_full);
            live.outputs.iter().any(is_full) && matches!(message.run(&live.rule, &mut outputs), Ok(Outcome::Passed(_)))
        });
        outputs.clear();
        self.outputs = outputs;
        is_held
    }

    /// Appends what has gathered. Returns the number of the tick, for `kept`.
    pub fn flush(&mut self) -> u64 {
        self.ticks += 1;
        self.append();
        self.count();
        self.ticks
    }

    /// Appends what there is room for, and looks which actions hold publishers back. True if any does.
    pub fn append(&mut self) -> bool {
        let mut tickets = Vec::new();
        let mut since = self.ticks;
        let mut is_any_full = false;
        let set = &self.set;
        let pending = &mut self.pending;
        self.touched.retain(|&index| {
            let live = &set.actions[index as usize];
            let pending = &mut pending[index as usize];
            if !pending.records.is_empty()
                && let Ok(ticket) = live.action.buffer().append(&mut pending.records)
                && let Some(tick) = pending.waited_for_since.take()
            {
                since = since.min(tick);
                tickets.push((live.action.clone(), ticket));
            }
            let has_room = |bytes| pending.records.is_empty() && live.action.buffer().has_room_for(bytes);
            pending.is_full = live.headroom.is_some_and(|bytes| !has_room(bytes));
            is_any_full |= pending.is_full;
            pending.is_touched = pending.is_full;
            pending.is_full
        });
        if !tickets.is_empty() {
            self.in_flight.push(Flight { since, tickets });
        }
        is_any_full
    }

    /// Up to which tick all that publishers wait for is kept.
    pub fn kept(&mut self) -> u64 {
        let is_kept = |(action, ticket): &(Arc<Action>, Ticket)| action.buffer().committed() >= *ticket;
        self.in_flight.retain(|flight| !flight.tickets.iter().all(is_kept));
        let in_flight = self.in_flight.iter().map(|flight| flight.since);
        let pending = self
            .touched
            .iter()
            .map(|&index| self.pending[index as usize].waited_for_since);
        let unkept = in_flight.chain(pending.flatten()).min();
        unkept.map_or(self.ticks, |tick| tick - 1)
    }

    fn count(&mut self) {
        for (live, counts) in self.set.rules.iter().zip(&mut self.counts) {
            if counts.matched > 0 {
                live.metrics.add(&std::mem::take(counts));
            }
        }
    }
}

pub fn hash(bytes: &[u8]) -> u64 {
    use std::hash::BuildHasher;
    foldhash::quality::FixedState::default().hash_one(bytes)
}

/// A template that is one placeholder, for which there is nothing: a null of the target, not a text.
fn is_nothing(template: &Template, output: &Map) -> bool {
    template.is_single()
        && matches!(
            template.value(output, Missing::Null),
            Ok(Value::Undefined | Value::Null)
        )
}

/// Why an output did not reach its action.
enum Lost {
    Discarded,
    Failed(String),
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
