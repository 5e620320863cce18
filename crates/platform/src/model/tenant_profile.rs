//! Tenant profiles, which limit tenants. `profileData` is stored and returned unchanged; [`crate::TenantLimits`] is
//! parsed from it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Entity, IndexColumns, identity, or_default, row};
use crate::ids::{EntityType, TenantProfileId, Uuid};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantProfile {
    pub id: Option<TenantProfileId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    pub description: Option<String>,
    /// Marks the profile of tenants without one.
    #[serde(deserialize_with = "or_default")]
    pub default: bool,
    /// Stored only; there is one rule engine.
    #[serde(deserialize_with = "or_default")]
    pub isolated_tb_rule_engine: bool,
    pub profile_data: Value,
    pub version: Option<i64>,
}

impl Default for TenantProfile {
    fn default() -> TenantProfile {
        TenantProfile {
            id: None,
            created_time: 0,
            name: String::new(),
            description: None,
            default: false,
            isolated_tb_rule_engine: false,
            profile_data: default_tenant_profile_data(),
            version: None,
        }
    }
}

/// A number of 0 means no limit.
pub fn default_tenant_profile_data() -> Value {
    json!({
        "configuration": {
            "type": "DEFAULT",
            "maxDevices": 0, "maxAssets": 0, "maxCustomers": 0, "maxUsers": 0, "maxDashboards": 0, "maxRuleChains": 0,
            "transportTenantMsgRateLimit": null,
            "transportTenantTelemetryMsgRateLimit": null,
            "transportTenantTelemetryDataPointsRateLimit": null,
            "transportDeviceMsgRateLimit": null,
            "transportDeviceTelemetryMsgRateLimit": null,
            "transportDeviceTelemetryDataPointsRateLimit": null,
            "tenantServerRestLimitsConfiguration": null, "customerServerRestLimitsConfiguration": null,
            "maxWsSessionsPerTenant": 0, "maxWsSessionsPerCustomer": 0, "maxWsSessionsPerRegularUser": 0,
            "maxTransportMessages": 0, "maxTransportDataPoints": 0, "maxREExecutions": 0, "maxJSExecutions": 0,
            "maxDPStorageDays": 0, "maxCreatedAlarms": 0,
            "warnThreshold": 0,
            "defaultStorageTtlDays": null, "alarmsTtlDays": 0, "rpcTtlDays": 0,
        },
        "queueConfiguration": null,
    })
}

impl TenantProfile {
    pub fn configuration(&self) -> &Value {
        &self.profile_data["configuration"]
    }
}

impl Entity for TenantProfile {
    const KIND: EntityType = EntityType::TenantProfile;

    identity!(TenantProfileId);

    fn row(&self) -> IndexColumns {
        row(self.id(), Uuid::NULL, &self.name)
    }
}
