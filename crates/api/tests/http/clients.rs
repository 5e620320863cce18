//! Clients and subscriptions on three shards.

use std::collections::BTreeSet;

use mqtt::{Property, PropertyWriter, QoS, ReasonCode, Will};
use serde_json::{Value, json};

use super::node::Node;
use super::peer::Peer;

fn ids(items: &[Value], field: &str) -> BTreeSet<String> {
    items
        .iter()
        .map(|item| item[field].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn pages_list_every_client_once() {
    let node = Node::start(3).with_login();
    let expected: BTreeSet<String> = (0..40).map(|n| format!("client-{n}")).collect();
    let mut peers: Vec<Peer> = expected.iter().map(|id| node.peer(id)).collect();
    for limit in [1, 7, 40, 1000] {
        let items = node.all_pages("/api/v1/clients", limit);
        assert_eq!(items.len(), expected.len(), "limit {limit}");
        assert_eq!(ids(&items, "client_id"), expected);
    }
    assert_eq!(node.all_pages("/api/v1/clients?client_id=CLIENT-1", 3).len(), 11);
    assert_eq!(node.all_pages("/api/v1/clients?connected=false", 100).len(), 0);
    assert_eq!(node.all_pages("/api/v1/clients?address=127.0.0.1", 100).len(), 40);
    assert_eq!(node.all_pages("/api/v1/clients?user_name=x", 100).len(), 0);
    for (index, peer) in peers.iter_mut().enumerate() {
        peer.subscribe(&format!("topic/{index}"), QoS::AtLeastOnce);
    }
    let items = node.all_pages("/api/v1/subscriptions", 7);
    assert_eq!((items.len(), ids(&items, "filter").len()), (40, 40));
    assert_eq!(node.all_pages("/api/v1/subscriptions?filter=topic/1", 100).len(), 11);
}

#[test]
fn clients_are_sorted_across_shards_and_pages() {
    let node = Node::start(3).with_login();
    let ids: Vec<String> = (0..30).map(|n| format!("client-{n:02}")).collect();
    // Later IDs connect earlier, so that the sort orders differ.
    let mut peers: Vec<Peer> = ids.iter().rev().map(|id| node.peer(id)).collect();
    for (index, peer) in peers.iter_mut().enumerate() {
        for n in 0..index % 5 {
            peer.subscribe(&format!("own/{n}"), QoS::AtLeastOnce);
        }
    }
    let sorted = |query: &str, limit: usize| node.all_pages(&format!("/api/v1/clients?{query}"), limit);
    for limit in [1, 7, 30, 1000] {
        let listed: Vec<Value> = sorted("sort=client_id", limit);
        let listed: Vec<&str> = listed.iter().map(|item| item["client_id"].as_str().unwrap()).collect();
        assert_eq!(listed, ids, "limit {limit}");
        let listed = sorted("sort=client_id&order=desc", limit);
        assert!(
            listed.iter().rev().map(|item| &item["client_id"]).eq(ids.iter()),
            "limit {limit}"
        );
        // The same value occurs many times, also on different pages.
        let listed = sorted("sort=subscriptions&order=desc", limit);
        let place = |item: &Value| {
            let id = item["client_id"].as_str().unwrap().to_owned();
            std::cmp::Reverse((item["subscriptions"].as_u64().unwrap(), id))
        };
        assert_eq!(listed.len(), ids.len());
        assert!(listed.is_sorted_by(|a, b| place(a) < place(b)), "limit {limit}");
    }
    for (sort, field) in [
        ("since", "connected_at_unix_ms"),
        ("queued", "queued"),
        ("messages_received", "messages_received"),
        ("messages_sent", "messages_sent"),
    ] {
        let listed = sorted(&format!("sort={sort}"), 4);
        assert_eq!(listed.len(), ids.len(), "{sort}");
        assert!(listed.is_sorted_by_key(|item| item[field].as_u64().unwrap()), "{sort}");
    }
    assert_eq!(sorted("sort=client_id&client_id=CLIENT-1", 3).len(), 10);
}

#[test]
fn clients_with_the_most_messages_are_first() {
    let node = Node::start(2).with_login();
    let (mut busy, mut reader, _idle) = (node.peer("busy"), node.peer("reader"), node.peer("idle"));
    reader.subscribe("x", QoS::AtLeastOnce);
    for _ in 0..3 {
        busy.publish("x", b"1", false);
    }
    let first = |sort: &str| {
        let page = node
            .get(&format!("/api/v1/clients?sort={sort}&order=desc&limit=1"))
            .ok()
            .json();
        page["items"][0]["client_id"].as_str().unwrap().to_owned()
    };
    node.wait_for("counters of sent messages", || {
        first("messages_received") == "busy" && first("messages_sent") == "reader"
    });
}

#[test]
fn clients_with_the_most_drops_are_first() {
    let node = Node::start(3).with_login();
    let losers = [("a", 2), ("b", 0), ("c", 3), ("d", 1)];
    for (id, _) in losers {
        let mut peer = node.peer(id);
        peer.subscribe(id, QoS::AtLeastOnce);
    }
    node.wait_for("the end of the connections", || {
        node.all_pages("/api/v1/clients?connected=false", 10).len() == losers.len()
    });
    // QoS 0 messages for a disconnected session are dropped.
    for (id, messages) in losers {
        for _ in 0..messages {
            let message = json!({ "topic": id, "payload": "lost" });
            node.send("POST", "/api/v1/publish", &message).ok();
        }
    }
    let sorted = |query: &str, limit: usize| -> Vec<String> {
        let listed = node.all_pages(&format!("/api/v1/clients?sort=dropped{query}"), limit);
        listed
            .iter()
            .map(|item| item["client_id"].as_str().unwrap().to_owned())
            .collect()
    };
    node.wait_for("the dropped messages", || {
        sorted("&order=desc", 1) == ["c", "a", "d", "b"]
    });
    assert_eq!(sorted("", 3), ["b", "d", "a", "c"]);
}

#[test]
fn queries_are_validated() {
    let node = Node::start(1).with_login();
    assert_eq!(node.get("/api/v1/clients?limit=0").problem(400)["field"], "limit");
    assert_eq!(
        node.get("/api/v1/clients?limit=1001").problem(400)["expected"],
        "1 to 1000"
    );
    assert_eq!(node.get("/api/v1/clients?limit=x").problem(400)["field"], "limit");
    assert_eq!(node.get("/api/v1/clients?cursor=zz").problem(400)["field"], "cursor");
    for target in ["sort=colour", "sort=queued&order=up"] {
        node.get(&format!("/api/v1/clients?{target}")).problem(400);
    }
    assert_eq!(node.get("/api/v1/clients?order=desc").problem(400)["field"], "order");
    let _peers = [node.peer("a"), node.peer("b")];
    let page = node.get("/api/v1/clients?sort=queued&limit=1").ok().json();
    let other = format!(
        "/api/v1/clients?sort=since&limit=1&cursor={}",
        page["cursor"].as_str().unwrap()
    );
    assert_eq!(node.get(&other).problem(400)["field"], "cursor");
    assert_eq!(
        node.get("/api/v1/clients?sort=queued&cursor=zz").problem(400)["field"],
        "cursor"
    );
    let unknown = node.get("/api/v1/clients?usr_name=x").problem(400);
    assert_eq!(unknown["detail"], "unknown field `usr_name`; did you mean `user_name`?");
    assert_eq!(unknown["field"], "usr_name");
}

#[test]
fn client_details_have_counters_and_last_reasons() {
    let node = Node::start(3).with_login();
    let mut peer = node.peer("a/b c");
    peer.subscribe("x", QoS::AtLeastOnce);
    peer.publish("y", b"12345", false);
    peer.ping();
    let detail = node.get("/api/v1/clients/a%2Fb%20c").ok().json();
    assert_eq!(detail["client_id"], "a/b c");
    assert_eq!(
        (&detail["connected"], &detail["transport"], &detail["listener"]),
        (&json!(true), &json!("tcp"), &json!("default"))
    );
    assert_eq!(
        (&detail["protocol_version"], &detail["session_expiry_interval_s"]),
        (&json!("5.0"), &json!(1000))
    );
    assert_eq!(
        (&detail["messages_received"], &detail["subscriptions"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(detail["last_disconnect_reason"], Value::Null);
    drop(peer);
    let gone = || node.get("/api/v1/clients/a%2Fb%20c").ok().json();
    node.wait_for("the end of the connection", || gone()["connected"] == false);
    assert_eq!(gone()["last_disconnect_reason"], "connection_lost");
    // QoS 0 messages for a disconnected session are dropped, with a reason.
    node.send("POST", "/api/v1/publish", &json!({ "topic": "x", "payload": "lost" }))
        .ok();
    assert_eq!(gone()["drops"], json!([{ "reason": "offline_qos0", "messages": 1 }]));
    let at = gone()["last_drop"]["at_unix_ms"].as_u64().unwrap();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    assert!(at <= now && now - at < 60_000, "{at} {now}");
}

#[test]
fn kick_disconnects_and_optionally_deletes_the_session() {
    let node = Node::start(3).with_login();
    let mut peer = node.peer("kicked");
    assert_eq!(node.delete("/api/v1/clients/kicked").status, 204);
    assert_eq!(peer.receive_disconnect(), ReasonCode::AdministrativeAction);
    let detail = node.get("/api/v1/clients/kicked").ok().json();
    assert_eq!(
        (&detail["connected"], &detail["last_disconnect_reason"]),
        (&json!(false), &json!("kicked"))
    );
    assert_eq!(node.delete("/api/v1/clients/kicked?end_session=true").status, 204);
    node.get("/api/v1/clients/kicked").problem(404);
    node.delete("/api/v1/clients/kicked").problem(404);
}

#[test]
fn client_is_subscribed_and_unsubscribed_by_the_api() {
    let node = Node::start(3).with_login();
    let mut peer = node.peer("listener");
    let path = "/api/v1/clients/listener/subscriptions";
    let made = node.send("POST", path, &json!({ "filter": "news/#", "qos": 1 }));
    assert_eq!((made.status, made.json()), (201, json!({ "qos": 1 })));
    node.send(
        "POST",
        "/api/v1/publish",
        &json!({ "topic": "news/today", "payload": "hello", "qos": 1 }),
    )
    .ok();
    assert_eq!(peer.receive().payload, b"hello");
    let listed = node.get(path).ok().json();
    assert_eq!(
        (
            &listed[0]["filter"],
            &listed[0]["qos"],
            listed.as_array().unwrap().len()
        ),
        (&json!("news/#"), &json!(1), 1)
    );
    assert_eq!(node.delete(&format!("{path}?filter=news/%23")).status, 204);
    node.delete(&format!("{path}?filter=news/%23")).problem(404);
    assert_eq!(node.get(path).ok().json(), json!([]));
    assert_eq!(
        node.send("POST", path, &json!({ "filter": "a/#/b" })).problem(422)["field"],
        "filter"
    );
    assert_eq!(
        node.send("POST", path, &json!({ "filter": "a", "qos": 3 }))
            .problem(422)["field"],
        "qos"
    );
    node.send(
        "POST",
        "/api/v1/clients/missing/subscriptions",
        &json!({ "filter": "a" }),
    )
    .problem(404);
}

#[test]
fn share_groups_and_rejected_clients_are_listed() {
    let node = Node::start(3).with_login();
    let mut peer = node.peer("member");
    peer.subscribe("$share/workers/jobs/#", QoS::AtLeastOnce);
    let groups = node.get("/api/v1/shared-groups").ok().json();
    assert_eq!(
        (&groups[0]["share_name"], &groups[0]["filter"], &groups[0]["members"]),
        (&json!("workers"), &json!("jobs/#"), &json!(1))
    );
    let mut other = node.peer("another/member");
    other.subscribe("$share/workers/jobs/#", QoS::AtMostOnce);
    let members = |query: &str| node.get(&format!("/api/v1/shared-groups/members?{query}"));
    let found = members("share_name=workers&filter=jobs/%23").ok().json();
    assert_eq!(found["members"], 2);
    let of = |index: usize| {
        (
            found["items"][index]["client_id"].clone(),
            found["items"][index]["qos"].clone(),
        )
    };
    assert_eq!(
        (of(0), of(1)),
        ((json!("another/member"), json!(0)), (json!("member"), json!(1)))
    );
    assert_eq!(
        (&found["items"][0]["is_connected"], &found["items"][0]["queued"]),
        (&json!(true), &json!(0))
    );
    let first = members("share_name=workers&filter=jobs/%23&limit=1").ok().json();
    assert_eq!(
        (&first["members"], first["items"].as_array().unwrap().len()),
        (&json!(2), 1)
    );
    members("share_name=workers&filter=other").problem(404);
    members("share_name=workers").problem(400);
    let (_, reason) = Peer::try_connect(node.mqtt_address(), "intruder", Some(("eve", "guess")));
    assert_eq!(reason, ReasonCode::BadUserNameOrPassword);
    let refused = node.get("/api/v1/refused-clients").ok().json();
    assert_eq!(
        (&refused[0]["client_id"], &refused[0]["user_name"]),
        (&json!("intruder"), &json!("eve"))
    );
    assert_eq!(
        (&refused[0]["reason_code"], &refused[0]["detail"]),
        (&json!(0x86), &json!("wrong password"))
    );
    assert!(!node.get("/api/v1/refused-clients").body.contains("guess"));
}

#[test]
fn inflight_and_queued_messages_are_listed() {
    let node = Node::start(2).with_login();
    let mut reader = node.peer("slow/one");
    reader.subscribe("q", QoS::AtLeastOnce);
    let mut writer = node.peer("writer");
    assert_eq!(
        writer.publish_acknowledged("q", b"\xffbytes", false),
        ReasonCode::Success
    );
    // The client receives the message and does not acknowledge it.
    assert_eq!(reader.receive().topic, "q");
    let list = |what: &str| node.get(&format!("/api/v1/clients/slow%2Fone/{what}")).ok().json();
    let inflight = list("inflight?payload_bytes=1");
    assert_eq!((&inflight["messages"], &inflight["unlisted"]), (&json!(1), &json!(0)));
    let first = &inflight["items"][0];
    assert_eq!(
        (&first["packet_id"], &first["qos"], &first["is_released"]),
        (&json!(1), &json!(1), &json!(false))
    );
    assert_eq!(
        (
            &first["message"]["topic"],
            &first["message"]["payload"],
            &first["message"]["payload_encoding"],
            &first["message"]["payload_bytes"]
        ),
        (&json!("q"), &json!("/w=="), &json!("base64"), &json!(6))
    );
    assert_eq!(list("queue")["messages"], 0);
    drop(reader);
    let detail = || node.get("/api/v1/clients/slow%2Fone").ok().json();
    node.wait_for("the end of the connection", || detail()["connected"] == false);
    for n in 0..5 {
        let payload = format!("message {n}");
        assert_eq!(
            writer.publish_acknowledged("q", payload.as_bytes(), false),
            ReasonCode::Success
        );
    }
    assert_eq!(list("queue")["messages"], detail()["queued"]);
    let waiting = [
        node.all_pages("/api/v1/clients/slow%2Fone/inflight", 2),
        node.all_pages("/api/v1/clients/slow%2Fone/queue", 2),
    ]
    .concat();
    let payloads: Vec<&str> = waiting
        .iter()
        .map(|one| one["message"]["payload"].as_str().unwrap())
        .collect();
    assert_eq!(payloads[0], "/2J5dGVz");
    assert_eq!(
        payloads[1..],
        ["message 0", "message 1", "message 2", "message 3", "message 4"]
    );
    node.get("/api/v1/clients/missing/queue").problem(404);
    assert_eq!(
        node.get("/api/v1/clients/slow%2Fone/queue?payload_bytes=4097")
            .problem(422)["field"],
        "payload_bytes"
    );
}

#[test]
fn client_details_have_will_and_connect_properties() {
    let node = Node::start(2).with_login();
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    writer.put(Property::WillDelayInterval(60));
    writer.put(Property::MessageExpiryInterval(3600));
    writer.put(Property::ContentType("text/plain"));
    writer.put(Property::UserProperty("plant", "north"));
    // The payload is cut within a character.
    let payload = format!("{}grün", "x".repeat(4093));
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: writer.finish(),
        topic: "gone/meter",
        payload: payload.as_bytes(),
    };
    let _peer = Peer::with_will(node.mqtt_address(), "meter", will);
    let client = node.get("/api/v1/clients/meter").ok().json();
    assert_eq!(
        (&client["client_id"], &client["has_will"]),
        (&json!("meter"), &json!(true))
    );
    let shown = &client["will"];
    assert_eq!(
        (&shown["topic"], &shown["qos"], &shown["retain"], &shown["delay_s"]),
        (&json!("gone/meter"), &json!(1), &json!(true), &json!(60))
    );
    assert_eq!(
        (&shown["payload"], &shown["encoding"], &shown["payload_bytes"]),
        (&json!(payload[..4095]), &json!("plain"), &json!(4098))
    );
    let properties = &shown["properties"];
    assert_eq!(properties["message_expiry_interval"], 3600);
    assert_eq!(properties["content_type"], "text/plain");
    assert_eq!(
        properties["user_properties"],
        json!([{"name": "plant", "value": "north"}])
    );
    assert_eq!(client["user_properties"], json!([{"name": "plant", "value": "north"}]));
    assert_eq!(client["certificate_common_name"], Value::Null);
    let _other = node.peer("none");
    assert_eq!(node.get("/api/v1/clients/none").ok().json()["will"], Value::Null);
}
