//! Operations that read the audit log of a tenant.

use axum::Json;
use platform::ids::{EntityType, Uuid};
use platform::model::{AuditLog, Customer, User};
use platform::repository::Selection;
use platform::{PageData, PageLink, Sort, SortDirection};
use schemars::JsonSchema;
use serde::Deserialize;

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::lists::{comma_separated, empty_is_none, list_query};
use super::operation::{HandlerResult, get};
use crate::services::Endpoint;

list_query!(AuditQuery {
    /// Only actions at or after this time, in milliseconds since 1970.
    #[serde(default, deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    start_time: Option<i64>,
    /// Only actions at or before this time.
    #[serde(default, deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    end_time: Option<i64>,
    /// Action types, separated by commas, such as ADDED,DELETED. Default: all.
    action_types: Option<String>,
});

pub fn endpoints() -> Vec<Endpoint> {
    const SAYS: &str = "Newest first, unless `sortOrder` is given. The log keeps the last 20,000 entries of a tenant.";
    let all = vec![
        get("/api/audit/logs", "list_audit_logs", Authorities::TENANT_ADMIN, list)
            .describe("List audit log entries", SAYS)
            .returns_json("A page of entries."),
        get(
            "/api/audit/logs/entity/{entityType}/{entityId}",
            "list_audit_logs_of_entity",
            Authorities::TENANT_ADMIN,
            of_entity,
        )
        .describe("List audit log entries of an entity", SAYS)
        .returns_json("A page of entries."),
        get(
            "/api/audit/logs/customer/{customerId}",
            "list_audit_logs_of_customer",
            Authorities::TENANT_ADMIN,
            of_customer,
        )
        .describe("List audit log entries of a customer's users", SAYS)
        .returns_json("A page of entries."),
        get(
            "/api/audit/logs/user/{userId}",
            "list_audit_logs_of_user",
            Authorities::TENANT_ADMIN,
            of_user,
        )
        .describe("List audit log entries of a user", SAYS)
        .returns_json("A page of entries."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Audit log")).collect()
}

fn list(call: &ApiCall, (): (), query: AuditQuery, (): ()) -> HandlerResult<PageData<AuditLog>> {
    page(call, &query, Selection::default())
}

/// Also works for a deleted entity.
fn of_entity(
    call: &ApiCall,
    (_, id): (EntityType, Uuid),
    query: AuditQuery,
    (): (),
) -> HandlerResult<PageData<AuditLog>> {
    let selection = Selection {
        parent: Some(id),
        ..Selection::default()
    };
    page(call, &query, selection)
}

fn of_customer(call: &ApiCall, id: Uuid, query: AuditQuery, (): ()) -> HandlerResult<PageData<AuditLog>> {
    call.entity::<Customer>(id, Verb::Read)?;
    let selection = Selection {
        customer: Some(id),
        ..Selection::default()
    };
    page(call, &query, selection)
}

fn of_user(call: &ApiCall, id: Uuid, query: AuditQuery, (): ()) -> HandlerResult<PageData<AuditLog>> {
    call.entity::<User>(id, Verb::Read)?;
    let selection = Selection {
        label: Some(id.to_string()),
        ..Selection::default()
    };
    page(call, &query, selection)
}

fn page(call: &ApiCall, query: &AuditQuery, selection: Selection) -> HandlerResult<PageData<AuditLog>> {
    let link = query.link()?;
    let newest_first = Sort {
        property: "createdTime".to_owned(),
        order: SortDirection::Descending,
    };
    let link = PageLink {
        sort: Some(link.sort.clone().unwrap_or(newest_first)),
        ..link
    };
    let end = query.end_time.map_or(i64::MAX, |end| end.saturating_add(1));
    let types = comma_separated(query.action_types.as_deref().unwrap_or_default());
    let selection = Selection {
        tenant: Some(call.tenant().0),
        subtypes: types.into_iter().map(str::to_owned).collect(),
        created: Some(query.start_time.unwrap_or(0)..end),
        ..selection
    };
    Ok(Json(call.entities().page(&selection, &link)?))
}
