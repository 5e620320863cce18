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

use crate::authentication::Authentication;
use crate::deliver::ShardCore;
use crate::effect::{DisconnectReason, Now};
use crate::lifecycle::report_stream_end;
use crate::owners::{Holding, Owners, SessionHolding, owner_name};
use crate::session::Session;
use crate::session_link::LinkFlag;
use crate::slots::{ConnEpoch, ConnSlot, ConnectNumber, NumberSequence, SessionEpoch, SessionSlot};
use crate::tick::Tick;
use crate::timers::ShardTimer;

/// Opens data streams.
pub struct DataStreams<'a> {
    pub(crate) tick: Tick<'a>,
    pub(crate) authentication: &'a Authentication,
    pub(crate) owners: &'a Owners,
}

impl DataStreams<'_> {
    /// Opens a data stream of the online connection `control`. `conn` is its own slot: the driver passes its bytes to
    /// `Shard::receive`, writes its output, and calls `Shard::closed` at its end. Returns false if the driver must
    /// reject the stream: the client is not logged in, is one of the device platform, or has reached a limit of
    /// sessions.
    pub fn open(&mut self, conn: ConnSlot, control: ConnSlot) -> bool {
        let Tick { now, core, numbers, .. } = &mut self.tick;
        let now = *now;
        let own = core.connections.get(control);
        let Some(own) = own.filter(|own| own.is_online() && !own.is_data_stream()) else {
            return false;
        };
        if let Some(detail) = reason_to_reject(core, self.owners, own.session) {
            report_stream_end(core, control, DisconnectReason::QuotaExceeded, detail);
            return false;
        }
        let mut session = stream_session(now, core.sessions.at(own.session), conn, numbers);
        session.access = self.authentication.rights_of(&session);
        let mut stream = own.for_data_stream(control, ConnEpoch(numbers.next()), now);
        stream.asks_access = session.access.as_ref().is_some_and(|access| access.asks());
        let owner = owner_name(session.user_name.as_deref(), session.address.get().ip());
        let holding = SessionHolding::new(self.owners, Some(&owner), session.holding_bytes());
        let (is_v5, connect_number) = (session.version == ProtocolVersion::V5, session.connect_number);
        let has_own_form = stream.aliases.is_some() || session.mountpoint().is_some();
        core.invalidate_recipients();
        let slot = core.sessions.add_unnamed(session);
        core.sessions
            .set_holding(slot, holding, core.config.limits_user_queues());
        let link = core.link_mut(slot);
        link.conn = conn;
        link.maximum_packet_size = stream.maximum_packet_size;
        link.set(LinkFlag::V5, is_v5);
        link.set(LinkFlag::OwnForm, has_own_form);
        stream.session = slot;
        core.outbox.open(conn);
        core.connections.open(conn, stream);
        if let Some(own) = core.connections.get_mut(control) {
            own.streams.add(conn);
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
    pub fn rejected(&mut self, control: ConnSlot, detail: &str) {
        report_stream_end(self.tick.core, control, DisconnectReason::QuotaExceeded, detail);
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
    let bytes = client.client_id.len() + client.grant().attribute_bytes();
    let exceeded = user.exceeded_by_session(&core.config.shares.user, None, bytes as u64)?;
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
