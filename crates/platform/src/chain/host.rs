//! What a chain needs of the world: everything that a node reads or does goes through [`Host`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use timeseries::{Kept, TimedValue};

use super::Chain;
use super::message::Message;
use crate::alarm_rules;
use crate::decode::KeyValue;
use crate::ids::{AlarmId, EntityId, EntityType, RuleChainId, RuleNodeId, TenantId};
use crate::model::{Alarm, Attribute, Relation, Scope};
use crate::repository::RelationSelection;

/// Why a node could not do its work; the message goes by its Failure connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeError(pub String);

impl NodeError {
    pub fn new(text: impl Into<String>) -> NodeError {
        NodeError(text.into())
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NodeError {}

impl<E: std::error::Error> From<Box<E>> for NodeError {
    fn from(error: Box<E>) -> NodeError {
        NodeError(error.to_string())
    }
}

/// What becomes of telemetry that is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    /// In history, as the latest value or as both; nowhere: `None`.
    pub kept: Option<Kept>,
    /// Subscribers are told.
    pub is_shown: bool,
    /// 0: as the tenant has it.
    pub ttl_s: u64,
}

/// A call of the server to a device.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcCall {
    pub method: String,
    /// JSON.
    pub params: String,
    pub is_one_way: bool,
    pub is_persistent: bool,
    pub expires_ms: i64,
    pub retries: Option<u32>,
    pub additional_info: Option<String>,
    /// Of a caller outside of the chain that waits for the answer.
    pub request_uuid: Option<String>,
}

/// Where a chain goes on when an answer comes ([`super::resume`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    pub chain: RuleChainId,
    pub node: usize,
    /// Of the node: if it is another one meanwhile, the chain was changed. Earlier versions stored none.
    pub name: Option<String>,
    pub message: Message<'static>,
    /// Chains and nodes to go on at when chains put something out; the innermost first.
    pub returns: Vec<(RuleChainId, usize)>,
}

/// What goes to another system, with everything filled in.
#[derive(Clone, Debug, PartialEq)]
pub enum Outbound {
    Rest(RestCall),
    Kafka(KafkaRecord),
    Mqtt(MqttMessage),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RestCall {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<String>,
    pub timeout_ms: u64,
    /// A longer answer is a failure.
    pub answer_bytes_max: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct KafkaRecord {
    pub server: KafkaServer,
    pub topic: String,
    pub key: Option<String>,
    pub value: String,
    pub headers: Vec<(String, String)>,
}

/// Where records go, and how: what one producer has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KafkaServer {
    pub bootstrap_servers: String,
    /// `0`, `1`, `-1` or `all`.
    pub acks: String,
    pub linger_ms: u64,
    /// Those of Kafka's own that a node can have beside.
    pub properties: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MqttMessage {
    pub server: MqttServer,
    pub topic: String,
    pub payload: String,
    pub is_retained: bool,
}

/// Where messages go, and as whom: what one connection has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MqttServer {
    pub host: String,
    pub port: u16,
    pub is_tls: bool,
    /// Empty: any.
    pub client_id: String,
    pub user: Option<String>,
    pub password: Option<String>,
    /// `MQTT_3_1`, `MQTT_3_1_1` or `MQTT_5`.
    pub version: String,
    pub is_clean: bool,
    pub connect_timeout_ms: u64,
}

/// What another system said: the message goes on with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// In place of the message's.
    pub data: Option<Json>,
    pub metadata: Vec<(String, String)>,
}

/// Why another system did not take it.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub error: String,
    pub metadata: Vec<(String, String)>,
}

impl Refusal {
    pub fn new(error: impl Into<String>) -> Refusal {
        Refusal {
            error: error.into(),
            metadata: Vec::new(),
        }
    }
}

/// What went into a node or out of it, of nodes that are debugged.
#[derive(Debug)]
pub struct DebugEvent<'a> {
    pub chain: RuleChainId,
    pub node: &'a str,
    /// Of a chain that was saved.
    pub node_id: Option<RuleNodeId>,
    pub node_index: usize,
    pub is_input: bool,
    /// Of an output.
    pub label: Option<&'a str>,
    pub error: Option<&'a str>,
    pub message: &'a Message<'a>,
}

pub trait Host {
    fn now_ms(&self) -> i64;

    fn new_alarm_id(&self) -> AlarmId;

    fn chain(&self, id: RuleChainId) -> Option<Arc<Chain>>;

    /// A chain reads and changes what is its tenant's.
    fn tenant_of(&self, entity: EntityId) -> TenantId;

    /// Where messages of the originator's profile begin.
    fn default_chain(&self, originator: EntityId) -> Option<RuleChainId>;

    fn save_timeseries(
        &mut self,
        entity: EntityId,
        ts_ms: i64,
        values: &[KeyValue<'_>],
        saving: Saving,
    ) -> Result<(), NodeError>;

    fn save_attributes(
        &mut self,
        entity: EntityId,
        scope: Scope,
        attributes: &[Attribute],
        notifies_device: bool,
    ) -> Result<(), NodeError>;

    fn delete_attributes(
        &mut self,
        entity: EntityId,
        scope: Scope,
        keys: &[String],
        notifies_device: bool,
    ) -> Result<(), NodeError>;

    fn attributes(&self, entity: EntityId, scope: Scope, keys: &[String]) -> Result<Vec<Attribute>, NodeError>;

    /// One answer per key.
    fn latest(&self, entity: EntityId, keys: &[String]) -> Result<Vec<Option<TimedValue>>, NodeError>;

    /// The JSON of an entity.
    fn entity(&self, id: EntityId) -> Result<Option<Json>, NodeError>;

    /// By its name.
    fn entity_named(&self, tenant: TenantId, kind: EntityType, name: &str) -> Result<Option<EntityId>, NodeError>;

    fn relations(&self, selection: &RelationSelection) -> Result<Vec<Relation>, NodeError>;

    /// Alarm rules of the originator's profile, told of the message; what became of alarms is stored when this returns.
    fn apply_alarm_rules(&mut self, message: &Message<'_>) -> Result<Vec<alarm_rules::Effect>, NodeError>;

    fn active_alarm(&self, originator: EntityId, kind: &str) -> Result<Option<Alarm>, NodeError>;

    fn put_alarm(&mut self, alarm: &Alarm) -> Result<(), NodeError>;

    fn alarm(&self, id: AlarmId) -> Result<Option<Alarm>, NodeError>;

    /// The chain of the alarm's originator is told what a node did to it, by a message of its own.
    fn tell_of_alarm(&mut self, kind: &'static str, alarm: &Alarm, node: Option<RuleNodeId>) -> Result<(), NodeError>;

    /// The chain goes on by [`super::resume`] with the answer.
    fn call_device(&mut self, device: EntityId, call: RpcCall, then: Continuation) -> Result<(), NodeError>;

    /// The answer to a call of a device.
    fn reply_to_device(&mut self, device: EntityId, request_id: i32, body: &Json) -> Result<(), NodeError>;

    /// Whether what fails is tried again: then a failure says where it was.
    fn keeps_failed(&self) -> bool {
        false
    }

    /// Whether there is room for so many bytes of a message that waits for its next try.
    fn keep_failed(&mut self, _bytes: usize) -> bool {
        true
    }

    /// How many nodes may still be passed because of the message at hand.
    fn steps_left(&self) -> u64 {
        u64::MAX
    }

    /// So many were.
    fn passed(&mut self, _steps: u64) {}

    /// Whether nodes may take more time for the message at hand.
    fn has_time_for_nodes(&self) -> bool {
        true
    }

    /// How long they took, beside scripts.
    fn nodes_took(&mut self, _took: Duration) {}

    /// Why no script is run for this one now.
    fn script_refusal(&mut self, _originator: EntityId) -> Option<&'static str> {
        None
    }

    /// How long a node with a script took.
    fn script_took(&mut self, _originator: EntityId, _took: Duration) {}

    fn log(&mut self, chain: RuleChainId, node: &str, text: &str);

    /// The chain goes on by [`super::returned`] with what the other system said, or when so many milliseconds are over.
    fn send(&mut self, outbound: Outbound, within_ms: i64, then: Continuation) -> Result<(), NodeError>;

    /// For [`super::resume`] later, from a queue of this name.
    fn enqueue(&mut self, queue: &str, then: Continuation) -> Result<(), NodeError>;

    fn debug(&mut self, event: &DebugEvent<'_>);
}
