//! Checks that a journal with changed bytes opens correctly or reports an error.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use journal::{LogBatch, LogConfig, Lsn, OpenError, OpenReport, RecordLog, Storage, StorageFile};

const SEGMENT_BYTES: u64 = 512;
const BLOCK_MAGIC: [u8; 4] = [0xB1, 0x0C, 0xF5, 0x9A];

type Replayed = Vec<(Lsn, Vec<u8>)>;

/// Runs a script. The target `journal_open` describes its format.
pub fn check_journal(script: &[u8]) {
    let Some((&[batches, mends], script)) = script.split_first_chunk() else {
        return;
    };
    let (batches, changes) = script.split_at(script.len().min(3 * usize::from(batches % 32)));
    let disk = Disk::default();
    let mut log = open(&disk).expect("a new journal opens").0;
    for batch in batches.chunks_exact(3) {
        append(&mut log, batch);
    }
    drop(log);
    let (_, _, whole) = open(&disk).expect("an intact journal opens");
    for change in changes.chunks_exact(4) {
        disk.change(change);
    }
    let mends = mends % 2 == 1;
    if mends {
        disk.mend();
    }
    let Ok((mut log, opened, replayed)) = open(&disk) else {
        return;
    };
    assert!(
        mends || whole.starts_with(&replayed),
        "replay returned records that were not appended"
    );
    assert!(opened.next == log.committed());
    append(&mut log, &[1, 2, 3]);
    drop(log);
    let (_, opened, again) = open(&disk).expect("an opened journal opens again");
    assert!(again.starts_with(&replayed) && opened.torn_bytes_cut == 0);
}

fn append(log: &mut RecordLog, sizes: &[u8]) {
    let mut batch = LogBatch::new();
    for &size in sizes {
        batch.record(|bytes| bytes.extend(std::iter::repeat_n(size, usize::from(size))));
    }
    log.append(&mut batch);
    log.flush().expect("the disk of the fuzzer never fails");
}

fn open(disk: &Disk) -> Result<(RecordLog, OpenReport, Replayed), OpenError> {
    let config = LogConfig {
        segment_bytes: SEGMENT_BYTES,
        reserve_bytes: 0,
        ..LogConfig::default()
    };
    let mut replayed = Vec::new();
    let mut replay = |position, payload: &[u8]| {
        replayed.push((position, payload.to_vec()));
        Ok(())
    };
    let (log, opened) = RecordLog::open(Arc::new(disk.clone()), config, &mut replay, &mut |_, _| {})?;
    Ok((log, opened, replayed))
}

/// Storage with files in memory.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<BTreeMap<String, File>>>);

#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl Disk {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a byte. The four bytes of `change` are the file, the position (two bytes) and the XOR mask.
    fn change(&self, change: &[u8]) {
        let files = self.files();
        let Some(file) = files.values().nth(usize::from(change[0]) % files.len()) else {
            return;
        };
        let mut bytes = file.bytes();
        let len = bytes.len();
        if len > 0 {
            bytes[usize::from(u16::from_le_bytes([change[1], change[2]])) % len] ^= change[3];
        }
    }

    /// Corrects the checksums of segment headers, block headers and records, as far as they can be found.
    fn mend(&self) {
        for file in self.files().values() {
            let mut bytes = file.bytes();
            if bytes.len() >= 64 {
                mend_header(&mut bytes[..64], 12);
            }
            for at in 64..bytes.len().saturating_sub(32) {
                if bytes[at..].starts_with(&BLOCK_MAGIC) {
                    mend_block(&mut bytes, at);
                }
            }
        }
    }
}

fn mend_header(bytes: &mut [u8], at: usize) {
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..at]), &bytes[at + 4..]);
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

fn mend_block(bytes: &mut [u8], at: usize) {
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[24..32]), &bytes[at..at + 24]);
    let checksum = crc32c::crc32c_append(checksum, &bytes[at + 28..at + 32]);
    bytes[at + 24..at + 28].copy_from_slice(&checksum.to_le_bytes());
    let mut record = at + 32;
    while let Some(length) = bytes
        .get(record..record + 4)
        .and_then(|bytes| bytes.first_chunk().copied())
    {
        let end = record + 8 + u32::from_le_bytes(length) as usize;
        let Some(payload) = bytes.get(record + 8..end) else {
            return;
        };
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&length), payload);
        bytes[record + 4..record + 8].copy_from_slice(&checksum.to_le_bytes());
        if bytes[end..].starts_with(&BLOCK_MAGIC) {
            return;
        }
        record = end;
    }
}

impl File {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Storage for Disk {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files().keys().cloned().collect())
    }

    fn create(&self, name: &str, preallocate: u64) -> io::Result<Box<dyn StorageFile>> {
        let file = File::default();
        file.bytes().resize(preallocate as usize, 0);
        self.files().insert(name.to_owned(), file.clone());
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let file = self.files().get(name).cloned().ok_or_else(not_found)?;
        Ok(Box::new(file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name).map(drop).ok_or_else(not_found)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let file = self.files().remove(from).ok_or_else(not_found)?;
        self.files().insert(to.to_owned(), file);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn location(&self) -> String {
        "/data".to_owned()
    }

    fn directory(&self) -> String {
        "/data/journal".to_owned()
    }

    fn unix_ms(&self) -> u64 {
        0
    }

    fn random(&self) -> io::Result<u64> {
        Ok(0x1234_5678_9ABC_DEF0)
    }
}

impl StorageFile for File {
    fn write_at(&self, offset: u64, written: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes();
        let end = offset as usize + written.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(written);
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.bytes();
        let from = bytes.get(offset as usize..).unwrap_or_default();
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes().resize(len as usize, 0);
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let more = len.max(StorageFile::len(self)?);
        self.set_len(more)
    }
}
