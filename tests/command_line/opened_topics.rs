//! Tests that no change of the access rules opens all topics silently: the server logs a warning, and it rejects a
//! reload or change without `runtime.toml`, which contains the rules.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

const TOPIC_RULE: &str = r#"{ permission = "allow", action = "all", topics = ["other"] }"#;
const CONNECT_RULE: &str = r#"{ permission = "allow", action = "connect", clients = ["*"] }"#;

const NO_MATCH_WARNING: &str = "access.no_match is now allow";
const CONNECT_WARNING: &str = "the last access rule for topics was removed";
const MISSING_FILE: &str = "runtime.toml: the file is missing, although it was there before";

fn config(no_match: &str, rule: &str) -> String {
    format!("[access]\nno_match = {no_match:?}\nrules = [{rule}]\n")
}

fn reload(server: &Server, config: &str) {
    fs::write(server.dir().join("config"), config).unwrap();
    let pid = server.pid().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
}

/// Returns whether a client may publish to a topic that no rule names.
fn is_open(server: &Server) -> bool {
    let mut peer = server.session(&Connect::new(V5, "client"));
    peer.publish(&Publish::new("topic", "x").qos(1)) < 0x80
}

fn count(server: &Server, warning: &str) -> usize {
    server.log().matches(warning).count()
}

#[test]
fn reload_that_opens_all_topics_logs_a_warning() {
    let closed = config("deny", TOPIC_RULE);
    let server = Server::start(&Config::new(&*closed));
    assert!(!is_open(&server));
    for (opened, warning) in [
        (config("allow", TOPIC_RULE), NO_MATCH_WARNING),
        (config("deny", CONNECT_RULE), CONNECT_WARNING),
    ] {
        assert_eq!(count(&server, warning), 0, "{}", server.log());
        reload(&server, &opened);
        server.wait_until("the topics are open", is_open);
        server.wait_until("the warning is logged", |server| count(server, warning) == 1);
        reload(&server, &closed);
        server.wait_until("the topics are closed", |server| !is_open(server));
    }
    let counts = [NO_MATCH_WARNING, CONNECT_WARNING].map(|warning| count(&server, warning));
    assert_eq!(counts, [1, 1], "{}", server.log());
}

#[test]
fn api_change_that_opens_all_topics_logs_a_warning() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let topic_rule = json!({ "permission": "allow", "action": "all", "topics": ["other"] });
    let connect_rule = json!({ "permission": "allow", "action": "connect", "topics": [], "clients": ["*"] });
    let set_rule = |rule: &Value| api.ok("PUT", "/api/v1/acl", &json!({ "rules": [rule] }));

    set_rule(&topic_rule);
    assert!(!is_open(&server));
    set_rule(&connect_rule);
    assert!(is_open(&server));
    server.wait_until("the warning is logged", |server| count(server, CONNECT_WARNING) == 1);

    set_rule(&topic_rule);
    assert!(!is_open(&server));
    assert_eq!(count(&server, NO_MATCH_WARNING), 0, "{}", server.log());
    let changes = json!({ "access.no_match": "allow" });
    api.ok("PUT", "/api/v1/configuration", &json!({ "changes": changes }));
    assert!(is_open(&server));
    server.wait_until("the warning is logged", |server| count(server, NO_MATCH_WARNING) == 1);
}

/// Asserts that a change is rejected because `runtime.toml` is missing.
#[track_caller]
fn assert_rejected(api: &Api<'_>, method: &str, path: &str, body: &Value) {
    let (status, problem) = api.call(method, path, body);
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert_eq!(status, 409, "{method} {path}: {problem}");
    assert!(detail.contains(MISSING_FILE), "{method} {path}: {problem}");
    assert!(detail.contains("create an empty file"), "{method} {path}: {problem}");
}

#[test]
fn missing_runtime_file_rejects_reloads_and_changes() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let rule = json!({ "permission": "allow", "action": "all", "topics": ["other"] });
    let rules = json!({ "rules": [rule] });
    let change = json!({ "changes": { "mqtt.max_inflight": "7" } });
    api.ok("PUT", "/api/v1/acl", &rules);
    let data_dir = server.dir().join("data");
    let (file, aside) = (data_dir.join("runtime.toml"), server.dir().join("aside"));
    server.wait_until("the file is recorded", |_| {
        fs::read_to_string(data_dir.join("stores.json")).is_ok_and(|text| text.contains("\"runtime.toml\""))
    });
    fs::rename(&file, &aside).unwrap();

    reload(&server, "");
    server.wait_until("the reload is rejected", |server| server.log().contains(MISSING_FILE));
    assert!(
        server.log().contains("the configuration was not reloaded"),
        "{}",
        server.log()
    );
    assert_rejected(&api, "PUT", "/api/v1/configuration", &change);
    assert_rejected(&api, "PUT", "/api/v1/acl", &rules);
    assert_rejected(&api, "POST", "/api/v1/restart", &Value::Null);
    assert!(!file.exists(), "a change without the earlier settings was written");
    assert!(!is_open(&server));

    fs::rename(&aside, &file).unwrap();
    api.ok("PUT", "/api/v1/configuration", &change);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("other") && text.contains("max_inflight"), "{text}");
    assert!(!is_open(&server));

    // An empty file accepts the loss.
    fs::remove_file(&file).unwrap();
    fs::write(&file, "").unwrap();
    reload(&server, "");
    server.wait_until("the topics are open", is_open);
    api.ok("PUT", "/api/v1/acl", &rules);
    assert!(!is_open(&server));
}
