//! Device profiles. `profileData` is stored and returned unchanged; the platform reads the settings that it uses.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Entity, IndexColumns, identity, or_default, row};
use crate::ids::{DashboardId, DeviceProfileId, EntityId, EntityType, RuleChainId, TenantId, Uuid};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ProvisionType {
    #[default]
    Disabled,
    AllowCreateNewDevices,
    CheckPreProvisionedDevices,
    X509CertificateChain,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceProfile {
    pub id: Option<DeviceProfileId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    pub description: Option<String>,
    pub image: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub default: bool,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub transport_type: Option<String>,
    pub provision_type: Option<ProvisionType>,
    pub default_rule_chain_id: Option<RuleChainId>,
    pub default_dashboard_id: Option<DashboardId>,
    pub default_queue_name: Option<String>,
    pub provision_device_key: Option<String>,
    pub firmware_id: Option<EntityId>,
    pub software_id: Option<EntityId>,
    pub default_edge_rule_chain_id: Option<RuleChainId>,
    pub external_id: Option<DeviceProfileId>,
    pub profile_data: Value,
    pub version: Option<i64>,
}

impl Default for DeviceProfile {
    fn default() -> DeviceProfile {
        DeviceProfile {
            id: None,
            created_time: 0,
            tenant_id: TenantId::NULL,
            name: String::new(),
            description: None,
            image: None,
            default: false,
            kind: Some("DEFAULT".to_owned()),
            transport_type: Some("DEFAULT".to_owned()),
            provision_type: Some(ProvisionType::Disabled),
            default_rule_chain_id: None,
            default_dashboard_id: None,
            default_queue_name: None,
            provision_device_key: None,
            firmware_id: None,
            software_id: None,
            default_edge_rule_chain_id: None,
            external_id: None,
            profile_data: default_profile_data(),
            version: None,
        }
    }
}

/// Default profile data.
pub fn default_profile_data() -> Value {
    json!({
        "configuration": {"type": "DEFAULT"},
        "transportConfiguration": {"type": "DEFAULT"},
        "provisionConfiguration": {"type": "DISABLED", "provisionDeviceSecret": null},
        "alarms": null,
    })
}

impl DeviceProfile {
    /// The JSON definitions of the alarm rules.
    pub fn alarms(&self) -> &[Value] {
        self.profile_data["alarms"].as_array().map_or(&[], Vec::as_slice)
    }

    pub fn provision_secret(&self) -> Option<&str> {
        self.profile_data["provisionConfiguration"]["provisionDeviceSecret"].as_str()
    }

    pub fn provision_strategy(&self) -> ProvisionType {
        self.provision_type.unwrap_or_default()
    }

    pub fn transport(&self) -> &Value {
        &self.profile_data["transportConfiguration"]
    }
}

impl Entity for DeviceProfile {
    const KIND: EntityType = EntityType::DeviceProfile;

    identity!(DeviceProfileId);

    fn row(&self) -> IndexColumns {
        IndexColumns {
            parent: self.default_rule_chain_id.unwrap_or_default().0,
            subtype: self.transport_type.clone().unwrap_or_default(),
            unique_key: self.provision_device_key.clone().filter(|key| !key.is_empty()),
            ..row(self.id(), self.tenant_id.0, &self.name)
        }
    }
}
