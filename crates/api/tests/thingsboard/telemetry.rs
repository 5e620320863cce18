//! Telemetry and attributes: saving, reading in all formats, aggregation, deletion, validation.

use std::time::Duration;

use platform::ids::Uuid;
use serde_json::{Value, json};

use super::server::{Server, TENANT, refused};

/// A time at the start of an aggregation interval.
const T: i64 = 1_700_000_000_000;

struct Device {
    server: Server,
    path: String,
}

impl Device {
    fn new() -> Device {
        let server = Server::start();
        let path = format!("/api/plugins/telemetry/DEVICE/{}", server.device("d"));
        Device { server, path }
    }

    fn save(&self, body: Value) {
        self.server.post(&format!("{}/timeseries/ANY", self.path), body).ok();
    }

    fn get(&self, rest: &str) -> Value {
        self.server.get(&format!("{}/{rest}", self.path)).ok().json()
    }

    #[track_caller]
    fn wait_for(&self, rest: &str, expected: &Value) {
        self.server
            .wait_for(&format!("{}/{rest}", self.path), |found| found == expected);
    }
}

#[test]
fn values_are_texts_without_strict_data_types() {
    let device = Device::new();
    device
        .save(json!({"ts": T, "values": {"b": true, "l": 42, "d": 1.0, "s": "word", "n": "22.5", "j": {"a": [1, 2]}}}));
    device.wait_for("keys/timeseries", &json!(["b", "d", "j", "l", "n", "s"]));
    let point = |value: Value| json!([{"ts": T, "value": value}]);
    let texts = json!({"b": point(json!("true")), "l": point(json!("42")), "d": point(json!("1.0")), "s": point(json!("word")),
        "n": point(json!("22.5")), "j": point(json!("{\"a\":[1,2]}"))});
    assert_eq!(device.get("values/timeseries"), texts);
    let typed = json!({"b": point(json!(true)), "l": point(json!(42)), "d": point(json!(1.0)), "s": point(json!("word")),
        "n": point(json!(22.5)), "j": point(json!({"a": [1, 2]}))});
    assert_eq!(device.get("values/timeseries?useStrictDataTypes=true"), typed);
    assert_eq!(device.get("values/timeseries?useStrictDataTypes=True"), typed);
    let missing = device.get("values/timeseries?keys=l,nothing");
    assert_eq!(
        (&missing["l"][0]["value"], &missing["nothing"][0]["value"]),
        (&json!("42"), &Value::Null)
    );
    assert!(missing["nothing"][0]["ts"].as_i64().unwrap() > T);
}

#[test]
fn history_by_range_order_limit_and_interval() {
    let device = Device::new();
    let points: Vec<Value> = (0..10)
        .map(|n| json!({"ts": T + n * 1000, "values": {"v": n}}))
        .collect();
    device.save(json!(points));
    let point = |ts: i64, value: &str| json!({"ts": ts, "value": value});
    let range = format!("values/timeseries?keys=v&startTs={T}&endTs={}", T + 9000);
    device.wait_for(
        &format!("{range}&limit=2"),
        &json!({"v": [point(T + 8000, "8"), point(T + 7000, "7")]}),
    );
    let cases = [
        (
            "limit=2&orderBy=ASC",
            json!({"v": [point(T, "0"), point(T + 1000, "1")]}),
        ),
        ("agg=NONE&limit=1&interval=5000", json!({"v": [point(T + 8000, "8")]})),
        (
            "agg=SUM&interval=5000&orderBy=ASC",
            json!({"v": [point(T + 2500, "10"), point(T + 7000, "26")]}),
        ),
        ("agg=AVG&interval=9000", json!({"v": [point(T + 4500, "4.0")]})),
        ("agg=MIN&interval=9000", json!({"v": [point(T + 4500, "0")]})),
        ("agg=MAX&interval=9000", json!({"v": [point(T + 4500, "8")]})),
        ("agg=COUNT&interval=9000", json!({"v": [point(T + 4500, "9")]})),
        (
            "agg=COUNT&intervalType=MONTH&timeZone=UTC",
            json!({"v": [point(T + 4500, "9")]}),
        ),
        (
            "limit=1&useStrictDataTypes=true",
            json!({"v": [{"ts": T + 8000, "value": 8}]}),
        ),
    ];
    for (query, expected) in cases {
        assert_eq!(device.get(&format!("{range}&{query}")), expected, "{query}");
    }
    assert_eq!(
        device.get(&format!("values/timeseries?keys=v&startTs=1&endTs={}", T - 1)),
        json!({})
    );
    for query in [
        "startTs=1",
        "endTs=1",
        "startTs=1&endTs=2&agg=MEDIAN",
        "startTs=1&endTs=2&limit=-1",
        "startTs=a&endTs=2",
        "startTs=0&endTs=1700000000000&agg=SUM&interval=1",
        "startTs=1&endTs=9&agg=SUM&intervalType=WEEK&timeZone=Mars",
    ] {
        refused(
            &device
                .server
                .get(&format!("{}/values/timeseries?keys=v&{query}", device.path)),
            400,
            31,
        );
    }
}

#[test]
fn telemetry_is_deleted_as_requested() {
    let device = Device::new();
    device.save(json!([{"ts": T, "values": {"a": 1, "b": 1}}, {"ts": T + 1000, "values": {"a": 2, "b": 2}}]));
    device.wait_for("keys/timeseries", &json!(["a", "b"]));
    let delete = |query: &str| {
        device
            .server
            .delete(&format!("{}/timeseries/delete?{query}", device.path))
    };
    refused(&delete("keys=a"), 400, 31);
    refused(&delete("keys=&deleteAllDataForKeys=true"), 400, 31);
    let end = T + 2000;
    delete(&format!(
        "keys=a&startTs={}&endTs={end}&rewriteLatestIfDeleted=true",
        T + 500
    ))
    .ok();
    assert_eq!(
        device.get("values/timeseries?keys=a"),
        json!({"a": [{"ts": T, "value": "1"}]})
    );
    delete(&format!("keys=b&startTs={}&endTs={end}&deleteLatest=false", T + 500)).ok();
    assert_eq!(
        device.get("values/timeseries?keys=b"),
        json!({"b": [{"ts": T + 1000, "value": "2"}]})
    );
    delete("keys=b&deleteAllDataForKeys=true").ok();
    assert_eq!(device.get("keys/timeseries"), json!(["a"]));
}

#[test]
fn deleted_device_leaves_no_values() {
    let server = Server::start();
    let id = server.device("d");
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/timeseries/ANY");
    server.post(&path, json!({"ts": T, "values": {"a": 1}})).ok();
    // Values that were acknowledged just before may not be stored yet.
    for n in 0..100 {
        server
            .post(&path, json!({"ts": T + n, "values": {"a": n, "b": n}}))
            .ok();
    }
    server.delete(&format!("/api/device/{id}")).ok();
    let entities = server.devices.entities();
    let store = server.devices.platform().store();
    let entity: timeseries::TelemetryEntityId = Uuid::parse(&id).unwrap().into();
    while !entities.deleted().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(store.keys(entity).unwrap(), Vec::<Box<str>>::new());
}

#[test]
fn deleted_values_do_not_reappear() {
    let device = Device::new();
    for n in 0..20 {
        device.save(json!({"ts": T + n, "values": {"a": n}}));
        let path = format!("{}/timeseries/delete?keys=a&deleteAllDataForKeys=true", device.path);
        device.server.delete(&path).ok();
        assert_eq!(device.get("keys/timeseries"), json!([]));
    }
}

/// Values of devices are converted, values of users are stored as sent: a text with leading zeros is not a number.
#[test]
fn texts_of_users_stay_texts() {
    let device = Device::new();
    let path = format!("{}/attributes/SERVER_SCOPE", device.path);
    device
        .server
        .post(&path, json!({"version": "1.10", "code": "007"}))
        .ok();
    let found = device.get("values/attributes/SERVER_SCOPE?keys=version,code");
    let values: Vec<&Value> = found.as_array().unwrap().iter().map(|found| &found["value"]).collect();
    assert_eq!(values, ["007", "1.10"]);
}

#[test]
fn attributes_are_saved_by_scope() {
    let device = Device::new();
    let save = |scope: &str, body: Value| device.server.post(&format!("{}/attributes/{scope}", device.path), body);
    save("SERVER_SCOPE", json!({"limit": 5, "inactivityTimeout": 1000})).ok();
    save("SHARED_SCOPE", json!({"name": "x", "on": true})).ok();
    device
        .server
        .post(&format!("{}/SHARED_SCOPE", device.path), json!({"older": 1}))
        .ok();
    let id = device.path.rsplit('/').next().unwrap().to_owned();
    let by_device = format!("/api/plugins/telemetry/{id}/SERVER_SCOPE");
    device.server.post(&by_device, json!({"direct": 1.5})).ok();
    let values = |rest: &str| -> Value {
        let mut found = device.get(rest);
        for value in found.as_array_mut().unwrap() {
            assert!(value["lastUpdateTs"].as_i64().unwrap() > T);
            *value = json!([value["key"], value["value"]]);
        }
        found
    };
    assert_eq!(
        values("values/attributes/SHARED_SCOPE"),
        json!([["name", "x"], ["older", 1], ["on", true]])
    );
    assert_eq!(
        values("values/attributes/SERVER_SCOPE?keys=limit,direct,none"),
        json!([["direct", 1.5], ["limit", 5]])
    );
    assert_eq!(
        values("values/attributes?keys=limit,name"),
        json!([["name", "x"], ["limit", 5]])
    );
    assert_eq!(
        device.get("keys/attributes/SHARED_SCOPE"),
        json!(["name", "older", "on"])
    );
    assert!(
        device
            .get("keys/attributes")
            .as_array()
            .unwrap()
            .contains(&json!("direct"))
    );
    device
        .server
        .delete(&format!("{}/SHARED_SCOPE?keys=name,on", device.path))
        .ok();
    device.server.delete(&format!("{by_device}?keys=direct")).ok();
    assert_eq!(device.get("keys/attributes/SHARED_SCOPE"), json!(["older"]));
    assert_eq!(
        refused(&save("CLIENT_SCOPE", json!({"a": 1})), 400, 31),
        "Invalid scope: CLIENT_SCOPE"
    );
    assert_eq!(refused(&save("ANY", json!({"a": 1})), 400, 31), "Invalid scope: ANY");
    assert_eq!(
        refused(&save("SERVER_SCOPE", json!({})), 400, 31),
        "No attributes data found in request body!"
    );
    refused(&save("SERVER_SCOPE", json!([1])), 400, 31);
}

#[test]
fn invalid_values_are_rejected() {
    let device = Device::new();
    let save = |rest: &str, body: &str| {
        let authorization = format!("Bearer {}", device.server.token(TENANT));
        device
            .server
            .send("POST", &format!("{}/{rest}", device.path), Some(&authorization), body)
    };
    assert_eq!(
        refused(&save("timeseries/ANY", "{}"), 400, 31),
        "No timeseries data found in request body!"
    );
    for body in ["[1]", "{", "{\"ts\":\"soon\",\"values\":{\"a\":1}}"] {
        refused(&save("timeseries/ANY", body), 400, 31);
    }
    save("timeseries/ANY/0", "{\"a\":1}").ok();
    save("timeseries/ANY/60", "{\"a\":1}").ok();
    for bad in ["-1", "4294967296", "soon", "1.5"] {
        refused(&save(&format!("timeseries/ANY/{bad}"), "{\"a\":1}"), 400, 31);
    }
}
