//! Queues of rule chains: the handling of failed messages, and statistics.

use axum::Json;
use platform::ids::{QueueId, Uuid};
use platform::model::{Queue, QueueStats};
use platform::{PageData, PageLink};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::lists::{self, list_query, non_empty};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

list_query!(QueueQuery {
    /// TB_RULE_ENGINE. Other services have no queues.
    service_type: Option<String>,
});

list_query!(QueueStatsQuery {
    /// IDs, separated by commas. Returns these as a list instead of a page.
    queue_stats_ids: Option<String>,
});

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ServiceTypeQuery {
    /// TB_RULE_ENGINE.
    service_type: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/queues", "list_queues", Authorities::ADMINS, list)
            .describe(
                "List queues",
                "Main, which is used if a device profile names no other queue, HighPriority, SequentialByOriginator, and created queues.",
            )
            .returns_json("A page of queues."),
        get("/api/queues/{queueId}", "get_queue", Authorities::ADMINS, read)
            .describe("Read a queue", "With its strategies.")
            .returns_json("The queue."),
        get("/api/queues/name/{queueName}", "get_queue_by_name", Authorities::ADMINS, find_queue)
            .describe("Read a queue by its name", "With its strategies.")
            .returns_json("The queue."),
        post("/api/queues", "save_queue", Authorities::SYS_ADMIN, save)
            .describe(
                "Create or change a queue",
                "The processing strategy determines which failed messages are retried, how often, and after how many seconds. The submit strategy \
                 determines which messages wait for them. Partitions, poll intervals and timeouts are stored but not used.",
            )
            .returns_json("The queue."),
        delete("/api/queues/{queueId}", "delete_queue", Authorities::SYS_ADMIN, remove)
            .describe(
                "Delete a queue",
                "Fails for Main, and for queues that device profiles use. HighPriority and SequentialByOriginator are created again with their defaults.",
            )
            .returns_empty("Deleted."),
        get("/api/queueStats", "list_queue_stats", Authorities::TENANT_ADMIN, list_stats)
            .describe(
                "List queue statistics entities",
                "One for each queue in which the tenant had messages. Their time series contain successful and failed messages per minute.",
            )
            .returns_json("A page; with `queueStatsIds` a list."),
        get("/api/queueStats/{queueStatsId}", "get_queue_stats", Authorities::TENANT_ADMIN, read_stats)
            .describe("Read a queue statistics entity", "By its ID.")
            .returns_json("The queue and the node."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Queues")).collect()
}

fn list(call: &ApiCall, (): (), query: QueueQuery, (): ()) -> HandlerResult<PageData<Queue>> {
    let link: PageLink = query.link()?;
    let mut all = match has_queues(query.service_type.as_deref()) {
        true => call.entities().queues(call.now_ms)?,
        false => Vec::new(),
    };
    if let Some(text) = query.text_search.as_deref() {
        let text = text.to_lowercase();
        all.retain(|queue| queue.name.to_lowercase().contains(&text));
    }
    let total = all.len();
    let shown = all.into_iter().skip(link.page * link.page_size).take(link.page_size);
    Ok(Json(PageData::new(shown.collect(), total, &link)))
}

fn has_queues(service: Option<&str>) -> bool {
    service.is_none_or(|service| service == "TB_RULE_ENGINE")
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Queue> {
    // Queues belong to all tenants.
    Ok(Json(call.entities().get(id)?))
}

fn find_queue(call: &ApiCall, name: String, _: NoQuery, (): ()) -> HandlerResult<Queue> {
    let all = call.entities().queues(call.now_ms)?;
    let found = all.into_iter().find(|queue| queue.name == name);
    found.map(Json).ok_or_else(ThingsboardError::not_found)
}

fn save(call: &ApiCall, (): (), query: ServiceTypeQuery, JsonBody(queue): JsonBody<Queue>) -> HandlerResult<Queue> {
    if !has_queues(query.service_type.as_deref()) {
        return Err(ThingsboardError::bad_request(
            "serviceType: expected TB_RULE_ENGINE; other services have no queues",
        ));
    }
    // The predefined queues are stored when they are first read.
    call.entities().queues(call.now_ms)?;
    let saved = call.entities().save_queue(queue, call.now_ms)?;
    call.platform().reload_queues()?;
    Ok(Json(saved))
}

fn list_stats(call: &ApiCall, (): (), query: QueueStatsQuery, (): ()) -> HandlerResult<Value> {
    let Some(ids) = non_empty(query.queue_stats_ids.clone()) else {
        let Json(page) = lists::page::<QueueStats>(call, &call.own_entities(), &query.link()?)?;
        return Ok(Json(json!(page)));
    };
    let Json(found) = lists::by_ids::<QueueStats>(call, &ids, "queue statistics")?;
    Ok(Json(json!(found)))
}

fn read_stats(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<QueueStats> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    call.entity::<Queue>(id, Verb::Delete)?;
    call.entities().delete_queue(QueueId(id))?;
    Ok(call.platform().reload_queues()?)
}
