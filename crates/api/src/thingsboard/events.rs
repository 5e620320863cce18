//! What happened to rule chains, nodes and devices, what of their messages failed, and what went through nodes that are debugged. Events of
//! other kinds are not kept: their lists are empty.

use axum::Json;
use axum::http::StatusCode;
use devices::{EntityEvent, NodeEvent, What};
use platform::Page;
use platform::ids::{EntityId, EntityType, RuleNodeId, Uuid};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::Call;
use super::failure::Failure;
use super::lists::list_query;
use super::operation::{Body, NoQuery, Outcome, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

const TAG: &str = "Events";
const DEBUG: &str = "DEBUG_RULE_NODE";

pub fn endpoints() -> Vec<Endpoint> {
    const KEPT: &str = "The newest first. `LC_EVENT` of a rule chain or a rule node: it was started, changed or stopped. `ERROR` of a \
                        device: what failed of its messages. `STATS` of a rule node: how many messages it had in an hour, and how many of them failed. Of \
                        each the last 50 of an entity are kept. `DEBUG_RULE_NODE`: what went into a rule node that is debugged and what came out of it, the last 500.";
    vec![
        get(
            "/api/events/{entityType}/{entityId}/{eventType}",
            "list_events_of_type",
            Who::TENANT_ADMIN,
            of_type,
        )
        .says("Events of one kind", KEPT),
        get(
            "/api/events/{entityType}/{entityId}",
            "list_events",
            Who::TENANT_ADMIN,
            of_entity,
        )
        .says("Events", KEPT),
        post(
            "/api/events/{entityType}/{entityId}",
            "find_events",
            Who::TENANT_ADMIN,
            filtered,
        )
        .says(
            "Find events",
            "By what is in them: message type, connection, data, metadata, errors; event and status.",
        ),
        get(
            "/api/ruleNode/{ruleNodeId}/debugIn",
            "get_latest_debug_input",
            Who::TENANT_ADMIN,
            latest_input,
        )
        .says(
            "Read what last went into a rule node",
            "That is debugged: the newest of its events with direction IN, for trying a script with it. Nothing without one.",
        ),
        post(
            "/api/events/{entityType}/{entityId}/clear",
            "clear_events",
            Who::TENANT_ADMIN,
            clear,
        )
        .says("Forget events", "All of the entity."),
    ]
    .into_iter()
    .map(|endpoint| {
        endpoint
            .tag(TAG)
            .fails(StatusCode::BAD_REQUEST)
            .returns_json("A page of events.")
    })
    .collect()
}

list_query!(EventQuery {
    /// Only those since then, in milliseconds.
    start_time: Option<i64>,
    /// Only those until then, in milliseconds.
    end_time: Option<i64>,
});

/// As ThingsBoard's `RuleNodeDebugEventFilter`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Filter {
    event_type: Option<String>,
    msg_direction_type: Option<String>,
    entity_id: Option<String>,
    msg_type: Option<String>,
    relation_type: Option<String>,
    data_search: Option<String>,
    metadata_search: Option<String>,
    is_error: Option<bool>,
    error_str: Option<String>,
    /// Of `LC_EVENT`; the status is `Success` or `Failure`.
    event: Option<String>,
    status: Option<String>,
    /// Of `ERROR`.
    method: Option<String>,
    /// Of `STATS`: at least, and less than.
    min_messages_processed: Option<u64>,
    max_messages_processed: Option<u64>,
    min_errors_occurred: Option<u64>,
    max_errors_occurred: Option<u64>,
}

fn same(wanted: &Option<String>, found: &str) -> bool {
    let wanted = wanted.as_deref().filter(|wanted| !wanted.is_empty());
    wanted.is_none_or(|wanted| wanted.eq_ignore_ascii_case(found))
}

fn has(wanted: &Option<String>, found: &str) -> bool {
    let wanted = wanted.as_deref().unwrap_or_default().to_lowercase();
    found.to_lowercase().contains(&wanted)
}

fn within(found: u64, min: Option<u64>, max: Option<u64>) -> bool {
    min.is_none_or(|min| found >= min) && max.is_none_or(|max| found < max)
}

impl Filter {
    fn wants(&self, kind: &str) -> bool {
        same(&self.event_type, kind)
    }

    fn takes_entity_event(&self, event: &EntityEvent) -> bool {
        self.wants(event.what.kind())
            && match &event.what {
                What::Lifecycle { event, error } => {
                    let status = if error.is_none() { "Success" } else { "Failure" };
                    same(&self.event, event)
                        && same(&self.status, status)
                        && has(&self.error_str, error.as_deref().unwrap_or_default())
                }
                What::Error { method, error } => has(&self.method, method) && has(&self.error_str, error),
                What::Statistics { messages, errors } => {
                    within(*messages, self.min_messages_processed, self.max_messages_processed)
                        && within(*errors, self.min_errors_occurred, self.max_errors_occurred)
                }
            }
    }

    fn takes(&self, event: &NodeEvent) -> bool {
        same(&self.msg_direction_type, direction(event))
            && same(&self.entity_id, &event.originator.id.to_string())
            && same(&self.msg_type, &event.message_type)
            && same(&self.relation_type, event.label.as_deref().unwrap_or_default())
            && has(&self.data_search, &event.data)
            && has(&self.metadata_search, &event.metadata)
            && has(&self.error_str, event.error.as_deref().unwrap_or_default())
            && self.is_error.is_none_or(|is_error| is_error == event.error.is_some())
    }
}

fn of_type(
    call: &Call,
    (kind, id, event_type): (EntityType, Uuid, String),
    query: EventQuery,
    (): (),
) -> Outcome<Page<Value>> {
    let filter = Filter {
        event_type: Some(event_type),
        ..Filter::default()
    };
    found(call, (kind, id), &query, &filter)
}

fn of_entity(call: &Call, of: (EntityType, Uuid), query: EventQuery, (): ()) -> Outcome<Page<Value>> {
    found(call, of, &query, &Filter::default())
}

fn filtered(
    call: &Call,
    of: (EntityType, Uuid),
    query: EventQuery,
    Body(filter): Body<Filter>,
) -> Outcome<Page<Value>> {
    found(call, of, &query, &filter)
}

fn clear(call: &Call, (kind, id): (EntityType, Uuid), _: NoQuery, (): ()) -> Result<(), Failure> {
    let devices = call.world.devices();
    if kind == EntityType::RuleNode {
        devices.clear_events(call.tenant(), RuleNodeId(id));
    }
    devices.clear_entity_events(call.tenant(), EntityId::new(kind, id));
    Ok(())
}

fn found(call: &Call, (kind, id): (EntityType, Uuid), query: &EventQuery, filter: &Filter) -> Outcome<Page<Value>> {
    let link = query.link()?;
    let devices = call.world.devices();
    let times = query.start_time.unwrap_or(i64::MIN)..=query.end_time.unwrap_or(i64::MAX);
    let of_entity = devices.entity_events(call.tenant(), EntityId::new(kind, id));
    let mut events: Vec<(i64, Found)> = of_entity
        .into_iter()
        .filter(|event| times.contains(&event.at_ms) && filter.takes_entity_event(event))
        .map(|event| (event.at_ms, Found::OfEntity(event)))
        .collect();
    if kind == EntityType::RuleNode && filter.wants(DEBUG) {
        let debugged = devices.events(call.tenant(), RuleNodeId(id)).into_iter();
        let debugged = debugged.filter(|event| times.contains(&event.at_ms) && filter.takes(event));
        events.extend(debugged.map(|event| (event.at_ms, Found::OfNode(event))));
        // Stable: both are in order already.
        events.sort_by_key(|(at_ms, _)| std::cmp::Reverse(*at_ms));
    }
    if link
        .sort
        .as_ref()
        .is_some_and(|sort| sort.order == platform::SortOrder::Ascending)
    {
        events.reverse();
    }
    let skipped = link.page.saturating_mul(link.page_size);
    let shown = events.iter().skip(skipped).take(link.page_size);
    let shown = shown.map(|(_, event)| match event {
        Found::OfEntity(event) => entity_event_json(event),
        Found::OfNode(event) => event_json(event),
    });
    Ok(Json(Page::new(shown.collect(), events.len(), &link)))
}

fn latest_input(call: &Call, node: Uuid, _: NoQuery, (): ()) -> Outcome<Option<Value>> {
    let events = call.world.devices().events(call.tenant(), RuleNodeId(node));
    let input = events.iter().find(|event| event.is_input);
    Ok(Json(input.map(|event| event_json(event)["body"].clone())))
}

enum Found {
    OfEntity(EntityEvent),
    OfNode(NodeEvent),
}

fn entity_event_json(event: &EntityEvent) -> Value {
    let body = match &event.what {
        What::Lifecycle { event, error } => {
            let mut body = json!({"server": "tidewire", "event": event, "success": error.is_none()});
            if let Some(error) = error {
                body["error"] = error.as_str().into();
            }
            body
        }
        What::Error { method, error } => json!({"server": "tidewire", "method": method, "error": error}),
        What::Statistics { messages, errors } => {
            json!({"server": "tidewire", "messagesProcessed": messages, "errorsOccurred": errors})
        }
    };
    json!({
        "id": {"id": event.id},
        "createdTime": event.at_ms,
        "tenantId": event.tenant,
        "uid": event.id,
        "type": event.what.kind(),
        "entityId": event.entity,
        "body": body,
    })
}

fn direction(event: &NodeEvent) -> &'static str {
    if event.is_input { "IN" } else { "OUT" }
}

fn event_json(event: &NodeEvent) -> Value {
    let mut body = json!({
        "server": "tidewire",
        "type": direction(event),
        "entityId": event.originator.id,
        "entityType": event.originator.kind,
        "msgId": event.id,
        "msgType": event.message_type,
        "dataType": "JSON",
        "data": event.data,
        "metadata": event.metadata,
    });
    if let Some(label) = &event.label {
        body["relationType"] = label.as_str().into();
    }
    if let Some(error) = &event.error {
        body["error"] = error.as_str().into();
    }
    json!({
        "id": {"id": event.id},
        "createdTime": event.at_ms,
        "tenantId": event.tenant,
        "uid": event.id,
        "type": DEBUG,
        "entityId": event.node.entity(),
        "body": body,
    })
}
