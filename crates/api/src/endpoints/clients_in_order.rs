//! Clients sorted. A page is the first of all sessions that stand behind the last of the page before, so that it costs a look at each
//! session however far down the list it is, and memory for a page only. The cursor holds that last place, and which order it is of.

use axum::Json;
use base64ct::{Base64UrlUnpadded, Encoding};
use broker::{ClientFilter, ClientOrder, ClientPlace, ClientSort, ClientView, Now};
use schemars::JsonSchema;
use serde::Deserialize;

use super::clients::{Client, ListenerNames, view};
use crate::app::App;
use crate::paging::{self, Page};
use crate::problem::Problem;

/// What clients are sorted by.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ClientSort")]
pub enum SortBy {
    ClientId,
    /// When the connection began, or ended for those without.
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
    app: &App,
    filter: &ClientFilter,
    order: ClientOrder,
    cursor: Option<&str>,
    limit: usize,
) -> Result<Json<Page<Client>>, Problem> {
    let after = cursor.map(|text| parse(order, text)).transpose()?;
    let mut first: Vec<(ClientPlace, ClientView, Now)> = Vec::new();
    let mut from = Some(0);
    for _ in 0..paging::VISITS_MAX {
        let Some(slot) = from else {
            return Ok(cut(app, order, first, limit));
        };
        let (filter, after) = (filter.clone(), after.clone());
        // One more than the page has, to know whether another follows.
        let look = move |shard: &mut broker::Shard, now: Now| {
            let (found, next) = shard.clients_in_order(&filter, order, after.as_ref(), slot, limit + 1);
            (found, next, now)
        };
        from = None;
        for (found, next, now) in app.on_all(look).await? {
            first.extend(found.into_iter().map(|view| (order.place(&view), view, now)));
            from = from.max(next);
        }
        first.sort_by(|a, b| order.compare(&a.0, &b.0));
        first.truncate(limit + 1);
    }
    match from {
        None => Ok(cut(app, order, first, limit)),
        Some(_) => Err(Problem::bad_request("there are too many sessions to sort")
            .at("sort")
            .expected("none: in no particular order there are pages of them all")),
    }
}

fn cut(
    app: &App,
    order: ClientOrder,
    mut first: Vec<(ClientPlace, ClientView, Now)>,
    limit: usize,
) -> Json<Page<Client>> {
    let has_more = first.len() > limit;
    first.truncate(limit);
    let cursor = first.last().filter(|_| has_more).map(|last| to_text(order, &last.0));
    let listeners = ListenerNames::of(app);
    let items = first.into_iter().map(|(_, client, now)| view(client, &listeners, now));
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

fn parse(order: ClientOrder, text: &str) -> Result<ClientPlace, Problem> {
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

/// Tells the cursors of one order from those of another.
fn tag(order: ClientOrder) -> u8 {
    order.by as u8 * 2 + u8::from(order.is_descending)
}
