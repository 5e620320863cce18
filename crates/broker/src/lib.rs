//! The broker as a deterministic state machine: sessions, subscriptions, routing, shared groups, retained messages, wills,
//! expiry, queues and limits.
//!
//! No sockets, no clock, no threads, no randomness of its own: a `Shard` is given the time and its inputs and leaves bytes
//! in its `Outbox`, messages for other shards in its mail and requests to the driver in its effects. One thread owns a
//! shard; nothing in this crate blocks or locks.

mod accept;
mod access;
mod address;
mod authenticate;
mod broadcast;
mod client_ids;
mod client_order;
mod config;
mod connack;
mod connect;
mod connection;
mod delayed;
mod deliver;
mod device;
mod effect;
mod exclusive;
mod id_table;
mod inspect;
mod late;
mod lazy_deque;
mod letters;
mod lifecycle;
mod mail;
mod message;
mod outbox;
mod outgoing;
mod parking;
mod publish;
mod receive_window;
mod replay;
mod route;
mod session;
mod shard;
mod shared;
mod stats;
mod subscribe;
mod sys;
mod tapping;
mod timers;

pub mod durable;
pub mod fault;
pub mod interest;
pub mod provenance;
pub mod retained;
pub mod subscriptions;
pub mod tap;
pub mod timer;
pub mod trace;
pub mod waiting;

pub use access::{Access, AuthOutcome, Credentials, Identity, Offered, OpenAccess, SessionAccess, SubscribeAccess};
pub use client_order::{ClientOrder, ClientPlace, ClientSort};
pub use config::{Overlapping, PublishRate, QueueDrop, ShardConfig, ShareStrategy};
pub use device::{Device, DeviceBacklog, DeviceKey};
pub use durable::checkpoint::Checkpointed;
pub use effect::*;
pub use inspect::{
    ClientDetails, ClientFilter, ClientView, Refusal, RetainedView, SharedGroupView, SharedMemberView,
    SubscriptionView, WillView,
};
pub use journal::Health as JournalHealth;
pub use mail::{Mail, SessionRef};
pub use outbox::{ARENA_SOFT_LIMIT_BYTES, Outbox, Range};
pub use publish::ServerMessage;
pub use shard::{NodeState, Shard};
pub use stats::Stats;
pub use sys::{EventTopic, Load, Loads, SysInfo, emqx_tree, event_topic, mosquitto_tree, rfc3339};
