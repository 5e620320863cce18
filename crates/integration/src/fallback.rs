//! Fallback actions: deliver the messages that an action gives up to other actions.
//!
//! If an action has fallbacks, each of its records contains a *carried record* per fallback, rendered when the message
//! was published. The name of a carried record is the id of the fallback action, or `republish:` and a number.
//! Fallbacks therefore take buffer space for every message. When a message is given up, its carried records contain all
//! data that the fallbacks need. A record that a fallback action receives carries only the marks of bridges
//! (`loops.rs`), because fallbacks of fallbacks are not used.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::tap::TapPublication;
use connectors::{BoxFuture, Fallback, FallbackOutcome, Record, RecordWriter, Records};
use mqtt::QoS;
use rules::{Map, MissingText, Template, TemplateOverflow};

use crate::collector::OutputContext;
use crate::engine::{BufferAccess, EngineShared};
use crate::loops;
use crate::republish::{PendingPublishes, publish_all, republish};
use crate::set::{FallbackTemplates, LiveFallback, Republish};

/// Interval of attempts while an action does not run or its buffer is full.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// Typical duration of a buffer commit.
const COMMIT: Duration = Duration::from_millis(2);

/// Maximum time for the server to store published messages. Without a limit, the action could wait forever: storing may
/// depend on a rule that sends the messages to this same action.
const PUBLISH_WITHIN: Duration = Duration::from_secs(60);

/// A fallback of an action.
#[derive(Clone)]
pub enum FallbackTarget {
    /// The id of an action.
    Action(String),
    Republish {
        name: String,
        templates: Arc<Republish>,
    },
}

impl FallbackTarget {
    /// Returns the name under which records carry data for it.
    pub fn name(&self) -> &str {
        match self {
            FallbackTarget::Action(name) | FallbackTarget::Republish { name, .. } => name,
        }
    }
}

/// The fallbacks of one action.
pub struct FallbackActions {
    pub engine: Weak<EngineShared>,
    pub targets: Vec<FallbackTarget>,
}

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

fn message_of(record: &Record) -> Option<TapPublication> {
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

impl Fallback for FallbackActions {
    fn take<'a>(&'a self, given_up: &'a [Record]) -> BoxFuture<'a, FallbackOutcome> {
        Box::pin(async move {
            let mut fell_back = FallbackOutcome::default();
            for target in &self.targets {
                match target {
                    FallbackTarget::Action(id) => self.append(id, given_up, &mut fell_back).await,
                    FallbackTarget::Republish { name, .. } => self.publish(name, given_up, &mut fell_back).await,
                }
            }
            fell_back
        })
    }
}

/// Returns the name of an empty carried record. It states that the fallback must not send the message, because the
/// message has already passed the connector of the fallback action.
fn looped_record_name(name: &str) -> String {
    format!("came back:{name}")
}

fn no_record_message(name: &str) -> String {
    format!(
        "fallback action {name}: the messages contain no data for it, because it was defined later or its templates \
         could not be rendered"
    )
}

impl FallbackActions {
    /// Returns when the action has stored its records, or no longer exists.
    async fn append(&self, id: &str, given_up: &[Record], fell_back: &mut FallbackOutcome) {
        let mut records = Records::new();
        let mut looped = 0;
        for record in given_up {
            match record.carried(id) {
                Some(own) => {
                    records.push_copy(&own);
                    loops::copy_marks(&mut records, record);
                }
                None => looped += u64::from(record.carried(&looped_record_name(id)).is_some()),
            }
        }
        let messages = u64::from(records.count());
        fell_back.add_lost(given_up.len() as u64 - messages - looped, || no_record_message(id));
        fell_back.add_lost(looped, || {
            format!("fallback action {id}: the message has already passed its connector and would loop")
        });
        while !records.is_empty() {
            let reached = match self.engine.upgrade() {
                Some(engine) => engine.with_buffer(id, |buffer| {
                    let ticket = buffer.append(&mut records).ok()?;
                    Some((buffer.clone(), ticket))
                }),
                None => BufferAccess::Unavailable,
            };
            match reached {
                BufferAccess::Done((buffer, ticket)) => {
                    while buffer.stored() < ticket {
                        tokio::time::sleep(COMMIT).await;
                    }
                    fell_back.taken += messages;
                }
                BufferAccess::Unavailable => tokio::time::sleep(RETRY_EVERY).await,
                BufferAccess::NoSuchAction => {
                    let reason = || format!("fallback action {id}: does not exist or is disabled");
                    return fell_back.add_lost(messages, reason);
                }
            }
        }
    }

    async fn publish(&self, name: &str, given_up: &[Record], fell_back: &mut FallbackOutcome) {
        let carried = given_up.iter().filter_map(|record| record.carried(name));
        let messages: Vec<TapPublication> = carried.filter_map(|record| message_of(&record)).collect();
        let count = messages.len() as u64;
        fell_back.add_lost(given_up.len() as u64 - count, || no_record_message(name));
        if count == 0 {
            return;
        }
        match self.publish_with_timeout(messages).await {
            Ok(()) => fell_back.taken += count,
            Err(error) => fell_back.add_lost(count, || format!("fallback action {name}: {error}")),
        }
    }

    async fn publish_with_timeout(&self, mut messages: Vec<TapPublication>) -> Result<(), String> {
        let until = Instant::now() + PUBLISH_WITHIN;
        let mut unpublished = None;
        loop {
            let net = self.engine.upgrade().and_then(|engine| engine.server());
            let published = match net {
                Some(net) => {
                    let rest =
                        unpublished.get_or_insert_with(|| PendingPublishes::new(&net, std::mem::take(&mut messages)));
                    tokio::time::timeout_at(until.into(), publish_all(&net, rest)).await
                }
                None => Ok(Err("the server is not running".to_owned())),
            };
            match published {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(_)) if Instant::now() < until => tokio::time::sleep(RETRY_EVERY).await,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    return Err(format!(
                        "the server did not store the messages within {} s",
                        PUBLISH_WITHIN.as_secs()
                    ));
                }
            }
        }
    }
}
