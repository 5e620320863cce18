//! The platform at work, over the real stores: what devices say, what is stored of it, and what a restart leaves.

#![allow(clippy::unwrap_used, reason = "tests")]

mod alarm_nodes;
mod attributes_of_users;
mod between;
mod fixture;
mod gateways;
mod ota;
mod replays;
#[path = "../scratch/mod.rs"]
mod scratch;

use fixture::{Fixture, NOW, fixture};
use platform::chain::{Export, RootShape, root_metadata};
use platform::decode::{Limits, Telemetry, attributes};
use platform::ids::{DeviceId, EntityId, EntityType, UserId, Uuid};
use platform::model::{Alarm, Customer, Device, DeviceProfile, RuleChain, Scope};
use platform::repository::AlarmSelection;
use platform::{AlarmChange, ApiState, AttributesChange, Counter, Incoming, NoOutlet, PageLink, Said};
use serde_json::{Value as Json, json};
use timeseries::{Position, Value};

/// Logs each type of a message by its connection.
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
    let seen = f.say(
        device,
        1,
        Said::Telemetry(br#"[{"ts":1700000000000,"values":{"a":1,"b":"x"}},{"a":2.5}]"#),
    );
    assert_eq!(seen, ["telemetry 0 a,b", "telemetry 1 a"]);
    assert_eq!(
        f.points(device.entity(), "a"),
        [(0, Value::Long(1)), (1, Value::Double(2.5))]
    );
    let usage = |counter| f.platform.usage(f.tenant, counter);
    assert_eq!(
        (
            usage(Counter::TransportMessages),
            usage(Counter::TransportPoints),
            usage(Counter::StoredPoints)
        ),
        (1, 3, 3)
    );
    // Three nodes for each of two times, two for the event that the device is active.
    assert_eq!(usage(Counter::RuleNodes), 8);
    assert_eq!(f.platform.stats().points_total, 3);
}

#[test]
fn history_and_latest_values_are_saved_alone() {
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
    f.say(device, 1, Said::Telemetry(br#"{"a":1}"#));
    assert_eq!(latest(&f).unwrap().value, Value::Long(1));
    assert_eq!(f.points(device.entity(), "a"), []);
    assert_eq!(f.platform.usage(f.tenant, Counter::StoredPoints), 0);
    f.set_root_chain(save(&every, &skip));
    f.say(device, 2, Said::Telemetry(br#"{"a":2}"#));
    f.platform.checkpoint().unwrap();
    f.platform.store().flush().unwrap();
    f.restart();
    assert_eq!(latest(&f).unwrap().value, Value::Long(1));
    assert_eq!(f.points(device.entity(), "a"), [(2, Value::Long(2))]);
    assert_eq!(f.platform.usage(f.tenant, Counter::StoredPoints), 1);
}

#[test]
fn attributes_of_devices_and_of_users() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    f.say(device, 1, Said::Attributes(br#"{"model":"x"}"#));
    let values = attributes(br#"{"target":21}"#, &Limits::default()).unwrap();
    f.platform
        .save_attributes(device.entity(), Scope::SharedScope, &values, NOW, &mut f.seen)
        .unwrap();
    assert_eq!(f.seen.take(), ["SHARED_SCOPE target -", "to device 1 -0"]);
    let read = |scope, keys: &[&str]| f.platform.attributes(device.entity(), scope, Some(keys)).unwrap();
    assert_eq!(read(Scope::ClientScope, &["model"])[0].value, Value::String("x".into()));
    assert_eq!(read(Scope::SharedScope, &["target"])[0].value, Value::Long(21));
    assert_eq!(read(Scope::ServerScope, &["active"])[0].value, Value::Bool(true));
    f.platform
        .delete_attributes(
            device.entity(),
            Scope::SharedScope,
            &["target".to_owned()],
            NOW,
            &mut f.seen,
        )
        .unwrap();
    assert_eq!(f.seen.take(), ["SHARED_SCOPE  -target", "to device 0 -1"]);
    assert!(
        f.platform
            .attributes(device.entity(), Scope::SharedScope, None)
            .unwrap()
            .is_empty()
    );
}

/// Changes of users in the log: a replay does none of them again.
#[test]
fn attributes_in_the_log_are_changed_once() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    event_chain(&f);
    f.say(device, 1, Said::Alive);
    let change = |f: &mut Fixture, position: u64, body: &str| {
        let values = attributes(body.as_bytes(), &Limits::default()).unwrap();
        let keys = ["old".to_owned()];
        let change = match body {
            "{}" => AttributesChange::Delete(&keys),
            _ => AttributesChange::Save(&values),
        };
        let at = (Position(position), NOW + 2);
        let changed =
            f.platform
                .change_attributes(device.entity(), (Scope::SharedScope, change), at, NOW + 2, &mut f.seen);
        changed.map(|()| f.seen.take()).unwrap()
    };
    let told = ["SHARED_SCOPE target -", "to device 1 -0", "log Attributes Updated"];
    assert_eq!(change(&mut f, 10, r#"{"target":1}"#), told);
    assert_eq!(change(&mut f, 11, r#"{"target":2}"#), told);
    let deleted = ["SHARED_SCOPE  -old", "to device 0 -1", "log Attributes Deleted"];
    assert_eq!(change(&mut f, 13, "{}"), deleted);
    change(&mut f, 14, r#"{"old":3}"#);
    f.restart();
    assert!(change(&mut f, 10, r#"{"target":1}"#).is_empty() && change(&mut f, 13, "{}").is_empty());
    let found = f
        .platform
        .attributes(device.entity(), Scope::SharedScope, None)
        .unwrap();
    let found: Vec<Value> = found.into_iter().map(|attribute| attribute.value).collect();
    assert_eq!(found, [Value::Long(3), Value::Long(2)]);
    f.platform.entities().delete_device(device).unwrap();
    assert!(change(&mut f, 15, r#"{"target":4}"#).is_empty());
}

/// What goes through a checkpoint belongs to the change that led there: with it it is stored, and with it it is a replay.
#[test]
fn a_change_of_attributes_goes_on_behind_a_checkpoint_once() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    f.set_root_chain(json!({"firstNodeIndex": 0, "nodes": [
        {"type": class("flow.TbCheckpointNode"), "name": "checkpoint", "queueName": "Main", "configuration": {"queueName": "Main"}},
        {"type": class("action.TbLogNode"), "name": "behind", "configuration": {}},
    ], "connections": [{"fromIndex": 0, "toIndex": 1, "type": "Success"}]}));
    let change = |f: &mut Fixture| {
        let values = attributes(br#"{"target":1}"#, &Limits::default()).unwrap();
        let change = (Scope::ServerScope, AttributesChange::Save(&values));
        let at = (Position(1), NOW);
        f.platform
            .change_attributes(device.entity(), change, at, NOW, &mut f.seen)
            .unwrap();
        f.seen.take()
    };
    assert_eq!(change(&mut f), ["SERVER_SCOPE target -", "log behind"]);
    f.restart();
    assert!(change(&mut f).is_empty());
    f.platform.tick(Position(2), NOW + 1000, &mut f.seen).unwrap();
    assert!(f.seen.take().is_empty());
}

/// Whatever it was of: what was deleted before the change is processed keeps nothing.
#[test]
fn attributes_of_what_is_gone_are_not_stored() {
    let mut f = fixture();
    let values = attributes(br#"{"a":1}"#, &Limits::default()).unwrap();
    let never_there = platform::ids::Uuid([7; 16]);
    let stored_by_themselves = EntityType::ALL.iter().filter(|kind| **kind != EntityType::RuleNode);
    for (kind, position) in stored_by_themselves.zip(1..) {
        let change = (Scope::ServerScope, AttributesChange::Save(&values));
        let (entity, at) = (EntityId::new(*kind, never_there), (Position(position), NOW));
        f.platform
            .change_attributes(entity, change, at, NOW, &mut f.seen)
            .unwrap();
        let found = f.platform.attributes(entity, Scope::ServerScope, None).unwrap();
        assert!(found.is_empty(), "{kind:?}");
    }
    let tenant = f.tenant.entity();
    let change = (Scope::ServerScope, AttributesChange::Save(&values));
    let at = (Position(100), NOW);
    f.platform
        .change_attributes(tenant, change, at, NOW, &mut f.seen)
        .unwrap();
    assert_eq!(
        f.platform.attributes(tenant, Scope::ServerScope, None).unwrap().len(),
        1
    );
}

#[test]
fn alarms_come_and_go() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "SIMPLE"}));
    f.say(device, 0, Said::Alive);
    let mut level = |after_ms: i64, level: i64| {
        let body = format!("{{\"batteryLevel\":{level}}}");
        let seen = f.say(device, after_ms, Said::Telemetry(body.as_bytes()));
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
    let again = f.say(device, 8, Said::Telemetry(br#"{"batteryLevel":4}"#));
    assert!(again.contains(&"Alarm Created CRITICAL".to_owned()), "{again:?}");
    assert_eq!(f.platform.usage(f.tenant, Counter::CreatedAlarms), 3);
}

#[test]
fn what_a_user_did_to_an_alarm_stays_when_its_rule_fires_again() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "SIMPLE"}));
    let low = Said::Telemetry(br#"{"batteryLevel":9}"#);
    assert_eq!(f.say(device, 1, low)[0], "Alarm Created CRITICAL");
    let (id, user) = (f.alarms()[0].id.unwrap(), UserId(Uuid([9; 16])));
    f.platform
        .change_alarm(id, AlarmChange::Assign(Some(user)), NOW + 2, &mut NoOutlet)
        .unwrap();
    assert_eq!(f.say(device, 3, low)[0], "Alarm Updated CRITICAL");
    let stored = f.alarms().remove(0);
    assert_eq!((stored.assignee_id, stored.assign_ts), (Some(user), NOW + 2));
    let wanted = Alarm {
        cleared: true,
        assignee_id: None,
        ..stored
    };
    f.platform.save_alarm(wanted, NOW + 4, &mut f.seen).unwrap();
    assert_eq!(f.seen.take(), ["Alarm Cleared CRITICAL"]);
    assert_eq!(f.say(device, 5, low)[0], "Alarm Created CRITICAL");
    let alarms = f.alarms();
    let states: Vec<_> = alarms.iter().map(|alarm| (alarm.cleared, alarm.clear_ts)).collect();
    assert_eq!(states, [(false, 0), (true, NOW + 4)]);
    assert_eq!((alarms[1].assignee_id, alarms[1].assign_ts), (None, NOW + 4));
}

#[test]
fn a_chain_without_the_node_honours_alarm_rules_too() {
    let mut f = fixture();
    f.set_root_chain(root_metadata(RootShape::Plain));
    let device = f.meter(json!({"type": "SIMPLE"}));
    let seen = f.say(device, 1, Said::Telemetry(br#"{"batteryLevel":10}"#));
    // The alarm is a message of its own, which has no connection of its own.
    assert_eq!(
        seen,
        ["Alarm Created CRITICAL", "log Log Other", "telemetry 1 batteryLevel"]
    );
}

#[test]
fn counters_and_alarms_survive_a_restart_and_a_replay_does_nothing_twice() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "REPEATING", "predicate": {"defaultValue": 3}}));
    for after_ms in [1, 2] {
        f.say(device, after_ms, Said::Telemetry(br#"{"batteryLevel":10}"#));
    }
    f.platform.checkpoint().unwrap();
    // The heads of the time-series store were not flushed: its part is replayed.
    f.restart();
    assert_eq!(f.platform.replay_position(), Position(0));
    let replay = |f: &mut Fixture, position: u64| {
        let incoming = [Incoming {
            at: Position(position),
            device,
            received_ms: NOW + i64::try_from(position).unwrap(),
            said: Said::Telemetry(br#"{"batteryLevel":10}"#),
        }];
        f.platform
            .ingest(&incoming, Position(position), NOW + 10, &mut f.seen)
            .unwrap();
        f.seen.take()
    };
    assert!(replay(&mut f, 1).is_empty());
    assert!(replay(&mut f, 2).is_empty());
    assert_eq!(f.points(device.entity(), "batteryLevel").len(), 2);
    assert_eq!(f.platform.stats().replayed_messages_total, 2);
    assert!(f.alarms().is_empty());
    // The third one in a row, over the restart.
    assert!(replay(&mut f, 3).contains(&"Alarm Created CRITICAL".to_owned()));
    f.restart();
    f.position = 3;
    let seen = f.say(device, 20, Said::Telemetry(br#"{"batteryLevel":9}"#));
    assert!(seen.contains(&"Alarm Updated CRITICAL".to_owned()), "{seen:?}");
    assert_eq!(f.alarms().len(), 1);
}

#[test]
fn durations_end_by_time() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "DURATION", "unit": "SECONDS", "predicate": {"defaultValue": 30}}));
    f.say(device, 0, Said::Telemetry(br#"{"batteryLevel":10}"#));
    assert!(f.tick(30_000).is_empty());
    // The device says nothing more, whatever becomes of the server.
    f.platform.store().flush().unwrap();
    f.platform.checkpoint().unwrap();
    f.restart();
    assert_eq!(f.tick(90_001), ["Alarm Created CRITICAL"]);
}

#[test]
fn devices_fall_silent_once_and_come_back() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    assert_eq!(f.say(device, 0, Said::Connected), ["log Connect Event"]);
    assert_eq!(f.say(device, 1, Said::Alive), ["log Activity Event"]);
    assert!(f.say(device, 2, Said::Alive).is_empty());
    assert!(f.tick(3).is_empty());
    assert_eq!(f.tick(700_000), ["log Inactivity Event"]);
    assert!(f.tick(800_000).is_empty());
    let active = |f: &Fixture| {
        let found = f
            .platform
            .attributes(device.entity(), Scope::ServerScope, Some(&["active"]))
            .unwrap();
        found[0].value.clone()
    };
    assert_eq!(active(&f), Value::Bool(false));
    f.restart();
    assert_eq!(active(&f), Value::Bool(false));
    assert_eq!(f.say(device, 900_000, Said::Disconnected), ["log Disconnect Event"]);
    assert_eq!(f.say(device, 900_001, Said::Alive), ["log Activity Event"]);
    assert_eq!(active(&f), Value::Bool(true));
}

/// Values of the server attributes that say whether it is there; times after `NOW`.
fn activity(f: &Fixture, device: DeviceId) -> Vec<String> {
    let found = f
        .platform
        .attributes(device.entity(), Scope::ServerScope, None)
        .unwrap();
    let said = found.iter().map(|attribute| match &attribute.value {
        Value::Long(at_ms) if *at_ms >= NOW => format!("{} {}", attribute.key, at_ms - NOW),
        value => format!("{} {value:?}", attribute.key),
    });
    said.collect()
}

#[test]
fn attributes_say_since_when_a_device_is_there_or_not() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    assert_eq!(activity(&f, device), ["active Bool(false)"], "as it is made");
    f.say(device, 1, Said::Connected);
    assert_eq!(activity(&f, device), ["active Bool(false)", "lastConnectTime 1"]);
    f.say(device, 2, Said::Alive);
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
    f.say(device, 800_000, Said::Alive);
    let back = [
        "active Bool(true)",
        "inactivityAlarmTime Long(0)",
        "lastActivityTime 800000",
        "lastConnectTime 1",
    ];
    assert_eq!(activity(&f, device), back);
}

#[test]
fn a_device_that_never_came_is_missed_once() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    let patient = f.device("P", "", Json::Null);
    let values = attributes(br#"{"inactivityTimeout":10000000}"#, &Limits::default()).unwrap();
    f.platform
        .save_attributes(patient.entity(), Scope::ServerScope, &values, NOW, &mut f.seen)
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
    assert_eq!(f.say(device, 900_001, Said::Alive), ["log Activity Event"]);
    assert_eq!(f.tick(20_000_000), ["log Inactivity Event"; 2]);
}

#[test]
fn a_timeout_of_the_device_counts() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    let values = attributes(br#"{"inactivityTimeout":1000}"#, &Limits::default()).unwrap();
    f.platform
        .save_attributes(device.entity(), Scope::ServerScope, &values, NOW, &mut f.seen)
        .unwrap();
    assert_eq!(
        f.seen.take(),
        ["SERVER_SCOPE inactivityTimeout -", "log Attributes Updated"]
    );
    f.say(device, 0, Said::Alive);
    assert!(f.tick(1).is_empty());
    assert_eq!(f.tick(60_001), ["log Inactivity Event"]);
}

#[test]
fn a_timeout_counts_after_a_kill_at_once() {
    let mut f = fixture();
    event_chain(&f);
    let device = f.device("D", "", Json::Null);
    f.say(device, 0, Said::Alive);
    // What is known of the device is stored, with the timeout of before.
    f.tick(60_000);
    let values = attributes(br#"{"inactivityTimeout":1000}"#, &Limits::default()).unwrap();
    f.platform
        .save_attributes(device.entity(), Scope::ServerScope, &values, NOW, &mut f.seen)
        .unwrap();
    f.seen.take();
    f.restart();
    assert_eq!(f.tick(120_001), ["log Inactivity Event"]);
}

#[test]
fn thresholds_of_owners_follow_their_attributes() {
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
        let values = attributes(body.as_bytes(), &Limits::default()).unwrap();
        f.platform
            .save_attributes(customer.entity(), Scope::ServerScope, &values, NOW, &mut NoOutlet)
            .unwrap();
    };
    let alarms = |seen: Vec<String>| seen.into_iter().filter(|seen| seen.starts_with("Alarm")).count();
    set(&mut f, 5);
    assert_eq!(alarms(f.say(device, 1, Said::Telemetry(br#"{"batteryLevel":10}"#))), 0);
    set(&mut f, 15);
    assert_eq!(alarms(f.say(device, 2, Said::Telemetry(br#"{"batteryLevel":10}"#))), 1);
}

#[test]
fn what_is_not_understood_is_refused_and_the_rest_of_the_batch_taken() {
    let f = fixture();
    let device = f.device("D", "", Json::Null);
    let incoming = |body: &'static [u8]| Incoming {
        at: Position(1),
        device,
        received_ms: NOW,
        said: Said::Telemetry(body),
    };
    let unknown = Incoming {
        at: Position(1),
        device: DeviceId(f.tenant.0),
        ..incoming(b"{}")
    };
    let batch = [
        incoming(br#"{"a":1}"#),
        incoming(b"nonsense"),
        unknown,
        incoming(br#"{"b":1}"#),
    ];
    let ingested = f.platform.ingest(&batch, Position(1), NOW, &mut NoOutlet).unwrap();
    assert_eq!(
        ingested.refused.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [1, 2]
    );
    assert_eq!((ingested.messages, ingested.points), (4, 2));
    assert_eq!(f.points(device.entity(), "b").len(), 1);
}

#[test]
fn calls_to_devices_go_on_with_their_answers_or_run_out() {
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
    f.say(device, 0, Said::Alive);
    let body = br#"{"method":"m","params":{}}"#;
    assert_eq!(f.say(device, 1, Said::RpcRequest { id: 1, body }), ["call 1 m"]);
    f.platform.answer(1, Ok(json!({"ok": true})), NOW + 2, &mut f.seen);
    assert_eq!(f.seen.take(), ["log answered"]);
    assert_eq!(f.say(device, 3, Said::RpcRequest { id: 2, body }), ["call 2 m"]);
    assert!(f.tick(5_000).is_empty());
    assert_eq!(f.tick(20_000), ["log failed"]);
    assert_eq!(f.platform.stats().waiting_calls, 0);
}

#[test]
fn users_save_telemetry_of_anything() {
    let mut f = fixture();
    let telemetry = Telemetry::decode(br#"{"ts":1700000000001,"values":{"a":1}}"#, NOW, &Limits::default()).unwrap();
    let save = |f: &mut Fixture, position| {
        f.platform
            .save_telemetry(f.tenant.entity(), &telemetry, 0, (Position(position), NOW), &mut f.seen)
            .unwrap();
    };
    save(&mut f, 1);
    assert_eq!(f.seen.take(), ["telemetry 1 a"]);
    assert_eq!(f.points(f.tenant.entity(), "a"), [(1, Value::Long(1))]);
    assert_eq!(f.platform.usage(f.tenant, Counter::StoredPoints), 1);
    // It is replayed after a crash, and not counted again.
    f.platform.checkpoint().unwrap();
    f.restart();
    save(&mut f, 1);
    assert_eq!(f.points(f.tenant.entity(), "a"), [(1, Value::Long(1))]);
    assert_eq!(f.platform.usage(f.tenant, Counter::StoredPoints), 1);
    save(&mut f, 2);
    assert_eq!(f.platform.usage(f.tenant, Counter::StoredPoints), 2);
}

/// The tenant may use so much; 0 is no limit.
fn limit(f: &Fixture, configuration: Json) {
    let entities = f.platform.entities();
    let mut profile = entities.default_tenant_profile(NOW).unwrap();
    profile.profile_data = json!({"configuration": configuration});
    entities.save_tenant_profile(profile, NOW).unwrap();
}

#[test]
fn what_a_tenant_has_used_up_is_off_until_the_next_month() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "SIMPLE"}));
    f.say(device, 1, Said::Telemetry(br#"{"batteryLevel":10}"#));
    f.say(device, 2, Said::Telemetry(br#"{"batteryLevel":50}"#));
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
    // No new alarm, but the message goes on.
    limit(&f, json!({"maxCreatedAlarms": 1}));
    let seen = f.say(device, 3, Said::Telemetry(br#"{"batteryLevel":9}"#));
    assert_eq!(
        seen,
        [
            "failed alarm rules: Alarms creation is disabled",
            "telemetry 3 batteryLevel"
        ]
    );
    assert_eq!(f.alarms().len(), 1);
    assert_eq!(states(&f), [("alarmApiState", "DISABLED")]);
    assert!(states(&f).is_empty(), "told once");
    // More is allowed: the rule begins anew.
    limit(&f, json!({"maxCreatedAlarms": 3}));
    assert_eq!(states(&f), [("alarmApiState", "ENABLED")]);
    let seen = f.say(device, 4, Said::Telemetry(br#"{"batteryLevel":9}"#));
    assert_eq!(seen, ["Alarm Created CRITICAL", "telemetry 4 batteryLevel"]);
    // Nothing more is stored.
    let stored = f.platform.usage(f.tenant, Counter::StoredPoints);
    limit(&f, json!({"maxDPStorageDays": stored + 1}));
    f.say(device, 5, Said::Telemetry(br#"{"a":1}"#));
    let seen = f.say(device, 6, Said::Telemetry(br#"{"a":2}"#));
    assert!(
        seen.iter()
            .any(|seen| seen.ends_with("DB storage writes are disabled due to API limits!")),
        "{seen:?}"
    );
    assert_eq!(f.points(device.entity(), "a"), [(5, Value::Long(1))]);
    assert_eq!(states(&f), [("dbApiState", "DISABLED")]);
    // No rule node runs.
    let used = f.platform.usage(f.tenant, Counter::RuleNodes);
    limit(&f, json!({"maxREExecutions": used}));
    assert!(f.say(device, 7, Said::Telemetry(br#"{"a":3}"#)).is_empty());
    assert_eq!(f.platform.stats().over_limit_messages_total, 1);
    assert_eq!(
        states(&f),
        [("dbApiState", "ENABLED"), ("ruleEngineApiState", "DISABLED")]
    );
    // The states outlive a restart, since the counts do, and end with the month.
    f.platform.checkpoint().unwrap();
    f.restart();
    f.position = 7;
    let all = states(&f);
    let off: Vec<_> = all.iter().filter(|(_, state)| *state != "ENABLED").collect();
    assert_eq!((all.len(), off), (5, vec![&("ruleEngineApiState", "DISABLED")]));
    let next_month = 20 * 86_400_000;
    f.tick(next_month);
    assert_eq!(states(&f), [("ruleEngineApiState", "ENABLED")]);
    let seen = f.say(device, next_month + 1, Said::Telemetry(br#"{"a":4}"#));
    assert!(seen.iter().any(|seen| seen.starts_with("telemetry")), "{seen:?}");
}

/// What was stored and what was not is the same after a kill, whatever counts and limits say by then.
#[test]
fn a_replay_stores_what_was_stored_and_no_more() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let bodies: [&[u8]; 6] = [
        br#"[{"ts":1700000000001,"values":{"a":1}},{"ts":1700000000002,"values":{"a":2}}]"#,
        br#"{"ts":1700000000003,"values":{"a":3}}"#,
        // The limit is reached in the middle of this one, which is stored as a whole.
        br#"[{"ts":1700000000004,"values":{"a":4}},{"ts":1700000000005,"values":{"a":5}}]"#,
        br#"{"ts":1700000000006,"values":{"a":6}}"#,
        br#"{"ts":1700000000007,"values":{"a":7}}"#,
        br#"{"ts":1700000000008,"values":{"a":8}}"#,
    ];
    let say = |f: &mut Fixture, number: usize| {
        f.position = number as u64;
        f.say(device, 10, Said::Telemetry(bodies[number]));
    };
    f.position = 0;
    let values = |f: &Fixture| -> Vec<i64> { f.points(device.entity(), "a").iter().map(|(ts, _)| *ts).collect() };
    limit(&f, json!({"maxDPStorageDays": 4}));
    (0..5).for_each(|number| say(&mut f, number));
    assert_eq!(values(&f), [1, 2, 3, 4, 5]);
    assert_eq!(f.platform.usage(f.tenant, Counter::StoredPoints), 5);
    // More is allowed, and the next one is stored.
    limit(&f, json!({"maxDPStorageDays": 100}));
    say(&mut f, 5);
    assert_eq!(values(&f), [1, 2, 3, 4, 5, 8]);
    // Something of it all goes to the repository, with the position.
    f.say(device, 11, Said::Attributes(br#"{"x":1}"#));
    for restarts in 0..2 {
        // The time-series store has nothing; the limit is another one.
        f.restart();
        assert_eq!(
            (f.platform.replay_position(), f.platform.applied_position()),
            (Position(0), Position(7))
        );
        limit(&f, json!({"maxDPStorageDays": restarts}));
        (0..6).for_each(|number| say(&mut f, number));
        assert_eq!(values(&f), [1, 2, 3, 4, 5, 8]);
        assert_eq!(f.platform.usage(f.tenant, Counter::StoredPoints), 6);
    }
}

#[test]
fn scripts_of_a_tenant_that_has_used_them_up_fail() {
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
    f.say(device, 1, Said::Telemetry(br#"{"a":1}"#));
    let used = f.platform.usage(f.tenant, Counter::Scripts);
    limit(&f, json!({"maxJSExecutions": used}));
    let seen = f.say(device, 2, Said::Telemetry(br#"{"a":2}"#));
    assert_eq!(seen, ["failed script: JS Execution is disabled due to API limits!"]);
    assert_eq!(f.platform.usage(f.tenant, Counter::Scripts), used);
}

#[test]
fn a_device_with_too_many_keys_is_told_and_keeps_those_that_it_has() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let body: serde_json::Map<String, Json> = (0..10_000).map(|n| (format!("k{n}"), json!(n))).collect();
    f.say(device, 0, Said::Telemetry(Json::from(body).to_string().as_bytes()));
    let said = f.say(device, 1, Said::Telemetry(br#"{"k7":8,"another":1}"#));
    assert!(said.iter().any(|said| said.contains("too many keys")), "{said:?}");
    assert_eq!(
        f.points(device.entity(), "k7"),
        [(0, Value::Long(7)), (1, Value::Long(8))]
    );
    assert!(f.points(device.entity(), "another").is_empty());
    let other = f.device("E", "", Json::Null);
    f.say(other, 2, Said::Telemetry(br#"{"another":1}"#));
    assert_eq!(f.points(other.entity(), "another"), [(2, Value::Long(1))]);
}
