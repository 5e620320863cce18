//! References of profiles: the referenced entity must exist, and cannot be deleted.

use serde_json::{Value, json};

use super::server::{SYSADMIN, Server, id, refused};

const UNKNOWN_ID: &str = "ffffffff-0000-11f0-8000-000000000000";

#[test]
fn profiles_reference_entities_of_their_tenant() {
    let server = Server::start();
    let made = |target: &str, name: &str| server.post(target, json!({name: "mine"})).ok().json();
    let chain = made("/api/ruleChain", "name");
    let dashboard = made("/api/dashboard", "title");
    let other = another_tenants(&server);
    let own_profile = |of: &str| {
        let body = json!({"name": "p", "type": "DEFAULT", "transportType": "DEFAULT"});
        server.post(&format!("/api/{of}Profile"), body).ok().json()
    };
    for (of, title) in [("device", "Device"), ("asset", "Asset")] {
        let profile = own_profile(of);
        let save = |field: &str, value: Value| {
            let mut changed = profile.clone();
            (changed[field], changed["version"]) = (value, Value::Null);
            server.post(&format!("/api/{of}Profile"), changed)
        };
        let unknown = |kind: &str| json!({"entityType": kind, "id": UNKNOWN_ID});
        let no_queue = format!("{title} profile is referring to non-existent queue!");
        for (field, value, message) in [
            (
                "defaultRuleChainId",
                unknown("RULE_CHAIN"),
                "Can't assign non-existent rule chain!",
            ),
            (
                "defaultRuleChainId",
                other.clone(),
                "Can't assign non-existent rule chain!",
            ),
            (
                "defaultDashboardId",
                unknown("DASHBOARD"),
                "Can't assign non-existent dashboard!",
            ),
            ("defaultQueueName", json!("Nobodys"), &no_queue),
        ] {
            assert_eq!(refused(&save(field, value.clone()), 400, 31), message, "{of} {value}");
        }
        save("defaultQueueName", json!("HighPriority")).ok();
        for (field, entity, what, list) in [
            ("defaultRuleChainId", &chain, "rule chain", "ruleChain"),
            ("defaultDashboardId", &dashboard, "dashboard", "dashboard"),
        ] {
            save(field, entity["id"].clone()).ok();
            let target = format!("/api/{list}/{}", id(entity));
            let message = format!("The {what} referenced by the {of} profiles cannot be deleted!");
            assert_eq!(refused(&server.delete(&target), 400, 31), message);
            save(field, Value::Null).ok();
        }
    }
    server.delete(&format!("/api/ruleChain/{}", id(&chain))).ok();
    server.delete(&format!("/api/dashboard/{}", id(&dashboard))).ok();
}

/// Returns the root rule chain of another tenant.
fn another_tenants(server: &Server) -> Value {
    let tenant = server
        .as_user(SYSADMIN, "POST", "/api/tenant", &json!({"title": "Other"}))
        .ok()
        .json();
    let tenant = platform::ids::TenantId(platform::ids::Uuid::parse(&id(&tenant)).unwrap());
    let root = server.devices.entities().root_chain(tenant).unwrap().unwrap();
    json!(root.id.unwrap())
}

#[test]
fn node_ids_of_another_chain_are_replaced() {
    let server = Server::start();
    let chains = server.get("/api/ruleChains?pageSize=10&page=0").ok().json();
    let root = id(&chains["data"][0]);
    let theirs = server.get(&format!("/api/ruleChain/{root}/metadata")).ok().json()["nodes"][0].clone();
    let chain = server.post("/api/ruleChain", json!({"name": "mine"})).ok().json();
    let save = |node: &Value| {
        let metadata = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": [node], "connections": [],
            "ruleChainConnections": null});
        server.post("/api/ruleChain/metadata", metadata).ok().json()["nodes"][0].clone()
    };
    let saved = save(&theirs);
    assert_ne!(id(&saved), id(&theirs));
    assert_eq!(id(&save(&saved)), id(&saved), "the ID of its own node stays");
}

#[test]
fn invalid_nodes_are_rejected() {
    let server = Server::start();
    let chain = server.post("/api/ruleChain", json!({"name": "mine"})).ok().json();
    for nodes in [json!([1]), json!([null]), json!([[]])] {
        let metadata = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": nodes, "connections": []});
        refused(&server.post("/api/ruleChain/metadata", metadata.clone()), 400, 31);
        let import = json!({"ruleChains": [chain], "metadata": [metadata]});
        let results = server.post("/api/ruleChains/import?overwrite=true", import).ok().json();
        assert!(
            results[0]["error"].as_str().unwrap().contains("expected an object"),
            "{results}"
        );
    }
}

#[test]
fn entity_fields_contain_no_secrets() {
    let server = Server::start();
    let profile = server
        .post(
            "/api/deviceProfile",
            json!({"name": "p", "type": "DEFAULT", "transportType": "DEFAULT", "provisionDeviceKey": "secret"}),
        )
        .ok()
        .json();
    let field = |key: &str| json!({"type": "ENTITY_FIELD", "key": key});
    let query = json!({"entityFilter": {"type": "singleEntity", "singleEntity": profile["id"]},
        "entityFields": [field("name"), field("provisionDeviceKey"), field("profileData")], "pageLink": {"pageSize": 1, "page": 0}});
    for user in [super::server::TENANT, super::server::CUSTOMER] {
        let found = server
            .as_user(user, "POST", "/api/entitiesQuery/find", &query)
            .ok()
            .body;
        assert!(
            !found.contains("secret") && !found.contains("provisionConfiguration"),
            "{found}"
        );
    }
}

#[test]
fn alarm_cannot_be_assigned_to_foreign_users() {
    let server = Server::start();
    let originator = json!({"entityType": "DEVICE", "id": server.device("d")});
    let body = json!({"type": "hot", "originator": originator, "severity": "MAJOR", "assigneeId": {"entityType": "USER", "id": UNKNOWN_ID}});
    refused(&server.post("/api/alarm", body), 404, 32);
}
