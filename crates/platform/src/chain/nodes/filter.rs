//! Nodes that route or filter messages.

use std::sync::Arc;

use serde_json::Value as Json;

use super::{ConnectionLabel, NodeOutcome};
use crate::chain::host::{Host, NodeError};
use crate::chain::message::ChainMessage;
use crate::chain::script::labels_result;
use crate::ids::{AlarmId, EntityId, EntityType, Uuid};
use crate::repository::RelationSelection;

#[derive(Debug)]
pub struct CheckFieldsNode {
    pub data: Vec<String>,
    pub metadata: Vec<String>,
    pub wants_all: bool,
}

impl CheckFieldsNode {
    pub fn matches(&self, message: &ChainMessage<'_>) -> bool {
        let json = message.json();
        let in_data = |name: &String| json.get(name).is_some_and(|value| !value.is_null());
        let in_metadata = |name: &String| message.metadata.get(name).is_some();
        if self.wants_all {
            self.data.iter().all(in_data) && self.metadata.iter().all(in_metadata)
        } else {
            self.data.iter().any(in_data) || self.metadata.iter().any(in_metadata)
        }
    }
}

#[derive(Debug)]
pub struct RelationNode {
    /// From the other entity to the originator.
    pub is_from_entity: bool,
    pub kind: Option<String>,
    /// `None` for any entity.
    pub single: Option<EntityId>,
}

impl RelationNode {
    pub fn exists(&self, message: &ChainMessage<'_>, host: &dyn Host) -> Result<bool, NodeError> {
        let originator = Some(message.originator);
        let (from, to) = if self.is_from_entity {
            (self.single, originator)
        } else {
            (originator, self.single)
        };
        let selection = RelationSelection {
            from,
            to,
            kind: self.kind.clone(),
            group: None,
        };
        Ok(!host.relations(&selection)?.is_empty())
    }
}

pub fn switch<'a>(result: Json, message: Arc<ChainMessage<'a>>) -> Result<NodeOutcome<'a>, NodeError> {
    let labels = labels_result(result)?.into_iter();
    Ok(NodeOutcome::NextMany(
        labels
            .map(|label| (ConnectionLabel::from(label), Arc::clone(&message)))
            .collect(),
    ))
}

/// Routes by the name of the profile.
pub fn profile_switch<'a>(message: Arc<ChainMessage<'a>>, host: &dyn Host) -> Result<NodeOutcome<'a>, NodeError> {
    let missing = || NodeError::new("the originator has no profile: it is not a device or asset, or does not exist");
    let entity = host.entity(message.originator)?.ok_or_else(missing)?;
    let name = entity["type"].as_str().ok_or_else(missing)?;
    Ok(NodeOutcome::Next(name.to_owned().into(), message))
}

pub fn type_label(kind: EntityType) -> ConnectionLabel {
    ConnectionLabel::from(match kind {
        EntityType::Device => "Device",
        EntityType::Asset => "Asset",
        EntityType::Alarm => "Alarm",
        EntityType::Tenant => "Tenant",
        EntityType::Customer => "Customer",
        EntityType::User => "User",
        EntityType::Dashboard => "Dashboard",
        EntityType::RuleChain => "Rule chain",
        EntityType::RuleNode => "Rule node",
        _ => "Other",
    })
}

/// Checks the current status of the alarm in the data.
pub fn alarm_status<'a>(
    statuses: &[String],
    message: Arc<ChainMessage<'a>>,
    host: &dyn Host,
) -> Result<NodeOutcome<'a>, NodeError> {
    let json = message.json();
    let id = json["id"]["id"].as_str().and_then(Uuid::parse);
    let id = AlarmId(id.ok_or_else(|| NodeError::new("the message is not an alarm"))?);
    let tenant = host.tenant_of(message.originator);
    let alarm = host.alarm(id)?.filter(|alarm| alarm.tenant_id == tenant);
    let alarm = alarm.ok_or_else(|| NodeError::new("No such alarm found."))?;
    let status = serde_json::to_value(alarm.status()).unwrap_or_default();
    let is_one = statuses.iter().any(|known| status == known.as_str());
    drop(json);
    Ok(NodeOutcome::of_condition(is_one, message))
}
