//! Tests of the network side with a real shard over real sockets: every transport, one worker and several, hostile and
//! faulty peers.

// Test helpers may panic like tests.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

extern crate tidewire_net as net;

mod abuse;
mod authentication;
mod broken_disk;
mod client;
mod crew;
mod descriptors;
mod disk;
mod framing;
mod handle;
mod leisure;
mod limits;
mod messages;
mod quic;
mod quic_limits;
mod quic_streams;
mod quic_wire;
mod server;
mod tls;
