//! Counts the deliveries of a batch: one word per message says which batch it belongs to and where it stands there.
//!
//! A future per message, as the usual producer has it, costs more than the message. Here a batch has a slot, and the
//! callback of librdkafka, on the thread that polls it, writes the result into the slot; the last one resolves the batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::sink::{Failure, Outcome};

#[derive(Default)]
pub(super) struct Deliveries {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    batches: Vec<Option<Batch>>,
    free: Vec<u32>,
}

struct Batch {
    left: usize,
    outcome: Outcome,
    done: oneshot::Sender<Outcome>,
}

/// A batch that is being sent.
pub(super) struct Ticket {
    slot: u32,
    pub done: oneshot::Receiver<Outcome>,
}

impl Ticket {
    /// Identifies a message of the batch.
    pub fn token(&self, index: usize) -> usize {
        (self.slot as usize) << 32 | index
    }
}

impl Deliveries {
    /// A batch of so many messages: each of them has to be settled once.
    pub fn begin(&self, messages: usize) -> Ticket {
        let (sender, done) = oneshot::channel();
        let batch = Batch {
            left: messages,
            outcome: vec![Ok(()); messages],
            done: sender,
        };
        let mut slots = self.slots();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.batches.push(None);
            slots.batches.len() as u32 - 1
        });
        slots.batches[slot as usize] = Some(batch);
        Ticket { slot, done }
    }

    pub fn settle(&self, token: usize, result: Result<(), Failure>) {
        let (slot, index) = (token >> 32, token & 0xffff_ffff);
        let mut slots = self.slots();
        let Some(Some(batch)) = slots.batches.get_mut(slot) else {
            return;
        };
        if let (Err(failure), Some(place)) = (result, batch.outcome.get_mut(index)) {
            *place = Err(failure);
        }
        batch.left -= 1;
        if batch.left > 0 {
            return;
        }
        let batch = slots.batches[slot].take();
        slots.free.push(slot as u32);
        drop(slots);
        if let Some(batch) = batch {
            // Nobody waits any more: the pump has given the batch up.
            let _ = batch.done.send(batch.outcome);
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
