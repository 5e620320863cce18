//! Nodes that create and clear alarms: events to chains, effects on the profile's alarm rules, and the end of cycles.

use platform::ids::EntityId;
use platform::model::{Alarm, AlarmSeverity, Asset, Relation, RelationGroup};
use platform::repository::AlarmSelection;
use platform::{AlarmChange, IngestMessage, NoOutlet, PageLink};
use serde_json::{Value as Json, json};

use super::fixture::{Fixture, NOW, fixture};

/// The id of the node that creates alarms.
const NODE: &str = "11111111-2222-11ee-8888-999999999999";

/// A root chain with nodes for alarms of this type, plus the connections in `more`. Switch outputs in `logged` are
/// logged.
fn chain(f: &Fixture, kind: &str, logged: &[&str], more: &[Json]) {
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    let alarm = json!({"alarmType": kind, "severity": "MAJOR"});
    let mut nodes = vec![
        json!({"type": class("filter.TbMsgTypeSwitchNode"), "name": "switch"}),
        json!({"type": class("profile.TbDeviceProfileNode"), "name": "rules"}),
        json!({"id": {"entityType": "RULE_NODE", "id": NODE}, "type": class("action.TbCreateAlarmNode"), "name": "create",
            "configuration": alarm}),
        json!({"type": class("action.TbClearAlarmNode"), "name": "clear", "configuration": alarm}),
    ];
    let mut connections = vec![json!({"fromIndex": 1, "toIndex": 0, "type": "Success"})];
    for label in logged {
        connections.push(json!({"fromIndex": 0, "toIndex": nodes.len(), "type": label}));
        nodes.push(json!({"type": class("action.TbLogNode"), "name": label}));
    }
    connections.extend_from_slice(more);
    f.set_root_chain(json!({"firstNodeIndex": 1, "nodes": nodes, "connections": connections}));
}

const NEWS: [&str; 3] = ["Entity Created", "Entity Updated", "Alarm Cleared"];

fn from_switch(label: &str, to: usize) -> Json {
    json!({"fromIndex": 0, "toIndex": to, "type": label})
}

#[test]
fn alarm_nodes_send_events_to_the_originators_chain() {
    let mut f = fixture();
    let more = [from_switch("Post telemetry", 2), from_switch("Post attributes", 3)];
    chain(&f, "hot", &NEWS, &more);
    let device = f.device("D", "", Json::Null);
    f.publish(device, 0, IngestMessage::Alive);
    f.seen.1.clear();
    let outcome = f.publish(device, 1, IngestMessage::Telemetry(br#"{"t":1}"#));
    assert_eq!(outcome, ["Alarm Created MAJOR", "log Entity Created"]);
    let event_text = f.seen.1.remove(0);
    let node = format!("\"ruleNodeId\":\"{NODE}\"");
    for part in [r#""type":"hot""#, r#""deviceName":"D""#, &node] {
        assert!(event_text.contains(part), "{part}: {event_text}");
    }
    let outcome = f.publish(device, 2, IngestMessage::Telemetry(br#"{"t":2}"#));
    assert_eq!(outcome, ["Alarm Updated MAJOR", "log Entity Updated"]);
    let outcome = f.publish(device, 3, IngestMessage::Attributes(br#"{"a":1}"#));
    assert_eq!(outcome, ["Alarm Cleared MAJOR", "log Alarm Cleared"]);
    assert!(
        f.publish(device, 4, IngestMessage::Attributes(br#"{"a":1}"#))
            .is_empty(),
        "no alarm to clear"
    );
}

#[test]
fn rules_notice_alarms_cleared_by_nodes() {
    let mut f = fixture();
    chain(&f, "battery low", &[], &[from_switch("Post attributes", 3)]);
    let device = f.meter(json!({"type": "SIMPLE"}));
    f.publish(device, 0, IngestMessage::Alive);
    let low = IngestMessage::Telemetry(br#"{"batteryLevel":10}"#);
    assert_eq!(f.publish(device, 1, low), ["Alarm Created CRITICAL"]);
    let cleared = f.publish(device, 2, IngestMessage::Attributes(br#"{"a":1}"#));
    assert_eq!(cleared, ["Alarm Cleared CRITICAL"]);
    assert_eq!(f.publish(device, 3, low), ["Alarm Created CRITICAL"]);
    let open: Vec<bool> = f.alarms().iter().map(|alarm| !alarm.cleared).collect();
    assert_eq!(open, [true, false]);
}

#[test]
fn rules_adopt_an_alarm_created_by_a_node() {
    let mut f = fixture();
    chain(&f, "battery low", &[], &[from_switch("Post attributes", 2)]);
    let device = f.meter(json!({"type": "SIMPLE"}));
    let level = |level: &str| format!("{{\"batteryLevel\":{level}}}").into_bytes();
    assert!(f.publish(device, 1, IngestMessage::Telemetry(&level("50"))).is_empty());
    let made = f.publish(device, 2, IngestMessage::Attributes(br#"{"a":1}"#));
    assert_eq!(made, ["Alarm Created MAJOR"]);
    assert_eq!(
        f.publish(device, 3, IngestMessage::Telemetry(&level("10"))),
        ["Alarm Severity Updated CRITICAL"]
    );
    assert_eq!(
        f.publish(device, 4, IngestMessage::Telemetry(&level("60"))),
        ["Alarm Cleared CRITICAL"]
    );
    assert_eq!(f.alarms().len(), 1);
}

#[test]
fn alarms_that_create_alarms_end() {
    let mut f = fixture();
    let more = [
        from_switch("Post telemetry", 2),
        from_switch("Entity Created", 2),
        from_switch("Entity Updated", 2),
    ];
    chain(&f, "hot", &[], &more);
    let device = f.device("D", "", Json::Null);
    f.publish(device, 0, IngestMessage::Alive);
    let outcome = f.publish(device, 1, IngestMessage::Telemetry(br#"{"t":1}"#));
    let last = outcome.last().unwrap();
    assert!(
        last.starts_with("failed create: ") && last.ends_with("check the chains for a cycle"),
        "{last}"
    );
    assert!(outcome.len() <= 53, "{}", outcome.len());
    assert_eq!(f.alarms().len(), 1);
}

#[test]
fn cyclic_checkpoints_end() {
    let mut f = fixture();
    let nodes = json!([{"type": "org.thingsboard.rule.engine.flow.TbCheckpointNode", "name": "c", "configuration": {"queueName": "Main"}}]);
    let connections = json!([{"fromIndex": 0, "toIndex": 0, "type": "Success"}]);
    f.set_root_chain(json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections}));
    let device = f.device("D", "", Json::Null);
    let outcome = f.publish(device, 1, IngestMessage::Telemetry(br#"{"t":1}"#));
    let is_end =
        |outcome: &String| outcome.starts_with("failed c: ") && outcome.ends_with("check the chains for a cycle");
    assert!(outcome.iter().all(is_end) && !outcome.is_empty(), "{outcome:?}");
}

/// Many entities may show an alarm, so they are not searched at each update.
#[test]
fn propagation_targets_are_searched_only_on_changes() {
    let f = fixture();
    let entities = f.platform.entities();
    let asset = |name: &str| {
        let asset = Asset {
            tenant_id: f.tenant,
            name: name.to_owned(),
            kind: "building".to_owned(),
            ..Asset::default()
        };
        entities.save_asset(asset, NOW).unwrap().id.unwrap().entity()
    };
    let device = f.device("D", "", Json::Null).entity();
    let contains = |from| {
        let relation = Relation {
            from,
            to: device,
            kind: "Contains".to_owned(),
            group: RelationGroup::Common,
            additional_info: None,
        };
        entities.save_relation(&relation).unwrap();
    };
    let shown = |entity: EntityId| {
        let selection = AlarmSelection {
            entity: Some(entity.id),
            ..AlarmSelection::default()
        };
        let found = entities.repository().alarms(&selection, &PageLink::new(10, 0));
        found.unwrap().total_elements
    };
    let (first, second) = (asset("first"), asset("second"));
    contains(first);
    let alarm = Alarm {
        propagate: true,
        ..Alarm::new(f.tenant, device, "hot", AlarmSeverity::Major)
    };
    let mut alarm = f.platform.save_alarm(alarm, NOW, &mut NoOutlet).unwrap();
    contains(second);
    f.platform
        .change_alarm(alarm.id.unwrap(), AlarmChange::Acknowledge, NOW, &mut NoOutlet)
        .unwrap();
    alarm.severity = AlarmSeverity::Critical;
    f.platform.save_alarm(alarm.clone(), NOW, &mut NoOutlet).unwrap();
    assert_eq!([first, second].map(shown), [1, 0]);
    alarm.propagate_relation_types = Some(vec!["Contains".to_owned()]);
    f.platform.save_alarm(alarm, NOW, &mut NoOutlet).unwrap();
    assert_eq!([first, second].map(shown), [1, 1]);
}
