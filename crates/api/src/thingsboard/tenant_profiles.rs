//! Tenant profiles, which system administrators have: what tenants may use.

use axum::Json;
use platform::Page;
use platform::ids::{TenantProfileId, Uuid};
use platform::model::TenantProfile;
use platform::repository::Selection;
use serde_json::{Value, json};

use super::call::{Call, Verb};
use super::failure::Failure;
use super::lists::{self, PageQuery};
use super::operation::{Body, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/tenantProfile", "save_tenant_profile", Who::SYS_ADMIN, save)
            .says(
                "Create or change a tenant profile",
                "Rates are texts such as \"100:1,2000:60\": so many in so many seconds, all of them at once. A number that is 0 limits nothing. \
                 A change holds for devices that are connected, from the next message on.",
            )
            .returns_json("The profile."),
        get(
            "/api/tenantProfile/{tenantProfileId}",
            "get_tenant_profile",
            Who::SYS_ADMIN,
            read,
        )
        .says("Read a tenant profile", "With all its limits.")
        .returns_json("The profile."),
        get(
            "/api/tenantProfileInfo/default",
            "get_default_tenant_profile_info",
            Who::SYS_ADMIN,
            default_info,
        )
        .says(
            "Read the default tenant profile in short",
            "That of tenants that name none.",
        )
        .returns_json("The profile in short."),
        get(
            "/api/tenantProfileInfo/{tenantProfileId}",
            "get_tenant_profile_info",
            Who::SYS_ADMIN,
            info,
        )
        .says("Read a tenant profile in short", "Its identifier and name.")
        .returns_json("The profile in short."),
        post(
            "/api/tenantProfile/{tenantProfileId}/default",
            "set_default_tenant_profile",
            Who::SYS_ADMIN,
            set_default,
        )
        .says("Make a tenant profile the default one", "Of tenants that name none.")
        .returns_json("The profile."),
        delete(
            "/api/tenantProfile/{tenantProfileId}",
            "delete_tenant_profile",
            Who::SYS_ADMIN,
            remove,
        )
        .says(
            "Delete a tenant profile",
            "Not the default one, and none that tenants have.",
        )
        .returns_empty("Deleted."),
        get("/api/tenantProfiles", "get_tenant_profiles", Who::SYS_ADMIN, list)
            .says("List tenant profiles", "With all their limits.")
            .returns_json("A page of profiles."),
        get(
            "/api/tenantProfileInfos",
            "get_tenant_profile_infos",
            Who::SYS_ADMIN,
            list_infos,
        )
        .says("List tenant profiles in short", "Their identifiers and names.")
        .returns_json("A page of profiles in short."),
    ];
    all.into_iter()
        .map(|endpoint| endpoint.tag("Tenant profiles"))
        .collect()
}

fn save(call: &Call, (): (), _: NoQuery, Body(profile): Body<TenantProfile>) -> Outcome<TenantProfile> {
    if let Some(id) = profile.id {
        call.entity::<TenantProfile>(id.0, Verb::Write)?;
    }
    let saved = call.entities().save_tenant_profile(profile, call.now_ms)?;
    call.world.limits_changed();
    Ok(Json(saved))
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<TenantProfile> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn in_short(profile: &TenantProfile) -> Value {
    json!({"id": profile.id, "name": profile.name})
}

fn info(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    Ok(Json(in_short(&call.entity(id, Verb::Read)?)))
}

fn default_info(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Value> {
    let default = call.entities().default_tenant_profile(call.now_ms)?;
    Ok(Json(in_short(&default)))
}

fn set_default(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<TenantProfile> {
    call.entity::<TenantProfile>(id, Verb::Write)?;
    let profile = call
        .entities()
        .set_default_tenant_profile(TenantProfileId(id), call.now_ms)?;
    call.world.limits_changed();
    Ok(Json(profile))
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    call.entity::<TenantProfile>(id, Verb::Delete)?;
    Ok(call.entities().delete_tenant_profile(TenantProfileId(id))?)
}

fn list(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<TenantProfile>> {
    // It is there from the first look on.
    call.entities().default_tenant_profile(call.now_ms)?;
    lists::page(call, &Selection::default(), &query.page_link()?)
}

fn list_infos(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    call.entities().default_tenant_profile(call.now_ms)?;
    let page = call
        .entities()
        .page::<TenantProfile>(&Selection::default(), &query.page_link()?)?;
    Ok(Json(page.try_map(|profile| Ok::<_, Failure>(in_short(&profile)))?))
}
