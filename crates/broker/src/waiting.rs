//! Unacknowledged and queued messages of a session, for operators to see.
//!
//! For a message that is only in the journal, the list contains its position. The caller reads the record, outside the
//! shard's thread.

use mqtt::QoS;

use crate::delivery::Delivery;
use crate::durable::cold::publication_of;
use crate::durable::entry::StoredEntry;
use crate::durable::record::{JournalRecord, RecordPosition};
use crate::effect::Now;
use crate::inspect::ShardInspection;
use crate::message::Publication;
use crate::outgoing::packet_id;
use crate::session::Session;
use crate::sessions::LOOK_MAX;

#[derive(Clone, Debug)]
pub struct WaitingView {
    /// `None` at QoS 0.
    pub packet_id: Option<u16>,
    pub qos: QoS,
    pub retain: bool,
    /// QoS 2 after PUBREC and before PUBCOMP. The message itself has been deleted.
    pub is_released: bool,
    /// `None` if the message is only in the journal, or has been deleted.
    pub message: Option<WaitingMessage>,
    /// Journal position, if the message is only there.
    pub position: Option<RecordPosition>,
}

#[derive(Clone, Debug)]
pub struct WaitingMessage {
    pub topic: String,
    /// Start of the payload.
    pub payload: Vec<u8>,
    pub payload_bytes: usize,
    /// Memory that the stored message uses.
    pub stored_bytes: usize,
    pub expires_in_s: Option<u32>,
}

impl WaitingMessage {
    /// Decodes the record at the message's position. `None` if it is another kind of record.
    pub fn from_record(now: Now, record: &[u8], payload_bytes_max: usize) -> Option<WaitingMessage> {
        let Ok(JournalRecord::Message(record)) = JournalRecord::read(record) else {
            return None;
        };
        let publication = publication_of(now, &record, RecordPosition(0));
        let kept_bytes = publication.stored_bytes();
        Some(WaitingMessage::new(now, &publication, kept_bytes, payload_bytes_max))
    }

    fn new(now: Now, p: &Publication<'_>, kept_bytes: usize, payload_bytes_max: usize) -> WaitingMessage {
        WaitingMessage {
            topic: p.topic.to_owned(),
            payload: p.payload[..p.payload.len().min(payload_bytes_max)].to_vec(),
            payload_bytes: p.payload.len(),
            stored_bytes: kept_bytes,
            expires_in_s: p.remaining_expiry_s(now),
        }
    }
}

/// A part of one of the two lists.
#[derive(Clone, Debug, Default)]
pub struct WaitingPart {
    pub items: Vec<WaitingView>,
    /// Number of messages in the whole list.
    pub messages: usize,
    /// Messages in pages, which are counted but not listed.
    pub unlisted: usize,
    /// Index to continue at, if there are more.
    pub next: Option<usize>,
}

/// Selects a part of a list, and the length of payloads.
#[derive(Clone, Copy, Debug)]
pub struct WaitingRange {
    /// Index of the first message.
    pub from: usize,
    pub limit: usize,
    pub payload_bytes_max: usize,
}

impl ShardInspection<'_> {
    /// Returns the messages that were sent to a client and not acknowledged, oldest first. `None` if the client is not
    /// on this shard.
    pub fn inflight_of(&self, now: Now, client_id: &str, range: WaitingRange) -> Option<WaitingPart> {
        let session = self.core.sessions.at(self.core.sessions.slot_of(client_id)?);
        let outgoing = &session.outgoing;
        let cold = outgoing.cold.iter().flat_map(|cold| cold.entries.earlier().iter());
        let warm = outgoing.inflight.iter().map(|entry| match &entry.delivery {
            Some(delivery) => view(now, delivery, range.payload_bytes_max),
            None => released(entry.id().get()),
        });
        let all = warm.chain(cold.map(|(entry, _)| of_entry(&entry)));
        Some(part(all, range, outgoing.unacknowledged(), 0))
    }

    /// Returns the queued messages, in the order in which they will be sent.
    pub fn queue_of(&self, now: Now, client_id: &str, range: WaitingRange) -> Option<WaitingPart> {
        let session = self.core.sessions.at(self.core.sessions.slot_of(client_id)?);
        let cold = session.outgoing.cold.as_deref();
        let stored = cold.into_iter().flat_map(|cold| cold.entries.queue().iter());
        let fresh = cold.into_iter().flat_map(|cold| cold.fresh.iter());
        let shown = |delivery: &Delivery| view(now, delivery, range.payload_bytes_max);
        let all = session.outgoing.queue.iter().map(shown);
        let all = all.chain(stored.map(|(entry, _)| of_entry(&entry)));
        let all = all.chain(fresh.chain(session.replays.held_messages()).map(shown));
        let unlisted = cold
            .and_then(|cold| cold.entries.pages())
            .map_or(0, |pages| pages.len());
        Some(part(all, range, queued(session), unlisted))
    }
}

fn queued(session: &Session) -> usize {
    session.outgoing.queued() + session.replays.held().0
}

fn part(all: impl Iterator<Item = WaitingView>, range: WaitingRange, messages: usize, unlisted: usize) -> WaitingPart {
    let limit = range.limit.min(LOOK_MAX);
    let mut items: Vec<WaitingView> = all.skip(range.from).take(limit + 1).collect();
    let is_more = items.len() > limit;
    items.truncate(limit);
    WaitingPart {
        next: is_more.then_some(range.from + limit),
        items,
        messages,
        unlisted,
    }
}

fn view(now: Now, delivery: &Delivery, payload_bytes_max: usize) -> WaitingView {
    let (publication, kept_bytes) = (delivery.publication(), delivery.stored_bytes());
    let message = WaitingMessage::new(now, &publication, kept_bytes, payload_bytes_max);
    WaitingView {
        packet_id: number(delivery.qos, delivery.seq),
        qos: delivery.qos,
        retain: delivery.retain,
        is_released: false,
        message: Some(message),
        position: None,
    }
}

fn of_entry(entry: &StoredEntry) -> WaitingView {
    if entry.is_released() {
        return released(packet_id(entry.seq()).get());
    }
    WaitingView {
        packet_id: number(entry.qos(), entry.seq()),
        qos: entry.qos(),
        retain: entry.retain(),
        is_released: false,
        message: None,
        position: Some(entry.message()),
    }
}

/// Returns the packet identifier that a message has or will have; `None` if it has no number.
fn number(qos: QoS, seq: u64) -> Option<u16> {
    (qos != QoS::AtMostOnce && seq != 0).then(|| packet_id(seq).get())
}

fn released(packet_id: u16) -> WaitingView {
    WaitingView {
        packet_id: Some(packet_id),
        qos: QoS::ExactlyOnce,
        retain: false,
        is_released: true,
        message: None,
        position: None,
    }
}
