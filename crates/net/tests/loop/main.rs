//! The whole network side with a real shard behind it, over real sockets: every transport, one worker and several, and what
//! hostile or unlucky peers do.

// Helpers of tests are tests, too.
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
mod server;
mod tls;
