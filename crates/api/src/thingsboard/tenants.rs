//! Tenants, which system administrators have.

use axum::Json;
use platform::Page;
use platform::ids::{TenantId, Uuid};
use platform::model::{Device, Tenant, TenantProfile};
use platform::repository::Selection;
use serde_json::Value;

use super::call::{Call, Verb};
use super::failure::Failure;
use super::info::fields;
use super::lists::{self, PageQuery};
use super::operation::{Body, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/tenant", "save_tenant", Who::SYS_ADMIN, save)
            .says(
                "Create or change a tenant",
                "A new one has default profiles and a root rule chain.",
            )
            .returns_json("The tenant."),
        get("/api/tenant/{tenantId}", "get_tenant", Who::ADMINS, read)
            .says("Read a tenant", "Tenant administrators can read their own one only.")
            .returns_json("The tenant."),
        get("/api/tenant/info/{tenantId}", "get_tenant_info", Who::ADMINS, info)
            .says(
                "Read a tenant and what belongs to it",
                "With its tenant profile's name.",
            )
            .returns_json("The tenant and more."),
        delete("/api/tenant/{tenantId}", "delete_tenant", Who::SYS_ADMIN, remove)
            .says("Delete a tenant", "With everything that it has.")
            .returns_empty("Deleted."),
        get("/api/tenants", "get_tenants", Who::SYS_ADMIN, list)
            .says("List tenants", "All of the platform.")
            .returns_json("A page of tenants."),
        get("/api/tenantInfos", "get_tenant_infos", Who::SYS_ADMIN, list_infos)
            .says(
                "List tenants and what belongs to them",
                "With their tenant profiles' names.",
            )
            .returns_json("A page of tenants and more."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Tenants")).collect()
}

fn save(call: &Call, (): (), _: NoQuery, Body(tenant): Body<Tenant>) -> Outcome<Tenant> {
    if let Some(id) = tenant.id {
        call.entity::<Tenant>(id.0, Verb::Write)?;
        let saved = call.entities().save_tenant(tenant, call.now_ms)?;
        call.world.limits_changed();
        return Ok(Json(saved));
    }
    let new = call.entities().create_tenant(tenant, call.now_ms)?;
    let chain = new.root_chain.id.unwrap_or_default();
    let tenant = new.tenant.id.unwrap_or_default();
    call.world.devices().reload_chain(tenant, chain, call.now_ms)?;
    call.world.limits_changed();
    Ok(Json(new.tenant))
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Tenant> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn info(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    Ok(Json(with_profile(call, &call.entity(id, Verb::Read)?)?))
}

/// A tenant that was made before there were profiles has the default one.
fn with_profile(call: &Call, tenant: &Tenant) -> Result<Value, Failure> {
    let own = tenant
        .tenant_profile_id
        .map(|id| call.entities().find::<TenantProfile>(id.0));
    let profile = match own.transpose()?.flatten() {
        Some(profile) => profile,
        None => call.entities().default_tenant_profile(call.now_ms)?,
    };
    let mut fields = fields(tenant);
    fields.insert("tenantProfileName".into(), profile.name.into());
    Ok(Value::Object(fields))
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    call.entity::<Tenant>(id, Verb::Delete)?;
    let mut devices = Vec::new();
    let selection = Selection {
        tenant: Some(id),
        ..Selection::default()
    };
    lists::for_each::<Device>(call, &selection, &mut |device| {
        devices.extend(device.id);
        Ok(())
    })?;
    let mut chains = Vec::new();
    lists::for_each::<platform::model::RuleChain>(call, &selection, &mut |chain| {
        chains.extend(chain.id);
        Ok(())
    })?;
    call.entities().delete_tenant(TenantId(id))?;
    for chain in chains {
        call.platform().reload_chain(chain, call.now_ms)?;
    }
    for device in devices {
        call.world.devices().device_deleted(device);
        call.world.device_changed(device);
    }
    Ok(())
}

fn list(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<Tenant>> {
    lists::page(call, &Selection::default(), &query.page_link()?)
}

fn list_infos(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    let page = call
        .entities()
        .page::<Tenant>(&Selection::default(), &query.page_link()?)?;
    Ok(Json(page.try_map(|tenant| with_profile(call, &tenant))?))
}
