//! Tests a flipped byte in an old journal segment that replay does not read and that holds messages for offline
//! clients.
//!
//! The server cannot detect the damage at startup because it does not read the segment then. It reports the damage with
//! file and position on the first read, counts it, and delivers all other messages.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{Config, Connect, Peer, Publish, Server, V4, V5};

const MESSAGES: usize = 2500;
/// Index of the damaged message.
const VICTIM: usize = 40;
const RETAINED_AT: usize = 600;
const GROUP: &str = "$share/group/cold/#";

/// The server writes a checkpoint every MiB. Compaction starts when the journal has four MiB.
const CONFIG: &str = r#"
[node]
workers = 2
[mqtt]
max_queued_messages = 10000
[durability]
max_bytes = "64MiB"
segment_bytes = "256KiB"
reserve_bytes = "0B"
"#;
/// Log position after both damaged messages. Replay must begin at this position or later.
const REPLAY_FROM: u64 = 1_000_000;

// fault: Damaged bytes; Journal
#[test]
fn damage_before_the_checkpoint_loses_only_that_message() {
    let mut server = Server::start(&Config::new(CONFIG));
    let (keeper, member) = (
        Connect::new(V4, "keeper").persistent(),
        Connect::new(V5, "member").persistent(),
    );
    for (connect, filter) in [(&keeper, "cold/#"), (&member, GROUP)] {
        let mut peer = server.session(connect);
        peer.subscribe(filter, 1);
        peer.disconnect();
    }
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    for number in 0..MESSAGES {
        if number == RETAINED_AT {
            // This damaged message is in another segment than the first one.
            let retained = Publish::new("kept", payload(MESSAGES)).qos(1).retain();
            assert_eq!(publisher.publish(&retained), NO_MATCHING_SUBSCRIBERS);
        }
        assert_eq!(publisher.publish(&Publish::new("cold/a", payload(number)).qos(1)), 0);
    }
    publisher.disconnect();
    let journal = Journal::of(&server);
    server.wait_until("a checkpoint is written", |_| {
        journal.inspect()["replay_from"].as_u64() > Some(REPLAY_FROM)
    });
    server.kill();
    let cold = journal.damage(&marker(VICTIM));
    let kept = journal.damage(&marker(MESSAGES));

    let said = journal.verify();
    for place in [&cold, &kept] {
        let is_named = said.lines().any(|line| place.is_in(line));
        assert!(is_named, "verify does not name {place:?}: {said}");
    }
    assert!(!said.contains("repair"), "no segment needs to be truncated: {said}");

    server.spawn_again();
    server.wait_until_ready();
    // The server reads retained messages at startup. It logs the position of the damage and continues.
    let log = server.log();
    assert_eq!((cold.reports_in(&log), kept.reports_in(&log)), (0, 1), "{log}");
    assert!(
        log.contains("cannot read messages from the journal"),
        "the startup log has no summary of the damage"
    );
    assert_eq!(damaged(&server), 1, "the retained message is damaged");
    server.wait_until("an alarm reports the damage", |server| {
        server.log().contains("journal_damaged")
    });

    let mut keeper = Peer::session(server.mqtt(), &keeper);
    let mut member = Peer::session(server.mqtt(), &member);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    assert_eq!(publisher.publish(&Publish::new("cold/a", "end").qos(1)), 0);
    assert_has_all_but_the_victim(&mut keeper);
    assert_has_all_but_the_victim(&mut member);
    let log = server.log();
    assert!(cold.reports_in(&log) > 1, "{log}");
    assert_eq!(
        damaged(&server),
        3,
        "one message of the session and one of the share group are also damaged"
    );
    keeper.disconnect();
    member.disconnect();

    // The lost messages were given up, so no client waits for them any more.
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let after = server.log().split_off(log.len());
    assert_eq!((cold.reports_in(&after), kept.reports_in(&after)), (0, 0), "{after}");
    assert_eq!(damaged(&server), 0);
}

/// Compaction finds the damage when it rewrites live records for an offline client. The segment is removed anyway, and
/// the client is notified of its loss when it connects.
// fault: Damaged bytes; Journal
#[test]
fn damaged_messages_do_not_block_journal_truncation() {
    let mut server = Server::start(&Config::new(CONFIG));
    let keeper = Connect::new(V4, "keeper").persistent();
    let mut peer = server.session(&keeper);
    peer.subscribe("cold/#", 1);
    peer.disconnect();
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    for number in 0..MESSAGES {
        assert_eq!(publisher.publish(&Publish::new("cold/a", payload(number)).qos(1)), 0);
    }
    let journal = Journal::of(&server);
    server.wait_until("a checkpoint is written", |_| {
        journal.inspect()["replay_from"].as_u64() > Some(REPLAY_FROM)
    });
    server.kill();
    let cold = journal.damage(&marker(VICTIM));

    server.spawn_again();
    server.wait_until_ready();
    let mut busy = server.session(&Connect::new(V5, "busy").persistent());
    busy.subscribe("busy", 1);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    let is_there = || cold.files.iter().any(|file| journal.path(file).exists());
    for number in 0..BUSY_MESSAGES_MAX {
        if !is_there() {
            break;
        }
        assert_eq!(publisher.publish(&Publish::new("busy", payload(number)).qos(1)), 0);
        busy.receive();
    }
    assert!(!is_there(), "the journal still begins with {cold:?}");
    let log = server.log();
    assert_eq!(cold.reports_in(&log), 1, "{log}");
    assert_eq!(damaged(&server), 0, "the client has not connected yet");

    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let mut keeper = Peer::session(server.mqtt(), &keeper);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    assert_eq!(publisher.publish(&Publish::new("cold/a", "end").qos(1)), 0);
    assert_has_all_but_the_victim(&mut keeper);
    assert_eq!(damaged(&server), 1);
}

/// Maximum number of messages to publish: sixty times the number that the test needs.
const BUSY_MESSAGES_MAX: usize = 200_000;

const NO_MATCHING_SUBSCRIBERS: u8 = 0x10;

/// Returns a text that occurs in the journal files only in the record of this message.
fn marker(number: usize) -> String {
    format!("message-{number:06}-")
}

fn payload(number: usize) -> String {
    format!("{}{}", marker(number), ".".repeat(1000))
}

fn assert_has_all_but_the_victim(peer: &mut Peer) {
    let received: Vec<String> = peer
        .receive_until("end")
        .iter()
        .map(|delivery| delivery.payload_str().to_owned())
        .collect();
    let expected: Vec<String> = (0..MESSAGES).filter(|number| *number != VICTIM).map(payload).collect();
    assert!(
        received == expected,
        "received {} messages, expected {}",
        received.len(),
        expected.len()
    );
}

/// Returns the server's count of messages dropped because of damage.
fn damaged(server: &Server) -> u64 {
    let metrics = server.http_get("/metrics").1;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("tidewire_broker_messages_dropped_total{") && line.contains("\"damaged\""));
    let value = line.expect("drops are counted by reason").rsplit(' ').next();
    value.and_then(|value| value.parse().ok()).expect("a counter")
}

struct Journal {
    data_dir: PathBuf,
}

/// Position of a flipped byte.
#[derive(Debug)]
struct Place {
    files: Vec<String>,
}

impl Journal {
    fn of(server: &Server) -> Journal {
        Journal {
            data_dir: server.dir().join("data"),
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.data_dir.join("journal").join(file)
    }

    fn command(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
        let output = command
            .arg("journal")
            .args(arguments)
            .arg("--data-dir")
            .arg(&self.data_dir)
            .output()
            .expect("the program runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn inspect(&self) -> Value {
        let (is_read, said) = self.command(&["inspect", "--json"]);
        assert!(is_read, "{said}");
        serde_json::from_str(&said).expect("verify writes JSON")
    }

    /// Returns the output of `verify` for a damaged journal.
    fn verify(&self) -> String {
        let (is_sound, said) = self.command(&["verify"]);
        assert!(!is_sound, "verify finds no damage: {said}");
        said
    }

    /// Flips a bit in all copies of the record with this text. All copies must be before the position where replay
    /// begins.
    fn damage(&self, text: &str) -> Place {
        let found = self.inspect();
        let replay_from = found["replay_from"].as_u64().expect("a checkpoint is written");
        let mut files = Vec::new();
        for segment in found["segments"].as_array().expect("a list") {
            let file = segment["name"].as_str().expect("a name");
            let path = self.path(file);
            let mut bytes = fs::read(&path).expect("the segment is readable");
            let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
            let Some(at) = at else { continue };
            bytes[at] ^= 1;
            fs::write(&path, bytes).expect("the segment is writable");
            let end = segment["end"].as_u64().expect("a position");
            assert!(
                end <= replay_from,
                "replay begins at {replay_from}, but {text} is in {file}, which ends at {end}"
            );
            files.push(file.to_owned());
        }
        assert!(!files.is_empty(), "{text} is in no journal file");
        Place { files }
    }
}

impl Place {
    fn is_in(&self, line: &str) -> bool {
        line.contains("offset") && self.files.iter().any(|file| line.contains(file))
    }

    /// Returns the number of log lines that report an unreadable record at this position.
    fn reports_in(&self, log: &str) -> usize {
        let is_it = |line: &&str| line.contains("cannot read a message from the journal") && self.is_in(line);
        log.lines().filter(is_it).count()
    }
}
