//! The context of an evaluation, for the functions of a rule: the event, its parsed payload, the environment, and the
//! budget.

use std::sync::Arc;

#[cfg(feature = "jq")]
use rule_values::CompiledCache;
use rule_values::{
    FunctionError, Map, PatternCache, RegexPattern, StepBudget, Text, Value,
    json::{self, JsonError, Tape, TapeNode},
};

use crate::access::{self, ResolvedStep};
use crate::event::{Column, Environment, RuleEvent};
use crate::limits::RuleLimits;

/// jq programs that came from messages.
#[cfg(feature = "jq")]
pub(crate) type ProgramCache = CompiledCache<::jq::Program>;

/// Memory that is reused for the next message.
#[derive(Debug, Default)]
pub(crate) struct EvaluationCache {
    tape: Tape,
    payload: PayloadState,
    patterns: PatternCache,
    #[cfg(feature = "jq")]
    programs: ProgramCache,
}

/// Parse state of the payload of the current message.
#[derive(Clone, Copy, Debug, Default)]
enum PayloadState {
    #[default]
    Unread,
    Json,
    NotJson(JsonError),
}

impl EvaluationCache {
    /// Makes the cache ready for another event.
    pub fn begin_event(&mut self) {
        self.payload = PayloadState::Unread;
    }
}

/// The context of the evaluation of one rule for one event.
pub(crate) struct EvaluationContext<'a> {
    pub rule_id: &'a Text,
    pub limits: &'a RuleLimits,
    pub event: &'a dyn RuleEvent,
    pub environment: &'a mut dyn Environment,
    pub budget: StepBudget,
    cache: &'a mut EvaluationCache,
    is_payload_charged: bool,
}

impl<'a> EvaluationContext<'a> {
    pub fn new(
        rule_id: &'a Text,
        limits: &'a RuleLimits,
        event: &'a dyn RuleEvent,
        environment: &'a mut dyn Environment,
        cache: &'a mut EvaluationCache,
    ) -> EvaluationContext<'a> {
        EvaluationContext {
            rule_id,
            limits,
            event,
            budget: StepBudget::new(limits.steps_max, limits.result_bytes_max, environment.time_limit()),
            environment,
            cache,
            is_payload_charged: false,
        }
    }

    /// Returns the value at a path.
    pub fn get(&mut self, value: &Value, path: &[ResolvedStep]) -> Result<Value, FunctionError> {
        access::get(value, path, &self.limits.json, &mut self.budget)
    }

    /// Parses a field named `payload` whose value is a string.
    pub fn decode_payload(&mut self, text: &Text) -> Result<Value, FunctionError> {
        let decoded = json::decode_within(text, &self.limits.json, &mut self.budget)?;
        decoded.map_err(|error| FunctionError::from(format!("payload is {error}")))
    }

    /// Returns a column of the event and charges for its size.
    pub fn charged_column(&mut self, column: Column) -> Result<Value, FunctionError> {
        if column == Column::Payload {
            self.budget.make(self.event.payload().len())?;
            return Ok(self.column(column));
        }
        let value = self.column(column);
        match &value {
            Value::Text(text) => self.budget.make(text.len())?,
            Value::Array(_) | Value::Map(_) => self.budget.make_value(&value)?,
            _ => {}
        }
        Ok(value)
    }

    fn column(&mut self, column: Column) -> Value {
        match column {
            Column::Payload => Value::Text(Text::new(self.event.payload())),
            Column::Metadata => {
                let id = Value::Text(self.rule_id.clone());
                Value::Map(Map::from_entries(vec![(Text::from("rule_id"), id)]))
            }
            column => self.event.column(column),
        }
    }

    /// Returns the field of the payload with these keys from the tape, without converting the rest of the payload to
    /// values.
    pub fn payload_places(&mut self, path: &[ResolvedStep]) -> Result<Value, FunctionError> {
        // Another source of the rule may have a payload.
        if !self.event.kind().has(Column::Payload) {
            return Ok(Value::Undefined);
        }
        self.read_payload()?;
        let is_key = |place: &&ResolvedStep| matches!(place, ResolvedStep::Key(_));
        let keys: Vec<ResolvedStep> = path.iter().filter(is_key).cloned().collect();
        let mut node = Tape::ROOT;
        for (index, key) in keys.iter().enumerate() {
            if let Some(text) = self.payload_text(node)? {
                return self.get(&text, &keys[index..]);
            }
            match self.child(node, key)? {
                Some(child) => node = child,
                None => return Ok(Value::Undefined),
            }
        }
        self.payload_value(node)
    }

    /// Charges for a step into the payload. Returns the text if the node is a string, which may contain JSON.
    pub fn payload_text(&mut self, node: TapeNode) -> Result<Option<Value>, FunctionError> {
        self.budget.charge_steps(1)?;
        match self.cache.tape.is_string(node) {
            true => self.payload_value(node).map(Some),
            false => Ok(None),
        }
    }

    /// Converts a part of the parsed payload to a value.
    pub fn payload_value(&mut self, node: TapeNode) -> Result<Value, FunctionError> {
        self.budget.make(self.cache.tape.size(node))?;
        Ok(self.cache.tape.value(self.event.payload(), node))
    }

    /// Returns the child at this place in the parsed payload.
    pub fn child(&mut self, node: TapeNode, place: &ResolvedStep) -> Result<Option<TapeNode>, FunctionError> {
        match place {
            ResolvedStep::Key(key) => self.child_by_key(node, key),
            ResolvedStep::Index(index) => {
                let (found, stepped_over) = self.cache.tape.get_index(node, *index);
                self.budget.charge_steps(stepped_over / 4)?;
                Ok(found)
            }
            _ => Ok(None),
        }
    }

    /// Returns the child with this key in the parsed payload.
    pub fn child_by_key(&mut self, node: TapeNode, key: &[u8]) -> Result<Option<TapeNode>, FunctionError> {
        let (found, stepped_over) = self.cache.tape.get_key(self.event.payload(), node, key);
        self.budget.charge_steps(stepped_over / 4)?;
        Ok(found)
    }

    /// Parses the payload if that has not been done for this message.
    pub fn read_payload(&mut self) -> Result<(), FunctionError> {
        if matches!(self.cache.payload, PayloadState::Unread) {
            let parsed = self.cache.tape.parse(self.event.payload(), &self.limits.json);
            self.cache.payload = parsed.map_or_else(PayloadState::NotJson, |()| PayloadState::Json);
        }
        // Every rule is charged the same for parsing, not only the first one.
        if !self.is_payload_charged {
            self.is_payload_charged = true;
            self.budget.read(self.event.payload().len())?;
            self.budget.charge_steps(self.cache.tape.node_count() as u64 / 4)?;
        }
        match self.cache.payload {
            PayloadState::NotJson(error) => Err(FunctionError::from(format!("payload is {error}"))),
            _ => Ok(()),
        }
    }

    /// Returns a pattern that comes from a message. Constant patterns are compiled with the rule.
    pub fn pattern(&mut self, pattern: &[u8]) -> Result<Result<Arc<RegexPattern>, String>, FunctionError> {
        let bytes_max = self.limits.regex_bytes_max;
        self.cache.patterns.get(pattern, bytes_max, &mut self.budget)
    }

    /// For jq programs, which use the same cache as the functions of rules.
    #[cfg(feature = "jq")]
    pub fn patterns(&mut self) -> &mut PatternCache {
        &mut self.cache.patterns
    }

    /// Returns the cache of jq programs.
    #[cfg(feature = "jq")]
    pub fn programs(&mut self) -> &mut ProgramCache {
        &mut self.cache.programs
    }
}
