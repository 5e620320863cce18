//! What the statistics of a tenant's messages in a queue are recorded at: its time series are those of this entity.

use serde::{Deserialize, Serialize};

use super::{Entity, Row, identity, or_default, row};
use crate::ids::{EntityType, QueueStatsId, TenantId, Uuid};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStats {
    pub id: Option<QueueStatsId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    pub queue_name: String,
    /// Of the node.
    pub service_id: String,
    /// Both.
    pub name: String,
    pub version: Option<i64>,
}

impl Entity for QueueStats {
    const KIND: EntityType = EntityType::QueueStats;

    identity!(QueueStatsId);

    fn row(&self) -> Row {
        row(self.id(), self.tenant_id.0, &self.name)
    }
}
