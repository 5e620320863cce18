//! Tests `tidewire journal repair --skip-damaged` on the journal of a real server: only the damaged messages are lost,
//! and clients get all others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Config, Connect, Peer, Publish, Server, V4, V5};

const MESSAGES: usize = 600;
/// Message whose payload is damaged. It is queued for two sessions and for a share group.
const VICTIM: usize = 60;
/// Retained message that is damaged. Its topic has an older retained message.
const RETAINED: usize = MESSAGES + 1;
/// The header of this message's block is damaged. The repair builds it again.
const HEADLESS: usize = 300;

const CONFIG: &str =
    "[node]\nworkers = 2\n[mqtt]\nmax_queued_messages = 10000\n[durability]\nsegment_bytes = \"64KiB\"\n";

// fault: Damaged bytes; Journal
#[test]
fn repair_that_skips_damage_loses_only_damaged_records() {
    let mut server = Server::start(&Config::new(CONFIG));
    let sessions = [
        ("first", "cold/#"),
        ("second", "cold/a"),
        ("member", "$share/group/cold/#"),
    ];
    let connects = sessions.map(|(client, filter)| {
        let connect = Connect::new(V4, client).persistent();
        let mut peer = server.session(&connect);
        peer.subscribe(filter, 1);
        peer.disconnect();
        connect
    });
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    for number in 0..MESSAGES {
        assert_eq!(publisher.publish(&Publish::new("cold/a", payload(number)).qos(1)), 0);
        if number == 100 {
            for number in [MESSAGES, RETAINED] {
                let retained = Publish::new("kept", payload(number)).qos(1).retain();
                assert!(publisher.publish(&retained) < 0x80);
            }
        }
    }
    publisher.disconnect();
    let journal = Journal::of(&server);
    server.wait_until("all messages are routed", |_| {
        journal.inspect()["contents"]["unrouted_messages"] == 0
    });
    server.kill();
    journal.damage(&marker(VICTIM), Part::Payload);
    journal.damage(&marker(RETAINED), Part::Payload);
    journal.damage(&marker(HEADLESS), Part::BlockHeader);

    let before = server.log().len();
    server.spawn_again();
    server.wait_until("the start is refused", |server| !server.is_running());
    let log = server.log().split_off(before);
    assert!(log.contains("is damaged") && log.contains("--skip-damaged"), "{log}");
    server.kill();

    let (is_done, planned) = journal.command(&["repair", "--skip-damaged", "--dry-run"]);
    assert!(is_done, "{planned}");
    let (is_done, said) = journal.command(&["repair", "--skip-damaged"]);
    assert!(is_done, "{said}");
    let losses = |said: &str| said.lines().filter(|line| line.starts_with("lost: ")).count();
    assert_eq!((losses(&planned), losses(&said)), (2, 2), "{said}");
    for topic in ["cold/a", "kept"] {
        assert!(
            said.contains(&format!("a message, apparently with the topic \"{topic}\"")),
            "{said}"
        );
    }
    let (is_sound, verified) = journal.command(&["verify"]);
    assert!(is_sound, "{verified}");
    assert_eq!(journal.inspect()["lost_records"], 2);

    server.spawn_again();
    server.wait_until_ready();
    assert!(server.log().contains("the journal was repaired and lacks records"));
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    let end = Publish::new("cold/a", "end").qos(1);
    assert_eq!(publisher.publish(&end), 0);
    for connect in &connects {
        let mut peer = Peer::session(server.mqtt(), connect);
        assert_all_but_the_victim(&mut peer);
        peer.disconnect();
    }
    // The older retained message is the last one that is left.
    let mut reader = server.session(&Connect::new(V5, "reader"));
    reader.subscribe("kept", 1);
    assert_eq!(reader.receive().payload_str(), payload(MESSAGES));

    // Acknowledgements of subscribers wait for the next commit. A kill before it repeats their messages.
    server.wait_until("all acknowledgements are stored", |_| {
        let inspected = journal.inspect();
        let contents = &inspected["contents"];
        contents["queued_messages"] == 0 && contents["shared_messages"] == 0
    });
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    for connect in &connects {
        let mut publisher = server.session(&Connect::new(V5, "publisher"));
        let mut peer = Peer::session(server.mqtt(), connect);
        assert_eq!(publisher.publish(&Publish::new("cold/a", "again").qos(1)), 0);
        let rest: Vec<String> = peer
            .receive_until("again")
            .iter()
            .map(|delivery| delivery.payload_str().to_owned())
            .collect();
        assert!(rest.iter().all(|payload| payload == "again"), "{rest:?}");
    }
}

/// Returns a text that occurs in the journal only in the record of this message.
fn marker(number: usize) -> String {
    format!("message-{number:06}-")
}

fn payload(number: usize) -> String {
    format!("{}{}", marker(number), ".".repeat(200))
}

fn assert_all_but_the_victim(peer: &mut Peer) {
    let received: Vec<String> = peer
        .receive_until("end")
        .iter()
        .map(|delivery| delivery.payload_str().to_owned())
        .collect();
    let expected: Vec<String> = (0..MESSAGES).filter(|number| *number != VICTIM).map(payload).collect();
    let missing: Vec<&String> = expected.iter().filter(|payload| !received.contains(payload)).collect();
    assert!(
        received == expected,
        "received {} messages; missing: {missing:?}",
        received.len()
    );
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Payload,
    BlockHeader,
}

struct Journal {
    data_dir: PathBuf,
}

impl Journal {
    fn of(server: &Server) -> Journal {
        Journal {
            data_dir: server.dir().join("data"),
        }
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
        serde_json::from_str(&said).expect("inspect writes JSON")
    }

    /// Flips a bit of the record with this text, or of the header of its block.
    fn damage(&self, text: &str, part: Part) {
        let mut is_found = false;
        for path in segments(&self.data_dir) {
            let mut bytes = fs::read(&path).expect("the segment is readable");
            let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
            let Some(mut at) = at else { continue };
            if part == Part::BlockHeader {
                const MAGIC: [u8; 4] = [0xB1, 0x0C, 0xF5, 0x9A];
                let header = bytes[..at].windows(4).rposition(|window| window == MAGIC);
                // A byte of the checksum.
                at = header.expect("a block contains the record") + 25;
            }
            bytes[at] ^= 1;
            fs::write(&path, bytes).expect("the segment is writable");
            is_found = true;
        }
        assert!(is_found, "{text} is in no journal file");
    }
}

fn segments(data_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data_dir.join("journal")).expect("a journal");
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect()
}
