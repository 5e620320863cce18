//! Tests data directories in which a store is missing or has lost its end. The server does not start with such a
//! directory until an operator accepts the loss.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::http::request;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n[limits]\nshutdown_grace = \"500ms\"\n";
const STORES: [&str; 5] = [
    "history",
    "journal",
    "platform/entities.sqlite",
    "platform/log",
    "platform/timeseries",
];

fn data_dir(server: &Server) -> PathBuf {
    server.dir().join("data")
}

fn stop(server: &mut Server) {
    server.terminate(Duration::from_secs(60));
    server.kill();
}

/// Starts the server, which must end with an error. Returns its log output.
#[track_caller]
fn refused_start(server: &mut Server) -> String {
    let before = server.log().len();
    server.spawn_again();
    server.wait_until("the start is refused", |server| !server.is_running());
    server.kill();
    let log = server.log().split_off(before);
    assert!(!log.contains("panicked"), "{log}");
    log
}

#[track_caller]
fn repair(server: &Server, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["journal", "repair"])
        .args(arguments)
        .arg("--data-dir")
        .arg(data_dir(server))
        .output()
        .expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that the log names the command that accepts the loss.
#[track_caller]
fn assert_names_the_command(server: &Server, log: &str) {
    let command = format!(
        "tidewire journal repair --accept-loss --data-dir {}",
        data_dir(server).display()
    );
    assert!(log.contains(&command), "{log}");
}

fn post_telemetry(server: &Server, token: &str, values: &Json) {
    let path = format!("/api/v1/{token}/telemetry");
    let (status, text) = request(server.http(), "POST", &path, "", &values.to_string());
    assert_eq!(status, 200, "{text}");
}

fn value_of(rest: &Rest, server: &Server, device: &str, key: &str, expected: i64) {
    let path = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys={key}&useStrictDataTypes=true");
    rest.wait_for(server, &path, |found| found[key][0]["value"] == json!(expected));
}

/// Starts a server with a device and a telemetry value, and waits until its stores are recorded.
fn server_with_stores() -> (Server, String) {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("device", "token");
    post_telemetry(&server, "token", &json!({"n": 1}));
    value_of(&rest, &server, &device, "n", 1);
    server.wait_until("the stores are recorded", |server| {
        let text = fs::read_to_string(data_dir(server).join("stores.json")).unwrap_or_default();
        STORES.iter().all(|store| text.contains(&format!("{store:?}")))
    });
    (server, device)
}

fn remove(path: &Path) {
    match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
    .expect("the store can be removed");
}

// fault: Missing files; Journal, Ingest log, Entity database, Time series
#[test]
fn missing_store_refuses_the_start_until_it_is_restored() {
    let (mut server, device) = server_with_stores();
    stop(&mut server);
    let aside = server.dir().join("aside");
    for store in STORES {
        let path = data_dir(&server).join(store);
        fs::rename(&path, &aside).expect("the store can be moved");
        let log = refused_start(&mut server);
        assert!(log.contains(&format!("{store} is missing")), "{store}: {log}");
        assert_names_the_command(&server, &log);
        assert!(!path.exists(), "the start has created {store}");
        fs::rename(&aside, &path).expect("the store can be moved back");
    }
    server.spawn_again();
    server.wait_until_ready();
    value_of(&Rest::login(&server), &server, &device, "n", 1);
}

// fault: Missing files; Journal, Ingest log
#[test]
fn accepted_loss_of_each_store_lets_the_server_start() {
    for store in STORES {
        let (mut server, device) = server_with_stores();
        stop(&mut server);
        remove(&data_dir(&server).join(store));
        let log = refused_start(&mut server);
        assert_names_the_command(&server, &log);
        let planned = repair(&server, &["--accept-loss", "--dry-run"]);
        assert!(planned.contains(store), "{planned}");
        refused_start(&mut server);
        let said = repair(&server, &["--accept-loss"]);
        assert!(said.contains(&format!("{store} accepted as lost")), "{said}");
        server.spawn_again();
        server.wait_until_ready();
        if store != "platform/entities.sqlite" {
            // New messages are stored: they do not get positions that were processed before.
            let rest = Rest::login(&server);
            post_telemetry(&server, "token", &json!({"n": 2}));
            value_of(&rest, &server, &device, "n", 2);
        }
        server.assert_alive();
        // Nothing is left to accept.
        stop(&mut server);
        assert!(repair(&server, &["--accept-loss"]).contains("nothing to repair"));
        server.spawn_again();
        server.wait_until_ready();
    }
}

// fault: Missing files; Journal
#[test]
fn missing_segments_refuse_the_start_and_fail_verification() {
    for log in ["journal", "platform/log"] {
        let (mut server, _) = server_with_stores();
        server.kill();
        let directory = data_dir(&server).join(log);
        for entry in fs::read_dir(&directory).expect("a log").flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                fs::remove_file(entry.path()).expect("the segment can be removed");
            }
        }
        let said = refused_start(&mut server);
        assert!(said.contains("0000000000000000.log (position 0) is missing"), "{said}");
        if log == "journal" {
            let verified = Command::new(env!("CARGO_BIN_EXE_tidewire"))
                .args(["journal", "verify", "--data-dir"])
                .arg(data_dir(&server))
                .output()
                .expect("the program runs");
            assert!(!verified.status.success(), "{verified:?}");
        }
        match log {
            "journal" => drop(repair(&server, &["--accept-loss"])),
            _ => repair_as_told(&server, &said),
        }
        server.spawn_again();
        server.wait_until_ready();
    }
}

/// Runs the command in a message, and then the one that it prints.
fn repair_as_told(server: &Server, message: &str) {
    let printed = run_command_in(message);
    let accepted = run_command_in(&printed);
    assert!(accepted.contains("platform/log accepted as lost"), "{accepted}");
    assert!(repair(server, &["--accept-loss"]).contains("nothing to repair"));
}

/// Runs the `tidewire journal` command in a text. Returns its output.
fn run_command_in(text: &str) -> String {
    let (_, command) = text
        .split_once("tidewire journal ")
        .unwrap_or_else(|| panic!("no command: {text}"));
    let arguments = command.lines().next().unwrap_or_default().split(' ');
    let output = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .arg("journal")
        .args(arguments)
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn wal(server: &Server) -> PathBuf {
    data_dir(server).join("platform/entities.sqlite-wal")
}

fn wal_bytes(server: &Server) -> u64 {
    fs::metadata(wal(server)).map_or(0, |wal| wal.len())
}

fn device_count(server: &Server) -> u64 {
    let rest = Rest::login(server);
    let page = rest.ok("GET", "/api/tenant/devices?pageSize=1&page=0", &Json::Null);
    page["totalElements"].as_u64().expect("a number")
}

/// Starts a server, creates devices and kills it while they are in the write-ahead log. Returns the number of devices.
fn killed_server_with_wal() -> (Server, u64) {
    let mut server = Server::start(&Config::new(CONFIG));
    stop(&mut server);
    assert_eq!(wal_bytes(&server), 0, "a clean stop empties the write-ahead log");
    // The server may empty the log right before it is killed.
    for attempt in 0.. {
        server.spawn_again();
        server.wait_until_ready();
        let rest = Rest::login(&server);
        for number in 0..20 {
            rest.device(
                &format!("device {attempt}-{number}"),
                &format!("token-{attempt}-{number}"),
            );
        }
        let count = device_count(&server);
        server.kill();
        if wal_bytes(&server) > 0 {
            return (server, count);
        }
    }
    unreachable!("the loop returns")
}

// fault: Damaged bytes; Entity database
// fault: Missing files; Entity database
#[test]
fn damaged_or_missing_write_ahead_log_refuses_the_start() {
    let (mut server, count) = killed_server_with_wal();
    let wal = wal(&server);
    let whole = fs::read(&wal).expect("the write-ahead log is readable");
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    for (name, contents) in [("damaged", Some(&damaged)), ("missing", None)] {
        match contents {
            Some(bytes) => fs::write(&wal, bytes).expect("the write-ahead log is writable"),
            None => fs::remove_file(&wal).expect("the write-ahead log can be removed"),
        }
        // SQLite's index of the log belongs to its previous contents.
        let _ = fs::remove_file(wal.with_file_name("entities.sqlite-shm"));
        let log = refused_start(&mut server);
        assert!(
            log.contains("transactions") && log.contains("entities.sqlite-wal"),
            "{name}: {log}"
        );
        assert_names_the_command(&server, &log);
        if let Some(bytes) = contents {
            assert!(
                fs::read(&wal).is_ok_and(|found| found == *bytes),
                "the refused start has changed the log"
            );
        }
    }
    let files = ["entities.sqlite", "entities.sqlite-wal"];
    let platform = data_dir(&server).join("platform");
    let saved = files.map(|file| fs::read(platform.join(file)).ok());
    fs::write(&wal, &whole).expect("the write-ahead log is writable");
    let _ = fs::remove_file(wal.with_file_name("entities.sqlite-shm"));
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(device_count(&server), count);
    server.kill();

    // The operator accepts the loss of the log that was removed.
    for (file, bytes) in files.iter().zip(saved) {
        let path = platform.join(file);
        let _ = fs::remove_file(&path);
        if let Some(bytes) = bytes {
            fs::write(&path, bytes).expect("the database is writable");
        }
    }
    let _ = fs::remove_file(wal.with_file_name("entities.sqlite-shm"));
    refused_start(&mut server);
    let said = repair(&server, &["--accept-loss"]);
    assert!(
        said.contains("platform/entities.sqlite accepted as lost: the last "),
        "{said}"
    );
    server.spawn_again();
    server.wait_until_ready();
    assert!(device_count(&server) < count);
}

/// A backup without `stores.json` and the positions in the platform is one of an earlier version.
#[test]
fn data_of_an_earlier_version_starts() {
    let (mut server, device) = server_with_stores();
    stop(&mut server);
    let data_dir = data_dir(&server);
    for file in ["stores.json", "platform/entities.generation"] {
        fs::remove_file(data_dir.join(file)).expect("the file can be removed");
    }
    for log in ["journal", "platform/log"] {
        for entry in fs::read_dir(data_dir.join(log)).expect("a log").flatten() {
            if entry.file_name().to_string_lossy().starts_with("newest-") {
                fs::remove_file(entry.path()).expect("the file can be removed");
            }
        }
    }
    server.spawn_again();
    server.wait_until_ready();
    value_of(&Rest::login(&server), &server, &device, "n", 1);
    server.wait_until("the stores are recorded", |_| data_dir.join("stores.json").exists());
}
