//! Tests a rule: evaluates it as in production on a sample event.

use rules::{Column, EvalOutcome, Evaluator, EventKind, FromEntry, JsonForm, Map, Rule, SampleEvent, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::unix_ms;
use crate::compile::limits;
use crate::engine::EngineError;
use crate::environment::{LiveEnvironment, SharedStore};
use crate::tail::to_json;

/// SQL and the event to test it with.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DryRun {
    pub sql: String,
    /// Columns of the event by name, such as `topic`, `clientid`, `qos` or `payload`. A payload that is not a string is
    /// encoded as JSON. Missing columns have the values of an example for the rule's first source.
    #[serde(default)]
    pub event: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DryRunResult {
    /// Whether FROM matches the event.
    pub is_matched: bool,
    /// Whether WHERE is true and there is output.
    pub is_passed: bool,
    #[schemars(with = "Vec<serde_json::Value>")]
    pub outputs: Vec<Box<RawValue>>,
    /// The error that would count as a failure of the rule.
    pub error: Option<String>,
    /// Position of the error in the SQL.
    pub error_position: Option<ErrorPosition>,
}

/// Line and column, counted from 1. Columns count characters.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ErrorPosition {
    pub line: u32,
    pub column: u32,
}

/// Tests a rule. SQL that does not compile returns `EngineError::Invalid`.
pub fn dry_run(run: &DryRun) -> Result<DryRunResult, EngineError> {
    let invalid = |problem: String| EngineError::Invalid(vec![problem]);
    let rule = Rule::compile(&run.sql, &limits()).map_err(|error| invalid(format!("sql: {error}")))?;
    let event = event(&rule, run.event.as_ref()).map_err(|error| invalid(format!("event: {error}")))?;
    let mut environment = LiveEnvironment::new(unix_ms(), SharedStore::default());
    environment.unix_ms = unix_ms();
    let mut outputs = Vec::new();
    let outcome = Evaluator::new()
        .message(&event, &mut environment)
        .run(&rule, &mut outputs);
    let error_position = outcome.as_ref().err().map(|error| ErrorPosition {
        line: error.position.line,
        column: error.position.column,
    });
    Ok(DryRunResult {
        is_matched: is_source(&rule, &event),
        is_passed: matches!(outcome, Ok(EvalOutcome::Passed(_))),
        outputs: outputs.iter().map(exact_json).collect(),
        error: outcome.err().map(|error| error.to_string()),
        error_position,
    })
}

/// Returns the JSON as an action gets it. `serde_json::Value` would round integers of more than 64 bits.
fn exact_json(map: &Map) -> Box<RawValue> {
    let bytes = rules::encode_json(&Value::Map(map.clone()), JsonForm::UndefinedAsString);
    let text = String::from_utf8(bytes).ok();
    let exact = text.and_then(|text| RawValue::from_string(text).ok());
    // Strings that are not UTF-8 are shown with replacement characters.
    exact.unwrap_or_else(|| serde_json::value::to_raw_value(&to_json(map)).expect("a value is JSON"))
}

fn event(rule: &Rule, given: Option<&serde_json::Value>) -> Result<SampleEvent, String> {
    let source = source(rule, given);
    let kind = source.map_or(EventKind::MessagePublish, kind_of);
    let mut event = SampleEvent::example(kind, unix_ms());
    if let Some(FromEntry::Topic(filter)) = source {
        event.set(Column::Topic, Value::text(matching_topic(filter).as_str()));
    }
    let origin = match source {
        Some(FromEntry::Bridge(name)) => origin(name),
        _ => None,
    };
    for column in origin.map_or(&[][..], SourceSystem::missing_columns) {
        event.set(*column, Value::Undefined);
    }
    if let Some(SourceSystem::Kafka) = origin {
        same_payload(&mut event, given);
    }
    let Some(given) = given else {
        return Ok(event);
    };
    let bytes = serde_json::to_vec(given).map_err(|error| error.to_string())?;
    let value = rules::decode_json(&bytes, &rules::JsonLimits::default()).map_err(|error| error.to_string())?;
    let Value::Map(columns) = value else {
        return Err("must be an object of columns by name".into());
    };
    event.set_all(&columns)?;
    Ok(event)
}

/// System of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceSystem {
    Mqtt,
    Kafka,
}

impl SourceSystem {
    /// Returns the columns that its messages never have.
    fn missing_columns(self) -> &'static [Column] {
        match self {
            SourceSystem::Mqtt => &[
                Column::Headers,
                Column::Key,
                Column::Offset,
                Column::Partition,
                Column::Ts,
                Column::TsType,
                Column::Value,
            ],
            SourceSystem::Kafka => &[
                Column::Server,
                Column::QoS,
                Column::Dup,
                Column::Retain,
                Column::PubProps,
            ],
        }
    }
}

/// Returns `None` for a pattern that matches sources of several types.
fn origin(name: &str) -> Option<SourceSystem> {
    let (kind, _) = name.split_once('/')?.1.split_once(':')?;
    match kind {
        "mqtt" => Some(SourceSystem::Mqtt),
        "kafka" | "kafka_consumer" => Some(SourceSystem::Kafka),
        _ => None,
    }
}

/// The value of a Kafka record is also its payload. Either may be given.
fn same_payload(event: &mut SampleEvent, given: Option<&serde_json::Value>) {
    let field = |name: &str| given.and_then(|given| given.get(name)?.as_str());
    let text = match (field("value"), field("payload")) {
        (Some(text), _) | (None, Some(text)) => Value::text(text),
        (None, None) => Value::text(rules::RuleEvent::payload(event)),
    };
    event.set(Column::Payload, text.clone());
    event.set(Column::Value, text);
}

/// Returns the source in FROM that the event belongs to: by its column `event`, otherwise the first one that has all
/// columns of the event.
fn source<'r>(rule: &'r Rule, given: Option<&serde_json::Value>) -> Option<&'r FromEntry> {
    let given = given.and_then(serde_json::Value::as_object);
    let name = given.and_then(|given| given.get("event")?.as_str());
    let is_meant = |source: &&FromEntry| match name {
        Some(name) => kind_of(source).name() == name,
        None => given
            .into_iter()
            .flat_map(|given| given.keys())
            .all(|column| kind_of(source).columns().any(|known| known.name() == column)),
    };
    rule.sources().iter().find(is_meant).or(rule.sources().first())
}

fn kind_of(source: &FromEntry) -> EventKind {
    match source {
        FromEntry::Event(kind) => *kind,
        FromEntry::Bridge(_) => EventKind::Source,
        FromEntry::Topic(_) => EventKind::MessagePublish,
    }
}

/// Returns a topic name that the filter matches.
fn matching_topic(filter: &str) -> String {
    let levels = filter.split('/').map(|level| match level {
        "+" | "#" => "a",
        level => level,
    });
    levels.collect::<Vec<_>>().join("/")
}

fn is_source(rule: &Rule, event: &SampleEvent) -> bool {
    use rules::RuleEvent;
    let topic = event.column(rules::Column::Topic);
    rule.sources().iter().any(|source| match source {
        FromEntry::Topic(filter) => topic.as_str().is_some_and(|topic| mqtt::filter_matches(filter, topic)),
        FromEntry::Event(kind) => event.kind() == *kind,
        FromEntry::Bridge(_) => event.kind() == EventKind::Source,
    })
}
