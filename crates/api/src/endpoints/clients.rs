//! Clients: sessions and their connections (list, show, disconnect), and rejected connections.

use std::net::SocketAddr;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use broker::{ClientFilter, ClientView, Now, PublishLimit, RejectedConnection, SessionSlot, ShardId, WillView};
use net::EarlyClose;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::paging::{self, Page};
use web::problem::HttpProblem;
use web::query::Params;

use super::clients_in_order::{self, SortBy, SortOrder};
use super::stats::TransportView;
use crate::app::Endpoint;
use crate::message_body::{MessageProperties, PayloadEncoding, UserProperty};
use crate::packet_fields;
use crate::shards::Shards;

/// A session and its connection, if it has one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Client")]
pub struct ApiClient {
    pub client_id: String,
    pub user_name: Option<String>,
    /// Address of the current or last connection.
    pub address: SocketAddr,
    pub connected: bool,
    /// `null`: not connected.
    pub transport: Option<TransportView>,
    /// Name of the listener of the connection.
    pub listener: Option<String>,
    /// MQTT version: `3.1`, `3.1.1` or `5.0`.
    pub protocol_version: String,
    pub is_bridge: bool,
    /// Prefix of all its topics, from `mountpoint` of its listener. `null`: none.
    pub mountpoint: Option<String>,
    pub clean_start: bool,
    pub keep_alive_s: u16,
    /// 4294967295: the session never expires.
    pub session_expiry_interval_s: u32,
    pub receive_maximum: u16,
    pub created_at_unix_ms: u64,
    pub connected_at_unix_ms: u64,
    pub disconnected_at_unix_ms: Option<u64>,
    pub subscriptions: usize,
    /// Messages sent and not acknowledged.
    pub inflight: usize,
    pub queued: usize,
    /// Bytes of the queued messages, in memory and in the journal.
    pub queued_bytes: usize,
    /// QoS 2 messages received without their PUBREL.
    pub awaiting_release: usize,
    /// Bytes that wait to be written to the socket.
    pub output_backlog_bytes: usize,
    pub messages_received: u64,
    pub bytes_received: u64,
    pub messages_sent: u64,
    pub bytes_sent: u64,
    pub has_will: bool,
    /// Why the last connection ended.
    pub last_disconnect_reason: Option<&'static str>,
    /// Messages dropped for this client, or rejected from it, by reason.
    pub drops: Vec<DropCount>,
    pub last_drop: Option<LastDrop>,
    /// Limit of its publish rate for which the client waits now, such as `user_messages`. `null`: it does not wait.
    pub throttled_by: Option<&'static str>,
}

/// A client with the fields that a list leaves out.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ClientDetails")]
pub struct ApiClientDetails {
    #[serde(flatten)]
    pub client: ApiClient,
    /// The will message, which is published if the connection ends without DISCONNECT.
    pub will: Option<WillMessage>,
    /// Maximum Packet Size of CONNECT. `null`: no limit, or not connected.
    pub maximum_packet_size: Option<u32>,
    /// User properties of CONNECT, the first 4096 bytes, while the client is connected.
    pub user_properties: Vec<UserProperty>,
    /// Common name of the client certificate, while the client is connected.
    pub certificate_common_name: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Will")]
pub struct WillMessage {
    pub topic: String,
    #[schemars(range(max = 2))]
    pub qos: u8,
    pub retain: bool,
    /// Will Delay Interval: seconds from the end of the connection to the publication.
    pub delay_s: u32,
    /// The first 4096 bytes of the payload.
    pub payload: String,
    pub encoding: PayloadEncoding,
    /// Size of the whole payload.
    pub payload_bytes: usize,
    pub properties: MessageProperties,
}

/// Bytes of a will's payload that are shown.
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

/// A connection that did not become a session: its CONNECT was rejected, or it ended before CONNECT.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RefusedClient {
    /// Time of the last attempt.
    pub at_unix_ms: u64,
    pub first_at_unix_ms: u64,
    /// Attempts of this address before CONNECT that ended for the same reason. Rejected CONNECTs are listed one by one.
    pub times: u64,
    /// Empty if the connection ended before CONNECT.
    pub client_id: String,
    pub user_name: Option<String>,
    pub address: SocketAddr,
    pub transport: TransportView,
    /// Name of the listener.
    pub listener: Option<String>,
    /// The reason that the client received, or the `reason` of `tidewire_listener_connections_refused_total` if the
    /// connection ended before CONNECT.
    pub reason: &'static str,
    /// Reason code of the CONNACK; `null` if the connection ended before CONNECT.
    pub reason_code: Option<u8>,
    /// Details for the operator; the client does not receive them.
    pub detail: String,
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
    /// Only connected (`true`) or only disconnected (`false`) clients.
    connected: Option<bool>,
    /// Sort order. With it, each page reads all sessions.
    sort: Option<SortBy>,
    /// Direction of `sort`. Default: `asc`.
    order: Option<SortOrder>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KickQuery {
    /// Also deletes the session, with its subscriptions and queue.
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
    const ID: &str = "Percent-encoded, including slashes.";
    vec![
        Endpoint::get("/api/v1/clients", "clients", RequiredAccess::Viewer, clients)
            .tag("Clients")
            .in_namespace()
            .describe(
                "Clients, page by page",
                "Unordered without `sort`. Clients that connect or disconnect between two pages may be missed. A client appears once, unless \
                 its sort value changes between two pages.",
            )
            .query::<ClientsQuery>()
            .returns::<Page<ApiClient>>("A page."),
        Endpoint::get("/api/v1/clients/{client_id}", "client", RequiredAccess::Viewer, client)
            .tag("Clients")
            .in_namespace()
            .describe(
                "One client",
                "With its counters, its will, its last dropped message and the reason of its last disconnection.",
            )
            .path_parameter("client_id", ID)
            .returns::<ApiClientDetails>("The client."),
        Endpoint::delete("/api/v1/clients/{client_id}", "kick_client", RequiredAccess::Operator, kick)
            .tag("Clients")
            .in_namespace()
            .describe(
                "Disconnect a client",
                "MQTT 5 clients receive Administrative action (0x98). The session stays unless `end_session` is set.",
            )
            .path_parameter("client_id", ID)
            .query::<KickQuery>()
            .returns_nothing("The client is disconnected."),
        Endpoint::get("/api/v1/refused-clients", "refused_clients", RequiredAccess::Viewer, refused)
            .tag("Clients")
            .describe(
                "Last rejected connections",
                "Newest first. Each shard remembers 256 rejected CONNECTs, and the node 256 addresses and reasons of connections that ended \
                 before CONNECT: a failed TLS, WebSocket or PROXY handshake, a timeout, or a limit.",
            )
            .query::<RefusedQuery>()
            .returns::<Vec<RefusedClient>>("Rejected connections."),
    ]
}

async fn clients(
    State(shards): State<Shards>,
    State(net): State<net::ServerHandle>,
    Extension(login): Extension<AuthenticatedUser>,
    Params(query): Params<ClientsQuery>,
) -> Result<Json<Page<ApiClient>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let filter = ClientFilter {
        client_id: query.client_id,
        user_name: query.user_name,
        address: query.address,
        is_connected: query.connected,
        topic_prefix: login.topic_prefix(),
    };
    if let Some(sort) = query.sort {
        let order = sort.with(query.order);
        return clients_in_order::page(
            &shards,
            &ListenerNames::of(&net),
            &filter,
            order,
            query.cursor.as_deref(),
            limit,
        )
        .await;
    }
    if query.order.is_some() {
        return Err(HttpProblem::bad_request("`order` needs `sort`")
            .at("order")
            .expected("`sort` in the same request"));
    }
    let listeners = ListenerNames::of(&net);
    paging::collect(shards.count(), query.cursor.as_deref(), limit, |place, wanted| {
        let (shards, listeners, filter) = (&shards, &listeners, filter.clone());
        async move {
            let from = SessionSlot(place.to_number()?);
            let look = move |shard: &mut broker::Shard, now: Now| (shard.inspect().clients(&filter, from, wanted), now);
            let ((found, next), now) = shards.on_shard(ShardId(place.shard), look).await?;
            let items = found.into_iter().map(|client| view(client, listeners, now)).collect();
            Ok((items, next.map(|slot| slot.0.to_be_bytes().into())))
        }
    })
    .await
}

async fn client(
    State(shards): State<Shards>,
    State(net): State<net::ServerHandle>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(client_id): Path<String>,
) -> Result<Json<ApiClientDetails>, HttpProblem> {
    let wanted = client_id.clone();
    let found = shards.on_client(&login, &client_id, move |shard, now| {
        Some((shard.inspect().client_details(&wanted, WILL_BYTES_MAX)?, now))
    });
    let (found, now) = found.await?;
    Ok(Json(ApiClientDetails {
        client: view(found.client, &ListenerNames::of(&net), now),
        will: found.will.map(will),
        maximum_packet_size: found.maximum_packet_size,
        user_properties: MessageProperties::from_wire(&found.user_properties, None).user_properties,
        certificate_common_name: found.certificate_common_name,
    }))
}

fn will(will: WillView) -> WillMessage {
    let properties = MessageProperties::from_wire(&will.properties, will.message_expiry_s);
    let is_cut = will.payload.len() < will.payload_bytes;
    let (payload, encoding) = packet_fields::payload_text(&will.payload, is_cut);
    WillMessage {
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
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(client_id): Path<String>,
    Params(query): Params<KickQuery>,
) -> Result<StatusCode, HttpProblem> {
    let wanted = client_id.clone();
    shards
        .on_client(&login, &client_id, move |shard, now| {
            shard.operator(now).kick(&wanted, query.end_session).then_some(())
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn refused(
    State(shards): State<Shards>,
    State(net): State<net::ServerHandle>,
    Params(query): Params<RefusedQuery>,
) -> Result<Json<Vec<RefusedClient>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let of_shards = shards
        .on_all_shards(move |shard, _| {
            shard
                .inspect()
                .refusals()
                .take(limit)
                .cloned()
                .collect::<Vec<RejectedConnection>>()
        })
        .await?;
    let listeners = ListenerNames::of(&net);
    let rejected = of_shards.into_iter().flatten().map(|one| refused_view(one, &listeners));
    let early = net.early_closes(limit).into_iter().map(early_close_view);
    let mut all: Vec<RefusedClient> = rejected.chain(early).collect();
    all.sort_by_key(|refusal| std::cmp::Reverse(refusal.at_unix_ms));
    all.truncate(limit);
    Ok(Json(all))
}

/// Names of the listeners by their index in the configuration.
pub struct ListenerNames(Vec<String>);

impl ListenerNames {
    pub fn of(net: &net::ServerHandle) -> ListenerNames {
        ListenerNames(
            net.listeners()
                .iter()
                .map(|listener| listener.name.to_string())
                .collect(),
        )
    }
}

pub fn view(client: ClientView, listeners: &ListenerNames, now: Now) -> ApiClient {
    ApiClient {
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
        mountpoint: client.mountpoint,
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
        throttled_by: client.throttled_by.map(PublishLimit::name),
    }
}

fn refused_view(refusal: RejectedConnection, listeners: &ListenerNames) -> RefusedClient {
    RefusedClient {
        at_unix_ms: refusal.at_unix_ms,
        first_at_unix_ms: refusal.at_unix_ms,
        times: 1,
        client_id: refusal.client_id.into(),
        user_name: refusal.user_name.map(String::from),
        address: refusal.address,
        transport: refusal.transport.into(),
        listener: listeners.0.get(usize::from(refusal.listener)).cloned(),
        reason: refusal.reason.name(),
        reason_code: Some(refusal.reason.to_u8()),
        detail: refusal.detail.into(),
    }
}

fn early_close_view(close: EarlyClose) -> RefusedClient {
    RefusedClient {
        at_unix_ms: close.at_unix_ms,
        first_at_unix_ms: close.first_at_unix_ms,
        times: close.count,
        client_id: String::new(),
        user_name: None,
        address: close.address,
        transport: close.transport.into(),
        listener: Some(close.listener.into()),
        reason: close.reason.name(),
        reason_code: None,
        detail: close.detail.into_owned(),
    }
}
