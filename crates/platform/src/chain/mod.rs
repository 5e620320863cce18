//! Rule chains: ThingsBoard's JSON of nodes and labelled connections is compiled to a graph ([`CompiledChain`]). The
//! graph runs on a [`Host`], which does all reads and effects of nodes.
//!
//! A run is depth first, in the order of the connections, and never waits. A node that needs an answer ends the run
//! with a [`Continuation`], and [`resume`] continues it. A run whose time slice is over ends with a [`PausedRun`], and
//! [`run_on`] continues it. Steps, depth, scripts and the memory of nodes are bounded. A
//! [`ScriptRunner`] runs the scripts; the run ends at a script that takes long, and [`script_returned`] continues it.

mod compile;
mod defaults;
mod host;
mod message;
mod node_time;
mod nodes;
mod paused;
#[cfg(feature = "script")]
mod realm;
mod run;
mod script;
#[cfg(feature = "script")]
mod script_budget;
#[cfg(feature = "script")]
mod script_process;
#[cfg(feature = "script")]
mod script_workers;
#[cfg(test)]
mod tests;

pub use compile::{ChainError, ChainNodes, CompiledChain, Export, NODES_MAX, NodeStatistics, Warning};
pub use defaults::{RootShape, default_root_chain, root_metadata};
pub use host::{
    Continuation, DebugEvent, ExternalAnswer, ExternalCall, ExternalError, Host, KafkaRecord, KafkaServer, MqttMessage,
    MqttServer, NodeError, NodeTime, RestCall, RestUrlPart, RpcCall, SaveOptions,
};
pub(crate) use message::json_weight;
pub use message::{
    ALARM, ChainMessage, MessageData, Metadata, POST_ATTRIBUTES, POST_TELEMETRY, RPC_CALL, connection_of, fill,
};
pub(crate) use nodes::alarm_message;
pub use nodes::{COMPONENTS, Component, ComponentKind, NodeConnections, console_catalogue};
pub use paused::{PausedRun, PausedTask, run_on};
pub use run::{
    ChainRun, DEPTH_MAX, FailedAt, MADE_BYTES_MAX, NodeFailure, STEPS_MAX, resume, retry, returned, run,
    script_returned, tick,
};
pub use script::{
    Script, ScriptAnswer, ScriptCall, ScriptError, ScriptKind, ScriptRunner, ScriptUsage, TenantScriptUsage,
};
#[cfg(feature = "script")]
pub use script_process::{ScriptProgram, run_worker};
#[cfg(feature = "script")]
pub use script_workers::{ScriptWorkers, ScriptWorkersOptions};

/// Runs a script in this thread. Only tests have no [`ScriptRunner`].
pub(crate) fn run_script_in_thread(call: &ScriptCall) -> Result<Option<ScriptAnswer>, NodeError> {
    Ok(Some(script::run_in_thread(call)))
}

/// For the page of limits.
pub(crate) const SCRIPT_SOURCE_BYTES_MAX: u64 = script::SOURCE_BYTES_MAX as u64;
pub(crate) const SCRIPT_RESULT_BYTES_MAX: u64 = script::RESULT_BYTES_MAX as u64;
pub(crate) const SCRIPT_MS_MAX: u64 = script::TIME_MAX.as_millis() as u64;
