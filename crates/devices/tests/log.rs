//! Appended records are processed in order and once, also after a crash.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use devices::{Devices, DevicesOptions, EntryKind, IngestEntry, Update};
use platform::ids::{DeviceId, RpcId, TenantId};
use platform::model::{AttributeScope, Device, Rpc, RpcRequestBody, RpcStatus, Tenant};
use serde_json::json;
use timeseries::{PointOrder, PointValue, Query, TimedValue};

const NOW: i64 = 1_700_000_000_000;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidewire-devices-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(directory: &Path) -> Arc<Devices> {
    open_with(directory, platform::PlatformOptions::default())
}

fn open_with(directory: &Path, platform: platform::PlatformOptions) -> Arc<Devices> {
    let mut options = DevicesOptions {
        platform,
        ..DevicesOptions::default()
    };
    options.log.segment_bytes = 64 << 10;
    options.log.max_bytes = 64 << 20;
    options.log.reserve_bytes = 0;
    Devices::open(directory, options).unwrap()
}

fn create(devices: &Devices) -> (TenantId, DeviceId) {
    let tenant = Tenant {
        title: "Tenant".to_owned(),
        ..Tenant::default()
    };
    let start = devices.entities().create_tenant(tenant, NOW).unwrap();
    devices
        .platform()
        .reload_chain(start.root_chain.id.unwrap(), NOW)
        .unwrap();
    let tenant_id = start.tenant.id.unwrap();
    let device = Device {
        tenant_id,
        name: "D".to_owned(),
        ..Device::default()
    };
    let device = devices.entities().save_device(device, Some("TOKEN"), NOW).unwrap();
    (tenant_id, device.id.unwrap())
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

fn has_caught_up(devices: &Devices) -> bool {
    devices.stats().lag.messages == 0
}

fn telemetry(devices: &Devices, device: DeviceId, range: std::ops::Range<i64>) {
    let mut last = None;
    for n in range {
        let body = format!("{{\"ts\":{},\"values\":{{\"n\":{n}}}}}", NOW + n);
        let entry = IngestEntry::new(EntryKind::Telemetry, device.0, NOW + n, body.as_bytes());
        last = Some(devices.append(&entry).unwrap());
    }
    last.unwrap().wait().unwrap();
}

fn points(devices: &Devices, device: DeviceId) -> Vec<TimedValue> {
    let query = Query::Points {
        range: NOW..NOW + 1_000_000,
        order: PointOrder::Ascending,
        limit: 1_000_000,
    };
    let store = devices.platform().store();
    store.query(device.0.into(), &["n"], &query).unwrap().remove(0)
}

fn assert_complete(devices: &Devices, device: DeviceId, count: i64) {
    let points = points(devices, device);
    let expected = (0..count).map(|n| TimedValue {
        ts_ms: NOW + n,
        value: PointValue::Long(n),
    });
    assert_eq!(points, expected.collect::<Vec<_>>());
}

// fault: Process killed; Ingest log
#[test]
fn log_is_replayed_after_a_crash() {
    let scratch = Scratch::new("replay");
    let device = {
        let devices = open(&scratch.0);
        let (_, device) = create(&devices);
        telemetry(&devices, device, 0..3000);
        // A crash: data that the store has not flushed is only in the log.
        std::mem::forget(copy_of(&scratch.0));
        device
    };
    let copy = scratch.0.join("copy");
    let devices = open(&copy);
    wait_until("the log is replayed", || has_caught_up(&devices));
    assert_complete(&devices, device, 3000);
    telemetry(&devices, device, 3000..3010);
    wait_until("new messages are processed", || has_caught_up(&devices));
    assert_complete(&devices, device, 3010);
    devices.shut_down();
    drop(devices);
    let devices = open(&copy);
    wait_until("the log is processed", || has_caught_up(&devices));
    assert_complete(&devices, device, 3010);
}

/// Copies the files of the running process, as a crash would leave them.
fn copy_of(directory: &Path) -> PathBuf {
    let copy = directory.join("copy");
    let mut todo = vec![directory.join("platform")];
    while let Some(from) = todo.pop() {
        let to = copy.join(from.strip_prefix(directory).unwrap());
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(&from).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => todo.push(path),
                false => {
                    std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
                }
            }
        }
    }
    copy
}

// fault: Process killed; Ingest log
#[test]
fn acknowledged_response_is_applied_after_a_crash() {
    let scratch = Scratch::new("answer");
    let calls = {
        let devices = open(&scratch.0);
        let (tenant_id, device) = create(&devices);
        let gateway = Device {
            tenant_id,
            name: "G".to_owned(),
            additional_info: Some(json!({"gateway": true})),
            ..Device::default()
        };
        let gateway = devices.entities().save_device(gateway, None, NOW).unwrap().id.unwrap();
        let calls = [7, 8].map(|number| delivered(&devices, tenant_id, device, number));
        telemetry(&devices, device, 0..10);
        // This process does not know these requests. It leaves the responses to the next one, as if it was killed
        // before handling them.
        let answer = IngestEntry {
            id: 7,
            ..IngestEntry::new(EntryKind::RpcResponse, device.0, NOW, br#"{"ok":7}"#)
        };
        drop(devices.append(&answer).unwrap());
        let body = br#"{"device":"D","id":8,"data":{"ok":8}}"#;
        let answer = IngestEntry::new(EntryKind::GatewayRpc, gateway.0, NOW, body);
        devices.append(&answer).unwrap().wait().unwrap();
        std::mem::forget(copy_of(&scratch.0));
        calls
    };
    let devices = open(&scratch.0.join("copy"));
    wait_until("the log is replayed", || has_caught_up(&devices));
    for (call, number) in calls.into_iter().zip(7..) {
        let call: Rpc = devices.entities().get(call.0).unwrap();
        assert_eq!(
            (call.status, call.response),
            (RpcStatus::Successful, json!({"ok": number}))
        );
    }
}

/// Creates a persistent request that the device has received but not answered.
fn delivered(devices: &Devices, tenant_id: TenantId, device: DeviceId, number: i32) -> RpcId {
    let id = RpcId(devices.entities().new_id(NOW));
    let mut rpc = Rpc {
        id: Some(id),
        created_time: NOW,
        tenant_id,
        device_id: device,
        expiration_time: i64::MAX,
        status: RpcStatus::Delivered,
        ..Rpc::default()
    };
    rpc.set_request(&RpcRequestBody {
        number,
        is_one_way: false,
        method: "m".to_owned(),
        params: "{}".to_owned(),
        retries: None,
    });
    devices.entities().save_rpcs(&[rpc]).unwrap();
    id
}

#[test]
fn old_log_files_are_removed() {
    let scratch = Scratch::new("release");
    let devices = open(&scratch.0);
    let (_, device) = create(&devices);
    telemetry(&devices, device, 0..5000);
    wait_until("the log is processed", || has_caught_up(&devices));
    let before = devices.stats().log_bytes;
    devices.platform().store().flush().unwrap();
    devices.platform().checkpoint().unwrap();
    wait_until("the log shrinks", || devices.stats().log_bytes < before / 2);
    assert_complete(&devices, device, 5000);
}

#[test]
fn saved_telemetry_is_stored_and_sent_to_watchers() {
    let scratch = Scratch::new("save");
    let devices = open(&scratch.0);
    let (tenant, device) = create(&devices);
    let mut updates = devices.subscribe(16);
    updates.watch(tenant.0);
    let saved = devices.save_telemetry(tenant.entity(), br#"{"ts":5,"values":{"a":1.5}}"#, 0, NOW);
    saved.unwrap().wait().unwrap();
    let mut update = None;
    wait_until("the watcher gets the update", || {
        update = updates.try_next();
        update.is_some()
    });
    let expected = Update::Telemetry {
        entity: tenant.entity(),
        ts_ms: 5,
        values: vec![("a".into(), PointValue::Double(1.5))],
    };
    assert_eq!(update.as_deref(), Some(&expected));
    let entry = IngestEntry::new(EntryKind::Attributes, device.0, NOW, br#"{"model":"M"}"#);
    devices.append(&entry).unwrap().wait().unwrap();
    wait_until("the attribute is stored", || has_caught_up(&devices));
    let found = devices
        .platform()
        .attributes(device.entity(), AttributeScope::ClientScope, None);
    assert_eq!(found.unwrap()[0].value, PointValue::String("M".into()));
    let latest = devices.platform().store().latest(tenant.0.into(), &["a"]).unwrap();
    assert_eq!(latest[0].as_ref().map(|latest| latest.ts_ms), Some(5));
}

#[test]
fn usage_is_stored_and_continues_after_a_restart() {
    let scratch = Scratch::new("usage");
    let at_once = || platform::PlatformOptions {
        usage_ms: 0,
        ..platform::PlatformOptions::default()
    };
    let devices = open_with(&scratch.0, at_once());
    let (tenant, device) = create(&devices);
    let used = |devices: &Devices, key: &str| {
        let state = devices.entities().api_usage_state(tenant, NOW).unwrap();
        let latest = devices.platform().store().latest(state.id.unwrap().0.into(), &[key]);
        latest.unwrap().remove(0).map(|latest| latest.value)
    };
    telemetry(&devices, device, 0..5);
    wait_until("five messages are counted", || {
        used(&devices, "transportMsgCount") == Some(PointValue::Long(5))
            && used(&devices, "storageDataPointsCount") == Some(PointValue::Long(5))
    });
    devices.shut_down();
    drop(devices);
    let devices = open_with(&scratch.0, at_once());
    telemetry(&devices, device, 5..8);
    wait_until("eight messages are counted", || {
        used(&devices, "transportMsgCount") == Some(PointValue::Long(8))
    });
    devices.shut_down();
}

/// A failed log must not leave callers waiting.
// fault: Write or sync fails; Ingest log
#[test]
fn waiting_appends_fail_when_the_log_has_failed() {
    let scratch = Scratch::new("failed");
    let devices = open(&scratch.0);
    let (_, device) = create(&devices);
    telemetry(&devices, device, 0..1);
    std::fs::remove_dir_all(scratch.0.join("platform/log")).unwrap();
    let (sender, result) = std::sync::mpsc::channel();
    let of_waiter = Arc::clone(&devices);
    std::thread::spawn(move || {
        let body = format!("{{\"text\":\"{}\"}}", "x".repeat(20_000));
        // Until a segment is full, and no further one can be created.
        let entries = (0..1000).map(|n| IngestEntry::new(EntryKind::Telemetry, device.0, NOW + n, body.as_bytes()));
        let mut appended = entries.map(|entry| of_waiter.append(&entry).and_then(devices::PendingAppend::wait));
        let _ = sender.send(appended.find_map(Result::err));
    });
    let full = result
        .recv_timeout(Duration::from_secs(20))
        .expect("the caller gets an error");
    assert!(full.is_some_and(|full| !full.reason.contains("stops")));
    // A refused record is not processed either, so it must not count as lag.
    let appended = devices.stats().appended_records_total;
    let entry = IngestEntry::new(EntryKind::Telemetry, device.0, NOW, b"{}");
    assert!(devices.append(&entry).is_err());
    assert_eq!(devices.stats().appended_records_total, appended);
}
