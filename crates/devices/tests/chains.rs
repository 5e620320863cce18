//! Rule chains that wait for external systems continue after an outage.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use devices::{Devices, DevicesOptions, EntryKind, ExternalRequest, ExternalSender, IngestEntry};
use platform::chain::ExternalAnswer;
use platform::ids::{DeviceId, TenantId};
use platform::model::{Device, DeviceProfile, Tenant};
use serde_json::json;
use timeseries::{PointOrder, PointValue, Query};

const NOW: i64 = 1_700_000_000_000;

/// An external system that rejects a number of messages and accepts all others.
struct Other {
    refuses: AtomicUsize,
}

impl ExternalSender for Other {
    fn take(&self, request: ExternalRequest) -> Result<(), String> {
        let less = self.refuses.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        if less.is_ok() {
            return Err("busy".to_owned());
        }
        request.receipt.complete(Ok(ExternalAnswer::default()));
        Ok(())
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidewire-devices-chains-{name}-{}", std::process::id()));
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

fn open(scratch: &Scratch, queued_max: usize, refuses: usize) -> Arc<Devices> {
    let mut options = DevicesOptions {
        platform: platform::PlatformOptions {
            queued_max,
            ..platform::PlatformOptions::default()
        },
        ..DevicesOptions::default()
    };
    options.log.segment_bytes = 64 << 10;
    options.log.max_bytes = 64 << 20;
    options.log.reserve_bytes = 0;
    let other = Other {
        refuses: AtomicUsize::new(refuses),
    };
    Devices::open_with(&scratch.0, options, Some(Arc::new(other))).unwrap()
}

/// Creates a device whose messages are stored after the external system accepted them, and retried without a pause.
fn device(devices: &Devices) -> DeviceId {
    let entities = devices.entities();
    let tenant = Tenant {
        title: "Tenant".to_owned(),
        ..Tenant::default()
    };
    let start = entities.create_tenant(tenant, NOW).unwrap();
    let tenant = start.tenant.id.unwrap();
    let root = start.root_chain.id.unwrap();
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    let metadata = json!({"firstNodeIndex": 0, "nodes": [
        {"type": class("filter.TbMsgTypeFilterNode"), "name": "telemetry",
            "configuration": {"messageTypes": ["POST_TELEMETRY_REQUEST"]}},
        {"type": class("rest.TbRestApiCallNode"), "name": "other",
            "configuration": {"restEndpointUrlPattern": "http://other"}},
        {"type": class("telemetry.TbMsgTimeseriesNode"), "name": "save", "configuration": {}},
    ], "connections": [
        {"fromIndex": 0, "toIndex": 1, "type": "True"},
        {"fromIndex": 1, "toIndex": 2, "type": "Success"},
    ]});
    entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
    devices.platform().reload_chain(root, NOW).unwrap();
    without_pauses(devices);
    device_of(devices, tenant)
}

fn without_pauses(devices: &Devices) {
    let mut queues = devices.entities().queues(NOW).unwrap().into_iter();
    let mut queue = queues.find(|queue| queue.name == "HighPriority").unwrap();
    let strategy = queue.processing_strategy.as_mut().unwrap();
    (strategy.pause_between_retries, strategy.max_pause_between_retries) = (0, 0);
    devices.entities().save_queue(queue, NOW).unwrap();
    devices.platform().reload_queues().unwrap();
}

fn device_of(devices: &Devices, tenant_id: TenantId) -> DeviceId {
    let profile = DeviceProfile {
        tenant_id,
        name: "P".to_owned(),
        default_queue_name: Some("HighPriority".to_owned()),
        ..DeviceProfile::default()
    };
    devices.entities().save_device_profile(profile, NOW).unwrap();
    let device = Device {
        tenant_id,
        name: "D".to_owned(),
        kind: "P".to_owned(),
        ..Device::default()
    };
    let device = devices.entities().save_device(device, Some("TOKEN"), NOW).unwrap();
    device.id.unwrap()
}

/// Sends points in one device message.
fn publish(devices: &Devices, device: DeviceId, all: &[i64]) {
    let body: Vec<_> = all.iter().map(|n| json!({"ts": NOW + n, "values": {"n": n}})).collect();
    let body = json!(body).to_string();
    let entry = IngestEntry::new(EntryKind::Telemetry, device.0, NOW, body.as_bytes());
    devices.append(&entry).unwrap().wait().unwrap();
}

fn stored(devices: &Devices, device: DeviceId) -> Vec<PointValue> {
    let query = Query::Points {
        range: NOW..NOW + 1_000_000,
        order: PointOrder::Ascending,
        limit: 1_000,
    };
    let found = devices.platform().store().query(device.0.into(), &["n"], &query);
    found.unwrap().remove(0).into_iter().map(|point| point.value).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn full_retry_queue_continues_when_the_system_answers() {
    let scratch = Scratch::new("full");
    let devices = open(&scratch, 2, 2);
    let device = device(&devices);
    publish(&devices, device, &[0, 1]);
    publish(&devices, device, &[2]);
    let all: Vec<PointValue> = (0..3).map(PointValue::Long).collect();
    wait_until("all three are stored", || stored(&devices, device) == all);
    devices.shut_down();
}
