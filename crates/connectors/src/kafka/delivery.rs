//! Delivery results of the messages of a batch. A token per message identifies its batch and its index.
//!
//! A future per message would cost more than the message itself. Instead, each batch has a slot. The callback of
//! librdkafka, on its polling thread, writes results into the slot; the last result resolves the batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::sink::{BatchOutcome, DeliveryFailure};

#[derive(Default)]
pub(super) struct Deliveries {
    slots: Mutex<BatchSlots>,
}

#[derive(Default)]
struct BatchSlots {
    batches: Vec<Option<PendingBatch>>,
    free: Vec<BatchSlot>,
}

/// Index of a batch in `BatchSlots`.
#[derive(Clone, Copy)]
struct BatchSlot(u32);

impl BatchSlot {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identifies a message that librdkafka sends: the slot of its batch and its index in the batch.
#[derive(Clone, Copy)]
pub(super) struct MessageToken {
    slot: BatchSlot,
    index: u32,
}

impl MessageToken {
    /// Returns the token as the opaque value that librdkafka passes to the callback.
    pub fn to_opaque(self) -> usize {
        self.slot.index() << 32 | self.index as usize
    }

    pub fn from_opaque(opaque: usize) -> MessageToken {
        MessageToken {
            slot: BatchSlot((opaque >> 32) as u32),
            index: opaque as u32,
        }
    }
}

struct PendingBatch {
    left: usize,
    outcome: BatchOutcome,
    done: oneshot::Sender<BatchOutcome>,
}

/// A batch that is being sent.
pub(super) struct BatchTicket {
    slot: BatchSlot,
    pub done: oneshot::Receiver<BatchOutcome>,
}

impl BatchTicket {
    /// Returns the token of a message of the batch.
    pub fn token(&self, index: usize) -> MessageToken {
        MessageToken {
            slot: self.slot,
            index: index as u32,
        }
    }
}

impl Deliveries {
    /// Starts a batch of messages. Each message must be settled once.
    pub fn begin(&self, messages: usize) -> BatchTicket {
        let (sender, done) = oneshot::channel();
        let batch = PendingBatch {
            left: messages,
            outcome: vec![Ok(()); messages],
            done: sender,
        };
        let mut slots = self.slots();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.batches.push(None);
            BatchSlot(slots.batches.len() as u32 - 1)
        });
        slots.batches[slot.index()] = Some(batch);
        BatchTicket { slot, done }
    }

    pub fn settle(&self, token: MessageToken, result: Result<(), DeliveryFailure>) {
        let slot = token.slot.index();
        let mut slots = self.slots();
        let Some(Some(batch)) = slots.batches.get_mut(slot) else {
            return;
        };
        if let (Err(failure), Some(entry)) = (result, batch.outcome.get_mut(token.index as usize)) {
            *entry = Err(failure);
        }
        batch.left -= 1;
        if batch.left > 0 {
            return;
        }
        let batch = slots.batches[slot].take();
        slots.free.push(token.slot);
        drop(slots);
        if let Some(batch) = batch {
            // An error means that the pump has abandoned the batch.
            let _ = batch.done.send(batch.outcome);
        }
    }

    fn slots(&self) -> MutexGuard<'_, BatchSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
