//! Makes a tenant with the load tool's meters in a data directory, and says what was stored of what they sent.
//!
//! `cargo run -p tidewire-devices --example make_devices -- DATA_DIR COUNT`: devices with the tokens `meter-0`, `meter-1`, … and the load
//! tool's alarm rule; the server is down meanwhile. Without COUNT: how many points there are.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers")]

use std::path::Path;
use std::time::{Duration, Instant};

use devices::{Devices, Options};
use platform::model::{Device, DeviceProfile, Tenant};
use serde_json::json;
use timeseries::{Aggregation, Order, Query};

const NOW: i64 = 1_700_000_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap();
    let devices = Devices::open(Path::new(&directory), Options::default()).unwrap();
    let begun = Instant::now();
    while devices.stats().lag.messages > 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("replayed in {:?}", begun.elapsed());
    match arguments.next() {
        Some(count) => make(&devices, count.parse().unwrap()),
        None => count(&devices),
    }
    devices.shut_down();
}

fn make(devices: &Devices, count: usize) {
    let entities = devices.entities();
    let tenant = Tenant {
        title: "Tenant".to_owned(),
        ..Tenant::default()
    };
    let tenant_id = entities.create_tenant(tenant, NOW).unwrap().tenant.id.unwrap();
    let simple = json!({"type": "SIMPLE"});
    let mut profile = DeviceProfile {
        tenant_id,
        name: "SMART_METER".to_owned(),
        ..DeviceProfile::default()
    };
    profile.profile_data["alarms"] = json!([{"id": "a", "alarmType": "battery low",
        "createRules": {"CRITICAL": {"condition": {"condition": [{"key": {"type": "TIME_SERIES", "key": "batteryLevel"},
        "valueType": "NUMERIC", "predicate": {"type": "NUMERIC", "operation": "LESS_OR_EQUAL", "value": {"defaultValue": 20}}}],
        "spec": simple}}}}]);
    let profile = entities.save_device_profile(profile, NOW).unwrap();
    for number in 0..=count {
        let name = format!("meter-{number}");
        let device = Device {
            tenant_id,
            name: name.clone(),
            device_profile_id: profile.id,
            ..Device::default()
        };
        entities.save_device(device, Some(&name), NOW).unwrap();
    }
    println!("made {} devices", count + 1);
}

fn count(devices: &Devices) {
    let store = devices.platform().store();
    let ids: Vec<_> = devices.entities().directory().devices().map(|(id, _)| id).collect();
    let mut points = 0.0;
    for id in &ids {
        let keys = store.keys(id.0.into()).unwrap();
        let names: Vec<&str> = keys.iter().map(|key| &**key).collect();
        let query = Query::Aggregate {
            range: 0..4_000_000_000_000,
            interval: timeseries::Interval::Millis(4_000_000_000_000),
            aggregation: Aggregation::Count,
            order: Order::Ascending,
            limit: 10,
        };
        for found in store.query(id.0.into(), &names, &query).unwrap() {
            points += found.iter().map(|point| number(&point.value)).sum::<f64>();
        }
    }
    println!("{} devices, {points} points", ids.len());
}

fn number(value: &timeseries::Value) -> f64 {
    match value {
        timeseries::Value::Long(value) => *value as f64,
        timeseries::Value::Double(value) => *value,
        _ => 0.0,
    }
}
