//! A failing entity database: callers get an error, the change is not applied then or later, and the platform
//! recovers with the database.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::platform::fixture::{Fixture, NOW, fixture};
use platform::decode::{DecodeLimits, attributes};
use platform::entities::EntityError;
use platform::ids::EntityType;
use platform::model::{Alarm, AlarmSeverity, AttributeScope, Device, DeviceCredentials};
use platform::repository::{RepositoryError, Selection};
use platform::{AlarmChange, AttributesChange, IngestError, IngestInput, IngestMessage, UsageCounter};
use rusqlite::Connection;
use serde_json::{Value as Json, json};
use timeseries::{LogPosition, PointValue};

/// A second connection to the platform's database file.
struct Database(Connection);

impl Database {
    fn of(f: &Fixture) -> Database {
        Database(Connection::open(f.directory.path().join(platform::FILE_NAME)).unwrap())
    }

    /// Makes such a change fail within its transaction, as on a full disk.
    fn refuse(&self, event: &str) {
        let name = event.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        let trigger = format!("CREATE TRIGGER refuse_{name} BEFORE {event} BEGIN SELECT RAISE(ABORT, 'no room'); END");
        self.0.execute_batch(&trigger).unwrap();
    }

    fn refuse_all(&self) {
        for table in ["entity", "alarm", "attribute", "relation", "state"] {
            for change in ["INSERT", "UPDATE", "DELETE"] {
                self.refuse(&format!("{change} ON {table}"));
            }
        }
    }

    fn repair(&self) {
        let mut names = self
            .0
            .prepare("SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'refuse%'")
            .unwrap();
        let names: Vec<String> = names
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        for name in names {
            self.0.execute_batch(&format!("DROP TRIGGER {name}")).unwrap();
        }
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(done: Result<T, EntityError>) {
    let error = done.unwrap_err();
    assert!(
        matches!(&error, EntityError::Repository(RepositoryError::Storage { .. })),
        "{error:?}"
    );
    assert!(
        error.to_string().starts_with("the entity database failed to "),
        "{error}"
    );
}

fn new_device(f: &Fixture, name: &str) -> Device {
    Device {
        tenant_id: f.tenant,
        name: name.to_owned(),
        ..Device::default()
    }
}

fn count(f: &Fixture, kind: EntityType) -> usize {
    let repository = f.platform.entities().repository();
    repository.count(kind, &Selection::default()).unwrap()
}

/// A device, its profile and its credentials are stored in one transaction, and the memory matches the disk.
// fault: Write or sync fails; Entity database
#[test]
fn device_creation_is_atomic() {
    let f = fixture();
    let entities = f.platform.entities();
    let database = Database::of(&f);
    let kinds = [
        EntityType::Device,
        EntityType::DeviceProfile,
        EntityType::DeviceCredentials,
    ];
    let before = kinds.map(|kind| count(&f, kind));
    let wanted = Device {
        kind: "a new type".to_owned(),
        ..new_device(&f, "A")
    };
    // The first of the three rows, and the last one.
    for event in ["INSERT ON entity", "INSERT ON entity WHEN NEW.unique_key IS NOT NULL"] {
        database.refuse(event);
        refused(entities.save_device(wanted.clone(), Some("token"), NOW));
        assert_eq!(kinds.map(|kind| count(&f, kind)), before, "{event}");
        assert!(entities.find_by_name::<Device>(f.tenant.0, "A").unwrap().is_none());
        assert!(entities.find_credentials("token").unwrap().is_none());
        assert!(
            !entities
                .directory()
                .profiles()
                .any(|profile| profile.name == "a new type")
        );
        database.repair();
    }
    let saved = entities.save_device(wanted, Some("token"), NOW).unwrap();
    assert_eq!(saved.kind, "a new type");
    assert_eq!(kinds.map(|kind| count(&f, kind)), before.map(|count| count + 1));
    assert!(entities.directory().device(saved.id.unwrap()).is_some());
}

// fault: Write or sync fails; Entity database
#[test]
fn failed_change_leaves_the_device_unchanged() {
    let f = fixture();
    let entities = f.platform.entities();
    let id = f.device("A", "", Json::Null);
    let database = Database::of(&f);
    let stored: Device = entities.get(id.0).unwrap();
    let credentials = entities.device_credentials(id).unwrap();
    let entry = entities.directory().device(id).cloned();

    database.refuse_all();
    let renamed = Device {
        name: "B".to_owned(),
        kind: "another".to_owned(),
        device_profile_id: None,
        ..stored.clone()
    };
    refused(entities.save_device(renamed.clone(), None, NOW));
    let other_token = DeviceCredentials {
        credentials_id: Some("other".to_owned()),
        ..credentials.clone()
    };
    refused(entities.save_device_credentials(other_token.clone(), NOW));
    refused(entities.delete_device(id));
    assert_eq!(entities.get::<Device>(id.0).unwrap(), stored);
    assert_eq!(entities.device_credentials(id).unwrap(), credentials);
    assert_eq!(
        format!("{:?}", entities.directory().device(id)),
        format!("{:?}", entry.as_ref())
    );

    database.repair();
    assert_eq!(entities.save_device(renamed, None, NOW).unwrap().name, "B");
    entities.save_device_credentials(other_token, NOW).unwrap();
    entities.delete_device(id).unwrap();
    assert!(entities.find::<Device>(id.0).unwrap().is_none());
}

/// Another program locks the file for longer than the platform waits: an error, but nothing is lost.
// fault: Write or sync fails; Entity database
#[test]
fn locked_database_is_a_temporary_error() {
    let f = fixture();
    let database = Database::of(&f);
    database.0.execute_batch("BEGIN IMMEDIATE").unwrap();
    let entities = f.platform.entities();
    refused(entities.save_device(new_device(&f, "A"), None, NOW));
    // Readers do not wait.
    assert_eq!(count(&f, EntityType::Device), 0);
    database.0.execute_batch("ROLLBACK").unwrap();
    entities.save_device(new_device(&f, "A"), None, NOW).unwrap();
    assert_eq!(count(&f, EntityType::Device), 1);
}

// fault: Write or sync fails; Entity database
#[test]
fn user_alarms_are_stored_at_once_or_rejected() {
    let mut f = fixture();
    let device = f.device("A", "", Json::Null);
    let database = Database::of(&f);
    let wanted = Alarm::new(f.tenant, device.entity(), "fire", AlarmSeverity::Critical);

    database.refuse_all();
    refused(f.platform.save_alarm(wanted.clone(), NOW, &mut f.seen));
    assert_eq!(f.seen.take(), Vec::<String>::new(), "no event is sent");
    database.repair();
    f.tick(1000);
    assert!(f.alarms().is_empty());
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::CreatedAlarms), 0);
    let alarm = f.platform.save_alarm(wanted, NOW, &mut f.seen).unwrap();
    assert_eq!(f.seen.take(), ["Alarm Created CRITICAL"]);
    assert_eq!(f.platform.usage(f.tenant, UsageCounter::CreatedAlarms), 1);
    let id = alarm.id.unwrap();

    for change in [AlarmChange::Acknowledge, AlarmChange::Clear] {
        let before = f.alarms();
        database.refuse_all();
        refused(f.platform.change_alarm(id, change, NOW, &mut f.seen));
        refused(f.platform.delete_alarm(id, NOW, &mut f.seen));
        assert_eq!(f.seen.take(), Vec::<String>::new());
        database.repair();
        f.tick(2000);
        assert_eq!(f.alarms(), before);
        f.platform.change_alarm(id, change, NOW, &mut f.seen).unwrap();
        f.seen.take();
    }
    assert!(f.alarms()[0].acknowledged && f.alarms()[0].cleared);
    f.platform.delete_alarm(id, NOW, &mut f.seen).unwrap();
    assert!(f.alarms().is_empty());
}

/// These changes come from the log, so the call is repeated until it succeeds.
// fault: Write or sync fails; Entity database
#[test]
fn user_attributes_are_stored_after_recovery() {
    let mut f = fixture();
    let device = f.device("A", "", Json::Null).entity();
    let database = Database::of(&f);
    let values = attributes(br#"{"target":21,"mode":"eco"}"#, &DecodeLimits::default()).unwrap();
    let at = LogPosition(1);
    database.refuse("INSERT ON attribute WHEN NEW.key = 'mode'");
    let read = |f: &Fixture| {
        f.platform
            .attributes(device, AttributeScope::SharedScope, None)
            .unwrap()
    };
    for _ in 0..2 {
        let change = (AttributeScope::SharedScope, AttributesChange::Save(&values));
        let done = f
            .platform
            .change_attributes(device, change, (at, NOW), NOW, &mut f.seen);
        assert!(matches!(done, Err(IngestError::Repository(_))), "{done:?}");
        assert!(read(&f).is_empty(), "both or none");
    }
    database.repair();
    let change = (AttributeScope::SharedScope, AttributesChange::Save(&values));
    f.platform
        .change_attributes(device, change, (at, NOW), NOW, &mut f.seen)
        .unwrap();
    let read = read(&f);
    let found: Vec<(&str, &PointValue)> = read.iter().map(|found| (&*found.key, &found.value)).collect();
    assert_eq!(
        found,
        [
            ("mode", &PointValue::String("eco".into())),
            ("target", &PointValue::Long(21))
        ]
    );
}

#[test]
fn changes_after_a_conflicting_change_are_stored() {
    let mut f = fixture();
    let device = f.meter(json!({"type": "SIMPLE"}));
    let database = Database::of(&f);
    database
        .0
        .execute_batch(
            "CREATE TRIGGER refuse_alarm BEFORE INSERT ON alarm BEGIN SELECT RAISE(ABORT, 'alarm.originator'); END",
        )
        .unwrap();
    database.refuse("INSERT ON attribute WHEN NEW.key = 'mode'");
    let messages = [
        IngestMessage::Telemetry(br#"{"batteryLevel":10}"#),
        IngestMessage::Attributes(br#"{"mode":"eco"}"#),
    ];
    let batch = [1, 2].map(|at| IngestInput {
        at: LogPosition(at),
        device,
        received_ms: NOW,
        message: messages[at as usize - 1],
    });
    let ingested = f.platform.ingest(&batch, LogPosition(2), NOW, &mut f.seen).unwrap();
    assert!(!ingested.is_written);
    database.repair();
    f.platform.ingest(&[], LogPosition(3), NOW, &mut f.seen).unwrap();
    let found = f
        .platform
        .attributes(device.entity(), AttributeScope::ClientScope, None)
        .unwrap();
    assert_eq!(found[0].value, PointValue::String("eco".into()));
    assert_eq!(f.platform.stats().refused_changes_total, 1, "the alarm");
}
