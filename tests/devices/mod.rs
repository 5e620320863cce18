//! Tests of the device platform over MQTT and HTTP against the real binary.
//!
//! They check ThingsBoard's device and gateway APIs byte by byte, the separate topic namespace of devices, and the data
//! that is stored after the server is killed.

// Tests print the figures of a run.
#![allow(clippy::print_stdout)]

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
mod kills;
mod limits;
mod namespaces;
mod order;
mod ota;
mod other_systems;
mod protobuf;
pub mod rest;
mod script_processes;
pub mod scripts;
mod sdk;
mod tenants;
mod ttl;
mod upward;
pub mod world;
