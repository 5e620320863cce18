//! MQTT 5 properties as bytes: identifiers and one encoder per value type.
//!
//! The encoders check nothing. For example, `prop::byte(prop::TOPIC_ALIAS, 1)` encodes a wrong value type on purpose.

use super::packet::{string, variable_byte_integer};

pub const PAYLOAD_FORMAT_INDICATOR: u8 = 0x01;
pub const MESSAGE_EXPIRY_INTERVAL: u8 = 0x02;
pub const CONTENT_TYPE: u8 = 0x03;
pub const RESPONSE_TOPIC: u8 = 0x08;
pub const CORRELATION_DATA: u8 = 0x09;
pub const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
pub const SESSION_EXPIRY_INTERVAL: u8 = 0x11;
pub const ASSIGNED_CLIENT_IDENTIFIER: u8 = 0x12;
pub const SERVER_KEEP_ALIVE: u8 = 0x13;
pub const AUTHENTICATION_METHOD: u8 = 0x15;
pub const AUTHENTICATION_DATA: u8 = 0x16;
pub const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
pub const WILL_DELAY_INTERVAL: u8 = 0x18;
pub const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
pub const RESPONSE_INFORMATION: u8 = 0x1A;
pub const SERVER_REFERENCE: u8 = 0x1C;
pub const REASON_STRING: u8 = 0x1F;
pub const RECEIVE_MAXIMUM: u8 = 0x21;
pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
pub const TOPIC_ALIAS: u8 = 0x23;
pub const MAXIMUM_QOS: u8 = 0x24;
pub const RETAIN_AVAILABLE: u8 = 0x25;
pub const USER_PROPERTY: u8 = 0x26;
pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
pub const WILDCARD_SUBSCRIPTION_AVAILABLE: u8 = 0x28;
pub const SUBSCRIPTION_IDENTIFIER_AVAILABLE: u8 = 0x29;
pub const SHARED_SUBSCRIPTION_AVAILABLE: u8 = 0x2A;

pub fn byte(id: u8, value: u8) -> Vec<u8> {
    vec![id, value]
}

pub fn u16(id: u8, value: u16) -> Vec<u8> {
    [&[id], &value.to_be_bytes()[..]].concat()
}

pub fn u32(id: u8, value: u32) -> Vec<u8> {
    [&[id], &value.to_be_bytes()[..]].concat()
}

/// Encodes a Variable Byte Integer. Only the Subscription Identifier has this type.
pub fn varint(id: u8, value: u32) -> Vec<u8> {
    [vec![id], variable_byte_integer(value as usize)].concat()
}

/// Encodes a UTF-8 string, well-formed or not, or Binary Data. Both have the same encoding.
pub fn text(id: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    [vec![id], string(value)].concat()
}

pub fn user(name: &str, value: &str) -> Vec<u8> {
    [vec![USER_PROPERTY], string(name), string(value)].concat()
}

/// Prefixes a property list with its length.
pub fn list(properties: &[u8]) -> Vec<u8> {
    [variable_byte_integer(properties.len()), properties.to_vec()].concat()
}
