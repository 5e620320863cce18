//! The entity whose time series are the usage of a tenant.

use serde::{Deserialize, Serialize};

use super::{Entity, IndexColumns, identity, or_default, row};
use crate::ids::{ApiUsageStateId, EntityId, EntityType, TenantId, Uuid};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiUsageState {
    pub id: Option<ApiUsageStateId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    /// The tenant.
    pub entity_id: Option<EntityId>,
    pub version: Option<i64>,
}

impl Entity for ApiUsageState {
    const KIND: EntityType = EntityType::ApiUsageState;

    identity!(ApiUsageStateId);

    fn row(&self) -> IndexColumns {
        row(self.id(), self.tenant_id.0, "")
    }
}
