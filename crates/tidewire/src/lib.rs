//! The tidewire binary as a library: configuration, command line, client and the wiring of the server.
//!
//! Only this crate knows every other one. It is a library so that its tests can reach inside; nothing else uses it.

mod backup;
pub mod banner;
pub mod cli;
mod client;
pub mod config;
#[cfg(feature = "platform")]
mod demo;
#[cfg(feature = "platform")]
mod device_platform;
#[cfg(not(feature = "platform"))]
#[path = "device_platform/absent.rs"]
mod device_platform;
mod doctor;
mod features;
mod health;
mod import;
mod integration_command;
mod journal_command;
mod log_layer;
pub mod logging;
#[cfg(feature = "reference")]
mod man;
pub mod memory;
mod output;
mod passwd;
mod process_limits;
#[cfg(feature = "reference")]
pub mod reference;
mod remote;
pub mod serve;
mod stores;
mod syslog;
pub mod systemd;
#[cfg(feature = "top")]
mod top;
