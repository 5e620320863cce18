//! One core's share of the broker: the entry points through which its driver feeds it.
//!
//! What happens then is in the files named after it: `connect`, `authenticate`, `accept`, `connack`, `publish`, `subscribe`,
//! `route`, `broadcast`, `shared`, `letters`, `replay`, `lifecycle`. All of them are `impl Shard`; what one message does for one session is
//! `impl Core`, in `deliver`.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use mqtt::{Decoded, Packet, PacketType, Properties, ProtocolVersion, QoS, ReasonCode};

use crate::access::{Access, AuthOutcome, Offered};
use crate::client_ids::ClientIds;
use crate::config::ShardConfig;
use crate::connection::{Connection, Phase};
use crate::delayed::Delayed;
use crate::deliver::Core;
use crate::durable::checkpoint::Walk;
use crate::durable::ledger::Ledger;
use crate::durable::record::Record;
use crate::effect::{CloseCause, ConnSlot, DisconnectReason, Effect, Event, Next, Now, Peer, Received, ShardId};
use crate::exclusive::Exclusives;
use crate::inspect::Refusal;
use crate::interest::{Interest, InterestCounts};
use crate::late::Late;
use crate::lifecycle::Ending;
use crate::mail::{Envelope, Item, Mail};
use crate::message::{Message, Place};
use crate::outbox::Outbox;
use crate::parking::PARKED_MAX;
use crate::replay::STEPS_PER_TICK;
use crate::retained::{Retained, RetainedLimits};
use crate::route::RouteScratch;
use crate::shared::{Groups, RETURNED_WINDOWS, Returns};
use crate::subscriptions::SubscriptionTree;
use crate::sys::may_match_client_events;
use crate::tap::DeviceHappening;
use crate::timers::Timer;

/// How many refused connections a shard remembers for the operator.
pub const REFUSALS_KEPT: usize = 256;

/// What timers record in one tick, and deadlines in one part of a start: a batch of the journal has a limit.
pub(crate) const DUE_BYTES: usize = 4 << 20;

pub struct Shard {
    pub(crate) core: Core,
    pub(crate) access: Arc<dyn Access>,
    pub(crate) shared: Arc<NodeState>,
    pub(crate) interest: InterestCounts,
    /// Filter to sessions and groups: keys below `GROUP_KEY` are session slots.
    pub(crate) subscriptions: SubscriptionTree<Interested>,
    pub(crate) groups: Groups,
    pub(crate) retained: Retained<Arc<Message>>,
    pub(crate) retained_timer_ms: u64,
    /// Retained messages that this shard has published so far.
    pub(crate) retained_stamp: u64,
    pub(crate) late: Late,
    /// What is left of `replay::STEPS_PER_TICK`.
    pub(crate) replay_steps_left: usize,
    pub(crate) client_ids: ClientIds,
    pub(crate) free_sessions: Vec<u32>,
    /// Filters of durable sessions and groups; None where nothing outlives the process.
    pub(crate) durable_interest: Option<InterestCounts>,
    /// Connections that are not read from before the journal takes something again.
    pub(crate) held_publishers: Vec<ConnSlot>,
    /// The walk of a checkpoint, while there is one.
    pub(crate) walk: Option<Box<Walk>>,
    /// Groups that go on giving out what they hold in the next tick.
    pub(crate) giving: VecDeque<u32>,
    pub(crate) returning: Returns,
    /// Messages that may yet be given back in this tick.
    pub(crate) return_left: usize,
    /// Other shards that have begun a checkpoint which this one has not, and that have written their part.
    pub(crate) barriers: [u16; 2],
    pub(crate) delayed: Vec<Option<Delayed>>,
    pub(crate) free_delayed: Vec<u32>,
    pub(crate) delayed_bytes: usize,
    pub(crate) refusals: VecDeque<Refusal>,
    pub(crate) mail_out: Vec<Mail>,
    /// For members of shared subscriptions on other shards; sent when the message they are given has its place.
    pub(crate) member_mail: Vec<(ShardId, Envelope)>,
    pub(crate) scratch: RouteScratch,
    pub(crate) bytes: Vec<u8>,
    /// Timers that are due.
    pub(crate) due: Vec<Timer>,
    pub(crate) epochs: u32,
    pub(crate) random: u64,
    pub(crate) is_shutting_down: bool,
    shut_down_at: usize,
}

/// What all shards of a node share: read-mostly, off the path of a message.
pub struct NodeState {
    pub interest: Interest,
    /// As `interest`, for sessions and groups that outlive a connection: what is published for them goes to the journal.
    pub durable: Interest,
    pub exclusives: Exclusives,
    /// Shards that own a topic which ever had a retained message; bits are only ever set.
    retaining: AtomicU64,
    /// Filters of all shards that `$SYS/brokers/<node>/clients/…` may match.
    client_event_filters: AtomicU64,
}

impl NodeState {
    pub fn new(shards: u16, seed: u64) -> NodeState {
        NodeState {
            interest: Interest::new(usize::from(shards), seed),
            durable: Interest::new(usize::from(shards), seed),
            exclusives: Exclusives::default(),
            retaining: AtomicU64::new(0),
            client_event_filters: AtomicU64::new(0),
        }
    }

    /// Whether anybody may have subscribed to the topics that tell of clients coming and going.
    pub fn are_client_events_wanted(&self) -> bool {
        self.client_event_filters.load(Ordering::Acquire) > 0
    }

    pub(crate) fn filter_added(&self, filter: &str) {
        if may_match_client_events(filter) {
            self.client_event_filters.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn filter_removed(&self, filter: &str) {
        if may_match_client_events(filter) {
            self.client_event_filters.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Before the interest in a topic is looked up, for a message that its owner will keep. A subscriber looks here after it
    /// has told its interest, so that one of the two sees the other.
    pub(crate) fn note_retaining(&self, owner: ShardId) {
        let bit = 1 << owner.0;
        if self.retaining.load(Ordering::Relaxed) & bit == 0 {
            self.retaining.fetch_or(bit, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// The shards that may have retained messages; bit n is shard n.
    pub(crate) fn retaining(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.retaining.load(Ordering::SeqCst)
    }
}

/// A client of MQTT 5 is told that nothing is taken; others, and whoever has no answer to come, are not read from.
fn is_told(version: ProtocolVersion, qos: QoS) -> bool {
    version == ProtocolVersion::V5 && qos != QoS::AtMostOnce
}

/// What a subscription of the tree wants.
#[derive(Clone, Copy, Debug)]
pub struct Interested {
    /// Subscription Identifier; 0 for none.
    pub identifier: u32,
    pub options: mqtt::SubscriptionOptions,
}

impl Shard {
    /// `seed` feeds every random choice: assigned client ids, the random share strategy.
    pub fn new(
        now: Now,
        id: ShardId,
        shards: u16,
        config: Arc<ShardConfig>,
        access: Arc<dyn Access>,
        shared: Arc<NodeState>,
        seed: u64,
    ) -> Shard {
        let retained = Retained::new(retained_limits(&config));
        Shard {
            return_left: config.group_window.max(1) * RETURNED_WINDOWS,
            core: Core::new(now, id, shards, config),
            access,
            shared,
            interest: InterestCounts::new(usize::from(id.0)),
            subscriptions: SubscriptionTree::new(),
            groups: Groups::default(),
            retained,
            retained_timer_ms: u64::MAX,
            retained_stamp: 0,
            late: Late::default(),
            replay_steps_left: STEPS_PER_TICK,
            client_ids: ClientIds::default(),
            free_sessions: Vec::new(),
            durable_interest: None,
            held_publishers: Vec::new(),
            walk: None,
            giving: VecDeque::new(),
            returning: Returns::default(),
            barriers: [0; 2],
            delayed: Vec::new(),
            free_delayed: Vec::new(),
            delayed_bytes: 0,
            refusals: VecDeque::new(),
            mail_out: (0..shards).map(|_| Mail::default()).collect(),
            member_mail: Vec::new(),
            scratch: RouteScratch::default(),
            bytes: Vec::new(),
            due: Vec::new(),
            epochs: 0,
            random: seed | 1,
            is_shutting_down: false,
            shut_down_at: 0,
        }
    }

    /// From now on what outlives the process is recorded. `last_key` is the highest that any shard has given in any run.
    pub fn keep_journal(&mut self, last_key: u64) {
        self.core.ledger = Some(Box::new(Ledger::new(self.core.id.0, last_key)));
        self.durable_interest = Some(InterestCounts::new(usize::from(self.core.id.0)));
    }

    /// The shard that owns a client's session. The driver moves a connection there once it has read the CONNECT. `None` for an
    /// empty client id: it may stay where it is.
    pub fn home(client_id: &str, shards: u16) -> Option<ShardId> {
        (!client_id.is_empty()).then(|| ShardId((hash(client_id) % u64::from(shards.max(1))) as u16))
    }

    /// The shard in which a group that shares a subscription lives.
    pub fn home_of_group(share_name: &str, filter: &str, shards: u16) -> ShardId {
        crate::shared::group_home(share_name, filter, shards.max(1))
    }

    pub fn open(&mut self, now: Now, conn: ConnSlot, mut peer: Peer) {
        // For as long as the connection lasts, because CONNACK tells it to the client.
        let limit = self.core.config.maximum_packet_size;
        peer.maximum_packet_size = Some(peer.maximum_packet_size.map_or(limit, |own| own.min(limit)));
        let index = conn.0 as usize;
        if self.core.connections.len() <= index {
            self.core.connections.resize_with(index + 1, || None);
        }
        self.core.outbox.open(conn);
        self.epochs = self.epochs.wrapping_add(1);
        self.core.connections[index] = Some(Box::new(Connection::new(peer, self.epochs, now.monotonic_ms)));
    }

    /// Takes bytes of a connection, from its CONNECT on. Handles as many whole packets as it can.
    pub fn receive(&mut self, now: Now, conn: ConnSlot, bytes: &[u8]) -> Received {
        self.core.open_broadcast();
        let received = self.receive_packets(now, conn, bytes);
        self.core.close_broadcast();
        self.core.trace_received(conn, &bytes[..received.consumed]);
        received
    }

    fn receive_packets(&mut self, now: Now, conn: ConnSlot, bytes: &[u8]) -> Received {
        let mut consumed = 0;
        loop {
            if let Some(next) = self.must_wait(now, conn) {
                return Received { consumed, next };
            }
            let rest = &bytes[consumed..];
            match self.receive_packet(now, conn, rest) {
                Ok(size) => {
                    consumed += size;
                    self.core.stats.bytes_received += size as u64;
                }
                Err(next) => return Received { consumed, next },
            }
        }
    }

    /// What keeps the next packet of a connection from being handled now.
    #[inline]
    fn must_wait(&mut self, now: Now, conn: ConnSlot) -> Option<Next> {
        let Some(connection) = self.core.connections.get(conn.0 as usize).and_then(Option::as_deref) else {
            return Some(Next::Closed);
        };
        match connection.phase {
            Phase::Online | Phase::New | Phase::AwaitingAuth => {}
            Phase::Authenticating => return Some(Next::Pause),
            Phase::Closing => return Some(Next::Closed),
        }
        if self.core.outbox.is_over_soft_limit() {
            return Some(Next::Flush);
        }
        if self.core.outbox.queued_bytes(conn) > self.core.config.output_buffer_bytes {
            // Its answers are not taken: no more questions until they are.
            return Some(if self.core.outbox.has_backlog(conn) {
                Next::Pause
            } else {
                Next::Flush
            });
        }
        if connection.publish_quota.is_some() && self.is_over_quota(now, conn) {
            return Some(Next::Pause);
        }
        None
    }

    fn receive_packet(&mut self, now: Now, conn: ConnSlot, bytes: &[u8]) -> Result<usize, Next> {
        let connection = self.core.connection_mut(conn).expect("`must_wait` found it");
        let limit = connection
            .peer
            .maximum_packet_size
            .unwrap_or(self.core.config.maximum_packet_size) as usize;
        let connection = self.core.connection_mut(conn).expect("`must_wait` found it");
        if connection.phase == Phase::New {
            return match mqtt::decode_connect(bytes, limit) {
                Ok(Decoded::Incomplete { needed }) => Err(Next::Read { needed }),
                Ok(Decoded::Complete { packet, size }) => {
                    self.core.stats.packets_received[PacketType::Connect as usize] += 1;
                    self.connect(now, conn, &packet, &bytes[..size]);
                    Ok(size)
                }
                Err(error) => {
                    self.connect_malformed(now, conn, bytes, error);
                    Err(Next::Closed)
                }
            };
        }
        let version = connection.version;
        match mqtt::decode(bytes, version, limit) {
            Ok(Decoded::Incomplete { needed }) => Err(Next::Read { needed }),
            Ok(Decoded::Complete { packet, size }) => {
                if let Some(instead) = self.must_hold(now, conn, version, &packet) {
                    return Err(instead);
                }
                self.packet(now, conn, packet, &bytes[..size]);
                Ok(size)
            }
            Err(error) => {
                self.protocol_error(now, conn, error.reason, &error.kind.to_string());
                Err(Next::Closed)
            }
        }
    }

    /// A client of 3.1 or 3.1.1 cannot be told that the journal takes nothing: it is not read from until it does, and sent away if it never will.
    fn must_hold(&mut self, now: Now, conn: ConnSlot, version: ProtocolVersion, packet: &Packet<'_>) -> Option<Next> {
        let Packet::Publish(publish) = packet else { return None };
        if let Some(connection) = self.core.connection_mut(conn)
            && connection.parked_acks >= PARKED_MAX
            && publish.qos != QoS::AtMostOnce
        {
            connection.is_held_by_acks = true;
            return Some(Next::Pause);
        }
        if !self.is_tap_full() && !self.core.is_journal_stuck() {
            return None;
        }
        let slot = self
            .core
            .connection_mut(conn)
            .map_or(u32::MAX, |connection| connection.session);
        let is_device = self.device_of(slot).is_some();
        if is_device && (!self.must_hold_device() || is_told(version, publish.qos)) {
            return None;
        }
        let waits_for_journal = !is_device
            && self.core.is_journal_stuck()
            && version != ProtocolVersion::V5
            && publish.qos != QoS::AtMostOnce
            && (self.needs_journal(Some(slot), publish.topic, publish.qos, publish.retain)
                || publish.topic.starts_with("$delayed/"));
        if !is_device && !waits_for_journal && !self.must_hold_for_tap(now, conn, version, publish) {
            return None;
        }
        if waits_for_journal && self.core.has_journal_failed() {
            self.end_without_journal(now, conn);
            return Some(Next::Closed);
        }
        if let Some(connection) = self.core.connection_mut(conn)
            && !std::mem::replace(&mut connection.is_held_by_journal, true)
        {
            self.held_publishers.push(conn);
        }
        Some(Next::Pause)
    }

    /// The home of the session that a CONNECT leads to, which is not always that of the client id in it.
    pub fn home_of(&self, connect: &mqtt::Connect<'_>, certificate: Option<&[u8]>) -> Option<ShardId> {
        let offered = Offered {
            client_id: connect.client_id,
            user_name: connect.user_name,
            password: connect.password,
            certificate,
        };
        match self.access.session_name(&offered) {
            Some(name) => Shard::home(&name, self.core.shards),
            None => Shard::home(connect.client_id, self.core.shards),
        }
    }

    fn packet(&mut self, now: Now, conn: ConnSlot, packet: Packet<'_>, bytes: &[u8]) {
        let connection = self
            .core
            .connection_mut(conn)
            .expect("a packet comes from an open connection");
        connection.last_packet_ms = now.monotonic_ms;
        let (session, phase) = (connection.session, connection.phase);
        if phase == Phase::AwaitingAuth && !matches!(packet, Packet::Auth(_) | Packet::Disconnect(_)) {
            // [MQTT-3.1.2-30]
            return self.protocol_error(
                now,
                conn,
                ReasonCode::ProtocolError,
                "only AUTH may follow while authentication goes on",
            );
        }
        if !matches!(packet, Packet::Publish(_)) {
            self.core.settle();
        }
        match packet {
            Packet::Publish(publish) => self.publish_received(now, conn, session, &publish, bytes.len()),
            Packet::PubAck(ack) => self.puback(now, session, &ack),
            Packet::PubRec(ack) => self.pubrec(now, conn, session, &ack),
            Packet::PubRel(ack) => self.pubrel(conn, session, &ack),
            Packet::PubComp(ack) => self.pubcomp(now, session, &ack),
            Packet::PingReq => self.ping(now, conn, session),
            Packet::Subscribe(subscribe) => self.subscribe(now, conn, session, &subscribe),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(now, conn, session, &unsubscribe),
            Packet::Disconnect(disconnect) => self.disconnect_received(now, conn, session, &disconnect),
            Packet::Auth(auth) => self.auth_received(now, conn, &auth),
            // [MQTT-3.1.0-2]
            Packet::Connect(_) => self.protocol_error(now, conn, ReasonCode::ProtocolError, "a second CONNECT"),
            Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                self.protocol_error(
                    now,
                    conn,
                    ReasonCode::ProtocolError,
                    "a packet that only a server sends",
                );
            }
        }
    }

    fn ping(&mut self, now: Now, conn: ConnSlot, slot: u32) {
        self.core.stats.packets_received[PacketType::PingReq as usize] += 1;
        self.core.tap_ping(now, slot);
        self.core.tap_device(now, slot, DeviceHappening::Pinged);
        // [MQTT-3.12.4-1]
        self.send(conn, &Packet::PingResp);
    }

    /// Queues a packet for a connection. False if it is larger than the client takes, and so not sent [MQTT-3.1.2-24].
    pub(crate) fn send(&mut self, conn: ConnSlot, packet: &Packet<'_>) -> bool {
        let Some(connection) = self.core.connection_mut(conn) else {
            return true;
        };
        let (version, room) = (connection.version, connection.maximum_packet_size as usize);
        let mark = self.core.outbox.mark();
        packet.encode(version, &mut self.core.outbox.arena);
        let range = self.core.outbox.range_from(mark);
        if range.len() > room {
            self.core.outbox.arena.truncate(mark);
            return false;
        }
        self.core.push(conn, range);
        self.core.stats.packets_sent[packet.packet_type() as usize] += 1;
        self.core.stats.bytes_sent += range.len() as u64;
        true
    }

    /// The socket is gone; the slot may be reused afterwards.
    pub fn closed(&mut self, now: Now, conn: ConnSlot, cause: CloseCause) {
        let reason = match cause {
            CloseCause::Peer | CloseCause::Network | CloseCause::Requested => DisconnectReason::ConnectionLost,
            CloseCause::Transport => DisconnectReason::TransportError,
        };
        let ending = Ending {
            reason,
            code: None,
            is_discarded: false,
            because: "the network connection was closed",
            properties: Properties::EMPTY,
        };
        self.detach(now, conn, ending);
        self.core.trace_closed(conn);
        self.core.outbox.close(conn);
        self.core.connections[conn.0 as usize] = None;
    }

    /// The socket took all of the backlog: queued messages may follow.
    pub fn drained(&mut self, now: Now, conn: ConnSlot) {
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        let (session, phase) = (connection.session, connection.phase);
        if phase == Phase::Online {
            self.pump(now, session);
        }
    }

    /// The answer to `Effect::Authenticate`; ignored if the connection has gone on since.
    pub fn authenticated(&mut self, now: Now, conn: ConnSlot, attempt: u32, outcome: AuthOutcome) {
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        if connection.attempt == attempt {
            self.authentication_decided(now, conn, outcome);
        }
    }

    /// Takes what another shard has sent.
    pub fn mail(&mut self, now: Now, mail: Mail) {
        self.core.open_broadcast();
        let from = mail.from();
        let mut routed = Place::NONE;
        let mut reader = mail.read();
        while let Some(item) = reader.next() {
            if !matches!(item, Item::Publication(Envelope::Route { .. }, _)) {
                self.core.settle();
            }
            match item {
                Item::Publication(Envelope::Route { stamp }, p) => {
                    routed = routed.max(p.place);
                    if stamp > 0 {
                        self.late.routed(p.topic, ShardId(from), stamp);
                    }
                    self.core.mind_routing(routed.position().is_some());
                    self.route_local(now, &p);
                }
                Item::Publication(Envelope::Late { from, stamp }, p) => {
                    routed = routed.max(p.place);
                    if !self.late.is_overtaken(p.topic, from, stamp) {
                        self.route_local(now, &p);
                    }
                }
                Item::Publication(Envelope::Retain { told, stamp }, p) => {
                    routed = routed.max(p.place);
                    self.retain_from(now, ShardId(from), told, stamp, &p);
                }
                Item::Publication(envelope, p) => self.shared_publication(now, envelope, &p),
                Item::Letter(letter) => self.letter(now, letter),
            }
        }
        if let Some(up_to) = routed.position() {
            let by = self.core.id.0;
            self.core.record(&Record::Routed { by, from, up_to });
            self.core.mind_routing(false);
        }
        self.core.close_broadcast();
    }

    /// Takes over limits and choices; what is there already stays, even beyond a lower limit.
    pub fn reconfigure(&mut self, config: Arc<ShardConfig>) {
        self.retained.set_limits(retained_limits(&config));
        self.core.config = config;
        self.renew_quotas();
    }

    /// What has to go to another shard, if anything.
    pub fn take_mail(&mut self, to: ShardId) -> Option<Mail> {
        let mail = &mut self.mail_out[usize::from(to.0)];
        if mail.is_empty() {
            return None;
        }
        let base = self.core.ledger.as_ref().map_or(0, |ledger| ledger.base);
        mail.sent(self.core.id, base);
        Some(std::mem::take(mail))
    }

    /// Nothing is read from clients now, for whatever reason: none of them is silent.
    pub fn is_not_reading(&mut self, now: Now) {
        self.core.deaf_ms = now.monotonic_ms;
    }

    /// Runs timers that are due, and goes on with what did not fit into the last tick.
    pub fn run_timers(&mut self, now: Now) {
        for (member, group) in std::mem::take(&mut self.core.let_go) {
            self.member_done(member, group);
        }
        self.return_more(now);
        self.give_on(now);
        self.replay_steps_left = STEPS_PER_TICK;
        for _ in 0..self.core.unfinished.len() {
            if self.core.outbox.is_over_soft_limit() || self.replay_steps_left == 0 {
                break;
            }
            let Some(slot) = self.core.unfinished.pop_front() else {
                break;
            };
            if let Some(session) = self.core.sessions[slot as usize].as_deref_mut() {
                session.is_unfinished = false;
                self.pump(now, slot);
            }
        }
        self.run_due(now);
    }

    /// Wills of many clients may be due at once, and large.
    fn run_due(&mut self, now: Now) {
        let mut due = std::mem::take(&mut self.due);
        self.core.timers.advance(now.monotonic_ms, &mut due);
        let bytes_max = self.batch_bytes() + DUE_BYTES;
        let mut done = 0;
        while done < due.len() && self.batch_bytes() < bytes_max {
            self.timer_due(now, due[done]);
            done += 1;
        }
        due.drain(..done);
        self.due = due;
    }

    /// When `run_timers` has something to do next, in monotonic milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        let has_rest = !(self.giving.is_empty() && self.returning.is_empty() && self.due.is_empty());
        if has_rest || !self.core.unfinished.is_empty() {
            return Some(0);
        }
        self.core.timers.next_deadline()
    }

    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.core.outbox
    }

    /// Moves out what the driver has to do.
    pub fn take_effects(&mut self, into: &mut Vec<Effect>) {
        self.core.trace_events();
        into.append(&mut self.core.effects);
    }

    /// Graceful end: DISCONNECT 0x8B to everyone, `limit` connections at a time; false when none is left.
    pub fn shut_down(&mut self, now: Now, limit: usize) -> bool {
        self.is_shutting_down = true;
        let end = (self.shut_down_at + limit).min(self.core.connections.len());
        for index in self.shut_down_at..end {
            if self.core.connections[index].is_some() {
                let conn = ConnSlot(index as u32);
                self.end_connection(
                    now,
                    conn,
                    DisconnectReason::ServerShuttingDown,
                    ReasonCode::ServerShuttingDown,
                    "the server is shutting down",
                );
            }
        }
        self.shut_down_at = end;
        end < self.core.connections.len()
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.core.effects.push(Effect::Event(event));
    }

    /// xorshift64*: good enough to spread, from the seed only.
    pub(crate) fn next_random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

pub(crate) fn retained_limits(config: &ShardConfig) -> RetainedLimits {
    RetainedLimits {
        count_max: config.retained_messages_max,
        bytes_max: config.retained_bytes_max as u64,
    }
}

/// The hash that places client ids, topics and groups; the same in every run, so that placement can be reasoned about.
pub(crate) fn hash(text: &str) -> u64 {
    foldhash::quality::FixedState::with_seed(0x7469_6465).hash_one(text)
}
