//! `tidewire journal`, `backup` and `restore` on data directories of real servers, sound and damaged.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{Config, Connect, Publish, Server, V4, V5};

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

/// A server with small segments, and in its journal a subscriber that is away, `MESSAGES` for it, and a retained one.
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
    // Another core than that of the publisher may have them still to record.
    server.wait_until("all is routed", |server| {
        inspect(&data_dir(server))["holds"]["unrouted_messages"] == 0
    });
    server
}

fn data_dir(server: &Server) -> String {
    server.dir().join("data").display().to_string()
}

/// How many messages come to the subscriber, in order from the first.
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
fn inspect_and_verify_tell_what_a_running_server_has_kept() {
    let server = server();
    let data_dir = data_dir(&server);
    let found = inspect(&data_dir);
    let holds = &found["holds"];
    assert_eq!(holds["sessions"], 1, "{found}");
    assert_eq!(holds["subscriptions"], 1);
    assert_eq!(holds["queued_messages"], MESSAGES);
    assert_eq!(holds["retained_messages"], 1);
    assert_eq!(holds["records_by_kind"]["message"], MESSAGES + 1);
    assert_eq!(found["problems"], serde_json::json!([]));
    assert_eq!(found["segments"].as_array().unwrap().len(), segments(&data_dir).len());
    let shown = succeed(&["journal", "inspect", "--data-dir", &data_dir]);
    assert!(
        shown.contains("1 session with 1 subscription and 200 messages queued, 1 retained message"),
        "{shown}"
    );
    assert!(succeed(&["journal", "verify", "--data-dir", &data_dir]).contains("is whole"));
}

#[test]
fn a_journal_that_is_not_there_is_an_error() {
    let said = fail(&["journal", "inspect", "--data-dir", "/nonexistent"]);
    assert!(said.contains("/nonexistent"), "{said}");
}

#[test]
fn a_journal_in_use_is_not_repaired() {
    let server = server();
    let said = fail(&["journal", "repair", "--data-dir", &data_dir(&server)]);
    assert!(said.contains("another process uses the journal"), "{said}");
    assert_eq!(received(&server), MESSAGES);
}

#[test]
fn a_server_starts_from_what_was_backed_up_while_another_was_running() {
    let mut server = server();
    let backup = server.dir().join("backup").display().to_string();
    let said = succeed(&["backup", "--data-dir", &data_dir(&server), "--to", &backup]);
    assert!(said.contains("200 messages queued"), "{said}");
    assert!(said.contains("admins"), "{said}");
    // What comes after the backup is not in it.
    assert_eq!(received(&server), MESSAGES);
    server.kill();
    let said = fail(&["restore", "--data-dir", &data_dir(&server), "--from", &backup]);
    assert!(said.contains("is not empty"), "{said}");
    fs::remove_dir_all(data_dir(&server)).unwrap();
    succeed(&["restore", "--data-dir", &data_dir(&server), "--from", &backup]);
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(received(&server), MESSAGES);
    assert!(succeed(&["journal", "verify", "--data-dir", &backup]).contains("is whole"));
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let mut server = server();
    server.kill();
    let backup = server.dir().join("backup").display().to_string();
    succeed(&["backup", "--data-dir", &data_dir(&server), "--to", &backup]);
    // A file of its own: full segments are links.
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
        "what was begun is gone: {said}"
    );
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "half of it looks like all");
}

#[test]
fn a_damaged_data_directory_is_not_backed_up_and_the_way_out_is_said() {
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
fn what_the_server_has_copied_ends_with_the_server() {
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
    // It reads from then on, and nothing comes.
    let held = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    drop(held);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_backup_that_is_not_known_to_be_whole_is_restored_only_when_told_to() {
    let mut server = server();
    server.kill();
    let (data_dir, backup) = (data_dir(&server), server.dir().join("backup"));
    let from = backup.display().to_string();
    succeed(&["backup", "--data-dir", &data_dir, "--to", &from]);
    fs::remove_dir_all(&data_dir).unwrap();
    // Copied elsewhere, but for a part.
    let (admins, aside) = (backup.join("admins"), server.dir().join("admins"));
    fs::rename(&admins, &aside).unwrap();
    let said = fail(&["restore", "--data-dir", &data_dir, "--from", &from]);
    assert!(said.contains("admins is missing"), "{said}");
    fs::rename(&aside, &admins).unwrap();
    // As one that was interrupted, or of an earlier version.
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
    assert!(!Path::new(&data_dir).join("backup.json").exists(), "it is no backup");
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(received(&server), MESSAGES);
}

#[test]
fn what_a_start_says_of_a_damaged_journal_repairs_it() {
    let mut server = server();
    server.kill();
    damage_a_copy(&segments(&data_dir(&server))[1]);
    assert!(fail(&["journal", "verify", "--data-dir", &data_dir(&server)]).contains("is damaged"));
    let planned = succeed(&["journal", "repair", "--dry-run", "--data-dir", &data_dir(&server)]);
    assert!(planned.contains("would be cut"), "{planned}");
    server.spawn_again();
    server.wait_until("the server gives up", |server| {
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
        .find_map(|line| line.strip_prefix("the files as they were are in "))
        .unwrap();
    assert!(fs::read_dir(saved).unwrap().count() > 0);
    server.spawn_again();
    server.wait_until_ready();
    let left = received(&server);
    assert!(left > 0 && left < MESSAGES, "{left} messages are left");
}

/// Changes one byte in the middle, in a new file of that name.
fn damage_a_copy(segment: &Path) {
    let mut bytes = fs::read(segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(segment).unwrap();
    fs::write(segment, bytes).unwrap();
}
