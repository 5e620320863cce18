//! Queues of rule chains over REST: the three predefined queues, changes, permissions.

use serde_json::{Value, json};

use super::server::{CUSTOMER, SYSADMIN, Server, TENANT, id, refused};

#[test]
fn queues_are_listed_changed_created_and_deleted() {
    let server = Server::start();
    let as_admin = |method, target: &str, body: Value| server.as_user(SYSADMIN, method, target, &body);
    let page = server
        .get("/api/queues?serviceType=TB_RULE_ENGINE&pageSize=10&page=0")
        .ok()
        .json();
    assert_eq!(page["totalElements"], 3);
    let strategies: Vec<(&str, &str, i64)> = page["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|queue| {
            let processing = &queue["processingStrategy"];
            (
                queue["name"].as_str().unwrap(),
                processing["type"].as_str().unwrap(),
                processing["retries"].as_i64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        strategies,
        [
            ("Main", "SKIP_ALL_FAILURES", 3),
            ("HighPriority", "RETRY_FAILED_AND_TIMED_OUT", 0),
            ("SequentialByOriginator", "RETRY_FAILED_AND_TIMED_OUT", 3),
        ]
    );
    let none = server
        .get("/api/queues?serviceType=TB_CORE&pageSize=10&page=0")
        .ok()
        .json();
    assert_eq!(none["totalElements"], 0);
    let found = server.get("/api/queues?pageSize=10&page=0&textSearch=high").ok().json();
    assert_eq!(found["data"][0]["name"], "HighPriority");

    let mut main = server.get("/api/queues/name/Main").ok().json();
    assert_eq!(main["id"]["entityType"], "QUEUE");
    assert_eq!(main["topic"], "tb_rule_engine.main");
    assert_eq!(main["submitStrategy"], json!({"type": "BURST", "batchSize": 1000}));
    main["processingStrategy"] = json!({"type": "RETRY_FAILED", "retries": 2, "failurePercentage": 10.0,
        "pauseBetweenRetries": 1, "maxPauseBetweenRetries": 4});
    let saved = as_admin("POST", "/api/queues?serviceType=TB_RULE_ENGINE", main.clone())
        .ok()
        .json();
    assert_eq!(saved["processingStrategy"], main["processingStrategy"]);
    assert_eq!(server.get(&format!("/api/queues/{}", id(&main))).ok().json(), saved);

    let own = json!({"name": "Own", "submitStrategy": {"type": "SEQUENTIAL", "batchSize": 1},
        "processingStrategy": {"type": "RETRY_ALL", "retries": 1}});
    let own = as_admin("POST", "/api/queues?serviceType=TB_RULE_ENGINE", own)
        .ok()
        .json();
    assert_eq!(own["topic"], "tb_rule_engine.own");
    let path = format!("/api/queues/{}", id(&own));
    server
        .post(
            "/api/deviceProfile",
            json!({"name": "P", "type": "DEFAULT", "transportType": "DEFAULT", "defaultQueueName": "Own"}),
        )
        .ok();
    let message = refused(&as_admin("DELETE", &path, Value::Null), 400, 31);
    assert_eq!(
        message,
        "The queue referenced by the device profiles cannot be deleted!"
    );
    let profiles = server
        .get("/api/deviceProfileInfos?pageSize=10&page=0&textSearch=P")
        .ok()
        .json();
    let profiles = profiles["data"].as_array().unwrap().clone();
    let profile = profiles.iter().find(|profile| profile["name"] == "P").unwrap();
    server.delete(&format!("/api/deviceProfile/{}", id(profile))).ok();
    as_admin("DELETE", &path, Value::Null).ok();
    refused(&server.get(&path), 404, 32);
    let message = refused(
        &as_admin("DELETE", &format!("/api/queues/{}", id(&main)), Value::Null),
        400,
        31,
    );
    assert_eq!(message, "Deletion of the queue Main is prohibited!");
}

#[test]
fn invalid_queues_are_rejected() {
    let server = Server::start();
    let save = |queue: &Value| server.as_user(SYSADMIN, "POST", "/api/queues?serviceType=TB_RULE_ENGINE", queue);
    let good = json!({"name": "Q", "submitStrategy": {"type": "BURST", "batchSize": 1}, "processingStrategy": {"type": "RETRY_ALL"}});
    let with = |path: &str, value: Value| {
        let mut queue = good.clone();
        *queue.pointer_mut(path).unwrap() = value;
        queue
    };
    let strategy = |key: &str, value: Value| {
        let mut queue = good.clone();
        queue["processingStrategy"][key] = value;
        queue
    };
    for (queue, says) in [
        (with("/name", json!("")), "Queue name should be specified!"),
        (with("/name", json!("a b")), "contains a character other than ASCII"),
        (with("/name", json!("Main")), "Queue with such name already exists!"),
        (
            with("/submitStrategy", Value::Null),
            "Queue submit strategy can't be null!",
        ),
        (
            with("/processingStrategy", Value::Null),
            "Queue processing strategy can't be null!",
        ),
        (
            with("/processingStrategy/type", json!("TRY_HARD")),
            "processingStrategy.type",
        ),
        (strategy("retries", json!(-1)), "retries can't be less then 0!"),
        (
            strategy("failurePercentage", json!(101)),
            "should be in a range from 0 to 100!",
        ),
        (
            strategy("pauseBetweenRetries", json!(9)),
            "max pause between retries can't be less",
        ),
    ] {
        let message = refused(&save(&queue), 400, 31);
        assert!(message.contains(says), "{queue}: {message}");
    }
    let main = server.get("/api/queues/name/Main").ok().json();
    let mut renamed = main.clone();
    renamed["name"] = json!("Minor");
    assert_eq!(refused(&save(&renamed), 400, 31), "Can't change queue name!");
    let other = server.as_user(SYSADMIN, "POST", "/api/queues?serviceType=TB_CORE", &good);
    refused(&other, 400, 31);
    refused(&server.get("/api/queues/name/None"), 404, 32);
}

#[test]
fn only_system_administrators_change_queues() {
    let server = Server::start();
    let main = server.get("/api/queues/name/Main").ok().json();
    let path = format!("/api/queues/{}", id(&main));
    for user in [TENANT, CUSTOMER] {
        refused(&server.as_user(user, "POST", "/api/queues", &main), 403, 20);
        refused(&server.as_user(user, "DELETE", &path, &Value::Null), 403, 20);
    }
    for target in [&*path, "/api/queues/name/Main", "/api/queues?pageSize=1&page=0"] {
        server.as_user(SYSADMIN, "GET", target, &Value::Null).ok();
        server.get(target).ok();
        refused(&server.as_user(CUSTOMER, "GET", target, &Value::Null), 403, 20);
        refused(&server.send("GET", target, None, ""), 401, 10);
    }
}

#[test]
fn queue_statistics_have_counts_and_the_last_exception() {
    let mut options = devices::DevicesOptions::default();
    options.platform.usage_ms = 100;
    let server = Server::start_with(options);
    let chain = server.get("/api/ruleChains?pageSize=10&page=0").ok().json()["data"][0].clone();
    let choosy = json!({"type": "org.thingsboard.rule.engine.filter.TbJsFilterNode", "name": "Choosy", "additionalInfo": {},
        "configuration": {"scriptLang": "JS", "jsScript": "return msg.name != 'bad' || msg.no.such;"}});
    let metadata = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": [choosy], "connections": [],
        "ruleChainConnections": null});
    server.post("/api/ruleChain/metadata", metadata).ok();
    for name in ["a", "bad", "b"] {
        server.device(name);
    }
    let stats = server.wait_for("/api/queueStats?pageSize=10&page=0", |found| {
        found["totalElements"] == 1
    });
    let stats = &stats["data"][0];
    let stats_id = id(stats);
    assert_eq!(
        (&stats["id"]["entityType"], &stats["queueName"]),
        (&json!("QUEUE_STATS"), &json!("Main"))
    );
    assert_eq!(&server.get(&format!("/api/queueStats/{stats_id}")).ok().json(), stats);
    let listed = server
        .get(&format!("/api/queueStats?queueStatsIds={stats_id}"))
        .ok()
        .json();
    assert_eq!(&listed, &json!([stats]));
    refused(
        &server.as_user(CUSTOMER, "GET", &format!("/api/queueStats/{stats_id}"), &Value::Null),
        403,
        20,
    );
    let sum = |found: &Value, key: &str| -> u64 {
        let points = found[key].as_array().into_iter().flatten();
        points
            .filter_map(|point| point["value"].as_str()?.parse::<u64>().ok())
            .sum()
    };
    let all = format!(
        "/api/plugins/telemetry/QUEUE_STATS/{stats_id}/values/timeseries?startTs=0&endTs=99999999999999\
         &keys=totalMsgs,successfulMsgs,failedMsgs,tmpFailed,timeoutMsgs,tmpTimeout,ruleEngineException"
    );
    let found = server.wait_for(&all, |found| sum(found, "successfulMsgs") == 2);
    let sums = ["totalMsgs", "failedMsgs", "tmpFailed", "timeoutMsgs", "tmpTimeout"].map(|key| sum(&found, key));
    assert_eq!(sums, [3, 1, 0, 0, 0], "{found}");
    let exception = found["ruleEngineException"][0]["value"].as_str().unwrap();
    let exception: Value = serde_json::from_str(exception).unwrap();
    assert_eq!(
        (&exception["ruleChainName"], &exception["ruleNodeName"]),
        (&chain["name"], &json!("Choosy"))
    );
    assert!(exception["message"].as_str().unwrap().contains("such"), "{exception}");

    // The query of ThingsBoard's dashboard of rule engine statistics.
    let query = json!({"entityFilter": {"type": "entityType", "entityType": "QUEUE_STATS"},
        "entityFields": [{"type": "ENTITY_FIELD", "key": "queueName"}, {"type": "ENTITY_FIELD", "key": "serviceId"}],
        "latestValues": [{"type": "TIME_SERIES", "key": "timeoutMsgs"}], "pageLink": {"pageSize": 10, "page": 0}});
    let found = server.post("/api/entitiesQuery/find", query).ok().json();
    let latest = &found["data"][0]["latest"];
    assert_eq!(latest["ENTITY_FIELD"]["queueName"]["value"], "Main", "{found}");
    assert_eq!(latest["TIME_SERIES"]["timeoutMsgs"]["value"], "0", "{found}");
}
