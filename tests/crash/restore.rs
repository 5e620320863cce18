//! Tests restores over the API while the server is killed at random times. Afterwards the server has either all of the
//! previous data or all data of the backup.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::random::Random;
use crate::support::api::Api;
use crate::support::{Config, Connect, Peer, Publish, Server, V5, scaled};

const ROUNDS: u64 = 12;
/// Upper limit of the time until the kill. It covers a start and an orderly shutdown.
const KILL_WITHIN_MS: u64 = 250;

// fault: Process killed; Backup and restore
#[test]
fn killed_restore_leaves_all_old_or_all_new_data() {
    let mut random = Random::new(7, 0);
    let mut server = Server::start(&Config::new("[platform]\nenabled = true\n"));
    set(&server, "then");
    let name = back_up(&server);
    let (mut restored, mut kept) = (0, 0);
    for round in 0..scaled(ROUNDS) {
        set(&server, &format!("round {round}"));
        let api = Api::of(&server);
        api.ok("POST", &format!("/api/v1/backups/{name}/restore"), &json!({}));
        let is_prepared = round % 4 != 0;
        if is_prepared {
            server.wait_until("the restore is prepared", |_| {
                api.get("/api/v1/backups")["restore"]["state"] == "prepared"
            });
            if round % 2 == 0 {
                api.ok("POST", "/api/v1/restore/restart", &json!({}));
            }
        }
        pause(&mut random);
        server.kill();
        // Interrupt at most one start. After three failed starts the server would return to the old data.
        for _ in 0..round / 2 % 2 {
            server.spawn_again();
            pause(&mut random);
            server.kill();
        }
        server.spawn_again();
        server.wait_until_ready();
        let found = get(&server);
        match found == "then" {
            true => restored += 1,
            false => {
                assert!(!is_prepared, "the prepared backup was not restored");
                assert_eq!(found, format!("round {round}"));
                kept += 1;
            }
        }
        let api = Api::of(&server);
        let state = api.get("/api/v1/backups");
        assert_eq!(state["restore"], Value::Null);
        for aside in state["replaced_data"].as_array().expect("a list") {
            let name = aside["name"].as_str().expect("a name");
            api.ok("DELETE", &format!("/api/v1/replaced-data/{name}"), &Value::Null);
        }
    }
    println!("{restored} restored, {kept} unchanged");
    assert!(restored > 0);
}

fn pause(random: &mut Random) {
    thread::sleep(Duration::from_millis(random.below(KILL_WITHIN_MS)));
}

/// Stores the value in the journal and in a file next to it. The server checks at startup that the platform's stores
/// belong together.
fn set(server: &Server, value: &str) {
    let mut peer = Peer::session(server.mqtt(), &Connect::new(V5, "publisher"));
    // The reason code for a message without subscribers is a success.
    assert!(peer.publish(&Publish::new("kept", value).qos(1).retain()) < 0x80);
    let api = Api::of(server);
    for user in api.get("/api/v1/users")["items"].as_array().expect("a list") {
        let name = user["name"].as_str().expect("a name");
        api.ok("DELETE", &format!("/api/v1/users/{name}"), &Value::Null);
    }
    let user = json!({ "name": value.replace(' ', "-"), "password": "lovelace" });
    api.ok("POST", "/api/v1/users", &user);
}

/// Returns the value that both stores have.
fn get(server: &Server) -> String {
    let api = Api::of(server);
    let message = api.get("/api/v1/retained/kept")["payload"].clone();
    let message = message.as_str().expect("the message is retained");
    assert_eq!(api.get("/api/v1/users")["items"][0]["name"], message.replace(' ', "-"));
    message.to_owned()
}

fn back_up(server: &Server) -> String {
    let api = Api::of(server);
    let name = api.ok("POST", "/api/v1/backups", &json!({}))["name"].clone();
    server.wait_until("the backup is complete", |_| {
        api.get("/api/v1/backups")["items"]
            .as_array()
            .is_some_and(|items| items.len() == 1)
    });
    name.as_str().expect("a name").to_owned()
}
