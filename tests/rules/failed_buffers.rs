//! Buffers that cannot be opened or synced: their publishers are held back, and the buffers are reopened without a
//! restart. No acknowledged message is lost.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::bad_input::metric;
use super::web_server::WebServer;
use crate::crash::faulty_disk;
use crate::support::api::Api;
use crate::support::*;

const ACTION: &str = "/api/v1/actions/http:hook";
/// More than a server has shards: each shard notices the failure with the first message.
const CLIENTS: u32 = 12;
const SILENCE: Duration = Duration::from_millis(300);
const QUOTA_EXCEEDED: u8 = 0x97;

/// Sends all messages under `t/` to the web server.
fn define(api: &Api<'_>, web: &WebServer) {
    define_with(api, web, &json!({}));
}

fn define_with(api: &Api<'_>, web: &WebServer, buffer: &Value) {
    let config = json!({"url": format!("http://{}", web.address)});
    let connector = json!({"type": "http", "name": "web", "config": config});
    api.ok("POST", "/api/v1/connectors", &connector);
    define_action(api, buffer);
}

fn define_action(api: &Api<'_>, buffer: &Value) {
    let action = json!({
        "type": "http", "name": "hook", "connector": "web", "parameters": {"body": "${payload}"},
        "delivery": {"buffer": buffer, "retry": {"first_ms": 20, "longest_ms": 100}, "health_check_interval_ms": 100},
    });
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "all", "sql": "SELECT payload FROM \"t/#\"", "actions": ["http:hook"]});
    api.ok("POST", "/api/v1/rules", &rule);
}

fn buffer(server: &Server) -> PathBuf {
    server.dir().join("data/integration/buffers/http-hook")
}

/// Waits until the server has started, also if it is not ready because of a buffer.
#[track_caller]
fn wait_until_started(server: &Server) {
    server.wait_until("the server has started", |server| {
        let is_listening = std::net::TcpStream::connect(server.http()).is_ok();
        is_listening && !server.http_get("/readyz").1.contains("starting")
    });
}

fn stop(server: &mut Server) {
    server.terminate(Duration::from_secs(60));
    server.kill();
}

/// Copies the files of a directory to another one, and removes its other files.
fn replace_files(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Accepts all losses while the server is stopped. Returns the output.
#[track_caller]
fn accept_loss(server: &Server) -> String {
    let repaired = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["journal", "repair", "--accept-loss", "--data-dir"])
        .arg(server.dir().join("data"))
        .output()
        .unwrap();
    assert!(repaired.status.success(), "{repaired:?}");
    String::from_utf8_lossy(&repaired.stdout).into_owned()
}

/// Asserts that an alarm names the command that accepts the loss.
#[track_caller]
fn assert_names_the_command(server: &Server, alarm: &str) {
    let data_dir = server.dir().join("data");
    let command = format!(
        "tidewire journal repair --accept-loss --data-dir {}",
        data_dir.display()
    );
    assert!(alarm.contains(&command), "{alarm}");
}

fn publish(server: &Server, payloads: impl Iterator<Item = u32>) -> BTreeSet<String> {
    let mut client = server.session(&Connect::new(V5, unique("publisher")));
    let mut acknowledged = BTreeSet::new();
    for payload in payloads.map(|number| format!("{number:08}")) {
        assert!(client.publish(&Publish::new("t/1", &payload).qos(1)) < 0x80);
        acknowledged.insert(payload);
    }
    acknowledged
}

/// Publishers whose messages get no PUBACK while the buffer has failed.
struct Held(Vec<(Peer, String)>);

impl Held {
    /// Publishes from several clients. No message is acknowledged, and later messages get a reason code.
    fn begin(server: &Server) -> Held {
        let mut held = Vec::new();
        let mut refused = 0;
        for number in 0..CLIENTS {
            let mut peer = server.session(&Connect::new(V5, unique("held")));
            let payload = format!("held {number}");
            peer.send(&Publish::new("t/1", &payload).qos(1).id(1).bytes(V5));
            match peer.read(SILENCE) {
                Reading::Silence => held.push((peer, payload)),
                Reading::Packet(packet) => {
                    assert_eq!((packet.kind(), packet.reason()), (kind::PUBACK, QUOTA_EXCEEDED));
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(refused > 0, "no publisher of MQTT 5 gets a reason code");
        let mut old = server.session(&Connect::new(V4, unique("old")));
        old.send(&Publish::new("t/1", "old").qos(1).id(1).bytes(V4));
        assert!(matches!(old.read(SILENCE), Reading::Silence));
        held.push((old, "old".to_owned()));
        Held(held)
    }

    /// Waits until all messages are acknowledged after the buffer has been reopened. Returns the messages.
    fn end(self) -> BTreeSet<String> {
        let acknowledged = |(mut peer, payload): (Peer, String)| {
            assert_eq!(peer.expect(kind::PUBACK).packet_id(), 1);
            payload
        };
        self.0.into_iter().map(acknowledged).collect()
    }
}

/// Asserts that `/readyz`, the alarm, the log and the metric show the failure. Returns the text of the alarm.
fn assert_visible(server: &Server, because: &str) -> String {
    let api = Api::of(server);
    let directory = buffer(server).display().to_string();
    // The target of the action may have failed as well.
    let has_alarm =
        |alarm: &Value| alarm["name"] == "action:http:hook" && alarm["message"].to_string().contains(because);
    server.wait_until("an alarm is active", |_| {
        has_alarm(&api.get("/api/v1/alarms")["active"][0])
    });
    let alarm = api.get("/api/v1/alarms")["active"][0]["message"].to_string();
    let (status, ready) = server.http_get("/readyz");
    assert_eq!(status, 503, "{ready}");
    server.wait_until("the log has the failure", |server| {
        server.log().contains("the buffer of an action has failed")
    });
    for text in [&alarm, &ready, &server.log()] {
        assert!(text.contains(&directory) && text.contains(because), "{because}: {text}");
    }
    let labels = ["http:hook", "state=\"buffer_failed\""];
    assert_eq!(metric(server, "tidewire_action_state", &labels), 1.0);
    alarm
}

fn assert_recovered(server: &Server) {
    server.wait_until("the server is ready", |server| server.http_get("/readyz").0 == 200);
    let api = Api::of(server);
    server.wait_until("the alarm has ended", |_| {
        api.get("/api/v1/alarms")["active"] == json!([])
    });
    assert_eq!(api.get(ACTION)["problems"], json!([]));
}

fn wait_for(server: &Server, web: &WebServer, expected: &BTreeSet<String>) {
    server.wait_until("all acknowledged messages have arrived", |_| {
        web.bodies().into_iter().collect::<BTreeSet<_>>().is_superset(expected)
    });
}

// fault: Write or sync fails; Action buffers
#[test]
fn unopenable_buffer_holds_publishers_back_until_it_opens() {
    let server = Server::start(&Config::new(""));
    let web = WebServer::here();
    // A file has the path of the buffer's directory.
    fs::create_dir_all(buffer(&server).parent().unwrap()).unwrap();
    fs::write(buffer(&server), "").unwrap();
    define(&Api::of(&server), &web);
    let held = Held::begin(&server);
    assert_visible(&server, "(os error");
    fs::remove_file(buffer(&server)).unwrap();
    let expected = held.end();
    wait_for(&server, &web, &expected);
    assert_recovered(&server);
    let expected = publish(&server, 0..50);
    wait_for(&server, &web, &expected);
}

// fault: Damaged bytes; Action buffers
#[test]
fn damaged_buffer_names_the_command_that_repairs_it() {
    let mut server = Server::start(&Config::new(""));
    let web = WebServer::away();
    define(&Api::of(&server), &web);
    publish(&server, 0..50);
    server.kill();
    let segment = fs::read_dir(buffer(&server).join("journal"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "log"))
        .unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes.windows(8).position(|window| window == b"00000020").unwrap();
    bytes[at] ^= 1;
    fs::write(&segment, bytes).unwrap();
    server.spawn_again();
    wait_until_started(&server);
    let held = Held::begin(&server);
    let alarm = assert_visible(&server, "offset ");
    let command = format!("tidewire journal repair --data-dir {}", buffer(&server).display());
    assert!(alarm.contains(&command), "{alarm}");
    let repaired = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["journal", "repair", "--data-dir"])
        .arg(buffer(&server))
        .output()
        .unwrap();
    assert!(repaired.status.success(), "{repaired:?}");
    let mut expected = held.end();
    web.come();
    // Only messages before the damage arrive.
    expected.extend((0..20).map(|number| format!("{number:08}")));
    wait_for(&server, &web, &expected);
    assert_recovered(&server);
}

/// The messages of a buffer whose directory was deleted are lost, but not silently.
// fault: Missing files; Action buffers
#[test]
fn missing_buffer_holds_publishers_back_until_the_loss_is_accepted() {
    let mut server = Server::start(&Config::new(""));
    let web = WebServer::away();
    define(&Api::of(&server), &web);
    publish(&server, 0..10);
    server.kill();
    fs::remove_dir_all(buffer(&server)).unwrap();
    server.spawn_again();
    wait_until_started(&server);
    let alarm = assert_visible(&server, "existed and is missing");
    assert_names_the_command(&server, &alarm);
    server.kill();
    let said = accept_loss(&server);
    assert!(
        said.contains("integration/buffers/http-hook accepted as lost"),
        "{said}"
    );
    server.spawn_again();
    web.come();
    server.wait_until_ready();
    let expected = publish(&server, 50..60);
    wait_for(&server, &web, &expected);
    assert_recovered(&server);
    // A deleted action is not missed.
    let api = Api::of(&server);
    api.ok("DELETE", "/api/v1/rules/all", &json!(null));
    api.ok("DELETE", ACTION, &json!(null));
    assert!(!buffer(&server).with_file_name("http-hook.exists").exists());
}

// fault: Older copy; Action buffers
#[test]
fn older_buffer_holds_publishers_back_until_the_loss_is_accepted() {
    let mut server = Server::start(&Config::new("[limits]\nshutdown_grace = \"500ms\"\n"));
    let web = WebServer::away();
    define(&Api::of(&server), &web);
    let mut expected = publish(&server, 0..10);
    stop(&mut server);
    let (journal, older) = (buffer(&server).join("journal"), server.dir().join("older"));
    replace_files(&journal, &older);
    server.spawn_again();
    server.wait_until_ready();
    publish(&server, 10..20);
    stop(&mut server);
    // A copy lacks the mark, and that of a new journal the checkpoint.
    replace_files(&older, &journal);
    fs::remove_file(journal.join("checkpoint")).unwrap();
    fs::remove_file(buffer(&server).with_file_name("http-hook.exists")).unwrap();

    server.spawn_again();
    wait_until_started(&server);
    let _held = Held::begin(&server);
    let alarm = assert_visible(&server, "is older than before (position ");
    assert_names_the_command(&server, &alarm);
    // The restart does not accept the loss.
    stop(&mut server);
    server.spawn_again();
    wait_until_started(&server);
    assert_visible(&server, "is older than before (position ");
    server.kill();
    let said = accept_loss(&server);
    let lost = "integration/buffers/http-hook accepted as lost: the data that an earlier copy lacks (position ";
    assert!(said.contains(lost), "{said}");
    assert!(accept_loss(&server).contains("nothing to repair"));

    server.spawn_again();
    server.wait_until_ready();
    expected.extend(publish(&server, 50..60));
    web.come();
    wait_for(&server, &web, &expected);
    assert_recovered(&server);

    // A purged buffer is not older, and neither is that of a new action with the same name.
    Api::of(&server).ok("POST", "/api/v1/actions/http:hook/purge", &json!(null));
    stop(&mut server);
    server.spawn_again();
    server.wait_until_ready();
    let api = Api::of(&server);
    api.ok("DELETE", "/api/v1/rules/all", &json!(null));
    api.ok("DELETE", ACTION, &json!(null));
    define_action(&api, &json!({}));
    let expected = publish(&server, 60..61);
    wait_for(&server, &web, &expected);
    stop(&mut server);
    server.spawn_again();
    server.wait_until_ready();
    assert_recovered(&server);
}

// fault: Write or sync fails; Action buffers
#[test]
fn failed_sync_of_a_buffer_holds_publishers_back_until_it_reopens() {
    let server = Server::start(&faulty_disk::config(""));
    let web = WebServer::here();
    define(&Api::of(&server), &web);
    let mut expected = publish(&server, 0..50);
    fs::write(faulty_disk::buffer_sync_fails(&server), "").unwrap();
    let held = Held::begin(&server);
    let before = server.log();
    assert_visible(&server, "Input/output error (os error 5)");
    assert!(!before.contains("is full"), "{before}");
    fs::remove_file(faulty_disk::buffer_sync_fails(&server)).unwrap();
    expected.extend(held.end());
    wait_for(&server, &web, &expected);
    assert_recovered(&server);
    let expected = publish(&server, 100..150);
    wait_for(&server, &web, &expected);
}

/// A hybrid buffer acknowledges messages before they are on the disk.
// fault: Write or sync fails; Action buffers
#[test]
fn failed_sync_of_a_hybrid_buffer_loses_no_message() {
    /// Messages in flight to the target stay in memory, at most 8 MiB. This is more.
    const MANY: u32 = 1_400;
    const BYTES: usize = 10_000;
    let server = Server::start(&faulty_disk::config(""));
    let web = WebServer::away();
    let buffer = json!({"mode": "hybrid", "memory_bytes": 65_536, "segment_bytes": 65_536, "max_bytes": 64 << 20});
    define_with(&Api::of(&server), &web, &buffer);
    let mut client = server.session(&Connect::new(V5, unique("publisher")));
    let mut acknowledged = BTreeSet::new();
    let mut publish = |number: u32| {
        let payload = format!("{number:08}{}", "x".repeat(BYTES - 8));
        let reason = client.publish(&Publish::new("t/1", &payload).qos(1));
        if reason < 0x80 {
            acknowledged.insert(payload);
        }
        reason
    };
    assert!((0..MANY).all(|number| publish(number) < 0x80));
    fs::write(faulty_disk::buffer_sync_fails(&server), "").unwrap();
    // The buffer syncs in the background, so it may accept some messages before. All of these fit into it.
    let refused = (MANY..4 * MANY).map(publish).find(|reason| *reason >= 0x80);
    assert_eq!(refused, Some(QUOTA_EXCEEDED));
    assert_visible(&server, "Input/output error (os error 5)");
    fs::remove_file(faulty_disk::buffer_sync_fails(&server)).unwrap();
    web.come();
    wait_for(&server, &web, &acknowledged);
    assert_recovered(&server);
}

// fault: Write or sync fails; Action buffers
#[test]
fn failed_sync_does_not_hold_publishers_back_if_messages_may_be_dropped() {
    let server = Server::start(&faulty_disk::config(""));
    let web = WebServer::here();
    define_with(&Api::of(&server), &web, &json!({"overflow": "drop-newest"}));
    let expected = publish(&server, 0..50);
    fs::write(faulty_disk::buffer_sync_fails(&server), "").unwrap();
    // Each waits for its PUBACK.
    publish(&server, 100..120);
    let dropped = ["http:hook", "reason=\"disk\""];
    server.wait_until("messages are dropped", |server| {
        publish(server, 200..201);
        metric(server, "tidewire_action_dropped_total", &dropped) > 0.0
    });
    assert_eq!(server.http_get("/readyz").0, 200, "no publisher is held back");
    wait_for(&server, &web, &expected);
}
