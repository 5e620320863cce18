//! Wills: when they must, may and must not be published.
//!
//! The publisher of a will receives no acknowledgement. A will counts as accepted when the latest time at which the
//! node must publish it has passed.

use mqtt::QoS;

use super::session::{LeaveMode, OracleSession, SessionExists};
use super::{Oracle, OracleMessage, SLACK_MS};
use crate::client::ClientIndex;
use crate::packets::{ConnectFields, WillTerms};
use crate::plan::PlannedDurability;

#[derive(Clone, Debug)]
pub struct OracleWill {
    pub serial: u64,
    delay_ms: u64,
    /// The session is durable, so the will is published after a crash unless its publication is committed.
    is_durable: bool,
    state: OracleWillState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OracleWillState {
    /// Its connection is open.
    Armed,
    /// The client has sent DISCONNECT. The will is void if the node reads it.
    Disconnecting,
    /// The connection is lost. The will is due after its delay, or when the session ends if that is earlier.
    Pending,
    /// The will may be published or not.
    Loose,
}

impl OracleWill {
    pub fn armed(terms: &WillTerms, is_durable: bool) -> OracleWill {
        OracleWill {
            is_durable,
            serial: terms.serial,
            delay_ms: u64::from(terms.delay_s) * 1000,
            state: OracleWillState::Armed,
        }
    }

    pub fn loose(serial: u64) -> OracleWill {
        OracleWill {
            serial,
            delay_ms: 0,
            is_durable: false,
            state: OracleWillState::Loose,
        }
    }
}

impl OracleSession {
    /// Returns the time from which the will may be published.
    fn will_from_ms(&self, will: &OracleWill) -> Option<u64> {
        Some(self.disconnected_ms? + will.delay_ms.min(self.shortest_expiry_ms()))
    }

    /// Returns the time by which it must be published.
    fn will_until_ms(&self, will: &OracleWill) -> Option<u64> {
        Some(self.surely_disconnected_ms? + will.delay_ms.min(self.longest_expiry_ms()) + SLACK_MS)
    }
}

impl Oracle {
    pub(super) fn will_after_departure(&mut self, client: ClientIndex, how: LeaveMode) {
        let is_void = matches!(how, LeaveMode::Disconnect { with_will: false, .. });
        let now_ms = self.now_ms;
        let session = &mut self.sessions[client.index()];
        if let Some(will) = &mut session.will
            && will.state == OracleWillState::Armed
        {
            will.state = match is_void {
                // The node may have closed the connection because of its keep-alive before it read the DISCONNECT
                // [MQTT-3.1.2-22].
                true if now_ms >= session.silent_ms => OracleWillState::Loose,
                true => OracleWillState::Disconnecting,
                false => OracleWillState::Pending,
            };
        }
    }

    /// The node has read everything that the client sent on its last connection.
    pub(super) fn will_disconnect_durable(&mut self, client: ClientIndex) {
        let session = &mut self.sessions[client.index()];
        if let Some(will) = session
            .will
            .take_if(|will| will.state == OracleWillState::Disconnecting)
        {
            self.will_void(will.serial);
        }
    }

    /// The will must not be published any more.
    fn will_void(&mut self, serial: u64) {
        if let Some(message) = self.message_mut(serial)
            && message.acked.is_none()
        {
            message.is_void = true;
        }
    }

    pub(super) fn loosen_will(&mut self, client: ClientIndex) {
        if let Some(will) = &mut self.sessions[client.index()].will {
            will.state = OracleWillState::Loose;
        }
    }

    pub(super) fn will_crashed(&mut self, client: ClientIndex, keeps_acknowledged: bool) {
        let session = &mut self.sessions[client.index()];
        let is_durable = keeps_acknowledged && session.outlives_connection();
        let Some(will) = &mut session.will else { return };
        if !is_durable || will.state == OracleWillState::Disconnecting {
            will.state = OracleWillState::Loose;
        } else if will.state == OracleWillState::Armed {
            will.state = OracleWillState::Pending;
        }
    }

    /// Wills of sessions that ended with the process are lost.
    pub(super) fn cancel_wills_of_ended_sessions(&mut self) {
        for session in &mut self.sessions {
            if session.exists == SessionExists::No {
                session.will = None;
            }
        }
    }

    /// The client has reconnected. A delayed will is void if the session continues [MQTT-3.1.3-9], and due if it has
    /// ended.
    pub(super) fn resolve_previous_will(&mut self, client: ClientIndex, terms: &ConnectFields, is_present: bool) {
        let (now_ms, slop_ms) = (self.now_ms, self.slop_ms);
        let session = &mut self.sessions[client.index()];
        let Some(will) = session.will.take() else { return };
        if !matches!(will.state, OracleWillState::Pending | OracleWillState::Disconnecting) {
            return;
        }
        let from_ms = session.will_from_ms(&will).unwrap_or(now_ms);
        let is_early = now_ms + slop_ms < from_ms;
        let serial = will.serial;
        // The session ended at the earliest when the node read the CONNECT.
        let ended_ms = session.connecting_ms();
        match (is_present, will.state) {
            (_, OracleWillState::Disconnecting) => {}
            (true, _) if is_early && !terms.clean_start => self.will_void(serial),
            (true, _) if will.delay_ms > 0 => {}
            (true, _) => self.will_due(&will, from_ms),
            (false, _) => self.will_due(&will, from_ms.min(ended_ms)),
        }
    }

    /// The will must have been published by now.
    fn will_due(&mut self, will: &OracleWill, from_ms: u64) {
        let serial = will.serial;
        let (slop_ms, at) = (self.slop_ms, self.at);
        if let Some(message) = self.message_mut(serial)
            && message.acked.is_none()
        {
            message.sent_ms = from_ms.saturating_sub(slop_ms);
            message.acked = Some(at);
            let is_durable = will.is_durable && message.retain && message.qos != QoS::AtMostOnce;
            self.expect_deliveries(serial);
            if is_durable {
                self.retained_acked(serial);
            }
        }
    }

    /// Every worker has handled the timers due up to `ticked_ms`.
    pub(super) fn will_overdue(&mut self, client: ClientIndex, ticked_ms: u64) {
        let slop_ms = self.slop_ms;
        let session = &mut self.sessions[client.index()];
        if session.is_online || session.is_connecting() {
            return;
        }
        let Some(will) = session
            .will
            .clone()
            .filter(|will| will.state == OracleWillState::Pending)
        else {
            return;
        };
        let from_ms = session.will_from_ms(&will);
        let is_overdue = session.will_until_ms(&will).is_some_and(|at| ticked_ms >= at + slop_ms);
        if let (true, Some(from_ms)) = (is_overdue, from_ms) {
            session.will = None;
            // Until the disconnect is committed, a crash restarts the delay, and the client may reconnect before it has
            // passed [MQTT-3.1.3-9].
            let may_be_put_off =
                will.delay_ms > 0 && !session.is_disconnect_durable && self.durability != PlannedDurability::None;
            if !may_be_put_off {
                self.will_due(&will, from_ms);
            }
        }
    }

    pub(super) fn check_will_delivery(&mut self, message: &OracleMessage) {
        if !message.is_will {
            return;
        }
        let (now_ms, slop_ms) = (self.now_ms, self.slop_ms);
        if message.is_void {
            return self.violated(|| format!("a void will was published: {message:?} [MQTT-3.14.4-3]"));
        }
        let session = &self.sessions[message.publisher.index()];
        let Some(will) = session.will.as_ref().filter(|will| will.serial == message.serial) else {
            return;
        };
        let is_early = match will.state {
            // A client that waits for a failed journal is disconnected, and notices it later.
            OracleWillState::Armed if self.has_journal_failed => false,
            OracleWillState::Armed => {
                session.disconnected_ms.is_none() && session.is_online && now_ms < session.silent_ms
            }
            OracleWillState::Pending if session.may_be_ending() => false,
            OracleWillState::Pending => session
                .will_from_ms(will)
                .is_some_and(|from_ms| now_ms + slop_ms < from_ms),
            OracleWillState::Disconnecting | OracleWillState::Loose => false,
        };
        if is_early {
            let text = format!("a will was published too early: {message:?}, {session:?} [MQTT-3.1.3-9]");
            self.violated(|| text);
        }
    }
}
