//! Attacks on the path between a client and an authentication provider: an HTTP service decides.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;

use serde_json::{Value as Json, json};

use super::guesses::connect_from;
use crate::providers::service::{Reply, Service};
use crate::support::packet::subscribe;
use crate::support::*;

const DENIED: u8 = 0x87;
const UNAVAILABLE: u8 = 0x88;

/// Rules with an attribute of the client.
const RULES: &str = "rules = [{ permission = \"allow\", topics = [\"tenant/${client_attrs.tenant}/#\", \"open/#\"] }]";

const BODY: &str = "[access.http.body]\nusername = \"${username}\"\npassword = \"${password}\"\n\
                    client = \"${clientid}\"\nip = \"${peerhost}\"\n";

/// Returns an answer for the user name. `secret` is the password of each user.
fn answer(request: &Json) -> Reply {
    let user = request["username"].as_str().unwrap_or_default();
    if user == "hang" {
        return Reply::Hang;
    }
    if request["password"] != "secret" {
        return Reply::Json(json!({"result": "deny"}));
    }
    let tenant = |name: &str| Reply::Json(json!({"result": "allow", "client_attrs": {"tenant": name}}));
    let superuser = |value: Json| Reply::Json(json!({"result": "allow", "is_superuser": value}));
    match user {
        "ann" => tenant("a"),
        "cached" => tenant("c"),
        "plus" => tenant("+"),
        "hash" => tenant("#"),
        "deep" => tenant("a/#"),
        "none" => Reply::Json(json!({"result": "allow"})),
        "empty" => tenant(""),
        "place" => tenant("${username}"),
        "yes" => superuser(json!("yes")),
        "two" => superuser(json!(2)),
        "list" => superuser(json!([true])),
        "object" => superuser(json!({"x": true})),
        "long" => Reply::Raw("413 Content Too Large", ""),
        "twice" => Reply::Raw("200 OK", r#"{"result":"deny"}{"result":"allow"}"#),
        "array" => Reply::Raw("200 OK", r#"[{"result":"allow"}]"#),
        "upper" => Reply::Raw("200 OK", r#"{"result":"ALLOW"}"#),
        "truth" => Reply::Raw("200 OK", r#"{"result":true}"#),
        "created" => Reply::Raw("201 Created", r#"{"result":"allow"}"#),
        "moved" => Reply::Raw(moved(), ""),
        _ => Reply::Json(json!({"result": "deny"})),
    }
}

/// Where the service sends the server for the user `moved`.
fn elsewhere() -> &'static TcpListener {
    static ELSEWHERE: OnceLock<TcpListener> = OnceLock::new();
    ELSEWHERE.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        listener
    })
}

fn moved() -> &'static str {
    static MOVED: OnceLock<String> = OnceLock::new();
    MOVED.get_or_init(|| {
        let address = elsewhere().local_addr().expect("a bound socket");
        format!("307 Temporary Redirect\r\nlocation: http://{address}/")
    })
}

fn start(on_failure: &str, timeout: &str) -> (Service, Server) {
    let service = Service::start(answer);
    let toml = format!(
        "[access]\nanonymous = \"never\"\nproviders = [\"http\"]\nmax_login_failures = 0\n{RULES}\n\
         [access.http]\nurl = \"http://{}/auth\"\ntimeout = \"{timeout}\"\non_failure = \"{on_failure}\"\n{BODY}",
        service.address
    );
    let server = Server::start(&Config::new(toml));
    (service, server)
}

/// Returns the service and the server that most of these tests share. A client that could cause a failure of the
/// service would be admitted, so a busy machine must not cause one.
fn lenient() -> &'static (Service, Server) {
    static LENIENT: OnceLock<(Service, Server)> = OnceLock::new();
    LENIENT.get_or_init(|| start("allow", "1m"))
}

fn client(user: &str) -> Connect {
    Connect::new(V5, unique("attack")).user(user, "secret")
}

fn code(server: &Server, connect: &Connect) -> u8 {
    server.connect().handshake(connect).code
}

#[test]
fn clients_cannot_cause_a_failure() {
    let (_, server) = lenient();
    let long = "x".repeat(60_000);
    let attacks = [
        (
            "a long user name",
            Connect::new(V5, unique("attack")).user(&long, "secret"),
        ),
        ("a long password", Connect::new(V5, unique("attack")).user("ann", &long)),
        (
            "a line break",
            Connect::new(V5, unique("attack")).user("ann\r\nX-Admin: 1", "secret"),
        ),
        (
            "JSON",
            Connect::new(V5, unique("attack")).user("ann\",\"result\":\"allow", "secret"),
        ),
        (
            "a password that is no text",
            Connect::new(V5, unique("attack")).user("ann", [0xFF, 0xFE]),
        ),
        (
            "a placeholder",
            Connect::new(V5, unique("attack")).user("${password}", "secret"),
        ),
        ("no user name", Connect::new(V5, unique("attack")).password("secret")),
        ("no password", Connect::new(V5, unique("attack")).user_name("ann")),
        ("a service that finds the request too long", client("long")),
    ];
    for (attack, connect) in attacks {
        assert!(code(server, &connect) >= 0x80, "{attack}");
    }
    assert_eq!(code(server, &client("ann")), 0);
}

#[test]
fn unclear_answers_do_not_admit() {
    let (_service, server) = start("deny", "1m");
    for user in [
        "yes", "two", "list", "object", "twice", "array", "upper", "truth", "created", "moved",
    ] {
        assert_eq!(code(&server, &client(user)), UNAVAILABLE, "{user}");
    }
    assert!(elsewhere().accept().is_err(), "the server has followed a redirect");
    assert_eq!(code(&server, &client("ann")), 0);
}

#[test]
fn cached_answers_are_for_equal_credentials_only() {
    let (service, server) = lenient();
    let id = unique("attack");
    // The other tests of the service, which run at the same time, do not use this name.
    let cached = || Connect::new(V5, &id).user("cached", "secret");
    assert_eq!(code(server, &cached()), 0);
    let asked = service.requests_of("cached").len();
    assert_eq!(code(server, &cached()), 0);
    assert_eq!(service.requests_of("cached").len(), asked, "the answer is cached");
    for (attack, connect) in [
        ("another password", Connect::new(V5, &id).user("cached", "secreT")),
        ("a longer password", Connect::new(V5, &id).user("cached", "secret\0")),
        ("a moved letter", Connect::new(V5, &id).user("cacheds", "ecret")),
        ("an empty password", Connect::new(V5, &id).user("cached", "")),
    ] {
        assert_eq!(code(server, &connect), DENIED, "{attack}");
    }
    // The service knows the client id and the address, so they belong to the question.
    let before = service.requests_of("cached").len();
    assert_eq!(code(server, &client("cached")), 0);
    let mut other = connect_from(Ipv4Addr::new(127, 9, 9, 9), server.mqtt());
    assert_eq!(other.handshake(&cached()).code, 0);
    assert_eq!(service.requests_of("cached").len(), before + 2);
}

#[test]
fn packets_before_the_decision_have_no_effect() {
    let (service, server) = start("deny", "3s");
    let mut watcher = server.session(&client("ann"));
    watcher.subscribe("open/#", 0);
    let bytes = [
        client("hang").bytes(),
        Publish::new("open/1", "smuggled").bytes(V5),
        Publish::new("open/2", "smuggled").qos(1).retain().bytes(V5),
        subscribe(V5, 2, &[("open/#", 0)], &[]),
    ]
    .concat();
    let mut peer = server.connect().speak(V5);
    peer.send(&bytes);
    server.wait_until("the service is asked", |_| service.requests_of("hang").len() == 1);
    watcher.publish(&Publish::new("open/3", "during").qos(1));
    let closed = peer.expect_closed(PATIENCE);
    assert_eq!(closed.connack_code(V5), Some(UNAVAILABLE));
    watcher.publish(&Publish::new("open/4", "after").qos(1));
    let seen: Vec<Vec<u8>> = watcher
        .receive_until("after")
        .into_iter()
        .map(|message| message.payload)
        .collect();
    assert_eq!(seen, [b"during"]);
}

#[test]
fn attributes_do_not_widen_rules() {
    let (_, server) = lenient();
    let topics = [
        "tenant/a/x",
        "tenant/b/x",
        "tenant//x",
        "tenant/${username}/x",
        "tenant/place/x",
    ];
    for user in ["plus", "hash", "deep", "none", "empty", "place"] {
        let mut peer = server.connect().speak(V5);
        if peer.handshake(&client(user)).code >= 0x80 {
            continue;
        }
        for filter in ["tenant/a/#", "tenant/b/#", "tenant/+/x", "tenant/#", "#"] {
            assert!(peer.subscribe_code(filter, 0) >= 0x80, "{user} {filter}");
        }
        for topic in &topics[..2] {
            assert!(peer.publish(&Publish::new(topic, "x").qos(1)) >= 0x80, "{user} {topic}");
        }
    }
    let mut ann = server.session(&client("ann"));
    assert_eq!(ann.subscribe_code("tenant/a/#", 0), 0);
    for topic in &topics[1..] {
        assert!(ann.publish(&Publish::new(topic, "x").qos(1)) >= 0x80, "{topic}");
    }
}

#[test]
fn waiting_clients_have_bounded_memory() {
    let (_service, server) = start("allow", "1s");
    let before = server.anonymous_kib();
    let password = "p".repeat(60_000);
    for round in 0..20 {
        let mut peers: Vec<Peer> = (0..100).map(|_| server.connect().speak(V5)).collect();
        for (number, peer) in peers.iter_mut().enumerate() {
            let connect = Connect::new(V5, unique("attack")).user("hang", format!("{round}/{number}/{password}"));
            let _ = peer.try_send(&connect.bytes());
        }
        // The clients are gone before the answers.
    }
    assert_eq!(code(&server, &client("ann")), 0);
    let growth = server.anonymous_kib().saturating_sub(before);
    // 2,000 clients with 60 kB would be 120 MB, without copies.
    assert!(growth < 200 * 1024, "{growth} KiB");
}

#[test]
fn clients_that_disconnect_do_not_occupy_questions() {
    let service = Service::start(answer);
    let toml = format!(
        "[access]\nanonymous = \"never\"\nproviders = [\"http\"]\nmax_login_failures = 0\n\
         [access.http]\nurl = \"http://{}/auth\"\ntimeout = \"1m\"\nmax_concurrent = 1\nmax_waiting = 2\n{BODY}",
        service.address
    );
    let server = Server::start(&Config::new(toml));
    let hang = |password: String| Connect::new(V5, unique("attack")).user("hang", password);
    let waiting = |count: usize| {
        let sample = format!("tidewire_auth_provider_waiting{{provider=\"http\"}} {count}\n");
        move |server: &Server| server.http_get("/metrics").1.contains(&sample)
    };
    let mut first = server.connect().speak(V5);
    first.send(&hang("first".to_owned()).bytes());
    server.wait_until("the service is asked", |_| service.requests_of("hang").len() == 1);
    for number in 0..20 {
        let mut peer = server.connect().speak(V5);
        peer.send(&hang(format!("{number}")).bytes());
        server.wait_until("the client waits", waiting(1));
        peer.abort();
        server.wait_until("the place of the client is free", waiting(0));
    }
    assert_eq!(service.requests_of("hang").len(), 1);
    let (_, metrics) = server.http_get("/metrics");
    let overloaded = "tidewire_auth_provider_results_total{provider=\"http\",result=\"overloaded\"} 0\n";
    assert!(metrics.contains(overloaded), "{metrics}");
}
