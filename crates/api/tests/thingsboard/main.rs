//! ThingsBoard's REST and WebSocket interface over real sockets, on a real platform with its stores.

#![allow(clippy::unwrap_used)]

extern crate tidewire_api as api;

mod access;
mod alarms;
mod broken_database;
mod bulk_import;
mod docs;
mod entities;
mod export;
mod load_tool;
mod news;
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

#[path = "../http/node.rs"]
#[allow(dead_code, reason = "shared with the tests of the other interface")]
mod node;
#[path = "../http/peer.rs"]
#[allow(dead_code, reason = "shared with the tests of the other interface")]
mod peer;
#[path = "../http/web.rs"]
#[allow(dead_code, reason = "shared with the tests of the other interface")]
mod web;
