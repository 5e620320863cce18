//! The contents of the data directory: at least one record of each store.

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::rules::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

const WAITING: [&str; 5] = ["one", "two", "three", "four", "five"];
const ACTION: &str = "/api/v1/actions/http:hook";
const POINTS: i64 = 50;
const FIRST_MS: i64 = 1_700_000_000_000;

/// A session that never expires.
fn durable(client_id: &str) -> Connect {
    Connect::new(V5, client_id)
        .clean(false)
        .property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, u32::MAX))
}

/// Fills the data directory. Every record is durable when it returns.
pub fn make(server: &Server) {
    let api = Api::of(server);
    make_node_files(&api);
    make_rule(&api);
    make_messages(server);
    make_platform(server, &Rest::login(server));
}

pub fn check(server: &Server) {
    let api = Api::of(server);
    check_node_files(server, &api);
    check_messages(server, &api);
    check_rule(server, &api);
    check_platform(server, &Rest::login(server));
}

fn make_node_files(api: &Api<'_>) {
    let user = json!({"name": "ada", "password": "lovelace-1815"});
    api.ok("POST", "/api/v1/users", &user);
    let ban = json!({"kind": "client_id", "who": "banned"});
    api.ok("POST", "/api/v1/banned", &ban);
    let key = json!({"name": "ops", "role": "admin"});
    api.ok("POST", "/api/v1/api-keys", &key);
}

fn check_node_files(server: &Server, api: &Api<'_>) {
    let wrong = Connect::new(V5, "wrong").user("ada", "babbage-1791");
    assert_ne!(server.connect().handshake(&wrong).code, 0);
    server.session(&Connect::new(V5, "right").user("ada", "lovelace-1815"));
    assert_eq!(server.connect().handshake(&Connect::new(V5, "banned")).code, 0x8a);
    let keys = api.get("/api/v1/api-keys");
    assert!(keys.to_string().contains("\"ops\""), "{keys}");
    let audit = api.get("/api/v1/audit?operation=ban");
    assert_eq!(audit["items"][0]["body"]["who"], "banned", "{audit}");
}

/// A rule whose action cannot reach its target: its messages wait in a buffer on the disk.
fn make_rule(api: &Api<'_>) {
    let connector = json!({"type": "http", "name": "web", "config": {"url": "http://127.0.0.1:9"}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let action = json!({
        "type": "http", "name": "hook", "connector": "web", "parameters": {"body": "${payload}"},
        "delivery": {
            "buffer": {"mode": "disk", "segment_bytes": 65_536, "max_bytes": 1 << 20},
            "retry": {"first_ms": 20, "longest_ms": 100}, "health_check_interval_ms": 100,
        },
    });
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "all", "sql": "SELECT payload FROM \"t/#\"", "actions": ["http:hook"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let rule = json!({"id": "all", "sql": "SELECT payload, topic FROM \"t/#\"", "actions": ["http:hook"]});
    api.ok("PUT", "/api/v1/rules/all", &rule);
}

fn check_rule(server: &Server, api: &Api<'_>) {
    let rule = api.get("/api/v1/rules/all");
    assert_eq!(rule["sql"], "SELECT payload, topic FROM \"t/#\"", "{rule:#}");
    assert_eq!(api.get(ACTION)["metrics"]["queued_messages"], WAITING.len());
    let web = WebServer::here();
    let connector = json!({"type": "http", "name": "web", "config": {"url": format!("http://{}", web.address)}});
    api.ok("PUT", "/api/v1/connectors/web", &connector);
    server.wait_until("the waiting messages arrive", |_| web.bodies().len() >= WAITING.len());
    assert_eq!(web.bodies(), WAITING);
}

fn make_messages(server: &Server) {
    let mut queue = server.session(&durable("queue"));
    queue.subscribe("q/#", 2);
    queue.disconnect();
    let mut late = server.session(&durable("late"));
    late.subscribe("late/#", 1);
    late.disconnect();
    let mut member = server.session(&durable("member"));
    member.subscribe("$share/g/s/#", 1);
    member.disconnect();
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    let mut publish = |message: Publish| assert!(publisher.publish(&message) < 0x80);
    publish(Publish::new("q/1", "of QoS 1").qos(1));
    publish(Publish::new("q/2", "of QoS 2").qos(2));
    publish(Publish::new("r/1", "retained").qos(1).retain());
    publish(Publish::new("s/1", "shared").qos(1));
    publish(Publish::new("$delayed/3600/late/1", "delayed").qos(1));
    for text in WAITING {
        publish(Publish::new("t/1", text).qos(1));
    }
}

fn check_messages(server: &Server, api: &Api<'_>) {
    let mut queue = server.connect();
    let connack = queue.handshake(&durable("queue"));
    assert!(connack.code == 0 && connack.session_present, "{connack:?}");
    let received = [queue.receive(), queue.receive()];
    let received = received.map(|delivery| (delivery.payload_str().to_owned(), delivery.qos));
    assert_eq!(received, [("of QoS 1".to_owned(), 1), ("of QoS 2".to_owned(), 2)]);
    let mut member = server.session(&durable("member"));
    assert_eq!(member.receive().payload, b"shared");
    let mut reader = server.session(&Connect::new(V5, "reader"));
    reader.subscribe("r/#", 1);
    assert_eq!(reader.receive().payload, b"retained");
    // An hour after the directory was written, the delayed message is due.
    if api.get("/api/v1/stats")["delayed_messages"] != 1 {
        let mut late = server.session(&durable("late"));
        assert_eq!(late.receive().payload, b"delayed");
    }
}

fn make_platform(server: &Server, rest: &Rest) {
    let device = rest.device("Boiler", "boiler-token");
    let alarm = json!({
        "type": "hot", "severity": "MAJOR", "originator": {"entityType": "DEVICE", "id": device},
    });
    rest.ok("POST", "/api/alarm", &alarm);
    rest.ok(
        "POST",
        "/api/dashboard",
        &json!({"title": "Plant", "configuration": {}}),
    );
    let chain = json!({"name": "Second chain", "type": "CORE", "debugMode": false});
    rest.ok("POST", "/api/ruleChain", &chain);
    let mut peer = server.session(&Connect::new(V4, "boiler").user_name("boiler-token"));
    for number in 0..POINTS {
        let body = format!("{{\"ts\":{},\"values\":{{\"n\":{number}}}}}", FIRST_MS + number);
        peer.publish(&Publish::new("v1/devices/me/telemetry", body).qos(1));
    }
    peer.publish(&Publish::new("v1/devices/me/attributes", "{\"place\":\"cellar\"}").qos(1));
    check_device(server, rest);
}

fn check_platform(server: &Server, rest: &Rest) {
    check_device(server, rest);
    let found = |path: &str, text: &str| {
        let list = rest.ok("GET", path, &Json::Null);
        assert!(list.to_string().contains(text), "{path}: {list:#}");
    };
    found("/api/alarms?pageSize=10&page=0", "\"hot\"");
    found("/api/tenant/dashboards?pageSize=10&page=0", "\"Plant\"");
    found("/api/ruleChains?pageSize=10&page=0", "\"Second chain\"");
}

/// Waits until all values of the device can be read.
fn check_device(server: &Server, rest: &Rest) {
    let path = "/api/tenant/devices?deviceName=Boiler";
    let device = rest.ok("GET", path, &Json::Null)["id"]["id"].clone();
    let device = device.as_str().expect("an identifier");
    let values = format!("/api/plugins/telemetry/DEVICE/{device}/values");
    let series = format!("{values}/timeseries?keys=n&startTs=0&endTs=9999999999999&limit=1000&orderBy=ASC");
    let expected: Vec<Json> = (0..POINTS)
        .map(|number| json!({"ts": FIRST_MS + number, "value": number.to_string()}))
        .collect();
    rest.wait_for(server, &series, |found| found["n"] == json!(expected));
    let attributes = format!("{values}/attributes/CLIENT_SCOPE?keys=place");
    rest.wait_for(server, &attributes, |found| found[0]["value"] == "cellar");
}
