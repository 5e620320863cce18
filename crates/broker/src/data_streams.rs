//! Data streams of MQTT over QUIC, as in EMQX's multi-stream mode.
//!
//! The client sends CONNECT on the first stream of its connection, the control stream. A further stream is a data
//! stream: a connection of its own for the shard, with a session of its own that ends with it. So acknowledgements and
//! messages leave on the stream of their PUBLISH or SUBSCRIBE, packet identifiers and windows are per stream, and the
//! streams of a client do not wait for each other. Nothing of a data stream is in the journal. Its session has the
//! client id of the client, but the table of client ids does not contain it.
//!
//! Invariant: a data stream is online only while its control stream is. The end of the control connection detaches all
//! its data streams; the driver then closes them.

use mqtt::ProtocolVersion;

use crate::connection::Connection;
use crate::connections::Connections;
use crate::deliver::ShardCore;
use crate::effect::{ConnectionEvent, DisconnectReason, Effect, Now};
use crate::lifecycle::Lifecycle;
use crate::operator::Operator;
use crate::owners::{Holding, Owners, SessionHolding, owner_name};
use crate::session::Session;
use crate::session_link::LinkFlag;
use crate::shard::Shard;
use crate::slots::{ConnEpoch, ConnSlot, ConnectNumber, NumberSequence, ReplayNumber, SessionEpoch, SessionSlot};
use crate::tick::Tick;
use crate::timers::ShardTimer;

/// Which stream of a QUIC connection this is.
#[derive(Debug, Default)]
pub enum StreamRole {
    /// The only one, also with another transport.
    #[default]
    Only,
    /// The control stream of a connection with data streams.
    Control(Box<DataStreams>),
    /// A data stream of the connection with this control stream.
    Data(ConnSlot),
}

/// The data streams of a connection.
#[derive(Debug)]
pub struct DataStreams {
    slots: Vec<ConnSlot>,
}

impl Connection {
    pub fn is_data_stream(&self) -> bool {
        matches!(self.streams, StreamRole::Data(_))
    }

    /// Returns the slots of the connection's data streams.
    pub fn data_streams(&self) -> &[ConnSlot] {
        match &self.streams {
            StreamRole::Control(streams) => &streams.slots,
            StreamRole::Only | StreamRole::Data(_) => &[],
        }
    }

    fn add_stream(&mut self, conn: ConnSlot) {
        if let StreamRole::Control(streams) = &mut self.streams {
            return streams.slots.push(conn);
        }
        self.streams = StreamRole::Control(Box::new(DataStreams { slots: vec![conn] }));
    }

    fn remove_stream(&mut self, conn: ConnSlot) {
        if let StreamRole::Control(streams) = &mut self.streams {
            streams.slots.retain(|other| *other != conn);
        }
    }

    /// Removes and returns the data streams.
    pub(crate) fn take_streams(&mut self) -> Vec<ConnSlot> {
        match std::mem::take(&mut self.streams) {
            StreamRole::Control(streams) => streams.slots,
            other => {
                self.streams = other;
                Vec::new()
            }
        }
    }
}

impl Connections {
    /// Returns the slots of a connection's data streams.
    pub(crate) fn data_streams_of(&self, control: ConnSlot) -> Vec<ConnSlot> {
        self.get(control).map_or(Vec::new(), |own| own.data_streams().to_vec())
    }
}

impl Shard {
    /// Opens a data stream of the online connection `control`. `conn` is its own slot: the driver passes its bytes to
    /// `receive`, writes its output, and calls `closed` at its end. Returns false if the driver must reject the stream:
    /// the client is not logged in, is one of the device platform, or has reached a limit of sessions.
    pub fn open_stream(&mut self, now: Now, conn: ConnSlot, control: ConnSlot) -> bool {
        let (tick, parts) = self.split(now);
        let Tick { core, numbers, .. } = tick;
        let own = core.connections.get(control);
        let Some(own) = own.filter(|own| own.is_online() && !own.is_data_stream()) else {
            return false;
        };
        if let Some(detail) = reason_to_reject(core, &parts.node.owners, own.session) {
            core.report_stream_end(control, DisconnectReason::QuotaExceeded, detail);
            return false;
        }
        let mut session = stream_session(now, core.sessions.at(own.session), conn, numbers);
        session.access = parts.authentication.rights_of(&session);
        let mut stream = own.for_data_stream(control, ConnEpoch(numbers.next()), now);
        stream.asks_access = session.access.as_ref().is_some_and(|access| access.asks());
        let owner = owner_name(session.user_name.as_deref(), session.address.get().ip());
        let holding = SessionHolding::new(&parts.node.owners, Some(&owner), session.holding_bytes());
        let (is_v5, connect_number) = (session.version == ProtocolVersion::V5, session.connect_number);
        let has_own_form = stream.aliases.is_some() || session.mountpoint().is_some();
        core.invalidate_recipients();
        let slot = core.sessions.add_unnamed(session);
        core.sessions.set_holding(slot, holding);
        let link = core.link_mut(slot);
        link.conn = conn;
        link.maximum_packet_size = stream.maximum_packet_size;
        link.set(LinkFlag::V5, is_v5);
        link.set(LinkFlag::OwnForm, has_own_form);
        stream.session = slot;
        core.outbox.open(conn);
        core.connections.open(conn, stream);
        if let Some(own) = core.connections.get_mut(control) {
            own.add_stream(conn);
        }
        if let Some(retry_ms) = core.config.retry_interval_ms
            && !is_v5
        {
            let timer = ShardTimer::Retry {
                session: slot,
                connect_number,
            };
            core.timers.insert(now.monotonic_ms + retry_ms, timer);
        }
        true
    }

    /// Reports that the driver rejects a data stream of the connection `control`.
    pub fn stream_rejected(&mut self, now: Now, control: ConnSlot, detail: &str) {
        let (tick, _) = self.split(now);
        tick.core
            .report_stream_end(control, DisconnectReason::QuotaExceeded, detail);
    }
}

/// Returns why the client of a session may not open another data stream. It counts as a session in all limits.
fn reason_to_reject(core: &ShardCore, owners: &Owners, slot: SessionSlot) -> Option<&'static str> {
    let client = core.sessions.at(slot);
    if client.inbox_key().is_some() {
        return Some("a device of the platform has no data streams");
    }
    if owners.total().count(Holding::Session) >= core.config.max_sessions as u64 {
        return Some("limits.max_sessions is reached");
    }
    let user = core.sessions.holding(slot).and_then(SessionHolding::user)?;
    let bytes = client.client_id.len() as u64;
    let exceeded = user.exceeded_by_session(&core.config.shares.user, None, bytes)?;
    Some(exceeded.rejection())
}

/// Returns the session of a data stream, with the terms of the client's own session. The caller sets its access rules.
fn stream_session(now: Now, client: &Session, conn: ConnSlot, numbers: &mut NumberSequence) -> Session {
    let epoch = SessionEpoch(numbers.next());
    let mut session = Session::new(now, &client.client_id, client.address.get(), epoch);
    session.set_client_epoch(client.epoch);
    session.conn = Some(conn);
    session.connect_number = ConnectNumber(numbers.next());
    session.listener = client.listener;
    session.version = client.version;
    session.wants_problem_information = client.wants_problem_information;
    session.window = client.window;
    session.is_bridge = client.is_bridge;
    session.set_current_address(Some(client.current_address()));
    session.set_mountpoint(client.mountpoint().cloned());
    session.user_name = client.user_name.clone();
    session.is_superuser = client.is_superuser;
    session.set_grant(client.grant().for_data_stream());
    session
}

impl Lifecycle<'_> {
    /// Detaches a data stream, and ends its session. Does nothing if it is detached already.
    pub(crate) fn detach_stream(&mut self, control: ConnSlot, conn: ConnSlot) {
        let now = self.tick.now;
        let core = &mut *self.tick.core;
        let (traces, clients) = core.traced();
        traces.leaving(clients, conn);
        if let Some(own) = core.connections.get_mut(control) {
            own.remove_stream(conn);
        }
        let Some(slot) = core.connections.get_mut(conn).and_then(Connection::detach) else {
            return;
        };
        core.link_mut(slot).conn = ConnSlot::NONE;
        let reason = DisconnectReason::ConnectionLost;
        let session = core.sessions.at_mut(slot);
        session.detach(now, reason, || ReplayNumber(self.tick.numbers.next()));
        core.release(now, slot);
        self.end_session(slot, "the data stream has ended");
    }
}

impl Operator<'_> {
    /// Returns the sessions of a client's data streams.
    pub(crate) fn streams_of(&self, slot: SessionSlot) -> Vec<SessionSlot> {
        let core = &*self.lifecycle.tick.core;
        let conn = core.sessions.at(slot).conn.unwrap_or(ConnSlot::NONE);
        let streams = core.connections.data_streams_of(conn).into_iter();
        let sessions = streams.filter_map(|conn| Some(core.connections.get(conn)?.session));
        sessions.filter(|slot| core.sessions.get(*slot).is_some()).collect()
    }

    /// Applies a new login of a client to the session of one of its data streams. The decisions about the subscriptions
    /// of the stream stay, as those of the client do.
    pub(crate) fn renew_stream(&mut self, client: SessionSlot, stream: SessionSlot) {
        let sessions = &mut self.lifecycle.tick.core.sessions;
        let own = sessions.at(client);
        let (is_superuser, grant) = (own.is_superuser, own.grant().for_data_stream());
        let session = sessions.at_mut(stream);
        let grant = self.authentication.renewed_grant(session.grant(), grant);
        session.is_superuser = is_superuser;
        session.set_grant(grant);
    }
}

impl ShardCore {
    /// Reports to operators that the server ends a data stream, or rejects one. `conn` is any stream of the client.
    pub(crate) fn report_stream_end(&mut self, conn: ConnSlot, reason: DisconnectReason, detail: &str) {
        let slot = self
            .connections
            .get(conn)
            .map_or(SessionSlot::NONE, |connection| connection.session);
        let Some(session) = self.sessions.get(slot) else {
            return;
        };
        self.effects.push(Effect::Event(ConnectionEvent::StreamEnded {
            client_id: session.client_id.clone(),
            address: session.current_address(),
            reason,
            detail: detail.into(),
        }));
    }

    /// Returns the last time at which the data streams of a connection have shown that their client is alive; 0 for
    /// never. While reading from a stream is paused, its data may fill the window of the connection, so that PINGREQ
    /// cannot arrive.
    pub(crate) fn streams_heard_ms(&mut self, now: Now, control: ConnSlot) -> u64 {
        let mut heard_ms = 0;
        for conn in self.connections.data_streams_of(control) {
            let has_progress = self.outbox.take_progress(conn);
            let is_slow = has_progress && self.outbox.queued_bytes(conn) > self.config.output_buffer_bytes;
            let Some(stream) = self.connections.get(conn) else {
                continue;
            };
            heard_ms = match is_slow || stream.is_reading_paused() {
                true => now.monotonic_ms,
                false => stream.silent_since_ms(heard_ms),
            };
        }
        heard_ms
    }
}
