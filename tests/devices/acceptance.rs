//! End-to-end tests of the features that ThingsBoard users rely on, against the real binary.
//!
//! They cover the calls and frames of ThingsBoard's load tool, exact usage counts, bounded memory, memory per
//! connection, rule chains, RPC calls and gateways.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::rest::Rest;
use super::world::login;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n[durability]\npolicy = \"os\"\n";
const TELEMETRY: &str = "v1/devices/me/telemetry";
/// Timestamp of the first message (2023-11-14). Each message has its own timestamp.
const BEGIN_MS: i64 = 1_700_000_000_000;

fn start() -> (Server, Rest) {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    (server, rest)
}

/// Creates devices as the load tool does, with the name as access token. Returns their names and identifiers.
fn fleet(rest: &Rest, count: usize) -> Vec<(String, String)> {
    let profile = rest.ok(
        "POST",
        "/api/deviceProfile",
        &json!({"name": "SMART_METER", "type": "DEFAULT", "transportType": "DEFAULT", "provisionType": "DISABLED", "profileData": {
            "configuration": {"type": "DEFAULT"}, "transportConfiguration": {"type": "DEFAULT"},
            "provisionConfiguration": {"type": "DISABLED", "provisionDeviceSecret": null}, "alarms": null}}),
    );
    let device = |index: usize| {
        let name = format!("DW{index:08}");
        assert_eq!(
            rest.call("GET", &format!("/api/tenant/devices?deviceName={name}"), &Json::Null)
                .0,
            404
        );
        let body = json!({"name": name, "type": "device", "deviceProfileId": profile["id"]});
        let made = rest.ok("POST", &format!("/api/device?accessToken={name}"), &body);
        (name, made["id"]["id"].as_str().expect("an identifier").to_owned())
    };
    (0..count).map(device).collect()
}

fn usage(rest: &Rest) -> Json {
    rest.ok("GET", "/api/usage", &Json::Null)
}

/// Waits until all messages are processed and returns the usage counts.
fn settle(server: &Server, rest: &Rest, messages: u64) -> Json {
    server.wait_until_within(Duration::from_secs(120), "all messages are processed", |_| {
        usage(rest)["transportMessages"].as_u64() >= Some(messages)
    });
    usage(rest)
}

fn meter(ts_ms: i64, pulses: i64) -> String {
    format!(
        "{{\"ts\":{ts_ms},\"values\":{{\"pulseCounter\":{pulses},\"leakage\":{},\"batteryLevel\":{}}}}}",
        pulses % 2 == 0,
        50 + pulses % 50
    )
}

/// The load tool uses MQTT 3.1 (`MQIsdp`), its library's client identifier, the token as user name, no password, QoS 0.
#[test]
fn frames_of_the_thingsboard_load_tool_are_accepted() {
    let (server, rest) = start();
    let devices = fleet(&rest, 3);
    for (name, id) in &devices {
        let mut stream = std::net::TcpStream::connect(server.mqtt()).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let client_id = b"netty-mqtt/aB3dE6gH";
        let mut connect = vec![0, 6];
        connect.extend(b"MQIsdp");
        connect.extend([3, 0x82, 0, 60, 0, client_id.len() as u8]);
        connect.extend(client_id);
        connect.extend([0, name.len() as u8]);
        connect.extend(name.as_bytes());
        let mut frame = vec![0x10, connect.len() as u8];
        frame.extend(connect);
        stream.write_all(&frame).expect("the server reads");
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).expect("a CONNACK");
        assert_eq!(answer, [0x20, 2, 0, 0]);
        for body in ["{\"t1\":73}".to_owned(), meter(BEGIN_MS, 7)] {
            let mut publish = vec![0x30, (2 + TELEMETRY.len() + body.len()) as u8, 0, TELEMETRY.len() as u8];
            publish.extend(TELEMETRY.as_bytes());
            publish.extend(body.as_bytes());
            stream.write_all(&publish).expect("the server reads");
        }
        stream.write_all(&[0xc0, 0]).expect("the server reads");
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).expect("a PINGRESP");
        assert_eq!(answer, [0xd0, 0]);
        let path =
            format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=t1,pulseCounter,leakage,batteryLevel");
        let latest = rest.wait_for(&server, &path, |latest| latest["pulseCounter"][0]["value"] == "7");
        assert_eq!(latest["t1"][0]["value"], "73");
        assert_eq!(latest["leakage"][0], json!({"ts": BEGIN_MS, "value": "false"}));
    }
}

/// Usage counters are exact and every stored value equals the sent value.
#[test]
fn fleet_telemetry_is_counted_and_stored_exactly() {
    const DEVICES: usize = 20;
    const EACH: i64 = 50;
    let (server, rest) = start();
    let devices = fleet(&rest, DEVICES);
    let before = usage(&rest);
    assert_eq!(before["devices"], DEVICES);
    for (name, _) in &devices {
        let mut peer = server.session(&login(V3, name));
        peer.send(&Publish::new(TELEMETRY, "{\"t1\":73}").bytes(V3));
        for index in 0..EACH {
            peer.send(&Publish::new(TELEMETRY, meter(BEGIN_MS + index, index)).bytes(V3));
        }
        peer.ping();
        peer.disconnect();
    }
    let sent = DEVICES as u64 * (EACH as u64 + 1);
    let points = DEVICES as u64 * (3 * EACH as u64 + 1);
    let used = settle(&server, &rest, sent);
    assert_eq!(used["transportMessages"], sent);
    assert_eq!(used["transportDataPoints"], points);
    assert_eq!(used["storageDataPoints"], points);
    for (_, id) in &devices {
        let path = format!("/api/plugins/telemetry/DEVICE/{id}");
        let keys = rest.ok("GET", &format!("{path}/keys/timeseries"), &Json::Null);
        assert_eq!(keys.as_array().map(Vec::len), Some(4));
        let range = format!(
            "startTs=0&endTs={}&limit=1000&orderBy=ASC&useStrictDataTypes=true",
            BEGIN_MS + EACH
        );
        let history = format!("{path}/values/timeseries?keys=pulseCounter,leakage,batteryLevel&{range}");
        let history = rest.wait_for(&server, &history, |found| {
            found["batteryLevel"].as_array().map(Vec::len) == Some(EACH as usize)
        });
        for index in 0..EACH {
            let at = |key: &str| history[key][index as usize].clone();
            let point = |value: Json| json!({"ts": BEGIN_MS + index, "value": value});
            assert_eq!(at("pulseCounter"), point(json!(index)));
            assert_eq!(at("leakage"), point(json!(index % 2 == 0)));
            assert_eq!(at("batteryLevel"), point(json!(50 + index % 50)));
        }
    }
    // Each message passes three nodes. Connect, disconnect and activity events pass two: the switch and the log node.
    let nodes = used["ruleEngineExecutions"].as_u64().expect("a number");
    assert!(nodes >= 3 * sent, "{nodes} for {sent} messages");
    let (_, metrics) = server.http_get("/metrics");
    assert!(metrics.contains(&format!("tidewire_platform_points_total {points}")));
}

/// QoS 0 messages that arrive faster than they are processed wait in the log, not in memory. None is lost.
#[test]
fn unprocessed_messages_do_not_accumulate_in_memory() {
    const PEERS: usize = 4;
    const EACH: usize = 25_000;
    let (server, rest) = start();
    let devices = fleet(&rest, PEERS);
    let before = server.anonymous_kib();
    let mut most = before;
    std::thread::scope(|scope| {
        let senders: Vec<_> = devices
            .iter()
            .map(|(name, _)| {
                let server = &server;
                scope.spawn(move || {
                    let mut peer = server.session(&login(V4, name));
                    let mut burst = Vec::new();
                    for index in 0..EACH {
                        burst.extend(Publish::new(TELEMETRY, meter(BEGIN_MS + index as i64, index as i64)).bytes(V4));
                        if burst.len() > 64 << 10 {
                            peer.send(&burst);
                            burst.clear();
                        }
                    }
                    peer.send(&burst);
                    peer.ping();
                })
            })
            .collect();
        while senders.iter().any(|sender| !sender.is_finished()) {
            most = most.max(server.anonymous_kib());
            std::thread::yield_now();
        }
    });
    let sent = (PEERS * EACH) as u64;
    let used = settle(&server, &rest, sent);
    most = most.max(server.anonymous_kib());
    println!("{sent} messages: {before} KiB before, {most} KiB at most");
    assert_eq!(used["transportMessages"], sent);
    assert_eq!(used["storageDataPoints"], 3 * sent);
    assert!(most < before + (160 << 10), "{most} KiB");
}

/// ThingsBoard's article reports 66 KB per connected device. Then all devices reconnect at the same time.
#[test]
fn thousands_of_devices_need_little_memory_and_can_reconnect() {
    const FEW: usize = 100;
    const MANY: usize = 600;
    let (server, rest) = start();
    let devices = fleet(&rest, MANY);
    let connect = |range: std::ops::Range<usize>| -> Vec<Peer> {
        devices[range]
            .iter()
            .map(|(name, _)| {
                let mut peer = server.session(&login(V4, name));
                peer.send(&Publish::new(TELEMETRY, "{\"t1\":73}").bytes(V4));
                peer
            })
            .collect()
    };
    let mut peers = connect(0..FEW);
    settle(&server, &rest, FEW as u64);
    let few = server.anonymous_kib();
    peers.extend(connect(FEW..MANY));
    settle(&server, &rest, MANY as u64);
    let many = server.anonymous_kib();
    let each = many.saturating_sub(few) as f64 / (MANY - FEW) as f64;
    println!("{each:.1} KiB per connected device");
    assert!(each < 16.0, "{each} KiB");
    drop(peers);
    let begun = Instant::now();
    let mut peers = connect(0..MANY);
    println!("{MANY} devices reconnected within {:?}", begun.elapsed());
    peers.iter_mut().for_each(|peer| _ = peer.ping());
    let sessions = format!("tidewire_platform_sessions {MANY}");
    server.wait_until("all devices are connected", |server| {
        server.http_get("/metrics").1.contains(&sessions)
    });
}

/// The load tool replaces the root chain with a chain that counts messages for the tenant.
#[test]
fn message_count_node_counts_every_message_of_the_tenant() {
    const SENT: i64 = 500;
    let (server, rest) = start();
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    let node = |kind: &str, name: &str, configuration: Json| json!({"type": class(kind), "name": name, "configuration": configuration, "debugMode": false});
    let nodes = json!([
        node(
            "filter.TbMsgTypeSwitchNode",
            "Message Type Switch",
            json!({"version": 0})
        ),
        node(
            "telemetry.TbMsgTimeseriesNode",
            "Save Timeseries",
            json!({"defaultTTL": 0})
        ),
        node(
            "action.TbMsgCountNode",
            "Message Count",
            json!({"interval": 1, "telemetryPrefix": "messageCount"})
        ),
        node("telemetry.TbMsgTimeseriesNode", "Save Count", json!({"defaultTTL": 0})),
    ]);
    let connections = json!([
        {"fromIndex": 0, "toIndex": 1, "type": "Post telemetry"},
        {"fromIndex": 1, "toIndex": 2, "type": "Success"},
        {"fromIndex": 2, "toIndex": 3, "type": "Success"},
    ]);
    let chain = rest.ok(
        "POST",
        "/api/ruleChain",
        &json!({"name": "Counting", "type": "CORE", "debugMode": false}),
    );
    let id = chain["id"]["id"].as_str().expect("an identifier");
    let metadata = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": nodes, "connections": connections, "ruleChainConnections": null});
    rest.ok("POST", "/api/ruleChain/metadata", &metadata);
    rest.ok("POST", &format!("/api/ruleChain/{id}/root"), &Json::Null);
    rest.device("A", "TOKEN");
    let mut peer = server.session(&login(V4, "TOKEN"));
    for index in 0..SENT {
        peer.send(&Publish::new(TELEMETRY, meter(BEGIN_MS + index, index)).bytes(V4));
    }
    peer.ping();
    let tenant = rest.ok("GET", "/api/auth/user", &Json::Null)["tenantId"]["id"].clone();
    let tenant = tenant.as_str().expect("an identifier");
    let path = format!(
        "/api/plugins/telemetry/TENANT/{tenant}/values/timeseries?keys=messageCount_tidewire&startTs=0&endTs=4000000000000&limit=1000"
    );
    let counted = |found: &Json| -> i64 {
        let points = found["messageCount_tidewire"].as_array();
        let values = points
            .into_iter()
            .flatten()
            .filter_map(|point| point["value"].as_str()?.parse::<i64>().ok());
        values.sum()
    };
    let found = rest.wait_for(&server, &path, |found| counted(found) >= SENT);
    assert_eq!(counted(&found), SENT);
}

/// Attribute updates and RPC calls from REST reach a connected device immediately. REST returns the device's answer.
#[test]
fn rest_updates_and_calls_reach_a_connected_device_quickly() {
    let (server, rest) = start();
    let id = rest.device("A", "TOKEN");
    let mut peer = server.session(&login(V4, "TOKEN"));
    peer.subscribe("v1/devices/me/attributes", 1);
    peer.subscribe("v1/devices/me/rpc/request/+", 1);
    let begun = Instant::now();
    rest.ok(
        "POST",
        &format!("/api/plugins/telemetry/DEVICE/{id}/SHARED_SCOPE"),
        &json!({"target": 21}),
    );
    let update = peer.receive();
    assert_eq!(update.payload_str(), "{\"target\":21}");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let wanted = json!({"method": "sum", "params": [1, 2], "timeout": 20_000});
    let answer = std::thread::scope(|scope| {
        let asked = scope.spawn(|| rest.ok("POST", &format!("/api/rpc/twoway/{id}"), &wanted));
        let call = peer.receive();
        assert_eq!(call.payload_str(), "{\"method\":\"sum\",\"params\":[1,2]}");
        let number = call.topic_str().rsplit('/').next().expect("a number").to_owned();
        peer.publish(&Publish::new(format!("v1/devices/me/rpc/response/{number}"), "{\"is\":3}").qos(1));
        asked.join().expect("the call ends")
    });
    assert_eq!(answer, json!({"is": 3}));
}

/// One connection sends telemetry of a thousand devices that do not exist before.
#[test]
fn gateway_creates_and_reports_a_thousand_devices() {
    const DEVICES: usize = 1000;
    let (server, rest) = start();
    let gateway = json!({"name": "G", "type": "default", "additionalInfo": {"gateway": true}});
    rest.ok("POST", "/api/device?accessToken=GATEWAY", &gateway);
    let mut peer = server.session(&login(V4, "GATEWAY"));
    let names: Vec<String> = (0..DEVICES).map(|index| format!("D{index:04}")).collect();
    for part in names.chunks(100) {
        for name in part {
            peer.send(&Publish::new("v1/gateway/connect", format!("{{\"device\":\"{name}\"}}")).bytes(V4));
        }
        let said: Json = part
            .iter()
            .map(|name| (name.clone(), json!([{"ts": BEGIN_MS, "values": {"name": name, "n": 1}}, {"ts": BEGIN_MS + 1, "values": {"n": 2}}])))
            .collect::<serde_json::Map<_, _>>()
            .into();
        assert_eq!(
            peer.publish(&Publish::new("v1/gateway/telemetry", said.to_string()).qos(1)),
            0
        );
    }
    let used = settle(&server, &rest, DEVICES as u64);
    assert_eq!(used["devices"], DEVICES + 1);
    assert_eq!(used["transportDataPoints"], 3 * DEVICES);
    for name in [&names[0], &names[DEVICES - 1]] {
        let device = rest.ok("GET", &format!("/api/tenant/devices?deviceName={name}"), &Json::Null);
        let id = device["id"]["id"].as_str().expect("an identifier");
        let path = format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=name,n");
        let latest = rest.wait_for(&server, &path, |latest| latest["n"][0]["value"] == "2");
        assert_eq!(latest["name"][0]["value"], name.as_str());
    }
}
