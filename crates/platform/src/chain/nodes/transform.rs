//! Nodes that make other messages of a message.

use std::rc::Rc;

use serde_json::Value as Json;

use super::Outcome;
use super::enrich::{Owner, owner_of};
use crate::chain::host::{Host, NodeError};
use crate::chain::message::{Data, Message};
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
    /// The first that has one of these relations; types of entities are any if none is named.
    Related {
        is_from_entity: bool,
        filters: Vec<(Option<String>, Vec<String>)>,
    },
}

pub fn change_originator<'a>(
    source: &OriginatorSource,
    message: Rc<Message<'a>>,
    host: &dyn Host,
) -> Result<Outcome<'a>, NodeError> {
    let originator = match source {
        OriginatorSource::Customer => owner_of(Owner::Customer, message.originator, host)?,
        OriginatorSource::Tenant => owner_of(Owner::Tenant, message.originator, host)?,
        OriginatorSource::Alarm => alarm_originator(message.originator, host)?,
        OriginatorSource::Related {
            is_from_entity,
            filters,
        } => related(*is_from_entity, filters, message.originator, host)?,
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

fn related(
    is_from_entity: bool,
    filters: &[(Option<String>, Vec<String>)],
    originator: EntityId,
    host: &dyn Host,
) -> Result<EntityId, NodeError> {
    let selection = RelationSelection {
        from: is_from_entity.then_some(originator),
        to: (!is_from_entity).then_some(originator),
        ..RelationSelection::default()
    };
    let other = |relation: &Relation| if is_from_entity { relation.to } else { relation.from };
    let is_wanted = |relation: &Relation| {
        filters.is_empty()
            || filters.iter().any(|(kind, types)| {
                kind.as_ref().is_none_or(|kind| *kind == relation.kind)
                    && (types.is_empty() || types.iter().any(|name| name == other(relation).kind.name()))
            })
    };
    let found = host.relations(&selection)?.into_iter().find(is_wanted);
    found
        .map(|relation| other(&relation))
        .ok_or_else(|| NodeError::new("Failed to find new originator!"))
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
