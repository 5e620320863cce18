//! In-flight and queued messages of a client.

use axum::extract::{FromRef, Path, State};
use axum::{Extension, Json};
use broker::waiting::{WaitingMessage, WaitingPart, WaitingRange, WaitingView};
use broker::{Now, Shard};
use journal::{LogReader, Lsn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::paging::{self, CursorPosition};
use web::problem::HttpProblem;
use web::query::Params;

use crate::app::{App, Endpoint};
use crate::message_body::PayloadEncoding;
use crate::packet_fields::payload_text;
use crate::shards::Shards;

const PAYLOAD_BYTES: usize = 256;
const PAYLOAD_BYTES_MAX: usize = 4096;

/// Bytes that one page may read from the journal. The last message may exceed the limit.
const JOURNAL_BYTES_MAX: usize = 8 << 20;

/// A message in flight or in the queue.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PendingMessage")]
pub struct WaitingEntry {
    /// `null` for QoS 0, and before the packet identifier is assigned.
    pub packet_id: Option<u16>,
    pub qos: u8,
    pub retain: bool,
    /// QoS 2 only: PUBREC was received and PUBCOMP is outstanding, so the message itself is no longer stored.
    pub is_released: bool,
    /// `null`: no longer stored, not written to the journal yet, or beyond the 8 MiB of the journal that one page
    /// reads.
    pub message: Option<WaitingMessageView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PendingMessageContent")]
pub struct WaitingMessageView {
    pub topic: String,
    /// The first bytes of the payload.
    pub payload: String,
    pub payload_encoding: PayloadEncoding,
    /// Size of the whole payload.
    pub payload_bytes: usize,
    /// Bytes that the stored message uses.
    pub stored_bytes: usize,
    pub expires_in_s: Option<u32>,
}

/// A page of messages in flight or in the queue, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PendingMessagePage {
    pub items: Vec<WaitingEntry>,
    /// Number of all messages.
    pub messages: usize,
    /// Number of messages that are stored only in the journal and are not listed.
    pub unlisted: usize,
    /// Value of `cursor` for the next page; absent on the last page. Acknowledgements between two requests shift the
    /// list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitingQuery {
    /// Bytes of each payload to show. Default: 256.
    #[schemars(range(max = 4096))]
    payload_bytes: Option<usize>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ID: &str = "Percent-encoded, including slashes.";
    vec![
        Endpoint::get("/api/v1/clients/{client_id}/inflight", "client_inflight", RequiredAccess::Viewer, inflight)
            .tag("Clients")
            .in_namespace()
            .describe(
                "In-flight messages of a client",
                "QoS 1 and 2 messages that were sent and are not acknowledged, oldest first. Receive Maximum limits their number.",
            )
            .path_parameter("client_id", ID)
            .query::<WaitingQuery>()
            .returns::<PendingMessagePage>("A page."),
        Endpoint::get("/api/v1/clients/{client_id}/queue", "client_queue", RequiredAccess::Viewer, queue)
            .tag("Clients")
            .in_namespace()
            .describe(
                "Queued messages of a client",
                "Messages that will be sent after the client connects or acknowledges earlier messages, in order.",
            )
            .path_parameter("client_id", ID)
            .query::<WaitingQuery>()
            .returns::<PendingMessagePage>("A page."),
    ]
}

async fn inflight(
    State(pending): State<PendingMessages>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(client_id): Path<String>,
    Params(query): Params<WaitingQuery>,
) -> Result<Json<PendingMessagePage>, HttpProblem> {
    let look: WaitingLookup = |shard, now, client_id, range| shard.inspect().inflight_of(now, client_id, range);
    pending.part(&login, client_id, &query, look).await
}

async fn queue(
    State(pending): State<PendingMessages>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(client_id): Path<String>,
    Params(query): Params<WaitingQuery>,
) -> Result<Json<PendingMessagePage>, HttpProblem> {
    let look: WaitingLookup = |shard, now, client_id, range| shard.inspect().queue_of(now, client_id, range);
    pending.part(&login, client_id, &query, look).await
}

type WaitingLookup = fn(&Shard, Now, &str, WaitingRange) -> Option<WaitingPart>;

/// Reads messages of a client that are in flight or queued.
struct PendingMessages {
    shards: Shards,
    net: net::ServerHandle,
}

impl FromRef<App> for PendingMessages {
    fn from_ref(app: &App) -> PendingMessages {
        PendingMessages {
            shards: app.part(),
            net: app.part(),
        }
    }
}

impl PendingMessages {
    async fn part(
        &self,
        login: &AuthenticatedUser,
        client_id: String,
        query: &WaitingQuery,
        look: WaitingLookup,
    ) -> Result<Json<PendingMessagePage>, HttpProblem> {
        let payload_bytes_max = query.payload_bytes.unwrap_or(PAYLOAD_BYTES);
        if payload_bytes_max > PAYLOAD_BYTES_MAX {
            let problem = HttpProblem::invalid("payload_bytes", format!("is {payload_bytes_max}"));
            return Err(problem.expected(format!("0 to {PAYLOAD_BYTES_MAX}")));
        }
        let range = WaitingRange {
            from: CursorPosition::parse(query.cursor.as_deref())?.to_number()? as usize,
            limit: paging::limit(query.limit)?,
            payload_bytes_max,
        };
        let wanted = client_id.clone();
        let (mut found, now) = self
            .shards
            .on_client(login, &client_id, move |shard, now| {
                look(shard, now, &wanted, range).map(|found| (found, now))
            })
            .await?;
        if let Some(reader) = self.net.journal_reader()
            && found.items.iter().any(|one| one.position.is_some())
        {
            found = web::block(move || read_from_journal(&reader, now, found, payload_bytes_max)).await?;
        }
        for item in &mut found.items {
            // `a/#` also matches the topic `a`, which the client does not receive.
            if item
                .message
                .as_ref()
                .is_some_and(|message| !login.has_topic(&message.topic))
            {
                item.message = None;
            }
        }
        Ok(Json(PendingMessagePage {
            items: found.items.into_iter().map(view).collect(),
            messages: found.messages,
            unlisted: found.unlisted,
            cursor: found.next.map(|next| CursorPosition::number(0, next as u32).to_text()),
        }))
    }
}

/// Reads messages that are only in the journal. A message that was delivered in the meantime may no longer be there.
fn read_from_journal(reader: &LogReader, now: Now, mut found: WaitingPart, payload_bytes_max: usize) -> WaitingPart {
    let (mut record, mut bytes) = (Vec::new(), 0);
    for one in &mut found.items {
        let Some(position) = one.position.filter(|_| bytes < JOURNAL_BYTES_MAX) else {
            continue;
        };
        if reader.read(Lsn(position.0), &mut record).is_ok() {
            bytes += record.len();
            one.message = WaitingMessage::from_record(now, &record, payload_bytes_max);
        }
    }
    found
}

fn view(waiting: WaitingView) -> WaitingEntry {
    WaitingEntry {
        packet_id: waiting.packet_id,
        qos: waiting.qos as u8,
        retain: waiting.retain,
        is_released: waiting.is_released,
        message: waiting.message.map(|message| {
            let is_cut = message.payload.len() < message.payload_bytes;
            let (payload, payload_encoding) = payload_text(&message.payload, is_cut);
            WaitingMessageView {
                topic: message.topic,
                payload,
                payload_encoding,
                payload_bytes: message.payload_bytes,
                stored_bytes: message.stored_bytes,
                expires_in_s: message.expires_in_s,
            }
        }),
    }
}
