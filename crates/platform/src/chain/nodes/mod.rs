//! Node types: their Java classes, configuration and processing.

mod action;
mod alarm;
mod catalogue;
mod enrich;
mod external;
mod filter;
mod keys;
mod parse;
mod rpc;
mod save;
mod transform;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value as Json;

pub(crate) use action::alarm_message;
pub(super) use alarm::AlarmNode;
pub(super) use catalogue::parse_node;
pub use catalogue::{COMPONENTS, Component, ComponentKind, NodeConnections, console_catalogue};
pub(super) use enrich::{AttributesNode, DeltaNode, FieldsNode, Owner, OwnerAttributesNode};
pub(super) use filter::{CheckFieldsNode, RelationNode};
pub(super) use keys::{KeysNode, KeysOperation, MessageSection, PatternMemory};
pub(super) use rpc::ReplyNode;
pub(super) use save::{SaveAttributesNode, SaveTimeseriesNode};
pub(super) use transform::{OriginatorSource, RelatedEntities};

use super::compile::CompiledNode;
use super::host::{Continuation, Host, NodeError};
use super::message::{ChainMessage, connection_of, plain};
use super::run::ReturnAddress;
use super::script::{Script, filter_result};
use crate::ids::{RuleChainId, Uuid};

#[derive(Debug)]
pub(super) enum NodeKind {
    Disabled {
        problem: String,
    },
    TypeSwitch,
    TypeFilter(Vec<String>),
    ScriptFilter(Script),
    ScriptSwitch(Script),
    CheckFields(CheckFieldsNode),
    ProfileSwitch,
    EntityTypeFilter(Vec<String>),
    EntityTypeSwitch,
    AlarmStatusFilter(Vec<String>),
    CheckRelation(RelationNode),
    Attributes(AttributesNode),
    Fields(FieldsNode),
    OwnerAttributes(OwnerAttributesNode),
    Delta(DeltaNode),
    ScriptTransform(Script),
    Keys(KeysNode),
    ChangeOriginator(OriginatorSource),
    SplitArray,
    SaveTimeseries(SaveTimeseriesNode),
    SaveAttributes(SaveAttributesNode),
    DeleteAttributes(save::DeleteAttributesNode),
    /// `None` logs the standard text.
    Log(Option<Script>),
    CallDevice {
        timeout_s: u64,
    },
    Reply(ReplyNode),
    DeviceProfile,
    CreateAlarm(Box<AlarmNode>),
    ClearAlarm(Box<AlarmNode>),
    Count(action::CountNode),
    Generator(Box<action::GeneratorNode>),
    External(Box<external::ExternalNode>),
    Checkpoint {
        queue: String,
    },
    Acknowledge,
    Input(InputNode),
    Output,
}

#[derive(Debug)]
pub(super) struct InputNode {
    /// `None` for the chain of the originator's profile.
    pub chain: Option<RuleChainId>,
    /// Outputs of the other chain continue after this node.
    pub returns: bool,
}

pub(super) type ConnectionLabel = Cow<'static, str>;

/// The result of a node.
#[derive(Debug)]
pub(super) enum NodeOutcome<'a> {
    /// The message ends.
    Done,
    Next(ConnectionLabel, Arc<ChainMessage<'a>>),
    NextMany(Vec<(ConnectionLabel, Arc<ChainMessage<'a>>)>),
    /// The message enters another chain.
    EnterChain {
        chain: RuleChainId,
        returns: bool,
    },
    /// The message leaves this chain by the name of the node.
    LeaveChain,
}

impl<'a> NodeOutcome<'a> {
    pub fn success(message: Arc<ChainMessage<'a>>) -> NodeOutcome<'a> {
        NodeOutcome::Next("Success".into(), message)
    }

    fn of_condition(is_true: bool, message: Arc<ChainMessage<'a>>) -> NodeOutcome<'a> {
        NodeOutcome::Next(if is_true { "True" } else { "False" }.into(), message)
    }
}

/// The position of a node.
#[derive(Clone, Copy)]
pub(super) struct NodePosition<'c> {
    pub chain: RuleChainId,
    pub index: usize,
    pub node: &'c CompiledNode,
    pub returns: Option<&'c Arc<ReturnAddress>>,
}

impl NodePosition<'_> {
    /// A continuation after this node.
    pub fn continuation(&self, message: &ChainMessage<'_>) -> Continuation {
        Continuation {
            chain: self.chain,
            node: self.index,
            name: Some(self.node.name.to_string()),
            message: message.clone().into_owned(),
            returns: ReturnAddress::all(self.returns),
        }
    }
}

impl NodeKind {
    pub fn period_s(&self) -> Option<u64> {
        match self {
            NodeKind::Count(node) => Some(node.interval_s),
            NodeKind::Generator(node) => Some(node.period_s),
            _ => None,
        }
    }

    /// Returns the script that runs before [`NodeKind::process`], and the message that it gets.
    pub fn script<'a>(
        &self,
        message: &Arc<ChainMessage<'a>>,
        host: &dyn Host,
    ) -> Result<Option<(&Script, Arc<ChainMessage<'a>>)>, NodeError> {
        Ok(match self {
            NodeKind::ScriptFilter(script)
            | NodeKind::ScriptSwitch(script)
            | NodeKind::ScriptTransform(script)
            | NodeKind::Log(Some(script)) => Some((script, Arc::clone(message))),
            NodeKind::CreateAlarm(node) => node.script_of_create(message, host)?,
            NodeKind::ClearAlarm(node) => node.script_of_clear(message, host)?,
            NodeKind::Generator(node) => Some((node.script(), Arc::clone(message))),
            _ => None,
        })
    }

    pub fn is_generator(&self) -> bool {
        matches!(self, NodeKind::Generator(_))
    }

    /// Whether a node runs a script for some messages.
    pub fn may_run_script(&self) -> bool {
        match self {
            NodeKind::ScriptFilter(_)
            | NodeKind::ScriptSwitch(_)
            | NodeKind::ScriptTransform(_)
            | NodeKind::Generator(_)
            | NodeKind::Log(Some(_)) => true,
            NodeKind::CreateAlarm(node) | NodeKind::ClearAlarm(node) => node.details.is_some(),
            _ => false,
        }
    }

    /// Processes a message. `result` is that of the node's script, if one ran.
    pub fn process<'a>(
        &self,
        at: NodePosition<'_>,
        message: Arc<ChainMessage<'a>>,
        result: Option<Json>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        match self {
            NodeKind::Disabled { problem } => Err(NodeError::new(format!("the node is disabled: {problem}"))),
            NodeKind::TypeSwitch => Ok(NodeOutcome::Next(connection_of(&message.kind).into(), message)),
            NodeKind::TypeFilter(kinds) => Ok(NodeOutcome::of_condition(
                kinds.iter().any(|kind| *kind == message.kind),
                message,
            )),
            NodeKind::ScriptFilter(_) => Ok(NodeOutcome::of_condition(
                filter_result(&result.unwrap_or_default())?,
                message,
            )),
            NodeKind::ScriptSwitch(_) => filter::switch(result.unwrap_or_default(), message),
            NodeKind::CheckFields(node) => Ok(NodeOutcome::of_condition(node.matches(&message), message)),
            NodeKind::ProfileSwitch => filter::profile_switch(message, host),
            NodeKind::EntityTypeFilter(kinds) => {
                let name = message.originator.kind.name();
                Ok(NodeOutcome::of_condition(
                    kinds.iter().any(|kind| kind == name),
                    message,
                ))
            }
            NodeKind::EntityTypeSwitch => Ok(NodeOutcome::Next(filter::type_label(message.originator.kind), message)),
            NodeKind::AlarmStatusFilter(statuses) => filter::alarm_status(statuses, message, host),
            NodeKind::CheckRelation(node) => Ok(NodeOutcome::of_condition(node.exists(&message, host)?, message)),
            NodeKind::Attributes(node) => node.process(message, host),
            NodeKind::Fields(node) => node.process(message, host),
            NodeKind::OwnerAttributes(node) => node.process(message, host),
            NodeKind::Delta(node) => node.process(message, host),
            NodeKind::ScriptTransform(_) => transform::script(result.unwrap_or_default(), message),
            NodeKind::Keys(node) => Ok(NodeOutcome::success(node.process(&message))),
            NodeKind::ChangeOriginator(source) => transform::change_originator(source, message, host),
            NodeKind::SplitArray => transform::split_array(message),
            NodeKind::SaveTimeseries(node) => node.process(message, host),
            NodeKind::SaveAttributes(node) => node.process(message, host),
            NodeKind::DeleteAttributes(node) => node.process(message, host),
            NodeKind::Log(_) => action::log(result.as_ref().map(plain), at, message, host),
            NodeKind::CallDevice { timeout_s } => rpc::call(*timeout_s, at, &message, host),
            NodeKind::Reply(node) => node.process(message, host),
            NodeKind::DeviceProfile => action::device_profile(message, host),
            NodeKind::CreateAlarm(node) => node.create(at, &message, result, host),
            NodeKind::ClearAlarm(node) => node.clear(at, message, result, host),
            NodeKind::Count(node) => Ok(node.process()),
            NodeKind::Generator(node) => node.process(result.unwrap_or_default(), &message, host.now_ms()),
            NodeKind::External(node) => node.process(at, &message, host),
            NodeKind::Checkpoint { queue } => action::checkpoint(queue, at, &message, host),
            NodeKind::Acknowledge => Ok(NodeOutcome::success(message)),
            NodeKind::Input(node) => {
                let chain = node.chain.or_else(|| host.default_chain(message.originator));
                let chain = chain.ok_or_else(|| NodeError::new("the originator's profile has no rule chain"))?;
                Ok(NodeOutcome::EnterChain {
                    chain,
                    returns: node.returns,
                })
            }
            NodeKind::Output => Ok(NodeOutcome::LeaveChain),
        }
    }

    /// Creates the message of a periodic node. A generator's script gets this message, and makes the next one.
    pub fn tick(&self, tenant: Uuid, service: &str, now_ms: i64) -> Option<ChainMessage<'static>> {
        match self {
            NodeKind::Count(node) => Some(node.tick(tenant, service, now_ms)),
            NodeKind::Generator(node) => node.begin(tenant, now_ms),
            _ => None,
        }
    }

    /// The node's script failed.
    pub fn script_failed(&self) {
        if let NodeKind::Generator(node) = self {
            node.fail();
        }
    }
}
