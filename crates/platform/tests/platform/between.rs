//! What people and chains change while messages come: no message falls between before and after.

use platform::decode::attributes;
use platform::ids::{AlarmId, DeviceId, Uuid};
use platform::model::{Alarm, AlarmSeverity, Attribute, DeviceProfile, RuleChain, Scope};
use platform::repository::Change;
use platform::{Incoming, Said};
use serde_json::{Value as Json, json};
use timeseries::{Position, Value};

use crate::fixture::{Fixture, NOW, fixture};

fn node(class: &str, name: &str, configuration: &Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "configuration": configuration})
}

#[test]
fn a_message_finds_a_root_chain_while_another_one_becomes_it() {
    let mut f = fixture();
    let device = f.device("D", "", Json::Null);
    let entities = f.platform.entities();
    let old = entities.root_chain(f.tenant).unwrap().unwrap().id.unwrap();
    let chain = RuleChain {
        tenant_id: f.tenant,
        name: "New".to_owned(),
        ..RuleChain::default()
    };
    let new = entities.save_rule_chain(chain, NOW).unwrap().id.unwrap();
    let metadata = json!({"firstNodeIndex": 0, "nodes": [node("action.TbLogNode", "new", &json!({}))]});
    entities.save_rule_chain_metadata(new, metadata, NOW).unwrap();
    entities.set_root_chain(new, NOW).unwrap();
    f.platform.reload_chain(old, NOW).unwrap();
    let said = f.say(device, 1, Said::Telemetry(br#"{"a":1}"#));
    assert_eq!(
        said,
        ["telemetry 1 a"],
        "the old one, as long as the new one does not run"
    );
    f.platform.reload_chain(new, NOW).unwrap();
    assert_eq!(f.say(device, 2, Said::Telemetry(br#"{"a":2}"#)), ["log new"]);
    f.platform.reload_chain(old, NOW).unwrap();
    assert_eq!(f.say(device, 3, Said::Telemetry(br#"{"a":3}"#)), ["log new"]);
}

/// Attributes that its devices say become its tenant's; alarm rules compare with the tenant's `limit`.
fn device_of_limited_tenant(f: &Fixture) -> DeviceId {
    let nodes = json!([
        node("filter.TbMsgTypeSwitchNode", "switch", &json!({})),
        node(
            "transform.TbChangeOriginatorNode",
            "to tenant",
            &json!({"originatorSource": "TENANT"})
        ),
        node(
            "telemetry.TbMsgAttributesNode",
            "save",
            &json!({"scope": "SERVER_SCOPE"})
        ),
    ]);
    let connections = json!([
        {"fromIndex": 0, "toIndex": 1, "type": "Post attributes"},
        {"fromIndex": 1, "toIndex": 2, "type": "Success"},
    ]);
    f.set_root_chain(json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections}));
    let value =
        json!({"defaultValue": 100, "dynamicValue": {"sourceType": "CURRENT_TENANT", "sourceAttribute": "limit"}});
    let filter = json!({"key": {"type": "TIME_SERIES", "key": "level"}, "valueType": "NUMERIC",
        "predicate": {"type": "NUMERIC", "operation": "GREATER", "value": value}});
    let mut profile = DeviceProfile {
        tenant_id: f.tenant,
        name: "tank".to_owned(),
        ..DeviceProfile::default()
    };
    profile.profile_data["alarms"] = json!([{"id": "a", "alarmType": "full",
        "createRules": {"MAJOR": {"condition": {"condition": [filter], "spec": {"type": "SIMPLE"}}}}}]);
    f.platform.entities().save_device_profile(profile, NOW).unwrap();
    f.device("T", "tank", Json::Null)
}

#[test]
fn a_threshold_is_the_owners_attribute_as_the_batch_changed_it() {
    let mut f = fixture();
    let device = device_of_limited_tenant(&f);
    let limit = attributes(br#"{"limit":20}"#, &platform::decode::Limits::default()).unwrap();
    f.platform
        .save_attributes(f.tenant.entity(), Scope::ServerScope, &limit, NOW, &mut f.seen)
        .unwrap();
    f.seen.take();
    let said = [
        Said::Attributes(br#"{"limit":30}"#),
        Said::Telemetry(br#"{"level":25}"#),
    ];
    let batch: Vec<Incoming<'_>> = said
        .into_iter()
        .zip(1..)
        .map(|(said, at)| Incoming {
            at: Position(at),
            device,
            received_ms: NOW,
            said,
        })
        .collect();
    f.platform.ingest(&batch, Position(2), NOW, &mut f.seen).unwrap();
    assert_eq!(f.seen.take(), ["SERVER_SCOPE limit -"]);
    f.position = 2;
    assert!(f.say(device, 1, Said::Telemetry(br#"{"level":26}"#)).is_empty());
    let said = f.say(device, 2, Said::Telemetry(br#"{"level":31}"#));
    assert_eq!(said, ["Alarm Created MAJOR"]);
}

/// Users delete devices without waiting for the batch in which they say something.
#[test]
fn what_a_batch_stores_of_a_device_that_was_deleted_meanwhile_goes_with_the_rest() {
    let f = fixture();
    let device = f.device("D", "", Json::Null);
    let entities = f.platform.entities();
    entities.delete_device(device).unwrap();
    let alarm = Alarm {
        id: Some(AlarmId(Uuid([7; 16]))),
        ..Alarm::new(f.tenant, device.entity(), "hot", AlarmSeverity::Major)
    };
    let attribute = Attribute {
        key: "a".to_owned(),
        value: Value::Long(1),
        last_update_ms: NOW,
    };
    let changes = [
        Change::PutAlarm {
            alarm,
            propagated_to: vec![f.tenant.0],
        },
        Change::PutAttribute {
            entity: device.0,
            scope: Scope::ClientScope,
            attribute,
        },
    ];
    entities.repository().apply(&changes).unwrap();
    assert_eq!(f.alarms().len(), 1);
    assert_eq!(entities.deleted().unwrap(), [device.0]);
    entities.forget_deleted(&[device.0]).unwrap();
    assert!(f.alarms().is_empty());
    let left = entities.repository().attributes(device.0, Scope::ClientScope, None);
    assert!(left.unwrap().is_empty());
    assert!(entities.deleted().unwrap().is_empty());
}
