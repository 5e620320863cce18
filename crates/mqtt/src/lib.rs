//! The MQTT protocol: packets, properties, reason codes, topic names and filters.
//!
//! Encodes and decodes MQTT 3.1, 3.1.1 and 5.0. No I/O, no clock, no allocation while decoding: a decoded packet
//! borrows from its input. An *incomplete* packet is a value and not an error; it says how many bytes are needed.
//!
//! Invariants: a packet returned by `decode` is well-formed in its version (flags, lengths, UTF-8, property set, reason
//! codes). The broker decides whether it is *allowed* in the current state, direction and authorization. No input
//! panics.

mod cover;
mod decode;
mod encode;
mod error;
mod filters;
mod packet;
mod property;
mod reason;
mod topic;
mod types;
mod wire;

pub use cover::{filter_covers, filters_overlap, starts_with_wildcard};
pub use decode::{Decoded, connect_answer_version, decode, decode_connect};
pub use encode::{PublishExtras, encode_bare_ack, encode_publish, publish_size};
pub use error::{DecodeError, DecodeErrorKind, PacketField};
pub use filters::{SubscribeFilter, SubscribeFilters, UnsubscribeFilters};
pub use packet::*;
pub use property::{Properties, PropertiesError, Property, PropertyContext, PropertyWriter, UserProperties};
pub use reason::{ConnectReturnCode, ReasonCode};
pub use topic::{
    FilterError, MAXIMUM_TOPIC_BYTES, SharedFilter, TopicError, filter_matches, has_wildcards, levels, validate_filter,
    validate_topic_name,
};
pub use types::{PacketId, PacketType, ProtocolVersion, QoS, RetainHandling, SubscriptionOptions};
pub use wire::MAXIMUM_REMAINING_LENGTH;
