//! Tests a disk that fails to persist data: an `fdatasync` of the journal gets EIO, permanently or once.
//!
//! After a failed sync the kernel may mark unwritten pages as clean. The next sync then succeeds although the data is
//! lost, so one failure is as bad as a permanent one. The server must not acknowledge anything afterwards and must
//! reject clients. Messages acknowledged earlier exist after a restart on a sound disk. The model disk of the crate
//! `storage` tests which data a disk loses. These tests use the real binary.

use std::fs;
use std::thread;
use std::time::Duration;

use super::faulty_disk;
use crate::support::{Connect, Peer, Publish, Server, V4, V5, prop};

const QUOTA_EXCEEDED: u8 = 0x97;
const SERVER_UNAVAILABLE: u8 = 0x88;
const SERVER_UNAVAILABLE_3: u8 = 0x03;
const IMPLEMENTATION_SPECIFIC_ERROR: u8 = 0x83;
const CLOSED_WITHIN: Duration = Duration::from_secs(20);
/// Number of clients per test. A server has fewer shards.
const CLIENTS: u32 = 16;
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

// fault: Write or sync fails; Journal
#[test]
fn permanent_sync_failure_stops_acknowledgements() {
    let mut scene = Scene::begin();
    scene.publish_some();
    fs::write(faulty_disk::sync_fails(&scene.server), "").expect("the server's directory is writable");
    scene.assert_failed();
    fs::remove_file(faulty_disk::sync_fails(&scene.server)).expect("the file exists");
    scene.assert_stays_failed();
    scene.server.kill();
    scene.assert_acknowledged_survive_a_restart();
}

// fault: Write or sync fails; Journal
#[test]
fn failed_journal_ends_the_process_if_configured() {
    let mut server = Server::start(&faulty_disk::config("[durability]\non_failure = \"exit\"\n"));
    let mut keeper = server.session(&keeper());
    keeper.subscribe("disk/#", 1);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    publisher.publish(&Publish::new("disk/a", "acknowledged").qos(1));
    fs::write(faulty_disk::sync_fails(&server), "").expect("the server's directory is writable");
    publisher.send(&Publish::new("disk/b", "not acknowledged").qos(1).id(77).bytes(V5));
    server.wait_until("the process has ended", |server| !server.is_running());
    assert!(server.log().contains("durability.on_failure"), "{}", server.log());
    fs::remove_file(faulty_disk::sync_fails(&server)).expect("the file exists");
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let mut keeper = server.session(&self::keeper());
    assert_eq!(keeper.receive().payload_str(), "acknowledged");
}

/// Also stops the server cleanly. The shutdown must neither hang nor report that everything is durable.
// fault: Write or sync fails; Journal
#[test]
fn one_failed_sync_is_final() {
    let mut scene = Scene::begin();
    scene.publish_some();
    let once = faulty_disk::sync_fails(&scene.server).with_extension("once");
    fs::write(&once, "").expect("the server's directory is writable");
    scene.assert_failed();
    assert!(!once.exists(), "no sync has failed");
    scene.assert_stays_failed();
    scene.server.terminate(STOPPED_WITHIN);
    scene.server.kill();
    scene.assert_acknowledged_survive_a_restart();
}

/// While the disk hangs, so many messages arrive that the server stops reading from connections. When the disk fails,
/// the server continues without waiting for it.
// fault: Write or sync fails; Journal
#[test]
fn traffic_without_journal_continues_after_sync_failure() {
    let server = Server::start(&faulty_disk::config(""));
    let mut keeper = server.session(&keeper());
    keeper.subscribe("disk/#", 1);
    keeper.disconnect();
    let mut bystander = server.session(&Connect::new(V5, "bystander"));
    let publishers: Vec<Peer> = (0..8)
        .map(|number| server.session(&Connect::new(V5, format!("p{number}"))))
        .collect();
    fs::write(faulty_disk::sync_held(&server), "").expect("the server's directory is writable");
    let sending: Vec<_> = publishers.into_iter().map(publish_much).collect();
    server.wait_until("the journal is far behind", |server| {
        metric(server, "backlog_bytes") > 32 << 20
    });
    fs::write(faulty_disk::sync_fails(&server), "").expect("the server's directory is writable");
    fs::remove_file(faulty_disk::sync_held(&server)).expect("the file exists");
    server.wait_until("the journal has failed", |server| {
        metric(server, "state{state=\"failed\"}") == 1
    });
    bystander.ping_alone();
    server.session(&Connect::new(V5, "newcomer")).ping_alone();
    for each in sending {
        each.join()
            .expect("every client is disconnected as its protocol version allows");
    }
}

/// Publishes eight MiB at QoS 1 while the server accepts them.
fn publish_much(mut peer: Peer) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for id in 1..=16 {
            let message = Publish::new("disk/much", vec![b'x'; 512 << 10]).qos(1).id(id);
            if peer.try_send(&message.bytes(V5)).is_err() {
                return;
            }
        }
    })
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = server.http_get("/metrics").1;
    let name = format!("tidewire_journal_{name} ");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&name))
        .expect("the metric exists");
    line.parse().expect("the metric is a number")
}

/// An offline subscriber, publishers of both protocol versions, and the messages acknowledged to them.
struct Scene {
    server: Server,
    new: Peer,
    old: Peer,
    unlucky: Peer,
    /// Clients whose sessions end when the server cannot persist anything any more.
    leaving: Vec<Peer>,
    next: u32,
    acknowledged: Vec<u32>,
}

impl Scene {
    fn begin() -> Scene {
        let server = Server::start(&faulty_disk::config(""));
        let mut keeper = server.session(&keeper());
        keeper.subscribe("disk/#", 1);
        keeper.disconnect();
        Scene {
            new: server.session(&Connect::new(V5, "new")),
            old: server.session(&Connect::new(V4, "old")),
            unlucky: server.session(&Connect::new(V5, "unlucky")),
            leaving: (0..CLIENTS).map(|number| server.session(&leaving(number))).collect(),
            server,
            next: 1,
            acknowledged: Vec::new(),
        }
    }

    fn message(&mut self) -> Publish {
        self.next += 1;
        Publish::new("disk/a", format!("{}", self.next - 1)).qos(1)
    }

    fn publish_some(&mut self) {
        for _ in 0..20 {
            let message = self.message();
            assert_eq!(self.new.publish(&message), 0);
            self.acknowledged.push(self.next - 1);
            let message = self.message();
            assert_eq!(self.old.publish(&message), 0);
            self.acknowledged.push(self.next - 1);
        }
    }

    /// The message whose sync fails is never acknowledged, and its publisher is disconnected. Later clients are
    /// rejected. The metrics, the log, the alarms and `/readyz` report the failure too.
    fn assert_failed(&mut self) {
        let unlucky = self.message().id(1);
        self.unlucky.send(&unlucky.bytes(V5));
        self.server.wait_until("the journal has failed", |server| {
            server
                .http_get("/metrics")
                .1
                .contains("tidewire_journal_state{state=\"failed\"} 1")
        });
        self.unlucky.expect_disconnect(IMPLEMENTATION_SPECIFIC_ERROR);
        let refused = self.message();
        assert_eq!(self.new.publish(&refused), QUOTA_EXCEEDED);
        let unheard = self.message().id(self.old.packet_id());
        self.old.send(&unheard.bytes(V4));
        // MQTT 3.1.1 has no negative acknowledgement, so the publisher would wait forever.
        assert!(self.old.expect_closed(CLOSED_WITHIN).packets.is_empty());
        self.server.wait_until("an alarm reports the failure", |server| {
            server.http_get("/metrics").1.contains("\ntidewire_alarms 1\n") && server.log().contains("journal_failed")
        });
        let log = self.server.log();
        let journal = self.server.dir().join("data/journal").display().to_string();
        for part in [&*journal, ".log: Input/output error", "repair the disk and restart"] {
            let is_reported = |line: &str| line.contains("the journal has failed") && line.contains(part);
            assert!(log.lines().any(is_reported), "no log line contains {part}");
        }
        let (status, body) = self.server.http_get("/readyz");
        assert!(
            status == 503 && body.contains("the journal has failed: syncing "),
            "/readyz says {status}: {body}"
        );
    }

    /// Syncs would succeed again, but the server does not rely on that. Operations without the journal continue.
    fn assert_stays_failed(&mut self) {
        let refused = self.message();
        assert_eq!(self.new.publish(&refused), QUOTA_EXCEEDED);
        let retained = Publish::new("kept", "x").qos(1).retain();
        assert_eq!(self.new.publish(&retained), QUOTA_EXCEEDED);
        for (version, code) in [(V5, SERVER_UNAVAILABLE), (V4, SERVER_UNAVAILABLE_3)] {
            let mut peer = self.server.connect();
            let connack = peer.handshake(&Connect::new(version, "durable").persistent());
            assert_eq!(
                connack.code, code,
                "expected the code for a session that must be durable"
            );
        }
        for peer in self.leaving.drain(..) {
            peer.disconnect();
        }
        // Clients are accepted before and after sessions of their shard have ended.
        self.server
            .wait_until("the sessions of these clients have ended", |server| {
                server.http_get("/metrics").1.contains("\ntidewire_broker_sessions 2\n")
            });
        for number in 0..CLIENTS {
            self.server
                .session(&Connect::new(V5, format!("passing {number}")))
                .ping_alone();
        }
        let mut peer = self.server.connect();
        let connack = peer.handshake(&Connect::new(V5, "keeper"));
        assert_eq!(
            connack.code, SERVER_UNAVAILABLE,
            "expected the code for a session end that must be durable"
        );
        let mut subscriber = self.server.session(&Connect::new(V5, "passing"));
        subscriber.subscribe("live/#", 1);
        assert_eq!(self.new.publish(&Publish::new("live/a", "hello").qos(1)), 0);
        assert_eq!(subscriber.receive().payload, b"hello");
        let mut unlucky = self.server.session(&Connect::new(V5, "unlucky"));
        assert_eq!(unlucky.publish(&refused), QUOTA_EXCEEDED, "the client may reconnect");
        let (status, _) = self.server.http_get("/readyz");
        assert_eq!(status, 503);
    }

    /// Restarts the server and expects all acknowledged messages, in order and before any other message.
    fn assert_acknowledged_survive_a_restart(&mut self) {
        self.server.spawn_again();
        self.server.wait_until_ready();
        let mut publisher = self.server.session(&Connect::new(V5, "new"));
        let last = self.message();
        assert_eq!(
            publisher.publish(&last),
            0,
            "the server accepts messages on a sound disk"
        );
        let mut subscriber = self.server.connect();
        let connack = subscriber.handshake(&keeper());
        assert_eq!((connack.code, connack.session_present), (0, true));
        let received = subscriber.receive_until(&last.payload);
        let numbers: Vec<u32> = received
            .iter()
            .map(|delivery| delivery.payload_str().parse().expect("a payload of this test"))
            .collect();
        let count = self.acknowledged.len();
        assert_eq!(numbers[..count.min(numbers.len())], self.acknowledged);
        // Messages without an answer may be delivered as well. Rejected messages must not be.
        let unanswered = [count as u32 + 1, count as u32 + 3];
        let rest = &numbers[count..];
        assert!(
            rest.iter().all(|number| unanswered.contains(number)),
            "unexpected messages: {rest:?}"
        );
    }
}

fn leaving(number: u32) -> Connect {
    Connect::new(V5, format!("leaving {number}")).property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1))
}

fn keeper() -> Connect {
    Connect::new(V4, "keeper").persistent()
}
