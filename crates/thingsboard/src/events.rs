//! Events of rule chains, rule nodes and devices: lifecycle, errors, statistics, and debug events of rule nodes. Events
//! of other types are not stored; their lists are empty.

use axum::Json;
use axum::http::StatusCode;
use devices::{EntityEvent, EventDetail, NodeEvent};
use platform::PageData;
use platform::ids::{EntityId, EntityType, RuleNodeId, Uuid};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::ApiCall;
use super::failure::ThingsboardError;
use super::lists::list_query;
use super::operation::{HandlerResult, JsonBody, NoQuery, get, post};
use crate::services::Endpoint;

const TAG: &str = "Events";
const DEBUG: &str = "DEBUG_RULE_NODE";

pub fn endpoints() -> Vec<Endpoint> {
    const EVENTS_DESCRIPTION: &str = "Newest first. `LC_EVENT` of a rule chain or rule node: it was started, changed or stopped. `ERROR` of a \
                        device: a message failed. `STATS` of a rule node: numbers of messages and failures per hour. The last 50 events \
                        of each type are stored per entity. `DEBUG_RULE_NODE`: input and output of a rule node in debug mode, the last 500.";
    vec![
        get(
            "/api/events/{entityType}/{entityId}/{eventType}",
            "list_events_of_type",
            Authorities::TENANT_ADMIN,
            of_type,
        )
        .describe("List events of one type", EVENTS_DESCRIPTION),
        get(
            "/api/events/{entityType}/{entityId}",
            "list_events",
            Authorities::TENANT_ADMIN,
            of_entity,
        )
        .describe("Events", EVENTS_DESCRIPTION),
        post(
            "/api/events/{entityType}/{entityId}",
            "find_events",
            Authorities::TENANT_ADMIN,
            filtered,
        )
        .describe(
            "Find events",
            "By their contents: message type, connection, data, metadata, errors; event and status.",
        ),
        get(
            "/api/ruleNode/{ruleNodeId}/debugIn",
            "get_latest_debug_input",
            Authorities::TENANT_ADMIN,
            latest_input,
        )
        .describe(
            "Read the last input of a rule node",
            "For a node in debug mode: its newest event with direction IN, to test a script with it. Empty if there is none.",
        ),
        post(
            "/api/events/{entityType}/{entityId}/clear",
            "clear_events",
            Authorities::TENANT_ADMIN,
            clear,
        )
        .describe("Delete events", "All events of the entity."),
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
    /// Only events at or after this time, in milliseconds.
    start_time: Option<i64>,
    /// Only events at or before this time, in milliseconds.
    end_time: Option<i64>,
});

/// ThingsBoard's `RuleNodeDebugEventFilter`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DebugEventFilter {
    event_type: Option<String>,
    msg_direction_type: Option<String>,
    entity_id: Option<String>,
    msg_type: Option<String>,
    relation_type: Option<String>,
    data_search: Option<String>,
    metadata_search: Option<String>,
    is_error: Option<bool>,
    error_str: Option<String>,
    /// For `LC_EVENT`. The status is `Success` or `ThingsboardError`.
    event: Option<String>,
    status: Option<String>,
    /// For `ERROR`.
    method: Option<String>,
    /// For `STATS`: minimum (inclusive) and maximum (exclusive).
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

fn is_in_range(found: u64, min: Option<u64>, max: Option<u64>) -> bool {
    min.is_none_or(|min| found >= min) && max.is_none_or(|max| found < max)
}

impl DebugEventFilter {
    fn includes_type(&self, kind: &str) -> bool {
        same(&self.event_type, kind)
    }

    fn takes_entity_event(&self, event: &EntityEvent) -> bool {
        self.includes_type(event.what.kind())
            && match &event.what {
                EventDetail::Lifecycle { event, error } => {
                    let status = if error.is_none() { "Success" } else { "Failure" };
                    same(&self.event, event)
                        && same(&self.status, status)
                        && has(&self.error_str, error.as_deref().unwrap_or_default())
                }
                EventDetail::Error { method, error } => has(&self.method, method) && has(&self.error_str, error),
                EventDetail::Statistics { messages, errors } => {
                    is_in_range(*messages, self.min_messages_processed, self.max_messages_processed)
                        && is_in_range(*errors, self.min_errors_occurred, self.max_errors_occurred)
                }
            }
    }

    fn matches(&self, event: &NodeEvent) -> bool {
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
    call: &ApiCall,
    (kind, id, event_type): (EntityType, Uuid, String),
    query: EventQuery,
    (): (),
) -> HandlerResult<PageData<Value>> {
    let filter = DebugEventFilter {
        event_type: Some(event_type),
        ..DebugEventFilter::default()
    };
    find_events(call, (kind, id), &query, &filter)
}

fn of_entity(call: &ApiCall, of: (EntityType, Uuid), query: EventQuery, (): ()) -> HandlerResult<PageData<Value>> {
    find_events(call, of, &query, &DebugEventFilter::default())
}

fn filtered(
    call: &ApiCall,
    of: (EntityType, Uuid),
    query: EventQuery,
    JsonBody(filter): JsonBody<DebugEventFilter>,
) -> HandlerResult<PageData<Value>> {
    find_events(call, of, &query, &filter)
}

fn clear(call: &ApiCall, (kind, id): (EntityType, Uuid), _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let devices = call.platform_access.devices();
    if kind == EntityType::RuleNode {
        devices.clear_events(call.tenant(), RuleNodeId(id));
    }
    devices.clear_entity_events(call.tenant(), EntityId::new(kind, id));
    Ok(())
}

fn find_events(
    call: &ApiCall,
    (kind, id): (EntityType, Uuid),
    query: &EventQuery,
    filter: &DebugEventFilter,
) -> HandlerResult<PageData<Value>> {
    let link = query.link()?;
    let devices = call.platform_access.devices();
    let times = query.start_time.unwrap_or(i64::MIN)..=query.end_time.unwrap_or(i64::MAX);
    let of_entity = devices.entity_events(call.tenant(), EntityId::new(kind, id));
    let mut events: Vec<(i64, FoundEvent)> = of_entity
        .into_iter()
        .filter(|event| times.contains(&event.at_ms) && filter.takes_entity_event(event))
        .map(|event| (event.at_ms, FoundEvent::Entity(event)))
        .collect();
    if kind == EntityType::RuleNode && filter.includes_type(DEBUG) {
        let debugged = devices.events(call.tenant(), RuleNodeId(id)).into_iter();
        let debugged = debugged.filter(|event| times.contains(&event.at_ms) && filter.matches(event));
        events.extend(debugged.map(|event| (event.at_ms, FoundEvent::RuleNode(event))));
        // A stable sort, because both lists are already sorted.
        events.sort_by_key(|(at_ms, _)| std::cmp::Reverse(*at_ms));
    }
    if link
        .sort
        .as_ref()
        .is_some_and(|sort| sort.order == platform::SortDirection::Ascending)
    {
        events.reverse();
    }
    let skipped = link.page.saturating_mul(link.page_size);
    let shown = events.iter().skip(skipped).take(link.page_size);
    let shown = shown.map(|(_, event)| match event {
        FoundEvent::Entity(event) => entity_event_json(event),
        FoundEvent::RuleNode(event) => event_json(event),
    });
    Ok(Json(PageData::new(shown.collect(), events.len(), &link)))
}

fn latest_input(call: &ApiCall, node: Uuid, _: NoQuery, (): ()) -> HandlerResult<Option<Value>> {
    let events = call.platform_access.devices().events(call.tenant(), RuleNodeId(node));
    let input = events.iter().find(|event| event.is_input);
    Ok(Json(input.map(|event| event_json(event)["body"].clone())))
}

enum FoundEvent {
    Entity(EntityEvent),
    RuleNode(NodeEvent),
}

fn entity_event_json(event: &EntityEvent) -> Value {
    let body = match &event.what {
        EventDetail::Lifecycle { event, error } => {
            let mut body = json!({"server": "tidewire", "event": event, "success": error.is_none()});
            if let Some(error) = error {
                body["error"] = error.as_str().into();
            }
            body
        }
        EventDetail::Error { method, error } => json!({"server": "tidewire", "method": method, "error": error}),
        EventDetail::Statistics { messages, errors } => {
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
