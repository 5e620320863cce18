//! Connectors, actions, sources and rules as operators write them: in the API, on the command line, in files.
//!
//! What a type of connector or action needs is in `config` and `parameters`, read by `kinds.rs`. A definition is kept as it
//! was written; it is shown with its secrets as `***`, and `***` in a new one means the old secret.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use connectors::mqtt::UserProperties;
use connectors::{DeliveryConfig, REDACTED};

use crate::kinds;

/// Names are parts of file names, of topics in FROM, and of URLs.
pub const NAME_BYTES_MAX: usize = 64;

/// Where something outside is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectorDefinition {
    pub name: String,
    /// `kafka`, `http`, `postgresql`, `redis`, `mqtt` or `file`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default = "yes")]
    pub enable: bool,
    #[serde(default)]
    pub description: String,
    /// What the type needs: address, credentials.
    #[serde(default)]
    pub config: Value,
}

/// What is sent there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionDefinition {
    pub name: String,
    /// That of its connector, or `console`, which needs none.
    #[serde(rename = "type")]
    pub kind: String,
    /// The connector's name.
    #[serde(default)]
    pub connector: String,
    #[serde(default = "yes")]
    pub enable: bool,
    #[serde(default)]
    pub description: String,
    /// What the type needs: templates, how to send.
    #[serde(default)]
    pub parameters: Value,
    /// How it buffers and sends; what is not said is what suits the type.
    #[serde(default)]
    #[schemars(with = "DeliveryConfig")]
    pub delivery: Value,
    /// What is done with what this one gives up: what its target refuses for good, what was tried too often, what is too old.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub fallback_actions: Vec<FallbackAction>,
}

/// It gets what was given up as if the rule had named it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum FallbackAction {
    /// `type:name` of another action.
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
    /// The message is published anew.
    Republish { args: Box<RepublishArguments> },
}

/// What is taken from there.
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
    /// How a message from there is published here. None: rules see it, nobody else.
    #[serde(default)]
    pub publish: Option<Box<RepublishArguments>>,
}

/// A rule and what is done with what it puts out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleDefinition {
    pub id: String,
    #[serde(default)]
    pub name: String,
    pub sql: String,
    #[serde(default)]
    pub actions: Vec<RuleAction>,
    #[serde(default = "yes")]
    pub enable: bool,
    #[serde(default)]
    pub description: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RuleAction {
    /// `type:name` of an action.
    Action(String),
    Function(RuleFunction),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "function", content = "args", rename_all = "snake_case")]
pub enum RuleFunction {
    Republish(Box<RepublishArguments>),
    /// A line in the log.
    Console,
}

/// Templates of a message: `${payload.x}` is a field of what the rule puts out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepublishArguments {
    pub topic: String,
    /// Empty: all of what the rule puts out, as JSON.
    #[serde(default = "payload")]
    pub payload: String,
    /// A number, or a template.
    #[serde(default = "qos")]
    pub qos: Value,
    /// A boolean, or a template.
    #[serde(default)]
    pub retain: Value,
    #[serde(default)]
    pub user_properties: UserProperties,
    /// EMQX's way to give `Content-Type`, `Response-Topic`, `Correlation-Data`, `Payload-Format-Indicator` and `Message-Expiry-Interval`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mqtt_properties: BTreeMap<String, String>,
    #[serde(default)]
    pub content_type: Option<String>,
    #[serde(default)]
    pub response_topic: Option<String>,
    #[serde(default)]
    pub correlation_data: Option<String>,
    /// A boolean, or a template. True: to subscribers only; no rule sees it, and it is not retained.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub direct_dispatch: Value,
}

impl<'de> Deserialize<'de> for RuleAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RuleAction, D::Error> {
        deserializer.deserialize_any(TextOrObject(RuleAction::Action, RuleAction::Function))
    }
}

impl<'de> Deserialize<'de> for FallbackAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FallbackAction, D::Error> {
        deserializer.deserialize_any(TextOrObject(FallbackAction::Action, FallbackAction::Kind))
    }
}

/// Unlike what serde derives for enums without a tag, its errors say what is wrong with the object.
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

    /// Ids of the actions that get what it gives up.
    pub fn fallback_ids(&self) -> impl Iterator<Item = String> {
        self.fallback_actions.iter().filter_map(FallbackAction::id)
    }
}

impl FallbackAction {
    /// Of the action; none: it publishes anew.
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

    /// What stands in FROM: our name first, then EMQX's.
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
    /// As it is shown: without secrets.
    pub fn shown(&self) -> ConnectorDefinition {
        ConnectorDefinition {
            config: kinds::shown_config(&self.kind, &self.config),
            ..self.clone()
        }
    }
}

impl ActionDefinition {
    /// As it is shown: without secrets.
    pub fn shown(&self) -> ActionDefinition {
        ActionDefinition {
            parameters: kinds::shown_parameters(&self.kind, &self.parameters),
            ..self.clone()
        }
    }
}

impl SourceDefinition {
    /// As it is shown: without secrets.
    pub fn shown(&self) -> SourceDefinition {
        SourceDefinition {
            parameters: kinds::shown_source(&self.kind, &self.parameters),
            ..self.clone()
        }
    }
}

/// What is wrong with a name.
pub fn name_problem(field: &str, name: &str) -> Option<String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_valid =
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_good) && !name.starts_with(['.', '-']);
    (!is_valid).then(|| {
        format!("{field}: {name:?} must be 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' or '.', not beginning with '-' or '.'")
    })
}

/// Puts the secrets of `old` where `new` has them as they are shown. The errors name the fields, within `field`, for which there are none.
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
            None => vec![format!(
                "{field}: {REDACTED:?} is what a secret is shown as, and none is kept here: give the secret itself"
            )],
        },
        _ => Vec::new(),
    }
}
