//! What a replay after a kill must not do again, and not do for the first time.

use platform::model::Device;
use platform::{Counter, Said};
use serde_json::{Value as Json, json};
use timeseries::Position;

use crate::fixture::{Fixture, fixture};

/// All that was acknowledged is said again, for the points that the time-series store may not have.
fn kill(f: &mut Fixture) {
    f.platform.checkpoint().unwrap();
    f.restart();
    assert_eq!(f.platform.replay_position(), Position(0));
    f.position = 0;
}

#[test]
fn devices_behind_a_gateway_that_were_deleted_or_renamed_stay_so() {
    let mut f = fixture();
    let gateway = f.device("G", "", json!({"gateway": true}));
    let said = Said::GatewayTelemetry(br#"{"Deleted":[{"t":1}],"Renamed":[{"t":1}],"Left":[{"t":1}]}"#);
    f.say(gateway, 1, said);
    let find = |f: &Fixture, name: &str| f.platform.entities().find_by_name::<Device>(f.tenant.0, name).unwrap();
    let deleted = find(&f, "Deleted").unwrap().id.unwrap();
    f.platform.entities().delete_device(deleted).unwrap();
    let mut renamed = find(&f, "Renamed").unwrap();
    renamed.name = "Another name".to_owned();
    f.platform.entities().save_device(renamed, None, 1).unwrap();
    kill(&mut f);
    let again = f.say(gateway, 1, said);
    assert_eq!(
        ["Deleted", "Renamed"].map(|name| find(&f, name)),
        [None, None],
        "{again:?}"
    );
    let left = find(&f, "Left").unwrap().id.unwrap().entity();
    assert_eq!(f.points(left, "t").len(), 1);
    f.say(gateway, 2, said);
    assert!(find(&f, "Deleted").is_some(), "a new one, which it speaks for now");
}

#[test]
fn a_limit_holds_behind_a_checkpoint_as_it_did() {
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
            f.say(device, after_ms, Said::Telemetry(br#"{"a":1}"#));
        }
    };
    let stored = |f: &Fixture| -> Vec<i64> { f.points(device.entity(), "a").iter().map(|(ts, _)| *ts).collect() };
    say_all(&mut f);
    assert_eq!(stored(&f), [1, 2]);
    kill(&mut f);
    say_all(&mut f);
    assert_eq!(stored(&f), [1, 2]);
    assert_eq!(f.platform.usage(f.tenant, Counter::StoredPoints), 2);
}
