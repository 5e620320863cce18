//! A replay after a crash must not repeat effects, or cause new ones.

use platform::model::Device;
use platform::{IngestMessage, UsageCounter};
use serde_json::{Value as Json, json};
use timeseries::LogPosition;

use super::fixture::{Fixture, fixture};

/// Restarts and replays everything acknowledged, for points that the time-series store may not have.
fn kill(f: &mut Fixture) {
    f.platform.checkpoint().unwrap();
    f.restart();
    assert_eq!(f.platform.replay_position(), LogPosition(0));
    f.position = 0;
}

#[test]
fn replay_does_not_recreate_devices_of_a_gateway() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    let message = IngestMessage::GatewayTelemetry(br#"{"Deleted":[{"t":1}],"Renamed":[{"t":1}],"Left":[{"t":1}]}"#);
    f.publish(gateway, 1, message);
    let find = |f: &Fixture, name: &str| f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
    let deleted = find(&f, "Deleted").unwrap().id.unwrap();
    f.platform.entities().delete_device(deleted).unwrap();
    let mut renamed = find(&f, "Renamed").unwrap();
    renamed.name = "Another name".to_owned();
    f.platform.entities().save_device(renamed, None, 1).unwrap();
    kill(&mut f);
    let again = f.publish(gateway, 1, message);
    assert_eq!(
        ["Deleted", "Renamed"].map(|name| find(&f, name)),
        [None, None],
        "{again:?}"
    );
    let left = find(&f, "Left").unwrap().id.unwrap().entity();
    assert_eq!(f.points(left, "t").len(), 1);
    f.publish(gateway, 2, message);
    assert!(find(&f, "Deleted").is_some(), "a new device, for the new message");
}

#[test]
fn replay_applies_limits_after_a_checkpoint() {
    let mut f = fixture();
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    f.set_root_chain(json!({"firstNodeIndex": 0, "nodes": [
        {"type": class("flow.TbCheckpointNode"), "name": "checkpoint", "configuration": {"queueName": "Main"}},
        {"type": class("telemetry.TbMsgTimeseriesNode"), "name": "save", "configuration": {}},
    ], "connections": [{"fromIndex": 0, "toIndex": 1, "type": "Success"}]}));
    let device = f.device("D", "", Json::Null);
    let entities = f.platform.entities();
    let mut profile = entities.default_tenant_profile(1).unwrap();
    profile.profile_data = json!({"configuration": {"maxDPStorageDays": 2}});
    entities.save_tenant_profile(profile, 1).unwrap();
    let say_all = |f: &mut Fixture| {
        for after_ms in 1..=4 {
            f.publish(device, after_ms, IngestMessage::Telemetry(br#"{"a":1}"#));
        }
    };
    let stored = |f: &Fixture| -> Vec<i64> { f.points(device.entity(), "a").iter().map(|(ts, _)| *ts).collect() };
    say_all(&mut f);
    assert_eq!(stored(&f), [1, 2]);
    kill(&mut f);
    say_all(&mut f);
    assert_eq!(stored(&f), [1, 2]);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::StoredPoints), 2);
}
