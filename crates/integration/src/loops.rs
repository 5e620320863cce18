//! Messages that go from broker to broker and come back: each bridge leaves its mark on what goes through it, in a user property, and
//! nothing goes out twice where it has gone out before.
//!
//! MQTT sources put marks on what they publish and drop what is theirs themselves (`connectors::mqtt`). What rules make of a marked message
//! keeps its marks: an MQTT action hands them on, also as a fallback of another, and what is republished has them. Before MQTT 5 there are no user properties, and
//! so no marks.

use broker::tap::MadeMessage;
use connectors::mqtt::LOOP_PROPERTY;
use connectors::{Incoming, Record, Records};
use mqtt::{Properties, Property, PropertyWriter};

/// The last ones of more are kept. No sensible net of bridges is as deep, and a publisher may send as many as fit into a packet: before ours.
const MARKS_MAX: usize = 32;

/// Of a message with these properties.
pub fn bridges_of(properties: &[u8]) -> Vec<&str> {
    if properties.is_empty() {
        return Vec::new();
    }
    let user = Properties::from_validated(properties).user_properties();
    let marks = user.filter(|(name, _)| *name == LOOP_PROPERTY).map(|(_, mark)| mark);
    latest(marks.collect())
}

/// Of what a source has brought.
pub fn bridges_before(incoming: &Incoming) -> Vec<&str> {
    let headers = incoming.headers.iter().filter(|(name, _)| name == LOOP_PROPERTY);
    let marks = headers.filter_map(|(_, mark)| std::str::from_utf8(mark.as_deref()?).ok());
    latest(marks.collect())
}

fn latest(mut marks: Vec<&str>) -> Vec<&str> {
    marks.drain(..marks.len().saturating_sub(MARKS_MAX));
    marks
}

pub fn mark(message: &mut MadeMessage, bridges: &[&str]) {
    let mut writer = PropertyWriter::new(&mut message.properties);
    for mark in bridges {
        writer.put(Property::UserProperty(LOOP_PROPERTY, mark));
    }
}

/// What an action has to do with marks.
#[derive(Clone, Debug, Default)]
pub struct Bridge {
    /// It hands them on.
    pub is_bridge: bool,
    /// What its connector puts on what it sends.
    pub mark: Option<String>,
}

impl Bridge {
    pub fn has_sent(&self, bridges: &[&str]) -> bool {
        self.mark.as_deref().is_some_and(|mark| bridges.contains(&mark))
    }
}

/// Adds the marks to the last record, for an action that hands them on.
pub fn carry_marks(records: &mut Records, bridges: &[&str]) {
    if !bridges.is_empty() {
        records.carry(LOOP_PROPERTY, bridges.len(), |writer| {
            for mark in bridges {
                writer.field(|out| out.extend_from_slice(mark.as_bytes()));
            }
            true
        });
    }
}

/// Gives the last record the marks that another one carries.
pub fn hand_on_marks(records: &mut Records, from: &Record) {
    if let Some(marks) = from.carried(LOOP_PROPERTY) {
        records.carry(LOOP_PROPERTY, marks.fields(), |writer| {
            for mark in (0..marks.fields()).filter_map(|index| marks.field(index)) {
                writer.field(|out| out.extend_from_slice(mark));
            }
            true
        });
    }
}
