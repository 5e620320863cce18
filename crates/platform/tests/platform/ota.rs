//! Devices are told of their packages, many in one transaction.

use std::fs;

use platform::ids::DeviceId;
use platform::model::{DeviceProfile, OtaPackage, OtaPackageType, Scope};
use serde_json::Value as Json;
use timeseries::Value;

use crate::fixture::{Fixture, NOW, fixture};

const DEVICES: usize = 20;

/// Commits in the write-ahead log of the database since its last reset: the last frame of each has the size of the database in it.
fn commits(f: &Fixture) -> usize {
    let mut path = f.directory.path().join(platform::FILE_NAME).into_os_string();
    path.push("-wal");
    let log = fs::read(path).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap()) as usize;
    let (page_bytes, salts) = (number(8), &log[16..24]);
    let frames = (32..log.len()).step_by(24 + page_bytes);
    let is_valid = |at: &usize| log.len() >= at + 24 && log[at + 8..at + 16] == *salts;
    frames.take_while(is_valid).filter(|at| number(at + 4) > 0).count()
}

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

    let before = commits(&f);
    let tell = |f: &mut Fixture| {
        let told = f
            .platform
            .tell_of_ota(&devices, OtaPackageType::Firmware, NOW, &mut f.seen)
            .unwrap();
        (told, f.seen.take())
    };
    let (told, seen) = tell(&mut f);
    assert_eq!(commits(&f) - before, 1);
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
