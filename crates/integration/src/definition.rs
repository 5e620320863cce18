//! Connectors, actions, sources and rules as operators write them: in the API, on the command line, in files.
//!
//! `config` and `parameters` depend on the type; `kinds.rs` reads them. A definition is stored as it was written. It is
//! shown with `***` for secrets; `***` in a changed definition means the stored secret.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use connectors::http::restore_query_values;
use connectors::mqtt::PublishUserProperties;
use connectors::{DeliveryConfig, REDACTED};

use crate::kinds;

/// Maximum length of a name. Names are parts of file names, of topics in FROM, and of URLs.
pub const NAME_BYTES_MAX: usize = 64;

/// The path `/api/v1/rules/test` tests rules.
const RESERVED_ID: &str = "test";

/// Connection to an external system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectorDefinition {
    pub name: String,
    /// Type of the connector: `kafka`, `http`, `postgresql`, `redis` or `mqtt`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default = "yes")]
    pub enable: bool,
    #[serde(default)]
    pub description: String,
    /// Options of the type, such as address and credentials.
    #[serde(default)]
    pub config: Value,
}

/// Messages that are sent to an external system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionDefinition {
    pub name: String,
    /// Type of the action: the type of its connector, or `console` or `file`, which need no connector.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the connector.
    #[serde(default)]
    pub connector: String,
    #[serde(default = "yes")]
    pub enable: bool,
    #[serde(default)]
    pub description: String,
    /// Options of the type, such as templates.
    #[serde(default)]
    pub parameters: Value,
    /// Buffering, batching and retry settings. Missing fields have defaults that suit the type.
    #[serde(default)]
    #[schemars(with = "DeliveryConfig")]
    pub delivery: Value,
    /// Fallback actions for messages that this action gives up: messages that its target rejects permanently, that are
    /// out of attempts, expired, or dropped by a full buffer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub fallback_actions: Vec<FallbackAction>,
}

/// A fallback action. It receives the messages as if the rule had named it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum FallbackAction {
    /// Id of another action, as `type:name`.
    Action(String),
    Kind(FallbackKind),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FallbackKind {
    /// Another action.
    Reference {
        #[serde(rename = "type")]
        kind: String,
        name: String,
    },
    /// Publishes the message to MQTT.
    Republish { args: Box<RepublishArguments> },
}

/// Messages that are received from an external system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceDefinition {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub connector: String,
    #[serde(default = "yes")]
    pub enable: bool,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub parameters: Value,
    /// How received messages are published to MQTT. Default: they are not published; only rules see them.
    #[serde(default)]
    pub publish: Option<Box<RepublishArguments>>,
}

/// A rule and its actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleDefinition {
    pub id: String,
    #[serde(default)]
    pub name: String,
    pub sql: String,
    #[serde(default)]
    pub actions: Vec<RuleActionDefinition>,
    #[serde(default = "yes")]
    pub enable: bool,
    #[serde(default)]
    pub description: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "RuleAction")]
pub enum RuleActionDefinition {
    /// Id of an action, as `type:name`.
    Action(String),
    Function(RuleFunction),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "function", content = "args", rename_all = "snake_case")]
pub enum RuleFunction {
    Republish(Box<RepublishArguments>),
    /// Writes a line to the log.
    Console,
}

/// Templates of a published message. `${payload.x}` is a field of the rule's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepublishArguments {
    /// Topic of the message.
    pub topic: String,
    /// Template of the payload. Empty: the whole output of the rule as JSON.
    #[serde(default = "payload")]
    pub payload: String,
    /// QoS as a number or a template.
    #[serde(default = "qos")]
    pub qos: Value,
    /// Retain flag as a boolean or a template.
    #[serde(default)]
    pub retain: Value,
    #[serde(default)]
    pub user_properties: PublishUserProperties,
    /// Templates of `Content-Type`, `Response-Topic`, `Correlation-Data`, `Payload-Format-Indicator` and
    /// `Message-Expiry-Interval`, as in EMQX.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mqtt_properties: BTreeMap<String, String>,
    /// Content Type (MQTT 5).
    #[serde(default)]
    pub content_type: Option<String>,
    /// Response Topic (MQTT 5).
    #[serde(default)]
    pub response_topic: Option<String>,
    /// Correlation Data (MQTT 5).
    #[serde(default)]
    pub correlation_data: Option<String>,
    /// A boolean or a template. If true, the message goes only to subscribers: rules do not see it, and it is not
    /// retained.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub direct_dispatch: Value,
}

impl<'de> Deserialize<'de> for RuleActionDefinition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RuleActionDefinition, D::Error> {
        deserializer.deserialize_any(TextOrObject(
            RuleActionDefinition::Action,
            RuleActionDefinition::Function,
        ))
    }
}

impl<'de> Deserialize<'de> for FallbackAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FallbackAction, D::Error> {
        deserializer.deserialize_any(TextOrObject(FallbackAction::Action, FallbackAction::Kind))
    }
}

/// Deserializes a text or an object. Unlike serde's untagged enums, its errors name the problem in the object.
struct TextOrObject<T, O>(fn(String) -> T, fn(O) -> T);

impl<'de, T, O: Deserialize<'de>> Visitor<'de> for TextOrObject<T, O> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`type:name` of an action, or an object")
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        O::deserialize(MapAccessDeserializer::new(map)).map(self.1)
    }
}

fn yes() -> bool {
    true
}

fn payload() -> String {
    "${payload}".into()
}

fn qos() -> Value {
    0.into()
}

impl ActionDefinition {
    pub fn id(&self) -> String {
        format!("{}:{}", self.kind, self.name)
    }

    /// Returns the ids of its fallback actions.
    pub fn fallback_ids(&self) -> impl Iterator<Item = String> {
        self.fallback_actions.iter().filter_map(FallbackAction::id)
    }
}

impl FallbackAction {
    /// Returns the id of the action, or `None` for a republish.
    pub fn id(&self) -> Option<String> {
        match self {
            FallbackAction::Action(id) => Some(id.clone()),
            FallbackAction::Kind(FallbackKind::Reference { kind, name }) => Some(format!("{kind}:{name}")),
            FallbackAction::Kind(FallbackKind::Republish { .. }) => None,
        }
    }
}

impl SourceDefinition {
    pub fn id(&self) -> String {
        format!("{}:{}", self.kind, self.name)
    }

    /// Returns the names for FROM: ours first, then EMQX's.
    pub fn from_names(&self) -> [String; 2] {
        let emqx = match self.kind.as_str() {
            "kafka" => "kafka_consumer",
            kind => kind,
        };
        [
            format!("$sources/{}:{}", self.kind, self.name),
            format!("$bridges/{emqx}:{}", self.name),
        ]
    }
}

impl ConnectorDefinition {
    /// Returns the definition without secrets.
    pub fn shown(&self) -> ConnectorDefinition {
        ConnectorDefinition {
            config: kinds::shown_config(&self.kind, &self.config),
            ..self.clone()
        }
    }
}

impl ActionDefinition {
    /// Returns the definition without secrets.
    pub fn shown(&self) -> ActionDefinition {
        ActionDefinition {
            parameters: kinds::shown_parameters(&self.kind, &self.parameters),
            ..self.clone()
        }
    }
}

impl SourceDefinition {
    /// Returns the definition without secrets.
    pub fn shown(&self) -> SourceDefinition {
        SourceDefinition {
            parameters: kinds::shown_source(&self.kind, &self.parameters),
            ..self.clone()
        }
    }
}

/// Returns the problem of an invalid name.
pub fn name_problem(field: &str, name: &str) -> Option<String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_valid =
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_good) && !name.starts_with(['.', '-']);
    (!is_valid).then(|| {
        format!("{field}: {name:?} must be 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' or '.', not beginning with '-' or '.'")
    })
}

/// Returns the problem of an invalid rule id.
pub fn rule_id_problem(id: &str) -> Option<String> {
    (id == RESERVED_ID).then(|| format!("id: {id:?} is reserved; choose another id"))
}

/// Fields of a connector's configuration with the address of the other system.
const TARGET_FIELDS: [&str; 6] = ["bootstrap_hosts", "host", "port", "server", "servers", "url"];

impl ConnectorDefinition {
    /// Whether two connectors connect to the same system. Only then may one use stored secrets of the other. Otherwise
    /// users without access to secrets could send them to a server of their own.
    pub fn has_target_of(&self, other: &ConnectorDefinition) -> bool {
        let shown = |definition: &ConnectorDefinition| kinds::shown_config(&definition.kind, &definition.config);
        let (own, others) = (shown(self), shown(other));
        self.kind == other.kind && TARGET_FIELDS.iter().all(|field| own.get(field) == others.get(field))
    }
}

/// Replaces `***` in `new` by the secrets of `old`. The errors name fields, within `field`, without a stored secret.
pub fn restore_secrets(field: &str, new: &mut Value, old: Option<&Value>) -> Vec<String> {
    match new {
        Value::Object(new) => {
            let each = new.iter_mut().map(|(key, value)| {
                let old = old.and_then(|old| old.get(key));
                restore_secrets(&format!("{field}.{key}"), value, old)
            });
            each.collect::<Vec<_>>().concat()
        }
        Value::Array(new) => {
            let each = new.iter_mut().enumerate().map(|(index, value)| {
                let old = old.and_then(|old| old.get(index));
                restore_secrets(&format!("{field}[{index}]"), value, old)
            });
            each.collect::<Vec<_>>().concat()
        }
        new if *new == *REDACTED => match old {
            Some(old) => {
                *new = old.clone();
                Vec::new()
            }
            None => vec![none_stored(field)],
        },
        // The path of an HTTP action, with its query.
        Value::String(new) if new.starts_with(['/', '?']) => {
            match restore_query_values(new, old.and_then(Value::as_str)) {
                Some(restored) => {
                    *new = restored;
                    Vec::new()
                }
                None => vec![none_stored(field)],
            }
        }
        _ => Vec::new(),
    }
}

fn none_stored(field: &str) -> String {
    format!(
        "{field}: {REDACTED:?} stands for a stored secret, but none is stored for this target; enter the secret itself"
    )
}
