//! Rules of the real binary, over its API: what clients publish reaches files, web servers and other topics; what was acknowledged
//! reaches them whatever happens to the server in between.

// What a run came to is part of its result.
#![allow(clippy::print_stdout)]

#[path = "../support/mod.rs"]
mod support;

mod alarms;
mod api;
mod backup;
mod bad_input;
mod broken;
mod buffers;
mod changes;
mod command_line;
mod declared;
mod definitions;
mod events;
mod fallbacks;
mod fates;
mod kafka;
mod kafka_away;
mod kafka_faults;
#[cfg(feature = "gssapi")]
mod kafka_kerberos;
mod kafka_load;
mod kafka_log;
mod kafka_server;
mod kills;
mod loops;
mod messages;
mod mqtt_source;
mod real_servers;
mod reasons;
mod sink_kills;
mod source_columns;
mod tail;
mod warnings;
mod web_server;
