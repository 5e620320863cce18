//! The types of connectors, actions and sources. Creates running parts from definitions. No other module knows the
//! types.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use connectors::console::{ConsoleActionConfig, ConsoleSink};
use connectors::file::{FileActionConfig, FileSink};
use connectors::http::{HttpActionConfig, HttpConnector, HttpConnectorConfig, HttpSink};
use connectors::kafka::{KafkaActionConfig, KafkaConnectorConfig, KafkaSink, KafkaSource, KafkaSourceConfig};
use connectors::mqtt::{MqttActionConfig, MqttConnector, MqttConnectorConfig, MqttSink, MqttSource, MqttSourceConfig};
use connectors::postgres::{PostgresActionConfig, PostgresConnector, PostgresConnectorConfig, PostgresSink};
use connectors::redis::{RedisActionConfig, RedisConnector, RedisConnectorConfig, RedisSink};
use connectors::{
    BatchOutcome, BoxFuture, ConnectionHealth, DeliveryConfig, FieldTemplate, HealthCell, HealthState, OrderGuarantee,
    Record, Sink, Source,
};
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::definition::{ActionDefinition, SourceDefinition};
use crate::loops::MarkPolicy;
use crate::secrets;
use crate::unavailable::UnavailableSink;

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
    ($($kind:literal $variant:ident $connector:ident $config:ident $sink:ident $parameters:ident;)*) => {
        /// Types with connectors.
        pub const CONNECTOR_KINDS: &[&str] = &[$($kind),*];

        /// A connection that actions share.
        #[derive(Clone)]
        pub enum Connector { $($variant(Arc<$connector>)),* }

        pub fn connector(kind: &str, config: &Value) -> Result<Connector, Problems> {
            match kind {
                $($kind => {
                    let config: $config = read_with_secrets("config", config)?;
                    let connector = $connector::new(&config).map_err(|problems| prefixed("config", problems))?;
                    Ok(Connector::$variant(Arc::new(connector)))
                })*
                _ => Err(vec![format!("type: {kind:?} is unknown, must be one of {}", CONNECTOR_KINDS.join(", "))]),
            }
        }

        fn target_of(kind: &str, connector: &Connector, parameters: &Value) -> Result<ActionTarget, Problems> {
            match (kind, connector) {
                $(($kind, Connector::$variant(connector)) => {
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
                $($kind => read::<$parameters>("parameters", parameters).map(|config| config.templates()),)*
                "file" => read::<FileActionConfig>("parameters", parameters).map(|config| config.templates()),
                "console" => read::<ConsoleActionConfig>("parameters", parameters).map(|config| config.templates()),
                _ => Err(vec![unknown_kind(kind)]),
            }
        }

        /// Returns a configuration for display: with defaults and without secrets. An unreadable one is not shown.
        pub fn shown_config(kind: &str, config: &Value) -> Value {
            match kind {
                $($kind => shown::<$config>(config),)*
                _ => Value::Null,
            }
        }

        pub fn shown_parameters(kind: &str, parameters: &Value) -> Value {
            match kind {
                $($kind => shown::<$parameters>(parameters),)*
                "file" => shown::<FileActionConfig>(parameters),
                "console" => shown::<ConsoleActionConfig>(parameters),
                _ => Value::Null,
            }
        }

        /// Returns the schema for forms.
        pub fn config_schema(kind: &str) -> Option<Schema> {
            match kind {
                $($kind => Some(schema::<$config>()),)*
                _ => None,
            }
        }

        pub fn parameters_schema(kind: &str) -> Option<Schema> {
            match kind {
                $($kind => Some(schema::<$parameters>()),)*
                "file" => Some(schema::<FileActionConfig>()),
                "console" => Some(schema::<ConsoleActionConfig>()),
                _ => None,
            }
        }
    };
}

kinds! {
    "kafka" Kafka KafkaConnector KafkaConnectorConfig KafkaTarget KafkaActionConfig;
    "http" Http HttpConnector HttpConnectorConfig HttpSink HttpActionConfig;
    "postgresql" Postgres PostgresConnector PostgresConnectorConfig PostgresSink PostgresActionConfig;
    "redis" Redis RedisConnector RedisConnectorConfig RedisSink RedisActionConfig;
    "mqtt" Mqtt MqttConnector MqttConnectorConfig MqttSink MqttActionConfig;
}

/// Kafka actions and sources share only the configuration. Each has a client with its own buffers and threads.
pub struct KafkaConnector(KafkaConnectorConfig);

impl KafkaConnector {
    fn new(config: &KafkaConnectorConfig) -> Result<KafkaConnector, Problems> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        config.check_options().map_err(|problem| vec![problem])?;
        Ok(KafkaConnector(config.clone()))
    }
}

struct KafkaTarget {
    sink: KafkaSink,
    templates: Vec<FieldTemplate>,
}

impl KafkaTarget {
    fn new(connector: Arc<KafkaConnector>, config: &KafkaActionConfig) -> Result<KafkaTarget, Problems> {
        Ok(KafkaTarget {
            sink: KafkaSink::new(&connector.0, config)?,
            templates: config.templates(),
        })
    }

    fn templates(&self) -> &[FieldTemplate] {
        &self.templates
    }
}

impl Sink for KafkaTarget {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        self.sink.send(batch)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        self.sink.check()
    }

    fn rejection(&self) -> Option<String> {
        self.sink.rejection()
    }

    fn order(&self) -> OrderGuarantee {
        self.sink.order()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.sink.close()
    }
}

/// Creates a target that replaces one that cannot be created. It sends nothing.
pub fn unavailable_target(definition: &ActionDefinition, problems: &Problems) -> Result<ActionTarget, Problems> {
    let templates = templates_alone(&definition.kind, &definition.parameters).map_err(|_| problems.clone())?;
    let reason = problems.join("; ");
    Ok(ActionTarget {
        bridge: MarkPolicy {
            is_bridge: definition.kind == "mqtt",
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
        ("kafka", Connector::Kafka(connector)) => {
            let config: KafkaSourceConfig = read_with_secrets("parameters", parameters)?;
            let health = HealthCell::for_source(id);
            let source = KafkaSource::new(&connector.0, &config, health.clone());
            Ok(SourceHandle {
                source: Arc::new(source.map_err(|problems| prefixed("parameters", problems))?),
                health,
                mqtt: None,
            })
        }
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
        (_, Some(connector @ Connector::Mqtt(client))) => {
            let bridge = MarkPolicy {
                is_bridge: true,
                mark: client.sent_mark().map(str::to_owned),
            };
            let target = target_of(kind, connector, parameters)?;
            Ok(ActionTarget { bridge, ..target })
        }
        (_, Some(connector)) => target_of(kind, connector, parameters),
        (_, None) => Err(vec![unknown_kind(kind)]),
    }
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

fn unknown_kind(kind: &str) -> String {
    let kinds: Vec<&str> = CONNECTOR_KINDS.iter().chain(LOCAL_KINDS).copied().collect();
    format!("type: {kind:?} is unknown, must be one of {}", kinds.join(", "))
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
        vec![format!("{at}: {}", error.into_inner())]
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
