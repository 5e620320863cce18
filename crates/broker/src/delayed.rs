//! `$delayed/{seconds}/{topic}`: messages that are published later.
//!
//! One that is due is routed and given to the tap. What the tap has to keep of it, it may lose with a crash until it has: so
//! the journal forgets the message only then, and knows meanwhile that it has been routed. A start gives it to the tap again, and to
//! nobody else.

use std::sync::Arc;

use mqtt::ReasonCode;

use crate::durable::keep::{Keeping, Wait};
use crate::durable::record::{Record, SessionKey, WITH_TAP};
use crate::effect::{DropReason, Now};
use crate::message::{Message, Place, Publication};
use crate::parking::Parked;
use crate::shard::Shard;
use crate::timers::Timer;

/// Of all messages that a shard keeps for `$delayed`: their number alone says little where one may have a megabyte.
const DELAYED_BYTES_MAX: usize = 64 * 1024 * 1024;

pub struct Delayed {
    pub message: Arc<Message>,
    /// In monotonic milliseconds.
    pub due_ms: u64,
    /// Only the tap has still to keep it.
    pub is_routed: bool,
}

pub enum Delay<'a> {
    None,
    Seconds(u32, &'a str),
    Malformed,
}

/// `$delayed/{seconds}/{topic}`.
pub fn strip_delay(topic: &str) -> Delay<'_> {
    let Some(rest) = topic.strip_prefix("$delayed/") else {
        return Delay::None;
    };
    match rest.split_once('/') {
        Some((seconds, topic)) if !topic.is_empty() => match seconds.parse() {
            Ok(seconds) => Delay::Seconds(seconds, topic),
            Err(_) => Delay::Malformed,
        },
        _ => Delay::Malformed,
    }
}

impl Shard {
    pub(crate) fn delay(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        seconds: u32,
        publisher: Option<(SessionKey, u16)>,
    ) -> (ReasonCode, Wait) {
        let bytes = p.kept_bytes();
        if self.core.stats.delayed_messages as usize >= self.core.config.delayed_messages_max
            || self.delayed_bytes + bytes > DELAYED_BYTES_MAX
        {
            return self.reject(now, slot, DropReason::DelayedFull, ReasonCode::QuotaExceeded);
        }
        let due_ms = now.monotonic_ms + u64::from(seconds) * 1000;
        let message = p.to_message();
        let keeping = Keeping {
            due_unix_ms: Some(now.unix_at(due_ms)),
            publisher,
            is_needed: true,
            ..Keeping::default()
        };
        let place = self.core.keep(now, p, Some(&message), keeping);
        self.delay_until(Delayed {
            message,
            due_ms,
            is_routed: false,
        });
        (ReasonCode::Success, Wait::for_journal(!place.is_none()))
    }

    pub(crate) fn delay_until(&mut self, delayed: Delayed) {
        let due_ms = delayed.due_ms;
        self.delayed_bytes += delayed.message.kept_bytes();
        let index = match self.free_delayed.pop() {
            Some(index) => index,
            None => {
                self.delayed.push(None);
                self.delayed.len() as u32 - 1
            }
        };
        self.delayed[index as usize] = Some(delayed);
        self.core.stats.delayed_messages += 1;
        self.core.timers.insert(due_ms, Timer::Delayed { index });
    }

    pub(crate) fn delayed_due(&mut self, now: Now, index: u32) {
        let Some(delayed) = &mut self.delayed[index as usize] else {
            return;
        };
        let was_routed = std::mem::replace(&mut delayed.is_routed, true);
        let message = delayed.message.clone();
        if !was_routed && message.is_expired(now) {
            self.core.stats.drop_message(DropReason::Expired);
            return self.forget_delayed(index);
        }
        let p = Publication {
            place: Place::NONE,
            ..message.publication()
        };
        let mut receipt = self.core.tap_message(now, None, &p, false);
        if !was_routed {
            self.publish(now, &p, None);
        }
        if self.core.tap.is_used() {
            let made = self.publish_made(now);
            receipt = self.core.join_receipts(receipt, made.receipt);
        }
        let Some(receipt) = receipt else {
            return self.forget_delayed(index);
        };
        self.core.record_of(message.place(), |message| Record::Delayed {
            message,
            due_unix_ms: WITH_TAP,
        });
        self.core.tap.parking.park(receipt, Parked::Delayed(index));
    }

    /// It is done with; no tap can lose it any more.
    pub(crate) fn forget_delayed(&mut self, index: u32) {
        let Some(delayed) = self.delayed[index as usize].take() else {
            return;
        };
        self.free_delayed.push(index);
        self.delayed_bytes -= delayed.message.kept_bytes();
        self.core.stats.delayed_messages -= 1;
        self.core
            .record_of(delayed.message.place(), |message| Record::DelayedDone { message });
    }
}
