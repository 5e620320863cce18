//! Debug events of rule nodes. Events of other kinds are not kept: their lists are empty.

use axum::Json;
use axum::http::StatusCode;
use devices::NodeEvent;
use platform::ids::{EntityType, RuleNodeId, Uuid};
use platform::{Page, PageLink};
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
    const KEPT: &str = "What went into a rule node that is debugged and what came out of it, the newest first. The last 500 of a node \
                        are kept, until the server stops.";
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
            "By what is in them: message type, connection, data, metadata, errors.",
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
}

impl Filter {
    fn takes(&self, event: &NodeEvent) -> bool {
        let same = |wanted: &Option<String>, found: &str| {
            let wanted = wanted.as_deref().filter(|wanted| !wanted.is_empty());
            wanted.is_none_or(|wanted| wanted == found)
        };
        let has = |wanted: &Option<String>, found: &str| {
            let wanted = wanted.as_deref().unwrap_or_default().to_lowercase();
            found.to_lowercase().contains(&wanted)
        };
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
    if kind == EntityType::RuleNode {
        call.world.devices().clear_events(call.tenant(), RuleNodeId(id));
    }
    Ok(())
}

fn found(call: &Call, (kind, id): (EntityType, Uuid), query: &EventQuery, filter: &Filter) -> Outcome<Page<Value>> {
    let link = query.link()?;
    let is_wanted = kind == EntityType::RuleNode && filter.event_type.as_deref().is_none_or(|kind| kind == DEBUG);
    let events = match is_wanted {
        true => call.world.devices().events(call.tenant(), RuleNodeId(id)),
        false => Vec::new(),
    };
    let times = query.start_time.unwrap_or(i64::MIN)..=query.end_time.unwrap_or(i64::MAX);
    let mut events: Vec<NodeEvent> = events
        .into_iter()
        .filter(|event| times.contains(&event.at_ms) && filter.takes(event))
        .collect();
    if link
        .sort
        .as_ref()
        .is_some_and(|sort| sort.order == platform::SortOrder::Ascending)
    {
        events.reverse();
    }
    Ok(Json(page(&events, &link)))
}

fn page(events: &[NodeEvent], link: &PageLink) -> Page<Value> {
    let skipped = link.page.saturating_mul(link.page_size);
    let shown = events.iter().skip(skipped).take(link.page_size).map(event_json);
    Page::new(shown.collect(), events.len(), link)
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
