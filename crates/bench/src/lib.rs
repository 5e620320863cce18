//! The load tool: `tidewire bench`, against any MQTT broker.
//!
//! Everything it can do is one thing: run a [`scenario::Scenario`] (groups of clients and what they do) against a
//! [`target::Target`] and write a [`result::RunResult`]. The verbs `conn`, `pub` and `sub` build a scenario from flags, presets
//! and files are scenarios, and every report is made from a result alone.
//!
//! ```text
//! flags, preset, file ──► scenario ──► orchestrator ──► driver (this process) ──► worker threads ──► connections
//!                                          │        └─► driver (an agent elsewhere)
//!                          cost, ceiling ──┤
//!                                          ▼
//!                                       result ──► progress, table, JSON, CSV, HTML, thresholds, comparison
//! ```
//!
//! It shares only the codec with the broker, so that it cannot repeat the broker's mistakes, and it never slows the offered
//! rate down silently: work that starts late is counted with the time at which it should have begun.

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
