//! A screen on a wall: a key for one dashboard, which reads what is on it and nothing else.

use serde_json::{Value, json};

use crate::server::{Server, id, refused};
use crate::socket::Socket;
use crate::web::Answer;

struct Wall {
    server: Server,
    dashboard: String,
    shown: String,
    hidden: String,
    secret: String,
}

impl Wall {
    /// With the key of a screen; its dashboard shows one of two devices.
    fn start(widgets: &Value) -> Wall {
        let mut server = Server::start();
        server.node.log_in();
        let (shown, hidden) = (server.device("shown"), server.device("hidden"));
        let alias = json!({"filter": {"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": shown}}});
        let configuration = json!({"widgets": widgets, "entityAliases": {"a": alias}});
        let body = json!({"title": "Hall", "configuration": configuration});
        let dashboard = id(&server.post("/api/dashboard", body).ok().json());
        let key = json!({"name": "hall", "role": "viewer", "dashboard": dashboard});
        let made = server.node.send("POST", "/api/v1/api-keys", &key);
        assert_eq!(made.status, 201, "{}", made.body);
        let made = made.json();
        assert_eq!(made["key"]["dashboard"], json!(dashboard));
        let secret = made["secret"].as_str().unwrap().to_owned();
        Wall {
            server,
            dashboard,
            shown,
            hidden,
            secret,
        }
    }

    fn send(&self, method: &str, target: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.secret);
        self.server.send(method, target, Some(&bearer), body)
    }

    fn get(&self, target: &str) -> Answer {
        self.send("GET", target, "")
    }
}

#[test]
fn a_screen_reads_its_dashboard_and_what_is_on_it() {
    let wall = Wall::start(&json!({"w": {"type": "alarm"}}));
    let Wall { dashboard, shown, .. } = &wall;
    assert_eq!(
        wall.get(&format!("/api/dashboard/{dashboard}")).ok().json()["title"],
        "Hall"
    );
    assert_eq!(
        wall.get(&format!("/api/device/info/{shown}")).ok().json()["name"],
        "shown"
    );
    wall.server
        .post(
            &format!("/api/plugins/telemetry/DEVICE/{shown}/timeseries/ANY"),
            json!({"heat": 40}),
        )
        .ok();
    let values = format!("/api/plugins/telemetry/DEVICE/{shown}/values/timeseries");
    wall.server
        .wait_for(&format!("{values}?keys=heat"), |all| all["heat"][0]["value"] == "40");
    assert_eq!(
        wall.get(&format!("{values}?keys=heat")).ok().json()["heat"][0]["value"],
        "40"
    );
    wall.get("/api/v2/alarms?pageSize=10&page=0").ok();
    wall.get(&format!("/api/v2/alarm/DEVICE/{shown}?pageSize=10&page=0"))
        .ok();
    let mut socket = Socket::open(
        &wall.server,
        &format!("/api/ws/plugins/telemetry?token={}", wall.secret),
    )
    .unwrap();
    let watch = json!({"type": "TIMESERIES", "cmdId": 1, "entityType": "DEVICE", "entityId": shown, "scope": "LATEST_TELEMETRY"});
    socket.send(&json!({"cmds": [watch]}));
    assert_eq!(socket.next()["data"]["heat"][0][1], "40");
}

/// An alarm widget of the device that is shown.
fn alarms_of_one() -> Value {
    json!({"w": {"type": "alarm", "config": {"datasources": [{"type": "entity", "entityAliasId": "a"}]}}})
}

#[test]
fn a_screen_reads_only_the_alarms_that_its_widgets_show() {
    let all = "/api/v2/alarms?pageSize=10&page=0";
    let wall = Wall::start(&alarms_of_one());
    let of = |device: &str| format!("/api/v2/alarm/DEVICE/{device}?pageSize=10&page=0");
    wall.get(&of(&wall.shown)).ok();
    refused(&wall.get(&of(&wall.hidden)), 403, 20);
    refused(&wall.get(all), 403, 20);

    let wall = Wall::start(&json!({"w": {"type": "latest"}}));
    refused(&wall.get(&of(&wall.shown)), 403, 20);
    refused(&wall.get(all), 403, 20);
}

#[test]
fn a_screen_is_not_told_whose_an_alarm_is() {
    let wall = Wall::start(&json!({"w": {"type": "alarm"}}));
    let server = &wall.server;
    let originator = json!({"entityType": "DEVICE", "id": wall.shown});
    let body = json!({"type": "Hot", "severity": "MAJOR", "originator": originator});
    let alarm = id(&server.post("/api/alarm", body).ok().json());
    let user = server.get("/api/auth/user").ok().json();
    let user_id = user["id"]["id"].as_str().unwrap();
    server
        .post(&format!("/api/alarm/{alarm}/assign/{user_id}"), json!({}))
        .ok();
    let all = "/api/v2/alarms?pageSize=10&page=0";
    let seen = server.get(all).ok().json();
    assert_eq!(seen["data"][0]["assignee"]["email"], user["email"]);
    for target in [
        all.to_owned(),
        format!("/api/v2/alarm/DEVICE/{}?pageSize=10&page=0", wall.shown),
    ] {
        let shown = wall.get(&target).ok();
        assert_eq!(shown.json()["data"][0]["type"], "Hot");
        assert!(
            !shown.body.contains(user_id) && !shown.body.contains("@"),
            "{}",
            shown.body
        );
    }
    refused(&wall.get(&format!("{all}&assigneeId={user_id}")), 403, 20);
}

#[test]
fn a_screen_reads_nothing_else_and_changes_nothing() {
    let wall = Wall::start(&json!({}));
    let Wall {
        dashboard,
        shown,
        hidden,
        ..
    } = &wall;
    let other = id(&wall
        .server
        .post("/api/dashboard", json!({"title": "Other"}))
        .ok()
        .json());
    for target in [
        format!("/api/dashboard/{other}"),
        format!("/api/device/info/{hidden}"),
        format!("/api/plugins/telemetry/DEVICE/{hidden}/values/timeseries"),
        format!("/api/plugins/telemetry/DEVICE/{shown}/values/attributes"),
        format!("/api/v2/alarm/DEVICE/{hidden}?pageSize=10&page=0"),
        format!("/api/device/{shown}"),
        format!("/api/device/{shown}/credentials"),
        "/api/v2/alarms?pageSize=10&page=0".into(),
        "/api/tenant/devices?pageSize=10&page=0".into(),
        "/api/tenant/dashboards?pageSize=10&page=0".into(),
        "/api/users?pageSize=10&page=0".into(),
        "/api/auth/user".into(),
    ] {
        assert_eq!(wall.get(&target).status, 403, "{target}");
    }
    for (target, body) in [
        (
            format!("/api/plugins/rpc/oneway/{shown}"),
            json!({"method": "a", "params": {}}),
        ),
        (
            format!("/api/plugins/telemetry/DEVICE/{shown}/timeseries/ANY"),
            json!({"heat": 1}),
        ),
        (
            "/api/dashboard".into(),
            json!({"id": {"entityType": "DASHBOARD", "id": dashboard}, "title": "Mine"}),
        ),
        ("/api/apiKey".into(), json!({})),
    ] {
        refused(&wall.send("POST", &target, &body.to_string()), 403, 20);
    }
    assert_eq!(wall.send("DELETE", &format!("/api/device/{shown}"), "").status, 403);
    let mut socket = Socket::open(
        &wall.server,
        &format!("/api/ws/plugins/telemetry?token={}", wall.secret),
    )
    .unwrap();
    let of = |kind: &str, number: i64, entity: &str| json!({"type": kind, "cmdId": number, "entityType": "DEVICE", "entityId": entity, "scope": "LATEST_TELEMETRY"});
    for command in [
        of("TIMESERIES", 1, hidden),
        of("ATTRIBUTES", 2, shown),
        of("TIMESERIES_HISTORY", 3, shown),
    ] {
        socket.send(&json!({"cmds": [command]}));
        assert_ne!(socket.next()["errorCode"], 0, "{command}");
    }
    // The node's own interface knows no screens.
    for target in ["/api/v1/clients", "/api/v1/stats", "/api/v1/api-keys"] {
        let headers = [("Authorization", format!("Bearer {}", wall.secret))];
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(
            crate::web::request(wall.server.node.address, "GET", target, &headers, "").status,
            401,
            "{target}"
        );
    }
}

#[test]
fn a_screen_reads_only_the_attributes_that_its_widgets_show() {
    let key = |kind: &str, name: &str| json!({"type": kind, "name": name});
    let source = json!({"type": "entity", "entityAliasId": "a", "dataKeys": [key("attribute", "room"), key("timeseries", "pin")]});
    let wall = Wall::start(&json!({"w": {"type": "latest", "config": {"datasources": [source]}}}));
    let Wall {
        server, shown, hidden, ..
    } = &wall;
    for device in [shown, hidden] {
        let target = format!("/api/plugins/telemetry/DEVICE/{device}/attributes/SERVER_SCOPE");
        server.post(&target, json!({"room": "cellar", "pin": "1234"})).ok();
    }
    let address = format!("/api/ws/plugins/telemetry?token={}", wall.secret);
    let mut socket = Socket::open(server, &address).unwrap();
    let mut ask = |entity: &str, keys: Option<&str>| {
        let command =
            json!({"type": "ATTRIBUTES", "cmdId": 1, "entityType": "DEVICE", "entityId": entity, "keys": keys});
        socket.send(&json!({"cmds": [command]}));
        socket.next()
    };
    for (entity, keys) in [(shown, Some("pin")), (hidden, Some("room")), (hidden, None)] {
        assert_eq!(ask(entity, keys)["errorCode"], 3, "{keys:?}");
    }
    for keys in [None, Some("room"), Some("pin,room")] {
        let said = ask(shown, keys);
        assert_eq!(said["data"]["room"][0][1], "cellar", "{said}");
        assert!(!said.to_string().contains("pin"), "{said}");
    }
    // What changes, too.
    let target = format!("/api/plugins/telemetry/DEVICE/{shown}/attributes/SERVER_SCOPE");
    server.post(&target, json!({"pin": "5678"})).ok();
    server.post(&target, json!({"room": "attic", "pin": "9"})).ok();
    let said = socket.next();
    assert_eq!(said["data"]["room"][0][1], "attic", "{said}");
    assert!(!said.to_string().contains("pin"), "{said}");
}

#[test]
fn a_screen_ends_with_its_key_and_with_its_dashboard() {
    let wall = Wall::start(&json!({}));
    let target = format!("/api/dashboard/{}", wall.dashboard);
    let change = |body: Value| wall.server.node.send("PUT", "/api/v1/api-keys/hall", &body);
    change(json!({"enabled": false})).ok();
    refused(&wall.get(&target), 401, 10);
    change(json!({"enabled": true})).ok();
    wall.get(&target).ok();
    assert_eq!(change(json!({"role": "admin"})).problem(422)["field"], "role");
    wall.server.delete(&target).ok();
    refused(&wall.get(&target), 401, 10);
    wall.server.node.delete("/api/v1/api-keys/hall");
    refused(&wall.get(&target), 401, 10);
}

#[test]
fn a_key_for_a_dashboard_that_is_not_there_is_not_made() {
    let mut server = Server::start();
    server.node.log_in();
    let make = |role: &str, dashboard: &str| {
        let body = json!({"name": "hall", "role": role, "dashboard": dashboard});
        server.node.send("POST", "/api/v1/api-keys", &body).problem(422)["field"].clone()
    };
    assert_eq!(make("viewer", "x"), "dashboard");
    assert_eq!(make("viewer", "4e1a4a50-b3a2-11ef-9cd2-0242ac120002"), "dashboard");
    let there = id(&server.post("/api/dashboard", json!({"title": "Hall"})).ok().json());
    assert_eq!(make("admin", &there), "role");
}

/// Aliases whom the server has to look for, on a wall of their own.
fn wall_of_aliases() -> Wall {
    let mut wall = Wall::start(&json!({}));
    let configuration = json!({
        "widgets": {},
        "entityAliases": {
            "ovens": {"filter": {"type": "deviceType", "deviceTypes": ["oven"], "resolveMultiple": true}},
            "first": {"filter": {"type": "deviceType", "deviceTypes": ["oven"], "resolveMultiple": false}},
            "below": {"filter": {"type": "relationsQuery", "rootStateEntity": true, "direction": "FROM", "maxLevel": 1,
                "filters": [{"relationType": "Contains", "entityTypes": ["DEVICE"]}]}},
            "people": {"filter": {"type": "entityType", "entityType": "CUSTOMER", "resolveMultiple": true}},
        },
        "filters": {"named": {"keyFilters": [{"key": {"type": "ENTITY_FIELD", "key": "name"}, "valueType": "STRING",
            "predicates": [{"keyFilterPredicate": {"type": "STRING", "operation": "ENDS_WITH", "value": {"defaultValue": "b"}}}]}]}},
    });
    let dashboard = wall.server.get(&format!("/api/dashboard/{}", wall.dashboard)).ok();
    let mut dashboard = dashboard.json();
    dashboard["configuration"] = configuration;
    wall.server.post("/api/dashboard", dashboard).ok();
    wall.server.post("/api/customer", json!({"title": "Somebody"})).ok();
    wall.shown = String::new();
    wall
}

fn oven(wall: &Wall, name: &str) -> String {
    id(&wall
        .server
        .post("/api/device", json!({"name": name, "type": "oven"}))
        .ok()
        .json())
}

#[test]
fn a_screen_has_the_server_look_for_what_its_aliases_stand_for() {
    let wall = wall_of_aliases();
    let (a, b) = (oven(&wall, "oven-a"), oven(&wall, "oven-b"));
    let device = |id: &str| json!({"entityType": "DEVICE", "id": id});
    let values = |id: &str| format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=heat");
    // What it has not asked for, it may not read.
    refused(&wall.get(&values(&a)), 403, 20);
    let found = |query: &str| wall.get(&format!("/api/screen/entities?{query}")).ok().json();
    assert_eq!(found("alias=first"), json!([device(&a)]));
    wall.get(&values(&a)).ok();
    refused(&wall.get(&values(&b)), 403, 20);
    assert_eq!(found("alias=ovens&filter=named"), json!([device(&b)]));
    assert_eq!(found("alias=ovens"), json!([device(&a), device(&b)]));
    for id in [&a, &b] {
        wall.get(&values(id)).ok();
        wall.get(&format!("/api/device/info/{id}")).ok();
    }

    // What is related to what the state is about.
    let child = wall.server.post("/api/device", json!({"name": "sensor"})).ok().json();
    let child = id(&child);
    assert_eq!(found(&format!("alias=below&entityType=DEVICE&entityId={a}")), json!([]));
    let relation = json!({"from": device(&a), "to": device(&child), "type": "Contains", "typeGroup": "COMMON"});
    wall.server.post("/api/relation", relation).ok();
    refused(&wall.get(&values(&child)), 403, 20);
    assert_eq!(found("alias=below"), json!([]), "it begins at nobody");
    assert_eq!(
        found(&format!("alias=below&entityType=DEVICE&entityId={a}")),
        json!([device(&child)])
    );
    wall.get(&values(&child)).ok();
}

#[test]
fn a_screen_has_nothing_looked_for_but_what_its_dashboard_says() {
    let wall = wall_of_aliases();
    let hidden = &wall.hidden;
    refused(&wall.get("/api/screen/entities?alias=others"), 404, 32);
    refused(&wall.get("/api/screen/entities?alias=ovens&filter=others"), 404, 32);
    let of_hidden = format!("/api/screen/entities?alias=below&entityType=DEVICE&entityId={hidden}");
    refused(&wall.get(&of_hidden), 403, 20);
    // Only devices and assets are on screens.
    assert_eq!(wall.get("/api/screen/entities?alias=people").ok().json(), json!([]));
    let query = json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"}, "pageLink": {"page": 0, "pageSize": 10}});
    for target in [
        "/api/entitiesQuery/find",
        "/api/entitiesQuery/count",
        "/api/alarmsQuery/find",
    ] {
        refused(&wall.send("POST", target, &query.to_string()), 403, 20);
    }
    refused(&wall.get(&format!("/api/device/info/{hidden}")), 403, 20);
    // Granted to this dashboard's screens only.
    let oven = oven(&wall, "oven-a");
    wall.get("/api/screen/entities?alias=ovens").ok();
    let other = id(&wall
        .server
        .post("/api/dashboard", json!({"title": "Other"}))
        .ok()
        .json());
    let key = json!({"name": "other", "role": "viewer", "dashboard": other});
    let made = wall.server.node.send("POST", "/api/v1/api-keys", &key).json();
    let bearer = format!("Bearer {}", made["secret"].as_str().unwrap());
    let info = format!("/api/device/info/{oven}");
    wall.get(&info).ok();
    refused(&wall.server.send("GET", &info, Some(&bearer), ""), 403, 20);
    refused(&wall.server.get("/api/screen/entities?alias=ovens"), 403, 20);
    let attributes = format!("/api/plugins/telemetry/DEVICE/{oven}/values/attributes");
    refused(&wall.get(&attributes), 403, 20);
    let call = json!({"method": "x", "params": {}}).to_string();
    refused(&wall.send("POST", &format!("/api/rpc/oneway/{oven}"), &call), 403, 20);
}
