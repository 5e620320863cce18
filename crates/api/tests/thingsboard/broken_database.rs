//! The entity database rejects writes, as on a full disk: requests fail, and the server continues to work.

use rusqlite::Connection;
use serde_json::{Value, json};

use super::server::{Server, refused};

const EVENTS: [&str; 4] = [
    "INSERT ON entity",
    "UPDATE ON entity",
    "INSERT ON alarm",
    "UPDATE ON alarm",
];

fn refuse(database: &Connection) {
    for (number, event) in EVENTS.iter().enumerate() {
        let trigger =
            format!("CREATE TRIGGER refuse_{number} BEFORE {event} BEGIN SELECT RAISE(ABORT, 'disk full'); END");
        database.execute_batch(&trigger).unwrap();
    }
}

fn repair(database: &Connection) {
    for number in 0..EVENTS.len() {
        database
            .execute_batch(&format!("DROP TRIGGER refuse_{number}"))
            .unwrap();
    }
}

#[test]
fn changes_fail_while_the_database_rejects_writes() {
    let server = Server::start();
    let id = server.device("kept");
    let device = server.get(&format!("/api/device/{id}")).ok().json();
    let mut renamed = device.clone();
    renamed["name"] = json!("renamed");
    let alarm = json!({"originator": {"entityType": "DEVICE", "id": id}, "type": "fire", "severity": "CRITICAL"});
    let new_device = json!({"name": "new", "type": "a new type"});
    let alarms = format!("/api/alarm/DEVICE/{id}?pageSize=10&page=0");
    let total = |target: &str| server.get(target).ok().json()["totalElements"].clone();
    let directory = server.data_dir.join(devices::DIRECTORY_NAME);
    let database = Connection::open(directory.join(platform::FILE_NAME)).unwrap();

    refuse(&database);
    let changes = [
        ("/api/device", &new_device),
        ("/api/device", &renamed),
        ("/api/alarm", &alarm),
    ];
    for (path, body) in changes {
        let message = refused(&server.post(path, body.clone()), 500, 46);
        assert!(
            message.starts_with("the entity database failed to write an "),
            "{message}"
        );
    }
    let imported = server.post(
        "/api/device/bulk_import",
        json!({"file": "x\ny", "mapping": {"columns": [{"type": "NAME"}], "delimiter": ",", "update": true, "header": false}}),
    );
    let imported = imported.ok().json();
    assert_eq!(
        (&imported["created"], &imported["errors"]),
        (&json!(0), &json!(2)),
        "{imported}"
    );
    // Stored entities can be read, and have not changed.
    assert_eq!(server.get(&format!("/api/device/{id}")).ok().json(), device);

    repair(&database);
    assert_eq!(total("/api/tenant/devices?pageSize=10&page=0"), 1);
    assert_eq!(total(&alarms), 0);
    let types = server.get("/api/device/types").ok().json();
    assert!(
        !types
            .as_array()
            .unwrap()
            .iter()
            .any(|found| found["type"] == "a new type"),
        "{types}"
    );
    for (path, body) in changes {
        server.post(path, body.clone()).ok();
    }
    assert_eq!(total("/api/tenant/devices?pageSize=10&page=0"), 2);
    let found = server.get(&alarms).ok().json();
    assert_eq!(found["totalElements"], 1);

    let alarm = found["data"][0]["id"]["id"].as_str().unwrap().to_owned();
    refuse(&database);
    refused(&server.post(&format!("/api/alarm/{alarm}/ack"), Value::Null), 500, 46);
    repair(&database);
    assert_eq!(server.get(&alarms).ok().json()["data"][0]["status"], "ACTIVE_UNACK");
    server.post(&format!("/api/alarm/{alarm}/ack"), Value::Null).ok();
    assert_eq!(server.get(&alarms).ok().json()["data"][0]["status"], "ACTIVE_ACK");
}
