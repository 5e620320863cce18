//! Device profiles and asset profiles.

use std::collections::BTreeSet;

use axum::Json;
use platform::PageData;
use platform::ids::{AssetProfileId, DeviceId, DeviceProfileId, Uuid};
use platform::model::{AssetProfile, AttributeScope, DeviceProfile, Entity};
use platform::repository::Selection;
use serde_json::Value;

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::info::only;
use super::lists::{self, PageQuery, list_query, non_empty};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;
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
            Authorities::TENANT_ADMIN,
            device_profiles,
        )
        .describe("List device profiles", "All device profiles of the tenant.")
        .returns_json("A page of profiles."),
        get(
            "/api/deviceProfileInfos",
            "get_device_profile_infos",
            Authorities::TENANT,
            device_infos,
        )
        .describe("List summaries of device profiles", "Without their data.")
        .returns_json("A page of summaries."),
        get(
            "/api/deviceProfileInfo/default",
            "get_default_device_profile_info",
            Authorities::TENANT,
            default_device_info,
        )
        .describe(
            "Read the summary of the default device profile",
            "The profile of devices without a type.",
        )
        .returns_json("The summary."),
        get(
            "/api/deviceProfileInfo/{deviceProfileId}",
            "get_device_profile_info",
            Authorities::TENANT,
            device_info,
        )
        .describe("Read a device profile's summary", "Without its data.")
        .returns_json("The summary."),
        get(
            "/api/deviceProfile/{deviceProfileId}",
            "get_device_profile",
            Authorities::TENANT_ADMIN,
            device_profile,
        )
        .describe("Read a device profile", "With alarm rules, transport and provisioning.")
        .returns_json("The profile."),
        post(
            "/api/deviceProfile",
            "save_device_profile",
            Authorities::TENANT_ADMIN,
            save_device_profile,
        )
        .describe("Create or change a device profile", "Invalid alarm rules are rejected.")
        .returns_json("The profile."),
        post(
            "/api/deviceProfile/{deviceProfileId}/default",
            "set_default_device_profile",
            Authorities::TENANT_ADMIN,
            set_default,
        )
        .describe(
            "Set the default device profile",
            "Devices without a type get this profile.",
        )
        .returns_json("The profile."),
        delete(
            "/api/deviceProfile/{deviceProfileId}",
            "delete_device_profile",
            Authorities::TENANT_ADMIN,
            delete_device_profile,
        )
        .describe(
            "Delete a device profile",
            "Fails for the default profile, and for profiles of existing devices.",
        )
        .returns_empty("Deleted."),
    ]
}

fn keys_endpoints() -> Vec<Endpoint> {
    const SAYS: &str = "Keys of the devices with one profile, or with any. Reads at most 1,000 devices.";
    vec![
        get(
            "/api/deviceProfile/names",
            "get_device_profile_names",
            Authorities::TENANT,
            device_names,
        )
        .describe("List names of device profiles", "With their IDs.")
        .returns_json("A list of `id` and `name`."),
        get(
            "/api/deviceProfile/devices/keys/timeseries",
            "get_timeseries_keys_of_profile",
            Authorities::TENANT_ADMIN,
            timeseries_keys,
        )
        .describe("List telemetry keys of devices", SAYS)
        .returns_json("The keys."),
        get(
            "/api/deviceProfile/devices/keys/attributes",
            "get_attribute_keys_of_profile",
            Authorities::TENANT_ADMIN,
            attribute_keys,
        )
        .describe("List attribute keys of devices", SAYS)
        .returns_json("The keys."),
    ]
}

fn asset_endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/assetProfiles",
            "get_asset_profiles",
            Authorities::TENANT_ADMIN,
            asset_profiles,
        )
        .describe("List asset profiles", "All asset profiles of the tenant.")
        .returns_json("A page of profiles."),
        get(
            "/api/assetProfileInfos",
            "get_asset_profile_infos",
            Authorities::TENANT,
            asset_infos,
        )
        .describe("List summaries of asset profiles", "All asset profiles of the tenant.")
        .returns_json("A page of summaries."),
        get(
            "/api/assetProfile/names",
            "get_asset_profile_names",
            Authorities::TENANT,
            asset_names,
        )
        .describe("List names of asset profiles", "With their IDs.")
        .returns_json("A list of `id` and `name`."),
        get(
            "/api/assetProfileInfo/{assetProfileId}",
            "get_asset_profile_info",
            Authorities::TENANT,
            asset_info,
        )
        .describe("Read an asset profile's summary", "Name, image and dashboard.")
        .returns_json("The summary."),
        get(
            "/api/assetProfile/{assetProfileId}",
            "get_asset_profile",
            Authorities::TENANT_ADMIN,
            asset_profile,
        )
        .describe("Read an asset profile", "By its ID.")
        .returns_json("The profile."),
        post(
            "/api/assetProfile",
            "save_asset_profile",
            Authorities::TENANT_ADMIN,
            save_asset_profile,
        )
        .describe("Create or change an asset profile", "Without an ID, creates a profile.")
        .returns_json("The profile."),
        delete(
            "/api/assetProfile/{assetProfileId}",
            "delete_asset_profile",
            Authorities::TENANT_ADMIN,
            delete_asset_profile,
        )
        .describe(
            "Delete an asset profile",
            "Fails for the default profile, and for profiles of existing assets.",
        )
        .returns_empty("Deleted."),
    ]
}

list_query!(ProfileQuery {
    /// Only profiles with this transport, such as DEFAULT or MQTT.
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

/// Selects the tenant's profiles, for any user of the tenant.
fn of_tenant(call: &ApiCall) -> Selection {
    Selection {
        tenant: Some(call.tenant().0),
        ..Selection::default()
    }
}

fn device_profiles(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<DeviceProfile>> {
    lists::page(call, &of_tenant(call), &query.page_link()?)
}

fn device_infos(call: &ApiCall, (): (), query: ProfileQuery, (): ()) -> HandlerResult<PageData<Value>> {
    let link = query.link()?;
    let selection = Selection {
        subtype: non_empty(query.transport_type),
        ..of_tenant(call)
    };
    infos::<DeviceProfile>(call, &selection, &link, DEVICE_INFO)
}

fn infos<E: Entity>(
    call: &ApiCall,
    selection: &Selection,
    link: &platform::PageLink,
    names: &[&str],
) -> HandlerResult<PageData<Value>> {
    let page = call.entities().page::<E>(selection, link)?;
    Ok(Json(
        page.try_map(|profile| Ok::<_, ThingsboardError>(only(&profile, names)))?,
    ))
}

fn default_device_info(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Value> {
    let profile = call.entities().default_device_profile(call.tenant())?;
    Ok(Json(only(&profile, DEVICE_INFO)))
}

fn device_info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    Ok(Json(only(&call.entity::<DeviceProfile>(id, Verb::Read)?, DEVICE_INFO)))
}

fn device_profile(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<DeviceProfile> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn save_device_profile(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(mut profile): JsonBody<DeviceProfile>,
) -> HandlerResult<DeviceProfile> {
    let stored: Option<DeviceProfile> = match profile.id {
        Some(id) => Some(call.entity(id.0, Verb::Write)?),
        None => None,
    };
    profile.tenant_id = call.tenant();
    let saved = call.entities().save_device_profile(profile, call.now_ms)?;
    call.platform_access
        .devices()
        .reload_profile(saved.id.unwrap_or_default());
    super::ota::saved(call, saved.id.unwrap_or_default().0)?;
    Ok(call.saved(stored.is_none(), saved))
}

fn set_default(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<DeviceProfile> {
    call.entity::<DeviceProfile>(id, Verb::Write)?;
    let profile = call
        .entities()
        .set_default_device_profile(DeviceProfileId(id), call.now_ms)?;
    Ok(Json(profile))
}

fn delete_device_profile(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let profile: DeviceProfile = call.entity(id, Verb::Delete)?;
    call.entities().delete_device_profile(DeviceProfileId(id))?;
    call.platform_access.devices().reload_profile(DeviceProfileId(id));
    call.deleted(&profile);
    Ok(())
}

fn asset_profiles(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<AssetProfile>> {
    lists::page(call, &of_tenant(call), &query.page_link()?)
}

fn asset_infos(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    infos::<AssetProfile>(call, &of_tenant(call), &query.page_link()?, ASSET_INFO)
}

fn asset_info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    Ok(Json(only(&call.entity::<AssetProfile>(id, Verb::Read)?, ASSET_INFO)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ProfileKeysQuery {
    /// Only devices with this profile. Default: all.
    device_profile_id: Option<String>,
}

/// Limit of devices that a request reads.
const DEVICES_MAX: usize = 1_000;

fn device_names(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Vec<Value>> {
    names::<DeviceProfile>(call)
}

fn asset_names(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Vec<Value>> {
    names::<AssetProfile>(call)
}

/// Returns the names in alphabetical order.
fn names<E: Entity>(call: &ApiCall) -> HandlerResult<Vec<Value>> {
    let link = platform::PageLink::new(platform::PAGE_SIZE_MAX, 0);
    let page = call.entities().page::<E>(&of_tenant(call), &link)?;
    let mut all: Vec<Value> = page.data.iter().map(|profile| only(profile, &["id", "name"])).collect();
    all.sort_by_key(|profile| profile["name"].as_str().unwrap_or_default().to_lowercase());
    Ok(Json(all))
}

fn timeseries_keys(call: &ApiCall, (): (), query: ProfileKeysQuery, (): ()) -> HandlerResult<BTreeSet<String>> {
    let store = call.platform().store();
    let mut keys = BTreeSet::new();
    for device in devices_of(call, &query)? {
        keys.extend(store.keys(device.0.into())?.into_iter().map(String::from));
    }
    Ok(Json(keys))
}

fn attribute_keys(call: &ApiCall, (): (), query: ProfileKeysQuery, (): ()) -> HandlerResult<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for device in devices_of(call, &query)? {
        for scope in [
            AttributeScope::ClientScope,
            AttributeScope::SharedScope,
            AttributeScope::ServerScope,
        ] {
            let attributes = call.platform().attributes(device.entity(), scope, None)?;
            keys.extend(attributes.into_iter().map(|attribute| attribute.key));
        }
    }
    Ok(Json(keys))
}

fn devices_of(call: &ApiCall, query: &ProfileKeysQuery) -> Result<Vec<DeviceId>, ThingsboardError> {
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

fn asset_profile(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<AssetProfile> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn save_asset_profile(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(mut profile): JsonBody<AssetProfile>,
) -> HandlerResult<AssetProfile> {
    if let Some(id) = profile.id {
        call.entity::<AssetProfile>(id.0, Verb::Write)?;
    }
    profile.tenant_id = call.tenant();
    let is_new = profile.id.is_none();
    Ok(call.saved(is_new, call.entities().save_asset_profile(profile, call.now_ms)?))
}

fn delete_asset_profile(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let profile: AssetProfile = call.entity(id, Verb::Delete)?;
    call.entities().delete_asset_profile(AssetProfileId(id))?;
    call.deleted(&profile);
    Ok(())
}
