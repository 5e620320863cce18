//! Directed relations between entities.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{EntityId, named_enum};

named_enum! {
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
    pub enum RelationGroup {
        #[default]
        Common "COMMON",
        Dashboard "DASHBOARD",
        RuleChain "RULE_CHAIN",
        RuleNode "RULE_NODE",
        Edge "EDGE",
        EdgeAutoAssignRuleChain "EDGE_AUTO_ASSIGN_RULE_CHAIN",
    }
}

/// Identified by all fields except `additional_info`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Relation {
    pub from: EntityId,
    pub to: EntityId,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, rename = "typeGroup")]
    pub group: RelationGroup,
    #[serde(default)]
    pub additional_info: Option<Value>,
}

impl Relation {
    /// The entity contains the other.
    pub const CONTAINS: &'static str = "Contains";
    /// From the user or gateway that created a device.
    pub const CREATED: &'static str = "Created";
}
