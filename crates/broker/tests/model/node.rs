//! The model: a node as plain lists. It computes the expected deliveries; `judge` compares them with received packets.
//!
//! The payload of a message is its serial number. If the specification or the limits leave a choice, a delivery is
//! allowed but not required (`must` is false). A delivery that the model does not expect is an error.

use std::collections::HashMap;

use mqtt::*;
use tidewire_broker::OverlappingDelivery;

use super::client::{Conn, Held};
use super::judge::Copied;
use super::script::{CLIENTS, FILTERS, WillTerms};

#[derive(Clone, Debug)]
pub struct Message {
    pub serial: u64,
    pub topic: String,
    pub payload_bytes: usize,
    pub qos: QoS,
    pub retain: bool,
    pub publisher: Option<usize>,
    pub expires_at: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Subscription {
    pub filter: &'static str,
    /// The topic filter without the `$share` prefix.
    pub bare: &'static str,
    pub share: Option<&'static str>,
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
}

/// One copy of a message that is owed to a session.
#[derive(Clone, Debug)]
pub struct Owed {
    pub message: Message,
    pub qos: QoS,
    pub retain: bool,
    pub identifiers: Vec<u32>,
    /// The filter whose retained replay includes the message.
    pub replay: Option<&'static str>,
    pub must: bool,
    pub is_seen: bool,
    /// Received over a protocol version without subscription identifiers, so another copy may have been meant.
    pub is_seen_blindly: bool,
}

/// One copy of a message that is owed to one member of a share group.
pub struct GroupOwed {
    pub message: Message,
    pub group: &'static str,
    /// Clients that may receive it, with their subscription options and identifiers.
    pub terms: Vec<(usize, SubscriptionOptions, Option<u32>)>,
    pub must: bool,
    /// A member is also owed another copy of the same message. The copies are indistinguishable, so the model cannot
    /// assign them.
    pub is_tangled: bool,
    pub takers: Vec<Taker>,
}

#[derive(Debug)]
pub struct Taker {
    pub client: usize,
    pub copy: Copied,
    pub is_acknowledged: bool,
    pub has_left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Own,
    /// Index in `Node::shared`.
    Group(usize),
    /// A message without a payload, which has no serial.
    Nameless,
}

pub struct WillModel {
    pub topic: String,
    pub serial: u64,
    pub terms: WillTerms,
}

/// State with the lifetime of the session.
pub struct Session {
    pub version: ProtocolVersion,
    pub conn: Option<Conn>,
    pub expiry_s: u32,
    pub maximum_packet_size: usize,
    pub subscriptions: Vec<Subscription>,
    pub owed: Vec<Owed>,
    /// Filters whose retained messages may still be in transit.
    pub replays: Vec<Subscription>,
    pub held: HashMap<u16, Held>,
    pub will: Option<WillModel>,
    pub will_at: Option<u64>,
    pub expires_at: Option<u64>,
    /// A connection lost bytes, so the client may see a retransmission first.
    pub has_lost_bytes: bool,
    /// Last received serial by publisher, topic, and whether it was QoS 0.
    pub last_serial: HashMap<(Option<usize>, String, bool), u64>,
    /// QoS 2 messages of the client that are not released: identifier and the bytes of the packet.
    pub unreleased: Vec<(u16, Vec<u8>)>,
}

pub struct Node {
    pub now: u64,
    pub overlapping: OverlappingDelivery,
    /// The output buffer is smaller than two copies of a message in one tick.
    pub is_buffer_small: bool,
    pub sessions: Vec<Option<Session>>,
    pub shared: Vec<GroupOwed>,
    pub retained: HashMap<String, Message>,
    pub next_serial: u64,
}

impl Session {
    pub fn new() -> Session {
        Session {
            version: ProtocolVersion::V5,
            conn: None,
            expiry_s: 0,
            maximum_packet_size: usize::MAX,
            subscriptions: Vec::new(),
            owed: Vec::new(),
            replays: Vec::new(),
            held: HashMap::new(),
            will: None,
            will_at: None,
            expires_at: None,
            has_lost_bytes: false,
            last_serial: HashMap::new(),
            unreleased: Vec::new(),
        }
    }

    fn is_too_large(&self, message: &Message) -> bool {
        // Includes space for everything that may be added to it.
        self.maximum_packet_size < message.payload_bytes + message.topic.len() + 40
    }

    fn forgive_too_large(&mut self) {
        let mut owed = std::mem::take(&mut self.owed);
        for owed in owed.iter_mut().filter(|o| self.is_too_large(&o.message)) {
            owed.must = false;
        }
        self.owed = owed;
    }

    pub fn is_member(&self, topic: &str) -> bool {
        self.subscriptions
            .iter()
            .any(|s| s.share.is_some() && filter_matches(s.bare, topic))
    }
}

pub fn taken_apart(filter: usize) -> (&'static str, &'static str, Option<&'static str>) {
    let filter = FILTERS[filter];
    match SharedFilter::parse(filter).unwrap() {
        Some(shared) => (filter, shared.filter, Some(shared.share_name)),
        None => (filter, filter, None),
    }
}

impl Node {
    pub fn new(now: u64, overlapping: OverlappingDelivery, is_buffer_small: bool) -> Node {
        Node {
            now,
            overlapping,
            is_buffer_small,
            sessions: (0..CLIENTS).map(|_| None).collect(),
            shared: Vec::new(),
            retained: HashMap::new(),
            next_serial: 1,
        }
    }

    pub fn session(&mut self, client: usize) -> &mut Session {
        self.sessions[client].as_mut().expect("the client has a session")
    }

    pub fn conn(&mut self, client: usize) -> Option<&mut Conn> {
        self.sessions[client].as_mut()?.conn.as_mut()
    }

    pub fn serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }

    // --- messages ---

    /// Accepts a message, and expects its delivery to all matching subscribers.
    pub fn publish(&mut self, message: &Message) {
        if message.retain {
            self.retain(message);
        }
        if message.payload_bytes == 0 {
            return;
        }
        for client in 0..CLIENTS {
            self.owe(client, message);
        }
        self.owe_groups(message);
        self.mark_tangled();
    }

    fn owe(&mut self, client: usize, message: &Message) {
        let (overlapping, is_buffer_small) = (self.overlapping, self.is_buffer_small);
        let Some(session) = &mut self.sessions[client] else {
            return;
        };
        let is_own = message.publisher == Some(client);
        let matching: Vec<Subscription> = session
            .subscriptions
            .iter()
            .filter(|s| s.share.is_none() && filter_matches(s.bare, &message.topic) && !(s.options.no_local && is_own))
            .cloned()
            .collect();
        if matching.is_empty() {
            return;
        }
        let is_merged = session.version == ProtocolVersion::V5 || overlapping == OverlappingDelivery::DeliverOnce;
        let copies: Vec<&[Subscription]> = if is_merged {
            vec![&matching[..]]
        } else {
            matching.chunks(1).collect()
        };
        let is_tight = is_buffer_small && (copies.len() > 1 || session.is_member(&message.topic));
        for copy in copies {
            let granted = copy
                .iter()
                .map(|s| s.options.maximum_qos)
                .max()
                .expect("a group message has copies");
            let qos = granted.min(message.qos);
            let mut identifiers: Vec<u32> = copy.iter().filter_map(|s| s.identifier).collect();
            identifiers.sort_unstable();
            let is_away = session.conn.is_none();
            if qos == QoS::AtMostOnce && is_away {
                continue;
            }
            let is_full = session.conn.as_ref().is_some_and(|c| c.is_blocked) || is_tight;
            let may_be_dropped = qos == QoS::AtMostOnce && is_full;
            let must = !may_be_dropped && !session.is_too_large(message);
            session.owed.push(Owed {
                message: message.clone(),
                qos,
                retain: message.retain && copy.iter().any(|s| s.options.retain_as_published),
                identifiers,
                replay: None,
                must,
                is_seen: false,
                is_seen_blindly: false,
            });
        }
    }

    fn owe_groups(&mut self, message: &Message) {
        let mut groups: Vec<&'static str> = Vec::new();
        for subscription in self.sessions.iter().flatten().flat_map(|s| &s.subscriptions) {
            let is_wanted = subscription.share.is_some() && filter_matches(subscription.bare, &message.topic);
            if is_wanted && !groups.contains(&subscription.filter) {
                groups.push(subscription.filter);
            }
        }
        for group in groups {
            let terms: Vec<_> = self
                .members(group)
                .map(|(client, s)| (client, s.options, s.identifier))
                .collect();
            let is_certain = terms.iter().all(|(client, options, _)| {
                let session = self.sessions[*client].as_ref().expect("a member has a session");
                options.maximum_qos.min(message.qos) != QoS::AtMostOnce && !session.is_too_large(message)
            });
            self.shared.push(GroupOwed {
                message: message.clone(),
                group,
                terms,
                must: is_certain,
                is_tangled: false,
                takers: Vec::new(),
            });
        }
    }

    /// Finds the messages that are owed to one client in several ways.
    fn mark_tangled(&mut self) {
        for at in 0..self.shared.len() {
            let owed = &self.shared[at];
            let serial = owed.message.serial;
            let is_owed_twice = |client: usize| {
                let others = self
                    .shared
                    .iter()
                    .enumerate()
                    .filter(|(other, o)| *other != at && o.message.serial == serial);
                let in_another = others.flat_map(|(_, o)| &o.terms).any(|(c, ..)| *c == client);
                let own = self.sessions[client].iter().flat_map(|s| &s.owed);
                in_another || own.into_iter().any(|o| o.message.serial == serial)
            };
            if owed.terms.iter().any(|(client, ..)| is_owed_twice(*client)) {
                let owed = &mut self.shared[at];
                owed.is_tangled = true;
                owed.must = false;
            }
        }
    }

    pub fn members(&self, group: &'static str) -> impl Iterator<Item = (usize, &Subscription)> {
        let sessions = self
            .sessions
            .iter()
            .enumerate()
            .filter_map(|(client, s)| Some((client, s.as_ref()?)));
        sessions.filter_map(move |(client, s)| Some((client, s.subscriptions.iter().find(|s| s.filter == group)?)))
    }

    // --- retained messages ---

    fn retain(&mut self, message: &Message) {
        self.forget_replays_of(&message.topic);
        if message.payload_bytes == 0 {
            self.retained.remove(&message.topic);
            return;
        }
        self.retained.insert(message.topic.clone(), message.clone());
        for session in self.sessions.iter_mut().flatten() {
            for replay in session.replays.clone() {
                if filter_matches(replay.bare, &message.topic) {
                    session.owed.push(kept(message, &replay, false));
                }
            }
        }
    }

    fn forget_replays_of(&mut self, topic: &str) {
        for owed in self.sessions.iter_mut().flatten().flat_map(|s| &mut s.owed) {
            if owed.replay.is_some() && owed.message.topic == *topic {
                owed.must = false;
            }
        }
    }

    // --- subscriptions ---

    pub fn subscribe(&mut self, client: usize, subscription: Subscription) {
        let now = self.now;
        let group = subscription.filter;
        let retained: Vec<Message> = self
            .retained
            .values()
            .filter(|m| filter_matches(subscription.bare, &m.topic))
            .cloned()
            .collect();
        let session = self.session(client);
        let before = session
            .subscriptions
            .iter()
            .position(|s| s.filter == subscription.filter);
        let wants_retained = match subscription.options.retain_handling {
            _ if subscription.share.is_some() => false,
            RetainHandling::SendAtSubscribe => true,
            RetainHandling::SendIfNew => before.is_none(),
            RetainHandling::DoNotSend => false,
        };
        match before {
            Some(at) => session.subscriptions[at] = subscription.clone(),
            None => session.subscriptions.push(subscription.clone()),
        }
        if wants_retained {
            session.forget_replay(subscription.filter);
            session.replays.push(subscription.clone());
            for message in retained.iter().filter(|m| m.expires_at.is_none_or(|at| at > now)) {
                let must = !session.is_too_large(message);
                session.owed.push(kept(message, &subscription, must));
            }
        }
        if subscription.share.is_some() {
            for owed in self.shared.iter_mut().filter(|o| o.group == group) {
                let options = subscription.options;
                owed.terms.push((client, options, subscription.identifier));
                owed.must &= options.maximum_qos.min(owed.message.qos) != QoS::AtMostOnce;
                let session = self.sessions[client]
                    .as_ref()
                    .expect("a subscribing client has a session");
                owed.must &= !session.is_too_large(&owed.message);
            }
            self.mark_tangled();
        }
    }

    pub fn unsubscribe(&mut self, client: usize, filter: &'static str) {
        let session = self.session(client);
        let Some(at) = session.subscriptions.iter().position(|s| s.filter == filter) else {
            return;
        };
        let subscription = session.subscriptions.remove(at);
        session.forget_replay(filter);
        session.replays.retain(|s| s.filter != filter);
        if subscription.share.is_some() {
            self.remove_member(client, filter);
        }
    }

    /// A member has left the group, or its session has ended.
    fn remove_member(&mut self, client: usize, group: &'static str) {
        let is_empty = self.members(group).next().is_none();
        for owed in self
            .shared
            .iter_mut()
            .filter(|o| o.group == group && o.takers.is_empty())
        {
            let had = owed.terms.iter().filter(|(c, ..)| *c == client);
            // A QoS 2 message in flight to this member must not go to another member [MQTT-4.8.2-5].
            let is_exact = had
                .map(|(_, options, _)| options.maximum_qos.min(owed.message.qos))
                .any(|q| q == QoS::ExactlyOnce);
            owed.must &= !is_empty && !is_exact;
        }
    }

    // --- connections ---

    /// The session continues on a new connection.
    pub fn resume(&mut self, client: usize) {
        let session = self.session(client);
        session.will = None;
        session.will_at = None;
        session.expires_at = None;
        session.forgive_too_large();
        let session = self.sessions[client].as_ref().expect("a resuming client has a session");
        let groups: Vec<&str> = session
            .subscriptions
            .iter()
            .filter(|s| s.share.is_some())
            .map(|s| s.filter)
            .collect();
        for owed in self.shared.iter_mut().filter(|o| groups.contains(&o.group)) {
            owed.must &= !session.is_too_large(&owed.message);
        }
    }

    /// The connection has closed for any reason. Its will may be due.
    pub fn away(&mut self, client: usize, has_lost_bytes: bool) {
        let now = self.now;
        let session = self.session(client);
        session.conn = None;
        session.has_lost_bytes |= has_lost_bytes;
        // QoS 0 messages that were sent and not read are lost, but a replay can continue.
        session
            .owed
            .retain(|o| o.is_seen || o.qos != QoS::AtMostOnce || o.replay.is_some());
        for owed in session.owed.iter_mut().filter(|o| o.qos == QoS::AtMostOnce) {
            owed.must = false;
        }
        for taker in self
            .shared
            .iter_mut()
            .flat_map(|o| &mut o.takers)
            .filter(|t| t.client == client)
        {
            taker.has_left |= !taker.is_acknowledged;
        }
        let session = self.session(client);
        if session.expiry_s == 0 {
            return self.end_session(client);
        }
        session.expires_at = (session.expiry_s != u32::MAX).then(|| now + u64::from(session.expiry_s) * 1000);
        match session.will.as_ref().map(|w| w.terms.delay_s) {
            Some(0) => self.publish_will(client),
            Some(delay_s) => session.will_at = Some(now + u64::from(delay_s) * 1000),
            None => {}
        }
    }

    pub fn end_session(&mut self, client: usize) {
        let session = self.session(client);
        let subscriptions = std::mem::take(&mut session.subscriptions);
        self.publish_will(client);
        self.sessions[client] = None;
        for taker in self
            .shared
            .iter_mut()
            .flat_map(|o| &mut o.takers)
            .filter(|t| t.client == client)
        {
            taker.has_left |= !taker.is_acknowledged;
        }
        for subscription in subscriptions.iter().filter(|s| s.share.is_some()) {
            self.remove_member(client, subscription.filter);
        }
        // The session can still hold messages of groups that it has left.
        let groups: Vec<&'static str> = self.shared.iter().map(|o| o.group).collect();
        for (at, group) in groups.into_iter().enumerate() {
            let is_exact = |q: QoS| q == QoS::ExactlyOnce;
            let is_empty = self.members(group).next().is_none();
            let owed = &mut self.shared[at];
            let mut had = owed
                .terms
                .iter()
                .filter(|(c, ..)| *c == client)
                .map(|(_, o, _)| o.maximum_qos.min(owed.message.qos));
            if owed.takers.is_empty() && (had.any(is_exact) || is_empty) {
                owed.must = false;
            }
        }
    }

    fn publish_will(&mut self, client: usize) {
        let session = self.session(client);
        session.will_at = None;
        let Some(will) = session.will.take() else { return };
        self.publish(&Message {
            serial: will.serial,
            payload_bytes: payload(will.serial, false).len(),
            topic: will.topic,
            qos: will.terms.qos,
            retain: will.terms.retain,
            publisher: Some(client),
            expires_at: None,
        });
    }

    /// Advances the time to `now`.
    pub fn pass(&mut self, now: u64) {
        loop {
            let due = |at: Option<u64>, client| at.filter(|at| *at <= now).map(|at| (at, client));
            let wills = self
                .sessions
                .iter()
                .enumerate()
                .filter_map(|(c, s)| due(s.as_ref()?.will_at, (c, false)));
            let ends = self
                .sessions
                .iter()
                .enumerate()
                .filter_map(|(c, s)| due(s.as_ref()?.expires_at, (c, true)));
            let Some((at, (client, is_end))) = wills.chain(ends).min() else {
                break;
            };
            self.now = at;
            if is_end {
                self.end_session(client)
            } else {
                self.publish_will(client)
            }
        }
        self.now = now;
        let expired: Vec<String> = self
            .retained
            .values()
            .filter(|m| m.expires_at.is_some_and(|at| at <= now))
            .map(|m| m.topic.clone())
            .collect();
        for topic in expired {
            self.forget_replays_of(&topic);
            self.retained.remove(&topic);
        }
    }
}

impl Session {
    /// A replay restarts or is cancelled. Its unsent messages are no longer expected.
    fn forget_replay(&mut self, filter: &str) {
        for owed in self.owed.iter_mut().filter(|o| o.replay == Some(filter)) {
            owed.must = false;
        }
    }
}

/// A retained message for a new subscription.
fn kept(message: &Message, subscription: &Subscription, must: bool) -> Owed {
    Owed {
        message: message.clone(),
        qos: message.qos.min(subscription.options.maximum_qos),
        retain: true,
        identifiers: subscription.identifier.into_iter().collect(),
        replay: Some(subscription.filter),
        must,
        is_seen: false,
        is_seen_blindly: false,
    }
}

pub fn payload(serial: u64, is_large: bool) -> Vec<u8> {
    let mut payload = format!("{serial}.").into_bytes();
    if is_large {
        payload.resize(300, b'x');
    }
    payload
}
