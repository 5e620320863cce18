//! The platform with the real stores: device messages, stored results, and restarts.

#![allow(clippy::unwrap_used, reason = "tests")]

mod alarm_nodes;
mod attributes_of_users;
mod between;
mod clock;
pub mod fixture;
mod gateways;
mod ota;
mod replays;

use fixture::{Fixture, NOW, fixture};
use platform::chain::{Export, RootShape, root_metadata};
use platform::decode::{DecodeLimits, Telemetry, attributes};
use platform::ids::{DeviceId, EntityId, EntityType, UserId, Uuid};
use platform::model::{Alarm, AttributeScope, Customer, Device, DeviceProfile, RuleChain};
use platform::repository::AlarmSelection;
use platform::{AlarmChange, ApiState, AttributesChange, IngestInput, IngestMessage, NoOutlet, PageLink, UsageCounter};
use serde_json::{Value as Json, json};
use timeseries::{LogPosition, PointValue};

/// Sets a root chain that logs each message type by its connection.
fn event_chain(f: &Fixture) {
    const LABELS: [&str; 6] = [
        "Activity Event",
        "Inactivity Event",
        "Connect Event",
        "Disconnect Event",
        "Attributes Updated",
        "Attributes Deleted",
    ];
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    let mut nodes = vec![json!({"type": class("filter.TbMsgTypeSwitchNode"), "name": "switch"})];
    nodes.extend(LABELS.map(|label| json!({"type": class("action.TbLogNode"), "name": label})));
    let connections = LABELS.iter().enumerate();
    let connections = connections.map(|(index, label)| json!({"fromIndex": 0, "toIndex": index + 1, "type": label}));
    let metadata = json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections.collect::<Vec<_>>()});
    f.set_root_chain(metadata);
}

#[test]
fn telemetry_is_stored_shown_and_counted() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let seen = f.publish(
        device,
        1,
        IngestMessage::Telemetry(br#"[{"ts":1700000000000,"values":{"a":1,"b":"x"}},{"a":2.5}]"#),
    );
    assert_eq!(seen, ["telemetry 0 a,b", "telemetry 1 a"]);
    assert_eq!(
        f.points(device.entity(), "a"),
        [(0, PointValue::Long(1)), (1, PointValue::Double(2.5))]
    );
    let usage = |counter| f.platform.usage(f.tenant, counter);
    assert_eq!(
        (
            usage(UsageCounter::TransportMessages),
            usage(UsageCounter::TransportPoints),
            usage(UsageCounter::StoredPoints)
        ),
        (1, 3, 3)
    );
    // Three nodes for each of two timestamps, and two for the activity event.
    assert_eq!(usage(UsageCounter::RuleNodes), 8);
    assert_eq!(f.platform.stats().points_total, 3);
}

#[test]
fn history_and_latest_values_are_saved_separately() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    let (every, skip) = (json!({"type": "ON_EVERY_MESSAGE"}), json!({"type": "SKIP"}));
    let save = |history: &Json, latest: &Json| {
        json!({"firstNodeIndex": 0, "connections": [], "nodes": [{"type": class("telemetry.TbMsgTimeseriesNode"), "name": "save",
            "configuration": {"defaultTTL": 0, "processingSettings": {"type": "ADVANCED", "timeseries": history, "latest": latest,
                "webSockets": every, "calculatedFields": skip}}}]})
    };
    let latest = |f: &Fixture| f.platform.store().latest(device.0.into(), &["a"]).unwrap().remove(0);
    f.set_root_chain(save(&skip, &every));
    f.publish(device, 1, IngestMessage::Telemetry(br#"{"a":1}"#));
    assert_eq!(latest(&f).unwrap().value, PointValue::Long(1));
    assert_eq!(f.points(device.entity(), "a"), []);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::StoredPoints), 0);
    f.set_root_chain(save(&every, &skip));
    f.publish(device, 2, IngestMessage::Telemetry(br#"{"a":2}"#));
    f.platform.checkpoint().unwrap();
    f.platform.store().flush().unwrap();
    f.restart();
    assert_eq!(latest(&f).unwrap().value, PointValue::Long(1));
    assert_eq!(f.points(device.entity(), "a"), [(2, PointValue::Long(2))]);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::StoredPoints), 1);
}

#[test]
fn attributes_of_devices_and_users_are_stored() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    f.publish(device, 1, IngestMessage::Attributes(br#"{"model":"x"}"#));
    let values = attributes(br#"{"target":21}"#, &DecodeLimits::default()).unwrap();
    f.platform
        .save_attributes(device.entity(), AttributeScope::SharedScope, &values, NOW, &mut f.seen)
        .unwrap();
    assert_eq!(f.seen.take(), ["SHARED_SCOPE target -", "to device 1 -0"]);
    let read = |scope, keys: &[&str]| f.platform.attributes(device.entity(), scope, Some(keys)).unwrap();
    assert_eq!(
        read(AttributeScope::ClientScope, &["model"])[0].value,
        PointValue::String("x".into())
    );
    assert_eq!(
        read(AttributeScope::SharedScope, &["target"])[0].value,
        PointValue::Long(21)
    );
    assert_eq!(
        read(AttributeScope::ServerScope, &["active"])[0].value,
        PointValue::Bool(true)
    );
    f.platform
        .delete_attributes(
            device.entity(),
            AttributeScope::SharedScope,
            &["target".to_owned()],
            NOW,
            &mut f.seen,
        )
        .unwrap();
    assert_eq!(f.seen.take(), ["SHARED_SCOPE  -target", "to device 0 -1"]);
    assert!(
        f.platform
            .attributes(device.entity(), AttributeScope::SharedScope, None)
            .unwrap()
            .is_empty()
    );
}

/// Changes of users in the log: a replay does not repeat them.
#[test]
fn logged_attribute_changes_apply_once() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    event_chain(&f);
    f.publish(device, 1, IngestMessage::Alive);
    let change = |f: &mut Fixture, position: u64, body: &str| {
        let values = attributes(body.as_bytes(), &DecodeLimits::default()).unwrap();
        let keys = ["old".to_owned()];
        let change = match body {
            "{}" => AttributesChange::Delete(&keys),
            _ => AttributesChange::Save(&values),
        };
        let at = (LogPosition(position), NOW + 2);
        let changed = f.platform.change_attributes(
            device.entity(),
            (AttributeScope::SharedScope, change),
            at,
            NOW + 2,
            &mut f.seen,
        );
        changed.map(|_| f.seen.take()).unwrap()
    };
    let expected = ["SHARED_SCOPE target -", "to device 1 -0", "log Attributes Updated"];
    assert_eq!(change(&mut f, 10, r#"{"target":1}"#), expected);
    assert_eq!(change(&mut f, 11, r#"{"target":2}"#), expected);
    let deleted = ["SHARED_SCOPE  -old", "to device 0 -1", "log Attributes Deleted"];
    assert_eq!(change(&mut f, 13, "{}"), deleted);
    change(&mut f, 14, r#"{"old":3}"#);
    f.restart();
    assert!(change(&mut f, 10, r#"{"target":1}"#).is_empty() && change(&mut f, 13, "{}").is_empty());
    let found = f
        .platform
        .attributes(device.entity(), AttributeScope::SharedScope, None)
        .unwrap();
    let found: Vec<PointValue> = found.into_iter().map(|attribute| attribute.value).collect();
    assert_eq!(found, [PointValue::Long(3), PointValue::Long(2)]);
    f.platform.entities().delete_device(device).unwrap();
    assert!(change(&mut f, 15, r#"{"target":4}"#).is_empty());
}

/// Work after a checkpoint belongs to the change that led there. It is stored with that change, and is a replay if
/// the change is.
#[test]
fn attribute_change_continues_once_after_a_checkpoint() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    f.set_root_chain(json!({"firstNodeIndex": 0, "nodes": [
        {"type": class("flow.TbCheckpointNode"), "name": "checkpoint", "queueName": "Main", "configuration": {"queueName": "Main"}},
        {"type": class("action.TbLogNode"), "name": "behind", "configuration": {}},
    ], "connections": [{"fromIndex": 0, "toIndex": 1, "type": "Success"}]}));
    let change = |f: &mut Fixture| {
        let values = attributes(br#"{"target":1}"#, &DecodeLimits::default()).unwrap();
        let change = (AttributeScope::ServerScope, AttributesChange::Save(&values));
        let at = (LogPosition(1), NOW);
        f.platform
            .change_attributes(device.entity(), change, at, NOW, &mut f.seen)
            .unwrap();
        f.seen.take()
    };
    assert_eq!(change(&mut f), ["SERVER_SCOPE target -", "log behind"]);
    f.restart();
    assert!(change(&mut f).is_empty());
    f.platform.tick(LogPosition(2), NOW + 1000, &mut f.seen).unwrap();
    assert!(f.seen.take().is_empty());
}

/// Changes of an entity that was deleted before they are processed are not stored.
#[test]
fn attributes_of_deleted_entities_are_not_stored() {
    let mut f = fixture();
    let values = attributes(br#"{"a":1}"#, &DecodeLimits::default()).unwrap();
    let never_there = platform::ids::Uuid([7; 16]);
    let stored_by_themselves = EntityType::ALL.iter().filter(|kind| **kind != EntityType::RuleNode);
    for (kind, position) in stored_by_themselves.zip(1..) {
        let change = (AttributeScope::ServerScope, AttributesChange::Save(&values));
        let (entity, at) = (EntityId::new(*kind, never_there), (LogPosition(position), NOW));
        f.platform
            .change_attributes(entity, change, at, NOW, &mut f.seen)
            .unwrap();
        let found = f
            .platform
            .attributes(entity, AttributeScope::ServerScope, None)
            .unwrap();
        assert!(found.is_empty(), "{kind:?}");
    }
    let tenant = f.tenant.entity();
    let change = (AttributeScope::ServerScope, AttributesChange::Save(&values));
    let at = (LogPosition(100), NOW);
    f.platform
        .change_attributes(tenant, change, at, NOW, &mut f.seen)
        .unwrap();
    assert_eq!(
        f.platform
            .attributes(tenant, AttributeScope::ServerScope, None)
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn alarms_are_created_updated_and_cleared() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "SIMPLE"}));
    f.publish(device, 0, IngestMessage::Alive);
    let mut level = |after_ms: i64, level: i64| {
        let body = format!("{{\"batteryLevel\":{level}}}");
        let seen = f.publish(device, after_ms, IngestMessage::Telemetry(body.as_bytes()));
        seen.into_iter()
            .filter(|seen| seen.starts_with("Alarm"))
            .collect::<Vec<_>>()
    };
    assert!(level(1, 50).is_empty());
    assert_eq!(level(2, 10), ["Alarm Created CRITICAL"]);
    assert_eq!(level(3, 9), ["Alarm Updated CRITICAL"]);
    assert_eq!(level(4, 60), ["Alarm Cleared CRITICAL"]);
    assert_eq!(level(5, 5), ["Alarm Created CRITICAL"]);
    let alarms = f.alarms();
    assert_eq!(
        alarms.iter().map(|alarm| alarm.cleared).collect::<Vec<_>>(),
        [false, true]
    );
    let of_tenant = AlarmSelection {
        entity: Some(f.tenant.0),
        ..AlarmSelection::default()
    };
    let link = PageLink::new(10, 0);
    assert_eq!(
        f.platform
            .entities()
            .repository()
            .alarms(&of_tenant, &link)
            .unwrap()
            .total_elements,
        2
    );
    let id = alarms[0].id.unwrap();
    let acknowledged = f
        .platform
        .change_alarm(id, AlarmChange::Acknowledge, NOW + 6, &mut NoOutlet)
        .unwrap();
    assert!(acknowledged.acknowledged);
    f.platform
        .change_alarm(id, AlarmChange::Clear, NOW + 7, &mut NoOutlet)
        .unwrap();
    assert!(f.alarms()[0].cleared && f.alarms()[0].acknowledged);
    let again = f.publish(device, 8, IngestMessage::Telemetry(br#"{"batteryLevel":4}"#));
    assert!(again.contains(&"Alarm Created CRITICAL".to_owned()), "{again:?}");
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::CreatedAlarms), 3);
}

#[test]
fn user_changes_of_an_alarm_survive_rule_updates() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "SIMPLE"}));
    let low = IngestMessage::Telemetry(br#"{"batteryLevel":9}"#);
    assert_eq!(f.publish(device, 1, low)[0], "Alarm Created CRITICAL");
    let (id, user) = (f.alarms()[0].id.unwrap(), UserId(Uuid([9; 16])));
    f.platform
        .change_alarm(id, AlarmChange::Assign(Some(user)), NOW + 2, &mut NoOutlet)
        .unwrap();
    assert_eq!(f.publish(device, 3, low)[0], "Alarm Updated CRITICAL");
    let stored = f.alarms().remove(0);
    assert_eq!((stored.assignee_id, stored.assign_ts), (Some(user), NOW + 2));
    let wanted = Alarm {
        cleared: true,
        assignee_id: None,
        ..stored
    };
    f.platform.save_alarm(wanted, NOW + 4, &mut f.seen).unwrap();
    assert_eq!(f.seen.take(), ["Alarm Cleared CRITICAL"]);
    assert_eq!(f.publish(device, 5, low)[0], "Alarm Created CRITICAL");
    let alarms = f.alarms();
    let states: Vec<_> = alarms.iter().map(|alarm| (alarm.cleared, alarm.clear_ts)).collect();
    assert_eq!(states, [(false, 0), (true, NOW + 4)]);
    assert_eq!((alarms[1].assignee_id, alarms[1].assign_ts), (None, NOW + 4));
}

#[test]
fn alarm_rules_apply_without_a_profile_node() {
    let mut f = fixture();
    f.set_root_chain(root_metadata(RootShape::Plain));
    let device = f.meter(json!({"type": "SIMPLE"}));
    let seen = f.publish(device, 1, IngestMessage::Telemetry(br#"{"batteryLevel":10}"#));
    // The alarm is a separate message without a connection of its own.
    assert_eq!(
        seen,
        ["Alarm Created CRITICAL", "log Log Other", "telemetry 1 batteryLevel"]
    );
}

#[test]
fn counters_survive_a_restart_and_replay_has_no_effect() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "REPEATING", "predicate": {"defaultValue": 3}}));
    for after_ms in [1, 2] {
        f.publish(device, after_ms, IngestMessage::Telemetry(br#"{"batteryLevel":10}"#));
    }
    f.platform.checkpoint().unwrap();
    // The heads of the time-series store were not flushed, so its points are replayed.
    f.restart();
    assert_eq!(f.platform.replay_position(), LogPosition(0));
    let replay = |f: &mut Fixture, position: u64| {
        let incoming = [IngestInput {
            at: LogPosition(position),
            device,
            received_ms: NOW + i64::try_from(position).unwrap(),
            message: IngestMessage::Telemetry(br#"{"batteryLevel":10}"#),
        }];
        f.platform
            .ingest(&incoming, LogPosition(position), NOW + 10, &mut f.seen)
            .unwrap();
        f.seen.take()
    };
    assert!(replay(&mut f, 1).is_empty());
    assert!(replay(&mut f, 2).is_empty());
    assert_eq!(f.points(device.entity(), "batteryLevel").len(), 2);
    assert_eq!(f.platform.stats().replayed_messages_total, 2);
    assert!(f.alarms().is_empty());
    // The third consecutive match, across the restart.
    assert!(replay(&mut f, 3).contains(&"Alarm Created CRITICAL".to_owned()));
    f.restart();
    f.position = 3;
    let seen = f.publish(device, 20, IngestMessage::Telemetry(br#"{"batteryLevel":9}"#));
    assert!(seen.contains(&"Alarm Updated CRITICAL".to_owned()), "{seen:?}");
    assert_eq!(f.alarms().len(), 1);
}

#[test]
fn durations_fire_by_time() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "DURATION", "unit": "SECONDS", "predicate": {"defaultValue": 30}}));
    f.publish(device, 0, IngestMessage::Telemetry(br#"{"batteryLevel":10}"#));
    assert!(f.tick(30_000).is_empty());
    // The device sends nothing more, and the server restarts.
    f.platform.store().flush().unwrap();
    f.platform.checkpoint().unwrap();
    f.restart();
    assert_eq!(f.tick(90_001), ["Alarm Created CRITICAL"]);
}

#[test]
fn inactivity_is_reported_once_until_activity() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    assert_eq!(f.publish(device, 0, IngestMessage::Connected), ["log Connect Event"]);
    assert_eq!(f.publish(device, 1, IngestMessage::Alive), ["log Activity Event"]);
    assert!(f.publish(device, 2, IngestMessage::Alive).is_empty());
    assert!(f.tick(3).is_empty());
    assert_eq!(f.tick(700_000), ["log Inactivity Event"]);
    assert!(f.tick(800_000).is_empty());
    let active = |f: &Fixture| {
        let found = f
            .platform
            .attributes(device.entity(), AttributeScope::ServerScope, Some(&["active"]))
            .unwrap();
        found[0].value.clone()
    };
    assert_eq!(active(&f), PointValue::Bool(false));
    f.restart();
    assert_eq!(active(&f), PointValue::Bool(false));
    assert_eq!(
        f.publish(device, 900_000, IngestMessage::Disconnected),
        ["log Disconnect Event"]
    );
    assert_eq!(f.publish(device, 900_001, IngestMessage::Alive), ["log Activity Event"]);
    assert_eq!(active(&f), PointValue::Bool(true));
}

/// The activity attributes of a device; times after `NOW`.
fn activity(f: &Fixture, device: DeviceId) -> Vec<String> {
    let found = f
        .platform
        .attributes(device.entity(), AttributeScope::ServerScope, None)
        .unwrap();
    let values = found.iter().map(|attribute| match &attribute.value {
        PointValue::Long(at_ms) if *at_ms >= NOW => format!("{} {}", attribute.key, at_ms - NOW),
        value => format!("{} {value:?}", attribute.key),
    });
    values.collect()
}

#[test]
fn activity_attributes_have_times() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    assert_eq!(activity(&f, device), ["active Bool(false)"], "after its creation");
    f.publish(device, 1, IngestMessage::Connected);
    assert_eq!(activity(&f, device), ["active Bool(false)", "lastConnectTime 1"]);
    f.publish(device, 2, IngestMessage::Alive);
    let there = [
        "active Bool(true)",
        "inactivityAlarmTime Long(0)",
        "lastActivityTime 2",
        "lastConnectTime 1",
    ];
    assert_eq!(activity(&f, device), there);
    f.tick(700_000);
    let silent = [
        "active Bool(false)",
        "inactivityAlarmTime 700000",
        "lastActivityTime 2",
        "lastConnectTime 1",
    ];
    assert_eq!(activity(&f, device), silent);
    f.restart();
    assert_eq!(activity(&f, device), silent);
    f.publish(device, 800_000, IngestMessage::Alive);
    let back = [
        "active Bool(true)",
        "inactivityAlarmTime Long(0)",
        "lastActivityTime 800000",
        "lastConnectTime 1",
    ];
    assert_eq!(activity(&f, device), back);
}

#[test]
fn device_without_activity_is_reported_once() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    let patient = f.device("P", "", Json::Null);
    let values = attributes(br#"{"inactivityTimeout":10000000}"#, &DecodeLimits::default()).unwrap();
    f.platform
        .save_attributes(patient.entity(), AttributeScope::ServerScope, &values, NOW, &mut f.seen)
        .unwrap();
    f.seen.take();
    assert!(f.tick(599_000).is_empty());
    assert_eq!(f.tick(700_000), ["log Inactivity Event"]);
    assert!(f.tick(800_000).is_empty());
    assert_eq!(
        activity(&f, device),
        ["active Bool(false)", "inactivityAlarmTime 700000"]
    );
    f.restart();
    assert!(f.tick(900_000).is_empty());
    assert_eq!(f.publish(device, 900_001, IngestMessage::Alive), ["log Activity Event"]);
    assert_eq!(f.tick(20_000_000), ["log Inactivity Event"; 2]);
}

#[test]
fn device_timeout_replaces_the_default() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    let values = attributes(br#"{"inactivityTimeout":1000}"#, &DecodeLimits::default()).unwrap();
    f.platform
        .save_attributes(device.entity(), AttributeScope::ServerScope, &values, NOW, &mut f.seen)
        .unwrap();
    assert_eq!(
        f.seen.take(),
        ["SERVER_SCOPE inactivityTimeout -", "log Attributes Updated"]
    );
    f.publish(device, 0, IngestMessage::Alive);
    assert!(f.tick(1).is_empty());
    assert_eq!(f.tick(60_001), ["log Inactivity Event"]);
}

#[test]
fn device_timeout_survives_a_crash() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    f.publish(device, 0, IngestMessage::Alive);
    // The device's activity is saved with the previous timeout.
    f.tick(60_000);
    let values = attributes(br#"{"inactivityTimeout":1000}"#, &DecodeLimits::default()).unwrap();
    f.platform
        .save_attributes(device.entity(), AttributeScope::ServerScope, &values, NOW, &mut f.seen)
        .unwrap();
    f.seen.take();
    f.restart();
    assert_eq!(f.tick(120_001), ["log Inactivity Event"]);
}

#[test]
fn owner_thresholds_follow_their_attributes() {
    let mut f = fixture();
    let customer = Customer {
        tenant_id: f.tenant,
        title: "C".to_owned(),
        ..Customer::default()
    };
    let customer = f.platform.entities().save_customer(customer, NOW).unwrap().id.unwrap();
    let device = f.meter(json!({"type": "SIMPLE"}));
    let profile = f
        .platform
        .entities()
        .find_by_name::<DeviceProfile>(f.tenant.0, "meter")
        .unwrap()
        .unwrap();
    let mut changed = profile.clone();
    changed.profile_data["alarms"][0]["createRules"]["CRITICAL"]["condition"]["condition"][0]["predicate"]["value"]["dynamicValue"] =
        json!({"sourceType": "CURRENT_CUSTOMER", "sourceAttribute": "limit"});
    f.platform.entities().save_device_profile(changed, NOW).unwrap();
    let mut stored: Device = f.platform.entities().get(device.0).unwrap();
    stored.customer_id = Some(customer);
    f.platform.entities().save_device(stored, None, NOW).unwrap();
    f.platform.reload_profile(profile.id.unwrap());
    let set = |f: &mut Fixture, limit: i64| {
        let body = format!("{{\"limit\":{limit}}}");
        let values = attributes(body.as_bytes(), &DecodeLimits::default()).unwrap();
        f.platform
            .save_attributes(
                customer.entity(),
                AttributeScope::ServerScope,
                &values,
                NOW,
                &mut NoOutlet,
            )
            .unwrap();
    };
    let alarms = |seen: Vec<String>| seen.into_iter().filter(|seen| seen.starts_with("Alarm")).count();
    set(&mut f, 5);
    assert_eq!(
        alarms(f.publish(device, 1, IngestMessage::Telemetry(br#"{"batteryLevel":10}"#))),
        0
    );
    set(&mut f, 15);
    assert_eq!(
        alarms(f.publish(device, 2, IngestMessage::Telemetry(br#"{"batteryLevel":10}"#))),
        1
    );
}

#[test]
fn undecodable_messages_do_not_affect_the_batch() {
    let f = fixture();
    let device = f.device("D", "", Json::Null);
    let incoming = |body: &'static [u8]| IngestInput {
        at: LogPosition(1),
        device,
        received_ms: NOW,
        message: IngestMessage::Telemetry(body),
    };
    let unknown = IngestInput {
        at: LogPosition(1),
        device: DeviceId(f.tenant.0),
        ..incoming(b"{}")
    };
    let batch = [
        incoming(br#"{"a":1}"#),
        incoming(b"nonsense"),
        unknown,
        incoming(br#"{"b":1}"#),
    ];
    let ingested = f.platform.ingest(&batch, LogPosition(1), NOW, &mut NoOutlet).unwrap();
    assert_eq!(
        ingested.refused.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [1, 2]
    );
    assert_eq!((ingested.messages, ingested.points), (4, 2));
    assert_eq!(f.points(device.entity(), "b").len(), 1);
}

#[test]
fn rpc_requests_continue_with_response_or_timeout() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let node = |class: &str, name: &str| json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "configuration": {"timeoutInSeconds": 10}});
    let metadata = json!({"firstNodeIndex": 0, "nodes": [node("rpc.TbSendRPCRequestNode", "call"), node("action.TbLogNode", "answered"), node("action.TbLogNode", "failed")],
        "connections": [{"fromIndex": 0, "toIndex": 1, "type": "Success"}, {"fromIndex": 0, "toIndex": 2, "type": "Failure"}]});
    let export = Export::parse(&json!({"ruleChain": {"name": "Calls"}, "metadata": metadata})).unwrap();
    let chain = RuleChain {
        tenant_id: f.tenant,
        name: export.name,
        ..RuleChain::default()
    };
    let id = f.platform.entities().save_rule_chain(chain, NOW).unwrap().id.unwrap();
    f.platform
        .entities()
        .save_rule_chain_metadata(id, export.metadata, NOW)
        .unwrap();
    f.platform.entities().set_root_chain(id, NOW).unwrap();
    f.platform.reload_chain(id, NOW).unwrap();
    f.publish(device, 0, IngestMessage::Alive);
    let body = br#"{"method":"m","params":{}}"#;
    assert_eq!(
        f.publish(device, 1, IngestMessage::RpcRequest { id: 1, body }),
        ["call 1 m"]
    );
    f.platform.answer(1, Ok(json!({"ok": true})), NOW + 2, &mut f.seen);
    assert_eq!(f.seen.take(), ["log answered"]);
    assert_eq!(
        f.publish(device, 3, IngestMessage::RpcRequest { id: 2, body }),
        ["call 2 m"]
    );
    assert!(f.tick(5_000).is_empty());
    assert_eq!(f.tick(20_000), ["log failed"]);
    assert_eq!(f.platform.stats().waiting_calls, 0);
}

#[test]
fn users_save_telemetry_of_any_entity() {
    let mut f = fixture();
    let telemetry = Telemetry::decode(
        br#"{"ts":1700000000001,"values":{"a":1}}"#,
        NOW,
        &DecodeLimits::default(),
    )
    .unwrap();
    let save = |f: &mut Fixture, position| {
        f.platform
            .save_telemetry(
                f.tenant.entity(),
                &telemetry,
                0,
                (LogPosition(position), NOW),
                &mut f.seen,
            )
            .unwrap();
    };
    save(&mut f, 1);
    assert_eq!(f.seen.take(), ["telemetry 1 a"]);
    assert_eq!(f.points(f.tenant.entity(), "a"), [(1, PointValue::Long(1))]);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::StoredPoints), 1);
    // Replayed after a crash, and not counted again.
    f.platform.checkpoint().unwrap();
    f.restart();
    save(&mut f, 1);
    assert_eq!(f.points(f.tenant.entity(), "a"), [(1, PointValue::Long(1))]);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::StoredPoints), 1);
    save(&mut f, 2);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::StoredPoints), 2);
}

/// Sets the tenant's limits; 0 is no limit.
fn limit(f: &Fixture, configuration: Json) {
    let entities = f.platform.entities();
    let mut profile = entities.default_tenant_profile(NOW).unwrap();
    profile.profile_data = json!({"configuration": configuration});
    entities.save_tenant_profile(profile, NOW).unwrap();
}

#[test]
fn used_up_quota_turns_a_feature_off_until_next_month() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "SIMPLE"}));
    f.publish(device, 1, IngestMessage::Telemetry(br#"{"batteryLevel":10}"#));
    f.publish(device, 2, IngestMessage::Telemetry(br#"{"batteryLevel":50}"#));
    let first = f.platform.take_api_states();
    assert!(
        first.len() == 5
            && first
                .iter()
                .all(|change| change.state == ApiState::Enabled && change.before.is_none())
    );
    assert!(f.platform.take_api_states().is_empty());
    let states = |f: &Fixture| -> Vec<(&'static str, &'static str)> {
        let changes = f.platform.take_api_states();
        changes
            .iter()
            .map(|change| (change.feature.key(), change.state.name()))
            .collect()
    };
    // No new alarm is created, but the message continues.
    limit(&f, json!({"maxCreatedAlarms": 1}));
    let seen = f.publish(device, 3, IngestMessage::Telemetry(br#"{"batteryLevel":9}"#));
    assert_eq!(
        seen,
        [
            "failed alarm rules: Alarms creation is disabled",
            "telemetry 3 batteryLevel"
        ]
    );
    assert_eq!(f.alarms().len(), 1);
    assert_eq!(states(&f), [("alarmApiState", "DISABLED")]);
    assert!(states(&f).is_empty(), "reported once");
    // The limit is raised: the rule starts over.
    limit(&f, json!({"maxCreatedAlarms": 3}));
    assert_eq!(states(&f), [("alarmApiState", "ENABLED")]);
    let seen = f.publish(device, 4, IngestMessage::Telemetry(br#"{"batteryLevel":9}"#));
    assert_eq!(seen, ["Alarm Created CRITICAL", "telemetry 4 batteryLevel"]);
    // No more points are stored.
    let stored = f.platform.usage(f.tenant, UsageCounter::StoredPoints);
    limit(&f, json!({"maxDPStorageDays": stored + 1}));
    f.publish(device, 5, IngestMessage::Telemetry(br#"{"a":1}"#));
    let seen = f.publish(device, 6, IngestMessage::Telemetry(br#"{"a":2}"#));
    assert!(
        seen.iter()
            .any(|seen| seen.ends_with("DB storage writes are disabled due to API limits!")),
        "{seen:?}"
    );
    assert_eq!(f.points(device.entity(), "a"), [(5, PointValue::Long(1))]);
    assert_eq!(states(&f), [("dbApiState", "DISABLED")]);
    // No rule node runs.
    let used = f.platform.usage(f.tenant, UsageCounter::RuleNodes);
    limit(&f, json!({"maxREExecutions": used}));
    assert!(f.publish(device, 7, IngestMessage::Telemetry(br#"{"a":3}"#)).is_empty());
    assert_eq!(f.platform.stats().over_limit_messages_total, 1);
    assert_eq!(
        states(&f),
        [("dbApiState", "ENABLED"), ("ruleEngineApiState", "DISABLED")]
    );
    // The states survive a restart because the counts do, and end with the month.
    f.platform.checkpoint().unwrap();
    f.restart();
    f.position = 7;
    let all = states(&f);
    let off: Vec<_> = all.iter().filter(|(_, state)| *state != "ENABLED").collect();
    assert_eq!((all.len(), off), (5, vec![&("ruleEngineApiState", "DISABLED")]));
    let next_month = 20 * 86_400_000;
    f.tick(next_month);
    assert_eq!(states(&f), [("ruleEngineApiState", "ENABLED")]);
    let seen = f.publish(device, next_month + 1, IngestMessage::Telemetry(br#"{"a":4}"#));
    assert!(seen.iter().any(|seen| seen.starts_with("telemetry")), "{seen:?}");
}

/// A replay stores the same points as the first run, whatever the current counts and limits are.
#[test]
fn replay_stores_the_same_points() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let bodies: [&[u8]; 6] = [
        br#"[{"ts":1700000000001,"values":{"a":1}},{"ts":1700000000002,"values":{"a":2}}]"#,
        br#"{"ts":1700000000003,"values":{"a":3}}"#,
        // The limit is reached within this message, which is stored as a whole.
        br#"[{"ts":1700000000004,"values":{"a":4}},{"ts":1700000000005,"values":{"a":5}}]"#,
        br#"{"ts":1700000000006,"values":{"a":6}}"#,
        br#"{"ts":1700000000007,"values":{"a":7}}"#,
        br#"{"ts":1700000000008,"values":{"a":8}}"#,
    ];
    let publish = |f: &mut Fixture, number: usize| {
        f.position = number as u64;
        f.publish(device, 10, IngestMessage::Telemetry(bodies[number]));
    };
    f.position = 0;
    let values = |f: &Fixture| -> Vec<i64> { f.points(device.entity(), "a").iter().map(|(ts, _)| *ts).collect() };
    limit(&f, json!({"maxDPStorageDays": 4}));
    (0..5).for_each(|number| publish(&mut f, number));
    assert_eq!(values(&f), [1, 2, 3, 4, 5]);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::StoredPoints), 5);
    // The limit is raised, and the next message is stored.
    limit(&f, json!({"maxDPStorageDays": 100}));
    publish(&mut f, 5);
    assert_eq!(values(&f), [1, 2, 3, 4, 5, 8]);
    // An attribute goes to the repository, together with the position.
    f.publish(device, 11, IngestMessage::Attributes(br#"{"x":1}"#));
    for restarts in 0..2 {
        // The time-series store is empty, and the limit is different.
        f.restart();
        assert_eq!(
            (f.platform.replay_position(), f.platform.applied_position()),
            (LogPosition(0), LogPosition(7))
        );
        limit(&f, json!({"maxDPStorageDays": restarts}));
        (0..6).for_each(|number| publish(&mut f, number));
        assert_eq!(values(&f), [1, 2, 3, 4, 5, 8]);
        assert_eq!(f.platform.usage(f.tenant, UsageCounter::StoredPoints), 6);
    }
}

#[test]
fn scripts_fail_after_the_quota_is_used_up() {
    let mut f = fixture();
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    let nodes = [
        json!({"type": class("filter.TbJsFilterNode"), "name": "script", "configuration": {"jsScript": "return true;"}}),
        json!({"type": class("telemetry.TbMsgTimeseriesNode"), "name": "save", "configuration": {}}),
    ];
    let connections = [json!({"fromIndex": 0, "toIndex": 1, "type": "True"})];
    let metadata = json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections});
    f.set_root_chain(metadata);
    let device = f.device("D", "", Json::Null);
    f.publish(device, 1, IngestMessage::Telemetry(br#"{"a":1}"#));
    let used = f.platform.usage(f.tenant, UsageCounter::Scripts);
    limit(&f, json!({"maxJSExecutions": used}));
    let seen = f.publish(device, 2, IngestMessage::Telemetry(br#"{"a":2}"#));
    assert_eq!(seen, ["failed script: JS Execution is disabled due to API limits!"]);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::Scripts), used);
}

#[test]
fn device_with_too_many_keys_keeps_the_existing_ones() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let body: serde_json::Map<String, Json> = (0..10_000).map(|n| (format!("k{n}"), json!(n))).collect();
    f.publish(
        device,
        0,
        IngestMessage::Telemetry(Json::from(body).to_string().as_bytes()),
    );
    let outcome = f.publish(device, 1, IngestMessage::Telemetry(br#"{"k7":8,"another":1}"#));
    assert!(
        outcome.iter().any(|seen| seen == "refused Telemetry another"),
        "{outcome:?}"
    );
    assert_eq!(
        f.points(device.entity(), "k7"),
        [(0, PointValue::Long(7)), (1, PointValue::Long(8))]
    );
    assert!(f.points(device.entity(), "another").is_empty());
    let other = f.device("E", "", Json::Null);
    f.publish(other, 2, IngestMessage::Telemetry(br#"{"another":1}"#));
    assert_eq!(f.points(other.entity(), "another"), [(2, PointValue::Long(1))]);
}
