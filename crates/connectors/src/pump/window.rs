//! The unfinished records that the pump has read. Determines how far the cursor may move.

use std::collections::{BTreeMap, VecDeque};

use crate::buffer::{BlockStart, BufferCursor, ReturnedRecord};
use crate::record::Record;

/// Records in reading order, numbered by `sequence`.
#[derive(Default)]
pub(super) struct RecordWindow {
    /// Unfinished records that are set aside. The cursor does not wait for them. All of them were read before `first`.
    aside: BTreeMap<u64, Record>,
    aside_bytes: usize,
    /// Number of records in the last side file.
    side_file_records: usize,
    first: u64,
    slots: VecDeque<WindowSlot>,
    /// Size of the unfinished records.
    bytes: usize,
    open: usize,
    /// Size of the finished records behind an unfinished one.
    done_bytes: usize,
}

struct WindowSlot {
    /// `None` if the record is finished.
    record: Option<Record>,
    block: BlockStart,
    bytes: u32,
}

impl RecordWindow {
    /// Returns the number of records, finished or not, which bounds the memory.
    pub fn len(&self) -> usize {
        self.aside.len() + self.slots.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of unfinished records.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Returns the number and size of the finished records behind an unfinished one.
    pub fn finished_behind(&self) -> (usize, usize) {
        (self.len() - self.open, self.done_bytes)
    }

    /// Returns the sequence of the next record.
    pub fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Adds a record and returns its sequence. `block` is the record's block, or `None` if it is set aside.
    pub fn push(&mut self, record: Record, block: Option<BlockStart>) -> u64 {
        self.bytes += record.len();
        self.open += 1;
        let Some(block) = block else {
            debug_assert!(self.slots.is_empty(), "records that were set aside come first");
            self.aside_bytes += record.len();
            self.aside.insert(self.first, record);
            self.side_file_records += 1;
            self.first += 1;
            return self.first - 1;
        };
        let bytes = record.len() as u32;
        self.slots.push_back(WindowSlot {
            record: Some(record),
            block,
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

    /// Returns the oldest unfinished record.
    pub fn oldest(&self) -> Option<&Record> {
        let aside = self.aside.first_key_value().map(|(_, record)| record);
        aside.or_else(|| self.slots.front().and_then(|slot| slot.record.as_ref()))
    }

    /// Returns the new cursor, or `None` if all records are finished or set aside.
    pub fn cursor(&self) -> Option<BufferCursor> {
        let slot = self.slots.front()?;
        let record = slot.record.as_ref()?;
        Some(BufferCursor {
            block: slot.block,
            position: record.position(),
        })
    }

    /// Returns whether records of the last side file are finished.
    pub fn has_finished_aside(&self) -> bool {
        self.aside.len() < self.side_file_records
    }

    pub fn aside_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// Returns the unfinished records in order, with their sequences.
    pub fn open_records(&self) -> (Vec<u64>, Vec<Record>) {
        let aside = self.aside.iter().map(|(sequence, record)| (*sequence, record.clone()));
        let slots = (self.first..).zip(&self.slots);
        let slots = slots.filter_map(|(sequence, slot)| Some((sequence, slot.record.clone()?)));
        aside.chain(slots).unzip()
    }

    /// Marks all unfinished records as set aside. `records` are their copies, in order.
    pub fn set_aside(&mut self, records: impl Iterator<Item = (u64, Record)>) {
        self.first += self.slots.len() as u64;
        self.slots.clear();
        self.done_bytes = 0;
        self.aside = records.collect();
        self.aside_bytes = self.bytes;
        self.side_file_records = self.aside.len();
    }

    /// Returns the unfinished records in order.
    pub fn into_open(self) -> Vec<ReturnedRecord> {
        let aside = self
            .aside
            .into_values()
            .map(|record| ReturnedRecord { record, block: None });
        let slots = self.slots.into_iter().filter_map(|slot| {
            let block = Some(slot.block);
            slot.record.map(|record| ReturnedRecord { record, block })
        });
        aside.chain(slots).collect()
    }
}
