//! Events of users' actions in rule chains, observed as debug events of a node; and script tests.

use serde_json::{Value, json};

use super::server::{Server, id, refused};

/// Replaces the root chain by one script filter in debug mode, and returns the path of its events.
fn debugged_root(server: &Server) -> String {
    let chain = server.post("/api/ruleChain", json!({"name": "watch"})).ok().json();
    let metadata = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": [
        {"type": "org.thingsboard.rule.engine.filter.TbJsFilterNode", "name": "watch", "additionalInfo": {},
         "debugSettings": {"allEnabled": true}, "configuration": {"scriptLang": "JS", "jsScript": "return true;"}}],
        "connections": [], "ruleChainConnections": null});
    let saved = server.post("/api/ruleChain/metadata", metadata).ok().json();
    server
        .post(&format!("/api/ruleChain/{}/root", id(&chain)), Value::Null)
        .ok();
    format!("/api/events/RULE_NODE/{}", id(&saved["nodes"][0]))
}

/// Returns the types of incoming messages, oldest first.
fn seen(server: &Server, path: &str) -> Vec<String> {
    let events = server
        .post(
            &format!("{path}?pageSize=100&page=0&sortProperty=createdTime&sortOrder=ASC"),
            json!({"msgDirectionType": "IN"}),
        )
        .ok()
        .json();
    let events = events["data"].as_array().unwrap();
    events
        .iter()
        .map(|event| event["body"]["msgType"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn user_actions_are_sent_to_the_root_chain() {
    let server = Server::start();
    let path = debugged_root(&server);
    server.post(&format!("{path}/clear"), json!({})).ok();
    let customer = server.customer();
    let device = server.device("d");
    server
        .post(
            "/api/device",
            json!({"id": {"entityType": "DEVICE", "id": device}, "name": "e", "type": "default"}),
        )
        .ok();
    server
        .post(&format!("/api/customer/{customer}/device/{device}"), Value::Null)
        .ok();
    server.delete(&format!("/api/customer/device/{device}")).ok();
    let asset = server
        .post("/api/asset", json!({"name": "a", "type": "default"}))
        .ok()
        .json();
    let relation = json!({"from": asset["id"], "to": {"entityType": "DEVICE", "id": device}, "type": "Contains"});
    server.post("/api/relation", relation).ok();
    server
        .post(
            &format!("/api/plugins/telemetry/DEVICE/{device}/attributes/SERVER_SCOPE"),
            json!({"k": 1}),
        )
        .ok();
    let telemetry = format!("/api/plugins/telemetry/DEVICE/{device}/timeseries");
    server
        .post(&format!("{telemetry}/ANY"), json!({"ts": 5, "values": {"k": 1}}))
        .ok();
    server
        .delete(&format!("{telemetry}/delete?keys=k&deleteAllDataForKeys=true"))
        .ok();
    let alarm = json!({"type": "T", "severity": "MAJOR", "originator": {"entityType": "DEVICE", "id": device}});
    let alarm = server.post("/api/alarm", alarm).ok().json();
    let comment = json!({"comment": {"text": "c"}});
    server.post(&format!("/api/alarm/{}/comment", id(&alarm)), comment).ok();
    server.post(&format!("/api/alarm/{}/ack", id(&alarm)), Value::Null).ok();
    server
        .post(&format!("/api/alarm/{}/clear", id(&alarm)), Value::Null)
        .ok();
    server.delete(&format!("/api/device/{device}")).ok();
    assert_eq!(
        seen(&server, &path),
        [
            "ENTITY_CREATED",
            "ENTITY_UPDATED",
            "ENTITY_ASSIGNED",
            "ENTITY_UNASSIGNED",
            "ENTITY_CREATED",
            "RELATION_ADD_OR_UPDATE",
            "RELATION_ADD_OR_UPDATE",
            "ATTRIBUTES_UPDATED",
            "TIMESERIES_UPDATED",
            "TIMESERIES_DELETED",
            "ENTITY_CREATED",
            "COMMENT_CREATED",
            "ALARM_ACK",
            "ALARM_CLEAR",
            "ENTITY_DELETED"
        ]
    );
    let assigned = server
        .post(
            &format!("{path}?pageSize=10&page=0"),
            json!({"msgType": "ENTITY_ASSIGNED", "msgDirectionType": "OUT"}),
        )
        .ok()
        .json();
    let body = &assigned["data"][0]["body"];
    assert_eq!(
        (&body["relationType"], &body["entityId"]),
        (&json!("True"), &json!(device))
    );
    let metadata: Value = serde_json::from_str(body["metadata"].as_str().unwrap()).unwrap();
    assert_eq!(
        (
            &metadata["assignedCustomerId"],
            &metadata["userName"],
            &metadata["deviceName"]
        ),
        (&json!(customer), &json!("tenant@thingsboard.org"), &json!("e"))
    );
    let all = server
        .get(&format!("{path}/DEBUG_RULE_NODE?pageSize=1&page=1"))
        .ok()
        .json();
    assert_eq!(
        (&all["totalElements"], all["data"].as_array().unwrap().len()),
        (&json!(30), 1)
    );
    let none = server.get(&format!("{path}/LC_EVENT?pageSize=1&page=0")).ok().json();
    assert_eq!(none["totalElements"], 0);
    refused(
        &server.as_user(
            super::server::CUSTOMER,
            "GET",
            &format!("{path}?pageSize=1&page=0"),
            &Value::Null,
        ),
        403,
        20,
    );
}

#[test]
fn debug_mode_is_limited_to_failures_and_time() {
    let server = Server::start();
    let chain = server.get("/api/ruleChains?pageSize=10&page=0").ok().json();
    let id_of_chain = chain["data"][0]["id"].clone();
    let node = |name: &str, script: &str, settings: Value| {
        json!({"type": "org.thingsboard.rule.engine.filter.TbJsFilterNode", "name": name, "additionalInfo": {},
            "debugSettings": settings, "configuration": {"scriptLang": "JS", "jsScript": script}})
    };
    let nodes = [
        node("past", "return true;", json!({"allEnabledUntil": 1000})),
        node(
            "fails",
            "return msg.name.first.second;",
            json!({"failuresEnabled": true}),
        ),
    ];
    let metadata = json!({"ruleChainId": id_of_chain, "firstNodeIndex": 0, "nodes": nodes,
        "connections": [{"fromIndex": 0, "toIndex": 1, "type": "True"}], "ruleChainConnections": null});
    let saved = server.post("/api/ruleChain/metadata", metadata).ok().json();
    server.device("d");
    let events = |index: usize| {
        let node = id(&saved["nodes"][index]);
        server
            .get(&format!(
                "/api/events/RULE_NODE/{node}/DEBUG_RULE_NODE?pageSize=10&page=0"
            ))
            .ok()
            .json()
    };
    assert_eq!(events(0)["totalElements"], 0);
    let failed = events(1);
    assert_eq!(failed["totalElements"], 1, "{failed}");
    assert_eq!(failed["data"][0]["body"]["relationType"], "Failure");
    assert!(
        failed["data"][0]["body"]["error"]
            .as_str()
            .is_some_and(|error| !error.is_empty())
    );
}

#[test]
fn lifecycle_events_of_chains_and_nodes_are_stored() {
    let server = Server::start();
    let chain = server.post("/api/ruleChain", json!({"name": "c"})).ok().json();
    let node = |kind: &str, node: &Value| json!({"id": node, "type": format!("org.thingsboard.rule.engine.{kind}"), "name": kind, "configuration": {}, "additionalInfo": {}});
    let save = |nodes: Value| {
        let metadata = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": nodes, "connections": [], "ruleChainConnections": null});
        server.post("/api/ruleChain/metadata", metadata).ok().json()
    };
    let good = node("filter.TbMsgTypeSwitchNode", &Value::Null);
    let saved = save(json!([good, node("mail.NoSuchNode", &Value::Null)]));
    let events = |of: &Value, query: &str| {
        let path = format!(
            "/api/events/{}/{}{query}",
            of["entityType"].as_str().unwrap(),
            of["id"].as_str().unwrap()
        );
        let found = server.get(&path).ok().json();
        let events = found["data"].as_array().unwrap().clone();
        assert!(events.iter().all(|event| event["entityId"] == *of), "{found}");
        let names = events
            .iter()
            .rev()
            .map(|event| event["body"]["event"].as_str().unwrap().to_owned());
        (names.collect::<Vec<_>>(), events)
    };
    let all = "?pageSize=100&page=0";
    let lifecycle = "/LC_EVENT?pageSize=100&page=0";
    let (first, second) = (saved["nodes"][0]["id"].clone(), saved["nodes"][1]["id"].clone());
    assert_eq!(events(&first, lifecycle).0, ["STARTED"]);
    let (_, unknown) = events(&second, lifecycle);
    assert_eq!(
        (&unknown[0]["type"], &unknown[0]["body"]["success"]),
        (&json!("LC_EVENT"), &json!(false))
    );
    assert!(
        unknown[0]["body"]["error"]
            .as_str()
            .is_some_and(|error| error.contains("NoSuchNode"))
    );
    save(json!([node("filter.TbMsgTypeSwitchNode", &first)]));
    assert_eq!(events(&first, all).0.last().unwrap(), "UPDATED");
    assert_eq!(events(&second, all).0, ["STARTED", "STOPPED"]);
    let path = format!(
        "/api/events/RULE_NODE/{}?pageSize=100&page=0",
        second["id"].as_str().unwrap()
    );
    let failed = server
        .post(&path, json!({"eventType": "LC_EVENT", "status": "Failure"}))
        .ok()
        .json();
    assert_eq!(failed["totalElements"], 1);
    server.delete(&format!("/api/ruleChain/{}", id(&chain))).ok();
    let of_chain = events(&chain["id"], lifecycle).0;
    assert_eq!(
        (of_chain[0].as_str(), of_chain.last().unwrap().as_str()),
        ("STARTED", "STOPPED")
    );
    assert!(events(&chain["id"], "/STATS?pageSize=100&page=0").0.is_empty());
    let of_chain = format!("/api/events/RULE_CHAIN/{}", id(&chain));
    // Only users of the tenant can read these events.
    let other = server.as_user(
        super::server::CUSTOMER,
        "GET",
        &format!("{of_chain}?pageSize=10&page=0"),
        &Value::Null,
    );
    refused(&other, 403, 20);
    server.post(&format!("{of_chain}/clear"), json!({})).ok();
    assert!(events(&chain["id"], all).0.is_empty());
}

#[test]
fn rule_nodes_are_described() {
    let server = Server::start();
    let all = server.get("/api/components?componentTypes=FILTER,ACTION").ok().json();
    let all = all.as_array().unwrap();
    let has = |kind: &str| all.iter().any(|component| component["type"] == kind);
    assert!(has("FILTER") && has("ACTION") && !has("FLOW"));
    let alarm = server
        .get("/api/component/org.thingsboard.rule.engine.action.TbClearAlarmNode")
        .ok()
        .json();
    let definition = &alarm["configurationDescriptor"]["nodeDefinition"];
    assert_eq!(definition["relationTypes"], json!(["Cleared", "False", "Failure"]));
    assert!(
        !server
            .get("/api/components/FLOW")
            .ok()
            .json()
            .as_array()
            .unwrap()
            .is_empty()
    );
    refused(&server.get("/api/component/a.B"), 404, 32);
    let queues = server
        .get("/api/queues?serviceType=TB_RULE_ENGINE&pageSize=10&page=0")
        .ok()
        .json();
    assert_eq!(queues["data"][0]["name"], "Main");
    assert_eq!(queues["totalElements"], 3);
}

#[test]
fn scripts_are_tested() {
    let server = Server::start();
    let run = |kind: &str, script: &str| {
        let body = json!({"script": script, "scriptType": kind, "argNames": ["msg", "metadata", "msgType"],
            "msg": "{\"a\":1}", "metadata": {"k": "v"}, "msgType": "T"});
        let answer = server.post("/api/ruleChain/testScript", body).ok().json();
        (
            answer["output"].as_str().unwrap().to_owned(),
            answer["error"].as_str().unwrap().is_empty(),
        )
    };
    let ok = |text: &str| (text.to_owned(), true);
    assert_eq!(
        run("filter", "return msg.a == 1 && metadata.k == 'v' && msgType == 'T';"),
        ok("true")
    );
    assert_eq!(run("switch", "return ['x', 'y'];"), ok("[\"x\",\"y\"]"));
    assert_eq!(run("string", "return 'a is ' + msg.a;"), ok("a is 1"));
    let made: Value = serde_json::from_str(
        &run(
            "update",
            "msg.b = 2; return {msg: msg, metadata: metadata, msgType: msgType};",
        )
        .0,
    )
    .unwrap();
    assert_eq!(
        made,
        json!({"msg": {"a": 1, "b": 2}, "metadata": {"k": "v"}, "msgType": "T"})
    );
    assert_eq!(run("filter", "return nothing.at.all;"), (String::new(), false));
    assert_eq!(run("filter", "while (true) {}"), (String::new(), false));
    let tbel = json!({"script": "return true;", "scriptType": "filter", "msg": "{}"});
    let answer = server
        .post("/api/ruleChain/testScript?scriptLang=TBEL", tbel)
        .ok()
        .json();
    assert!(answer["error"].as_str().unwrap().contains("TBEL"));
}

#[test]
fn nodes_store_statistics_of_each_interval() {
    let server = Server::start();
    let chain = server.get("/api/ruleChains?pageSize=10&page=0").ok().json();
    let node = |script: &str| {
        json!({"type": "org.thingsboard.rule.engine.filter.TbJsFilterNode", "name": script, "additionalInfo": {},
            "configuration": {"scriptLang": "JS", "jsScript": script}})
    };
    let nodes = [
        node("return msg.name != 'c';"),
        node("return msg.name.first.second;"),
        node("return true;"),
    ];
    let metadata = json!({"ruleChainId": chain["data"][0]["id"], "firstNodeIndex": 0, "nodes": nodes,
        "connections": [{"fromIndex": 0, "toIndex": 1, "type": "True"}], "ruleChainConnections": null});
    let saved = server.post("/api/ruleChain/metadata", metadata).ok().json();
    let path = |index: usize| format!("/api/events/RULE_NODE/{}", id(&saved["nodes"][index]));
    let statistics = |index: usize| {
        let found = server
            .get(&format!("{}/STATS?pageSize=10&page=0", path(index)))
            .ok()
            .json();
        let counts = |event: &Value| {
            let body = &event["body"];
            assert_eq!(event["type"], "STATS");
            (
                body["messagesProcessed"].as_u64().unwrap(),
                body["errorsOccurred"].as_u64().unwrap(),
            )
        };
        found["data"].as_array().unwrap().iter().map(counts).collect::<Vec<_>>()
    };
    for name in ["a", "b", "c"] {
        server.device(name);
    }
    assert!(statistics(0).is_empty(), "statistics are stored hourly");
    let now_ms = super::server::now_ms();
    server.devices.record_statistics(now_ms);
    assert_eq!(
        (statistics(0), statistics(1), statistics(2)),
        (vec![(3, 0)], vec![(2, 2)], vec![])
    );
    server.device("d");
    server.devices.record_statistics(now_ms + 3_600_000);
    assert_eq!(
        (statistics(0), statistics(1)),
        (vec![(1, 0), (3, 0)], vec![(1, 1), (2, 2)])
    );
    // Without messages there are no statistics.
    server.devices.record_statistics(now_ms + 7_200_000);
    assert_eq!(statistics(0).len(), 2);

    let all = format!("{}?pageSize=10&page=0", path(1));
    let found = |filter: Value| server.post(&all, filter).ok().json()["totalElements"].clone();
    assert_eq!(found(json!({"eventType": "STATS", "minErrorsOccurred": 2})), 1);
    assert_eq!(found(json!({"eventType": "STATS", "maxMessagesProcessed": 2})), 1);
    // Two STATS events and the start event.
    assert_eq!(server.get(&all).ok().json()["totalElements"], 3);
    server.post(&format!("{}/clear", path(1)), Value::Null).ok();
    assert_eq!(server.get(&all).ok().json()["totalElements"], 0);
}

#[test]
fn saving_an_alarm_sends_events_and_adds_comments() {
    let server = Server::start();
    let path = debugged_root(&server);
    let device = server.device("d");
    let alarm = json!({"type": "T", "severity": "MAJOR", "originator": {"entityType": "DEVICE", "id": device}});
    let mut alarm = server.post("/api/alarm", alarm).ok().json();
    server.post(&format!("{path}/clear"), json!({})).ok();
    alarm["assigneeId"] = server.get("/api/auth/user").ok().json()["id"].clone();
    alarm["cleared"] = json!(true);
    let saved = server.post("/api/alarm", alarm.clone()).ok().json();
    assert_eq!(
        (&saved["assigneeId"], &saved["status"]),
        (&alarm["assigneeId"], &json!("CLEARED_UNACK"))
    );
    assert_eq!(
        seen(&server, &path),
        ["ALARM_CLEAR", "ALARM_ASSIGNED", "ENTITY_UPDATED"]
    );
    let comments = server.get(&format!("/api/alarm/{}/comment?pageSize=10&page=0", id(&alarm)));
    let comments = comments.ok().json();
    let comments = comments["data"].as_array().unwrap().iter();
    let mut subtypes: Vec<&str> = comments
        .filter_map(|comment| comment["comment"]["subtype"].as_str())
        .collect();
    subtypes.sort_unstable();
    assert_eq!(subtypes, ["ASSIGN", "CLEAR"]);
}
