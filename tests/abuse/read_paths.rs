//! Users try to read data through one interface that another interface refuses: queries with their filters, sort orders
//! and text searches, and subscriptions on the WebSocket. The requests for one entity decide what a user may read.
//!
//! Each entity of the test has a server attribute and a telemetry value with the same content, [`SECRET`].

use serde_json::{Value as Json, json};

use crate::devices::rest::Rest;
use crate::devices::scripts::another_tenant;
use crate::support::api::Api;
use crate::support::websocket::TEXT;
use crate::support::*;

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
const SECRET: i64 = 987_654_321;

/// An entity of the tenant.
struct Target {
    /// Role of the entity in the test, such as `own device`.
    name: &'static str,
    kind: &'static str,
    id: String,
}

struct World {
    server: Server,
    targets: Vec<Target>,
    tenant: Rest,
    customer: Rest,
}

fn id_of(entity: &Json) -> String {
    entity["id"]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{entity}"))
        .to_owned()
}

impl World {
    fn start() -> World {
        let server = Server::start(&Config::new(CONFIG));
        let (tenant, customer) = (Rest::login(&server), Rest::login_as(&server, "customer"));
        let mut world = World {
            server,
            targets: Vec::new(),
            tenant,
            customer,
        };
        world.create_entities();
        world.write_secrets();
        world
    }

    fn add(&mut self, name: &'static str, kind: &'static str, id: String) -> String {
        self.targets.push(Target {
            name,
            kind,
            id: id.clone(),
        });
        id
    }

    fn get(&self, path: &str) -> Json {
        self.tenant.ok("GET", path, &Json::Null)
    }

    fn post(&self, path: &str, body: &Json) -> Json {
        self.tenant.ok("POST", path, body)
    }

    fn user(&self, authority: &str, email: &str, customer: &Json) -> String {
        let user = json!({"authority": authority, "email": email, "customerId": customer});
        id_of(&self.post("/api/user?sendActivationMail=false", &user))
    }

    /// Creates an entity of each kind. Those that are called `own` belong to the customer.
    fn create_entities(&mut self) {
        let me = self.customer.ok("GET", "/api/auth/user", &Json::Null);
        let customer = me["customerId"]["id"].as_str().expect("an identifier").to_owned();
        let stranger = self.post("/api/customer", &json!({"title": "Stranger"}));
        self.add("own customer", "CUSTOMER", customer.clone());
        self.add("other customer", "CUSTOMER", id_of(&stranger));
        self.add("own user", "USER", id_of(&me));
        let user = self.user("CUSTOMER_USER", "colleague@acme.org", &me["customerId"]);
        self.add("colleague", "USER", user);
        let user = self.user("CUSTOMER_USER", "stranger@acme.org", &stranger["id"]);
        self.add("other user", "USER", user);
        let admin = self.get("/api/auth/user");
        self.add("tenant administrator", "USER", id_of(&admin));
        self.add(
            "tenant",
            "TENANT",
            admin["tenantId"]["id"].as_str().expect("an identifier").to_owned(),
        );
        for (name, other, kind, path) in [
            ("own device", "other device", "DEVICE", "device"),
            ("own asset", "other asset", "ASSET", "asset"),
            ("own dashboard", "other dashboard", "DASHBOARD", "dashboard"),
        ] {
            for name in [name, other] {
                let body = json!({"name": name, "title": name, "type": "default"});
                let id = id_of(&self.post(&format!("/api/{path}"), &body));
                if name.starts_with("own") {
                    self.post(&format!("/api/customer/{customer}/{path}/{id}"), &Json::Null);
                }
                self.add(name, kind, id);
            }
        }
        let profile = self.get("/api/deviceProfileInfo/default");
        self.add("device profile", "DEVICE_PROFILE", id_of(&profile));
        let asset_profiles = self.get("/api/assetProfileInfos?pageSize=1&page=0");
        self.add("asset profile", "ASSET_PROFILE", id_of(&asset_profiles["data"][0]));
        let chains = self.get("/api/ruleChains?pageSize=10&page=0");
        self.add("rule chain", "RULE_CHAIN", id_of(&chains["data"][0]));
        let package = json!({"title": "app", "version": "1", "type": "FIRMWARE", "url": "http://127.0.0.1/app",
            "deviceProfileId": profile["id"]});
        let package = self.post("/api/otaPackage", &package);
        self.add("package", "OTA_PACKAGE", id_of(&package));
        let usage = self.post(
            "/api/entitiesQuery/find",
            &query(&json!({"type": "apiUsageState"}), &[], None),
        );
        let usage = usage["data"][0]["entityId"]["id"].as_str().expect("an identifier");
        self.add("usage", "API_USAGE_STATE", usage.to_owned());
        for (name, of) in [("own alarm", "own device"), ("other alarm", "other device")] {
            let originator = json!({"entityType": "DEVICE", "id": self.target(of).id});
            let alarm = json!({"type": name, "severity": "MAJOR", "originator": originator});
            let alarm = id_of(&self.post("/api/alarm", &alarm));
            self.add(name, "ALARM", alarm);
        }
    }

    fn target(&self, name: &str) -> &Target {
        self.targets.iter().find(|target| target.name == name).expect(name)
    }

    fn write_secrets(&self) {
        let secret = json!({"secret": SECRET});
        for Target { kind, id, name } in &self.targets {
            let path = format!("/api/plugins/telemetry/{kind}/{id}");
            for part in ["attributes/SERVER_SCOPE", "timeseries/ANY"] {
                let (status, answer) = self.tenant.call("POST", &format!("{path}/{part}"), &secret);
                assert_eq!(status, 200, "{name}: {answer}");
            }
        }
        for target in &self.targets {
            self.server.wait_until("the values are stored", |_| {
                reads_attribute(&self.tenant, target) && reads_telemetry(&self.tenant, target)
            });
        }
    }

    fn roles(&self) -> Vec<(&'static str, Rest)> {
        let dashboard = &self.target("other dashboard").id;
        let alias = json!({"filter": {"type": "singleEntity",
            "singleEntity": {"entityType": "DEVICE", "id": self.target("own device").id}}});
        let mut shown = self.get(&format!("/api/dashboard/{dashboard}"));
        shown["configuration"] = json!({"widgets": {}, "entityAliases": {"a": alias}});
        self.post("/api/dashboard", &shown);
        let key = json!({"name": "hall", "role": "viewer", "dashboard": dashboard});
        let key = Api::of(&self.server).ok("POST", "/api/v1/api-keys", &key);
        let as_demo = |name: &str| Rest::login_as(&self.server, name);
        vec![
            ("system administrator", as_demo("sysadmin")),
            ("tenant administrator", as_demo("tenant")),
            ("customer user", as_demo("customer")),
            ("administrator of another tenant", another_tenant(&self.server)),
            (
                "screen",
                Rest::with_token(&self.server, key["secret"].as_str().expect("a key")),
            ),
        ]
    }

    fn socket(&self, rest: &Rest) -> WebSocket {
        let path = format!("/api/ws/plugins/telemetry?token={}", rest.token());
        WebSocket::open_path(self.server.http(), &path)
    }
}

fn has_secret(answer: &Json) -> bool {
    answer.to_string().contains(&SECRET.to_string())
}

fn reads_attribute(rest: &Rest, Target { kind, id, .. }: &Target) -> bool {
    let path = format!("/api/plugins/telemetry/{kind}/{id}/values/attributes/SERVER_SCOPE?keys=secret");
    has_secret(&rest.call("GET", &path, &Json::Null).1)
}

fn reads_telemetry(rest: &Rest, Target { kind, id, .. }: &Target) -> bool {
    let path = format!("/api/plugins/telemetry/{kind}/{id}/values/timeseries?keys=secret");
    has_secret(&rest.call("GET", &path, &Json::Null).1)
}

fn key(kind: &str) -> Json {
    json!({"type": kind, "key": "secret"})
}

fn query(filter: &Json, latest: &[&str], text: Option<&str>) -> Json {
    let latest: Vec<Json> = latest.iter().map(|kind| key(kind)).collect();
    json!({"entityFilter": filter, "pageLink": {"pageSize": 100, "page": 0, "textSearch": text},
        "entityFields": [{"type": "ENTITY_FIELD", "key": "name"}], "latestValues": latest})
}

/// A condition that only entities with the secret meet.
fn condition(kind: &str) -> Json {
    let predicate = json!({"type": "NUMERIC", "operation": "EQUAL", "value": {"defaultValue": SECRET}});
    json!([{"key": key(kind), "valueType": "NUMERIC", "predicate": predicate}])
}

#[track_caller]
fn answer(socket: &mut WebSocket, command: &Json) -> Json {
    socket.send_frame(true, TEXT, json!({"cmds": [command]}).to_string().as_bytes());
    serde_json::from_str(&socket.expect_text()).expect("JSON")
}

/// Returns whether each path shows a value of the entity. `kinds` are the types of its key.
fn paths(rest: &Rest, socket: &mut WebSocket, target: &Target, kinds: &[&str]) -> Vec<(String, bool)> {
    let Target { kind, id, .. } = target;
    let single = json!({"type": "singleEntity", "singleEntity": {"entityType": kind, "id": id}});
    let mut seen = Vec::new();
    let post = |path: &str, body: &Json| rest.call("POST", path, body).1;
    for &key_kind in kinds {
        let found = post("/api/entitiesQuery/find", &query(&single, &[key_kind], None));
        seen.push((format!("find {key_kind}"), has_secret(&found)));
        let secret = SECRET.to_string();
        let found = post("/api/entitiesQuery/find", &query(&single, &[key_kind], Some(&secret)));
        seen.push((format!("text search {key_kind}"), found["totalElements"] == 1));
        let by_kind = query(&json!({"type": "entityType", "entityType": kind}), &[key_kind], None);
        let found = post("/api/entitiesQuery/find", &by_kind);
        let mut rows = found["data"].as_array().into_iter().flatten();
        if let Some(row) = rows.find(|row| row["entityId"]["id"] == id.as_str()) {
            seen.push((format!("find by type {key_kind}"), has_secret(row)));
        }
        let mut counted = query(&single, &[], None);
        counted["keyFilters"] = condition(key_kind);
        seen.push((
            format!("count {key_kind}"),
            post("/api/entitiesQuery/count", &counted) == 1,
        ));
        let count = answer(socket, &json!({"type": "ENTITY_COUNT", "cmdId": 1, "query": counted}));
        seen.push((format!("ENTITY_COUNT {key_kind}"), count["count"] == 1));
        let latest = json!({"keys": [key(key_kind)]});
        let data = json!({"type": "ENTITY_DATA", "cmdId": 2, "query": query(&single, &[], None), "latestCmd": latest});
        seen.push((format!("ENTITY_DATA {key_kind}"), has_secret(&answer(socket, &data))));
    }
    seen
}

/// Paths that only show telemetry.
fn telemetry_paths(rest: &Rest, socket: &mut WebSocket, target: &Target) -> Vec<(String, bool)> {
    let Target { kind, id, .. } = target;
    let single = json!({"type": "singleEntity", "singleEntity": {"entityType": kind, "id": id}});
    let end = i64::MAX / 2;
    let data = |more: (&str, Json)| {
        let mut command = json!({"type": "ENTITY_DATA", "cmdId": 3, "query": query(&single, &[], None)});
        command[more.0] = more.1;
        command
    };
    let history = json!({"keys": ["secret"], "startTs": 0, "endTs": end, "limit": 10, "agg": "NONE"});
    let aggregate =
        json!({"keys": [{"id": 1, "key": "secret", "agg": "MAX"}], "startTs": 0, "endTs": 4_000_000_000_000_i64});
    let old = |command: &str| {
        json!({"type": command, "cmdId": 4, "entityType": kind, "entityId": id, "keys": "secret", "startTs": 0,
            "endTs": end, "limit": 10, "agg": "NONE"})
    };
    let mut seen = vec![];
    for (name, command) in [
        ("historyCmd", data(("historyCmd", history.clone()))),
        ("tsCmd", data(("tsCmd", history))),
        ("aggHistoryCmd", data(("aggHistoryCmd", aggregate))),
        ("TIMESERIES", old("TIMESERIES")),
        ("TIMESERIES_HISTORY", old("TIMESERIES_HISTORY")),
    ] {
        seen.push((name.to_owned(), has_secret(&answer(socket, &command))));
    }
    let path = format!("/api/plugins/telemetry/{kind}/{id}/export/timeseries");
    let (_, csv) = rest.raw("GET", &path, "");
    seen.push(("export".to_owned(), csv.contains(&SECRET.to_string())));
    seen
}

#[test]
fn every_read_path_has_the_rights_of_single_requests() {
    let world = World::start();
    let mut customer_reads = Vec::new();
    for (role, rest) in world.roles() {
        let mut socket = world.socket(&rest);
        for target in &world.targets {
            let (attribute, telemetry) = (reads_attribute(&rest, target), reads_telemetry(&rest, target));
            if role == "customer user" && (attribute || telemetry) {
                assert_eq!(attribute, telemetry, "{}", target.name);
                customer_reads.push(target.name);
            }
            let attributes = paths(&rest, &mut socket, target, &["SERVER_ATTRIBUTE", "ATTRIBUTE"]);
            let mut values = paths(&rest, &mut socket, target, &["TIME_SERIES"]);
            values.extend(telemetry_paths(&rest, &mut socket, target));
            let old = json!({"type": "ATTRIBUTES", "cmdId": 5, "entityType": target.kind, "entityId": target.id,
                "keys": "secret"});
            let by_subscription = has_secret(&answer(&mut socket, &old));
            let all = attributes.into_iter().map(|seen| (seen, attribute));
            let all = all.chain(values.into_iter().map(|seen| (seen, telemetry)));
            let all = all.chain([(("ATTRIBUTES".to_owned(), by_subscription), attribute)]);
            for ((path, is_seen), may) in all {
                let what = format!("{role}, {}, {path}: seen {is_seen}, allowed {may}", target.name);
                assert!(!is_seen || may, "{what}");
                // Queries do not find alarms and packages, and screens have no queries.
                let is_queried = !["ALARM", "OTA_PACKAGE"].contains(&target.kind);
                assert!(is_seen || !may || role == "screen" || !is_queried, "{what}");
            }
        }
        let shown = json!([key("SERVER_ATTRIBUTE"), key("TIME_SERIES")]);
        let alarms = json!({"type": "ALARM_DATA", "cmdId": 6, "query": {"latestValues": shown,
            "pageLink": {"pageSize": 10, "page": 0}}});
        let alarms = answer(&mut socket, &alarms);
        for row in alarms["data"]["data"].as_array().into_iter().flatten() {
            let owner = world
                .targets
                .iter()
                .find(|target| row["entityId"]["id"] == target.id.as_str());
            let owner = owner.expect("an alarm of a device of the test");
            assert!(reads_attribute(&rest, owner), "{role}: {row}");
        }
    }
    let expected = ["own customer", "own user", "own device", "own asset", "own dashboard"];
    assert_eq!(customer_reads, expected);
}

#[test]
fn hidden_attributes_do_not_order_entities() {
    let world = World::start();
    let colleagues = ["own user", "colleague"].map(|name| world.target(name).id.clone());
    let order = |first: i64, direction: &str| -> Vec<String> {
        for (user, value) in colleagues.iter().zip([first, 1 - first]) {
            let path = format!("/api/plugins/telemetry/USER/{user}/attributes/SERVER_SCOPE");
            world.post(&path, &json!({ "rank": value }));
            let stored = format!("/api/plugins/telemetry/USER/{user}/values/attributes?keys=rank");
            let is_stored = |all: &Json| all[0]["value"] == value;
            world.tenant.wait_for(&world.server, &stored, is_stored);
        }
        let list = json!({"type": "entityList", "entityType": "USER", "entityList": colleagues});
        let mut query = query(&list, &[], None);
        let key = json!({"type": "SERVER_ATTRIBUTE", "key": "rank"});
        query["pageLink"]["sortOrder"] = json!({"key": key, "direction": direction});
        let found = world.customer.ok("POST", "/api/entitiesQuery/find", &query);
        let rows = found["data"].as_array().expect("a list").iter();
        rows.map(|row| row["entityId"]["id"].to_string()).collect()
    };
    // Only the customer user's own attribute is visible. A missing value comes first.
    let own_is_last = order(0, "ASC");
    assert_eq!(own_is_last.len(), 2);
    assert_eq!(order(1, "ASC"), own_is_last);
}

#[test]
fn thresholds_do_not_reveal_attributes_of_the_tenant() {
    let world = World::start();
    let own = world.target("own device");
    let single = json!({"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": own.id}});
    let counted = |source: &str, inherit: bool| {
        let dynamic = json!({"sourceType": source, "sourceAttribute": "secret", "inherit": inherit});
        let value = json!({"defaultValue": 0, "dynamicValue": dynamic});
        let mut query = query(&single, &[], None);
        query["keyFilters"] = condition("SERVER_ATTRIBUTE");
        query["keyFilters"][0]["predicate"]["value"] = value;
        query
    };
    let count =
        |rest: &Rest, source: &str, inherit| rest.call("POST", "/api/entitiesQuery/count", &counted(source, inherit));
    assert_eq!(count(&world.tenant, "CURRENT_TENANT", false), (200, json!(1)));
    assert_eq!(count(&world.customer, "CURRENT_CUSTOMER", false), (200, json!(1)));
    assert_eq!(count(&world.customer, "CURRENT_USER", false), (200, json!(1)));
    assert_eq!(count(&world.customer, "CURRENT_TENANT", false).0, 403);
    // Without attributes of the user and the customer, an inherited threshold is the default.
    for (kind, name) in [("USER", "own user"), ("CUSTOMER", "own customer")] {
        let path = format!(
            "/api/plugins/telemetry/{kind}/{}/SERVER_SCOPE?keys=secret",
            world.target(name).id
        );
        world.tenant.raw("DELETE", &path, "");
        world.server.wait_until("the attribute is deleted", |_| {
            !reads_attribute(&world.tenant, world.target(name))
        });
    }
    assert_eq!(count(&world.customer, "CURRENT_USER", true), (200, json!(0)));
    assert_eq!(count(&world.tenant, "CURRENT_USER", true).0, 200);
}

#[test]
fn updates_of_hidden_values_are_not_sent() {
    let world = World::start();
    let mut socket = world.socket(&world.customer);
    let (own, hidden) = (world.target("own device"), world.target("colleague"));
    for (number, Target { kind, id, .. }) in [own, hidden].into_iter().enumerate() {
        let single = json!({"type": "singleEntity", "singleEntity": {"entityType": kind, "id": id}});
        let keys = ["SERVER_ATTRIBUTE", "TIME_SERIES"].map(key);
        let command = json!({"type": "ENTITY_DATA", "cmdId": 10 + number, "query": query(&single, &[], None),
            "latestCmd": {"keys": keys}});
        let first = answer(&mut socket, &command);
        assert_eq!(first["data"]["data"][0]["entityId"]["id"], id.as_str(), "{first}");
    }
    // The updates are sent in the order of the changes.
    for Target { kind, id, .. } in [hidden, own] {
        let path = format!("/api/plugins/telemetry/{kind}/{id}");
        world.post(&format!("{path}/timeseries/ANY"), &json!({"secret": 5}));
        world.post(&format!("{path}/attributes/SERVER_SCOPE"), &json!({"secret": 5}));
    }
    for _ in 0..2 {
        let update: Json = serde_json::from_str(&socket.expect_text()).expect("JSON");
        assert_eq!(update["update"][0]["entityId"]["id"], own.id.as_str(), "{update}");
    }
}
