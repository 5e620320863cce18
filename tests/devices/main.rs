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
mod connecting;
mod demo;
mod downward;
mod events;
mod full;
mod gateway;
mod http;
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
