//! Notifies devices of their firmware and software packages: as shared attributes (`fw_title`, `fw_version`, …) and
//! as time series (`target_fw_title`, …, `fw_state`), which the device updates later.

use std::borrow::Cow;

use serde_json::Value as Json;
use timeseries::{PointValue, TimedValue};

use super::host::PlatformCall;
use super::{AttributesChange, Platform, PlatformOutlet};
use crate::chain::NodeError;
use crate::decode::KeyValue;
use crate::entities::EntityError;
use crate::ids::{DeviceId, EntityId};
use crate::model::{AttributeScope, OtaPackage, OtaPackageType};

/// Shared attributes, without their prefix.
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
    /// Updates the attributes of devices whose package of this kind may have changed, in one transaction. Returns the
    /// target telemetry to save, for each device with a new package. `is_again` includes devices whose telemetry has
    /// another target. Deleted devices are skipped.
    pub fn notify_ota(
        &self,
        devices: &[DeviceId],
        (kind, is_again): (OtaPackageType, bool),
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<Vec<(DeviceId, Json)>, EntityError> {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        let mut targets = Vec::new();
        for device in devices {
            match self.entities.ota_package_of(*device, kind) {
                Ok(package) => {
                    let target = visit.notify_ota(*device, (kind, is_again), package)?;
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

impl PlatformCall<'_> {
    fn notify_ota(
        &mut self,
        device: DeviceId,
        (kind, is_again): (OtaPackageType, bool),
        package: Option<OtaPackage>,
    ) -> Result<Option<Json>, NodeError> {
        let (entity, prefix) = (device.entity(), kind.prefix());
        let wanted = package.as_ref().map(values).unwrap_or_default();
        let names = KEYS.map(|key| format!("{prefix}_{key}"));
        let known = self.known_attributes(entity, AttributeScope::SharedScope, &names)?;
        let set: Vec<KeyValue<'_>> = wanted
            .iter()
            .map(|(key, value)| KeyValue {
                key: Cow::Owned(format!("{prefix}_{key}")),
                value: value.clone(),
            })
            .collect();
        let removed: Vec<String> = known
            .iter()
            .map(|attribute| attribute.key.clone())
            .filter(|key| !set.iter().any(|set| set.key == *key))
            .collect();
        let is_new = |set: &KeyValue<'_>| {
            !known
                .iter()
                .any(|known| known.key == set.key && known.value == set.value)
        };
        let is_known = !set.iter().any(is_new) && removed.is_empty();
        let is_shown = !is_again || self.is_target(entity, prefix, package.as_ref())?;
        if is_known && is_shown {
            return Ok(None);
        }
        if !removed.is_empty() {
            self.change_attributes(entity, AttributeScope::SharedScope, AttributesChange::Delete(&removed))?;
        }
        let Some(package) = package else { return Ok(None) };
        let mut refused = None;
        if !is_known {
            refused = self.change_attributes(entity, AttributeScope::SharedScope, AttributesChange::Save(&set))?;
        }
        let mut target = serde_json::Map::new();
        target.insert(format!("target_{prefix}_title"), package.title.into());
        target.insert(format!("target_{prefix}_version"), package.version.into());
        target.insert(format!("target_{prefix}_tag"), package.tag.unwrap_or_default().into());
        target.insert(format!("target_{prefix}_ts"), self.now_ms.into());
        // Without all attributes, the device does not find its package.
        let state = if refused.is_none() { "INITIATED" } else { "FAILED" };
        target.insert(format!("{prefix}_state"), state.into());
        if let Some(refused) = refused {
            target.insert(format!("{prefix}_error"), refused.to_string().into());
        }
        Ok(Some(target.into()))
    }
}

impl PlatformCall<'_> {
    /// Whether the device's telemetry shows this package as its target. True if there is no package.
    fn is_target(&self, device: EntityId, prefix: &str, package: Option<&OtaPackage>) -> Result<bool, NodeError> {
        let Some(package) = package else { return Ok(true) };
        let keys = ["title", "version"].map(|key| format!("target_{prefix}_{key}"));
        let latest = self.known_latest(device, &keys)?;
        let wanted = [&package.title, &package.version];
        let is_same = |(latest, wanted): (&Option<TimedValue>, &String)| matches!(latest, Some(TimedValue { value: PointValue::String(shown), .. }) if **shown == **wanted);
        Ok(latest.iter().zip(wanted).all(is_same))
    }
}

fn values(package: &OtaPackage) -> Vec<(&'static str, PointValue)> {
    let text = |text: &Option<String>| text.as_deref().map(|text| PointValue::String(text.into()));
    let size = package
        .data_size
        .map(|size| PointValue::Long(i64::try_from(size).unwrap_or(i64::MAX)));
    let all = [
        ("title", Some(PointValue::String(package.title.as_str().into()))),
        ("version", Some(PointValue::String(package.version.as_str().into()))),
        ("tag", text(&package.tag)),
        ("size", size),
        ("checksum", text(&package.checksum)),
        ("checksum_algorithm", text(&package.checksum_algorithm)),
        ("url", text(&package.url)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}
