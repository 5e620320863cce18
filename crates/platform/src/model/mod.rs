//! Entities with the fields and JSON of ThingsBoard's REST API. Unknown fields are ignored. The contents of profiles
//! and dashboards are stored unchanged.

mod alarm;
mod alarm_comment;
mod api_key;
mod attribute;
mod audit_log;
mod device;
mod ota_package;
mod people;
mod profile;
mod queue;
mod queue_stats;
mod relation;
mod rpc;
mod tenant_profile;
mod things;
mod usage_state;

pub use alarm::{Alarm, AlarmSeverity, AlarmStatus};
pub use alarm_comment::AlarmComment;
pub use api_key::{ApiKey, Issuer};
pub use attribute::{Attribute, AttributeScope};
pub use audit_log::AuditLog;
pub use device::{CredentialsType, Device, DeviceCredentials, MqttBasic};
pub use ota_package::{OtaPackage, OtaPackageType};
pub use people::{Authority, Customer, Tenant, User, UserCredentials};
pub use profile::{DeviceProfile, ProvisionType, default_profile_data};
pub use queue::{MAIN_QUEUE, ProcessingKind, ProcessingStrategy, Queue, SubmitKind, SubmitStrategy};
pub use queue_stats::QueueStats;
pub use relation::{Relation, RelationGroup};
pub use rpc::{Rpc, RpcRequestBody, RpcStatus};
pub use tenant_profile::{TenantProfile, default_tenant_profile_data};
pub use things::{Asset, AssetProfile, Dashboard, RuleChain};
pub use usage_state::ApiUsageState;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::ids::{EntityType, Uuid};

/// Index columns of an entity, stored in addition to its JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexColumns {
    pub id: Uuid,
    pub tenant: Uuid,
    pub customer: Uuid,
    /// The entity it belongs to: the profile of a device, the device of credentials.
    pub parent: Uuid,
    pub name: String,
    pub subtype: String,
    pub label: String,
    /// Unique among all entities of the type, in all tenants.
    pub unique_key: Option<String>,
}

/// An entity that the repository stores as a whole.
pub trait Entity: Serialize + DeserializeOwned {
    const KIND: EntityType;

    /// `None` before the entity is saved for the first time.
    fn id(&self) -> Option<Uuid>;

    fn row(&self) -> IndexColumns;

    /// The version that the client has read; `None` matches any stored version.
    fn version(&self) -> Option<i64>;

    fn stamp(&mut self, id: Uuid, version: i64);
}

/// Implements id, creation time and version for an [`Entity`] with fields of these names.
macro_rules! identity {
    ($id:ident) => {
        fn id(&self) -> Option<Uuid> {
            self.id.map(|id| id.0)
        }

        fn version(&self) -> Option<i64> {
            self.version
        }

        fn stamp(&mut self, id: Uuid, version: i64) {
            self.id = Some($id(id));
            self.created_time = id.created_ms();
            self.version = Some(version);
        }
    };
}
use identity;

/// Treats `null` like a missing field.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// `{"id":"…"}`, for ids without a type in ThingsBoard's JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainId {
    pub id: Uuid,
}

/// A row with only these values. Entities set the others as needed.
fn row(id: Option<Uuid>, tenant: Uuid, name: &str) -> IndexColumns {
    IndexColumns {
        id: id.unwrap_or(Uuid::NULL),
        tenant,
        customer: Uuid::NULL,
        parent: Uuid::NULL,
        name: name.to_owned(),
        subtype: String::new(),
        label: String::new(),
        unique_key: None,
    }
}
