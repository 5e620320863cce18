//! The node's alarms, active and ended.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use crate::alarms::{Alarms, NodeAlarm};
use crate::app::Endpoint;
use web::guard::RequiredAccess;

/// Alarms of one node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeAlarms {
    /// Newest first.
    pub active: Vec<NodeAlarm>,
    /// Most recently ended first.
    pub ended: Vec<NodeAlarm>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/alarms";
    vec![
        Endpoint::get(ALL, "alarms", RequiredAccess::Viewer, list)
            .tag("Node")
            .describe(
                "The node's alarms",
                "Problems that need an operator: `journal_full`, `journal_failed`, `journal_damaged`; `action:`, `source:` and `connector:` \
                 with the name of the failed component; `buffer:` with the action whose buffer is full; `certificate:` with the listener \
                 whose certificate expires within 14 days; `open_files`; `audit_log_failed`. The server checks every second, open files and damage every 10 \
                 seconds, certificates every 60 seconds. An alarm ends when its problem is gone. The server remembers the last 1000 ended \
                 alarms until it restarts. Alarms of devices belong to the device platform.",
            )
            .returns::<NodeAlarms>("Active and ended alarms."),
        Endpoint::delete(ALL, "delete_ended_alarms", RequiredAccess::Operator, forget)
            .tag("Node")
            .describe("Delete the ended alarms", "Active alarms stay.")
            .returns_nothing("Forgotten."),
    ]
}

async fn list(State(alarms): State<Arc<Alarms>>) -> Json<NodeAlarms> {
    Json(NodeAlarms {
        active: alarms.active(),
        ended: alarms.ended(),
    })
}

async fn forget(State(alarms): State<Arc<Alarms>>) -> StatusCode {
    alarms.forget_ended();
    StatusCode::NO_CONTENT
}
