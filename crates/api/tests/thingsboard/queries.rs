//! Entity data queries, alarm queries, usage, and calls to disconnected devices.

use serde_json::{Value, json};

use super::server::{CUSTOMER, Server, id, now_ms, refused};

struct Fleet {
    server: Server,
    ids: Vec<String>,
}

/// Five meters with a value and an attribute. The order of their names differs from the order of their values.
fn fleet() -> Fleet {
    let server = Server::start();
    let mut ids = Vec::new();
    for (number, level) in [30, 10, 50, 20, 40].into_iter().enumerate() {
        let kind = if number < 4 { "meter" } else { "tracker" };
        let device = server
            .post(
                "/api/device",
                json!({"name": format!("m{number}"), "type": kind, "label": "cellar"}),
            )
            .ok()
            .json();
        let path = format!("/api/plugins/telemetry/DEVICE/{}", id(&device));
        server
            .post(
                &format!("{path}/timeseries/ANY"),
                json!({"ts": 1000, "values": {"level": level}}),
            )
            .ok();
        server
            .post(&format!("{path}/attributes/SERVER_SCOPE"), json!({"floor": number % 2}))
            .ok();
        server.wait_for(&format!("{path}/keys/timeseries"), |keys| *keys == json!(["level"]));
        ids.push(id(&device));
    }
    Fleet { server, ids }
}

impl Fleet {
    fn names(&self, filter: Value, more: Value) -> Vec<String> {
        let page = self.find(filter, more);
        let data = page["data"].as_array().unwrap().iter();
        data.map(|entity| {
            entity["latest"]["ENTITY_FIELD"]["name"]["value"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect()
    }

    fn find(&self, filter: Value, more: Value) -> Value {
        let mut query = json!({"entityFilter": filter, "entityFields": [{"type": "ENTITY_FIELD", "key": "name"}],
            "latestValues": [{"type": "TIME_SERIES", "key": "level"}, {"type": "ATTRIBUTE", "key": "floor"}],
            "pageLink": {"pageSize": 10, "page": 0, "sortOrder": {"key": {"type": "ENTITY_FIELD", "key": "name"}, "direction": "ASC"}}});
        for (key, value) in more.as_object().into_iter().flatten() {
            query[key] = value.clone();
        }
        self.server.post("/api/entitiesQuery/find", query).ok().json()
    }
}

fn predicate(kind: &str, operation: &str, value: Value) -> Value {
    json!({"type": kind, "operation": operation, "value": {"defaultValue": value, "dynamicValue": null}})
}

#[test]
fn entities_are_found_by_all_filters() {
    let fleet = fleet();
    let meters = || json!({"type": "deviceType", "deviceTypes": ["meter"], "deviceNameFilter": ""});
    let ids = &fleet.ids;
    let cases = [
        (meters(), "m0,m1,m2,m3"),
        (json!({"type": "deviceType", "deviceType": "tracker"}), "m4"),
        (
            json!({"type": "deviceType", "deviceTypes": ["meter", "tracker"], "deviceNameFilter": "M4"}),
            "m4",
        ),
        (json!({"type": "entityType", "entityType": "DEVICE"}), "m0,m1,m2,m3,m4"),
        (
            json!({"type": "entityName", "entityType": "DEVICE", "entityNameFilter": "m2"}),
            "m2",
        ),
        (
            json!({"type": "entityList", "entityType": "DEVICE", "entityList": [ids[1], ids[3]]}),
            "m1,m3",
        ),
        (
            json!({"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": ids[0]}}),
            "m0",
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(fleet.names(filter.clone(), json!({})).join(","), expected, "{filter}");
    }
    let key = json!({"type": "TIME_SERIES", "key": "level"});
    let above = json!({"keyFilters": [{"key": key, "valueType": "NUMERIC", "predicate": predicate("NUMERIC", "GREATER", json!(15))},
        {"key": {"type": "SERVER_ATTRIBUTE", "key": "floor"}, "valueType": "NUMERIC", "predicate": predicate("NUMERIC", "EQUAL", json!(0))}]});
    assert_eq!(fleet.names(meters(), above), ["m0", "m2"]);
    let by_level = json!({"pageLink": {"pageSize": 2, "page": 1, "sortOrder": {"key": key, "direction": "DESC"}}});
    assert_eq!(fleet.names(meters(), by_level), ["m3", "m1"]);
    let searched = json!({"pageLink": {"pageSize": 10, "page": 0, "textSearch": "M3"}});
    assert_eq!(fleet.names(meters(), searched), ["m3"]);
    let page = fleet.find(
        json!({"type": "singleEntity", "singleEntity": {"entityType": "DEVICE", "id": ids[2]}}),
        json!({}),
    );
    let entity = &page["data"][0];
    assert_eq!(entity["entityId"], json!({"entityType": "DEVICE", "id": ids[2]}));
    assert_eq!(
        entity["latest"]["TIME_SERIES"]["level"],
        json!({"ts": 1000, "value": "50"})
    );
    assert_eq!(entity["latest"]["ATTRIBUTE"]["floor"]["value"], "0");
    let count = fleet
        .server
        .post("/api/entitiesQuery/count", json!({"entityFilter": meters()}))
        .ok()
        .json();
    assert_eq!(count, json!(4));
    let body = json!({"entityFilter": meters(), "pageLink": {"pageSize": 10, "page": 0}});
    let keys = fleet.server.post("/api/entitiesQuery/find/keys", body).ok().json();
    assert_eq!(
        (&keys["entityTypes"], &keys["timeseries"]),
        (&json!(["DEVICE"]), &json!(["level"]))
    );
}

#[test]
fn entities_are_found_along_relations() {
    let fleet = fleet();
    let asset = fleet.server.post("/api/asset", json!({"name": "house"})).ok().json();
    for device in &fleet.ids[..2] {
        let to = json!({"entityType": "DEVICE", "id": device});
        fleet
            .server
            .post(
                "/api/relation",
                json!({"from": asset["id"], "to": to, "type": "Contains"}),
            )
            .ok();
    }
    let filter = json!({"type": "relationsQuery", "rootEntity": asset["id"], "direction": "FROM", "maxLevel": 1,
        "filters": [{"relationType": "Contains", "entityTypes": ["DEVICE"]}]});
    assert_eq!(fleet.names(filter, json!({})), ["m0", "m1"]);
    let filter = json!({"type": "deviceSearchQuery", "rootEntity": asset["id"], "direction": "FROM", "relationType": "Contains",
        "deviceTypes": ["tracker"]});
    assert!(fleet.names(filter, json!({})).is_empty());
}

#[test]
fn customers_see_their_entities_and_bad_queries_fail() {
    let fleet = fleet();
    let customer = fleet.server.customer();
    fleet
        .server
        .post(
            &format!("/api/customer/{customer}/device/{}", fleet.ids[1]),
            Value::Null,
        )
        .ok();
    let body = json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"}, "pageLink": {"pageSize": 10, "page": 0}});
    let found = fleet
        .server
        .as_user(CUSTOMER, "POST", "/api/entitiesQuery/find", &body)
        .ok()
        .json();
    assert_eq!(found["totalElements"], 1);
    let listed = json!({"entityFilter": {"type": "entityList", "entityType": "DEVICE", "entityList": fleet.ids},
        "pageLink": {"pageSize": 10, "page": 0}});
    let found = fleet
        .server
        .as_user(CUSTOMER, "POST", "/api/entitiesQuery/find", &listed)
        .ok()
        .json();
    assert_eq!(found["totalElements"], 1);
    let page = json!({"pageSize": 10, "page": 0});
    for body in [
        json!({"entityFilter": {"type": "colour"}, "pageLink": page}),
        json!({"entityFilter": {"type": "entityType", "entityType": "THING"}, "pageLink": page}),
        json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"}, "pageLink": {"pageSize": 0, "page": 0}}),
        json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"}, "pageLink": page,
            "keyFilters": [{"key": {"type": "ENTITY_FIELD", "key": "name"}, "predicate": {"type": "COLOUR"}}]}),
    ] {
        refused(&fleet.server.post("/api/entitiesQuery/find", body), 400, 31);
    }
}

/// Filters for unsupported entity types match nothing; other filters match all readable entities.
#[test]
fn every_filter_type_is_answered() {
    let fleet = fleet();
    let tenant = fleet.server.get("/api/auth/user").ok().json()["tenantId"].clone();
    let root = || json!({"entityType": "DEVICE", "id": fleet.ids[0]});
    let kind = |kind: &str| json!({"type": "entityType", "entityType": kind});
    let search = |kind: &str| json!({"type": kind, "rootEntity": root(), "direction": "FROM", "maxLevel": 1, "relationType": "Contains"});
    for (filter, count) in [
        (json!({"type": "edgeType", "edgeTypes": ["e"], "edgeNameFilter": ""}), 0),
        (
            json!({"type": "entityViewType", "entityViewTypes": ["e"], "entityViewNameFilter": ""}),
            0,
        ),
        (search("edgeSearchQuery"), 0),
        (search("entityViewSearchQuery"), 0),
        (kind("ENTITY_VIEW"), 0),
        (kind("EDGE"), 0),
        (kind("TENANT"), 1),
        (kind("DEVICE_PROFILE"), 3),
        (kind("ASSET_PROFILE"), 1),
        (kind("API_USAGE_STATE"), 1),
    ] {
        let body = json!({"entityFilter": filter, "pageLink": {"pageSize": 10, "page": 0}});
        let found = fleet.server.post("/api/entitiesQuery/find", body.clone()).ok().json();
        assert_eq!(found["totalElements"], count, "{filter}");
        assert_eq!(
            fleet.server.post("/api/entitiesQuery/count", body).ok().json(),
            json!(count)
        );
    }
    let found = fleet.find(kind("TENANT"), json!({}));
    assert_eq!(found["data"][0]["entityId"], tenant);
}

#[test]
fn relations_are_searched_from_several_roots() {
    let fleet = fleet();
    let asset = |name: &str| id(&fleet.server.post("/api/asset", json!({"name": name})).ok().json());
    let assets = [asset("a"), asset("b")];
    for (asset, device) in [(0, 0), (1, 1), (1, 2)] {
        let body = json!({"from": {"entityType": "ASSET", "id": assets[asset]}, "type": "Contains",
            "to": {"entityType": "DEVICE", "id": fleet.ids[device]}});
        fleet.server.post("/api/relation", body).ok();
    }
    let several = |filter: Value| {
        json!({"type": "relationsQuery", "multiRoot": true, "multiRootEntitiesType": "ASSET", "multiRootEntityIds": assets,
            "direction": "FROM", "maxLevel": 1, "filters": [filter]})
    };
    let contains = json!({"relationType": "Contains", "entityTypes": ["DEVICE"]});
    assert_eq!(fleet.names(several(contains), json!({})), ["m0", "m1", "m2"]);
    let others = json!({"relationType": "Contains", "entityTypes": ["DEVICE"], "negate": true});
    assert_eq!(fleet.names(several(others), json!({})), Vec::<String>::new());
}

#[test]
fn conditions_use_user_attributes_and_missing_values() {
    let fleet = fleet();
    let meters = || json!({"type": "deviceType", "deviceTypes": ["meter"]});
    let tenant = id(&json!({"id": fleet.server.get("/api/auth/user").ok().json()["tenantId"]}));
    fleet
        .server
        .post(
            &format!("/api/plugins/telemetry/TENANT/{tenant}/attributes/SERVER_SCOPE"),
            json!({"most": 25}),
        )
        .ok();
    let level = json!({"type": "TIME_SERIES", "key": "level"});
    let none = json!({"type": "ATTRIBUTE", "key": "none"});
    let threshold = |value: Value| json!({"type": "NUMERIC", "operation": "GREATER", "value": value});
    let of_tenant = json!({"sourceType": "CURRENT_TENANT", "sourceAttribute": "most"});
    let inherited = json!({"sourceType": "CURRENT_USER", "sourceAttribute": "most", "inherit": true});
    let unknown = json!({"sourceType": "CURRENT_USER", "sourceAttribute": "most"});
    let text = |operation: &str, value: &str| json!({"type": "STRING", "operation": operation, "value": {"defaultValue": value}});
    let number = |operation: &str, value: i64| json!({"type": "NUMERIC", "operation": operation, "value": {"defaultValue": value}});
    let both =
        json!({"type": "COMPLEX", "operation": "OR", "predicates": [number("GREATER", -1), text("NOT_EQUAL", "x")]});
    for (key, predicate, names) in [
        (
            &level,
            threshold(json!({"defaultValue": 0, "dynamicValue": of_tenant})),
            "m0,m2",
        ),
        (
            &level,
            threshold(json!({"defaultValue": 0, "dynamicValue": inherited})),
            "m0,m2",
        ),
        (
            &level,
            threshold(json!({"defaultValue": 15, "dynamicValue": unknown})),
            "m0,m2,m3",
        ),
        (&level, threshold(json!({"defaultValue": 0, "userValue": 40})), "m2"),
        (&none, number("GREATER", -1), ""),
        (&none, number("NOT_EQUAL", 1), ""),
        (&none, text("NOT_EQUAL", "x"), "m0,m1,m2,m3"),
        (&none, text("NOT_CONTAINS", "x"), "m0,m1,m2,m3"),
        (&none, text("EQUAL", "x"), ""),
        (&none, text("EQUAL", ""), "m0,m1,m2,m3"),
        (&none, both, "m0,m1,m2,m3"),
    ] {
        let more = json!({"keyFilters": [{"key": key, "predicate": predicate}]});
        assert_eq!(fleet.names(meters(), more).join(","), names, "{predicate}");
    }
}

#[test]
fn owners_and_display_names_are_fields() {
    let fleet = fleet();
    let customer = fleet.server.customer();
    fleet
        .server
        .post(
            &format!("/api/customer/{customer}/device/{}", fleet.ids[0]),
            Value::Null,
        )
        .ok();
    let keys = ["ownerType", "ownerName", "displayName"].map(|key| json!({"type": "ENTITY_FIELD", "key": key}));
    let meters = json!({"type": "deviceType", "deviceTypes": ["meter"]});
    let name = json!({"type": "ENTITY_FIELD", "key": "name"});
    let body = json!({"entityFilter": meters, "entityFields": keys,
        "pageLink": {"pageSize": 2, "page": 0, "sortOrder": {"key": name, "direction": "ASC"}}});
    let found = fleet.server.post("/api/entitiesQuery/find", body).ok().json();
    let title = fleet.server.get(&format!("/api/customer/{customer}")).ok().json()["title"].clone();
    let fields = |index: usize| found["data"][index]["latest"]["ENTITY_FIELD"].clone();
    assert_eq!(
        (&fields(0)["ownerType"]["value"], &fields(0)["ownerName"]["value"]),
        (&json!("CUSTOMER"), &title)
    );
    assert_eq!(fields(0)["displayName"]["value"], "cellar");
    assert_eq!(fields(1)["ownerType"]["value"], "TENANT");
    assert_ne!(fields(1)["ownerName"]["value"], "");
}

#[test]
fn alarms_are_sorted_and_have_requested_values() {
    let fleet = fleet();
    for (device, severity) in [(0, "MAJOR"), (1, "CRITICAL"), (2, "WARNING")] {
        let body = json!({"type": "hot", "originator": {"entityType": "DEVICE", "id": fleet.ids[device]}, "severity": severity});
        fleet.server.post("/api/alarm", body).ok();
    }
    let meters = json!({"type": "deviceType", "deviceTypes": ["meter"]});
    for (field, direction, severities) in [
        ("severity", "ASC", "CRITICAL,MAJOR,WARNING"),
        ("severity", "DESC", "WARNING,MAJOR,CRITICAL"),
        ("createdTime", "ASC", "MAJOR,CRITICAL,WARNING"),
        ("startTime", "DESC", "WARNING,CRITICAL,MAJOR"),
    ] {
        let sort = json!({"key": {"type": "ALARM_FIELD", "key": field}, "direction": direction});
        let body = json!({"entityFilter": meters, "pageLink": {"pageSize": 10, "page": 0, "sortOrder": sort},
            "entityFields": [{"type": "ENTITY_FIELD", "key": "name"}], "latestValues": [{"type": "TIME_SERIES", "key": "level"}]});
        let page = fleet.server.post("/api/alarmsQuery/find", body).ok().json();
        let found = page["data"].as_array().unwrap();
        let shown: Vec<&str> = found.iter().map(|alarm| alarm["severity"].as_str().unwrap()).collect();
        assert_eq!(shown.join(","), severities, "{field} {direction}");
        let major = found.iter().find(|alarm| alarm["severity"] == "MAJOR").unwrap();
        assert_eq!(major["latest"]["TIME_SERIES"]["level"]["value"], "30");
        assert_eq!(major["latest"]["ENTITY_FIELD"]["name"]["value"], "m0");
    }
}

#[test]
fn alarms_are_found_by_entity() {
    let fleet = fleet();
    for (device, kind) in [(0, "hot"), (1, "hot"), (1, "cold")] {
        let body =
            json!({"type": kind, "originator": {"entityType": "DEVICE", "id": fleet.ids[device]}, "severity": "MAJOR"});
        fleet.server.post("/api/alarm", body).ok();
    }
    let filter = json!({"type": "deviceType", "deviceTypes": ["meter"]});
    let find = |page_link: Value| {
        let body = json!({"entityFilter": filter, "pageLink": page_link, "alarmFields": [], "latestValues": []});
        let page = fleet.server.post("/api/alarmsQuery/find", body).ok().json();
        (
            page["data"].as_array().unwrap().len(),
            page["totalElements"].as_u64().unwrap(),
            page,
        )
    };
    let (shown, total, page) = find(json!({"pageSize": 2, "page": 0}));
    assert_eq!((shown, total, &page["data"][0]["type"]), (2, 3, &json!("cold")));
    assert_eq!(
        (
            page["data"][0]["entityId"]["id"].as_str(),
            &page["data"][0]["originatorName"]
        ),
        (Some(&*fleet.ids[1]), &json!("m1"))
    );
    assert_eq!(find(json!({"pageSize": 2, "page": 1})).0, 1);
    assert_eq!(
        find(json!({"pageSize": 9, "page": 0, "typeList": ["hot"], "statusList": ["ACTIVE"]})).1,
        2
    );
    assert_eq!(find(json!({"pageSize": 9, "page": 0, "severityList": ["MINOR"]})).1, 0);
    let count = fleet
        .server
        .post(
            "/api/alarmsQuery/count",
            json!({"entityFilter": filter, "typeList": ["hot"]}),
        )
        .ok()
        .json();
    assert_eq!(count, json!(2));
    assert_eq!(
        fleet.server.post("/api/alarmsQuery/count", json!({})).ok().json(),
        json!(3)
    );
}

#[test]
fn usage_counts_entities() {
    let server = Server::start();
    server.device("d");
    let usage = server.get("/api/usage").ok().json();
    assert_eq!(
        (&usage["devices"], &usage["customers"], &usage["users"]),
        (&json!(1), &json!(1), &json!(2))
    );
    assert_eq!(usage["transportMessages"], 0);
    let query = json!({"entityFilter": {"type": "apiUsageState"}, "pageLink": {"pageSize": 10, "page": 0}});
    let found = server.post("/api/entitiesQuery/find", query).ok().json();
    assert_eq!(found["data"][0]["entityId"]["entityType"], "API_USAGE_STATE");
    let id = found["data"][0]["entityId"]["id"].as_str().unwrap();
    server
        .get(&format!(
            "/api/plugins/telemetry/API_USAGE_STATE/{id}/values/timeseries?keys=transportMsgCount"
        ))
        .ok();
}

#[test]
fn disconnected_device_cannot_be_called() {
    let server = Server::start();
    let device = server.device("d");
    let body = json!({"method": "reboot", "params": {"after": 1}});
    for way in ["oneway", "twoway"] {
        let soon = |ms| json!({"method": "reboot", "params": {"after": 1}, "expirationTime": now_ms() + ms});
        let new = server.post(&format!("/api/rpc/{way}/{device}"), soon(200));
        assert_eq!((new.status, &new.json()["status"]), (504, &json!(504)), "{way}");
        let old = server.post(&format!("/api/plugins/rpc/{way}/{device}"), soon(2000));
        assert_eq!(old.status, 409, "{way}");
    }
    refused(
        &server.post("/api/rpc/oneway/784f394c-42b6-11ee-983c-b7beff2784f9", body.clone()),
        404,
        32,
    );
    refused(
        &server.post(&format!("/api/rpc/oneway/{device}"), json!({"params": 1})),
        400,
        31,
    );
    let kept = server
        .post(
            &format!("/api/rpc/oneway/{device}"),
            json!({"method": "m", "persistent": true}),
        )
        .ok()
        .json();
    let path = format!("/api/rpc/persistent/{}", kept["rpcId"].as_str().unwrap());
    assert_eq!(server.get(&path).ok().json()["status"], "QUEUED");
    refused(&server.as_user(CUSTOMER, "GET", &path, &Value::Null), 403, 20);
    refused(&server.as_user(CUSTOMER, "DELETE", &path, &Value::Null), 403, 20);
    refused(
        &server.as_user(CUSTOMER, "POST", &format!("/api/rpc/oneway/{device}"), &body),
        403,
        20,
    );
}

#[test]
fn answer_size_is_bounded() {
    let fleet = fleet();
    let path = format!("/api/plugins/telemetry/DEVICE/{}", fleet.ids[0]);
    let text = "x".repeat(60_000);
    fleet
        .server
        .post(&format!("{path}/attributes/SERVER_SCOPE"), json!({"text": text}))
        .ok();
    let keys = |count: usize| vec![json!({"type": "SERVER_ATTRIBUTE", "key": "text"}); count];
    let query = |keys: Vec<Value>| {
        json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"}, "pageLink": {"pageSize": 10, "page": 0},
            "latestValues": keys})
    };
    fleet.server.post("/api/entitiesQuery/find", query(keys(1_000))).ok();
    let too_large = refused(
        &fleet.server.post("/api/entitiesQuery/find", query(keys(1_200))),
        400,
        31,
    );
    assert_eq!(
        too_large,
        "The answer exceeds 64 MiB: request fewer keys, a smaller page or a shorter range"
    );
    let filter = json!({"key": {"type": "ENTITY_FIELD", "key": "name"},
        "predicate": {"type": "STRING", "operation": "STARTS_WITH", "value": {"defaultValue": "m"}}});
    let filtered = |count: usize| json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"}, "keyFilters": vec![filter.clone(); count]});
    assert_eq!(
        fleet.server.post("/api/entitiesQuery/count", filtered(100)).ok().json(),
        5
    );
    let too_many = refused(&fleet.server.post("/api/entitiesQuery/count", filtered(101)), 400, 31);
    assert_eq!(too_many, "The query has 101 key filters: at most 100 are allowed");
}

/// Large entities are read in small chunks, independent of the page size.
#[test]
fn large_entities_are_listed_in_pages_of_any_size() {
    let server = Server::start();
    let titles: Vec<String> = (0..40).map(|number| format!("large {number:02}")).collect();
    for title in &titles {
        let dashboard = json!({"title": title, "configuration": {"widgets": {"a": {"title": title}}}});
        server.post("/api/dashboard", dashboard).ok();
    }
    for (page_size, page) in [(15, 0), (15, 1), (15, 2), (15, 3), (16, 1), (1000, 0), (1, 39)] {
        let target = format!(
            "/api/tenant/dashboards?pageSize={page_size}&page={page}&textSearch=large&sortProperty=title&sortOrder=ASC"
        );
        let found = server.get(&target).ok().json();
        let (start, end) = (page_size * page, page_size * (page + 1));
        let expected = &titles[start.min(40)..end.min(40)];
        let shown = found["data"].as_array().unwrap();
        let shown: Vec<&str> = shown.iter().map(|found| found["title"].as_str().unwrap()).collect();
        assert_eq!(shown, expected, "{page_size} {page}");
        assert!(!found["data"].to_string().contains("widgets"));
        assert_eq!(
            (&found["totalElements"], &found["hasNext"]),
            (&json!(40), &json!(end < 40))
        );
    }
    let first = server.get("/api/tenant/dashboards?pageSize=1&page=0&textSearch=large%2007");
    let (first, customer) = (first.ok().json(), server.customer());
    let path = format!("/api/customer/{customer}/dashboard/{}", id(&first["data"][0]));
    server.post(&path, Value::Null).ok();
    let of_customer = server.get(&format!("/api/customer/{customer}/dashboards?pageSize=10&page=0"));
    let of_customer = of_customer.ok().json();
    let shown = of_customer["data"].as_array().unwrap();
    assert!(shown.iter().any(|found| found["title"] == "large 07"), "{of_customer}");
    let titles_of = |kind: &str, field: &str| {
        let key = json!({"type": "ENTITY_FIELD", "key": field});
        let query = json!({"entityFilter": {"type": "entityType", "entityType": kind}, "entityFields": [key],
            "pageLink": {"pageSize": 100, "page": 0, "sortOrder": {"key": key, "direction": "ASC"}}});
        let found = server.post("/api/entitiesQuery/find", query).ok().json();
        let rows = found["data"].as_array().unwrap().iter();
        let rows = rows.map(|row| {
            row["latest"]["ENTITY_FIELD"][field]["value"]
                .as_str()
                .unwrap()
                .to_owned()
        });
        rows.collect::<Vec<String>>()
    };
    let found = titles_of("DASHBOARD", "title");
    assert!(titles.iter().all(|title| found.contains(title)), "{found:?}");
    assert!(titles_of("RULE_CHAIN", "name").contains(&"Root Rule Chain".to_owned()));
}
