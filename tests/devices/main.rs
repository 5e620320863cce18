//! Devices of the real binary, on the wire: ThingsBoard's device and gateway interfaces byte by byte, their namespace, and what is
//! left of what they said when the server is killed.

// What a run came to is part of its result.
#![allow(clippy::print_stdout)]

#[path = "../support/mod.rs"]
mod support;

mod acceptance;
mod backup;
mod calls;
mod certificates;
mod chain_calls;
mod connecting;
mod demo;
mod downward;
mod events;
mod full;
mod gateway;
mod http;
#[path = "../rules/kafka_log.rs"]
#[allow(dead_code, reason = "other tests do more with it")]
mod kafka_log;
#[path = "../rules/kafka_server.rs"]
#[allow(dead_code, reason = "other tests do more with it")]
mod kafka_server;
mod kills;
mod limits;
mod namespaces;
mod order;
mod ota;
mod other_systems;
mod protobuf;
mod rest;
mod scripts;
mod sdk;
mod tenants;
mod ttl;
mod upward;
mod world;
