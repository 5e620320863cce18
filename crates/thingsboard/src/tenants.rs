//! Tenants. Only system administrators can manage them.

use axum::Json;
use platform::PageData;
use platform::ids::{TenantId, Uuid};
use platform::model::{Device, Tenant, TenantProfile};
use platform::repository::Selection;
use serde_json::Value;

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::info::fields;
use super::lists::{self, PageQuery};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/tenant", "save_tenant", Authorities::SYS_ADMIN, save)
            .describe(
                "Create or change a tenant",
                "A new tenant has default profiles and a root rule chain.",
            )
            .returns_json("The tenant."),
        get("/api/tenant/{tenantId}", "get_tenant", Authorities::ADMINS, read)
            .describe("Read a tenant", "Tenant administrators can only read their own tenant.")
            .returns_json("The tenant."),
        get(
            "/api/tenant/info/{tenantId}",
            "get_tenant_info",
            Authorities::ADMINS,
            info,
        )
        .describe("Read a tenant with details", "With the name of its tenant profile.")
        .returns_json("The tenant with details."),
        delete(
            "/api/tenant/{tenantId}",
            "delete_tenant",
            Authorities::SYS_ADMIN,
            remove,
        )
        .describe("Delete a tenant", "Also deletes everything that belongs to it.")
        .returns_empty("Deleted."),
        get("/api/tenants", "get_tenants", Authorities::SYS_ADMIN, list)
            .describe("List tenants", "All tenants of the platform.")
            .returns_json("A page of tenants."),
        get(
            "/api/tenantInfos",
            "get_tenant_infos",
            Authorities::SYS_ADMIN,
            list_infos,
        )
        .describe("List tenants with details", "With the names of their tenant profiles.")
        .returns_json("A page of tenants with details."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Tenants")).collect()
}

fn save(call: &ApiCall, (): (), _: NoQuery, JsonBody(tenant): JsonBody<Tenant>) -> HandlerResult<Tenant> {
    if let Some(id) = tenant.id {
        call.entity::<Tenant>(id.0, Verb::Write)?;
        let saved = call.entities().save_tenant(tenant, call.now_ms)?;
        call.platform_access.limits_changed();
        return Ok(Json(saved));
    }
    let new = call.entities().create_tenant(tenant, call.now_ms)?;
    let chain = new.root_chain.id.unwrap_or_default();
    let tenant = new.tenant.id.unwrap_or_default();
    call.platform_access
        .devices()
        .reload_chain(tenant, chain, call.now_ms)?;
    call.platform_access.limits_changed();
    Ok(Json(new.tenant))
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Tenant> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    Ok(Json(with_profile(call, &call.entity(id, Verb::Read)?)?))
}

/// A tenant that was created before tenant profiles existed has the default profile.
fn with_profile(call: &ApiCall, tenant: &Tenant) -> Result<Value, ThingsboardError> {
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

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
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
        call.platform_access.devices().device_deleted(device);
        call.platform_access.device_changed(device);
    }
    Ok(())
}

fn list(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<Tenant>> {
    lists::page(call, &Selection::default(), &query.page_link()?)
}

fn list_infos(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    let page = call
        .entities()
        .page::<Tenant>(&Selection::default(), &query.page_link()?)?;
    Ok(Json(page.try_map(|tenant| with_profile(call, &tenant))?))
}
