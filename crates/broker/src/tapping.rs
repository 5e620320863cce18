//! The shard's side of a tap (tap.rs): when it is asked and told, and what waits for it.

use mqtt::{ProtocolVersion, Publish, QoS};

use crate::deliver::Core;
use crate::effect::{ConnSlot, DropReason, Now};
use crate::message::Publication;
use crate::session::Session;
use crate::shard::Shard;
use crate::tap::{Happening, Tap, TapClient, TapMessage, Tapped, Wants};

/// Where a tap sits.
#[derive(Default)]
pub struct TapSeat {
    tap: Option<Box<dyn Tap>>,
    pub wants: Wants,
    /// It was told something in this tick.
    is_used: bool,
    /// Sessions up to this one (`Session::epoch`) are of the process before.
    restored_epochs: u32,
    ids: u64,
}

impl TapSeat {
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Of a new message.
    fn next_id(&mut self, now: Now, shard: u16) -> u128 {
        self.ids += 1;
        u128::from(now.unix_ms) << 64 | u128::from(shard) << 48 | u128::from(self.ids & 0xFFFF_FFFF_FFFF)
    }
}

impl Session {
    fn tap_client(&self) -> TapClient<'_> {
        TapClient {
            client_id: &self.client_id,
            user_name: self.user_name.as_deref(),
            address: self.address.get(),
            version: self.version,
        }
    }
}

impl Core {
    /// Tells the tap what happened to the client of a session, if it wants that.
    #[inline]
    pub fn tap_session(&mut self, now: Now, slot: u32, wanted: Wants, what: &Happening<'_>) {
        if self.tap.wants.has(wanted)
            && let Some(session) = self.sessions[slot as usize].as_deref()
            && let Some(tap) = &mut self.tap.tap
        {
            self.tap.is_used = true;
            tap.happened(now, session.tap_client(), what);
        }
    }

    /// The same of a client without a session.
    pub fn tap_client(&mut self, now: Now, client: TapClient<'_>, wanted: Wants, what: &Happening<'_>) {
        if self.tap.wants.has(wanted)
            && let Some(tap) = &mut self.tap.tap
        {
            self.tap.is_used = true;
            tap.happened(now, client, what);
        }
    }

    /// Has the tap take a message of a client, or of the server where `slot` is none. True if what is said of it has to wait.
    pub fn tap_message(&mut self, now: Now, slot: Option<u32>, p: &Publication<'_>, is_duplicate: bool) -> bool {
        self.tap_marked(now, slot, p, is_duplicate, 0)
    }

    fn tap_marked(&mut self, now: Now, slot: Option<u32>, p: &Publication<'_>, is_duplicate: bool, mark: u64) -> bool {
        if !self.tap.wants.has(Wants::MESSAGES) || p.topic.starts_with("$SYS/") {
            return false;
        }
        let id = self.tap.next_id(now, self.id.0);
        let session = slot.and_then(|slot| self.sessions[slot as usize].as_deref());
        let message = TapMessage {
            is_duplicate,
            mark,
            ..tap_message(id, session, p)
        };
        let Some(tap) = &mut self.tap.tap else { return false };
        self.tap.is_used = true;
        let is_kept = tap.message(now, &message) == Tapped::Kept;
        match &mut self.ledger {
            Some(ledger) if is_kept => ledger.is_tap_used = true,
            _ => return false,
        }
        true
    }

    /// Tells the tap of a message that nobody gets.
    pub fn tap_dropped(&mut self, now: Now, slot: Option<u32>, p: &Publication<'_>, reason: DropReason) {
        if !self.tap.wants.has(Wants::DROPPED) || p.topic.starts_with("$SYS/") {
            return;
        }
        let id = self.tap.next_id(now, self.id.0);
        let session = slot.and_then(|slot| self.sessions[slot as usize].as_deref());
        let (Some(session), Some(tap)) = (session, &mut self.tap.tap) else {
            return;
        };
        self.tap.is_used = true;
        let message = tap_message(id, Some(session), p);
        tap.happened(now, session.tap_client(), &Happening::Dropped { message, reason });
    }

    /// Whether the tap is asked before a message is accepted, and cannot take this one.
    pub fn tap_refuses(&mut self, now: Now, slot: Option<u32>, p: &Publication<'_>) -> bool {
        if !self.tap.wants.has(Wants::TO_BE_ASKED) || p.qos == QoS::AtMostOnce {
            return false;
        }
        let session = slot.and_then(|slot| self.sessions[slot as usize].as_deref());
        let message = tap_message(0, session, p);
        self.tap.tap.as_mut().is_some_and(|tap| tap.is_full(now, &message))
    }
}

fn tap_message<'a>(id: u128, session: Option<&'a Session>, p: &Publication<'a>) -> TapMessage<'a> {
    TapMessage {
        id,
        client: session.map(Session::tap_client),
        topic: p.topic,
        payload: p.payload,
        properties: p.properties,
        qos: p.qos,
        retain: p.retain,
        is_duplicate: false,
        mark: 0,
    }
}

impl Shard {
    /// From now on `tap` sees what this shard does. What came before it, it does not.
    pub fn set_tap(&mut self, tap: Box<dyn Tap>) {
        self.core.tap.tap = Some(tap);
        self.core.tap.restored_epochs = self.epochs;
    }

    pub fn begin_tap_tick(&mut self, now: Now) {
        let Some(tap) = &mut self.core.tap.tap else { return };
        let wants = tap.begin_tick(now);
        let before = std::mem::replace(&mut self.core.tap.wants, wants);
        if before.has(Wants::TO_BE_ASKED) && !wants.has(Wants::TO_BE_ASKED) {
            self.resume_held_publishers();
        }
    }

    /// Whether the tap has been told something since the tick began.
    pub fn is_tap_used(&self) -> bool {
        self.core.tap.is_used
    }

    /// Whether publishers may be held until the tap can take more.
    pub fn is_tap_full(&self) -> bool {
        self.core.tap.wants.has(Wants::TO_BE_ASKED)
    }

    /// Publishes what the tap has made, and what it makes of that. True if what is said of what it was made of has to wait.
    pub(crate) fn publish_made(&mut self, now: Now) -> bool {
        let mut is_kept = false;
        loop {
            let made = self.core.tap.tap.as_mut().map_or(Vec::new(), |tap| tap.take_made());
            if made.is_empty() {
                return is_kept;
            }
            for message in made {
                let p = Publication {
                    properties: &message.properties,
                    qos: message.qos,
                    retain: message.retain,
                    ..Publication::of_server(&message.topic, &message.payload)
                };
                is_kept |= self.core.tap_marked(now, None, &p, false, message.mark);
                is_kept |= self.publish(now, &p, None).is_kept;
            }
        }
    }

    /// The end of a tick, before `journal_batch`.
    pub fn end_tap_tick(&mut self, now: Now) {
        if !self.core.tap.is_used {
            return;
        }
        self.publish_made(now);
        self.core.tap.is_used = false;
        let Some(tap) = &mut self.core.tap.tap else { return };
        let number = tap.end_tick();
        if let Some(ledger) = &mut self.core.ledger
            && std::mem::take(&mut ledger.is_tap_used)
        {
            ledger.tapped = number;
        }
    }

    /// Whether something waits until the tap has kept what it took.
    pub fn is_waiting_for_tap(&self) -> bool {
        let ledger = self.core.ledger.as_ref();
        ledger.is_some_and(|ledger| ledger.tapped > ledger.tap_kept)
    }

    /// Does what waited for the tap, as far as that is.
    pub fn look_at_tap(&mut self, now: Now) {
        let (Some(ledger), Some(tap)) = (&mut self.core.ledger, &mut self.core.tap.tap) else {
            return;
        };
        let kept = tap.kept();
        if kept > ledger.tap_kept {
            ledger.tap_kept = kept;
            self.do_due(now);
        }
    }

    /// Whether the tap has to be given a QoS 2 message that the journal says has been received: it may have been received and not
    /// been taken by the tap before the process ended.
    pub(crate) fn may_tap_have_missed(&self, slot: u32) -> bool {
        self.core.tap.wants.has(Wants::MESSAGES) && self.core.session(slot).epoch <= self.core.tap.restored_epochs
    }

    /// A client of 3.1 or 3.1.1 cannot be told that the tap takes nothing: it is not read from until it does.
    pub(crate) fn must_hold_for_tap(
        &mut self,
        now: Now,
        conn: ConnSlot,
        version: ProtocolVersion,
        publish: &Publish<'_>,
    ) -> bool {
        if version == ProtocolVersion::V5 || !self.is_tap_full() || publish.qos == QoS::AtMostOnce {
            return false;
        }
        let Some(slot) = self.core.connection_mut(conn).map(|connection| connection.session) else {
            return false;
        };
        if self.core.sessions.get(slot as usize).is_none_or(Option::is_none) {
            return false;
        }
        let p = Publication {
            qos: publish.qos,
            retain: publish.retain,
            ..Publication::of_server(publish.topic, publish.payload)
        };
        self.core.tap_refuses(now, Some(slot), &p)
    }
}
