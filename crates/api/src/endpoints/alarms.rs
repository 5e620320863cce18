//! The node's alarms: what is wrong with it now, and what was.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use crate::alarms::Alarm;
use crate::app::App;
use crate::endpoint::Endpoint;

/// Of one node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeAlarms {
    /// The newest first.
    pub active: Vec<Alarm>,
    /// The last to end first.
    pub ended: Vec<Alarm>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/alarms";
    vec![
        Endpoint::get(ALL, "alarms", list)
            .tag("Node")
            .says(
                "The node's alarms",
                "What an operator has to do something about: `journal_full`, `journal_failed`, `journal_damaged`, `action:`, `source:` and `connector:` with \
                 the name of what does not work, `buffer:` and the action whose buffer is full, `certificate:` and the listener whose \
                 certificate expires within 14 days, `open_files`. They are looked for every second, open files and damage every ten and \
                 certificates every sixty, and end by themselves. The last 1000 that have ended are kept until the server restarts. Alarms of devices are elsewhere.",
            )
            .returns::<NodeAlarms>("All of them."),
        Endpoint::delete(ALL, "forget_ended_alarms", forget)
            .tag("Node")
            .says("Forget the alarms that have ended", "Those that are active stay.")
            .returns_nothing("Forgotten."),
    ]
}

async fn list(State(app): State<App>) -> Json<NodeAlarms> {
    Json(NodeAlarms {
        active: app.alarms().active(),
        ended: app.alarms().ended(),
    })
}

async fn forget(State(app): State<App>) -> StatusCode {
    app.alarms().forget_ended();
    StatusCode::NO_CONTENT
}
