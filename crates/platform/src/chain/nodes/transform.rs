//! Nodes that transform a message into others.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value as Json;

use super::NodeOutcome;
use super::enrich::{Owner, owner_of};
use crate::chain::host::{Host, NodeError};
use crate::chain::message::{ChainMessage, MessageData, fill};
use crate::chain::run::check_made;
use crate::ids::{AlarmId, CustomerId, EntityId, EntityType};
use crate::model::Relation;
use crate::repository::RelationSelection;

pub fn script<'a>(result: Json, message: Arc<ChainMessage<'a>>) -> Result<NodeOutcome<'a>, NodeError> {
    let made = messages_of_result(result, &message)?;
    let made = made.into_iter().map(|made| ("Success".into(), Arc::new(made)));
    Ok(NodeOutcome::NextMany(made.collect()))
}

#[derive(Debug)]
pub enum OriginatorSource {
    Customer,
    Tenant,
    /// The originator of the alarm that is the message's originator.
    Alarm,
    /// An entity of this type by name, which may be a pattern.
    Named {
        kind: EntityType,
        name: String,
    },
    Related(RelatedEntities),
}

/// The nearest entity with one of these relations. An empty list of entity types matches any.
#[derive(Debug)]
pub struct RelatedEntities {
    pub is_from_entity: bool,
    /// 0 for unlimited.
    pub levels: u64,
    pub last_level_only: bool,
    pub filters: Vec<(Option<String>, Vec<String>)>,
}

/// Entities visited by one search.
const SEARCHED_MAX: usize = 1000;

pub fn change_originator<'a>(
    source: &OriginatorSource,
    message: Arc<ChainMessage<'a>>,
    host: &dyn Host,
) -> Result<NodeOutcome<'a>, NodeError> {
    let originator = match source {
        OriginatorSource::Customer => owner_of(Owner::Customer, message.originator, host)?,
        OriginatorSource::Tenant => owner_of(Owner::Tenant, message.originator, host)?,
        OriginatorSource::Alarm => alarm_originator(message.originator, host)?,
        OriginatorSource::Named { kind, name } => {
            let name = fill(name, &message)?;
            let tenant = host.tenant_of(message.originator);
            let named = host.entity_named(tenant, *kind, &name)?;
            named.ok_or_else(|| NodeError::new(format!("Failed to find {} with name '{name}'!", kind.name())))?
        }
        OriginatorSource::Related(related) => related.find(message.originator, host)?,
    };
    let customer = match originator.kind {
        EntityType::Customer => CustomerId(originator.id),
        _ => message.customer,
    };
    Ok(NodeOutcome::success(Arc::new(ChainMessage {
        originator,
        customer,
        ..ChainMessage::clone(&message)
    })))
}

fn alarm_originator(id: EntityId, host: &dyn Host) -> Result<EntityId, NodeError> {
    let alarm = if id.kind == EntityType::Alarm {
        host.alarm(AlarmId(id.id))?
    } else {
        None
    };
    alarm
        .map(|alarm| alarm.originator)
        .ok_or_else(|| NodeError::new("the originator is not an alarm"))
}

impl RelatedEntities {
    fn find(&self, originator: EntityId, host: &dyn Host) -> Result<EntityId, NodeError> {
        let missing = || NodeError::new("Failed to find new originator!");
        let (mut seen, mut level, mut found) = (HashSet::from([originator]), vec![originator], None);
        let mut depth = 0;
        while !level.is_empty() && (self.levels == 0 || depth < self.levels) {
            depth += 1;
            let mut next = Vec::new();
            let mut of_level = None;
            for entity in level {
                for relation in host.relations(&self.selection(entity))? {
                    let other = if self.is_from_entity {
                        relation.to
                    } else {
                        relation.from
                    };
                    if seen.len() > SEARCHED_MAX {
                        return Err(NodeError::new(format!(
                            "the search for a related entity passed more than {SEARCHED_MAX} entities"
                        )));
                    }
                    if other != originator && self.takes(&relation, other) {
                        of_level = of_level.or(Some(other));
                    }
                    if seen.insert(other) {
                        next.push(other);
                    }
                }
            }
            if of_level.is_some() && !self.last_level_only {
                return of_level.ok_or_else(missing);
            }
            found = of_level.or(found);
            level = next;
        }
        found.ok_or_else(missing)
    }

    fn selection(&self, entity: EntityId) -> RelationSelection {
        RelationSelection {
            from: self.is_from_entity.then_some(entity),
            to: (!self.is_from_entity).then_some(entity),
            ..RelationSelection::default()
        }
    }

    fn takes(&self, relation: &Relation, other: EntityId) -> bool {
        self.filters.is_empty()
            || self.filters.iter().any(|(kind, types)| {
                kind.as_ref().is_none_or(|kind| *kind == relation.kind)
                    && (types.is_empty() || types.iter().any(|name| name == other.kind.name()))
            })
    }
}

/// Creates a message per element. Data that is not an array is an error.
pub fn split_array<'a>(message: Arc<ChainMessage<'a>>) -> Result<NodeOutcome<'a>, NodeError> {
    let Json::Array(elements) = message.json().into_owned() else {
        return Err(NodeError::new("Msg data is not a JSON Array!"));
    };
    check_made(elements.len(), message.weight_without_data())?;
    let parts = elements.into_iter().map(|element| {
        let part = ChainMessage {
            data: MessageData::Json(element),
            kind: message.kind.clone(),
            metadata: message.metadata.clone(),
            ..*message
        };
        ("Success".into(), Arc::new(part))
    });
    Ok(NodeOutcome::NextMany(parts.collect()))
}

/// Converts a script's result: an object with `msg`, `metadata` and `msgType`, or an array of such objects.
pub fn messages_of_result<'a>(json: Json, message: &ChainMessage<'a>) -> Result<Vec<ChainMessage<'a>>, NodeError> {
    match json {
        Json::Array(all) => {
            check_made(all.len(), message.weight_without_data())?;
            let copies = all.iter().filter(|one| one["msg"].is_null());
            check_made(copies.count(), message.weight())?;
            all.into_iter().map(|one| message_of_result(one, message)).collect()
        }
        one => Ok(vec![message_of_result(one, message)?]),
    }
}

fn message_of_result<'a>(mut json: Json, message: &ChainMessage<'a>) -> Result<ChainMessage<'a>, NodeError> {
    if !json.is_object() {
        return Err(NodeError::new(
            "Wrong result type: a transformation script has to return an object",
        ));
    }
    let data = json.get_mut("msg").map(Json::take).filter(|data| !data.is_null());
    let mut made = ChainMessage {
        data: data.map_or_else(|| message.data.clone(), MessageData::Json),
        kind: message.kind.clone(),
        metadata: message.metadata.clone(),
        ..*message
    };
    if json["metadata"].is_object() {
        made.metadata = crate::chain::message::Metadata::from_json(&json["metadata"]);
    }
    if let Some(kind) = json["msgType"].as_str() {
        made.kind = kind.to_owned().into();
    }
    Ok(made)
}
