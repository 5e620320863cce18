//! The audit log of a tenant: user, action, time and result. Each request that changes something adds an entry before
//! it is answered. Saving telemetry adds none, because such entries would fill the log.

use std::collections::HashMap;
use std::sync::Mutex;

use axum::Json;
use axum::http::Method;
use platform::entities::AUDIT_LOGS_MAX;
use platform::ids::{EntityId, EntityType, TenantId, Uuid};
use platform::model::{AuditLog, Customer, User};
use platform::repository::Selection;
use platform::{PageData, PageLink, Sort, SortDirection};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::lists::{comma_separated, empty_is_none, list_query};
use super::operation::{HandlerResult, get};
use crate::endpoint::Endpoint;
use crate::guard::Authorities;
use crate::thingsboard::platform_access::PlatformAccess;

/// Limit of an entry's data.
const DATA_BYTES_MAX: usize = 4096;

/// Paths of requests that change nothing, although their method is not GET.
const NO_CHANGE: [&str; 10] = [
    "/api/devices",
    "/api/assets",
    "/api/entitiesQuery",
    "/api/alarmsQuery",
    "/api/relations",
    "/api/ruleChain/testScript",
    "/api/events",
    "/api/auth/logout",
    "/api/noauth",
    "/api/entities",
];

/// The action as the handler reports it; takes precedence over the action derived from the path.
pub struct AuditAction {
    pub action: &'static str,
    pub entity: EntityId,
    pub name: String,
    pub data: Value,
}

/// Number of entries per tenant, if known.
#[derive(Default)]
pub struct AuditLogCounts(Mutex<HashMap<TenantId, usize>>);

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

/// Logs an operation that may have changed something.
pub fn log_operation(
    call: &ApiCall,
    method: &Method,
    path: &str,
    parameters: &[String],
    failure: Option<&ThingsboardError>,
) {
    if method == Method::GET || !is_change(method, path) || call.tenant().0.is_null() {
        return;
    }
    let noted = std::mem::take(&mut *call.audit_actions());
    let (status, details) = match failure {
        None => ("SUCCESS", String::new()),
        Some(failure) => ("FAILURE", failure.message().to_owned()),
    };
    let entry = |noted: AuditAction| {
        let mut data = noted.data;
        crate::audit_body::redact(&mut data);
        let is_long = data.to_string().len() > DATA_BYTES_MAX;
        AuditLog {
            tenant_id: call.tenant(),
            customer_id: call.principal.customer,
            entity_id: Some(noted.entity),
            entity_name: noted.name,
            user_id: call.principal.id,
            user_name: call.principal.name_with_issuers(),
            action_type: noted.action.to_owned(),
            action_data: if is_long { json!({}) } else { json!({ "entity": data }) },
            action_status: status.to_owned(),
            action_failure_details: details.clone(),
            ..AuditLog::default()
        }
    };
    let mut entries: Vec<AuditLog> = noted.into_iter().map(entry).collect();
    if entries.is_empty() {
        let (action, entity) = match path {
            "/api/auth/changePassword" => ("CREDENTIALS_UPDATED", call.principal.id.entity()),
            path => by_path(method, path, parameters),
        };
        let name = call.name_of(entity);
        let data = Value::Null;
        entries.push(entry(AuditAction {
            action,
            entity,
            name,
            data,
        }));
    }
    call.platform_access
        .save_audit_logs(entries, call.tenant(), call.now_ms);
}

impl PlatformAccess {
    fn save_audit_logs(&self, entries: Vec<AuditLog>, tenant: TenantId, now_ms: i64) {
        let entities = self.platform().entities();
        let added = entries.len();
        let saved = entities.save_audit_logs(entries, now_ms).and_then(|()| {
            let mut counts = self
                .audit_counts()
                .0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let count = match counts.get(&tenant) {
                Some(count) => count + added,
                None => entities.audit_log_count(tenant)?,
            };
            let gone = if count > AUDIT_LOGS_MAX {
                entities.delete_old_audit_logs(tenant)?
            } else {
                0
            };
            counts.insert(tenant, count.saturating_sub(gone));
            Ok(())
        });
        if let Err(error) = saved {
            let error = devices::error_chain(&error);
            tracing::error!(error, "writing the tenant's audit log failed");
        }
    }
}

fn is_change(method: &Method, path: &str) -> bool {
    if method != Method::POST {
        return true;
    }
    let is_telemetry = path.starts_with("/api/plugins/telemetry/") && path.contains("/timeseries/{scope}");
    let is_below = |none: &str| {
        path.strip_prefix(none)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    !is_telemetry && !NO_CHANGE.iter().any(|none| is_below(none))
}

/// Derives action and entity from the operation's path: the action from its words, the entity from its parameters.
fn by_path(method: &Method, path: &str, parameters: &[String]) -> (&'static str, EntityId) {
    let is_delete = method == Method::DELETE;
    let action = match path {
        path if path.contains("credentials") => "CREDENTIALS_UPDATED",
        path if path.starts_with("/api/plugins/telemetry/") => match (path.contains("timeseries"), is_delete) {
            (true, _) => "TIMESERIES_DELETED",
            (false, true) => "ATTRIBUTES_DELETED",
            (false, false) => "ATTRIBUTES_UPDATED",
        },
        path if path.contains("/rpc/") => "RPC_CALL",
        path if path.starts_with("/api/relation") && is_delete => "RELATION_DELETED",
        path if path.starts_with("/api/relation") => "RELATION_ADD_OR_UPDATE",
        path if path.starts_with("/api/customer/") && is_delete => "UNASSIGNED_FROM_CUSTOMER",
        path if path.starts_with("/api/customer/") => "ASSIGNED_TO_CUSTOMER",
        _ if is_delete => "DELETED",
        _ => "UPDATED",
    };
    let id = parameters
        .iter()
        .rev()
        .find_map(|text| Uuid::parse(text))
        .unwrap_or(Uuid::NULL);
    let named = parameters.first().and_then(|text| EntityType::parse(text));
    // `{deviceId}` means DEVICE, `{ruleChainId}` means RULE_CHAIN.
    let by_name = || {
        let names = path.split('/').rev();
        names
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix("Id}"))
            .find_map(entity_type_of)
    };
    let by_word = || path.split('/').find_map(entity_type_of);
    let kind = named.or_else(by_name).or_else(by_word).unwrap_or(EntityType::Tenant);
    (action, EntityId::new(kind, id))
}

/// Converts `ruleChain` to `RULE_CHAIN`.
fn entity_type_of(word: &str) -> Option<EntityType> {
    let mut name = String::with_capacity(word.len() + 2);
    for letter in word.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    EntityType::parse(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_determine_action_and_entity() {
        const ID: &str = "784f394c-42b6-435a-983c-b7beff2784f9";
        for (method, path, parameters, action, kind) in [
            (
                Method::DELETE,
                "/api/device/{deviceId}",
                vec![ID],
                "DELETED",
                EntityType::Device,
            ),
            (Method::POST, "/api/ruleChain", vec![], "UPDATED", EntityType::RuleChain),
            (
                Method::POST,
                "/api/device/credentials",
                vec![],
                "CREDENTIALS_UPDATED",
                EntityType::Device,
            ),
            (
                Method::POST,
                "/api/plugins/telemetry/{entityType}/{entityId}/{scope}",
                vec!["ASSET", ID, "SERVER_SCOPE"],
                "ATTRIBUTES_UPDATED",
                EntityType::Asset,
            ),
            (
                Method::DELETE,
                "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/delete",
                vec!["DEVICE", ID],
                "TIMESERIES_DELETED",
                EntityType::Device,
            ),
            (
                Method::POST,
                "/api/customer/{customerId}/device/{deviceId}",
                vec![ID, ID],
                "ASSIGNED_TO_CUSTOMER",
                EntityType::Device,
            ),
            (
                Method::POST,
                "/api/otaPackage/{otaPackageId}",
                vec![ID],
                "UPDATED",
                EntityType::OtaPackage,
            ),
        ] {
            let parameters: Vec<String> = parameters.into_iter().map(str::to_owned).collect();
            let (found, entity) = by_path(&method, path, &parameters);
            assert_eq!(
                (found, entity.kind, entity.id.is_null()),
                (action, kind, parameters.is_empty()),
                "{path}"
            );
        }
    }

    #[test]
    fn requests_without_a_change_are_not_logged() {
        for path in [
            "/api/entitiesQuery/find",
            "/api/relations",
            "/api/relations/info",
            "/api/devices",
            "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/{scope}/{ttl}",
        ] {
            assert!(!is_change(&Method::POST, path), "{path}");
        }
        for path in [
            "/api/relation",
            "/api/device",
            "/api/plugins/telemetry/{entityType}/{entityId}/timeseries/delete",
        ] {
            assert!(is_change(&Method::POST, path), "{path}");
            assert!(is_change(&Method::DELETE, "/api/relations"));
        }
    }
}
