//! An administrator of the API tries to read files and variables of the server as secrets of a connector.

use serde_json::{Value as Json, json};

use crate::support::api::Api;
use crate::support::*;

/// Defines a connector that sends the secret to its target. Returns the status and the error.
fn define(api: &Api<'_>, secret: &str) -> (u16, String) {
    let config = json!({"url": "https://example.org", "headers": {"x-stolen": secret}});
    let definition = json!({"type": "http", "name": "thief", "config": config});
    let (status, answer) = api.call("POST", "/api/v1/connectors", &definition);
    if status < 300 {
        api.ok("DELETE", "/api/v1/connectors/thief", &Json::Null);
    } else {
        let (tested, _) = api.call("POST", "/api/v1/connector-test", &definition);
        assert_eq!(tested, 422, "a test of the connector has the same rule");
    }
    (status, answer["detail"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn secrets_of_the_api_are_in_the_allowed_directory_and_prefix() {
    let config = Config::new("[integration]\nsecrets_dir = \"{dir}/secrets\"\n")
        .environment("TIDEWIRE_SECRET_TOKEN", "x")
        .environment("OTHER_TOKEN", "x");
    let server = Server::start(&config);
    let secrets = server.dir().join("secrets");
    std::fs::create_dir_all(&secrets).expect("a directory");
    std::fs::write(secrets.join("token"), "x").expect("a file");
    let api = Api::of(&server);
    let file = |path: &str| format!("file:{}/{path}", server.dir().display());
    for refused in [
        "file:/etc/hostname".to_owned(),
        file("data/admin-password"),
        file("secrets/../data/admin-password"),
        "env:OTHER_TOKEN".to_owned(),
        "env:HOME".to_owned(),
    ] {
        let (status, detail) = define(&api, &refused);
        assert_eq!(status, 422, "{refused}");
        assert!(detail.contains("integration.secrets_"), "{detail}");
    }
    for allowed in [
        file("secrets/token"),
        "env:TIDEWIRE_SECRET_TOKEN".to_owned(),
        "plain".to_owned(),
    ] {
        let (status, detail) = define(&api, &allowed);
        assert!(status < 300, "{allowed}: {detail}");
    }
}

#[test]
fn secrets_of_the_api_are_no_files_by_default() {
    let server = Server::start(&Config::default());
    let (status, _) = define(&Api::of(&server), "file:/etc/hostname");
    assert_eq!(status, 422);
}

#[test]
fn invalid_field_beside_a_hidden_secret_is_the_reported_problem() {
    let server = Server::start(&Config::default());
    let api = Api::of(&server);
    let connector = |extra: &Json| {
        let mut config = json!({"url": "https://example.org", "headers": {"x-key": "***"}});
        for (field, value) in extra.as_object().into_iter().flatten() {
            config[field] = value.clone();
        }
        json!({"type": "http", "name": "keyed", "config": config})
    };
    let created = connector(&json!({"headers": {"x-key": "secret"}}));
    api.ok("POST", "/api/v1/connectors", &created);
    for (extra, field) in [
        (json!({"connections_max": "many"}), "connections_max"),
        (json!({"connections": 1}), "connections"),
        (json!({"url": 5}), "url"),
    ] {
        for (method, path) in [("PUT", "/api/v1/connectors/keyed"), ("POST", "/api/v1/connector-test")] {
            let (status, answer) = api.call(method, path, &connector(&extra));
            assert_eq!(status, 422, "{answer}");
            let text = answer.to_string();
            assert!(
                text.contains(field) && !text.contains("none is stored"),
                "{method}: {text}"
            );
        }
    }
    // A valid change has the stored secret, and another target does not.
    api.ok(
        "PUT",
        "/api/v1/connectors/keyed",
        &connector(&json!({"connections_max": 3})),
    );
    let (status, answer) = api.call(
        "PUT",
        "/api/v1/connectors/keyed",
        &connector(&json!({"url": "https://evil.example"})),
    );
    assert!(
        status == 422 && answer.to_string().contains("none is stored"),
        "{answer}"
    );
}
