//! Reads data of other clients from system topics, and sends texts that other programs misread.

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::api::Api;
use crate::support::*;

fn topic_of(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.topic).into_owned()
}

#[test]
fn system_topics_of_clients_are_for_superusers() {
    let server = Server::start(&Config::new("[sys]\ninterval = \"1s\"\n"));
    let user = json!({"name": "admin", "password": "correct horse battery", "is_superuser": true});
    Api::of(&server).ok("POST", "/api/v1/users", &user);
    let mut reader = server.session(&Connect::new(V5, unique("reader")));
    let reason = reader.subscribe_code("$SYS/brokers/+/clients/#", 0);
    assert!(reason >= 0x80, "{reason:#x}");
    // This subscription is granted, because most system topics are public.
    reader.subscribe("$SYS/#", 0);
    let login = Connect::new(V5, unique("admin"))
        .user_name("admin")
        .password("correct horse battery");
    let mut superuser = server.session(&login);
    superuser.subscribe("$SYS/brokers/+/clients/#", 0);
    let victim = unique("victim");
    drop(server.session(&Connect::new(V5, &victim)));
    let of_victim = |topic: &str| topic.contains("/clients/") && topic.contains(&victim);
    while !of_victim(&topic_of(&superuser.expect_publish())) {}
    // The tree is published again after the event.
    let mut topics = Vec::new();
    for _ in 0..2 {
        loop {
            let topic = topic_of(&reader.expect_publish());
            topics.push(topic.clone());
            if topic == "$SYS/broker/uptime" {
                break;
            }
        }
    }
    assert!(
        !topics
            .iter()
            .any(|topic| topic.contains("/clients/victim") || of_victim(topic)),
        "{topics:?}"
    );
}

#[test]
fn invalid_text_searches_are_refused() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let tenant = Rest::login(&server);
    for text in [
        "a".repeat(50_000),
        "a".repeat(1001),
        "%00".to_owned(),
        "a%00b".to_owned(),
    ] {
        for list in ["/api/tenant/devices", "/api/alarms", "/api/users", "/api/audit/logs"] {
            let path = format!("{list}?pageSize=10&page=0&textSearch={text}");
            let (status, answer) = tenant.call("GET", &path, &Json::Null);
            assert_eq!(status, 400, "{list}: {answer}");
        }
        let text = text.replace("%00", "\0");
        let query = json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"},
            "pageLink": {"pageSize": 10, "page": 0, "textSearch": text}});
        assert_eq!(tenant.call("POST", "/api/entitiesQuery/find", &query).0, 400);
    }
    tenant.ok(
        "GET",
        "/api/tenant/devices?pageSize=10&page=0&textSearch=a",
        &Json::Null,
    );
}

#[test]
fn exports_contain_no_formulas() {
    let server = Server::start(&Config::new("[platform]\nenabled = true\ndemo = true\n"));
    let tenant = Rest::login(&server);
    let device = tenant.device("D", "D");
    let values = json!({"a": "=HYPERLINK(\"http://evil\")", "b": "+1", "c": "-x", "d": "@x", "e": -5, "=f": "plain", "g": "a=b"});
    let path = format!("/api/plugins/telemetry/DEVICE/{device}");
    tenant.ok(
        "POST",
        &format!("{path}/timeseries/ANY"),
        &json!({"ts": 1000, "values": values}),
    );
    tenant.wait_for(&server, &format!("{path}/values/timeseries?keys=g"), |all| {
        all["g"][0]["value"] == "a=b"
    });
    let (status, csv) = tenant.raw("GET", &format!("{path}/export/timeseries"), "");
    assert_eq!(status, 200);
    let mut lines: Vec<&str> = csv.lines().skip(1).collect();
    lines.sort_unstable();
    let expected = [
        "'=f,1000,string,plain",
        "a,1000,string,\"'=HYPERLINK(\"\"http://evil\"\")\"",
        "b,1000,string,'+1",
        "c,1000,string,'-x",
        "d,1000,string,'@x",
        "e,1000,long,-5",
        "g,1000,string,a=b",
    ];
    assert_eq!(lines, expected);
}
