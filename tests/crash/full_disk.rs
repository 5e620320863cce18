//! No space: publishers are told or held, nothing acknowledged is lost, and it ends by itself.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::Api;
use crate::faulty_disk;
use crate::support::{Config, Connect, PATIENCE, Peer, Publish, Reading, Server, V4, V5, kind, packet};

const QUOTA_EXCEEDED: u8 = 0x97;
const PAYLOAD_BYTES: usize = 20_000;
const DISK_BYTES: usize = 24 << 20;
/// For an acknowledgement that is not to come.
const SILENCE: Duration = Duration::from_millis(300);

#[test]
fn a_full_journal_refuses_holds_and_goes_on_when_its_messages_are_delivered() {
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

/// Also what is only retained: the journal could not say after a crash that it was.
fn assert_publishing_is_refused(api: &Api) {
    let (status, problem) = publish_retained(api);
    assert_eq!(status, 503, "{problem}");
    let detail = problem["detail"].as_str().expect("a problem says what is wrong");
    assert!(
        detail.starts_with("topic state/a: the server can keep no more now"),
        "{detail}"
    );
    let (status, _) = api.call("GET", "/api/v1/retained/state/a", &Value::Null);
    assert_eq!(status, 404, "nothing is retained");
}

fn publish_retained(api: &Api) -> (u16, Value) {
    let message = json!({"topic": "state/a", "payload": "on", "qos": 0, "retain": true});
    api.call("POST", "/api/v1/publish", &message)
}

#[test]
fn a_full_disk_refuses_holds_and_goes_on_when_there_is_space() {
    full_disk(Disk::tmpfs);
}

/// Unlike a tmpfs it has blocks for root alone, a journal of its own, and decides late where data goes.
#[test]
fn a_full_ext4_refuses_holds_and_goes_on_when_there_is_space() {
    full_disk(Disk::ext4);
}

fn full_disk(mount: Mount) {
    let mut server = Server::start(&Config::new(
        "durability.segment_bytes = \"256KiB\"\ndurability.reserve_bytes = \"1MiB\"\n",
    ));
    server.kill();
    let Some(disk) = mount(&server, DISK_BYTES) else {
        println!("skipped: this machine lets nobody mount a file system of its own");
        return;
    };
    server.spawn_again();
    server.wait_until_ready();
    let mut scene = Scene::begin(&server);
    scene.publish_some(&server);
    disk.fill();
    scene.fill(&server);
    scene.assert_full(&server);
    // A start needs no space either, and finds the disk as full as it was.
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

#[test]
fn a_full_disk_ends_by_delivery_though_others_have_taken_most_of_the_reserve() {
    taken_reserve(Disk::tmpfs);
}

#[test]
fn a_full_ext4_ends_by_delivery_though_others_have_taken_most_of_the_reserve() {
    taken_reserve(Disk::ext4);
}

/// What the journal writes to make room must not take the space that delivery needs.
fn taken_reserve(mount: Mount) {
    let mut server = Server::start(&Config::new(
        "mqtt.max_queued_messages = 100000\ndurability.segment_bytes = \"1MiB\"\ndurability.reserve_bytes = \"8MiB\"\n",
    ));
    server.kill();
    let Some(disk) = mount(&server, 48 << 20) else {
        println!("skipped: this machine lets nobody mount a file system of its own");
        return;
    };
    server.spawn_again();
    server.wait_until_ready();
    let mut scene = Scene::begin(&server);
    scene.fill(&server);
    scene.assert_full(&server);
    disk.take(5 << 20);
    let before = journal_bytes(&server, "replay");
    server.wait_until("the journal has tried to make room", |server| {
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

/// A file system that finds no space for what it had promised, in the middle of a write.
#[test]
fn writes_that_find_no_space_refuse_hold_and_go_on_where_they_were() {
    let mut server = Server::start(&faulty_disk::config("durability.segment_bytes = \"256KiB\"\n"));
    let mut scene = Scene::begin(&server);
    scene.publish_some(&server);
    let control = faulty_disk::no_space(&server);
    fs::write(&control, "").expect("the server's directory is writable");
    // The message whose write fails first has no answer until there is space.
    let mut first = server.session(&Connect::new(V5, "first"));
    first.send(&Scene::message(scene.next).id(1).bytes(V5));
    scene.acknowledged.push(scene.next);
    scene.next += 1;
    server.wait_until("the journal is full", |server| {
        server.log().contains("the journal is full")
    });
    scene.fill(&server);
    scene.assert_full(&server);
    let mut held = scene.hold(&server);
    assert!(matches!(first.read(SILENCE), Reading::Silence), "nothing has been kept");
    fs::remove_file(&control).expect("nobody removed it");
    let puback = first.expect_packet();
    assert_eq!((puback.kind(), puback.reason()), (kind::PUBACK, 0));
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

/// A subscriber that is away, and what has been acknowledged to its publishers.
struct Scene {
    acknowledged: Vec<u32>,
    next: u32,
    /// The message that waits for its acknowledgement.
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

    /// Publishes one message: whether it was accepted. What was refused is tried again under its number.
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
            assert!(self.publish(&mut peer), "there is space at first");
        }
        peer.disconnect();
    }

    /// Publishes until it is refused.
    fn fill(&mut self, server: &Server) {
        let mut peer = server.session(&Connect::new(V5, "publisher"));
        while self.publish(&mut peer) {
            assert!(
                self.next < 5000,
                "{} messages of {PAYLOAD_BYTES} bytes were taken",
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
        assert!(
            metrics.contains(line),
            "the metrics do not say that the journal is full"
        );
        assert!(server.log().contains("the journal is full"), "the log does not say it");
        server.wait_until("there is an alarm about it", |server| {
            server.http_get("/metrics").1.contains("\ntidewire_alarms 1\n")
        });
    }

    /// The log says so, and the alarm ends.
    fn assert_over(&self, server: &Server) {
        server.wait_until("the alarm is over", |server| {
            server.http_get("/metrics").1.contains("\ntidewire_alarms 0\n")
        });
        let log = server.log();
        assert!(log.contains("the journal takes what is to be kept again"), "{log}");
    }

    /// A publisher of 3.1.1 whose message is not acknowledged, and not refused either.
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
                other => panic!("a publisher of 3.1.1 is held, not answered by {other:?}"),
            }
            assert!(Instant::now() < deadline, "a publisher of 3.1.1 is never held");
        }
    }

    /// What was held is acknowledged now, and the connection is alive.
    fn assert_released(&mut self, held: &mut Peer) {
        assert_eq!(held.expect_packet().kind(), kind::PUBACK);
        self.acknowledged.push(self.held);
        held.ping_alone();
    }

    /// Tries until a message is accepted.
    fn wait_until_accepted(&mut self, server: &Server) {
        let mut peer = server.session(&Connect::new(V5, "publisher"));
        let deadline = Instant::now() + PATIENCE;
        while !self.publish(&mut peer) {
            assert!(
                Instant::now() < deadline,
                "still refused {PATIENCE:?} after there is space again"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The same while the subscriber takes what is there for it; what it got.
    fn deliver_until_accepted(&mut self, server: &Server, subscriber: &mut Peer) -> Vec<u32> {
        let mut publisher = server.session(&Connect::new(V5, "publisher"));
        let mut received = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while !self.publish(&mut publisher) {
            assert!(
                Instant::now() < deadline,
                "still refused {PATIENCE:?} after all was delivered"
            );
            take(subscriber, &mut received, Duration::from_millis(10));
        }
        received
    }

    /// All that was acknowledged has been received when the last of it is, in order.
    fn assert_delivered(&mut self, server: &Server, mut subscriber: Peer, mut received: Vec<u32>) {
        let mut publisher = server.session(&Connect::new(V5, "publisher"));
        assert!(self.publish(&mut publisher), "there is space");
        let last = *self.acknowledged.last().expect("the one just published");
        while received.last() != Some(&last) {
            let before = received.len();
            take(&mut subscriber, &mut received, PATIENCE);
            assert!(
                received.len() > before,
                "message {last} does not come; the last that did: {:?}",
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
            "acknowledged and never received: {missing:?} of {}",
            self.acknowledged.len()
        );
        println!(
            "{} messages acknowledged, {} received",
            self.acknowledged.len(),
            received.len()
        );
    }
}

/// One message, if it comes in time, and its acknowledgement.
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
    /// In memory. `None` where that is not allowed.
    fn tmpfs(server: &Server, bytes: usize) -> Option<Disk> {
        Disk::mount(server, &format!("-t tmpfs -o size={bytes} tidewire-test"))
    }

    /// In a file beside the data directory.
    fn ext4(server: &Server, bytes: usize) -> Option<Disk> {
        let image = server.dir().join("disk.img");
        let file = fs::File::create(&image).expect("the server's directory is writable");
        file.set_len(bytes as u64).expect("a sparse file takes no space");
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

    /// Takes all space: writes until the disk takes no more.
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
        // Lazily: the server may still have files open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
