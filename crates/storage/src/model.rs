//! A simulated disk. It tracks unsynced changes, and a power cut loses a random part of them.
//!
//! A sector that was written several times since the last sync comes back in any of its versions. Of unsynced directory
//! changes, any subset survives. If only the process dies, nothing is lost. Tests schedule faults in advance.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crate::random::Random;
use crate::{Storage, StorageFile};

const SECTOR: usize = 512;

const NO_SPACE: i32 = 28;
const INPUT_OUTPUT_ERROR: i32 = 5;

/// A handle of a simulated disk. Clones share the disk.
#[derive(Clone)]
pub struct ModelDisk {
    state: Arc<Mutex<ModelDiskState>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// All creations and writes fail with a full disk until the fault is healed.
    NoSpace,
    /// One write fails after writing a part of its bytes.
    Write,
    /// One sync fails. The data counts as clean afterwards and never reaches the disk, as on Linux.
    Sync,
    /// The power fails during a call. All later calls fail.
    PowerCut,
}

struct ModelDiskState {
    files: Vec<ModelFile>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    /// Directory changes since the last sync.
    changes: Vec<NameChange>,
    /// The scheduled fault, and the number of affected calls before it.
    fault: Option<(DiskFault, u64)>,
    has_power: bool,
    /// Remaining space for creations, allocations and writes beyond the end of a file.
    free_bytes: u64,
    /// Some reads return fewer bytes than requested.
    reads_short: bool,
    random: Random,
    clock_ms: u64,
    /// Number of calls that changed or synced something.
    calls: u64,
}

#[derive(Clone)]
enum NameChange {
    Link(String, usize),
    Unlink(String),
    Rename(String, String, usize),
}

#[derive(Default)]
struct ModelFile {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    /// Versions of each sector since the last sync, oldest first.
    versions: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    lengths: Vec<usize>,
}

struct ModelFileHandle {
    disk: ModelDisk,
    file: usize,
}

impl ModelDisk {
    pub fn new(random: Random) -> ModelDisk {
        ModelDisk {
            state: Arc::new(Mutex::new(ModelDiskState {
                files: Vec::new(),
                names: BTreeMap::new(),
                synced_names: BTreeMap::new(),
                changes: Vec::new(),
                fault: None,
                has_power: true,
                free_bytes: 1 << 30,
                reads_short: false,
                random,
                clock_ms: 1_700_000_000_000,
                calls: 0,
            })),
        }
    }

    /// Creates a disk. Every third seed makes some reads return fewer bytes than requested.
    pub fn from_seed(seed: u64) -> ModelDisk {
        let disk = ModelDisk::new(Random::new(seed));
        disk.state().reads_short = seed.is_multiple_of(3);
        disk
    }

    pub fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    /// Schedules a fault after `calls` further calls of the kind that it affects.
    pub fn fail(&self, fault: DiskFault, calls: u64) {
        self.state().fault = Some((fault, calls));
    }

    pub fn clear_faults(&self) {
        self.state().fault = None;
    }

    pub fn has_power(&self) -> bool {
        self.state().has_power
    }

    pub fn set_free_bytes(&self, bytes: u64) {
        self.state().free_bytes = bytes;
    }

    /// Returns the number of calls that changed or synced something.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    pub fn file_names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// Returns the contents of a file. Panics if it does not exist.
    pub fn read_file(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.files[state.names[name]].bytes.clone()
    }

    /// Sets the contents of a file, as already synced.
    pub fn write_file(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let file = ModelFile {
            bytes: bytes.to_vec(),
            synced: bytes.to_vec(),
            ..ModelFile::default()
        };
        match state.names.get(name).copied() {
            Some(at) => state.files[at] = file,
            None => {
                let at = state.files.len();
                state.files.push(file);
                state.names.insert(name.to_owned(), at);
                state.synced_names.insert(name.to_owned(), at);
            }
        }
    }

    /// Removes a file, as already synced. Panics if it does not exist.
    pub fn remove_file(&self, name: &str) {
        let mut state = self.state();
        assert!(state.names.remove(name).is_some(), "{name} does not exist");
        state.synced_names.remove(name);
    }

    /// Returns a new disk with the same files, all synced.
    pub fn copy(&self) -> ModelDisk {
        let copy = ModelDisk::from_seed(1);
        for name in self.file_names() {
            copy.write_file(&name, &self.read_file(&name));
        }
        copy
    }

    /// Simulates a power cut and restart. A random part of the unsynced data survives.
    pub fn power_cut(&self) {
        let mut state = self.state();
        let ModelDiskState {
            files, random, changes, ..
        } = &mut *state;
        for file in files {
            file.power_cut(random);
        }
        let surviving: Vec<NameChange> = changes.drain(..).filter(|_| random.one_in(2)).collect();
        let mut names = state.synced_names.clone();
        surviving.into_iter().for_each(|change| change.apply(&mut names));
        state.names.clone_from(&names);
        state.synced_names = names;
        state.has_power = true;
        state.fault = None;
    }

    fn state(&self) -> MutexGuard<'_, ModelDiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, file: usize) -> Box<dyn StorageFile> {
        Box::new(ModelFileHandle {
            disk: self.clone(),
            file,
        })
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            NameChange::Link(name, file) => _ = names.insert(name, file),
            NameChange::Unlink(name) => _ = names.remove(&name),
            NameChange::Rename(from, to, file) => {
                if names.get(&from) == Some(&file) {
                    names.remove(&from);
                }
                names.insert(to, file);
            }
        }
    }
}

impl ModelDiskState {
    /// Counts a call, and returns the fault if it occurs now. `faults` are the kinds that affect the call.
    fn next_fault(&mut self, faults: &[DiskFault]) -> io::Result<Option<DiskFault>> {
        if !self.has_power {
            return Err(DiskFault::PowerCut.error());
        }
        self.calls += 1;
        let Some((fault, calls)) = &mut self.fault else {
            return Ok(None);
        };
        if !faults.contains(fault) && *fault != DiskFault::PowerCut {
            return Ok(None);
        }
        if *calls > 0 {
            *calls -= 1;
            return Ok(None);
        }
        let fault = *fault;
        if fault == DiskFault::PowerCut {
            self.has_power = false;
        }
        if fault != DiskFault::NoSpace {
            self.fault = None;
        }
        Ok(Some(fault))
    }

    fn check(&mut self, faults: &[DiskFault]) -> io::Result<()> {
        self.next_fault(faults)?.map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn change(&mut self, change: NameChange) {
        change.clone().apply(&mut self.names);
        self.changes.push(change);
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        let file = self.names.get(name).copied();
        file.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }

    /// Takes space for a write and returns the number of bytes that fit. Bytes within the file have their space
    /// already.
    fn take_fitting(&mut self, file: usize, offset: usize, count: usize) -> usize {
        let length = self.files[file].bytes.len();
        let grows = (offset + count).saturating_sub(length.max(offset)) as u64;
        let missing = grows.saturating_sub(self.free_bytes);
        self.free_bytes -= grows - missing;
        count - missing as usize
    }

    /// Releases the space of the file with this name, if there is one.
    fn release_space(&mut self, name: &str) {
        if let Some(&file) = self.names.get(name) {
            self.free_bytes += self.files[file].bytes.len() as u64;
        }
    }

    fn take_space(&mut self, bytes: u64) -> io::Result<()> {
        let left = self.free_bytes.checked_sub(bytes);
        self.free_bytes = left.ok_or_else(|| DiskFault::NoSpace.error())?;
        Ok(())
    }
}

impl DiskFault {
    fn error(self) -> io::Error {
        match self {
            DiskFault::NoSpace => io::Error::from_raw_os_error(NO_SPACE),
            DiskFault::Write | DiskFault::Sync => io::Error::from_raw_os_error(INPUT_OUTPUT_ERROR),
            DiskFault::PowerCut => io::Error::other("no power"),
        }
    }
}

impl ModelFile {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.set_len(end);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
        self.save_version(offset, end);
    }

    fn set_len(&mut self, len: usize) {
        let before = self.bytes.len();
        self.bytes.resize(len, 0);
        self.lengths.push(len);
        // Zeros beyond the synced length need no write.
        if len < before {
            self.save_version(len, before);
        }
    }

    fn save_version(&mut self, from: usize, to: usize) {
        for sector in from / SECTOR..to.div_ceil(SECTOR) {
            let version = sector_of(&self.bytes, sector);
            self.versions.entry(sector).or_default().push(version);
        }
    }

    fn sync(&mut self) {
        for &sector in self.versions.keys() {
            let from = (sector * SECTOR).min(self.bytes.len());
            let to = (from + SECTOR).min(self.bytes.len());
            self.synced.resize(self.synced.len().max(to), 0);
            self.synced[from..to].copy_from_slice(&self.bytes[from..to]);
        }
        self.synced.resize(self.bytes.len(), 0);
        self.discard_unsynced();
    }

    /// Drops the unsynced versions. After a failed sync, kernels treat the data as clean, and it remains readable.
    fn discard_unsynced(&mut self) {
        self.versions.clear();
        self.lengths.clear();
    }

    fn power_cut(&mut self, random: &mut Random) {
        let lengths = std::mem::take(&mut self.lengths);
        let uses_unsynced_length = !lengths.is_empty() && random.one_in(2);
        let len = if uses_unsynced_length {
            *random.pick(&lengths)
        } else {
            self.synced.len()
        };
        let mut bytes = std::mem::take(&mut self.synced);
        bytes.resize(len.max(bytes.len()), 0);
        for (sector, versions) in std::mem::take(&mut self.versions) {
            let from = sector * SECTOR;
            if from < bytes.len() && random.one_in(2) {
                let to = (from + SECTOR).min(bytes.len());
                bytes[from..to].copy_from_slice(&random.pick(&versions)[..to - from]);
            }
        }
        bytes.truncate(len);
        self.bytes.clone_from(&bytes);
        self.synced = bytes;
    }
}

fn sector_of(bytes: &[u8], sector: usize) -> [u8; SECTOR] {
    let mut version = [0; SECTOR];
    let from = (sector * SECTOR).min(bytes.len());
    let to = (from + SECTOR).min(bytes.len());
    version[..to - from].copy_from_slice(&bytes[from..to]);
    version
}

impl Storage for ModelDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        if !state.has_power {
            return Err(DiskFault::PowerCut.error());
        }
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, preallocate: u64) -> io::Result<Box<dyn StorageFile>> {
        let mut state = self.state();
        state.check(&[DiskFault::NoSpace])?;
        state.take_space(preallocate)?;
        state.release_space(name);
        let mut file = ModelFile::default();
        file.set_len(preallocate as usize);
        state.files.push(file);
        let file = state.files.len() - 1;
        state.change(NameChange::Link(name.to_owned(), file));
        Ok(self.handle(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let file = self.state().find(name)?;
        Ok(self.handle(file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(&[])?;
        state.find(name)?;
        state.release_space(name);
        state.change(NameChange::Unlink(name.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(&[])?;
        let file = state.find(from)?;
        if from != to {
            state.release_space(to);
        }
        state.change(NameChange::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        state.check(&[DiskFault::Sync])?;
        state.changes.clear();
        state.synced_names = state.names.clone();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.state().free_bytes)
    }

    fn location(&self) -> String {
        "/data".to_owned()
    }

    fn directory(&self) -> String {
        "/data/files".to_owned()
    }

    fn unix_ms(&self) -> u64 {
        let mut state = self.state();
        state.clock_ms += 1;
        state.clock_ms
    }

    fn random(&self) -> io::Result<u64> {
        Ok(self.state().random.next())
    }
}

impl StorageFile for ModelFileHandle {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let fault = state.next_fault(&[DiskFault::NoSpace, DiskFault::Write])?;
        let wanted = match fault {
            None => bytes.len(),
            Some(_) => state.random.below(bytes.len() + 1),
        };
        let fits = state.take_fitting(self.file, offset as usize, wanted);
        state.files[self.file].write(offset as usize, &bytes[..fits]);
        match fault {
            Some(fault) => Err(fault.error()),
            None if fits < wanted => Err(DiskFault::NoSpace.error()),
            None => Ok(()),
        }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        if !state.has_power {
            return Err(DiskFault::PowerCut.error());
        }
        let is_short = state.reads_short && into.len() > 1 && state.random.one_in(4);
        let wanted = match is_short {
            true => 1 + state.random.below(into.len()),
            false => into.len(),
        };
        let bytes = &state.files[self.file].bytes;
        let from = (offset as usize).min(bytes.len());
        let count = wanted.min(bytes.len() - from);
        into[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        let fault = state.next_fault(&[DiskFault::Sync])?;
        let file = &mut state.files[self.file];
        match fault {
            None => file.sync(),
            // A power cut during the sync may have preserved any part.
            Some(DiskFault::PowerCut) => {}
            Some(_) => file.discard_unsynced(),
        }
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.file].bytes.len() as u64)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.check(&[])?;
        state.files[self.file].set_len(bytes as usize);
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let more = bytes.saturating_sub(state.files[self.file].bytes.len() as u64);
        if more == 0 {
            return Ok(());
        }
        state.check(&[DiskFault::NoSpace])?;
        state.take_space(more)?;
        state.files[self.file].set_len(bytes as usize);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_file_releases_its_space() {
        let disk = ModelDisk::from_seed(1);
        disk.set_free_bytes(100);
        let free = || disk.free_bytes().unwrap();
        for _ in 0..3 {
            disk.create("a", 60).unwrap();
            assert_eq!(free(), 40);
            disk.remove("a").unwrap();
        }
        disk.create("a", 40).unwrap();
        disk.create("b", 30).unwrap();
        disk.rename("b", "a").unwrap();
        assert_eq!(free(), 70);
        disk.rename("a", "a").unwrap();
        disk.create("a", 10).unwrap();
        assert_eq!(free(), 90);
    }
}
