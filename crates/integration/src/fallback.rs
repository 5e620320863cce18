//! Fallback actions: what an action has given up goes to others, filled in for them when the message was there.
//!
//! A record of an action that has some carries what each of them is to get, under its name: the id of the action, or `republish:` and a
//! number. So a fallback costs room in the buffer for every message, and nothing that is needed is missing when it is. A record that
//! comes from a fallback carries no more than the marks of bridges (`loops.rs`): what fails there ends there.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::tap::MadeMessage;
use connectors::{BoxFuture, Fallback, FellBack, Record, RecordWriter, Records};
use mqtt::QoS;
use rules::{Map, Missing, Template, TemplateOverflow};

use crate::engine::{Inner, Reached};
use crate::handover::Stamp;
use crate::loops;
use crate::republish::{Unpublished, publish_all, republish};
use crate::set::{Fill, LiveFallback, Republish};

/// Between two looks at an action that is not there, or has no room.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// About as long as a buffer takes to commit.
const COMMIT: Duration = Duration::from_millis(2);

/// How long the server may take to keep what is published. Longer than that it may be waiting for the very action whose messages these are.
const PUBLISH_WITHIN: Duration = Duration::from_secs(60);

/// What gets what an action gives up.
#[derive(Clone)]
pub enum Target {
    /// By id.
    Action(String),
    Republish {
        name: String,
        templates: Arc<Republish>,
    },
}

impl Target {
    /// What is for it is carried under this.
    pub fn name(&self) -> &str {
        match self {
            Target::Action(name) | Target::Republish { name, .. } => name,
        }
    }
}

/// Those of one action.
pub struct FallbackActions {
    pub engine: Weak<Inner>,
    pub targets: Vec<Target>,
}

/// Adds to the last record what fallbacks are to get; nothing for one whose templates cannot be filled in.
pub fn carry(records: &mut Records, fallbacks: &[LiveFallback], output: &Map, stamp: Stamp<'_>) {
    for LiveFallback { name, fill } in fallbacks {
        match fill {
            Fill::Action { bridge, .. } if bridge.has_sent(stamp.bridges) => {
                records.carry(&came_back(name), 0, |_| true);
            }
            Fill::Action { templates, .. } => records.carry(name, templates.len(), |writer| {
                write_fields(writer, templates, output).is_none()
            }),
            Fill::Republish(templates) => {
                if let Ok(mut message) = republish(templates, output, stamp.mark) {
                    loops::mark(&mut message, stamp.bridges);
                    carry_message(records, name, &message);
                }
            }
        }
    }
}

/// Writes what templates are filled in to. Returns what went wrong.
pub fn write_fields(writer: &mut RecordWriter<'_>, templates: &[Template], output: &Map) -> Option<TemplateOverflow> {
    let mut problem = None;
    for template in templates {
        let Some(value) = template.single(output) else {
            writer.field(|out| {
                problem = template
                    .render(output, Missing::Undefined, out)
                    .err()
                    .or(problem.take())
            });
            continue;
        };
        // A null of the target, not a text.
        match value.is_nothing() {
            true => writer.null(),
            false => writer.field(|out| value.show(out, Missing::Undefined)),
        }
    }
    problem
}

/// Fields: topic | payload | properties | QoS u8 | retain u8 | mark u64, little-endian | expiry in s u32, or null.
fn carry_message(records: &mut Records, name: &str, message: &MadeMessage) {
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

fn message_of(record: &Record) -> Option<MadeMessage> {
    let qos = match record.field(3)? {
        [0] => QoS::AtMostOnce,
        [1] => QoS::AtLeastOnce,
        [2] => QoS::ExactlyOnce,
        _ => return None,
    };
    Some(MadeMessage {
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

impl Fallback for FallbackActions {
    fn take<'a>(&'a self, given_up: &'a [Record]) -> BoxFuture<'a, FellBack> {
        Box::pin(async move {
            let mut fell_back = FellBack::default();
            for target in &self.targets {
                match target {
                    Target::Action(id) => self.give(id, given_up, &mut fell_back).await,
                    Target::Republish { name, .. } => self.publish(name, given_up, &mut fell_back).await,
                }
            }
            fell_back
        })
    }
}

/// Carried under this instead of what would be for an action whose connector the message has gone out through before: it ends there.
fn came_back(name: &str) -> String {
    format!("came back:{name}")
}

fn nothing_for(name: &str) -> String {
    format!("fallback action {name}: nothing was filled in for it when the messages came")
}

impl FallbackActions {
    /// Ends when the action has all that there is for it where it keeps it, or is no more.
    async fn give(&self, id: &str, given_up: &[Record], fell_back: &mut FellBack) {
        let mut records = Records::new();
        let mut ended = 0;
        for record in given_up {
            match record.carried(id) {
                Some(own) => {
                    records.push_copy(&own);
                    loops::hand_on_marks(&mut records, record);
                }
                None => ended += u64::from(record.carried(&came_back(id)).is_some()),
            }
        }
        let messages = u64::from(records.count());
        fell_back.lose(given_up.len() as u64 - messages - ended, || nothing_for(id));
        fell_back.lose(ended, || {
            format!("fallback action {id}: the message has gone out through its connector before, and would go round for ever")
        });
        while !records.is_empty() {
            let reached = match self.engine.upgrade() {
                Some(engine) => engine.reach(id, |buffer| {
                    let ticket = buffer.append(&mut records).ok()?;
                    Some((buffer.clone(), ticket))
                }),
                None => Reached::NotNow,
            };
            match reached {
                Reached::Yes((buffer, ticket)) => {
                    while buffer.stored() < ticket {
                        tokio::time::sleep(COMMIT).await;
                    }
                    fell_back.taken += messages;
                }
                Reached::NotNow => tokio::time::sleep(LOOK_EVERY).await,
                Reached::Never => {
                    let reason = || format!("fallback action {id}: does not exist, or is not enabled");
                    return fell_back.lose(messages, reason);
                }
            }
        }
    }

    async fn publish(&self, name: &str, given_up: &[Record], fell_back: &mut FellBack) {
        let carried = given_up.iter().filter_map(|record| record.carried(name));
        let messages: Vec<MadeMessage> = carried.filter_map(|record| message_of(&record)).collect();
        let count = messages.len() as u64;
        fell_back.lose(given_up.len() as u64 - count, || nothing_for(name));
        if count == 0 {
            return;
        }
        match self.publish_within(messages).await {
            Ok(()) => fell_back.taken += count,
            Err(error) => fell_back.lose(count, || format!("fallback action {name}: {error}")),
        }
    }

    async fn publish_within(&self, mut messages: Vec<MadeMessage>) -> Result<(), String> {
        let until = Instant::now() + PUBLISH_WITHIN;
        let mut unpublished = None;
        loop {
            let net = self.engine.upgrade().and_then(|engine| engine.server());
            let published = match net {
                Some(net) => {
                    let rest = unpublished.get_or_insert_with(|| Unpublished::new(&net, std::mem::take(&mut messages)));
                    tokio::time::timeout_at(until.into(), publish_all(&net, rest)).await
                }
                None => Ok(Err("the server does not run".to_owned())),
            };
            match published {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(_)) if Instant::now() < until => tokio::time::sleep(LOOK_EVERY).await,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    return Err(format!(
                        "the server has not kept it within {} s",
                        PUBLISH_WITHIN.as_secs()
                    ));
                }
            }
        }
    }
}
