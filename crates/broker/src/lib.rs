//! The broker as a deterministic state machine: sessions, subscriptions, routing, shared groups, retained messages, wills,
//! expiry, queues and limits.
//!
//! No sockets, no clock, no threads, no randomness of its own: a `Shard` is given the time and its inputs and leaves bytes
//! in its `Outbox`, messages for other shards in its mail and requests to the driver in its effects. One thread owns a
//! shard; nothing in this crate blocks or locks.

mod access;
mod effect;
mod outbox;
mod shard;

pub use access::{Access, AuthOutcome, Credentials, Identity, OpenAccess, SessionAccess, SubscribeAccess};
pub use effect::*;
pub use outbox::{ARENA_SOFT_LIMIT_BYTES, Outbox, Range};
pub use shard::{Mail, Shard};

pub mod interest;
pub mod retained;
pub mod subscriptions;
pub mod timer;
