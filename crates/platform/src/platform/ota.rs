//! Devices are told of their firmware and software: as shared attributes (`fw_title`, `fw_version`, …) and as time series
//! (`target_fw_title`, …, `fw_state`), which the device goes on with.

use std::borrow::Cow;

use timeseries::Value;

use super::{Outlet, Platform};
use crate::decode::KeyValue;
use crate::entities::EntityError;
use crate::ids::DeviceId;
use crate::model::{OtaPackage, OtaPackageType, Scope};

/// Of shared attributes, behind the prefix.
const KEYS: [&str; 7] = [
    "title",
    "version",
    "tag",
    "size",
    "checksum",
    "checksum_algorithm",
    "url",
];

impl Platform {
    /// After its package of this kind may have become another one. What is to be saved as telemetry of the device: its target, or
    /// nothing if the device has no package.
    pub fn tell_of_ota(
        &self,
        device: DeviceId,
        kind: OtaPackageType,
        now_ms: i64,
        outlet: &mut dyn Outlet,
    ) -> Result<Option<serde_json::Value>, EntityError> {
        let package = self.entities.ota_package_of(device, kind)?;
        let prefix = kind.prefix();
        let wanted = package.as_ref().map(values).unwrap_or_default();
        let names = KEYS.map(|key| format!("{prefix}_{key}"));
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let known = self.attributes(device.entity(), Scope::SharedScope, Some(&all))?;
        let set: Vec<KeyValue<'_>> = wanted
            .iter()
            .map(|(key, value)| KeyValue {
                key: Cow::Owned(format!("{prefix}_{key}")),
                value: value.clone(),
            })
            .collect();
        let gone: Vec<String> = known
            .iter()
            .map(|attribute| attribute.key.clone())
            .filter(|key| !set.iter().any(|set| set.key == *key))
            .collect();
        let is_new = |set: &KeyValue<'_>| {
            !known
                .iter()
                .any(|known| known.key == set.key && known.value == set.value)
        };
        if !set.iter().any(is_new) && gone.is_empty() {
            return Ok(None);
        }
        if !gone.is_empty() {
            self.delete_attributes(device.entity(), Scope::SharedScope, &gone, now_ms, outlet)?;
        }
        let Some(package) = package else { return Ok(None) };
        self.save_attributes(device.entity(), Scope::SharedScope, &set, now_ms, outlet)?;
        let mut target = serde_json::Map::new();
        target.insert(format!("target_{prefix}_title"), package.title.into());
        target.insert(format!("target_{prefix}_version"), package.version.into());
        target.insert(format!("target_{prefix}_tag"), package.tag.unwrap_or_default().into());
        target.insert(format!("target_{prefix}_ts"), now_ms.into());
        target.insert(format!("{prefix}_state"), "INITIATED".into());
        Ok(Some(target.into()))
    }
}

fn values(package: &OtaPackage) -> Vec<(&'static str, Value)> {
    let text = |text: &Option<String>| text.as_deref().map(|text| Value::String(text.into()));
    let size = package
        .data_size
        .map(|size| Value::Long(i64::try_from(size).unwrap_or(i64::MAX)));
    let all = [
        ("title", Some(Value::String(package.title.as_str().into()))),
        ("version", Some(Value::String(package.version.as_str().into()))),
        ("tag", text(&package.tag)),
        ("size", size),
        ("checksum", text(&package.checksum)),
        ("checksum_algorithm", text(&package.checksum_algorithm)),
        ("url", text(&package.url)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}
