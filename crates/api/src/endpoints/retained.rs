//! Retained messages: list or delete by filter, read one, delete one.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use broker::retained::ScanCursor;
use broker::{RetainedView, ShardId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::paging::{self, Page};
use web::problem::HttpProblem;
use web::query::Params;

use crate::app::Endpoint;
use crate::message_body::{MessageProperties, PayloadEncoding};
use crate::shards::Shards;

/// Bytes of each payload in a list.
const PREVIEW_BYTES: usize = 256;
/// Messages that a shard deletes in one visit.
const DELETED_AT_ONCE: usize = 500;

/// A retained message.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RetainedMessage {
    pub topic: String,
    /// The payload. A list contains at most its first 256 bytes.
    pub payload: String,
    pub payload_encoding: PayloadEncoding,
    /// Size of the whole payload.
    pub payload_bytes: usize,
    #[schemars(range(max = 2))]
    pub qos: u8,
    pub properties: MessageProperties,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetainedQuery {
    /// Topic filter. Default: `#`, which does not match topics that begin with `$`; for a role in a namespace, all
    /// topics of the namespace.
    filter: Option<String>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetainedToDelete {
    /// Topic filter. `#` does not match topics that begin with `$`.
    filter: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct DeletedRetained {
    deleted: usize,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ONE: &str = "/api/v1/retained/{*topic}";
    const TOPIC: &str = "Percent-encoded; slashes may stay unencoded.";
    vec![
        Endpoint::get("/api/v1/retained", "retained_messages", RequiredAccess::Viewer, list)
            .tag("Retained messages")
            .in_namespace()
            .describe(
                "Retained messages by filter, page by page",
                "Sorted by topic within each shard.",
            )
            .query::<RetainedQuery>()
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<Page<RetainedMessage>>("A page."),
        Endpoint::delete(
            "/api/v1/retained",
            "delete_retained_messages",
            RequiredAccess::Operator,
            delete_all,
        )
        .tag("Retained messages")
        .in_namespace()
        .describe(
            "Delete the retained messages that match a filter",
            "Publishes nothing. Works in steps: messages that are retained while it runs may be deleted or stay.",
        )
        .query::<RetainedToDelete>()
        .fails(StatusCode::UNPROCESSABLE_ENTITY)
        .returns::<DeletedRetained>("Number of deleted messages."),
        Endpoint::get(ONE, "retained_message", RequiredAccess::Viewer, one)
            .tag("Retained messages")
            .in_namespace()
            .describe("Retained message of a topic", "With its whole payload.")
            .path_parameter("topic", TOPIC)
            .returns::<RetainedMessage>("The message."),
        Endpoint::delete(ONE, "delete_retained_message", RequiredAccess::Operator, delete)
            .tag("Retained messages")
            .in_namespace()
            .describe("Delete the retained message of a topic", "Publishes nothing.")
            .path_parameter("topic", TOPIC)
            .returns_nothing("Deleted."),
    ]
}

async fn list(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Params(query): Params<RetainedQuery>,
) -> Result<Json<Page<RetainedMessage>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let filter = query
        .filter
        .unwrap_or_else(|| login.topic_prefix().unwrap_or_default() + "#");
    check(&login, &filter)?;
    paging::collect(shards.count(), query.cursor.as_deref(), limit, |place, wanted| {
        let (shards, filter, login) = (&shards, filter.clone(), &login);
        async move {
            let cursor = (!place.within.is_empty()).then(|| ScanCursor::from_bytes(&place.within));
            let scan = move |shard: &mut broker::Shard, now| {
                shard.inspect().retained(now, &filter, cursor, wanted, PREVIEW_BYTES)
            };
            let (found, next) = shards.on_shard(ShardId(place.shard), scan).await?;
            // `a/#` also matches the topic `a`.
            let found = found.into_iter().filter(|message| login.has_topic(&message.topic));
            Ok((found.map(view).collect(), next.map(|cursor| cursor.as_bytes().into())))
        }
    })
    .await
}

fn check(login: &AuthenticatedUser, filter: &str) -> Result<(), HttpProblem> {
    mqtt::validate_filter(filter)
        .map_err(|error| HttpProblem::invalid("filter", error.to_string()).expected("a topic filter"))?;
    login.check_topic(filter)
}

async fn delete_all(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Params(query): Params<RetainedToDelete>,
) -> Result<Json<DeletedRetained>, HttpProblem> {
    check(&login, &query.filter)?;
    let mut deleted = 0;
    for shard in 0..shards.count() {
        let mut cursor = None;
        loop {
            let (filter, login) = (query.filter.clone(), login.clone());
            let delete = move |shard: &mut broker::Shard, now| {
                let (found, next) = shard.inspect().retained(now, &filter, cursor, DELETED_AT_ONCE, 0);
                let gone = found
                    .iter()
                    .filter(|one| login.has_topic(&one.topic) && shard.operator(now).delete_retained(&one.topic))
                    .count();
                (gone, next)
            };
            let (gone, next) = shards.on_shard(ShardId(shard), delete).await?;
            deleted += gone;
            if next.is_none() {
                break;
            }
            cursor = next;
        }
    }
    Ok(Json(DeletedRetained { deleted }))
}

async fn one(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(topic): Path<String>,
) -> Result<Json<RetainedMessage>, HttpProblem> {
    login.check_topic(&topic)?;
    let wanted = topic.clone();
    let found = shards
        .on_all_shards(move |shard, now| shard.inspect().retained_message(now, &wanted))
        .await?;
    let found = found.into_iter().flatten().next().ok_or_else(|| none(&topic))?;
    Ok(Json(view(found)))
}

async fn delete(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(topic): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    login.check_topic(&topic)?;
    let wanted = topic.clone();
    let deleted = shards
        .on_all_shards(move |shard, now| shard.operator(now).delete_retained(&wanted))
        .await?;
    match deleted.contains(&true) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(none(&topic)),
    }
}

fn none(topic: &str) -> HttpProblem {
    HttpProblem::not_found(format!("topic {topic:?} has no retained message"))
}

fn view(message: RetainedView) -> RetainedMessage {
    let mut shown = message.payload;
    if shown.len() < message.payload_bytes {
        cut_before_partial_character(&mut shown);
    }
    let (payload, payload_encoding) = PayloadEncoding::encode(shown);
    RetainedMessage {
        topic: message.topic,
        payload,
        payload_encoding,
        payload_bytes: message.payload_bytes,
        qos: message.qos as u8,
        properties: MessageProperties::from_wire(&message.properties, message.expires_in_s),
    }
}

/// Keeps the preview of a UTF-8 payload valid.
fn cut_before_partial_character(bytes: &mut Vec<u8>) {
    if let Err(error) = std::str::from_utf8(bytes)
        && error.error_len().is_none()
    {
        bytes.truncate(error.valid_up_to());
    }
}
