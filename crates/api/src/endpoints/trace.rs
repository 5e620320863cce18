//! Live trace of clients over a WebSocket.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use broker::trace::TraceFilter;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;
use web::query::Params;
use web::websocket::{PendingUpgrade, ServerWebSocket, WaitResult, upgrade_guarded};

use crate::app::Endpoint;
use crate::concurrency::Viewers;
use crate::shards::Shards;
use crate::trace::{PAYLOAD_BYTES_MAX, PER_SECOND_MAX, TraceLimits, TraceReader};

const PER_SECOND: u32 = 200;
const PAYLOAD_BYTES: usize = 256;

/// An idle viewer gets the number of omitted entries after this time.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// This client only.
    client_id: Option<String>,
    /// This user only.
    user_name: Option<String>,
    /// Clients with this IP address only.
    address: Option<String>,
    /// Topic filter. Shows only PUBLISH packets whose topic matches, and SUBSCRIBE and UNSUBSCRIBE packets with a
    /// matching topic or this filter.
    topic: Option<String>,
    /// Highest number of entries per second. Default: 200.
    #[schemars(range(min = 1, max = 5000))]
    per_second: Option<u32>,
    /// Bytes of each payload to show. Default: 256.
    #[schemars(range(max = 4096))]
    payload_bytes: Option<usize>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/trace", "trace", RequiredAccess::Viewer, trace)
            .tag("Clients")
            .describe(
                "Trace the packets of clients",
                "A WebSocket: every packet that matching clients send or receive, decoded, and their events (connected, \
                 rejected, disconnected, dropped messages), as JSON in text frames. At least one of `client_id`, `user_name`, `address` and \
                 `topic` is required; all given conditions must match. Passwords are never shown. `omitted` counts entries above the \
                 rate. Clients that cannot set headers offer the sub-protocols `tidewire` and `bearer.<token>`.",
            )
            .query::<TraceQuery>()
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .upgrades("The WebSocket is open."),
    ]
}

async fn trace(
    State(shards): State<Shards>,
    State(viewers): State<Viewers>,
    Params(query): Params<TraceQuery>,
    mut request: Request,
) -> Result<Response, HttpProblem> {
    let limits = limits(&query)?;
    let filter = filter(query)?;
    let Some(permit) = viewers.admit() else {
        return Err(HttpProblem::unavailable("too many WebSockets are open"));
    };
    let (response, upgrading) = upgrade_guarded(&mut request)?;
    let viewing = shards.trace(filter, limits).await?;
    tokio::spawn(serve(upgrading, viewing, limits, permit));
    Ok(response)
}

fn limits(query: &TraceQuery) -> Result<TraceLimits, HttpProblem> {
    let limits = TraceLimits {
        per_second: query.per_second.unwrap_or(PER_SECOND),
        payload_bytes: query.payload_bytes.unwrap_or(PAYLOAD_BYTES),
    };
    if !(1..=PER_SECOND_MAX).contains(&limits.per_second) {
        let problem = HttpProblem::invalid("per_second", format!("is {}", limits.per_second));
        return Err(problem.expected(format!("1 to {PER_SECOND_MAX}")));
    }
    if limits.payload_bytes > PAYLOAD_BYTES_MAX {
        let problem = HttpProblem::invalid("payload_bytes", format!("is {}", limits.payload_bytes));
        return Err(problem.expected(format!("0 to {PAYLOAD_BYTES_MAX}")));
    }
    Ok(limits)
}

fn filter(query: TraceQuery) -> Result<TraceFilter, HttpProblem> {
    let address = query.address.as_deref().map(address).transpose()?;
    if let Some(error) = query
        .topic
        .as_deref()
        .and_then(|topic| mqtt::validate_filter(topic).err())
    {
        return Err(HttpProblem::invalid("topic", error.to_string()).expected("a topic filter such as sensors/#"));
    }
    let filter = TraceFilter {
        client_id: query.client_id.map(Into::into),
        user_name: query.user_name.map(Into::into),
        address,
        topic: query.topic.map(Into::into),
    };
    match filter {
        TraceFilter {
            client_id: None,
            user_name: None,
            address: None,
            topic: None,
        } => Err(HttpProblem::invalid("client_id", "the trace has no condition")
            .expected("client_id, user_name, address or topic")),
        filter => Ok(filter),
    }
}

fn address(text: &str) -> Result<IpAddr, HttpProblem> {
    let address = text.parse::<IpAddr>().map(|address| address.to_canonical());
    address.map_err(|_| HttpProblem::invalid("address", "not an IP address").expected("an address such as 10.1.2.3"))
}

async fn serve(upgrading: PendingUpgrade, mut viewing: TraceReader, limits: TraceLimits, permit: OwnedSemaphorePermit) {
    let _permit = permit;
    let Some(mut socket) = ServerWebSocket::new(upgrading).await else {
        return;
    };
    let begin = json!({
        "type": "begin",
        "per_second": limits.per_second,
        "payload_bytes": limits.payload_bytes,
    });
    let mut is_open = socket.send(&begin.to_string()).await.is_ok();
    while is_open {
        is_open = match socket.wait_for(timeout(QUIET, viewing.next())).await {
            WaitResult::Ready(Ok(Some(entry))) => socket.send(&entry.to_string()).await.is_ok(),
            WaitResult::Ready(Ok(None)) | WaitResult::Closed => break,
            WaitResult::Ready(Err(_)) => match viewing.take_omitted() {
                Some(entry) => socket.send(&entry.to_string()).await.is_ok(),
                None => true,
            },
        };
    }
    socket.close().await;
}
