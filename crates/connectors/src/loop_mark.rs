//! Marks of messages that pass through a connector. With them, an action recognises a message that came from its own
//! target.

use crate::record::Record;

/// The user property with which a bridge marks messages that pass through it. A record carries, under this name, the
/// marks of the bridges that the message has passed before. A message from a Kafka source has a header of this name.
pub const LOOP_PROPERTY: &str = "tidewire-bridge";

/// Marks of the messages that pass through a connector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopMark {
    /// The mark of a received message begins with this. The topic at the broker follows, as a hash.
    received: String,
    /// Mark of sent messages.
    pub(crate) sent: String,
}

impl LoopMark {
    pub(crate) fn new(connector: &str) -> LoopMark {
        LoopMark {
            received: format!("{connector}/in/"),
            sent: format!("{connector}/out"),
        }
    }

    /// Creates the marks of a new connector. A random number makes them unique, because names may be equal at
    /// different brokers.
    pub fn generate(name: &str) -> Result<LoopMark, String> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| format!("cannot generate a random number: {error}"))?;
        Ok(LoopMark::new(&format!("{name}/{:016x}", u64::from_le_bytes(random))))
    }

    pub(crate) fn is(&self, mark: &str) -> bool {
        mark == self.sent || mark.starts_with(&self.received)
    }

    /// Returns the mark of a message that was received under this topic.
    pub(crate) fn received(&self, topic: &str) -> String {
        format!("{}{:016x}", self.received, fnv1a(topic.as_bytes()))
    }

    /// Returns whether a record with this topic would return a message to the broker from which it came. Another topic
    /// is not an echo: a rule may answer a message.
    pub(crate) fn is_echo(&self, record: &Record, topic: &str) -> bool {
        let Some(carried) = record.carried(LOOP_PROPERTY) else {
            return false;
        };
        let received = self.received(topic);
        (0..carried.fields()).any(|index| carried.field(index) == Some(received.as_bytes()))
    }
}

/// The 64-bit FNV-1a hash. Equal in every version, because buffered records contain it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}
