//! A disk in memory that keeps a crash's promises only: contents that were synced, names of which the directory was synced.
//! Of the rest a crash leaves any part, sector by sector. Calls fail on demand. Everything follows from one seed.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use timeseries::{Disk, DiskFile};

const SECTOR: usize = 512;

#[derive(Clone)]
pub struct ModelDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    WriteError,
    SyncError,
    /// The power goes in the middle of the call.
    PowerCut,
}

struct State {
    files: Vec<File>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    changes: Vec<Change>,
    free_bytes: u64,
    /// In so many calls that change something.
    fault: Option<(Fault, u64)>,
    has_power: bool,
    random: Random,
    calls: u64,
}

#[derive(Clone)]
enum Change {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

#[derive(Default)]
struct File {
    bytes: Vec<u8>,
    synced: Vec<u8>,
}

struct Handle {
    disk: ModelDisk,
    file: usize,
}

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

    pub fn once_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

impl ModelDisk {
    pub fn new(seed: u64) -> ModelDisk {
        let state = State {
            files: Vec::new(),
            names: BTreeMap::new(),
            synced_names: BTreeMap::new(),
            changes: Vec::new(),
            free_bytes: u64::MAX,
            fault: None,
            has_power: true,
            random: Random::new(seed),
            calls: 0,
        };
        ModelDisk {
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// The call number `calls` from now on that changes something.
    pub fn fail(&self, fault: Fault, calls: u64) {
        self.state().fault = Some((fault, calls));
    }

    pub fn set_free_bytes(&self, bytes: u64) {
        self.state().free_bytes = bytes;
    }

    pub fn has_power(&self) -> bool {
        self.state().has_power
    }

    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Power back on: of what was not synced, something is left.
    pub fn crash(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        for file in &mut state.files {
            file.crash(&mut state.random);
        }
        let mut names = state.synced_names.clone();
        for change in state.changes.drain(..) {
            if state.random.once_in(2) {
                change.apply(&mut names);
            }
        }
        state.names = names.clone();
        state.synced_names = names;
        state.has_power = true;
        state.fault = None;
    }

    pub fn file_names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    pub fn read_file(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.files[state.names[name]].bytes.clone()
    }

    /// Replaces contents behind everybody's back.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let at = state.names[name];
        change(&mut state.files[at].bytes);
        state.files[at].synced = state.files[at].bytes.clone();
    }

    pub fn remove_file(&self, name: &str) {
        let mut state = self.state();
        state.names.remove(name).unwrap();
        state.synced_names.remove(name);
    }

    /// A disk of its own with the same contents, all of it synced.
    pub fn copy(&self) -> ModelDisk {
        let copy = ModelDisk::new(1);
        for name in self.file_names() {
            let bytes = self.read_file(&name);
            let mut state = copy.state();
            let at = state.files.len();
            state.files.push(File {
                synced: bytes.clone(),
                bytes,
            });
            state.names.insert(name.clone(), at);
            state.synced_names.insert(name, at);
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
            Change::Rename(from, to) => {
                if let Some(file) = names.remove(&from) {
                    names.insert(to, file);
                }
            }
        }
    }
}

impl State {
    /// Counts a call that changes something; `Err` if it fails before doing anything.
    fn begin(&mut self, is_mine: impl Fn(Fault) -> bool) -> io::Result<Option<Fault>> {
        if !self.has_power {
            return Err(no_power());
        }
        self.calls += 1;
        let Some((fault, calls)) = &mut self.fault else {
            return Ok(None);
        };
        if *fault != Fault::PowerCut && !is_mine(*fault) {
            return Ok(None);
        }
        if *calls > 0 {
            *calls -= 1;
            return Ok(None);
        }
        let fault = *fault;
        self.fault = None;
        if fault == Fault::PowerCut {
            self.has_power = false;
        }
        Ok(Some(fault))
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        if self.begin(|_| false)?.is_some() {
            return Err(no_power());
        }
        change.clone().apply(&mut self.names);
        self.changes.push(change);
        Ok(())
    }
}

fn no_power() -> io::Error {
    io::Error::other("no power")
}

fn failed() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl File {
    fn crash(&mut self, random: &mut Random) {
        if self.bytes == self.synced {
            return;
        }
        let longest = self.bytes.len().max(self.synced.len());
        let len = if random.once_in(2) {
            longest
        } else {
            random.below(longest + 1).max(self.synced.len().min(longest))
        };
        let mut left = vec![0; len];
        for sector in 0..len.div_ceil(SECTOR) {
            let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(len));
            let source = if random.once_in(2) { &self.bytes } else { &self.synced };
            let end = to.min(source.len()).max(from);
            if from < source.len() {
                left[from..end].copy_from_slice(&source[from..end]);
            }
        }
        self.bytes = left.clone();
        self.synced = left;
    }
}

impl Disk for ModelDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        if !state.has_power {
            return Err(no_power());
        }
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        let file = state.files.len();
        state.change(Change::Link(name.to_owned(), file))?;
        state.files.push(File::default());
        drop(state);
        Ok(Box::new(Handle {
            disk: self.clone(),
            file,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let state = self.state();
        if !state.has_power {
            return Err(no_power());
        }
        let file = *state
            .names
            .get(name)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Box::new(Handle {
            disk: self.clone(),
            file,
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        let file = *state
            .names
            .get(name)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        state.change(Change::Unlink(name.to_owned()))?;
        state.free_bytes = state.free_bytes.saturating_add(state.files[file].bytes.len() as u64);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.state().change(Change::Rename(from.to_owned(), to.to_owned()))
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        match state.begin(|fault| fault == Fault::SyncError)? {
            Some(_) => Err(failed()),
            None => {
                state.changes.clear();
                state.synced_names = state.names.clone();
                Ok(())
            }
        }
    }

    fn location(&self) -> String {
        "/data/timeseries".to_owned()
    }
}

impl DiskFile for Handle {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let fault = state.begin(|fault| fault == Fault::WriteError)?;
        let mut count = if fault.is_some() {
            state.random.below(bytes.len() + 1)
        } else {
            bytes.len()
        };
        let is_full = (count as u64) > state.free_bytes;
        count = count.min(state.free_bytes as usize);
        if state.free_bytes != u64::MAX {
            state.free_bytes -= count as u64;
        }
        let file = &mut state.files[self.file].bytes;
        let (from, to) = (offset as usize, offset as usize + count);
        if file.len() < to {
            file.resize(to, 0);
        }
        file[from..to].copy_from_slice(&bytes[..count]);
        match fault {
            Some(_) => Err(failed()),
            None if is_full => Err(io::Error::from_raw_os_error(28)),
            None => Ok(()),
        }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.state();
        if !state.has_power {
            return Err(no_power());
        }
        let bytes = &state.files[self.file].bytes;
        let from = (offset as usize).min(bytes.len());
        // Never all at once, where that is possible.
        let count = into.len().min(bytes.len() - from).min((into.len() / 2).max(1000));
        into[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        match state.begin(|fault| fault == Fault::SyncError)? {
            Some(_) => Err(failed()),
            None => {
                let file = &mut state.files[self.file];
                file.synced = file.bytes.clone();
                Ok(())
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.file].bytes.len() as u64)
    }
}
