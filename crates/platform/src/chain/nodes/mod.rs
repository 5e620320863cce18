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
use std::rc::Rc;
use std::time::Instant;

pub(crate) use action::alarm_message;
pub(super) use alarm::AlarmNode;
pub(super) use catalogue::parse_node;
pub use catalogue::{COMPONENTS, Component, ComponentKind, NodeConnections, console_catalogue};
pub(super) use enrich::{AttributesNode, DeltaNode, FieldsNode, Owner, OwnerAttributesNode};
pub(super) use filter::{CheckFieldsNode, RelationNode};
pub(super) use keys::{KeysNode, KeysOperation, MessageSection, PatternMemory};
pub(super) use rpc::ReplyNode;
pub(super) use save::{SaveAttributesNode, SaveTimeseriesNode};
pub(super) use transform::{OriginatorSource, RelatedEntities, messages_of_result};

use super::compile::CompiledNode;
use super::host::{Continuation, Host, NodeError};
use super::message::{ChainMessage, connection_of};
use super::run::ReturnAddress;
use super::script::Script;
use crate::ids::{EntityId, EntityType, RuleChainId, Uuid};

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
    Next(ConnectionLabel, Rc<ChainMessage<'a>>),
    NextMany(Vec<(ConnectionLabel, Rc<ChainMessage<'a>>)>),
    /// The message enters another chain.
    EnterChain {
        chain: RuleChainId,
        returns: bool,
    },
    /// The message leaves this chain by the name of the node.
    LeaveChain,
}

impl<'a> NodeOutcome<'a> {
    pub fn success(message: Rc<ChainMessage<'a>>) -> NodeOutcome<'a> {
        NodeOutcome::Next("Success".into(), message)
    }

    fn of_condition(is_true: bool, message: Rc<ChainMessage<'a>>) -> NodeOutcome<'a> {
        NodeOutcome::Next(if is_true { "True" } else { "False" }.into(), message)
    }
}

/// The position of a node.
#[derive(Clone, Copy)]
pub(super) struct NodePosition<'c> {
    pub chain: RuleChainId,
    pub index: usize,
    pub node: &'c CompiledNode,
    pub returns: Option<&'c Rc<ReturnAddress>>,
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

    /// Whether the node runs a script. Scripts are counted separately.
    pub fn has_script(&self) -> bool {
        match self {
            NodeKind::ScriptFilter(_)
            | NodeKind::ScriptSwitch(_)
            | NodeKind::ScriptTransform(_)
            | NodeKind::Log(Some(_)) => true,
            NodeKind::CreateAlarm(node) | NodeKind::ClearAlarm(node) => node.details.is_some(),
            _ => false,
        }
    }

    pub fn process<'a>(
        &self,
        at: NodePosition<'_>,
        message: Rc<ChainMessage<'a>>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        match self {
            NodeKind::Disabled { problem } => Err(NodeError::new(format!("the node is disabled: {problem}"))),
            NodeKind::TypeSwitch => Ok(NodeOutcome::Next(connection_of(&message.kind).into(), message)),
            NodeKind::TypeFilter(kinds) => Ok(NodeOutcome::of_condition(
                kinds.iter().any(|kind| *kind == message.kind),
                message,
            )),
            NodeKind::ScriptFilter(script) => Ok(NodeOutcome::of_condition(script.filter(&message)?, message)),
            NodeKind::ScriptSwitch(script) => filter::switch(script, message),
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
            NodeKind::ScriptTransform(script) => transform::script(script, message),
            NodeKind::Keys(node) => Ok(NodeOutcome::success(node.process(&message))),
            NodeKind::ChangeOriginator(source) => transform::change_originator(source, message, host),
            NodeKind::SplitArray => transform::split_array(message),
            NodeKind::SaveTimeseries(node) => node.process(message, host),
            NodeKind::SaveAttributes(node) => node.process(message, host),
            NodeKind::DeleteAttributes(node) => node.process(message, host),
            NodeKind::Log(script) => action::log(script.as_ref(), at, message, host),
            NodeKind::CallDevice { timeout_s } => rpc::call(*timeout_s, at, &message, host),
            NodeKind::Reply(node) => node.process(message, host),
            NodeKind::DeviceProfile => action::device_profile(message, host),
            NodeKind::CreateAlarm(node) => node.create(at, &message, host),
            NodeKind::ClearAlarm(node) => node.clear(at, message, host),
            NodeKind::Count(node) => Ok(node.process()),
            NodeKind::Generator(_) => Ok(NodeOutcome::success(message)),
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

    /// Creates the message of a periodic node.
    pub fn tick(
        &self,
        tenant: Uuid,
        service: &str,
        host: &mut dyn Host,
    ) -> Result<Option<ChainMessage<'static>>, NodeError> {
        match self {
            NodeKind::Count(node) => Ok(Some(node.tick(tenant, service, host.now_ms()))),
            NodeKind::Generator(node) => {
                let owner = EntityId::new(EntityType::Tenant, tenant);
                if let Some(refusal) = host.script_refusal(owner) {
                    return Err(NodeError::new(refusal));
                }
                let started = Instant::now();
                let made = node.tick(tenant, host.now_ms());
                host.add_script_time(owner, started.elapsed());
                made
            }
            _ => Ok(None),
        }
    }
}
