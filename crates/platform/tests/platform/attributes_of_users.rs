//! Attributes changed by users: their visibility, and the events to chains.

use std::sync::Arc;

use platform::decode::{DecodeLimits, attributes};
use platform::ids::EntityId;
use platform::model::{Asset, AttributeScope, Customer, DeviceProfile};
use platform::repository::RepositoryChange;
use platform::{AttributesChange, IngestMessage, PlatformOptions};
use serde_json::{Value as Json, json};
use timeseries::{LogPosition, PointValue};

use super::event_chain;
use super::fixture::{Fixture, NOW, fixture, fixture_with};

fn save(f: &mut Fixture, entity: EntityId, body: &str) -> Vec<String> {
    let values = attributes(body.as_bytes(), &DecodeLimits::default()).unwrap();
    let saved = f
        .platform
        .save_attributes(entity, AttributeScope::ServerScope, &values, NOW, &mut f.seen);
    saved.map(|()| f.seen.take()).unwrap()
}

fn delete(f: &mut Fixture, entity: EntityId, key: &str) -> Vec<String> {
    let keys = [key.to_owned()];
    let deleted = f
        .platform
        .delete_attributes(entity, AttributeScope::ServerScope, &keys, NOW, &mut f.seen);
    deleted.map(|()| f.seen.take()).unwrap()
}

/// A saved attribute of the same name, for example from a migration, does not hide the device's activity.
#[test]
fn activity_attributes_are_returned_once() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let stored = r#"{"active":false,"lastActivityTime":1,"lastDisconnectTime":2,"a":3}"#;
    save(&mut f, device.entity(), stored);
    f.publish(device, 5, IngestMessage::Alive);
    let shown = |keys: Option<&[&str]>| -> Vec<(String, PointValue)> {
        let found = f
            .platform
            .attributes(device.entity(), AttributeScope::ServerScope, keys)
            .unwrap();
        let found = found.into_iter();
        found.map(|attribute| (attribute.key, attribute.value)).collect()
    };
    let active = ("active".to_owned(), PointValue::Bool(true));
    assert_eq!(shown(Some(&["active"])), std::slice::from_ref(&active));
    let expected = [
        ("a".to_owned(), PointValue::Long(3)),
        active,
        ("inactivityAlarmTime".to_owned(), PointValue::Long(0)),
        ("lastActivityTime".to_owned(), PointValue::Long(NOW + 5)),
        // A saved attribute without a known activity value is returned.
        ("lastDisconnectTime".to_owned(), PointValue::Long(2)),
    ];
    assert_eq!(shown(None), expected);
}

#[test]
fn root_chain_gets_attribute_events_of_other_entities() {
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
    let values = attributes(br#"{"a":2}"#, &DecodeLimits::default()).unwrap();
    let change = (AttributeScope::ServerScope, AttributesChange::Save(&values));
    let at = (LogPosition(1), NOW);
    f.platform
        .change_attributes(asset, change, at, NOW, &mut f.seen)
        .unwrap();
    assert_eq!(f.seen.take(), ["SERVER_SCOPE a -", "log Attributes Updated"]);
}

/// The threshold `limit` falls back to 20.
#[test]
fn alarm_of_a_deleted_attribute_passes_the_chain() {
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
    let outcome = f.publish(device, 1, IngestMessage::Telemetry(br#"{"batteryLevel":10}"#));
    assert!(
        !outcome.iter().any(|outcome| outcome.starts_with("Alarm")),
        "{outcome:?}"
    );
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

fn with_keys_max(keys_max: usize) -> Fixture {
    fixture_with(PlatformOptions {
        keys_max,
        ..PlatformOptions::default()
    })
}

const REFUSED: &str = "2 attributes, the first of them 'c', were not stored: the device has 2 attributes, and the limit \
                       is 2 (platform.max_keys)";

#[test]
fn user_and_chain_see_which_attributes_are_over_the_limit() {
    let mut f = with_keys_max(2);
    event_chain(&f);
    let device = f.device("D", "", Json::Null).entity();
    save(&mut f, device, r#"{"a":1,"b":1}"#);
    f.seen.1.clear();
    let change = |f: &mut Fixture, position: u64, body: &str| {
        let values = attributes(body.as_bytes(), &DecodeLimits::default()).unwrap();
        let change = (AttributeScope::ServerScope, AttributesChange::Save(&values));
        let at = (LogPosition(position), NOW);
        let refused = f
            .platform
            .change_attributes(device, change, at, NOW, &mut f.seen)
            .unwrap();
        (refused.map(|refused| refused.to_string()), f.seen.take())
    };
    let (refused, seen) = change(&mut f, 1, r#"{"b":2,"c":3,"d":4}"#);
    assert_eq!(refused.as_deref(), Some(REFUSED));
    let expected = ["refused Attribute c", "SERVER_SCOPE b -", "log Attributes Updated"];
    assert_eq!(seen, expected);
    let event = &f.seen.1[0];
    assert!(event.contains(r#"{"b":2}"#) && !event.contains(r#""c""#), "{event}");
    let (refused, seen) = change(&mut f, 2, r#"{"e":5}"#);
    assert!(refused.is_some_and(|refused| refused.starts_with("the attribute 'e' was not stored: ")));
    assert_eq!(seen, ["refused Attribute e"], "no event without stored attributes");
    let values = attributes(br#"{"b":3,"c":3,"d":3}"#, &DecodeLimits::default()).unwrap();
    let saved = f
        .platform
        .save_attributes(device, AttributeScope::ServerScope, &values, NOW, &mut f.seen);
    assert_eq!(saved.unwrap_err().to_string(), REFUSED);
    let stored = f
        .platform
        .attributes(device, AttributeScope::ServerScope, Some(&["b", "c"]));
    let stored: Vec<_> = stored
        .unwrap()
        .into_iter()
        .map(|stored| (stored.key, stored.value))
        .collect();
    assert_eq!(stored, [("b".to_owned(), PointValue::Long(3))]);
}

#[test]
fn message_with_attributes_over_the_limit_fails() {
    let mut f = with_keys_max(2);
    let device = f.device("D", "", Json::Null);
    f.publish(device, 1, IngestMessage::Attributes(br#"{"a":1,"b":1}"#));
    let seen = f.publish(device, 2, IngestMessage::Attributes(br#"{"b":2,"c":3,"d":4}"#));
    let failed = seen.iter().find(|seen| seen.starts_with("failed "));
    assert!(failed.is_some_and(|failed| failed.ends_with(REFUSED)), "{seen:?}");
    assert!(seen.iter().any(|seen| seen == "CLIENT_SCOPE b -"), "{seen:?}");
}

#[test]
fn attributes_of_a_deleted_entity_are_not_counted() {
    let mut f = with_keys_max(2);
    let asset = Asset {
        tenant_id: f.tenant,
        name: "A".to_owned(),
        kind: "building".to_owned(),
        ..Asset::default()
    };
    let entities = Arc::clone(f.platform.entities());
    let asset = entities.save_asset(asset, NOW).unwrap().id.unwrap();
    save(&mut f, asset.entity(), r#"{"a":1,"b":1}"#);
    // From now on the attributes are counted exactly.
    save(&mut f, asset.entity(), r#"{"a":2}"#);
    let deleted = RepositoryChange::Delete(asset.entity());
    entities.repository().apply(&[deleted]).unwrap();
    f.platform.finish_deleted(&[asset.0]).unwrap();
    // A message that waited for an answer may still store attributes.
    save(&mut f, asset.entity(), r#"{"c":1,"d":1}"#);
}
