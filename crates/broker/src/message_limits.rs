//! Limits of messages that the server itself publishes: for rules, sources, fallback actions and the API. They are
//! those of a PUBLISH from a client.

use std::fmt;

use mqtt::QoS;

use crate::config::ShardConfig;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    packet_bytes_max: usize,
    topic_levels_max: usize,
    allows_control_characters: bool,
    qos_max: QoS,
    is_retain_available: bool,
}

impl Default for MessageLimits {
    fn default() -> MessageLimits {
        MessageLimits::of(&ShardConfig::default())
    }
}

/// Sizes and flags of a message, as far as they are limited.
#[derive(Clone, Copy, Debug)]
pub struct LimitedMessage<'a> {
    pub topic: &'a str,
    pub payload_bytes: usize,
    /// Size of the properties in wire format.
    pub property_bytes: usize,
    pub qos: QoS,
    pub retain: bool,
}

/// The limit that a message exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageLimit {
    TopicLevels { max: usize },
    ControlCharacters,
    PacketBytes { bytes: usize, max: usize },
    Qos { max: QoS },
    Retain,
}

impl fmt::Display for MessageLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageLimit::TopicLevels { max } => {
                write!(f, "the topic has more than {max} levels (mqtt.max_topic_levels)")
            }
            MessageLimit::ControlCharacters => f.write_str("the topic contains control characters"),
            MessageLimit::PacketBytes { bytes, max } => {
                write!(
                    f,
                    "the message has {bytes} bytes, the maximum is {max} (mqtt.max_packet_size)"
                )
            }
            MessageLimit::Qos { max } => write!(f, "the QoS is above {} (mqtt.max_qos)", *max as u8),
            MessageLimit::Retain => f.write_str("retained messages are disabled (mqtt.retain_available)"),
        }
    }
}

impl std::error::Error for MessageLimit {}

impl MessageLimits {
    pub fn of(config: &ShardConfig) -> MessageLimits {
        MessageLimits {
            packet_bytes_max: config.max_packet_size as usize,
            topic_levels_max: config.max_topic_levels,
            allows_control_characters: config.control_characters,
            qos_max: config.max_qos,
            is_retain_available: config.retain_available,
        }
    }

    /// The topic must be a valid topic name.
    pub fn check(&self, message: &LimitedMessage<'_>) -> Result<(), MessageLimit> {
        let topic = message.topic;
        if topic.len() >= self.topic_levels_max && mqtt::levels(topic).count() > self.topic_levels_max {
            return Err(MessageLimit::TopicLevels {
                max: self.topic_levels_max,
            });
        }
        if !self.allows_control_characters && topic.contains(char::is_control) {
            return Err(MessageLimit::ControlCharacters);
        }
        let bytes = message.packet_bytes();
        if bytes > self.packet_bytes_max {
            return Err(MessageLimit::PacketBytes {
                bytes,
                max: self.packet_bytes_max,
            });
        }
        if message.qos > self.qos_max {
            return Err(MessageLimit::Qos { max: self.qos_max });
        }
        match message.retain && !self.is_retain_available {
            true => Err(MessageLimit::Retain),
            false => Ok(()),
        }
    }
}

impl LimitedMessage<'_> {
    /// Returns the size of the PUBLISH packet in MQTT 5.
    fn packet_bytes(&self) -> usize {
        let packet_id_bytes = if self.qos == QoS::AtMostOnce { 0 } else { 2 };
        let properties = length_bytes(self.property_bytes) + self.property_bytes;
        let remaining = 2 + self.topic.len() + packet_id_bytes + properties + self.payload_bytes;
        1 + length_bytes(remaining) + remaining
    }
}

/// Returns the size of a length as Variable Byte Integer [MQTT-1.5.5-1].
fn length_bytes(length: usize) -> usize {
    match length {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_beyond_a_limit_are_refused() {
        let limits = MessageLimits {
            packet_bytes_max: 100,
            topic_levels_max: 3,
            allows_control_characters: false,
            qos_max: QoS::AtLeastOnce,
            is_retain_available: false,
        };
        let plain = LimitedMessage {
            topic: "a/b/c",
            payload_bytes: 88,
            property_bytes: 0,
            qos: QoS::AtLeastOnce,
            retain: false,
        };
        let check = |change: fn(&mut LimitedMessage<'_>)| {
            let mut message = plain;
            change(&mut message);
            limits.check(&message)
        };
        assert_eq!(check(|_| ()), Ok(()));
        let levels = MessageLimit::TopicLevels { max: 3 };
        assert_eq!(check(|message| message.topic = "a/b//"), Err(levels));
        assert_eq!(check(|message| message.topic = "///"), Err(levels));
        assert_eq!(
            check(|message| message.topic = "a\u{1}"),
            Err(MessageLimit::ControlCharacters)
        );
        let size = MessageLimit::PacketBytes { bytes: 101, max: 100 };
        assert_eq!(check(|message| message.payload_bytes = 89), Err(size));
        assert_eq!(check(|message| message.property_bytes = 1), Err(size));
        let qos = MessageLimit::Qos { max: QoS::AtLeastOnce };
        assert_eq!(check(|message| message.qos = QoS::ExactlyOnce), Err(qos));
        assert_eq!(check(|message| message.retain = true), Err(MessageLimit::Retain));
    }
}
