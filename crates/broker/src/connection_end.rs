//! Why and how a connection ends.

use mqtt::{Properties, Property, PropertyWriter, ReasonCode};

use crate::effect::DisconnectReason;

/// How a connection ends.
pub(crate) struct ConnectionEnd<'a> {
    pub reason: DisconnectReason,
    /// Reason code of the DISCONNECT, sent by either side.
    pub code: Option<ReasonCode>,
    /// Another connection takes over the client id with Clean Start.
    pub is_discarded: bool,
    pub detail: &'a str,
    /// Properties of the client's DISCONNECT.
    pub properties: Properties<'a>,
}

impl<'a> ConnectionEnd<'a> {
    /// The server ends the connection.
    pub(crate) fn by_server(reason: DisconnectReason, code: ReasonCode, detail: &'a str) -> ConnectionEnd<'a> {
        ConnectionEnd {
            reason,
            code: Some(code),
            is_discarded: false,
            detail,
            properties: Properties::EMPTY,
        }
    }

    /// The server ends the connection because the client has violated the protocol or a limit.
    pub(crate) fn by_violation(code: ReasonCode, detail: &'a str) -> ConnectionEnd<'a> {
        let reason = match code {
            ReasonCode::MalformedPacket => DisconnectReason::MalformedPacket,
            ReasonCode::PacketTooLarge => DisconnectReason::PacketTooLarge,
            ReasonCode::ReceiveMaximumExceeded => DisconnectReason::ReceiveMaximumExceeded,
            ReasonCode::TopicAliasInvalid => DisconnectReason::TopicAliasInvalid,
            ReasonCode::TopicNameInvalid => DisconnectReason::TopicNameInvalid,
            ReasonCode::NotAuthorized => DisconnectReason::NotAuthorized,
            ReasonCode::QuotaExceeded => DisconnectReason::QuotaExceeded,
            _ => DisconnectReason::ProtocolError,
        };
        ConnectionEnd::by_server(reason, code, detail)
    }

    /// Writes the properties of DISCONNECT. `packet_bytes_max` is the client's Maximum Packet Size [MQTT-3.14.2-3].
    pub(crate) fn write_properties(&self, packet_bytes_max: u32, out: &mut Vec<u8>) {
        if self.detail.len() + 16 < packet_bytes_max as usize {
            PropertyWriter::new(out).put(Property::ReasonString(self.detail));
        }
    }
}
