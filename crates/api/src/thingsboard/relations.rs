//! Relations between entities, and searching along them.

use std::collections::HashSet;

use axum::Json;
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::{Authority, Relation, RelationGroup};
use platform::repository::RelationSelection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Verb};
use super::failure::Failure;
use super::operation::{Body, FromParameter, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

/// Relations that one search looks at.
const SEARCHED_MAX: usize = 100_000;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/relation", "save_relation", Who::TENANT, save)
            .says("Create a relation", "From one entity to another, of any type.")
            .returns_json("The relation."),
        post("/api/v2/relation", "save_relation_v2", Who::TENANT, save)
            .says("Create a relation", "The newer path.")
            .returns_json("The relation."),
        get("/api/relation", "get_relation", Who::TENANT, one)
            .says("Read a relation", "By both ends, type and group.")
            .returns_json("The relation."),
        delete("/api/relation", "delete_relation", Who::TENANT, remove)
            .says("Delete a relation", "By both ends, type and group.")
            .returns_empty("Deleted."),
        delete("/api/relations", "delete_relations", Who::TENANT, remove_all)
            .says(
                "Delete all relations of an entity",
                "Those of the group COMMON that lead from or to it.",
            )
            .returns_empty("Deleted."),
        get("/api/relations", "get_relations", Who::TENANT, list)
            .says("List relations", "From `fromId`, or to `toId`.")
            .returns_json("The relations."),
        get("/api/relations/info", "get_relation_infos", Who::TENANT, infos)
            .says("List relations with names", "From `fromId`, or to `toId`.")
            .returns_json("The relations, with the names of their ends."),
        post("/api/relations/info", "find_relation_infos", Who::TENANT, find_infos)
            .says(
                "Search along relations, with names",
                "From a root, over some levels, by types of relations and entities.",
            )
            .returns_json("The relations, with the names of their ends."),
        post("/api/relations", "find_relations", Who::TENANT, find)
            .says(
                "Search along relations",
                "From a root, over some levels, by types of relations and entities.",
            )
            .returns_json("The relations."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Relations")).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RelationQuery {
    /// Where it begins.
    from_id: Option<String>,
    /// Type of the entity where it begins.
    from_type: Option<String>,
    /// Where it ends.
    to_id: Option<String>,
    /// Type of the entity where it ends.
    to_type: Option<String>,
    /// Such as Contains.
    relation_type: Option<String>,
    /// COMMON if it is not given.
    relation_type_group: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EntityQuery {
    /// The entity.
    entity_id: String,
    /// Its type.
    entity_type: String,
}

impl RelationQuery {
    fn from(&self) -> Result<Option<EntityId>, Failure> {
        end(self.from_type.as_deref(), self.from_id.as_deref())
    }

    fn to(&self) -> Result<Option<EntityId>, Failure> {
        end(self.to_type.as_deref(), self.to_id.as_deref())
    }

    fn group(&self) -> Result<RelationGroup, Failure> {
        match self.relation_type_group.as_deref() {
            None | Some("") => Ok(RelationGroup::Common),
            Some(text) => serde_json::from_value(text.into())
                .map_err(|_| Failure::bad_request(format!("No enum constant RelationTypeGroup.{text}"))),
        }
    }

    fn relation(&self) -> Result<Relation, Failure> {
        let required = |name: &str| Failure::bad_request(format!("Parameter '{name}' can't be empty!"));
        Ok(Relation {
            from: self.from()?.ok_or_else(|| required("fromId"))?,
            to: self.to()?.ok_or_else(|| required("toId"))?,
            kind: self.relation_type.clone().ok_or_else(|| required("relationType"))?,
            group: self.group()?,
            additional_info: None,
        })
    }

    fn selection(&self) -> Result<RelationSelection, Failure> {
        Ok(RelationSelection {
            from: self.from()?,
            to: self.to()?,
            kind: self.relation_type.clone().filter(|kind| !kind.is_empty()),
            group: Some(self.group()?),
        })
    }
}

fn end(kind: Option<&str>, id: Option<&str>) -> Result<Option<EntityId>, Failure> {
    match (kind, id) {
        (Some(kind), Some(id)) => Ok(Some(EntityId::new(
            EntityType::from_parameter(kind)?,
            Uuid::from_parameter(id)?,
        ))),
        _ => Ok(None),
    }
}

fn check_ends(call: &Call, relation: &Relation, verb: Verb) -> Result<(), Failure> {
    check_end(call, relation.from, verb)?;
    check_end(call, relation.to, verb)
}

/// Whoever administers a tenant relates to it, though not all of it may be changed.
fn check_end(call: &Call, end: EntityId, verb: Verb) -> Result<(), Failure> {
    let administers = call.person.authority == Authority::TenantAdmin && call.person.screen.is_none();
    if administers && end == call.tenant().entity() {
        return Ok(());
    }
    call.check_id(end, verb)
}

fn save(call: &Call, (): (), _: NoQuery, Body(relation): Body<Relation>) -> Outcome<Relation> {
    check_ends(call, &relation, Verb::Write)?;
    call.entities().save_relation(&relation)?;
    call.related("RELATION_ADD_OR_UPDATE", &relation);
    Ok(Json(relation))
}

fn one(call: &Call, (): (), query: RelationQuery, (): ()) -> Outcome<Relation> {
    let wanted = query.relation()?;
    check_ends(call, &wanted, Verb::Read)?;
    let found = call.entities().repository().relations(&query.selection()?)?;
    found.into_iter().next().map(Json).ok_or_else(Failure::not_found)
}

fn remove(call: &Call, (): (), query: RelationQuery, (): ()) -> Result<(), Failure> {
    let wanted = query.relation()?;
    check_ends(call, &wanted, Verb::Write)?;
    if call.entities().repository().relations(&query.selection()?)?.is_empty() {
        return Err(Failure::not_found());
    }
    call.entities().delete_relation(&wanted)?;
    call.related("RELATION_DELETED", &wanted);
    Ok(())
}

fn remove_all(call: &Call, (): (), query: EntityQuery, (): ()) -> Result<(), Failure> {
    let entity = EntityId::new(
        EntityType::from_parameter(&query.entity_type)?,
        Uuid::from_parameter(&query.entity_id)?,
    );
    call.check_id(entity, Verb::Write)?;
    let of = |from, to| RelationSelection {
        from,
        to,
        group: Some(RelationGroup::Common),
        ..RelationSelection::default()
    };
    let repository = call.entities().repository();
    for selection in [of(Some(entity), None), of(None, Some(entity))] {
        for relation in repository.relations(&selection)? {
            call.entities().delete_relation(&relation)?;
            call.related("RELATION_DELETED", &relation);
        }
    }
    Ok(())
}

/// Relations whose ends the person may read.
fn readable(call: &Call, selection: &RelationSelection) -> Result<Vec<Relation>, Failure> {
    let mut relations = call.entities().repository().relations(selection)?;
    relations.retain(|relation| check_ends(call, relation, Verb::Read).is_ok());
    Ok(relations)
}

fn asked(call: &Call, query: &RelationQuery) -> Result<Vec<Relation>, Failure> {
    let selection = query.selection()?;
    let entity = selection.from.or(selection.to);
    let entity = entity.ok_or_else(|| Failure::bad_request("Parameter 'fromId' can't be empty!"))?;
    call.check_id(entity, Verb::Read)?;
    readable(call, &selection)
}

fn list(call: &Call, (): (), query: RelationQuery, (): ()) -> Outcome<Vec<Relation>> {
    Ok(Json(asked(call, &query)?))
}

fn infos(call: &Call, (): (), query: RelationQuery, (): ()) -> Outcome<Vec<Value>> {
    named(call, asked(call, &query)?)
}

fn named(call: &Call, relations: Vec<Relation>) -> Outcome<Vec<Value>> {
    let mut infos = Vec::new();
    for relation in relations {
        let mut info = json!(relation);
        info["fromName"] = name(call, relation.from)?.into();
        info["toName"] = name(call, relation.to)?.into();
        infos.push(info);
    }
    Ok(Json(infos))
}

fn name(call: &Call, id: EntityId) -> Result<Option<String>, Failure> {
    Ok(call.entities().repository().get(id)?.map(|record| record.row.name))
}

#[derive(Deserialize)]
pub struct Search {
    pub parameters: Parameters,
    #[serde(default)]
    pub filters: Option<Vec<Filter>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parameters {
    root_id: Uuid,
    root_type: EntityType,
    #[serde(default)]
    direction: Direction,
    #[serde(default)]
    relation_type_group: Option<RelationGroup>,
    /// Not above zero: all.
    #[serde(default)]
    max_level: i64,
    #[serde(default)]
    fetch_last_level_only: bool,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum Direction {
    #[default]
    From,
    To,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filter {
    #[serde(default)]
    relation_type: Option<String>,
    #[serde(default)]
    entity_types: Option<Vec<EntityType>>,
    /// All types of relations but this one.
    #[serde(default)]
    negate: bool,
}

impl Filter {
    pub fn new(relation_type: Option<String>, entity_types: Option<Vec<EntityType>>) -> Filter {
        Filter {
            relation_type,
            entity_types,
            negate: false,
        }
    }

    fn takes(&self, relation: &Relation, other: EntityId) -> bool {
        let kind = self.relation_type.as_deref().filter(|kind| !kind.is_empty());
        let types = self.entity_types.as_deref().filter(|types| !types.is_empty());
        kind.is_none_or(|kind| (kind == relation.kind) != self.negate)
            && types.is_none_or(|types| types.contains(&other.kind))
    }
}

fn find(call: &Call, (): (), _: NoQuery, Body(search): Body<Search>) -> Outcome<Vec<Relation>> {
    let found = search.parameters.search(call, search.filters.unwrap_or_default())?;
    Ok(Json(found.into_iter().map(|(relation, _)| relation).collect()))
}

fn find_infos(call: &Call, (): (), _: NoQuery, Body(search): Body<Search>) -> Outcome<Vec<Value>> {
    let found = search.parameters.search(call, search.filters.unwrap_or_default())?;
    named(call, found.into_iter().map(|(relation, _)| relation).collect())
}

impl Parameters {
    /// Relations whose ends the person may read, each with the entity at its other end.
    pub fn search(self, call: &Call, filters: Vec<Filter>) -> Result<Vec<(Relation, EntityId)>, Failure> {
        let root = EntityId::new(self.root_type, self.root_id);
        call.check_id(root, Verb::Read)?;
        let walk = Walk {
            direction: self.direction,
            group: self.relation_type_group.unwrap_or_default(),
            levels: self.max_level,
            last_level_only: self.fetch_last_level_only,
            filters,
        };
        let mut found = walk.relations(call, root)?;
        found.retain(|(relation, _)| check_ends(call, relation, Verb::Read).is_ok());
        Ok(found)
    }
}

/// Going along relations, level by level; what was seen is not gone through again.
pub struct Walk {
    pub direction: Direction,
    pub group: RelationGroup,
    /// Not above zero: all.
    pub levels: i64,
    pub last_level_only: bool,
    pub filters: Vec<Filter>,
}

impl Walk {
    /// Each relation with the entity at its other end. Filters say what is found, not what is gone through.
    pub fn relations(&self, call: &Call, root: EntityId) -> Result<Vec<(Relation, EntityId)>, Failure> {
        let (mut found, mut seen, mut looked_at) = (Vec::new(), HashSet::from([root]), 0);
        let mut level = vec![root];
        let mut depth = 1;
        while !level.is_empty() && (self.levels <= 0 || depth <= self.levels) {
            let mut next = Vec::new();
            for entity in level {
                for relation in self.of(call, entity)? {
                    looked_at += 1;
                    if looked_at > SEARCHED_MAX {
                        return Err(Failure::bad_request(format!(
                            "More than {SEARCHED_MAX} relations to search"
                        )));
                    }
                    let other = if self.direction == Direction::From {
                        relation.to
                    } else {
                        relation.from
                    };
                    if seen.insert(other) {
                        next.push(other);
                    }
                    found.push((relation, other, depth));
                }
            }
            level = next;
            depth += 1;
        }
        let last = found.iter().map(|(_, _, depth)| *depth).max().unwrap_or(0);
        let is_wanted = |relation: &Relation, other: EntityId| {
            self.filters.is_empty() || self.filters.iter().any(|filter| filter.takes(relation, other))
        };
        found.retain(|(relation, other, depth)| {
            is_wanted(relation, *other) && (!self.last_level_only || *depth == last)
        });
        Ok(found
            .into_iter()
            .map(|(relation, other, _)| (relation, other))
            .collect())
    }

    fn of(&self, call: &Call, entity: EntityId) -> Result<Vec<Relation>, Failure> {
        let mut selection = RelationSelection {
            group: Some(self.group),
            ..RelationSelection::default()
        };
        match self.direction {
            Direction::From => selection.from = Some(entity),
            Direction::To => selection.to = Some(entity),
        }
        Ok(call.entities().repository().relations(&selection)?)
    }
}
