//! Accepts a CONNECT: finds, takes over or creates the session, and attaches the connection to it.

use std::sync::Arc;

use mqtt::{ConnAck, Connect, Packet, Properties, ProtocolVersion, ReasonCode};

use crate::access::{AccessRequest, AdmissionStep, ClientIdentity};
use crate::authentication::{Authentication, expire_login};
use crate::connack::{AcceptedConnect, RejectedConnect, Rejection};
use crate::deliver::ShardCore;
use crate::effect::{ConnectionEvent, DropReason, Effect};
use crate::fault::{Fault, is_planted};
use crate::inbox::InboxEvent;
use crate::inbox_sessions::InboxAccess;
use crate::lifecycle::Lifecycle;
use crate::login::Login;
use crate::mountpoint::{Mountpoint, is_short_enough};
use crate::node_state::NodeState;
use crate::owners::{Holding, OwnerLimit, Owners, SessionHolding, owner_name};
use crate::parsed_filter::ParsedFilter;
use crate::publish_buckets::PublisherIdentity;
use crate::session::{ConnectTerms, SessionWill};
use crate::session_link::LinkFlag;
use crate::slots::{ConnSlot, ConnectNumber, SessionEpoch, SessionSlot};
use crate::tap::{GrantedConnect, TapEvent, TapEventMask};
use crate::timers::ShardTimer;

impl AcceptedConnect<'_> {
    /// Checks whether the client may have a session, within the limits of the node and of the client's user.
    fn check_session(&self, core: &ShardCore, owners: &Owners, conn: ConnSlot) -> Result<(), Rejection> {
        let (config, client) = (&core.config, self.client);
        let existing = core.sessions.slot_of(client.client_id);
        let needs_journal = || {
            self.granted.expiry_s > 0
                || existing.is_some_and(|slot| core.sessions.link(slot).is_durable())
                || core.ledger.is_end_pending(client.client_id)
        };
        if core.ledger.has_failed() && needs_journal() {
            // CONNACK would wait forever, because neither a session nor its end can be committed.
            let detail = "the journal has failed, and the session needs it";
            return Err(Rejection(ReasonCode::ServerUnavailable, detail));
        }
        if let Some(will) = &self.connect.will {
            check_mounted_will(config.max_topic_levels, will.topic, self.mountpoint)?;
        }
        if let Some(limit) = self.exceeded_limit(core, owners, conn, existing) {
            return Err(Rejection(ReasonCode::QuotaExceeded, limit.rejection()));
        }
        let Some(slot) = existing else {
            return match owners.total().count(Holding::Session) < config.max_sessions as u64 {
                true => Ok(()),
                false => Err(Rejection(ReasonCode::QuotaExceeded, "limits.max_sessions is reached")),
            };
        };
        let is_own = core.sessions.at(slot).user_name.as_deref() == self.connect.user_name;
        if config.is_client_id_owned && !client.is_superuser && client.inbox_key.is_none() && !is_own {
            let detail = "the client id belongs to a session of another user; an administrator can delete it";
            return Err(Rejection(ReasonCode::NotAuthorized, detail));
        }
        Ok(())
    }

    /// Returns the limit of the user that the session would exceed. `existing` is the present session of the client id.
    /// A session of the same user is replaced.
    fn exceeded_limit(
        &self,
        core: &ShardCore,
        owners: &Owners,
        conn: ConnSlot,
        existing: Option<SessionSlot>,
    ) -> Option<OwnerLimit> {
        if self.client.inbox_key.is_some() {
            return None;
        }
        let address = core.connections.get(conn)?.peer.address.ip();
        let user = owners.user(&owner_name(self.connect.user_name, address));
        let holding = existing.and_then(|slot| core.sessions.holding(slot));
        let before = holding.filter(|holding| holding.user().is_some_and(|other| Arc::ptr_eq(other, &user)));
        let will = self.connect.will.as_ref();
        let will_bytes = will.map_or(0, |will| SessionWill::from_connect(will, self.mountpoint).bytes());
        let bytes = self.client.client_id.len() + will_bytes + self.client.grant.attribute_bytes();
        let limits = &core.config.shares.user;
        user.exceeded_by_session(limits, before.map(SessionHolding::bytes), bytes as u64)
    }
}

/// Checks the limits of topics that a mountpoint can exceed.
fn check_mounted_will(levels_max: usize, topic: &str, mountpoint: Option<&Mountpoint>) -> Result<(), Rejection> {
    let Some(topic) = mountpoint.map(|mountpoint| mountpoint.will_topic(topic)) else {
        return Ok(());
    };
    match is_short_enough(&topic) && mqtt::levels(&topic).count() <= levels_max {
        true => Ok(()),
        false => Err(Rejection(
            ReasonCode::TopicNameInvalid,
            "the will's topic is too long with the mountpoint of the client",
        )),
    }
}

/// Accepts clients that are authenticated.
pub(crate) struct Admission<'a> {
    pub lifecycle: Lifecycle<'a>,
    pub authentication: &'a mut Authentication,
    pub node: &'a NodeState,
}

impl Admission<'_> {
    /// Returns the next step for an authenticated client.
    pub fn step(&self, conn: ConnSlot, connect: &Connect<'_>, login: &Login) -> AdmissionStep {
        let Some(granted) = login
            .client()
            .filter(|login| self.authentication.must_prepare(&login.grant))
        else {
            return AdmissionStep::Admit;
        };
        let core = &*self.lifecycle.tick.core;
        let (connect, client) = login.terms(connect);
        let Some(connection) = core.connections.get(conn) else {
            return AdmissionStep::Admit;
        };
        let who = ClientIdentity {
            client_id: client.client_id.into(),
            user_name: connect.user_name.map(Into::into),
            address: connection.peer.address.ip(),
            is_superuser: client.is_superuser,
            grant: granted.grant.clone(),
            mountpoint: granted.mountpoint.clone(),
        };
        let mountpoint = login.mountpoint();
        let will = connect.will.as_ref();
        let full_topic = will.and_then(|will| Some(mountpoint?.will_topic(will.topic)));
        let will = will.map(|will| AccessRequest::Publish {
            topic: full_topic.as_deref().unwrap_or(will.topic),
            qos: will.qos,
            retain: will.retain,
        });
        // A session with another mountpoint is discarded.
        let continues = |slot: &SessionSlot| core.sessions.at(*slot).mountpoint() == mountpoint;
        let existing = core.sessions.slot_of(client.client_id);
        let continued = existing.filter(|_| !connect.clean_start).filter(continues);
        let subscriptions = continued
            .into_iter()
            .flat_map(|slot| core.sessions.at(slot).subscriptions.iter());
        let filters = subscriptions.filter_map(|(filter, subscription)| {
            Some(AccessRequest::Subscribe {
                filter: ParsedFilter::parse(filter).ok()?.filter(),
                qos: subscription.options.maximum_qos,
            })
        });
        let requests: Vec<AccessRequest<'_>> = will.into_iter().chain(filters).collect();
        self.authentication.admission(&who, &requests)
    }

    /// Rejects an authenticated client.
    pub fn reject(&mut self, conn: ConnSlot, connect: &Connect<'_>, login: &Login, rejection: Rejection) {
        let (connect, client) = login.terms(connect);
        let Rejection(reason, detail) = rejection;
        let rejected = RejectedConnect {
            client_id: client.client_id,
            connect: Some(&connect),
            reason,
            detail,
            is_authenticated: true,
        };
        self.authentication.reject(&mut self.lifecycle.tick, conn, rejected);
    }

    /// Accepts the CONNECT of an authenticated client: finds or creates the session and sends CONNACK.
    pub fn admit(&mut self, conn: ConnSlot, connect: &Connect<'_>, login: &Login) {
        let (connect, client) = login.terms(connect);
        let config = self.lifecycle.tick.core.config.clone();
        let accepted = AcceptedConnect {
            connect: &connect,
            client,
            granted: GrantedConnect::of(&config, &connect, client.inbox_key),
            mountpoint: login.mountpoint(),
        };
        let connection = self
            .lifecycle
            .tick
            .core
            .connections
            .get(conn)
            .expect("the connection is open");
        let mut properties = self.authentication.take_buffer();
        let result = accepted
            .check_session(self.lifecycle.tick.core, &self.node.owners, conn)
            .and_then(|()| accepted.write_properties(&config, connection, login.data(), &mut properties));
        match result {
            Ok(()) => self.open_session(conn, &accepted, login, &properties),
            Err(rejection) => self.reject(conn, &connect, login, rejection),
        }
        self.authentication.put_back_buffer(properties);
    }

    /// Attaches the connection to its session and sends CONNACK before any other packet.
    fn open_session(&mut self, conn: ConnSlot, accepted: &AcceptedConnect<'_>, login: &Login, properties: &[u8]) {
        let now = self.lifecycle.tick.now;
        let AcceptedConnect { connect, client, .. } = *accepted;
        let existing = self.lifecycle.tick.core.sessions.slot_of(client.client_id);
        let wills = self.lifecycle.tick.core.stats.wills_published;
        let resumed = existing.and_then(|slot| {
            let discarded = self.reason_to_discard(slot, accepted);
            self.lifecycle.take_over(slot, discarded)
        });
        let session_present = resumed.is_some();
        let slot = resumed.unwrap_or_else(|| {
            let connection = self
                .lifecycle
                .tick
                .core
                .connections
                .get(conn)
                .expect("the connection is open");
            let (address, epoch) = (
                connection.peer.address,
                SessionEpoch(self.lifecycle.tick.numbers.next()),
            );
            self.lifecycle
                .tick
                .core
                .add_session(now, client.client_id, address, epoch)
        });
        self.attach(conn, slot, accepted, login);
        if self
            .lifecycle
            .tick
            .core
            .ledger
            .record_connected(now, self.lifecycle.tick.core.sessions.at_mut(slot))
        {
            self.lifecycle.tick.core.link_mut(slot).set(LinkFlag::Durable, true);
        }
        let has_published_will = self.lifecycle.tick.core.stats.wills_published > wills;
        let must_wait = self.lifecycle.tick.core.sessions.link(slot).is_durable()
            || self.lifecycle.tick.core.ledger.is_end_pending(client.client_id)
            || has_published_will;
        if must_wait && !is_planted(Fault::ConnackBeforeCommit) {
            // The client relies on the state that CONNACK reports, so it must survive a crash.
            self.lifecycle.tick.core.hold_until_committed(conn);
        }
        let connack = ConnAck {
            session_present,
            reason: ReasonCode::Success,
            properties: Properties::from_validated(properties),
        };
        self.lifecycle.tick.core.send(conn, &Packet::ConnAck(connack));
        let session = self.lifecycle.tick.core.sessions.at(slot);
        let tap_event = TapEvent::ConnAck {
            reason: ReasonCode::Success,
            granted: Some(accepted.granted),
            properties: connect.properties.as_bytes(),
        };
        self.lifecycle
            .tick
            .core
            .taps
            .session_event(now, session, TapEventMask::CONNACK, &tap_event);
        self.connected(slot, session_present, accepted);
    }

    /// Returns why the present session of a client does not continue. With another mountpoint, its subscriptions and
    /// queued messages have topics that the client must not, or cannot, see. The client learns from Session Present
    /// that it must subscribe again.
    fn reason_to_discard(&self, slot: SessionSlot, accepted: &AcceptedConnect<'_>) -> Option<&'static str> {
        let session = self.lifecycle.tick.core.sessions.at(slot);
        if accepted.connect.clean_start {
            return Some("clean start");
        }
        (session.mountpoint() != accepted.mountpoint).then_some("the mountpoint of the client has changed")
    }

    /// Applies the terms of a CONNECT to the connection and the session.
    fn attach(&mut self, conn: ConnSlot, slot: SessionSlot, accepted: &AcceptedConnect<'_>, login: &Login) {
        let AcceptedConnect { connect, client, .. } = *accepted;
        let now = self.lifecycle.tick.now;
        let config = self.lifecycle.tick.core.config.clone();
        let connection = self
            .lifecycle
            .tick
            .core
            .connections
            .get_mut(conn)
            .expect("the connection is open");
        connection.attach(slot, &config, connect);
        let publisher = PublisherIdentity {
            user_name: connect.user_name,
            is_device: client.inbox_key.is_some(),
            address: connection.peer.address.ip(),
            listener: connection.peer.listener,
        };
        let buckets = &self.node.publish_buckets;
        connection.publish_quota = buckets.quota(&config.publish_limits, publisher, now.monotonic_ms);
        let has_own_form = connection.aliases.is_some() || accepted.mountpoint.is_some();
        let address = connection.peer.address;
        let session = self.lifecycle.tick.core.sessions.at_mut(slot);
        session.attach(ConnectTerms {
            now,
            conn,
            peer: &connection.peer,
            number: ConnectNumber(self.lifecycle.tick.numbers.next()),
            max_inflight: config.max_inflight,
            connect,
            granted: accepted.granted,
            is_superuser: client.is_superuser,
            grant: login.client().map(|login| login.grant.clone()).unwrap_or_default(),
            mountpoint: accepted.mountpoint.cloned(),
        });
        session.access = match client.inbox_key {
            None => self.authentication.rights_of(session),
            Some(key) => Some(Arc::new(InboxAccess(key))),
        };
        connection.asks_access = session.access.as_ref().is_some_and(|access| access.asks());
        let is_will_denied = session.has_denied_will();
        if is_will_denied {
            session.will = None;
        }
        let is_replaying = !session.replays.is_empty();
        let owner = client
            .inbox_key
            .is_none()
            .then(|| owner_name(connect.user_name, address.ip()));
        let mut holding = SessionHolding::new(&self.node.owners, owner.as_deref(), session.holding_bytes());
        holding.add_subscriptions(session.subscriptions.len() as u64);
        let core = &mut *self.lifecycle.tick.core;
        core.sessions.set_holding(slot, holding, config.limits_user_queues());
        let link = self.lifecycle.tick.core.link_mut(slot);
        link.conn = conn;
        link.set(LinkFlag::V5, connect.version == ProtocolVersion::V5);
        link.set(LinkFlag::Replaying, is_replaying);
        link.set(LinkFlag::OwnForm, has_own_form);
        link.maximum_packet_size = connect.properties.maximum_packet_size().unwrap_or(u32::MAX);
        if is_will_denied {
            self.lifecycle
                .tick
                .core
                .dropped(now, slot, DropReason::NotAuthorizedToPublish);
        }
        let expires_at_unix_ms = login.client().and_then(|login| login.expires_at_unix_ms);
        expire_login(self.lifecycle.tick.core, now, conn, expires_at_unix_ms);
    }

    fn connected(&mut self, slot: SessionSlot, session_present: bool, accepted: &AcceptedConnect<'_>) {
        let Lifecycle { tick, router, to } = &mut self.lifecycle;
        let (now, core) = (tick.now, &mut *tick.core);
        core.stats.connected();
        let session = core.sessions.at(slot);
        let (connect_number, is_v5) = (session.connect_number, session.version == ProtocolVersion::V5);
        if let Some(conn) = session.conn.filter(|_| session.keep_alive_s > 0)
            && let Some(connection) = core.connections.get(conn)
        {
            let epoch = connection.epoch;
            let at_ms = now.monotonic_ms + core.config.keep_alive_ms(session.keep_alive_s);
            core.timers.wake(now, at_ms, ShardTimer::KeepAlive { conn, epoch });
        }
        core.effects.push(Effect::Event(ConnectionEvent::Connected {
            client_id: session.client_id.clone(),
            user_name: session.user_name.clone(),
            address: session.address.get(),
            session_present,
        }));
        let tap_event = TapEvent::Connected {
            session_present,
            clean_start: session.clean_start,
            keep_alive_s: session.keep_alive_s,
            expiry_s: session.expiry_s,
            is_bridge: session.is_bridge,
            connected_at_ms: session.connected_at_ms,
            properties: accepted.connect.properties.as_bytes(),
        };
        core.taps
            .session_event(now, session, TapEventMask::CONNECTED, &tap_event);
        core.taps.inbox_event(now, session, InboxEvent::Connected { is_v5 });
        if let Some(retry_ms) = core.config.retry_interval_ms
            && !is_v5
        {
            let timer = ShardTimer::Retry {
                session: slot,
                connect_number,
            };
            core.timers.insert(now.monotonic_ms + retry_ms, timer);
        }
        if session_present {
            router.recheck_subscriptions(tick, to.groups, slot);
            to.groups.announce_state(tick, slot, true);
            to.retained.pump(tick, slot);
        }
    }
}
