//! The sessions of a shard, by slot and by client id.
//!
//! A slot is reused after its session has ended. The fields that delivery reads first are in an array of their own
//! (`SessionLink`), and so are the entries in the accounts of the owners (`SessionHolding`). All arrays have the same
//! length; a free slot has no session.

use crate::client_ids::ClientIds;
use crate::inbox::InboxKey;
use crate::owners::SessionHolding;
use crate::session::Session;
use crate::session_link::SessionLink;
use crate::slots::{ConnectNumber, SessionEpoch, SessionSlot};

/// Maximum number of sessions that a query visits per call.
pub(crate) const LOOK_MAX: usize = 20_000;

#[derive(Default)]
pub struct Sessions {
    slots: Vec<Option<Box<Session>>>,
    links: Vec<SessionLink>,
    holdings: Vec<Option<SessionHolding>>,
    free: Vec<SessionSlot>,
    client_ids: ClientIds,
}

impl Sessions {
    /// Returns a session that must exist.
    #[inline]
    pub fn at(&self, slot: SessionSlot) -> &Session {
        self.slots[slot.index()]
            .as_ref()
            .expect("subscriptions, timers and connections refer to live sessions only")
    }

    #[inline]
    pub fn at_mut(&mut self, slot: SessionSlot) -> &mut Session {
        self.slots[slot.index()]
            .as_mut()
            .expect("subscriptions, timers and connections refer to live sessions only")
    }

    /// Returns the session in a slot. `slot` may be free or `SessionSlot::NONE`.
    #[inline]
    pub fn get(&self, slot: SessionSlot) -> Option<&Session> {
        self.slots.get(slot.index())?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: SessionSlot) -> Option<&mut Session> {
        self.slots.get_mut(slot.index())?.as_deref_mut()
    }

    /// Returns the session in a slot if it has this epoch.
    pub fn live(&mut self, slot: SessionSlot, epoch: SessionEpoch) -> Option<&mut Session> {
        self.get_mut(slot).filter(|session| session.epoch == epoch)
    }

    /// Returns the key of an inbox client. `slot` may be free or `SessionSlot::NONE`.
    pub fn inbox_key(&self, slot: SessionSlot) -> Option<InboxKey> {
        self.get(slot)?.inbox_key()
    }

    /// Returns whether a session is offline, and has not been connected since this connection.
    pub fn is_offline_since(&self, slot: SessionSlot, connect_number: ConnectNumber) -> bool {
        let session = self.get(slot);
        session.is_some_and(|session| session.is_offline_since(connect_number))
    }

    #[inline]
    pub fn link(&self, slot: SessionSlot) -> SessionLink {
        self.links[slot.index()]
    }

    /// Does not invalidate cached broadcasts; `ShardCore::link_mut` does.
    #[inline]
    pub fn link_mut(&mut self, slot: SessionSlot) -> &mut SessionLink {
        &mut self.links[slot.index()]
    }

    /// Counts PUBLISH packets that were queued for the connection of a session.
    #[inline]
    pub fn count_sent(&mut self, slot: SessionSlot, messages: u64, bytes: usize) {
        let link = &mut self.links[slot.index()];
        link.messages_sent += messages;
        link.bytes_sent += bytes as u64;
    }

    /// Returns whether the access rules of a session forbid a new message.
    #[inline]
    pub fn is_forbidden(&self, slot: SessionSlot, topic: &str) -> bool {
        self.link(slot).is_filtered() && !self.at(slot).can_receive(topic)
    }

    /// Returns the entry of a session in the accounts. `None` before its CONNECT is accepted.
    pub fn holding(&self, slot: SessionSlot) -> Option<&SessionHolding> {
        self.holdings.get(slot.index())?.as_ref()
    }

    pub fn holding_mut(&mut self, slot: SessionSlot) -> Option<&mut SessionHolding> {
        self.holdings.get_mut(slot.index())?.as_mut()
    }

    /// Counts a session for an owner, instead of its previous owner. `counts_queue`: its queue as well.
    pub fn set_holding(&mut self, slot: SessionSlot, holding: SessionHolding, counts_queue: bool) {
        let user = holding.user().filter(|_| counts_queue).cloned();
        self.at_mut(slot).count_queue_for(user);
        self.holdings[slot.index()] = Some(holding);
    }

    /// Starts or stops to count the queues of all sessions for their owners.
    pub fn count_queues(&mut self, counts_queues: bool) {
        for (session, holding) in self.slots.iter_mut().zip(&self.holdings) {
            if let (Some(session), Some(holding)) = (session, holding) {
                session.count_queue_for(holding.user().filter(|_| counts_queues).cloned());
            }
        }
    }

    /// Subscriptions of a session have been removed: they no longer count for its owner.
    pub fn uncount_subscriptions(&mut self, slot: SessionSlot, count: usize) {
        if let Some(holding) = self.holding_mut(slot) {
            holding.remove_subscriptions(count as u64);
        }
    }

    /// Updates the accounts after the will of a session has changed.
    pub fn resize_holding(&mut self, slot: SessionSlot) {
        let bytes = self.at(slot).holding_bytes();
        if let Some(holding) = self.holding_mut(slot) {
            holding.resize(bytes);
        }
    }

    /// Returns the number of sessions.
    pub fn len(&self) -> usize {
        self.client_ids.len()
    }

    /// Returns the slot after the last one.
    pub fn end(&self) -> SessionSlot {
        SessionSlot::from_index(self.slots.len())
    }

    /// Returns the slot of a client's session.
    pub fn slot_of(&self, client_id: &str) -> Option<SessionSlot> {
        self.client_ids
            .find(client_id, |slot| *self.at(slot).client_id == *client_id)
    }

    /// Requires that the client has no session.
    pub fn add(&mut self, session: Session) -> SessionSlot {
        let slot = self.free_slot();
        self.client_ids.insert(&session.client_id, slot);
        self.put(slot, session)
    }

    /// Adds the session of a data stream, which is not found by its client id.
    pub fn add_unnamed(&mut self, session: Session) -> SessionSlot {
        let slot = self.free_slot();
        self.put(slot, session)
    }

    fn free_slot(&mut self) -> SessionSlot {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.links.push(SessionLink::default());
            self.holdings.push(None);
            SessionSlot::from_index(self.slots.len() - 1)
        })
    }

    fn put(&mut self, slot: SessionSlot, session: Session) -> SessionSlot {
        self.links[slot.index()] = SessionLink::default();
        self.slots[slot.index()] = Some(Box::new(session));
        slot
    }

    pub fn remove(&mut self, slot: SessionSlot) -> Option<Box<Session>> {
        let session = self.slots[slot.index()].take()?;
        if !session.is_data_stream() {
            self.client_ids.remove(&session.client_id, slot);
        }
        self.links[slot.index()] = SessionLink::default();
        self.holdings[slot.index()] = None;
        self.free.push(slot);
        Some(session)
    }
}
