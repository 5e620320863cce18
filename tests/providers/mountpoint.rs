//! Tenants with the same topics: an HTTP service knows the tenant of each client, and the mountpoint of the listener
//! contains it.

use serde_json::{Value as Json, json};

use super::service::{Reply, Service};
use crate::support::api::Api;
use crate::support::*;

const PASSWORD: &str = "tr0ub4dor";
const OK: u8 = 0;
const NOT_AUTHORIZED: u8 = 0x87;

/// The user `acme.1` is of the tenant `acme`. Users without a dot have no tenant.
fn knows_tenants(request: &Json) -> Reply {
    let name = request["username"].as_str().unwrap_or_default();
    Reply::Json(match name.rsplit_once('.') {
        Some((tenant, _)) => json!({ "result": "allow", "client_attrs": { "tenant": tenant, "site": "north" } }),
        None => json!({ "result": "allow" }),
    })
}

fn start(service: &Service, more: &str) -> Server {
    let address = service.address;
    let toml = format!(
        "[listeners.tcp.default]\nmountpoint = \"tenants/${{client_attrs.tenant}}/\"\n\
         [access]\nproviders = [\"http\"]\n{more}\n\
         [access.http]\nurl = \"http://{address}/auth\"\n\
         [access.http.body]\nusername = \"${{username}}\"\n"
    );
    Server::start(&Config::new(toml))
}

/// Connects to the listener with a mountpoint.
fn of(server: &Server, user_name: &str) -> Peer {
    server.session(&client(user_name))
}

fn client(user_name: &str) -> Connect {
    Connect::new(V5, unique("tenant")).user(user_name, PASSWORD)
}

/// Publishes as another client of a tenant.
#[track_caller]
fn publish(server: &Server, tenant: &str, message: Publish) {
    let mut sender = of(server, &format!("{tenant}.sender"));
    assert!(sender.publish(&message.qos(1)) < 0x80);
}

/// Returns the topics that a client with a subscription to all topics has received since the last call.
#[track_caller]
fn topics(server: &Server, tenant: &str, peer: &mut Peer) -> Vec<String> {
    publish(server, tenant, Publish::new("end", "end"));
    let messages = peer.receive_until("end");
    messages.iter().map(|message| message.topic_str().to_owned()).collect()
}

#[test]
fn tenants_do_not_see_each_other() {
    let service = Service::start(knows_tenants);
    let server = start(&service, "");
    let (mut acme, mut blue) = (of(&server, "acme.1"), of(&server, "blue.1"));
    acme.subscribe("#", 0);
    blue.subscribe("#", 0);
    publish(&server, "acme", Publish::new("state", "x"));
    assert_eq!(topics(&server, "acme", &mut acme), ["state"]);
    assert_eq!(topics(&server, "blue", &mut blue), [""; 0]);

    let (mut worker, mut other) = (of(&server, "acme.2"), of(&server, "blue.2"));
    worker.subscribe("$share/g/jobs", 0);
    other.subscribe("$share/g/jobs", 0);
    publish(&server, "acme", Publish::new("jobs", "1"));
    publish(&server, "blue", Publish::new("jobs", "2"));
    for (peer, payload) in [(&mut worker, "1"), (&mut other, "2")] {
        let job = peer.receive();
        assert_eq!((job.topic_str(), job.payload_str()), ("jobs", payload));
    }
    topics(&server, "acme", &mut acme);
    topics(&server, "blue", &mut blue);

    server.session(&client("acme.3").will(Will::new("gone", "x"))).abort();
    assert_eq!(acme.receive().topic_str(), "gone");
    assert_eq!(topics(&server, "blue", &mut blue), [""; 0]);

    publish(&server, "acme", Publish::new("kept", "x").retain());
    for (tenant, expected) in [("acme", &["kept"][..]), ("blue", &[])] {
        let mut reader = of(&server, &format!("{tenant}.4"));
        reader.subscribe("#", 0);
        assert_eq!(topics(&server, tenant, &mut reader), expected);
    }
    let retained = Api::of(&server).get("/api/v1/retained?filter=tenants/%23").to_string();
    assert!(retained.contains("\"tenants/acme/kept\""), "{retained}");
}

#[test]
fn client_without_a_usable_tenant_is_rejected() {
    let service = Service::start(knows_tenants);
    let server = start(&service, "");
    let mut codes = Vec::new();
    for user_name in ["nobody", "a/b.1", "+.1", "#.1", ".1", "\u{7f}.1", "acme.1"] {
        codes.push(server.connect().handshake(&client(user_name)).code);
    }
    let rejected = vec![NOT_AUTHORIZED; 6];
    assert_eq!(codes, [rejected, vec![OK]].concat());
    let anonymous = Connect::new(V5, unique("anonymous"));
    assert_eq!(server.connect().handshake(&anonymous).code, NOT_AUTHORIZED);
    assert!(
        server.log().contains("placeholder of the listener's mountpoint"),
        "{}",
        server.log()
    );
}

#[test]
fn access_rules_see_topics_with_or_without_the_mountpoint() {
    let service = Service::start(knows_tenants);
    let full = "{ permission = \"allow\", topics = [\"tenants/${client_attrs.tenant}/open/#\"] }";
    let short = "{ permission = \"allow\", topics = [\"open/#\"] }";
    for (include, rules) in [(true, full), (false, short)] {
        let server = start(&service, &format!("include_mountpoint = {include}\nrules = [{rules}]"));
        let mut acme = of(&server, "acme.1");
        assert_eq!(acme.subscribe_code("open/#", 0), OK);
        assert_eq!(acme.subscribe_code("closed", 0), NOT_AUTHORIZED);
        let mut sender = of(&server, "acme.2");
        assert!(sender.publish(&Publish::new("open/x", "x").qos(1)) < 0x80);
        assert_eq!(sender.publish(&Publish::new("closed", "x").qos(1)), NOT_AUTHORIZED);
        assert_eq!(acme.receive().topic_str(), "open/x");
    }
}

/// A rule and the API see full topics. The attributes of the client are columns of events.
#[test]
fn rules_see_full_topics_and_attributes() {
    let service = Service::start(knows_tenants);
    let server = start(&service, "");
    let api = Api::of(&server);
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    let sql = "SELECT event, topic, client_attrs, client_attrs.tenant AS tenant, mountpoint FROM \"tenants/#\", \
               \"$events/client/connected\", \"$events/session/subscribed\", \"$events/client/disconnected\"";
    let rule = json!({"id": "r", "sql": sql, "actions": ["file:seen"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let connect = client("acme.1");
    let mut acme = server.session(&connect);
    acme.subscribe("$share/g/t", 0);
    acme.publish(&Publish::new("u", "x").qos(1));
    let client_id = String::from_utf8_lossy(&connect.client_id).into_owned();
    let path = format!("/api/v1/clients/{client_id}/subscriptions");
    let list = api.get(&path).to_string();
    assert!(list.contains("$share/g/tenants/acme/t"), "{list}");
    let (status, _) = api.call("POST", &path, &json!({"filter": "t", "qos": 0}));
    assert_eq!(status, 422, "a filter outside of the mountpoint");
    acme.disconnect();
    let path = server.dir().join("seen.jsonl");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    server.wait_until("all events are in the file", |_| text().lines().count() == 4);
    let mut found = Vec::new();
    for line in text().lines() {
        let line: Json = serde_json::from_str(line).expect("a line is JSON");
        assert_eq!(
            line["client_attrs"],
            json!({"tenant": "acme", "site": "north"}),
            "{line}"
        );
        assert_eq!(line["tenant"], "acme", "{line}");
        let text = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
        found.push((text("event"), text("topic"), text("mountpoint")));
    }
    let row = |event: &str, topic: &str| (event.to_owned(), topic.to_owned(), "tenants/acme/".to_owned());
    assert_eq!(
        found,
        [
            row("client.connected", "undefined"),
            row("session.subscribed", "$share/g/tenants/acme/t"),
            row("message.publish", "tenants/acme/u"),
            row("client.disconnected", "undefined"),
        ]
    );
}

/// The tenant is the first part of the client ID, and the users are those of the server.
#[test]
fn tenants_of_client_ids_do_not_see_each_other() {
    let server = Server::start(&Config::new(
        "[listeners.tcp.default]\nmountpoint = \"tenants/${client_attrs.tenant}/\"\n\
         [access]\nanonymous = \"always\"\n\
         rules = [{ permission = \"deny\", action = \"publish\", \
         topics = [\"tenants/${client_attrs.tenant}/${client_attrs.rest}\"] }, \
         { permission = \"allow\", topics = [\"#\"] }]\n\
         [access.client_attrs]\ntenant = \"nth(1, tokens(clientid, '-'))\"\n\
         rest = \"regex_extract(clientid, '^[^-]+-(.*)$')\"\n",
    ));
    let of = |client_id: &str| server.session(&Connect::new(V5, client_id));
    let (mut acme, mut blue, mut sender) = (of("acme-1"), of("blue-1"), of("acme-2"));
    for peer in [&mut acme, &mut blue] {
        peer.subscribe("#", 0);
    }
    assert!(sender.publish(&Publish::new("state", "x").qos(1)) < 0x80);
    assert_eq!(sender.publish(&Publish::new("2", "x").qos(1)), NOT_AUTHORIZED);
    assert_eq!(acme.receive().topic_str(), "state");
    // The other tenant receives only its own message.
    assert!(of("blue-2").publish(&Publish::new("end", "x").qos(1)) < 0x80);
    assert_eq!(blue.receive().topic_str(), "end");
    for client_id in ["---", "+-1", "#-1", "a/b-1"] {
        let connack = server.connect().handshake(&Connect::new(V5, client_id));
        assert_eq!(connack.code, NOT_AUTHORIZED, "{client_id}");
    }
}

/// A client cannot replace an attribute of the service by its choice of a client ID.
#[test]
fn attributes_of_the_service_come_before_those_of_names() {
    let service = Service::start(knows_tenants);
    let more = "[access.client_attrs]\ntenant = \"clientid\"\nclient = \"clientid\"";
    let server = start(&service, more);
    let api = Api::of(&server);
    let rules = json!({"rules": [
        {"permission": "allow", "action": "all", "topics": ["tenants/acme/${client_attrs.client}"]},
    ]});
    api.ok("PUT", "/api/v1/acl", &rules);
    let connect = Connect::new(V5, "blue").user("acme.1", PASSWORD);
    let mut peer = server.session(&connect);
    assert!(peer.publish(&Publish::new("blue", "x").qos(1)) < 0x80);
    assert_eq!(peer.publish(&Publish::new("acme", "x").qos(1)), NOT_AUTHORIZED);
    // The access test has the attributes of the request, or of the connected client.
    for (client_id, attributes, is_allowed) in [
        ("blue", Json::Null, true),
        ("blue", json!({}), false),
        ("blue", json!({"client": "red"}), false),
        ("red", Json::Null, false),
        ("red", json!({"client": "blue"}), true),
    ] {
        let question = json!({
            "action": "publish", "topic": "tenants/acme/blue", "client_id": client_id, "attributes": attributes,
        });
        let answer = api.ok("POST", "/api/v1/acl/test", &question);
        assert_eq!(answer["is_allowed"], is_allowed, "{question}: {answer}");
    }
}
