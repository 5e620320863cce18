//! Searches for devices and assets that are related to an entity, over a number of levels.

use std::collections::HashSet;

use axum::Json;
use platform::ids::{EntityType, Uuid};
use platform::model::{Asset, Device};
use serde::Deserialize;

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::operation::{HandlerResult, JsonBody, NoQuery, post};
use super::relations::{RelationEntityTypeFilter, RelationsSearchParameters};
use crate::services::Endpoint;

/// Default type of relations.
const CONTAINS: &str = "Contains";

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/devices", "find_devices_by_query", Authorities::TENANT, devices)
            .tag("Devices")
            .describe(
                "Search devices along relations",
                "From a root entity over a number of levels, filtered by relation type and device types.",
            )
            .returns_json("The devices."),
        post("/api/assets", "find_assets_by_query", Authorities::TENANT, assets)
            .tag("Assets")
            .describe(
                "Search assets along relations",
                "From a root entity over a number of levels, filtered by relation type and asset types.",
            )
            .returns_json("The assets."),
    ]
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EntitySearchQuery {
    parameters: RelationsSearchParameters,
    #[serde(default)]
    relation_type: Option<String>,
    #[serde(alias = "deviceTypes", alias = "assetTypes")]
    types: Vec<String>,
}

impl EntitySearchQuery {
    /// Returns the IDs without duplicates, and the types.
    fn find_ids(self, call: &ApiCall, kind: EntityType) -> Result<(Vec<Uuid>, Vec<String>), ThingsboardError> {
        let relation_type = self.relation_type.unwrap_or_else(|| CONTAINS.to_owned());
        let filter = RelationEntityTypeFilter::new(Some(relation_type), Some(vec![kind]));
        let found = self.parameters.search(call, vec![filter])?;
        let mut seen = HashSet::new();
        let ends = found.into_iter().map(|(_, end)| end.id).filter(|end| seen.insert(*end));
        Ok((ends.collect(), self.types))
    }
}

fn devices(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(search): JsonBody<EntitySearchQuery>,
) -> HandlerResult<Vec<Device>> {
    let (ends, types) = search.find_ids(call, EntityType::Device)?;
    let found = ends.into_iter().filter_map(|end| call.entity(end, Verb::Read).ok());
    Ok(Json(
        found.filter(|device: &Device| types.contains(&device.kind)).collect(),
    ))
}

fn assets(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(search): JsonBody<EntitySearchQuery>,
) -> HandlerResult<Vec<Asset>> {
    let (ends, types) = search.find_ids(call, EntityType::Asset)?;
    let found = ends.into_iter().filter_map(|end| call.entity(end, Verb::Read).ok());
    Ok(Json(
        found.filter(|asset: &Asset| types.contains(&asset.kind)).collect(),
    ))
}
