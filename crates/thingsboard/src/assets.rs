//! Assets: create, find, assign.

use axum::Json;
use platform::PageData;
use platform::ids::{CustomerId, Uuid};
use platform::model::{Asset, AssetProfile, Authority, Customer};
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::info::Infos;
use super::lists::{self, list_query, non_empty, optional_id};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/asset", "save_asset", Authorities::TENANT, save)
            .describe("Create or change an asset", "Without an ID, creates an asset.")
            .returns_json("The asset."),
        get("/api/asset/{assetId}", "get_asset", Authorities::TENANT, read)
            .describe("Read an asset", "By its ID.")
            .returns_json("The asset."),
        get("/api/assets", "get_assets_by_ids", Authorities::TENANT, by_ids)
            .describe(
                "Read assets",
                "By their IDs. Assets that the user may not read are omitted.",
            )
            .returns_json("The assets."),
        get("/api/asset/info/{assetId}", "get_asset_info", Authorities::TENANT, info)
            .describe(
                "Read an asset with details",
                "With the title of its customer and the name of its profile.",
            )
            .returns_json("The asset with details."),
        delete(
            "/api/asset/{assetId}",
            "delete_asset",
            Authorities::TENANT_ADMIN,
            remove,
        )
        .describe(
            "Delete an asset",
            "Also deletes its attributes, telemetry, relations and alarms.",
        )
        .returns_empty("Deleted."),
        get(
            "/api/tenant/assets",
            "get_tenant_assets",
            Authorities::TENANT_ADMIN,
            of_tenant,
        )
        .describe(
            "List assets, or find one by name",
            "With `assetName`, returns the asset with this name.",
        )
        .returns_json("A page of assets, or the asset."),
        get(
            "/api/tenant/assetInfos",
            "get_tenant_asset_infos",
            Authorities::TENANT_ADMIN,
            infos_of_tenant,
        )
        .describe("List assets with details", "Filtered by type and profile.")
        .returns_json("A page of assets with details."),
        get(
            "/api/customer/{customerId}/assets",
            "get_customer_assets",
            Authorities::TENANT,
            of_customer,
        )
        .describe("List a customer's assets", "Assets that are assigned to the customer.")
        .returns_json("A page of assets."),
        get(
            "/api/customer/{customerId}/assetInfos",
            "get_customer_asset_infos",
            Authorities::TENANT,
            infos_of_customer,
        )
        .describe(
            "List a customer's assets with details",
            "Assets that are assigned to the customer.",
        )
        .returns_json("A page of assets with details."),
        get("/api/asset/types", "get_asset_types", Authorities::TENANT, types)
            .describe("List asset types", "The names of all asset profiles.")
            .returns_json("The types."),
        post(
            "/api/customer/{customerId}/asset/{assetId}",
            "assign_asset",
            Authorities::TENANT_ADMIN,
            assign,
        )
        .describe("Assign an asset to a customer", "The customer's users can then see it.")
        .returns_json("The asset."),
        delete(
            "/api/customer/asset/{assetId}",
            "unassign_asset",
            Authorities::TENANT_ADMIN,
            unassign,
        )
        .describe(
            "Unassign an asset from its customer",
            "Only the tenant can then see it.",
        )
        .returns_json("The asset."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Assets")).collect()
}

list_query!(AssetQuery {
    /// Name of the asset.
    asset_name: Option<String>,
    /// Only assets of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only assets with this profile.
    asset_profile_id: Option<String>,
});

/// Customer users can change assets, but cannot create or assign them.
fn save(call: &ApiCall, (): (), _: NoQuery, JsonBody(mut asset): JsonBody<Asset>) -> HandlerResult<Asset> {
    let is_customer = call.principal.authority == Authority::CustomerUser;
    match asset.id {
        Some(id) => {
            let stored: Asset = call.entity(id.0, Verb::Write)?;
            if is_customer {
                asset.customer_id = stored.customer_id;
            }
        }
        None if is_customer => return Err(ThingsboardError::permission()),
        None => {}
    }
    asset.tenant_id = call.tenant();
    let is_new = asset.id.is_none();
    Ok(call.saved(is_new, call.entities().save_asset(asset, call.now_ms)?))
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Asset> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    let asset: Asset = call.entity(id, Verb::Read)?;
    Ok(Json(Infos::new(call).asset(&asset)?))
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let asset: Asset = call.entity(id, Verb::Delete)?;
    call.entities().delete(&asset)?;
    call.deleted(&asset);
    Ok(())
}

fn of_tenant(call: &ApiCall, (): (), query: AssetQuery, (): ()) -> HandlerResult<Value> {
    if let Some(name) = query.asset_name {
        return lists::find_by_name::<Asset>(call, &name);
    }
    let link = query.link()?;
    let selection = Selection {
        subtype: non_empty(query.kind),
        ..call.own_entities()
    };
    let page: PageData<Asset> = call.entities().page(&selection, &link)?;
    Ok(Json(json!(page)))
}

fn infos_of_tenant(call: &ApiCall, (): (), query: AssetQuery, (): ()) -> HandlerResult<PageData<Value>> {
    infos(call, query, call.own_entities())
}

fn of_customer(call: &ApiCall, customer: Uuid, query: AssetQuery, (): ()) -> HandlerResult<PageData<Asset>> {
    let selection = Selection {
        subtype: non_empty(query.kind.clone()),
        ..lists::of_customer(call, customer)?
    };
    lists::page(call, &selection, &query.link()?)
}

fn infos_of_customer(call: &ApiCall, customer: Uuid, query: AssetQuery, (): ()) -> HandlerResult<PageData<Value>> {
    infos(call, query, lists::of_customer(call, customer)?)
}

fn infos(call: &ApiCall, query: AssetQuery, selection: Selection) -> HandlerResult<PageData<Value>> {
    let link = query.link()?;
    let selection = Selection {
        parent: optional_id(query.asset_profile_id.as_deref())?,
        subtype: non_empty(query.kind),
        ..selection
    };
    let page = call.entities().page::<Asset>(&selection, &link)?;
    let mut infos = Infos::new(call);
    Ok(Json(page.try_map(|asset| infos.asset(&asset))?))
}

fn types(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Vec<Value>> {
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

fn assign(call: &ApiCall, (customer, asset): (Uuid, Uuid), _: NoQuery, (): ()) -> HandlerResult<Asset> {
    call.entity::<Customer>(customer, Verb::Read)?;
    give(call, asset, Some(CustomerId(customer)))
}

fn unassign(call: &ApiCall, asset: Uuid, _: NoQuery, (): ()) -> HandlerResult<Asset> {
    let stored: Asset = call.entity(asset, Verb::Assign)?;
    if stored.customer_id.unwrap_or_default() == CustomerId::NULL {
        return Err(ThingsboardError::bad_request("Asset isn't assigned to any customer!"));
    }
    give(call, asset, None)
}

fn give(call: &ApiCall, asset: Uuid, customer: Option<CustomerId>) -> HandlerResult<Asset> {
    let stored: Asset = call.entity(asset, Verb::Assign)?;
    let before = stored.customer_id;
    let asset = Asset {
        customer_id: customer,
        version: None,
        ..stored
    };
    let saved = call.entities().save_asset(asset, call.now_ms)?;
    Ok(call.customer_changed(saved, customer, before))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AssetIdsQuery {
    /// IDs, separated by commas.
    asset_ids: String,
}

fn by_ids(call: &ApiCall, (): (), query: AssetIdsQuery, (): ()) -> HandlerResult<Vec<Asset>> {
    lists::by_ids(call, &query.asset_ids, "asset")
}
