//! Changes of users and chains while messages arrive: each message is processed before or after them.

use platform::decode::attributes;
use platform::ids::{AlarmId, DeviceId, Uuid};
use platform::model::{Alarm, AlarmSeverity, Attribute, AttributeScope, DeviceProfile, RuleChain};
use platform::repository::RepositoryChange;
use platform::{IngestInput, IngestMessage};
use serde_json::{Value as Json, json};
use timeseries::{LogPosition, PointValue};

use super::fixture::{Fixture, NOW, fixture};

fn node(class: &str, name: &str, configuration: &Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "configuration": configuration})
}

#[test]
fn messages_always_find_a_root_chain() {
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
    let outcome = f.publish(device, 1, IngestMessage::Telemetry(br#"{"a":1}"#));
    assert_eq!(
        outcome,
        ["telemetry 1 a"],
        "the old chain runs until the new one is installed"
    );
    f.platform.reload_chain(new, NOW).unwrap();
    assert_eq!(
        f.publish(device, 2, IngestMessage::Telemetry(br#"{"a":2}"#)),
        ["log new"]
    );
    f.platform.reload_chain(old, NOW).unwrap();
    assert_eq!(
        f.publish(device, 3, IngestMessage::Telemetry(br#"{"a":3}"#)),
        ["log new"]
    );
}

/// Attributes of its devices become attributes of its tenant. Alarm rules compare with the tenant's `limit`.
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
fn threshold_uses_owner_attributes_changed_in_the_batch() {
    let mut f = fixture();
    let device = device_of_limited_tenant(&f);
    let limit = attributes(br#"{"limit":20}"#, &platform::decode::DecodeLimits::default()).unwrap();
    f.platform
        .save_attributes(f.tenant.entity(), AttributeScope::ServerScope, &limit, NOW, &mut f.seen)
        .unwrap();
    f.seen.take();
    let messages = [
        IngestMessage::Attributes(br#"{"limit":30}"#),
        IngestMessage::Telemetry(br#"{"level":25}"#),
    ];
    let batch: Vec<IngestInput<'_>> = messages
        .into_iter()
        .zip(1..)
        .map(|(message, at)| IngestInput {
            at: LogPosition(at),
            device,
            received_ms: NOW,
            message,
        })
        .collect();
    f.platform.ingest(&batch, LogPosition(2), NOW, &mut f.seen).unwrap();
    assert_eq!(f.seen.take(), ["SERVER_SCOPE limit -"]);
    f.position = 2;
    assert!(
        f.publish(device, 1, IngestMessage::Telemetry(br#"{"level":26}"#))
            .is_empty()
    );
    let outcome = f.publish(device, 2, IngestMessage::Telemetry(br#"{"level":31}"#));
    assert_eq!(outcome, ["Alarm Created MAJOR"]);
}

/// Users delete devices independently of the batch with the devices' messages.
#[test]
fn points_written_for_a_deleted_device_are_removed() {
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
        value: PointValue::Long(1),
        last_update_ms: NOW,
    };
    let changes = [
        RepositoryChange::PutAlarm {
            alarm,
            propagated_to: vec![f.tenant.0],
        },
        RepositoryChange::PutAttribute {
            entity: device.0,
            scope: AttributeScope::ClientScope,
            attribute,
        },
    ];
    entities.repository().apply(&changes).unwrap();
    assert_eq!(f.alarms().len(), 1);
    assert_eq!(entities.deleted().unwrap(), [device.0]);
    entities.finish_deleted(&[device.0]).unwrap();
    assert!(f.alarms().is_empty());
    let left = entities
        .repository()
        .attributes(device.0, AttributeScope::ClientScope, None);
    assert!(left.unwrap().is_empty());
    assert!(entities.deleted().unwrap().is_empty());
}
