//! Devices, profiles, assets, customers, dashboards, relations: creation, lists, validation.

use serde_json::{Value, json};

use super::server::{CUSTOMER, SYSADMIN, Server, TENANT, id, refused};

/// serde's derived code accepts an array for a struct. The API must only accept objects, at every depth.
#[test]
fn array_in_place_of_an_object_is_rejected_at_any_depth() {
    let server = Server::start();
    let device = server.device("d");
    let name = json!(["o", "default"]);
    let owner = json!({"name": "o", "type": "default", "deviceProfileId": ["DEVICE_PROFILE", device]});
    let page = json!([10, 0]);
    let cases = [
        ("/api/device", name),
        ("/api/device", owner),
        ("/api/customer", json!(["C"])),
        ("/api/relations", json!([{}, {}])),
        ("/api/entitiesQuery/find", json!([])),
        (
            "/api/entitiesQuery/find",
            json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"}, "pageLink": page}),
        ),
        (
            "/api/entitiesQuery/count",
            json!({"entityFilter": ["entityType", "DEVICE"]}),
        ),
        ("/api/alarmsQuery/find", json!([])),
        ("/api/alarmsQuery/find", json!({"pageLink": page})),
        ("/api/ruleChain/metadata", json!([])),
        ("/api/dashboard", json!(["D"])),
        ("/api/auth/changePassword", json!(["tenant", "tenant2"])),
    ];
    for (target, body) in cases {
        let answer = server.post(target, body.clone());
        refused(&answer, 400, 31);
    }
    for body in [json!([]), json!(["secret"])] {
        let claimed = server.as_user(CUSTOMER, "POST", "/api/customer/device/d/claim", &body);
        refused(&claimed, 400, 31);
    }
    let login = server.send("POST", "/api/auth/login", None, &json!([TENANT, "tenant"]).to_string());
    let said = refused(&login, 400, 31);
    assert!(said.contains("found a list"), "{said}");
}

#[test]
fn errors_describe_the_invalid_value() {
    let server = Server::start();
    let device = server.device("d");
    let unknown = "784f394c-42b6-11ee-983c-b7beff2784f9";
    let cases = [
        (
            "GET",
            "/api/device/x".to_owned(),
            Value::Null,
            400,
            31,
            "Invalid UUID string: x",
        ),
        (
            "GET",
            format!("/api/device/{unknown}"),
            Value::Null,
            404,
            32,
            "Device with id [784f394c-42b6-11ee-983c-b7beff2784f9] is not found",
        ),
        (
            "GET",
            "/api/tenant/devices".into(),
            Value::Null,
            400,
            31,
            "Required request parameter 'pageSize' is not present",
        ),
        (
            "GET",
            "/api/tenant/devices?pageSize=0&page=0".into(),
            Value::Null,
            400,
            31,
            "Incorrect page link page size '0'. Page size must be greater than zero.",
        ),
        (
            "GET",
            "/api/tenant/devices?pageSize=1&page=-1".into(),
            Value::Null,
            400,
            31,
            "Incorrect page link page '-1'. Page must be positive integer.",
        ),
        (
            "POST",
            "/api/device".into(),
            json!({"name": " "}),
            400,
            31,
            "Device name should be specified!",
        ),
        (
            "POST",
            "/api/device".into(),
            json!({"name": "d"}),
            400,
            31,
            "Device with such name already exists!",
        ),
        (
            "POST",
            "/api/device?accessToken=t".into(),
            json!({"name": "e", "customerId": {"id": unknown}}),
            400,
            31,
            "Can't assign device to non-existent customer!",
        ),
        (
            "DELETE",
            format!("/api/customer/device/{device}"),
            Value::Null,
            400,
            31,
            "Device isn't assigned to any customer!",
        ),
        (
            "GET",
            "/api/plugins/telemetry/THING/784f394c-42b6-11ee-983c-b7beff2784f9/keys/timeseries".into(),
            Value::Null,
            400,
            31,
            "Unsupported entity type: THING",
        ),
    ];
    for (method, target, body, status, code, text) in cases {
        let answer = server.as_user(TENANT, method, &target, &body);
        assert_eq!(refused(&answer, status, code), text, "{method} {target}");
    }
    let authorization = format!("Bearer {}", server.token(TENANT));
    refused(&server.send("POST", "/api/device", Some(&authorization), "{"), 400, 31);
    refused(
        &server.send("POST", "/api/device", Some(&authorization), r#"{"name":1}"#),
        400,
        31,
    );
}

#[test]
fn device_change_needs_the_current_version() {
    let server = Server::start();
    let mut device = server
        .post("/api/device", json!({"name": "d", "type": "meter"}))
        .ok()
        .json();
    assert_eq!(device["type"], "meter");
    device["label"] = json!("first");
    let second = server.post("/api/device", device.clone()).ok().json();
    assert_eq!(second["createdTime"], device["createdTime"]);
    refused(&server.post("/api/device", device), 409, 35);
    let info = server.get(&format!("/api/device/info/{}", id(&second))).ok().json();
    assert_eq!(
        (&info["deviceProfileName"], &info["active"], &info["customerTitle"]),
        (&json!("meter"), &json!(false), &Value::Null)
    );
    let types = server.get("/api/device/types").ok().json();
    assert_eq!(types.as_array().unwrap().len(), 2);
}

#[test]
fn lists_are_paged_filtered_and_sorted() {
    let server = Server::start();
    for number in 0..5 {
        let kind = if number % 2 == 0 { "even" } else { "odd" };
        server
            .post("/api/device", json!({"name": format!("d{number}"), "type": kind}))
            .ok();
    }
    let names = |query: &str| {
        let page = server.get(&format!("/api/tenant/deviceInfos?{query}")).ok().json();
        let names: Vec<_> = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|device| device["name"].clone())
            .collect();
        (
            json!(names),
            page["totalElements"].clone(),
            page["totalPages"].clone(),
            page["hasNext"].clone(),
        )
    };
    let page = |names: Value, total: i64, pages: i64, more: bool| (names, json!(total), json!(pages), json!(more));
    assert_eq!(
        names("pageSize=2&page=0&sortProperty=name&sortOrder=DESC"),
        page(json!(["d4", "d3"]), 5, 3, true)
    );
    assert_eq!(
        names("pageSize=2&page=2&sortProperty=name&sortOrder=DESC"),
        page(json!(["d0"]), 5, 3, false)
    );
    assert_eq!(
        names("pageSize=9&page=0&type=odd&sortProperty=createdTime"),
        page(json!(["d1", "d3"]), 2, 1, false)
    );
    assert_eq!(
        names("pageSize=9&page=0&textSearch=D2"),
        page(json!(["d2"]), 1, 1, false)
    );
    assert_eq!(names("pageSize=9&page=0&active=true"), page(json!([]), 0, 0, false));
    assert_eq!(
        names("pageSize=2&page=1&active=false"),
        page(json!(["d2", "d3"]), 5, 3, true)
    );
    refused(
        &server.get("/api/tenant/deviceInfos?pageSize=2&page=0&sortProperty=a;b"),
        400,
        31,
    );
}

#[test]
fn all_credential_types_are_accepted() {
    let server = Server::start();
    let body = json!({
        "device": {"name": "basic", "type": "default"},
        "credentials": {"credentialsType": "MQTT_BASIC",
            "credentialsValue": "{\"clientId\":null,\"userName\":\"u\",\"password\":\"p\"}"}
    });
    let device = server.post("/api/device-with-credentials", body).ok().json();
    let target = format!("/api/device/{}/credentials", id(&device));
    let mut credentials = server.get(&target).ok().json();
    assert_eq!(credentials["credentialsType"], "MQTT_BASIC");
    credentials["credentialsType"] = json!("ACCESS_TOKEN");
    credentials["credentialsId"] = json!("token");
    credentials["credentialsValue"] = Value::Null;
    server.post("/api/device/credentials", credentials.clone()).ok();
    assert_eq!(server.get(&target).ok().json()["credentialsId"], "token");
    let other = server.device("other");
    let mut taken = server.get(&format!("/api/device/{other}/credentials")).ok().json();
    taken["credentialsId"] = json!("token");
    refused(&server.post("/api/device/credentials", taken), 400, 31);
    credentials["id"] = Value::Null;
    let text = refused(&server.post("/api/device/credentials", credentials), 400, 31);
    assert_eq!(text, "Unable to update non-existent device credentials!");
}

#[test]
fn device_and_asset_profiles_are_managed() {
    let server = Server::start();
    let info = server.get("/api/deviceProfileInfo/default").ok().json();
    assert_eq!(info["name"], "default");
    let refusal = server.delete(&format!("/api/deviceProfile/{}", id(&info)));
    assert_eq!(
        refused(&refusal, 400, 31),
        "Deletion of Default Device Profile is prohibited!"
    );
    let profile = json!({"name": "p", "type": "DEFAULT", "transportType": "DEFAULT", "profileData": {
        "configuration": {"type": "DEFAULT"}, "transportConfiguration": {"type": "DEFAULT"},
        "provisionConfiguration": {"type": "ALLOW_CREATE_NEW_DEVICES", "provisionDeviceSecret": "s"}},
        "provisionType": "ALLOW_CREATE_NEW_DEVICES", "provisionDeviceKey": "k"});
    let saved = server.post("/api/deviceProfile", profile).ok().json();
    assert_eq!(
        saved["profileData"]["provisionConfiguration"]["provisionDeviceSecret"],
        "s"
    );
    server
        .post(&format!("/api/deviceProfile/{}/default", id(&saved)), Value::Null)
        .ok();
    assert_eq!(server.get("/api/deviceProfileInfo/default").ok().json()["name"], "p");
    let infos = server.get("/api/deviceProfileInfos?pageSize=10&page=0").ok().json();
    assert_eq!(infos["totalElements"], 2);
    assert!(infos["data"][0].get("profileData").is_none());
    let broken = json!({"name": "q", "type": "DEFAULT", "transportType": "DEFAULT",
        "profileData": {"alarms": [{"alarmType": "a", "createRules": {"CRITICAL": {"condition": {"spec": {"type": "?"}}}}}]}});
    refused(&server.post("/api/deviceProfile", broken), 400, 31);

    let asset = server
        .post("/api/asset", json!({"name": "house", "type": "building"}))
        .ok()
        .json();
    let profiles = server.get("/api/assetProfiles?pageSize=10&page=0").ok().json();
    assert_eq!(profiles["totalElements"], 2);
    let found = server.get("/api/tenant/assets?assetName=house").ok().json();
    assert_eq!(found["id"], asset["id"]);
    assert_eq!(
        refused(&server.post("/api/asset", json!({"name": "house"})), 400, 31),
        "Asset with such name already exists!"
    );
    server.delete(&format!("/api/asset/{}", id(&asset))).ok();
    refused(&server.get(&format!("/api/asset/info/{}", id(&asset))), 404, 32);
}

/// The transport of a profile cannot change while devices use it.
#[test]
fn transport_of_a_profile_with_devices_is_fixed() {
    let server = Server::start();
    let device = server
        .post("/api/device", json!({"name": "A", "type": "meter"}))
        .ok()
        .json();
    let path = format!(
        "/api/deviceProfile/{}",
        device["deviceProfileId"]["id"].as_str().unwrap()
    );
    let changed = |changes: Value| {
        let mut profile = server.get(&path).ok().json();
        for (field, value) in changes.as_object().unwrap() {
            profile[field] = value.clone();
        }
        server.post("/api/deviceProfile", profile)
    };
    let to_mqtt = json!({"transportType": "MQTT"});
    assert_eq!(
        refused(&changed(to_mqtt.clone()), 400, 31),
        "Can't change device profile transport type because devices referenced it!"
    );
    assert_eq!(
        refused(&changed(json!({"type": "OTHER", "transportType": "MQTT"})), 400, 31),
        "Can't change device profile type because devices referenced it!"
    );
    let described = changed(json!({"description": "counts"})).ok().json();
    assert_eq!(
        (&described["transportType"], &described["description"]),
        (&json!("DEFAULT"), &json!("counts"))
    );
    server.delete(&format!("/api/device/{}", id(&device))).ok();
    assert_eq!(changed(to_mqtt).ok().json()["transportType"], "MQTT");
}

/// As in ThingsBoard, whose widgets query the entities that the tenant contains.
#[test]
fn administrator_creates_relations_to_the_tenant() {
    let server = Server::start();
    let device = server.device("d");
    let tenant = server.get("/api/auth/user").ok().json()["tenantId"].clone();
    let device = json!({"entityType": "DEVICE", "id": device});
    let own = json!({"from": tenant, "to": device, "type": "Contains"});
    server.post("/api/relation", own.clone()).ok();
    let of = |id: &Value| id["id"].as_str().unwrap().to_owned();
    let found = format!("/api/relations?fromId={}&fromType=TENANT", of(&tenant));
    assert_eq!(server.get(&found).ok().json()[0]["to"], device);
    let query = format!(
        "fromId={}&fromType=TENANT&relationType=Contains&toId={}&toType=DEVICE",
        of(&tenant),
        of(&device)
    );
    server.delete(&format!("/api/relation?{query}")).ok();
    assert_eq!(server.get(&found).ok().json(), json!([]));
    refused(&server.as_user(CUSTOMER, "POST", "/api/relation", &own), 403, 20);
    let other = server.as_user(SYSADMIN, "POST", "/api/tenant", &json!({"title": "Other"}));
    let other = json!({"from": other.ok().json()["id"], "to": device, "type": "Contains"});
    refused(&server.post("/api/relation", other), 404, 32);
}

#[test]
fn relations_are_found_over_levels() {
    let server = Server::start();
    let asset = |name: &str| server.post("/api/asset", json!({"name": name})).ok().json()["id"].clone();
    let (top, middle) = (asset("top"), asset("middle"));
    let device = json!({"entityType": "DEVICE", "id": server.device("leaf")});
    let relate = |from: &Value, to: &Value| {
        server
            .post(
                "/api/relation",
                json!({"from": from, "to": to, "type": "Contains", "typeGroup": "COMMON"}),
            )
            .ok();
    };
    relate(&top, &middle);
    relate(&middle, &device);
    let of = |entity: &Value| entity["id"].as_str().unwrap().to_owned();
    let from_top = server
        .get(&format!("/api/relations?fromId={}&fromType=ASSET", of(&top)))
        .ok()
        .json();
    assert_eq!(from_top.as_array().unwrap().len(), 1);
    let infos = server
        .get(&format!("/api/relations/info?toId={}&toType=DEVICE", of(&device)))
        .ok()
        .json();
    assert_eq!(
        (&infos[0]["fromName"], &infos[0]["toName"]),
        (&json!("middle"), &json!("leaf"))
    );
    let find = |levels: i64, last: bool| {
        let body = json!({"parameters": {"rootId": of(&top), "rootType": "ASSET", "direction": "FROM", "relationTypeGroup": "COMMON",
            "maxLevel": levels, "fetchLastLevelOnly": last}, "filters": [{"relationType": "Contains", "entityTypes": []}]});
        server
            .post("/api/relations", body)
            .ok()
            .json()
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!((find(1, false), find(0, false), find(2, true)), (1, 2, 1));
    let one = format!(
        "/api/relation?fromId={}&fromType=ASSET&relationType=Contains&toId={}&toType=ASSET",
        of(&top),
        of(&middle)
    );
    assert_eq!(server.get(&one).ok().json()["type"], "Contains");
    server.delete(&one).ok();
    refused(&server.get(&one), 404, 32);
    refused(&server.delete(&one), 404, 32);
}

#[test]
fn dashboards_are_visible_to_assigned_customers() {
    let server = Server::start();
    let customer = server.customer();
    let dashboard = server
        .post("/api/dashboard", json!({"title": "D", "configuration": {"a": 1}}))
        .ok()
        .json();
    let read = || {
        server.as_user(
            CUSTOMER,
            "GET",
            &format!("/api/dashboard/{}", id(&dashboard)),
            &Value::Null,
        )
    };
    refused(&read(), 403, 20);
    let target = format!("/api/customer/{customer}/dashboard/{}", id(&dashboard));
    let assigned = server.post(&target, Value::Null).ok().json();
    assert_eq!(assigned["assignedCustomers"][0]["title"], "Customer A");
    assert_eq!(read().ok().json()["configuration"]["a"], 1);
    let list = format!("/api/customer/{customer}/dashboards?pageSize=10&page=0");
    assert_eq!(
        server.as_user(CUSTOMER, "GET", &list, &Value::Null).ok().json()["totalElements"],
        1
    );
    server.delete(&target).ok();
    refused(&read(), 403, 20);
    assert!(server.get("/api/dashboard/serverTime").ok().json().is_i64());
}

#[test]
fn customer_user_claims_a_device() {
    let server = Server::start();
    server.device("mine");
    let claim = |name: &str, secret: &str| {
        server.as_user(
            CUSTOMER,
            "POST",
            &format!("/api/customer/device/{name}/claim"),
            &json!({"secretKey": secret}),
        )
    };
    refused(&claim("nothing", "s"), 404, 32);
    let answer = claim("mine", "s");
    assert_eq!((answer.status, &answer.json()["response"]), (400, &json!("FAILURE")));
    let device = server.get("/api/tenant/devices?deviceName=mine").ok().json();
    let device_id = platform::ids::DeviceId(platform::ids::Uuid::parse(&id(&device)).unwrap());
    let wish = platform::decode::Claim {
        secret_key: "s".into(),
        duration_ms: 60_000,
    };
    let entities = server.devices.entities();
    let now_ms = super::server::now_ms();
    let said = (platform::entities::ReceptionMode::Live, now_ms);
    entities.allow_claim(device_id, &wish, said, now_ms).unwrap();
    let answer = claim("mine", "s").ok().json();
    assert_eq!(answer["response"], "SUCCESS");
    assert_eq!(answer["device"]["customerId"]["id"], server.customer().as_str());
    // Without a body: claims without a secret key.
    let bare = server.as_user(CUSTOMER, "POST", "/api/customer/device/mine/claim", &Value::Null);
    assert_eq!((bare.status, &bare.json()["response"]), (400, &json!("CLAIMED")));
    let again = claim("mine", "s");
    assert_eq!((again.status, &again.json()["response"]), (400, &json!("CLAIMED")));
    server
        .as_user(CUSTOMER, "DELETE", "/api/customer/device/mine/claim", &Value::Null)
        .ok();
    let device = server.get("/api/tenant/devices?deviceName=mine").ok().json();
    assert_eq!(device["customerId"]["id"], "13814000-1dd2-11b2-8080-808080808080");
}

#[test]
fn profile_names_keys_and_assets_by_id_are_listed() {
    let server = Server::start();
    let device = server.device("d");
    let profile = server.get(&format!("/api/device/{device}")).ok().json()["deviceProfileId"]["id"].clone();
    let profile = profile.as_str().unwrap();
    let asset = server
        .post("/api/asset", json!({"name": "a", "type": "building"}))
        .ok()
        .json();
    for (path, name) in [("deviceProfile", "default"), ("assetProfile", "building")] {
        let names = server.get(&format!("/api/{path}/names")).ok().json();
        let names = names.as_array().unwrap();
        assert!(
            names
                .iter()
                .any(|one| one["name"] == name && one["id"]["id"].is_string()),
            "{names:?}"
        );
    }
    let info = format!(
        "/api/assetProfileInfo/{}",
        asset["assetProfileId"]["id"].as_str().unwrap()
    );
    assert_eq!(server.get(&info).ok().json()["name"], "building");
    let found = server.get(&format!(
        "/api/assets?assetIds={},784f394c-42b6-11ea-983c-b7beff2784f9",
        id(&asset)
    ));
    assert_eq!(found.ok().json().as_array().unwrap().len(), 1);
    refused(&server.get("/api/assets?assetIds=x"), 400, 31);
    let at = format!("/api/plugins/telemetry/DEVICE/{device}");
    server
        .post(&format!("{at}/timeseries/ANY"), json!({"b": 1, "a": 2}))
        .ok();
    server.post(&format!("{at}/SHARED_SCOPE"), json!({"z": 1})).ok();
    let keys = format!("/api/deviceProfile/devices/keys/timeseries?deviceProfileId={profile}");
    server.wait_for(&keys, |keys| *keys == json!(["a", "b"]));
    let attributes = server.get("/api/deviceProfile/devices/keys/attributes").ok().json();
    assert!(attributes.as_array().unwrap().contains(&json!("z")), "{attributes}");
    refused(
        &server.get("/api/deviceProfile/devices/keys/timeseries?deviceProfileId=x"),
        400,
        31,
    );
    assert_eq!(
        server
            .get(&format!("/api/devices/count/FIRMWARE/{profile}"))
            .ok()
            .json(),
        1
    );
    refused(&server.get(&format!("/api/devices/count/HARDWARE/{profile}")), 400, 31);
    for path in [&keys, &format!("/api/devices/count/FIRMWARE/{profile}")] {
        refused(&server.as_user(CUSTOMER, "GET", path, &Value::Null), 403, 20);
    }
}
