//! Statistics of the node and its listeners: the numbers of `/metrics` as JSON, for programs and the console.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{FromRef, State};
use broker::{DisconnectReason, DropReason, ShardStats};
use net::{EarlyCloseReason, ListenerInfo};
use schemars::JsonSchema;
use serde::Serialize;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;
use web::unix_ms;

use crate::alarms::Alarms;
use crate::app::{App, Endpoint};
use crate::config::NodeInfo;
use crate::disk::{DataDirectory, DiskView};
use crate::history::History;
use crate::process::ProcessView;
use crate::sampler::SERIES;
use crate::shards::Shards;

/// Statistics of the node. Totals count from its start.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatsView {
    /// When the statistics were read, in milliseconds since 1970.
    pub at_unix_ms: u64,
    pub node: NodeView,
    pub connections: Connections,
    /// Sessions, connected or not.
    pub sessions: CurrentAndMaximum,
    pub subscriptions: CurrentAndMaximum,
    pub shared_groups: u64,
    pub retained: StoredTotals,
    /// Messages in the queues of sessions.
    pub queued: StoredTotals,
    pub delayed_messages: u64,
    pub inflight_messages: u64,
    /// Bytes that wait to be written to sockets.
    pub output_backlog_bytes: u64,
    pub messages: Messages,
    /// MQTT packets as bytes.
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// How long publishers waited for acknowledgements in the last second. `null`: no acknowledgement was measured, see
    /// `/metrics`.
    pub publish_ack: Option<AckLatency>,
    /// Messages not delivered, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Ended connections, by reason.
    pub disconnects: BTreeMap<&'static str, u64>,
    pub process: ProcessView,
    /// `null`: the node has no journal.
    pub journal: Option<JournalStats>,
    /// Disk of the data directory. `null`: there is no data directory, or the disk's size is unknown.
    pub disk: Option<DiskView>,
    /// Names of the node's active alarms.
    pub alarms: Vec<String>,
}

/// The journal, which stores all data that must survive a crash.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JournalStats {
    /// Size of the journal's files.
    pub file_bytes: u64,
    /// Bytes that are not written to disk yet.
    pub backlog_bytes: u64,
}

/// Time from reading a PUBLISH of QoS 1 or 2 to writing its acknowledgement, including the journal's commit.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AckLatency {
    /// Median.
    pub p50_ms: f32,
    /// 99th percentile.
    pub p99_ms: f32,
}

/// The node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeView {
    pub name: String,
    pub version: String,
    pub started_at_unix_ms: u64,
    pub uptime_s: u64,
    pub shards: u16,
    /// One sentence about the data that survives a crash.
    pub durability: String,
}

/// MQTT connections.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ConnectionStats")]
pub struct Connections {
    pub current: u64,
    /// Highest number of simultaneous connections.
    pub maximum: u64,
    pub total: u64,
    /// CONNECT packets that were rejected.
    pub refused: u64,
    pub takeovers: u64,
    /// Open sockets, including those that have not completed CONNECT.
    pub sockets: u64,
}

/// A number that rises and falls, and its highest value.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CurrentAndMaximum")]
pub struct CurrentAndMaximum {
    pub current: u64,
    pub maximum: u64,
}

/// Stored messages and their size.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StoredTotals")]
pub struct StoredTotals {
    pub messages: u64,
    pub bytes: u64,
}

/// Application messages (PUBLISH).
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageStats")]
pub struct Messages {
    pub received: ByQoS,
    pub sent: ByQoS,
    pub acknowledged: u64,
    pub redelivered: u64,
    /// Messages forwarded from one shard to another.
    pub forwarded: u64,
    pub wills: u64,
    /// How often a publisher was slowed down because of a limit of its rate.
    pub publishers_slowed: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ByQoS {
    pub qos0: u64,
    pub qos1: u64,
    pub qos2: u64,
}

/// A listener and its statistics.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListenerView {
    pub name: String,
    pub transport: TransportView,
    /// Address that the listener is bound to.
    pub address: SocketAddr,
    /// This is the API's own port, which accepts the console's MQTT connections (`/api/v1/mqtt`).
    pub is_api: bool,
    /// Open connections, including those in their handshake.
    pub connections: usize,
    pub connections_max: usize,
    pub accepted: u64,
    /// Connections that ended before CONNECT was complete, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransportView {
    Tcp,
    Tls,
    Ws,
    Wss,
    Quic,
}

impl From<broker::Transport> for TransportView {
    fn from(transport: broker::Transport) -> TransportView {
        match transport {
            broker::Transport::Tcp => TransportView::Tcp,
            broker::Transport::Tls => TransportView::Tls,
            broker::Transport::WebSocket => TransportView::Ws,
            broker::Transport::SecureWebSocket => TransportView::Wss,
            broker::Transport::Quic => TransportView::Quic,
        }
    }
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/stats", "stats", RequiredAccess::Metrics, stats)
            .tag("Node")
            .describe("Statistics of the node", "Needs no login if `/metrics` needs none.")
            .returns::<StatsView>("The statistics."),
        Endpoint::get("/api/v1/listeners", "listeners", RequiredAccess::Metrics, listeners)
            .tag("Node")
            .describe(
                "Listeners and their connections",
                "Needs no login if `/metrics` needs none.",
            )
            .returns::<Vec<ListenerView>>("In the order of the configuration; the API's own port is last."),
    ]
}

/// The parts of the node that the statistics describe.
struct StatsSources {
    shards: Shards,
    net: net::ServerHandle,
    node: Arc<NodeInfo>,
    history: Arc<History>,
    alarms: Arc<Alarms>,
    data_directory: DataDirectory,
}

impl FromRef<App> for StatsSources {
    fn from_ref(app: &App) -> StatsSources {
        StatsSources {
            shards: app.part(),
            net: app.part(),
            node: app.part(),
            history: app.part(),
            alarms: app.part(),
            data_directory: app.part(),
        }
    }
}

async fn stats(State(sources): State<StatsSources>) -> Result<Json<StatsView>, HttpProblem> {
    let stats = sources.shards.stats().await?;
    Ok(Json(view(&sources, &stats)))
}

async fn listeners(State(net): State<net::ServerHandle>) -> Json<Vec<ListenerView>> {
    Json(net.listeners().iter().map(listener).collect())
}

fn ack_wait(history: &History) -> Option<AckLatency> {
    let sample = history.subscribe().borrow().clone()?;
    let value = |name: &str| {
        let index = SERIES.iter().position(|series| *series == name)?;
        sample.values.get(index).copied().filter(|value| value.is_finite())
    };
    Some(AckLatency {
        p50_ms: value("publish_ack_p50_ms")?,
        p99_ms: value("publish_ack_p99_ms")?,
    })
}

fn view(sources: &StatsSources, stats: &ShardStats) -> StatsView {
    let (node, net) = (&sources.node, &sources.net);
    StatsView {
        at_unix_ms: unix_ms(SystemTime::now()),
        node: NodeView {
            name: node.name.clone(),
            version: node.version.clone(),
            started_at_unix_ms: unix_ms(node.started_at),
            uptime_s: node.uptime().as_secs(),
            shards: net.shards(),
            durability: node.durability.clone(),
        },
        connections: Connections {
            current: stats.connections,
            maximum: stats.connections_max,
            total: stats.connections_total,
            refused: stats.refused_connections,
            takeovers: stats.takeovers,
            sockets: net.connections() as u64,
        },
        sessions: CurrentAndMaximum {
            current: stats.sessions,
            maximum: stats.sessions_max,
        },
        subscriptions: CurrentAndMaximum {
            current: stats.subscriptions,
            maximum: stats.subscriptions_max,
        },
        shared_groups: stats.shared_groups,
        retained: StoredTotals {
            messages: stats.retained_messages,
            bytes: stats.retained_bytes,
        },
        queued: StoredTotals {
            messages: stats.queued_messages,
            bytes: stats.queued_bytes,
        },
        delayed_messages: stats.delayed_messages,
        inflight_messages: stats.inflight_messages,
        output_backlog_bytes: stats.output_backlog_bytes,
        messages: messages(stats),
        publish_ack: ack_wait(&sources.history),
        bytes_received: stats.bytes_received,
        bytes_sent: stats.bytes_sent,
        drops: DropReason::ALL
            .into_iter()
            .map(|reason| (reason.name(), stats.drops[reason as usize]))
            .collect(),
        disconnects: DisconnectReason::ALL
            .into_iter()
            .map(|reason| (reason.name(), stats.disconnects[reason as usize]))
            .collect(),
        process: ProcessView::now(),
        journal: net.journal().map(|journal| JournalStats {
            file_bytes: journal.stats.file_bytes,
            backlog_bytes: journal.backlog_bytes as u64,
        }),
        disk: sources.data_directory.disk(),
        alarms: sources.alarms.active().into_iter().map(|alarm| alarm.name).collect(),
    }
}

fn messages(stats: &ShardStats) -> Messages {
    let by_qos = |[qos0, qos1, qos2]: [u64; 3]| ByQoS { qos0, qos1, qos2 };
    Messages {
        received: by_qos(stats.messages_received),
        sent: by_qos(stats.messages_sent),
        acknowledged: stats.messages_acknowledged,
        redelivered: stats.messages_redelivered,
        forwarded: stats.messages_forwarded,
        wills: stats.wills_published,
        publishers_slowed: stats.publishers_slowed.iter().sum(),
    }
}

fn listener(info: &ListenerInfo) -> ListenerView {
    ListenerView {
        name: info.name.to_string(),
        transport: info.transport.into(),
        address: info.address,
        is_api: info.is_handed_over,
        connections: info.current_connections,
        connections_max: info.max_connections,
        accepted: info.accepted,
        refused: EarlyCloseReason::ALL
            .into_iter()
            .map(|refusal| (refusal.name(), info.refused[refusal as usize]))
            .filter(|(_, count)| *count > 0)
            .collect(),
    }
}
