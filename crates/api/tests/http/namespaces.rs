//! Roles within a namespace: which clients, topics and operations they reach. All others are refused.

use mqtt::QoS;
use serde_json::{Value, json};

use super::node::Node;
use super::peer::Peer;
use super::roles::operations;
use super::web::Answer;

/// Operations for roles within a namespace. Their handlers limit them to the namespace, which a test below checks. A
/// further one must be added here.
const IN_NAMESPACE: [&str; 20] = [
    "client",
    "client_inflight",
    "client_queue",
    "client_subscriptions",
    "clients",
    "delete_retained_message",
    "delete_retained_messages",
    "end_other_logins",
    "end_own_login",
    "kick_client",
    "own_logins",
    "publish",
    "publish_bulk",
    "retained_message",
    "retained_messages",
    "shared_groups",
    "shared_members",
    "subscribe_client",
    "subscriptions",
    "unsubscribe_client",
];

const MEMBERS: &str = "/api/v1/shared-groups/members?share_name=g&filter=";

fn ask(node: &Node, token: &str, method: &str, target: &str) -> Answer {
    node.request_as(token, method, target, &Value::Null)
}

fn key(node: &Node, name: &str, role: &str) -> String {
    node.new_key(&json!({ "name": name, "role": role }))
}

/// Returns a field of all items.
fn fields(items: &Value, name: &str) -> Vec<String> {
    let items = items.as_array().unwrap().iter();
    items.map(|item| item[name].as_str().unwrap().to_owned()).collect()
}

#[test]
fn only_marked_operations_admit_roles_in_a_namespace() {
    let node = Node::start(1).with_login();
    let user = node.token_of_new_user("ada", "ns:acme::admin");
    let key = key(&node, "acme", "ns:acme::admin");
    let mut marked = Vec::new();
    for operation in operations(&node) {
        let is_about_server = matches!(&*operation.role, "viewer" | "operator" | "admin");
        let is_marked = operation.is_in_namespace;
        assert!(is_about_server || !is_marked, "{}", operation.id);
        if is_marked {
            marked.push(operation.id.clone());
        }
        for token in [&user, &key] {
            if !is_about_server || operation.is_of_device_api {
                continue;
            }
            let answer = ask(&node, token, &operation.method, &operation.target);
            assert_ne!(answer.status, 401, "{}", operation.id);
            let is_refused = answer.status == 403 && answer.body.contains("this needs a role for the whole server");
            assert_eq!(is_refused, !is_marked, "{} {}", operation.id, answer.body);
            assert!(
                !is_refused || answer.body.contains("the namespace `acme`"),
                "{}",
                answer.body
            );
        }
    }
    marked.sort();
    assert_eq!(marked, IN_NAMESPACE);
}

#[test]
fn role_in_a_namespace_includes_no_higher_one() {
    let node = Node::start(1).with_login();
    let viewer = key(&node, "viewer", "ns:acme::viewer");
    let operator = key(&node, "operator", "ns:acme::operator");
    let publish = json!({ "topic": "acme/x" });
    node.request_as(&viewer, "POST", "/api/v1/publish", &publish)
        .problem(403);
    ask(&node, &viewer, "DELETE", "/api/v1/clients/x").problem(403);
    node.request_as(&operator, "POST", "/api/v1/publish", &publish).ok();
    let subscribe = json!({ "filter": "acme/x" });
    node.request_as(&operator, "POST", "/api/v1/clients/x/subscriptions", &subscribe)
        .problem(403);
}

#[test]
fn clients_of_other_namespaces_are_unknown() {
    let node = Node::start(2).with_login();
    let token = key(&node, "acme", "ns:acme::admin");
    let mut peers: Vec<Peer> = ["a@acme", "a@acme-x", "b@blue", "plain"].map(|id| node.peer(id)).into();
    for peer in &mut peers {
        peer.subscribe("state/#", QoS::AtLeastOnce);
        peer.subscribe("$share/g/jobs", QoS::AtLeastOnce);
    }
    let list = |target: &str| ask(&node, &token, "GET", target).ok().json();
    for target in ["/api/v1/clients", "/api/v1/clients?sort=client_id"] {
        let items = &list(target)["items"];
        assert_eq!(fields(items, "client_id"), ["a@acme"], "{target}");
        assert_eq!(items[0]["mountpoint"], "acme/");
    }
    assert_eq!(node.all_pages("/api/v1/clients", 10).len(), peers.len());
    let filters = fields(&list("/api/v1/subscriptions")["items"], "filter");
    assert_eq!(filters.len(), 2, "{filters:?}");
    assert!(filters.iter().any(|filter| filter == "acme/state/#"), "{filters:?}");
    assert_eq!(fields(&list("/api/v1/shared-groups"), "filter"), ["acme/jobs"]);
    let members = list(&format!("{MEMBERS}acme/jobs"));
    assert_eq!(
        (&members["members"], fields(&members["items"], "client_id")),
        (&json!(1), vec!["a@acme".to_owned()])
    );
    for other in ["blue/jobs", "acme-x/jobs", "jobs", "acme"] {
        ask(&node, &token, "GET", &format!("{MEMBERS}{other}")).problem(403);
    }
    let (subscribe, nothing) = (json!({ "filter": "acme/new" }), Value::Null);
    let operations = [
        ("GET", ""),
        ("GET", "/inflight"),
        ("GET", "/queue"),
        ("GET", "/subscriptions"),
        ("POST", "/subscriptions"),
        ("DELETE", "/subscriptions?filter=acme/new"),
        ("DELETE", ""),
    ];
    let request = |client: &str, (method, rest): (&str, &str)| {
        let body = if method == "POST" { &subscribe } else { &nothing };
        node.request_as(&token, method, &format!("/api/v1/clients/{client}{rest}"), body)
    };
    for client in ["a@acme-x", "b@blue", "plain", "missing"] {
        for operation in operations {
            let problem = request(client, operation).problem(404);
            let detail = format!("no session has the client ID {client:?}");
            assert_eq!(problem["detail"], detail, "{operation:?}");
        }
    }
    let outside = json!({ "filter": "blue/new" });
    node.request_as(&token, "POST", "/api/v1/clients/a@acme/subscriptions", &outside)
        .problem(422);
    for operation in operations {
        request("a@acme", operation).ok();
    }
    for peer in &mut peers[1..] {
        peer.ping();
    }
}

#[test]
fn topics_outside_the_namespace_are_refused() {
    let node = Node::start(1).with_login();
    let token = key(&node, "acme", "ns:acme::operator");
    let others = ["acme", "acme-x/t", "blue/t", "t"];
    for topic in others.into_iter().chain(["acme/t"]) {
        let message = json!({ "topic": topic, "payload": "x", "retain": true });
        node.send("POST", "/api/v1/publish", &message).ok();
    }
    for query in ["", "?filter=acme/%23", "?filter=acme/%2B"] {
        let page = ask(&node, &token, "GET", &format!("/api/v1/retained{query}"))
            .ok()
            .json();
        assert_eq!(fields(&page["items"], "topic"), ["acme/t"], "{query}");
    }
    // A cursor would contain the next topic.
    let page = ask(&node, &token, "GET", "/api/v1/retained?filter=acme/t&limit=1")
        .ok()
        .json();
    assert_eq!(
        (fields(&page["items"], "topic").len(), &page["cursor"]),
        (1, &Value::Null)
    );
    for filter in [
        "%23",
        "%2B/t",
        "blue/%23",
        "acme-x/t",
        "acme",
        "acme/",
        "$share/g/acme/t",
    ] {
        for method in ["GET", "DELETE"] {
            ask(&node, &token, method, &format!("/api/v1/retained?filter={filter}")).problem(403);
        }
    }
    for topic in others {
        let target = format!("/api/v1/retained/{topic}");
        ask(&node, &token, "GET", &target).problem(403);
        ask(&node, &token, "DELETE", &target).problem(403);
    }
    ask(&node, &token, "GET", "/api/v1/retained/acme/t").ok();
    let deleted = ask(&node, &token, "DELETE", "/api/v1/retained?filter=acme/%23")
        .ok()
        .json();
    assert_eq!(deleted["deleted"], 1, "not the topic `acme`");
    assert_eq!(node.all_pages("/api/v1/retained", 10).len(), others.len());

    let publish = |topic: &str| json!({ "topic": topic, "payload": "y", "retain": true });
    for topic in others.into_iter().chain(["$delayed/1/acme/t", "/acme/t", "acme/"]) {
        node.request_as(&token, "POST", "/api/v1/publish", &publish(topic))
            .problem(403);
        let bulk = json!({ "messages": [publish("acme/bulk"), publish(topic)] });
        node.request_as(&token, "POST", "/api/v1/publish/bulk", &bulk)
            .problem(403);
    }
    assert_eq!(node.all_pages("/api/v1/retained", 10).len(), others.len());
    node.request_as(&token, "POST", "/api/v1/publish", &publish("acme/t"))
        .ok();
    ask(&node, &token, "DELETE", "/api/v1/retained/acme/t").ok();
}

#[test]
fn changed_namespace_applies_to_logins_and_keys_at_once() {
    let node = Node::start(1).with_login();
    let _peers = ["a@acme", "b@blue"].map(|id| node.peer(id));
    let login = node.token_of_new_user("bob", "admin");
    let new_key = |name: &str, role: &str| {
        let key = json!({ "name": name, "role": role });
        let made = node.request_as(&login, "POST", "/api/v1/api-keys", &key).ok().json();
        made["secret"].as_str().unwrap().to_owned()
    };
    let (everything, blue) = (new_key("everything", "admin"), new_key("blue", "ns:blue::admin"));
    let clients = |token: &str| {
        let page = ask(&node, token, "GET", "/api/v1/clients").ok().json();
        let mut ids = fields(&page["items"], "client_id");
        ids.sort();
        ids
    };
    assert_eq!(clients(&everything), ["a@acme", "b@blue"]);
    assert_eq!(clients(&blue), ["b@blue"]);
    let lower = json!({ "role": "ns:acme::operator" });
    let changed = node.send("PUT", "/api/v1/console-users/bob", &lower).ok().json();
    assert_eq!(changed["role"], "ns:acme::operator");
    for token in [&login, &everything] {
        assert_eq!(clients(token), ["a@acme"]);
        ask(&node, token, "GET", "/api/v1/console-users").problem(403);
        ask(&node, token, "GET", "/api/v1/acl").problem(403);
        let own = ask(&node, token, "GET", "/api/v1/login").ok().json();
        assert_eq!(own["role"], "ns:acme::operator");
    }
    ask(&node, &blue, "GET", "/api/v1/clients").problem(401);
    // A key cannot leave its namespace.
    let change = |role: &str| node.send("PUT", "/api/v1/api-keys/blue", &json!({ "role": role }));
    change("admin").problem(422);
    change("ns:acme::admin").problem(422);
    assert_eq!(change("ns:blue::viewer").ok().json()["role"], "ns:blue::viewer");
}

#[test]
fn malformed_namespaces_are_refused() {
    let node = Node::start(1).with_login();
    for role in [
        "ns:::viewer",
        "ns:acme/::viewer",
        "ns:+::viewer",
        "ns:acme::owner",
        "ns:acme:viewer",
        "ns:a b::viewer",
    ] {
        for target in ["/api/v1/console-users", "/api/v1/api-keys"] {
            let refused = node.send("POST", target, &json!({ "name": "x", "role": role }));
            assert!(matches!(refused.status, 400 | 422), "{role}: {}", refused.body);
        }
    }
}

#[test]
fn audit_log_names_the_namespace() {
    let node = Node::start(1).with_login();
    let _peer = node.peer("a@acme");
    let token = key(&node, "acme", "ns:acme::operator");
    ask(&node, &token, "DELETE", "/api/v1/clients/a@acme").ok();
    ask(&node, &token, "DELETE", "/api/v1/users/u").problem(403);
    let entries = node.all_pages("/api/v1/audit?user=key:acme", 10);
    assert_eq!(entries.len(), 2, "{entries:?}");
    assert!(entries.iter().all(|entry| entry["namespace"] == "acme"), "{entries:?}");
    node.token_of_new_user("eve", "ns:acme::viewer");
    let logins = node.all_pages("/api/v1/audit?user=eve&operation=login", 10);
    assert!(!logins.is_empty() && logins.iter().all(|entry| entry["namespace"] == "acme"));
    let own = node.all_pages("/api/v1/audit?user=admin", 100);
    assert!(own.iter().all(|entry| entry.get("namespace").is_none()), "{own:?}");
}
