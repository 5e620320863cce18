//! A platform with the real stores, and an outlet that records its output in short.

use std::fs;
use std::sync::Arc;

use crate::scratch::Scratch;
use platform::alarm_rules::AlarmTransition;
use platform::chain::{NodeError, RpcCall};
use platform::decode::KeyValue;
use platform::entities::Entities;
use platform::ids::{DeviceId, EntityId, TenantId};
use platform::model::{Alarm, Attribute, AttributeScope, Device, DeviceProfile, Tenant};
use platform::repository::AlarmSelection;
use platform::{
    IngestInput, IngestMessage, PageLink, Platform, PlatformOptions, PlatformOutlet, RefusedKeys, SqliteRepository,
};
use serde_json::{Value as Json, json};
use timeseries::{
    ColumnStore, DIRECTORY_NAME, LogPosition, PointOrder, PointValue, Query, StorageDirectory, StoreConfig,
};

pub const NOW: i64 = 1_700_000_000_000;

/// Records the output in short, and the texts of log nodes.
#[derive(Default)]
pub struct Seen(Vec<String>, pub Vec<String>);

impl PlatformOutlet for Seen {
    fn telemetry(&mut self, _: EntityId, ts_ms: i64, values: &[KeyValue<'_>]) {
        let keys: Vec<&str> = values.iter().map(|value| &*value.key).collect();
        self.0.push(format!("telemetry {} {}", ts_ms - NOW, keys.join(",")));
    }

    fn attributes(&mut self, _: EntityId, scope: AttributeScope, updated: &[Attribute], deleted: &[String]) {
        let keys: Vec<&str> = updated.iter().map(|attribute| attribute.key.as_str()).collect();
        self.0
            .push(format!("{} {} -{}", scope.name(), keys.join(","), deleted.join(",")));
    }

    fn attributes_to_device(&mut self, _: DeviceId, updated: &[Attribute], deleted: &[String]) {
        self.0.push(format!("to device {} -{}", updated.len(), deleted.len()));
    }

    fn gateway_device_connected(&mut self, _: DeviceId, _: DeviceId, name: &str) {
        self.0.push(format!("behind {name}"));
    }

    fn alarm(&mut self, action: AlarmTransition, alarm: &Alarm) {
        self.0.push(format!("{} {}", action.label(), alarm.severity.name()));
    }

    fn call_device(&mut self, _: DeviceId, number: u64, call: &RpcCall) -> Result<(), NodeError> {
        self.0.push(format!("call {number} {}", call.method));
        Ok(())
    }

    fn log(&mut self, _: platform::ids::RuleChainId, node: &str, text: &str) {
        self.0.push(format!("log {node}"));
        self.1.push(text.to_owned());
    }

    fn failed(&mut self, _: EntityId, node: &str, problem: &str) {
        self.0.push(format!("failed {node}: {problem}"));
    }

    fn keys_refused(&mut self, refused: &RefusedKeys) {
        self.0.push(format!("refused {:?} {}", refused.kind, refused.key));
    }
}

impl Seen {
    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.0)
    }
}

pub struct Fixture {
    pub platform: Platform,
    pub tenant: TenantId,
    pub seen: Seen,
    pub position: u64,
    pub directory: Scratch,
}

pub fn open(directory: &Scratch) -> Platform {
    open_with(directory, PlatformOptions::default())
}

fn open_with(directory: &Scratch, options: PlatformOptions) -> Platform {
    let repository = Arc::new(SqliteRepository::open(directory.path()).unwrap());
    let entities = Arc::new(Entities::open(repository).unwrap());
    let disk = Arc::new(StorageDirectory::open(directory.path(), DIRECTORY_NAME).unwrap());
    let store = Arc::new(ColumnStore::open(disk, StoreConfig::default()).unwrap());
    Platform::open(entities, store, options).unwrap()
}

pub fn fixture() -> Fixture {
    fixture_with(PlatformOptions::default())
}

pub fn fixture_with(options: PlatformOptions) -> Fixture {
    let directory = Scratch::new();
    let platform = open_with(&directory, options);
    let tenant = Tenant {
        title: "T".to_owned(),
        ..Tenant::default()
    };
    let start = platform.entities().create_tenant(tenant, NOW).unwrap();
    platform.reload_chain(start.root_chain.id.unwrap(), NOW).unwrap();
    Fixture {
        platform,
        tenant: start.tenant.id.unwrap(),
        seen: Seen::default(),
        position: 0,
        directory,
    }
}

impl Fixture {
    /// Number of commits in the database's write-ahead log since its last reset. The last frame of each commit
    /// contains the size of the database.
    pub fn commits(&self) -> usize {
        let mut path = self.directory.path().join(platform::FILE_NAME).into_os_string();
        path.push("-wal");
        let log = fs::read(path).unwrap();
        let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap()) as usize;
        let (page_bytes, salts) = (number(8), &log[16..24]);
        let frames = (32..log.len()).step_by(24 + page_bytes);
        let is_valid = |at: &usize| log.len() >= at + 24 && log[at + 8..at + 16] == *salts;
        frames.take_while(is_valid).filter(|at| number(at + 4) > 0).count()
    }

    pub fn device(&self, name: &str, kind: &str, info: Json) -> DeviceId {
        let device = Device {
            tenant_id: self.tenant,
            name: name.to_owned(),
            kind: kind.to_owned(),
            additional_info: Some(info),
            ..Device::default()
        };
        self.platform
            .entities()
            .save_device(device, Some(name), NOW)
            .unwrap()
            .id
            .unwrap()
    }

    /// A device whose profile has a rule for its battery.
    pub fn meter(&self, spec: Json) -> DeviceId {
        let filter = |operation: &str| {
            json!({"key": {"type": "TIME_SERIES", "key": "batteryLevel"}, "valueType": "NUMERIC",
            "predicate": {"type": "NUMERIC", "operation": operation, "value": {"defaultValue": 20}}})
        };
        let mut profile = DeviceProfile {
            tenant_id: self.tenant,
            name: "meter".to_owned(),
            ..DeviceProfile::default()
        };
        profile.profile_data["alarms"] = json!([{"id": "a", "alarmType": "battery low", "propagateToTenant": true,
            "createRules": {"CRITICAL": {"condition": {"condition": [filter("LESS_OR_EQUAL")], "spec": spec}}},
            "clearRule": {"condition": {"condition": [filter("GREATER")], "spec": {"type": "SIMPLE"}}}}]);
        self.platform.entities().save_device_profile(profile, NOW).unwrap();
        self.device("M", "meter", Json::Null)
    }

    pub fn set_root_chain(&self, metadata: Json) {
        let entities = self.platform.entities();
        let root = entities.root_chain(self.tenant).unwrap().unwrap().id.unwrap();
        entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
        self.platform.reload_chain(root, NOW).unwrap();
    }

    pub fn publish(&mut self, device: DeviceId, after_ms: i64, message: IngestMessage<'_>) -> Vec<String> {
        self.position += 1;
        let incoming = [IngestInput {
            at: LogPosition(self.position),
            device,
            received_ms: NOW + after_ms,
            message,
        }];
        let position = LogPosition(self.position);
        let ingested = self
            .platform
            .ingest(&incoming, position, NOW + after_ms, &mut self.seen)
            .unwrap();
        assert!(ingested.is_written);
        self.seen.take()
    }

    pub fn tick(&mut self, after_ms: i64) -> Vec<String> {
        self.position += 1;
        self.platform
            .tick(LogPosition(self.position), NOW + after_ms, &mut self.seen)
            .unwrap();
        self.seen.take()
    }

    pub fn restart(&mut self) {
        let directory = std::mem::replace(&mut self.directory, Scratch::new());
        // The old platform holds the lock of the time-series store.
        let old = std::mem::replace(&mut self.platform, open(&self.directory));
        drop(old);
        self.platform = open(&directory);
        self.directory = directory;
    }

    pub fn points(&self, entity: EntityId, key: &str) -> Vec<(i64, PointValue)> {
        let query = Query::Points {
            range: 0..i64::MAX,
            order: PointOrder::Ascending,
            limit: 100,
        };
        let found = self
            .platform
            .store()
            .query(entity.id.into(), &[key], &query)
            .unwrap()
            .remove(0);
        found
            .into_iter()
            .map(|point| (point.ts_ms - NOW, point.value))
            .collect()
    }

    pub fn alarms(&self) -> Vec<Alarm> {
        let link = PageLink::new(100, 0);
        self.platform
            .entities()
            .repository()
            .alarms(&AlarmSelection::default(), &link)
            .unwrap()
            .data
    }
}
