//! What was read from the buffer and is not done with: finds out how far the cursor may move.

use std::collections::VecDeque;

use crate::buffer::{Cursor, Place, Returned};
use crate::record::Record;

/// Records in the order in which they were read; `sequence` numbers them.
#[derive(Default)]
pub(super) struct Window {
    first: u64,
    slots: VecDeque<Slot>,
    /// Of all records that are not done with.
    bytes: usize,
    open: usize,
}

struct Slot {
    /// `None`: done with.
    record: Option<Record>,
    place: Place,
}

impl Window {
    /// Records, done with or not: what bounds the memory.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that are not done with.
    pub fn open(&self) -> usize {
        self.open
    }

    /// `place`: of the record's block. Returns its sequence.
    pub fn push(&mut self, record: Record, place: Place) -> u64 {
        self.bytes += record.len();
        self.open += 1;
        self.slots.push_back(Slot {
            record: Some(record),
            place,
        });
        self.first + self.slots.len() as u64 - 1
    }

    pub fn done(&mut self, sequence: u64) {
        let slot = sequence
            .checked_sub(self.first)
            .and_then(|at| self.slots.get_mut(at as usize));
        if let Some(record) = slot.and_then(|slot| slot.record.take()) {
            self.bytes -= record.len();
            self.open -= 1;
        }
        while self.slots.pop_front_if(|slot| slot.record.is_none()).is_some() {
            self.first += 1;
        }
    }

    /// The oldest that is not done with.
    pub fn oldest(&self) -> Option<&Record> {
        self.slots.front().and_then(|slot| slot.record.as_ref())
    }

    /// `None`: all that was read is done with.
    pub fn cursor(&self) -> Option<Cursor> {
        let slot = self.slots.front()?;
        let record = slot.record.as_ref()?;
        Some(Cursor {
            place: slot.place,
            position: record.position(),
        })
    }

    /// What is not done with, in order.
    pub fn into_open(self) -> Vec<Returned> {
        let open = self.slots.into_iter().filter_map(|slot| {
            let place = slot.place;
            slot.record.map(|record| Returned { record, place })
        });
        open.collect()
    }
}
