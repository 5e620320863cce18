//! A table of named raw packets: their bytes, their protocol versions, and the expected result of decoding.
//!
//! The tests of this crate and the seeds of the fuzz targets use it.

#![allow(dead_code, reason = "every test binary uses a part")]

#[rustfmt::skip] // one case, one line
mod malformed;
pub mod seeds;
mod valid;

use tidewire_mqtt::{
    DecodeError, DecodeErrorKind, Decoded, Packet, PacketId, Properties, Property, PropertyWriter, ProtocolVersion,
    SubscribeFilter, SubscribeFilters, UnsubscribeFilters, decode,
};

pub const V3_1: ProtocolVersion = ProtocolVersion::V3_1;
pub const V3_1_1: ProtocolVersion = ProtocolVersion::V3_1_1;
pub const V5: ProtocolVersion = ProtocolVersion::V5;
pub const V3: &[ProtocolVersion] = &[V3_1, V3_1_1];
pub const SINCE_3_1_1: &[ProtocolVersion] = &[V3_1_1, V5];
pub const ALL: &[ProtocolVersion] = &[V3_1, V3_1_1, V5];

pub struct Case {
    pub name: &'static str,
    pub versions: &'static [ProtocolVersion],
    pub bytes: Vec<u8>,
    pub expected: Expected,
}

pub enum Expected {
    /// The bytes decode to the packet, which encodes to the same bytes.
    Packet(Packet<'static>),
    /// The bytes decode to the packet, which encodes to other bytes that decode to the same packet.
    OtherForm(Packet<'static>),
    Error(DecodeErrorKind),
}

impl Case {
    pub fn packet(&self) -> Option<&Packet<'static>> {
        match &self.expected {
            Expected::Packet(packet) | Expected::OtherForm(packet) => Some(packet),
            Expected::Error(_) => None,
        }
    }
}

/// Returns every case. Names are unique.
pub fn cases() -> Vec<Case> {
    let mut cases = valid::cases();
    cases.append(&mut malformed::cases());
    cases
}

/// Returns the name of the case with its version, for messages.
pub fn title(case: &Case, version: ProtocolVersion) -> String {
    format!("{} ({version}): {:02x?}", case.name, case.bytes)
}

/// Decodes with a size limit that no case reaches.
pub fn decode_any(bytes: &[u8], version: ProtocolVersion) -> Result<Decoded<Packet<'_>>, DecodeError> {
    decode(bytes, version, usize::MAX)
}

/// Returns a packet with its Remaining Length in the shortest form.
pub fn framed(first: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    let mut length = body.len();
    while length >= 0x80 {
        packet.push(length as u8 | 0x80);
        length >>= 7;
    }
    packet.push(length as u8);
    packet.extend_from_slice(body);
    packet
}

pub fn id(id: u16) -> PacketId {
    PacketId::new(id).expect("the table has no packet id 0 among the valid ones")
}

pub fn properties(list: &[Property<'_>]) -> Properties<'static> {
    let mut writer = PropertyWriter::new(Box::leak(Box::default()));
    for &property in list {
        writer.put(property);
    }
    writer.finish()
}

pub fn subscribe_filters(list: &[SubscribeFilter<'_>]) -> SubscribeFilters<'static> {
    SubscribeFilters::encode(list.iter().copied(), V5, Box::leak(Box::default()))
}

pub fn unsubscribe_filters(list: &[&str]) -> UnsubscribeFilters<'static> {
    UnsubscribeFilters::encode(list.iter().copied(), Box::leak(Box::default()))
}

fn case(name: &'static str, versions: &'static [ProtocolVersion], bytes: Vec<u8>, expected: Expected) -> Case {
    Case {
        name,
        versions,
        bytes,
        expected,
    }
}
