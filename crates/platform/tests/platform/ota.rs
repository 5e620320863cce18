//! Notification of devices about their packages, many in one transaction.

use platform::ids::DeviceId;
use platform::model::{AttributeScope, DeviceProfile, OtaPackage, OtaPackageType};
use serde_json::Value as Json;
use timeseries::PointValue;

use super::fixture::{Fixture, NOW, fixture};

const DEVICES: usize = 20;

#[test]
fn one_transaction_notifies_all_devices_once() {
    let mut f = fixture();
    let devices: Vec<DeviceId> = (0..DEVICES)
        .map(|number| f.device(&format!("D{number}"), "meter", Json::Null))
        .collect();
    let entities = f.platform.entities();
    let mut profile: DeviceProfile = entities.find_by_name(f.tenant.0, "meter").unwrap().unwrap();
    let package = OtaPackage {
        tenant_id: f.tenant,
        device_profile_id: profile.id,
        kind: OtaPackageType::Firmware,
        title: "firmware".to_owned(),
        version: "2".to_owned(),
        url: Some("http://example.com/2".to_owned()),
        ..OtaPackage::default()
    };
    let package = entities.save_ota_package(package, NOW).unwrap();
    profile.firmware_id = package.id.map(|id| id.entity());
    entities.save_device_profile(profile, NOW).unwrap();
    // One device is deleted. The others are still notified.
    entities.delete_device(devices[3]).unwrap();

    let before = f.commits();
    let tell = |f: &mut Fixture| {
        let targets = f
            .platform
            .notify_ota(&devices, (OtaPackageType::Firmware, false), NOW, &mut f.seen)
            .unwrap();
        (targets, f.seen.take())
    };
    let (notified, seen) = tell(&mut f);
    assert_eq!(f.commits() - before, 1);
    assert_eq!((notified.len(), notified[0].0), (DEVICES - 1, devices[0]));
    assert_eq!(notified[0].1["target_fw_version"], "2");
    let to_devices = seen.iter().filter(|seen| seen.starts_with("to device "));
    assert_eq!(to_devices.count(), DEVICES - 1);
    for device in devices.iter().filter(|device| **device != devices[3]) {
        let keys = Some(&["fw_version"][..]);
        let found = f
            .platform
            .attributes(device.entity(), AttributeScope::SharedScope, keys)
            .unwrap();
        assert_eq!(found[0].value, PointValue::String("2".into()));
    }
    // A second notification changes nothing.
    let (notified, seen) = tell(&mut f);
    assert!(notified.is_empty() && seen.is_empty(), "{notified:?} {seen:?}");
}
