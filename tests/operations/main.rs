//! Running a node, end to end: what an operator changes over the API survives `kill -9`, and `tidewire top` shows the numbers.

#![allow(clippy::unwrap_used)]

#[path = "../rules/api.rs"]
mod api;
#[path = "../support/mod.rs"]
mod support;

use std::process::{Command, Output};

use serde_json::{Value, json};

use api::Api;
use support::*;

/// `tidewire top` as somebody with an API key types it.
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
fn top_prints_text_and_says_what_it_needs() {
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
