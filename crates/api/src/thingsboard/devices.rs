//! Devices: creating, finding, assigning, credentials, claiming.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use platform::Page;
use platform::entities::ClaimOutcome;
use platform::ids::{CustomerId, DeviceId, Uuid};
use platform::model::{Authority, Customer, Device, DeviceCredentials, DeviceProfile};
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Verb};
use super::failure::Failure;
use super::info::Infos;
use super::lists::{self, comma_separated, filled, list_query, optional_id};
use super::operation::{Body, FromBody, NoQuery, Outcome, Raw, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

const TAG: &str = "Devices";
/// Devices that are asked for by their identifiers at once.
const IDS_MAX: usize = 1000;

pub fn endpoints() -> Vec<Endpoint> {
    [one(), lists(), owners()]
        .into_iter()
        .flatten()
        .map(|endpoint| endpoint.tag(TAG))
        .collect()
}

fn one() -> Vec<Endpoint> {
    vec![
        post("/api/device", "save_device", Who::TENANT, save)
            .says(
                "Create or change a device",
                "Without an id it is new, and gets credentials: `accessToken`, or a token by chance.",
            )
            .returns_json("The device."),
        post(
            "/api/device-with-credentials",
            "save_device_with_credentials",
            Who::TENANT,
            save_with_credentials,
        )
        .says(
            "Create a device with credentials",
            "`device` and `credentials` of any kind that devices log in with.",
        )
        .returns_json("The device."),
        get("/api/device/{deviceId}", "get_device", Who::TENANT, read)
            .says("Read a device", "By its identifier.")
            .returns_json("The device."),
        get(
            "/api/device/info/{deviceId}",
            "get_device_info",
            Who::TENANT.and_screens(),
            info,
        )
        .says(
            "Read a device and what belongs to it",
            "With its customer's title, its profile's name, and whether it is active.",
        )
        .returns_json("The device and more."),
        delete("/api/device/{deviceId}", "delete_device", Who::TENANT_ADMIN, remove)
            .says(
                "Delete a device",
                "With its credentials, attributes, telemetry, relations and alarms.",
            )
            .returns_empty("Deleted."),
        get(
            "/api/device/{deviceId}/credentials",
            "get_device_credentials",
            Who::TENANT,
            credentials,
        )
        .says("Read a device's credentials", "What the device logs in with.")
        .returns_json("The credentials."),
        post(
            "/api/device/credentials",
            "save_device_credentials",
            Who::TENANT_ADMIN,
            save_credentials,
        )
        .says(
            "Change a device's credentials",
            "The device is named in them; their id must be the present one.",
        )
        .returns_json("The credentials."),
    ]
}

fn lists() -> Vec<Endpoint> {
    vec![
        get(
            "/api/tenant/devices",
            "get_tenant_devices",
            Who::TENANT_ADMIN,
            of_tenant,
        )
        .says(
            "List devices, or find one by name",
            "With `deviceName` the one device of that name.",
        )
        .returns_json("A page of devices, or the device."),
        get(
            "/api/tenant/deviceInfos",
            "get_tenant_device_infos",
            Who::TENANT_ADMIN,
            infos_of_tenant,
        )
        .says(
            "List devices and what belongs to them",
            "Filtered by type, profile and whether they are active.",
        )
        .returns_json("A page of devices and more."),
        get(
            "/api/customer/{customerId}/devices",
            "get_customer_devices",
            Who::TENANT,
            of_customer,
        )
        .says("List a customer's devices", "Those that are assigned to it.")
        .returns_json("A page of devices."),
        get(
            "/api/customer/{customerId}/deviceInfos",
            "get_customer_device_infos",
            Who::TENANT,
            infos_of_customer,
        )
        .says(
            "List a customer's devices and what belongs to them",
            "Those that are assigned to it.",
        )
        .returns_json("A page of devices and more."),
        get("/api/devices", "get_devices_by_ids", Who::TENANT, by_ids)
            .says(
                "Read devices",
                "By their identifiers; those that may not be read are left out.",
            )
            .returns_json("The devices."),
        get("/api/device/types", "get_device_types", Who::TENANT, types)
            .says("List types of devices", "The names of all device profiles.")
            .returns_json("The types."),
    ]
}

fn owners() -> Vec<Endpoint> {
    vec![
        post(
            "/api/customer/{customerId}/device/{deviceId}",
            "assign_device",
            Who::TENANT_ADMIN,
            assign,
        )
        .says("Assign a device to a customer", "Its users can see it from then on.")
        .returns_json("The device."),
        delete(
            "/api/customer/device/{deviceId}",
            "unassign_device",
            Who::TENANT_ADMIN,
            unassign,
        )
        .says("Take a device from its customer", "It belongs to the tenant again.")
        .returns_json("The device."),
        post(
            "/api/customer/device/{deviceName}/claim",
            "claim_device",
            Who::CUSTOMER_USER,
            claim,
        )
        .says(
            "Claim a device",
            "With the secret that the device gave; it belongs to the user's customer then.",
        )
        .answers_with::<Value>(StatusCode::BAD_REQUEST, "Not claimed, and why.")
        .returns_json("Claimed: `device` and `response`."),
        delete(
            "/api/customer/device/{deviceName}/claim",
            "reclaim_device",
            Who::TENANT,
            reclaim,
        )
        .says("Give a device back", "It can be claimed again.")
        .returns_empty("Given back."),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TokenQuery {
    /// Token of a new device; by chance if it is empty or not given.
    access_token: Option<String>,
}

list_query!(DeviceQuery {
    /// The one device of this name.
    device_name: Option<String>,
    /// Only of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only of this profile.
    device_profile_id: Option<String>,
    /// Only those that are, or are not.
    #[serde(default, deserialize_with = "lists::empty_is_none")]
    #[schemars(with = "Option<bool>")]
    active: Option<bool>,
});

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct IdsQuery {
    /// Identifiers, with commas between them.
    device_ids: String,
}

#[derive(Deserialize)]
struct WithCredentials {
    device: Device,
    credentials: DeviceCredentials,
}

fn save(call: &Call, (): (), query: TokenQuery, Body(device): Body<Device>) -> Outcome<Device> {
    let (device, stored) = prepare(call, device)?;
    let saved = call
        .entities()
        .save_device(device, query.access_token.as_deref(), call.now_ms)?;
    follow(call, &saved, stored.as_ref())?;
    Ok(call.saved(stored.is_none(), saved))
}

fn save_with_credentials(call: &Call, (): (), _: NoQuery, Body(body): Body<WithCredentials>) -> Outcome<Device> {
    let (device, stored) = prepare(call, body.device)?;
    let saved = call
        .entities()
        .save_device_with_credentials(device, body.credentials, call.now_ms)?;
    follow(call, &saved, stored.as_ref())?;
    Ok(call.saved(stored.is_none(), saved))
}

/// As the person may save it. Customers' users change devices, but neither make nor move them.
pub fn prepare(call: &Call, mut device: Device) -> Result<(Device, Option<Device>), Failure> {
    let is_customer = call.person.authority == Authority::CustomerUser;
    let stored: Option<Device> = match device.id {
        Some(id) => Some(call.entity(id.0, Verb::Write)?),
        None if is_customer => return Err(Failure::permission()),
        None => None,
    };
    device.tenant_id = call.tenant();
    if let Some(stored) = stored.as_ref().filter(|_| is_customer) {
        device.customer_id = stored.customer_id;
        device.keep_gateway(stored);
    }
    Ok((device, stored))
}

/// What the platform knows of a device by the rules of its profile is forgotten with the profile.
pub fn follow(call: &Call, saved: &Device, stored: Option<&Device>) -> Result<(), Failure> {
    if stored.is_some_and(|stored| stored.device_profile_id != saved.device_profile_id) {
        call.platform().forget_alarm_rules(saved.id.unwrap_or_default())?;
    }
    super::ota::saved(call, saved.id.unwrap_or_default().0)
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Device> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn info(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    let device: Device = call.entity(id, Verb::Read)?;
    Ok(Json(Infos::new(call).device(&device)?))
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let device: Device = call.entity(id, Verb::Delete)?;
    let id = device.id.unwrap_or_default();
    call.deleted(&device);
    call.entities().delete_device(id)?;
    call.world.devices().device_deleted(id);
    call.world.device_changed(id);
    Ok(())
}

fn credentials(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<DeviceCredentials> {
    call.entity::<Device>(id, Verb::ReadCredentials)?;
    Ok(Json(call.entities().device_credentials(DeviceId(id))?))
}

fn save_credentials(
    call: &Call,
    (): (),
    _: NoQuery,
    Body(credentials): Body<DeviceCredentials>,
) -> Outcome<DeviceCredentials> {
    call.entity::<Device>(credentials.device_id.0, Verb::WriteCredentials)?;
    let saved = call.entities().save_device_credentials(credentials, call.now_ms)?;
    call.world.device_changed(saved.device_id);
    Ok(Json(saved))
}

fn of_tenant(call: &Call, (): (), query: DeviceQuery, (): ()) -> Outcome<Value> {
    if let Some(name) = query.device_name {
        return lists::named::<Device>(call, &name);
    }
    let link = query.link()?;
    let selection = Selection {
        subtype: filled(query.kind),
        ..call.own()
    };
    let page: Page<Device> = call.entities().page(&selection, &link)?;
    Ok(Json(json!(page)))
}

fn infos_of_tenant(call: &Call, (): (), query: DeviceQuery, (): ()) -> Outcome<Page<Value>> {
    infos(call, query, call.own())
}

fn of_customer(call: &Call, customer: Uuid, query: DeviceQuery, (): ()) -> Outcome<Page<Device>> {
    let selection = Selection {
        subtype: filled(query.kind.clone()),
        ..lists::of_customer(call, customer)?
    };
    lists::page(call, &selection, &query.link()?)
}

fn infos_of_customer(call: &Call, customer: Uuid, query: DeviceQuery, (): ()) -> Outcome<Page<Value>> {
    infos(call, query, lists::of_customer(call, customer)?)
}

fn infos(call: &Call, query: DeviceQuery, selection: Selection) -> Outcome<Page<Value>> {
    let link = query.link()?;
    let selection = Selection {
        parent: optional_id(query.device_profile_id.as_deref())?,
        subtype: filled(query.kind),
        ..selection
    };
    let page = match query.active {
        None => call.entities().page::<Device>(&selection, &link)?,
        Some(active) => by_activity(call, active, &selection, &link)?,
    };
    let mut infos = Infos::new(call);
    Ok(Json(page.try_map(|device| infos.device(&device))?))
}

/// Activity is in memory, not in the repository: all devices are looked at.
fn by_activity(
    call: &Call,
    active: bool,
    selection: &Selection,
    link: &platform::PageLink,
) -> Result<Page<Device>, Failure> {
    let skipped = link.page.saturating_mul(link.page_size);
    let (mut total, mut data) = (0, Vec::new());
    for number in 0.. {
        let chunk = platform::PageLink {
            page_size: 1000,
            page: number,
            ..link.clone()
        };
        let page: Page<Device> = call.entities().page(selection, &chunk)?;
        for device in page.data {
            if call.platform().is_active(device.id.unwrap_or_default()) == active {
                if total >= skipped && data.len() < link.page_size {
                    data.push(device);
                }
                total += 1;
            }
        }
        if !page.has_next {
            break;
        }
    }
    Ok(Page::new(data, total, link))
}

fn by_ids(call: &Call, (): (), query: IdsQuery, (): ()) -> Outcome<Vec<Device>> {
    let ids = comma_separated(&query.device_ids);
    if ids.len() > IDS_MAX {
        return Err(Failure::bad_request(format!("More than {IDS_MAX} device identifiers")));
    }
    let mut devices = Vec::with_capacity(ids.len());
    for id in ids {
        let id = optional_id(Some(id))?.unwrap_or(Uuid::NULL);
        devices.extend(call.entity(id, Verb::Read).ok());
    }
    Ok(Json(devices))
}

fn types(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Vec<Value>> {
    let directory = call.entities().directory();
    let profiles = directory
        .profiles()
        .filter(|profile| profile.tenant_id == call.tenant());
    let mut names: Vec<String> = profiles.map(|profile| DeviceProfile::clone(profile).name).collect();
    names.sort();
    let tenant = call.tenant();
    let types = names
        .iter()
        .map(|name| json!({"tenantId": tenant, "entityType": "DEVICE", "type": name}));
    Ok(Json(types.collect()))
}

fn assign(call: &Call, (customer, device): (Uuid, Uuid), _: NoQuery, (): ()) -> Outcome<Device> {
    call.entity::<Customer>(customer, Verb::Read)?;
    give(call, device, Some(CustomerId(customer)))
}

fn unassign(call: &Call, device: Uuid, _: NoQuery, (): ()) -> Outcome<Device> {
    let stored: Device = call.entity(device, Verb::Assign)?;
    if stored.customer_id.unwrap_or_default() == CustomerId::NULL {
        return Err(Failure::bad_request("Device isn't assigned to any customer!"));
    }
    give(call, device, None)
}

fn give(call: &Call, device: Uuid, customer: Option<CustomerId>) -> Outcome<Device> {
    let stored: Device = call.entity(device, Verb::Assign)?;
    let before = stored.customer_id;
    let device = Device {
        customer_id: customer,
        version: None,
        ..stored
    };
    let saved = call.entities().save_device(device, None, call.now_ms)?;
    Ok(call.given(saved, customer, before))
}

/// All of it may be absent.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimBody {
    #[serde(default)]
    secret_key: Option<String>,
}

fn claim(call: &Call, name: String, _: NoQuery, Raw(bytes): Raw) -> Result<Response, Failure> {
    let body = match bytes.is_empty() {
        true => ClaimBody::default(),
        false => Body::from_body(&bytes)?.0,
    };
    let device: Option<Device> = call.entities().find_by_name(call.tenant().0, &name)?;
    let device = device.ok_or_else(Failure::not_found)?;
    let secret = body.secret_key.unwrap_or_default();
    let outcome = call
        .entities()
        .claim(&device, call.person.customer, &secret, call.now_ms)?;
    let refused = |response: &str| {
        let body = json!({"device": null, "response": response});
        (StatusCode::BAD_REQUEST, Json(body)).into_response()
    };
    Ok(match outcome {
        ClaimOutcome::Success(device) => Json(json!({"device": device, "response": "SUCCESS"})).into_response(),
        ClaimOutcome::Failure => refused("FAILURE"),
        ClaimOutcome::Claimed => refused("CLAIMED"),
    })
}

fn reclaim(call: &Call, name: String, _: NoQuery, (): ()) -> Result<(), Failure> {
    let device: Option<Device> = call.entities().find_by_name(call.tenant().0, &name)?;
    let device = device.ok_or_else(Failure::not_found)?;
    let stored: Device = call.entity(device.id.unwrap_or_default().0, Verb::Claim)?;
    call.entities().reclaim(&stored, call.now_ms)?;
    Ok(())
}
