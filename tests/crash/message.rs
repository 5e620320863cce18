//! Messages of the crash tests. Each payload contains the message number. Its remaining bytes are derived from the
//! number.

use crate::support::Publish;

/// Number of topics per publisher, not counting the retained topic.
pub const TOPICS: u8 = 3;
/// Index of the retained topic.
pub const RETAINED: u8 = TOPICS;
/// Interval of retained messages without payload, which clear the topic.
const CLEARS: u32 = 5;

/// A sequence of messages that must arrive in order: one publisher, topic and QoS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    pub publisher: u8,
    pub topic: u8,
    pub qos: u8,
}

/// Identifies a message by its lane and its number in the lane, starting at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    pub lane: Lane,
    pub number: u32,
}

impl Lane {
    pub fn topic_name(&self) -> String {
        match self.topic {
            RETAINED => format!("retained/p{}", self.publisher),
            topic => format!("load/p{}/t{topic}", self.publisher),
        }
    }
}

impl Id {
    pub fn publish(&self) -> Publish {
        let publish = Publish::new(self.lane.topic_name(), self.payload()).qos(self.lane.qos);
        if self.lane.topic == RETAINED {
            publish.retain()
        } else {
            publish
        }
    }

    /// Returns the message name and filler bytes. The payload is empty if the message clears a retained topic.
    pub fn payload(&self) -> Vec<u8> {
        if self.lane.topic == RETAINED && self.number.is_multiple_of(CLEARS) {
            return Vec::new();
        }
        let Lane { publisher, topic, qos } = self.lane;
        let mut payload = format!("{publisher} {topic} {qos} {} ", self.number).into_bytes();
        let length = payload.len() + self.filling_bytes();
        payload.resize(length, b'.');
        payload
    }

    /// Most payloads are short. Some need several journal blocks or a large part of one.
    fn filling_bytes(&self) -> usize {
        let mixed = self.number.wrapping_mul(2_654_435_761) >> 7;
        match mixed % 64 {
            0 => 40_000,
            1..4 => 5_000,
            _ => (mixed % 150) as usize,
        }
    }

    /// Parses a received payload. Panics if it differs from the result of `payload`.
    #[track_caller]
    pub fn of_payload(payload: &[u8]) -> Id {
        let text = std::str::from_utf8(payload).expect("payloads are text");
        let mut numbers = text.split(' ').map(|field| field.parse::<u32>());
        let mut next = || match numbers.next() {
            Some(Ok(number)) => number,
            _ => panic!("the server sent a payload that no client published: {text:.60}"),
        };
        let lane = Lane {
            publisher: next() as u8,
            topic: next() as u8,
            qos: next() as u8,
        };
        let id = Id { lane, number: next() };
        assert!(id.payload() == payload, "the server changed the payload of {id}");
        id
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lane { publisher, qos, .. } = self.lane;
        let topic = self.lane.topic_name();
        write!(
            f,
            "message {} of publisher {publisher} on {topic} at QoS {qos}",
            self.number
        )
    }
}
