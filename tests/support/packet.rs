//! Builders of packets to send, for MQTT 3.1, 3.1.1 and 5.0.
//!
//! Builders make well-formed packets by default. For a malformed packet, use `frame` or change the bytes of a builder.

use super::Version::{self, V3, V5};
use super::{kind, property as prop};

/// Encodes a UTF-8 Encoded String or Binary Data as length and bytes [MQTT-1.5.4, 1.5.6]. At most 65,535 bytes.
pub fn string(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let length = u16::try_from(bytes.len()).expect("a string has at most 65,535 bytes");
    [&length.to_be_bytes()[..], bytes].concat()
}

/// Encodes a Variable Byte Integer in the minimum number of bytes.
pub fn variable_byte_integer(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value % 128) as u8;
        value /= 128;
        bytes.push(if value > 0 { low | 0x80 } else { low });
        if value == 0 {
            return bytes;
        }
    }
}

/// Returns a packet with any first byte and a correct Remaining Length.
pub fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    [vec![first], variable_byte_integer(body.len()), body.to_vec()].concat()
}

/// Returns the body of a packet, which follows the Remaining Length.
pub fn body(packet: &[u8]) -> &[u8] {
    let length_bytes = packet[1..]
        .iter()
        .position(|byte| byte & 0x80 == 0)
        .expect("a whole packet")
        + 1;
    &packet[1 + length_bytes..]
}

pub const PINGREQ: [u8; 2] = [0xC0, 0x00];
/// DISCONNECT for a normal disconnection, valid in all versions.
pub const DISCONNECT: [u8; 2] = [0xE0, 0x00];

/// Returns an MQTT 5 DISCONNECT with reason code and properties.
pub fn disconnect(reason: u8, properties: &[u8]) -> Vec<u8> {
    frame(0xE0, &[vec![reason], prop::list(properties)].concat())
}

/// Returns a PUBACK, PUBREC, PUBREL or PUBCOMP with reason 0x00 in the short form that is valid in all versions.
pub fn acknowledge(of_kind: u8, packet_id: u16) -> Vec<u8> {
    let flags = if of_kind == kind::PUBREL { 0x02 } else { 0x00 };
    frame(of_kind << 4 | flags, &packet_id.to_be_bytes())
}

/// Returns a SUBSCRIBE. Each filter has an options byte, which is the QoS in MQTT 3.x. Only V5 sends `properties`.
pub fn subscribe(version: Version, packet_id: u16, filters: &[(impl AsRef<[u8]>, u8)], properties: &[u8]) -> Vec<u8> {
    let mut bytes = packet_id.to_be_bytes().to_vec();
    if version == V5 {
        bytes.extend(prop::list(properties));
    }
    for (filter, options) in filters {
        bytes.extend(string(filter));
        bytes.push(*options);
    }
    frame(0x82, &bytes)
}

pub fn unsubscribe(version: Version, packet_id: u16, filters: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = packet_id.to_be_bytes().to_vec();
    if version == V5 {
        bytes.push(0);
    }
    for filter in filters {
        bytes.extend(string(filter));
    }
    frame(0xA2, &bytes)
}

/// Returns the protocol name and level of a version.
pub fn protocol(version: Version) -> (&'static str, u8) {
    match version {
        V3 => ("MQIsdp", 3),
        version => ("MQTT", version as u8),
    }
}

/// Returns a CONNECT with these fields. `payload` is everything after the Keep Alive. In MQTT 5 it begins with the
/// property list.
pub fn connect_raw(name: impl AsRef<[u8]>, level: u8, flags: u8, keep_alive: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.push(level);
    bytes.push(flags);
    bytes.extend(keep_alive.to_be_bytes());
    bytes.extend(payload);
    frame(0x10, &bytes)
}

/// A well-formed CONNECT. Defaults: clean session, keep alive 60 s, no will, no credentials.
#[derive(Clone, Debug)]
pub struct Connect {
    pub version: Version,
    pub client_id: Vec<u8>,
    pub is_clean: bool,
    pub keep_alive: u16,
    pub properties: Vec<u8>,
    pub will: Option<Will>,
    pub user_name: Option<Vec<u8>>,
    pub password: Option<Vec<u8>>,
}

impl Connect {
    pub fn new(version: Version, client_id: impl AsRef<[u8]>) -> Connect {
        Connect {
            version,
            client_id: client_id.as_ref().to_vec(),
            is_clean: true,
            keep_alive: 60,
            properties: Vec::new(),
            will: None,
            user_name: None,
            password: None,
        }
    }

    /// Requests a persistent session: clean session 0, and in MQTT 5 a Session Expiry Interval of 300 s.
    pub fn persistent(mut self) -> Connect {
        self.is_clean = false;
        if self.version == V5 {
            self.properties.extend(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 300));
        }
        self
    }

    pub fn clean(mut self, is_clean: bool) -> Connect {
        self.is_clean = is_clean;
        self
    }

    pub fn keep_alive(mut self, seconds: u16) -> Connect {
        self.keep_alive = seconds;
        self
    }

    /// Adds one property (see `prop`).
    pub fn property(mut self, property: Vec<u8>) -> Connect {
        self.properties.extend(property);
        self
    }

    pub fn will(mut self, will: Will) -> Connect {
        self.will = Some(will);
        self
    }

    pub fn user(mut self, user_name: impl AsRef<[u8]>, password: impl AsRef<[u8]>) -> Connect {
        self.user_name = Some(user_name.as_ref().to_vec());
        self.password = Some(password.as_ref().to_vec());
        self
    }

    pub fn user_name(mut self, user_name: impl AsRef<[u8]>) -> Connect {
        self.user_name = Some(user_name.as_ref().to_vec());
        self
    }

    pub fn password(mut self, password: impl AsRef<[u8]>) -> Connect {
        self.password = Some(password.as_ref().to_vec());
        self
    }

    pub fn flags(&self) -> u8 {
        let mut flags = if self.is_clean { 0x02 } else { 0x00 };
        if let Some(will) = &self.will {
            flags |= 0x04 | will.qos << 3 | (will.is_retained as u8) << 5;
        }
        flags | (self.password.is_some() as u8) << 6 | (self.user_name.is_some() as u8) << 7
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (name, level) = protocol(self.version);
        connect_raw(name, level, self.flags(), self.keep_alive, &self.payload())
    }

    /// Returns the CONNECT payload, which follows the Keep Alive and the properties.
    pub fn payload(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.version == V5 {
            bytes.extend(prop::list(&self.properties));
        }
        bytes.extend(string(&self.client_id));
        if let Some(will) = &self.will {
            if self.version == V5 {
                bytes.extend(prop::list(&will.properties));
            }
            bytes.extend(string(&will.topic));
            bytes.extend(string(&will.payload));
        }
        bytes.extend(self.user_name.iter().flat_map(string));
        bytes.extend(self.password.iter().flat_map(string));
        bytes
    }
}

#[derive(Clone, Debug)]
pub struct Will {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub is_retained: bool,
    pub properties: Vec<u8>,
}

impl Will {
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Will {
        Will {
            topic: topic.as_ref().to_vec(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            is_retained: false,
            properties: Vec::new(),
        }
    }

    pub fn qos(mut self, qos: u8) -> Will {
        self.qos = qos;
        self
    }

    pub fn retain(mut self) -> Will {
        self.is_retained = true;
        self
    }

    pub fn property(mut self, property: Vec<u8>) -> Will {
        self.properties.extend(property);
        self
    }
}

/// A PUBLISH to send. Defaults: QoS 0, not retained. Above QoS 0 the packet identifier is 1 unless `id` is called.
#[derive(Clone, Debug)]
pub struct Publish {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub is_retained: bool,
    pub is_duplicate: bool,
    pub packet_id: u16,
    pub properties: Vec<u8>,
}

impl Publish {
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Publish {
        Publish {
            topic: topic.as_ref().to_vec(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            is_retained: false,
            is_duplicate: false,
            packet_id: 1,
            properties: Vec::new(),
        }
    }

    pub fn qos(mut self, qos: u8) -> Publish {
        self.qos = qos;
        self
    }

    pub fn id(mut self, packet_id: u16) -> Publish {
        self.packet_id = packet_id;
        self
    }

    pub fn retain(mut self) -> Publish {
        self.is_retained = true;
        self
    }

    pub fn dup(mut self) -> Publish {
        self.is_duplicate = true;
        self
    }

    pub fn property(mut self, property: Vec<u8>) -> Publish {
        self.properties.extend(property);
        self
    }

    pub fn bytes(&self, version: Version) -> Vec<u8> {
        let first = 0x30 | (self.is_duplicate as u8) << 3 | self.qos << 1 | self.is_retained as u8;
        let mut bytes = string(&self.topic);
        if self.qos > 0 {
            bytes.extend(self.packet_id.to_be_bytes());
        }
        if version == V5 {
            bytes.extend(prop::list(&self.properties));
        }
        bytes.extend(&self.payload);
        frame(first, &bytes)
    }
}
