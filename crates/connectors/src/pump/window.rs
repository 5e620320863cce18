//! What was read from the buffer and is not done with: finds out how far the cursor may move.

use std::collections::{BTreeMap, VecDeque};

use crate::buffer::{Cursor, Place, Returned};
use crate::record::Record;

/// Records in the order in which they were read; `sequence` numbers them.
#[derive(Default)]
pub(super) struct Window {
    /// Set aside and not done with: the cursor does not wait for them. All of them were read before `first`.
    aside: BTreeMap<u64, Record>,
    aside_bytes: usize,
    /// How many were aside when that was last written down.
    aside_kept: usize,
    first: u64,
    slots: VecDeque<Slot>,
    /// Of all records that are not done with.
    bytes: usize,
    open: usize,
    /// Of those done with behind one that is not.
    done_bytes: usize,
}

struct Slot {
    /// `None`: done with.
    record: Option<Record>,
    place: Place,
    bytes: u32,
}

impl Window {
    /// Records, done with or not: what bounds the memory.
    pub fn len(&self) -> usize {
        self.aside.len() + self.slots.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that are not done with.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Records that are done with behind one that is not, and their bytes.
    pub fn done_behind(&self) -> (usize, usize) {
        (self.len() - self.open, self.done_bytes)
    }

    /// The sequence of what is pushed next.
    pub fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// `place`: of the record's block; `None`: it was set aside. Returns its sequence.
    pub fn push(&mut self, record: Record, place: Option<Place>) -> u64 {
        self.bytes += record.len();
        self.open += 1;
        let Some(place) = place else {
            debug_assert!(self.slots.is_empty(), "what was set aside comes before all else");
            self.aside_bytes += record.len();
            self.aside.insert(self.first, record);
            self.aside_kept += 1;
            self.first += 1;
            return self.first - 1;
        };
        let bytes = record.len() as u32;
        self.slots.push_back(Slot {
            record: Some(record),
            place,
            bytes,
        });
        self.next() - 1
    }

    pub fn done(&mut self, sequence: u64) {
        let record = match sequence.checked_sub(self.first) {
            None => {
                let record = self.aside.remove(&sequence);
                self.aside_bytes -= record.as_ref().map_or(0, Record::len);
                record
            }
            Some(at) => {
                let slot = self.slots.get_mut(at as usize);
                let record = slot.and_then(|slot| slot.record.take());
                self.done_bytes += record.as_ref().map_or(0, Record::len);
                record
            }
        };
        if let Some(record) = record {
            self.bytes -= record.len();
            self.open -= 1;
        }
        while let Some(slot) = self.slots.pop_front_if(|slot| slot.record.is_none()) {
            self.first += 1;
            self.done_bytes -= slot.bytes as usize;
        }
    }

    /// The oldest that is not done with.
    pub fn oldest(&self) -> Option<&Record> {
        let aside = self.aside.first_key_value().map(|(_, record)| record);
        aside.or_else(|| self.slots.front().and_then(|slot| slot.record.as_ref()))
    }

    /// `None`: all that was read is done with, or aside.
    pub fn cursor(&self) -> Option<Cursor> {
        let slot = self.slots.front()?;
        let record = slot.record.as_ref()?;
        Some(Cursor {
            place: slot.place,
            position: record.position(),
        })
    }

    /// Fewer are aside than were written down.
    pub fn has_done_aside(&self) -> bool {
        self.aside.len() < self.aside_kept
    }

    pub fn aside_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// What is not done with, in order, with its sequence.
    pub fn open_records(&self) -> (Vec<u64>, Vec<Record>) {
        let aside = self.aside.iter().map(|(sequence, record)| (*sequence, record.clone()));
        let slots = (self.first..).zip(&self.slots);
        let slots = slots.filter_map(|(sequence, slot)| Some((sequence, slot.record.clone()?)));
        aside.chain(slots).unzip()
    }

    /// All that is not done with is aside now; these are its records, in order.
    pub fn set_aside(&mut self, records: impl Iterator<Item = (u64, Record)>) {
        self.first += self.slots.len() as u64;
        self.slots.clear();
        self.done_bytes = 0;
        self.aside = records.collect();
        self.aside_bytes = self.bytes;
        self.aside_kept = self.aside.len();
    }

    /// What is not done with, in order.
    pub fn into_open(self) -> Vec<Returned> {
        let aside = self.aside.into_values().map(|record| Returned { record, place: None });
        let slots = self.slots.into_iter().filter_map(|slot| {
            let place = Some(slot.place);
            slot.record.map(|record| Returned { record, place })
        });
        aside.chain(slots).collect()
    }
}
