//! Loop protection between brokers. Each bridge adds its mark to messages that pass it, in a user property. A message
//! is not sent through a bridge that it has already passed.
//!
//! MQTT sources add their mark to messages, and drop messages that already have it (`connectors::mqtt`). The outputs of
//! rules keep the marks of their message: MQTT actions forward them, also as fallback actions, and republished messages
//! have them. Before MQTT 5 there are no user properties, and therefore no marks.
//!
//! Kafka sources add their mark in the same way, and Kafka actions use it: a message does not return to its topic
//! through the same connector. The mark stays in this server and its MQTT messages; Kafka does not store it.

use broker::tap::TapPublication;
use connectors::mqtt::LOOP_PROPERTY;
use connectors::{Record, Records, SourceMessage};
use mqtt::{Properties, Property, PropertyWriter};

/// Maximum number of marks that are used, the latest ones. Chains of bridges are shorter. The limit protects against
/// publishers that send many marks.
const MARKS_MAX: usize = 32;

/// Returns the marks of a message with these properties.
pub fn bridges_of(properties: &[u8]) -> Vec<&str> {
    if properties.is_empty() {
        return Vec::new();
    }
    let user = Properties::from_validated(properties).user_properties();
    let marks = user.filter(|(name, _)| *name == LOOP_PROPERTY).map(|(_, mark)| mark);
    latest(marks.collect())
}

/// Returns the marks of a message from a source.
pub fn bridges_before(incoming: &SourceMessage) -> Vec<&str> {
    let headers = incoming.headers.iter().filter(|(name, _)| name == LOOP_PROPERTY);
    let marks = headers.filter_map(|(_, mark)| std::str::from_utf8(mark.as_deref()?).ok());
    latest(marks.collect())
}

fn latest(mut marks: Vec<&str>) -> Vec<&str> {
    marks.drain(..marks.len().saturating_sub(MARKS_MAX));
    marks
}

pub fn mark(message: &mut TapPublication, bridges: &[&str]) {
    let mut writer = PropertyWriter::new(&mut message.properties);
    for mark in bridges {
        writer.put(Property::UserProperty(LOOP_PROPERTY, mark));
    }
}

/// How an action handles marks.
#[derive(Clone, Debug, Default)]
pub struct MarkPolicy {
    /// Whether its records carry the marks of their messages.
    pub is_bridge: bool,
    /// The mark that its connector adds to sent messages.
    pub mark: Option<String>,
}

impl MarkPolicy {
    pub fn has_own_mark(&self, bridges: &[&str]) -> bool {
        self.mark.as_deref().is_some_and(|mark| bridges.contains(&mark))
    }
}

/// Adds the marks to the last record, for an action that forwards them.
pub fn add_marks(records: &mut Records, bridges: &[&str]) {
    if !bridges.is_empty() {
        records.carry(LOOP_PROPERTY, bridges.len(), |writer| {
            for mark in bridges {
                writer.field(|out| out.extend_from_slice(mark.as_bytes()));
            }
            true
        });
    }
}

/// Copies the marks of `from` to the last record.
pub fn copy_marks(records: &mut Records, from: &Record) {
    if let Some(marks) = from.carried(LOOP_PROPERTY) {
        records.carry(LOOP_PROPERTY, marks.fields(), |writer| {
            for mark in (0..marks.fields()).filter_map(|index| marks.field(index)) {
                writer.field(|out| out.extend_from_slice(mark));
            }
            true
        });
    }
}
