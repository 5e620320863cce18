//! Devices: create, find, assign, change credentials, claim.

use std::time::Instant;

use auth::{LoginAttempt, LoginKind};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use platform::PageData;
use platform::entities::ClaimOutcome;
use platform::ids::{CustomerId, DeviceId, Uuid};
use platform::model::{Authority, Customer, Device, DeviceCredentials, DeviceProfile};
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::info::Infos;
use super::lists::{self, list_query, non_empty, optional_id};
use super::operation::{FromBody, HandlerResult, JsonBody, NoQuery, RawBody, delete, get, post};
use crate::services::Endpoint;

const TAG: &str = "Devices";

pub fn endpoints() -> Vec<Endpoint> {
    [one(), lists(), owners()]
        .into_iter()
        .flatten()
        .map(|endpoint| endpoint.tag(TAG))
        .collect()
}

fn one() -> Vec<Endpoint> {
    vec![
        post("/api/device", "save_device", Authorities::TENANT, save)
            .describe(
                "Create or change a device",
                "Without an ID, creates a device with credentials: `accessToken`, or a random token.",
            )
            .returns_json("The device."),
        post(
            "/api/device-with-credentials",
            "save_device_with_credentials",
            Authorities::TENANT,
            save_with_credentials,
        )
        .describe(
            "Create a device with credentials",
            "`device` and `credentials` of any supported type.",
        )
        .returns_json("The device."),
        get("/api/device/{deviceId}", "get_device", Authorities::TENANT, read)
            .describe("Read a device", "By its ID.")
            .returns_json("The device."),
        get(
            "/api/device/info/{deviceId}",
            "get_device_info",
            Authorities::TENANT.and_screens(),
            info,
        )
        .describe(
            "Read a device with details",
            "With the title of its customer, the name of its profile, and whether it is active.",
        )
        .returns_json("The device with details."),
        delete(
            "/api/device/{deviceId}",
            "delete_device",
            Authorities::TENANT_ADMIN,
            remove,
        )
        .describe(
            "Delete a device",
            "Also deletes its credentials, attributes, telemetry, relations and alarms.",
        )
        .returns_empty("Deleted."),
        get(
            "/api/device/{deviceId}/credentials",
            "get_device_credentials",
            Authorities::TENANT,
            credentials,
        )
        .describe(
            "Read a device's credentials",
            "The credentials with which the device connects.",
        )
        .returns_json("The credentials."),
        post(
            "/api/device/credentials",
            "save_device_credentials",
            Authorities::TENANT_ADMIN,
            save_credentials,
        )
        .describe(
            "Change a device's credentials",
            "The body contains the device's ID and the ID of its current credentials.",
        )
        .returns_json("The credentials."),
    ]
}

fn lists() -> Vec<Endpoint> {
    vec![
        get(
            "/api/tenant/devices",
            "get_tenant_devices",
            Authorities::TENANT_ADMIN,
            of_tenant,
        )
        .describe(
            "List devices, or find one by name",
            "With `deviceName`, returns the device with this name.",
        )
        .returns_json("A page of devices, or the device."),
        get(
            "/api/tenant/deviceInfos",
            "get_tenant_device_infos",
            Authorities::TENANT_ADMIN,
            infos_of_tenant,
        )
        .describe("List devices with details", "Filtered by type, profile and activity.")
        .returns_json("A page of devices with details."),
        get(
            "/api/customer/{customerId}/devices",
            "get_customer_devices",
            Authorities::TENANT,
            of_customer,
        )
        .describe(
            "List a customer's devices",
            "Devices that are assigned to the customer.",
        )
        .returns_json("A page of devices."),
        get(
            "/api/customer/{customerId}/deviceInfos",
            "get_customer_device_infos",
            Authorities::TENANT,
            infos_of_customer,
        )
        .describe(
            "List a customer's devices with details",
            "Devices that are assigned to the customer.",
        )
        .returns_json("A page of devices with details."),
        get("/api/devices", "get_devices_by_ids", Authorities::TENANT, by_ids)
            .describe(
                "Read devices",
                "By their IDs. Devices that the user may not read are omitted.",
            )
            .returns_json("The devices."),
        get("/api/device/types", "get_device_types", Authorities::TENANT, types)
            .describe("List device types", "The names of all device profiles.")
            .returns_json("The types."),
    ]
}

fn owners() -> Vec<Endpoint> {
    vec![
        post(
            "/api/customer/{customerId}/device/{deviceId}",
            "assign_device",
            Authorities::TENANT_ADMIN,
            assign,
        )
        .describe("Assign a device to a customer", "The customer's users can then see it.")
        .returns_json("The device."),
        delete(
            "/api/customer/device/{deviceId}",
            "unassign_device",
            Authorities::TENANT_ADMIN,
            unassign,
        )
        .describe(
            "Unassign a device from its customer",
            "Only the tenant can then see it.",
        )
        .returns_json("The device."),
        post(
            "/api/customer/device/{deviceName}/claim",
            "claim_device",
            Authorities::CUSTOMER_USER,
            claim,
        )
        .describe(
            "Claim a device",
            "With the secret key that the device has sent. The device is assigned to the user's customer.",
        )
        .answers_with::<Value>(StatusCode::BAD_REQUEST, "The device was not claimed, with the reason.")
        .returns_json("The device was claimed: `device` and `response`."),
        delete(
            "/api/customer/device/{deviceName}/claim",
            "reclaim_device",
            Authorities::TENANT,
            reclaim,
        )
        .describe(
            "Reclaim a device",
            "Unassigns the device, so that it can be claimed again.",
        )
        .returns_empty("The device was unassigned."),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AccessTokenQuery {
    /// Access token of a new device. Empty or absent: a random token.
    access_token: Option<String>,
}

list_query!(DeviceQuery {
    /// Name of the device.
    device_name: Option<String>,
    /// Only devices of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only devices with this profile.
    device_profile_id: Option<String>,
    /// Only active (`true`) or inactive (`false`) devices.
    #[serde(default, deserialize_with = "lists::empty_is_none")]
    #[schemars(with = "Option<bool>")]
    active: Option<bool>,
});

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DeviceIdsQuery {
    /// IDs, separated by commas.
    device_ids: String,
}

#[derive(Deserialize)]
struct WithCredentials {
    device: Device,
    credentials: DeviceCredentials,
}

fn save(call: &ApiCall, (): (), query: AccessTokenQuery, JsonBody(device): JsonBody<Device>) -> HandlerResult<Device> {
    let (device, stored) = prepare(call, device)?;
    let saved = call
        .entities()
        .save_device(device, query.access_token.as_deref(), call.now_ms)?;
    handle_profile_change(call, &saved, stored.as_ref())?;
    Ok(call.saved(stored.is_none(), saved))
}

fn save_with_credentials(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(body): JsonBody<WithCredentials>,
) -> HandlerResult<Device> {
    let (device, stored) = prepare(call, body.device)?;
    let saved = call
        .entities()
        .save_device_with_credentials(device, body.credentials, call.now_ms)?;
    handle_profile_change(call, &saved, stored.as_ref())?;
    Ok(call.saved(stored.is_none(), saved))
}

/// Prepares the device as the user may save it. Customer users can change devices, but cannot create or assign them.
pub fn prepare(call: &ApiCall, mut device: Device) -> Result<(Device, Option<Device>), ThingsboardError> {
    let is_customer = call.principal.authority == Authority::CustomerUser;
    let stored: Option<Device> = match device.id {
        Some(id) => Some(call.entity(id.0, Verb::Write)?),
        None if is_customer => return Err(ThingsboardError::permission()),
        None => None,
    };
    device.tenant_id = call.tenant();
    if let Some(stored) = stored.as_ref().filter(|_| is_customer) {
        device.customer_id = stored.customer_id;
        device.restore_gateway_flag(stored);
    }
    Ok((device, stored))
}

/// If the profile has changed, discards the state of the alarm rules of the previous profile.
pub fn handle_profile_change(call: &ApiCall, saved: &Device, stored: Option<&Device>) -> Result<(), ThingsboardError> {
    if stored.is_some_and(|stored| stored.device_profile_id != saved.device_profile_id) {
        call.platform().discard_alarm_rules(saved.id.unwrap_or_default())?;
    }
    super::ota::saved(call, saved.id.unwrap_or_default().0)
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Device> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    let device: Device = call.entity(id, Verb::Read)?;
    Ok(Json(Infos::new(call).device(&device)?))
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let device: Device = call.entity(id, Verb::Delete)?;
    let id = device.id.unwrap_or_default();
    call.deleted(&device);
    call.entities().delete_device(id)?;
    call.platform_access.devices().device_deleted(id);
    call.platform_access.device_changed(id);
    Ok(())
}

fn credentials(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<DeviceCredentials> {
    call.entity::<Device>(id, Verb::ReadCredentials)?;
    Ok(Json(call.entities().device_credentials(DeviceId(id))?))
}

fn save_credentials(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(credentials): JsonBody<DeviceCredentials>,
) -> HandlerResult<DeviceCredentials> {
    call.entity::<Device>(credentials.device_id.0, Verb::WriteCredentials)?;
    let saved = call.entities().save_device_credentials(credentials, call.now_ms)?;
    call.platform_access.device_changed(saved.device_id);
    Ok(Json(saved))
}

fn of_tenant(call: &ApiCall, (): (), query: DeviceQuery, (): ()) -> HandlerResult<Value> {
    if let Some(name) = query.device_name {
        return lists::find_by_name::<Device>(call, &name);
    }
    let link = query.link()?;
    let selection = Selection {
        subtype: non_empty(query.kind),
        ..call.own_entities()
    };
    let page: PageData<Device> = call.entities().page(&selection, &link)?;
    Ok(Json(json!(page)))
}

fn infos_of_tenant(call: &ApiCall, (): (), query: DeviceQuery, (): ()) -> HandlerResult<PageData<Value>> {
    infos(call, query, call.own_entities())
}

fn of_customer(call: &ApiCall, customer: Uuid, query: DeviceQuery, (): ()) -> HandlerResult<PageData<Device>> {
    let selection = Selection {
        subtype: non_empty(query.kind.clone()),
        ..lists::of_customer(call, customer)?
    };
    lists::page(call, &selection, &query.link()?)
}

fn infos_of_customer(call: &ApiCall, customer: Uuid, query: DeviceQuery, (): ()) -> HandlerResult<PageData<Value>> {
    infos(call, query, lists::of_customer(call, customer)?)
}

fn infos(call: &ApiCall, query: DeviceQuery, selection: Selection) -> HandlerResult<PageData<Value>> {
    let link = query.link()?;
    let selection = Selection {
        parent: optional_id(query.device_profile_id.as_deref())?,
        subtype: non_empty(query.kind),
        ..selection
    };
    let page = match query.active {
        None => call.entities().page::<Device>(&selection, &link)?,
        Some(active) => by_activity(call, active, &selection, &link)?,
    };
    let mut infos = Infos::new(call);
    Ok(Json(page.try_map(|device| infos.device(&device))?))
}

/// Reads all devices, because their activity is only in memory.
fn by_activity(
    call: &ApiCall,
    active: bool,
    selection: &Selection,
    link: &platform::PageLink,
) -> Result<PageData<Device>, ThingsboardError> {
    let skipped = link.page.saturating_mul(link.page_size);
    let (mut total, mut data) = (0, Vec::new());
    for number in 0.. {
        let chunk = platform::PageLink {
            page_size: 1000,
            page: number,
            ..link.clone()
        };
        let page: PageData<Device> = call.entities().page(selection, &chunk)?;
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
    Ok(PageData::new(data, total, link))
}

fn by_ids(call: &ApiCall, (): (), query: DeviceIdsQuery, (): ()) -> HandlerResult<Vec<Device>> {
    lists::by_ids(call, &query.device_ids, "device")
}

fn types(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Vec<Value>> {
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

fn assign(call: &ApiCall, (customer, device): (Uuid, Uuid), _: NoQuery, (): ()) -> HandlerResult<Device> {
    call.entity::<Customer>(customer, Verb::Read)?;
    give(call, device, Some(CustomerId(customer)))
}

fn unassign(call: &ApiCall, device: Uuid, _: NoQuery, (): ()) -> HandlerResult<Device> {
    let stored: Device = call.entity(device, Verb::Assign)?;
    if stored.customer_id.unwrap_or_default() == CustomerId::NULL {
        return Err(ThingsboardError::bad_request("Device isn't assigned to any customer!"));
    }
    give(call, device, None)
}

fn give(call: &ApiCall, device: Uuid, customer: Option<CustomerId>) -> HandlerResult<Device> {
    let stored: Device = call.entity(device, Verb::Assign)?;
    let before = stored.customer_id;
    let device = Device {
        customer_id: customer,
        version: None,
        ..stored
    };
    let saved = call.entities().save_device(device, None, call.now_ms)?;
    Ok(call.customer_changed(saved, customer, before))
}

/// All fields are optional.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimBody {
    #[serde(default)]
    secret_key: Option<String>,
}

fn claim(call: &ApiCall, name: String, _: NoQuery, RawBody(bytes): RawBody) -> Result<Response, ThingsboardError> {
    let body = match bytes.is_empty() {
        true => ClaimBody::default(),
        false => JsonBody::from_body(&bytes)?.0,
    };
    let device: Option<Device> = call.entities().find_by_name(call.tenant().0, &name)?;
    let device = device.ok_or_else(ThingsboardError::not_found)?;
    let secret = body.secret_key.unwrap_or_default();
    let limiter = &call.services.login_limiter;
    let attempt = call.address.map(|address| LoginAttempt {
        kind: LoginKind::Claim,
        address,
        user_name: Some(&name),
        secret: secret.as_bytes(),
    });
    if let Some(Err(wait)) = attempt.map(|attempt| limiter.admit(&attempt, Instant::now())) {
        let message = "Too many wrong secrets from this address; try again later";
        let refused = ThingsboardError::new(ThingsboardErrorCode::TooManyRequests, message);
        return Err(refused.retry_after(wait.as_secs() + 1));
    }
    let outcome = call
        .entities()
        .claim(&device, call.principal.customer, &secret, call.now_ms)?;
    if let Some(attempt) = attempt
        && matches!(outcome, ClaimOutcome::Failure)
    {
        limiter.record_failure(&attempt, Instant::now());
    }
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

fn reclaim(call: &ApiCall, name: String, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let device: Option<Device> = call.entities().find_by_name(call.tenant().0, &name)?;
    let device = device.ok_or_else(ThingsboardError::not_found)?;
    let stored: Device = call.entity(device.id.unwrap_or_default().0, Verb::Claim)?;
    call.entities().reclaim(&stored, call.now_ms)?;
    Ok(())
}
