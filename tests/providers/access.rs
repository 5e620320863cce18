//! An HTTP service that decides whether clients may publish and subscribe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::service::{Reply, Service};
use crate::support::api::Api;
use crate::support::packet;
use crate::support::*;

const NOT_AUTHORIZED: u8 = 0x87;
const SERVER_UNAVAILABLE: u8 = 0x88;
const ADMINISTRATIVE_ACTION: u8 = 0x98;

/// Body of the requests. The service records them by `username`, which is the client id here.
const BODY: &str = "[access.source.http.body]\nusername = \"${clientid}\"\naction = \"${action}\"\n\
                    topic = \"${topic}\"\nqos = \"${qos}\"\nretain = \"${retain}\"\n";

/// Decides by the first level of the topic.
fn decides(request: &Json) -> Reply {
    let topic = request["topic"].as_str().unwrap_or_default();
    let result = |result| Reply::Json(json!({ "result": result }));
    match topic.split('/').next().unwrap_or_default() {
        "allow" => result("allow"),
        "bare" => Reply::Raw("204 No Content", ""),
        "once" if request["qos"] == "1" => result("allow"),
        "kept" if request["retain"] == "true" => result("allow"),
        "read" if request["action"] == "subscribe" => result("allow"),
        "ignore" => result("ignore"),
        "garbage" => Reply::Raw("200 OK", "<html>"),
        "broken" => Reply::Raw("500 Internal Server Error", r#"{"result":"allow"}"#),
        "hang" => Reply::Hang,
        _ => result("deny"),
    }
}

fn config(service: &Service, access: &str, options: &str) -> Config {
    let address = service.address;
    Config::new(format!(
        "[access]\nanonymous = \"always\"\n{access}\n[access.source.http]\nurl = \"http://{address}/acl\"\n\
         {options}\n{BODY}"
    ))
}

fn publish(peer: &mut Peer, topic: &str) -> u8 {
    peer.publish(&Publish::new(topic, "x").qos(1))
}

fn is_allowed(code: u8) -> bool {
    code < 0x80
}

#[test]
fn the_service_decides_about_topics_and_filters() {
    let service = Service::start(decides);
    let access = "sources = [\"http\", \"rules\"]\n\
                  rules = [{ permission = \"allow\", topics = [\"ignore/open/#\", \"deny/#\"] }]";
    let server = Server::start(&config(&service, access, ""));
    let mut peer = server.session(&Connect::new(V5, "decided"));
    for (topic, expected) in [
        ("allow/1", true),
        ("bare/1", true),
        ("deny/1", false),
        ("once/1", true),
        ("kept/1", false),
        ("read/1", false),
        ("ignore/open/1", true),
        ("ignore/1", false),
        ("garbage/1", false),
        ("broken/1", false),
    ] {
        assert_eq!(is_allowed(publish(&mut peer, topic)), expected, "{topic}");
    }
    let retained = Publish::new("kept/2", "x").qos(1).retain();
    assert!(is_allowed(peer.publish(&retained)));
    assert_eq!(peer.publish(&Publish::new("once/2", "x").qos(2)), NOT_AUTHORIZED);
    for (filter, expected) in [
        ("read/#", true),
        ("$share/g/read/1", true),
        ("deny/#", false),
        ("ignore/open/#", true),
        ("ignore/#", false),
        ("#", false),
        ("garbage/#", false),
    ] {
        assert_eq!(is_allowed(peer.subscribe_code(filter, 0)), expected, "{filter}");
    }
    let first =
        json!({ "username": "decided", "action": "publish", "topic": "allow/1", "qos": "1", "retain": "false" });
    assert_eq!(service.requests_of("decided")[0], first);
    let log = server.log();
    assert!(log.contains("access source failed"), "{log}");
    let (_, metrics) = server.http_get("/metrics");
    for (result, count) in [("allowed", 6), ("failed", 3), ("ignored", 4)] {
        let sample = format!("tidewire_access_source_results_total{{source=\"http\",result=\"{result}\"}} {count}\n");
        assert!(metrics.contains(&sample), "{sample}{metrics}");
    }
}

#[test]
fn decisions_are_stored_until_the_cache_is_cleared() {
    let service = Service::start(decides);
    let server = Server::start(&config(&service, "sources = [\"http\"]", "cache_ttl = \"1h\""));
    let api = Api::of(&server);
    let mut peer = server.session(&Connect::new(V5, "cached"));
    let asked = || service.requests_of("cached").len();
    for expected in [2, 4] {
        for _ in 0..3 {
            assert!(is_allowed(publish(&mut peer, "allow/1")));
            assert_eq!(publish(&mut peer, "deny/1"), NOT_AUTHORIZED);
        }
        assert_eq!(asked(), expected);
        api.call("DELETE", "/api/v1/acl/cache", &Json::Null);
    }
    peer.subscribe("allow/#", 0);
    peer.subscribe("allow/#", 0);
    assert_eq!(asked(), 5);
    peer.subscribe("allow/#", 1);
    assert_eq!(asked(), 6, "another QoS is another question");
}

#[test]
fn rules_before_the_service_need_no_question() {
    let service = Service::start(decides);
    let access = "sources = [\"rules\", \"http\"]\nno_match = \"allow\"\nrules = [\
                  { permission = \"deny\", topics = [\"allow/secret/#\"] }, \
                  { permission = \"allow\", topics = [\"deny/open/#\"] }]";
    let server = Server::start(&config(&service, access, ""));
    let mut peer = server.session(&Connect::new(V5, "ruled"));
    assert_eq!(publish(&mut peer, "allow/secret/1"), NOT_AUTHORIZED);
    assert!(is_allowed(publish(&mut peer, "deny/open/1")));
    assert!(service.requests_of("ruled").is_empty());
    assert_eq!(publish(&mut peer, "deny/1"), NOT_AUTHORIZED);
    assert!(is_allowed(publish(&mut peer, "ignore/1")), "no_match is allow");
    // The service allows the filter, and a rule before it denies some topics.
    peer.subscribe("allow/#", 0);
    let mut writer = server.session(&Connect::new(V5, "writer"));
    assert!(is_allowed(publish(&mut writer, "allow/1")));
    assert_eq!(peer.expect_publish().topic, b"allow/1");
}

#[test]
fn packets_of_a_client_stay_in_order() {
    let service = Service::start(decides);
    let server = Server::start(&config(&service, "sources = [\"http\"]", "cache_size = 0"));
    let mut reader = server.session(&Connect::new(V5, "reader"));
    reader.subscribe("allow/#", 2);
    for qos in 0..=2 {
        let mut writer = server.session(&Connect::new(V5, format!("writer{qos}")));
        let mut bytes = Vec::new();
        for number in 0..30 {
            let topic = match number % 3 {
                0 => "deny/1".to_owned(),
                _ => format!("allow/{number}"),
            };
            bytes.extend(
                Publish::new(topic, number.to_string())
                    .qos(qos)
                    .id(number + 1)
                    .bytes(V5),
            );
        }
        writer.send(&bytes);
        for number in (0..30).filter(|number| number % 3 != 0) {
            let delivery = reader.receive();
            assert_eq!(delivery.payload, number.to_string().as_bytes(), "QoS {qos}");
        }
        assert_eq!(service.requests_of(&format!("writer{qos}")).len(), 30);
    }
}

#[test]
fn a_hanging_service_does_not_delay_other_clients() {
    let service = Service::start(decides);
    let access = "sources = [\"rules\", \"http\"]\nrules = [{ permission = \"allow\", topics = [\"open/#\"] }]";
    let server = Server::start(&config(
        &service,
        access,
        "timeout = \"1m\"\nmax_concurrent = 2\nmax_waiting = 4",
    ));
    let mut hanging: Vec<Peer> = (0..20)
        .map(|n| server.session(&Connect::new(V5, format!("h{n}"))))
        .collect();
    for peer in &mut hanging {
        peer.send(&Publish::new("hang/1", "x").qos(1).id(1).bytes(V5));
    }
    // Two are asked for, four wait, and the others are denied without a wait.
    let mut denied = 0;
    server.wait_until("fourteen clients are denied", |_| {
        for peer in &mut hanging {
            if let Reading::Packet(packet) = peer.read(Duration::from_millis(1)) {
                assert_eq!(packet.reason(), NOT_AUTHORIZED);
                denied += 1;
            }
        }
        denied == 14
    });
    let mut other = server.session(&Connect::new(V5, "other"));
    other.subscribe("open/#", 0);
    for number in 0..200 {
        assert!(is_allowed(publish(&mut other, &format!("open/{number}"))));
        other.expect_publish();
    }
    // A client that waits can be taken over.
    let mut again = server.session(&Connect::new(V5, "h0"));
    assert!(is_allowed(publish(&mut again, "open/1")));
    let (_, metrics) = server.http_get("/metrics");
    let overloaded = "tidewire_access_source_results_total{source=\"http\",result=\"overloaded\"} 14\n";
    assert!(metrics.contains(overloaded), "{metrics}");
}

#[test]
fn a_service_without_an_answer_denies_by_default() {
    let service = Service::start(decides);
    for (on_failure, expected) in [("deny", false), ("ignore", true)] {
        let access = "sources = [\"http\", \"rules\"]\nrules = [{ permission = \"allow\", topics = [\"#\"] }]";
        let options = format!("timeout = \"100ms\"\non_failure = \"{on_failure}\"");
        let server = Server::start(&config(&service, access, &options));
        let mut peer = server.session(&Connect::new(V5, "unanswered"));
        assert_eq!(is_allowed(publish(&mut peer, "hang/1")), expected, "{on_failure}");
        assert_eq!(is_allowed(peer.subscribe_code("hang/#", 0)), expected, "{on_failure}");
        // A failure that a client can cause never leads to the next source.
        assert!(!is_allowed(publish(&mut peer, "garbage/1")));
        let log = server.log();
        assert!(log.contains("within 100 ms"), "{log}");
        let mut connect = Connect::new(V5, "with will");
        connect = connect.will(Will::new("hang/will", "x"));
        let code = server.connect().handshake(&connect).code;
        assert_eq!(code, if expected { 0 } else { SERVER_UNAVAILABLE }, "{on_failure}");
    }
}

#[test]
fn a_service_that_is_down_denies_until_it_is_back() {
    let address = free_port();
    let server = Server::start(&Config::new(format!(
        "[access]\nanonymous = \"always\"\nsources = [\"http\"]\n\
         [access.source.http]\nurl = \"http://{address}/acl\"\n{BODY}"
    )));
    let mut peer = server.session(&Connect::new(V5, "down"));
    for _ in 0..2 {
        assert_eq!(publish(&mut peer, "allow/1"), NOT_AUTHORIZED);
    }
    let _service = Service::start_at(address, decides);
    assert!(is_allowed(publish(&mut peer, "allow/1")));
    assert_eq!(publish(&mut peer, "deny/1"), NOT_AUTHORIZED);
    let log = server.log();
    assert!(log.contains("access source works again"), "{log}");
}

/// The service changes its decision. A stored one is valid for its lifetime.
#[test]
fn a_revoked_right_takes_effect_after_the_lifetime_of_decisions() {
    let is_open = Arc::new(AtomicBool::new(true));
    let decides_now = is_open.clone();
    let service = Service::start(move |_| match decides_now.load(Ordering::Relaxed) {
        true => Reply::Json(json!({ "result": "allow" })),
        false => Reply::Json(json!({ "result": "deny" })),
    });
    let start = |lifetime: &str| {
        let options = format!("timeout = \"1m\"\ncache_ttl = \"{lifetime}\"");
        Server::start(&config(&service, "sources = [\"http\"]", &options))
    };
    let (long, short) = (start("1h"), start("100ms"));
    let [mut with_long, mut with_short] = [&long, &short].map(|server| server.session(&Connect::new(V5, "revoked")));
    for peer in [&mut with_long, &mut with_short] {
        assert!(is_allowed(publish(peer, "t")));
    }
    is_open.store(false, Ordering::Relaxed);
    short.wait_until("the right is revoked", |_| !is_allowed(publish(&mut with_short, "t")));
    assert!(is_allowed(publish(&mut with_long, "t")));
    assert_eq!(publish(&mut with_long, "other"), NOT_AUTHORIZED);
}

#[test]
fn a_will_is_decided_when_the_client_connects() {
    let service = Service::start(decides);
    let server = Server::start(&config(&service, "sources = [\"http\"]", ""));
    let mut reader = server.session(&Connect::new(V5, "reader"));
    reader.subscribe("allow/#", 0);
    for topic in ["deny/will", "allow/will"] {
        server
            .session(&Connect::new(V5, "mortal").will(Will::new(topic, "gone")))
            .abort();
    }
    assert_eq!(reader.expect_publish().topic, b"allow/will");
    let asked: Vec<Json> = service
        .requests_of("mortal")
        .iter()
        .map(|r| r["topic"].clone())
        .collect();
    assert_eq!(asked, ["deny/will", "allow/will"]);
}

#[test]
fn a_restored_session_is_decided_again_before_it_receives() {
    let is_open = Arc::new(AtomicBool::new(true));
    let decides_now = is_open.clone();
    let service = Service::start(move |request| match request["topic"].as_str() {
        Some("secret/#") if !decides_now.load(Ordering::Relaxed) => Reply::Json(json!({ "result": "deny" })),
        _ => Reply::Json(json!({ "result": "allow" })),
    });
    let mut server = Server::start(&config(&service, "sources = [\"http\"]", ""));
    let connect = Connect::new(V5, "durable").persistent();
    let mut reader = server.session(&connect);
    reader.subscribe("secret/#", 1);
    reader.subscribe("public/#", 1);
    drop(reader);
    server.kill();
    is_open.store(false, Ordering::Relaxed);
    server.spawn_again();
    server.wait_until_ready();
    let mut writer = server.session(&Connect::new(V5, "writer"));
    for topic in ["secret/1", "public/1"] {
        assert!(is_allowed(publish(&mut writer, topic)));
    }
    let mut reader = server.session(&connect);
    assert_eq!(reader.expect_publish().topic, b"public/1");
    assert!(is_allowed(publish(&mut writer, "secret/2")) && is_allowed(publish(&mut writer, "public/2")));
    assert_eq!(reader.expect_publish().topic, b"public/2");
}

#[test]
fn a_removed_filter_allows_no_messages_of_a_wildcard() {
    let service = Service::start(|request| {
        let result = match (request["action"].as_str(), request["topic"].as_str()) {
            (Some("subscribe"), Some("#")) => "ignore",
            _ => "allow",
        };
        Reply::Json(json!({ "result": result }))
    });
    let access = "sources = [\"http\", \"rules\"]\npartial_subscription = \"filter\"\nrules = [\
                  { permission = \"deny\", topics = [\"secret/#\"] }, { permission = \"allow\", topics = [\"#\"] }]";
    let server = Server::start(&config(&service, access, ""));
    let mut writer = server.session(&Connect::new(V5, "writer"));
    let mut reader = server.session(&Connect::new(V5, "reader"));
    reader.subscribe("#", 0);
    reader.subscribe("secret/1", 0);
    assert!(is_allowed(publish(&mut writer, "secret/1")));
    assert_eq!(reader.expect_publish().topic_str(), "secret/1");
    reader.unsubscribe("secret/1");
    for topic in ["secret/1", "open/1"] {
        assert!(is_allowed(publish(&mut writer, topic)));
    }
    assert_eq!(reader.expect_publish().topic_str(), "open/1");
}

#[test]
fn topics_are_values_and_never_part_of_a_request() {
    let service = Service::start(decides);
    let options = "[access.source.http.headers]\nx-topic = \"${topic}\"";
    let server = Server::start(&config(&service, "sources = [\"http\"]", options));
    let mut peer = server.session(&Connect::new(V5, "injecting"));
    for topic in [
        r#"deny/","result":"allow","x":""#,
        "deny/&topic=allow",
        "deny/%0d%0aallow",
        "deny/../allow",
        "deny/${clientid}",
    ] {
        assert_eq!(publish(&mut peer, topic), NOT_AUTHORIZED, "{topic}");
        let asked = service.requests_of("injecting");
        assert_eq!(asked.last().map(|request| request["topic"].clone()), Some(json!(topic)));
    }
    // A topic that a header cannot contain is denied without a request.
    let before = service.requests_of("injecting").len();
    assert_eq!(publish(&mut peer, "allow/\u{e9}"), NOT_AUTHORIZED);
    assert_eq!(service.requests_of("injecting").len(), before);
}

#[test]
fn a_denied_client_is_disconnected_if_configured() {
    let service = Service::start(decides);
    let access = "sources = [\"http\"]\ndeny_action = \"disconnect\"";
    let server = Server::start(&config(&service, access, ""));
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    publisher.send(&Publish::new("deny/1", "x").bytes(V5));
    publisher.expect_disconnect(NOT_AUTHORIZED);
    let mut subscriber = server.session(&Connect::new(V5, "subscriber"));
    subscriber.send(&packet::subscribe(V5, 1, &[("deny/#", 0)], &[]));
    subscriber.expect_disconnect(NOT_AUTHORIZED);
}

#[test]
fn the_access_test_shows_the_decision_of_each_source() {
    let service = Service::start(decides);
    let access = "sources = [\"rules\", \"http\"]\nrules = [{ permission = \"allow\", topics = [\"open/#\"] }]";
    let server = Server::start(&config(&service, access, ""));
    let api = Api::of(&server);
    for (action, topic, is_allowed, rules, http) in [
        ("publish", "open/1", true, "allow", "not_asked"),
        ("publish", "allow/1", true, "ignore", "allow"),
        ("subscribe", "read/#", true, "ignore", "allow"),
        ("publish", "read/1", false, "ignore", "deny"),
        ("publish", "ignore/1", false, "ignore", "ignore"),
        ("publish", "garbage/1", false, "ignore", "failed"),
    ] {
        let test = json!({ "action": action, "topic": topic, "client_id": "tested" });
        let result = api.ok("POST", "/api/v1/acl/test", &test);
        assert_eq!(result["is_allowed"], is_allowed, "{action} {topic}: {result}");
        let decision = |source: usize| {
            (
                &result["sources"][source]["source"],
                &result["sources"][source]["decision"],
            )
        };
        assert_eq!(
            decision(0),
            (&json!("rules"), &json!(rules)),
            "{action} {topic}: {result}"
        );
        assert_eq!(
            decision(1),
            (&json!("http"), &json!(http)),
            "{action} {topic}: {result}"
        );
        let (rule, of_http) = (&result["rule"], &result["sources"][1]);
        let reason = match http {
            "not_asked" => "rules has decided",
            "failed" => "http://127.0.0.1:",
            _ => "the service answers",
        };
        assert!(
            of_http["reason"].as_str().is_some_and(|text| text.contains(reason)),
            "{result}"
        );
        match http {
            "not_asked" => assert_eq!((rule, &of_http["took_ms"]), (&json!(0), &Json::Null), "{result}"),
            _ => assert!(
                of_http["took_ms"].is_number() && of_http["origin"] == "asked",
                "{result}"
            ),
        }
    }
}

#[test]
fn the_service_decides_about_a_subscription_of_an_operator() {
    let service = Service::start(decides);
    let server = Server::start(&config(&service, "sources = [\"http\"]", ""));
    let api = Api::of(&server);
    let mut peer = server.session(&Connect::new(V5, "helped"));
    for (filter, status) in [("read/#", 201), ("deny/#", 422), ("garbage/#", 503)] {
        let subscription = json!({ "filter": filter, "qos": 0 });
        let (found, answer) = api.call("POST", "/api/v1/clients/helped/subscriptions", &subscription);
        assert_eq!(found, status, "{filter}: {answer}");
    }
    let asked = service.requests_of("helped");
    let asked: Vec<&Json> = asked.iter().map(|request| &request["topic"]).collect();
    assert_eq!(asked, ["read/#", "deny/#", "garbage/#"]);
    assert!(
        is_allowed(publish(&mut peer, "allow/1")),
        "the client is still asked for"
    );
    peer.ping_alone();
}

/// The service was not asked about a superuser, so its next login asks.
#[test]
fn a_user_that_is_no_superuser_any_more_connects_again() {
    let service = Service::start(decides);
    let server = Server::start(&config(&service, "sources = [\"http\"]", ""));
    let api = Api::of(&server);
    let mut user = json!({ "name": "root", "password": "correct horse battery", "is_superuser": true });
    api.ok("POST", "/api/v1/users", &user);
    let connect = Connect::new(V5, "demoted").user("root", "correct horse battery");
    let mut peer = server.session(&connect.clone().persistent());
    for filter in ["deny/#", "read/#"] {
        peer.subscribe(filter, 0);
    }
    assert!(service.requests_of("demoted").is_empty());
    user = json!({ "is_superuser": false });
    api.ok("PUT", "/api/v1/users/root", &user);
    peer.expect_disconnect(ADMINISTRATIVE_ACTION);
    let _peer = server.session(&connect.persistent());
    let subscriptions = api.get("/api/v1/clients/demoted/subscriptions");
    assert_eq!(subscriptions.as_array().map(Vec::len), Some(1), "{subscriptions}");
    assert_eq!(subscriptions[0]["filter"], "read/#");
}

/// Replaces the configuration of a running server, and reloads it.
fn reload(server: &Server, config: &Config) {
    std::fs::write(server.dir().join("config"), &config.toml).expect("the server's directory is writable");
    let kill = format!("kill -HUP {}", server.pid());
    let status = std::process::Command::new("sh").args(["-c", &kill]).status();
    assert!(status.expect("there is a shell").success());
    server.wait_until("the reload", |server| server.log().contains("after a restart"));
}

#[test]
fn changed_sources_have_no_effect_before_a_restart() {
    let service = Service::start(decides);
    let server = Server::start(&config(&service, "sources = [\"http\"]", ""));
    let mut peer = server.session(&Connect::new(V5, "closed"));
    assert!(is_allowed(publish(&mut peer, "allow/1")));
    reload(&server, &config(&service, "sources = [\"rules\"]", ""));
    assert_eq!(publish(&mut peer, "deny/1"), NOT_AUTHORIZED);
    let mut late = server.session(&Connect::new(V5, "late"));
    assert_eq!(late.subscribe_code("deny/#", 0), NOT_AUTHORIZED);

    let server = Server::start(&config(&service, "sources = [\"rules\"]", ""));
    let mut peer = server.session(&Connect::new(V5, "open"));
    peer.subscribe("deny/#", 1);
    reload(&server, &config(&service, "sources = [\"http\"]", ""));
    assert!(is_allowed(publish(&mut peer, "deny/1")));
    assert_eq!(peer.expect_publish().topic_str(), "deny/1");
}

#[test]
fn a_packet_with_many_filters_causes_few_requests() {
    let service = Service::start(decides);
    let server = Server::start(&config(&service, "sources = [\"http\"]", ""));
    let mut other = server.session(&Connect::new(V5, "other"));
    let mut peer = server.session(&Connect::new(V5, "many"));
    let equal: Vec<(&str, u8)> = (0..200_000).map(|_| ("a", 0)).collect();
    peer.send(&packet::subscribe(V5, 1, &equal, &[]));
    let suback = peer.expect_packet();
    assert_eq!(suback.first, 0x90);
    assert_eq!(service.requests_of("many").len(), 1);
    let names: Vec<String> = (0..20_000).map(|number| format!("allow/{number}")).collect();
    let different: Vec<(&str, u8)> = names.iter().map(|name| (name.as_str(), 0)).collect();
    peer.send(&packet::subscribe(V5, 2, &different, &[]));
    // The answer comes after all questions. Other clients do not wait for it.
    assert!(is_allowed(publish(&mut other, "allow/other")));
    peer.expect_packet();
    assert_eq!(service.requests_of("many").len(), 1001);
    assert!(is_allowed(publish(&mut peer, "allow/0")));
}
