//! Assets: creating, finding, assigning.

use axum::Json;
use platform::Page;
use platform::ids::{CustomerId, Uuid};
use platform::model::{Asset, AssetProfile, Authority, Customer};
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Verb};
use super::failure::Failure;
use super::info::Infos;
use super::lists::{self, filled, list_query, optional_id};
use super::operation::{Body, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/asset", "save_asset", Who::TENANT, save)
            .says("Create or change an asset", "Without an id it is new.")
            .returns_json("The asset."),
        get("/api/asset/{assetId}", "get_asset", Who::TENANT, read)
            .says("Read an asset", "By its identifier.")
            .returns_json("The asset."),
        get("/api/assets", "get_assets_by_ids", Who::TENANT, by_ids)
            .says(
                "Read assets",
                "By their identifiers; those that may not be read are left out.",
            )
            .returns_json("The assets."),
        get("/api/asset/info/{assetId}", "get_asset_info", Who::TENANT, info)
            .says(
                "Read an asset and what belongs to it",
                "With its customer's title and its profile's name.",
            )
            .returns_json("The asset and more."),
        delete("/api/asset/{assetId}", "delete_asset", Who::TENANT_ADMIN, remove)
            .says(
                "Delete an asset",
                "With its attributes, telemetry, relations and alarms.",
            )
            .returns_empty("Deleted."),
        get("/api/tenant/assets", "get_tenant_assets", Who::TENANT_ADMIN, of_tenant)
            .says(
                "List assets, or find one by name",
                "With `assetName` the one asset of that name.",
            )
            .returns_json("A page of assets, or the asset."),
        get(
            "/api/tenant/assetInfos",
            "get_tenant_asset_infos",
            Who::TENANT_ADMIN,
            infos_of_tenant,
        )
        .says("List assets and what belongs to them", "Filtered by type and profile.")
        .returns_json("A page of assets and more."),
        get(
            "/api/customer/{customerId}/assets",
            "get_customer_assets",
            Who::TENANT,
            of_customer,
        )
        .says("List a customer's assets", "Those that are assigned to it.")
        .returns_json("A page of assets."),
        get(
            "/api/customer/{customerId}/assetInfos",
            "get_customer_asset_infos",
            Who::TENANT,
            infos_of_customer,
        )
        .says(
            "List a customer's assets and what belongs to them",
            "Those that are assigned to it.",
        )
        .returns_json("A page of assets and more."),
        get("/api/asset/types", "get_asset_types", Who::TENANT, types)
            .says("List types of assets", "The names of all asset profiles.")
            .returns_json("The types."),
        post(
            "/api/customer/{customerId}/asset/{assetId}",
            "assign_asset",
            Who::TENANT_ADMIN,
            assign,
        )
        .says("Assign an asset to a customer", "Its users can see it from then on.")
        .returns_json("The asset."),
        delete(
            "/api/customer/asset/{assetId}",
            "unassign_asset",
            Who::TENANT_ADMIN,
            unassign,
        )
        .says("Take an asset from its customer", "It belongs to the tenant again.")
        .returns_json("The asset."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Assets")).collect()
}

list_query!(AssetQuery {
    /// The one asset of this name.
    asset_name: Option<String>,
    /// Only of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only of this profile.
    asset_profile_id: Option<String>,
});

/// Customers' users change assets, but neither make nor move them.
fn save(call: &Call, (): (), _: NoQuery, Body(mut asset): Body<Asset>) -> Outcome<Asset> {
    let is_customer = call.person.authority == Authority::CustomerUser;
    match asset.id {
        Some(id) => {
            let stored: Asset = call.entity(id.0, Verb::Write)?;
            if is_customer {
                asset.customer_id = stored.customer_id;
            }
        }
        None if is_customer => return Err(Failure::permission()),
        None => {}
    }
    asset.tenant_id = call.tenant();
    let is_new = asset.id.is_none();
    Ok(call.saved(is_new, call.entities().save_asset(asset, call.now_ms)?))
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Asset> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn info(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    let asset: Asset = call.entity(id, Verb::Read)?;
    Ok(Json(Infos::new(call).asset(&asset)?))
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let asset: Asset = call.entity(id, Verb::Delete)?;
    call.entities().delete(&asset)?;
    call.deleted(&asset);
    Ok(())
}

fn of_tenant(call: &Call, (): (), query: AssetQuery, (): ()) -> Outcome<Value> {
    if let Some(name) = query.asset_name {
        return lists::named::<Asset>(call, &name);
    }
    let link = query.link()?;
    let selection = Selection {
        subtype: filled(query.kind),
        ..call.own()
    };
    let page: Page<Asset> = call.entities().page(&selection, &link)?;
    Ok(Json(json!(page)))
}

fn infos_of_tenant(call: &Call, (): (), query: AssetQuery, (): ()) -> Outcome<Page<Value>> {
    infos(call, query, call.own())
}

fn of_customer(call: &Call, customer: Uuid, query: AssetQuery, (): ()) -> Outcome<Page<Asset>> {
    let selection = Selection {
        subtype: filled(query.kind.clone()),
        ..lists::of_customer(call, customer)?
    };
    lists::page(call, &selection, &query.link()?)
}

fn infos_of_customer(call: &Call, customer: Uuid, query: AssetQuery, (): ()) -> Outcome<Page<Value>> {
    infos(call, query, lists::of_customer(call, customer)?)
}

fn infos(call: &Call, query: AssetQuery, selection: Selection) -> Outcome<Page<Value>> {
    let link = query.link()?;
    let selection = Selection {
        parent: optional_id(query.asset_profile_id.as_deref())?,
        subtype: filled(query.kind),
        ..selection
    };
    let page = call.entities().page::<Asset>(&selection, &link)?;
    let mut infos = Infos::new(call);
    Ok(Json(page.try_map(|asset| infos.asset(&asset))?))
}

fn types(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Vec<Value>> {
    let tenant = call.tenant();
    let selection = Selection {
        tenant: Some(tenant.0),
        ..Selection::default()
    };
    let mut types = Vec::new();
    lists::for_each::<AssetProfile>(call, &selection, &mut |profile| {
        types.push(json!({"tenantId": tenant, "entityType": "ASSET", "type": profile.name}));
        Ok(())
    })?;
    Ok(Json(types))
}

fn assign(call: &Call, (customer, asset): (Uuid, Uuid), _: NoQuery, (): ()) -> Outcome<Asset> {
    call.entity::<Customer>(customer, Verb::Read)?;
    give(call, asset, Some(CustomerId(customer)))
}

fn unassign(call: &Call, asset: Uuid, _: NoQuery, (): ()) -> Outcome<Asset> {
    let stored: Asset = call.entity(asset, Verb::Assign)?;
    if stored.customer_id.unwrap_or_default() == CustomerId::NULL {
        return Err(Failure::bad_request("Asset isn't assigned to any customer!"));
    }
    give(call, asset, None)
}

fn give(call: &Call, asset: Uuid, customer: Option<CustomerId>) -> Outcome<Asset> {
    let stored: Asset = call.entity(asset, Verb::Assign)?;
    let before = stored.customer_id;
    let asset = Asset {
        customer_id: customer,
        version: None,
        ..stored
    };
    let saved = call.entities().save_asset(asset, call.now_ms)?;
    Ok(call.given(saved, customer, before))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct IdsQuery {
    /// Identifiers, with commas between them.
    asset_ids: String,
}

/// In one request.
const IDS_MAX: usize = 1_000;

fn by_ids(call: &Call, (): (), query: IdsQuery, (): ()) -> Outcome<Vec<Asset>> {
    let ids = lists::comma_separated(&query.asset_ids);
    if ids.len() > IDS_MAX {
        return Err(Failure::bad_request(format!("More than {IDS_MAX} asset identifiers")));
    }
    let mut assets = Vec::with_capacity(ids.len());
    for id in ids {
        let id = optional_id(Some(id))?.unwrap_or(Uuid::NULL);
        assets.extend(call.entity(id, Verb::Read).ok());
    }
    Ok(Json(assets))
}
