//! Message values in the targets of actions and rule nodes.
//!
//! A value must not change the host or the path of a request, and must not add a parameter, a header or a JSON member.
//! Each test has two web servers: the configured one, which gets a secret header, and one that the attacker wants to
//! reach.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value as Json, json};

use crate::support::api::Api;
use crate::support::*;

const SECRET: &str = "Bearer secret";

#[derive(Clone, Debug)]
struct Request {
    line: String,
    headers: Vec<String>,
    body: String,
}

/// Web server that accepts and records every request.
#[derive(Clone)]
struct Web {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Web {
    fn start() -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let web = Web {
            address: listener.local_addr().expect("an address"),
            requests: Arc::default(),
        };
        let requests = web.requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let requests = requests.clone();
                thread::spawn(move || serve(stream, &requests));
            }
        });
        web
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic").clone()
    }

    fn lines(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.line).collect()
    }
}

fn serve(stream: TcpStream, requests: &Mutex<Vec<Request>>) -> Option<()> {
    let mut answers = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let length = head
            .iter()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        requests.lock().expect("no panic").push(Request {
            line: head.remove(0),
            headers: head,
            body: String::from_utf8_lossy(&body).into_owned(),
        });
        answers
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .ok()?;
    }
}

/// Server with a rule that sends messages of topic `t` to the configured web server.
struct Scene {
    server: Server,
    web: Web,
    other: Web,
}

impl Scene {
    fn start() -> Scene {
        let scene = Scene {
            server: Server::start(&Config::default()),
            web: Web::start(),
            other: Web::start(),
        };
        let config = json!({"url": format!("http://{}", scene.web.address), "headers": {"authorization": SECRET}});
        let connector = json!({"type": "http", "name": "web", "config": config});
        scene.api().ok("POST", "/api/v1/connectors", &connector);
        scene
    }

    fn api(&self) -> Api<'_> {
        Api::of(&self.server)
    }

    fn try_define(&self, parameters: &Json) -> (u16, Json) {
        let action = json!({"type": "http", "name": "hook", "connector": "web", "parameters": parameters});
        self.api().call("POST", "/api/v1/actions", &action)
    }

    #[track_caller]
    fn define(&self, parameters: &Json) {
        let (status, answer) = self.try_define(parameters);
        assert!((200..300).contains(&status), "{status} {answer:#}");
        let rule = json!({"id": "all", "sql": "SELECT * FROM \"t\"", "actions": ["http:hook"]});
        self.api().ok("POST", "/api/v1/rules", &rule);
    }

    fn publish(&self, client: &str, payload: &str) {
        let mut session = self.server.session(&Connect::new(V5, client));
        session.publish(&Publish::new("t", payload).qos(1));
    }

    fn action(&self) -> Json {
        self.api().get("/api/v1/actions/http:hook")
    }

    /// Waits until the action has processed this many messages and returns its last error.
    #[track_caller]
    fn wait_until_refused(&self, count: u64) -> String {
        self.server.wait_until("the action refuses the message", |_| {
            self.action()["metrics"]["failed"] == count
        });
        let action = self.action();
        action["health"]["last_error"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn wait_for_requests(&self, count: usize) {
        self.server
            .wait_until("the requests have arrived", |_| self.web.requests().len() >= count);
    }
}

/// Checks that the definition is rejected with a diagnostic for this field.
#[track_caller]
fn assert_refused(what: &dyn std::fmt::Display, (status, answer): (u16, &Json), field: &str) {
    assert_eq!(
        (status, answer["field"].as_str()),
        (422, Some(field)),
        "{what}: {answer}"
    );
}

#[test]
fn path_starting_with_a_value_is_rejected_at_definition() {
    let scene = Scene::start();
    for path in [
        "${payload.path}",
        "${payload.path}/x",
        "x${payload.path}",
        "@{payload.path}",
    ] {
        let (status, answer) = scene.try_define(&json!({"path": path}));
        assert_refused(&path, (status, &answer), "parameters.path");
    }
    let (status, answer) = scene.try_define(&json!({"path": "/x", "headers": {"Host": "${payload.host}"}}));
    assert_refused(&"Host", (status, &answer), "parameters.headers.Host");
}

#[test]
fn value_in_the_path_does_not_change_the_host() {
    let scene = Scene::start();
    scene.define(&json!({"path": "/${payload.path}?to=${payload.path}"}));
    let evil = scene.other.address;
    for path in [
        format!("@{evil}/x"),
        format!("/{evil}/x"),
        format!(":80@{evil}"),
        format!("http://{evil}/"),
    ] {
        scene.publish("c", &json!({"path": path}).to_string());
    }
    scene.wait_for_requests(4);
    let encoded = |text: String| text.replace('@', "%40").replace(':', "%3A").replace('/', "%2F");
    let expected = [
        format!("@{evil}/x"),
        format!("/{evil}/x"),
        format!(":80@{evil}"),
        format!("http://{evil}/"),
    ];
    let expected = expected
        .map(encoded)
        .map(|value| format!("POST /{value}?to={value} HTTP/1.1"));
    assert_eq!(scene.web.lines(), expected);
    assert!(scene.other.requests().is_empty(), "{:?}", scene.other.requests());
    let host = format!("host: {}", scene.web.address);
    assert!(
        scene
            .web
            .requests()
            .iter()
            .all(|request| request.headers.iter().any(|line| line.to_lowercase() == host))
    );
}

#[test]
fn client_id_with_dot_segments_does_not_change_the_path() {
    let scene = Scene::start();
    scene.define(&json!({"path": "/dev/${clientid}/x", "method": "delete"}));
    for (number, client) in ["../../admin?del=1&x=", "..", "%2e%2e%2fadmin", "a/../../admin"]
        .into_iter()
        .enumerate()
    {
        scene.publish(client, "{}");
        let error = scene.wait_until_refused(number as u64 + 1);
        assert!(
            error.contains("path: ") && error.contains("dot segment"),
            "{client}: {error}"
        );
    }
    for client in ["c1", "a/b?del=1#x", "a&b=c d"] {
        scene.publish(client, "{}");
    }
    // The action counts a request when it has the answer.
    scene
        .server
        .wait_until("three messages are sent and four are refused", |_| {
            let action = scene.action();
            let metrics = &action["metrics"];
            (&metrics["failed"], &metrics["sent"]) == (&json!(4), &json!(3))
        });
    let expected = ["a%26b%3Dc%20d", "a%2Fb%3Fdel%3D1%23x", "c1"].map(|id| format!("DELETE /dev/{id}/x HTTP/1.1"));
    // Messages of different clients have no order.
    let mut lines = scene.web.lines();
    lines.sort();
    assert_eq!(lines, expected);
}

#[test]
fn missing_or_empty_value_in_the_path_is_rejected() {
    let scene = Scene::start();
    scene.define(&json!({"path": "/dev/${payload.id}?t=${payload.t}"}));
    for (number, payload) in ["{}", r#"{"id":null}"#, r#"{"id":""}"#].into_iter().enumerate() {
        scene.publish("c", payload);
        let error = scene.wait_until_refused(number as u64 + 1);
        assert!(error.contains("path: a value is "), "{payload}: {error}");
    }
    scene.publish("c", r#"{"id":7}"#);
    scene.wait_for_requests(1);
    assert_eq!(scene.web.lines(), ["POST /dev/7?t= HTTP/1.1"]);
}

#[test]
fn value_does_not_add_a_header() {
    let scene = Scene::start();
    scene.define(&json!({"path": "/x", "headers": {"x-name": "${payload.name}"}}));
    for (number, name) in ["a\r\nx-admin: 1", "a\nb", "a\0b", "a\r"].into_iter().enumerate() {
        scene.publish("c", &json!({"name": name}).to_string());
        let error = scene.wait_until_refused(number as u64 + 1);
        assert!(error.contains("headers.x-name"), "{name:?}: {error}");
    }
    scene.publish("c", r#"{"name":"good"}"#);
    scene.wait_for_requests(1);
    assert_eq!(scene.web.requests().len(), 1);
}

#[test]
fn value_does_not_add_a_member_to_a_json_body() {
    let scene = Scene::start();
    scene.define(&json!({"path": "/x", "body": r#"{"id":"${clientid}","t":${payload.t}}"#}));
    let client = r#"x","admin":true,"y":""#;
    for t in [
        json!(20),
        json!("1,\"admin\":true"),
        json!("warm"),
        json!({"a": [1]}),
        Json::Null,
    ] {
        scene.publish(client, &json!({"t": t}).to_string());
    }
    scene.wait_for_requests(5);
    let bodies: Vec<Json> = scene
        .web
        .requests()
        .iter()
        .map(|request| serde_json::from_str(&request.body).unwrap_or_else(|error| panic!("{error}: {}", request.body)))
        .collect();
    let expected = [
        json!(20),
        json!("1,\"admin\":true"),
        json!("warm"),
        json!({"a": [1]}),
        Json::Null,
    ];
    assert_eq!(bodies, expected.map(|t| json!({"id": client, "t": t})));
}

#[test]
fn connectors_with_invalid_addresses_are_rejected() {
    let server = Server::shared();
    let api = Api::of(server);
    let http = |url: &str| json!({"type": "http", "name": "bad", "config": {"url": url, "headers": {"authorization": SECRET}}});
    let of = |kind: &str, config: Json| json!({"type": kind, "name": "bad", "config": config});
    for (connector, field) in [
        (http("http://h:99999"), "config.url"),
        (http("http://h:abc"), "config.url"),
        (http("http://h:"), "config.url"),
        (http("https://h:0/x"), "config.url"),
        (http("http://h#x"), "config.url"),
        (http("http://${clientid}:80"), "config.url"),
        (of("redis", json!({"servers": ["h:99999"]})), "config.servers"),
        (of("redis", json!({"servers": ["u@h:6379"]})), "config.servers"),
        (
            of("mqtt", json!({"server": "h:+1883", "client_id": "c"})),
            "config.server",
        ),
        (
            of("mqtt", json!({"server": "${h}:1883", "client_id": "c"})),
            "config.server",
        ),
        (
            of("kafka", json!({"bootstrap_hosts": "h:9092,:9092"})),
            "config.bootstrap_hosts",
        ),
        (
            of("kafka", json!({"bootstrap_hosts": "h:9092,g:99999"})),
            "config.bootstrap_hosts",
        ),
        (
            of("postgresql", json!({"host": "a b", "database": "d", "user": "u"})),
            "config.host",
        ),
        (
            of(
                "postgresql",
                json!({"host": "h", "port": 0, "database": "d", "user": "u"}),
            ),
            "config.port",
        ),
    ] {
        let (status, answer) = api.call("POST", "/api/v1/connectors", &connector);
        assert_refused(&connector, (status, &answer), field);
        assert!(!answer.to_string().contains("secret"), "{answer}");
    }
}

/// Tenant administrator who uses ThingsBoard's REST API.
struct Tenant {
    address: SocketAddr,
    token: String,
}

impl Tenant {
    fn login(server: &Server) -> Tenant {
        let mut tenant = Tenant {
            address: server.http(),
            token: String::new(),
        };
        let user = json!({"username": "tenant@thingsboard.org", "password": "tenant"});
        let pair = tenant.ok("POST", "/api/auth/login", &user);
        tenant.token = pair["token"].as_str().expect("a token").to_owned();
        tenant
    }

    #[track_caller]
    fn ok(&self, method: &str, path: &str, body: &Json) -> Json {
        let mut stream = TcpStream::connect(self.address).expect("the API listens");
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nX-Authorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        )
        .expect("the API accepts a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the API answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        assert!(head.starts_with("HTTP/1.0 200"), "{method} {path}: {answer}");
        serde_json::from_str(body).unwrap_or(Json::Null)
    }

    /// Installs a root chain that sends telemetry to a URL with the credentials of the node.
    fn call_from_chain(&self, url: &str) {
        let chains = self.ok("GET", "/api/ruleChains?pageSize=10&page=0", &Json::Null);
        let node = |class: &str, name: &str, configuration: Json| json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "additionalInfo": {}, "configuration": configuration});
        let call = json!({"restEndpointUrlPattern": url, "requestMethod": "POST", "headers": {},
            "credentials": {"type": "basic", "username": "u", "password": "p"}});
        let metadata = json!({"ruleChainId": chains["data"][0]["id"], "firstNodeIndex": 0, "ruleChainConnections": null,
            "nodes": [node("filter.TbMsgTypeFilterNode", "telemetry", json!({"messageTypes": ["POST_TELEMETRY_REQUEST"]})),
                node("rest.TbRestApiCallNode", "call", call)],
            "connections": [{"fromIndex": 0, "toIndex": 1, "type": "True"}]});
        self.ok("POST", "/api/ruleChain/metadata", &metadata);
    }
}

#[test]
fn value_does_not_change_the_target_of_a_rule_node() {
    let server = Server::start(&Config::new(
        "[platform]\nenabled = true\ndemo = true\noutbound_networks = [\"127.0.0.0/8\"]\n",
    ));
    let (web, other) = (Web::start(), Web::start());
    let tenant = Tenant::login(&server);
    tenant.ok(
        "POST",
        "/api/device?accessToken=D",
        &json!({"name": "D", "type": "default"}),
    );
    let mut device = server.session(&Connect::new(V4, "D").user("D", ""));
    let mut publish = |values: Json| {
        device.publish(&Publish::new("v1/devices/me/telemetry", values.to_string()).qos(1));
    };
    for url in [
        "http://$[host]/x",
        "http://${deviceName}$[host]/x",
        "$[url]",
        "http://h:$[port]/x",
    ] {
        tenant.call_from_chain(url);
        publish(
            json!({"host": other.address.to_string(), "url": format!("http://{}/x", other.address), "port": other.address.port()}),
        );
    }
    tenant.call_from_chain(&format!("http://{}/dev/$[id]/x?q=$[q]", web.address));
    publish(json!({"id": "../../admin?del=1", "q": "1"}));
    publish(json!({"id": format!("@{}/x", other.address), "q": "1&del=1"}));
    let id = format!("%40{}%2Fx", other.address.to_string().replace(':', "%3A"));
    server.wait_until("the request has arrived", |_| {
        web.lines().iter().any(|line| line.contains(&id))
    });
    // On a slow machine, the last chain may also process messages that were published before it was saved.
    let lines = web.lines().into_iter().filter(|line| !line.contains("$[id]"));
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [format!("POST /dev/{id}/x?q=1%26del%3D1 HTTP/1.1")]
    );
    assert!(other.requests().is_empty(), "{:?}", other.requests());
}
