//! Clients: sessions and their connections. List, look at, disconnect; and who was turned away.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use broker::{ClientFilter, ClientView, Now, Refusal, ShardId, WillView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::clients_in_order::{self, SortBy, SortOrder};
use super::stats::TransportView;
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::message_body::{MessageProperties, PayloadEncoding, UserProperty};
use crate::packet_fields;
use crate::paging::{self, Page, Place};
use crate::problem::Problem;
use crate::query::Params;

/// A session and, if it has one, its connection.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Client {
    pub client_id: String,
    pub user_name: Option<String>,
    /// Of the present or last connection.
    pub address: SocketAddr,
    pub connected: bool,
    /// `null` without a connection.
    pub transport: Option<TransportView>,
    /// Name of the listener.
    pub listener: Option<String>,
    /// `3.1`, `3.1.1` or `5.0`.
    pub protocol_version: String,
    pub is_bridge: bool,
    pub clean_start: bool,
    pub keep_alive_s: u16,
    /// 4294967295 never expires.
    pub session_expiry_interval_s: u32,
    pub receive_maximum: u16,
    pub created_at_unix_ms: u64,
    pub connected_at_unix_ms: u64,
    pub disconnected_at_unix_ms: Option<u64>,
    pub subscriptions: usize,
    /// Sent and not acknowledged.
    pub inflight: usize,
    pub queued: usize,
    pub queued_bytes: usize,
    /// QoS 2 messages received whose PUBREL has not come.
    pub awaiting_release: usize,
    /// Bytes that wait for the socket.
    pub output_backlog_bytes: usize,
    pub messages_received: u64,
    pub bytes_received: u64,
    pub messages_sent: u64,
    pub bytes_sent: u64,
    pub has_will: bool,
    /// Why its last connection ended.
    pub last_disconnect_reason: Option<&'static str>,
    /// Messages it did not get (or could not publish), by reason.
    pub drops: Vec<DropCount>,
    pub last_drop: Option<LastDrop>,
}

/// A client with what is too much for a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ClientDetails {
    #[serde(flatten)]
    pub client: Client,
    /// What is published for it when its connection ends without DISCONNECT.
    pub will: Option<Will>,
    /// Maximum Packet Size of CONNECT; `null`: it takes all, or is not connected.
    pub maximum_packet_size: Option<u32>,
    /// Of CONNECT, the first 4096 bytes of them, while it is connected.
    pub user_properties: Vec<UserProperty>,
    /// Of the certificate that it showed, while it is connected.
    pub certificate_common_name: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Will {
    pub topic: String,
    #[schemars(range(max = 2))]
    pub qos: u8,
    pub retain: bool,
    /// Seconds between the end of the connection and the publication.
    pub delay_s: u32,
    /// The first 4096 bytes.
    pub payload: String,
    pub encoding: PayloadEncoding,
    /// Of all of it.
    pub payload_bytes: usize,
    pub properties: MessageProperties,
}

/// Of a will's payload.
const WILL_BYTES_MAX: usize = 4096;

#[derive(Debug, Serialize, JsonSchema)]
pub struct DropCount {
    pub reason: &'static str,
    pub messages: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct LastDrop {
    pub reason: &'static str,
    pub at_unix_ms: u64,
}

/// A connection that was turned away.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RefusedClient {
    pub at_unix_ms: u64,
    pub client_id: String,
    pub user_name: Option<String>,
    pub address: SocketAddr,
    pub transport: TransportView,
    /// As it was told to the client.
    pub reason: &'static str,
    pub reason_code: u8,
    /// What only the operator is told.
    pub because: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientsQuery {
    /// Part of the client id, ignoring case.
    client_id: Option<String>,
    /// Part of the user name, ignoring case.
    user_name: Option<String>,
    /// Part of the address, such as `10.1.`.
    address: Option<String>,
    /// Only those that are (`true`) or are not (`false`) connected.
    connected: Option<bool>,
    /// What they are sorted by; each page looks at all sessions then.
    sort: Option<SortBy>,
    /// Of `sort`; `asc` unless given.
    order: Option<SortOrder>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KickQuery {
    /// Ends the session, too, with its subscriptions and queue.
    #[serde(default)]
    end_session: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusedQuery {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ID: &str = "Percent-encoded, also its slashes.";
    vec![
        Endpoint::get("/api/v1/clients", "clients", clients)
            .tag("Clients")
            .says(
                "Clients, page by page",
                "In no particular order without `sort`. Clients that come and go meanwhile may be missed; others are listed once, unless what they are \
                 sorted by has changed between two pages.",
            )
            .query::<ClientsQuery>()
            .returns::<Page<Client>>("A page."),
        Endpoint::get("/api/v1/clients/{client_id}", "client", client)
            .tag("Clients")
            .says(
                "One client",
                "With its counters, its will, and why it last lost a message or its connection.",
            )
            .path_parameter("client_id", ID)
            .returns::<ClientDetails>("The client."),
        Endpoint::delete("/api/v1/clients/{client_id}", "kick_client", kick)
            .tag("Clients")
            .says(
                "Disconnect a client",
                "MQTT 5 clients are told Administrative action (0x98). The session stays unless `end_session` is set.",
            )
            .path_parameter("client_id", ID)
            .query::<KickQuery>()
            .returns_nothing("It is disconnected."),
        Endpoint::get("/api/v1/refused-clients", "refused_clients", refused)
            .tag("Clients")
            .says("Who was turned away last", "Newest first; each shard remembers 256.")
            .query::<RefusedQuery>()
            .returns::<Vec<RefusedClient>>("Refused connections."),
    ]
}

async fn clients(State(app): State<App>, Params(query): Params<ClientsQuery>) -> Result<Json<Page<Client>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let filter = ClientFilter {
        client_id: query.client_id,
        user_name: query.user_name,
        address: query.address,
        is_connected: query.connected,
    };
    if let Some(sort) = query.sort {
        let order = sort.with(query.order);
        return clients_in_order::page(&app, &filter, order, query.cursor.as_deref(), limit).await;
    }
    if query.order.is_some() {
        return Err(Problem::bad_request("an order of nothing")
            .at("order")
            .expected("`sort` beside it"));
    }
    let mut place = Place::parse(query.cursor.as_deref())?;
    let listeners = ListenerNames::of(&app);
    let mut items = Vec::new();
    for _ in 0..paging::VISITS_MAX {
        if place.shard >= app.net().shards() {
            return Ok(Json(Page { items, cursor: None }));
        }
        if items.len() == limit {
            break;
        }
        let (from, wanted, filter) = (place.to_slot()?, limit - items.len(), filter.clone());
        let look = move |shard: &mut broker::Shard, now: Now| (shard.clients(&filter, from, wanted), now);
        let ((found, next), now) = app.on_shard(ShardId(place.shard), look).await?;
        items.extend(found.into_iter().map(|client| view(client, &listeners, now)));
        place = match next {
            Some(slot) => Place::slot(place.shard, slot),
            None => Place {
                shard: place.shard + 1,
                within: Vec::new(),
            },
        };
    }
    Ok(Json(Page {
        items,
        cursor: Some(place.to_text()),
    }))
}

async fn client(State(app): State<App>, Path(client_id): Path<String>) -> Result<Json<ClientDetails>, Problem> {
    let wanted = client_id.clone();
    let found = app.on_home(&client_id, move |shard, now| {
        (shard.client_details(&wanted, WILL_BYTES_MAX), now)
    });
    let (found, now) = found.await?;
    let found = found.ok_or_else(|| unknown(&client_id))?;
    Ok(Json(ClientDetails {
        client: view(found.client, &ListenerNames::of(&app), now),
        will: found.will.map(will),
        maximum_packet_size: found.maximum_packet_size,
        user_properties: MessageProperties::from_wire(&found.user_properties, None).user_properties,
        certificate_common_name: found.certificate_common_name,
    }))
}

fn will(will: WillView) -> Will {
    let properties = MessageProperties::from_wire(&will.properties, will.message_expiry_s);
    let is_cut = will.payload.len() < will.payload_bytes;
    let (payload, encoding) = packet_fields::start_of(&will.payload, is_cut);
    Will {
        topic: will.topic,
        qos: will.qos as u8,
        retain: will.retain,
        delay_s: will.delay_s,
        payload,
        encoding,
        payload_bytes: will.payload_bytes,
        properties,
    }
}

async fn kick(
    State(app): State<App>,
    Path(client_id): Path<String>,
    Params(query): Params<KickQuery>,
) -> Result<StatusCode, Problem> {
    let wanted = client_id.clone();
    match app
        .on_home(&client_id, move |shard, now| {
            shard.kick(now, &wanted, query.end_session)
        })
        .await?
    {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(unknown(&client_id)),
    }
}

async fn refused(
    State(app): State<App>,
    Params(query): Params<RefusedQuery>,
) -> Result<Json<Vec<RefusedClient>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let of_shards = app
        .on_all(move |shard, _| shard.refusals().take(limit).cloned().collect::<Vec<Refusal>>())
        .await?;
    let mut all: Vec<Refusal> = of_shards.into_iter().flatten().collect();
    all.sort_by_key(|refusal| std::cmp::Reverse(refusal.at_unix_ms));
    all.truncate(limit);
    Ok(Json(all.into_iter().map(refused_view).collect()))
}

pub fn unknown(client_id: &str) -> Problem {
    Problem::not_found(format!("there is no session with the client id {client_id:?}"))
}

/// Names of listeners by their index in the configuration.
pub struct ListenerNames(Vec<String>);

impl ListenerNames {
    pub fn of(app: &App) -> ListenerNames {
        ListenerNames(
            app.net()
                .listeners()
                .iter()
                .map(|listener| listener.name.to_string())
                .collect(),
        )
    }
}

pub fn view(client: ClientView, listeners: &ListenerNames, now: Now) -> Client {
    Client {
        client_id: client.client_id,
        user_name: client.user_name,
        address: client.address,
        connected: client.is_connected,
        transport: client.transport.map(TransportView::from),
        listener: client
            .listener
            .and_then(|index| listeners.0.get(usize::from(index)).cloned()),
        protocol_version: client.version.to_string(),
        is_bridge: client.is_bridge,
        clean_start: client.clean_start,
        keep_alive_s: client.keep_alive_s,
        session_expiry_interval_s: client.session_expiry_s,
        receive_maximum: client.receive_maximum,
        created_at_unix_ms: client.created_at_unix_ms,
        connected_at_unix_ms: client.connected_at_unix_ms,
        disconnected_at_unix_ms: client.disconnected_at_unix_ms,
        subscriptions: client.subscriptions,
        inflight: client.inflight,
        queued: client.queued,
        queued_bytes: client.queued_bytes,
        awaiting_release: client.awaiting_release,
        output_backlog_bytes: client.output_backlog_bytes,
        messages_received: client.messages_received,
        bytes_received: client.bytes_received,
        messages_sent: client.messages_sent,
        bytes_sent: client.bytes_sent,
        has_will: client.has_will,
        last_disconnect_reason: client.last_disconnect.map(|reason| reason.name()),
        drops: client
            .drops
            .into_iter()
            .map(|(reason, messages)| DropCount {
                reason: reason.name(),
                messages,
            })
            .collect(),
        last_drop: client.last_drop.map(|(reason, at_ms)| LastDrop {
            reason: reason.name(),
            at_unix_ms: now.unix_ms.saturating_sub(now.monotonic_ms.saturating_sub(at_ms)),
        }),
    }
}

fn refused_view(refusal: Refusal) -> RefusedClient {
    RefusedClient {
        at_unix_ms: refusal.at_unix_ms,
        client_id: refusal.client_id.into(),
        user_name: refusal.user_name.map(String::from),
        address: refusal.address,
        transport: refusal.transport.into(),
        reason: refusal.reason.name(),
        reason_code: refusal.reason.to_u8(),
        because: refusal.because.into(),
    }
}
