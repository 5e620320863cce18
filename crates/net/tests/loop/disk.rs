//! A journal on a disk whose reads and syncs a test controls.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use broker::Transport;
use broker::durable::recovery::Recovery;
use journal::{FlushPolicy, LogConfig, RecordLog, Storage, StorageDirectory, StorageFile};
use net::RestartState;

use super::client::*;
use super::server::*;

/// A directory whose files cannot be read while `is_broken`, and whose syncs wait at the gate.
struct Disk {
    directory: StorageDirectory,
    is_broken: Arc<AtomicBool>,
    gate: Arc<Gate>,
}

struct DiskFile {
    file: Box<dyn StorageFile>,
    is_broken: Arc<AtomicBool>,
    gate: Arc<Gate>,
}

/// Delays syncs while it is closed. The delay is limited, so that a failing test ends.
#[derive(Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    waiting: u32,
}

impl Gate {
    pub fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    pub fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.changed.notify_all();
    }

    /// Waits until a sync is blocked at the gate.
    pub fn wait_for_sync(&self) {
        let state = self.state.lock().unwrap();
        let (_state, waited) = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| state.waiting == 0)
            .unwrap();
        assert!(!waited.timed_out(), "no sync has started");
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| state.is_closed)
            .unwrap();
        state.waiting -= 1;
    }
}

impl Disk {
    fn file(&self, file: Box<dyn StorageFile>) -> Box<dyn StorageFile> {
        Box::new(DiskFile {
            file,
            is_broken: self.is_broken.clone(),
            gate: self.gate.clone(),
        })
    }
}

impl Storage for Disk {
    fn names(&self) -> io::Result<Vec<String>> {
        self.directory.names()
    }

    fn create(&self, name: &str, preallocate: u64) -> io::Result<Box<dyn StorageFile>> {
        Ok(self.file(self.directory.create(name, preallocate)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        Ok(self.file(self.directory.open(name)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.directory.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.directory.rename(from, to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_directory()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.directory.free_bytes()
    }

    fn location(&self) -> String {
        self.directory.location()
    }

    fn directory(&self) -> String {
        Storage::directory(&self.directory)
    }

    fn unix_ms(&self) -> u64 {
        self.directory.unix_ms()
    }

    fn random(&self) -> io::Result<u64> {
        self.directory.random()
    }
}

impl StorageFile for DiskFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        match self.is_broken.load(Ordering::Acquire) {
            true => Err(io::Error::other("the test has broken this disk")),
            false => self.file.read_at(offset, into),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }
}

/// The disk of a server, which survives restarts.
pub struct Scene {
    directory: PathBuf,
    pub is_broken: Arc<AtomicBool>,
    pub gate: Arc<Gate>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Scene {
    pub fn new() -> Scene {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-net-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Scene {
            directory,
            is_broken: Arc::default(),
            gate: Arc::default(),
        }
    }

    /// Starts with the files of the previous server. If `breaks`, the disk breaks after the replay.
    pub fn restart(&self, breaks: bool) -> RestartState {
        let disk = Disk {
            directory: StorageDirectory::open(&self.directory, journal::DIRECTORY_NAME).unwrap(),
            is_broken: self.is_broken.clone(),
            gate: self.gate.clone(),
        };
        let config = LogConfig {
            policy: FlushPolicy::Fsync,
            segment_bytes: 1 << 20,
            max_bytes: 64 << 20,
            reserve_bytes: 0,
            record_version: broker::durable::record::RECORD_VERSION,
            ..LogConfig::default()
        };
        let mut recovery = Recovery::new();
        let mut record = |position: journal::Lsn, bytes: &[u8]| {
            recovery
                .record(broker::durable::record::RecordPosition(position.0), bytes)
                .unwrap();
            Ok(())
        };
        let (log, _) = RecordLog::open(Arc::new(disk), config, &mut record, &mut |_, _| ()).unwrap();
        self.is_broken.store(breaks, Ordering::Release);
        RestartState {
            log,
            recovered: recovery.finish(),
            quota_bytes: 64 << 20,
            segment_bytes: 1 << 20,
        }
    }

    pub fn start(&self) -> Running {
        let mut options = options(1);
        options.restart = Some(self.restart(false));
        options.start()
    }
}

/// Connects with a durable session. Returns whether it existed.
pub fn stay(running: &Running) -> (Client, bool) {
    stay_as(running, "away")
}

pub fn stay_as(running: &Running, client_id: &str) -> (Client, bool) {
    let mut client = Client(running.open(Transport::Tcp));
    client.send(&connect_to_stay(client_id));
    let connack = client.read();
    (client, connack.body[0] == 1)
}
