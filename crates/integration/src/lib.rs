//! The rule engine: runs rules, actions, connectors and sources as in EMQX. A tap passes it the broker's messages.
//!
//! [`Engine`] stores the definitions and runs them. [`RuleTap`] evaluates rules on the threads of the data plane.
//! Outputs go to the buffers of actions. If a buffer is on disk, the publisher is acknowledged after the buffer has
//! stored them. Start reading with `set.rs` (the current rules) and `runner.rs` (how a message is processed).
//!
//! # Invariants
//!
//! - A QoS 1 or 2 message that a rule sends to an action with a disk buffer is acknowledged only after it is stored
//!   there.
//! - A full buffer holds back only publishers whose messages go to its action.
//! - A failing rule or an unreachable target affects neither the message nor other rules.
//! - A slow rule delays its own publishers and no other client.
//! - Without rules, the only cost of a message is reading one integer.

mod buffer_marks;
mod cause;
mod clock;
mod collector;
mod compile;
mod compile_action;
mod declared;
mod definition;
mod dry_run;
mod engine;
mod environment;
mod event;
mod fallback_records;
mod fixed_limits;
mod kinds;
mod loops;
mod meter;
mod metrics;
mod node_events;
mod offload;
mod output;
mod reasons;
mod republish;
mod rule_file;
mod runner;
mod secrets;
mod set;
mod slow_lane;
mod sources;
mod store;
mod tail;
mod tap;
mod timing;
mod unavailable;

/// Directory below the data directory, with the definitions and the buffers.
pub const DIRECTORY_NAME: &str = "integration";
/// File below `DIRECTORY_NAME`, with the definitions.
pub const DEFINITIONS_NAME: &str = "definitions.json";
/// Directory below `DIRECTORY_NAME`, with one directory per action.
pub const BUFFERS_NAME: &str = "buffers";

pub use buffer_marks::{marked_buffers, missing_buffers};
/// A running action.
pub use connectors::Action as RunningAction;
pub use connectors::ActionStats;
pub use declared::{Declaration, DeclarationProblem, DeclaredDefinitions};
pub use definition::{
    ActionDefinition, ConnectorDefinition, FallbackAction, FallbackKind, RepublishArguments, RuleActionDefinition,
    RuleDefinition, RuleFunction, SourceDefinition,
};
pub use dry_run::{DryRun, DryRunResult, ErrorPosition, dry_run};
pub use engine::{
    ActionView, ConnectorTest, ConnectorView, Engine, EngineError, EngineFailure, EngineFailures, MeasuredDefinition,
    Measures, OlderBufferCheck, RuleView, SourceView,
};
pub use environment::RuleTime;
pub use fixed_limits::FIXED_LIMITS;
pub use kinds::{
    CONNECTOR_KINDS, LOCAL_KINDS, config_schema, default_delivery, delivery_schema, parameters_schema,
    republish_schema, source_schema,
};
pub use metrics::{RuleCounts, SourceCounts};
pub use node_events::{AlarmEvent, NodeEvents};
pub use rule_file::{FileProblem, compile_sql, read_rule, without_position, write_rule};
pub use rules::RuleError;
pub use secrets::SecretPolicy;
pub use store::Version;
pub use tail::{PER_SECOND_MAX as TAIL_PER_SECOND_MAX, TailEntry, TailListener};
pub use tap::RuleTap;
pub use timing::RuleTiming;
