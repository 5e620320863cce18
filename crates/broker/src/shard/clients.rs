//! Timers, and violations of clients.

use mqtt::ReasonCode;

use crate::connack::RejectedConnect;
use crate::connection_end::ConnectionEnd;
use crate::effect::Now;
use crate::router::Destinations;
use crate::shard::{Components, Shard};
use crate::slots::{ConnSlot, SessionSlot};
use crate::subscribe::{AnswerState, Violation};
use crate::timers::ShardTimer;

impl Shard {
    /// Handles a protocol violation, or a packet that the driver cannot store: sends DISCONNECT to an MQTT 5 client and
    /// closes the connection [MQTT-4.13.1-1].
    pub fn protocol_error(&mut self, now: Now, conn: ConnSlot, code: ReasonCode, detail: &str) {
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
            ShardTimer::LoginExpiry { conn, epoch } => {
                let (mut tick, parts) = self.split(now);
                parts.authentication.check_exchange(&mut tick, conn, epoch);
                self.lifecycle(now).check_login(conn, epoch);
            }
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
                let (timers, effects) = (&mut core.timers, &mut core.effects);
                core.connections.quota_due(now, conn, epoch, timers, effects);
            }
            ShardTimer::RetainedExpiry => self.retained.expiry_due(&mut self.core, now),
            ShardTimer::Space { index, epoch } => {
                let (mut tick, parts) = self.split(now);
                parts.groups.retry_full_members(&mut tick, index, epoch);
            }
        }
    }
}
