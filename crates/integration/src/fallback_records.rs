//! Data that the records of an action carry for its fallback actions.
//!
//! If an action has fallbacks, each of its records contains a *carried record* per fallback, rendered when the message
//! was published. The name of a carried record is the id of the fallback action, or `republish:` and a number.
//! Fallbacks therefore take buffer space for every message. When a message is given up, its carried records contain all
//! data that the fallbacks need. A record that a fallback action receives carries only the marks of bridges
//! (`loops.rs`), because fallbacks of fallbacks are not used.

use broker::tap::TapPublication;
use connectors::{Record, RecordWriter, Records};
use mqtt::QoS;
use rules::{Map, MissingText, Template, TemplateOverflow};

use crate::cause::OutputContext;
use crate::loops;
use crate::republish::republish;
use crate::set::{FallbackTemplates, LiveFallback};

/// Adds carried records for the fallbacks to the last record. A fallback is skipped if its templates cannot be
/// rendered.
pub fn add_fallback_records(records: &mut Records, fallbacks: &[LiveFallback], output: &Map, stamp: OutputContext<'_>) {
    for LiveFallback { name, templates: fill } in fallbacks {
        match fill {
            FallbackTemplates::Action { bridge, .. } if bridge.has_own_mark(stamp.bridges) => {
                records.carry(&looped_record_name(name), 0, |_| true);
            }
            FallbackTemplates::Action { templates, .. } => records.carry(name, templates.len(), |writer| {
                write_fields(writer, templates, output).is_none()
            }),
            FallbackTemplates::Republish(templates) => {
                if let Ok(mut message) = republish(templates, output, stamp.mark) {
                    loops::mark(&mut message, stamp.bridges);
                    carry_message(records, name, &message);
                }
            }
        }
    }
}

/// Renders templates into a record. Returns the last error.
pub fn write_fields(writer: &mut RecordWriter<'_>, templates: &[Template], output: &Map) -> Option<TemplateOverflow> {
    let mut problem = None;
    for template in templates {
        let Some(value) = template.single(output) else {
            writer.field(|out| {
                problem = template
                    .render(output, MissingText::Undefined, out)
                    .err()
                    .or(problem.take())
            });
            continue;
        };
        // A missing value is null, not the text `undefined`.
        match value.is_missing() {
            true => writer.null(),
            false => writer.field(|out| value.show(out, MissingText::Undefined)),
        }
    }
    problem
}

/// Fields: topic | payload | properties | QoS u8 | retain u8 | mark u64, little-endian | expiry in s u32, or null.
fn carry_message(records: &mut Records, name: &str, message: &TapPublication) {
    records.carry(name, 7, |writer| {
        for part in [message.topic.as_bytes(), &message.payload, &message.properties] {
            writer.field(|out| out.extend_from_slice(part));
        }
        for part in [message.qos as u8, u8::from(message.retain)] {
            writer.field(|out| out.push(part));
        }
        writer.field(|out| out.extend_from_slice(&message.mark.to_le_bytes()));
        match message.expiry_s {
            Some(expiry_s) => writer.field(|out| out.extend_from_slice(&expiry_s.to_le_bytes())),
            None => writer.null(),
        }
        true
    });
}

/// Returns the message of a carried record.
pub fn message_of(record: &Record) -> Option<TapPublication> {
    let qos = match record.field(3)? {
        [0] => QoS::AtMostOnce,
        [1] => QoS::AtLeastOnce,
        [2] => QoS::ExactlyOnce,
        _ => return None,
    };
    Some(TapPublication {
        topic: String::from_utf8(record.field(0)?.to_vec()).ok()?,
        payload: record.field(1)?.to_vec(),
        properties: record.field(2)?.to_vec(),
        qos,
        retain: record.field(4)? == [1],
        expiry_s: record
            .field(6)
            .and_then(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?))),
        mark: u64::from_le_bytes(record.field(5)?.try_into().ok()?),
    })
}

/// Returns the name of an empty carried record. It states that the fallback must not send the message, because the
/// message has already passed the connector of the fallback action.
pub fn looped_record_name(name: &str) -> String {
    format!("came back:{name}")
}
