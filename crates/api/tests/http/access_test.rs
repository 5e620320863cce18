//! Tests of access rules over the API: the answer is the decision for a real client, with the rule that decides.

use serde_json::{Value, json};

use super::node::Node;

fn ask(node: &Node, question: Value) -> Value {
    node.send("POST", "/api/v1/acl/test", &question).ok().json()
}

fn rules() -> Value {
    json!([
        { "permission": "deny", "action": "publish", "topics": ["secret/#"] },
        { "permission": "allow", "action": "all", "topics": ["devices/%c/#"], "anonymous": false },
        { "permission": "allow", "action": "subscribe", "topics": ["news/#"], "addresses": ["10.0.0.0/8"] },
    ])
}

#[test]
fn first_matching_rule_is_named() {
    let node = Node::start(1).with_login();
    let about = |action: &str, topic: &str, more: Value| {
        let mut question = json!({ "action": action, "topic": topic, "client_id": "d1", "rules": rules() });
        question
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = ask(&node, question);
        (answer["is_allowed"].as_bool().unwrap(), answer["rule"].as_u64())
    };
    let ada = json!({ "user_name": "ada" });
    assert_eq!(about("publish", "secret/x", ada.clone()), (false, Some(0)));
    assert_eq!(about("publish", "devices/d1/temp", ada.clone()), (true, Some(1)));
    assert_eq!(about("publish", "devices/d2/temp", ada.clone()), (false, None));
    assert_eq!(about("publish", "devices/d1/temp", json!({})), (false, None));
    assert_eq!(
        about("subscribe", "news/today", json!({ "address": "10.1.2.3" })),
        (true, Some(2))
    );
    assert_eq!(
        about("subscribe", "news/today", json!({ "address": "192.168.0.1" })),
        (false, None)
    );
    assert_eq!(about("subscribe", "#", ada.clone()), (false, None));
    assert_eq!(about("publish", "$SYS/x", ada), (false, None));
}

#[test]
fn groups_of_the_client_are_part_of_the_question() {
    let node = Node::start(1).with_login();
    let rules = json!([
        { "permission": "deny", "action": "all", "topics": ["plant/#"], "groups": ["suspended"] },
        { "permission": "allow", "action": "all", "topics": ["plant/#"], "groups": ["operators", "admins"] },
    ]);
    for (groups, is_allowed, reason) in [
        (json!([]), false, "no rule matches"),
        (json!(["Operators"]), false, "no rule matches"),
        (json!(["admins", "x"]), true, "rule 2 matches first"),
        (json!(["operators", "suspended"]), false, "rule 1 matches first"),
    ] {
        let question = json!({ "action": "publish", "topic": "plant/1", "groups": groups, "rules": rules });
        let answer = ask(&node, question);
        assert_eq!(
            (&answer["is_allowed"], &answer["reason"]),
            (&is_allowed.into(), &reason.into()),
            "{groups}"
        );
    }
    let stored = node.send("PUT", "/api/v1/acl", &json!({ "rules": rules })).ok().json();
    assert_eq!(stored["rules"], rules, "{stored}");
}

#[test]
fn rules_for_connecting_are_tested() {
    let node = Node::start(1).with_login();
    let connect = |client_id: &str, user_name: &str, rules: Value| {
        let question = json!({
            "action": "connect", "client_id": client_id, "user_name": user_name, "rules": rules,
        });
        let answer = ask(&node, question);
        let reason = answer["reason"].as_str().unwrap().to_owned();
        (answer["is_allowed"].as_bool().unwrap(), answer["rule"].as_u64(), reason)
    };
    let rules = json!([
        { "permission": "allow", "action": "all", "topics": ["#"] },
        { "permission": "deny", "action": "connect", "topics": [], "clients": ["ada:old*"] },
        { "permission": "allow", "action": "connect", "topics": [], "clients": ["%u", "%u:*"] },
    ]);
    let second = "rule 2 matches first".to_owned();
    let third = "rule 3 matches first".to_owned();
    assert_eq!(connect("ada:old-1", "ada", rules.clone()), (false, Some(1), second));
    assert_eq!(connect("ada:new", "ada", rules.clone()), (true, Some(2), third));
    let none = "no rule for connecting matches".to_owned();
    assert_eq!(connect("bob", "ada", rules), (false, None, none));
    let topics_only = json!([{ "permission": "deny", "action": "all", "topics": ["#"] }]);
    let all = "there are no rules for connecting: every client id is allowed".to_owned();
    assert_eq!(connect("bob", "ada", topics_only), (true, None, all));
}

#[test]
fn rules_in_force_apply_without_rules_in_the_request() {
    let node = Node::start(1).with_login();
    let question = json!({ "action": "publish", "topic": "secret/x", "user_name": "ada" });
    node.send("PUT", "/api/v1/acl", &json!({ "rules": rules() })).ok();
    let answer = ask(&node, question.clone());
    assert_eq!(
        (&answer["is_allowed"], &answer["reason"]),
        (&false.into(), &"rule 1 matches first".into())
    );
    node.send("PUT", "/api/v1/acl", &json!({ "rules": [] })).ok();
    assert_eq!(ask(&node, question)["is_allowed"], true);
    let names = json!({ "action": "subscribe", "topic": "$SYS/brokers/+/clients/#" });
    let answer = ask(&node, names);
    assert_eq!(
        (&answer["is_allowed"], &answer["rule"]),
        (&false.into(), &Value::Null),
        "{answer}"
    );
}

#[test]
fn invalid_questions_are_rejected() {
    let node = Node::start(1).with_login();
    for (question, field) in [
        (
            json!({ "action": "publish", "topic": "a", "groups": vec!["g"; 1001] }),
            "groups",
        ),
        (json!({ "action": "all", "topic": "a" }), "action"),
        (json!({ "action": "publish", "topic": "a/#" }), "topic"),
        (json!({ "action": "publish" }), "topic"),
        (json!({ "action": "connect", "topic": "a" }), "topic"),
        (json!({ "action": "subscribe", "topic": "a#" }), "topic"),
        (json!({ "action": "publish", "topic": "a", "qos": 3 }), "qos"),
    ] {
        let problem = node.send("POST", "/api/v1/acl/test", &question).problem(422);
        assert_eq!(problem["field"], field, "{question}");
    }
}
