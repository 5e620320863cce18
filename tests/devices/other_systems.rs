//! Rule nodes that send messages to a web server, an MQTT broker or Kafka, and pass on the response.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use serde_json::{Value as Json, json};

use super::rest::Rest;
use super::world::login;
use crate::support::kafka::Kafka;
use crate::support::*;

/// Allows connections to systems on this machine.
const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\noutbound_networks = [\"127.0.0.0/8\", \"::1\"]\n";
const TELEMETRY: &str = "v1/devices/me/telemetry";

/// Starts a web server that echoes the request in its response, or responds with 503 if the path asks for it.
fn web_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
                let (mut first, mut length) = (String::new(), 0);
                if reader.read_line(&mut first).is_err() {
                    return;
                }
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
                        break;
                    }
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap_or(0);
                    }
                }
                let mut body = vec![0; length];
                if reader.read_exact(&mut body).is_err() {
                    return;
                }
                let asked: Json = serde_json::from_slice(&body).unwrap_or_default();
                let said = json!({"asked": first.trim(), "twice": asked["v"].as_i64().unwrap_or(0) * 2}).to_string();
                let status = if first.contains("/busy") {
                    "503 Service Unavailable"
                } else {
                    "200 OK"
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nX-Seen: yes\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{said}",
                    said.len()
                );
                let _ = (&stream).write_all(answer.as_bytes());
            });
        }
    });
    address
}

fn node(class: &str, name: &str, configuration: &Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "additionalInfo": {},
        "debugSettings": {"allEnabled": true}, "configuration": configuration})
}

/// Installs a root chain that sends telemetry to another system and saves the response. Failures go to a separate node.
/// Returns the event paths of the failure node and the save node.
fn put_chain(rest: &Rest, other: &Json) -> (String, String) {
    let chains = rest.ok("GET", "/api/ruleChains?pageSize=10&page=0", &Json::Null);
    let nodes = [
        node(
            "filter.TbMsgTypeFilterNode",
            "telemetry",
            &json!({"messageTypes": ["POST_TELEMETRY_REQUEST"]}),
        ),
        other.clone(),
        node("telemetry.TbMsgTimeseriesNode", "save", &json!({"defaultTTL": 0})),
        node("action.TbLogNode", "failed", &json!({})),
    ];
    let connection = |(from, to, label): (u8, u8, &str)| json!({"fromIndex": from, "toIndex": to, "type": label});
    let connections = [(0, 1, "True"), (1, 2, "Success"), (1, 3, "Failure")].map(connection);
    let metadata = json!({"ruleChainId": chains["data"][0]["id"], "firstNodeIndex": 0, "nodes": nodes, "connections": connections,
        "ruleChainConnections": null});
    let saved = rest.ok("POST", "/api/ruleChain/metadata", &metadata);
    let events = |index: usize| {
        let id = saved["nodes"][index]["id"]["id"].as_str().expect("a node");
        format!("/api/events/RULE_NODE/{id}?pageSize=100&page=0")
    };
    (events(3), events(2))
}

/// Returns the metadata of the first message that entered the node.
fn metadata_of(rest: &Rest, server: &Server, events: &str) -> Json {
    let mut found = Json::Null;
    server.wait_until("a message enters the node", |_| {
        let all = rest.ok("POST", events, &json!({"msgDirectionType": "IN"}));
        found = all["data"][0]["body"]["metadata"].clone();
        found.is_string()
    });
    serde_json::from_str(found.as_str().unwrap_or_default()).expect("metadata is JSON")
}

#[test]
fn rest_call_node_passes_on_the_response_or_its_error_status() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("D", "D");
    let target = web_server();
    let call = |path: &str| {
        let url = format!("http://{target}{path}?of=${{deviceName}}&v=$[v]");
        node(
            "rest.TbRestApiCallNode",
            "call",
            &json!({"restEndpointUrlPattern": url, "requestMethod": "POST", "headers": {}}),
        )
    };
    let (_, saving) = put_chain(&rest, &call("/a b"));
    let mut peer = server.session(&login(V4, "D"));
    peer.publish(&Publish::new(TELEMETRY, r#"{"v":21}"#).qos(1));
    let latest = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys=asked,twice");
    let found = rest.wait_for(&server, &latest, |found| found["twice"][0]["value"] == "42");
    assert_eq!(found["asked"][0]["value"], "POST /a%20b?of=D&v=21 HTTP/1.1");
    let metadata = metadata_of(&rest, &server, &saving);
    let found = ["status", "statusCode", "statusReason", "x-seen", "deviceName"].map(|name| metadata[name].as_str());
    assert_eq!(found, ["OK", "200", "OK", "yes", "D"].map(Some));
    let (failing, _) = put_chain(&rest, &call("/busy"));
    peer.publish(&Publish::new(TELEMETRY, r#"{"v":1}"#).qos(1));
    let metadata = metadata_of(&rest, &server, &failing);
    let found = ["status", "statusCode", "statusReason"].map(|name| metadata[name].as_str());
    assert_eq!(found, ["SERVICE_UNAVAILABLE", "503", "Service Unavailable"].map(Some));
    assert!(
        metadata["error_body"]
            .as_str()
            .is_some_and(|body| body.contains("/busy")),
        "{metadata}"
    );
    let nobody = json!({"restEndpointUrlPattern": "http://127.0.0.1:1/", "requestMethod": "GET"});
    let (failing, _) = put_chain(&rest, &node("rest.TbRestApiCallNode", "call", &nobody));
    peer.publish(&Publish::new(TELEMETRY, r#"{"v":1}"#).qos(1));
    let metadata = metadata_of(&rest, &server, &failing);
    assert!(
        metadata["error"]
            .as_str()
            .is_some_and(|error| error.contains("127.0.0.1:1")),
        "{metadata}"
    );
}

#[test]
fn mqtt_node_delivers_messages_in_order() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    let device = rest.device("D", "D");
    let broker = Server::start(&Config::new(""));
    let mut subscriber = broker.session(&Connect::new(V5, "subscriber"));
    subscriber.subscribe("from/#", 1);
    let configuration = json!({"topicPattern": "from/${deviceName}", "host": "127.0.0.1", "port": broker.mqtt().port(), "cleanSession": true,
        "protocolVersion": "MQTT_3_1_1", "credentials": {"type": "anonymous"}});
    put_chain(&rest, &node("mqtt.TbMqttNode", "publish", &configuration));
    let mut peer = server.session(&login(V4, "D"));
    for number in 0..50 {
        peer.publish(&Publish::new(TELEMETRY, format!("{{\"v\":{number}}}")).qos(1));
    }
    for number in 0..50 {
        let delivery = subscriber.expect_publish();
        assert_eq!(delivery.topic, b"from/D");
        assert_eq!(delivery.payload, format!("{{\"v\":{number}}}").as_bytes());
    }
    let latest = format!("/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys=v");
    rest.wait_for(&server, &latest, |found| found["v"][0]["value"] == "49");
}

#[test]
fn kafka_node_reports_partition_and_offset() {
    let server = Server::start(&Config::new(CONFIG));
    let rest = Rest::login(&server);
    rest.device("D", "D");
    let kafka = Kafka::shared();
    let pattern = unique(&format!("t-{}", std::process::id()));
    let name = format!("{pattern}-D");
    kafka.create_topic(&name, 1);
    let configuration = json!({"topicPattern": format!("{pattern}-${{deviceName}}"), "keyPattern": "k", "bootstrapServers": kafka.address,
        "acks": "-1", "linger": 0});
    let (_, saving) = put_chain(&rest, &node("kafka.TbKafkaNode", "produce", &configuration));
    let mut peer = server.session(&login(V4, "D"));
    peer.publish(&Publish::new(TELEMETRY, r#"{"v":1}"#).qos(1));
    let metadata = metadata_of(&rest, &server, &saving);
    let found = ["topic", "partition", "offset"].map(|name| metadata[name].as_str());
    assert_eq!(found, [&*name, "0", "0"].map(Some));
    let found = kafka.read(&name);
    let records: Vec<_> = found.iter().map(|record| (&*record.key, &*record.value)).collect();
    assert_eq!(records, [("k", r#"{"v":1}"#)]);
}

/// Forwards connections from a free port of `bind` to the address `to`.
fn forward(bind: &str, to: &str) -> SocketAddr {
    let listener = TcpListener::bind((bind, 0)).expect("a free port");
    let (address, to) = (listener.local_addr().expect("an address"), to.to_owned());
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(&to).expect("the target listens");
            for (mut from, mut into) in [(&near, &far), (&far, &near)].map(|(a, b)| (copy_of(a), copy_of(b))) {
                thread::spawn(move || std::io::copy(&mut from, &mut into));
            }
        }
    });
    address
}

fn copy_of(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a socket")
}

#[test]
fn kafka_broker_advertised_on_loopback_is_rejected() {
    // The bootstrap server is on an allowed address. Kafka advertises 127.0.0.1.
    let allowed = CONFIG.replace("127.0.0.0/8", "127.0.0.2");
    let server = Server::start(&Config::new(allowed));
    let rest = Rest::login(&server);
    rest.device("D", "D");
    let kafka = Kafka::start(1);
    kafka.topic("t", 1);
    let bootstrap = forward("127.0.0.2", &kafka.address);
    let configuration = json!({"topicPattern": "t", "keyPattern": "k", "bootstrapServers": bootstrap.to_string(),
        "acks": "-1", "linger": 0});
    let (failing, _) = put_chain(&rest, &node("kafka.TbKafkaNode", "produce", &configuration));
    let mut peer = server.session(&login(V4, "D"));
    peer.publish(&Publish::new(TELEMETRY, r#"{"v":1}"#).qos(1));
    let metadata = metadata_of(&rest, &server, &failing);
    let error = metadata["error"].as_str().unwrap_or_default();
    let expected = format!(
        "the Kafka node cannot connect to {}: 127.0.0.1 is a loopback address",
        kafka.address
    );
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.contains("platform.outbound_networks"), "{error}");
    assert_eq!(kafka.read("t").len(), 0);
}
