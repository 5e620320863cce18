//! Bytes to packets.

use crate::{Connect, Packet, ProtocolVersion, ReasonCode};

#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<T> {
    /// Not all there yet; `needed` bytes in total (from the start of the packet) are the least that will tell more.
    Incomplete { needed: usize },
    /// `size` bytes were used.
    Complete { packet: T, size: usize },
}

/// Why bytes are not a packet. `reason` is what MQTT 5 answers with; `context` says where, for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    pub kind: DecodeErrorKind,
    pub reason: ReasonCode,
}

/// One value per thing that can be wrong, each with a `Display` that names the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeErrorKind {
    PacketTooLarge { size: usize, limit: usize },
    NotConnect,
    UnsupportedProtocolVersion(u8),
    // to be completed
}

/// Decodes the first packet of a connection, whose version is not known yet. Anything but CONNECT is an error
/// [MQTT-3.1.0-1], as soon as its first byte is there.
pub fn decode_connect(bytes: &[u8], maximum_packet_size: usize) -> Result<Decoded<Connect<'_>>, DecodeError> {
    let _ = (bytes, maximum_packet_size);
    unimplemented!()
}

/// Decodes one packet. The size is checked against `maximum_packet_size` as soon as the fixed header is there.
pub fn decode(
    bytes: &[u8],
    version: ProtocolVersion,
    maximum_packet_size: usize,
) -> Result<Decoded<Packet<'_>>, DecodeError> {
    let _ = (bytes, version, maximum_packet_size);
    unimplemented!()
}
