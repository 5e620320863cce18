//! Tests the operation of a node: changes over the API survive `kill -9`, `tidewire top` shows the metrics, and backups
//! and benchmarks run over the API.

#![allow(clippy::unwrap_used)]

mod automatic_certificates;
mod bridge_flag;
mod cipher_suites;
mod descriptors;
mod disk_writes;
mod early_closes;
mod failed_start;
mod fault_matrix;
mod flapping;
mod forwarded_requests;
mod listener_providers;
mod ocsp_stapling;
#[cfg(feature = "quic")]
mod ocsp_transports;
mod opentelemetry;
mod other_brokers;
mod process_limits;
mod quic;
mod restore;
mod screen;
mod stall;
mod syslog;

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

/// Runs `tidewire top` with an API key.
fn top(server: &Server, key: &str, args: &[&str]) -> Output {
    let url = format!("http://{}", server.http());
    Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["top", "--api", &url])
        .args(args)
        .env("TIDEWIRE_API_TOKEN", key)
        .output()
        .expect("the program starts")
}

#[track_caller]
fn connack(server: &Server, client_id: &str) -> u8 {
    server.connect().handshake(&Connect::new(V5, client_id)).code
}

#[test]
fn bans_keys_and_the_audit_log_survive_a_kill() {
    let mut server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    api.ok("POST", "/api/v1/banned", &json!({ "kind": "client_id", "who": "bad" }));
    let made = api.ok("POST", "/api/v1/api-keys", &json!({ "name": "ops", "role": "admin" }));
    let key = made["secret"].as_str().unwrap().to_owned();
    assert_eq!((connack(&server, "bad"), connack(&server, "good")), (0x8a, 0));
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!((connack(&server, "bad"), connack(&server, "good")), (0x8a, 0));
    let numbers = top(&server, &key, &["--once", "--json"]);
    let numbers: Value = serde_json::from_slice(&numbers.stdout).unwrap_or_else(|_| panic!("{numbers:?}"));
    assert!(numbers["stats"]["connections"]["total"].as_u64().unwrap() >= 1);
    assert!(numbers["per_s"]["messages_received"].is_number());
    assert_eq!(numbers["listeners"][0]["transport"], "tcp");
    let api = Api::of(&server);
    let audit = api.get("/api/v1/audit?operation=ban");
    assert_eq!(
        (&audit["items"][0]["user"], &audit["items"][0]["body"]["who"]),
        (&json!("admin"), &json!("bad"))
    );
    api.ok("DELETE", "/api/v1/banned/client_id/bad", &Value::Null);
    assert_eq!(connack(&server, "bad"), 0);
    let logs = api.get("/api/v1/logs?text=ready");
    assert_eq!(logs["items"][0]["level"], "info");
}

#[test]
fn top_prints_text_and_names_missing_requirements() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let made = api.ok("POST", "/api/v1/api-keys", &json!({ "name": "ops", "role": "viewer" }));
    let key = made["secret"].as_str().unwrap();
    let printed = top(&server, key, &["--once"]);
    let text = String::from_utf8_lossy(&printed.stdout);
    assert!(
        printed.status.success() && text.contains("clients") && text.contains("received"),
        "{printed:?}"
    );
    let no_terminal = top(&server, key, &[]);
    let text = String::from_utf8_lossy(&no_terminal.stderr);
    assert_eq!(no_terminal.status.code(), Some(2));
    assert!(text.contains("--once"), "{text}");
}

#[test]
fn backup_of_a_running_server_is_downloaded_and_restored() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    api.ok(
        "POST",
        "/api/v1/publish",
        &json!({ "topic": "kept", "payload": "x", "retain": true }),
    );
    api.ok(
        "POST",
        "/api/v1/users",
        &json!({ "name": "ada", "password": "lovelace" }),
    );
    let started = api.ok("POST", "/api/v1/backups", &json!({}));
    let name = started["name"].as_str().unwrap().to_owned();
    let finished = || {
        let state = api.get("/api/v1/backups");
        assert_eq!(state["failure"], Value::Null);
        state["items"].as_array().unwrap().first().cloned()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let backup = loop {
        match finished() {
            Some(backup) => break backup,
            None => assert!(std::time::Instant::now() < deadline, "the backup is not finished"),
        }
    };
    assert_eq!(backup["name"], name.as_str());
    assert!(backup["bytes"].as_u64().unwrap() > 0);
    assert!(
        backup["contents"].as_str().unwrap().contains("1 retained message"),
        "{backup}"
    );

    let restore = |from: &std::path::Path, to: &str| {
        let to = server.dir().join(to);
        let run = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .arg("restore")
            .arg("--data-dir")
            .arg(&to)
            .arg("--from")
            .arg(from)
            .output()
            .expect("the program starts");
        assert!(run.status.success(), "{run:?}");
        assert!(
            String::from_utf8_lossy(&run.stdout).contains("1 retained message"),
            "{run:?}"
        );
        assert!(std::fs::read_to_string(to.join("users")).unwrap().contains("ada"));
        assert!(!to.join("backups").exists());
    };
    restore(&server.dir().join("data/backups").join(&name), "restored");

    let archive = api.bytes(&format!("/api/v1/backups/{name}/download"));
    std::fs::write(server.dir().join("backup.tar"), archive).unwrap();
    let unpacked = server.dir().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    let tar = Command::new("tar")
        .arg("-xf")
        .arg(server.dir().join("backup.tar"))
        .arg("-C")
        .arg(&unpacked)
        .status();
    assert!(tar.unwrap().success());
    restore(&unpacked.join(&name), "restored-from-archive");

    api.ok("DELETE", &format!("/api/v1/backups/{name}"), &Value::Null);
    assert_eq!(api.get("/api/v1/backups")["items"], json!([]));
    assert!(!server.dir().join("data/backups").join(&name).exists());
}

#[test]
fn cancelled_backup_leaves_no_files() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    // Reading this FIFO blocks for ever, so the backup does not complete.
    let journal = server.dir().join("data/integration/buffers/stuck/journal");
    std::fs::create_dir_all(&journal).unwrap();
    let pipe = journal.join(format!("{:016x}.log", 0));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let started = api.ok("POST", "/api/v1/backups", &json!({}));
    let name = started["name"].as_str().unwrap();
    let unfinished = server.dir().join(format!("data/backups/.{name}"));
    server.wait_until("the backup has begun", |_| unfinished.join("integration").exists());
    assert_eq!(api.get("/api/v1/backups")["running"]["name"], name);
    api.ok("DELETE", &format!("/api/v1/backups/{name}"), &Value::Null);
    server.wait_until("the backup is cancelled", |_| {
        api.get("/api/v1/backups")["running"] == Value::Null
    });
    let state = api.get("/api/v1/backups");
    assert_eq!((&state["failure"], &state["items"]), (&Value::Null, &json!([])));
    assert!(!unfinished.exists());
    // The next backup succeeds.
    std::fs::remove_dir_all(journal.parent().unwrap()).unwrap();
    api.ok("POST", "/api/v1/backups", &json!({}));
    server.wait_until("the backup is finished", |_| {
        api.get("/api/v1/backups")["items"].as_array().unwrap().len() == 1
    });
}

#[test]
fn benchmark_of_this_node_can_be_stopped_and_reports() {
    let server = Server::start(&Config::new("[benchmark]\nmax_clients = 60\nmax_duration = \"20s\"\n"));
    let api = Api::of(&server);
    let order = |scale: f64, duration_s: f64| json!({ "scenario": "p2p", "scale": scale, "duration_s": duration_s, "confirmed": true });
    let scenarios = api.get("/api/v1/benchmarks")["scenarios"].clone();
    let p2p = scenarios
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "p2p")
        .unwrap();
    let scale = 20.0 / p2p["clients"].as_f64().unwrap();
    let (status, problem) = api.call("POST", "/api/v1/benchmarks", &order(scale, 21.0));
    assert_eq!((status, &problem["field"]), (422, &json!("duration_s")));
    let (status, problem) = api.call("POST", "/api/v1/benchmarks", &order(scale * 10.0, 5.0));
    assert_eq!((status, &problem["field"]), (422, &json!("scale")));

    let name = api.ok("POST", "/api/v1/benchmarks", &order(scale, 20.0))["name"].clone();
    let wait = |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let state = api.get("/api/v1/benchmarks");
            assert_eq!(state["failure"], Value::Null, "{state}");
            if is_so(&state) {
                return state;
            }
            assert!(std::time::Instant::now() < deadline, "{what}: {state}");
        }
    };
    wait("it is measured", &|state| {
        let seconds = state["running"]["seconds"].as_array().cloned().unwrap_or_default();
        seconds
            .iter()
            .any(|second| second["delivered_per_s"].as_f64().unwrap() > 0.0)
    });
    assert_eq!(api.call("POST", "/api/v1/benchmarks", &order(scale, 5.0)).0, 409);
    api.ok("POST", "/api/v1/benchmarks/stop", &Value::Null);
    let state = wait("it ends", &|state| !state["items"].as_array().unwrap().is_empty());
    assert_eq!(
        (&state["items"][0]["name"], &state["items"][0]["is_interrupted"]),
        (&name, &json!(true))
    );
    let target = format!("/api/v1/benchmarks/{}", name.as_str().unwrap());
    let result = api.get(&target);
    let delivered = result["measures"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "delivered")
        .unwrap();
    assert!(delivered["value"].as_f64().unwrap() > 0.0, "{result}");
    let page = api.bytes(&format!("{target}/report"));
    assert!(
        page.starts_with(b"<!"),
        "{:?}",
        String::from_utf8_lossy(&page[..20.min(page.len())])
    );
    api.ok("DELETE", &target, &Value::Null);
    assert_eq!(api.get("/api/v1/benchmarks")["items"], json!([]));
}

#[test]
fn benchmark_reports_connect_errors_and_can_be_disabled() {
    let server = Server::start(&Config::new("[access]\nanonymous = \"never\"\n"));
    let api = Api::of(&server);
    let order = json!({ "scenario": "p2p", "scale": 0.01, "duration_s": 1, "confirmed": true });
    api.ok("POST", "/api/v1/benchmarks", &order);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(100);
    let failure = loop {
        let state = api.get("/api/v1/benchmarks");
        if !state["failure"].is_null() || !state["items"].as_array().unwrap().is_empty() {
            break state;
        }
        assert!(std::time::Instant::now() < deadline, "{state}");
    };
    let is_said = failure["failure"]["reason"].is_string() || failure["items"][0]["is_good"] == false;
    assert!(is_said, "{failure}");

    let server = Server::start(&Config::new("[benchmark]\nenabled = false\n"));
    let api = Api::of(&server);
    let (status, problem) = api.call("POST", "/api/v1/benchmarks", &order);
    assert_eq!(status, 409);
    assert!(
        problem["detail"].as_str().unwrap().contains("benchmark.enabled"),
        "{problem}"
    );
}
