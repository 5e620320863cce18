//! Devices are told of their packages, many in one transaction.

use platform::ids::DeviceId;
use platform::model::{DeviceProfile, OtaPackage, OtaPackageType, Scope};
use serde_json::Value as Json;
use timeseries::Value;

use crate::fixture::{Fixture, NOW, fixture};

const DEVICES: usize = 20;

#[test]
fn one_transaction_tells_all_devices_and_once() {
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
    // One is gone meanwhile: the others are told all the same.
    entities.delete_device(devices[3]).unwrap();

    let before = f.commits();
    let tell = |f: &mut Fixture| {
        let told = f
            .platform
            .tell_of_ota(&devices, (OtaPackageType::Firmware, false), NOW, &mut f.seen)
            .unwrap();
        (told, f.seen.take())
    };
    let (told, seen) = tell(&mut f);
    assert_eq!(f.commits() - before, 1);
    assert_eq!((told.len(), told[0].0), (DEVICES - 1, devices[0]));
    assert_eq!(told[0].1["target_fw_version"], "2");
    let to_devices = seen.iter().filter(|seen| seen.starts_with("to device "));
    assert_eq!(to_devices.count(), DEVICES - 1);
    for device in devices.iter().filter(|device| **device != devices[3]) {
        let keys = Some(&["fw_version"][..]);
        let found = f
            .platform
            .attributes(device.entity(), Scope::SharedScope, keys)
            .unwrap();
        assert_eq!(found[0].value, Value::String("2".into()));
    }
    // Nothing is new to them.
    let (told, seen) = tell(&mut f);
    assert!(told.is_empty() && seen.is_empty(), "{told:?} {seen:?}");
}
