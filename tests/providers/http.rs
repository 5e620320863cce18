//! Authentication by an HTTP service.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use super::service::{Reply, Service};
use crate::database_logins::reconnects::{Crowd, reconnect_at_once};
use crate::support::*;

/// Password file made by `mosquitto_passwd -b`: alice `wonderland`.
const PASSWORDS: &str = "\
alice:$7$101$MN7fbLzX3QMSv09F$2mupi6/RSIbhkRn3Ycmtaz8QRQekZzDtYe+WpDH9Ap7E6AmSN5IuvBFXtpndE9vBP26IHoP91q77KnaAvAAOVw==
";

/// Password of the users of the service.
const PASSWORD: &str = "tr0ub4dor";

/// Body of the requests.
const BODY: &str = "[access.http.body]\nusername = \"${username}\"\npassword = \"${password}\"\nip = \"${peerhost}\"\n";

const OK: u8 = 0;
const BAD_USER_NAME_OR_PASSWORD: u8 = 0x86;
const NOT_AUTHORIZED: u8 = 0x87;
const SERVER_UNAVAILABLE: u8 = 0x88;
const MAXIMUM_CONNECT_TIME: u8 = 0xA0;

/// How long a login of the user `brief` is valid.
const BRIEF_S: u64 = 4;

/// Knows the users of these tests, who have the same password.
fn knows_users(request: &Json) -> Reply {
    let allow = |more: Json| {
        let mut answer = json!({ "result": "allow" });
        for (name, value) in more.as_object().expect("an object") {
            answer[name] = value.clone();
        }
        match request["password"] == PASSWORD {
            true => Reply::Json(answer),
            false => Reply::Json(json!({ "result": "deny" })),
        }
    };
    match request["username"].as_str().unwrap_or_default() {
        "plain" | "crowd" => allow(json!({})),
        meter if meter.starts_with("meter-") => allow(json!({ "client_attrs": { "site": meter } })),
        "bare" => Reply::Raw("204 No Content", ""),
        "root" => allow(json!({ "is_superuser": true })),
        "limited" => allow(json!({
            "acl": [
                { "permission": "allow", "action": "publish", "topic": "closed/${clientid}", "retain": false },
                { "permission": "allow", "action": "subscribe", "topic": "closed/#" },
                { "permission": "deny", "action": "all", "topic": "open/#" },
            ],
        })),
        "listed" => allow(json!({ "acl": { "pub": ["closed/${username}"], "sub": [] } })),
        "brief" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            allow(json!({ "expire_at": now.as_secs() + BRIEF_S }))
        }
        "late" => allow(json!({ "expire_at": 1_000_000_000 })),
        "wrong-rules" => allow(json!({ "acl": [{ "permission": "allow", "topic": "#" }] })),
        "garbage" => Reply::Raw("200 OK", "<html>"),
        "broken" => Reply::Raw("500 Internal Server Error", r#"{"result":"allow"}"#),
        "forbidden" => Reply::Raw("403 Forbidden", r#"{"result":"allow"}"#),
        "hanging" => Reply::Hang,
        _ => Reply::Json(json!({ "result": "ignore" })),
    }
}

fn config(service: &Service, access: &str, options: &str) -> Config {
    let address = service.address;
    let toml = format!(
        "[access]\nanonymous = \"never\"\nmax_login_failures = 0\npassword_file = \"{{dir}}/passwords\"\n{access}\n\
         [access.http]\nurl = \"http://{address}/auth\"\n{options}\n{BODY}"
    );
    Config::new(toml).file("passwords", PASSWORDS)
}

/// Topics below `closed/` are denied by the rules of the server.
const RULES: &str =
    "rules = [{ permission = \"deny\", topics = [\"closed/#\"] }, { permission = \"allow\", topics = [\"#\"] }]";

/// Returns the service and the server that most of these tests share. The service is asked before the users of the
/// server.
fn shared() -> &'static (Service, Server) {
    static SHARED: OnceLock<(Service, Server)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let service = Service::start(knows_users);
        let access = format!("providers = [\"http\", \"users\"]\n{RULES}");
        let server = Server::start(&config(&service, &access, "timeout = \"1m\""));
        (service, server)
    })
}

fn client(user_name: &str, password: &str) -> Connect {
    Connect::new(V5, unique("http")).user(user_name, password)
}

#[track_caller]
fn code(server: &Server, connect: &Connect) -> u8 {
    server.connect().handshake(connect).code
}

#[test]
fn the_answer_of_the_service_decides() {
    let (service, server) = shared();
    for (user_name, password, expected) in [
        ("plain", PASSWORD, OK),
        ("plain", "wrong", NOT_AUTHORIZED),
        ("bare", "any", OK),
        // The users of the server decide after the service has ignored the client.
        ("alice", "wonderland", OK),
        ("alice", PASSWORD, BAD_USER_NAME_OR_PASSWORD),
        ("unknown", PASSWORD, BAD_USER_NAME_OR_PASSWORD),
        ("forbidden", PASSWORD, BAD_USER_NAME_OR_PASSWORD),
        ("late", PASSWORD, NOT_AUTHORIZED),
        ("garbage", PASSWORD, SERVER_UNAVAILABLE),
        ("broken", PASSWORD, SERVER_UNAVAILABLE),
        ("wrong-rules", PASSWORD, SERVER_UNAVAILABLE),
    ] {
        let found = code(server, &client(user_name, password));
        assert_eq!(found, expected, "{user_name} {password}");
    }
    let asked = service.requests_of("plain");
    assert_eq!(
        asked[0],
        json!({ "username": "plain", "password": PASSWORD, "ip": "127.0.0.1" })
    );
    let before = service.requests_of("bare").len();
    assert_eq!(code(server, &client("bare", "any")), OK);
    assert_eq!(service.requests_of("bare").len(), before, "the answer is not cached");
}

#[test]
fn rules_of_the_answer_come_before_those_of_the_server() {
    let (_, server) = shared();
    let publish = |peer: &mut Peer, topic: &str| peer.publish(&Publish::new(topic, "x").qos(1)) < 0x80;
    let mut plain = server.session(&client("plain", PASSWORD));
    assert!(publish(&mut plain, "open/1") && !publish(&mut plain, "closed/1"));
    let mut root = server.session(&client("root", PASSWORD));
    assert!(publish(&mut root, "closed/1"));
    root.subscribe("closed/#", 0);

    let connect = client("limited", PASSWORD);
    let own = format!("closed/{}", String::from_utf8_lossy(&connect.client_id));
    let mut limited = server.session(&connect);
    assert!(publish(&mut limited, &own) && publish(&mut limited, "other"));
    assert!(!publish(&mut limited, "closed/1") && !publish(&mut limited, "open/1"));
    let retained = Publish::new(&own, "x").qos(1).retain();
    assert_eq!(limited.publish(&retained), NOT_AUTHORIZED);
    limited.subscribe("closed/#", 0);
    assert_eq!(limited.subscribe_code("open/1", 0), NOT_AUTHORIZED);

    let mut listed = server.session(&client("listed", PASSWORD));
    assert!(publish(&mut listed, "closed/listed") && !publish(&mut listed, "other"));
    assert_eq!(listed.subscribe_code("other", 0), NOT_AUTHORIZED);
}

#[test]
fn a_client_is_disconnected_when_its_login_expires() {
    let (_, server) = shared();
    let mut brief = server.session(&client("brief", PASSWORD));
    brief.expect_disconnect(MAXIMUM_CONNECT_TIME);
}

#[test]
fn equal_questions_of_many_clients_are_asked_once() {
    let (service, server) = shared();
    let connect = |number| Connect::new(V5, format!("crowd-{number}")).user("crowd", PASSWORD);
    for _ in 0..4 {
        let mut peers: Vec<Peer> = (0..500).map(|_| server.connect()).collect();
        for (number, peer) in peers.iter_mut().enumerate() {
            peer.send(&connect(number).bytes());
        }
        for peer in &mut peers {
            assert_eq!(peer.expect_packet().connack(V5).code, OK);
        }
    }
    assert_eq!(service.requests_of("crowd").len(), 1);
}

#[test]
fn clients_that_reconnect_at_once_are_all_admitted() {
    // The queue of logins of the shared server must not be full for other tests.
    let service = Service::start(knows_users);
    let config = config(&service, "providers = [\"http\", \"users\"]", "timeout = \"1m\"");
    reconnect_at_once(config, &Crowd::default(), |_| PASSWORD.to_owned());
    // Most clients are admitted by the cache.
    assert_eq!(service.requests_of("meter-1").len(), 1);
}

#[test]
fn a_changed_password_takes_effect_after_the_lifetime_of_the_answers() {
    let accepted = Arc::new(Mutex::new("old"));
    let password = accepted.clone();
    let service = Service::start(move |request| {
        let is_right = request["password"] == *password.lock().expect("not poisoned");
        let result = if is_right { "allow" } else { "deny" };
        Reply::Json(json!({ "result": result }))
    });
    let start = |lifetime: &str| {
        let options = format!("timeout = \"1m\"\ncache_allowed = \"{lifetime}\"\ncache_denied = \"{lifetime}\"");
        Server::start(&config(&service, "providers = [\"http\", \"users\"]", &options))
    };
    let (long, short) = (start("1d"), start("100ms"));
    for server in [&long, &short] {
        assert_eq!(code(server, &client("ann", "old")), OK);
        assert_eq!(code(server, &client("ann", "new")), NOT_AUTHORIZED);
    }
    *accepted.lock().expect("not poisoned") = "new";
    short.wait_until("the new password is in use", |server| {
        code(server, &client("ann", "new")) == OK
    });
    short.wait_until("the old password is not", |server| {
        code(server, &client("ann", "old")) == NOT_AUTHORIZED
    });
    assert_eq!(code(&long, &client("ann", "old")), OK);
    assert_eq!(code(&long, &client("ann", "new")), NOT_AUTHORIZED);
}

/// The users of the server are asked first, and do not wait for the service.
#[test]
fn a_hanging_service_does_not_delay_other_clients() {
    let service = Service::start(knows_users);
    let access = "providers = [\"users\", \"http\"]";
    let options = "timeout = \"1m\"\nmax_concurrent = 2\nmax_waiting = 4";
    let server = Server::start(&config(&service, access, options));
    let mut publisher = server.session(&client("alice", "wonderland"));
    let mut hanging: Vec<Peer> = (0..20).map(|_| server.connect().speak(V5)).collect();
    for (number, peer) in hanging.iter_mut().enumerate() {
        // Different passwords are different questions.
        peer.send(&client("hanging", &format!("{number}")).bytes());
    }
    let is_busy = |_: &Server| service.requests_of("hanging").len() == 2;
    server.wait_until("the service has two questions", is_busy);
    for number in 0..100 {
        let topic = format!("a/{number}");
        assert!(publisher.publish(&Publish::new(topic, "x").qos(1)) < 0x80);
        if number % 10 == 0 {
            server.session(&client("alice", "wonderland")).disconnect();
        }
    }
    // Two clients are asked for, four wait, and the others are rejected without a wait.
    let mut rejected = 0;
    server.wait_until("fourteen clients are rejected", |_| {
        for peer in &mut hanging {
            if let Reading::Packet(packet) = peer.read(Duration::from_millis(1)) {
                assert_eq!(packet.connack(V5).code, SERVER_UNAVAILABLE);
                rejected += 1;
            }
        }
        rejected == 14
    });
    assert_eq!(service.requests_of("hanging").len(), 2);
}

#[test]
fn a_service_without_an_answer_is_a_failure() {
    let service = Service::start(knows_users);
    for (on_failure, expected) in [
        ("deny", SERVER_UNAVAILABLE),
        ("ignore", BAD_USER_NAME_OR_PASSWORD),
        ("allow", OK),
    ] {
        let options = format!("timeout = \"100ms\"\non_failure = \"{on_failure}\"");
        let server = Server::start(&config(&service, "providers = [\"http\", \"users\"]", &options));
        assert_eq!(code(&server, &client("hanging", PASSWORD)), expected, "{on_failure}");
        let log = server.log();
        assert_eq!(
            log.contains("clients are admitted without a check"),
            on_failure == "allow",
            "{log}"
        );
        assert!(log.contains("authentication provider failed"), "{log}");
        assert!(!log.contains(PASSWORD), "{log}");
    }
}

#[test]
fn a_service_that_is_down_is_a_failure_until_it_is_back() {
    let address = free_port();
    let toml = format!(
        "[access]\nanonymous = \"never\"\nmax_login_failures = 0\nproviders = [\"http\", \"users\"]\n\
         password_file = \"{{dir}}/passwords\"\n[access.http]\nurl = \"http://{address}\"\n{BODY}"
    );
    let server = Server::start(&Config::new(toml).file("passwords", PASSWORDS));
    for connect in [client("plain", PASSWORD), client("alice", "wonderland")] {
        assert_eq!(code(&server, &connect), SERVER_UNAVAILABLE);
    }
    let _service = Service::start_at(address, knows_users);
    assert_eq!(code(&server, &client("plain", PASSWORD)), OK);
    assert_eq!(code(&server, &client("alice", "wonderland")), OK);
    let log = server.log();
    assert!(log.contains("authentication provider works again"), "{log}");
    let (_, metrics) = server.http_get("/metrics");
    for (result, count) in [("failed", 2), ("allowed", 1), ("ignored", 1), ("timed_out", 0)] {
        let sample = format!("tidewire_auth_provider_results_total{{provider=\"http\",result=\"{result}\"}} {count}\n");
        assert!(metrics.contains(&sample), "{sample}{metrics}");
    }
    assert!(
        metrics.contains("tidewire_auth_provider_failing{provider=\"http\"} 0\n"),
        "{metrics}"
    );
}
