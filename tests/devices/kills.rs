//! The test repeatedly kills the server under QoS 1 load.
//!
//! Afterwards every acknowledged point is stored and no other values are. Messages, points and alarms are counted once,
//! although recovery processes some messages again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::rest::Rest;
use super::world::{NOW, login};
use crate::support::*;

const KILLS: u64 = 20;
const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n[durability]\nsegment_bytes = \"1MiB\"\n[limits]\nshutdown_grace = \"500ms\"\n";
/// Devices with their own connection, and devices behind one gateway that reports all of them in each message.
const DEVICES: [&str; 3] = ["D0", "D1", "D2"];
const GATEWAY: &str = "GATE";
const BEHIND: [&str; 2] = ["G0", "G1"];
/// Unacknowledged messages per connection.
const WINDOW: usize = 64;

/// Messages that one connection sent in all rounds.
#[derive(Default)]
struct Said {
    sent: i64,
    acknowledged: Vec<i64>,
}

// fault: Process killed; Ingest log
#[test]
fn acknowledged_points_are_stored_once_despite_kills() {
    let kills = scaled(KILLS);
    let mut server = Server::start(&Config::new(CONFIG));
    let ids = make(&Rest::login(&server));
    let mut said: HashMap<&str, Said> = HashMap::new();
    let mut restarts = Vec::new();
    for round in 0..kills {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let senders: Vec<_> = DEVICES.into_iter().chain([GATEWAY]).collect();
        let loads = senders.into_iter().map(|name| {
            let peer = server.session(&login(V4, name));
            let (mut said, total) = (said.remove(name).unwrap_or_default(), Arc::clone(&acknowledged));
            thread::spawn(move || {
                load(peer, name, &mut said, &total);
                (name, said)
            })
        });
        let loads: Vec<_> = loads.collect();
        // Each round kills the server at a different time after the first acknowledgements.
        let enough = 1 + 271 * (round * 7 % 11);
        server.wait_until("enough messages are acknowledged", |_| {
            acknowledged.load(Relaxed) >= enough
        });
        server.kill();
        said.extend(
            loads
                .into_iter()
                .map(|load| load.join().expect("the thread ends with the server")),
        );
        server.spawn_again();
        if round % 5 == 4 {
            // The next kill may happen during log replay.
            server.wait_until("the server listens", |server| {
                std::net::TcpStream::connect(server.mqtt()).is_ok()
            });
            server.kill();
            server.spawn_again();
        }
        let begun = std::time::Instant::now();
        server.wait_until_ready();
        restarts.push(begun.elapsed());
    }
    let rest = Rest::login(&server);
    let (mut stored_sum, mut messages, mut alarms) = (0, 0, 0);
    let acknowledged: usize = said.values().map(|said| said.acknowledged.len()).sum();
    let (mut missing, mut strange) = (0, 0);
    let sent: u64 = said.values().map(|said| said.sent as u64).sum();
    wait_until_read(&server);
    for (name, id) in &ids {
        let said = &said[if BEHIND.contains(name) { GATEWAY } else { *name }];
        let stored = points(&rest, id, "n");
        missing += said.acknowledged.iter().filter(|n| !stored.contains_key(n)).count();
        strange += stored
            .iter()
            .filter(|(n, value)| **n >= said.sent || **value != json!(n))
            .count();
        let hot = points(&rest, id, "hot");
        assert_eq!(hot.len(), stored.len(), "{name}: both values of each message");
        // Processed in order, alarms are raised and cleared as often as the value changes.
        let rises = hot.values().fold((0, false), |(rises, was_hot), hot| {
            let is_hot = *hot == json!(true);
            (rises + u64::from(is_hot && !was_hot), is_hot)
        });
        alarms += rises.0;
        messages += stored.len() as u64;
        stored_sum += stored.len();
    }
    let slowest = restarts.iter().max().copied().unwrap_or_default();
    println!(
        "{kills} kills: {sent} sent, {acknowledged} acknowledged, {stored_sum} stored, {missing} missing, {strange} not as sent, {alarms} alarms; slowest start {slowest:?}"
    );
    assert_eq!((missing, strange), (0, 0));
    let usage = rest.ok("GET", "/api/usage", &Json::Null);
    let counted = [
        "transportMessages",
        "transportDataPoints",
        "storageDataPoints",
        "alarms",
    ]
    .map(|key| usage[key].as_u64());
    assert_eq!(
        counted,
        [messages, 2 * messages, 2 * messages, alarms].map(Some),
        "{usage}"
    );
    let found = rest.ok("GET", "/api/v2/alarms?pageSize=1&page=0", &Json::Null);
    assert_eq!(found["totalElements"].as_u64(), Some(alarms));
}

/// Creates the devices with one profile whose alarm is raised and cleared by a value. Returns names and identifiers.
fn make(rest: &Rest) -> Vec<(&'static str, String)> {
    let when = |hot: bool| {
        json!({"condition": {"spec": {"type": "SIMPLE"}, "condition": [{"key": {"type": "TIME_SERIES", "key": "hot"}, "valueType": "BOOLEAN",
            "predicate": {"type": "BOOLEAN", "operation": "EQUAL", "value": {"defaultValue": hot}}}]}})
    };
    let alarm =
        json!({"id": "hot", "alarmType": "hot", "createRules": {"CRITICAL": when(true)}, "clearRule": when(false)});
    let profile = json!({"name": "oven", "type": "DEFAULT", "transportType": "DEFAULT", "provisionType": "DISABLED",
        "profileData": {"configuration": {"type": "DEFAULT"}, "transportConfiguration": {"type": "DEFAULT"}, "alarms": [alarm]}});
    rest.ok("POST", "/api/deviceProfile", &profile);
    let device = |name: &'static str, more: Json| {
        let body = json!({"name": name, "type": "oven", "additionalInfo": more});
        let made = rest.ok("POST", &format!("/api/device?accessToken={name}"), &body);
        (name, made["id"]["id"].as_str().expect("an identifier").to_owned())
    };
    device(GATEWAY, json!({"gateway": true}));
    let all = DEVICES.into_iter().chain(BEHIND);
    all.map(|name| device(name, Json::Null)).collect()
}

/// Publishes as fast as messages are acknowledged, until the server is killed.
fn load(mut peer: Peer, name: &str, said: &mut Said, total: &AtomicU64) {
    let mut waiting: HashMap<u16, i64> = HashMap::new();
    let mut is_there = true;
    loop {
        while is_there && waiting.len() < WINDOW {
            let (n, id) = (said.sent, peer.packet_id());
            said.sent += 1;
            waiting.insert(id, n);
            let message = message(name, n).qos(1).id(id);
            is_there = peer.try_send(&message.bytes(V4)).is_ok();
        }
        // Acknowledgements that the server sent before the kill still arrive.
        match peer.read(PATIENCE) {
            Reading::Packet(packet) if packet.kind() == kind::PUBACK => {
                let n = waiting.remove(&packet.packet_id()).expect("a message that was sent");
                said.acknowledged.push(n);
                total.fetch_add(1, Relaxed);
            }
            Reading::Packet(packet) => panic!("unexpected: {packet:?}"),
            Reading::Closed => return,
            Reading::Silence => panic!("the server neither answers nor closes the connection"),
        }
    }
}

fn message(name: &str, n: i64) -> Publish {
    let values = json!({"ts": NOW + n, "values": {"n": n, "hot": n / 10 % 2 == 1}});
    if name != GATEWAY {
        return Publish::new("v1/devices/me/telemetry", values.to_string());
    }
    let all: BTreeMap<&str, [&Json; 1]> = BEHIND.into_iter().map(|device| (device, [&values])).collect();
    Publish::new("v1/gateway/telemetry", json!(all).to_string())
}

/// Waits until the whole log is processed.
fn wait_until_read(server: &Server) {
    server.wait_until_within(Duration::from_secs(60), "the log is processed", |server| {
        let (_, metrics) = server.http_get("/metrics");
        metrics.lines().any(|line| line == "tidewire_platform_lag_messages 0")
    });
}

/// Returns the points by message number.
fn points(rest: &Rest, device: &str, key: &str) -> BTreeMap<i64, Json> {
    let path = format!(
        "/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys={key}&startTs=0&endTs={}&limit=10000000&orderBy=ASC&useStrictDataTypes=true",
        i64::MAX
    );
    let found = rest.ok("GET", &path, &Json::Null);
    let points = found[key].as_array().into_iter().flatten();
    points
        .map(|point| (point["ts"].as_i64().expect("a time") - NOW, point["value"].clone()))
        .collect()
}
