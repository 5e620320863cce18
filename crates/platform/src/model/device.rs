//! Devices and their credentials.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Entity, IndexColumns, PlainId, identity, or_default, row};
use crate::ids::{CustomerId, DeviceId, DeviceProfileId, EntityId, EntityType, TenantId, Uuid, named_enum};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    pub id: Option<DeviceId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    pub customer_id: Option<CustomerId>,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// The name of the profile.
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    pub label: Option<String>,
    pub device_profile_id: Option<DeviceProfileId>,
    pub device_data: Option<Value>,
    pub firmware_id: Option<EntityId>,
    pub software_id: Option<EntityId>,
    pub external_id: Option<DeviceId>,
    pub additional_info: Option<Value>,
    pub version: Option<i64>,
}

impl Device {
    fn flag(&self, name: &str) -> bool {
        let info = self.additional_info.as_ref();
        info.and_then(|info| info.get(name)).and_then(Value::as_bool) == Some(true)
    }

    /// Whether the device may speak for other devices.
    pub fn is_gateway(&self) -> bool {
        self.flag("gateway")
    }

    /// Restores the stored gateway flag. A gateway speaks for all devices of its tenant, so only tenant
    /// administrators may set it.
    pub fn restore_gateway_flag(&mut self, stored: &Device) {
        if self.is_gateway() == stored.is_gateway() {
            return;
        }
        let info = self.additional_info.get_or_insert_with(|| Value::Object(Map::new()));
        if !info.is_object() {
            *info = Value::Object(Map::new());
        }
        info["gateway"] = Value::Bool(stored.is_gateway());
    }

    /// Whether activity of this gateway also counts as activity of the devices behind it.
    pub fn overwrites_activity_time(&self) -> bool {
        self.flag("overwriteActivityTime")
    }
}

impl Entity for Device {
    const KIND: EntityType = EntityType::Device;

    identity!(DeviceId);

    fn row(&self) -> IndexColumns {
        IndexColumns {
            customer: self.customer_id.unwrap_or_default().0,
            parent: self.device_profile_id.unwrap_or_default().0,
            subtype: self.kind.clone(),
            label: self.label.clone().unwrap_or_default(),
            ..row(self.id(), self.tenant_id.0, &self.name)
        }
    }
}

named_enum! {
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
    pub enum CredentialsType {
        #[default]
        AccessToken "ACCESS_TOKEN",
        X509Certificate "X509_CERTIFICATE",
        MqttBasic "MQTT_BASIC",
        Lwm2mCredentials "LWM2M_CREDENTIALS",
    }
}

/// Every device has exactly one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceCredentials {
    /// As in ThingsBoard: a UUID without a type.
    pub id: Option<PlainId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub device_id: DeviceId,
    #[serde(deserialize_with = "or_default")]
    pub credentials_type: CredentialsType,
    /// The id by which a connection finds the credentials, computed by [`crate::credentials`]. Unique in the whole
    /// platform.
    pub credentials_id: Option<String>,
    /// JSON of [`MqttBasic`], or the certificate.
    pub credentials_value: Option<String>,
    pub version: Option<i64>,
}

/// All given values must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MqttBasic {
    pub client_id: Option<String>,
    pub user_name: Option<String>,
    pub password: Option<String>,
}

impl Entity for DeviceCredentials {
    const KIND: EntityType = EntityType::DeviceCredentials;

    fn id(&self) -> Option<Uuid> {
        self.id.map(|id| id.id)
    }

    fn version(&self) -> Option<i64> {
        self.version
    }

    fn stamp(&mut self, id: Uuid, version: i64) {
        self.id = Some(PlainId { id });
        self.created_time = id.created_ms();
        self.version = Some(version);
    }

    fn row(&self) -> IndexColumns {
        IndexColumns {
            parent: self.device_id.0,
            subtype: self.credentials_type.name().to_owned(),
            unique_key: self.credentials_id.clone(),
            ..row(self.id(), Uuid::NULL, "")
        }
    }
}
