//! Nodes that create and clear alarms: what chains are told of it, what alarm rules of the profile make of it, and that a circle ends.

use platform::ids::EntityId;
use platform::model::{Alarm, AlarmSeverity, Asset, Relation, RelationGroup};
use platform::repository::AlarmSelection;
use platform::{AlarmChange, NoOutlet, PageLink, Said};
use serde_json::{Value as Json, json};

use crate::fixture::{Fixture, NOW, fixture};

/// The one that creates alarms.
const NODE: &str = "11111111-2222-11ee-8888-999999999999";

/// Nodes for alarms of this type, led to by `more`; what the switch says by `logged` is logged.
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
fn the_originators_chain_is_told_what_nodes_do_to_alarms() {
    let mut f = fixture();
    let more = [from_switch("Post telemetry", 2), from_switch("Post attributes", 3)];
    chain(&f, "hot", &NEWS, &more);
    let device = f.device("D", "", Json::Null);
    f.say(device, 0, Said::Alive);
    f.seen.1.clear();
    let said = f.say(device, 1, Said::Telemetry(br#"{"t":1}"#));
    assert_eq!(said, ["Alarm Created MAJOR", "log Entity Created"]);
    let told = f.seen.1.remove(0);
    let node = format!("\"ruleNodeId\":\"{NODE}\"");
    for part in [r#""type":"hot""#, r#""deviceName":"D""#, &node] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let said = f.say(device, 2, Said::Telemetry(br#"{"t":2}"#));
    assert_eq!(said, ["Alarm Updated MAJOR", "log Entity Updated"]);
    let said = f.say(device, 3, Said::Attributes(br#"{"a":1}"#));
    assert_eq!(said, ["Alarm Cleared MAJOR", "log Alarm Cleared"]);
    assert!(
        f.say(device, 4, Said::Attributes(br#"{"a":1}"#)).is_empty(),
        "nothing to clear"
    );
}

#[test]
fn rules_know_of_alarms_that_nodes_clear() {
    let mut f = fixture();
    chain(&f, "battery low", &[], &[from_switch("Post attributes", 3)]);
    let device = f.meter(json!({"type": "SIMPLE"}));
    f.say(device, 0, Said::Alive);
    let low = Said::Telemetry(br#"{"batteryLevel":10}"#);
    assert_eq!(f.say(device, 1, low), ["Alarm Created CRITICAL"]);
    let cleared = f.say(device, 2, Said::Attributes(br#"{"a":1}"#));
    assert_eq!(cleared, ["Alarm Cleared CRITICAL"]);
    assert_eq!(f.say(device, 3, low), ["Alarm Created CRITICAL"]);
    let open: Vec<bool> = f.alarms().iter().map(|alarm| !alarm.cleared).collect();
    assert_eq!(open, [true, false]);
}

#[test]
fn an_alarm_that_a_node_made_is_that_of_the_rules() {
    let mut f = fixture();
    chain(&f, "battery low", &[], &[from_switch("Post attributes", 2)]);
    let device = f.meter(json!({"type": "SIMPLE"}));
    let level = |level: &str| format!("{{\"batteryLevel\":{level}}}").into_bytes();
    assert!(f.say(device, 1, Said::Telemetry(&level("50"))).is_empty());
    let made = f.say(device, 2, Said::Attributes(br#"{"a":1}"#));
    assert_eq!(made, ["Alarm Created MAJOR"]);
    assert_eq!(
        f.say(device, 3, Said::Telemetry(&level("10"))),
        ["Alarm Severity Updated CRITICAL"]
    );
    assert_eq!(
        f.say(device, 4, Said::Telemetry(&level("60"))),
        ["Alarm Cleared CRITICAL"]
    );
    assert_eq!(f.alarms().len(), 1);
}

#[test]
fn alarms_that_bring_about_alarms_end() {
    let mut f = fixture();
    let more = [
        from_switch("Post telemetry", 2),
        from_switch("Entity Created", 2),
        from_switch("Entity Updated", 2),
    ];
    chain(&f, "hot", &[], &more);
    let device = f.device("D", "", Json::Null);
    f.say(device, 0, Said::Alive);
    let said = f.say(device, 1, Said::Telemetry(br#"{"t":1}"#));
    let last = said.last().unwrap();
    assert!(
        last.starts_with("failed create: ") && last.ends_with("is there a circle?"),
        "{last}"
    );
    assert!(said.len() <= 53, "{}", said.len());
    assert_eq!(f.alarms().len(), 1);
}

#[test]
fn checkpoints_that_lead_to_each_other_end() {
    let mut f = fixture();
    let nodes = json!([{"type": "org.thingsboard.rule.engine.flow.TbCheckpointNode", "name": "c", "configuration": {"queueName": "Main"}}]);
    let connections = json!([{"fromIndex": 0, "toIndex": 0, "type": "Success"}]);
    f.set_root_chain(json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections}));
    let device = f.device("D", "", Json::Null);
    let said = f.say(device, 1, Said::Telemetry(br#"{"t":1}"#));
    let is_end = |said: &String| said.starts_with("failed c: ") && said.ends_with("is there a circle?");
    assert!(said.iter().all(is_end) && !said.is_empty(), "{said:?}");
}

/// Many may show an alarm: they are not looked for at each of its updates.
#[test]
fn who_shows_an_alarm_is_looked_for_when_it_is_made_or_propagated_another_way() {
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
