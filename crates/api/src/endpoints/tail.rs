//! Live samples of a rule over a WebSocket.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use integration::{TAIL_PER_SECOND_MAX, TailEntry, TailListener};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use web::guard::RequiredAccess;
use web::problem::HttpProblem;
use web::query::Params;
use web::websocket::{PendingUpgrade, ServerWebSocket, WaitResult, upgrade_guarded};

use super::integration::RuleEngine;
use crate::app::Endpoint;
use crate::concurrency::Viewers;

const PER_SECOND: u32 = 50;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TailQuery {
    /// Highest number of samples per second. Default: 50.
    #[schemars(range(min = 1, max = 1000))]
    per_second: Option<u32>,
}

/// A WebSocket frame.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TailFrame<'a> {
    /// Sampling has started.
    Begin {
        rule: &'a str,
        per_second: u32,
    },
    Sample(&'a TailEntry),
    /// Sampling has ended.
    End {
        reason: &'a str,
    },
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/rules/{id}/tail", "tail_rule", RequiredAccess::Viewer, tail)
            .tag("Integration")
            .describe(
                "Watch a rule",
                "A WebSocket: samples of the rule's input, output and errors, as JSON in text frames. \
                 Clients that cannot set headers offer the sub-protocols `tidewire` and `bearer.<token>`.",
            )
            .path_parameter("id", "ID of the rule.")
            .query::<TailQuery>()
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::NOT_FOUND)
            .upgrades("The WebSocket is open."),
    ]
}

async fn tail(
    State(engine): State<RuleEngine>,
    State(viewers): State<Viewers>,
    Path(id): Path<String>,
    Params(query): Params<TailQuery>,
    mut request: Request,
) -> Result<Response, HttpProblem> {
    let per_second = query.per_second.unwrap_or(PER_SECOND);
    if !(1..=TAIL_PER_SECOND_MAX).contains(&per_second) {
        let expected = format!("1 to {TAIL_PER_SECOND_MAX}");
        return Err(HttpProblem::invalid("per_second", format!("is {per_second}")).expected(expected));
    }
    let Some(permit) = viewers.admit() else {
        return Err(HttpProblem::unavailable("too many WebSockets watch rules"));
    };
    let rule = id.clone();
    let listener = engine.read(move |engine| engine.tail(&rule, per_second)).await?;
    let (response, upgrading) = upgrade_guarded(&mut request)?;
    let viewer = Viewer { id, per_second, permit };
    tokio::spawn(viewer.serve(upgrading, listener));
    Ok(response)
}

struct Viewer {
    id: String,
    per_second: u32,
    permit: OwnedSemaphorePermit,
}

impl Viewer {
    async fn serve(self, upgrading: PendingUpgrade, mut listener: TailListener) {
        let _permit = self.permit;
        let Some(mut socket) = ServerWebSocket::new(upgrading).await else {
            return;
        };
        let begin = TailFrame::Begin {
            rule: &self.id,
            per_second: self.per_second,
        };
        let mut is_open = socket.send(&text(&begin)).await.is_ok();
        while is_open {
            is_open = match socket.wait_for(listener.next()).await {
                WaitResult::Ready(Some(entry)) => socket.send(&text(&TailFrame::Sample(&entry))).await.is_ok(),
                WaitResult::Ready(None) => {
                    let reason = "the rule was deleted";
                    _ = socket.send(&text(&TailFrame::End { reason })).await;
                    break;
                }
                WaitResult::Closed => break,
            };
        }
        socket.close().await;
    }
}

fn text(frame: &TailFrame<'_>) -> String {
    serde_json::to_string(frame).expect("a frame can be serialized")
}
