//! Rules at work: EMQX's model of rules, actions, connectors and sources, over the broker's taps.
//!
//! [`Engine`] has the definitions, keeps them, and makes of them what runs. [`RuleTap`] evaluates rules on the threads of the data plane;
//! what comes out goes to the buffers of actions, and a publisher is acknowledged when the buffer has it. Start with `set.rs`, the
//! rules in force, and `runner.rs`, what happens to a message.
//!
//! # Invariants
//!
//! - A message of QoS 1 or 2 that a rule gives to an action with a buffer on disk is acknowledged only when it is there.
//! - A full buffer holds back those who publish for it, and nobody else.
//! - A rule that fails, and an action that is away, disturb neither the message nor other rules.
//! - Without rules a message costs a look at one integer.

mod compile;
mod declared;
mod definition;
mod dry_run;
mod engine;
mod environment;
mod event;
mod fallback;
mod handover;
mod kinds;
mod loops;
mod metrics;
mod node_events;
mod reasons;
mod republish;
mod rule_file;
mod runner;
mod secrets;
mod set;
mod sources;
mod stand_in;
mod store;
mod tail;
mod tap;

/// In the data directory: definitions, and a directory of buffers.
pub const DIRECTORY_NAME: &str = "integration";
/// In it, with a directory for each action.
pub const BUFFERS_NAME: &str = "buffers";

/// An action that runs.
pub use connectors::Action as RunningAction;
pub use connectors::ActionStats;
pub use declared::{Declaration, DeclarationProblem, Declared};
pub use definition::{
    ActionDefinition, ConnectorDefinition, FallbackAction, FallbackKind, RepublishArguments, RuleAction,
    RuleDefinition, RuleFunction, SourceDefinition,
};
pub use dry_run::{DryRun, DryRunResult, ErrorPosition, dry_run};
pub use engine::{
    ActionView, ConnectorTest, ConnectorView, Engine, EngineError, Measured, Measures, RuleView, SourceView, Trouble,
    Troubles,
};
pub use kinds::{CONNECTOR_KINDS, LOCAL_KINDS, config_schema, parameters_schema, source_schema};
pub use metrics::{RuleCounts, SourceCounts};
pub use node_events::{AlarmEvent, NodeEvents};
pub use rule_file::{FileProblem, compile_sql, read_rule, without_position, write_rule};
pub use rules::RuleError;
pub use store::Version;
pub use tail::{Entry, Listener, PER_SECOND_MAX as TAIL_PER_SECOND_MAX};
pub use tap::RuleTap;
