//! Gateways speak for devices.

use std::sync::Arc;

use platform::Said;
use platform::model::{Device, Scope};
use platform::repository::RelationSelection;
use serde_json::{Value as Json, json};
use timeseries::Value;

use crate::fixture::{NOW, fixture};

#[test]
fn gateways_speak_for_devices() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    f.say(gateway, 0, Said::GatewayConnect(br#"{"device":"A","type":"thermo"}"#));
    f.say(
        gateway,
        1,
        Said::GatewayTelemetry(br#"{"A":[{"ts":1700000000005,"values":{"t":1}}],"B":[{"t":2}]}"#),
    );
    f.say(gateway, 2, Said::GatewayAttributes(br#"{"A":{"model":"x"}}"#));
    let find = |name: &str| {
        f.platform
            .entities()
            .find_by_name::<Device>(f.tenant.0, name)
            .unwrap()
            .unwrap()
    };
    let (a, b) = (find("A"), find("B"));
    assert_eq!((a.kind.as_str(), b.kind.as_str()), ("thermo", "default"));
    assert_eq!(f.points(a.id.unwrap().entity(), "t"), [(5, Value::Long(1))]);
    assert_eq!(f.points(b.id.unwrap().entity(), "t"), [(1, Value::Long(2))]);
    let plain = f.device("P", "", Json::Null);
    let refused = f.say(plain, 4, Said::GatewayTelemetry(br#"{"A":[{"t":1}]}"#));
    assert!(refused[0].contains("no gateway"), "{refused:?}");
}

#[test]
fn devices_are_connected_from_the_first_word_of_their_gateway_until_it_leaves_them_or_goes() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    let said = [
        (Said::Connected, 0, vec![]),
        (Said::GatewayTelemetry(br#"{"A":[{"t":1}]}"#), 10, vec!["behind A"]),
        (
            Said::GatewayAttributes(br#"{"A":{"m":1},"B":{"m":1}}"#),
            20,
            vec!["behind B"],
        ),
        (Said::GatewayConnect(br#"{"device":"A"}"#), 30, vec![]),
        (Said::GatewayConnect(br#"{"device":"C"}"#), 40, vec!["behind C"]),
        (Said::GatewayDisconnect(br#"{"device":"B"}"#), 50, vec![]),
        (Said::GatewayDisconnect(br#"{"device":"Nobody"}"#), 60, vec![]),
        (Said::Disconnected, 70, vec![]),
        // Leaving one twice is no news.
        (Said::GatewayDisconnect(br#"{"device":"B"}"#), 80, vec![]),
    ];
    for (said, after_ms, behind) in said {
        let mut seen = f.say(gateway, after_ms, said);
        seen.retain(|seen| seen.starts_with("behind"));
        assert_eq!(seen, behind, "{said:?}");
    }
    let find = |name: &str| f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
    for (name, connect, disconnect) in [("A", 10, 70), ("B", 20, 50), ("C", 40, 70)] {
        let device = find(name).unwrap().id.unwrap().entity();
        let keys = ["lastConnectTime", "lastDisconnectTime"];
        let found = f.platform.attributes(device, Scope::ServerScope, Some(&keys)).unwrap();
        let found: Vec<_> = found.into_iter().map(|found| found.value).collect();
        assert_eq!(found, [connect, disconnect].map(|at| Value::Long(NOW + at)), "{name}");
    }
    assert!(find("Nobody").is_none());
    // A deleted gateway takes its devices along.
    f.say(gateway, 90, Said::GatewayConnect(br#"{"device":"A"}"#));
    f.platform.entities().delete_device(gateway).unwrap();
    f.say(gateway, 100, Said::Disconnected);
    let a = f.platform.entities().find_by_name::<Device>(f.tenant.0, "A").unwrap();
    let found = f.platform.attributes(
        a.unwrap().id.unwrap().entity(),
        Scope::ServerScope,
        Some(&["lastDisconnectTime"]),
    );
    assert_eq!(found.unwrap()[0].value, Value::Long(NOW + 100));
}

#[test]
fn a_gateway_that_overwrites_activity_times_is_heard_for_its_devices() {
    let mut f = fixture();
    let overwrites = f.device("G", "", json!({"gateway": true, "overwriteActivityTime": true}));
    let plain = f.device("P", "", json!({"gateway": true}));
    f.say(overwrites, 0, Said::GatewayConnect(br#"{"device":"A"}"#));
    f.say(plain, 0, Said::GatewayConnect(br#"{"device":"B"}"#));
    let heard = [(overwrites, NOW + 10), (plain, NOW + 10)];
    f.platform.alive(&heard, NOW + 10, &mut f.seen).unwrap();
    for (name, after_ms) in [("A", 10), ("B", 0)] {
        let device = f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
        let device = device.unwrap().id.unwrap().entity();
        let found = f
            .platform
            .attributes(device, Scope::ServerScope, Some(&["lastActivityTime"]));
        assert_eq!(found.unwrap()[0].value, Value::Long(NOW + after_ms), "{name}");
    }
}

#[test]
fn what_a_gateway_says_badly_of_one_device_keeps_nothing_from_the_others() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    let said = f.say(
        gateway,
        0,
        Said::GatewayTelemetry(br#"{"A":[{"t":1}],"B":{"t":1},"C":[{"t":1},7],"D":[{"t":4}]}"#),
    );
    assert!(said.iter().any(|said| said.contains("device \"B\"")), "{said:?}");
    let said = f.say(
        gateway,
        1,
        Said::GatewayAttributes(br#"{"A":{"m":1},"B":5,"D":{"m":4}}"#),
    );
    assert!(said.iter().any(|said| said.contains("device \"B\"")), "{said:?}");
    let find = |name: &str| f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
    for (name, value) in [("A", 1), ("D", 4)] {
        let device = find(name).unwrap().id.unwrap().entity();
        assert_eq!(f.points(device, "t"), [(0, Value::Long(value))], "{name}");
        let attributes = f.platform.attributes(device, Scope::ClientScope, None).unwrap();
        assert_eq!(attributes[0].value, Value::Long(value), "{name}");
    }
    assert!(find("B").is_none() && find("C").is_none());
}

#[test]
fn a_gateway_means_the_device_that_has_the_name_now() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    f.say(gateway, 0, Said::GatewayTelemetry(br#"{"A":[{"t":1}]}"#));
    let entities = Arc::clone(f.platform.entities());
    let tenant = f.tenant.0;
    let find = |name: &str| entities.find_by_name::<Device>(tenant, name).unwrap().unwrap();
    let mut first = find("A");
    first.name = "Renamed".to_owned();
    let first = entities.save_device(first, None, NOW).unwrap().id.unwrap().entity();
    f.say(gateway, 1, Said::GatewayTelemetry(br#"{"A":[{"t":2}]}"#));
    let second = find("A").id.unwrap().entity();
    assert_eq!(f.points(first, "t"), [(0, Value::Long(1))]);
    assert_eq!(f.points(second, "t"), [(1, Value::Long(2))]);
    f.say(gateway, 2, Said::GatewayTelemetry(br#"{"A":[{"t":3}]}"#));
    assert_eq!(f.points(first, "t").len() + f.points(second, "t").len(), 3);
}

#[test]
fn many_new_devices_of_one_message_are_made_together() {
    const COUNT: usize = 200;
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    f.say(gateway, 0, Said::GatewayTelemetry(br#"{"first":[{"t":0}]}"#));
    let body: serde_json::Map<String, Json> = (0..COUNT)
        .map(|n| (format!("D{n:03}"), json!([{"t": n}])))
        .chain([("".to_owned(), json!([{"t": 1}]))])
        .collect();
    let body = Json::from(body).to_string();
    let before = f.commits();
    let said = f.say(gateway, 1, Said::GatewayTelemetry(body.as_bytes()));
    assert!(f.commits() - before < 5, "{}", f.commits() - before);
    assert!(said.iter().any(|said| said.contains("no name of a device")), "{said:?}");
    let entities = f.platform.entities();
    for n in 0..COUNT {
        let device = entities
            .find_by_name::<Device>(f.tenant.0, &format!("D{n:03}"))
            .unwrap();
        let id = device.unwrap().id.unwrap();
        assert_eq!(f.points(id.entity(), "t"), [(1, Value::Long(n as i64))]);
        assert!(entities.device_credentials(id).is_ok());
    }
    let behind = entities.repository().relations(&RelationSelection {
        from: Some(gateway.entity()),
        ..RelationSelection::default()
    });
    assert_eq!(behind.unwrap().len(), COUNT + 1);
}

#[test]
fn a_gateway_makes_as_many_devices_as_its_tenant_may_have() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    let mut profile = f.platform.entities().default_tenant_profile(NOW).unwrap();
    profile.profile_data["configuration"]["maxDevices"] = json!(3);
    f.platform.entities().save_tenant_profile(profile, NOW).unwrap();
    let said = f.say(
        gateway,
        0,
        Said::GatewayTelemetry(br#"{"A":[{"t":1}],"B":[{"t":2}],"C":[{"t":3}]}"#),
    );
    let find = |name: &str| f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
    for (name, value) in [("A", 1), ("B", 2)] {
        let device = find(name).unwrap().id.unwrap().entity();
        assert_eq!(f.points(device, "t"), [(0, Value::Long(value))], "{name}");
    }
    assert!(find("C").is_none());
    assert!(said.iter().any(|said| said.contains("device \"C\"")), "{said:?}");
}
