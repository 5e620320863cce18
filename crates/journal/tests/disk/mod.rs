//! A model disk: keeps apart what was synced and what was not, and loses any part of the latter when it crashes.
//!
//! A sector that was written several times since the last sync may come back in any of its versions; directory changes
//! that were not synced survive in any subset. Faults are set beforehand: the n-th call from now on fails, or the power
//! goes, after which every call fails until [`Disk::crash`] has decided what is left.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use tidewire_journal::{Storage, StorageFile};

const SECTOR: usize = 512;

/// Cheap to clone: handles of the same disk.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write or an allocation fails for want of space, also one that was preallocated.
    NoSpace,
    WriteError,
    SyncError,
    /// The power goes in the middle of the call.
    PowerCut,
}

struct State {
    files: Vec<File>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    /// Since the directory was synced.
    changes: Vec<Change>,
    /// What creations and allocations may still take.
    free_bytes: u64,
    fault: Option<(Fault, u32)>,
    has_power: bool,
    reads_short: bool,
    random: Random,
    pub calls: u64,
    clock_ms: u64,
}

#[derive(Clone)]
enum Change {
    Link(String, usize),
    Unlink(String),
    Rename(String, String, usize),
}

#[derive(Default)]
struct File {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    /// What each sector was since the last sync, oldest first.
    versions: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    lengths: Vec<usize>,
}

#[derive(Clone)]
struct Handle {
    disk: Disk,
    file: usize,
}

/// Numbers from a seed.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True once in `of` times.
    pub fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

impl Disk {
    pub fn new(seed: u64) -> Disk {
        let state = State {
            files: Vec::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            changes: Vec::new(),
            free_bytes: 1 << 30,
            fault: None,
            has_power: true,
            reads_short: seed.is_multiple_of(3),
            random: Random::new(seed),
            calls: 0,
            clock_ms: 1_700_000_000_000,
        };
        Disk {
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    /// The call number `calls` from now on, counting from 0, of those that it concerns.
    pub fn fail(&self, fault: Fault, calls: u32) {
        self.state().fault = Some((fault, calls));
    }

    pub fn heal(&self) {
        self.state().fault = None;
    }

    pub fn set_free_bytes(&self, bytes: u64) {
        self.state().free_bytes = bytes;
    }

    pub fn has_power(&self) -> bool {
        self.state().has_power
    }

    /// How many calls changed or synced something.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The power goes and comes back: of what was not synced, something is left.
    pub fn crash(&self) {
        let mut state = self.state();
        let State {
            files, random, changes, ..
        } = &mut *state;
        for file in files {
            file.crash(random);
        }
        let kept: Vec<Change> = changes.drain(..).filter(|_| random.once_in(2)).collect();
        let mut names = state.synced_names.clone();
        kept.into_iter().for_each(|change| change.apply(&mut names));
        state.names = names.clone();
        state.synced_names = names;
        state.has_power = true;
        state.fault = None;
    }

    pub fn read_file(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.files[state.names[name]].bytes.clone()
    }

    /// Replaces contents behind everybody's back.
    pub fn write_file(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let at = match state.names.get(name) {
            Some(&at) => at,
            None => {
                state.files.push(File::default());
                let at = state.files.len() - 1;
                state.names.insert(name.to_owned(), at);
                state.synced_names.insert(name.to_owned(), at);
                at
            }
        };
        state.files[at] = File {
            bytes: bytes.to_vec(),
            synced: bytes.to_vec(),
            ..File::default()
        };
    }

    pub fn remove_file(&self, name: &str) {
        let mut state = self.state();
        state.names.remove(name).unwrap();
        state.synced_names.remove(name);
    }

    pub fn file_names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// A disk of its own with the same contents, all of it synced.
    pub fn copy(&self) -> Disk {
        let copy = Disk::new(1);
        for name in self.file_names() {
            copy.write_file(&name, &self.read_file(&name));
        }
        copy
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Change {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Change::Link(name, file) => {
                names.insert(name, file);
            }
            Change::Unlink(name) => {
                names.remove(&name);
            }
            Change::Rename(from, to, file) => {
                if names.get(&from) == Some(&file) {
                    names.remove(&from);
                }
                names.insert(to, file);
            }
        }
    }
}

impl State {
    /// Counts a call; says whether it is to fail, and how.
    fn fault_of(&mut self, faults: &[Fault]) -> io::Result<Option<Fault>> {
        if !self.has_power {
            return Err(io::Error::other("no power"));
        }
        self.calls += 1;
        let Some((fault, calls)) = &mut self.fault else {
            return Ok(None);
        };
        if !faults.contains(fault) && *fault != Fault::PowerCut {
            return Ok(None);
        }
        if *calls > 0 {
            *calls -= 1;
            return Ok(None);
        }
        let fault = *fault;
        match fault {
            Fault::PowerCut => self.has_power = false,
            // Lasts until it is healed.
            Fault::NoSpace => {}
            Fault::WriteError | Fault::SyncError => self.fault = None,
        }
        Ok(Some(fault))
    }

    fn check(&mut self, faults: &[Fault]) -> io::Result<()> {
        match self.fault_of(faults)? {
            None => Ok(()),
            Some(fault) => Err(fault.error()),
        }
    }

    fn take_space(&mut self, bytes: u64) -> io::Result<()> {
        self.free_bytes = self
            .free_bytes
            .checked_sub(bytes)
            .ok_or_else(|| Fault::NoSpace.error())?;
        Ok(())
    }

    fn change(&mut self, change: Change) {
        change.clone().apply(&mut self.names);
        self.changes.push(change);
    }

    fn lookup(&self, name: &str) -> io::Result<usize> {
        let file = self.names.get(name).copied();
        file.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Fault::NoSpace => io::Error::from_raw_os_error(28),
            Fault::WriteError | Fault::SyncError => io::Error::from_raw_os_error(5),
            Fault::PowerCut => io::Error::other("no power"),
        }
    }
}

impl File {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.set_len(end);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
        self.remember(offset, end);
    }

    fn set_len(&mut self, len: usize) {
        let before = self.bytes.len();
        self.bytes.resize(len, 0);
        self.lengths.push(len);
        self.remember(before.min(len), before.max(len));
    }

    fn remember(&mut self, from: usize, to: usize) {
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
        self.versions.clear();
        self.lengths.clear();
    }

    /// What kernels do when a sync fails: what was written counts as clean, stays readable, and never reaches the disk.
    fn forget(&mut self) {
        self.versions.clear();
        self.lengths.clear();
    }

    fn crash(&mut self, random: &mut Random) {
        let lengths = std::mem::take(&mut self.lengths);
        let keeps_length = !lengths.is_empty() && random.once_in(2);
        let len = if keeps_length {
            lengths[random.below(lengths.len())]
        } else {
            self.synced.len()
        };
        let mut bytes = std::mem::take(&mut self.synced);
        bytes.resize(len.max(bytes.len()), 0);
        for (sector, versions) in std::mem::take(&mut self.versions) {
            let from = sector * SECTOR;
            if from < bytes.len() && random.once_in(2) {
                let to = (from + SECTOR).min(bytes.len());
                let version = versions[random.below(versions.len())];
                bytes[from..to].copy_from_slice(&version[..to - from]);
            }
        }
        bytes.truncate(len);
        self.bytes = bytes.clone();
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

impl Storage for Disk {
    fn names(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        if !state.has_power {
            return Err(Fault::PowerCut.error());
        }
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, preallocate: u64) -> io::Result<Box<dyn StorageFile>> {
        let mut state = self.state();
        state.check(&[Fault::NoSpace])?;
        state.take_space(preallocate)?;
        let mut file = File::default();
        file.set_len(preallocate as usize);
        state.files.push(file);
        let file = state.files.len() - 1;
        state.change(Change::Link(name.to_owned(), file));
        Ok(Box::new(Handle {
            disk: self.clone(),
            file,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let file = self.state().lookup(name)?;
        Ok(Box::new(Handle {
            disk: self.clone(),
            file,
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(&[])?;
        let file = state.lookup(name)?;
        state.free_bytes += state.files[file].bytes.len() as u64;
        state.change(Change::Unlink(name.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(&[])?;
        let file = state.lookup(from)?;
        state.change(Change::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        state.check(&[Fault::SyncError])?;
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

    fn unix_ms(&self) -> u64 {
        let mut state = self.state();
        state.clock_ms += 1;
        state.clock_ms
    }

    fn random(&self) -> io::Result<u64> {
        Ok(self.state().random.next())
    }
}

impl StorageFile for Handle {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let fault = state.fault_of(&[Fault::NoSpace, Fault::WriteError])?;
        let count = match fault {
            None => bytes.len(),
            Some(_) => state.random.below(bytes.len() + 1),
        };
        state.files[self.file].write(offset as usize, &bytes[..count]);
        fault.map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        if !state.has_power {
            return Err(Fault::PowerCut.error());
        }
        let is_short = state.reads_short && into.len() > 1 && state.random.once_in(4);
        let wanted = if is_short {
            1 + state.random.below(into.len())
        } else {
            into.len()
        };
        let bytes = &state.files[self.file].bytes;
        let from = (offset as usize).min(bytes.len());
        let count = wanted.min(bytes.len() - from);
        into[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        match state.fault_of(&[Fault::SyncError])? {
            None => {
                state.files[self.file].sync();
                Ok(())
            }
            Some(fault) => {
                state.files[self.file].forget();
                Err(fault.error())
            }
        }
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
        state.check(&[Fault::NoSpace])?;
        state.take_space(more)?;
        state.files[self.file].set_len(bytes as usize);
        Ok(())
    }
}
