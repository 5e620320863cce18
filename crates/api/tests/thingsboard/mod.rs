//! ThingsBoard's REST and WebSocket interface over real sockets, on a real platform with its stores.

#![allow(clippy::unwrap_used)]

mod access;
mod alarms;
mod broken_database;
mod bulk_import;
mod chain_events;
mod docs;
mod entities;
mod export;
mod load_tool;
mod profiles;
mod queries;
mod queues;
mod rule_chains;
mod screens;
mod searches;
mod server;
mod socket;
mod telemetry;
mod tenant_profiles;

use crate::http::{node, web};
