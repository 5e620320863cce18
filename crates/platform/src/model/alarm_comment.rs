//! Comments on alarms.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Entity, IndexColumns, PlainId, or_default, row};
use crate::ids::{AlarmId, EntityType, TenantId, UserId, Uuid};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AlarmComment {
    pub id: Option<PlainId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub alarm_id: AlarmId,
    pub user_id: Option<UserId>,
    /// `OTHER` for a comment of a user.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// `{"text": "…"}`.
    pub comment: Value,
    pub version: Option<i64>,
}

impl Entity for AlarmComment {
    const KIND: EntityType = EntityType::AlarmComment;

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
            parent: self.alarm_id.0,
            subtype: self.kind.clone().unwrap_or_default(),
            ..row(self.id(), self.tenant_id.0, "")
        }
    }
}
