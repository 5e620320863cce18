//! A shard: the share of the broker that one core runs. This file has the entry points for the driver.
//!
//! A shard connects components with private fields, and passes them a `Tick`. `Admission` handles CONNECT, `Lifecycle`
//! the end of connections and sessions, `ClientPublisher` PUBLISH, and `ClientAcks` the acknowledgements of clients.
//! `shard/journal.rs`, `shard/mail.rs` and `shard/tap.rs` have the entry points for the journal, for other shards and
//! for the tap. `shard/clients.rs` handles timers and violations of clients.

mod clients;
mod journal;
mod mail;
mod tap;

use std::sync::Arc;

use mqtt::{Decoded, Packet, PacketType, Properties, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::accept::Admission;
use crate::access::{AccessControl, AuthOutcome};
use crate::access_questions;
use crate::authentication::{AuthDecision, AuthStep, Authentication};
use crate::client_acks::ClientAcks;
use crate::config::ShardConfig;
use crate::connection::{Connection, ConnectionPhase};
use crate::connection_end::ConnectionEnd;
use crate::data_streams::DataStreams;
use crate::delayed::DelayedMessages;
use crate::deliver::ShardCore;
use crate::durable::checkpoint::Checkpoints;
use crate::effect::{CloseCause, DisconnectReason, Effect, NextAction, Now, Peer, ReceiveResult, ShardId};
use crate::inbox::InboxEvent;
use crate::inbox_sessions::InboxSession;
use crate::inspect::ShardInspection;
use crate::lifecycle::Lifecycle;
use crate::message_limits::MessageLimits;
use crate::node_state::NodeState;
use crate::operator::Operator;
use crate::outbox::Outbox;
use crate::outgoing_mail::OutgoingMail;
use crate::publish::{ClientPublisher, PublishError};
use crate::receipt_actions::WAITING_ACKS_MAX;
use crate::retained_messages::RetainedMessages;
use crate::router::{Destinations, Router};
use crate::shared::ShareGroups;
use crate::slots::{AuthAttempt, ConnEpoch, ConnSlot, NumberSequence, SessionSlot};
use crate::subscribe::{ACCESS_DENIED, Violation};
use crate::throttle;
use crate::tick::{RandomSequence, Tick};
use crate::trace::TracedClients;

pub use journal::ShardJournal;
pub use tap::ShardTap;

/// Bytes that timers record per tick, and deadlines per step of a restart, because the size of a journal batch is
/// limited.
pub(crate) const DUE_BYTES: usize = 4 << 20;

pub struct Shard {
    core: ShardCore,
    authentication: Authentication,
    shared: Arc<NodeState>,
    router: Router,
    groups: ShareGroups,
    retained: RetainedMessages,
    checkpoints: Checkpoints,
    delayed: DelayedMessages,
    mail: OutgoingMail,
    /// Numbers of connections, sessions and requests.
    numbers: NumberSequence,
    random: RandomSequence,
}

/// The components of a shard, borrowed apart from a `Tick`.
pub(crate) struct Components<'a> {
    pub authentication: &'a mut Authentication,
    pub router: &'a mut Router,
    pub groups: &'a mut ShareGroups,
    pub retained: &'a mut RetainedMessages,
    pub delayed: &'a mut DelayedMessages,
    pub checkpoints: &'a mut Checkpoints,
    pub node: &'a NodeState,
}

impl<'a> Components<'a> {
    /// Returns the components that publish a message.
    #[inline]
    pub fn routing(self) -> (&'a mut Router, Destinations<'a>) {
        let to = Destinations {
            groups: self.groups,
            retained: self.retained,
        };
        (self.router, to)
    }

    /// Returns the component that ends connections and sessions, and the authentication.
    fn lifecycle(self, tick: Tick<'a>) -> (Lifecycle<'a>, &'a mut Authentication) {
        let authentication = self.authentication;
        let to = Destinations {
            groups: self.groups,
            retained: self.retained,
        };
        let router = self.router;
        (Lifecycle { tick, router, to }, authentication)
    }

    /// Returns the component that handles the acknowledgements of a client.
    #[inline]
    fn acks_of(self, tick: Tick<'a>, conn: ConnSlot, slot: SessionSlot) -> ClientAcks<'a> {
        ClientAcks {
            tick,
            groups: self.groups,
            retained: self.retained,
            conn,
            slot,
        }
    }

    /// Returns the component that accepts clients.
    fn admission(self, tick: Tick<'a>) -> Admission<'a> {
        let node = self.node;
        let (lifecycle, authentication) = self.lifecycle(tick);
        Admission {
            lifecycle,
            authentication,
            node,
        }
    }
}

/// Returns whether the client receives a reason code when a message is rejected. Reading from other clients is paused
/// instead.
fn receives_reason_code(version: ProtocolVersion, qos: QoS) -> bool {
    version == ProtocolVersion::V5 && qos != QoS::AtMostOnce
}

impl Shard {
    /// Creates a shard. `seed` determines all random choices: assigned client ids and the random share strategy.
    pub fn new(
        now: Now,
        id: ShardId,
        config: Arc<ShardConfig>,
        access: Arc<dyn AccessControl>,
        shared: Arc<NodeState>,
        seed: u64,
    ) -> Shard {
        let retained = RetainedMessages::new(id, shared.clone());
        let delayed = DelayedMessages::new(shared.owners.clone());
        let shards = shared.shards();
        Shard {
            groups: ShareGroups::new(&config),
            core: ShardCore::new(now, id, shards, config),
            authentication: Authentication::new(access, shared.exchange_memory.clone()),
            router: Router::new(id, shared.clone()),
            shared,
            retained,
            checkpoints: Checkpoints::new(shards),
            delayed,
            mail: OutgoingMail::new(shards),
            numbers: NumberSequence::default(),
            random: RandomSequence::new(seed),
        }
    }

    /// Borrows the context of a call, and the components that may handle it.
    #[inline]
    pub(crate) fn split(&mut self, now: Now) -> (Tick<'_>, Components<'_>) {
        let tick = Tick {
            now,
            is_checkpointing: self.checkpoints.is_running(),
            core: &mut self.core,
            mail: &mut self.mail,
            random: &mut self.random,
            numbers: &mut self.numbers,
        };
        let components = Components {
            authentication: &mut self.authentication,
            router: &mut self.router,
            groups: &mut self.groups,
            retained: &mut self.retained,
            delayed: &mut self.delayed,
            checkpoints: &mut self.checkpoints,
            node: &self.shared,
        };
        (tick, components)
    }

    pub fn open(&mut self, now: Now, conn: ConnSlot, mut peer: Peer) {
        // Stays the same for the lifetime of the connection, because CONNACK reports it to the client.
        let limit = self.core.config.max_packet_size;
        peer.maximum_packet_size = Some(peer.maximum_packet_size.map_or(limit, |own| own.min(limit)));
        self.core.outbox.open(conn);
        let epoch = ConnEpoch(self.numbers.next());
        let connection = Connection::new(peer, epoch, now.monotonic_ms);
        self.core.connections.open(conn, connection);
    }

    /// Handles received bytes of a connection, from its CONNECT on: as many complete packets as possible.
    pub fn receive(&mut self, now: Now, conn: ConnSlot, bytes: &[u8]) -> ReceiveResult {
        self.core.broadcast.open();
        let mut consumed = 0;
        let next = loop {
            if let Some(next) = self.must_wait(now, conn) {
                break next;
            }
            match self.receive_packet(now, conn, &bytes[consumed..]) {
                Ok(size) => {
                    consumed += size;
                    self.core.stats.bytes_received += size as u64;
                }
                Err(next) => break next,
            }
        };
        self.core.close_broadcast();
        let (traces, clients) = self.core.traced();
        traces.received(clients, conn, &bytes[..consumed]);
        ReceiveResult { consumed, next }
    }

    /// Returns why the next packet of a connection cannot be handled now.
    #[inline]
    fn must_wait(&mut self, now: Now, conn: ConnSlot) -> Option<NextAction> {
        let Some(connection) = self.core.connections.get(conn) else {
            return Some(NextAction::Closed);
        };
        match connection.phase() {
            ConnectionPhase::Online | ConnectionPhase::New | ConnectionPhase::AwaitingAuth => {}
            ConnectionPhase::Authenticating => return Some(NextAction::Pause),
            ConnectionPhase::Closing => return Some(NextAction::Closed),
        }
        if connection.is_held_by_question {
            return Some(NextAction::Pause);
        }
        let has_quota = connection.publish_quota.is_some();
        if self.core.outbox.is_over_soft_limit() {
            return Some(NextAction::Flush);
        }
        if self.core.outbox.queued_bytes(conn) > self.core.config.output_buffer_bytes {
            // The client does not read its answers; pause until it does.
            return Some(if self.core.outbox.has_backlog(conn) {
                NextAction::Pause
            } else {
                NextAction::Flush
            });
        }
        let is_throttled = has_quota && self.core.connections.is_throttled(now, conn);
        is_throttled.then_some(NextAction::Pause)
    }

    fn receive_packet(&mut self, now: Now, conn: ConnSlot, bytes: &[u8]) -> Result<usize, NextAction> {
        let connection = self
            .core
            .connections
            .get_mut(conn)
            .expect("`must_wait` checked the connection");
        let limit = connection
            .peer
            .maximum_packet_size
            .unwrap_or(self.core.config.max_packet_size) as usize;
        if connection.phase() == ConnectionPhase::New {
            return match mqtt::decode_connect(bytes, limit) {
                Ok(Decoded::Incomplete { needed }) => Err(NextAction::Read { needed }),
                Ok(Decoded::Complete { packet, size }) => {
                    self.core.stats.packets_received[PacketType::Connect as usize] += 1;
                    let (mut tick, parts) = self.split(now);
                    let login = parts.authentication.connect(&mut tick, conn, &packet, &bytes[..size]);
                    if let Some(login) = login {
                        parts.admission(tick).begin(conn, &packet, &bytes[..size], login);
                    }
                    Ok(size)
                }
                Err(error) => {
                    let (mut tick, parts) = self.split(now);
                    parts.authentication.connect_malformed(&mut tick, conn, bytes, error);
                    Err(NextAction::Closed)
                }
            };
        }
        let (version, asks_access) = (connection.version, connection.asks_access);
        let has_quota = connection.publish_quota.is_some();
        match mqtt::decode(bytes, version, limit) {
            Ok(Decoded::Incomplete { needed }) => {
                if has_quota {
                    self.core.connections.give_back_tokens(conn);
                }
                Err(NextAction::Read { needed })
            }
            // By reference: a decoded packet has more than a hundred bytes, which a move would copy.
            Ok(Decoded::Complete { ref packet, size }) => {
                if let Some(instead) = self.must_pause(now, conn, version, packet) {
                    return Err(instead);
                }
                if asks_access && access_questions::must_ask(&mut self.core, conn, packet) {
                    return Err(NextAction::Pause);
                }
                if has_quota
                    && matches!(packet, Packet::Publish(_))
                    && throttle::must_throttle(&mut self.core, now, conn, size)
                {
                    return Err(NextAction::Pause);
                }
                self.packet(now, conn, packet);
                if asks_access {
                    access_questions::packet_handled(&mut self.core, conn, packet);
                }
                Ok(size)
            }
            Err(error) => {
                self.protocol_error(now, conn, error.reason, &error.kind.to_string());
                Err(NextAction::Closed)
            }
        }
    }

    /// Returns how to pause if a PUBLISH cannot be handled now. A 3.1 or 3.1.1 client cannot receive a reason code, so
    /// reading from it is paused until the journal accepts records. If the journal has failed, the client is
    /// disconnected.
    fn must_pause(
        &mut self,
        now: Now,
        conn: ConnSlot,
        version: ProtocolVersion,
        packet: &Packet<'_>,
    ) -> Option<NextAction> {
        let Packet::Publish(publish) = packet else { return None };
        if let Some(connection) = self.core.connections.get_mut(conn)
            && connection.acks_waiting_for_tap >= WAITING_ACKS_MAX
            && publish.qos != QoS::AtMostOnce
        {
            connection.is_held_by_acks = true;
            return Some(NextAction::Pause);
        }
        if !self.core.taps.is_full() && !self.core.ledger.is_unavailable() {
            return None;
        }
        let slot = self
            .core
            .connections
            .get_mut(conn)
            .map_or(SessionSlot::NONE, |connection| connection.session);
        let is_for_inbox = self.core.sessions.inbox_key(slot).is_some();
        if is_for_inbox && (!self.core.taps.is_inbox_full() || receives_reason_code(version, publish.qos)) {
            return None;
        }
        let full = self
            .core
            .sessions
            .get(slot)
            .and_then(|session| session.mounted_topic(publish.topic));
        let publish = &Publish {
            topic: full.as_deref().unwrap_or(publish.topic),
            ..publish.clone()
        };
        let waits_for_journal = !is_for_inbox
            && self.core.ledger.is_unavailable()
            && version != ProtocolVersion::V5
            && publish.qos != QoS::AtMostOnce
            && (self
                .router
                .needs_journal(&self.core, Some(slot), publish.topic, publish.qos, publish.retain)
                || publish.topic.starts_with("$delayed/"));
        let session = self.core.sessions.get(slot);
        if !is_for_inbox && !waits_for_journal && !self.core.taps.must_pause(now, session, version, publish) {
            return None;
        }
        if waits_for_journal && self.core.ledger.has_failed() {
            self.lifecycle(now).end_connection(conn, journal::journal_failed());
            return Some(NextAction::Closed);
        }
        self.core.connections.pause_for_journal(conn);
        Some(NextAction::Pause)
    }

    fn packet(&mut self, now: Now, conn: ConnSlot, packet: &Packet<'_>) {
        let connection = self
            .core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection");
        connection.heard(now);
        let (session, phase) = (connection.session, connection.phase());
        if phase == ConnectionPhase::AwaitingAuth && !matches!(packet, Packet::Auth(_) | Packet::Disconnect(_)) {
            // [MQTT-3.1.2-30]
            return self.protocol_error(
                now,
                conn,
                ReasonCode::ProtocolError,
                "only AUTH is allowed during authentication",
            );
        }
        if !matches!(packet, Packet::Publish(_)) {
            self.core.end_broadcast_run();
        }
        match packet {
            Packet::Publish(publish) => self.publish_received(now, conn, session, publish),
            Packet::PubAck(_) | Packet::PubRec(_) | Packet::PubRel(_) | Packet::PubComp(_) => {
                let (tick, parts) = self.split(now);
                parts.acks_of(tick, conn, session).received(packet);
            }
            Packet::PingReq | Packet::Auth(_) | Packet::Disconnect(_) if self.core.connections.is_data_stream(conn) => {
                let detail = "the packet type is allowed only on the control stream";
                self.protocol_error(now, conn, ReasonCode::ProtocolError, detail);
            }
            Packet::PingReq => {
                let core = &mut self.core;
                core.stats.packets_received[PacketType::PingReq as usize] += 1;
                let session = core.sessions.at(session);
                core.taps.ping(now, session);
                core.taps.inbox_event(now, session, InboxEvent::Pinged);
                // [MQTT-3.12.4-1]
                core.send(conn, &Packet::PingResp);
            }
            Packet::Subscribe(subscribe) => {
                let (
                    mut tick,
                    Components {
                        router,
                        groups,
                        retained,
                        ..
                    },
                ) = self.split(now);
                let answered = router.subscribe_received(&mut tick, groups, retained, session, subscribe);
                self.answered(now, session, answered);
            }
            Packet::Unsubscribe(unsubscribe) => {
                let (mut tick, parts) = self.split(now);
                let router = parts.router;
                let answered = router.unsubscribe_received(&mut tick, parts.groups, session, unsubscribe);
                self.answered(now, session, answered);
            }
            Packet::Disconnect(disconnect) => {
                let result = if self.core.sessions.get(session).is_some() {
                    self.lifecycle(now).disconnect_received(conn, session, disconnect)
                } else {
                    let (mut tick, parts) = self.split(now);
                    parts.authentication.disconnect_received(&mut tick, conn, disconnect);
                    Ok(())
                };
                if let Err(Violation { code, detail }) = result {
                    self.protocol_error(now, conn, code, &detail);
                }
            }
            Packet::Auth(auth) => {
                let (mut tick, parts) = self.split(now);
                match parts.authentication.auth_received(&mut tick, conn, auth) {
                    AuthStep::Asked => {}
                    AuthStep::Decided(attempt, outcome) => self.authenticated(now, conn, attempt, outcome),
                    AuthStep::NotAllowed => {
                        // [MQTT-4.12.0-5], [MQTT-4.12.0-7]
                        let detail = "AUTH is not allowed in this state";
                        self.protocol_error(now, conn, ReasonCode::ProtocolError, detail);
                    }
                }
            }
            // [MQTT-3.1.0-2]
            Packet::Connect(_) => self.protocol_error(now, conn, ReasonCode::ProtocolError, "CONNECT was sent twice"),
            Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                self.protocol_error(
                    now,
                    conn,
                    ReasonCode::ProtocolError,
                    "the packet type is reserved for servers",
                );
            }
        }
    }

    fn publish_received(&mut self, now: Now, conn: ConnSlot, slot: SessionSlot, publish: &Publish<'_>) {
        let (tick, parts) = self.split(now);
        let mut publisher = ClientPublisher {
            tick,
            router: parts.router,
            to: Destinations {
                groups: parts.groups,
                retained: parts.retained,
            },
            delayed: parts.delayed,
            owners: &parts.node.owners,
            conn,
            slot,
        };
        match publisher.receive(publish) {
            Ok(()) => {}
            Err(PublishError::Protocol { code, detail }) => self.protocol_error(now, conn, code, detail),
            Err(PublishError::Denied) => self.protocol_error(now, conn, ReasonCode::NotAuthorized, ACCESS_DENIED),
            Err(PublishError::Overload { code, detail }) => {
                let reason = DisconnectReason::QuotaExceeded;
                let ending = ConnectionEnd::by_server(reason, code, detail);
                self.lifecycle(now).end_connection(conn, ending);
            }
        }
    }

    /// Returns the component that ends connections and sessions.
    pub(crate) fn lifecycle(&mut self, now: Now) -> Lifecycle<'_> {
        let (tick, parts) = self.split(now);
        parts.lifecycle(tick).0
    }

    /// Sends what a session waits for.
    pub(crate) fn pump(&mut self, now: Now, slot: SessionSlot) {
        let (mut tick, parts) = self.split(now);
        parts.retained.pump(&mut tick, slot);
    }

    /// The connection has closed. Its slot may be reused afterwards.
    pub fn closed(&mut self, now: Now, conn: ConnSlot, cause: CloseCause) {
        let reason = match cause {
            CloseCause::Peer | CloseCause::Network | CloseCause::Requested => DisconnectReason::ConnectionLost,
            CloseCause::Transport => DisconnectReason::TransportError,
        };
        let ending = ConnectionEnd {
            reason,
            code: None,
            is_discarded: false,
            detail: "the network connection was closed",
            properties: Properties::EMPTY,
        };
        self.lifecycle(now).detach(conn, ending);
        self.core.traces.closed(conn);
        self.core.outbox.close(conn);
        self.core.connections.close(conn);
    }

    /// Returns the session of an inbox client, if it is on this shard.
    pub fn inbox_session(&mut self, client_id: &str) -> Option<InboxSession<'_>> {
        InboxSession::of(&mut self.core, client_id)
    }

    /// The backlog of a connection has been written; continues with queued messages.
    pub fn drained(&mut self, now: Now, conn: ConnSlot) {
        let Some(connection) = self.core.connections.get_mut(conn) else {
            return;
        };
        let session = connection.session;
        if connection.is_online() {
            self.pump(now, session);
        }
    }

    /// The answer to `Effect::Authenticate`. Ignored if the connection has another pending question or none.
    pub fn authenticated(&mut self, now: Now, conn: ConnSlot, attempt: AuthAttempt, outcome: AuthOutcome) {
        let connection = self.core.connections.get(conn);
        if !connection.is_some_and(|connection| connection.is_attempt(attempt)) {
            return;
        }
        let (mut tick, parts) = self.split(now);
        match parts.authentication.decided(&mut tick, conn, outcome) {
            None => {}
            Some(AuthDecision::Accept(stored, login)) => parts.admission(tick).resume(conn, stored, login),
            Some(AuthDecision::Disconnect(code, detail)) => {
                let reason = DisconnectReason::ReAuthenticationFailed;
                let ending = ConnectionEnd::by_server(reason, code, detail);
                self.lifecycle(now).end_connection(conn, ending);
            }
            Some(AuthDecision::RightsChanged(slot)) => self.operator(now).session_rights_changed(slot),
        }
    }

    /// The answer to `Effect::Authorize` is stored with the login of the client, so its packet can be handled.
    /// `is_answered` is false if there will be no answer: the client is disconnected. Ignored for another connection.
    pub fn authorized(&mut self, now: Now, conn: ConnSlot, epoch: ConnEpoch, is_answered: bool) {
        let (tick, parts) = self.split(now);
        parts.admission(tick).answered(conn, epoch, is_answered);
    }

    /// Applies a changed configuration. Existing state stays, even if it exceeds a lower limit.
    pub fn reconfigure(&mut self, now: Now, config: Arc<ShardConfig>) {
        self.core.taps.set_message_limits(MessageLimits::of(&config));
        let before = std::mem::replace(&mut self.core.config, config);
        if before.publish_limits != self.core.config.publish_limits {
            throttle::renew_quotas(&mut self.core, now, &self.shared.publish_buckets);
        }
        let counts_queues = self.core.config.limits_user_queues();
        if before.limits_user_queues() != counts_queues {
            self.core.sessions.count_queues(counts_queues);
        }
    }

    /// The driver does not read from clients now, so keep-alive times do not run.
    pub fn is_not_reading(&mut self, now: Now) {
        self.core.connections.is_not_reading(now);
    }

    /// Runs due timers, and continues work that did not fit into the last tick.
    pub fn run_timers(&mut self, now: Now) {
        let (mut tick, parts) = self.split(now);
        parts.groups.run(&mut tick);
        self.retained.begin_tick();
        for _ in 0..self.core.unfinished.len() {
            if self.core.outbox.is_over_soft_limit() || !self.retained.has_replay_steps() {
                break;
            }
            let Some(slot) = self.core.unfinished.pop_front() else {
                break;
            };
            if let Some(session) = self.core.sessions.get_mut(slot) {
                session.is_unfinished = false;
                self.pump(now, slot);
            }
        }
        self.core.timers.advance(now);
        // Bounded, because many wills may be due at once, and they may be large.
        let bytes_max = self.core.ledger.batch_bytes() + DUE_BYTES;
        while self.core.ledger.batch_bytes() < bytes_max
            && let Some(timer) = self.core.timers.next_due()
        {
            self.timer_due(now, timer);
        }
    }

    /// Returns the read-only queries.
    #[inline]
    pub fn inspect(&self) -> ShardInspection<'_> {
        ShardInspection {
            core: &self.core,
            authentication: &self.authentication,
            groups: &self.groups,
            retained: self.retained.store(),
            checkpoints: &self.checkpoints,
        }
    }

    /// Returns the components that an operator changes.
    pub fn operator(&mut self, now: Now) -> Operator<'_> {
        let (tick, parts) = self.split(now);
        let (lifecycle, authentication) = parts.lifecycle(tick);
        Operator {
            lifecycle,
            authentication,
        }
    }

    /// Returns the component that opens data streams of MQTT over QUIC.
    pub fn data_streams(&mut self, now: Now) -> DataStreams<'_> {
        let (tick, parts) = self.split(now);
        DataStreams {
            tick,
            authentication: parts.authentication,
            owners: &parts.node.owners,
        }
    }

    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.core.outbox
    }

    /// Traces the output of this tick. The driver calls it before it writes any of it.
    #[inline]
    pub fn trace_output(&mut self) {
        let core = &mut self.core;
        let clients = TracedClients {
            connections: &core.connections,
            sessions: &core.sessions,
        };
        core.traces.sent(clients, &core.outbox);
    }

    /// Moves the effects to `into`.
    pub fn take_effects(&mut self, into: &mut Vec<Effect>) {
        self.core.traces.events(&self.core.effects);
        into.append(&mut self.core.effects);
    }

    /// Sends DISCONNECT 0x8B to all clients for a graceful shutdown, `limit` connections per call. Returns false when
    /// none is left.
    pub fn shut_down(&mut self, now: Now, limit: usize) -> bool {
        let (connections, has_more) = self.core.connections.shut_down(limit);
        for conn in connections {
            let ending = ConnectionEnd::by_server(
                DisconnectReason::ServerShuttingDown,
                ReasonCode::ServerShuttingDown,
                "the server is shutting down",
            );
            self.lifecycle(now).end_connection(conn, ending);
        }
        has_more
    }
}
