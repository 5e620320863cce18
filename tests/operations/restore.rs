//! Tests restores over the API: which data is restored, which data moves to `replaced-data`, and that the previous data
//! stays in force when a restore fails.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

fn retain(api: &Api<'_>, payload: &str) {
    let message = json!({ "topic": "kept", "payload": payload, "retain": true });
    api.ok("POST", "/api/v1/publish", &message);
}

fn retained(server: &Server) -> Value {
    Api::of(server).get("/api/v1/retained/kept")["payload"].clone()
}

/// Makes a backup, waits until it is finished and returns its name.
fn back_up(server: &Server, api: &Api<'_>) -> String {
    let name = api.ok("POST", "/api/v1/backups", &json!({}))["name"].clone();
    server.wait_until("the backup is finished", |_| {
        let items = api.get("/api/v1/backups")["items"].clone();
        items.as_array().unwrap().iter().any(|one| one["name"] == name)
    });
    name.as_str().unwrap().to_owned()
}

/// Requests a restore and waits until it is prepared or has failed.
fn prepare(server: &Server, api: &Api<'_>, name: &str) -> Value {
    api.ok("POST", &format!("/api/v1/backups/{name}/restore"), &json!({}));
    server.wait_until("the backup is verified", |_| {
        api.get("/api/v1/backups")["restore"]["state"] != "preparing"
    });
    api.get("/api/v1/backups")
}

fn restart(server: &Server, api: &Api<'_>) {
    api.ok("POST", "/api/v1/restore/restart", &json!({}));
    server.wait_until("the restore has ended", |server| {
        let state = server.dir().join("data/restore");
        state.join("outcome.json").exists() && !state.join("intent.json").exists()
    });
    server.wait_until_ready();
}

fn data(server: &Server, name: &str) -> PathBuf {
    server.dir().join("data").join(name)
}

#[test]
fn restore_runs_in_process_and_sets_previous_data_aside() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    retain(&api, "old");
    let away = Connect::new(V5, "away").persistent();
    let mut peer = server.session(&away);
    peer.subscribe("waiting", 1);
    peer.disconnect();
    let name = back_up(&server, &api);
    retain(&api, "new");
    api.ok(
        "POST",
        "/api/v1/users",
        &json!({ "name": "ada", "password": "lovelace" }),
    );
    let patch = json!({ "mqtt.max_qos": "1" });
    api.ok("PUT", "/api/v1/configuration", &json!({ "changes": patch }));

    let state = prepare(&server, &api, &name);
    assert_eq!(
        (&state["restore"]["state"], &state["restored"]),
        (&json!("prepared"), &Value::Null)
    );
    assert_eq!(retained(&server), "new", "nothing has changed yet");
    api.ok("DELETE", "/api/v1/restore", &Value::Null);
    assert!(!data(&server, "restore/new").exists() && !data(&server, "restore/intent.json").exists());

    prepare(&server, &api, &name);
    let pid = server.pid();
    restart(&server, &api);
    assert_eq!(server.pid(), pid);
    assert_eq!(retained(&server), "old");
    let api = Api::of(&server);
    assert_eq!(api.get("/api/v1/users")["items"], json!([]));
    assert!(!data(&server, "runtime.toml").exists());
    let mut peer = server.session(&Connect::new(V5, "publisher"));
    assert_eq!(peer.publish(&Publish::new("waiting", "comes").qos(2)), 0);
    let mut peer = Peer::session(server.mqtt(), &away);
    assert_eq!(peer.receive().payload_str(), "comes");

    let state = api.get("/api/v1/backups");
    assert_eq!(
        (
            &state["restore"],
            &state["restored"]["name"],
            &state["restored"]["failure"]
        ),
        (&Value::Null, &json!(name), &Value::Null)
    );
    let aside = state["replaced_data"][0]["name"].as_str().unwrap();
    assert_eq!(state["restored"]["previous_data"], aside);
    assert!(
        fs::read_to_string(data(&server, &format!("replaced-data/{aside}/users")))
            .unwrap()
            .contains("ada")
    );
    assert_eq!(state["items"][0]["name"], name, "the backup still exists");
    let audit = api.get("/api/v1/audit?operation=restore_now");
    assert_eq!(audit["items"][0]["user"], "admin", "the audit log continues");

    // Restores the data directory that was set aside. It is an ordinary data directory.
    let back = data(&server, "backups/back");
    let from = data(&server, &format!("replaced-data/{aside}"));
    let made = std::process::Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .arg("backup")
        .args([
            "--data-dir".as_ref(),
            from.as_os_str(),
            "--to".as_ref(),
            back.as_os_str(),
        ])
        .output()
        .expect("the program starts");
    assert!(made.status.success(), "{made:?}");
    api.ok("DELETE", &format!("/api/v1/replaced-data/{aside}"), &Value::Null);
    assert!(!from.exists());
    fs::remove_file(data(&server, "restore/outcome.json")).unwrap();
    prepare(&server, &api, "back");
    restart(&server, &api);
    assert_eq!(retained(&server), "new");
    assert_eq!(Api::of(&server).get("/api/v1/users")["items"][0]["name"], "ada");
}

// fault: Damaged bytes; Backup and restore
#[test]
fn damaged_backups_are_rejected_with_file_and_reason() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    retain(&api, "old");
    let name = back_up(&server, &api);
    let segment = data(&server, &format!("backups/{name}/journal/0000000000000000.log"));
    let mut bytes = fs::read(&segment).unwrap();
    let last = bytes.len() - 20;
    bytes[last] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let state = prepare(&server, &api, &name);
    let failure = state["restored"]["failure"].as_str().unwrap();
    println!("{failure}");
    assert!(failure.contains("0000000000000000.log"), "{failure}");
    assert_eq!(state["restore"], Value::Null);
    let users = data(&server, &format!("backups/{name}/admins"));
    fs::remove_file(users).unwrap();
    let state = prepare(&server, &api, &name);
    let failure = state["restored"]["failure"].as_str().unwrap();
    assert!(failure.contains("admins is missing"), "{failure}");
    let (status, _) = api.call("POST", "/api/v1/restore/restart", &json!({}));
    assert_eq!((status, retained(&server)), (409, json!("old")));
}

#[test]
fn port_in_use_does_not_undo_a_restore() {
    let mut server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    retain(&api, "then");
    let name = back_up(&server, &api);
    retain(&api, "new");
    prepare(&server, &api, &name);
    server.kill();
    let occupied = TcpListener::bind(server.http()).expect("the server has released its port");
    server.spawn_again();
    server.wait_until("a start has failed", |server| {
        server.log().contains("trying again to start")
    });
    drop(occupied);
    server.wait_until_ready();
    assert_eq!(retained(&server), "then");
}

#[test]
fn restore_of_unusable_data_is_rolled_back() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let name = back_up(&server, &api);
    retain(&api, "new");
    prepare(&server, &api, &name);
    // The check of a backup does not detect this damage.
    fs::write(data(&server, "restore/new/banned.json"), "no JSON").unwrap();
    restart(&server, &api);
    assert_eq!(retained(&server), "new");
    let state = Api::of(&server).get("/api/v1/backups");
    let failure = state["restored"]["failure"].as_str().unwrap();
    println!("{failure}");
    assert!(failure.contains("banned.json"), "{failure}");
    assert_eq!((&state["restore"], &state["replaced_data"]), (&Value::Null, &json!([])));
    assert!(server.log().contains("the backup was not restored"), "{}", server.log());

    // A configuration change that was valid when the backup was made.
    let api = Api::of(&server);
    prepare(&server, &api, &name);
    fs::remove_file(data(&server, "restore/outcome.json")).unwrap();
    fs::write(data(&server, "restore/new/runtime.toml"), "[mqtt]\nmax_qos = 7\n").unwrap();
    restart(&server, &api);
    assert_eq!(retained(&server), "new");
    let failure = Api::of(&server).get("/api/v1/backups")["restored"]["failure"].clone();
    assert!(failure.as_str().unwrap().contains("mqtt.max_qos"), "{failure}");
}
