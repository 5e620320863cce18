//! The live tail of a rule, over a WebSocket.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use integration::{Entry, Listener, TAIL_PER_SECOND_MAX};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::problem::Problem;
use crate::query::Params;
use crate::websocket::{Next, Upgrading, WebSocket, upgrade_guarded};

const PER_SECOND: u32 = 50;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TailQuery {
    /// How many samples a second at most; 50 if it is not given.
    #[schemars(range(min = 1, max = 1000))]
    per_second: Option<u32>,
}

/// One frame.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Frame<'a> {
    /// What the rule looks at from now on is in the sample.
    Begin {
        rule: &'a str,
        per_second: u32,
    },
    Sample(&'a Entry),
    /// There will be no more.
    End {
        reason: &'a str,
    },
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/rules/{id}/tail", "tail_rule", tail)
            .tag("Integration")
            .says(
                "Watch a rule",
                "A WebSocket: a sample of what the rule looks at, what it puts out and what goes wrong, as JSON in frames of text. \
                 Where no header can be set, offer the sub-protocols `tidewire` and `bearer.<token>`.",
            )
            .path_parameter("id", "The rule's id.")
            .query::<TailQuery>()
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::NOT_FOUND)
            .upgrades("The WebSocket is open."),
    ]
}

async fn tail(
    State(app): State<App>,
    Path(id): Path<String>,
    Params(query): Params<TailQuery>,
    mut request: Request,
) -> Result<Response, Problem> {
    let per_second = query.per_second.unwrap_or(PER_SECOND);
    if !(1..=TAIL_PER_SECOND_MAX).contains(&per_second) {
        let expected = format!("1 to {TAIL_PER_SECOND_MAX}");
        return Err(Problem::invalid("per_second", format!("is {per_second}")).expected(expected));
    }
    let Ok(permit) = Arc::clone(app.viewers()).try_acquire_owned() else {
        return Err(Problem::unavailable("too many watch rules already"));
    };
    let rule = id.clone();
    let listener = app.engine_beside(move |engine| engine.tail(&rule, per_second)).await?;
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
    async fn serve(self, upgrading: Upgrading, mut listener: Listener) {
        let _permit = self.permit;
        let Some(mut socket) = WebSocket::new(upgrading).await else {
            return;
        };
        let begin = Frame::Begin {
            rule: &self.id,
            per_second: self.per_second,
        };
        let mut is_told = socket.send(&text(&begin)).await.is_ok();
        while is_told {
            is_told = match socket.wait_for(listener.next()).await {
                Next::Ready(Some(entry)) => socket.send(&text(&Frame::Sample(&entry))).await.is_ok(),
                Next::Ready(None) => {
                    let reason = "the rule was deleted";
                    _ = socket.send(&text(&Frame::End { reason })).await;
                    break;
                }
                Next::Gone => break,
            };
        }
        socket.close().await;
    }
}

fn text(frame: &Frame<'_>) -> String {
    serde_json::to_string(frame).expect("a frame is plain data")
}
