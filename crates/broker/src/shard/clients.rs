//! Timers, violations of clients, and clients that an operator disconnects.

use mqtt::ReasonCode;

use crate::access::ClientIdentity;
use crate::connack::RejectedConnect;
use crate::connection_end::ConnectionEnd;
use crate::effect::{DisconnectReason, Now};
use crate::router::Destinations;
use crate::session::Session;
use crate::sessions::LOOK_MAX;
use crate::shard::{Components, Shard};
use crate::slots::{ConnSlot, SessionSlot};
use crate::subscribe::{AnswerState, Violation};
use crate::timers::ShardTimer;

impl Shard {
    /// Handles a protocol violation: sends DISCONNECT to an MQTT 5 client and closes the connection [MQTT-4.13.1-1].
    pub(crate) fn protocol_error(&mut self, now: Now, conn: ConnSlot, code: ReasonCode, detail: &str) {
        let Some(connection) = self.core.connections.get(conn) else {
            return;
        };
        if !connection.is_online() {
            let client_id = connection.pending_client_id().unwrap_or_default().to_owned();
            let rejected = RejectedConnect {
                client_id: &client_id,
                connect: None,
                reason: code,
                detail,
                is_authenticated: false,
            };
            let (mut tick, parts) = self.split(now);
            return parts.authentication.reject(&mut tick, conn, rejected);
        }
        self.lifecycle(now)
            .end_connection(conn, ConnectionEnd::by_violation(code, detail));
    }

    /// The answer to a SUBSCRIBE or UNSUBSCRIBE has been sent, or waits, or the packet was a violation. A replay that
    /// starts or ends with it may have to send messages.
    pub(crate) fn answered(&mut self, now: Now, slot: SessionSlot, result: Result<AnswerState, Violation>) {
        match result {
            Ok(AnswerState::Sent) => self.pump(now, slot),
            Ok(AnswerState::Waiting) => {}
            Err(Violation { code, detail }) => {
                if let Some(conn) = self.core.sessions.at(slot).conn {
                    self.protocol_error(now, conn, code, &detail);
                }
            }
        }
    }

    pub(crate) fn timer_due(&mut self, now: Now, timer: ShardTimer) {
        match timer {
            ShardTimer::KeepAlive { conn, epoch } => self.lifecycle(now).check_keep_alive(conn, epoch),
            ShardTimer::Session {
                deadline,
                session,
                connect_number,
            } => {
                if self.core.sessions.is_offline_since(session, connect_number) {
                    self.lifecycle(now).meet_deadline(session, deadline);
                }
            }
            ShardTimer::Delayed { index } => {
                let (mut tick, parts) = self.split(now);
                let Components {
                    delayed,
                    router,
                    groups,
                    retained,
                    ..
                } = parts;
                delayed.due(&mut tick, router, &mut Destinations { groups, retained }, index);
            }
            ShardTimer::Retry {
                session,
                connect_number,
            } => {
                if let Some(retry_ms) = self.core.config.retry_interval_ms
                    && self.core.resend_unacknowledged(now, session, connect_number)
                {
                    self.core.timers.insert(now.monotonic_ms + retry_ms, timer);
                }
            }
            ShardTimer::Quota { conn, epoch } => {
                let core = &mut self.core;
                core.connections.quota_due(now, conn, epoch, &mut core.effects);
            }
            ShardTimer::RetainedExpiry => self.retained.expiry_due(&mut self.core, now),
            ShardTimer::Space { index, epoch } => {
                let (mut tick, parts) = self.split(now);
                parts.groups.retry_full_members(&mut tick, index, epoch);
            }
        }
    }

    /// Disconnects a client on behalf of an operator. Returns false if there is no such session.
    pub fn kick(&mut self, now: Now, client_id: &str, end_session: bool) -> bool {
        let Some(slot) = self.core.sessions.slot_of(client_id) else {
            return false;
        };
        let epoch = self.core.sessions.at(slot).epoch;
        if let Some(conn) = self.core.sessions.at(slot).conn {
            self.kick_connection(now, conn, "disconnected by an operator");
        }
        if end_session && self.core.sessions.live(slot, epoch).is_some() {
            self.lifecycle(now).end_session(slot, "ended by an operator");
        }
        true
    }

    /// Closes a connection, authenticated or not. The session stays.
    pub fn kick_connection(&mut self, now: Now, conn: ConnSlot, detail: &str) {
        let (reason, code) = (DisconnectReason::Kicked, ReasonCode::AdministrativeAction);
        self.lifecycle(now)
            .end_connection(conn, ConnectionEnd::by_server(reason, code, detail));
    }

    /// Disconnects a client whose incomplete packet the driver cannot store.
    pub fn refuse_packet(&mut self, now: Now, conn: ConnSlot, detail: &str) {
        self.protocol_error(now, conn, ReasonCode::QuotaExceeded, detail);
    }

    /// Disconnects users whose name `is_meant`, among the sessions from slot `from` on. The sessions stay. Visits a
    /// bounded number of slots and returns the slot to continue at.
    pub fn kick_users(&mut self, now: Now, from: SessionSlot, is_meant: impl Fn(&str) -> bool) -> Option<SessionSlot> {
        self.kick_where(now, from, "the user must authenticate again", true, |session| {
            session.inbox_key().is_none() && session.user_name.as_deref().is_some_and(&is_meant)
        })
    }

    /// Disconnects banned clients, in the same way. The user name of an inbox client is ignored, because it
    /// is a secret.
    pub fn kick_banned(
        &mut self,
        now: Now,
        from: SessionSlot,
        is_banned: impl Fn(&ClientIdentity) -> bool,
    ) -> Option<SessionSlot> {
        let publishes_will = self.core.config.publish_will_of_banned;
        self.kick_where(now, from, "banned by an operator", publishes_will, |session| {
            let mut who = session.identity();
            who.user_name = who.user_name.filter(|_| session.inbox_key().is_none());
            is_banned(&who)
        })
    }

    fn kick_where(
        &mut self,
        now: Now,
        from: SessionSlot,
        detail: &str,
        publishes_will: bool,
        is_meant: impl Fn(&Session) -> bool,
    ) -> Option<SessionSlot> {
        let end = self.core.sessions.end();
        let until = SessionSlot(from.0.saturating_add(LOOK_MAX as u32)).min(end);
        for slot in from.until(until) {
            let Some(session) = self.core.sessions.get(slot) else {
                continue;
            };
            if let Some(conn) = session.conn
                && is_meant(session)
            {
                if !publishes_will && self.core.sessions.at_mut(slot).will.take().is_some() {
                    // Recovery must not publish it either.
                    self.core.ledger.record_will_published(self.core.sessions.at(slot));
                }
                self.kick_connection(now, conn, detail);
            }
        }
        (until < end).then_some(until)
    }

    /// Applies changed access rules to every session.
    pub fn access_changed(&mut self, now: Now) {
        for slot in SessionSlot::FIRST.until(self.core.sessions.end()) {
            let Some(session) = self.core.sessions.get(slot) else {
                continue;
            };
            if session.inbox_key().is_some() {
                continue;
            }
            let access = self.authentication.rights_of(session);
            self.core.sessions.at_mut(slot).access = access;
            let (mut tick, parts) = self.split(now);
            parts.router.recheck_subscriptions(&mut tick, parts.groups, slot);
            if let Some(conn) = self.core.sessions.at(slot).conn {
                // A replay whose subscription was removed may have held messages.
                self.core.continue_later(conn, slot);
            }
        }
    }
}
