//! Bulk import of devices from CSV.

use serde_json::{Value, json};

use super::server::{CUSTOMER, Server, refused};

const PATH: &str = "/api/device/bulk_import";

fn columns(kinds: &[(&str, &str)]) -> Value {
    let column = |(kind, key): &(&str, &str)| json!({"type": kind, "key": if key.is_empty() { Value::Null } else { json!(key) }});
    kinds.iter().map(column).collect()
}

fn device(server: &Server, name: &str) -> Value {
    server
        .get(&format!("/api/tenant/devices?deviceName={name}"))
        .ok()
        .json()
}

fn credentials(server: &Server, device: &Value) -> Value {
    let id = super::server::id(device);
    server.get(&format!("/api/device/{id}/credentials")).ok().json()
}

#[test]
fn csv_lines_become_devices() {
    let server = Server::start();
    let file = "name;type;label;note;gw;token;room;limit;t;ignored\r\n\
                A;meter;\"first; \"\"one\"\"\";cellar;true;token-a;7;true;21.5;x\r\n\
                \r\n\
                B;;;;;;;;;\r\n";
    let columns = columns(&[
        ("NAME", ""),
        ("TYPE", ""),
        ("LABEL", ""),
        ("DESCRIPTION", ""),
        ("IS_GATEWAY", ""),
        ("ACCESS_TOKEN", ""),
        ("SHARED_ATTRIBUTE", "room"),
        ("SERVER_ATTRIBUTE", "limit"),
        ("TIMESERIES", "t"),
        ("ROUTING_KEY", ""),
    ]);
    let body =
        json!({"file": file, "mapping": {"columns": columns, "delimiter": ";", "update": false, "header": true}});
    let answer = server.post(PATH, body).ok().json();
    assert_eq!(
        answer,
        json!({"created": 2, "updated": 0, "errors": 0, "errorsList": []})
    );

    let a = device(&server, "A");
    assert_eq!((&a["type"], &a["label"]), (&json!("meter"), &json!("first; \"one\"")));
    assert_eq!(a["additionalInfo"], json!({"description": "cellar", "gateway": true}));
    assert_eq!(credentials(&server, &a)["credentialsId"], "token-a");
    let id = super::server::id(&a);
    let values = format!("/api/plugins/telemetry/DEVICE/{id}/values");
    server.wait_for(
        &format!("{values}/timeseries?keys=t&useStrictDataTypes=true"),
        |found| found["t"][0]["value"] == 21.5,
    );
    server.wait_for(&format!("{values}/attributes/SHARED_SCOPE"), |found| {
        found[0]["value"] == 7
    });
    server.wait_for(&format!("{values}/attributes/SERVER_SCOPE?keys=limit"), |found| {
        found[0]["value"] == true
    });
    // A device without values gets a random token and the default profile.
    let b = device(&server, "B");
    assert_eq!((&b["type"], &b["label"]), (&json!("default"), &Value::Null));
    assert_eq!(credentials(&server, &b)["credentialsId"].as_str().unwrap().len(), 20);
}

#[test]
fn values_of_existing_devices_change_only_with_update() {
    let server = Server::start();
    let id = server.device("A");
    let before = device(&server, "A");
    let token = credentials(&server, &before)["credentialsId"].clone();
    let kinds = columns(&[
        ("NAME", ""),
        ("LABEL", ""),
        ("SERVER_ATTRIBUTE", "n"),
        ("SERVER_ATTRIBUTE", "m"),
        ("MQTT_USER_NAME", ""),
        ("MQTT_PASSWORD", ""),
    ]);
    let import = |file: &str, update: bool| {
        let body =
            json!({"file": file, "mapping": {"columns": kinds, "delimiter": ",", "update": update, "header": false}});
        let answer = server.post(PATH, body).ok().json();
        assert_eq!(
            answer,
            json!({"created": 0, "updated": 1, "errors": 0, "errorsList": []})
        );
    };
    let attributes = format!("/api/plugins/telemetry/DEVICE/{id}/values/attributes/SERVER_SCOPE");

    import("A,one,1", false);
    assert_eq!(device(&server, "A")["label"], "one");
    assert_eq!(
        credentials(&server, &before)["credentialsId"],
        token,
        "no column of credentials has a value"
    );
    import("A,,,2,user,secret", true);
    server.wait_for(&format!("{attributes}?keys=m"), |found| found[0]["value"] == 2);
    // An attribute that was saved before would already be visible.
    assert_eq!(server.get(&format!("{attributes}?keys=n")).ok().json(), json!([]));
    let after = device(&server, "A");
    assert_eq!(
        (&after["label"], &after["type"]),
        (&json!("one"), &before["type"]),
        "empty values change nothing"
    );
    let changed = credentials(&server, &after);
    assert_eq!(
        (&changed["credentialsType"], &changed["credentialsId"]),
        (&json!("MQTT_BASIC"), &json!("user"))
    );
}

#[test]
fn invalid_lines_are_reported_with_their_numbers() {
    let server = Server::start();
    server.device("taken");
    let kinds = columns(&[
        ("NAME", ""),
        ("ACCESS_TOKEN", ""),
        ("LWM2M_CLIENT_ENDPOINT", ""),
        ("SERVER_ATTRIBUTE", "n"),
    ]);
    let file = "name,token,endpoint,n\nA,same\nB,same\n,x\nC,,urn:imei\nD,y,,1,2\nE\ntaken,same";
    let body = json!({"file": file, "mapping": {"columns": kinds, "delimiter": ",", "update": true, "header": true}});
    let answer = server.post(PATH, body.clone()).ok().json();
    let errors: Vec<&str> = answer["errorsList"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect();
    assert_eq!(
        errors,
        [
            "Line 3: Specified credentials are already registered!",
            "Line 4: Device name should be specified!",
            "Line 5: LwM2M credentials are not supported: this server has no LwM2M transport",
            "Line 6: more values than the 4 columns",
            "Line 8: Specified credentials are already registered!",
        ]
    );
    assert_eq!(
        (&answer["created"], &answer["updated"], &answer["errors"]),
        (&json!(2), &json!(0), &json!(5))
    );
    for missing in ["B", "C", "D"] {
        refused(
            &server.get(&format!("/api/tenant/devices?deviceName={missing}")),
            404,
            32,
        );
    }
    refused(&server.as_user(CUSTOMER, "POST", PATH, &body), 403, 20);
    refused(&server.post(PATH, json!({"file": "A"})), 400, 31);
    let mapping = json!({"columns": columns(&[("NAME", ""), ("LABLE", "")])});
    let message = refused(
        &server.post(PATH, json!({"file": "B,x\n", "mapping": mapping})),
        400,
        31,
    );
    assert!(message.contains("LABLE"), "{message}");
    refused(
        &server.post(
            PATH,
            json!({"file": "A", "mapping": {"columns": [], "delimiter": "\n"}}),
        ),
        400,
        31,
    );
}

#[test]
fn attributes_over_the_limit_are_errors() {
    let mut options = devices::DevicesOptions::default();
    options.platform.keys_max = 1;
    let server = Server::start_with(options);
    let columns = columns(&[("NAME", ""), ("SERVER_ATTRIBUTE", "a"), ("SERVER_ATTRIBUTE", "b")]);
    let body = json!({"file": "A,1,2\nB,1,", "mapping": {"columns": columns, "delimiter": ",", "update": false, "header": false}});
    let answer = server.post(PATH, body).ok().json();
    let reason = |key: &str| {
        format!(
            "the attribute '{key}' was not stored: the device has 1 attributes, and the limit is 1 (platform.max_keys)"
        )
    };
    let expected = json!({"created": 2, "updated": 0, "errors": 1, "errorsList": [format!("Line 1: {}", reason("b"))]});
    assert_eq!(answer, expected);
    let id = super::server::id(&device(&server, "A"));
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/SERVER_SCOPE");
    let answer = server.post(&path, json!({"a": 2, "c": 3}));
    assert_eq!(refused(&answer, 400, 31), reason("c"));
    let stored = format!("/api/plugins/telemetry/DEVICE/{id}/values/attributes/SERVER_SCOPE?keys=a");
    assert_eq!(server.get(&stored).ok().json()[0]["value"], 2);
}
