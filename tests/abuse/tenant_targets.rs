//! A tenant administrator tries to make the server connect to addresses that the tenant cannot reach: the server
//! itself, its machine or its network.
//!
//! Each attack is a rule chain with one external node, through which a device message passes. The first group runs with
//! the default configuration, which refuses such targets. In the second group, the operator allows loopback addresses.
//! The connection then succeeds, but does not have the privileges of a local client.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::http::request;
use crate::support::*;

const OPTION: &str = "platform.outbound_networks";
const LOOPBACK: &str = r#"["127.0.0.0/8", "::1"]"#;

/// Server with a tenant and a device of that tenant.
struct Attack {
    server: Server,
    rest: Rest,
    device: Peer,
    /// Payload of the device's telemetry.
    message: String,
}

/// Metadata of the message after the external node, and whether it left by `Success`.
struct Outcome {
    is_success: bool,
    metadata: Json,
}

impl Outcome {
    fn error(&self) -> &str {
        assert!(!self.is_success, "the node succeeded: {}", self.metadata);
        self.metadata["error"].as_str().unwrap_or_default()
    }

    #[track_caller]
    fn assert_refused(&self, target: &str) {
        let error = self.error();
        assert!(error.contains(OPTION) && error.contains(target), "{target}: {error}");
    }
}

impl Attack {
    /// Starts a server whose option has the TOML value `networks`.
    fn start(networks: &str) -> Attack {
        let config = format!("[platform]\nenabled = true\ndemo = true\noutbound_networks = {networks}\n");
        Attack::on(Server::start(&Config::new(config)))
    }

    fn with_defaults() -> Attack {
        Attack::on(Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n")))
    }

    fn on(server: Server) -> Attack {
        let rest = Rest::login(&server);
        rest.device("D", "D");
        let device = server.session(&Connect::new(V4, unique("device")).user_name("D"));
        let message = r#"{"v":1}"#.to_owned();
        Attack {
            server,
            rest,
            device,
            message,
        }
    }

    /// Adds the node to the root chain and sends it a message.
    #[track_caller]
    fn run(&mut self, class: &str, configuration: &Json) -> Outcome {
        let node = |class: &str, name: &str, configuration: &Json| {
            json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "additionalInfo": {},
                "debugSettings": {"allEnabled": true}, "configuration": configuration})
        };
        let nodes = [
            node(
                "filter.TbMsgTypeFilterNode",
                "telemetry",
                &json!({"messageTypes": ["POST_TELEMETRY_REQUEST"]}),
            ),
            node(class, "attack", configuration),
            node("action.TbLogNode", "succeeded", &json!({})),
            node("action.TbLogNode", "failed", &json!({})),
        ];
        let connection = |(from, to, label): (u8, u8, &str)| json!({"fromIndex": from, "toIndex": to, "type": label});
        let connections = [(0, 1, "True"), (1, 2, "Success"), (1, 3, "Failure")].map(connection);
        let chains = self.rest.ok("GET", "/api/ruleChains?pageSize=10&page=0", &Json::Null);
        let metadata = json!({"ruleChainId": chains["data"][0]["id"], "firstNodeIndex": 0, "nodes": nodes,
            "connections": connections, "ruleChainConnections": null});
        let saved = self.rest.ok("POST", "/api/ruleChain/metadata", &metadata);
        self.device
            .publish(&Publish::new("v1/devices/me/telemetry", self.message.clone()).qos(1));
        let mut found = None;
        self.server.wait_until("the message leaves the node", |_| {
            found = [(2, true), (3, false)].into_iter().find_map(|(index, is_success)| {
                let metadata = self.metadata_at(&saved["nodes"][index]["id"]["id"])?;
                Some(Outcome { is_success, metadata })
            });
            found.is_some()
        });
        found.expect("the message left the node")
    }

    /// Returns the metadata of the message that entered the node.
    fn metadata_at(&self, node: &Json) -> Option<Json> {
        let path = format!("/api/events/RULE_NODE/{}?pageSize=10&page=0", node.as_str()?);
        let events = self.rest.ok("POST", &path, &json!({"msgDirectionType": "IN"}));
        serde_json::from_str(events["data"][0]["body"]["metadata"].as_str()?).ok()
    }

    #[track_caller]
    fn publish_retained(&mut self, host: &str, client_id: &str) -> Outcome {
        let port = self.server.mqtt().port();
        let configuration = json!({"topicPattern": "attack", "host": host, "port": port, "clientId": client_id,
            "cleanSession": true, "retainedMessage": true, "connectTimeoutSec": 10, "credentials": {"type": "anonymous"}});
        self.run("mqtt.TbMqttNode", &configuration)
    }

    #[track_caller]
    fn request(&mut self, method: &str, url: &str, headers: &Json) -> Outcome {
        let configuration = json!({"restEndpointUrlPattern": url, "requestMethod": method, "headers": headers});
        self.run("rest.TbRestApiCallNode", &configuration)
    }

    /// Checks that the broker has no retained message on the topic of `publish_retained`.
    #[track_caller]
    fn assert_nothing_retained(&self) {
        let mut watcher = self.server.session(&Connect::new(V5, unique("watcher")));
        watcher.subscribe("attack", 1);
        // A retained message would arrive before the answer.
        watcher.ping_alone();
    }

    fn log_in_as_administrator(&self) -> u16 {
        let password = std::fs::read_to_string(self.server.dir().join("data/admin-password"));
        let password = password.expect("the first start writes a password");
        let login = json!({"user": "admin", "password": password.trim()}).to_string();
        request(self.server.http(), "POST", "/api/v1/login", "", &login).0
    }

    fn metric(&self, name: &str) -> f64 {
        let (status, metrics) = self.server.http_get("/metrics");
        assert_eq!(status, 200, "a client on this machine reads metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).expect(name)
    }
}

#[test]
fn mqtt_node_cannot_publish_to_its_own_broker() {
    let mut attack = Attack::with_defaults();
    let hosts = [
        "127.0.0.1",
        "localhost",
        "127.1.2.3",
        "0.0.0.0",
        "::1",
        "::ffff:127.0.0.1",
        // The resolver also accepts these notations of an address.
        "2130706433",
        "0x7f.1",
    ];
    for host in hosts {
        let outcome = attack.publish_retained(host, "");
        outcome.assert_refused(host);
        assert!(
            outcome.error().starts_with("the MQTT node cannot connect"),
            "{}",
            outcome.error()
        );
    }
    attack.assert_nothing_retained();
    let refused = attack.metric("tidewire_platform_targets_refused_total");
    assert!(refused >= hosts.len() as f64, "{refused} refusals are counted");
    // The log has one line in ten seconds for any number of refusals.
    let log = attack.server.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("connection of a rule chain refused"));
    assert!((1..hosts.len()).contains(&lines.count()), "{log}");
}

#[test]
fn mqtt_node_cannot_take_over_a_local_session() {
    take_over(Attack::with_defaults());
}

#[test]
fn mqtt_node_on_allowed_loopback_cannot_take_over_a_session() {
    take_over(Attack::start(LOOPBACK));
}

fn take_over(mut attack: Attack) {
    let mut victim = attack.server.session(&Connect::new(V5, "victim"));
    attack.publish_retained("127.0.0.1", "victim").error();
    victim.ping_alone();
}

#[test]
fn rest_node_cannot_read_metrics_and_statistics() {
    let mut attack = Attack::with_defaults();
    let port = attack.server.http().port();
    for (host, path) in [
        ("127.0.0.1", "/metrics"),
        ("localhost", "/api/v1/stats"),
        ("[::1]", "/metrics"),
        ("[::ffff:127.0.0.1]", "/metrics"),
    ] {
        let outcome = attack.request("GET", &format!("http://{host}:{port}{path}"), &json!({}));
        outcome.assert_refused(host.trim_matches(['[', ']']));
        assert!(
            !outcome.metadata.to_string().contains("tidewire_"),
            "{}",
            outcome.metadata
        );
    }
}

#[test]
fn failed_rest_node_logins_do_not_lock_out_the_administrator() {
    let mut attack = Attack::with_defaults();
    log_in_wrongly(&mut attack).assert_refused("127.0.0.1");
    assert_eq!(attack.log_in_as_administrator(), 200);
}

#[test]
fn failed_logins_on_allowed_loopback_do_not_lock_out_the_admin() {
    let mut attack = Attack::start(LOOPBACK);
    assert_eq!(log_in_wrongly(&mut attack).error(), "429 Too Many Requests");
    assert_eq!(attack.log_in_as_administrator(), 200);
}

/// Sends more failed logins than one address may. Returns the outcome of the last attempt.
fn log_in_wrongly(attack: &mut Attack) -> Outcome {
    let port = attack.server.http().port();
    let logins = [
        ("/api/v1/login", json!({"user": "admin", "password": "wrong"})),
        (
            "/api/auth/login",
            json!({"username": "tenant@thingsboard.org", "password": "wrong"}),
        ),
    ];
    let mut last = None;
    for (path, login) in logins {
        // The body of the node's request is the device message.
        attack.message = login.to_string();
        for _ in 0..12 {
            last = Some(attack.request("POST", &format!("http://127.0.0.1:{port}{path}"), &json!({})));
        }
    }
    last.expect("at least one login was attempted")
}

#[test]
fn kafka_node_cannot_connect_to_a_local_port() {
    let mut attack = Attack::with_defaults();
    let (listener, connections) = listener("127.0.0.1:0", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned());
    for host in ["127.0.0.1", "localhost"] {
        let configuration = json!({"topicPattern": "t", "bootstrapServers": format!("{host}:{}", listener.port()),
            "acks": "-1", "linger": 0});
        let outcome = attack.run("kafka.TbKafkaNode", &configuration);
        outcome.assert_refused(host);
        // The node reports the reason immediately, without a second connection.
        attack.run("kafka.TbKafkaNode", &configuration).assert_refused(host);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);
}

#[test]
fn redirect_is_not_followed() {
    let mut attack = Attack::start(r#"["127.0.0.2"]"#);
    let metrics = format!("http://{}/metrics", attack.server.http());
    let answer = format!("HTTP/1.1 302 Found\r\nLocation: {metrics}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let (redirecting, connections) = listener("127.0.0.2:0", answer);
    let outcome = attack.request("GET", &format!("http://{redirecting}/"), &json!({}));
    assert_eq!(outcome.error(), "302 Found");
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    attack.request("GET", &metrics, &json!({})).assert_refused("127.0.0.1");
}

#[test]
fn allowed_network_is_reached_without_local_privileges() {
    let mut attack = Attack::start(LOOPBACK);
    let (listener, _) = listener("127.0.0.1:0", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned());
    let outcome = attack.request("GET", &format!("http://{listener}/"), &json!({}));
    assert!(outcome.is_success, "{}", outcome.metadata);
    let port = attack.server.http().port();
    for host in ["127.0.0.1", "localhost", "127.3.2.1"] {
        for path in ["/metrics", "/api/v1/stats"] {
            // The listener of the API is bound to 127.0.0.1.
            let outcome = attack.request(
                "GET",
                &format!("http://{host}:{port}{path}"),
                &json!({"Host": "localhost"}),
            );
            let error = outcome.error();
            assert!(
                error == "401 Unauthorized" || host == "127.3.2.1",
                "{host}{path}: {error}"
            );
        }
    }
    for host in ["127.0.0.1", "localhost"] {
        let outcome = attack.publish_retained(host, "");
        assert!(
            outcome.error().contains("refused the connection"),
            "{}",
            outcome.error()
        );
    }
    attack.assert_nothing_retained();
}

#[test]
fn bridge_to_its_own_broker_is_not_a_local_client() {
    let attack = Attack::with_defaults();
    let password = std::fs::read_to_string(attack.server.dir().join("data/admin-password"));
    let login = json!({"user": "admin", "password": password.expect("a password").trim()}).to_string();
    let (_, answer) = request(attack.server.http(), "POST", "/api/v1/login", "", &login);
    let answer: Json = serde_json::from_str(&answer).expect("JSON");
    let authorization = format!(
        "Authorization: Bearer {}\r\n",
        answer["token"].as_str().expect("a token")
    );
    let call = |method: &str, path: &str, body: &Json| {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (status, answer) = request(attack.server.http(), method, path, &authorization, &body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        serde_json::from_str::<Json>(&answer).unwrap_or_default()
    };
    let config = json!({"server": attack.server.mqtt().to_string(), "client_id": "bridge"});
    call(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "mqtt", "name": "self", "config": config}),
    );
    let parameters = json!({"topic": "attack", "qos": "1", "retain": "true"});
    let action = json!({"type": "mqtt", "name": "self", "connector": "self", "parameters": parameters});
    call("POST", "/api/v1/actions", &action);
    attack.server.wait_until("the bridge is refused as anonymous", |_| {
        let action = call("GET", "/api/v1/actions/mqtt:self", &Json::Null).to_string();
        action.contains("refused the connection")
    });
    assert!(
        !attack.server.log().contains("tidewire_platform_targets"),
        "a bridge of the operator is not checked"
    );
    assert_eq!(attack.metric("tidewire_platform_targets_refused_total"), 0.0);
}

/// Starts a server that answers each request with `answer`. Returns its address and the number of connections.
fn listener(bind: &str, answer: String) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(bind).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (address, connections)
}
