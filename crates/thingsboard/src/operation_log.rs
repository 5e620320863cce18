//! Writes the audit log of a tenant: user, action, time and result. Each request that changes something adds an entry
//! before it is answered. Saving telemetry adds none, because such entries would fill the log.

use axum::http::Method;
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::AuditLog;
use serde_json::{Value, json};

use super::call::{ApiCall, AuditAction};
use super::failure::ThingsboardError;

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
        web::audit_body::redact(&mut data);
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
    let counts = call.platform_access.audit_counts();
    counts.save(call.entities(), entries, call.tenant(), call.now_ms);
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
