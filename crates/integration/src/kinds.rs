//! The types of connectors, actions and sources. Creates running parts from definitions. No other module knows the
//! types.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use connectors::console::{ConsoleActionConfig, ConsoleSink};
use connectors::file::{FileActionConfig, FileSink};
use connectors::http::{HttpActionConfig, HttpConnector, HttpConnectorConfig, HttpSink};
use connectors::mqtt::{MqttActionConfig, MqttConnector, MqttConnectorConfig, MqttSink, MqttSource, MqttSourceConfig};
#[cfg(feature = "postgresql")]
use connectors::postgres::{PostgresActionConfig, PostgresConnector, PostgresConnectorConfig, PostgresSink};
#[cfg(feature = "redis")]
use connectors::redis::{RedisActionConfig, RedisConnector, RedisConnectorConfig, RedisSink};
use connectors::{ConnectionHealth, DeliveryConfig, FieldTemplate, HealthCell, HealthState, Sink, Source};
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::definition::{ActionDefinition, SourceDefinition};
use crate::loops::MarkPolicy;
use crate::secrets;
use crate::unavailable::UnavailableSink;

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
use kafka::{KafkaActionConfig, KafkaConnector, KafkaConnectorConfig, KafkaSourceConfig, KafkaTarget};

/// The problems of a definition. Each names its field.
pub type Problems = Vec<String>;

/// The sink of an action with its templates.
pub struct ActionTarget {
    pub sink: Arc<dyn Sink>,
    pub templates: Vec<FieldTemplate>,
    pub bridge: MarkPolicy,
}

impl ActionTarget {
    fn new(sink: impl Sink + 'static, templates: Vec<FieldTemplate>) -> ActionTarget {
        ActionTarget {
            sink: Arc::new(sink),
            templates,
            bridge: MarkPolicy::default(),
        }
    }
}

macro_rules! kinds {
    ($($(#[$cfg:meta])? $kind:literal $variant:ident $connector:ident $config:ident $sink:ident $parameters:ident;)*) => {
        /// Types with connectors.
        pub const CONNECTOR_KINDS: &[&str] = &[$($(#[$cfg])? $kind),*];

        /// Types with connectors, also those that this build does not contain.
        const ALL_CONNECTOR_KINDS: &[&str] = &[$($kind),*];

        /// A connection that actions share.
        #[derive(Clone)]
        pub enum Connector { $($(#[$cfg])? $variant(Arc<$connector>)),* }

        pub fn connector(kind: &str, config: &Value) -> Result<Connector, Problems> {
            match kind {
                $($(#[$cfg])? $kind => {
                    let config: $config = read_with_secrets("config", config)?;
                    let connector = $connector::new(&config).map_err(|problems| prefixed("config", problems))?;
                    Ok(Connector::$variant(Arc::new(connector)))
                })*
                _ => Err(vec![unknown_kind(kind, CONNECTOR_KINDS.iter())]),
            }
        }

        fn target_of(kind: &str, connector: &Connector, parameters: &Value) -> Result<ActionTarget, Problems> {
            match (kind, connector) {
                $($(#[$cfg])? ($kind, Connector::$variant(connector)) => {
                    let config: $parameters = read_with_secrets("parameters", parameters)?;
                    let sink = $sink::new(connector.clone(), &config);
                    let sink = sink.map_err(|problems| prefixed("parameters", problems))?;
                    let templates = sink.templates().to_vec();
                    Ok(ActionTarget::new(sink, templates))
                })*
                _ => Err(vec![format!("type: is {kind:?}, but the connector has another type")]),
            }
        }

        /// Returns the templates of an action, as far as they are known without its connector and secrets.
        fn templates_alone(kind: &str, parameters: &Value) -> Result<Vec<FieldTemplate>, Problems> {
            match kind {
                $($(#[$cfg])? $kind => read::<$parameters>("parameters", parameters).map(|config| config.templates()),)*
                "file" => read::<FileActionConfig>("parameters", parameters).map(|config| config.templates()),
                "console" => read::<ConsoleActionConfig>("parameters", parameters).map(|config| config.templates()),
                _ => Err(vec![unknown_action_kind(kind)]),
            }
        }

        /// Returns a configuration for display: with defaults and without secrets. An unreadable one is not shown.
        pub fn shown_config(kind: &str, config: &Value) -> Value {
            match kind {
                $($(#[$cfg])? $kind => shown::<$config>(config),)*
                _ => Value::Null,
            }
        }

        pub fn shown_parameters(kind: &str, parameters: &Value) -> Value {
            match kind {
                $($(#[$cfg])? $kind => shown::<$parameters>(parameters),)*
                "file" => shown::<FileActionConfig>(parameters),
                "console" => shown::<ConsoleActionConfig>(parameters),
                _ => Value::Null,
            }
        }

        /// Returns the schema for forms.
        pub fn config_schema(kind: &str) -> Option<Schema> {
            match kind {
                $($(#[$cfg])? $kind => Some(schema::<$config>()),)*
                _ => None,
            }
        }

        pub fn parameters_schema(kind: &str) -> Option<Schema> {
            match kind {
                $($(#[$cfg])? $kind => Some(schema::<$parameters>()),)*
                "file" => Some(schema::<FileActionConfig>()),
                "console" => Some(schema::<ConsoleActionConfig>()),
                _ => None,
            }
        }
    };
}

kinds! {
    #[cfg(feature = "kafka")]
    "kafka" Kafka KafkaConnector KafkaConnectorConfig KafkaTarget KafkaActionConfig;
    "http" Http HttpConnector HttpConnectorConfig HttpSink HttpActionConfig;
    #[cfg(feature = "postgresql")]
    "postgresql" Postgres PostgresConnector PostgresConnectorConfig PostgresSink PostgresActionConfig;
    #[cfg(feature = "redis")]
    "redis" Redis RedisConnector RedisConnectorConfig RedisSink RedisActionConfig;
    "mqtt" Mqtt MqttConnector MqttConnectorConfig MqttSink MqttActionConfig;
}

/// Creates a target that replaces one that cannot be created. It sends nothing.
pub fn unavailable_target(definition: &ActionDefinition, problems: &Problems) -> Result<ActionTarget, Problems> {
    let templates = templates_alone(&definition.kind, &definition.parameters).map_err(|_| problems.clone())?;
    let reason = problems.join("; ");
    Ok(ActionTarget {
        bridge: MarkPolicy {
            is_bridge: has_loop_protection(&definition.kind),
            mark: None,
        },
        ..ActionTarget::new(UnavailableSink { reason }, templates)
    })
}

/// Creates a sink that is used only to check that the connector's target is reachable and accepts the credentials.
pub fn probe(kind: &str, connector: &Connector) -> Result<Arc<dyn Sink>, Problems> {
    let parameters = match kind {
        "kafka" => serde_json::json!({"kafka_topic": "${topic}"}),
        "postgresql" => serde_json::json!({"sql": "SELECT CAST(${payload} AS text)"}),
        "redis" => serde_json::json!({"command": ["PING"]}),
        _ => Value::Null,
    };
    target_of(kind, connector, &parameters).map(|target| target.sink)
}

/// Returns the default delivery settings of a type.
pub fn default_delivery(kind: &str) -> DeliveryConfig {
    match kind {
        #[cfg(feature = "kafka")]
        "kafka" => KafkaActionConfig::default_delivery(),
        _ => DeliveryConfig::default(),
    }
}

/// Returns the delivery settings of an action: its definition over the defaults of its type.
pub fn delivery(kind: &str, given: &Value) -> Result<DeliveryConfig, Problems> {
    let mut all = serde_json::to_value(default_delivery(kind)).unwrap_or_default();
    merge(&mut all, given);
    let delivery: DeliveryConfig = read("delivery", &all)?;
    let problems = delivery.problems();
    if problems.is_empty() {
        return Ok(delivery);
    }
    Err(prefixed("delivery", problems))
}

fn merge(all: &mut Value, given: &Value) {
    match (all, given) {
        (Value::Object(all), Value::Object(given)) => {
            for (key, value) in given {
                merge(all.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (all, given) => *all = given.clone(),
    }
}

/// A source with its health.
pub struct SourceHandle {
    pub source: Arc<dyn Source>,
    health: HealthCell,
    /// The same as `source`, for MQTT. Its health is polled, and its subscriptions can be removed.
    mqtt: Option<Arc<MqttSource>>,
}

impl SourceHandle {
    /// Returns the health. Must be called on a tokio runtime.
    pub fn health(&self) -> ConnectionHealth {
        if let Some(source) = &self.mqtt {
            // The check resolves immediately if the state is known.
            match source.check().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(())) => self.health.connected(),
                Poll::Ready(Err(reason)) => self.not_connected(reason),
                Poll::Pending => {}
            }
        }
        self.health.get()
    }

    /// Updates health only if the error has changed, so that the time is that of its first occurrence.
    fn not_connected(&self, reason: String) {
        let known = self.health.get();
        if known.state != HealthState::Disconnected || known.last_error.as_ref() != Some(&reason) {
            self.health.disconnected(reason);
        }
    }

    /// Removes the source permanently, including its subscriptions. It must not be running.
    pub fn end(self) {
        drop(self.source);
        match self.mqtt.map(Arc::into_inner) {
            Some(Some(source)) => source.unsubscribe(),
            Some(None) => tracing::warn!("an MQTT source is still running; its subscriptions remain at the broker"),
            None => {}
        }
    }
}

/// Creates a source. `id` appears in the log. `kind` is the type of the connector.
pub fn source(id: &str, kind: &str, connector: &Connector, parameters: &Value) -> Result<SourceHandle, Problems> {
    match (kind, connector) {
        #[cfg(feature = "kafka")]
        ("kafka", Connector::Kafka(connector)) => kafka::source(id, connector, parameters),
        ("mqtt", Connector::Mqtt(connector)) => {
            let config: MqttSourceConfig = read_with_secrets("parameters", parameters)?;
            let source = MqttSource::new(connector.clone(), &config);
            let source = Arc::new(source.map_err(|problems| prefixed("parameters", problems))?);
            Ok(SourceHandle {
                source: source.clone(),
                health: HealthCell::for_source(id),
                mqtt: Some(source),
            })
        }
        _ => Err(vec![format!("type: {kind:?} has no sources")]),
    }
}

/// Returns a problem for each subscription that overlaps one of an enabled source on the same connector. `others` may
/// contain the source itself.
pub fn overlaps<'a>(definition: &SourceDefinition, others: impl Iterator<Item = &'a SourceDefinition>) -> Problems {
    let subscriptions = |definition: &SourceDefinition| {
        let is_mqtt = definition.enable && definition.kind == "mqtt";
        is_mqtt.then(|| read_with_secrets::<MqttSourceConfig>("parameters", &definition.parameters).ok())?
    };
    let Some(mine) = subscriptions(definition) else {
        return Problems::new();
    };
    let id = definition.id();
    let others = others.filter(|other| other.connector == definition.connector && other.id() != id);
    let overlapping = others.filter_map(|other| {
        let theirs = subscriptions(other)?;
        let (index, filter) = mine.overlap(&theirs)?;
        Some(format!(
            "parameters.subscriptions[{index}].filter: {:?} overlaps {filter:?} of source {:?}, and the sources of one \
             connector share one session; use another connector with its own client_id for one of them",
            mine.subscriptions[index].filter,
            other.id(),
        ))
    });
    overlapping.collect()
}

/// Returns the schema of the parameters of a source, or `None` if the type has no sources.
pub fn source_schema(kind: &str) -> Option<Schema> {
    match kind {
        #[cfg(feature = "kafka")]
        "kafka" => Some(schema::<KafkaSourceConfig>()),
        "mqtt" => Some(schema::<MqttSourceConfig>()),
        _ => None,
    }
}

/// Returns the schema of `delivery`, which all action types have.
pub fn delivery_schema() -> Schema {
    schema::<DeliveryConfig>()
}

/// Returns the schema of the arguments of `republish`.
pub fn republish_schema() -> Schema {
    schema::<crate::definition::RepublishArguments>()
}

pub fn shown_source(kind: &str, parameters: &Value) -> Value {
    match kind {
        #[cfg(feature = "kafka")]
        "kafka" => shown::<KafkaSourceConfig>(parameters),
        "mqtt" => shown::<MqttSourceConfig>(parameters),
        _ => Value::Null,
    }
}

/// Types of actions without a connector.
pub const LOCAL_KINDS: &[&str] = &["file", "console"];

/// Creates the target of an action. `action` is its id, for the log.
pub fn target(
    action: &str,
    kind: &str,
    connector: Option<&Connector>,
    parameters: &Value,
) -> Result<ActionTarget, Problems> {
    match (kind, connector) {
        ("file", _) => {
            let config: FileActionConfig = read("parameters", parameters)?;
            let sink = FileSink::new(&config).map_err(|problems| prefixed("parameters", problems))?;
            let templates = sink.templates().to_vec();
            Ok(ActionTarget::new(sink, templates))
        }
        ("console", _) => {
            let config: ConsoleActionConfig = read("parameters", parameters)?;
            let sink = ConsoleSink::new(action, &config).map_err(|problems| prefixed("parameters", problems))?;
            let templates = sink.templates().to_vec();
            Ok(ActionTarget::new(sink, templates))
        }
        (_, Some(connector)) => {
            let bridge = MarkPolicy {
                is_bridge: has_loop_protection(kind),
                mark: match connector {
                    Connector::Mqtt(client) => client.sent_mark().map(str::to_owned),
                    _ => None,
                },
            };
            let target = target_of(kind, connector, parameters)?;
            Ok(ActionTarget { bridge, ..target })
        }
        (_, None) => Err(vec![unknown_action_kind(kind)]),
    }
}

/// Returns whether the sink of this type recognises messages from its own target by their marks.
fn has_loop_protection(kind: &str) -> bool {
    matches!(kind, "kafka" | "mqtt")
}

pub fn is_known(kind: &str) -> bool {
    is_local(kind) || CONNECTOR_KINDS.contains(&kind)
}

pub fn is_local(kind: &str) -> bool {
    LOCAL_KINDS.contains(&kind)
}

fn schema<T: JsonSchema>() -> Schema {
    schema_for!(T)
}

/// Returns whether there are actions of this type.
pub fn is_kind(kind: &str) -> bool {
    CONNECTOR_KINDS.contains(&kind) || LOCAL_KINDS.contains(&kind)
}

fn unknown_action_kind(kind: &str) -> String {
    unknown_kind(kind, CONNECTOR_KINDS.iter().chain(LOCAL_KINDS))
}

fn unknown_kind<'a>(kind: &str, known: impl Iterator<Item = &'a &'a str>) -> String {
    if ALL_CONNECTOR_KINDS.contains(&kind) {
        return format!("type: this build has no {kind:?}; use a build with the feature {kind}");
    }
    let known: Vec<&str> = known.copied().collect();
    format!("type: {kind:?} is unknown, must be one of {}", known.join(", "))
}

/// Reads a value. A missing object counts as an empty one, because every field may have a default.
fn read<T: DeserializeOwned>(field: &str, value: &Value) -> Result<T, Problems> {
    let value = match value {
        Value::Null => Value::Object(serde_json::Map::new()),
        value => value.clone(),
    };
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let at = if path == "." {
            field.to_owned()
        } else {
            format!("{field}.{path}")
        };
        vec![format!("{at}: {}", input_errors::plain(error.inner()))]
    })
}

/// Reads a value after resolving its references to secrets.
fn read_with_secrets<T: DeserializeOwned + JsonSchema>(field: &str, value: &Value) -> Result<T, Problems> {
    let value = secrets::resolve(field, value.clone(), &schema_for!(T))?;
    read(field, &value)
}

fn shown<T: DeserializeOwned + Serialize>(value: &Value) -> Value {
    let value = read::<T>("", value)
        .ok()
        .and_then(|config| serde_json::to_value(config).ok());
    value.unwrap_or_default()
}

fn prefixed(field: &str, problems: Problems) -> Problems {
    problems
        .into_iter()
        .map(|problem| format!("{field}.{problem}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_about_options_contain_no_rust() {
        let values = [
            json!([1]),
            json!("x"),
            json!(-5),
            json!(true),
            json!({ "x": [1] }),
            json!([{ "x": 1 }]),
        ];
        let mut count = 0;
        let mut check = |field: &str, schema: Option<Schema>, read: &dyn Fn(&Value) -> Option<Problems>| {
            let schema = schema.unwrap_or_default();
            let names = schema
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten();
            let wrong = names.flat_map(|(name, _)| values.iter().map(move |value| json!({ name.as_str(): value })));
            for config in wrong.chain(values.iter().cloned()) {
                for problem in read(&config).into_iter().flatten() {
                    count += 1;
                    for word in [
                        "struct ", "enum ", "variant", "::", "sequence", "a map", "u16", "u32", "u64",
                    ] {
                        assert!(!problem.contains(word), "{field} {config}: {problem}");
                    }
                }
            }
        };
        for kind in CONNECTOR_KINDS.iter().chain(LOCAL_KINDS) {
            check(kind, config_schema(kind), &|config| connector(kind, config).err());
            check(kind, parameters_schema(kind), &|config| {
                templates_alone(kind, config).err()
            });
        }
        check("delivery", Some(delivery_schema()), &|config| {
            delivery("http", config).err()
        });
        check("source", source_schema("mqtt"), &|config| {
            read::<MqttSourceConfig>("parameters", config).err()
        });
        assert!(count > 200, "{count}");
        let wrong = read::<MqttSourceConfig>("parameters", &json!({ "subscriptions": [5] })).expect_err("a number");
        assert_eq!(
            wrong,
            ["parameters.subscriptions[0]: found a number, expected an object"]
        );
    }
}
