//! Messages received from the broker and not acknowledged yet. No I/O.
//!
//! Acknowledgements are sent in the order of the messages [MQTT-4.6.0-2], even if receivers accept them in another
//! order. A QoS 2 message is delivered once as long as the broker stores the session. Therefore the state of its packet
//! identifier survives lost connections.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqtt::{PacketId, Publish, QoS, filter_matches};
use tokio::sync::mpsc;

use super::config::{MqttSourceConfig, without_share_prefix};
use super::outgoing::ConnectorSession;
use crate::loop_mark::{LOOP_PROPERTY, LoopMark};
use crate::source::{SourceMessage as Message, SourceOrigin};

/// Identifies a message of QoS 1 or 2 for its receiver, over all connections of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct MessageTicket(u64);

impl MessageTicket {
    fn next(self) -> MessageTicket {
        MessageTicket(self.0 + 1)
    }
}

pub(super) struct SourceDelivery {
    pub message: Message,
    /// `None` at QoS 0.
    pub ticket: Option<MessageTicket>,
}

/// A source that is registered with the link.
pub(super) struct Registration {
    pub config: MqttSourceConfig,
    pub queue: mpsc::Sender<SourceDelivery>,
    /// The broker's response if it rejected a subscription.
    pub refusal: std::sync::Mutex<Option<String>>,
}

#[derive(Debug, Default)]
pub(super) struct IncomingCounters {
    pub dropped_loop: AtomicU64,
    pub skipped_echo: AtomicU64,
    pub dropped_no_source: AtomicU64,
}

struct UnacknowledgedMessage {
    id: PacketId,
    qos: QoS,
    ticket: MessageTicket,
    is_accepted: bool,
}

#[derive(Default)]
pub(super) struct IncomingState {
    /// In the order of arrival on this connection.
    unacknowledged: VecDeque<UnacknowledgedMessage>,
    /// QoS 2 messages of an earlier connection, which the broker will send again.
    from_previous_connection: HashMap<PacketId, UnacknowledgedMessage>,
    last_ticket: MessageTicket,
}

/// Delivers messages to sources.
pub(super) struct Dispatch<'a> {
    pub sources: &'a [Arc<Registration>],
    pub counters: &'a IncomingCounters,
    /// The mark of our own messages.
    pub loop_mark: Option<&'a LoopMark>,
}

impl IncomingState {
    /// Starts a new connection.
    pub fn connected(&mut self, is_session_present: bool) {
        if !is_session_present {
            self.unacknowledged.clear();
            self.from_previous_connection.clear();
            return;
        }
        for entry in self
            .unacknowledged
            .drain(..)
            .filter(|entry| entry.qos == QoS::ExactlyOnce)
        {
            self.from_previous_connection.insert(entry.id, entry);
        }
    }

    pub fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Handles a message that the session has not seen before. `acknowledge` is called afterwards.
    pub fn publish(&mut self, publish: &Publish<'_>, dispatch: &Dispatch<'_>) -> Result<(), String> {
        let Some(id) = publish.packet_id else {
            dispatch.deliver(publish, None)?;
            return Ok(());
        };
        if publish.qos == QoS::ExactlyOnce
            && let Some(entry) = self.from_previous_connection.remove(&id)
        {
            self.unacknowledged.push_back(entry);
            return Ok(());
        }
        self.last_ticket = self.last_ticket.next();
        let is_delivered = dispatch.deliver(publish, Some(self.last_ticket))?;
        self.unacknowledged.push_back(UnacknowledgedMessage {
            id,
            qos: publish.qos,
            ticket: self.last_ticket,
            is_accepted: !is_delivered,
        });
        Ok(())
    }

    /// Marks messages as accepted by a receiver. Tickets of earlier connections are ignored unless their message is
    /// carried over.
    pub fn accepted(&mut self, tickets: &[MessageTicket]) {
        let tickets: HashSet<MessageTicket> = tickets.iter().copied().collect();
        for entry in self
            .unacknowledged
            .iter_mut()
            .chain(self.from_previous_connection.values_mut())
        {
            entry.is_accepted |= tickets.contains(&entry.ticket);
        }
    }

    /// Acknowledges accepted messages up to the first one that is not accepted.
    pub fn acknowledge(&mut self, session: &mut ConnectorSession, out: &mut Vec<u8>) {
        while let Some(entry) = self.unacknowledged.pop_front_if(|entry| entry.is_accepted) {
            session.acknowledge(entry.qos, Some(entry.id), out);
        }
    }
}

impl Dispatch<'_> {
    /// Returns whether a receiver will accept the message later. An error means that the queue is full; such a message
    /// should not have been read.
    fn deliver(&self, publish: &Publish<'_>, ticket: Option<MessageTicket>) -> Result<bool, String> {
        if self.loop_mark.is_some_and(|mark| is_marked(publish, mark)) {
            self.counters.dropped_loop.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        let Some(source) = self.sources.iter().find(|source| source.matches_topic(publish.topic)) else {
            self.counters.dropped_no_source.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        };
        let mut message = message(publish, &source.config);
        if let Some(mark) = self.loop_mark {
            let value = Some(mark.received(publish.topic).into_bytes());
            message.headers.push((LOOP_PROPERTY.to_owned(), value));
        }
        match source.queue.try_send(SourceDelivery { message, ticket }) {
            Ok(()) => Ok(true),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err("a message was read although the queue of its source is full".to_owned())
            }
            // The source has ended. The message is not acknowledged, so that the broker sends it again.
            Err(mpsc::error::TrySendError::Closed(_)) => Ok(true),
        }
    }
}

impl Registration {
    fn matches_topic(&self, topic: &str) -> bool {
        let mut subscriptions = self.config.subscriptions.iter();
        subscriptions.any(|subscription| filter_matches(without_share_prefix(&subscription.filter), topic))
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
        origin: SourceOrigin::Mqtt {
            qos: publish.qos as u8,
            is_retained: publish.retain,
            is_duplicate: publish.dup,
        },
    }
}
