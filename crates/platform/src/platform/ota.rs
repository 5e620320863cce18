//! Devices are told of their firmware and software: as shared attributes (`fw_title`, `fw_version`, …) and as time series
//! (`target_fw_title`, …, `fw_state`), which the device goes on with.

use std::borrow::Cow;

use serde_json::Value as Json;
use timeseries::{TimedValue, Value};

use super::host::Visit;
use super::{AttributesChange, Outlet, Platform};
use crate::chain::NodeError;
use crate::decode::KeyValue;
use crate::entities::EntityError;
use crate::ids::{DeviceId, EntityId};
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
    /// After the package of this kind of these devices may have become another one: all of them in one transaction. What is to be saved
    /// as telemetry of each that has a new one: its target; `is_again`: of those too whose telemetry has another target. Devices that are
    /// gone are left out.
    pub fn tell_of_ota(
        &self,
        devices: &[DeviceId],
        (kind, is_again): (OtaPackageType, bool),
        now_ms: i64,
        outlet: &mut dyn Outlet,
    ) -> Result<Vec<(DeviceId, Json)>, EntityError> {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        let mut targets = Vec::new();
        for device in devices {
            match self.entities.ota_package_of(*device, kind) {
                Ok(package) => {
                    let target = visit.tell_of_ota(*device, (kind, is_again), package)?;
                    targets.extend(target.map(|target| (*device, target)));
                }
                Err(EntityError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        visit.drain_queue();
        self.apply_pending(&mut core)?;
        Ok(targets)
    }
}

impl Visit<'_> {
    fn tell_of_ota(
        &mut self,
        device: DeviceId,
        (kind, is_again): (OtaPackageType, bool),
        package: Option<OtaPackage>,
    ) -> Result<Option<Json>, NodeError> {
        let (entity, prefix) = (device.entity(), kind.prefix());
        let wanted = package.as_ref().map(values).unwrap_or_default();
        let names = KEYS.map(|key| format!("{prefix}_{key}"));
        let known = self.known_attributes(entity, Scope::SharedScope, &names)?;
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
        let is_known = !set.iter().any(is_new) && gone.is_empty();
        let is_shown = !is_again || self.is_target(entity, prefix, package.as_ref())?;
        if is_known && is_shown {
            return Ok(None);
        }
        if !gone.is_empty() {
            self.change_attributes(entity, Scope::SharedScope, AttributesChange::Delete(&gone))?;
        }
        let Some(package) = package else { return Ok(None) };
        if !is_known {
            self.change_attributes(entity, Scope::SharedScope, AttributesChange::Save(&set))?;
        }
        let mut target = serde_json::Map::new();
        target.insert(format!("target_{prefix}_title"), package.title.into());
        target.insert(format!("target_{prefix}_version"), package.version.into());
        target.insert(format!("target_{prefix}_tag"), package.tag.unwrap_or_default().into());
        target.insert(format!("target_{prefix}_ts"), self.now_ms.into());
        target.insert(format!("{prefix}_state"), "INITIATED".into());
        Ok(Some(target.into()))
    }
}

impl Visit<'_> {
    /// The telemetry of the device shows this package as its target, or there is none.
    fn is_target(&self, device: EntityId, prefix: &str, package: Option<&OtaPackage>) -> Result<bool, NodeError> {
        let Some(package) = package else { return Ok(true) };
        let keys = ["title", "version"].map(|key| format!("target_{prefix}_{key}"));
        let latest = self.known_latest(device, &keys)?;
        let wanted = [&package.title, &package.version];
        let is_same = |(latest, wanted): (&Option<TimedValue>, &String)| matches!(latest, Some(TimedValue { value: Value::String(shown), .. }) if **shown == **wanted);
        Ok(latest.iter().zip(wanted).all(is_same))
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
