//! Compares the OpenAPI document with the server: all paths are served, and all answers match their schemas.

use std::collections::BTreeSet;

use mqtt::QoS;
use serde_json::{Value, json};

use super::node::Node;
use super::peer::Peer;
use super::schema::Schemas;
use super::web::Answer;

fn document(node: &Node) -> Value {
    node.get("/api/openapi.json").ok().json()
}

/// Asserts that the document describes the answer for the operation.
#[track_caller]
fn conforms(document: &Value, method: &str, path: &str, answer: &Answer) {
    let schemas = Schemas { document };
    let operation = &document["paths"][path][method];
    let response = &operation["responses"][answer.status.to_string()];
    assert!(
        response.is_object(),
        "{method} {path} answers {} which is not documented: {}",
        answer.status,
        answer.body
    );
    let response = schemas.resolve(response);
    let content_type = answer.header("content-type").split(';').next().unwrap();
    match response.get("content") {
        None => assert!(answer.body.is_empty(), "{method} {path}: {}", answer.body),
        Some(content) if content_type.ends_with("json") => {
            let schema = &content[content_type]["schema"];
            assert!(!schema.is_null(), "{method} {path} answers {content_type}");
            schemas.check(schema, &answer.json());
        }
        Some(content) => assert!(
            content.get(content_type).is_some(),
            "{method} {path} answers {content_type}"
        ),
    }
}

#[test]
fn documented_operations_are_served_and_need_their_login() {
    let node = Node::start(1);
    let document = document(&node);
    let mut ids = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let target = path
            .replace("{client_id}", "x")
            .replace("{topic}", "x")
            .replace("{name}", "x");
        for (method, operation) in operations.as_object().unwrap() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()));
            assert!(
                !operation["summary"].as_str().unwrap().is_empty()
                    && !operation["description"].as_str().unwrap().is_empty()
            );
            let answer = node.request(&method.to_uppercase(), &target, "");
            assert!(
                answer.status != 405 && !answer.body.contains("this path does not exist"),
                "{method} {path}: {}",
                answer.body
            );
            conforms(&document, method, path, &answer);
            if operation["security"] == json!([{ "token": [] }]) {
                assert_eq!(answer.status, 401, "{method} {path}");
            }
        }
    }
    assert!(ids.len() >= 28, "{ids:?}");
}

#[test]
fn all_references_are_defined() {
    let node = Node::start(1);
    let document = document(&node);
    let schemas = Schemas { document: &document };
    let mut pending = vec![&document];
    let mut references = 0;
    while let Some(value) = pending.pop() {
        if value.get("$ref").is_some() {
            references += 1;
            schemas.resolve(value);
        }
        match value {
            Value::Object(object) => pending.extend(object.values()),
            Value::Array(list) => pending.extend(list),
            _ => {}
        }
    }
    assert!(references > 50);
}

/// A number at the end means that two types have the same schema name: one of them needs another name.
#[test]
fn schema_names_are_unique() {
    let node = Node::start(1);
    let document = document(&node);
    let names: Vec<&String> = document["components"]["schemas"].as_object().unwrap().keys().collect();
    assert!(names.iter().any(|name| *name == "ClientPage"), "{names:?}");
    for name in names {
        assert!(!name.ends_with(|c: char| c.is_ascii_digit()), "{name}");
    }
}

#[test]
fn answers_match_the_documented_schemas() {
    let node = Node::start(3).with_login();
    let document = document(&node);
    let mut peer = node.peer("c");
    peer.subscribe("$share/g/t", QoS::AtLeastOnce);
    peer.subscribe("t", QoS::AtMostOnce);
    Peer::try_connect(node.mqtt_address(), "bad", Some(("u", "p")));
    let publish = json!({ "topic": "kept", "payload": "x", "retain": true, "properties": { "user_properties": [{ "name": "a", "value": "b" }] } });
    let check = |method: &str, path: &str, target: &str, body: &Value| {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = node.request(&method.to_uppercase(), target, &body);
        conforms(&document, method, path, &answer);
        answer.status
    };
    let none = Value::Null;
    assert_eq!(check("post", "/api/v1/publish", "/api/v1/publish", &publish), 200);
    assert_eq!(
        check(
            "post",
            "/api/v1/publish/bulk",
            "/api/v1/publish/bulk",
            &json!({ "messages": [publish] })
        ),
        200
    );
    assert_eq!(
        check(
            "post",
            "/api/v1/users",
            "/api/v1/users",
            &json!({ "name": "u", "password": "lovelace" })
        ),
        201
    );
    assert_eq!(
        check(
            "put",
            "/api/v1/users/{name}",
            "/api/v1/users/u",
            &json!({ "is_superuser": true })
        ),
        200
    );
    node.wait_for("the message to be retained", || {
        node.get("/api/v1/retained/kept").status == 200
    });
    for (path, target) in [
        ("/api/v1/stats", "/api/v1/stats"),
        ("/api/v1/listeners", "/api/v1/listeners"),
        ("/api/v1/clients", "/api/v1/clients?limit=1"),
        ("/api/v1/clients/{client_id}", "/api/v1/clients/c"),
        (
            "/api/v1/clients/{client_id}/subscriptions",
            "/api/v1/clients/c/subscriptions",
        ),
        ("/api/v1/refused-clients", "/api/v1/refused-clients"),
        ("/api/v1/subscriptions", "/api/v1/subscriptions"),
        ("/api/v1/shared-groups", "/api/v1/shared-groups"),
        ("/api/v1/retained", "/api/v1/retained"),
        ("/api/v1/retained/{topic}", "/api/v1/retained/kept"),
        ("/api/v1/users", "/api/v1/users"),
        ("/api/v1/acl", "/api/v1/acl"),
        ("/metrics", "/metrics"),
        ("/livez", "/livez"),
    ] {
        assert_eq!(check("get", path, target, &none), 200, "{path}");
    }
    let acl = json!({ "rules": [{ "permission": "allow", "action": "all", "topics": ["#"] }] });
    assert_eq!(check("put", "/api/v1/acl", "/api/v1/acl", &acl), 200);
    assert_eq!(
        check(
            "put",
            "/api/v1/acl",
            "/api/v1/acl",
            &json!({ "rules": [{ "permission": "allow", "action": "all", "topics": ["##"] }] })
        ),
        422
    );
    assert_eq!(
        check("delete", "/api/v1/retained/{topic}", "/api/v1/retained/kept", &none),
        204
    );
    assert_eq!(check("delete", "/api/v1/users/{name}", "/api/v1/users/u", &none), 204);
    assert_eq!(
        check(
            "delete",
            "/api/v1/clients/{client_id}",
            "/api/v1/clients/missing",
            &none
        ),
        404
    );
    assert_eq!(check("post", "/api/v1/logout", "/api/v1/logout", &none), 204);
}
