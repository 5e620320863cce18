//! Wills: when they must, may and must not be published.
//!
//! A will is a message whose publisher sees no acknowledgement: it counts as accepted when the latest moment has passed at which
//! the node must have published it.

use mqtt::QoS;

use super::session::{Exists, Left, Session};
use super::{Message, Oracle, SLACK_MS};
use crate::plan::Durability;
use crate::speak::{Terms, WillTerms};

#[derive(Clone, Debug)]
pub struct Will {
    pub serial: u64,
    delay_ms: u64,
    /// The session outlives its connection: until it is kept that the will was published, that it is to be is.
    is_kept: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The connection it belongs to is there.
    Armed,
    /// The client has said goodbye. If the node hears it the will is void.
    Goodbye,
    /// The connection is lost: due after the delay, or when the session ends if that is sooner.
    Pending,
    /// It may come or not.
    Loose,
}

impl Will {
    pub fn armed(terms: &WillTerms, is_kept: bool) -> Will {
        Will {
            is_kept,
            serial: terms.serial,
            delay_ms: u64::from(terms.delay_s) * 1000,
            state: State::Armed,
        }
    }

    pub fn loose(serial: u64) -> Will {
        Will {
            serial,
            delay_ms: 0,
            is_kept: false,
            state: State::Loose,
        }
    }
}

impl Session {
    /// From when on the will may be published.
    fn will_from_ms(&self, will: &Will) -> Option<u64> {
        Some(self.gone_ms? + will.delay_ms.min(self.shortest_expiry_ms()))
    }

    /// When it must have been.
    fn will_until_ms(&self, will: &Will) -> Option<u64> {
        Some(self.surely_gone_ms? + will.delay_ms.min(self.longest_expiry_ms()) + SLACK_MS)
    }
}

impl Oracle {
    pub(super) fn will_of_who_left(&mut self, client: usize, how: Left) {
        let is_void = matches!(how, Left::Goodbye { with_will: false, .. });
        let now_ms = self.now_ms;
        let session = &mut self.sessions[client];
        if let Some(will) = &mut session.will
            && will.state == State::Armed
        {
            will.state = match is_void {
                // The node may have found it silent before it has read the goodbye [MQTT-3.1.2-22].
                true if now_ms >= session.silent_ms => State::Loose,
                true => State::Goodbye,
                false => State::Pending,
            };
        }
    }

    /// The node has read all that the client said on its last connection.
    pub(super) fn will_goodbye_kept(&mut self, client: usize) {
        let session = &mut self.sessions[client];
        if let Some(will) = session.will.take_if(|will| will.state == State::Goodbye) {
            self.will_void(will.serial);
        }
    }

    /// From now on it must not come.
    fn will_void(&mut self, serial: u64) {
        if let Some(message) = self.message_mut(serial)
            && message.acked.is_none()
        {
            message.is_void = true;
        }
    }

    pub(super) fn loosen_will(&mut self, client: usize) {
        if let Some(will) = &mut self.sessions[client].will {
            will.state = State::Loose;
        }
    }

    pub(super) fn will_crashed(&mut self, client: usize, keeps_acknowledged: bool) {
        let session = &mut self.sessions[client];
        let is_kept = keeps_acknowledged && session.is_mortal_only_by_time();
        let Some(will) = &mut session.will else { return };
        if !is_kept || will.state == State::Goodbye {
            will.state = State::Loose;
        } else if will.state == State::Armed {
            will.state = State::Pending;
        }
    }

    /// Wills of sessions that have ended with the process: nobody knows them any more.
    pub(super) fn cancel_mortal_wills(&mut self) {
        for session in &mut self.sessions {
            if session.exists == Exists::No {
                session.will = None;
            }
        }
    }

    /// The client is back: a delayed will is void if the session goes on [MQTT-3.1.3-9], due if it has ended.
    pub(super) fn will_of_the_last_connection(&mut self, client: usize, terms: &Terms, is_present: bool) {
        let (now_ms, slop_ms) = (self.now_ms, self.slop_ms);
        let session = &mut self.sessions[client];
        let Some(will) = session.will.take() else { return };
        if !matches!(will.state, State::Pending | State::Goodbye) {
            return;
        }
        let from_ms = session.will_from_ms(&will).unwrap_or(now_ms);
        let is_early = now_ms + slop_ms < from_ms;
        let serial = will.serial;
        // The session has ended when the node has read the CONNECT, at the earliest.
        let ended_ms = session.connecting_ms();
        match (is_present, will.state) {
            (_, State::Goodbye) => {}
            (true, _) if is_early && !terms.clean_start => self.will_void(serial),
            (true, _) if will.delay_ms > 0 => {}
            (true, _) => self.will_due(&will, from_ms),
            (false, _) => self.will_due(&will, from_ms.min(ended_ms)),
        }
    }

    /// It has been published by now.
    fn will_due(&mut self, will: &Will, from_ms: u64) {
        let serial = will.serial;
        let (slop_ms, at) = (self.slop_ms, self.at);
        if let Some(message) = self.message_mut(serial)
            && message.acked.is_none()
        {
            message.sent_ms = from_ms.saturating_sub(slop_ms);
            message.acked = Some(at);
            let is_kept = will.is_kept && message.retain && message.qos != QoS::AtMostOnce;
            self.owe(serial);
            if is_kept {
                self.retained_acked(serial);
            }
        }
    }

    /// Every worker has done what was due up to `ticked_ms`.
    pub(super) fn will_overdue(&mut self, client: usize, ticked_ms: u64) {
        let slop_ms = self.slop_ms;
        let session = &mut self.sessions[client];
        if session.is_online || session.is_coming_back() {
            return;
        }
        let Some(will) = session.will.clone().filter(|will| will.state == State::Pending) else {
            return;
        };
        let from_ms = session.will_from_ms(&will);
        let is_overdue = session.will_until_ms(&will).is_some_and(|at| ticked_ms >= at + slop_ms);
        if let (true, Some(from_ms)) = (is_overdue, from_ms) {
            session.will = None;
            // Until it is kept when the client left, a crash makes the delay begin anew, and the client may be back before it is over
            // [MQTT-3.1.3-9].
            let may_be_put_off = will.delay_ms > 0 && !session.is_gone_kept && self.durability != Durability::None;
            if !may_be_put_off {
                self.will_due(&will, from_ms);
            }
        }
    }

    pub(super) fn will_came(&mut self, message: &Message) {
        if !message.is_will {
            return;
        }
        let (now_ms, slop_ms) = (self.now_ms, self.slop_ms);
        if message.is_void {
            return self.violated(|| format!("a will came that was void: {message:?} [MQTT-3.14.4-3]"));
        }
        let session = &self.sessions[message.publisher];
        let Some(will) = session.will.as_ref().filter(|will| will.serial == message.serial) else {
            return;
        };
        let is_early = match will.state {
            // Who waits for a journal that has failed is sent away, and finds out later.
            State::Armed if self.has_journal_failed => false,
            State::Armed => session.gone_ms.is_none() && session.is_online && now_ms < session.silent_ms,
            State::Pending if session.may_be_ending() => false,
            State::Pending => session
                .will_from_ms(will)
                .is_some_and(|from_ms| now_ms + slop_ms < from_ms),
            State::Goodbye | State::Loose => false,
        };
        if is_early {
            let text = format!("a will came too early: {message:?}, {session:?} [MQTT-3.1.3-9]");
            self.violated(|| text);
        }
    }
}
