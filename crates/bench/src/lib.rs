//! The load generator: `tidewire bench`, for any MQTT broker.
//!
//! Every run executes a [`scenario::Scenario`] (groups of clients and their work) against a [`target::Target`] and
//! writes a [`result::RunResult`]. The commands `conn`, `pub` and `sub` build a scenario from flags, presets and files
//! are scenarios, and every report is made from a result alone.
//!
//! ```text
//! flags, preset, file ──► scenario ──► orchestrator ──► driver (this process) ──► worker threads ──► connections
//!                                          │        └─► driver (an agent on another host)
//!                          cost, ceiling ──┤
//!                                          ▼
//!                                       result ──► progress, table, JSON, CSV, HTML, thresholds, comparison
//! ```
//!
//! The crate shares only the codec with the broker, so that it cannot repeat the broker's mistakes. It never lowers the
//! offered rate silently: the latency of a message that starts late is measured from the time at which it was due.

pub mod agent;
pub mod ceiling;
pub mod cli;
pub mod cost;
pub mod driver;
pub mod fleet;
pub mod histogram;
pub mod http;
pub mod kafka;
pub mod load;
pub mod machine;
pub mod observe;
pub mod orchestrator;
pub mod output;
pub mod plan;
pub mod report;
pub mod result;
pub mod scenario;
pub mod target;
