//! Devices and assets that are related to an entity, over some levels.

use std::collections::HashSet;

use axum::Json;
use platform::ids::{EntityType, Uuid};
use platform::model::{Asset, Device};
use serde::Deserialize;

use super::call::{Call, Verb};
use super::failure::Failure;
use super::operation::{Body, NoQuery, Outcome, post};
use super::relations::{Filter, Parameters};
use crate::endpoint::Endpoint;
use crate::guard::Who;

/// Where a request names no type of relation.
const CONTAINS: &str = "Contains";

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/devices", "find_devices_by_query", Who::TENANT, devices)
            .tag("Devices")
            .says(
                "Search devices along relations",
                "From a root, over some levels, by the type of relations and the types of devices.",
            )
            .returns_json("The devices."),
        post("/api/assets", "find_assets_by_query", Who::TENANT, assets)
            .tag("Assets")
            .says(
                "Search assets along relations",
                "From a root, over some levels, by the type of relations and the types of assets.",
            )
            .returns_json("The assets."),
    ]
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Search {
    parameters: Parameters,
    #[serde(default)]
    relation_type: Option<String>,
    #[serde(alias = "deviceTypes", alias = "assetTypes")]
    types: Vec<String>,
}

impl Search {
    /// Each once.
    fn ends(self, call: &Call, kind: EntityType) -> Result<(Vec<Uuid>, Vec<String>), Failure> {
        let relation_type = self.relation_type.unwrap_or_else(|| CONTAINS.to_owned());
        let filter = Filter::new(Some(relation_type), Some(vec![kind]));
        let found = self.parameters.search(call, vec![filter])?;
        let mut seen = HashSet::new();
        let ends = found.into_iter().map(|(_, end)| end.id).filter(|end| seen.insert(*end));
        Ok((ends.collect(), self.types))
    }
}

fn devices(call: &Call, (): (), _: NoQuery, Body(search): Body<Search>) -> Outcome<Vec<Device>> {
    let (ends, types) = search.ends(call, EntityType::Device)?;
    let found = ends.into_iter().filter_map(|end| call.entity(end, Verb::Read).ok());
    Ok(Json(
        found.filter(|device: &Device| types.contains(&device.kind)).collect(),
    ))
}

fn assets(call: &Call, (): (), _: NoQuery, Body(search): Body<Search>) -> Outcome<Vec<Asset>> {
    let (ends, types) = search.ends(call, EntityType::Asset)?;
    let found = ends.into_iter().filter_map(|end| call.entity(end, Verb::Read).ok());
    Ok(Json(
        found.filter(|asset: &Asset| types.contains(&asset.kind)).collect(),
    ))
}
