//! Nodes that make other messages of a message.

use std::collections::HashSet;
use std::rc::Rc;

use serde_json::Value as Json;

use super::Outcome;
use super::enrich::{Owner, owner_of};
use crate::chain::host::{Host, NodeError};
use crate::chain::message::{Data, Message, fill};
use crate::chain::script::Script;
use crate::ids::{AlarmId, CustomerId, EntityId, EntityType};
use crate::model::Relation;
use crate::repository::RelationSelection;

pub fn script<'a>(script: &Script, message: Rc<Message<'a>>) -> Result<Outcome<'a>, NodeError> {
    let made = script.transform(&message)?;
    let made = made.into_iter().map(|made| ("Success".into(), Rc::new(made)));
    Ok(Outcome::GoesMany(made.collect()))
}

#[derive(Debug)]
pub enum OriginatorSource {
    Customer,
    Tenant,
    /// Of the alarm that is the originator.
    Alarm,
    /// Of a kind, by its name, which may be a pattern.
    Named {
        kind: EntityType,
        name: String,
    },
    Related(Related),
}

/// The nearest that has one of these relations; types of entities are any if none is named.
#[derive(Debug)]
pub struct Related {
    pub is_from_entity: bool,
    /// 0: without end.
    pub levels: u64,
    pub last_level_only: bool,
    pub filters: Vec<(Option<String>, Vec<String>)>,
}

/// Entities that one search passes.
const SEARCHED_MAX: usize = 1000;

pub fn change_originator<'a>(
    source: &OriginatorSource,
    message: Rc<Message<'a>>,
    host: &dyn Host,
) -> Result<Outcome<'a>, NodeError> {
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
    Ok(Outcome::success(Rc::new(Message {
        originator,
        customer,
        ..Message::clone(&message)
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
        .ok_or_else(|| NodeError::new("the originator is no alarm"))
}

impl Related {
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
                        return Err(NodeError::new(format!("more than {SEARCHED_MAX} entities to search")));
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

/// A message per element; data that is no array fails.
pub fn split_array<'a>(message: Rc<Message<'a>>) -> Result<Outcome<'a>, NodeError> {
    let Json::Array(elements) = message.json().into_owned() else {
        return Err(NodeError::new("Msg data is not a JSON Array!"));
    };
    let parts = elements.into_iter().map(|element| {
        let part = Message {
            data: Data::Json(element),
            ..Message::clone(&message)
        };
        ("Success".into(), Rc::new(part))
    });
    Ok(Outcome::GoesMany(parts.collect()))
}

/// What a script gives: an object, or an array of them, with `msg`, `metadata` and `msgType`.
pub fn made_of<'a>(json: Json, message: &Message<'a>) -> Result<Vec<Message<'a>>, NodeError> {
    match json {
        Json::Array(all) => all.into_iter().map(|one| made_one(one, message)).collect(),
        one => Ok(vec![made_one(one, message)?]),
    }
}

fn made_one<'a>(mut json: Json, message: &Message<'a>) -> Result<Message<'a>, NodeError> {
    if !json.is_object() {
        return Err(NodeError::new(
            "Wrong result type: a script of transformation has to return an object",
        ));
    }
    let mut made = message.clone();
    if let Some(data) = json.get_mut("msg").map(Json::take).filter(|data| !data.is_null()) {
        made.data = Data::Json(data);
    }
    if json["metadata"].is_object() {
        made.metadata = crate::chain::message::Metadata::from_json(&json["metadata"]);
    }
    if let Some(kind) = json["msgType"].as_str() {
        made.kind = kind.to_owned().into();
    }
    Ok(made)
}
