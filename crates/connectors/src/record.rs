//! Records: an action's messages, and their layout in a buffer, in memory and on the disk.
//!
//! A data-plane thread collects the [`Records`] of one tick and appends them to the action's buffer at once. They stay
//! together as a *chunk*. The sink reads them as [`Record`]s, which share the chunk's memory without copying.
//!
//! # Layout of a chunk, [`RECORD_VERSION`] 1
//!
//! All integers are little-endian. A chunk is the payload of one journal record, whose checksum covers it.
//!
//! ```text
//! chunk   kind u8 = 1 | zeros to 4 | records u32 | record ...
//! record  bytes u32, without this field | unix_ms u64 | key_hash u64
//!         | fields u32 | end u32 per field | fields | carried ...
//! end     end of the field, counted from the end of the table;
//!         if the highest bit is set, the field is null (and empty)
//! carried name length u8 | name | record
//! ```
//!
//! A record *carries* records for fallback actions. They receive them if the action gives the record up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Version of the record kinds in a buffer, stored in each block of its journal. A new kind raises it, so that an
/// earlier program rejects the buffer.
pub(crate) const RECORD_VERSION: u32 = 1;
pub(crate) const KIND_RECORDS: u8 = 1;
pub(crate) const CHUNK_HEADER_BYTES: usize = 8;

const NULL: u32 = 1 << 31;
const TIME_AT: usize = 4;
const KEY_AT: usize = 12;
const FIELDS_AT: usize = 20;
const TABLE_AT: usize = 24;

/// The records that one thread appends to one action in one tick. Reuses its memory after it is cleared.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    count: u32,
    /// Offset of the last record, if there is one.
    last: usize,
    /// Set while the records wait for a buffer that has refused them.
    refusal: Option<Refusal>,
}

/// The wait of refused records. The buffer counts the waits that exist.
#[derive(Debug)]
struct Refusal {
    /// How many of the records the buffer has counted.
    counted: u32,
    waits: Arc<AtomicU64>,
}

impl Refusal {
    fn new(counted: u32, waits: &Arc<AtomicU64>) -> Refusal {
        waits.fetch_add(1, Relaxed);
        Refusal {
            counted,
            waits: Arc::clone(waits),
        }
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        self.waits.fetch_sub(1, Relaxed);
    }
}

impl Records {
    pub fn new() -> Records {
        Records::default()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the size in a buffer, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a record. Records with the same `key_hash` keep their order. `fields` are the rendered templates in the
    /// order of the action's templates; `None` is null.
    pub fn push(&mut self, unix_ms: u64, key_hash: u64, fields: &[Option<&[u8]>]) {
        self.write(unix_ms, key_hash, fields.len(), |writer| {
            for field in fields {
                match field {
                    Some(bytes) => writer.field(|out| out.extend_from_slice(bytes)),
                    None => writer.null(),
                }
            }
        });
    }

    /// Like [`Records::push`], but `write` writes the fields directly into the buffer. Missing fields are null; fields
    /// beyond `fields` are ignored.
    pub fn write(&mut self, unix_ms: u64, key_hash: u64, fields: usize, write: impl FnOnce(&mut RecordWriter<'_>)) {
        self.begin();
        self.last = self.bytes.len();
        self.put(unix_ms, key_hash, fields, write);
        self.increment_count();
    }

    /// Adds a carried record for the fallback action `name` to the last record, with the same time and key. If `write`
    /// returns false, nothing is added.
    pub fn carry(&mut self, name: &str, fields: usize, write: impl FnOnce(&mut RecordWriter<'_>) -> bool) {
        let (begin, last) = (self.bytes.len(), self.last);
        let Ok(name_bytes) = u8::try_from(name.len()) else {
            return;
        };
        if self.is_empty() {
            return;
        }
        self.bytes.push(name_bytes);
        self.bytes.extend_from_slice(name.as_bytes());
        let (unix_ms, key_hash) = (u64_at(&self.bytes, last + TIME_AT), u64_at(&self.bytes, last + KEY_AT));
        let mut is_good = false;
        self.put(unix_ms, key_hash, fields, |writer| is_good = write(writer));
        match is_good {
            true => self.set_length(last),
            false => self.bytes.truncate(begin),
        }
    }

    /// Adds a copy of a record.
    pub fn push_copy(&mut self, record: &Record) {
        self.begin();
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(record.bytes());
        self.increment_count();
    }

    /// Moves all records of `others` to the end of this list.
    pub fn append(&mut self, others: &mut Records) {
        if others.is_empty() {
            return;
        }
        self.begin();
        self.last = self.bytes.len() + others.last - CHUNK_HEADER_BYTES;
        self.bytes.extend_from_slice(&others.bytes[CHUNK_HEADER_BYTES..]);
        self.count += others.count - 1;
        self.increment_count();
        others.clear();
    }

    /// Removes the last record. Call it at most once per added record.
    pub fn pop(&mut self) {
        self.bytes.truncate(self.last);
        self.count -= 1;
        self.bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
    }

    fn put(&mut self, unix_ms: u64, key_hash: u64, fields: usize, write: impl FnOnce(&mut RecordWriter<'_>)) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; TIME_AT]);
        self.bytes.extend_from_slice(&unix_ms.to_le_bytes());
        self.bytes.extend_from_slice(&key_hash.to_le_bytes());
        self.bytes.extend_from_slice(&(fields as u32).to_le_bytes());
        let table = self.bytes.len();
        self.bytes.resize(table + fields * 4, 0);
        let mut writer = RecordWriter {
            data: self.bytes.len(),
            bytes: &mut self.bytes,
            table,
            fields,
            written: 0,
        };
        write(&mut writer);
        while writer.written < fields {
            writer.null();
        }
        self.set_length(at);
    }

    /// Sets the length of the record at `at`, which ends here.
    fn set_length(&mut self, at: usize) {
        let record_bytes = (self.bytes.len() - at - TIME_AT) as u32;
        self.bytes[at..at + TIME_AT].copy_from_slice(&record_bytes.to_le_bytes());
    }

    fn begin(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.resize(CHUNK_HEADER_BYTES, 0);
            self.bytes[0] = KIND_RECORDS;
        }
    }

    fn increment_count(&mut self) {
        self.count += 1;
        self.bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
    }

    /// Removes all records without freeing the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
        self.refusal = None;
    }

    /// Marks the records as refused by the buffer with these waits, until they are taken or removed. Returns how many
    /// of them were not refused before.
    pub(crate) fn refuse(&mut self, waits: &Arc<AtomicU64>) -> u32 {
        let counted = self.refusal.as_ref().map_or(0, |refusal| refusal.counted);
        match &mut self.refusal {
            Some(refusal) if Arc::ptr_eq(&refusal.waits, waits) => refusal.counted = self.count,
            refusal => *refusal = Some(Refusal::new(self.count, waits)),
        }
        self.count.saturating_sub(counted)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the chunk, and leaves an empty list with the same capacity.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let room = Vec::with_capacity(self.bytes.len());
        self.count = 0;
        self.refusal = None;
        std::mem::replace(&mut self.bytes, room)
    }
}

/// Writes the fields of one record in order.
pub struct RecordWriter<'a> {
    bytes: &'a mut Vec<u8>,
    table: usize,
    data: usize,
    fields: usize,
    written: usize,
}

impl RecordWriter<'_> {
    /// Writes the next field. `write` appends to the vector and must not change its present content.
    pub fn field(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.written < self.fields {
            write(self.bytes);
            self.end(0);
        }
    }

    /// Writes null as the next field.
    pub fn null(&mut self) {
        if self.written < self.fields {
            self.end(NULL);
        }
    }

    fn end(&mut self, flag: u32) {
        let end = (self.bytes.len() - self.data) as u32 | flag;
        let at = self.table + self.written * 4;
        self.bytes[at..at + 4].copy_from_slice(&end.to_le_bytes());
        self.written += 1;
    }
}

/// One message for the sink. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Record {
    chunk: Arc<Vec<u8>>,
    at: u32,
    bytes: u32,
    position: u64,
}

impl Record {
    /// Returns the record at offset `at`, or `None` if it is missing or incomplete.
    pub(crate) fn within(bytes: &Arc<Vec<u8>>, at: usize, position: u64) -> Option<Record> {
        let record_bytes = whole_record(bytes.get(at..)?)?;
        Some(Record {
            chunk: Arc::clone(bytes),
            at: at as u32,
            bytes: (record_bytes - TIME_AT) as u32,
            position,
        })
    }

    /// Returns the position in the buffer. It grows from record to record, and is stable over restarts with a durable
    /// buffer.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Resets the position to 0 if it is not below `end`.
    pub(crate) fn reset_position(&mut self, end: u64) {
        if self.position >= end {
            self.position = 0;
        }
    }

    /// Returns the arrival time of the message.
    pub fn unix_ms(&self) -> u64 {
        self.u64_at(TIME_AT)
    }

    /// Records with the same key hash keep their order.
    pub fn key_hash(&self) -> u64 {
        self.u64_at(KEY_AT)
    }

    /// Returns the size in the buffer, in bytes.
    pub fn len(&self) -> usize {
        self.bytes as usize + TIME_AT
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn fields(&self) -> usize {
        u32_at(self.bytes(), FIELDS_AT) as usize
    }

    /// Returns the rendered template number `index`, or `None` if it is null or missing.
    pub fn field(&self, index: usize) -> Option<&[u8]> {
        let fields = self.fields();
        if index >= fields {
            return None;
        }
        let bytes = self.bytes();
        let end = |index: usize| u32_at(bytes, TABLE_AT + index * 4);
        let start = index.checked_sub(1).map_or(0, |before| end(before) & !NULL) as usize;
        let stop = end(index);
        if stop & NULL != 0 {
            return None;
        }
        bytes.get(TABLE_AT + fields * 4..)?.get(start..stop as usize)
    }

    /// Returns the carried record for the fallback action `name`.
    pub fn carried(&self, name: &str) -> Option<Record> {
        let bytes = self.bytes();
        let mut at = self.fields_end();
        while let Some(name_bytes) = bytes.get(at) {
            let record_at = at + 1 + *name_bytes as usize;
            let record_bytes = whole_record(bytes.get(record_at..)?)?;
            if bytes.get(at + 1..record_at) == Some(name.as_bytes()) {
                return Some(Record {
                    chunk: Arc::clone(&self.chunk),
                    at: self.at + record_at as u32,
                    bytes: (record_bytes - TIME_AT) as u32,
                    position: self.position,
                });
            }
            at = record_at + record_bytes;
        }
        None
    }

    fn fields_end(&self) -> usize {
        let (bytes, fields) = (self.bytes(), self.fields());
        let end = |last: usize| (u32_at(bytes, TABLE_AT + last * 4) & !NULL) as usize;
        TABLE_AT + fields * 4 + fields.checked_sub(1).map_or(0, end)
    }

    /// Like [`Record::field`], as text.
    pub fn text(&self, index: usize) -> Option<std::borrow::Cow<'_, str>> {
        self.field(index).map(String::from_utf8_lossy)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.chunk[self.at as usize..self.at as usize + self.len()]
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64_at(self.bytes(), at)
    }
}

/// Calls `each` for the records of the chunk at `position`. Returns `None` if the bytes are not a valid chunk.
pub(crate) fn records(chunk: &Arc<Vec<u8>>, position: u64, each: &mut dyn FnMut(Record)) -> Option<()> {
    let count = count(chunk)?;
    let mut at = CHUNK_HEADER_BYTES;
    for _ in 0..count {
        let record = Record::within(chunk, at, position + at as u64)?;
        at += record.len();
        each(record);
    }
    Some(())
}

/// Returns the size of the record at the beginning of `bytes`, or `None` if it is missing or incomplete.
fn whole_record(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..TABLE_AT)?;
    let record_bytes = TIME_AT + u32_at(header, 0) as usize;
    let table = u32_at(header, FIELDS_AT) as usize * 4;
    (record_bytes <= bytes.len() && TABLE_AT + table <= record_bytes).then_some(record_bytes)
}

/// Returns the number of records in a chunk, or `None` if the bytes are not a chunk.
pub(crate) fn count(chunk: &[u8]) -> Option<u32> {
    let is_chunk = chunk.len() >= CHUNK_HEADER_BYTES && chunk[0] == KIND_RECORDS;
    is_chunk.then(|| u32_at(chunk, 4))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("`records` has checked the length"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("`records` has checked the length"))
}

/// Creates records as a sink would receive them, for tests of sinks and for trying out an action.
pub fn sample(unix_ms: u64, fields: &[&[Option<&[u8]>]]) -> Vec<Record> {
    let mut batch = Records::new();
    for (index, fields) in fields.iter().enumerate() {
        batch.push(unix_ms, index as u64, fields);
    }
    let mut sampled = Vec::with_capacity(fields.len());
    records(&Arc::new(batch.take()), 0, &mut |record| sampled.push(record));
    sampled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(records_in: &mut Records) -> Vec<Record> {
        let mut read = Vec::new();
        records(&Arc::new(records_in.take()), 100, &mut |record| read.push(record)).expect("a chunk");
        read
    }

    #[test]
    fn fields_survive_a_write_and_read() {
        let mut batch = Records::new();
        batch.push(17, 4, &[Some(b"one"), None, Some(b""), Some(b"four")]);
        batch.push(18, 5, &[]);
        batch.write(19, 6, 3, |writer| {
            writer.field(|out| out.push(b'x'));
            writer.null();
        });
        assert_eq!(batch.count(), 3);
        let read = read(&mut batch);
        let fields: Vec<Option<&[u8]>> = (0..5).map(|index| read[0].field(index)).collect();
        assert_eq!(fields, [Some(&b"one"[..]), None, Some(b""), Some(b"four"), None]);
        assert_eq!((read[0].unix_ms(), read[0].key_hash(), read[0].fields()), (17, 4, 4));
        assert_eq!((read[1].unix_ms(), read[1].fields(), read[1].field(0)), (18, 0, None));
        assert_eq!(
            (read[2].field(0), read[2].field(1), read[2].field(2)),
            (Some(&b"x"[..]), None, None)
        );
        assert!(read[0].position() == 108 && read[1].position() > read[0].position());
        assert!(batch.is_empty());
    }

    #[test]
    fn carried_records_are_found_by_name() {
        let mut records = Records::new();
        records.push(17, 4, &[Some(b"own"), None]);
        for (name, is_good) in [("one", true), ("bad", false), ("two", true)] {
            records.carry(name, 2, |writer| {
                writer.field(|out| out.extend_from_slice(name.as_bytes()));
                is_good
            });
        }
        records.push(18, 5, &[Some(b"carries nothing")]);
        let read = self::read(&mut records);
        assert_eq!(
            (read.len(), read[0].field(0), read[0].field(1), read[0].field(2)),
            (2, Some(&b"own"[..]), None, None)
        );
        let none = [read[0].carried("bad"), read[0].carried("three"), read[1].carried("one")];
        assert!(none.iter().all(Option::is_none));
        let mut again = Records::new();
        for name in ["two", "one", "one"] {
            again.push_copy(&read[0].carried(name).expect("a carried record"));
        }
        again.pop();
        let again = self::read(&mut again);
        let fields: Vec<_> = again.iter().map(|record| (record.field(0), record.field(1))).collect();
        assert_eq!(fields, [(Some(&b"two"[..]), None), (Some(&b"one"[..]), None)]);
        assert_eq!((again[1].unix_ms(), again[1].key_hash()), (17, 4));
    }

    #[test]
    fn a_truncated_or_invalid_chunk_is_rejected() {
        let mut batch = Records::new();
        batch.push(1, 1, &[Some(b"abc")]);
        let good = batch.take();
        for cut in 0..good.len() {
            let bytes = Arc::new(good[..cut].to_vec());
            assert!(records(&bytes, 0, &mut |_| ()).is_none(), "{cut} bytes");
        }
        let mut table = good;
        table[CHUNK_HEADER_BYTES + FIELDS_AT] = 200;
        assert!(records(&Arc::new(table), 0, &mut |_| ()).is_none());
    }
}
