//! Tenant profiles: permissions, validation, and their limits over REST.

use serde_json::{Value, json};

use super::server::{CUSTOMER, SYSADMIN, Server, TENANT, id, refused};
use super::socket::Socket;

/// Sets a profile with these limits for the demo tenant, and returns the profile.
fn limit(server: &Server, configuration: Value) -> Value {
    let mut configuration = configuration;
    configuration["type"] = json!("DEFAULT");
    let profile = json!({"name": "Limited", "profileData": {"configuration": configuration}});
    let profile = server
        .as_user(SYSADMIN, "POST", "/api/tenantProfile", &profile)
        .ok()
        .json();
    let tenants = server.as_user(SYSADMIN, "GET", "/api/tenants?pageSize=10&page=0", &Value::Null);
    let mut tenant = tenants.ok().json()["data"][0].clone();
    tenant["tenantProfileId"] = profile["id"].clone();
    server.as_user(SYSADMIN, "POST", "/api/tenant", &tenant).ok();
    profile
}

#[test]
fn profiles_are_created_changed_listed_and_deleted() {
    let server = Server::start();
    let as_admin = |method, target: &str, body: Value| server.as_user(SYSADMIN, method, target, &body);
    let default = as_admin("GET", "/api/tenantProfileInfo/default", Value::Null)
        .ok()
        .json();
    assert_eq!(default["name"], "Default");
    assert_eq!(default["id"]["entityType"], "TENANT_PROFILE");
    let whole = as_admin("GET", &format!("/api/tenantProfile/{}", id(&default)), Value::Null);
    let whole = whole.ok().json();
    assert_eq!(whole["default"], true);
    assert_eq!(whole["profileData"]["configuration"]["type"], "DEFAULT");
    assert_eq!(whole["profileData"]["configuration"]["maxDevices"], 0);

    let configuration =
        json!({"type": "DEFAULT", "maxDevices": 7, "transportDeviceMsgRateLimit": "100:1,2000:60", "unknown": [1]});
    let profile = json!({"name": "Small", "profileData": {"configuration": configuration, "queueConfiguration": null}});
    let made = as_admin("POST", "/api/tenantProfile", profile).ok().json();
    assert_eq!(made["default"], false);
    assert_eq!(made["profileData"]["configuration"], configuration, "as it came");
    let path = format!("/api/tenantProfile/{}", id(&made));
    let mut changed = made.clone();
    changed["profileData"]["configuration"]["maxDevices"] = json!(8);
    let changed = as_admin("POST", "/api/tenantProfile", changed).ok().json();
    assert_eq!(as_admin("GET", &path, Value::Null).ok().json(), changed);
    let stale = as_admin("POST", "/api/tenantProfile", made.clone());
    refused(&stale, 409, 35);

    let names = |path: &str| {
        let page = as_admin("GET", &format!("{path}?pageSize=10&page=0"), Value::Null)
            .ok()
            .json();
        let mut names: Vec<String> = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|profile| profile["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("/api/tenantProfiles"), ["Default", "Small"]);
    assert_eq!(names("/api/tenantProfileInfos"), ["Default", "Small"]);
    let info = as_admin("GET", &format!("/api/tenantProfileInfo/{}", id(&made)), Value::Null);
    assert_eq!(info.ok().json(), json!({"id": made["id"], "name": "Small"}));

    let now_default = as_admin("POST", &format!("{path}/default"), Value::Null).ok().json();
    assert_eq!(now_default["default"], true);
    assert_eq!(
        as_admin("GET", "/api/tenantProfileInfo/default", Value::Null)
            .ok()
            .json()["name"],
        "Small"
    );
    let message = refused(&as_admin("DELETE", &path, Value::Null), 400, 31);
    assert_eq!(message, "Deletion of Default Tenant Profile is prohibited!");
    let old = format!("/api/tenantProfile/{}", id(&default));
    let message = refused(&as_admin("DELETE", &old, Value::Null), 400, 31);
    assert_eq!(
        message,
        "The tenant profile referenced by the tenants cannot be deleted!"
    );
    as_admin("POST", &format!("{old}/default"), Value::Null).ok();
    as_admin("DELETE", &path, Value::Null).ok();
    refused(&as_admin("GET", &path, Value::Null), 404, 32);
}

#[test]
fn invalid_profiles_are_rejected() {
    let server = Server::start();
    let save = |profile: Value| server.as_user(SYSADMIN, "POST", "/api/tenantProfile", &profile);
    let with = |key: &str, value: Value| json!({"name": "P", "profileData": {"configuration": {"type": "DEFAULT", key: value}}});
    for (profile, says) in [
        (json!({"name": ""}), "Tenant profile name should be specified!"),
        (
            json!({"name": "Default"}),
            "Tenant profile with such name already exists!",
        ),
        (
            json!({"name": "P", "default": true}),
            "Another default tenant profile is present!",
        ),
        (
            with("transportDeviceMsgRateLimit", json!("fast")),
            "transportDeviceMsgRateLimit: \"fast\": expected capacity:seconds",
        ),
        (with("maxDevices", json!(-1)), "maxDevices: -1: expected a whole number"),
        (
            with("warnThreshold", json!(7)),
            "warnThreshold: 7: expected a number from 0 to 1",
        ),
    ] {
        let message = refused(&save(profile.clone()), 400, 31);
        assert!(message.contains(says), "{profile}: {message}");
    }
    let tenant = json!({"title": "T", "tenantProfileId": {"entityType": "TENANT_PROFILE", "id": "784f394c-42b6-11ec-8000-000000000000"}});
    let message = refused(&server.as_user(SYSADMIN, "POST", "/api/tenant", &tenant), 400, 31);
    assert_eq!(message, "Tenant is referencing to non-existent tenant profile!");
}

#[test]
fn profile_limits_requests_and_websockets() {
    let server = Server::start();
    // The users log in first, because a login does not count for a tenant.
    for user in [TENANT, CUSTOMER, SYSADMIN] {
        server.token(user);
    }
    limit(
        &server,
        json!({"tenantServerRestLimitsConfiguration": "5:600", "customerServerRestLimitsConfiguration": "2:600",
            "maxWsSessionsPerRegularUser": 1}),
    );
    let ask = |user: &str| server.as_user(user, "GET", "/api/auth/user", &Value::Null);
    ask(CUSTOMER).ok();
    ask(CUSTOMER).ok();
    let message = refused(&ask(CUSTOMER), 429, 33);
    assert_eq!(message, "Too many requests for current customer!");
    let message = loop {
        let answer = ask(TENANT);
        if answer.status != 200 {
            break refused(&answer, 429, 33);
        }
    };
    assert_eq!(message, "Too many requests for current tenant!");
    ask(SYSADMIN).ok();

    let target = format!("/api/ws/plugins/telemetry?token={}", server.token(TENANT));
    let first = Socket::open(&server, &target).unwrap();
    assert!(Socket::open(&server, &target).is_err());
    drop(first);
    let other = format!("/api/ws/plugins/telemetry?token={}", server.token(CUSTOMER));
    Socket::open(&server, &other).unwrap();
}

#[test]
fn only_system_administrators_access_profiles() {
    let server = Server::start();
    let default = server.as_user(SYSADMIN, "GET", "/api/tenantProfileInfo/default", &Value::Null);
    let id = id(&default.ok().json());
    for (method, path) in [
        ("POST", "/api/tenantProfile".to_owned()),
        ("GET", format!("/api/tenantProfile/{id}")),
        ("DELETE", format!("/api/tenantProfile/{id}")),
        ("POST", format!("/api/tenantProfile/{id}/default")),
        ("GET", format!("/api/tenantProfileInfo/{id}")),
        ("GET", "/api/tenantProfileInfo/default".to_owned()),
        ("GET", "/api/tenantProfiles?pageSize=1&page=0".to_owned()),
        ("GET", "/api/tenantProfileInfos?pageSize=1&page=0".to_owned()),
    ] {
        let body = if path == "/api/tenantProfile" {
            json!({"name": "Mine"})
        } else {
            Value::Null
        };
        for user in [TENANT, CUSTOMER] {
            refused(&server.as_user(user, method, &path, &body), 403, 20);
        }
        refused(&server.send(method, &path, None, ""), 401, 10);
    }
}

#[test]
fn profile_limits_the_number_of_entities() {
    let server = Server::start();
    let count = |list: &str| {
        server.get(&format!("{list}?pageSize=1&page=0")).ok().json()["totalElements"]
            .as_u64()
            .unwrap()
    };
    // Limits of one more entity than exists.
    let lists = [
        ("maxDevices", "/api/tenant/devices", "/api/device", "name", "Devices"),
        ("maxAssets", "/api/tenant/assets", "/api/asset", "name", "Assets"),
        ("maxCustomers", "/api/customers", "/api/customer", "title", "Customers"),
        (
            "maxDashboards",
            "/api/tenant/dashboards",
            "/api/dashboard",
            "title",
            "Dashboards",
        ),
        (
            "maxRuleChains",
            "/api/ruleChains",
            "/api/ruleChain",
            "name",
            "Rule chains",
        ),
    ];
    let mut configuration = json!({});
    for (key, list, ..) in lists {
        configuration[key] = json!(count(list) + 1);
    }
    let users = server.get("/api/usage").ok().json()["users"].as_u64().unwrap();
    configuration["maxUsers"] = json!(users + 1);
    limit(&server, configuration);
    for (_, _, path, name, what) in lists {
        let first = server.post(path, json!({name: "one"})).ok().json();
        let over = server.post(path, json!({name: "two"}));
        assert_eq!(refused(&over, 403, 41), format!("{what} limit reached"));
        // Existing entities can still be changed.
        server.post(path, first).ok();
    }
    let user = |email: &str| json!({"email": email, "authority": "TENANT_ADMIN"});
    let save = |email: &str| server.post("/api/user?sendActivationMail=false", user(email));
    save("one@example.com").ok();
    assert_eq!(refused(&save("two@example.com"), 403, 41), "Users limit reached");
    let usage = server.get("/api/usage").ok().json();
    assert_eq!(usage["devices"], usage["maxDevices"]);
    assert_eq!(usage["users"], usage["maxUsers"]);
    // A device that provisions itself also counts.
    let tenant = server.as_user(SYSADMIN, "GET", "/api/tenantInfos?pageSize=10&page=0", &Value::Null);
    assert_eq!(tenant.ok().json()["data"][0]["tenantProfileName"], "Limited");
}

#[test]
fn device_above_its_http_rate_gets_429() {
    let server = Server::start();
    server.post("/api/device?accessToken=TOKEN", json!({"name": "D"})).ok();
    server.post("/api/device?accessToken=OTHER", json!({"name": "E"})).ok();
    let say = |token: &str, values: Value| {
        let path = format!("/api/v1/{token}/telemetry");
        server.send("POST", &path, None, &values.to_string()).status
    };
    let mut profile = limit(
        &server,
        json!({"transportDeviceTelemetryMsgRateLimit": "3:3600", "transportDeviceTelemetryDataPointsRateLimit": "4:3600"}),
    );
    assert_eq!(say("TOKEN", json!({"a": 1})), 200);
    assert_eq!(
        say("TOKEN", json!({"a": 1, "b": 2, "c": 3, "d": 4})),
        429,
        "one value too many"
    );
    assert_eq!(say("TOKEN", json!([{"a": 1}, {"b": 2, "c": 3}])), 200);
    assert_eq!(say("TOKEN", json!({"a": 1})), 429);
    assert_eq!(say("OTHER", json!({"a": 1})), 200, "each device has its own");
    // Other requests have a separate limit, which is not set.
    let attributes = server.send("GET", "/api/v1/TOKEN/attributes", None, "");
    assert_eq!(attributes.status, 200);
    profile["profileData"]["configuration"] = json!({"type": "DEFAULT"});
    profile["version"] = Value::Null;
    server.as_user(SYSADMIN, "POST", "/api/tenantProfile", &profile).ok();
    assert_eq!(say("TOKEN", json!({"a": 1})), 200, "at once");
}
