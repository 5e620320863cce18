//! The whole network side with a real shard behind it, over real sockets: every transport, one worker and several, and what
//! hostile or unlucky peers do.

extern crate tidewire_net as net;

mod abuse;
mod authentication;
mod client;
mod descriptors;
mod framing;
mod handle;
mod limits;
mod messages;
mod server;
mod tls;
