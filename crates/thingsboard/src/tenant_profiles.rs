//! Tenant profiles with the limits of tenants. Only system administrators can access them.

use axum::Json;
use platform::PageData;
use platform::ids::{TenantProfileId, Uuid};
use platform::model::TenantProfile;
use platform::repository::Selection;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::lists::{self, PageQuery};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/tenantProfile", "save_tenant_profile", Authorities::SYS_ADMIN, save)
            .describe(
                "Create or change a tenant profile",
                "Rate limits are texts such as \"100:1,2000:60\": a number of messages in a number of seconds; all of them apply. 0 means no limit. \
                 A change also applies to connected devices, from their next message on.",
            )
            .returns_json("The profile."),
        get(
            "/api/tenantProfile/{tenantProfileId}",
            "get_tenant_profile",
            Authorities::SYS_ADMIN,
            read,
        )
        .describe("Read a tenant profile", "With all its limits.")
        .returns_json("The profile."),
        get(
            "/api/tenantProfileInfo/default",
            "get_default_tenant_profile_info",
            Authorities::SYS_ADMIN,
            default_info,
        )
        .describe(
            "Read the summary of the default tenant profile",
            "The profile of tenants without a profile of their own.",
        )
        .returns_json("The summary."),
        get(
            "/api/tenantProfileInfo/{tenantProfileId}",
            "get_tenant_profile_info",
            Authorities::SYS_ADMIN,
            info,
        )
        .describe("Read a tenant profile's summary", "Its ID and name.")
        .returns_json("The summary."),
        post(
            "/api/tenantProfile/{tenantProfileId}/default",
            "set_default_tenant_profile",
            Authorities::SYS_ADMIN,
            set_default,
        )
        .describe("Set the default tenant profile", "Tenants without a profile of their own get this one.")
        .returns_json("The profile."),
        delete(
            "/api/tenantProfile/{tenantProfileId}",
            "delete_tenant_profile",
            Authorities::SYS_ADMIN,
            remove,
        )
        .describe(
            "Delete a tenant profile",
            "Fails for the default profile, and for profiles of existing tenants.",
        )
        .returns_empty("Deleted."),
        get("/api/tenantProfiles", "get_tenant_profiles", Authorities::SYS_ADMIN, list)
            .describe("List tenant profiles", "With all their limits.")
            .returns_json("A page of profiles."),
        get(
            "/api/tenantProfileInfos",
            "get_tenant_profile_infos",
            Authorities::SYS_ADMIN,
            list_infos,
        )
        .describe("List summaries of tenant profiles", "Their IDs and names.")
        .returns_json("A page of summaries."),
    ];
    all.into_iter()
        .map(|endpoint| endpoint.tag("Tenant profiles"))
        .collect()
}

fn save(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(profile): JsonBody<TenantProfile>,
) -> HandlerResult<TenantProfile> {
    if let Some(id) = profile.id {
        call.entity::<TenantProfile>(id.0, Verb::Write)?;
    }
    let saved = call.entities().save_tenant_profile(profile, call.now_ms)?;
    call.platform_access.limits_changed();
    Ok(Json(saved))
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<TenantProfile> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn short_info(profile: &TenantProfile) -> Value {
    json!({"id": profile.id, "name": profile.name})
}

fn info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    Ok(Json(short_info(&call.entity(id, Verb::Read)?)))
}

fn default_info(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Value> {
    let default = call.entities().default_tenant_profile(call.now_ms)?;
    Ok(Json(short_info(&default)))
}

fn set_default(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<TenantProfile> {
    call.entity::<TenantProfile>(id, Verb::Write)?;
    let profile = call
        .entities()
        .set_default_tenant_profile(TenantProfileId(id), call.now_ms)?;
    call.platform_access.limits_changed();
    Ok(Json(profile))
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    call.entity::<TenantProfile>(id, Verb::Delete)?;
    Ok(call.entities().delete_tenant_profile(TenantProfileId(id))?)
}

fn list(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<TenantProfile>> {
    // The default profile is created when it is first read.
    call.entities().default_tenant_profile(call.now_ms)?;
    lists::page(call, &Selection::default(), &query.page_link()?)
}

fn list_infos(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    call.entities().default_tenant_profile(call.now_ms)?;
    let page = call
        .entities()
        .page::<TenantProfile>(&Selection::default(), &query.page_link()?)?;
    Ok(Json(
        page.try_map(|profile| Ok::<_, ThingsboardError>(short_info(&profile)))?,
    ))
}
