//! Outputs of rules: renders them for actions, and passes them to an outlet. The outlet of a shard sends them to the
//! buffers of actions and to the broker; the one of the slow lane collects them.

use std::sync::Arc;

use broker::tap::TapPublication;
use connectors::Records;
use rules::{EvalError, EvalOutcome, JsonForm, Map, MissingText, Value};

use crate::cause::{EventCause, OutputContext, hash};
use crate::fallback_records::{add_fallback_records, write_fields};
use crate::loops::{self, add_marks};
use crate::metrics::RuleCounts;
use crate::republish::republish;
use crate::set::{LiveAction, LiveFallback, LiveRule, RuleOutput};

/// The evaluation of a rule for an event.
#[derive(Clone, Copy)]
pub struct RuleEvaluation<'a> {
    pub live: &'a Arc<LiveRule>,
    /// The actions that the rule's outputs refer to by index.
    pub actions: &'a Arc<[LiveAction]>,
    pub cause: EventCause<'a>,
    pub unix_ms: u64,
}

/// Why an output did not reach its action.
pub enum OutputLoss {
    Discarded,
    /// The message has already passed the action's connector.
    Loop,
    OutOfService(String),
    Failed(String),
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

/// Writes the outputs of one rule for one event.
pub struct OutputWriter<'a, O> {
    evaluation: RuleEvaluation<'a>,
    stamp: OutputContext<'a>,
    counts: &'a mut RuleCounts,
    outlet: &'a mut O,
}

impl<'a, O: RuleOutlet> OutputWriter<'a, O> {
    pub fn new(evaluation: RuleEvaluation<'a>, counts: &'a mut RuleCounts, outlet: &'a mut O) -> Self {
        OutputWriter {
            stamp: OutputContext {
                unix_ms: evaluation.unix_ms,
                mark: evaluation.cause.mark(evaluation.live.mark),
                bridges: evaluation.cause.bridges,
            },
            evaluation,
            counts,
            outlet,
        }
    }

    pub fn write(&mut self, output: &Map) {
        let live = self.evaluation.live;
        for target in &live.outputs {
            self.counts.actions += 1;
            match self.send(target, output) {
                Ok(()) => self.counts.actions_success += 1,
                Err(lost) => self.counts.count_lost(live, lost),
            }
        }
    }

    fn send(&mut self, target: &RuleOutput, output: &Map) -> Result<(), OutputLoss> {
        match target {
            RuleOutput::Action(action) => {
                let RuleEvaluation { actions, cause, .. } = self.evaluation;
                return self.outlet.record(actions, *action, output, cause, self.stamp);
            }
            RuleOutput::Republish(templates) => {
                let mut made = republish(templates, output, self.stamp.mark).map_err(OutputLoss::Failed)?;
                loops::mark(&mut made, self.stamp.bridges);
                self.outlet.publish(made)?;
            }
            RuleOutput::OutOfService(id) => return Err(OutputLoss::out_of_service(id)),
            RuleOutput::Console => {
                let text = rules::encode_json(&Value::Map(output.clone()), JsonForm::UndefinedAsString);
                tracing::info!(rule = %self.evaluation.live.id, output = %String::from_utf8_lossy(&text), "rule");
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
    pub fn count_lost(&mut self, live: &LiveRule, lost: OutputLoss) {
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
    pub fn out_of_service(id: &str) -> OutputLoss {
        OutputLoss::OutOfService(format!(
            "action {id} does not exist or is not running; the output is lost"
        ))
    }
}

/// Adds a record that carries only the data for the fallback actions.
pub fn render_diverted(
    records: &mut Records,
    live: &LiveAction,
    output: &Map,
    cause: EventCause<'_>,
    stamp: OutputContext<'_>,
) {
    records.write(stamp.unix_ms, cause.key, 0, |_| ());
    if live.fallbacks.iter().any(LiveFallback::is_bridge) {
        add_marks(records, stamp.bridges);
    }
    add_fallback_records(records, &live.fallbacks, output, stamp);
}

/// Renders an output and adds it as a record.
pub fn render_record(
    records: &mut Records,
    live: &LiveAction,
    output: &Map,
    cause: EventCause<'_>,
    stamp: OutputContext<'_>,
    scratch: &mut Vec<u8>,
) -> Result<(), OutputLoss> {
    let key = match &live.ordering_key {
        None => cause.key,
        Some(template) => {
            scratch.clear();
            let rendered = template.render(output, MissingText::Empty, scratch);
            rendered.map_err(|error| OutputLoss::Failed(error.to_string()))?;
            hash(scratch)
        }
    };
    let mut problem = None;
    records.write(stamp.unix_ms, key, live.templates.len(), |writer| {
        problem = write_fields(writer, &live.templates, output);
    });
    if let Some(problem) = problem {
        records.pop();
        return Err(OutputLoss::Failed(problem.to_string()));
    }
    if live.bridge.is_bridge || live.fallbacks.iter().any(LiveFallback::is_bridge) {
        add_marks(records, stamp.bridges);
    }
    add_fallback_records(records, &live.fallbacks, output, stamp);
    Ok(())
}
