//! Attributes that users change: what everyone sees of them, and which chains are told.

use platform::decode::{Limits, attributes};
use platform::ids::EntityId;
use platform::model::{Asset, Customer, DeviceProfile, Scope};
use platform::{AttributesChange, Said};
use serde_json::{Value as Json, json};
use timeseries::{Position, Value};

use crate::event_chain;
use crate::fixture::{Fixture, NOW, fixture};

fn save(f: &mut Fixture, entity: EntityId, body: &str) -> Vec<String> {
    let values = attributes(body.as_bytes(), &Limits::default()).unwrap();
    let saved = f
        .platform
        .save_attributes(entity, Scope::ServerScope, &values, NOW, &mut f.seen);
    saved.map(|()| f.seen.take()).unwrap()
}

fn delete(f: &mut Fixture, entity: EntityId, key: &str) -> Vec<String> {
    let keys = [key.to_owned()];
    let deleted = f
        .platform
        .delete_attributes(entity, Scope::ServerScope, &keys, NOW, &mut f.seen);
    deleted.map(|()| f.seen.take()).unwrap()
}

/// A copy that somebody has saved, as migrations do, says nothing of the device.
#[test]
fn what_is_known_of_a_devices_activity_is_shown_once() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let stored = r#"{"active":false,"lastActivityTime":1,"lastDisconnectTime":2,"a":3}"#;
    save(&mut f, device.entity(), stored);
    f.say(device, 5, Said::Alive);
    let shown = |keys: Option<&[&str]>| -> Vec<(String, Value)> {
        let found = f
            .platform
            .attributes(device.entity(), Scope::ServerScope, keys)
            .unwrap();
        let found = found.into_iter();
        found.map(|attribute| (attribute.key, attribute.value)).collect()
    };
    let active = ("active".to_owned(), Value::Bool(true));
    assert_eq!(shown(Some(&["active"])), std::slice::from_ref(&active));
    let expected = [
        ("a".to_owned(), Value::Long(3)),
        active,
        ("inactivityAlarmTime".to_owned(), Value::Long(0)),
        ("lastActivityTime".to_owned(), Value::Long(NOW + 5)),
        // Of which nothing else is known.
        ("lastDisconnectTime".to_owned(), Value::Long(2)),
    ];
    assert_eq!(shown(None), expected);
}

#[test]
fn the_root_chain_is_told_of_attributes_of_what_is_no_device() {
    let mut f = fixture();
    event_chain(&f);
    let entities = f.platform.entities();
    let asset = Asset {
        tenant_id: f.tenant,
        name: "A".to_owned(),
        kind: "building".to_owned(),
        ..Asset::default()
    };
    let asset = entities.save_asset(asset, NOW).unwrap().id.unwrap().entity();
    let customer = Customer {
        tenant_id: f.tenant,
        title: "C".to_owned(),
        ..Customer::default()
    };
    let customer = entities.save_customer(customer, NOW).unwrap().id.unwrap().entity();
    for entity in [asset, customer, f.tenant.entity()] {
        f.seen.1.clear();
        let saved = save(&mut f, entity, r#"{"a":1}"#);
        assert_eq!(saved, ["SERVER_SCOPE a -", "log Attributes Updated"], "{entity:?}");
        assert!(f.seen.1[0].contains(r#"{"a":1}"#), "{:?}", f.seen.1);
        assert!(f.seen.1[0].contains(r#""scope":"SERVER_SCOPE""#), "{:?}", f.seen.1);
        let deleted = delete(&mut f, entity, "a");
        assert_eq!(deleted, ["SERVER_SCOPE  -a", "log Attributes Deleted"], "{entity:?}");
    }
    let values = attributes(br#"{"a":2}"#, &Limits::default()).unwrap();
    let change = (Scope::ServerScope, AttributesChange::Save(&values));
    let at = (Position(1), NOW);
    f.platform
        .change_attributes(asset, change, at, NOW, &mut f.seen)
        .unwrap();
    assert_eq!(f.seen.take(), ["SERVER_SCOPE a -", "log Attributes Updated"]);
}

/// The threshold of `limit` is 20 again.
#[test]
fn an_alarm_that_a_deleted_attribute_brings_about_goes_along_the_chain() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "SIMPLE"}));
    let entities = f.platform.entities();
    let profile = entities.find_by_name::<DeviceProfile>(f.tenant.0, "meter").unwrap();
    let mut profile = profile.unwrap();
    profile.profile_data["alarms"][0]["createRules"]["CRITICAL"]["condition"]["condition"][0]["predicate"]["value"]["dynamicValue"] =
        json!({"sourceType": "CURRENT_DEVICE", "sourceAttribute": "limit"});
    let id = profile.id.unwrap();
    entities.save_device_profile(profile, NOW).unwrap();
    f.platform.reload_profile(id);
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    f.set_root_chain(json!({"firstNodeIndex": 0, "nodes": [
        {"type": class("profile.TbDeviceProfileNode"), "name": "rules", "configuration": {}},
        {"type": class("action.TbLogNode"), "name": "made", "configuration": {}},
        {"type": class("action.TbLogNode"), "name": "went on", "configuration": {}},
    ], "connections": [{"fromIndex": 0, "toIndex": 1, "type": "Alarm Created"}, {"fromIndex": 0, "toIndex": 2, "type": "Success"}]}));
    save(&mut f, device.entity(), r#"{"limit":5}"#);
    let said = f.say(device, 1, Said::Telemetry(br#"{"batteryLevel":10}"#));
    assert!(!said.iter().any(|said| said.starts_with("Alarm")), "{said:?}");
    let deleted = delete(&mut f, device.entity(), "limit");
    assert_eq!(
        deleted,
        [
            "SERVER_SCOPE  -limit",
            "Alarm Created CRITICAL",
            "log made",
            "log went on"
        ]
    );
    assert_eq!(f.alarms().len(), 1);
}
