//! Attributes that users change: what everyone sees of them, and which chains are told.

use platform::decode::{Limits, attributes};
use platform::ids::EntityId;
use platform::model::Scope;
use platform::Said;
use serde_json::{Value as Json, json};
use timeseries::Value;

use crate::fixture::{Fixture, NOW, fixture};

fn save(f: &mut Fixture, entity: EntityId, body: &str) -> Vec<String> {
    let values = attributes(body.as_bytes(), &Limits::default()).unwrap();
    let saved = f
        .platform
        .save_attributes(entity, Scope::ServerScope, &values, NOW, &mut f.seen);
    saved.map(|()| f.seen.take()).unwrap()
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
    assert_eq!(shown(Some(&["active"])), [active.clone()]);
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
