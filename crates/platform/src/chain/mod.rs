//! Rule chains: ThingsBoard's JSON of nodes and labelled connections, compiled to a graph ([`Chain`]) and run over a
//! [`Host`], which reads and does everything that a node wants read or done.
//!
//! A run is depth first and in the order of the connections; nothing in it waits. Where a node has to wait for an answer, the
//! run ends with a [`Continuation`], and [`resume`] goes on. Steps, depth, scripts and what nodes remember are bounded.

mod compile;
mod components;
mod defaults;
mod host;
mod message;
mod nodes;
#[cfg(feature = "script")]
mod realm;
mod run;
mod script;
#[cfg(test)]
mod tests;
#[cfg(feature = "script")]
mod worker;

pub use compile::{Chain, ChainError, ChainNodes, Export, NODES_MAX, NodeStatistics, Warning};
pub use components::{COMPONENTS, Component, ComponentKind, Connections};
pub use defaults::{RootShape, default_root_chain, root_metadata};
pub use host::{
    Answer, Continuation, DebugEvent, Host, KafkaRecord, KafkaServer, MqttMessage, MqttServer, NodeError, Outbound,
    Refusal, RestCall, RpcCall, Saving,
};
pub(crate) use message::json_weight;
pub use message::{ALARM, Data, Message, Metadata, POST_ATTRIBUTES, POST_TELEMETRY, RPC_CALL, connection_of, fill};
pub(crate) use nodes::alarm_message;
pub use run::{DEPTH_MAX, FailedAt, Failure, Run, STEPS_MAX, resume, retry, returned, run, tick};
pub use script::{Script, ScriptKind};
