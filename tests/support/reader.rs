//! Strict parser for received packets, independent of the project's codec.
//!
//! It panics on everything that a server must not send, such as invalid flags, unknown properties or trailing bytes.

use super::Version::{self, V5};
use super::{kind, property as prop};

/// A received packet.
#[derive(Clone, PartialEq, Eq)]
pub struct Packet {
    /// First byte with packet type and flags.
    pub first: u8,
    /// Bytes that follow the Remaining Length.
    pub body: Vec<u8>,
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.body[..self.body.len().min(48)];
        write!(
            f,
            "{}(flags {:#x}, {} bytes: {:02x?})",
            self.name(),
            self.first & 0x0F,
            self.body.len(),
            shown
        )
    }
}

impl Packet {
    /// Returns the first packet of `bytes` and its length, or `None` if it is incomplete.
    pub fn cut(bytes: &[u8]) -> Option<(Packet, usize)> {
        let (mut length, mut at) = (0usize, 1);
        loop {
            let byte = *bytes.get(at)?;
            length |= usize::from(byte & 0x7F) << (7 * (at - 1));
            at += 1;
            if byte & 0x80 == 0 {
                break;
            }
            assert!(
                at <= 4,
                "the server sent a Remaining Length of more than four bytes: {:02x?}",
                &bytes[..5]
            );
        }
        let body = bytes.get(at..at + length)?;
        Some((
            Packet {
                first: bytes[0],
                body: body.to_vec(),
            },
            at + length,
        ))
    }

    pub fn kind(&self) -> u8 {
        self.first >> 4
    }

    pub fn name(&self) -> &'static str {
        kind::NAMES[usize::from(self.kind())]
    }

    /// Returns the packet id of PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK or UNSUBACK.
    #[track_caller]
    pub fn packet_id(&self) -> u16 {
        assert!(self.body.len() >= 2, "{self:?} has no packet identifier");
        u16::from_be_bytes([self.body[0], self.body[1]])
    }

    /// Returns the reason code of PUBACK, PUBREC, PUBREL or PUBCOMP (0x00 when omitted).
    pub fn reason(&self) -> u8 {
        self.body.get(2).copied().unwrap_or(0x00)
    }

    /// Returns the properties of an MQTT 5 acknowledgement, which are empty if omitted.
    #[track_caller]
    pub fn properties(&self) -> Properties {
        let start = match self.kind() {
            kind::DISCONNECT | kind::AUTH => 1,
            kind::SUBACK | kind::UNSUBACK => 2,
            _ => 3,
        };
        if self.body.len() <= start {
            return Properties::default();
        }
        Cursor::new(&self.body[start..]).properties()
    }

    /// Returns the reason code of DISCONNECT (0x00 when omitted).
    #[track_caller]
    pub fn disconnect_reason(&self) -> u8 {
        assert_eq!(self.kind(), kind::DISCONNECT, "expected a DISCONNECT, got {self:?}");
        self.body.first().copied().unwrap_or(0x00)
    }

    /// Returns the reason codes of a SUBACK or UNSUBACK.
    #[track_caller]
    pub fn reason_codes(&self, version: Version) -> Vec<u8> {
        assert!(
            matches!(self.kind(), kind::SUBACK | kind::UNSUBACK),
            "expected SUBACK or UNSUBACK, got {self:?}"
        );
        let mut cursor = Cursor::new(&self.body);
        cursor.u16();
        if version == V5 {
            cursor.properties();
        }
        cursor.rest()
    }

    #[track_caller]
    pub fn connack(&self, version: Version) -> Connack {
        assert_eq!(self.first, 0x20, "expected a CONNACK, got {self:?}");
        let mut cursor = Cursor::new(&self.body);
        let flags = cursor.u8();
        assert_eq!(flags & 0xFE, 0, "reserved CONNACK flags are set [MQTT-3.2.2-1]");
        let code = cursor.u8();
        let properties = if version == V5 && !cursor.is_empty() {
            cursor.properties()
        } else {
            Properties::default()
        };
        assert!(cursor.is_empty(), "trailing bytes in {self:?}");
        Connack {
            session_present: flags == 1,
            code,
            properties,
        }
    }

    #[track_caller]
    pub fn delivery(&self, version: Version) -> Delivery {
        assert_eq!(self.kind(), kind::PUBLISH, "expected a PUBLISH, got {self:?}");
        let qos = self.first >> 1 & 0x03;
        assert!(qos < 3, "the server sent QoS 3");
        let is_duplicate = self.first & 0x08 != 0;
        assert!(
            qos > 0 || !is_duplicate,
            "the server sent QoS 0 with DUP [MQTT-3.3.1-2]"
        );
        let mut cursor = Cursor::new(&self.body);
        let topic = cursor.bytes();
        let packet_id = (qos > 0).then(|| cursor.u16());
        assert_ne!(packet_id, Some(0), "the server sent packet identifier 0");
        let properties = if version == V5 {
            cursor.properties()
        } else {
            Properties::default()
        };
        let is_retained = self.first & 0x01 != 0;
        Delivery {
            topic,
            payload: cursor.rest(),
            qos,
            is_duplicate,
            is_retained,
            packet_id,
            properties,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connack {
    pub session_present: bool,
    /// Return code (3.x) or reason code (5.0).
    pub code: u8,
    pub properties: Properties,
}

/// A received PUBLISH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub is_duplicate: bool,
    pub is_retained: bool,
    pub packet_id: Option<u16>,
    pub properties: Properties,
}

impl Delivery {
    pub fn topic_str(&self) -> &str {
        std::str::from_utf8(&self.topic).expect("the server sent a topic that is not UTF-8")
    }

    pub fn payload_str(&self) -> &str {
        std::str::from_utf8(&self.payload).expect("a text payload")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Byte(u8),
    Two(u16),
    Four(u32),
    Variable(u32),
    /// UTF-8 Encoded String or Binary Data.
    Bytes(Vec<u8>),
    Pair(Vec<u8>, Vec<u8>),
}

/// Properties in the order in which they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(pub Vec<(u8, Value)>);

impl Properties {
    pub fn get(&self, id: u8) -> Option<&Value> {
        self.0.iter().find(|(found, _)| *found == id).map(|(_, value)| value)
    }

    /// Returns a numeric property of any width.
    pub fn number(&self, id: u8) -> Option<u32> {
        match self.get(id)? {
            Value::Byte(value) => Some(u32::from(*value)),
            Value::Two(value) => Some(u32::from(*value)),
            Value::Four(value) | Value::Variable(value) => Some(*value),
            other => panic!("property {id:#04x} is not a number: {other:?}"),
        }
    }

    /// Returns a string or binary property.
    pub fn bytes(&self, id: u8) -> Option<&[u8]> {
        match self.get(id)? {
            Value::Bytes(value) => Some(value),
            other => panic!("property {id:#04x} is not a string: {other:?}"),
        }
    }

    /// Returns all values of a numeric property that may occur several times.
    pub fn numbers(&self, id: u8) -> Vec<u32> {
        let all = self.0.iter().filter(|(found, _)| *found == id);
        all.map(|(id, value)| {
            Properties(vec![(*id, value.clone())])
                .number(*id)
                .expect("the value was just added")
        })
        .collect()
    }

    pub fn user_properties(&self) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the server sent ill-formed UTF-8");
        let pairs = self.0.iter().filter_map(|(_, value)| match value {
            Value::Pair(name, value) => Some((text(name), text(value))),
            _ => None,
        });
        pairs.collect()
    }
}

/// Reads fields from the beginning of a body.
pub struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[track_caller]
    fn take(&mut self, length: usize) -> &'a [u8] {
        assert!(
            self.bytes.len() >= length,
            "the server sent a packet that ends too early: {:02x?}",
            self.bytes
        );
        let (taken, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        taken
    }

    #[track_caller]
    pub fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }

    #[track_caller]
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().expect("two bytes"))
    }

    #[track_caller]
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    #[track_caller]
    pub fn varint(&mut self) -> u32 {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.u8();
            value |= u32::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        panic!("the server sent a Variable Byte Integer of more than four bytes")
    }

    #[track_caller]
    pub fn bytes(&mut self) -> Vec<u8> {
        let length = self.u16();
        self.take(usize::from(length)).to_vec()
    }

    pub fn rest(&mut self) -> Vec<u8> {
        self.take(self.bytes.len()).to_vec()
    }

    /// Reads a property list and its length.
    #[track_caller]
    pub fn properties(&mut self) -> Properties {
        let length = self.varint();
        let mut list = Cursor::new(self.take(length as usize));
        let mut properties = Vec::new();
        while !list.is_empty() {
            let id = list.varint() as u8;
            properties.push((id, list.value(id)));
        }
        Properties(properties)
    }

    #[track_caller]
    fn value(&mut self, id: u8) -> Value {
        match id {
            prop::PAYLOAD_FORMAT_INDICATOR
            | prop::REQUEST_PROBLEM_INFORMATION
            | prop::REQUEST_RESPONSE_INFORMATION
            | prop::MAXIMUM_QOS
            | prop::RETAIN_AVAILABLE
            | prop::WILDCARD_SUBSCRIPTION_AVAILABLE
            | prop::SUBSCRIPTION_IDENTIFIER_AVAILABLE
            | prop::SHARED_SUBSCRIPTION_AVAILABLE => Value::Byte(self.u8()),
            prop::SERVER_KEEP_ALIVE | prop::RECEIVE_MAXIMUM | prop::TOPIC_ALIAS_MAXIMUM | prop::TOPIC_ALIAS => {
                Value::Two(self.u16())
            }
            prop::MESSAGE_EXPIRY_INTERVAL
            | prop::SESSION_EXPIRY_INTERVAL
            | prop::WILL_DELAY_INTERVAL
            | prop::MAXIMUM_PACKET_SIZE => Value::Four(self.u32()),
            prop::SUBSCRIPTION_IDENTIFIER => Value::Variable(self.varint()),
            prop::CONTENT_TYPE
            | prop::RESPONSE_TOPIC
            | prop::CORRELATION_DATA
            | prop::ASSIGNED_CLIENT_IDENTIFIER
            | prop::AUTHENTICATION_METHOD
            | prop::AUTHENTICATION_DATA
            | prop::RESPONSE_INFORMATION
            | prop::SERVER_REFERENCE
            | prop::REASON_STRING => Value::Bytes(self.bytes()),
            prop::USER_PROPERTY => Value::Pair(self.bytes(), self.bytes()),
            unknown => panic!("the server sent an unknown property {unknown:#04x}"),
        }
    }
}
