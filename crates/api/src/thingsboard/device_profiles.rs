//! Profiles of devices and of assets.

use axum::Json;
use platform::Page;
use platform::ids::{AssetProfileId, DeviceProfileId, Uuid};
use platform::model::{AssetProfile, DeviceProfile, Entity};
use platform::repository::Selection;
use serde_json::Value;

use super::call::{Call, Verb};
use super::failure::Failure;
use super::info::only;
use super::lists::{self, PageQuery, filled, list_query};
use super::operation::{Body, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;
use schemars::JsonSchema;
use serde::Deserialize;

pub fn endpoints() -> Vec<Endpoint> {
    let devices = device_endpoints()
        .into_iter()
        .map(|endpoint| endpoint.tag("Device profiles"));
    let assets = asset_endpoints()
        .into_iter()
        .map(|endpoint| endpoint.tag("Asset profiles"));
    devices.chain(assets).collect()
}

fn device_endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/deviceProfiles",
            "get_device_profiles",
            Who::TENANT_ADMIN,
            device_profiles,
        )
        .says("List device profiles", "All of the tenant.")
        .returns_json("A page of profiles."),
        get(
            "/api/deviceProfileInfos",
            "get_device_profile_infos",
            Who::TENANT,
            device_infos,
        )
        .says("List device profiles in short", "Without their data.")
        .returns_json("A page of profiles in short."),
        get(
            "/api/deviceProfileInfo/default",
            "get_default_device_profile_info",
            Who::TENANT,
            default_device_info,
        )
        .says(
            "Read the default device profile in short",
            "That of devices without a type.",
        )
        .returns_json("The profile in short."),
        get(
            "/api/deviceProfileInfo/{deviceProfileId}",
            "get_device_profile_info",
            Who::TENANT,
            device_info,
        )
        .says("Read a device profile in short", "Without its data.")
        .returns_json("The profile in short."),
        get(
            "/api/deviceProfile/{deviceProfileId}",
            "get_device_profile",
            Who::TENANT_ADMIN,
            device_profile,
        )
        .says("Read a device profile", "With alarm rules, transport and provisioning.")
        .returns_json("The profile."),
        post(
            "/api/deviceProfile",
            "save_device_profile",
            Who::TENANT_ADMIN,
            save_device_profile,
        )
        .says(
            "Create or change a device profile",
            "Alarm rules that cannot be evaluated are refused.",
        )
        .returns_json("The profile."),
        post(
            "/api/deviceProfile/{deviceProfileId}/default",
            "set_default_device_profile",
            Who::TENANT_ADMIN,
            set_default,
        )
        .says("Make a device profile the default one", "Of devices without a type.")
        .returns_json("The profile."),
        delete(
            "/api/deviceProfile/{deviceProfileId}",
            "delete_device_profile",
            Who::TENANT_ADMIN,
            delete_device_profile,
        )
        .says(
            "Delete a device profile",
            "Not the default one, and none that devices have.",
        )
        .returns_empty("Deleted."),
    ]
}

fn asset_endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/assetProfiles",
            "get_asset_profiles",
            Who::TENANT_ADMIN,
            asset_profiles,
        )
        .says("List asset profiles", "All of the tenant.")
        .returns_json("A page of profiles."),
        get(
            "/api/assetProfileInfos",
            "get_asset_profile_infos",
            Who::TENANT,
            asset_infos,
        )
        .says("List asset profiles in short", "All of the tenant.")
        .returns_json("A page of profiles in short."),
        get(
            "/api/assetProfile/{assetProfileId}",
            "get_asset_profile",
            Who::TENANT_ADMIN,
            asset_profile,
        )
        .says("Read an asset profile", "By its identifier.")
        .returns_json("The profile."),
        post(
            "/api/assetProfile",
            "save_asset_profile",
            Who::TENANT_ADMIN,
            save_asset_profile,
        )
        .says("Create or change an asset profile", "Without an id it is new.")
        .returns_json("The profile."),
        delete(
            "/api/assetProfile/{assetProfileId}",
            "delete_asset_profile",
            Who::TENANT_ADMIN,
            delete_asset_profile,
        )
        .says(
            "Delete an asset profile",
            "Not the default one, and none that assets have.",
        )
        .returns_empty("Deleted."),
    ]
}

list_query!(ProfileQuery {
    /// Only of this transport, such as DEFAULT or MQTT.
    transport_type: Option<String>,
});

const DEVICE_INFO: &[&str] = &[
    "id",
    "tenantId",
    "name",
    "image",
    "defaultDashboardId",
    "type",
    "transportType",
];
const ASSET_INFO: &[&str] = &["id", "tenantId", "name", "image", "defaultDashboardId"];

/// Profiles are the tenant's, whoever of it asks.
fn of_tenant(call: &Call) -> Selection {
    Selection {
        tenant: Some(call.tenant().0),
        ..Selection::default()
    }
}

fn device_profiles(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<DeviceProfile>> {
    lists::page(call, &of_tenant(call), &query.page_link()?)
}

fn device_infos(call: &Call, (): (), query: ProfileQuery, (): ()) -> Outcome<Page<Value>> {
    let link = query.link()?;
    let selection = Selection {
        subtype: filled(query.transport_type),
        ..of_tenant(call)
    };
    infos::<DeviceProfile>(call, &selection, &link, DEVICE_INFO)
}

fn infos<E: Entity>(
    call: &Call,
    selection: &Selection,
    link: &platform::PageLink,
    names: &[&str],
) -> Outcome<Page<Value>> {
    let page = call.entities().page::<E>(selection, link)?;
    Ok(Json(page.try_map(|profile| Ok::<_, Failure>(only(&profile, names)))?))
}

fn default_device_info(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Value> {
    let profile = call.entities().default_device_profile(call.tenant())?;
    Ok(Json(only(&profile, DEVICE_INFO)))
}

fn device_info(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    Ok(Json(only(&call.entity::<DeviceProfile>(id, Verb::Read)?, DEVICE_INFO)))
}

fn device_profile(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<DeviceProfile> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn save_device_profile(
    call: &Call,
    (): (),
    _: NoQuery,
    Body(mut profile): Body<DeviceProfile>,
) -> Outcome<DeviceProfile> {
    if let Some(id) = profile.id {
        call.entity::<DeviceProfile>(id.0, Verb::Write)?;
    }
    profile.tenant_id = call.tenant();
    let is_new = profile.id.is_none();
    let saved = call.entities().save_device_profile(profile, call.now_ms)?;
    call.world.devices().reload_profile(saved.id.unwrap_or_default());
    Ok(call.saved(is_new, saved))
}

fn set_default(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<DeviceProfile> {
    call.entity::<DeviceProfile>(id, Verb::Write)?;
    let profile = call
        .entities()
        .set_default_device_profile(DeviceProfileId(id), call.now_ms)?;
    Ok(Json(profile))
}

fn delete_device_profile(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let profile: DeviceProfile = call.entity(id, Verb::Delete)?;
    call.entities().delete_device_profile(DeviceProfileId(id))?;
    call.world.devices().reload_profile(DeviceProfileId(id));
    call.deleted(&profile);
    Ok(())
}

fn asset_profiles(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<AssetProfile>> {
    lists::page(call, &of_tenant(call), &query.page_link()?)
}

fn asset_infos(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    infos::<AssetProfile>(call, &of_tenant(call), &query.page_link()?, ASSET_INFO)
}

fn asset_profile(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<AssetProfile> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn save_asset_profile(call: &Call, (): (), _: NoQuery, Body(mut profile): Body<AssetProfile>) -> Outcome<AssetProfile> {
    if let Some(id) = profile.id {
        call.entity::<AssetProfile>(id.0, Verb::Write)?;
    }
    profile.tenant_id = call.tenant();
    let is_new = profile.id.is_none();
    Ok(call.saved(is_new, call.entities().save_asset_profile(profile, call.now_ms)?))
}

fn delete_asset_profile(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let profile: AssetProfile = call.entity(id, Verb::Delete)?;
    call.entities().delete_asset_profile(AssetProfileId(id))?;
    call.deleted(&profile);
    Ok(())
}
