//! Alarms. There is at most one active alarm per originator and type.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::ids::{AlarmId, CustomerId, EntityId, TenantId, UserId, named_enum};

named_enum! {
    /// From the worst, which is the order in which rules are evaluated.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
    pub enum AlarmSeverity {
        Critical "CRITICAL",
        Major "MAJOR",
        Minor "MINOR",
        Warning "WARNING",
        Indeterminate "INDETERMINATE",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AlarmStatus {
    ActiveUnack,
    ActiveAck,
    ClearedUnack,
    ClearedAck,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alarm {
    #[serde(default)]
    pub id: Option<AlarmId>,
    #[serde(default)]
    pub created_time: i64,
    #[serde(default)]
    pub tenant_id: TenantId,
    #[serde(default)]
    pub customer_id: Option<CustomerId>,
    #[serde(rename = "type")]
    pub kind: String,
    pub originator: EntityId,
    pub severity: AlarmSeverity,
    #[serde(default)]
    pub acknowledged: bool,
    #[serde(default)]
    pub cleared: bool,
    #[serde(default)]
    pub assignee_id: Option<UserId>,
    #[serde(default)]
    pub start_ts: i64,
    #[serde(default)]
    pub end_ts: i64,
    #[serde(default)]
    pub ack_ts: i64,
    #[serde(default)]
    pub clear_ts: i64,
    #[serde(default)]
    pub assign_ts: i64,
    #[serde(default)]
    pub details: Option<Value>,
    #[serde(default)]
    pub propagate: bool,
    #[serde(default)]
    pub propagate_to_owner: bool,
    #[serde(default)]
    pub propagate_to_tenant: bool,
    #[serde(default)]
    pub propagate_relation_types: Option<Vec<String>>,
}

impl Alarm {
    pub fn new(tenant_id: TenantId, originator: EntityId, kind: &str, severity: AlarmSeverity) -> Alarm {
        Alarm {
            id: None,
            created_time: 0,
            tenant_id,
            customer_id: None,
            kind: kind.to_owned(),
            originator,
            severity,
            acknowledged: false,
            cleared: false,
            assignee_id: None,
            start_ts: 0,
            end_ts: 0,
            ack_ts: 0,
            clear_ts: 0,
            assign_ts: 0,
            details: None,
            propagate: false,
            propagate_to_owner: false,
            propagate_to_tenant: false,
            propagate_relation_types: None,
        }
    }

    pub fn status(&self) -> AlarmStatus {
        match (self.cleared, self.acknowledged) {
            (false, false) => AlarmStatus::ActiveUnack,
            (false, true) => AlarmStatus::ActiveAck,
            (true, false) => AlarmStatus::ClearedUnack,
            (true, true) => AlarmStatus::ClearedAck,
        }
    }
}

impl Serialize for Alarm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("createdTime", &self.created_time)?;
        map.serialize_entry("tenantId", &self.tenant_id)?;
        map.serialize_entry("customerId", &self.customer_id)?;
        map.serialize_entry("type", &self.kind)?;
        map.serialize_entry("originator", &self.originator)?;
        map.serialize_entry("severity", &self.severity)?;
        map.serialize_entry("acknowledged", &self.acknowledged)?;
        map.serialize_entry("cleared", &self.cleared)?;
        map.serialize_entry("assigneeId", &self.assignee_id)?;
        map.serialize_entry("startTs", &self.start_ts)?;
        map.serialize_entry("endTs", &self.end_ts)?;
        map.serialize_entry("ackTs", &self.ack_ts)?;
        map.serialize_entry("clearTs", &self.clear_ts)?;
        map.serialize_entry("assignTs", &self.assign_ts)?;
        map.serialize_entry("details", &self.details)?;
        map.serialize_entry("propagate", &self.propagate)?;
        map.serialize_entry("propagateToOwner", &self.propagate_to_owner)?;
        map.serialize_entry("propagateToTenant", &self.propagate_to_tenant)?;
        map.serialize_entry("propagateRelationTypes", &self.propagate_relation_types)?;
        map.serialize_entry("name", &self.kind)?;
        map.serialize_entry("status", &self.status())?;
        map.end()
    }
}
