//! Trying a rule: the same evaluation as in production, on an event that is made up.

use rules::{Column, Evaluator, EventKind, JsonForm, Map, Outcome, Rule, SampleEvent, Source, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compile::limits;
use crate::engine::EngineError;
use crate::environment::{SharedStore, Surroundings, unix_ms};

/// SQL and what to try it on.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DryRun {
    pub sql: String,
    /// Columns of the event by name, such as `topic`, `clientid`, `qos`, `payload`. A payload that is not a string is taken as its
    /// JSON. What is not given is that of an example of the rule's first source.
    #[serde(default)]
    pub event: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DryRunResult {
    /// The event's topic and kind are among what FROM names.
    pub is_matched: bool,
    /// WHERE held, and there is output.
    pub is_passed: bool,
    pub outputs: Vec<serde_json::Value>,
    /// What would be counted as a failure of the rule.
    pub error: Option<String>,
    /// Where in the SQL the error is.
    pub error_position: Option<ErrorPosition>,
}

/// From 1; columns are characters.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct ErrorPosition {
    pub line: u32,
    pub column: u32,
}

/// SQL that cannot be compiled is `Invalid`.
pub fn dry_run(run: &DryRun) -> Result<DryRunResult, EngineError> {
    let invalid = |problem: String| EngineError::Invalid(vec![problem]);
    let rule = Rule::compile(&run.sql, &limits()).map_err(|error| invalid(format!("sql: {error}")))?;
    let event = event(&rule, run.event.as_ref()).map_err(|error| invalid(format!("event: {error}")))?;
    let mut surroundings = Surroundings::new(unix_ms(), SharedStore::default());
    surroundings.unix_ms = unix_ms();
    let mut outputs = Vec::new();
    let outcome = Evaluator::new()
        .message(&event, &mut surroundings)
        .run(&rule, &mut outputs);
    let error_position = outcome.as_ref().err().map(|error| ErrorPosition {
        line: error.position.line,
        column: error.position.column,
    });
    Ok(DryRunResult {
        is_matched: is_source(&rule, &event),
        is_passed: matches!(outcome, Ok(Outcome::Passed(_))),
        outputs: outputs.iter().map(to_json).collect(),
        error: outcome.err().map(|error| error.to_string()),
        error_position,
    })
}

pub fn to_json(map: &Map) -> serde_json::Value {
    let bytes = rules::encode_json(&Value::Map(map.clone()), JsonForm::UndefinedAsString);
    serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into())
}

fn event(rule: &Rule, given: Option<&serde_json::Value>) -> Result<SampleEvent, String> {
    let source = source(rule, given);
    let kind = source.map_or(EventKind::MessagePublish, kind_of);
    let mut event = SampleEvent::example(kind, unix_ms());
    if let Some(Source::Topic(filter)) = source {
        event.set(Column::Topic, Value::text(fitting_topic(filter).as_str()));
    }
    let origin = match source {
        Some(Source::Bridge(name)) => origin(name),
        _ => None,
    };
    for column in origin.map_or(&[][..], Origin::lacks) {
        event.set(*column, Value::Undefined);
    }
    if let Some(Origin::Kafka) = origin {
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

/// What a source takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Mqtt,
    Kafka,
}

impl Origin {
    /// The columns that none of its messages has.
    fn lacks(self) -> &'static [Column] {
        match self {
            Origin::Mqtt => &[
                Column::Headers,
                Column::Key,
                Column::Offset,
                Column::Partition,
                Column::Ts,
                Column::TsType,
                Column::Value,
            ],
            Origin::Kafka => &[
                Column::Server,
                Column::QoS,
                Column::Dup,
                Column::Retain,
                Column::PubProps,
            ],
        }
    }
}

/// None for a pattern that sources of several types fit.
fn origin(name: &str) -> Option<Origin> {
    let (kind, _) = name.split_once('/')?.1.split_once(':')?;
    match kind {
        "mqtt" => Some(Origin::Mqtt),
        "kafka" | "kafka_consumer" => Some(Origin::Kafka),
        _ => None,
    }
}

/// The value of a Kafka record is its payload too, whichever is given.
fn same_payload(event: &mut SampleEvent, given: Option<&serde_json::Value>) {
    let field = |name: &str| given.and_then(|given| given.get(name)?.as_str());
    let text = match (field("value"), field("payload")) {
        (Some(text), _) | (None, Some(text)) => Value::text(text),
        (None, None) => Value::text(rules::Event::payload(event)),
    };
    event.set(Column::Payload, text.clone());
    event.set(Column::Value, text);
}

/// Of what FROM names, what the event is of: what its `event` says, else the first that has all its columns.
fn source<'r>(rule: &'r Rule, given: Option<&serde_json::Value>) -> Option<&'r Source> {
    let given = given.and_then(serde_json::Value::as_object);
    let name = given.and_then(|given| given.get("event")?.as_str());
    let is_meant = |source: &&Source| match name {
        Some(name) => kind_of(source).name() == name,
        None => given
            .into_iter()
            .flat_map(|given| given.keys())
            .all(|column| kind_of(source).columns().any(|known| known.name() == column)),
    };
    rule.sources().iter().find(is_meant).or(rule.sources().first())
}

fn kind_of(source: &Source) -> EventKind {
    match source {
        Source::Event(kind) => *kind,
        Source::Bridge(_) => EventKind::Source,
        Source::Topic(_) => EventKind::MessagePublish,
    }
}

/// A topic name that the filter matches.
fn fitting_topic(filter: &str) -> String {
    let levels = filter.split('/').map(|level| match level {
        "+" | "#" => "a",
        level => level,
    });
    levels.collect::<Vec<_>>().join("/")
}

fn is_source(rule: &Rule, event: &SampleEvent) -> bool {
    use rules::Event;
    let topic = event.column(rules::Column::Topic);
    rule.sources().iter().any(|source| match source {
        Source::Topic(filter) => topic.as_str().is_some_and(|topic| mqtt::filter_matches(filter, topic)),
        Source::Event(kind) => event.kind() == *kind,
        Source::Bridge(_) => event.kind() == EventKind::Source,
    })
}
