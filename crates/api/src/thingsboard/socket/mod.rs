//! The WebSocket on which people watch telemetry, attributes, entities and alarms.
//!
//! A connection has its subscriptions, a bounded queue of updates, and one writer. While a client takes nothing, updates wait
//! in the queue; what has no room there is counted, and the subscriptions are then read anew and shown as they are. So a slow
//! client sees fewer steps, never a wrong state, and holds nobody up.

mod commands;
mod frames;
mod seats;
mod session;
mod subscription;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use schemars::JsonSchema;
use serde::Deserialize;

use super::auth::person_of;
use super::failure::{Code, Failure};
use super::operation::query_of;
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::websocket::upgrade;
pub use seats::Seats;
use session::Session;

pub fn endpoints() -> Vec<Endpoint> {
    let endpoint = |path, id, description| {
        Endpoint::get(path, id, open)
            .tag("WebSocket")
            .says("Watch telemetry, attributes, entities and alarms", description)
            .needs(Need::NoPerson)
            .query::<TokenQuery>()
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::UNAUTHORIZED)
            .upgrades("The WebSocket is open.")
    };
    vec![
        endpoint(
            "/api/ws",
            "open_socket",
            "The first message logs in: `{\"authCmd\": {\"cmdId\": 0, \"token\": \"…\"}}`; commands have a type each.",
        ),
        endpoint(
            "/api/ws/plugins/telemetry",
            "open_telemetry_socket",
            "The older path, with the token in the query; commands are in lists by type. Both understand both.",
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
struct TokenQuery {
    /// An access token; without it the first message has to log in.
    token: Option<String>,
}

async fn open(State(app): State<App>, mut request: Request) -> Result<Response, Failure> {
    let query: TokenQuery = query_of(request.uri())?;
    let world = app.world().cloned().ok_or_else(Failure::not_found)?;
    let login = match query.token {
        Some(token) => Some((person_of(&app, token.clone(), false).await?, token)),
        None => None,
    };
    let person = login.as_ref().map(|(person, _)| (person, world.sockets_of(person)));
    let Some(seat) = world.watchers().take(person) else {
        let failure = Failure::new(Code::TooManyRequests, "Too many WebSockets are open");
        return Err(failure.with_status(StatusCode::SERVICE_UNAVAILABLE));
    };
    let (response, on_upgrade) = upgrade(&mut request)?;
    let session = Session::new(app, &world, login, seat);
    tokio::spawn(serve(session, on_upgrade));
    Ok(response)
}

async fn serve(session: Session, on_upgrade: OnUpgrade) {
    // A client that went before the upgrade was done needs nothing.
    if let Ok(upgraded) = on_upgrade.await {
        let (reader, writer) = frames::split(upgraded);
        session.run(reader, writer).await;
    }
}
