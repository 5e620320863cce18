//! What has come from the broker and is not acknowledged yet. No I/O.
//!
//! Acknowledgements leave in the order of the messages [MQTT-4.6.0-2], however the receivers accept them. A message at
//! QoS 2 is handed over once while the broker keeps the session, over lost connections too: what is known of its packet
//! identifier is carried from connection to connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqtt::{PacketId, PacketType, Publish, QoS, encode_bare_ack, filter_matches};
use tokio::sync::mpsc;

use super::config::{MqttSourceConfig, bare};
use super::outgoing::{LOOP_PROPERTY, LoopMark};
use crate::source::{Incoming as Message, Origin};

/// Names a message towards the receiver; `None` at QoS 0.
pub(super) type Ticket = Option<u64>;

pub(super) struct Delivery {
    pub message: Message,
    pub ticket: Ticket,
}

/// A source as the link sees it.
pub(super) struct Registration {
    pub config: MqttSourceConfig,
    pub queue: mpsc::Sender<Delivery>,
    /// What the broker said to the subscriptions, if it refused one.
    pub refusal: std::sync::Mutex<Option<String>>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub dropped_loop: AtomicU64,
    pub dropped_no_source: AtomicU64,
}

struct Entry {
    id: PacketId,
    qos: QoS,
    ticket: u64,
    is_accepted: bool,
}

#[derive(Default)]
pub(super) struct Incoming {
    /// In the order in which they came on this connection.
    unacknowledged: VecDeque<Entry>,
    /// QoS 2: of an earlier connection; the broker will send them again.
    carried: HashMap<PacketId, Entry>,
    /// QoS 2: acknowledged with PUBREC; PUBREL is missing.
    unreleased: HashSet<PacketId>,
    ticket: u64,
}

/// Where a message goes and what is done with it on the way.
pub(super) struct Post<'a> {
    pub sources: &'a [Arc<Registration>],
    pub counters: &'a Counters,
    /// What own messages are marked with.
    pub loop_mark: Option<&'a LoopMark>,
}

impl Incoming {
    /// A new connection.
    pub fn connected(&mut self, is_session_present: bool) {
        if !is_session_present {
            self.unacknowledged.clear();
            self.carried.clear();
            self.unreleased.clear();
            return;
        }
        for entry in self
            .unacknowledged
            .drain(..)
            .filter(|entry| entry.qos == QoS::ExactlyOnce)
        {
            self.carried.insert(entry.id, entry);
        }
    }

    pub fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    pub fn publish(&mut self, publish: &Publish<'_>, post: &Post<'_>, out: &mut Vec<u8>) -> Result<(), String> {
        let Some(id) = publish.packet_id else {
            post.deliver(publish, None)?;
            return Ok(());
        };
        if publish.qos == QoS::ExactlyOnce {
            if self.unreleased.contains(&id) {
                encode_bare_ack(PacketType::PubRec, id, out);
                return Ok(());
            }
            if let Some(entry) = self.carried.remove(&id) {
                self.unacknowledged.push_back(entry);
                self.acknowledge(out);
                return Ok(());
            }
        }
        self.ticket += 1;
        let is_delivered = post.deliver(publish, Some(self.ticket))?;
        self.unacknowledged.push_back(Entry {
            id,
            qos: publish.qos,
            ticket: self.ticket,
            is_accepted: !is_delivered,
        });
        self.acknowledge(out);
        Ok(())
    }

    pub fn released(&mut self, id: PacketId, out: &mut Vec<u8>) {
        self.unreleased.remove(&id);
        encode_bare_ack(PacketType::PubComp, id, out);
    }

    /// A receiver has these. Tickets of connections before are no longer known, and need not be.
    pub fn accepted(&mut self, tickets: &[u64], out: &mut Vec<u8>) {
        let tickets: HashSet<u64> = tickets.iter().copied().collect();
        for entry in self.unacknowledged.iter_mut().chain(self.carried.values_mut()) {
            entry.is_accepted |= tickets.contains(&entry.ticket);
        }
        self.acknowledge(out);
    }

    fn acknowledge(&mut self, out: &mut Vec<u8>) {
        while let Some(entry) = self.unacknowledged.pop_front_if(|entry| entry.is_accepted) {
            if entry.qos == QoS::ExactlyOnce {
                self.unreleased.insert(entry.id);
                encode_bare_ack(PacketType::PubRec, entry.id, out);
            } else {
                encode_bare_ack(PacketType::PubAck, entry.id, out);
            }
        }
    }
}

impl Post<'_> {
    /// Whether a receiver will say something about it. An error: there is no room; nothing should have been read.
    fn deliver(&self, publish: &Publish<'_>, ticket: Ticket) -> Result<bool, String> {
        if self.loop_mark.is_some_and(|mark| is_marked(publish, mark)) {
            self.counters.dropped_loop.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        let Some(source) = self.sources.iter().find(|source| source.wants(publish.topic)) else {
            self.counters.dropped_no_source.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        };
        let mut message = message(publish, &source.config);
        if let Some(mark) = self.loop_mark {
            let value = Some(mark.taken.as_bytes().to_vec());
            message.headers.push((LOOP_PROPERTY.to_owned(), value));
        }
        match source.queue.try_send(Delivery { message, ticket }) {
            Ok(()) => Ok(true),
            Err(mpsc::error::TrySendError::Full(_)) => Err("a message was read for which there is no room".to_owned()),
            // The source has ended: nobody has the message, so that it is not acknowledged and the broker keeps it.
            Err(mpsc::error::TrySendError::Closed(_)) => Ok(true),
        }
    }
}

impl Registration {
    fn wants(&self, topic: &str) -> bool {
        let mut subscriptions = self.config.subscriptions.iter();
        subscriptions.any(|subscription| filter_matches(bare(&subscription.filter), topic))
    }
}

fn is_marked(publish: &Publish<'_>, mark: &LoopMark) -> bool {
    let mut properties = publish.properties.user_properties();
    properties.any(|(name, value)| name == LOOP_PROPERTY && mark.is(value))
}

fn message(publish: &Publish<'_>, config: &MqttSourceConfig) -> Message {
    let headers = publish.properties.user_properties();
    let header = |(name, value): (&str, &str)| (name.to_owned(), Some(value.as_bytes().to_vec()));
    Message {
        topic: config.rewrite(publish.topic),
        key: None,
        payload: Some(publish.payload.to_vec()),
        headers: headers.map(header).collect(),
        properties: publish.properties.as_bytes().to_vec(),
        unix_ms: None,
        origin: Origin::Mqtt {
            qos: publish.qos as u8,
            is_retained: publish.retain,
            is_duplicate: publish.dup,
        },
    }
}
