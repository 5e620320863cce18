//! Times to live of tenants, messages, alarms and RPC requests, with the real stores and restarts.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use crate::scratch::Scratch;
use platform::entities::Entities;
use platform::ids::{DeviceId, EntityId, RpcId, TenantId, Uuid};
use platform::model::{Alarm, AlarmComment, Device, Rpc, RuleChain, Tenant, TenantProfile};
use platform::repository::AlarmSelection;
use platform::{
    IngestInput, IngestMessage, NoOutlet, PageLink, Platform, PlatformOptions, SqliteRepository, UsageCounter,
};
use serde_json::{Value as Json, json};
use timeseries::{ColumnStore, DIRECTORY_NAME, LogPosition, PointOrder, Query, StorageDirectory, StoreConfig};

const DAY: i64 = 86_400_000;
const NOW: i64 = 1_700_000_000_000;

struct Fixture {
    platform: Platform,
    tenants: [TenantId; 2],
    position: u64,
    options: PlatformOptions,
    directory: Scratch,
}

fn open(directory: &Scratch, options: &PlatformOptions) -> Platform {
    let repository = Arc::new(SqliteRepository::open(directory.path()).unwrap());
    let entities = Arc::new(Entities::open(repository).unwrap());
    let disk = Arc::new(StorageDirectory::open(directory.path(), DIRECTORY_NAME).unwrap());
    let store = Arc::new(ColumnStore::open(disk, StoreConfig::default()).unwrap());
    Platform::open(entities, store, options.clone()).unwrap()
}

/// Two tenants with separate profiles.
fn fixture(options: PlatformOptions) -> Fixture {
    let directory = Scratch::new();
    let platform = open(&directory, &options);
    let tenants = ["One", "Two"].map(|title| {
        let profile = TenantProfile {
            name: title.to_owned(),
            ..TenantProfile::default()
        };
        let profile = platform.entities().save_tenant_profile(profile, NOW).unwrap();
        let tenant = Tenant {
            title: title.to_owned(),
            tenant_profile_id: profile.id,
            ..Tenant::default()
        };
        let start = platform.entities().create_tenant(tenant, NOW).unwrap();
        platform.reload_chain(start.root_chain.id.unwrap(), NOW).unwrap();
        start.tenant.id.unwrap()
    });
    Fixture {
        platform,
        tenants,
        position: 0,
        options,
        directory,
    }
}

impl Fixture {
    fn device(&self, tenant: usize, name: &str) -> DeviceId {
        let device = Device {
            tenant_id: self.tenants[tenant],
            name: name.to_owned(),
            ..Device::default()
        };
        let saved = self.platform.entities().save_device(device, Some(name), NOW);
        saved.unwrap().id.unwrap()
    }

    /// Changes the tenant's profile.
    fn profile(&self, tenant: usize, configuration: Json) {
        let entities = self.platform.entities();
        let tenant: Tenant = entities.get(self.tenants[tenant].0).unwrap();
        let mut profile: TenantProfile = entities.get(tenant.tenant_profile_id.unwrap().0).unwrap();
        profile.profile_data = json!({"configuration": configuration});
        entities.save_tenant_profile(profile, NOW).unwrap();
    }

    /// Sets the tenant's root chain: one save node with this time to live.
    fn chain(&self, tenant: usize, ttl_s: u64) {
        let node = json!({"type": "org.thingsboard.rule.engine.telemetry.TbMsgTimeseriesNode", "name": "save",
            "configuration": {"defaultTTL": ttl_s}});
        let metadata = json!({"firstNodeIndex": 0, "nodes": [node], "connections": []});
        let entities = self.platform.entities();
        let root: RuleChain = entities.root_chain(self.tenants[tenant]).unwrap().unwrap();
        entities
            .save_rule_chain_metadata(root.id.unwrap(), metadata, NOW)
            .unwrap();
        self.platform.reload_chain(root.id.unwrap(), NOW).unwrap();
    }

    fn publish(&mut self, device: DeviceId, body: &str) {
        self.position += 1;
        let incoming = [IngestInput {
            at: LogPosition(self.position),
            device,
            received_ms: NOW,
            message: IngestMessage::Telemetry(body.as_bytes()),
        }];
        let ingested = self
            .platform
            .ingest(&incoming, LogPosition(self.position), NOW, &mut NoOutlet);
        assert!(ingested.unwrap().refused.is_empty());
        // On a busy machine a message can take longer than its time slice. Then it waits for its turn, and its points
        // for the position of a later record.
        while self.platform.stats().waiting_retries > 0 || self.platform.has_pending_points() {
            self.position += 1;
            let now_ms = self.platform.next_due_ms().clamp(NOW, NOW + 60_000);
            let position = LogPosition(self.position);
            self.platform.ingest(&[], position, now_ms, &mut NoOutlet).unwrap();
        }
    }

    /// Stores a value per minute of these days before now.
    fn fill(&mut self, device: DeviceId, days: std::ops::Range<i64>) {
        for hour in days.start * 24..days.end * 24 {
            let start = NOW - (hour + 1) * DAY / 24;
            let points: Vec<Json> = (0..60)
                .map(|minute| json!({"ts": start + minute * 60_000, "values": {"k": scattered(hour * 60 + minute)}}))
                .collect();
            self.publish(device, &Json::from(points).to_string());
        }
    }

    /// Does the work of the background thread.
    fn upkeep(&self, now_ms: i64) {
        while self.platform.classify().unwrap() {}
        while self.platform.store().maintain(now_ms).unwrap().has_more {}
    }

    fn restart(&mut self) {
        self.platform.checkpoint().unwrap();
        self.platform.store().flush().unwrap();
        let directory = std::mem::replace(&mut self.directory, Scratch::new());
        drop(std::mem::replace(
            &mut self.platform,
            open(&self.directory, &self.options),
        ));
        self.platform = open(&directory, &self.options);
        self.directory = directory;
    }

    /// Number of stored minutes.
    fn minutes(&self, entity: EntityId) -> usize {
        let query = Query::Points {
            range: 0..NOW + DAY,
            order: PointOrder::Ascending,
            limit: 1_000_000,
        };
        self.platform.store().query(entity.id.into(), &["k"], &query).unwrap()[0].len()
    }

    /// Size of all segments on disk.
    fn disk_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.directory.path().join(DIRECTORY_NAME)).unwrap();
        let segments = files.map(|file| file.unwrap()).filter(|file| {
            let name = file.file_name();
            name.to_string_lossy().ends_with(".segment")
        });
        segments.map(|file| file.metadata().unwrap().len()).sum()
    }
}

#[test]
fn tenant_ttl_applies_to_old_and_new_points() {
    let mut f = fixture(PlatformOptions::default());
    let (mine, other) = (f.device(0, "mine"), f.device(1, "other"));
    for days in [2..3, 1..2, 0..1] {
        f.fill(mine, days.clone());
        f.platform.store().flush().unwrap();
        f.fill(other, days);
        f.platform.store().flush().unwrap();
        f.upkeep(NOW);
    }
    let before = f.disk_bytes();
    assert_eq!(
        (f.minutes(mine.entity()), f.minutes(other.entity())),
        (3 * 1440, 3 * 1440)
    );
    f.profile(0, json!({"defaultStorageTtlDays": 1}));
    f.upkeep(NOW);
    assert_eq!((f.minutes(mine.entity()), f.minutes(other.entity())), (1440, 3 * 1440));
    let after = f.disk_bytes();
    assert!(
        after < before * 3 / 4,
        "{after} of {before} bytes, {:?}",
        f.platform.store().stats()
    );
    f.profile(1, json!({"defaultStorageTtlDays": 1}));
    f.upkeep(NOW);
    // Files with changed classes are checked once per minute.
    f.upkeep(NOW + 60_000);
    let after = f.disk_bytes();
    assert!(after < before * 45 / 100, "{after} of {before} bytes");
    // A new device of the same tenant also has a time to live, and everything survives a restart.
    let new = f.device(0, "new");
    f.fill(new, 0..3);
    f.restart();
    f.upkeep(NOW);
    assert_eq!((f.minutes(mine.entity()), f.minutes(new.entity())), (1440, 1440));
    f.upkeep(NOW + DAY / 2);
    assert_eq!(f.minutes(mine.entity()), 720);
    // Forever again: deleted points stay deleted, the rest stays.
    f.profile(0, json!({"defaultStorageTtlDays": 0}));
    f.upkeep(NOW + DAY / 2);
    f.upkeep(NOW + 100 * DAY);
    assert_eq!((f.minutes(mine.entity()), f.minutes(other.entity())), (720, 0));
    assert_eq!(f.platform.store().ttls().len(), 1, "unused classes are removed");
}

#[test]
fn platform_ttl_applies_without_a_profile_ttl() {
    let mut f = fixture(PlatformOptions {
        telemetry_days: 1,
        usage_days: 2,
        ..PlatformOptions::default()
    });
    let devices = [f.device(0, "a"), f.device(1, "b")];
    f.profile(1, json!({"defaultStorageTtlDays": 0}));
    let usage = f.platform.entities().api_usage_state(f.tenants[1], NOW).unwrap();
    let usage = EntityId::new(platform::ids::EntityType::ApiUsageState, usage.id.unwrap().0);
    for device in devices {
        f.fill(device, 0..3);
    }
    let body = format!(
        "[{}]",
        (0..72)
            .map(|hour| format!("{{\"ts\":{},\"values\":{{\"k\":1}}}}", NOW - (hour + 1) * DAY / 24))
            .collect::<Vec<_>>()
            .join(",")
    );
    let telemetry =
        platform::decode::Telemetry::decode(body.as_bytes(), NOW, &platform::decode::DecodeLimits::default()).unwrap();
    f.position += 1;
    let at = (LogPosition(f.position), NOW);
    f.platform
        .save_telemetry(usage, &telemetry, 0, at, &mut NoOutlet)
        .unwrap();
    f.upkeep(NOW);
    assert_eq!(devices.map(|device| f.minutes(device.entity())), [1440, 3 * 1440]);
    assert_eq!(f.minutes(usage), 48);
    // Stored values are counted with their days.
    let stored = |f: &Fixture| [0, 1].map(|tenant| f.platform.usage(f.tenants[tenant], UsageCounter::StoredPoints));
    assert_eq!(stored(&f), [3 * 1440, 3 * 1440]);
    f.profile(0, json!({"defaultStorageTtlDays": 30}));
    f.publish(devices[0], "{\"x\":1}");
    assert_eq!(stored(&f), [3 * 1440 + 30, 3 * 1440]);
}

#[test]
fn message_ttl_applies_to_its_series() {
    let mut f = fixture(PlatformOptions::default());
    let device = f.device(0, "a");
    f.profile(0, json!({"defaultStorageTtlDays": 30}));
    f.fill(device, 0..3);
    f.upkeep(NOW);
    assert_eq!(f.minutes(device.entity()), 3 * 1440);
    // A shorter time also applies to older points of the series.
    f.chain(0, 86_400);
    let other = json!({"ts": NOW - 2 * DAY, "values": {"other": 1}}).to_string();
    f.publish(device, &json!({"ts": NOW - 1, "values": {"k": 1}}).to_string());
    f.upkeep(NOW);
    let one_day = f.minutes(device.entity());
    assert_eq!(one_day, 1441);
    f.restart();
    f.upkeep(NOW);
    assert_eq!(f.minutes(device.entity()), one_day);
    // Over REST, for a single key, and longer than the tenant's.
    let telemetry =
        platform::decode::Telemetry::decode(other.as_bytes(), NOW, &platform::decode::DecodeLimits::default()).unwrap();
    f.position += 1;
    let at = (LogPosition(f.position), NOW);
    f.platform
        .save_telemetry(device.entity(), &telemetry, 100 * 86_400, at, &mut NoOutlet)
        .unwrap();
    f.upkeep(NOW + 50 * DAY);
    assert_eq!(f.minutes(device.entity()), 0);
    let query = Query::Points {
        range: 0..i64::MAX,
        order: PointOrder::Ascending,
        limit: 9,
    };
    let found = f.platform.store().query(device.0.into(), &["other"], &query).unwrap();
    assert_eq!(found[0].len(), 1);
    // Without one, the tenant's applies again.
    f.chain(0, 0);
    f.fill(device, 0..3);
    f.upkeep(NOW + DAY);
    assert_eq!(f.minutes(device.entity()), 3 * 1440);
}

/// There are at most 255. Beyond that the next longer one applies, and unused ones are removed.
#[test]
fn times_to_live_beyond_the_limit_are_rounded_up() {
    let mut f = fixture(PlatformOptions::default());
    let device = f.device(0, "a");
    for ttl_s in 1..=300u32 {
        let body = format!("{{\"ts\":{},\"values\":{{\"k{ttl_s}\":1}}}}", NOW - 1);
        let telemetry =
            platform::decode::Telemetry::decode(body.as_bytes(), NOW, &platform::decode::DecodeLimits::default())
                .unwrap();
        f.position += 1;
        let at = (LogPosition(f.position), NOW);
        let ttl_s = 1000 - ttl_s;
        f.platform
            .save_telemetry(device.entity(), &telemetry, ttl_s, at, &mut NoOutlet)
            .unwrap();
    }
    assert_eq!(f.platform.store().ttls().len(), 255);
    let count = |f: &Fixture, key: &str| {
        let query = Query::Points {
            range: 0..i64::MAX,
            order: PointOrder::Ascending,
            limit: 9,
        };
        f.platform.store().query(device.0.into(), &[key], &query).unwrap()[0].len()
    };
    // 700 seconds were requested, and 745 is the next longer one.
    f.upkeep(NOW + 744_000);
    assert_eq!((count(&f, "k300"), count(&f, "k256"), count(&f, "k255")), (1, 1, 1));
    f.upkeep(NOW + 745_001);
    assert_eq!((count(&f, "k300"), count(&f, "k255"), count(&f, "k254")), (0, 0, 1));
}

#[test]
fn old_alarms_and_rpc_requests_are_deleted() {
    let f = fixture(PlatformOptions::default());
    // Identifiers never go back in time.
    let now_ms = NOW + 5 * DAY;
    let entities = f.platform.entities();
    let devices = [f.device(0, "a"), f.device(1, "b")];
    let alarm = |tenant: usize, kind: &str, days_ago: i64, ended_days_ago: i64| {
        let json = json!({"type": kind, "originator": devices[tenant].entity(), "severity": "MAJOR", "tenantId": f.tenants[tenant],
            "startTs": now_ms - days_ago * DAY, "endTs": now_ms - ended_days_ago * DAY});
        let alarm: Alarm = serde_json::from_value(json).unwrap();
        f.platform
            .save_alarm(alarm, now_ms - days_ago * DAY, &mut NoOutlet)
            .unwrap()
    };
    let old = alarm(0, "old", 5, 4);
    alarm(0, "still there", 5, 1);
    alarm(1, "of another tenant", 5, 4);
    alarm(0, "new", 1, 1);
    let comment = AlarmComment {
        alarm_id: old.id.unwrap(),
        comment: json!({"text": "x"}),
        ..serde_json::from_value(json!({"alarmId": old.id.unwrap(), "comment": {"text": "x"}})).unwrap()
    };
    entities.save_alarm_comment(comment, NOW).unwrap();
    let rpc = |tenant: usize, days_ago: i64| Rpc {
        id: Some(RpcId(entities.new_id(now_ms - days_ago * DAY))),
        created_time: now_ms - days_ago * DAY,
        tenant_id: f.tenants[tenant],
        device_id: devices[tenant],
        ..Rpc::default()
    };
    entities.save_rpcs(&[rpc(0, 5), rpc(0, 1), rpc(1, 5)]).unwrap();
    assert!(f.platform.delete_old_alarms(now_ms, &mut NoOutlet).unwrap().is_empty());
    assert!(f.platform.old_rpcs(now_ms).unwrap().is_empty());
    f.profile(0, json!({"alarmsTtlDays": 3, "rpcTtlDays": 3}));
    let deleted = f.platform.delete_old_alarms(now_ms, &mut NoOutlet).unwrap();
    assert_eq!(
        deleted.iter().map(|alarm| alarm.kind.as_str()).collect::<Vec<_>>(),
        ["old"]
    );
    let left = entities
        .repository()
        .alarms(&AlarmSelection::default(), &PageLink::new(10, 0))
        .unwrap();
    let mut kinds: Vec<&str> = left.data.iter().map(|alarm| alarm.kind.as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["new", "of another tenant", "still there"]);
    let comments = entities.page::<AlarmComment>(&platform::repository::Selection::default(), &PageLink::new(10, 0));
    assert!(comments.unwrap().data.is_empty());
    let old = f.platform.old_rpcs(now_ms).unwrap();
    assert_eq!(old.len(), 1);
    assert_eq!(
        (old[0].tenant_id, old[0].created_time),
        (f.tenants[0], now_ms - 5 * DAY)
    );
    assert_ne!(old[0].id.unwrap().0, Uuid::NULL);
}

/// Pseudorandom values, which do not compress.
fn scattered(n: i64) -> u64 {
    let mut bits = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (bits ^ (bits >> 31)) % 1_000_000
}
