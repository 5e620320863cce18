//! What is on its way to the broker: batches of the actions, and the window of messages that are sent and not yet confirmed.
//! No I/O; time is passed in, but for what is left of a message's expiry interval.
//!
//! Packet identifiers are `1..=window`. A broker that has kept our session may hold identifiers at QoS 2 from before: a new
//! message with one of them would count as a repetition and be lost. So before the first QoS 2 message of a kept
//! session all identifiers are released, with PUBREL.
//!
//! Some brokers answer a message that they do not take by closing the connection. To find it among those on their way, fewer go at a time
//! after each connection that was lost with some on their way, and more with each that is confirmed. One that has lost the connection
//! while it was the only one is turned back, and the others go on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mqtt::{
    Ack, PacketId, PacketType, Properties, Property, PropertyWriter, ProtocolVersion, Publish, PublishExtras, QoS,
    ReasonCode, encode_bare_ack, encode_publish, publish_size,
};
use tokio::sync::oneshot;

use super::properties::{self, Slot};
use crate::record::Record;
use crate::sink::{Failure, Outcome};

/// Bytes that wait for the socket before no more is encoded.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// The user property by which a bridge knows messages that have come through it. Records carry under this name what else is to stand there:
/// the marks of the bridges that the message has gone through before.
pub const LOOP_PROPERTY: &str = "tidewire-bridge";

const TOPIC: usize = 0;
const PAYLOAD: usize = 1;
const QOS: usize = 2;
const RETAIN: usize = 3;
const PROPERTIES: usize = 4;

/// Bytes for the socket.
#[derive(Default)]
pub(super) struct Output {
    /// Not written yet.
    pub bytes: Vec<u8>,
    /// How many were written before them.
    written: u64,
}

impl Output {
    /// How many bytes there will have been with the last one here.
    fn end(&self) -> u64 {
        self.written + self.bytes.len() as u64
    }

    /// The socket has taken the first ones.
    pub fn take(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.written += count as u64;
    }
}

/// A batch of an action.
pub(super) struct Batch {
    pub records: Vec<Record>,
    /// What the fields from the fifth on are for.
    pub properties: Arc<[Slot]>,
    pub reply: oneshot::Sender<Outcome>,
}

/// What the broker allows; from CONNACK.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub version: ProtocolVersion,
    pub window: u16,
    pub maximum_qos: QoS,
    pub is_retain_available: bool,
    pub packet_bytes_max: usize,
    /// What own messages are marked with.
    pub loop_mark: Option<LoopMark>,
}

/// How a connector marks what goes through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoopMark {
    /// What it has taken in.
    pub taken: String,
    /// What it has sent.
    pub sent: String,
}

impl LoopMark {
    pub fn new(connector: &str) -> LoopMark {
        LoopMark {
            taken: connector.to_owned(),
            sent: format!("{connector}/out"),
        }
    }

    pub fn is(&self, mark: &str) -> bool {
        mark == self.taken || mark == self.sent
    }
}

struct Pending {
    batch: Batch,
    next: usize,
    results: Vec<Option<Result<(), Failure>>>,
    left: usize,
}

#[derive(Clone, Copy)]
struct Flight {
    batch: u64,
    index: usize,
    qos: QoS,
    is_received: bool,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    /// Nothing of another time.
    Done,
    Needed,
    /// So many PUBCOMP are missing.
    Waiting {
        left: u16,
        since: Instant,
    },
}

pub(super) struct Outgoing {
    limits: Limits,
    batches: HashMap<u64, Pending>,
    /// Batches with records that are not sent yet, in their order.
    order: VecDeque<u64>,
    number: u64,
    flights: Vec<Option<Flight>>,
    free: VecDeque<u16>,
    /// Messages that may be on their way now, at most.
    courage: usize,
    release: Release,
    /// QoS 0: bytes that have to be written, batch and index.
    unwritten: VecDeque<(u64, u64, usize)>,
}

impl Outgoing {
    /// Of a connection. `courage`: what `lost` said of the one before.
    pub fn new(limits: Limits, is_session_present: bool, courage: usize) -> Outgoing {
        let window = limits.window;
        Outgoing {
            limits,
            batches: HashMap::new(),
            order: VecDeque::new(),
            number: 0,
            flights: vec![None; usize::from(window) + 1],
            free: (1..=window).collect(),
            courage,
            release: if is_session_present {
                Release::Needed
            } else {
                Release::Done
            },
            unwritten: VecDeque::new(),
        }
    }

    pub fn push(&mut self, batch: Batch) {
        let count = batch.records.len();
        self.number += 1;
        self.order.push_back(self.number);
        let pending = Pending {
            batch,
            next: 0,
            results: vec![None; count],
            left: count,
        };
        self.batches.insert(self.number, pending);
    }

    /// Batches that are not done.
    pub fn waiting(&self) -> usize {
        self.batches.len()
    }

    /// Encodes as much as window and output have room for.
    pub fn fill(&mut self, out: &mut Output, now: Instant) {
        while out.bytes.len() < OUTPUT_BYTES_MAX
            && let Some(&number) = self.order.front()
        {
            let Some(pending) = self.batches.get_mut(&number) else {
                self.order.pop_front();
                continue;
            };
            let index = pending.next;
            if index == pending.batch.records.len() {
                self.order.pop_front();
                self.finish_if_done(number);
                continue;
            }
            match self.send(number, index, out, now) {
                Ok(true) => {}
                Ok(false) => break,
                Err(reason) => self.done(number, index, Err(Failure::Refused(reason))),
            }
            if let Some(pending) = self.batches.get_mut(&number) {
                pending.next = index + 1;
            }
        }
    }

    /// `false`: there is no room now. An error: the record can never be sent.
    fn send(&mut self, number: u64, index: usize, out: &mut Output, now: Instant) -> Result<bool, String> {
        let Some(pending) = self.batches.get(&number) else {
            return Ok(true);
        };
        let record = &pending.batch.records[index];
        let topic = record.field(TOPIC).unwrap_or_default();
        let topic = std::str::from_utf8(topic).map_err(|_| "topic: is no UTF-8 text".to_owned())?;
        mqtt::validate_topic_name(topic).map_err(|error| format!("topic: {error}"))?;
        let qos = qos(record)?.min(self.limits.maximum_qos);
        let retain = retain(record)? && self.limits.is_retain_available;
        let mut properties = Vec::new();
        let mut publish = Publish {
            dup: false,
            qos,
            retain,
            topic,
            packet_id: None,
            properties: put_properties(&self.limits, record, &pending.batch.properties, &mut properties)?,
            payload: record.field(PAYLOAD).unwrap_or_default(),
        };
        let size = publish_size(&publish, PublishExtras::default(), self.limits.version);
        if size > self.limits.packet_bytes_max {
            let most = self.limits.packet_bytes_max;
            return Err(format!(
                "the packet has {size} bytes, and the broker takes {most} at most"
            ));
        }
        if qos == QoS::AtMostOnce {
            encode_publish(&publish, PublishExtras::default(), self.limits.version, &mut out.bytes);
            self.unwritten.push_back((out.end(), number, index));
            return Ok(true);
        }
        if qos == QoS::ExactlyOnce && self.release != Release::Done {
            self.start_release(out, now);
            return Ok(false);
        }
        if self.in_flight() >= self.courage {
            return Ok(false);
        }
        let Some(id) = self.free.pop_front() else {
            return Ok(false);
        };
        publish.packet_id = PacketId::new(id);
        encode_publish(&publish, PublishExtras::default(), self.limits.version, &mut out.bytes);
        self.flights[usize::from(id)] = Some(Flight {
            batch: number,
            index,
            qos,
            is_received: false,
            since: now,
        });
        Ok(true)
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - 1 - self.free.len()
    }

    fn start_release(&mut self, out: &mut Output, now: Instant) {
        // Identifiers in flight are new ones at QoS 1; waiting for them keeps this simple.
        if self.release == Release::Needed && self.in_flight() == 0 {
            for id in (1..=self.limits.window).filter_map(PacketId::new) {
                encode_bare_ack(PacketType::PubRel, id, &mut out.bytes);
            }
            self.release = Release::Waiting {
                left: self.limits.window,
                since: now,
            };
        }
    }

    /// The socket has taken more: QoS 0 knows no other confirmation.
    pub fn written(&mut self, out: &Output) {
        while let Some(&(end, number, index)) = self.unwritten.front()
            && end <= out.written
        {
            self.unwritten.pop_front();
            self.done(number, index, Ok(()));
        }
    }

    /// PUBACK, PUBREC or PUBCOMP. An error: the broker does not keep to the protocol.
    pub fn acknowledged(
        &mut self,
        kind: PacketType,
        ack: &Ack<'_>,
        out: &mut Output,
        now: Instant,
    ) -> Result<(), String> {
        let id = ack.packet_id.get();
        if let Release::Waiting { left, since } = self.release
            && kind == PacketType::PubComp
        {
            self.release = match left {
                1 => Release::Done,
                left => Release::Waiting { left: left - 1, since },
            };
            return Ok(());
        }
        let Some(Some(flight)) = self.flights.get(usize::from(id)).copied() else {
            return Err(format!("the broker sent {kind} for packet {id}, which was not sent"));
        };
        let is_expected = match kind {
            PacketType::PubAck => flight.qos == QoS::AtLeastOnce,
            PacketType::PubRec => flight.qos == QoS::ExactlyOnce,
            _ => flight.is_received,
        };
        if !is_expected {
            return Err(format!(
                "the broker sent {kind} for packet {id}, which was sent in another way"
            ));
        }
        if kind == PacketType::PubRec && !ack.reason.is_error() {
            self.flights[usize::from(id)] = Some(Flight {
                is_received: true,
                since: now,
                ..flight
            });
            encode_bare_ack(PacketType::PubRel, ack.packet_id, &mut out.bytes);
            return Ok(());
        }
        self.flights[usize::from(id)] = None;
        self.free.push_back(id);
        self.courage = self.courage.saturating_add(1);
        // The broker has the message since PUBREC: what PUBCOMP says changes nothing.
        let result = match kind {
            PacketType::PubComp => Ok(()),
            _ => verdict(ack),
        };
        self.done(flight.batch, flight.index, result);
        Ok(())
    }

    fn done(&mut self, number: u64, index: usize, result: Result<(), Failure>) {
        if let Some(pending) = self.batches.get_mut(&number)
            && pending.results[index].replace(result).is_none()
        {
            pending.left -= 1;
            self.finish_if_done(number);
        }
    }

    fn finish_if_done(&mut self, number: u64) {
        if self.batches.get(&number).is_some_and(|pending| pending.left == 0)
            && let Some(pending) = self.batches.remove(&number)
        {
            pending.answer("");
        }
    }

    /// Since when the broker owes an answer.
    pub fn oldest(&self) -> Option<Instant> {
        let flights = self.flights.iter().flatten().map(|flight| flight.since);
        let release = match self.release {
            Release::Waiting { since, .. } => Some(since),
            _ => None,
        };
        flights.chain(release).min()
    }

    /// The connection is gone: what is not confirmed is sent again another time. Returns how many may be on their way at the beginning
    /// of the next one.
    pub fn lost(mut self, reason: &str) -> usize {
        let courage = match self.in_flight() {
            0 => self.courage,
            count => (count / 4).max(1),
        };
        let mut flights = self.flights.iter().flatten().filter(|flight| !flight.is_received);
        if self.courage == 1
            && let Some(alone) = flights.next()
            && let Some(pending) = self.batches.get_mut(&alone.batch)
        {
            let reason = format!("the connection was lost when only this message was on its way: {reason}");
            pending.results[alone.index] = Some(Err(Failure::Busy(reason)));
        }
        for pending in self.batches.into_values() {
            pending.answer(reason);
        }
        courage
    }
}

impl Pending {
    /// `reason`: for those that have no result.
    fn answer(self, reason: &str) {
        let result = |result: Option<_>| result.unwrap_or_else(|| Err(Failure::Away(reason.to_owned())));
        // Who no longer waits needs no answer.
        let _ = self.batch.reply.send(self.results.into_iter().map(result).collect());
    }
}

fn qos(record: &Record) -> Result<QoS, String> {
    match record.field(QOS).unwrap_or(b"0") {
        b"0" => Ok(QoS::AtMostOnce),
        b"1" => Ok(QoS::AtLeastOnce),
        b"2" => Ok(QoS::ExactlyOnce),
        other => Err(format!(
            "qos: is `{}`, must be 0, 1 or 2",
            String::from_utf8_lossy(other)
        )),
    }
}

fn retain(record: &Record) -> Result<bool, String> {
    match record.field(RETAIN).unwrap_or(b"false") {
        b"true" | b"1" => Ok(true),
        b"false" | b"0" => Ok(false),
        other => Err(format!(
            "retain: is `{}`, must be true or false",
            String::from_utf8_lossy(other)
        )),
    }
}

fn put_properties<'a>(
    limits: &Limits,
    record: &Record,
    slots: &[Slot],
    out: &'a mut Vec<u8>,
) -> Result<Properties<'a>, String> {
    if !limits.version.has_properties() {
        return Ok(Properties::EMPTY);
    }
    let mut writer = PropertyWriter::new(out);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    properties::put(&mut writer, slots, record, PROPERTIES, now.as_millis() as u64)?;
    if let Some(mark) = &limits.loop_mark {
        if let Some(carried) = record.carried(LOOP_PROPERTY) {
            for mark in (0..carried.fields()).filter_map(|index| carried.text(index)) {
                writer.put(Property::UserProperty(LOOP_PROPERTY, &mark));
            }
        }
        writer.put(Property::UserProperty(LOOP_PROPERTY, &mark.sent));
    }
    Ok(writer.finish())
}

/// What a reason code of MQTT 5 means for a message; before, there is only success.
fn verdict(ack: &Ack<'_>) -> Result<(), Failure> {
    if !ack.reason.is_error() {
        return Ok(());
    }
    let mut text = format!("the broker answered {}", ack.reason.name());
    if let Some(reason) = ack.properties.reason_string() {
        text.push_str(&format!(": {reason}"));
    }
    Err(match ack.reason {
        ReasonCode::NotAuthorized | ReasonCode::TopicNameInvalid | ReasonCode::PayloadFormatInvalid => {
            Failure::Refused(text)
        }
        _ => Failure::Busy(text),
    })
}
