//! The roles of all operations of the OpenAPI document, and attacks on them.

use std::collections::BTreeSet;
use std::io::{Read, Write};

use serde_json::{Value, json};

use super::node::Node;
use super::web;

/// Operations that need the role `operator`. A further one must be added here.
const OPERATOR: [&str; 12] = [
    "delete_ended_alarms",
    "delete_retained_message",
    "delete_retained_messages",
    "kick_client",
    "mqtt",
    "pause_action",
    "publish",
    "publish_bulk",
    "reset_rule_metrics",
    "restart_action",
    "resume_action",
    "test_connector",
];

/// Operations with another method than GET that a viewer may use: for the own user, or without a change.
const HARMLESS: [&str; 6] = [
    "login",
    "logout",
    "change_password",
    "end_other_logins",
    "end_own_login",
    "test_acl",
];

/// Reading operations of administrators.
const ADMIN_READS: [&str; 8] = [
    "api_keys",
    "audit",
    "backups",
    "benchmark",
    "benchmark_report",
    "benchmarks",
    "console_users",
    "logins",
];

/// Operations that the audit log records without a state: they change no stored entity, or one whose content is not
/// recorded, such as messages and backups.
const WITHOUT_STATE: [&str; 25] = [
    "cancel_restore",
    "change_password",
    "check_access_options",
    "clear_access_cache",
    "confirm_totp",
    "delete_ended_alarms",
    "delete_retained_message",
    "delete_retained_messages",
    "download_backup",
    "end_login",
    "end_logins_of_user",
    "end_other_logins",
    "end_own_login",
    "kick_client",
    "log_in_to_platform",
    "purge_action",
    "remove_backup",
    "remove_benchmark",
    "remove_replaced_data",
    "renew_recovery_codes",
    "reset_rule_metrics",
    "restart",
    "restart_action",
    "test_login",
    "turn_off_totp",
];

pub(super) struct DocumentedOperation {
    pub id: String,
    pub method: String,
    /// With values for the parameters.
    pub target: String,
    pub role: String,
    /// Empty: an operation of no scope.
    scope: String,
    /// Logins with a role in a namespace can use it.
    pub is_in_namespace: bool,
    description: String,
    pub is_of_device_api: bool,
}

pub(super) fn operations(node: &Node) -> Vec<DocumentedOperation> {
    let document = node.get("/api/openapi.json").ok().json();
    let mut all = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let text = |name: &str| operation[name].as_str().unwrap_or_default().to_owned();
            all.push(DocumentedOperation {
                id: text("operationId"),
                method: method.to_uppercase(),
                target: with_values(path),
                role: text("x-required-role"),
                scope: text("x-scope"),
                is_in_namespace: operation["x-in-namespace"] == true,
                description: text("description"),
                is_of_device_api: path.contains("{token}") || path == "/api/v1/provision",
            });
        }
    }
    assert!(all.len() > 90, "{}", all.len());
    all
}

/// Replaces the parameters of a path.
fn with_values(path: &str) -> String {
    let parts = path
        .split('/')
        .map(|part| if part.starts_with('{') { "x" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn every_operation_names_its_role() {
    let node = Node::start(1);
    let of_operator: BTreeSet<&str> = OPERATOR.into();
    for operation in operations(&node) {
        let DocumentedOperation {
            id, role, description, ..
        } = &operation;
        let expected = match &**id {
            _ if operation.is_of_device_api => "none",
            id if of_operator.contains(id) => "operator",
            "openapi" | "livez" | "readyz" | "status" | "login" | "single_sign_on" | "collect_login"
                if role == "none" =>
            {
                "none"
            }
            "metrics" | "stats" | "listeners" => "metrics",
            "logout" | "change_password" | "own_login" => "any",
            "own_totp" | "begin_totp" | "confirm_totp" | "renew_recovery_codes" | "turn_off_totp" => "any",
            id if ADMIN_READS.contains(&id) || id == "download_backup" => "admin",
            id if operation.method == "GET" || HARMLESS.contains(&id) => "viewer",
            _ => "admin",
        };
        assert_eq!(role, expected, "{id}");
        let named = match &**role {
            "operator" => "Needs the role `operator` or `admin`.",
            "admin" => "Needs the role `admin`.",
            _ => "",
        };
        assert!(description.ends_with(named), "{id}: {description}");
    }
}

#[test]
fn lower_roles_are_refused_by_every_operation() {
    let node = Node::start(1).with_login();
    let (viewer, operator) = (
        node.token_of_new_user("eve", "viewer"),
        node.token_of_new_user("otto", "operator"),
    );
    let keys = ["viewer", "operator"].map(|role| node.new_key(&json!({ "name": role, "role": role })));
    for operation in operations(&node) {
        let DocumentedOperation {
            id,
            method,
            target,
            role,
            ..
        } = &operation;
        let ends_login = matches!(&**id, "logout" | "change_password" | "end_other_logins" | "login");
        if operation.is_of_device_api || ends_login {
            continue;
        }
        let status = |token: &str| {
            let answer = node.request_as(token, method, target, &Value::Null);
            if answer.status == 403 {
                assert_eq!(answer.json()["type"], "urn:tidewire:problem:forbidden", "{id}");
            }
            answer.status
        };
        for (tokens, is_allowed) in [
            ([&viewer, &keys[0]], !matches!(&**role, "operator" | "admin")),
            ([&operator, &keys[1]], role != "admin"),
        ] {
            for token in tokens {
                let status = status(token);
                assert!(status != 401 && status != 405, "{id}: {status}");
                assert_eq!(status != 403, is_allowed, "{id} with {status}");
            }
        }
    }
}

/// Scopes of API keys, with an operation of each.
const SCOPES: [(&str, &str); 7] = [
    ("access_control", "set_acl"),
    ("audit", "audit"),
    ("connections", "client_queue"),
    ("data_integration", "add_rule"),
    ("monitoring", "metrics"),
    ("publish", "publish"),
    ("system", "download_backup"),
];

/// Operations that manage users, keys and logins, or give rights of several scopes.
const WITHOUT_SCOPE: [&str; 18] = [
    "add_api_key",
    "add_console_user",
    "api_keys",
    "change_api_key",
    "change_console_user",
    "console_users",
    "end_login",
    "end_logins_of_user",
    "end_other_logins",
    "end_own_login",
    "log_in_to_platform",
    "logins",
    "mqtt",
    "own_logins",
    "remove_api_key",
    "remove_console_totp",
    "remove_console_user",
    "reset_console_password",
];

#[test]
fn every_operation_with_a_role_has_a_scope() {
    let node = Node::start(1);
    let all = operations(&node);
    for DocumentedOperation { id, role, scope, .. } in &all {
        let needs_none = WITHOUT_SCOPE.contains(&&**id) || matches!(&**role, "none" | "any" | "other");
        assert_eq!(scope.is_empty(), needs_none, "{id}");
    }
    for (scope, id) in SCOPES {
        assert!(
            all.iter()
                .any(|operation| operation.id == id && operation.scope == scope),
            "{scope}"
        );
    }
}

#[test]
fn key_with_scopes_is_refused_by_other_operations() {
    let node = Node::start(1).with_login();
    let operations = operations(&node);
    for (scope, _) in SCOPES {
        let new =
            |role: &str| node.new_key(&json!({ "name": format!("{scope}.{role}"), "role": role, "scopes": [scope] }));
        let (admin, viewer) = (new("admin"), new("viewer"));
        for operation in &operations {
            let needs_no_scope = matches!(&*operation.role, "none" | "any" | "metrics") || operation.is_of_device_api;
            if needs_no_scope {
                continue;
            }
            let ask = |key: &str| node.request_as(key, &operation.method, &operation.target, &Value::Null);
            if operation.scope != scope {
                assert_eq!(
                    ask(&admin).problem(403)["type"],
                    "urn:tidewire:problem:forbidden",
                    "{scope} {}",
                    operation.id
                );
            } else if operation.role == "viewer" {
                assert!(!matches!(ask(&viewer).status, 401 | 403), "{scope} {}", operation.id);
            } else if operation.role == "admin" {
                ask(&viewer).problem(403);
            }
        }
        // Its own name and role need no scope.
        let own = node
            .request_as(&viewer, "GET", "/api/v1/login", &Value::Null)
            .ok()
            .json();
        assert_eq!(own["user"], format!("key:{scope}.viewer"));
    }
    let refused = node.all_pages("/api/v1/audit?user=key:audit.admin&operation=set_acl", 10);
    assert_eq!(refused[0]["status"], 403);
}

#[test]
fn scopes_of_a_key_are_shown_and_cannot_be_changed() {
    let node = Node::start(1).with_login();
    let key = json!({ "name": "ci", "role": "admin", "scopes": ["publish", "connections", "publish"] });
    let secret = node.new_key(&key);
    let shown = &node.all_pages("/api/v1/api-keys", 10)[0];
    assert_eq!(shown["scopes"], json!(["connections", "publish"]));
    let publish = json!({ "topic": "t", "payload": "x" });
    node.request_as(&secret, "POST", "/api/v1/publish", &publish).ok();
    node.request_as(&secret, "GET", "/api/v1/acl", &Value::Null)
        .problem(403);
    node.send("PUT", "/api/v1/api-keys/ci", &json!({ "scopes": ["access_control"] }))
        .problem(400);
    // A key with fewer rights cannot create one with more.
    let more = json!({ "name": "more", "role": "admin" });
    node.request_as(&secret, "POST", "/api/v1/api-keys", &more).problem(403);
    for scopes in [json!([]), json!(["everything"]), json!("publish")] {
        let refused = node.send(
            "POST",
            "/api/v1/api-keys",
            &json!({ "name": "x", "role": "admin", "scopes": scopes }),
        );
        assert!(matches!(refused.status, 400 | 422), "{scopes}: {}", refused.body);
    }
}

#[test]
fn websocket_of_a_viewer_gets_no_rights_of_an_operator() {
    let node = Node::start(1).with_login();
    let viewer = node.new_key(&json!({ "name": "eve", "role": "viewer" }));
    let operator = node.new_key(&json!({ "name": "otto", "role": "operator" }));
    let upgrade = |token: &str, target: &str, method: &str| {
        let mut stream = web::connect(node.address);
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: mqtt, bearer.{token}\r\nContent-Length: 0\r\n\r\n"
        )
        .unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        String::from_utf8_lossy(&head)
            .trim_start_matches("HTTP/1.1 ")
            .to_owned()
    };
    assert_eq!(upgrade(&viewer, "/api/v1/mqtt", "GET"), "403");
    assert_eq!(upgrade(&operator, "/api/v1/mqtt", "GET"), "101");
    assert_eq!(upgrade(&viewer, "/api/v1/live", "GET"), "101");
    // The headers of an upgrade change nothing for other operations.
    assert_eq!(upgrade(&viewer, "/api/v1/clients/x", "DELETE"), "403");
    assert_eq!(upgrade(&viewer, "/api/v1/console-users", "GET"), "403");
    assert_eq!(upgrade(&operator, "/api/v1/api-keys", "GET"), "403");
}

#[test]
fn method_override_and_other_paths_give_no_rights() {
    let node = Node::start(1).with_login();
    let viewer = node.new_key(&json!({ "name": "eve", "role": "viewer" }));
    node.send("POST", "/api/v1/users", &json!({ "name": "u", "password": "lovelace" }))
        .ok();
    let bearer = format!("Bearer {viewer}");
    let overridden = |method: &str, target: &str| {
        let headers = [
            ("Authorization", bearer.as_str()),
            ("X-HTTP-Method-Override", "DELETE"),
            ("X-HTTP-Method", "DELETE"),
            ("X-Method-Override", "DELETE"),
            ("X-Original-URL", "/api/v1/users/u"),
            ("X-Forwarded-User", "admin"),
            ("X-Rewrite-URL", "/api/v1/users/u"),
        ];
        web::request(node.address, method, target, &headers, "").status
    };
    assert_eq!(overridden("GET", "/api/v1/users"), 200);
    assert_eq!(
        overridden("GET", "/api/v1/users?_method=DELETE"),
        400,
        "an unknown parameter"
    );
    assert_eq!(overridden("GET", "/api/v1/acl"), 200);
    for method in [
        "delete", "Delete", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "GET", "POST",
    ] {
        let status = overridden(method, "/api/v1/users/u");
        assert!(matches!(status, 400 | 405), "{method}: {status}");
    }
    for target in [
        "/api/v1/users/u",
        "/api/v1/users/u/",
        "//api/v1/users/u",
        "/api/v1//users/u",
        "/api/v1/./users/u",
        "/api/v1/clients/../users/u",
        "/api/v1/users/%75",
        "/api/v1/users/u?role=admin",
        "/API/V1/users/u",
        "/api/v1/users/u;x",
        "/api/v1%2Fusers%2Fu",
    ] {
        let status = node.request_as(&viewer, "DELETE", target, &Value::Null).status;
        assert!(matches!(status, 403..=405), "{target}: {status}");
    }
    let users = node.all_pages("/api/v1/users", 10);
    assert!(users.iter().any(|user| user["name"] == "u"), "{users:?}");
}

#[test]
fn names_do_not_confuse_users_and_keys() {
    let node = Node::start(1).with_login();
    let viewer = node.token_of_new_user("eve", "viewer");
    node.token_of_new_user("otto", "operator");
    // A key with the name of an administrator is still a key with its own role.
    let key = node.new_key(&json!({ "name": "admin", "role": "viewer" }));
    node.request_as(&key, "GET", "/api/v1/console-users", &Value::Null)
        .problem(403);
    let own = node
        .request_as(&key, "GET", "/api/v1/own-logins", &Value::Null)
        .ok()
        .json();
    assert_eq!(
        own,
        json!([]),
        "the logins of the user `admin` are not those of the key"
    );
    node.request_as(&key, "DELETE", "/api/v1/own-logins", &Value::Null).ok();
    node.get("/api/v1/console-users").ok();
    let change = json!({ "current_password": node.password, "new_password": "taken over now" });
    let refused = node.request_as(&key, "POST", "/api/v1/password", &change);
    assert!(matches!(refused.status, 401 | 403 | 422), "{}", refused.body);
    node.login("admin", &node.password).ok();
    // A user cannot end the login of another one by its ID.
    let logins = node.all_pages("/api/v1/logins?user=admin", 10);
    let id = logins[0]["id"].as_str().unwrap();
    let target = format!("/api/v1/own-logins/{id}");
    node.request_as(&viewer, "DELETE", &target, &Value::Null).problem(404);
    node.request_as(&viewer, "DELETE", &format!("/api/v1/logins/{id}"), &Value::Null)
        .problem(403);
    node.get("/api/v1/console-users").ok();
    // Names that differ in case or encoding are other users.
    for name in ["EVE", "eve%00", "eve%20", "%65ve%2F"] {
        let answer = node.send(
            "PUT",
            &format!("/api/v1/console-users/{name}"),
            &json!({ "role": "admin" }),
        );
        assert!(matches!(answer.status, 400 | 404), "{name}: {}", answer.body);
    }
    node.request_as(&viewer, "GET", "/api/v1/console-users", &Value::Null)
        .problem(403);
}

#[test]
fn operator_runs_the_node_and_changes_no_setting() {
    let node = Node::start(1).with_login();
    let operator = node.token_of_new_user("otto", "operator");
    let ask = |method: &str, target: &str, body: &Value| node.request_as(&operator, method, target, body);
    let _peer = node.peer("c");
    ask(
        "POST",
        "/api/v1/publish",
        &json!({ "topic": "t", "payload": "x", "retain": true }),
    )
    .ok();
    assert_eq!(ask("DELETE", "/api/v1/retained/t", &Value::Null).status, 204);
    assert_eq!(ask("DELETE", "/api/v1/clients/c", &Value::Null).status, 204);
    assert_eq!(ask("DELETE", "/api/v1/alarms", &Value::Null).status, 204);
    ask("PUT", "/api/v1/acl", &json!({ "rules": [] })).problem(403);
    ask("POST", "/api/v1/banned", &json!({ "kind": "client_id", "who": "c" })).problem(403);
    ask("POST", "/api/v1/clients/c/subscriptions", &json!({ "filter": "#" })).problem(403);
    ask("POST", "/api/v1/api-keys", &json!({ "name": "x", "role": "viewer" })).problem(403);
    ask("PUT", "/api/v1/console-users/otto", &json!({ "role": "admin" })).problem(403);
    ask(
        "PUT",
        "/api/v1/configuration",
        &json!({ "changes": { "mqtt.max_qos": "1" } }),
    )
    .problem(403);
    let log = node.all_pages("/api/v1/audit?user=otto", 100);
    let of = |operation: &str| log.iter().find(|entry| entry["operation"] == operation).unwrap()["status"].clone();
    assert_eq!((of("kick_client"), of("set_acl")), (json!(204), json!(403)));
}

#[test]
fn audited_operations_record_their_state() {
    let audited: Vec<_> = api::operations().filter(|operation| operation.is_audited()).collect();
    assert!(audited.len() > 40, "{}", audited.len());
    let without: BTreeSet<&str> = WITHOUT_STATE.into();
    for operation in audited {
        // The answer to the creation of an entity is its state.
        let is_creation = operation.answers.iter().any(|answer| answer.status.as_u16() == 201);
        let has_no_state = without.contains(operation.id) || is_command(operation.id);
        assert_eq!(
            operation.records_state || is_creation,
            !has_no_state,
            "{}: add .changes(…), or list it here",
            operation.id
        );
    }
}

/// Commands of other subsystems, which their own pages show.
fn is_command(id: &str) -> bool {
    matches!(
        id,
        "start_backup" | "restore_backup" | "restore_now" | "start_benchmark" | "stop_benchmark" | "unsubscribe_client"
    )
}
