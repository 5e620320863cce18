//! Runs a script on a world and on the model, and compares them after every step.

use std::collections::HashMap;
use std::sync::Arc;

use mqtt::*;
use tidewire_broker::*;

use super::client::{Conn, Said};
use super::node::{Message, Node, Session, Subscription, WillModel, payload, taken_apart};
use super::script::{CLIENTS, FILTERS, Op, Script, Setup, TOPICS, Terms};
use crate::world::World;

/// All sent bytes, by step and client.
pub type Trace = Vec<(usize, usize, Vec<u8>)>;

struct Run {
    setup: Setup,
    world: World,
    node: Node,
    next_id: u16,
    step: usize,
    trace: Trace,
}

pub fn run(script: &Script) -> Trace {
    let world = World::with(script.setup.shards, script.setup.config(), Arc::new(OpenAccess));
    let is_buffer_small = script.setup.output_buffer_bytes < 10_000;
    let node = Node::new(world.now.monotonic_ms, script.setup.overlapping, is_buffer_small);
    let mut run = Run {
        setup: script.setup.clone(),
        world,
        node,
        next_id: 0,
        step: 0,
        trace: Vec::new(),
    };
    for op in &script.ops {
        run.step += 1;
        run.perform(op);
        run.check();
    }
    run.finish();
    run.trace
}

impl Run {
    fn perform(&mut self, op: &Op) {
        if let Some(client) = op.actor()
            && self.node.conn(client).is_none_or(|conn| conn.is_blocked)
        {
            // The client is offline, or its socket is blocked.
            return;
        }
        match *op {
            Op::Connect { client, ref terms } => self.connect(client, terms),
            Op::Subscribe {
                client,
                filter,
                options,
                identifier,
            } => self.subscribe(client, filter, options, identifier),
            Op::Unsubscribe { client, filter } => self.unsubscribe(client, filter),
            Op::Publish { .. } => self.publish(op),
            Op::Repeat { client } => self.repeat(client),
            Op::Release { client } => self.release(client),
            Op::Answer {
                client,
                which,
                with_failure,
            } => self.answer(client, which, with_failure),
            Op::AnswerAll { client } => self.answer_all(client),
            Op::Cut { client } => self.cut(client),
            Op::Disconnect {
                client,
                with_will,
                expiry_s,
            } => self.disconnect(client, with_will, expiry_s),
            Op::Block { client } => {
                let conn = self.node.conn(client).expect("checked");
                conn.is_blocked = true;
                self.world.blocked.push(conn.wire);
            }
            Op::Unblock { client } => self.unblock(client, usize::MAX),
            Op::Trickle { client, bytes } => self.unblock(client, bytes),
            Op::Pass { half_seconds } => self.pass(half_seconds * 500 + 37),
        }
    }

    // --- connections ---

    fn connect(&mut self, client: usize, terms: &Terms) {
        let is_v5 = terms.version == ProtocolVersion::V5;
        let expiry_s = match (is_v5, terms.clean_start) {
            (true, _) => terms.expiry_s,
            (false, true) => 0,
            (false, false) => u32::MAX,
        };
        self.take_over(client, terms.clean_start);
        let session_present = self.node.sessions[client].is_some();
        let wire = self.world.open();
        let receive_maximum = if is_v5 { terms.receive_maximum } else { u16::MAX };
        let maximum_packet_size = terms
            .maximum_packet_size
            .filter(|_| is_v5)
            .map_or(usize::MAX, |size| size as usize);
        let window = usize::from(receive_maximum.min(self.setup.max_inflight));
        let alias_max = if is_v5 { terms.topic_alias_maximum } else { 0 };
        let serial = self.node.serial();
        let session = self.node.sessions[client].get_or_insert_with(Session::new);
        session.version = terms.version;
        session.maximum_packet_size = maximum_packet_size;
        session.expiry_s = expiry_s;
        session.conn = Some(Conn::new(wire, terms.version, window, maximum_packet_size, alias_max));
        self.node.resume(client);
        let will = terms.will.clone().map(|mut will| {
            will.delay_s = if is_v5 { will.delay_s } else { 0 };
            WillModel {
                topic: format!("w/c{client}"),
                serial,
                terms: will,
            }
        });
        self.node.session(client).will = will;
        self.send_connect(client, wire, terms);
        self.drain();
        // MQTT 3.1 has no such flag.
        let session_present = session_present && terms.version != ProtocolVersion::V3_1;
        let expected = Said::ConnAck {
            session_present,
            reason: ReasonCode::Success,
        };
        assert_eq!(self.heard(client), [expected], "[MQTT-3.2.2-2], [MQTT-3.2.2-3]");
    }

    /// Applies the effect of a CONNECT to the existing session.
    fn take_over(&mut self, client: usize, clean_start: bool) {
        let Some(session) = &mut self.node.sessions[client] else {
            return;
        };
        if let Some(conn) = &session.conn {
            let is_delayed = session.will.as_ref().is_some_and(|w| w.terms.delay_s > 0);
            if is_delayed && !clean_start && session.expiry_s > 0 {
                // [MQTT-3.1.3-9]
                session.will = None;
            }
            let has_lost_bytes = conn.is_blocked;
            self.node.away(client, has_lost_bytes);
        }
        if clean_start && self.node.sessions[client].is_some() {
            self.node.end_session(client);
        }
    }

    fn send_connect(&mut self, client: usize, wire: usize, terms: &Terms) {
        let is_v5 = terms.version == ProtocolVersion::V5;
        let (mut bytes, mut will_bytes) = (Vec::new(), Vec::new());
        let mut writer = PropertyWriter::new(&mut bytes);
        if is_v5 {
            writer.put(Property::SessionExpiryInterval(terms.expiry_s));
            writer.put(Property::ReceiveMaximum(terms.receive_maximum));
            if let Some(size) = terms.maximum_packet_size {
                writer.put(Property::MaximumPacketSize(size));
            }
            writer.put(Property::TopicAliasMaximum(terms.topic_alias_maximum));
        }
        let properties = writer.finish();
        let will_model = self.node.session(client).will.as_ref();
        let will_payload = will_model.map(|w| payload(w.serial, false)).unwrap_or_default();
        let topic = format!("w/c{client}");
        let will = terms.will.as_ref().map(|will| {
            if is_v5 {
                PropertyWriter::new(&mut will_bytes).put(Property::WillDelayInterval(will.delay_s));
            }
            let properties = Properties::from_validated(&will_bytes);
            Will {
                qos: will.qos,
                retain: will.retain,
                properties,
                topic: &topic,
                payload: &will_payload,
            }
        });
        let connect = Connect {
            version: terms.version,
            clean_start: terms.clean_start,
            is_bridge: false,
            keep_alive: 0,
            properties,
            client_id: CLIENT_IDS[client],
            will,
            user_name: None,
            password: None,
        };
        self.world.send(wire, &Packet::Connect(connect));
    }

    fn cut(&mut self, client: usize) {
        // A blocked connection can also break.
        let Some(conn) = self.node.conn(client) else { return };
        let (wire, has_lost_bytes) = (conn.wire, conn.is_blocked);
        self.node.away(client, has_lost_bytes);
        self.world.cut(wire);
        self.drain();
    }

    fn disconnect(&mut self, client: usize, with_will: bool, expiry_s: Option<u32>) {
        let session = self.node.session(client);
        let wire = session.conn.as_ref().expect("checked").wire;
        let is_v5 = session.version == ProtocolVersion::V5;
        let (with_will, expiry_s) = (with_will && is_v5, expiry_s.filter(|_| is_v5));
        let is_error = session.expiry_s == 0 && expiry_s.is_some_and(|s| s > 0);
        if !is_error {
            // [MQTT-3.14.2-2]
            session.expiry_s = expiry_s.unwrap_or(session.expiry_s);
            if !with_will {
                // [MQTT-3.14.4-3]
                session.will = None;
            }
        }
        self.node.away(client, false);
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        if let Some(expiry_s) = expiry_s {
            writer.put(Property::SessionExpiryInterval(expiry_s));
        }
        let reason = if with_will {
            ReasonCode::DisconnectWithWillMessage
        } else {
            ReasonCode::Success
        };
        self.world.send(
            wire,
            &Packet::Disconnect(Disconnect {
                reason,
                properties: writer.finish(),
            }),
        );
        assert!(self.world.is_closed(wire));
        self.drain();
    }

    fn unblock(&mut self, client: usize, bytes: usize) {
        let Some(conn) = self.node.conn(client).filter(|c| c.is_blocked) else {
            return;
        };
        let wire = conn.wire;
        if bytes < usize::MAX {
            self.world.unblock_partly(wire, bytes);
            return self.drain();
        }
        self.world.unblock(wire);
        // Packets that arrive now may have been buffered for a long time.
        self.drain();
        self.node
            .conn(client)
            .expect("a blocked client is connected")
            .is_blocked = false;
    }

    fn pass(&mut self, ms: u64) {
        let end = self.world.now.monotonic_ms + ms;
        while self.world.now.monotonic_ms < end {
            let left = end - self.world.now.monotonic_ms;
            self.world.pass(left.min(50));
            self.node.pass(self.world.now.monotonic_ms);
            self.drain();
        }
    }

    // --- subscriptions ---

    fn subscribe(&mut self, client: usize, filter: usize, mut options: SubscriptionOptions, identifier: Option<u32>) {
        let session = self.node.session(client);
        let (wire, version) = (session.conn.as_ref().expect("checked").wire, session.version);
        let (filter, bare, share) = taken_apart(filter);
        let is_v5 = version == ProtocolVersion::V5;
        if !is_v5 {
            options = SubscriptionOptions {
                maximum_qos: options.maximum_qos,
                ..SubscriptionOptions::default()
            };
        }
        // [MQTT-3.8.3-4]
        options.no_local &= share.is_none();
        let identifier = identifier.filter(|_| is_v5);
        self.node.subscribe(
            client,
            Subscription {
                filter,
                bare,
                share,
                options,
                identifier,
            },
        );
        self.world.subscribe_with(wire, filter, options, identifier);
        self.drain();
        assert_eq!(self.heard(client), [Said::SubAck(vec![options.maximum_qos as u8])]);
    }

    fn unsubscribe(&mut self, client: usize, filter: usize) {
        let wire = self.node.conn(client).expect("checked").wire;
        self.node.unsubscribe(client, FILTERS[filter]);
        let mut bytes = Vec::new();
        let filters = UnsubscribeFilters::encode([FILTERS[filter]], &mut bytes);
        let packet = Unsubscribe {
            packet_id: PacketId::new(9).unwrap(),
            properties: Properties::EMPTY,
            filters,
        };
        self.world.send(wire, &Packet::Unsubscribe(packet));
        self.drain();
        assert_eq!(self.heard(client), [Said::UnsubAck]);
    }

    // --- messages from clients ---

    fn publish(&mut self, op: &Op) {
        let &Op::Publish {
            client,
            topic,
            qos,
            retain,
            expiry_s,
            is_empty,
            is_large,
        } = op
        else {
            unreachable!()
        };
        let now = self.node.now;
        let session = self.node.session(client);
        let (wire, version) = (session.conn.as_ref().expect("checked").wire, session.version);
        let topic = if retain {
            format!("r{client}/{}", TOPICS[topic])
        } else {
            TOPICS[topic].to_owned()
        };
        let expiry_s = expiry_s.filter(|_| version == ProtocolVersion::V5);
        let serial = self.node.serial();
        let payload = if is_empty && retain {
            Vec::new()
        } else {
            payload(serial, is_large)
        };
        self.next_id += 1;
        let id = PacketId::new(self.next_id).unwrap();
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        if let Some(expiry_s) = expiry_s {
            writer.put(Property::MessageExpiryInterval(expiry_s));
        }
        let packet_id = (qos != QoS::AtMostOnce).then_some(id);
        let properties = writer.finish();
        let packet = Publish {
            dup: false,
            qos,
            retain,
            topic: &topic,
            packet_id,
            properties,
            payload: &payload,
        };
        let mut bytes = Vec::new();
        Packet::Publish(packet).encode(version, &mut bytes);
        self.node.publish(&Message {
            serial,
            payload_bytes: payload.len(),
            topic: topic.clone(),
            qos,
            retain,
            publisher: Some(client),
            expires_at: expiry_s.map(|s| now + u64::from(s) * 1000),
        });
        self.world.send_bytes(wire, &bytes);
        self.drain();
        let expected = match qos {
            QoS::AtMostOnce => vec![],
            QoS::AtLeastOnce => vec![Said::Ack(PacketType::PubAck, id.get())],
            QoS::ExactlyOnce => vec![Said::Ack(PacketType::PubRec, id.get())],
        };
        assert_eq!(self.heard(client), expected);
        if qos == QoS::ExactlyOnce {
            self.node.session(client).unreleased.push((id.get(), bytes));
        }
    }

    fn repeat(&mut self, client: usize) {
        let session = self.node.session(client);
        let wire = session.conn.as_ref().expect("checked").wire;
        let Some((id, mut bytes)) = session.unreleased.last().cloned() else {
            return;
        };
        let version = session.version;
        let Ok(Decoded::Complete {
            packet: Packet::Publish(_),
            ..
        }) = decode(&bytes, version, 1 << 20)
        else {
            // The client reconnected with another protocol version, which encodes the packet differently.
            return;
        };
        bytes[0] |= 0b1000;
        self.world.send_bytes(wire, &bytes);
        self.drain();
        assert_eq!(self.heard(client), [Said::Ack(PacketType::PubRec, id)]);
    }

    fn release(&mut self, client: usize) {
        let session = self.node.session(client);
        let wire = session.conn.as_ref().expect("checked").wire;
        for (id, _) in std::mem::take(&mut session.unreleased) {
            self.world.ack(wire, PacketType::PubRel, id);
            self.drain();
            assert_eq!(self.heard(client), [Said::Ack(PacketType::PubComp, id)]);
        }
    }

    // --- answers to messages from the server ---

    fn answer(&mut self, client: usize, which: usize, with_failure: bool) {
        let session = self.node.session(client);
        let version = session.version;
        let conn = session.conn.as_mut().expect("checked");
        if conn.answers.is_empty() {
            return;
        }
        let answer = conn.answers.remove(which % conn.answers.len());
        let wire = conn.wire;
        let with_failure = with_failure && answer.kind == PacketType::PubRec && version == ProtocolVersion::V5;
        self.node.answered(client, answer.kind, answer.id, with_failure);
        if with_failure {
            let packet_id = PacketId::new(answer.id).unwrap();
            let ack = Ack {
                packet_id,
                reason: ReasonCode::UnspecifiedError,
                properties: Properties::EMPTY,
            };
            self.world.send(wire, &Packet::PubRec(ack));
        } else {
            self.world.ack(wire, answer.kind, answer.id);
        }
        self.drain();
    }

    fn answer_all(&mut self, client: usize) {
        for _ in 0..10_000 {
            if self.node.conn(client).is_none_or(|conn| conn.answers.is_empty()) {
                return;
            }
            self.answer(client, 0, false);
        }
        panic!("the exchange does not end");
    }

    // --- comparing ---

    /// Lets the clients read.
    fn drain(&mut self) {
        for client in 0..CLIENTS {
            let Some(conn) = self.node.conn(client) else { continue };
            let wire = conn.wire;
            let bytes = self.world.take_bytes(wire);
            let came = conn.take(&bytes);
            if !bytes.is_empty() {
                self.trace.push((self.step, client, bytes));
            }
            for message in &came {
                self.node.came(client, message);
            }
            let said = &self.node.conn(client).expect("as before").said;
            assert!(
                !self.world.is_closed(wire),
                "the server disconnected client {client}: {said:?}"
            );
        }
    }

    fn heard(&mut self, client: usize) -> Vec<Said> {
        self.node
            .conn(client)
            .map(|conn| std::mem::take(&mut conn.said))
            .unwrap_or_default()
    }

    fn check(&mut self) {
        self.node.check_nothing_withheld();
        let sessions = || self.node.sessions.iter().flatten();
        let stats = self.world.stats();
        let mut groups: Vec<_> = sessions()
            .flat_map(|s| &s.subscriptions)
            .filter(|s| s.share.is_some())
            .map(|s| s.filter)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(stats.sessions, sessions().count() as u64, "sessions");
        assert_eq!(
            stats.connections,
            sessions().filter(|s| s.conn.is_some()).count() as u64,
            "connections"
        );
        assert_eq!(
            stats.subscriptions,
            sessions().map(|s| s.subscriptions.len() as u64).sum::<u64>(),
            "subscriptions"
        );
        assert_eq!(stats.shared_groups, groups.len() as u64, "groups");
        self.check_retained();
        self.check_totals();
    }

    fn check_retained(&self) {
        let views = self
            .world
            .shards
            .iter()
            .flat_map(|s| s.inspect().retained(self.world.now, "#", None, 10_000, 10_000).0);
        let mut have: Vec<_> = views
            .map(|v| (v.topic, v.qos, v.payload.len(), v.expires_in_s))
            .collect();
        let now = self.node.now;
        let left = |m: &Message| m.expires_at.map(|at| (at - now).div_ceil(1000) as u32);
        let kept = self
            .node
            .retained
            .values()
            .map(|m| (m.topic.clone(), m.qos, m.payload_bytes, left(m)));
        let mut expected: Vec<_> = kept.collect();
        have.sort_unstable();
        expected.sort_unstable();
        assert_eq!(have, expected, "retained messages");
    }

    /// Checks that the totals of the shards equal the sums over their sessions.
    fn check_totals(&self) {
        let views = self.world.shards.iter().flat_map(|s| {
            s.inspect()
                .clients(&ClientFilter::default(), SessionSlot::FIRST, 1000)
                .0
        });
        let (mut queued, mut bytes, mut inflight) = (0, 0, 0);
        for view in views {
            queued += view.queued as u64;
            bytes += view.queued_bytes as u64;
            inflight += view.inflight as u64;
        }
        let groups = self
            .world
            .shards
            .iter()
            .flat_map(|shard| shard.inspect().shared_groups(usize::MAX));
        for group in groups {
            queued += group.queued as u64;
            bytes += group.queued_bytes as u64;
        }
        let stats = self.world.stats();
        assert_eq!(
            (stats.queued_messages, stats.queued_bytes, stats.inflight_messages),
            (queued, bytes, inflight)
        );
        let counted: u64 = self
            .world
            .shards
            .iter()
            .map(|s| s.inspect().sum_of_queued_bytes())
            .sum();
        assert_eq!(bytes, counted, "bytes of all queued messages");
    }

    /// All clients reconnect and receive the expected messages. Then all sessions end.
    fn finish(&mut self) {
        for client in 0..CLIENTS {
            self.unblock(client, usize::MAX);
            if self.node.sessions[client].is_some() && self.node.conn(client).is_none() {
                self.connect(client, &last_terms(false, 1000));
            }
        }
        for _ in 0..100 {
            (0..CLIENTS).for_each(|client| self.answer_all(client));
        }
        self.check();
        for client in 0..CLIENTS {
            self.connect(client, &last_terms(true, 0));
            self.disconnect(client, false, None);
        }
        self.check();
        check_empty(&self.world);
    }
}

const CLIENT_IDS: [&str; CLIENTS] = ["c0", "c1", "c2", "c3"];

fn last_terms(clean_start: bool, expiry_s: u32) -> Terms {
    Terms {
        version: ProtocolVersion::V5,
        clean_start,
        expiry_s,
        receive_maximum: 100,
        maximum_packet_size: None,
        topic_alias_maximum: 0,
        will: None,
    }
}

/// Checks that ended sessions leave no state.
pub fn check_empty(world: &World) {
    let stats = world.stats();
    let left: HashMap<&str, u64> = HashMap::from([
        ("connections", stats.connections),
        ("sessions", stats.sessions),
        ("subscriptions", stats.subscriptions),
        ("groups", stats.shared_groups),
        ("in flight", stats.inflight_messages),
        ("queued", stats.queued_messages),
        ("queued bytes", stats.queued_bytes),
        ("delayed", stats.delayed_messages),
        ("backlog", stats.output_backlog_bytes),
        ("mail", world.mail_waiting() as u64),
    ]);
    let left: Vec<_> = left.into_iter().filter(|(_, n)| *n > 0).collect();
    assert!(left.is_empty(), "{left:?}");
    for topic in TOPICS.into_iter().chain(["w/c0", "r0/a", "r1/a", "x"]) {
        assert_eq!(world.node.interest.mask(topic), 0, "interest in {topic}");
    }
    for shard in &world.shards {
        assert_eq!(shard.inspect().shared_groups(10).len(), 0);
    }
}

impl Op {
    /// Returns the client if it is connected and can send.
    fn actor(&self) -> Option<usize> {
        match *self {
            Op::Connect { .. } | Op::Pass { .. } | Op::Unblock { .. } | Op::Trickle { .. } | Op::Cut { .. } => None,
            Op::Subscribe { client, .. }
            | Op::Unsubscribe { client, .. }
            | Op::Publish { client, .. }
            | Op::Repeat { client }
            | Op::Release { client }
            | Op::Answer { client, .. }
            | Op::AnswerAll { client }
            | Op::Disconnect { client, .. }
            | Op::Block { client } => Some(client),
        }
    }
}
