//! Gateways and the devices behind them.

use std::sync::Arc;

use platform::IngestMessage;
use platform::model::{AttributeScope, Device};
use platform::repository::RelationSelection;
use serde_json::{Value as Json, json};
use timeseries::PointValue;

use super::fixture::{NOW, fixture};

#[test]
fn gateways_send_data_of_devices() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    f.publish(
        gateway,
        0,
        IngestMessage::GatewayConnect(br#"{"device":"A","type":"thermo"}"#),
    );
    f.publish(
        gateway,
        1,
        IngestMessage::GatewayTelemetry(br#"{"A":[{"ts":1700000000005,"values":{"t":1}}],"B":[{"t":2}]}"#),
    );
    f.publish(gateway, 2, IngestMessage::GatewayAttributes(br#"{"A":{"model":"x"}}"#));
    let find = |name: &str| {
        f.platform
            .entities()
            .find_by_name::<Device>(f.tenant.0, name)
            .unwrap()
            .unwrap()
    };
    let (a, b) = (find("A"), find("B"));
    assert_eq!((a.kind.as_str(), b.kind.as_str()), ("thermo", "default"));
    assert_eq!(f.points(a.id.unwrap().entity(), "t"), [(5, PointValue::Long(1))]);
    assert_eq!(f.points(b.id.unwrap().entity(), "t"), [(1, PointValue::Long(2))]);
    let plain = f.device("P", "", Json::Null);
    let refused = f.publish(plain, 4, IngestMessage::GatewayTelemetry(br#"{"A":[{"t":1}]}"#));
    assert!(refused[0].contains("not a gateway"), "{refused:?}");
}

#[test]
fn gateway_connects_and_disconnects_its_devices() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    let messages = [
        (IngestMessage::Connected, 0, vec![]),
        (
            IngestMessage::GatewayTelemetry(br#"{"A":[{"t":1}]}"#),
            10,
            vec!["behind A"],
        ),
        (
            IngestMessage::GatewayAttributes(br#"{"A":{"m":1},"B":{"m":1}}"#),
            20,
            vec!["behind B"],
        ),
        (IngestMessage::GatewayConnect(br#"{"device":"A"}"#), 30, vec![]),
        (
            IngestMessage::GatewayConnect(br#"{"device":"C"}"#),
            40,
            vec!["behind C"],
        ),
        (IngestMessage::GatewayDisconnect(br#"{"device":"B"}"#), 50, vec![]),
        (IngestMessage::GatewayDisconnect(br#"{"device":"Nobody"}"#), 60, vec![]),
        (IngestMessage::Disconnected, 70, vec![]),
        // Disconnecting a device twice has no effect.
        (IngestMessage::GatewayDisconnect(br#"{"device":"B"}"#), 80, vec![]),
    ];
    for (message, after_ms, behind) in messages {
        let mut seen = f.publish(gateway, after_ms, message);
        seen.retain(|seen| seen.starts_with("behind"));
        assert_eq!(seen, behind, "{message:?}");
    }
    let find = |name: &str| f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
    for (name, connect, disconnect) in [("A", 10, 70), ("B", 20, 50), ("C", 40, 70)] {
        let device = find(name).unwrap().id.unwrap().entity();
        let keys = ["lastConnectTime", "lastDisconnectTime"];
        let found = f
            .platform
            .attributes(device, AttributeScope::ServerScope, Some(&keys))
            .unwrap();
        let found: Vec<_> = found.into_iter().map(|found| found.value).collect();
        assert_eq!(
            found,
            [connect, disconnect].map(|at| PointValue::Long(NOW + at)),
            "{name}"
        );
    }
    assert!(find("Nobody").is_none());
    // Deleting a gateway disconnects its devices.
    f.publish(gateway, 90, IngestMessage::GatewayConnect(br#"{"device":"A"}"#));
    f.platform.entities().delete_device(gateway).unwrap();
    f.publish(gateway, 100, IngestMessage::Disconnected);
    let a = f.platform.entities().find_by_name::<Device>(f.tenant.0, "A").unwrap();
    let found = f.platform.attributes(
        a.unwrap().id.unwrap().entity(),
        AttributeScope::ServerScope,
        Some(&["lastDisconnectTime"]),
    );
    assert_eq!(found.unwrap()[0].value, PointValue::Long(NOW + 100));
}

#[test]
fn gateway_activity_can_count_for_its_devices() {
    let mut f = fixture();
    let overwrites = f.device("G", "", json!({"gateway": true, "overwriteActivityTime": true}));
    let plain = f.device("P", "", json!({"gateway": true}));
    f.publish(overwrites, 0, IngestMessage::GatewayConnect(br#"{"device":"A"}"#));
    f.publish(plain, 0, IngestMessage::GatewayConnect(br#"{"device":"B"}"#));
    let active = [(overwrites, NOW + 10), (plain, NOW + 10)];
    f.platform.record_active(&active, NOW + 10, &mut f.seen).unwrap();
    for (name, after_ms) in [("A", 10), ("B", 0)] {
        let device = f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
        let device = device.unwrap().id.unwrap().entity();
        let found = f
            .platform
            .attributes(device, AttributeScope::ServerScope, Some(&["lastActivityTime"]));
        assert_eq!(found.unwrap()[0].value, PointValue::Long(NOW + after_ms), "{name}");
    }
}

#[test]
fn invalid_part_of_a_gateway_message_affects_one_device() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    let outcome = f.publish(
        gateway,
        0,
        IngestMessage::GatewayTelemetry(br#"{"A":[{"t":1}],"B":{"t":1},"C":[{"t":1},7],"D":[{"t":4}]}"#),
    );
    assert!(
        outcome.iter().any(|outcome| outcome.contains("device \"B\"")),
        "{outcome:?}"
    );
    let outcome = f.publish(
        gateway,
        1,
        IngestMessage::GatewayAttributes(br#"{"A":{"m":1},"B":5,"D":{"m":4}}"#),
    );
    assert!(
        outcome.iter().any(|outcome| outcome.contains("device \"B\"")),
        "{outcome:?}"
    );
    let find = |name: &str| f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
    for (name, value) in [("A", 1), ("D", 4)] {
        let device = find(name).unwrap().id.unwrap().entity();
        assert_eq!(f.points(device, "t"), [(0, PointValue::Long(value))], "{name}");
        let attributes = f
            .platform
            .attributes(device, AttributeScope::ClientScope, None)
            .unwrap();
        assert_eq!(attributes[0].value, PointValue::Long(value), "{name}");
    }
    assert!(find("B").is_none() && find("C").is_none());
}

#[test]
fn gateway_names_refer_to_current_devices() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    f.publish(gateway, 0, IngestMessage::GatewayTelemetry(br#"{"A":[{"t":1}]}"#));
    let entities = Arc::clone(f.platform.entities());
    let tenant = f.tenant.0;
    let find = |name: &str| entities.find_by_name::<Device>(tenant, name).unwrap().unwrap();
    let mut first = find("A");
    first.name = "Renamed".to_owned();
    let first = entities.save_device(first, None, NOW).unwrap().id.unwrap().entity();
    f.publish(gateway, 1, IngestMessage::GatewayTelemetry(br#"{"A":[{"t":2}]}"#));
    let second = find("A").id.unwrap().entity();
    assert_eq!(f.points(first, "t"), [(0, PointValue::Long(1))]);
    assert_eq!(f.points(second, "t"), [(1, PointValue::Long(2))]);
    f.publish(gateway, 2, IngestMessage::GatewayTelemetry(br#"{"A":[{"t":3}]}"#));
    assert_eq!(f.points(first, "t").len() + f.points(second, "t").len(), 3);
}

#[test]
fn new_devices_of_a_message_are_created_together() {
    const COUNT: usize = 200;
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    f.publish(gateway, 0, IngestMessage::GatewayTelemetry(br#"{"first":[{"t":0}]}"#));
    let body: serde_json::Map<String, Json> = (0..COUNT)
        .map(|n| (format!("D{n:03}"), json!([{"t": n}])))
        .chain([("".to_owned(), json!([{"t": 1}]))])
        .collect();
    let body = Json::from(body).to_string();
    let before = f.commits();
    let outcome = f.publish(gateway, 1, IngestMessage::GatewayTelemetry(body.as_bytes()));
    assert!(f.commits() - before < 5, "{}", f.commits() - before);
    assert!(
        outcome.iter().any(|outcome| outcome.contains("the name is invalid")),
        "{outcome:?}"
    );
    let entities = f.platform.entities();
    for n in 0..COUNT {
        let device = entities
            .find_by_name::<Device>(f.tenant.0, &format!("D{n:03}"))
            .unwrap();
        let id = device.unwrap().id.unwrap();
        assert_eq!(f.points(id.entity(), "t"), [(1, PointValue::Long(n as i64))]);
        assert!(entities.device_credentials(id).is_ok());
    }
    let behind = entities.repository().relations(&RelationSelection {
        from: Some(gateway.entity()),
        ..RelationSelection::default()
    });
    assert_eq!(behind.unwrap().len(), COUNT + 1);
}

#[test]
fn gateway_creates_devices_up_to_the_tenants_limit() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    let mut profile = f.platform.entities().default_tenant_profile(NOW).unwrap();
    profile.profile_data["configuration"]["maxDevices"] = json!(3);
    f.platform.entities().save_tenant_profile(profile, NOW).unwrap();
    let outcome = f.publish(
        gateway,
        0,
        IngestMessage::GatewayTelemetry(br#"{"A":[{"t":1}],"B":[{"t":2}],"C":[{"t":3}]}"#),
    );
    let find = |name: &str| f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
    for (name, value) in [("A", 1), ("B", 2)] {
        let device = find(name).unwrap().id.unwrap().entity();
        assert_eq!(f.points(device, "t"), [(0, PointValue::Long(value))], "{name}");
    }
    assert!(find("C").is_none());
    assert!(
        outcome.iter().any(|outcome| outcome.contains("device \"C\"")),
        "{outcome:?}"
    );
}
