//! Outgoing messages of a connection: batches of the actions, and the window of unacknowledged messages. No I/O. Time
//! is passed in, except for the remaining message expiry interval.
//!
//! Packet identifiers of messages are `1..=message_ids`: twice `in_flight_max` of the configuration, so that one slow
//! acknowledgement does not stop the others. A broker with a stored session may still hold QoS 2 identifiers of an
//! earlier connection. It would take a new message with such an identifier for a repetition and drop it. Therefore all
//! identifiers are released with PUBREL before the first QoS 2 message of a stored session.
//!
//! Some brokers close the connection when they receive a message that they do not accept. To find it, the limit of
//! in-flight messages is reduced after each connection that was lost with messages in flight, and grows with each
//! acknowledged message. If the connection is lost with a single message in flight, that message is returned and the
//! others continue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mqtt::{
    Ack, PacketId, PacketType, Properties, Property, PropertyWriter, ProtocolVersion, Publish, PublishExtras, QoS,
    ReasonCode, encode_bare_ack, encode_publish, publish_size,
};
use mqtt_client::{ClientSession, InFlight, SessionEvent};
use tokio::sync::oneshot;

use super::properties::{self, FieldRole};
use crate::loop_mark::{LOOP_PROPERTY, LoopMark};
use crate::record::Record;
use crate::sink::{BatchOutcome, DeliveryFailure};

/// No further message is encoded while this much output waits for the socket.
const OUTPUT_BYTES_MAX: usize = 256 << 10;

const TOPIC: usize = 0;
const PAYLOAD: usize = 1;
const QOS: usize = 2;
const RETAIN: usize = 3;
const PROPERTIES: usize = 4;

/// Bytes for the socket.
#[derive(Default)]
pub(super) struct OutputBuffer {
    /// Bytes that are not written yet.
    pub bytes: Vec<u8>,
    /// Number of bytes written before them.
    written: u64,
}

impl OutputBuffer {
    /// Returns the number of bytes written after all present output.
    fn end(&self) -> u64 {
        self.written + self.bytes.len() as u64
    }

    /// Removes bytes that the socket has accepted.
    pub fn take(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.written += count as u64;
    }
}

/// A batch of an action.
pub(super) struct PublishBatch {
    pub records: Vec<Record>,
    /// Meaning of the fields from the fifth on.
    pub properties: Arc<[FieldRole]>,
    /// Counts messages that are not sent because they came from this broker.
    pub skipped_echoes: Arc<AtomicU64>,
    pub reply: oneshot::Sender<BatchOutcome>,
}

/// Limits of the broker, from CONNACK.
#[derive(Clone, Debug)]
pub(super) struct BrokerLimits {
    pub version: ProtocolVersion,
    pub window: u16,
    pub maximum_qos: QoS,
    pub is_retain_available: bool,
    pub packet_bytes_max: usize,
    /// The mark of our own messages.
    pub loop_mark: Option<LoopMark>,
}

struct UnfinishedBatch {
    batch: PublishBatch,
    next: usize,
    results: Vec<Option<Result<(), DeliveryFailure>>>,
    left: usize,
}

/// A message in flight.
#[derive(Clone, Copy)]
pub(super) struct SentRecord {
    batch: u64,
    index: usize,
    /// Time of the last packet that the broker has to answer.
    since: Instant,
}

/// The session of a connector with its broker.
pub(super) type ConnectorSession = ClientSession<SentRecord>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    /// No identifier of an earlier connection is in use.
    Done,
    Needed,
    /// PUBREL was sent for all identifiers; `left` PUBCOMP are missing.
    Waiting {
        left: u16,
        since: Instant,
    },
}

pub(super) struct OutgoingState {
    limits: BrokerLimits,
    batches: HashMap<u64, UnfinishedBatch>,
    /// Batches with unsent records, in order.
    order: VecDeque<u64>,
    number: u64,
    /// Packet identifiers of messages, from 1.
    message_ids: u16,
    /// Current limit of in-flight messages.
    in_flight_max: usize,
    release: Release,
    /// QoS 0 messages: end of the message in the output, batch and index.
    unwritten: VecDeque<(u64, u64, usize)>,
    /// Number of messages that were not sent because they came from this broker.
    pub echoes: u64,
}

impl OutgoingState {
    /// Creates the state of a connection. `in_flight_max` is the result of [`OutgoingState::connection_lost`] for the
    /// previous one.
    pub fn new(
        limits: BrokerLimits,
        message_ids: u16,
        is_session_present: bool,
        in_flight_max: usize,
    ) -> OutgoingState {
        OutgoingState {
            limits,
            batches: HashMap::new(),
            order: VecDeque::new(),
            number: 0,
            message_ids,
            in_flight_max,
            release: if is_session_present {
                Release::Needed
            } else {
                Release::Done
            },
            unwritten: VecDeque::new(),
            echoes: 0,
        }
    }

    pub fn push(&mut self, batch: PublishBatch) {
        let count = batch.records.len();
        self.number += 1;
        self.order.push_back(self.number);
        let pending = UnfinishedBatch {
            batch,
            next: 0,
            results: vec![None; count],
            left: count,
        };
        self.batches.insert(self.number, pending);
    }

    /// Returns the number of unfinished batches.
    pub fn waiting(&self) -> usize {
        self.batches.len()
    }

    /// Encodes messages up to the limits of window and output.
    pub fn fill(&mut self, session: &mut ConnectorSession, out: &mut OutputBuffer, now: Instant) {
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
            match self.send(number, index, session, out, now) {
                Ok(true) => {}
                Ok(false) => break,
                Err(reason) => self.done(number, index, Err(DeliveryFailure::Refused(reason))),
            }
            if let Some(pending) = self.batches.get_mut(&number) {
                pending.next = index + 1;
            }
        }
    }

    /// Encodes a message. Returns false if a limit is reached, and an error if the record can never be sent.
    fn send(
        &mut self,
        number: u64,
        index: usize,
        session: &mut ConnectorSession,
        out: &mut OutputBuffer,
        now: Instant,
    ) -> Result<bool, String> {
        let Some(pending) = self.batches.get(&number) else {
            return Ok(true);
        };
        let record = &pending.batch.records[index];
        let topic = record.field(TOPIC).unwrap_or_default();
        let topic = std::str::from_utf8(topic).map_err(|_| "topic: is not valid UTF-8".to_owned())?;
        mqtt::validate_topic_name(topic).map_err(|error| format!("topic: {error}"))?;
        if self
            .limits
            .loop_mark
            .as_ref()
            .is_some_and(|mark| mark.is_echo(record, topic))
        {
            self.echoes += 1;
            pending.batch.skipped_echoes.fetch_add(1, Ordering::Relaxed);
            self.done(number, index, Ok(()));
            return Ok(true);
        }
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
                "the packet has {size} bytes; the broker accepts at most {most}"
            ));
        }
        if qos == QoS::AtMostOnce {
            encode_publish(&publish, PublishExtras::default(), self.limits.version, &mut out.bytes);
            self.unwritten.push_back((out.end(), number, index));
            return Ok(true);
        }
        if qos == QoS::ExactlyOnce && self.release != Release::Done {
            self.start_release(session, out, now);
            return Ok(false);
        }
        let in_flight = session.in_flight_mut();
        let window = self.in_flight_max.min(self.limits.window.into());
        if in_flight.len() >= window || !in_flight.has_room() {
            return Ok(false);
        }
        let sent = SentRecord {
            batch: number,
            index,
            since: now,
        };
        publish.packet_id = Some(in_flight.push(qos, sent));
        encode_publish(&publish, PublishExtras::default(), self.limits.version, &mut out.bytes);
        Ok(true)
    }

    fn start_release(&mut self, session: &ConnectorSession, out: &mut OutputBuffer, now: Instant) {
        // Identifiers in flight belong to QoS 1 messages of this connection. Waiting for them avoids tracking which
        // ones to release.
        if self.release == Release::Needed && session.in_flight_count() == 0 {
            for id in (1..=self.message_ids).filter_map(PacketId::new) {
                encode_bare_ack(PacketType::PubRel, id, &mut out.bytes);
            }
            self.release = Release::Waiting {
                left: self.message_ids,
                since: now,
            };
        }
    }

    /// Confirms QoS 0 messages that the socket has accepted. They have no other confirmation.
    pub fn written(&mut self, out: &OutputBuffer) {
        while let Some(&(end, number, index)) = self.unwritten.front()
            && end <= out.written
        {
            self.unwritten.pop_front();
            self.done(number, index, Ok(()));
        }
    }

    /// Handles an event about a sent message. An error means a protocol violation of the broker.
    pub fn acknowledged(
        &mut self,
        event: SessionEvent<'_, SentRecord>,
        session: &mut ConnectorSession,
        now: Instant,
    ) -> Result<(), String> {
        match event {
            SessionEvent::Received(id) => {
                if let Some(sent) = session.in_flight_mut().get_mut(id) {
                    sent.since = now;
                }
            }
            SessionEvent::Finished(sent, kind, ack) => {
                self.in_flight_max = self.in_flight_max.saturating_add(1);
                // The broker has owned the message since PUBREC; the reason code of PUBCOMP changes nothing.
                let result = match kind {
                    PacketType::PubComp => Ok(()),
                    _ => result_of(&ack),
                };
                self.done(sent.batch, sent.index, result);
            }
            SessionEvent::UnknownAck(kind, id) => match self.release {
                Release::Waiting { left: 1, .. } if kind == PacketType::PubComp => self.release = Release::Done,
                Release::Waiting { left, since } if kind == PacketType::PubComp => {
                    self.release = Release::Waiting { left: left - 1, since };
                }
                _ => {
                    return Err(format!(
                        "the broker sent {kind} for packet {id}, which is not in flight with that QoS"
                    ));
                }
            },
            _ => {}
        }
        Ok(())
    }

    fn done(&mut self, number: u64, index: usize, result: Result<(), DeliveryFailure>) {
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

    /// Returns when the oldest unanswered packet was sent.
    pub fn oldest(&self, session: &ConnectorSession) -> Option<Instant> {
        let sent = session.in_flight().into_iter().flat_map(InFlight::iter);
        let release = match self.release {
            Release::Waiting { since, .. } => Some(since),
            _ => None,
        };
        sent.map(|sent| sent.message.since).chain(release).min()
    }

    /// Ends the connection. Unacknowledged messages fail and are sent again later. Returns the initial limit of
    /// in-flight messages for the next connection.
    pub fn connection_lost(mut self, session: &ConnectorSession, reason: &str) -> usize {
        let in_flight_max = match session.in_flight_count() {
            0 => self.in_flight_max,
            count => (count / 4).max(1),
        };
        let mut sent = session.in_flight().into_iter().flat_map(InFlight::iter);
        let alone = sent.find(|sent| !sent.is_received);
        if self.in_flight_max == 1
            && let Some(alone) = alone
            && let Some(pending) = self.batches.get_mut(&alone.message.batch)
        {
            let reason = format!("the connection was lost with only this message in flight: {reason}");
            pending.results[alone.message.index] = Some(Err(DeliveryFailure::Temporary(reason)));
        }
        for pending in self.batches.into_values() {
            pending.answer(reason);
        }
        in_flight_max
    }
}

impl UnfinishedBatch {
    /// Sends the results. Records without a result fail with `reason`.
    fn answer(self, reason: &str) {
        let result = |result: Option<_>| result.unwrap_or_else(|| Err(DeliveryFailure::Unreachable(reason.to_owned())));
        // The pump may no longer wait for the result.
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
    limits: &BrokerLimits,
    record: &Record,
    slots: &[FieldRole],
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

/// Classifies the reason code of an acknowledgement. Before MQTT 5 it is always success.
fn result_of(ack: &Ack<'_>) -> Result<(), DeliveryFailure> {
    if !ack.reason.is_error() {
        return Ok(());
    }
    let mut text = format!("the broker answered {}", ack.reason.name());
    if let Some(reason) = ack.properties.reason_string() {
        text.push_str(&format!(": {reason}"));
    }
    Err(match ack.reason {
        ReasonCode::NotAuthorized | ReasonCode::TopicNameInvalid | ReasonCode::PayloadFormatInvalid => {
            DeliveryFailure::Refused(text)
        }
        _ => DeliveryFailure::Temporary(text),
    })
}
