//! Compares the OpenAPI document with the server: all operations are served, and require a login as documented.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::server::{SYSADMIN, Server, TENANT, refused};
use crate::http::wrong_bodies::answers_contain_no_rust;

#[test]
fn documented_operations_are_served_and_guarded() {
    let server = Server::start();
    let document: Value = server.send("GET", "/v3/api-docs", None, "").ok().json();
    let mut ids = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let target = path.replace(['{', '}'], "");
        for (method, operation) in operations.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} twice");
            for field in ["summary", "description"] {
                assert!(!operation[field].as_str().unwrap().is_empty(), "{id} has no {field}");
            }
            let answer = server.send(&method.to_uppercase(), &target, None, "");
            assert!(
                answer.status != 404 && answer.status != 405,
                "{method} {path}: {}",
                answer.body
            );
            let has_login = operation["security"] != json!([]);
            if has_login {
                refused(&answer, 401, 10);
            }
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            for parameter in parameters {
                assert!(
                    !parameter["description"].as_str().unwrap().is_empty(),
                    "{id}: {parameter}"
                );
                // The type of this parameter is not part of the document.
                assert_ne!(
                    parameter["schema"].get("default"),
                    Some(&Value::Null),
                    "{id}: {parameter}"
                );
            }
        }
    }
    assert!(ids.len() >= 120, "{}", ids.len());
}

#[test]
fn errors_about_input_contain_no_rust() {
    let server = Server::start();
    let document: Value = server.send("GET", "/v3/api-docs", None, "").ok().json();
    let refused = answers_contain_no_rust(&document, |method, target, body| {
        let target = target.replace("{entityType}", "DEVICE").replace(['{', '}'], "");
        let user = if target.contains("tenant") { SYSADMIN } else { TENANT };
        server.as_user(user, method, &target, body)
    });
    assert!(refused > 300, "{refused}");
}
