//! Tests a full disk: the server rejects or holds publishers, loses no acknowledged message, and recovers by itself.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::faulty_disk;
use crate::support::api::Api;
use crate::support::{Config, Connect, PATIENCE, Peer, Publish, Reading, Server, V4, V5, kind, packet};

const QUOTA_EXCEEDED: u8 = 0x97;
const PAYLOAD_BYTES: usize = 20_000;
const DISK_BYTES: usize = 24 << 20;
/// Wait time for an acknowledgement that must not arrive.
const SILENCE: Duration = Duration::from_millis(300);

// fault: Disk full; Journal
#[test]
fn full_journal_rejects_or_holds_publishers_until_delivery() {
    let config =
        "durability.max_bytes = \"8MiB\"\ndurability.segment_bytes = \"256KiB\"\ndurability.reserve_bytes = \"0B\"\n";
    let mut server = Server::start(&Config::new(config));
    let mut scene = Scene::begin(&server);
    scene.fill(&server);
    scene.assert_full(&server);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    scene.fill(&server);
    scene.assert_full(&server);
    let api = Api::of(&server);
    assert_publishing_is_refused(&api);
    let mut held = scene.hold(&server);
    let mut subscriber = Peer::session(server.mqtt(), &subscriber());
    let received = scene.deliver_until_accepted(&server, &mut subscriber);
    scene.assert_released(&mut held);
    assert_eq!(publish_retained(&api).0, 200);
    scene.assert_delivered(&server, subscriber, received);
}

/// Checks that retained messages without subscribers are rejected too, because the journal could not restore them.
fn assert_publishing_is_refused(api: &Api) {
    let (status, problem) = publish_retained(api);
    assert_eq!(status, 503, "{problem}");
    let detail = problem["detail"].as_str().expect("a problem response has a detail");
    assert!(
        detail.starts_with("cannot store a message for topic state/a: "),
        "{detail}"
    );
    let (status, _) = api.call("GET", "/api/v1/retained/state/a", &Value::Null);
    assert_eq!(status, 404, "no message is retained");
}

fn publish_retained(api: &Api) -> (u16, Value) {
    let message = json!({"topic": "state/a", "payload": "on", "qos": 0, "retain": true});
    api.call("POST", "/api/v1/publish", &message)
}

// fault: Disk full; Journal
#[test]
fn full_disk_rejects_or_holds_publishers_until_space_is_free() {
    full_disk(Disk::tmpfs);
}

/// Unlike tmpfs, ext4 reserves blocks for root, has its own journal and allocates blocks late.
// fault: Disk full; Journal
#[test]
fn full_ext4_rejects_or_holds_publishers_until_space_is_free() {
    full_disk(Disk::ext4);
}

fn full_disk(mount: Mount) {
    let mut server = Server::start(&Config::new(
        "durability.segment_bytes = \"256KiB\"\ndurability.reserve_bytes = \"1MiB\"\n",
    ));
    server.kill();
    let Some(disk) = mount(&server, DISK_BYTES) else {
        println!("skipped: this machine does not allow mounting a file system");
        return;
    };
    server.spawn_again();
    server.wait_until_ready();
    let mut scene = Scene::begin(&server);
    scene.publish_some(&server);
    disk.fill();
    scene.fill(&server);
    scene.assert_full(&server);
    // A restart needs no space either. The disk is still full afterwards.
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    scene.fill(&server);
    scene.assert_full(&server);
    let mut held = scene.hold(&server);
    disk.make_space();
    scene.wait_until_accepted(&server);
    scene.assert_released(&mut held);
    scene.assert_over(&server);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let subscriber = Peer::session(server.mqtt(), &subscriber());
    scene.assert_delivered(&server, subscriber, Vec::new());
}

// fault: Disk full; Journal
#[test]
fn full_disk_recovers_by_delivery_with_a_small_reserve() {
    taken_reserve(Disk::tmpfs);
}

// fault: Disk full; Journal
#[test]
fn full_ext4_recovers_by_delivery_with_a_small_reserve() {
    taken_reserve(Disk::ext4);
}

/// The journal's writes that free space must not use up the space that delivery needs.
fn taken_reserve(mount: Mount) {
    let mut server = Server::start(&Config::new(
        "mqtt.max_queued_messages = 100000\ndurability.segment_bytes = \"1MiB\"\ndurability.reserve_bytes = \"8MiB\"\n",
    ));
    server.kill();
    let Some(disk) = mount(&server, 48 << 20) else {
        println!("skipped: this machine does not allow mounting a file system");
        return;
    };
    server.spawn_again();
    server.wait_until_ready();
    let mut scene = Scene::begin(&server);
    scene.fill(&server);
    scene.assert_full(&server);
    disk.take(5 << 20);
    let before = journal_bytes(&server, "replay");
    server.wait_until("the journal has tried to free space", |server| {
        journal_bytes(server, "replay") < before || journal_bytes(server, "backlog") > 64 << 10
    });
    let mut subscriber = Peer::session(server.mqtt(), &subscriber());
    let received = scene.deliver_until_accepted(&server, &mut subscriber);
    scene.assert_delivered(&server, subscriber, received);
    scene.assert_over(&server);
}

fn journal_bytes(server: &Server, of: &str) -> u64 {
    let (_, metrics) = server.http_get("/metrics");
    let name = format!("\ntidewire_journal_{of}_bytes ");
    let value = metrics.split(&name).nth(1).and_then(|rest| rest.lines().next());
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("no {name}"))
}

/// The file system has no space left in the middle of a write, although it had reserved the space.
// fault: Disk full; Journal
#[test]
fn failed_journal_writes_resume_at_the_same_position() {
    let mut server = Server::start(&faulty_disk::config("durability.segment_bytes = \"256KiB\"\n"));
    let mut scene = Scene::begin(&server);
    scene.publish_some(&server);
    // While a sync waits, the broker does not know yet that the disk is full.
    let held_sync = faulty_disk::sync_held(&server);
    fs::write(&held_sync, "").expect("the server's directory is writable");
    let mut earlier = scene.send(&server, "earlier");
    server.wait_until("a sync waits", faulty_disk::sync_waits);
    let control = faulty_disk::no_space(&server);
    fs::write(&control, "").expect("the server's directory is writable");
    let mut first = scene.send(&server, "first");
    fs::remove_file(&held_sync).expect("the file exists");
    // A message whose write fails gets no answer until space is free.
    server.wait_until("the journal is full", |server| {
        server.log().contains("the journal is full")
    });
    scene.fill(&server);
    scene.assert_full(&server);
    let mut held = scene.hold(&server);
    assert!(
        matches!(first.read(SILENCE), Reading::Silence),
        "the message is not durable yet"
    );
    fs::remove_file(&control).expect("the file exists");
    for peer in [&mut earlier, &mut first] {
        let puback = peer.expect_packet();
        assert_eq!((puback.kind(), puback.reason()), (kind::PUBACK, 0));
    }
    scene.wait_until_accepted(&server);
    scene.assert_released(&mut held);
    scene.assert_over(&server);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let subscriber = Peer::session(server.mqtt(), &subscriber());
    scene.assert_delivered(&server, subscriber, Vec::new());
}

fn subscriber() -> Connect {
    Connect::new(V4, "keeper").persistent()
}

/// An offline subscriber and the messages acknowledged to its publishers.
struct Scene {
    acknowledged: Vec<u32>,
    next: u32,
    /// The message that has no acknowledgement yet.
    held: u32,
}

impl Scene {
    fn begin(server: &Server) -> Scene {
        let mut peer = server.session(&subscriber());
        peer.subscribe("disk/#", 1);
        peer.disconnect();
        Scene {
            acknowledged: Vec::new(),
            next: 1,
            held: 0,
        }
    }

    fn message(number: u32) -> Publish {
        let mut payload = format!("{number} ").into_bytes();
        payload.resize(PAYLOAD_BYTES, b'.');
        Publish::new("disk/a", payload).qos(1)
    }

    /// Sends a message while no sync can end, and waits until the broker has it.
    fn send(&mut self, server: &Server, client_id: &str) -> Peer {
        let mut peer = server.session(&Connect::new(V5, client_id));
        peer.send(&Scene::message(self.next).id(1).bytes(V5));
        peer.ping_alone();
        self.acknowledged.push(self.next);
        self.next += 1;
        peer
    }

    /// Publishes one message and returns whether it was accepted. A rejected message is retried under the same number.
    fn publish(&mut self, peer: &mut Peer) -> bool {
        match peer.publish(&Scene::message(self.next)) {
            0 => {
                self.acknowledged.push(self.next);
                self.next += 1;
                true
            }
            reason => {
                assert_eq!(reason, QUOTA_EXCEEDED, "the PUBACK of message {}", self.next);
                false
            }
        }
    }

    fn publish_some(&mut self, server: &Server) {
        let mut peer = server.session(&Connect::new(V5, "publisher"));
        for _ in 0..20 {
            assert!(self.publish(&mut peer), "the disk has space at first");
        }
        peer.disconnect();
    }

    /// Publishes until a message is rejected.
    fn fill(&mut self, server: &Server) {
        let mut peer = server.session(&Connect::new(V5, "publisher"));
        while self.publish(&mut peer) {
            assert!(
                self.next < 5000,
                "{} messages of {PAYLOAD_BYTES} bytes were accepted",
                self.next
            );
        }
        peer.disconnect();
    }

    fn assert_full(&self, server: &Server) {
        server.assert_alive();
        let (status, metrics) = server.http_get("/metrics");
        assert_eq!(status, 200);
        let line = "tidewire_journal_state{state=\"full\"} 1";
        assert!(metrics.contains(line), "the metrics do not report a full journal");
        assert!(
            server.log().contains("the journal is full"),
            "the log does not report a full journal"
        );
        server.wait_until("an alarm reports the full journal", |server| {
            server.http_get("/metrics").1.contains("\ntidewire_alarms 1\n")
        });
    }

    /// Waits until the alarm is cleared. The log must report that the journal accepts messages again.
    fn assert_over(&self, server: &Server) {
        server.wait_until("the alarm is cleared", |server| {
            server.http_get("/metrics").1.contains("\ntidewire_alarms 0\n")
        });
        let log = server.log();
        assert!(log.contains("the journal accepts messages again"), "{log}");
    }

    /// Publishes with MQTT 3.1.1 until a message is neither acknowledged nor rejected. Returns that publisher.
    fn hold(&mut self, server: &Server) -> Peer {
        let mut peer = server.session(&Connect::new(V4, "held"));
        let deadline = Instant::now() + PATIENCE;
        loop {
            peer.send(&Scene::message(self.next).id(1).bytes(V4));
            self.held = self.next;
            self.next += 1;
            match peer.read(SILENCE) {
                Reading::Silence => return peer,
                Reading::Packet(packet) if packet.kind() == kind::PUBACK => self.acknowledged.push(self.held),
                other => panic!("an MQTT 3.1.1 publisher must be held, but got {other:?}"),
            }
            assert!(Instant::now() < deadline, "the MQTT 3.1.1 publisher is never held");
        }
    }

    /// Checks that held messages are acknowledged now and that the connection is alive.
    fn assert_released(&mut self, held: &mut Peer) {
        assert_eq!(held.expect_packet().kind(), kind::PUBACK);
        self.acknowledged.push(self.held);
        held.ping_alone();
    }

    /// Publishes repeatedly until a message is accepted.
    fn wait_until_accepted(&mut self, server: &Server) {
        let mut peer = server.session(&Connect::new(V5, "publisher"));
        let deadline = Instant::now() + PATIENCE;
        while !self.publish(&mut peer) {
            assert!(
                Instant::now() < deadline,
                "messages are still rejected {PATIENCE:?} after space was freed"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Publishes until a message is accepted while the subscriber reads its queue. Returns the received messages.
    fn deliver_until_accepted(&mut self, server: &Server, subscriber: &mut Peer) -> Vec<u32> {
        let mut publisher = server.session(&Connect::new(V5, "publisher"));
        let mut received = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while !self.publish(&mut publisher) {
            assert!(
                Instant::now() < deadline,
                "messages are still rejected {PATIENCE:?} after all messages were delivered"
            );
            take(subscriber, &mut received, Duration::from_millis(10));
        }
        received
    }

    /// Receives until the last acknowledged message arrives. By then all acknowledged messages must have arrived in
    /// order.
    fn assert_delivered(&mut self, server: &Server, mut subscriber: Peer, mut received: Vec<u32>) {
        let mut publisher = server.session(&Connect::new(V5, "publisher"));
        assert!(self.publish(&mut publisher), "the disk has space");
        let last = *self.acknowledged.last().expect("a message was just published");
        while received.last() != Some(&last) {
            let before = received.len();
            take(&mut subscriber, &mut received, PATIENCE);
            assert!(
                received.len() > before,
                "message {last} does not arrive; the last received message is {:?}",
                received.last()
            );
        }
        let missing: Vec<u32> = self
            .acknowledged
            .iter()
            .copied()
            .filter(|number| !received.contains(number))
            .collect();
        assert!(
            missing.is_empty(),
            "acknowledged but never received: {missing:?} of {}",
            self.acknowledged.len()
        );
        println!(
            "{} messages acknowledged, {} received",
            self.acknowledged.len(),
            received.len()
        );
    }
}

/// Receives and acknowledges one message if it arrives in time.
fn take(subscriber: &mut Peer, received: &mut Vec<u32>, within: Duration) {
    if let Reading::Packet(packet) = subscriber.read(within) {
        let delivery = packet.delivery(V4);
        let number = delivery
            .payload_str()
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        received.push(number.expect("a payload of this test"));
        let id = delivery.packet_id.expect("QoS 1");
        subscriber.send(&packet::acknowledge(kind::PUBACK, id));
    }
}

type Mount = fn(&Server, usize) -> Option<Disk>;

/// A small file system that holds the server's data directory.
struct Disk(PathBuf);

impl Disk {
    /// Mounts a tmpfs. Returns `None` if the test may not mount file systems.
    fn tmpfs(server: &Server, bytes: usize) -> Option<Disk> {
        Disk::mount(server, &format!("-t tmpfs -o size={bytes} tidewire-test"))
    }

    /// Creates the file system in a file next to the data directory.
    fn ext4(server: &Server, bytes: usize) -> Option<Disk> {
        let image = server.dir().join("disk.img");
        let file = fs::File::create(&image).expect("the server's directory is writable");
        file.set_len(bytes as u64).expect("a sparse file needs no space");
        let mut command = Command::new("mkfs.ext4");
        let made = command.args(["-q", "-F"]).arg(&image).output().ok()?;
        assert!(made.status.success(), "mkfs.ext4 fails: {made:?}");
        Disk::mount(server, &format!("-o loop {}", image.display()))
    }

    fn mount(server: &Server, how: &str) -> Option<Disk> {
        let at = server.dir().join("data");
        let mut command = Command::new("mount");
        command.args(how.split(' ')).arg(&at);
        let output = command.output().ok()?;
        output.status.success().then_some(Disk(at))
    }

    /// Fills the disk: writes until a write fails.
    fn fill(&self) {
        let result = fs::write(self.0.join("filling"), vec![0; DISK_BYTES]);
        result.expect_err("the disk has less space than this");
    }

    fn take(&self, bytes: usize) {
        fs::write(self.0.join("taken"), vec![0; bytes]).expect("the disk has this space");
    }

    fn make_space(&self) {
        fs::remove_file(self.0.join("filling")).expect("a file of this test");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Unmount lazily, because the server may still have files open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
