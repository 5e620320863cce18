//! Profiles of devices and of assets.

use std::collections::BTreeSet;

use axum::Json;
use platform::Page;
use platform::ids::{AssetProfileId, DeviceId, DeviceProfileId, Uuid};
use platform::model::{AssetProfile, DeviceProfile, Entity, Scope};
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
        .chain(keys_endpoints())
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

fn keys_endpoints() -> Vec<Endpoint> {
    const SAYS: &str = "Of the devices of one profile, or of all; of 1,000 devices at most.";
    vec![
        get(
            "/api/deviceProfile/names",
            "get_device_profile_names",
            Who::TENANT,
            device_names,
        )
        .says("List names of device profiles", "With their identifiers.")
        .returns_json("A list of `id` and `name`."),
        get(
            "/api/deviceProfile/devices/keys/timeseries",
            "get_timeseries_keys_of_profile",
            Who::TENANT_ADMIN,
            timeseries_keys,
        )
        .says("List keys of telemetry of devices", SAYS)
        .returns_json("The keys."),
        get(
            "/api/deviceProfile/devices/keys/attributes",
            "get_attribute_keys_of_profile",
            Who::TENANT_ADMIN,
            attribute_keys,
        )
        .says("List keys of attributes of devices", SAYS)
        .returns_json("The keys."),
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
            "/api/assetProfile/names",
            "get_asset_profile_names",
            Who::TENANT,
            asset_names,
        )
        .says("List names of asset profiles", "With their identifiers.")
        .returns_json("A list of `id` and `name`."),
        get(
            "/api/assetProfileInfo/{assetProfileId}",
            "get_asset_profile_info",
            Who::TENANT,
            asset_info,
        )
        .says("Read an asset profile in short", "Name, image and dashboard.")
        .returns_json("The profile in short."),
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
    let stored: Option<DeviceProfile> = match profile.id {
        Some(id) => Some(call.entity(id.0, Verb::Write)?),
        None => None,
    };
    profile.tenant_id = call.tenant();
    let saved = call.entities().save_device_profile(profile, call.now_ms)?;
    call.world.devices().reload_profile(saved.id.unwrap_or_default());
    super::ota::saved(call, saved.id.unwrap_or_default().0)?;
    Ok(call.saved(stored.is_none(), saved))
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

fn asset_info(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    Ok(Json(only(&call.entity::<AssetProfile>(id, Verb::Read)?, ASSET_INFO)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeysQuery {
    /// All profiles without it.
    device_profile_id: Option<String>,
}

/// Devices that are looked at for their keys.
const DEVICES_MAX: usize = 1_000;

fn device_names(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Vec<Value>> {
    names::<DeviceProfile>(call)
}

fn asset_names(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Vec<Value>> {
    names::<AssetProfile>(call)
}

/// In the order of the alphabet.
fn names<E: Entity>(call: &Call) -> Outcome<Vec<Value>> {
    let link = platform::PageLink::new(platform::PAGE_SIZE_MAX, 0);
    let page = call.entities().page::<E>(&of_tenant(call), &link)?;
    let mut all: Vec<Value> = page.data.iter().map(|profile| only(profile, &["id", "name"])).collect();
    all.sort_by_key(|profile| profile["name"].as_str().unwrap_or_default().to_lowercase());
    Ok(Json(all))
}

fn timeseries_keys(call: &Call, (): (), query: KeysQuery, (): ()) -> Outcome<BTreeSet<String>> {
    let store = call.platform().store();
    let mut keys = BTreeSet::new();
    for device in devices_of(call, &query)? {
        keys.extend(store.keys(device.0.into())?.into_iter().map(String::from));
    }
    Ok(Json(keys))
}

fn attribute_keys(call: &Call, (): (), query: KeysQuery, (): ()) -> Outcome<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for device in devices_of(call, &query)? {
        for scope in [Scope::ClientScope, Scope::SharedScope, Scope::ServerScope] {
            let attributes = call.platform().attributes(device.entity(), scope, None)?;
            keys.extend(attributes.into_iter().map(|attribute| attribute.key));
        }
    }
    Ok(Json(keys))
}

fn devices_of(call: &Call, query: &KeysQuery) -> Result<Vec<DeviceId>, Failure> {
    let profile = lists::optional_id(query.device_profile_id.as_deref())?;
    if let Some(profile) = profile {
        call.entity::<DeviceProfile>(profile, Verb::Read)?;
    }
    let directory = call.entities().directory();
    let is_wanted = |entry: &platform::DeviceEntry| {
        entry.tenant == call.tenant() && profile.is_none_or(|profile| entry.profile.0 == profile)
    };
    let all = directory.devices().filter(|(_, entry)| is_wanted(entry));
    Ok(all.map(|(id, _)| id).take(DEVICES_MAX).collect())
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
