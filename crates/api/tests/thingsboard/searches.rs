//! Searches along relations, summaries of users, customers of dashboards, outputs of rule chains.

use serde_json::{Value, json};

use super::server::{CUSTOMER, SYSADMIN, Server, id, refused};

fn names(found: &Value) -> Vec<&str> {
    let all = found.as_array().unwrap().iter();
    let mut names: Vec<&str> = all.map(|entity| entity["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn devices_and_assets_are_found_along_relations() {
    let server = Server::start();
    let asset = |name: &str| {
        server
            .post("/api/asset", json!({"name": name, "type": "default"}))
            .ok()
            .json()["id"]
            .clone()
    };
    let (house, floor) = (asset("house"), asset("floor"));
    let [near, far, other] =
        ["near", "far", "other"].map(|name| json!({"entityType": "DEVICE", "id": server.device(name)}));
    for (from, to, kind) in [
        (&house, &near, "Contains"),
        (&house, &floor, "Contains"),
        (&floor, &far, "Contains"),
        (&house, &other, "Manages"),
    ] {
        server
            .post("/api/relation", json!({"from": from, "to": to, "type": kind}))
            .ok();
    }
    let parameters =
        |levels: i64| json!({"rootId": house["id"], "rootType": "ASSET", "direction": "FROM", "maxLevel": levels});
    let devices = |levels, kind: &str, types: &Value| {
        let query = json!({"parameters": parameters(levels), "relationType": kind, "deviceTypes": types});
        server.post("/api/devices", query).ok().json()
    };
    assert_eq!(names(&devices(1, "Contains", &json!(["default"]))), ["near"]);
    assert_eq!(names(&devices(0, "Contains", &json!(["default"]))), ["far", "near"]);
    assert_eq!(names(&devices(0, "Manages", &json!(["default"]))), ["other"]);
    assert!(names(&devices(0, "Contains", &json!(["thermometer"]))).is_empty());
    let query = json!({"parameters": parameters(0), "assetTypes": ["default"]});
    assert_eq!(names(&server.post("/api/assets", query).ok().json()), ["floor"]);
    refused(
        &server.post("/api/devices", json!({"parameters": parameters(0)})),
        400,
        31,
    );
    let infos = server
        .post(
            "/api/relations/info",
            json!({"parameters": parameters(1), "filters": []}),
        )
        .ok()
        .json();
    let ends: Vec<_> = infos
        .as_array()
        .unwrap()
        .iter()
        .map(|info| info["toName"].as_str().unwrap())
        .collect();
    assert_eq!((ends.len(), &infos[0]["fromName"]), (3, &json!("house")));
    // Entities that a customer user cannot see are not found.
    let query = json!({"parameters": parameters(0), "deviceTypes": ["default"]});
    refused(&server.as_user(CUSTOMER, "POST", "/api/devices", &query), 403, 20);
}

#[test]
fn dashboard_customers_are_set_in_one_change() {
    let server = Server::start();
    let first = server.customer();
    let second = id(&server.post("/api/customer", json!({"title": "Second"})).ok().json());
    let dashboard = id(&server.post("/api/dashboard", json!({"title": "d"})).ok().json());
    let change = |what: &str, ids: &[&String]| {
        let changed = server
            .post(&format!("/api/dashboard/{dashboard}/customers{what}"), json!(ids))
            .ok()
            .json();
        let all = changed["assignedCustomers"].as_array().unwrap().clone();
        all.iter()
            .map(|one| one["customerId"]["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(change("", &[&first]), std::slice::from_ref(&first));
    // One customer is added and one removed in the same change.
    let version = || {
        server.get(&format!("/api/dashboard/{dashboard}")).ok().json()["version"]
            .as_i64()
            .unwrap()
    };
    let before = version();
    assert_eq!(change("", &[&second]), std::slice::from_ref(&second));
    assert_eq!(version(), before + 1);
    assert_eq!(change("", &[&second]), std::slice::from_ref(&second));
    assert_eq!(version(), before + 1, "nothing changed");
    assert_eq!(change("", &[&first]), std::slice::from_ref(&first));
    assert_eq!(change("/add", &[&first, &second]), [first.clone(), second.clone()]);
    assert_eq!(change("", &[&second]), std::slice::from_ref(&second));
    assert!(change("/remove", &[&first, &second]).is_empty());
    let path = format!("/api/dashboard/{dashboard}/customers");
    refused(&server.post(&path, json!([dashboard])), 404, 32);
    refused(&server.as_user(CUSTOMER, "POST", &path, &json!([])), 403, 20);
    let tenant = server.get("/api/auth/user").ok().json()["tenantId"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/api/tenant/{tenant}/dashboards?pageSize=10&page=0");
    let found = server.as_user(SYSADMIN, "GET", &path, &Value::Null).ok().json();
    assert_eq!(found["data"][0]["title"], "d");
    refused(&server.get(&path), 403, 20);
}

#[test]
fn summaries_of_users_are_listed() {
    let server = Server::start();
    let device = server.device("d");
    let alarm = json!({"originator": {"entityType": "DEVICE", "id": device}, "type": "T", "severity": "MAJOR"});
    let alarm = id(&server.post("/api/alarm", alarm).ok().json());
    let emails = |path: &str| {
        let found = server.get(&format!("{path}?pageSize=10&page=0")).ok().json();
        let users = found["data"].as_array().unwrap().clone();
        let mut emails: Vec<_> = users
            .iter()
            .map(|user| user["email"].as_str().unwrap().to_owned())
            .collect();
        emails.sort();
        assert!(users[0].get("authority").is_none() && users[0]["id"]["entityType"] == "USER");
        emails
    };
    assert_eq!(
        emails("/api/users/info"),
        ["customer@thingsboard.org", "tenant@thingsboard.org"]
    );
    // The device is not assigned to a customer.
    assert_eq!(
        emails(&format!("/api/users/assign/{alarm}")),
        ["tenant@thingsboard.org"]
    );
    let path = format!("/api/users/assign/{alarm}?pageSize=10&page=0");
    refused(&server.as_user(CUSTOMER, "GET", &path, &Value::Null), 403, 20);
}

#[test]
fn chain_outputs_and_their_uses_are_listed() {
    let server = Server::start();
    let chain = |name: &str| server.post("/api/ruleChain", json!({"name": name})).ok().json();
    let (inner, outer) = (chain("inner"), chain("outer"));
    let save = |chain: &Value, nodes: Value, connections: Value| {
        let metadata = json!({"ruleChainId": chain["id"], "firstNodeIndex": 0, "nodes": nodes, "connections": connections, "ruleChainConnections": null});
        server.post("/api/ruleChain/metadata", metadata).ok().json()
    };
    let node = |class: &str, name: &str, configuration: Value| json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "configuration": configuration, "additionalInfo": {}});
    let output = |name: &str| node("flow.TbRuleChainOutputNode", name, json!({"version": 0}));
    save(&inner, json!([output("b"), output("a")]), json!([]));
    let input = node("flow.TbRuleChainInputNode", "in", json!({"ruleChainId": id(&inner)}));
    let log = node("filter.TbMsgTypeSwitchNode", "x", json!({}));
    save(
        &outer,
        json!([input, log]),
        json!([{"fromIndex": 0, "toIndex": 1, "type": "a"}]),
    );
    let labels = server
        .get(&format!("/api/ruleChain/{}/output/labels", id(&inner)))
        .ok()
        .json();
    assert_eq!(labels, json!(["a", "b"]));
    let usage = server
        .get(&format!("/api/ruleChain/{}/output/labels/usage", id(&inner)))
        .ok()
        .json();
    assert_eq!(
        (&usage[0]["ruleChainName"], &usage[0]["ruleNodeName"]),
        (&json!("outer"), &json!("in"))
    );
    assert_eq!(
        (usage.as_array().unwrap().len(), &usage[0]["labels"]),
        (1, &json!(["a"]))
    );
    assert_eq!(server.get("/api/ruleChain/tbelEnabled").ok().json(), json!(false));
    let node = usage[0]["ruleNodeId"]["id"].as_str().unwrap();
    assert_eq!(
        server.get(&format!("/api/ruleNode/{node}/debugIn")).ok().json(),
        Value::Null
    );
}
