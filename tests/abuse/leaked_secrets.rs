//! Sends a marker in place of each secret, also in fields that no operation knows, and looks for it wherever another
//! user of the server could read it: files, log, metrics, events, `$SYS` topics and answers of the API.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::support::api::Api;
use crate::support::http::request;
use crate::support::*;

const CONFIG: &str =
    "[platform]\nenabled = true\ndemo = true\n[log]\nlevel = \"debug\"\n[access]\nanonymous = \"never\"\n";
/// Secrets that no request stores.
const MARKER: &str = "hunter2-lost";
/// A secret in a definition, which the server stores in its own directory only.
const STORED: &str = "hunter2-kept";

/// Fails if a file below the directory contains the text.
#[track_caller]
fn assert_not_in_files(directory: &Path, text: &str, except: &[&str]) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            assert_not_in_files(&path, text, except);
        } else if !except.contains(&name.as_str()) {
            // The server can delete a file during the search.
            let bytes = fs::read(&path).unwrap_or_default();
            let is_found = String::from_utf8_lossy(&bytes).contains(text);
            assert!(!is_found, "{} contains {text}", path.display());
        }
    }
}

fn http(server: &Server, method: &str, path: &str, token: &str, body: &Json) -> (u16, String) {
    let headers = format!("Authorization: Bearer {token}\r\nX-Authorization: Bearer {token}\r\n");
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    request(server.http(), method, path, &headers, &body)
}

fn connector(config: &Json) -> Json {
    json!({"name": "web", "type": "http", "config": config})
}

/// Sends the marker as a secret to every kind of interface. All requests are refused.
fn send_refused(server: &Server, api: &Api<'_>) {
    let long = format!("{MARKER} {MARKER}");
    for (method, path, body) in [
        (
            "POST",
            "/api/v1/password",
            json!({"current_pasword": MARKER, "new_password": MARKER}),
        ),
        (
            "POST",
            "/api/v1/password",
            json!({"current_password": MARKER, "new_password": long}),
        ),
        ("POST", "/api/v1/users", json!({"name": "a:b", "password": MARKER})),
        (
            "POST",
            "/api/v1/users",
            json!({"name": "a", "pass": MARKER, "list": [{"x": MARKER}]}),
        ),
        ("POST", "/api/v1/users", json!([MARKER])),
        ("PUT", "/api/v1/users/unknown", json!({"password": MARKER})),
        (
            "DELETE",
            "/api/v1/users/unknown?token=hunter2-lost&x=hunter2-lost",
            Json::Null,
        ),
        (
            "POST",
            "/api/v1/api-keys",
            json!({"name": "a b", "role": "viewer", "sekret": MARKER}),
        ),
        (
            "POST",
            "/api/v1/connectors",
            connector(&json!({"url": format!("https://u:{MARKER}@h/?token={MARKER}")})),
        ),
        (
            "POST",
            "/api/v1/connectors",
            connector(&json!({"url": "https://h", "pasword": MARKER})),
        ),
        (
            "POST",
            "/api/v1/connectors",
            json!({"name": "x", "type": "x", "conf": {"password": MARKER}}),
        ),
        (
            "POST",
            "/api/v1/rules",
            json!({"id": "r", "sql": "SELECT", "api_secrt": MARKER}),
        ),
        (
            "POST",
            "/api/v1/console-users",
            json!({"name": "x", "role": "admin", "initial": MARKER}),
        ),
    ] {
        let (status, answer) = api.call(method, path, &body);
        assert!((400..500).contains(&status), "{method} {path}: {status} {answer}");
    }
    for (path, body) in [
        (
            "/api/auth/login",
            json!({"username": "tenant@thingsboard.org", "password": MARKER}),
        ),
        ("/api/auth/login", json!({"username": MARKER, "password": MARKER})),
        ("/api/auth/token", json!({"refreshToken": MARKER})),
        (
            "/api/noauth/activate",
            json!({"activateToken": MARKER, "password": MARKER}),
        ),
        ("/api/v1/login", json!({"user": MARKER, "password": MARKER})),
        ("/api/v1/hunter2-lost/telemetry", json!({"v": 1})),
        (
            "/api/v1/provision",
            json!({"provisionDeviceKey": MARKER, "provisionDeviceSecret": MARKER}),
        ),
    ] {
        http(server, "POST", path, MARKER, &body);
    }
    for version in [V4, V5] {
        let connect = Connect::new(version, unique("refused"));
        for connect in [
            connect.clone().user_name(MARKER),
            connect.user_name(MARKER).password(MARKER),
        ] {
            let mut peer = server.connect();
            peer.send(&connect.bytes());
            peer.expect_closed(PATIENCE);
        }
    }
}

#[test]
fn secrets_are_not_readable_anywhere() {
    let server = Server::start(&Config::new(CONFIG));
    let api = Api::of(&server);
    let viewer = api.ok("POST", "/api/v1/api-keys", &json!({"name": "viewer", "role": "viewer"}));
    let viewer = viewer["secret"].as_str().expect("a secret").to_owned();
    api.ok(
        "POST",
        "/api/v1/users",
        &json!({"name": "watcher", "password": "correct horse battery", "is_superuser": true}),
    );
    let connect = Connect::new(V5, "watcher")
        .user_name("watcher")
        .password("correct horse battery");
    let mut watcher = server.session(&connect);
    watcher.subscribe("$SYS/#", 0);

    // A rule writes all events of refused clients to a file.
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    let sql = "SELECT * FROM \"$events/client_connack\", \"$events/client_check_authn_complete\"";
    api.ok(
        "POST",
        "/api/v1/rules",
        &json!({"id": "events", "sql": sql, "actions": ["file:seen"]}),
    );

    let web = connector(&json!({"url": "https://example.org", "headers": {"x-api-key": STORED}}));
    api.ok("POST", "/api/v1/connectors", &web);
    let headers = json!({"authorization": format!("Bearer {STORED}"), "x-trace": "${clientid}", "x-hook": STORED});
    let path = format!("/a?code={STORED}&t=${{payload.t}}&token={STORED}");
    let action =
        json!({"type": "http", "name": "web", "connector": "web", "parameters": {"path": path, "headers": headers}});
    api.ok("POST", "/api/v1/actions", &action);
    let rule = |sql: &str| json!({"id": "r", "sql": sql, "actions": ["http:web"]});
    api.ok("POST", "/api/v1/rules", &rule("SELECT * FROM \"t/#\""));
    api.ok("PUT", "/api/v1/rules/r", &rule("SELECT * FROM \"u/#\""));

    send_refused(&server, &api);
    let seen = server.dir().join("seen.jsonl");
    server.wait_until("the events of refused clients are written", |_| {
        fs::read_to_string(&seen).is_ok_and(|text| text.matches("client.connack").count() >= 4)
    });

    // First as a user without administration rights, then as an administrator.
    for path in [
        "/api/v1/actions",
        "/api/v1/actions/http:web",
        "/api/v1/connectors",
        "/api/v1/rules",
        "/api/v1/rules/r/history",
        "/api/v1/refused-clients",
        "/api/v1/logs?limit=1000",
        "/api/v1/stats",
        "/metrics",
    ] {
        let (status, answer) = http(&server, "GET", path, &viewer, &Json::Null);
        assert_eq!(status, 200, "{path}: {answer}");
        assert!(!answer.contains(MARKER) && !answer.contains(STORED), "{path}: {answer}");
    }
    let audit = api.get("/api/v1/audit?limit=1000").to_string();
    assert!(!audit.contains(MARKER) && !audit.contains(STORED), "{audit}");
    assert!(
        audit.contains("current_pasword"),
        "the names of unknown fields are logged: {audit}"
    );
    let audit = Rest::login(&server)
        .ok("GET", "/api/audit/logs?pageSize=100&page=0", &Json::Null)
        .to_string();
    assert!(!audit.contains(MARKER), "{audit}");

    // The action keeps the hidden values when it is written back as it was read.
    let mut shown = api.get("/api/v1/actions/http:web");
    assert_eq!(
        shown["parameters"]["headers"],
        json!({"authorization": "***", "x-trace": "${clientid}", "x-hook": "***"})
    );
    assert_eq!(shown["parameters"]["path"], "/a?code=***&t=${payload.t}&token=***");
    shown["description"] = json!("changed");
    let shown: serde_json::Map<String, Json> = shown.as_object().expect("an object").clone();
    let fields = ["type", "name", "connector", "parameters", "description"];
    let back: Json = shown
        .into_iter()
        .filter(|(name, _)| fields.contains(&name.as_str()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    api.ok("PUT", "/api/v1/actions/http:web", &back);
    let definitions = server.dir().join("data/integration/definitions.json");
    let definitions = fs::read_to_string(definitions).expect("the definitions");
    assert!(definitions.contains(&format!("Bearer {STORED}")), "{definitions}");
    assert!(
        definitions.contains(&format!("/a?code={STORED}&t=${{payload.t}}&token={STORED}")),
        "{definitions}"
    );

    assert!(
        !server.log().contains(MARKER) && !server.log().contains(STORED),
        "{}",
        server.log()
    );
    assert_not_in_files(server.dir(), MARKER, &[]);
    assert_not_in_files(server.dir(), STORED, &["definitions.json"]);
    for packet in watcher.ping() {
        let is_found = packet
            .body
            .windows(MARKER.len())
            .any(|window| window == MARKER.as_bytes());
        assert!(!is_found, "a system topic contains the marker: {packet:?}");
    }
}
