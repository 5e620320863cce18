//! Queues of rule chains: what becomes of messages that fail, and how many did.

use axum::Json;
use platform::ids::{QueueId, Uuid};
use platform::model::{Queue, QueueStats};
use platform::{Page, PageLink};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Verb};
use super::failure::Failure;
use super::lists::{self, comma_separated, filled, list_query};
use super::operation::{Body, FromParameter, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

const IDS_MAX: usize = 1_000;

list_query!(QueueQuery {
    /// TB_RULE_ENGINE; other services have no queues.
    service_type: Option<String>,
});

list_query!(QueueStatsQuery {
    /// Comma separated: these, as a list in place of a page.
    queue_stats_ids: Option<String>,
});

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Service {
    /// TB_RULE_ENGINE.
    service_type: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/queues", "list_queues", Who::ADMINS, list)
            .says(
                "List queues",
                "Main, which messages of devices go to whose profile names no other, HighPriority, SequentialByOriginator, and those that were made.",
            )
            .returns_json("A page of queues."),
        get("/api/queues/{queueId}", "get_queue", Who::ADMINS, read)
            .says("Read a queue", "With its strategies.")
            .returns_json("The queue."),
        get("/api/queues/name/{queueName}", "get_queue_by_name", Who::ADMINS, named)
            .says("Read a queue by its name", "With its strategies.")
            .returns_json("The queue."),
        post("/api/queues", "save_queue", Who::SYS_ADMIN, save)
            .says(
                "Create or change a queue",
                "The processing strategy says which messages that failed are tried again, how often, and after which pause in seconds; the submit strategy \
                 which others wait for them. Numbers of partitions, poll intervals and timeouts are kept, but nothing here depends on them.",
            )
            .returns_json("The queue."),
        delete("/api/queues/{queueId}", "delete_queue", Who::SYS_ADMIN, remove)
            .says(
                "Delete a queue",
                "Not Main, and none that device profiles name. HighPriority and SequentialByOriginator come back as they were at first.",
            )
            .returns_empty("Deleted."),
        get("/api/queueStats", "list_queue_stats", Who::TENANT_ADMIN, list_stats)
            .says(
                "List what statistics of queues are recorded at",
                "One for each queue in which the tenant had messages. Their time series have how many went well and failed, by the minute.",
            )
            .returns_json("A page; with `queueStatsIds` a list."),
        get("/api/queueStats/{queueStatsId}", "get_queue_stats", Who::TENANT_ADMIN, read_stats)
            .says("Read what statistics of a queue are recorded at", "By its identifier.")
            .returns_json("Its queue and node."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Queues")).collect()
}

fn list(call: &Call, (): (), query: QueueQuery, (): ()) -> Outcome<Page<Queue>> {
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
    Ok(Json(Page::new(shown.collect(), total, &link)))
}

fn has_queues(service: Option<&str>) -> bool {
    service.is_none_or(|service| service == "TB_RULE_ENGINE")
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Queue> {
    // They are of all tenants.
    Ok(Json(call.entities().get(id)?))
}

fn named(call: &Call, name: String, _: NoQuery, (): ()) -> Outcome<Queue> {
    let all = call.entities().queues(call.now_ms)?;
    let found = all.into_iter().find(|queue| queue.name == name);
    found.map(Json).ok_or_else(Failure::not_found)
}

fn save(call: &Call, (): (), query: Service, Body(queue): Body<Queue>) -> Outcome<Queue> {
    if !has_queues(query.service_type.as_deref()) {
        return Err(Failure::bad_request(
            "serviceType: expected TB_RULE_ENGINE; other services have no queues",
        ));
    }
    // Those that are always there are stored when they are looked at first.
    call.entities().queues(call.now_ms)?;
    let saved = call.entities().save_queue(queue, call.now_ms)?;
    call.platform().reload_queues()?;
    Ok(Json(saved))
}

fn list_stats(call: &Call, (): (), query: QueueStatsQuery, (): ()) -> Outcome<Value> {
    let Some(ids) = filled(query.queue_stats_ids.clone()) else {
        let Json(page) = lists::page::<QueueStats>(call, &call.own(), &query.link()?)?;
        return Ok(Json(json!(page)));
    };
    let ids = comma_separated(&ids);
    if ids.len() > IDS_MAX {
        return Err(Failure::bad_request(format!("More than {IDS_MAX} identifiers")));
    }
    let mut found: Vec<QueueStats> = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(call.entity(Uuid::from_parameter(id)?, Verb::Read).ok());
    }
    Ok(Json(json!(found)))
}

fn read_stats(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<QueueStats> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    call.entity::<Queue>(id, Verb::Delete)?;
    call.entities().delete_queue(QueueId(id))?;
    Ok(call.platform().reload_queues()?)
}
