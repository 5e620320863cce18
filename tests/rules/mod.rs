//! Tests rules of the real binary over its API. Published messages reach files, web servers and other topics, and
//! acknowledged messages reach them despite crashes of the server.

// The tests print figures of a run as part of its result.
#![allow(clippy::print_stdout)]

mod alarms;
mod backup;
pub mod bad_input;
mod broken;
mod buffers;
mod changes;
mod command_line;
mod declared;
mod definitions;
mod events;
mod failed_buffers;
mod fallbacks;
mod fates;
mod kafka;
mod kafka_away;
mod kafka_faults;
#[cfg(feature = "gssapi")]
mod kafka_kerberos;
mod kafka_load;
mod kills;
mod loops;
mod messages;
mod mqtt_source;
pub mod real_servers;
mod reasons;
mod sink_kills;
mod source_columns;
mod tail;
mod warnings;
pub mod web_server;
