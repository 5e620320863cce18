//! A screen: a key for one dashboard, which can read the data of this dashboard and nothing else.

use serde_json::{Value, json};

use super::server::{Server, id, refused};
use super::socket::Socket;
use super::web::Answer;

struct Screen {
    server: Server,
    dashboard: String,
    shown: String,
    hidden: String,
    secret: String,
}

impl Screen {
    /// Starts a server with the key of a screen. The dashboard shows one of two devices.
    fn start(widgets: &Value) -> Screen {
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
        Screen {
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
fn screen_reads_its_dashboard_and_shown_entities() {
    let screen = Screen::start(&json!({"w": {"type": "alarm"}}));
    let Screen { dashboard, shown, .. } = &screen;
    assert_eq!(
        screen.get(&format!("/api/dashboard/{dashboard}")).ok().json()["title"],
        "Hall"
    );
    assert_eq!(
        screen.get(&format!("/api/device/info/{shown}")).ok().json()["name"],
        "shown"
    );
    screen
        .server
        .post(
            &format!("/api/plugins/telemetry/DEVICE/{shown}/timeseries/ANY"),
            json!({"heat": 40}),
        )
        .ok();
    let values = format!("/api/plugins/telemetry/DEVICE/{shown}/values/timeseries");
    screen
        .server
        .wait_for(&format!("{values}?keys=heat"), |all| all["heat"][0]["value"] == "40");
    assert_eq!(
        screen.get(&format!("{values}?keys=heat")).ok().json()["heat"][0]["value"],
        "40"
    );
    screen.get("/api/v2/alarms?pageSize=10&page=0").ok();
    screen
        .get(&format!("/api/v2/alarm/DEVICE/{shown}?pageSize=10&page=0"))
        .ok();
    let mut socket = Socket::open(
        &screen.server,
        &format!("/api/ws/plugins/telemetry?token={}", screen.secret),
    )
    .unwrap();
    let watch = json!({"type": "TIMESERIES", "cmdId": 1, "entityType": "DEVICE", "entityId": shown, "scope": "LATEST_TELEMETRY"});
    socket.send(&json!({"cmds": [watch]}));
    assert_eq!(socket.next()["data"]["heat"][0][1], "40");
}

/// An alarm widget of the shown device.
fn alarms_of_one() -> Value {
    json!({"w": {"type": "alarm", "config": {"datasources": [{"type": "entity", "entityAliasId": "a"}]}}})
}

#[test]
fn screen_reads_only_alarms_of_its_widgets() {
    let all = "/api/v2/alarms?pageSize=10&page=0";
    let screen = Screen::start(&alarms_of_one());
    let of = |device: &str| format!("/api/v2/alarm/DEVICE/{device}?pageSize=10&page=0");
    screen.get(&of(&screen.shown)).ok();
    refused(&screen.get(&of(&screen.hidden)), 403, 20);
    refused(&screen.get(all), 403, 20);

    let screen = Screen::start(&json!({"w": {"type": "latest"}}));
    refused(&screen.get(&of(&screen.shown)), 403, 20);
    refused(&screen.get(all), 403, 20);
}

#[test]
fn screen_does_not_see_assignees_of_alarms() {
    let screen = Screen::start(&json!({"w": {"type": "alarm"}}));
    let server = &screen.server;
    let originator = json!({"entityType": "DEVICE", "id": screen.shown});
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
        format!("/api/v2/alarm/DEVICE/{}?pageSize=10&page=0", screen.shown),
    ] {
        let shown = screen.get(&target).ok();
        assert_eq!(shown.json()["data"][0]["type"], "Hot");
        assert!(
            !shown.body.contains(user_id) && !shown.body.contains("@"),
            "{}",
            shown.body
        );
    }
    refused(&screen.get(&format!("{all}&assigneeId={user_id}")), 403, 20);
}

#[test]
fn screen_cannot_read_other_data_or_change_anything() {
    let screen = Screen::start(&json!({}));
    let Screen {
        dashboard,
        shown,
        hidden,
        ..
    } = &screen;
    let other = id(&screen
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
        assert_eq!(screen.get(&target).status, 403, "{target}");
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
        refused(&screen.send("POST", &target, &body.to_string()), 403, 20);
    }
    assert_eq!(screen.send("DELETE", &format!("/api/device/{shown}"), "").status, 403);
    let mut socket = Socket::open(
        &screen.server,
        &format!("/api/ws/plugins/telemetry?token={}", screen.secret),
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
    // The server's own API does not accept keys of screens.
    for target in ["/api/v1/clients", "/api/v1/stats", "/api/v1/api-keys"] {
        let headers = [("Authorization", format!("Bearer {}", screen.secret))];
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(
            super::web::request(screen.server.node.address, "GET", target, &headers, "").status,
            401,
            "{target}"
        );
    }
}

#[test]
fn screen_reads_only_attributes_of_its_widgets() {
    let key = |kind: &str, name: &str| json!({"type": kind, "name": name});
    let source = json!({"type": "entity", "entityAliasId": "a", "dataKeys": [key("attribute", "room"), key("timeseries", "pin")]});
    let screen = Screen::start(&json!({"w": {"type": "latest", "config": {"datasources": [source]}}}));
    let Screen {
        server, shown, hidden, ..
    } = &screen;
    for device in [shown, hidden] {
        let target = format!("/api/plugins/telemetry/DEVICE/{device}/attributes/SERVER_SCOPE");
        server.post(&target, json!({"room": "cellar", "pin": "1234"})).ok();
    }
    let address = format!("/api/ws/plugins/telemetry?token={}", screen.secret);
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
    // Also in updates.
    let target = format!("/api/plugins/telemetry/DEVICE/{shown}/attributes/SERVER_SCOPE");
    server.post(&target, json!({"pin": "5678"})).ok();
    server.post(&target, json!({"room": "attic", "pin": "9"})).ok();
    let said = socket.next();
    assert_eq!(said["data"]["room"][0][1], "attic", "{said}");
    assert!(!said.to_string().contains("pin"), "{said}");
}

#[test]
fn screen_ends_with_its_key_or_dashboard() {
    let screen = Screen::start(&json!({}));
    let target = format!("/api/dashboard/{}", screen.dashboard);
    let change = |body: Value| screen.server.node.send("PUT", "/api/v1/api-keys/hall", &body);
    change(json!({"enabled": false})).ok();
    refused(&screen.get(&target), 401, 10);
    change(json!({"enabled": true})).ok();
    screen.get(&target).ok();
    assert_eq!(change(json!({"role": "admin"})).problem(422)["field"], "role");
    screen.server.delete(&target).ok();
    refused(&screen.get(&target), 401, 10);
    screen.server.node.delete("/api/v1/api-keys/hall");
    refused(&screen.get(&target), 401, 10);
}

#[test]
fn screen_key_needs_an_existing_dashboard() {
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

/// Aliases that the server must resolve, on a dashboard of their own.
fn screen_with_aliases() -> Screen {
    let mut screen = Screen::start(&json!({}));
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
    let dashboard = screen.server.get(&format!("/api/dashboard/{}", screen.dashboard)).ok();
    let mut dashboard = dashboard.json();
    dashboard["configuration"] = configuration;
    screen.server.post("/api/dashboard", dashboard).ok();
    screen.server.post("/api/customer", json!({"title": "Somebody"})).ok();
    screen.shown = String::new();
    screen
}

fn oven(screen: &Screen, name: &str) -> String {
    id(&screen
        .server
        .post("/api/device", json!({"name": name, "type": "oven"}))
        .ok()
        .json())
}

#[test]
fn server_resolves_aliases_of_a_screen() {
    let screen = screen_with_aliases();
    let (a, b) = (oven(&screen, "oven-a"), oven(&screen, "oven-b"));
    let device = |id: &str| json!({"entityType": "DEVICE", "id": id});
    let values = |id: &str| format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=heat");
    // Without a resolved alias, the screen cannot read the device.
    refused(&screen.get(&values(&a)), 403, 20);
    let found = |query: &str| screen.get(&format!("/api/screen/entities?{query}")).ok().json();
    assert_eq!(found("alias=first"), json!([device(&a)]));
    screen.get(&values(&a)).ok();
    refused(&screen.get(&values(&b)), 403, 20);
    assert_eq!(found("alias=ovens&filter=named"), json!([device(&b)]));
    assert_eq!(found("alias=ovens"), json!([device(&a), device(&b)]));
    for id in [&a, &b] {
        screen.get(&values(id)).ok();
        screen.get(&format!("/api/device/info/{id}")).ok();
    }

    // An alias of entities that are related to the current state's entity.
    let child = screen.server.post("/api/device", json!({"name": "sensor"})).ok().json();
    let child = id(&child);
    assert_eq!(found(&format!("alias=below&entityType=DEVICE&entityId={a}")), json!([]));
    let relation = json!({"from": device(&a), "to": device(&child), "type": "Contains", "typeGroup": "COMMON"});
    screen.server.post("/api/relation", relation).ok();
    refused(&screen.get(&values(&child)), 403, 20);
    assert_eq!(found("alias=below"), json!([]), "the query has no root entity");
    assert_eq!(
        found(&format!("alias=below&entityType=DEVICE&entityId={a}")),
        json!([device(&child)])
    );
    screen.get(&values(&child)).ok();
}

#[test]
fn screen_can_only_resolve_aliases_of_its_dashboard() {
    let screen = screen_with_aliases();
    let hidden = &screen.hidden;
    refused(&screen.get("/api/screen/entities?alias=others"), 404, 32);
    refused(&screen.get("/api/screen/entities?alias=ovens&filter=others"), 404, 32);
    let of_hidden = format!("/api/screen/entities?alias=below&entityType=DEVICE&entityId={hidden}");
    refused(&screen.get(&of_hidden), 403, 20);
    // Only devices and assets are shown on screens.
    assert_eq!(screen.get("/api/screen/entities?alias=people").ok().json(), json!([]));
    let query = json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"}, "pageLink": {"page": 0, "pageSize": 10}});
    for target in [
        "/api/entitiesQuery/find",
        "/api/entitiesQuery/count",
        "/api/alarmsQuery/find",
    ] {
        refused(&screen.send("POST", target, &query.to_string()), 403, 20);
    }
    refused(&screen.get(&format!("/api/device/info/{hidden}")), 403, 20);
    // The grant only applies to screens of this dashboard.
    let oven = oven(&screen, "oven-a");
    screen.get("/api/screen/entities?alias=ovens").ok();
    let other = id(&screen
        .server
        .post("/api/dashboard", json!({"title": "Other"}))
        .ok()
        .json());
    let key = json!({"name": "other", "role": "viewer", "dashboard": other});
    let made = screen.server.node.send("POST", "/api/v1/api-keys", &key).json();
    let bearer = format!("Bearer {}", made["secret"].as_str().unwrap());
    let info = format!("/api/device/info/{oven}");
    screen.get(&info).ok();
    refused(&screen.server.send("GET", &info, Some(&bearer), ""), 403, 20);
    refused(&screen.server.get("/api/screen/entities?alias=ovens"), 403, 20);
    let attributes = format!("/api/plugins/telemetry/DEVICE/{oven}/values/attributes");
    refused(&screen.get(&attributes), 403, 20);
    let call = json!({"method": "x", "params": {}}).to_string();
    refused(&screen.send("POST", &format!("/api/rpc/oneway/{oven}"), &call), 403, 20);
}
