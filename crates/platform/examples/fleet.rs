//! Measures the platform on real stores: messages per second with alarms, latest values, history and activity, and
//! memory per device. The load is that of ThingsBoard's load tool: a meter with three values, some with a low
//! battery.
//!
//! `cargo run --profile fast -p tidewire-platform --example fleet [-- devices [seconds of load]]`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use platform::entities::Entities;
use platform::ids::DeviceId;
use platform::model::{Device, DeviceProfile, Tenant};
use platform::{IngestInput, IngestMessage, NoOutlet, Platform, PlatformOptions, SqliteRepository};
use serde_json::json;
use timeseries::{ColumnStore, DIRECTORY_NAME, LogPosition, StorageDirectory, StoreConfig};

const START: i64 = 1_700_000_000_000;
const BATCH: usize = 2000;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let devices = arguments.next().unwrap_or(15_000);
    let seconds = arguments.next().unwrap_or(20);
    let directory = std::env::temp_dir().join(format!("platform-fleet-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let platform = open(&directory);
    let before = resident_bytes();
    let all = create(&platform, devices);
    load(&platform, &all, Duration::from_millis(1), before);
    load(&platform, &all, Duration::from_secs(seconds as u64), before);
    platform.checkpoint().unwrap();
    drop(platform);
    let started = Instant::now();
    let platform = open(&directory);
    println!(
        "reopened with {} devices in {:?}",
        platform.stats().device_states,
        started.elapsed()
    );
    drop(platform);
    std::fs::remove_dir_all(&directory).unwrap();
}

fn open(directory: &std::path::Path) -> Platform {
    let repository = Arc::new(SqliteRepository::open(directory).unwrap());
    let entities = Arc::new(Entities::open(repository).unwrap());
    let disk = Arc::new(StorageDirectory::open(directory, DIRECTORY_NAME).unwrap());
    let store = Arc::new(ColumnStore::open(disk, StoreConfig::default()).unwrap());
    Platform::open(entities, store, PlatformOptions::default()).unwrap()
}

fn create(platform: &Platform, count: usize) -> Vec<DeviceId> {
    let entities = platform.entities();
    let tenant = Tenant {
        title: "Tenant".to_owned(),
        ..Tenant::default()
    };
    let start = entities.create_tenant(tenant, START).unwrap();
    platform.reload_chain(start.root_chain.id.unwrap(), START).unwrap();
    let tenant_id = start.tenant.id.unwrap();
    let filter = |operation: &str| {
        json!({"key": {"type": "TIME_SERIES", "key": "batteryLevel"}, "valueType": "NUMERIC",
        "predicate": {"type": "NUMERIC", "operation": operation, "value": {"defaultValue": 20}}})
    };
    let simple = json!({"type": "SIMPLE"});
    let mut profile = DeviceProfile {
        tenant_id,
        name: "SMART_METER".to_owned(),
        ..DeviceProfile::default()
    };
    profile.profile_data["alarms"] = json!([{"id": "a", "alarmType": "battery low",
        "createRules": {"CRITICAL": {"condition": {"condition": [filter("LESS_OR_EQUAL")], "spec": simple}}},
        "clearRule": {"condition": {"condition": [filter("GREATER")], "spec": simple}}}]);
    let profile = entities.save_device_profile(profile, START).unwrap();
    let started = Instant::now();
    let all = (0..count).map(|number| {
        let name = format!("DW{number:08}");
        let device = Device {
            tenant_id,
            name: name.clone(),
            device_profile_id: profile.id,
            ..Device::default()
        };
        entities.save_device(device, Some(&name), START).unwrap().id.unwrap()
    });
    let all: Vec<DeviceId> = all.collect();
    println!(
        "created {count} devices at {:.0}/s, each synced",
        count as f64 / started.elapsed().as_secs_f64()
    );
    all
}

/// One message in a thousand has a low battery. The device's next message clears the alarm.
fn load(platform: &Platform, all: &[DeviceId], time: Duration, resident_before: u64) {
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut messages = 0_u64;
    let mut round = 0_i64;
    while started.elapsed() < time || round == 0 {
        round += 1;
        for chunk in all.chunks(BATCH) {
            let bodies: Vec<String> = chunk
                .iter()
                .map(|_| {
                    messages += 1;
                    body(START + round * 1000, messages)
                })
                .collect();
            let batch: Vec<IngestInput<'_>> = chunk
                .iter()
                .zip(&bodies)
                .map(|(device, body)| IngestInput {
                    at: LogPosition(messages),
                    device: *device,
                    received_ms: START + round * 1000,
                    message: IngestMessage::Telemetry(body.as_bytes()),
                })
                .collect();
            let position = LogPosition(platform.stats().messages_total + 1);
            platform
                .ingest(&batch, position, START + round * 1000, &mut NoOutlet)
                .unwrap();
        }
        while platform.store().maintain(START + round * 1000).unwrap().has_more {}
    }
    let (elapsed, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let stats = platform.stats();
    let count = all.len() as f64;
    println!(
        "{messages} messages in {elapsed:.1} s: {:.0} points/s, {:.0} points per CPU second; {} alarms created so far",
        messages as f64 * 3.0 / elapsed,
        messages as f64 * 3.0 / cpu,
        stats.alarms_created_total
    );
    let directory = platform.entities().directory().bytes();
    println!(
        "per device: {:.0} bytes of directory, {:.0} of states; resident {:.0} more than empty, the store's heads included ({} MiB)",
        directory as f64 / count,
        stats.device_state_bytes as f64 / count,
        (resident_bytes() - resident_before.min(resident_bytes())) as f64 / count,
        platform.store().stats().head_bytes >> 20
    );
}

fn body(ts_ms: i64, number: u64) -> String {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    let battery = if mixed.is_multiple_of(1000) {
        10
    } else {
        50 + mixed % 50
    };
    format!(
        "{{\"ts\":{ts_ms},\"values\":{{\"pulseCounter\":{},\"leakage\":{},\"batteryLevel\":{battery}}}}}",
        mixed % 1_000_000,
        mixed % 100 > 1
    )
}

/// CPU time of the process.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
