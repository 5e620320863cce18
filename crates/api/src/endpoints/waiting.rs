//! What one client has been sent and has not acknowledged, and what waits for it.

use axum::Json;
use axum::extract::{Path, State};
use broker::waiting::{WaitingMessage, WaitingPart, WaitingRange, WaitingView};
use broker::{Now, Shard};
use journal::{LogReader, Lsn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::clients::unknown;
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::message_body::PayloadEncoding;
use crate::packet_fields::start_of;
use crate::paging::{self, Place};
use crate::problem::Problem;
use crate::query::Params;

const PAYLOAD_BYTES: usize = 256;
const PAYLOAD_BYTES_MAX: usize = 4096;

/// What is read from the journal for one page, but for the message that goes beyond it.
const JOURNAL_BYTES_MAX: usize = 8 << 20;

/// A message that waits.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Waiting {
    /// `null` at QoS 0, and where it is still open.
    pub packet_id: Option<u16>,
    pub qos: u8,
    pub retain: bool,
    /// At QoS 2: PUBREC has come and PUBCOMP has not, so the message itself is gone.
    pub is_released: bool,
    /// `null`: it is gone, or deep in the journal (8 MiB of it are read for one page), or not written there yet.
    pub message: Option<Message>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WaitingMessage")]
pub struct Message {
    pub topic: String,
    /// Its beginning.
    pub payload: String,
    pub payload_encoding: PayloadEncoding,
    /// Of all of it.
    pub payload_bytes: usize,
    /// What keeping the message costs.
    pub kept_bytes: usize,
    pub expires_in_s: Option<u32>,
}

/// A part of the messages that wait, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WaitingPage {
    pub items: Vec<Waiting>,
    /// All that wait.
    pub messages: usize,
    /// Of them, those deep in the journal, which are not listed.
    pub unlisted: usize,
    /// Send it as `cursor` to get what follows; absent at the end. What was acknowledged meanwhile moves the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitingQuery {
    /// Bytes of a payload that are shown at most; 256 if it is not given.
    #[schemars(range(max = 4096))]
    payload_bytes: Option<usize>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ID: &str = "Percent-encoded, also its slashes.";
    vec![
        Endpoint::get("/api/v1/clients/{client_id}/inflight", "client_inflight", inflight)
            .tag("Clients")
            .says(
                "What a client has not acknowledged",
                "QoS 1 and 2 messages that were sent to it, oldest first. As many as its Receive Maximum allows.",
            )
            .path_parameter("client_id", ID)
            .query::<WaitingQuery>()
            .returns::<WaitingPage>("A page."),
        Endpoint::get("/api/v1/clients/{client_id}/queue", "client_queue", queue)
            .tag("Clients")
            .says(
                "What waits for a client",
                "Messages that are sent to it when it is back, or when it has acknowledged earlier ones; in their order.",
            )
            .path_parameter("client_id", ID)
            .query::<WaitingQuery>()
            .returns::<WaitingPage>("A page."),
    ]
}

async fn inflight(
    State(app): State<App>,
    Path(client_id): Path<String>,
    Params(query): Params<WaitingQuery>,
) -> Result<Json<WaitingPage>, Problem> {
    part(&app, client_id, &query, Shard::inflight_of).await
}

async fn queue(
    State(app): State<App>,
    Path(client_id): Path<String>,
    Params(query): Params<WaitingQuery>,
) -> Result<Json<WaitingPage>, Problem> {
    part(&app, client_id, &query, Shard::queue_of).await
}

type Look = fn(&Shard, Now, &str, WaitingRange) -> Option<WaitingPart>;

async fn part(app: &App, client_id: String, query: &WaitingQuery, look: Look) -> Result<Json<WaitingPage>, Problem> {
    let payload_bytes_max = query.payload_bytes.unwrap_or(PAYLOAD_BYTES);
    if payload_bytes_max > PAYLOAD_BYTES_MAX {
        let problem = Problem::invalid("payload_bytes", format!("is {payload_bytes_max}"));
        return Err(problem.expected(format!("0 to {PAYLOAD_BYTES_MAX}")));
    }
    let range = WaitingRange {
        from: Place::parse(query.cursor.as_deref())?.to_slot()? as usize,
        limit: paging::limit(query.limit)?,
        payload_bytes_max,
    };
    let wanted = client_id.clone();
    let found = app
        .on_home(&client_id, move |shard, now| {
            look(shard, now, &wanted, range).map(|found| (found, now))
        })
        .await?;
    let (mut found, now) = found.ok_or_else(|| unknown(&client_id))?;
    if let Some(reader) = app.net().journal_reader()
        && found.items.iter().any(|one| one.position.is_some())
    {
        found = app
            .block(move || read_back(&reader, now, found, payload_bytes_max))
            .await?;
    }
    Ok(Json(WaitingPage {
        items: found.items.into_iter().map(view).collect(),
        messages: found.messages,
        unlisted: found.unlisted,
        cursor: found.next.map(|next| Place::slot(0, next as u32).to_text()),
    }))
}

/// With the messages that are in the journal only. One that has been delivered meanwhile may be gone from there.
fn read_back(reader: &LogReader, now: Now, mut found: WaitingPart, payload_bytes_max: usize) -> WaitingPart {
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

fn view(waiting: WaitingView) -> Waiting {
    Waiting {
        packet_id: waiting.packet_id,
        qos: waiting.qos as u8,
        retain: waiting.retain,
        is_released: waiting.is_released,
        message: waiting.message.map(|message| {
            let is_cut = message.payload.len() < message.payload_bytes;
            let (payload, payload_encoding) = start_of(&message.payload, is_cut);
            Message {
                topic: message.topic,
                payload,
                payload_encoding,
                payload_bytes: message.payload_bytes,
                kept_bytes: message.kept_bytes,
                expires_in_s: message.expires_in_s,
            }
        }),
    }
}
