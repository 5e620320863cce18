//! The environment of a rule chain. All reads and effects of nodes go through [`Host`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use timeseries::{PointDestination, TimedValue};

use super::CompiledChain;
use super::message::ChainMessage;
use super::script::{ScriptAnswer, ScriptCall};
use crate::alarm_rules;
use crate::decode::KeyValue;
use crate::ids::{AlarmId, EntityId, EntityType, RuleChainId, RuleNodeId, TenantId};
use crate::model::{Alarm, Attribute, AttributeScope, Relation};
use crate::repository::RelationSelection;

/// Why a node failed. The message leaves by its Failure connection.
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

/// Where telemetry is stored and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveOptions {
    /// As history, as the latest value, or both; `None` stores nothing.
    pub storage: Option<PointDestination>,
    /// Whether subscribers are notified.
    pub is_shown: bool,
    /// 0 uses the tenant's.
    pub ttl_s: u64,
}

/// An RPC request of the server to a device.
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
    /// Set if a caller outside the chain waits for the answer.
    pub request_uuid: Option<String>,
}

/// Where a chain continues when an answer arrives ([`super::resume`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    pub chain: RuleChainId,
    pub node: usize,
    /// The name of the node. If the node now has another name, the chain was changed, and the message does not
    /// continue. Records of earlier versions have no name.
    pub name: Option<String>,
    pub message: ChainMessage<'static>,
    /// Chains and nodes to return to from output nodes; the innermost first.
    pub returns: Vec<(RuleChainId, usize)>,
}

/// An external request with all patterns filled.
#[derive(Clone, Debug, PartialEq)]
pub enum ExternalCall {
    Rest(RestCall),
    Kafka(KafkaRecord),
    Mqtt(MqttMessage),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RestCall {
    pub method: String,
    /// `http://host:port` from the node's configuration. Messages cannot change it.
    pub server: String,
    /// Path and query.
    pub path: Vec<RestUrlPart>,
    pub headers: Vec<(String, String)>,
    pub body: Option<String>,
    pub timeout_ms: u64,
    /// Maximum length of the response. A longer one fails the node.
    pub answer_bytes_max: usize,
}

/// A part of a path or query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestUrlPart {
    /// From the node's configuration.
    Literal(String),
    /// From a message. The sender must encode it, so that it stays within its path segment or query parameter.
    Value(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct KafkaRecord {
    pub server: KafkaServer,
    pub topic: String,
    pub key: Option<String>,
    pub value: String,
    pub headers: Vec<(String, String)>,
}

/// The target of records. There is one producer per target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KafkaServer {
    pub bootstrap_servers: String,
    /// `0`, `1`, `-1` or `all`.
    pub acks: String,
    pub linger_ms: u64,
    /// Other Kafka options that a node may set.
    pub properties: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MqttMessage {
    pub server: MqttServer,
    pub topic: String,
    pub payload: String,
    pub is_retained: bool,
}

/// The target of messages. There is one connection per target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MqttServer {
    pub host: String,
    pub port: u16,
    pub is_tls: bool,
    /// Empty for any.
    pub client_id: String,
    pub user: Option<String>,
    pub password: Option<String>,
    /// `MQTT_3_1`, `MQTT_3_1_1` or `MQTT_5`.
    pub version: String,
    pub is_clean: bool,
    pub connect_timeout_ms: u64,
}

/// The result of an external request, with which the message continues.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExternalAnswer {
    /// Replaces the message's data.
    pub data: Option<Json>,
    pub metadata: Vec<(String, String)>,
}

/// Why an external system rejected a request.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalError {
    pub error: String,
    pub metadata: Vec<(String, String)>,
}

impl ExternalError {
    pub fn new(error: impl Into<String>) -> ExternalError {
        ExternalError {
            error: error.into(),
            metadata: Vec::new(),
        }
    }
}

/// A message that entered or left a node with debugging on.
#[derive(Debug)]
pub struct DebugEvent<'a> {
    pub chain: RuleChainId,
    pub node: &'a str,
    /// Set for a saved chain.
    pub node_id: Option<RuleNodeId>,
    pub node_index: usize,
    pub is_input: bool,
    /// Set for an output.
    pub label: Option<&'a str>,
    pub error: Option<&'a str>,
    pub message: &'a ChainMessage<'a>,
}

/// Time of nodes other than scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTime {
    pub run: Duration,
    /// The run time, if the CPU time was not measured.
    pub cpu: Duration,
}

pub trait Host {
    fn now_ms(&self) -> i64;

    fn new_alarm_id(&self) -> AlarmId;

    fn chain(&self, id: RuleChainId) -> Option<Arc<CompiledChain>>;

    /// A chain may read and change only entities of its tenant.
    fn tenant_of(&self, entity: EntityId) -> TenantId;

    /// The rule chain of the originator's profile.
    fn default_chain(&self, originator: EntityId) -> Option<RuleChainId>;

    fn save_timeseries(
        &mut self,
        entity: EntityId,
        ts_ms: i64,
        values: &[KeyValue<'_>],
        saving: SaveOptions,
    ) -> Result<(), NodeError>;

    fn save_attributes(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        attributes: &[Attribute],
        notifies_device: bool,
    ) -> Result<(), NodeError>;

    fn delete_attributes(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        keys: &[String],
        notifies_device: bool,
    ) -> Result<(), NodeError>;

    fn attributes(&self, entity: EntityId, scope: AttributeScope, keys: &[String])
    -> Result<Vec<Attribute>, NodeError>;

    /// Returns one value per key.
    fn latest(&self, entity: EntityId, keys: &[String]) -> Result<Vec<Option<TimedValue>>, NodeError>;

    /// The entity as JSON.
    fn entity(&self, id: EntityId) -> Result<Option<Json>, NodeError>;

    /// Looks up an entity by name.
    fn entity_named(&self, tenant: TenantId, kind: EntityType, name: &str) -> Result<Option<EntityId>, NodeError>;

    fn relations(&self, selection: &RelationSelection) -> Result<Vec<Relation>, NodeError>;

    /// Applies the alarm rules of the originator's profile to a message. The alarms are stored when it returns.
    fn apply_alarm_rules(&mut self, message: &ChainMessage<'_>) -> Result<Vec<alarm_rules::AlarmEffect>, NodeError>;

    fn active_alarm(&self, originator: EntityId, kind: &str) -> Result<Option<Alarm>, NodeError>;

    fn put_alarm(&mut self, alarm: &Alarm) -> Result<(), NodeError>;

    fn alarm(&self, id: AlarmId) -> Result<Option<Alarm>, NodeError>;

    /// Runs the chain of the alarm's originator with a separate message about an alarm that a node changed.
    fn send_alarm_event(
        &mut self,
        kind: &'static str,
        alarm: &Alarm,
        node: Option<RuleNodeId>,
    ) -> Result<(), NodeError>;

    /// Sends an RPC request. The chain continues with [`super::resume`] and the answer.
    fn call_device(&mut self, device: EntityId, call: RpcCall, then: Continuation) -> Result<(), NodeError>;

    /// Responds to an RPC request of a device.
    fn reply_to_device(&mut self, device: EntityId, request_id: i32, body: &Json) -> Result<(), NodeError>;

    /// Whether failed nodes are retried. If so, a failure includes its place.
    fn records_failed(&self) -> bool {
        false
    }

    /// Reserves bytes for a failed message that waits for its retry. Returns false if the message is too large to wait.
    fn take_retry_bytes(&mut self, _bytes: usize) -> bool {
        true
    }

    /// Nodes that the current message may still pass.
    fn steps_left(&self) -> u64 {
        u64::MAX
    }

    /// Counts passed nodes.
    fn passed(&mut self, _steps: u64) {}

    /// Whether nodes may use more time for the current message.
    fn has_time_for_nodes(&self) -> bool {
        true
    }

    /// Whether the run should end with [`super::ChainRun::paused`], so that other messages are next.
    fn is_slice_over(&self) -> bool {
        false
    }

    /// Adds the time of nodes other than scripts.
    fn add_node_time(&mut self, _took: NodeTime) {}

    /// Whether the nodes have taken so long for the current message that their CPU time is measured.
    fn have_nodes_taken_long(&self) -> bool {
        false
    }

    /// Returns why no script may run for the message now, if so.
    fn script_refusal(&mut self, _originator: EntityId) -> Option<&'static str> {
        None
    }

    /// Adds the CPU time of a script.
    fn add_script_time(&mut self, _took: Duration) {}

    /// Runs a script. Returns `None` if its answer arrives later: then the chain continues with
    /// [`super::script_returned`].
    fn run_script(
        &mut self,
        call: ScriptCall,
        _then: &dyn Fn() -> Continuation,
    ) -> Result<Option<ScriptAnswer>, NodeError> {
        super::run_script_in_thread(&call)
    }

    fn log(&mut self, chain: RuleChainId, node: &str, text: &str);

    /// Sends an external request. The chain continues with [`super::returned`] and its result, or with an error after
    /// `within_ms`.
    fn send(&mut self, outbound: ExternalCall, within_ms: i64, then: Continuation) -> Result<(), NodeError>;

    /// Queues a continuation in the named queue, for [`super::resume`].
    fn enqueue(&mut self, queue: &str, then: Continuation) -> Result<(), NodeError>;

    fn debug(&mut self, event: &DebugEvent<'_>);
}
