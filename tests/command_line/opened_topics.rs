//! Tests that the server logs a warning when a change of the access rules opens all topics.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

const TOPIC_RULE: &str = r#"{ permission = "allow", action = "all", topics = ["other"] }"#;
const CONNECT_RULE: &str = r#"{ permission = "allow", action = "connect", clients = ["*"] }"#;

const NO_MATCH_WARNING: &str = "access.no_match is now allow";
const CONNECT_WARNING: &str = "the last access rule for topics was removed";

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
