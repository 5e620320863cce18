//! The live trace of clients, over a WebSocket.

use std::net::IpAddr;
use std::sync::Arc;
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

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::problem::Problem;
use crate::query::Params;
use crate::trace::{PAYLOAD_BYTES_MAX, PER_SECOND_MAX, TraceLimits, Viewing};
use crate::websocket::{Next, Upgrading, WebSocket, upgrade_guarded};

const PER_SECOND: u32 = 200;
const PAYLOAD_BYTES: usize = 256;

/// How soon a viewer that is shown nothing more is told what was left out.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// Exactly this client.
    client_id: Option<String>,
    /// Exactly this user.
    user_name: Option<String>,
    /// Clients at this IP address.
    address: Option<String>,
    /// A topic filter: only PUBLISH to such topics, and SUBSCRIBE and UNSUBSCRIBE that name one or this very filter.
    topic: Option<String>,
    /// Entries a second at most; 200 if it is not given.
    #[schemars(range(min = 1, max = 5000))]
    per_second: Option<u32>,
    /// Bytes of a payload that are shown at most; 256 if it is not given.
    #[schemars(range(max = 4096))]
    payload_bytes: Option<usize>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/trace", "trace", trace)
            .tag("Clients")
            .says(
                "Watch the packets of clients",
                "A WebSocket: every packet of the clients that match, received and sent, decoded, and what happens to them (connected, \
                 refused, disconnected, dropping), as JSON in frames of text. At least one of `client_id`, `user_name`, `address` and \
                 `topic`; all that are given have to match. Passwords are never shown. What is beyond the rate is counted in \
                 `left_out`. Where no header can be set, offer the sub-protocols `tidewire` and `bearer.<token>`.",
            )
            .query::<TraceQuery>()
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .upgrades("The WebSocket is open."),
    ]
}

async fn trace(
    State(app): State<App>,
    Params(query): Params<TraceQuery>,
    mut request: Request,
) -> Result<Response, Problem> {
    let limits = limits(&query)?;
    let filter = filter(query)?;
    let Ok(permit) = Arc::clone(app.viewers()).try_acquire_owned() else {
        return Err(Problem::unavailable("too many watch something already"));
    };
    let (response, upgrading) = upgrade_guarded(&mut request)?;
    let viewing = app.trace(filter, limits).await?;
    tokio::spawn(serve(upgrading, viewing, limits, permit));
    Ok(response)
}

fn limits(query: &TraceQuery) -> Result<TraceLimits, Problem> {
    let limits = TraceLimits {
        per_second: query.per_second.unwrap_or(PER_SECOND),
        payload_bytes: query.payload_bytes.unwrap_or(PAYLOAD_BYTES),
    };
    if !(1..=PER_SECOND_MAX).contains(&limits.per_second) {
        let problem = Problem::invalid("per_second", format!("is {}", limits.per_second));
        return Err(problem.expected(format!("1 to {PER_SECOND_MAX}")));
    }
    if limits.payload_bytes > PAYLOAD_BYTES_MAX {
        let problem = Problem::invalid("payload_bytes", format!("is {}", limits.payload_bytes));
        return Err(problem.expected(format!("0 to {PAYLOAD_BYTES_MAX}")));
    }
    Ok(limits)
}

fn filter(query: TraceQuery) -> Result<TraceFilter, Problem> {
    let address = query.address.as_deref().map(address).transpose()?;
    if let Some(error) = query
        .topic
        .as_deref()
        .and_then(|topic| mqtt::validate_filter(topic).err())
    {
        return Err(Problem::invalid("topic", error.to_string()).expected("a topic filter such as sensors/#"));
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
        } => Err(Problem::invalid("client_id", "nothing says whom to watch")
            .expected("client_id, user_name, address or topic")),
        filter => Ok(filter),
    }
}

fn address(text: &str) -> Result<IpAddr, Problem> {
    let address = text.parse::<IpAddr>().map(|address| address.to_canonical());
    address.map_err(|_| Problem::invalid("address", "not an IP address").expected("an address such as 10.1.2.3"))
}

async fn serve(upgrading: Upgrading, mut viewing: Viewing, limits: TraceLimits, permit: OwnedSemaphorePermit) {
    let _permit = permit;
    let Some(mut socket) = WebSocket::new(upgrading).await else {
        return;
    };
    let begin = json!({
        "type": "begin",
        "per_second": limits.per_second,
        "payload_bytes": limits.payload_bytes,
    });
    let mut is_told = socket.send(&begin.to_string()).await.is_ok();
    while is_told {
        is_told = match socket.wait_for(timeout(QUIET, viewing.next())).await {
            Next::Ready(Ok(Some(entry))) => socket.send(&entry.to_string()).await.is_ok(),
            Next::Ready(Ok(None)) | Next::Gone => break,
            Next::Ready(Err(_)) => match viewing.take_left_out() {
                Some(entry) => socket.send(&entry.to_string()).await.is_ok(),
                None => true,
            },
        };
    }
    socket.close().await;
}
