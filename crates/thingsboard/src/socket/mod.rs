//! The WebSocket for subscriptions to telemetry, attributes, entities and alarms.
//!
//! A connection has its subscriptions, a bounded queue of updates, and one writer. While a client does not read,
//! updates
//! wait in the queue. If the queue overflows, the server reads all subscriptions again and sends their current state.
//! So
//! a slow client misses intermediate values, but never sees a wrong state and never delays others.

mod commands;
pub mod connection_limits;
mod frames;
mod session;
mod subscription;

/// For the page of limits.
pub(super) const SOCKETS_MAX: u64 = connection_limits::CONNECTIONS_MAX as u64;
pub(super) const SOCKETS_OF_TENANT_MAX: u64 = connection_limits::OF_TENANT_MAX as u64;
pub(super) const SUBSCRIPTIONS_MAX: u64 = session::SUBSCRIPTIONS_MAX as u64;

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use schemars::JsonSchema;
use serde::Deserialize;

use super::admission::Admission;
use super::call::CallServices;
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::operation::query_of;
use crate::services::Endpoint;
use session::SocketSession;
use web::answer_memory::ClientAnswers;
use web::guard::{PeerAddress, RequiredAccess};
use web::websocket::upgrade;

pub fn endpoints() -> Vec<Endpoint> {
    let endpoint = |path, id, description| {
        Endpoint::get(path, id, RequiredAccess::Nothing, open)
            .tag("WebSocket")
            .describe("Subscribe to telemetry, attributes, entities and alarms", description)
            .query::<SocketTokenQuery>()
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::UNAUTHORIZED)
            .upgrades("The WebSocket is open.")
    };
    vec![
        endpoint(
            "/api/ws",
            "open_socket",
            "The first message authenticates: `{\"authCmd\": {\"cmdId\": 0, \"token\": \"…\"}}`; each command has a type.",
        ),
        endpoint(
            "/api/ws/plugins/telemetry",
            "open_telemetry_socket",
            "The older path, with the token in the query; commands are in lists by type. Both paths accept both formats.",
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
struct SocketTokenQuery {
    /// An access token. Without it the first message must authenticate.
    token: Option<String>,
}

async fn open(
    State(services): State<CallServices>,
    State(admission): State<Admission>,
    Extension(peer): Extension<PeerAddress>,
    Extension(answers): Extension<ClientAnswers>,
    mut request: Request,
) -> Result<Response, ThingsboardError> {
    let query: SocketTokenQuery = query_of(request.uri())?;
    let access = services.platform_access.clone();
    let login = match query.token {
        Some(token) => Some((admission.principal_of(token.clone(), false).await?, token)),
        None => None,
    };
    let principal = login
        .as_ref()
        .map(|(principal, _)| (principal, access.sockets_of(principal)));
    let Some(seat) = access.watchers().take(principal, peer.0) else {
        let failure = ThingsboardError::new(ThingsboardErrorCode::TooManyRequests, "Too many WebSockets are open");
        return Err(failure.with_status(StatusCode::SERVICE_UNAVAILABLE));
    };
    let (response, on_upgrade) = upgrade(&mut request)?;
    let session = SocketSession::new(services, admission, login, seat);
    tokio::spawn(serve(session, on_upgrade, answers));
    Ok(response)
}

async fn serve(session: SocketSession, on_upgrade: OnUpgrade, answers: ClientAnswers) {
    // The upgrade fails if the client has disconnected.
    if let Ok(upgraded) = on_upgrade.await {
        let (reader, writer) = frames::split(upgraded, answers);
        session.run(reader, writer).await;
    }
}
