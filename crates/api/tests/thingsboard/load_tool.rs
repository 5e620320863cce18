//! The requests of ThingsBoard's load tool, in its order and with its bodies: versions 3.3.3 and 4.0.1.

use base64ct::{Base64UrlUnpadded, Encoding};
use serde_json::{Value, json};

use super::server::{Server, TENANT, id, refused};

/// The device profile of the load tool, with a clear rule that is never true.
fn smart_meter() -> Value {
    let condition = |operation: &str, value: i64| {
        json!({"key": {"type": "TIME_SERIES", "key": "batteryLevel"}, "valueType": "NUMERIC", "value": null,
            "predicate": {"type": "NUMERIC", "operation": operation,
                "value": {"defaultValue": value, "userValue": null, "dynamicValue": null}}})
    };
    let rule = |conditions: Value| {
        json!({"condition": {"condition": conditions, "spec": {"type": "SIMPLE"}}, "schedule": null,
            "alarmDetails": null, "dashboardId": null})
    };
    json!({
        "name": "SMART_METER", "description": null, "image": null, "default": false, "type": "DEFAULT",
        "transportType": "DEFAULT", "provisionType": "DISABLED", "defaultRuleChainId": null, "defaultDashboardId": null,
        "defaultQueueName": null, "provisionDeviceKey": null, "firmwareId": null, "softwareId": null,
        "profileData": {
            "configuration": {"type": "DEFAULT"}, "transportConfiguration": {"type": "DEFAULT"},
            "provisionConfiguration": {"type": "DISABLED", "provisionDeviceSecret": null},
            "alarms": [{
                "id": "8b6d04b1-41c7-4bd1-9d3f-4ef3b9e2d86f", "alarmType": "battery low",
                "createRules": {"CRITICAL": rule(json!([condition("LESS_OR_EQUAL", 20)]))},
                "clearRule": rule(json!([condition("GREATER", 20), condition("EQUAL", 0)])),
                "propagate": false, "propagateToOwner": false, "propagateToTenant": false, "propagateRelationTypes": null
            }]
        }
    })
}

fn claims(token: &Value) -> Value {
    let payload = token.as_str().unwrap().split('.').nth(1).unwrap().to_owned();
    serde_json::from_slice(&Base64UrlUnpadded::decode_vec(&payload).unwrap()).unwrap()
}

#[test]
fn both_versions_of_the_load_tool_are_supported() {
    let server = Server::start();
    logs_in(&server);
    let profile = makes_profiles(&server);
    makes_dashboards(&server);
    makes_devices(&server, &profile);
    makes_customers(&server);
    replaces_the_root_chain(&server);
}

/// The tool requires `exp` in both tokens, and computes its clock offset from `iat`.
fn logs_in(server: &Server) {
    let answer = server.login(TENANT, "tenant").ok().json();
    let (token, refresh) = (claims(&answer["token"]), claims(&answer["refreshToken"]));
    assert_eq!(token["exp"].as_i64().unwrap() - token["iat"].as_i64().unwrap(), 9_000);
    assert_eq!(
        refresh["exp"].as_i64().unwrap() - refresh["iat"].as_i64().unwrap(),
        604_800
    );
    assert_eq!(
        (&token["sub"], &token["scopes"]),
        (&json!(TENANT), &json!(["TENANT_ADMIN"]))
    );
    assert_eq!(
        (&token["iss"], &token["enabled"], &token["isPublic"]),
        (&json!("thingsboard.io"), &json!(true), &json!(false))
    );
    for claim in ["userId", "sessionId", "tenantId", "customerId"] {
        assert!(token[claim].is_string(), "{claim}");
    }
    assert_eq!(refresh["scopes"], json!(["REFRESH_TOKEN"]));
    let body = json!({"refreshToken": answer["refreshToken"]}).to_string();
    let again = server.send("POST", "/api/auth/token", None, &body).ok().json();
    assert_eq!(claims(&again["token"])["sub"], TENANT);
    assert_eq!(claims(&again["token"])["sessionId"], token["sessionId"]);
}

fn makes_profiles(server: &Server) -> Value {
    let profiles = server.get("/api/deviceProfiles?pageSize=1000&page=0").ok().json();
    assert_eq!(
        (&profiles["totalElements"], &profiles["hasNext"]),
        (&json!(1), &json!(false))
    );
    let default = &profiles["data"][0];
    assert_eq!(
        (&default["name"], &default["default"]),
        (&json!("default"), &json!(true))
    );
    let data = &default["profileData"];
    assert_eq!(data["configuration"]["type"], "DEFAULT");
    assert_eq!(data["transportConfiguration"]["type"], "DEFAULT");
    assert_eq!(data["provisionConfiguration"]["type"], "DISABLED");
    let saved = server.post("/api/deviceProfile", smart_meter()).ok().json();
    assert_eq!(saved["id"]["entityType"], "DEVICE_PROFILE");
    assert_eq!(saved["profileData"]["alarms"], smart_meter()["profileData"]["alarms"]);
    let profiles = server.get("/api/deviceProfiles?pageSize=1000&page=0").ok().json();
    assert_eq!(profiles["totalElements"], 2);
    saved
}

fn makes_dashboards(server: &Server) {
    for title in ["Alarms", "Devices"] {
        let before = server.get("/api/tenant/dashboards?pageSize=1000&page=0").ok().json();
        assert!(
            before["data"]
                .as_array()
                .unwrap()
                .iter()
                .all(|dashboard| dashboard["title"] != title)
        );
        // More than a megabyte, with an alias type of the professional edition.
        let configuration =
            json!({"entityAliases": {"a": {"filter": {"type": "entityGroupList"}}}, "widgets": "x".repeat(1 << 20)});
        let body = json!({"title": title, "image": null, "mobileHide": false, "configuration": configuration});
        let saved = server.post("/api/dashboard", body).ok().json();
        assert_eq!(saved["configuration"], configuration);
        let stored = server.get(&format!("/api/dashboard/{}", id(&saved))).ok().json();
        assert_eq!(stored["configuration"], configuration);
    }
    let page = server.get("/api/tenant/dashboards?pageSize=1000&page=0").ok().json();
    assert_eq!(page["totalElements"], 2);
    assert!(page["data"][0].get("configuration").is_none());
}

fn makes_devices(server: &Server, profile: &Value) {
    let missing = server.get("/api/tenant/devices?deviceName=DW00000000");
    assert_eq!(refused(&missing, 404, 32), "Requested item wasn't found!");
    for number in 0..20 {
        let name = format!("DW{number:08}");
        // The additional fields of 4.0.1 are ignored.
        let body = match number % 2 {
            0 => json!({"name": name, "type": "device", "deviceProfileId": profile["id"]}),
            _ => {
                json!({"name": name, "type": "device", "deviceProfileId": profile["id"], "id": null, "externalId": null,
                "version": null, "displayName": null, "ownerId": null, "customerId": null, "additionalInfo": null})
            }
        };
        let device = server
            .post(&format!("/api/device?accessToken={name}"), body)
            .ok()
            .json();
        assert_eq!(
            (&device["name"], &device["type"]),
            (&json!(name), &json!("SMART_METER"))
        );
        let credentials = server
            .get(&format!("/api/device/{}/credentials", id(&device)))
            .ok()
            .json();
        assert_eq!(credentials["credentialsId"], json!(name));
        let found = server
            .get(&format!("/api/tenant/devices?deviceName={name}"))
            .ok()
            .json();
        assert_eq!(found["id"], device["id"]);
    }
    let twice = server.post(
        "/api/device?accessToken=other",
        json!({"name": "DW00000000", "type": "device"}),
    );
    assert_eq!(refused(&twice, 400, 31), "Device with such name already exists!");
    let by_chance = server
        .post("/api/device?accessToken=", json!({"name": "any", "type": "device"}))
        .ok()
        .json();
    let credentials = server
        .get(&format!("/api/device/{}/credentials", id(&by_chance)))
        .ok()
        .json();
    assert_eq!(credentials["credentialsId"].as_str().unwrap().len(), 20);
    server.delete(&format!("/api/device/{}", id(&by_chance))).ok();
    refused(&server.get(&format!("/api/device/{}", id(&by_chance))), 404, 32);
}

fn makes_customers(server: &Server) {
    let customer = server
        .post("/api/customer", json!({"title": "CUSTOMER_00000000"}))
        .ok()
        .json();
    let user = json!({"authority": "CUSTOMER_USER", "email": "c0@thingsboard.org", "customerId": customer["id"]});
    let user = server.post("/api/user?sendActivationMail=false", user).ok().json();
    let link = server.get(&format!("/api/user/{}/activationLink", id(&user))).ok();
    assert!(link.header("content-type").starts_with("text/plain"));
    let (_, token) = link.body.split_once("activateToken=").unwrap();
    let body = json!({"activateToken": token, "password": "customer"}).to_string();
    let answer = server
        .send("POST", "/api/noauth/activate?sendActivationMail=true", None, &body)
        .ok()
        .json();
    assert!(answer["token"].is_string() && answer["refreshToken"].is_string());
    server.login("c0@thingsboard.org", "customer").ok();
    server.delete(&format!("/api/customer/{}", id(&customer))).ok();
    refused(&server.login("c0@thingsboard.org", "customer"), 401, 10);
}

fn replaces_the_root_chain(server: &Server) {
    let list = "/api/ruleChains?pageSize=100&page=0&textSearch=Root%20Rule%20Chain";
    let chains = server.get(list).ok().json();
    let old = &chains["data"][0];
    assert_eq!((&old["name"], &old["root"]), (&json!("Root Rule Chain"), &json!(true)));
    let new = server.post(
        "/api/ruleChain",
        json!({"name": "root_rule_chain_ce.json", "type": "CORE", "root": false, "debugMode": false}),
    );
    let new = new.ok().json();
    let node = |class: &str, name: &str, configuration: Value| {
        json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "debugMode": false,
            "configuration": configuration, "additionalInfo": {"layoutX": 1, "layoutY": 2}})
    };
    let metadata = json!({
        "ruleChainId": new["id"], "firstNodeIndex": 1,
        "nodes": [
            node("telemetry.TbMsgTimeseriesNode", "Save Timeseries", json!({"defaultTTL": 0})),
            node("filter.TbMsgTypeSwitchNode", "Message Type Switch", json!({"version": 0})),
            node("telemetry.TbMsgAttributesNode", "Save Attributes", json!({"scope": "CLIENT_SCOPE"})),
            node("action.TbLogNode", "Log", json!({"jsScript": "return '';"})),
            node("rpc.TbSendRPCRequestNode", "RPC Call", json!({"timeoutInSeconds": 60})),
            node("transform.TbMsgCountNode", "Count", json!({"interval": 1, "telemetryPrefix": "messageCount"})),
        ],
        "connections": [{"fromIndex": 1, "toIndex": 0, "type": "Post telemetry"}, {"fromIndex": 1, "toIndex": 5, "type": "Post telemetry"}],
        "ruleChainConnections": null
    });
    let saved = server.post("/api/ruleChain/metadata", metadata).ok().json();
    assert_eq!(saved["ruleChainId"], new["id"]);
    assert!(
        saved["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["id"]["entityType"] == "RULE_NODE")
    );
    let root = server
        .post(&format!("/api/ruleChain/{}/root", id(&new)), Value::Null)
        .ok()
        .json();
    assert_eq!(root["root"], true);
    let read = server.get(&format!("/api/ruleChain/{}", id(&new))).ok().json();
    assert_eq!(read["firstRuleNodeId"]["id"], saved["nodes"][1]["id"]["id"]);
    let refusal = server.delete(&format!("/api/ruleChain/{}", id(&new)));
    assert_eq!(
        refused(&refusal, 400, 31),
        "Deletion of Root Tenant Rule Chain is prohibited!"
    );
    server
        .post(&format!("/api/ruleChain/{}/root", id(old)), Value::Null)
        .ok();
    server.delete(&format!("/api/ruleChain/{}", id(&new))).ok();
}
