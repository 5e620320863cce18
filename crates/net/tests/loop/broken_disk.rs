//! A disk that cannot be read for a while: what it has is late, and not lost.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use broker::Transport;
use broker::durable::recovery::Recovery;
use journal::{Directory, Log, LogConfig, Policy, Storage, StorageFile};
use net::{Restart, Server, StartError};

use super::client::*;
use super::server::*;

/// A directory whose files cannot be read while `is_broken`.
struct Disk {
    directory: Directory,
    is_broken: Arc<AtomicBool>,
}

struct DiskFile {
    file: Box<dyn StorageFile>,
    is_broken: Arc<AtomicBool>,
}

impl Disk {
    fn file(&self, file: Box<dyn StorageFile>) -> Box<dyn StorageFile> {
        let is_broken = self.is_broken.clone();
        Box::new(DiskFile { file, is_broken })
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

/// Of one server, over its restarts.
struct Scene {
    directory: PathBuf,
    is_broken: Arc<AtomicBool>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Scene {
    fn new() -> Scene {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-net-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Scene {
            directory,
            is_broken: Arc::default(),
        }
    }

    /// What the server before has left. The disk breaks once it has been replayed, if `breaks`.
    fn restart(&self, breaks: bool) -> Restart {
        let disk = Disk {
            directory: Directory::open(&self.directory, journal::DIRECTORY_NAME).unwrap(),
            is_broken: self.is_broken.clone(),
        };
        let config = LogConfig {
            policy: Policy::Fsync,
            segment_bytes: 1 << 20,
            max_bytes: 64 << 20,
            reserve_bytes: 0,
        };
        let mut recovery = Recovery::new();
        let mut record = |position: journal::Lsn, bytes: &[u8]| {
            recovery
                .record(broker::durable::record::Position(position.0), bytes)
                .unwrap();
            Ok(())
        };
        let (log, _) = Log::open(Arc::new(disk), config, &mut record, &mut |_, _| ()).unwrap();
        self.is_broken.store(breaks, Ordering::Release);
        Restart {
            log,
            recovered: recovery.finish(),
            quota_bytes: 64 << 20,
        }
    }

    fn start(&self) -> Running {
        let mut options = options(1);
        options.restart = Some(self.restart(false));
        options.start()
    }
}

/// A client with a session that stays. Returns whether there was one.
fn stay(running: &Running) -> (Client, bool) {
    let mut client = Client(running.open(Transport::Tcp));
    client.send(&packet(0x10, b"\x00\x04MQTT\x04\x00\x00\x00\x00\x04away"));
    let connack = client.read();
    (client, connack.body[0] == 1)
}

/// Five messages for it while it is away.
fn leave_with_messages(running: &Running) {
    let (mut client, _) = stay(running);
    client.send(&subscribe(1, "t", 1));
    assert_eq!(client.read().first, 0x90);
    client.send(&DISCONNECT);
    assert!(read_to_close(&mut client.0).is_empty());
    let mut publisher = running.client(Transport::Tcp, "p");
    for number in 1..=5 {
        publisher.send(&publish_qos1(number, "t", &[number as u8]));
        assert_eq!(publisher.read().first, 0x40);
    }
}

fn assert_has_all(client: &mut Client) {
    let payloads: Vec<u8> = (0..5).map(|_| *client.read().body.last().unwrap()).collect();
    assert_eq!(payloads, [1, 2, 3, 4, 5]);
}

#[test]
fn messages_that_cannot_be_read_now_come_when_they_can() {
    let scene = Scene::new();
    let running = scene.start();
    leave_with_messages(&running);
    scene.is_broken.store(true, Ordering::Release);
    let (mut client, was_there) = stay(&running);
    assert!(was_there);
    // The disk has been asked at least once when a second one finds it broken, too.
    client.ping();
    client.ping();
    scene.is_broken.store(false, Ordering::Release);
    assert_has_all(&mut client);
}

#[test]
fn a_start_that_cannot_read_what_it_needs_gives_nothing_up() {
    let scene = Scene::new();
    {
        let running = scene.start();
        let mut publisher = running.client(Transport::Tcp, "p");
        publisher.send(&packet(0x33, b"\x00\x01r\x00\x01kept"));
        assert_eq!(publisher.read().first, 0x40);
    }
    let options = options(1);
    let started = Server::start(
        options.config,
        Arc::new(options.shard),
        options.access,
        options.authenticator,
        Arc::new(Unobserved),
        Some(scene.restart(true)),
    );
    assert!(matches!(started, Err(StartError::Unreadable(_))));
    scene.is_broken.store(false, Ordering::Release);
    let running = scene.start();
    let mut subscriber = running.client(Transport::Tcp, "s");
    subscriber.subscribe("r");
    assert_eq!(subscriber.read().body, b"\x00\x01rkept");
}
