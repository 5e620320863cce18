//! Relations between entities, and searches along them.

use std::collections::HashSet;

use axum::Json;
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::{Authority, Relation, RelationGroup};
use platform::repository::RelationSelection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::operation::{FromParameter, HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

/// Limit of relations that one search examines.
const SEARCHED_MAX: usize = 100_000;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/relation", "save_relation", Authorities::TENANT, save)
            .describe("Create a relation", "From one entity to another, of any type.")
            .returns_json("The relation."),
        post("/api/v2/relation", "save_relation_v2", Authorities::TENANT, save)
            .describe("Create a relation", "Same as the other path, which is older.")
            .returns_json("The relation."),
        get("/api/relation", "get_relation", Authorities::TENANT, one)
            .describe("Read a relation", "By both ends, type and group.")
            .returns_json("The relation."),
        delete("/api/relation", "delete_relation", Authorities::TENANT, remove)
            .describe("Delete a relation", "By both ends, type and group.")
            .returns_empty("Deleted."),
        delete("/api/relations", "delete_relations", Authorities::TENANT, remove_all)
            .describe(
                "Delete all relations of an entity",
                "Relations of the group COMMON from or to the entity.",
            )
            .returns_empty("Deleted."),
        get("/api/relations", "get_relations", Authorities::TENANT, list)
            .describe("List relations", "Relations from `fromId` or to `toId`.")
            .returns_json("The relations."),
        get("/api/relations/info", "get_relation_infos", Authorities::TENANT, infos)
            .describe("List relations with names", "Relations from `fromId` or to `toId`.")
            .returns_json("The relations, with the names of their ends."),
        post(
            "/api/relations/info",
            "find_relation_infos",
            Authorities::TENANT,
            find_infos,
        )
        .describe(
            "Search along relations, with names",
            "From a root entity over a number of levels, filtered by relation types and entity types.",
        )
        .returns_json("The relations, with the names of their ends."),
        post("/api/relations", "find_relations", Authorities::TENANT, find)
            .describe(
                "Search along relations",
                "From a root entity over a number of levels, filtered by relation types and entity types.",
            )
            .returns_json("The relations."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Relations")).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RelationQuery {
    /// ID of the entity at the start of the relation.
    from_id: Option<String>,
    /// Type of the entity at the start of the relation.
    from_type: Option<String>,
    /// ID of the entity at the end of the relation.
    to_id: Option<String>,
    /// Type of the entity at the end of the relation.
    to_type: Option<String>,
    /// Type of the relation, such as Contains.
    relation_type: Option<String>,
    /// Group of the relation. Default: COMMON.
    relation_type_group: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EntityQuery {
    /// ID of the entity.
    entity_id: String,
    /// Type of the entity.
    entity_type: String,
}

impl RelationQuery {
    fn from(&self) -> Result<Option<EntityId>, ThingsboardError> {
        end(self.from_type.as_deref(), self.from_id.as_deref())
    }

    fn to(&self) -> Result<Option<EntityId>, ThingsboardError> {
        end(self.to_type.as_deref(), self.to_id.as_deref())
    }

    fn group(&self) -> Result<RelationGroup, ThingsboardError> {
        match self.relation_type_group.as_deref() {
            None | Some("") => Ok(RelationGroup::Common),
            Some(text) => serde_json::from_value(text.into())
                .map_err(|_| ThingsboardError::bad_request(format!("No enum constant RelationTypeGroup.{text}"))),
        }
    }

    fn relation(&self) -> Result<Relation, ThingsboardError> {
        let required = |name: &str| ThingsboardError::bad_request(format!("Parameter '{name}' can't be empty!"));
        Ok(Relation {
            from: self.from()?.ok_or_else(|| required("fromId"))?,
            to: self.to()?.ok_or_else(|| required("toId"))?,
            kind: self.relation_type.clone().ok_or_else(|| required("relationType"))?,
            group: self.group()?,
            additional_info: None,
        })
    }

    fn selection(&self) -> Result<RelationSelection, ThingsboardError> {
        Ok(RelationSelection {
            from: self.from()?,
            to: self.to()?,
            kind: self.relation_type.clone().filter(|kind| !kind.is_empty()),
            group: Some(self.group()?),
        })
    }
}

fn end(kind: Option<&str>, id: Option<&str>) -> Result<Option<EntityId>, ThingsboardError> {
    match (kind, id) {
        (Some(kind), Some(id)) => Ok(Some(EntityId::new(
            EntityType::from_parameter(kind)?,
            Uuid::from_parameter(id)?,
        ))),
        _ => Ok(None),
    }
}

fn check_ends(call: &ApiCall, relation: &Relation, verb: Verb) -> Result<(), ThingsboardError> {
    check_end(call, relation.from, verb)?;
    check_end(call, relation.to, verb)
}

/// A tenant administrator may create relations to the tenant, without being allowed to change it.
fn check_end(call: &ApiCall, end: EntityId, verb: Verb) -> Result<(), ThingsboardError> {
    let administers = call.principal.authority == Authority::TenantAdmin && call.principal.screen.is_none();
    if administers && end == call.tenant().entity() {
        return Ok(());
    }
    call.check_id(end, verb)
}

fn save(call: &ApiCall, (): (), _: NoQuery, JsonBody(relation): JsonBody<Relation>) -> HandlerResult<Relation> {
    check_ends(call, &relation, Verb::Write)?;
    call.entities().save_relation(&relation)?;
    call.relation_changed("RELATION_ADD_OR_UPDATE", &relation);
    Ok(Json(relation))
}

fn one(call: &ApiCall, (): (), query: RelationQuery, (): ()) -> HandlerResult<Relation> {
    let wanted = query.relation()?;
    check_ends(call, &wanted, Verb::Read)?;
    let found = call.entities().repository().relations(&query.selection()?)?;
    found
        .into_iter()
        .next()
        .map(Json)
        .ok_or_else(ThingsboardError::not_found)
}

fn remove(call: &ApiCall, (): (), query: RelationQuery, (): ()) -> Result<(), ThingsboardError> {
    let wanted = query.relation()?;
    check_ends(call, &wanted, Verb::Write)?;
    if call.entities().repository().relations(&query.selection()?)?.is_empty() {
        return Err(ThingsboardError::not_found());
    }
    call.entities().delete_relation(&wanted)?;
    call.relation_changed("RELATION_DELETED", &wanted);
    Ok(())
}

fn remove_all(call: &ApiCall, (): (), query: EntityQuery, (): ()) -> Result<(), ThingsboardError> {
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
            call.relation_changed("RELATION_DELETED", &relation);
        }
    }
    Ok(())
}

/// Returns relations whose entities the user may read.
fn readable(call: &ApiCall, selection: &RelationSelection) -> Result<Vec<Relation>, ThingsboardError> {
    let mut relations = call.entities().repository().relations(selection)?;
    relations.retain(|relation| check_ends(call, relation, Verb::Read).is_ok());
    Ok(relations)
}

fn find_relations(call: &ApiCall, query: &RelationQuery) -> Result<Vec<Relation>, ThingsboardError> {
    let selection = query.selection()?;
    let entity = selection.from.or(selection.to);
    let entity = entity.ok_or_else(|| ThingsboardError::bad_request("Parameter 'fromId' can't be empty!"))?;
    call.check_id(entity, Verb::Read)?;
    readable(call, &selection)
}

fn list(call: &ApiCall, (): (), query: RelationQuery, (): ()) -> HandlerResult<Vec<Relation>> {
    Ok(Json(find_relations(call, &query)?))
}

fn infos(call: &ApiCall, (): (), query: RelationQuery, (): ()) -> HandlerResult<Vec<Value>> {
    with_entity_names(call, find_relations(call, &query)?)
}

fn with_entity_names(call: &ApiCall, relations: Vec<Relation>) -> HandlerResult<Vec<Value>> {
    let mut infos = Vec::new();
    for relation in relations {
        let mut info = json!(relation);
        info["fromName"] = name(call, relation.from)?.into();
        info["toName"] = name(call, relation.to)?.into();
        infos.push(info);
    }
    Ok(Json(infos))
}

fn name(call: &ApiCall, id: EntityId) -> Result<Option<String>, ThingsboardError> {
    Ok(call.entities().repository().get(id)?.map(|record| record.row.name))
}

#[derive(Deserialize)]
pub struct EntityRelationsQuery {
    pub parameters: RelationsSearchParameters,
    #[serde(default)]
    pub filters: Option<Vec<RelationEntityTypeFilter>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RelationsSearchParameters {
    root_id: Uuid,
    root_type: EntityType,
    #[serde(default)]
    direction: EntitySearchDirection,
    #[serde(default)]
    relation_type_group: Option<RelationGroup>,
    /// 0 or less: all levels.
    #[serde(default)]
    max_level: i64,
    #[serde(default)]
    fetch_last_level_only: bool,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum EntitySearchDirection {
    #[default]
    From,
    To,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RelationEntityTypeFilter {
    #[serde(default)]
    relation_type: Option<String>,
    #[serde(default)]
    entity_types: Option<Vec<EntityType>>,
    /// Inverts the filter of relation types.
    #[serde(default)]
    negate: bool,
}

impl RelationEntityTypeFilter {
    pub fn new(relation_type: Option<String>, entity_types: Option<Vec<EntityType>>) -> RelationEntityTypeFilter {
        RelationEntityTypeFilter {
            relation_type,
            entity_types,
            negate: false,
        }
    }

    fn matches(&self, relation: &Relation, other: EntityId) -> bool {
        let kind = self.relation_type.as_deref().filter(|kind| !kind.is_empty());
        let types = self.entity_types.as_deref().filter(|types| !types.is_empty());
        kind.is_none_or(|kind| (kind == relation.kind) != self.negate)
            && types.is_none_or(|types| types.contains(&other.kind))
    }
}

fn find(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(search): JsonBody<EntityRelationsQuery>,
) -> HandlerResult<Vec<Relation>> {
    let found = search.parameters.search(call, search.filters.unwrap_or_default())?;
    Ok(Json(found.into_iter().map(|(relation, _)| relation).collect()))
}

fn find_infos(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(search): JsonBody<EntityRelationsQuery>,
) -> HandlerResult<Vec<Value>> {
    let found = search.parameters.search(call, search.filters.unwrap_or_default())?;
    with_entity_names(call, found.into_iter().map(|(relation, _)| relation).collect())
}

impl RelationsSearchParameters {
    /// Returns relations whose entities the user may read, each with the entity at its other end.
    pub fn search(
        self,
        call: &ApiCall,
        filters: Vec<RelationEntityTypeFilter>,
    ) -> Result<Vec<(Relation, EntityId)>, ThingsboardError> {
        let root = EntityId::new(self.root_type, self.root_id);
        call.check_id(root, Verb::Read)?;
        let walk = RelationTraversal {
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

/// A breadth-first search along relations. Each entity is visited once.
pub struct RelationTraversal {
    pub direction: EntitySearchDirection,
    pub group: RelationGroup,
    /// 0 or less: all levels.
    pub levels: i64,
    pub last_level_only: bool,
    pub filters: Vec<RelationEntityTypeFilter>,
}

impl RelationTraversal {
    /// Returns each relation with the entity at its other end. Filters affect the result, not the traversal.
    pub fn relations(&self, call: &ApiCall, root: EntityId) -> Result<Vec<(Relation, EntityId)>, ThingsboardError> {
        let (mut found, mut seen, mut looked_at) = (Vec::new(), HashSet::from([root]), 0);
        let mut level = vec![root];
        let mut depth = 1;
        while !level.is_empty() && (self.levels <= 0 || depth <= self.levels) {
            let mut next = Vec::new();
            for entity in level {
                for relation in self.of(call, entity)? {
                    looked_at += 1;
                    if looked_at > SEARCHED_MAX {
                        return Err(ThingsboardError::bad_request(format!(
                            "More than {SEARCHED_MAX} relations to search"
                        )));
                    }
                    let other = if self.direction == EntitySearchDirection::From {
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
            self.filters.is_empty() || self.filters.iter().any(|filter| filter.matches(relation, other))
        };
        found.retain(|(relation, other, depth)| {
            is_wanted(relation, *other) && (!self.last_level_only || *depth == last)
        });
        Ok(found
            .into_iter()
            .map(|(relation, other, _)| (relation, other))
            .collect())
    }

    fn of(&self, call: &ApiCall, entity: EntityId) -> Result<Vec<Relation>, ThingsboardError> {
        let mut selection = RelationSelection {
            group: Some(self.group),
            ..RelationSelection::default()
        };
        match self.direction {
            EntitySearchDirection::From => selection.from = Some(entity),
            EntitySearchDirection::To => selection.to = Some(entity),
        }
        Ok(call.entities().repository().relations(&selection)?)
    }
}
