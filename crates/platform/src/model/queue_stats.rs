//! The entity whose time series are the statistics of a tenant's messages in a queue.

use serde::{Deserialize, Serialize};

use super::{Entity, IndexColumns, identity, or_default, row};
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
    /// The id of the node.
    pub service_id: String,
    /// Queue name and service id.
    pub name: String,
    pub version: Option<i64>,
}

impl Entity for QueueStats {
    const KIND: EntityType = EntityType::QueueStats;

    identity!(QueueStatsId);

    fn row(&self) -> IndexColumns {
        row(self.id(), self.tenant_id.0, &self.name)
    }
}
