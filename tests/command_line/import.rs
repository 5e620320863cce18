//! Tests `tidewire import mosquitto` on a file that a real Mosquitto has written: the clients resume their sessions at
//! tidewire.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    Config, Connect, PATIENCE, Peer, Publish, Server, V4, V5, free_port, kind, packet, prop, server::accepts, unique,
};

/// A Mosquitto that stores its state in a temporary directory.
struct Mosquitto {
    child: Child,
    directory: PathBuf,
    address: SocketAddr,
}

impl Mosquitto {
    fn start() -> Mosquitto {
        let name = unique(&format!("tidewire-import-{}", std::process::id()));
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let address = free_port();
        let config = format!(
            "user root\nlistener {} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {}/\n",
            address.port(),
            directory.display()
        );
        fs::write(directory.join("mosquitto.conf"), config).unwrap();
        let path = format!(
            "{}:/usr/sbin:/usr/local/sbin",
            std::env::var("PATH").unwrap_or_default()
        );
        let child = Command::new("mosquitto")
            .env("PATH", path)
            .arg("-c")
            .arg(directory.join("mosquitto.conf"))
            .stderr(Stdio::null())
            .spawn()
            .expect("mosquitto is installed: make setup");
        let mosquitto = Mosquitto {
            child,
            directory,
            address,
        };
        let deadline = Instant::now() + PATIENCE;
        while !accepts(address) {
            assert!(Instant::now() < deadline, "mosquitto does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        mosquitto
    }

    fn session(&self, connect: &Connect) -> Peer {
        Peer::session(self.address, connect)
    }

    /// Creates a session with a subscription and disconnects its client.
    fn subscriber(&self, connect: &Connect, filter: &str, options: u8) {
        let mut peer = self.session(connect);
        peer.subscribe(filter, options);
        peer.disconnect();
    }

    /// Stops Mosquitto, so that it writes its file.
    fn file(&mut self) -> PathBuf {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap();
        self.directory.join("mosquitto.db")
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        // In a successful test the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns a killed server with an empty data directory, for the import.
fn stopped_server() -> Server {
    let mut server = Server::start(&Config::default());
    server.kill();
    // A data directory that never had a journal. The import creates it.
    fs::remove_dir_all(server.dir().join("data/journal")).unwrap();
    if let Err(error) = fs::remove_file(server.dir().join("data/stores.json")) {
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
    server
}

fn import(file: &Path, server: &Server) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["import", "mosquitto"])
        .arg(file)
        .arg("--data-dir")
        .arg(server.dir().join("data"))
        .output()
        .unwrap()
}

/// Imports the file and starts the server. Returns the server and the output of the import.
#[track_caller]
fn imported(file: &Path) -> (Server, String) {
    let mut server = stopped_server();
    let output = import(file, &server);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    server.spawn_again();
    server.wait_until_ready();
    (server, String::from_utf8(output.stdout).unwrap())
}

fn persistent(version: crate::support::Version, name: &str) -> Connect {
    Connect::new(version, name).persistent()
}

/// Resumes a session that must exist.
#[track_caller]
fn resume(server: &Server, connect: &Connect) -> Peer {
    let mut peer = server.connect();
    let connack = peer.handshake(connect);
    assert_eq!((connack.code, connack.session_present), (0, true), "{connect:?}");
    peer
}

#[test]
fn queued_and_retained_messages_are_delivered() {
    let mut mosquitto = Mosquitto::start();
    mosquitto.subscriber(&persistent(V4, "queued"), "q/#", 1);
    let identified = persistent(V5, "identified");
    let mut peer = mosquitto.session(&identified);
    let id = peer.packet_id();
    let identifier = prop::varint(prop::SUBSCRIPTION_IDENTIFIER, 300);
    peer.send(&packet::subscribe(V5, id, &[("q/+/x", 2)], &identifier));
    assert_eq!(peer.expect(kind::SUBACK).reason_codes(V5), [2]);
    peer.disconnect();
    let mut publisher = mosquitto.session(&Connect::new(V5, "publisher"));
    for number in 0..150 {
        let message = Publish::new("q/a/x", format!("{number}")).qos(number % 2 + 1);
        let message = message
            .property(prop::user("unit", "mm"))
            .property(prop::text(prop::CONTENT_TYPE, "t"));
        assert_eq!(publisher.publish(&message), 0);
    }
    let retained = Publish::new("r/a", "kept")
        .qos(1)
        .retain()
        .property(prop::user("of", "r"));
    assert!(publisher.publish(&retained) < 0x80);
    publisher.disconnect();

    let (server, said) = imported(&mosquitto.file());
    assert!(
        said.contains("2 sessions with 2 subscriptions and 300 messages queued, 1 retained message"),
        "{said}"
    );
    let mut queued = resume(&server, &persistent(V4, "queued"));
    let mut with_identifier = resume(&server, &identified);
    for number in 0..150 {
        let message = queued.receive();
        assert_eq!((message.payload_str(), message.qos), (&*format!("{number}"), 1));
        let message = with_identifier.receive();
        assert_eq!(
            (message.payload_str(), message.qos),
            (&*format!("{number}"), number % 2 + 1)
        );
        assert_eq!(message.properties.numbers(prop::SUBSCRIPTION_IDENTIFIER), [300]);
        assert_eq!(message.properties.user_properties(), [("unit".into(), "mm".into())]);
        assert_eq!(message.properties.bytes(prop::CONTENT_TYPE), Some(&b"t"[..]));
    }
    queued.ping_alone();
    with_identifier.ping_alone();
    let mut reader = server.session(&Connect::new(V5, "reader"));
    reader.subscribe("r/#", 1);
    let message = reader.receive();
    assert_eq!((message.payload_str(), message.is_retained), ("kept", true));
    assert_eq!(message.properties.user_properties(), [("of".into(), "r".into())]);
    // The subscriptions still work.
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    assert_eq!(publisher.publish(&Publish::new("q/b/x", "new").qos(1)), 0);
    assert_eq!(queued.receive().payload, b"new");
    let message = with_identifier.receive();
    assert_eq!(message.properties.numbers(prop::SUBSCRIPTION_IDENTIFIER), [300]);
}

#[test]
fn messages_in_flight_keep_their_packet_identifiers() {
    let mut mosquitto = Mosquitto::start();
    let in_flight = persistent(V4, "in-flight");
    let mut peer = mosquitto.session(&in_flight);
    peer.subscribe("f", 2);
    let mut publisher = mosquitto.session(&Connect::new(V5, "publisher"));
    for payload in ["done", "released", "received", "once"] {
        let qos = if payload == "once" { 1 } else { 2 };
        assert_eq!(publisher.publish(&Publish::new("f", payload).qos(qos)), 0);
    }
    peer.receive();
    let [released, received, once] = [(); 3].map(|()| peer.expect_publish());
    let released_id = released.packet_id.unwrap();
    peer.send(&packet::acknowledge(kind::PUBREC, released_id));
    peer.expect(kind::PUBREL);
    peer.abort();

    let (server, _) = imported(&mosquitto.file());
    let mut peer = resume(&server, &in_flight);
    let pubrel = peer.expect_packet();
    assert_eq!((pubrel.kind(), pubrel.packet_id()), (kind::PUBREL, released_id));
    peer.send(&packet::acknowledge(kind::PUBCOMP, released_id));
    for before in [received, once] {
        let again = peer.receive();
        assert!(again.is_duplicate, "{again:?}");
        assert_eq!(
            (again.payload, again.packet_id, again.qos),
            (before.payload, before.packet_id, before.qos)
        );
    }
    peer.ping_alone();
}

#[test]
fn unreleased_qos_2_message_is_delivered_once() {
    let mut mosquitto = Mosquitto::start();
    mosquitto.subscriber(&persistent(V4, "subscriber"), "h/#", 2);
    let publisher = persistent(V4, "publisher");
    let mut peer = mosquitto.session(&publisher);
    let message = Publish::new("h/a", "half").qos(2).id(9);
    peer.send(&message.bytes(V4));
    assert_eq!(peer.expect(kind::PUBREC).packet_id(), 9);
    peer.abort();

    let (server, said) = imported(&mosquitto.file());
    assert!(said.contains("1 message that publishers had not released"), "{said}");
    let mut peer = resume(&server, &publisher);
    peer.send(&message.dup().bytes(V4));
    assert_eq!(peer.expect(kind::PUBREC).packet_id(), 9);
    peer.send(&packet::acknowledge(kind::PUBREL, 9));
    assert_eq!(peer.expect(kind::PUBCOMP).packet_id(), 9);
    let mut subscriber = resume(&server, &persistent(V4, "subscriber"));
    assert_eq!(subscriber.receive().payload, b"half");
    subscriber.ping_alone();
}

/// The file of Mosquitto 2.0 lacks the shared subscription, but contains its queued messages.
#[test]
fn queued_messages_of_a_shared_subscription_are_delivered() {
    let mut mosquitto = Mosquitto::start();
    let member = persistent(V5, "member");
    mosquitto.subscriber(&member, "$share/group/s/#", 1);
    let mut publisher = mosquitto.session(&Connect::new(V5, "publisher"));
    assert_eq!(publisher.publish(&Publish::new("s/a", "before").qos(1)), 0);
    publisher.disconnect();

    let (server, _) = imported(&mosquitto.file());
    let mut peer = resume(&server, &member);
    assert_eq!(peer.receive().payload, b"before");
}

/// Mosquitto 2.1 writes a shared subscription like any other subscription.
#[test]
fn shared_subscriptions_are_imported() {
    let mut mosquitto = Mosquitto::start();
    let member = persistent(V5, "member");
    mosquitto.subscriber(&member, "0share/group/s/#", 1);
    let file = mosquitto.file();
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(7).position(|window| window == b"0share/").unwrap();
    bytes[at] = b'$';
    fs::write(&file, bytes).unwrap();

    let (mut server, said) = imported(&file);
    assert!(said.contains("1 shared subscription"), "{said}");
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    assert_eq!(publisher.publish(&Publish::new("s/a", "after").qos(1)), 0);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(resume(&server, &member).receive().payload, b"after");
}

#[test]
fn file_of_version_5_is_imported() {
    let mut mosquitto = Mosquitto::start();
    mosquitto.subscriber(&persistent(V4, "queued"), "q", 1);
    let mut publisher = mosquitto.session(&Connect::new(V5, "publisher"));
    assert_eq!(publisher.publish(&Publish::new("q", "old").qos(1)), 0);
    let file = mosquitto.file();
    fs::write(&file, as_version_5(&fs::read(&file).unwrap())).unwrap();

    let (server, _) = imported(&file);
    assert_eq!(resume(&server, &persistent(V4, "queued")).receive().payload, b"old");
}

/// In version 5, clients have no user name and no port: the fixed part of their chunks is 8 bytes shorter.
fn as_version_5(file: &[u8]) -> Vec<u8> {
    let (head, mut rest) = file.split_at(23);
    let mut bytes = head.to_vec();
    bytes[22] = 5;
    while !rest.is_empty() {
        let length = u32::from_be_bytes(rest[4..8].try_into().unwrap()) as usize;
        let (chunk, after) = rest.split_at(8 + length);
        if chunk[3] == 6 {
            bytes.extend(&chunk[..4]);
            bytes.extend((length as u32 - 8).to_be_bytes());
            bytes.extend([&chunk[8..24], &chunk[32..]].concat());
        } else {
            bytes.extend(chunk);
        }
        rest = after;
    }
    bytes
}

#[test]
fn existing_journals_and_truncated_files_are_rejected() {
    let mut mosquitto = Mosquitto::start();
    mosquitto.subscriber(&persistent(V4, "queued"), "q", 1);
    let file = mosquitto.file();
    let mut server = stopped_server();
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let output = import(&file, &server);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cut off"), "{said}");
    assert!(!server.dir().join("data/journal").exists());
    server.spawn_again();
    server.wait_until_ready();
    fs::write(&file, &whole).unwrap();
    let output = import(&file, &server);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("is there already"), "{said}");
}
