//! Small value types used by packets.

use std::fmt;
use std::num::NonZeroU16;

/// Protocol version, numbered by its protocol level in CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ProtocolVersion {
    V3_1 = 3,
    V3_1_1 = 4,
    V5 = 5,
}

impl ProtocolVersion {
    pub const ALL: [ProtocolVersion; 3] = [ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5];

    /// Returns the version of a protocol level without the bridge bit. `None` for an unknown level.
    pub const fn from_level(level: u8) -> Option<ProtocolVersion> {
        match level {
            3 => Some(ProtocolVersion::V3_1),
            4 => Some(ProtocolVersion::V3_1_1),
            5 => Some(ProtocolVersion::V5),
            _ => None,
        }
    }

    /// Returns the Protocol Name that precedes the level in CONNECT.
    pub const fn protocol_name(self) -> &'static str {
        match self {
            ProtocolVersion::V3_1 => "MQIsdp",
            ProtocolVersion::V3_1_1 | ProtocolVersion::V5 => "MQTT",
        }
    }

    /// Returns whether packets of this version have properties and reason codes.
    pub const fn has_properties(self) -> bool {
        matches!(self, ProtocolVersion::V5)
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolVersion::V3_1 => "3.1",
            ProtocolVersion::V3_1_1 => "3.1.1",
            ProtocolVersion::V5 => "5.0",
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    #[default]
    AtMostOnce = 0,
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

impl QoS {
    /// Returns `None` for 3, which is invalid [MQTT-3.3.1-4].
    pub const fn from_bits(bits: u8) -> Option<QoS> {
        match bits {
            0 => Some(QoS::AtMostOnce),
            1 => Some(QoS::AtLeastOnce),
            2 => Some(QoS::ExactlyOnce),
            _ => None,
        }
    }
}

/// A packet identifier, never zero [MQTT-2.2.1-3].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId(pub NonZeroU16);

impl PacketId {
    pub const fn new(id: u16) -> Option<PacketId> {
        match NonZeroU16::new(id) {
            Some(id) => Some(PacketId(id)),
            None => None,
        }
    }

    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! packet_types {
    ($($type:ident $bits:literal $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum PacketType { $($type = $bits,)* }

        impl PacketType {
            /// Returns the packet type of the high four bits of the first byte. `None` for 0, which is reserved, and
            /// for values above 15.
            pub const fn from_bits(bits: u8) -> Option<PacketType> {
                Some(match bits { $($bits => PacketType::$type,)* _ => return None })
            }

            /// Returns the name as written in the specification.
            pub const fn name(self) -> &'static str {
                match self { $(PacketType::$type => $name,)* }
            }
        }
    };
}

packet_types! {
    Connect 1 "CONNECT",
    ConnAck 2 "CONNACK",
    Publish 3 "PUBLISH",
    PubAck 4 "PUBACK",
    PubRec 5 "PUBREC",
    PubRel 6 "PUBREL",
    PubComp 7 "PUBCOMP",
    Subscribe 8 "SUBSCRIBE",
    SubAck 9 "SUBACK",
    Unsubscribe 10 "UNSUBSCRIBE",
    UnsubAck 11 "UNSUBACK",
    PingReq 12 "PINGREQ",
    PingResp 13 "PINGRESP",
    Disconnect 14 "DISCONNECT",
    Auth 15 "AUTH",
}

impl PacketType {
    /// Returns the flags that the fixed header must contain. PUBLISH has no fixed flags [MQTT-2.1.3-1].
    pub const fn fixed_flags(self) -> u8 {
        match self {
            PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe => 0b0010,
            _ => 0,
        }
    }

    /// Returns the first byte of the packet, with its fixed flags.
    pub(crate) const fn first_byte(self) -> u8 {
        (self as u8) << 4 | self.fixed_flags()
    }
}

impl fmt::Display for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When a new subscription receives matching retained messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RetainHandling {
    #[default]
    SendAtSubscribe = 0,
    SendIfNew = 1,
    DoNotSend = 2,
}

impl RetainHandling {
    /// Returns `None` for 3, which is a protocol error.
    pub const fn from_bits(bits: u8) -> Option<RetainHandling> {
        match bits {
            0 => Some(RetainHandling::SendAtSubscribe),
            1 => Some(RetainHandling::SendIfNew),
            2 => Some(RetainHandling::DoNotSend),
            _ => None,
        }
    }
}

/// The options byte of one topic filter in SUBSCRIBE. 3.1 and 3.1.1 have only the QoS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubscriptionOptions {
    pub maximum_qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
}

/// Bits 7 and 6 of the options byte, which are reserved in all versions [MQTT-3.8.3-5].
const RESERVED_OPTIONS: u8 = 0b1100_0000;

impl SubscriptionOptions {
    /// Returns `None` if a reserved bit is set or a field has the value 3.
    pub const fn from_byte(byte: u8) -> Option<SubscriptionOptions> {
        if byte & RESERVED_OPTIONS != 0 {
            return None;
        }
        let (Some(maximum_qos), Some(retain_handling)) =
            (QoS::from_bits(byte & 0b11), RetainHandling::from_bits(byte >> 4))
        else {
            return None;
        };
        Some(SubscriptionOptions {
            maximum_qos,
            no_local: byte & 0b0100 != 0,
            retain_as_published: byte & 0b1000 != 0,
            retain_handling,
        })
    }

    /// Returns the byte on the wire. Before 5.0 it contains only the QoS.
    pub const fn to_byte(self, version: ProtocolVersion) -> u8 {
        let qos = self.maximum_qos as u8;
        if !version.has_properties() {
            return qos;
        }
        qos | (self.no_local as u8) << 2 | (self.retain_as_published as u8) << 3 | (self.retain_handling as u8) << 4
    }
}
