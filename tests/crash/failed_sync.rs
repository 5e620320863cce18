//! A disk that refuses to keep what it was given: an `fdatasync` of the journal gets EIO, for good or once.
//!
//! The kernel may count what it could not write as clean, so that the next sync succeeds and the data is gone: once is as bad
//! as for good. Nothing may be acknowledged from then on, everybody is told, and what was acknowledged before is there
//! after a start on a sound disk. What the disk loses is for the model disk of the crate `storage`; here the binary is real.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::faulty_disk;
use crate::support::{Connect, Peer, Publish, Server, V4, V5, prop};

const QUOTA_EXCEEDED: u8 = 0x97;
const SERVER_UNAVAILABLE: u8 = 0x88;
const SERVER_UNAVAILABLE_3: u8 = 0x03;
const IMPLEMENTATION_SPECIFIC_ERROR: u8 = 0x83;
const CLOSED_WITHIN: Duration = Duration::from_secs(20);
/// More than a server has shards.
const CLIENTS: u32 = 16;
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

#[test]
fn syncs_that_fail_for_good_end_all_acknowledgements() {
    let mut scene = Scene::begin();
    scene.publish_some();
    fs::write(faulty_disk::sync_fails(&scene.server), "").expect("the server's directory is writable");
    scene.assert_failed();
    fs::remove_file(faulty_disk::sync_fails(&scene.server)).expect("nobody removed it");
    scene.assert_stays_failed();
    scene.server.kill();
    scene.assert_all_is_there_after_a_start();
}

/// Also with an orderly end in between, which must not hang and not pretend that all was kept.
#[test]
fn one_sync_that_fails_is_final_though_later_ones_would_succeed() {
    let mut scene = Scene::begin();
    scene.publish_some();
    let once = faulty_disk::sync_fails(&scene.server).with_extension("once");
    fs::write(&once, "").expect("the server's directory is writable");
    scene.assert_failed();
    assert!(!once.exists(), "no sync has failed");
    scene.assert_stays_failed();
    scene.server.terminate(STOPPED_WITHIN);
    scene.server.kill();
    scene.assert_all_is_there_after_a_start();
}

/// While a disk hangs so much is said that nothing more is read; when it fails, that waits for nothing any more.
#[test]
fn what_needs_no_journal_goes_on_though_the_disk_was_far_behind_when_it_failed() {
    let server = Server::start(&faulty_disk::config(""));
    let mut keeper = server.session(&keeper());
    keeper.subscribe("disk/#", 1);
    keeper.disconnect();
    let mut bystander = server.session(&Connect::new(V5, "bystander"));
    let publishers: Vec<Peer> = (0..8)
        .map(|number| server.session(&Connect::new(V5, format!("p{number}"))))
        .collect();
    fs::write(faulty_disk::sync_held(&server), "").expect("the server's directory is writable");
    let sending: Vec<_> = publishers.into_iter().map(say_much).collect();
    server.wait_until("the journal is far behind", |server| {
        metric(server, "backlog_bytes") > 32 << 20
    });
    fs::write(faulty_disk::sync_fails(&server), "").expect("the server's directory is writable");
    fs::remove_file(faulty_disk::sync_held(&server)).expect("nobody removed it");
    server.wait_until("the journal has failed", |server| {
        metric(server, "state{state=\"failed\"}") == 1
    });
    bystander.ping_alone();
    server.session(&Connect::new(V5, "newcomer")).ping_alone();
    for each in sending {
        each.join().expect("nobody is sent away in a way that it cannot take");
    }
}

/// Eight MiB at QoS 1, for as long as the server takes them.
fn say_much(mut peer: Peer) -> thread::JoinHandle<()> {
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
        .expect("there is such a metric");
    line.parse().expect("it is a number")
}

/// A subscriber that is away, publishers of both versions, and what was acknowledged to them.
struct Scene {
    server: Server,
    new: Peer,
    old: Peer,
    unlucky: Peer,
    /// Those whose sessions end when nothing can be kept any more.
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

    /// The message whose sync fails is never acknowledged, and who sent it is sent away; whoever comes later is told, in the metrics, the log, the alarms and `/readyz`, too.
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
        // A publisher of 3.1.1 cannot be told, and would wait for ever.
        assert!(self.old.expect_closed(CLOSED_WITHIN).packets.is_empty());
        self.server.wait_until("there is an alarm about it", |server| {
            server.http_get("/metrics").1.contains("\ntidewire_alarms 1\n") && server.log().contains("journal_failed")
        });
        let log = self.server.log();
        let journal = self.server.dir().join("data/journal").display().to_string();
        for part in [&*journal, ".log: Input/output error", "restart when the disk is sound"] {
            let is_told = |line: &str| line.contains("the journal has failed") && line.contains(part);
            assert!(log.lines().any(is_told), "no line of the log says {part}");
        }
        let (status, body) = self.server.http_get("/readyz");
        assert!(
            status == 503 && body.contains("the journal has failed: syncing "),
            "/readyz says {status}: {body}"
        );
    }

    /// Syncs would succeed again, and nobody relies on that. What needs no journal goes on.
    fn assert_stays_failed(&mut self) {
        let refused = self.message();
        assert_eq!(self.new.publish(&refused), QUOTA_EXCEEDED);
        let retained = Publish::new("kept", "x").qos(1).retain();
        assert_eq!(self.new.publish(&retained), QUOTA_EXCEEDED);
        for (version, code) in [(V5, SERVER_UNAVAILABLE), (V4, SERVER_UNAVAILABLE_3)] {
            let mut peer = self.server.connect();
            let connack = peer.handshake(&Connect::new(version, "durable").persistent());
            assert_eq!(connack.code, code, "a session that would have to be kept");
        }
        for peer in self.leaving.drain(..) {
            peer.disconnect();
        }
        // Each is welcome while no sessions of its shard have ended, and also after they have.
        self.server.wait_until("their sessions have ended", |server| {
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
            "the end of a session that would have to be kept"
        );
        let mut subscriber = self.server.session(&Connect::new(V5, "passing"));
        subscriber.subscribe("live/#", 1);
        assert_eq!(self.new.publish(&Publish::new("live/a", "hello").qos(1)), 0);
        assert_eq!(subscriber.receive().payload, b"hello");
        let mut unlucky = self.server.session(&Connect::new(V5, "unlucky"));
        assert_eq!(unlucky.publish(&refused), QUOTA_EXCEEDED, "it may come back");
        let (status, _) = self.server.http_get("/readyz");
        assert_eq!(status, 503);
    }

    /// All that was acknowledged, in order and before anything else.
    fn assert_all_is_there_after_a_start(&mut self) {
        self.server.spawn_again();
        self.server.wait_until_ready();
        let mut publisher = self.server.session(&Connect::new(V5, "new"));
        let last = self.message();
        assert_eq!(publisher.publish(&last), 0, "a sound disk keeps again");
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
        // Of the rest only those may be there that had no answer at all: one that was refused may not.
        let unanswered = [count as u32 + 1, count as u32 + 3];
        let rest = &numbers[count..];
        assert!(
            rest.iter().all(|number| unanswered.contains(number)),
            "{rest:?} came besides"
        );
    }
}

fn leaving(number: u32) -> Connect {
    Connect::new(V5, format!("leaving {number}")).property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1))
}

fn keeper() -> Connect {
    Connect::new(V4, "keeper").persistent()
}
