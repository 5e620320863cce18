//! A byte that flips in an old segment: one that replay does not read, and that holds messages which clients still wait for.
//!
//! Opening does not read it, so that it cannot be found at the start. It is told when it is read, with file and place, it is counted,
//! and everything else comes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{Config, Connect, Peer, Publish, Server, V4, V5};

const MESSAGES: usize = 2500;
/// Of which the last have to follow a checkpoint.
const VICTIM: usize = 40;
const RETAINED_AT: usize = 600;
const GROUP: &str = "$share/group/cold/#";

/// A checkpoint is made every MiB, and nothing is written once more before the journal has four.
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
/// Behind both victims.
const REPLAY_FROM: u64 = 1_000_000;

#[test]
fn damage_before_the_checkpoint_is_told_when_it_is_read_and_costs_that_message_alone() {
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
            // In another segment than the other victim.
            let retained = Publish::new("kept", payload(MESSAGES)).qos(1).retain();
            assert_eq!(publisher.publish(&retained), NO_MATCHING_SUBSCRIBERS);
        }
        assert_eq!(publisher.publish(&Publish::new("cold/a", payload(number)).qos(1)), 0);
    }
    publisher.disconnect();
    let journal = Journal::of(&server);
    server.wait_until("there has been a checkpoint", |_| {
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
    assert!(!said.contains("repair"), "nothing has to be cut: {said}");

    server.spawn_again();
    server.wait_until_ready();
    // The retained topic is read at the start, which names the place and goes on.
    let log = server.log();
    assert_eq!((cold.told(&log), kept.told(&log)), (0, 1), "{log}");
    assert!(
        log.contains("the journal could not give these back"),
        "the start does not sum it up"
    );
    assert_eq!(damaged(&server), 1, "the retained one");
    server.wait_until("there is an alarm about it", |server| {
        server.log().contains("journal_damaged")
    });

    let mut keeper = Peer::session(server.mqtt(), &keeper);
    let mut member = Peer::session(server.mqtt(), &member);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    assert_eq!(publisher.publish(&Publish::new("cold/a", "end").qos(1)), 0);
    assert_has_all_but_the_victim(&mut keeper);
    assert_has_all_but_the_victim(&mut member);
    let log = server.log();
    assert!(cold.told(&log) > 1, "{log}");
    assert_eq!(damaged(&server), 3, "and one of the session, one of the group");
    keeper.disconnect();
    member.disconnect();

    // What was lost has been given up: nobody waits for it any more.
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let after = server.log().split_off(log.len());
    assert_eq!((cold.told(&after), kept.told(&after)), (0, 0), "{after}");
    assert_eq!(damaged(&server), 0);
}

/// It is found by what writes old messages once more, for a client that stays away. The segment is removed all the same, and the client is
/// told of its loss, when it comes.
#[test]
fn a_damaged_message_does_not_keep_the_journal_behind_it() {
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
    server.wait_until("there has been a checkpoint", |_| {
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
    assert!(!is_there(), "the journal is kept from {cold:?} on");
    let log = server.log();
    assert_eq!(cold.told(&log), 1, "{log}");
    assert_eq!(damaged(&server), 0, "the client may still come");

    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let mut keeper = Peer::session(server.mqtt(), &keeper);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    assert_eq!(publisher.publish(&Publish::new("cold/a", "end").qos(1)), 0);
    assert_has_all_but_the_victim(&mut keeper);
    assert_eq!(damaged(&server), 1);
}

/// Sixty times what is needed for it.
const BUSY_MESSAGES_MAX: usize = 200_000;

const NO_MATCHING_SUBSCRIBERS: u8 = 0x10;

/// Found in the files of the journal, and nowhere else in them.
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
        "{} messages came instead of {}",
        received.len(),
        expected.len()
    );
}

/// Messages that the server says it has dropped because they were damaged.
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

/// Where a byte was flipped.
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
        serde_json::from_str(&said).expect("JSON was asked for")
    }

    /// What it says of a damaged journal.
    fn verify(&self) -> String {
        let (is_sound, said) = self.command(&["verify"]);
        assert!(!is_sound, "verify finds nothing: {said}");
        said
    }

    /// Flips a bit in all copies of the record with this text, which must stand before the place where replay begins.
    fn damage(&self, text: &str) -> Place {
        let found = self.inspect();
        let replay_from = found["replay_from"].as_u64().expect("there has been a checkpoint");
        let mut files = Vec::new();
        for segment in found["segments"].as_array().expect("a list") {
            let file = segment["name"].as_str().expect("a name");
            let path = self.path(file);
            let mut bytes = fs::read(&path).expect("the segment is there");
            let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
            let Some(at) = at else { continue };
            bytes[at] ^= 1;
            fs::write(&path, bytes).expect("the segment is writable");
            let end = segment["end"].as_u64().expect("a position");
            assert!(
                end <= replay_from,
                "replay begins at {replay_from}, {text} stands in {file}, which ends at {end}"
            );
            files.push(file.to_owned());
        }
        assert!(!files.is_empty(), "{text} stands nowhere");
        Place { files }
    }
}

impl Place {
    fn is_in(&self, line: &str) -> bool {
        line.contains("offset") && self.files.iter().any(|file| line.contains(file))
    }

    /// How many lines of the log say that the record there cannot be read.
    fn told(&self, log: &str) -> usize {
        let is_it = |line: &&str| line.contains("a message cannot be read back from the journal") && self.is_in(line);
        log.lines().filter(is_it).count()
    }
}
