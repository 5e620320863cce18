//! A user's REST request, successful or not.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Entity, IndexColumns, PlainId, or_default, row};
use crate::ids::{CustomerId, EntityId, EntityType, TenantId, UserId, Uuid};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditLog {
    pub id: Option<PlainId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub customer_id: CustomerId,
    pub entity_id: Option<EntityId>,
    #[serde(deserialize_with = "or_default")]
    pub entity_name: String,
    #[serde(deserialize_with = "or_default")]
    pub user_id: UserId,
    #[serde(deserialize_with = "or_default")]
    pub user_name: String,
    /// For example `ADDED`.
    #[serde(deserialize_with = "or_default")]
    pub action_type: String,
    pub action_data: Value,
    /// `SUCCESS` or `FAILURE`.
    #[serde(deserialize_with = "or_default")]
    pub action_status: String,
    #[serde(deserialize_with = "or_default")]
    pub action_failure_details: String,
}

impl Entity for AuditLog {
    const KIND: EntityType = EntityType::AuditLog;

    fn id(&self) -> Option<Uuid> {
        self.id.map(|id| id.id)
    }

    fn version(&self) -> Option<i64> {
        None
    }

    fn stamp(&mut self, id: Uuid, _: i64) {
        self.id = Some(PlainId { id });
        self.created_time = id.created_ms();
    }

    /// The label contains the user, so that entries can be selected by user.
    fn row(&self) -> IndexColumns {
        IndexColumns {
            customer: self.customer_id.0,
            parent: self.entity_id.map_or(Uuid::NULL, |entity| entity.id),
            subtype: self.action_type.clone(),
            label: format!("{} {}", self.user_id.0, self.user_name),
            ..row(self.id(), self.tenant_id.0, &self.entity_name)
        }
    }
}
