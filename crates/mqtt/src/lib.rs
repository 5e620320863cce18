//! The MQTT protocol: packets, properties, reason codes, topic names and filters.
//!
//! Encodes and decodes MQTT 3.1, 3.1.1 and 5.0. No I/O, no clock, no allocation while decoding: a decoded packet
//! borrows from the bytes it was read from. *Incomplete* is a value, not an error, and says how many bytes are needed.
//!
//! Invariants: a packet that `decode` returns is well-formed in its version (flags, lengths, UTF-8, property set, reason
//! codes); whether it is *allowed* now (state, direction, authorization) is the broker's business. No input panics.

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

pub use cover::{filter_covers, filters_overlap};
pub use decode::{Decoded, connect_answer_version, decode, decode_connect};
pub use encode::{PublishExtras, encode_bare_ack, encode_publish, publish_size};
pub use error::{DecodeError, DecodeErrorKind, Field};
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
