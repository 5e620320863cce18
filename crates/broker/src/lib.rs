//! The broker as a deterministic state machine: sessions, subscriptions, routing, shared subscriptions, retained
//! messages, wills, expiry, queues and limits.
//!
//! It uses no sockets, no clock, no threads and no randomness of its own. A `Shard` receives the time and its inputs,
//! and produces bytes in its `Outbox`, mail for other shards, and effects for the driver. One thread owns a shard;
//! nothing in this crate blocks.

mod accept;
mod access;
mod access_questions;
mod acknowledgements;
mod address;
mod authentication;
mod client_acks;
mod client_ids;
mod client_order;
mod config;
mod connack;
mod connection;
mod connection_end;
mod connections;
mod data_streams;
mod delayed;
mod deliver;
mod delivery;
mod effect;
mod encode;
mod exchange_memory;
mod exclusive;
mod fair_share;
mod fixed_limits;
mod id_table;
mod inbox_sessions;
mod inspect;
mod lazy_deque;
mod lifecycle;
mod login;
mod mail;
mod message;
mod message_limits;
mod message_size;
mod mounted;
mod mountpoint;
mod node_state;
mod operator;
mod outbox;
mod outgoing;
mod outgoing_mail;
mod parsed_filter;
mod publish;
mod publish_buckets;
mod publish_delay;
mod publish_limits;
mod publish_quota;
mod queued_bytes;
mod receipt_actions;
mod receive_window;
mod rejected_connections;
mod retained_messages;
mod router;
mod server_messages;
mod session;
mod session_link;
mod sessions;
mod shard;
mod shared;
mod slots;
mod stats;
mod stream_role;
mod subscribe;
mod sys;
mod sys_topics;
mod taps;
mod throttle;
mod tick;
mod timers;
mod token_bucket;

pub mod durable;
pub mod fault;
pub mod inbox;
pub mod interest;
pub mod owners;
pub mod provenance;
pub mod retained;
pub mod subscriptions;
pub mod tap;
pub mod timer;
pub mod trace;
pub mod waiting;

pub use access::{
    AccessControl, AccessQuestion, AccessRequest, AdmissionStep, AuthExchange, AuthOutcome, ClientIdentity,
    ClientLogin, ConnectCredentials, ConnectIdentity, LoginData, LoginGrant, OpenAccess, SessionAccess,
    SubscribeAccess,
};
pub use client_order::{ClientOrder, ClientPlace, ClientSort};
pub use config::{OverlappingDelivery, QueueDropPolicy, ShardConfig, ShareStrategy};
pub use data_streams::DataStreams;
pub use delayed::DELAYED_BYTES_MAX;
pub use durable::checkpoint::FinishedCheckpoint;
pub use durable::pending_records::Ledger;
pub use effect::*;
pub use fair_share::{client_network, has_fair_share};
pub use fixed_limits::FIXED_LIMITS;
pub use inbox_sessions::{InboxBacklog, InboxSession};
pub use inspect::{
    ClientFilter, ClientView, InspectedClient, RetainedView, ShardInspection, SharedGroupView, SharedMemberView,
    SubscriptionListFilter, SubscriptionView, WillView,
};
pub use journal::LogHealth as JournalHealth;
pub use mail::Mail;
pub use message_limits::{LimitedMessage, MessageLimit, MessageLimits};
pub use message_size::MessageSize;
pub use mountpoint::{MOUNTPOINT_BYTES_MAX, Mountpoint, MountpointError};
pub use node_state::{NodeState, group_home_shard, home_shard};
pub use operator::Operator;
pub use outbox::{ARENA_SOFT_LIMIT_BYTES, Outbox, Range};
pub use publish_limits::{ListenerRates, PublishLimit, PublishLimits, PublishRates};
pub use rejected_connections::RejectedConnection;
pub use server_messages::{ServerMessage, ServerPublisher};
pub use shard::{Shard, ShardJournal, ShardTap};
pub use slots::{
    AuthAttempt, ConnEpoch, ConnSlot, ConnectNumber, GroupEpoch, GroupIndex, SessionEpoch, SessionRef, SessionSlot,
};
pub use stats::ShardStats;
pub use sys::{EventTopic, LoadAverage, LoadAverages, SysInfo, emqx_tree, event_topic, mosquitto_tree, rfc3339};
pub use sys_topics::{SysTopic, emqx_sys_topics, mosquitto_sys_topics};
pub use taps::Taps;
pub use token_bucket::{TokenBucket, TokenRate};
