//! The types of connectors, actions and sources: from a definition to something that runs. The one place that knows all of them.

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
    BoxFuture, DeliveryConfig, Health, HealthCell, HealthState, Order, Outcome, Record, Sink, Source, Template,
};
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::definition::{ActionDefinition, SourceDefinition};
use crate::loops::Bridge;
use crate::secrets;
use crate::stand_in::StandIn;

/// All that is wrong with a definition: each names its field.
pub type Problems = Vec<String>;

/// An action's sink and the texts that it wants for each message.
pub struct Target {
    pub sink: Arc<dyn Sink>,
    pub templates: Vec<Template>,
    pub bridge: Bridge,
}

impl Target {
    fn new(sink: impl Sink + 'static, templates: Vec<Template>) -> Target {
        Target {
            sink: Arc::new(sink),
            templates,
            bridge: Bridge::default(),
        }
    }
}

macro_rules! kinds {
    ($($kind:literal $variant:ident $connector:ident $config:ident $sink:ident $parameters:ident;)*) => {
        /// Types that have connectors.
        pub const CONNECTOR_KINDS: &[&str] = &[$($kind),*];

        /// A client that actions share.
        #[derive(Clone)]
        pub enum Connector { $($variant(Arc<$connector>)),* }

        pub fn connector(kind: &str, config: &Value) -> Result<Connector, Problems> {
            match kind {
                $($kind => {
                    let config: $config = read_with_secrets("config", config)?;
                    let connector = $connector::new(&config).map_err(|problems| prefixed("config", problems))?;
                    Ok(Connector::$variant(Arc::new(connector)))
                })*
                _ => Err(vec![format!("type: {kind:?} is unknown; there are {}", CONNECTOR_KINDS.join(", "))]),
            }
        }

        fn target_of(kind: &str, connector: &Connector, parameters: &Value) -> Result<Target, Problems> {
            match (kind, connector) {
                $(($kind, Connector::$variant(connector)) => {
                    let config: $parameters = read_with_secrets("parameters", parameters)?;
                    let sink = $sink::new(connector.clone(), &config);
                    let sink = sink.map_err(|problems| prefixed("parameters", problems))?;
                    let templates = sink.templates().to_vec();
                    Ok(Target::new(sink, templates))
                })*
                _ => Err(vec![format!("type: is {kind:?}, and the connector is of another type")]),
            }
        }

        /// What an action wants for each message, as far as that can be told without its connector and its secrets.
        fn templates_alone(kind: &str, parameters: &Value) -> Result<Vec<Template>, Problems> {
            match kind {
                $($kind => read::<$parameters>("parameters", parameters).map(|config| config.templates()),)*
                "file" => read::<FileActionConfig>("parameters", parameters).map(|config| config.templates()),
                "console" => read::<ConsoleActionConfig>("parameters", parameters).map(|config| config.templates()),
                _ => Err(vec![unknown_kind(kind)]),
            }
        }

        /// A configuration as it is shown: with defaults, without secrets. What cannot be read any more is not shown at all.
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

        /// From which forms are made.
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

/// Actions and sources of Kafka share no client, only where it is: each has buffers and threads of its own.
pub struct KafkaConnector(KafkaConnectorConfig);

impl KafkaConnector {
    fn new(config: &KafkaConnectorConfig) -> Result<KafkaConnector, Problems> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        config.try_out().map_err(|problem| vec![problem])?;
        Ok(KafkaConnector(config.clone()))
    }
}

struct KafkaTarget {
    sink: KafkaSink,
    templates: Vec<Template>,
}

impl KafkaTarget {
    fn new(connector: Arc<KafkaConnector>, config: &KafkaActionConfig) -> Result<KafkaTarget, Problems> {
        Ok(KafkaTarget {
            sink: KafkaSink::new(&connector.0, config)?,
            templates: config.templates(),
        })
    }

    fn templates(&self) -> &[Template] {
        &self.templates
    }
}

impl Sink for KafkaTarget {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        self.sink.send(batch)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        self.sink.check()
    }

    fn turned_away(&self) -> Option<String> {
        self.sink.turned_away()
    }

    fn order(&self) -> Order {
        self.sink.order()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.sink.close()
    }
}

/// In the place of a target that cannot be made.
pub fn stand_in(definition: &ActionDefinition, problems: &Problems) -> Result<Target, Problems> {
    let templates = templates_alone(&definition.kind, &definition.parameters).map_err(|_| problems.clone())?;
    let because = problems.join("; ");
    Ok(Target {
        bridge: Bridge {
            is_bridge: definition.kind == "mqtt",
            mark: None,
        },
        ..Target::new(StandIn { because }, templates)
    })
}

/// A sink that is only asked whether the connector's target can be reached and takes our credentials.
pub fn probe(kind: &str, connector: &Connector) -> Result<Arc<dyn Sink>, Problems> {
    let parameters = match kind {
        "kafka" => serde_json::json!({"kafka_topic": "${topic}"}),
        "postgresql" => serde_json::json!({"sql": "SELECT CAST(${payload} AS text)"}),
        "redis" => serde_json::json!({"command": ["PING"]}),
        _ => Value::Null,
    };
    target_of(kind, connector, &parameters).map(|target| target.sink)
}

/// What suits actions of a type, where their definition says nothing else.
pub fn default_delivery(kind: &str) -> DeliveryConfig {
    match kind {
        "kafka" => KafkaActionConfig::default_delivery(),
        _ => DeliveryConfig::default(),
    }
}

/// How an action is to buffer and send: what its definition says, over what suits its type.
pub fn delivery(kind: &str, given: &Value) -> Result<DeliveryConfig, Problems> {
    let mut all = serde_json::to_value(default_delivery(kind)).unwrap_or_default();
    lay_over(&mut all, given);
    let delivery: DeliveryConfig = read("delivery", &all)?;
    let problems = delivery.problems();
    if problems.is_empty() {
        return Ok(delivery);
    }
    Err(prefixed("delivery", problems))
}

fn lay_over(all: &mut Value, given: &Value) {
    match (all, given) {
        (Value::Object(all), Value::Object(given)) => {
            for (key, value) in given {
                lay_over(all.entry(key).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (all, given) => *all = given.clone(),
    }
}

/// What brings messages, and where it tells how it goes.
pub struct Origin {
    pub source: Arc<dyn Source>,
    health: HealthCell,
    /// The same as `source`, if it has subscriptions that somebody has to end. It is asked how it goes.
    mqtt: Option<Arc<MqttSource>>,
}

impl Origin {
    /// Must be called on a tokio runtime.
    pub fn health(&self) -> Health {
        if let Some(source) = &self.mqtt {
            // What is known is told at once.
            match source.check().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(())) => self.health.connected(),
                Poll::Ready(Err(reason)) => self.not_connected(reason),
                Poll::Pending => {}
            }
        }
        self.health.get()
    }

    /// The time of an error is that of its first telling.
    fn not_connected(&self, reason: String) {
        let known = self.health.get();
        if known.state != HealthState::Disconnected || known.last_error.as_ref() != Some(&reason) {
            self.health.disconnected(reason);
        }
    }

    /// It is not to come back: what it has subscribed to outside is ended. Nobody runs it any more.
    pub fn end(self) {
        drop(self.source);
        match self.mqtt.map(Arc::into_inner) {
            Some(Some(source)) => source.unsubscribe(),
            Some(None) => tracing::warn!("an MQTT source still runs: its subscription stays in the other broker"),
            None => {}
        }
    }
}

/// `id`: as the log names it. `kind`: that of the connector.
pub fn source(id: &str, kind: &str, connector: &Connector, parameters: &Value) -> Result<Origin, Problems> {
    match (kind, connector) {
        ("kafka", Connector::Kafka(connector)) => {
            let config: KafkaSourceConfig = read_with_secrets("parameters", parameters)?;
            let health = HealthCell::of_source(id);
            let source = KafkaSource::new(&connector.0, &config, health.clone());
            Ok(Origin {
                source: Arc::new(source.map_err(|problems| prefixed("parameters", problems))?),
                health,
                mqtt: None,
            })
        }
        ("mqtt", Connector::Mqtt(connector)) => {
            let config: MqttSourceConfig = read_with_secrets("parameters", parameters)?;
            let source = MqttSource::new(connector.clone(), &config);
            let source = Arc::new(source.map_err(|problems| prefixed("parameters", problems))?);
            Ok(Origin {
                source: source.clone(),
                health: HealthCell::of_source(id),
                mqtt: Some(source),
            })
        }
        _ => Err(vec![format!("type: there are no sources of type {kind:?}")]),
    }
}

/// What a source cannot have because an enabled one of the same connector has it. `others` may have itself in it.
pub fn taken<'a>(definition: &SourceDefinition, others: impl Iterator<Item = &'a SourceDefinition>) -> Problems {
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
            "parameters.subscriptions[{index}].filter: {:?} and {filter:?} of source {:?} fit the same topics, and sources of one \
             connector share one session: one of the two needs a connector of its own, with another client_id",
            mine.subscriptions[index].filter,
            other.id(),
        ))
    });
    overlapping.collect()
}

/// Of the parameters of sources; none: the type has no sources.
pub fn source_schema(kind: &str) -> Option<Schema> {
    match kind {
        "kafka" => Some(schema::<KafkaSourceConfig>()),
        "mqtt" => Some(schema::<MqttSourceConfig>()),
        _ => None,
    }
}

pub fn shown_source(kind: &str, parameters: &Value) -> Value {
    match kind {
        "kafka" => shown::<KafkaSourceConfig>(parameters),
        "mqtt" => shown::<MqttSourceConfig>(parameters),
        _ => Value::Null,
    }
}

/// Types of actions that need no connector.
pub const LOCAL_KINDS: &[&str] = &["file", "console"];

/// `action`: its id, for the log.
pub fn target(action: &str, kind: &str, connector: Option<&Connector>, parameters: &Value) -> Result<Target, Problems> {
    match (kind, connector) {
        ("file", _) => {
            let config: FileActionConfig = read("parameters", parameters)?;
            let sink = FileSink::new(&config).map_err(|problems| prefixed("parameters", problems))?;
            let templates = sink.templates().to_vec();
            Ok(Target::new(sink, templates))
        }
        ("console", _) => {
            let config: ConsoleActionConfig = read("parameters", parameters)?;
            let sink = ConsoleSink::new(action, &config).map_err(|problems| prefixed("parameters", problems))?;
            let templates = sink.templates().to_vec();
            Ok(Target::new(sink, templates))
        }
        (_, Some(connector @ Connector::Mqtt(client))) => {
            let bridge = Bridge {
                is_bridge: true,
                mark: client.sent_mark().map(str::to_owned),
            };
            let target = target_of(kind, connector, parameters)?;
            Ok(Target { bridge, ..target })
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

/// Whether there are actions of this type.
pub fn is_kind(kind: &str) -> bool {
    CONNECTOR_KINDS.contains(&kind) || LOCAL_KINDS.contains(&kind)
}

fn unknown_kind(kind: &str) -> String {
    let kinds: Vec<&str> = CONNECTOR_KINDS.iter().chain(LOCAL_KINDS).copied().collect();
    format!("type: {kind:?} is unknown; there are {}", kinds.join(", "))
}

/// A missing object is an empty one: everything may have a default.
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

/// With what its references to secrets stand for.
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
