//! Assets and their profiles, dashboards, rule chains.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Entity, IndexColumns, identity, or_default, row};
use crate::ids::{
    AssetId, AssetProfileId, CustomerId, DashboardId, EntityType, RuleChainId, RuleNodeId, TenantId, Uuid,
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Asset {
    pub id: Option<AssetId>,
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
    pub asset_profile_id: Option<AssetProfileId>,
    pub external_id: Option<AssetId>,
    pub additional_info: Option<Value>,
    pub version: Option<i64>,
}

impl Entity for Asset {
    const KIND: EntityType = EntityType::Asset;

    identity!(AssetId);

    fn row(&self) -> IndexColumns {
        IndexColumns {
            customer: self.customer_id.unwrap_or_default().0,
            parent: self.asset_profile_id.unwrap_or_default().0,
            subtype: self.kind.clone(),
            label: self.label.clone().unwrap_or_default(),
            ..row(self.id(), self.tenant_id.0, &self.name)
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AssetProfile {
    pub id: Option<AssetProfileId>,
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
    pub default_rule_chain_id: Option<RuleChainId>,
    pub default_dashboard_id: Option<DashboardId>,
    pub default_queue_name: Option<String>,
    pub external_id: Option<AssetProfileId>,
    pub version: Option<i64>,
}

impl Entity for AssetProfile {
    const KIND: EntityType = EntityType::AssetProfile;

    identity!(AssetProfileId);

    fn row(&self) -> IndexColumns {
        row(self.id(), self.tenant_id.0, &self.name)
    }
}

/// `configuration` is used only by clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Dashboard {
    pub id: Option<DashboardId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub title: String,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    pub image: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub mobile_hide: bool,
    pub mobile_order: Option<i32>,
    pub assigned_customers: Option<Value>,
    pub external_id: Option<DashboardId>,
    pub configuration: Option<Value>,
    pub version: Option<i64>,
}

impl Entity for Dashboard {
    const KIND: EntityType = EntityType::Dashboard;

    identity!(DashboardId);

    fn row(&self) -> IndexColumns {
        row(self.id(), self.tenant_id.0, &self.title)
    }
}

/// A rule chain. Its nodes and connections are `metadata`, stored unchanged and compiled by [`crate::chain`].
/// `metadata` is not a field of ThingsBoard; responses omit it or return it separately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleChain {
    pub id: Option<RuleChainId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub first_rule_node_id: Option<RuleNodeId>,
    #[serde(deserialize_with = "or_default")]
    pub root: bool,
    #[serde(deserialize_with = "or_default")]
    pub debug_mode: bool,
    pub external_id: Option<RuleChainId>,
    pub configuration: Option<Value>,
    pub additional_info: Option<Value>,
    pub version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

impl Entity for RuleChain {
    const KIND: EntityType = EntityType::RuleChain;

    identity!(RuleChainId);

    fn row(&self) -> IndexColumns {
        IndexColumns {
            subtype: self.kind.clone().unwrap_or_else(|| "CORE".to_owned()),
            ..row(self.id(), self.tenant_id.0, &self.name)
        }
    }
}
