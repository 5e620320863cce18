//! Actions that wait until a tap has stored a message. Each acknowledgement waits only for its own message, so a slow
//! action or an unreachable target delays no other client.
//!
//! Acknowledgements of a connection keep their order [MQTT-4.6.0-2]: only the oldest one is registered with its
//! receipt, and the others wait behind it. Their number is limited by the number of packet identifiers; reading from a
//! client that reaches it is paused.

use std::collections::{BTreeMap, HashMap, VecDeque};

use mqtt::{PacketId, PacketType, ReasonCode};

use crate::session::Session;
use crate::slots::{ConnEpoch, ConnSlot, DelayedIndex, SessionEpoch, SessionSlot};
use crate::tap::Receipt;

/// Maximum number of waiting acknowledgements per connection.
pub const WAITING_ACKS_MAX: u32 = u16::MAX as u32;

/// An acknowledgement that has not been sent yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingAck {
    pub conn: ConnSlot,
    pub epoch: ConnEpoch,
    pub kind: PacketType,
    pub id: PacketId,
    pub reason: ReasonCode,
    pub receipt: Option<Receipt>,
}

/// A QoS 2 message that a client may repeat before the tap has stored it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenId {
    pub session: SessionSlot,
    pub epoch: SessionEpoch,
    pub id: u16,
}

/// An action that waits until the tap has stored a message, identified by its receipt.
pub enum ReceiptAction {
    Ack(PendingAck),
    /// Call a function of another component.
    Call(Box<dyn FnOnce() + Send>),
    Open(OpenId),
    /// Delete a delayed message that has been routed, by index.
    Delayed(DelayedIndex),
}

#[derive(Default)]
pub struct ReceiptActions {
    waiting: BTreeMap<Receipt, Vec<ReceiptAction>>,
    /// Keyed by slot and epoch of the connection. The lists are never empty.
    behind: HashMap<(ConnSlot, ConnEpoch), VecDeque<PendingAck>>,
    open: HashMap<OpenId, Receipt>,
}

impl ReceiptActions {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn add(&mut self, receipt: Receipt, action: ReceiptAction) {
        self.waiting.entry(receipt).or_default().push(action);
    }

    pub fn add_open(&mut self, receipt: Receipt, id: OpenId) {
        self.open.insert(id, receipt);
        self.add(receipt, ReceiptAction::Open(id));
    }

    /// Returns the receipt that the acknowledgement of a repeated QoS 2 message waits for.
    pub fn receipt_of(&self, id: OpenId) -> Option<Receipt> {
        self.open.get(&id).copied()
    }

    pub fn remove_open(&mut self, id: OpenId) {
        self.open.remove(&id);
    }

    /// Holds an acknowledgement back. Only the first one of a connection is registered with its receipt.
    pub fn hold_ack(&mut self, ack: PendingAck, is_first: bool) {
        match ack.receipt.filter(|_| is_first) {
            Some(receipt) => self.add(receipt, ReceiptAction::Ack(ack)),
            None => self.behind.entry((ack.conn, ack.epoch)).or_default().push_back(ack),
        }
    }

    /// Removes and returns the next acknowledgement of a connection that waits behind another.
    pub fn next_behind(&mut self, key: (ConnSlot, ConnEpoch)) -> Option<PendingAck> {
        let behind = self.behind.get_mut(&key)?;
        let ack = behind.pop_front();
        if behind.is_empty() {
            self.behind.remove(&key);
        }
        ack
    }

    pub fn drop_behind(&mut self, key: (ConnSlot, ConnEpoch)) {
        self.behind.remove(&key);
    }

    /// Removes and returns the actions whose receipts are stored. `stored_up_to` is called with the lanes.
    pub fn take_stored(&mut self, mut stored_up_to: impl FnMut(u16) -> u64) -> Vec<ReceiptAction> {
        let mut due = Vec::new();
        let mut from = Receipt::new(0, 1);
        while let Some((&first, _)) = self.waiting.range(from..).next() {
            if first.number() > stored_up_to(first.lane()) {
                from = first.lane_end();
                continue;
            }
            due.extend(self.waiting.remove(&first).into_iter().flatten());
            from = first;
        }
        due
    }
}

impl OpenId {
    pub fn new(slot: SessionSlot, session: &Session, id: PacketId) -> OpenId {
        OpenId {
            session: slot,
            epoch: session.epoch,
            id: id.get(),
        }
    }
}
