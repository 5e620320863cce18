//! Tests data directories in which a store is missing or has lost its end. The server does not start with such a
//! directory until an operator accepts the loss.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use auth::TotpSecret;
use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::api::Api;
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
const ACCESS_FILES: [&str; 6] = [
    "admins",
    "admins-totp",
    "api-keys.json",
    "banned.json",
    "runtime.toml",
    "users",
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

/// Makes changes over the API that create all access files.
fn create_access_files(server: &Server) {
    let api = Api::of(server);
    let rule = json!({ "permission": "deny", "action": "publish", "topics": ["closed"] });
    let key = json!({ "name": "key", "role": "viewer" });
    let ban = json!({ "kind": "client_id", "who": "banned" });
    let user = json!({ "name": "ada", "password": "lovelace" });
    api.ok("PUT", "/api/v1/acl", &json!({ "rules": [rule] }));
    api.ok("POST", "/api/v1/api-keys", &key);
    api.ok("POST", "/api/v1/banned", &ban);
    api.ok("POST", "/api/v1/users", &user);
    create_second_factor(server, &api);
    for file in ACCESS_FILES {
        assert!(data_dir(server).join(file).is_file(), "{file} is missing");
    }
}

/// Turns the second factor of `admin` on and off again, so that later logins need no code. Its file remains.
fn create_second_factor(server: &Server, api: &Api<'_>) {
    let path = data_dir(server).join("admin-password");
    let password = fs::read_to_string(path).expect("the first start writes a password");
    let password = password.trim();
    let begun = api.ok("POST", "/api/v1/totp", &json!({ "password": password }));
    let secret = TotpSecret::of_base32(begun["secret"].as_str().expect("a secret")).expect("base32");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let code = secret.code_at(now.as_secs());
    let confirmed = api.ok("POST", "/api/v1/totp/confirm", &json!({ "code": *code }));
    let proof = json!({ "password": password, "code": confirmed["recovery_codes"][0] });
    api.ok("POST", "/api/v1/totp/turn-off", &proof);
}

/// Returns the numbers of access rules, API keys, bans and MQTT users.
fn access_counts(server: &Server) -> [usize; 4] {
    let api = Api::of(server);
    let lists = [
        ("/api/v1/acl", "rules"),
        ("/api/v1/api-keys", "items"),
        ("/api/v1/banned", "items"),
        ("/api/v1/users", "items"),
    ];
    lists.map(|(path, list)| api.get(path)[list].as_array().expect("a list").len())
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
    create_access_files(&server);
    stop(&mut server);
    let aside = server.dir().join("aside");
    for store in STORES.into_iter().chain(ACCESS_FILES) {
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
    assert_eq!(access_counts(&server), [1; 4]);
}

/// Removes all access files and accepts the loss.
fn accept_loss_of_access_files() {
    let (mut server, _) = server_with_stores();
    create_access_files(&server);
    stop(&mut server);
    for file in ACCESS_FILES {
        remove(&data_dir(&server).join(file));
    }
    let log = refused_start(&mut server);
    assert_names_the_command(&server, &log);
    let planned = repair(&server, &["--accept-loss", "--dry-run"]);
    refused_start(&mut server);
    let said = repair(&server, &["--accept-loss"]);
    for file in ACCESS_FILES {
        assert!(
            planned.contains(&format!("{file} would be accepted as lost")),
            "{planned}"
        );
        assert!(said.contains(&format!("{file} accepted as lost")), "{said}");
    }
    server.spawn_again();
    server.wait_until_ready();
    // The server has created `admins` with a new password.
    assert_eq!(access_counts(&server), [0; 4]);
    stop(&mut server);
    assert!(repair(&server, &["--accept-loss"]).contains("nothing to repair"));
}

// fault: Missing files; Journal, Ingest log
#[test]
fn accepted_loss_of_each_store_lets_the_server_start() {
    accept_loss_of_access_files();
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

/// Copies the files of a store: a directory, or the entity database with the files that belong to it.
fn copy_store(data_dir: &Path, store: &str, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).expect("a directory for the copy");
    for file in store_files(data_dir, store) {
        let target = to.join(file.file_name().expect("a file name"));
        fs::copy(&file, target).expect("the store can be copied");
    }
}

fn store_files(data_dir: &Path, store: &str) -> Vec<PathBuf> {
    let path = data_dir.join(store);
    let (directory, prefix) = match path.is_dir() {
        true => (path, ""),
        false => (data_dir.join("platform"), "entities."),
    };
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
    let is_of_store = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    files.filter(is_of_store).collect()
}

/// Replaces the files of a store by those of a copy.
fn replace_store(data_dir: &Path, store: &str, copy: &Path) {
    let directory = match data_dir.join(store) {
        path if path.is_dir() => path,
        _ => data_dir.join("platform"),
    };
    for file in store_files(data_dir, store) {
        fs::remove_file(file).expect("the newer file can be removed");
    }
    for entry in fs::read_dir(copy).expect("the copy").flatten() {
        fs::copy(entry.path(), directory.join(entry.file_name())).expect("the copy can be put back");
    }
}

// fault: Older copy; Journal, Ingest log, Entity database, Time series
#[test]
fn older_copy_of_a_store_refuses_the_start() {
    let (mut server, device) = server_with_stores();
    stop(&mut server);
    let data_dir = data_dir(&server);
    let (older, newer) = (server.dir().join("older"), server.dir().join("newer"));
    for (number, store) in STORES.into_iter().enumerate() {
        copy_store(&data_dir, store, &older);
        server.spawn_again();
        server.wait_until_ready();
        let mut keeper = server.session(&Connect::new(V4, "keeper"));
        keeper.publish(&Publish::new(store, "kept").qos(1).retain());
        let rest = Rest::login(&server);
        rest.device(&format!("new {number}"), &format!("token-{number}"));
        post_telemetry(&server, "token", &json!({"n": 2}));
        value_of(&rest, &server, &device, "n", 2);
        stop(&mut server);
        copy_store(&data_dir, store, &newer);
        replace_store(&data_dir, store, &older);

        let log = refused_start(&mut server);
        assert!(
            log.contains(&format!("{store} in the data directory")),
            "{store}: {log}"
        );
        assert!(log.contains("is older than before"), "{store}: {log}");
        assert_names_the_command(&server, &log);

        replace_store(&data_dir, store, &newer);
        server.spawn_again();
        server.wait_until_ready();
        value_of(&Rest::login(&server), &server, &device, "n", 2);
        stop(&mut server);
    }
    // An operator accepts an older copy.
    copy_store(&data_dir, "platform/entities.sqlite", &older);
    server.spawn_again();
    server.wait_until_ready();
    let rest = Rest::login(&server);
    let devices = device_count(&server);
    rest.device("last", "last");
    stop(&mut server);
    replace_store(&data_dir, "platform/entities.sqlite", &older);
    refused_start(&mut server);
    for arguments in [&["--accept-loss", "--dry-run"][..], &["--accept-loss"][..]] {
        let said = repair(&server, arguments);
        assert!(said.contains("platform/entities.sqlite"), "{said}");
        assert!(
            said.contains("the data that an earlier copy lacks (transaction "),
            "{said}"
        );
    }
    assert!(repair(&server, &["--accept-loss"]).contains("nothing to repair"));
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(device_count(&server), devices);
}

// fault: Missing files; Journal, Ingest log
#[test]
fn missing_checkpoint_is_named() {
    let (mut server, device) = server_with_stores();
    for log in ["journal", "platform/log"] {
        let mut keeper = server.session(&Connect::new(V4, "keeper"));
        keeper.publish(&Publish::new(log, "kept").qos(1).retain());
        stop(&mut server);
        let checkpoint = data_dir(&server).join(log).join("checkpoint");
        fs::remove_file(&checkpoint).expect("the file can be removed");
        let said = refused_start(&mut server);
        let missing = format!("the file {} is missing", checkpoint.display());
        assert!(said.contains(&missing), "{said}");
        assert_names_the_command(&server, &said);
        repair(&server, &["--accept-loss"]);
        // The log still has all records.
        server.spawn_again();
        server.wait_until_ready();
        value_of(&Rest::login(&server), &server, &device, "n", 1);
        let mut reader = server.session(&Connect::new(V4, "reader"));
        reader.subscribe(log, 0);
        assert_eq!(reader.receive().topic_str(), log);
    }
}

// fault: Missing files; Journal
#[test]
fn repaired_journal_may_be_shorter_than_before() {
    let mut server = Server::start(&Config::new("[durability]\nsegment_bytes = \"64KiB\"\n"));
    let reader = Connect::new(V4, "reader").persistent();
    let mut peer = server.session(&reader);
    peer.subscribe("kept", 1);
    peer.disconnect();
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    for _ in 0..200 {
        assert_eq!(publisher.publish(&Publish::new("kept", "x".repeat(1000)).qos(1)), 0);
    }
    stop(&mut server);
    let text = fs::read_to_string(data_dir(&server).join("stores.json")).expect("the positions are recorded");
    assert!(text.contains("\"positions\""), "{text}");
    let mut segments = files_with_extension(&data_dir(&server).join("journal"), "log");
    segments.sort();
    fs::remove_file(segments.pop().expect("a segment")).expect("the segment can be removed");
    refused_start(&mut server);
    let said = repair(&server, &[]);
    assert!(said.contains("lost: all records from position"), "{said}");
    server.spawn_again();
    server.wait_until_ready();
}

fn files_with_extension(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let files = entries.map(|entry| entry.path());
    files
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

// fault: Damaged bytes; Time series
// fault: Missing files; Time series
#[test]
fn lost_file_of_the_time_series_is_accepted_alone() {
    let (mut server, device) = server_with_stores();
    stop(&mut server);
    let series = data_dir(&server).join("platform/timeseries");
    for (number, damage) in ["missing", "shorter", "damaged"].into_iter().enumerate() {
        let file = files_with_extension(&series, "segment")
            .pop()
            .expect("a file with points");
        let bytes = fs::read(&file).expect("the file is readable");
        match damage {
            "missing" => fs::remove_file(&file).expect("the file can be removed"),
            "shorter" => fs::write(&file, &bytes[..bytes.len() - 1]).expect("the file is writable"),
            _ => {
                let mut bytes = bytes;
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                fs::write(&file, bytes).expect("the file is writable");
            }
        }
        let log = refused_start(&mut server);
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(log.contains(&name), "{damage}: {log}");
        assert_names_the_command(&server, &log);
        let planned = repair(&server, &["--accept-loss", "--dry-run"]);
        assert!(
            planned.contains(&format!("{name}: the points in this file")) && !planned.contains("saved to"),
            "{planned}"
        );
        let said = repair(&server, &["--accept-loss"]);
        assert!(said.contains(&format!("{name}: the points in this file")), "{said}");
        assert_eq!(said.contains("timeseries-damaged-"), damage != "missing", "{said}");
        assert!(repair(&server, &["--accept-loss"]).contains("nothing to repair"));
        server.spawn_again();
        server.wait_until_ready();
        let value = number as i64 + 10;
        post_telemetry(&server, "token", &json!({"n": value}));
        value_of(&Rest::login(&server), &server, &device, "n", value);
        stop(&mut server);
    }
}

// fault: Damaged bytes; Time series
#[test]
fn time_series_without_their_catalog_are_accepted_as_lost() {
    for lost in ["manifest", "series"] {
        let (mut server, device) = server_with_stores();
        stop(&mut server);
        let series = data_dir(&server).join("platform/timeseries");
        let file = match lost {
            "manifest" => series.join("manifest"),
            extension => files_with_extension(&series, extension).pop().expect("a series log"),
        };
        let mut bytes = fs::read(&file).expect("the file is readable");
        bytes[20] ^= 1;
        fs::write(&file, bytes).expect("the file is writable");
        let log = refused_start(&mut server);
        assert_names_the_command(&server, &log);
        let said = repair(&server, &["--accept-loss"]);
        assert!(said.contains("all points and latest values"), "{said}");
        let saved = data_dir(&server).join("platform/timeseries-damaged-1");
        assert!(!files_with_extension(&saved, "segment").is_empty());
        server.spawn_again();
        server.wait_until_ready();
        post_telemetry(&server, "token", &json!({"n": 2}));
        value_of(&Rest::login(&server), &server, &device, "n", 2);
    }
}
