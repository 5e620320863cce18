//! Numbers of the node and of its listeners: what `/metrics` has, as JSON for programs and the console.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use broker::{DisconnectReason, DropReason, Stats};
use net::{ListenerInfo, Refusal};
use schemars::JsonSchema;
use serde::Serialize;

use crate::app::{App, unix_ms};
use crate::disk::DiskView;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::problem::Problem;
use crate::process::ProcessView;
use crate::sampler::SERIES;

/// Numbers of the node. Totals count from its start.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatsView {
    /// When these numbers were read, in milliseconds since 1970.
    pub at_unix_ms: u64,
    pub node: NodeView,
    pub connections: Connections,
    /// Sessions, connected or not.
    pub sessions: Level,
    pub subscriptions: Level,
    pub shared_groups: u64,
    pub retained: Kept,
    /// Messages that wait in sessions.
    pub queued: Kept,
    pub delayed_messages: u64,
    pub inflight_messages: u64,
    /// Bytes that wait for sockets.
    pub output_backlog_bytes: u64,
    pub messages: Messages,
    /// MQTT packets as bytes.
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// How long publishers waited for acknowledgements in the last second; `null`: there were none that count, see `/metrics`.
    pub publish_ack: Option<AckWait>,
    /// Messages not delivered, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Connections that ended, by reason.
    pub disconnects: BTreeMap<&'static str, u64>,
    pub process: ProcessView,
    /// `null`: nothing is on the disk.
    pub journal: Option<JournalNumbers>,
    /// That of the data directory; `null`: there is none, or it is not known.
    pub disk: Option<DiskView>,
    /// Names of the node's alarms that are active.
    pub alarms: Vec<String>,
}

/// The journal, which has what has to survive a crash.
#[derive(Debug, Serialize, JsonSchema)]
pub struct JournalNumbers {
    /// Of its files.
    pub file_bytes: u64,
    /// Not on the disk yet.
    pub backlog_bytes: u64,
}

/// From reading a PUBLISH of QoS 1 or 2 to having written its acknowledgement, the journal's commit included.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AckWait {
    /// Half of them did not wait longer.
    pub p50_ms: f32,
    /// 99 of 100 did not wait longer.
    pub p99_ms: f32,
}

/// The node these numbers are of.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeView {
    pub name: String,
    pub version: String,
    pub started_at_unix_ms: u64,
    pub uptime_s: u64,
    pub shards: u16,
    /// What survives a crash, in a sentence.
    pub durability: String,
}

/// MQTT connections.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Connections {
    pub current: u64,
    /// The most at the same time.
    pub maximum: u64,
    pub total: u64,
    /// CONNECTs that were answered with an error.
    pub refused: u64,
    pub takeovers: u64,
    /// Accepted but not past CONNECT yet, as well as connected.
    pub sockets: u64,
}

/// A number that goes up and down, and its highest value.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Level {
    pub current: u64,
    pub maximum: u64,
}

/// Messages that are kept, and what they weigh.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Kept {
    pub messages: u64,
    pub bytes: u64,
}

/// Application messages (PUBLISH).
#[derive(Debug, Serialize, JsonSchema)]
pub struct Messages {
    pub received: ByQoS,
    pub sent: ByQoS,
    pub acknowledged: u64,
    pub redelivered: u64,
    /// Went from one shard to another.
    pub forwarded: u64,
    pub wills: u64,
    /// Times that a publisher was slowed because of its quota.
    pub publishers_slowed: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ByQoS {
    pub qos0: u64,
    pub qos1: u64,
    pub qos2: u64,
}

/// A listener and what happened at it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListenerView {
    pub name: String,
    pub transport: TransportView,
    /// As bound.
    pub address: SocketAddr,
    /// It is the API's own port, where a console's MQTT comes in (`/api/v1/mqtt`).
    pub is_api: bool,
    /// Open now, those in their handshake included.
    pub connections: usize,
    pub connections_max: usize,
    pub accepted: u64,
    /// Connections that ended before their CONNECT was complete, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TransportView {
    Tcp,
    Tls,
    Ws,
    Wss,
}

impl From<broker::Transport> for TransportView {
    fn from(transport: broker::Transport) -> TransportView {
        match transport {
            broker::Transport::Tcp => TransportView::Tcp,
            broker::Transport::Tls => TransportView::Tls,
            broker::Transport::WebSocket => TransportView::Ws,
            broker::Transport::SecureWebSocket => TransportView::Wss,
        }
    }
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/stats", "stats", stats)
            .tag("Node")
            .says("Numbers of the node", "Needs no login where `/metrics` needs none.")
            .needs(Need::Metrics)
            .returns::<StatsView>("The numbers."),
        Endpoint::get("/api/v1/listeners", "listeners", listeners)
            .tag("Node")
            .says(
                "Listeners and their connections",
                "Needs no login where `/metrics` needs none.",
            )
            .needs(Need::Metrics)
            .returns::<Vec<ListenerView>>("In the order of the configuration; the API's own port comes last."),
    ]
}

async fn stats(State(app): State<App>) -> Result<Json<StatsView>, Problem> {
    let stats = app.stats().await?;
    Ok(Json(view(&app, &stats)))
}

async fn listeners(State(app): State<App>) -> Json<Vec<ListenerView>> {
    Json(app.net().listeners().iter().map(listener).collect())
}

fn ack_wait(app: &App) -> Option<AckWait> {
    let sample = app.history().subscribe().borrow().clone()?;
    let value = |name: &str| {
        let index = SERIES.iter().position(|series| *series == name)?;
        sample.values.get(index).copied().filter(|value| value.is_finite())
    };
    Some(AckWait {
        p50_ms: value("publish_ack_p50_ms")?,
        p99_ms: value("publish_ack_p99_ms")?,
    })
}

fn view(app: &App, stats: &Stats) -> StatsView {
    let node = app.node();
    StatsView {
        at_unix_ms: unix_ms(SystemTime::now()),
        node: NodeView {
            name: node.name.clone(),
            version: node.version.clone(),
            started_at_unix_ms: unix_ms(node.started_at),
            uptime_s: app.uptime().as_secs(),
            shards: app.net().shards(),
            durability: node.durability.clone(),
        },
        connections: Connections {
            current: stats.connections,
            maximum: stats.connections_max,
            total: stats.connections_total,
            refused: stats.refused_connections,
            takeovers: stats.takeovers,
            sockets: app.net().connections() as u64,
        },
        sessions: Level {
            current: stats.sessions,
            maximum: stats.sessions_max,
        },
        subscriptions: Level {
            current: stats.subscriptions,
            maximum: stats.subscriptions_max,
        },
        shared_groups: stats.shared_groups,
        retained: Kept {
            messages: stats.retained_messages,
            bytes: stats.retained_bytes,
        },
        queued: Kept {
            messages: stats.queued_messages,
            bytes: stats.queued_bytes,
        },
        delayed_messages: stats.delayed_messages,
        inflight_messages: stats.inflight_messages,
        output_backlog_bytes: stats.output_backlog_bytes,
        messages: messages(stats),
        publish_ack: ack_wait(app),
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
        journal: app.net().journal().map(|journal| JournalNumbers {
            file_bytes: journal.stats.file_bytes,
            backlog_bytes: journal.backlog_bytes as u64,
        }),
        disk: app.disk(),
        alarms: app.alarms().active().into_iter().map(|alarm| alarm.name).collect(),
    }
}

fn messages(stats: &Stats) -> Messages {
    let by_qos = |[qos0, qos1, qos2]: [u64; 3]| ByQoS { qos0, qos1, qos2 };
    Messages {
        received: by_qos(stats.messages_received),
        sent: by_qos(stats.messages_sent),
        acknowledged: stats.messages_acknowledged,
        redelivered: stats.messages_redelivered,
        forwarded: stats.messages_forwarded,
        wills: stats.wills_published,
        publishers_slowed: stats.publishers_slowed,
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
        refused: Refusal::ALL
            .into_iter()
            .map(|refusal| (refusal.name(), info.refused[refusal as usize]))
            .filter(|(_, count)| *count > 0)
            .collect(),
    }
}
