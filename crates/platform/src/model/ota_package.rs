//! Firmware and software packages for devices: metadata and assignment. The data is stored separately.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Entity, IndexColumns, or_default, row};
use crate::decode::OtaKind;
use crate::ids::{DeviceProfileId, EntityType, OtaPackageId, TenantId, Uuid, named_enum};

named_enum! {
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum OtaPackageType {
        #[default]
        Firmware "FIRMWARE",
        Software "SOFTWARE",
    }
}

impl OtaPackageType {
    /// Prefix in topics and attribute names.
    pub fn prefix(self) -> &'static str {
        match self {
            OtaPackageType::Firmware => "fw",
            OtaPackageType::Software => "sw",
        }
    }
}

impl From<OtaKind> for OtaPackageType {
    fn from(kind: OtaKind) -> OtaPackageType {
        match kind {
            OtaKind::Firmware => OtaPackageType::Firmware,
            OtaKind::Software => OtaPackageType::Software,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OtaPackage {
    pub id: Option<OtaPackageId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    pub device_profile_id: Option<DeviceProfileId>,
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: OtaPackageType,
    #[serde(deserialize_with = "or_default")]
    pub title: String,
    /// Version of the package. The entity itself has no version.
    #[serde(deserialize_with = "or_default")]
    pub version: String,
    pub tag: Option<String>,
    /// Download URL, if the data is not stored on the platform.
    pub url: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub has_data: bool,
    pub file_name: Option<String>,
    pub content_type: Option<String>,
    pub checksum_algorithm: Option<String>,
    pub checksum: Option<String>,
    pub data_size: Option<u64>,
    pub additional_info: Option<Value>,
}

impl OtaPackage {
    pub fn has_url(&self) -> bool {
        self.url.as_deref().is_some_and(|url| !url.trim().is_empty())
    }
}

impl Entity for OtaPackage {
    const KIND: EntityType = EntityType::OtaPackage;

    fn id(&self) -> Option<Uuid> {
        self.id.map(|id| id.0)
    }

    fn version(&self) -> Option<i64> {
        None
    }

    fn stamp(&mut self, id: Uuid, _: i64) {
        self.id = Some(OtaPackageId(id));
        self.created_time = id.created_ms();
    }

    fn row(&self) -> IndexColumns {
        IndexColumns {
            parent: self.device_profile_id.unwrap_or_default().0,
            subtype: self.kind.name().to_owned(),
            label: self.version.clone(),
            unique_key: Some(format!(
                "{} {} {}\n{}",
                self.tenant_id.0,
                self.kind.name(),
                self.title,
                self.version
            )),
            ..row(self.id(), self.tenant_id.0, &self.title)
        }
    }
}
