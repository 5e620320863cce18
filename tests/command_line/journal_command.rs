//! Tests `tidewire journal`, `backup` and `restore` on intact and damaged data directories of real servers.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::api::Api;
use crate::support::{Config, Connect, Publish, Server, V4, V5};
use serde_json::{Value, json};

const MESSAGES: u32 = 200;

fn tidewire(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn succeed(args: &[&str]) -> String {
    let output = tidewire(args);
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{args:?} fails: {errors}");
    text(&output.stdout).to_owned()
}

#[track_caller]
fn fail(args: &[&str]) -> String {
    let output = tidewire(args);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{args:?} prints {}",
        text(&output.stdout)
    );
    text(&output.stderr).to_owned()
}

#[track_caller]
fn inspect(data_dir: &str) -> Value {
    serde_json::from_str(&succeed(&["journal", "inspect", "--json", "--data-dir", data_dir])).unwrap()
}

fn subscriber() -> Connect {
    Connect::new(V4, "subscriber").persistent()
}

/// Returns a server with small segments. Its journal has `MESSAGES` queued for an offline subscriber, and one retained
/// message.
fn server() -> Server {
    let server = Server::start(&Config::new("durability.segment_bytes = \"64KiB\"\n"));
    let mut peer = server.session(&subscriber());
    peer.subscribe("a/#", 1);
    peer.disconnect();
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    assert!(publisher.publish(&Publish::new("b", "kept").qos(1).retain()) < 0x80);
    for number in 0..MESSAGES {
        let payload = format!("{number} {}", ".".repeat(1000));
        assert_eq!(publisher.publish(&Publish::new("a/b", payload).qos(1)), 0);
    }
    publisher.disconnect();
    // The worker of the subscriber may not have recorded the messages yet.
    server.wait_until("all messages are routed", |server| {
        inspect(&data_dir(server))["contents"]["unrouted_messages"] == 0
    });
    server
}

fn data_dir(server: &Server) -> String {
    server.dir().join("data").display().to_string()
}

/// Returns the number of messages that the subscriber receives. They are in order and begin with the first.
fn received(server: &Server) -> u32 {
    let mut peer = server.session(&subscriber());
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    assert!(publisher.publish(&Publish::new("a/end", "end").qos(1)) < 0x80);
    let messages = peer.receive_until("end");
    for (number, message) in messages.iter().enumerate() {
        assert!(message.payload_str().starts_with(&format!("{number} ")));
    }
    messages.len() as u32
}

fn segments(data_dir: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(data_dir).join("journal")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    paths
}

#[test]
fn inspect_and_verify_work_on_a_running_server() {
    let server = server();
    let data_dir = data_dir(&server);
    let found = inspect(&data_dir);
    let contents = &found["contents"];
    assert_eq!(contents["sessions"], 1, "{found}");
    assert_eq!(contents["subscriptions"], 1);
    assert_eq!(contents["queued_messages"], MESSAGES);
    assert_eq!(contents["retained_messages"], 1);
    assert_eq!(contents["records_by_kind"]["message"], MESSAGES + 1);
    assert_eq!(found["problems"], serde_json::json!([]));
    assert_eq!(found["segments"].as_array().unwrap().len(), segments(&data_dir).len());
    let shown = succeed(&["journal", "inspect", "--data-dir", &data_dir]);
    assert!(
        shown.contains("1 session with 1 subscription and 200 messages queued, 1 retained message"),
        "{shown}"
    );
    assert!(succeed(&["journal", "verify", "--data-dir", &data_dir]).contains("is intact"));
}

// fault: Damaged bytes; Ingest log, Action buffers
#[test]
fn damage_of_a_buffer_and_of_the_platforms_log_is_found() {
    let mut server = Server::start(&Config::new("[platform]\nenabled = true\n"));
    let api = Api::of(&server);
    let connector = json!({"type": "http", "name": "web", "config": {"url": "http://127.0.0.1:9"}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let action = json!({"type": "http", "name": "hook", "connector": "web", "parameters": {"body": "${payload}"}});
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "r", "sql": "SELECT payload FROM \"a\"", "actions": ["http:hook"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    publisher.publish(&Publish::new("a", "x".repeat(1000)).qos(1));
    // The damage below is then not at the end, where it could be an unfinished write.
    (0..3).for_each(|_| _ = publisher.publish(&Publish::new("a", "y").qos(1)));
    let data_dir = data_dir(&server);
    server.kill();
    let verified = succeed(&["journal", "verify", "--data-dir", &data_dir]);
    let buffers = Path::new(&data_dir).join("integration/buffers");
    let buffer = fs::read_dir(&buffers).unwrap().next().unwrap().unwrap().path();
    let name = buffer.file_name().unwrap().to_str().unwrap();
    let path = format!("integration/buffers/{name}/journal");
    assert!(verified.contains(&format!("{path} is intact: ")), "{verified}");
    let found = inspect(&data_dir);
    assert_eq!(found["other_logs"][1]["path"], path.as_str(), "{found}");
    assert_eq!(found["other_logs"][0]["path"], "platform/log");

    let segment = buffer.join("journal").join(format!("{:016x}.log", 0));
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes
        .windows(100)
        .position(|part| part == "x".repeat(100).as_bytes())
        .unwrap();
    bytes[at] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let errors = fail(&["journal", "verify", "--data-dir", &data_dir]);
    assert!(errors.contains(&path) && errors.contains("offset"), "{errors}");
    let text = succeed(&["journal", "inspect", "--data-dir", &data_dir]);
    assert!(text.contains(&format!("problem     {path}")), "{text}");
}

#[test]
fn missing_journal_is_an_error() {
    let said = fail(&["journal", "inspect", "--data-dir", "/nonexistent"]);
    assert!(said.contains("/nonexistent"), "{said}");
}

#[test]
fn journal_in_use_is_not_repaired() {
    let server = server();
    let said = fail(&["journal", "repair", "--data-dir", &data_dir(&server)]);
    assert!(said.contains("another process uses the journal"), "{said}");
    assert_eq!(received(&server), MESSAGES);
}

#[test]
fn backup_of_a_running_server_can_be_restored() {
    let mut server = server();
    let backup = server.dir().join("backup").display().to_string();
    let said = succeed(&["backup", "--data-dir", &data_dir(&server), "--to", &backup]);
    assert!(said.contains("200 messages queued"), "{said}");
    assert!(said.contains("admins"), "{said}");
    // Changes after the backup are not in it.
    assert_eq!(received(&server), MESSAGES);
    server.kill();
    let said = fail(&["restore", "--data-dir", &data_dir(&server), "--from", &backup]);
    assert!(said.contains("is not empty"), "{said}");
    fs::remove_dir_all(data_dir(&server)).unwrap();
    succeed(&["restore", "--data-dir", &data_dir(&server), "--from", &backup]);
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(received(&server), MESSAGES);
    assert!(succeed(&["journal", "verify", "--data-dir", &backup]).contains("is intact"));
}

// fault: Damaged bytes; Backup and restore
#[test]
fn damaged_backup_is_not_restored() {
    let mut server = server();
    server.kill();
    let backup = server.dir().join("backup").display().to_string();
    succeed(&["backup", "--data-dir", &data_dir(&server), "--to", &backup]);
    // Damages a copy, because full segments in a backup are hard links.
    damage_a_copy(&segments(&backup)[1]);
    let target = server.dir().join("restored");
    let said = fail(&[
        "restore",
        "--data-dir",
        &target.display().to_string(),
        "--from",
        &backup,
    ]);
    assert!(said.contains("damaged"), "{said}");
    assert!(
        said.contains(&format!("--data-dir {backup}")),
        "the error names the backup: {said}"
    );
    assert_eq!(
        fs::read_dir(&target).unwrap().count(),
        0,
        "no partial data directory remains"
    );
}

#[test]
fn backup_of_a_damaged_journal_names_the_repair_command() {
    let mut server = server();
    server.kill();
    let (data_dir, backup) = (data_dir(&server), server.dir().join("backup"));
    damage_a_copy(&segments(&data_dir)[1]);
    let said = fail(&["backup", "--data-dir", &data_dir, "--to", &backup.display().to_string()]);
    let command = format!("tidewire journal repair --data-dir {data_dir}");
    assert!(said.contains(&command), "{said}");
    assert_eq!(fs::read_dir(&backup).unwrap().count(), 0);
}

#[test]
fn restore_tied_to_stdin_ends_when_stdin_closes() {
    let directory = std::env::temp_dir().join(format!("tidewire-tied-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    let (from, to) = (directory.join("from"), directory.join("to"));
    fs::create_dir_all(&from).unwrap();
    let pipe = from.join("backup.json");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["restore", "--data-dir", to.to_str().unwrap()])
        .args(["--from", from.to_str().unwrap(), "--tied-to-stdin"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // The open succeeds once `restore` reads the FIFO. It then blocks, because nothing is written.
    let held = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    drop(held);
    fs::remove_dir_all(&directory).unwrap();
}

// fault: Missing files; Backup and restore
#[test]
fn incomplete_backup_needs_the_incomplete_option() {
    let mut server = server();
    server.kill();
    let (data_dir, backup) = (data_dir(&server), server.dir().join("backup"));
    let from = backup.display().to_string();
    succeed(&["backup", "--data-dir", &data_dir, "--to", &from]);
    fs::remove_dir_all(&data_dir).unwrap();
    // A copy of the backup that lacks a part.
    let (admins, aside) = (backup.join("admins"), server.dir().join("admins"));
    fs::rename(&admins, &aside).unwrap();
    let said = fail(&["restore", "--data-dir", &data_dir, "--from", &from]);
    assert!(said.contains("admins is missing"), "{said}");
    fs::rename(&aside, &admins).unwrap();
    // An interrupted backup, or one of an earlier version, has no backup.json.
    fs::rename(backup.join("backup.json"), &aside).unwrap();
    let said = fail(&["restore", "--data-dir", &data_dir, "--from", &from]);
    assert!(
        said.contains("the backup was interrupted") && said.contains("--incomplete"),
        "{said}"
    );
    assert!(!Path::new(&data_dir).join("journal").exists());
    succeed(&["restore", "--data-dir", &data_dir, "--from", &from, "--incomplete"]);
    fs::remove_dir_all(&data_dir).unwrap();
    fs::rename(&aside, backup.join("backup.json")).unwrap();
    succeed(&["restore", "--data-dir", &data_dir, "--from", &from]);
    assert!(
        !Path::new(&data_dir).join("backup.json").exists(),
        "the data directory has no backup.json"
    );
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(received(&server), MESSAGES);
}

#[test]
fn repair_command_of_the_log_repairs_the_journal() {
    let mut server = server();
    server.kill();
    damage_a_copy(&segments(&data_dir(&server))[1]);
    assert!(fail(&["journal", "verify", "--data-dir", &data_dir(&server)]).contains("is damaged"));
    let planned = succeed(&["journal", "repair", "--dry-run", "--data-dir", &data_dir(&server)]);
    assert!(planned.contains("would be cut"), "{planned}");
    server.spawn_again();
    server.wait_until("the server reports the damage", |server| {
        server.log().contains("the journal is damaged")
    });
    let log = server.log();
    server.kill();
    let command = log
        .lines()
        .find_map(|line| line.split_once("tidewire journal repair "))
        .unwrap()
        .1;
    let args: Vec<&str> = ["journal", "repair"]
        .into_iter()
        .chain(command.split_whitespace())
        .collect();
    let said = succeed(&args);
    assert!(said.contains("has been cut"), "{said}");
    let saved = said
        .lines()
        .find_map(|line| line.strip_prefix("copies of the original files are in "))
        .unwrap();
    assert!(fs::read_dir(saved).unwrap().count() > 0);
    server.spawn_again();
    server.wait_until_ready();
    let left = received(&server);
    assert!(left > 0 && left < MESSAGES, "{left} messages are left");
}

/// Replaces a file by a copy with one changed byte in the middle.
fn damage_a_copy(segment: &Path) {
    let mut bytes = fs::read(segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(segment).unwrap();
    fs::write(segment, bytes).unwrap();
}
