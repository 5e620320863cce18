//! Sorted lists of clients.
//!
//! A page consists of the first sessions after the last session of the previous page. Each page reads every session,
//! and needs memory only for its own items. The cursor contains the sort value of the last session and the sort order.

use axum::Json;
use base64ct::{Base64UrlUnpadded, Encoding};
use broker::{ClientFilter, ClientOrder, ClientPlace, ClientSort, ClientView, Now, SessionSlot};
use schemars::JsonSchema;
use serde::Deserialize;
use web::paging::{self, Page};
use web::problem::HttpProblem;

use super::clients::{ApiClient, ListenerNames, view};
use crate::shards::Shards;

/// Sort key of clients.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ClientSort")]
pub enum SortBy {
    ClientId,
    /// Start of the connection; for disconnected clients, its end.
    Since,
    Subscriptions,
    Queued,
    MessagesReceived,
    MessagesSent,
    Dropped,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SortOrder {
    Asc,
    Desc,
}

impl SortBy {
    pub fn with(self, order: Option<SortOrder>) -> ClientOrder {
        ClientOrder {
            by: match self {
                SortBy::ClientId => ClientSort::ClientId,
                SortBy::Since => ClientSort::Since,
                SortBy::Subscriptions => ClientSort::Subscriptions,
                SortBy::Queued => ClientSort::Queued,
                SortBy::MessagesReceived => ClientSort::MessagesReceived,
                SortBy::MessagesSent => ClientSort::MessagesSent,
                SortBy::Dropped => ClientSort::Dropped,
            },
            is_descending: matches!(order, Some(SortOrder::Desc)),
        }
    }
}

pub async fn page(
    shards: &Shards,
    listeners: &ListenerNames,
    filter: &ClientFilter,
    order: ClientOrder,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Json<Page<ApiClient>>, HttpProblem> {
    let after = cursor.map(|text| parse(order, text)).transpose()?;
    let mut first: Vec<(ClientPlace, ClientView, Now)> = Vec::new();
    let mut from = Some(SessionSlot::FIRST);
    for _ in 0..paging::VISITS_MAX {
        let Some(slot) = from else {
            return Ok(page_of(listeners, order, first, limit));
        };
        let (filter, after) = (filter.clone(), after.clone());
        // One more than the page needs, to find out whether another page follows.
        let look = move |shard: &mut broker::Shard, now: Now| {
            let (found, next) = shard
                .inspect()
                .clients_in_order(&filter, order, after.as_ref(), slot, limit + 1);
            (found, next, now)
        };
        from = None;
        for (found, next, now) in shards.on_all_shards(look).await? {
            first.extend(found.into_iter().map(|view| (order.place(&view), view, now)));
            from = from.max(next);
        }
        first.sort_by(|a, b| order.compare(&a.0, &b.0));
        first.truncate(limit + 1);
    }
    match from {
        None => Ok(page_of(listeners, order, first, limit)),
        Some(_) => Err(HttpProblem::bad_request("too many sessions to sort")
            .at("sort")
            .expected("no `sort`: the unordered list has pages of all sessions")),
    }
}

fn page_of(
    listeners: &ListenerNames,
    order: ClientOrder,
    mut first: Vec<(ClientPlace, ClientView, Now)>,
    limit: usize,
) -> Json<Page<ApiClient>> {
    let has_more = first.len() > limit;
    first.truncate(limit);
    let cursor = first.last().filter(|_| has_more).map(|last| to_text(order, &last.0));
    let items = first.into_iter().map(|(_, client, now)| view(client, listeners, now));
    Json(Page {
        items: items.collect(),
        cursor,
    })
}

fn to_text(order: ClientOrder, place: &ClientPlace) -> String {
    let mut bytes = vec![tag(order)];
    bytes.extend_from_slice(&place.value.to_be_bytes());
    bytes.extend_from_slice(place.client_id.as_bytes());
    Base64UrlUnpadded::encode_string(&bytes)
}

fn parse(order: ClientOrder, text: &str) -> Result<ClientPlace, HttpProblem> {
    let place = || {
        let bytes = Base64UrlUnpadded::decode_vec(text).ok()?;
        let bytes = bytes.strip_prefix(&[tag(order)])?;
        let (value, client_id) = bytes.split_first_chunk::<8>()?;
        Some(ClientPlace {
            value: u64::from_be_bytes(*value),
            client_id: String::from_utf8(client_id.into()).ok()?,
        })
    };
    place().ok_or_else(paging::malformed)
}

/// Identifies the sort order of a cursor.
fn tag(order: ClientOrder) -> u8 {
    order.by as u8 * 2 + u8::from(order.is_descending)
}
