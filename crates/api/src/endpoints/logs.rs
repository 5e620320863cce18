//! The audit log, and the last lines of the server log.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;
use web::audit::{Audit, AuditEntry, AuditFilter};
use web::guard::RequiredAccess;
use web::paging::{self, Page};
use web::problem::HttpProblem;
use web::query::Params;
use web::scope::Scope;

use crate::app::Endpoint;
use crate::log_ring::{LogLine, LogLineLevel, LogRing};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// This user; for a user of the identity provider, `oidc:` and the name; for an API key, `key:` and its name.
    user: Option<String>,
    /// This operation, such as `add_user`.
    operation: Option<String>,
    /// Part of the entry, ignoring case.
    text: Option<String>,
    /// Entries at or after this time.
    from_unix_ms: Option<u64>,
    /// Entries before this time.
    until_unix_ms: Option<u64>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogsQuery {
    /// Lines of this level or a more severe one.
    level: Option<LogLineLevel>,
    /// Part of the text or the target, ignoring case.
    text: Option<String>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/audit", "audit", RequiredAccess::Admin, audit)
            .tag("Node")
            .scope(Scope::Audit)
            .describe(
                "Audit log of the API",
                "Newest first: every change and every login with its user, time, address, body (without secrets) and the \
                 status of the answer; also requests that were rejected because of the role or the scopes. Publishing and \
                 tests are not logged. The log keeps 20 MiB.",
            )
            .query::<AuditQuery>()
            .returns::<Page<AuditEntry>>("A page."),
        Endpoint::get("/api/v1/logs", "logs", RequiredAccess::Viewer, logs)
            .tag("Node")
            .scope(Scope::Monitoring)
            .describe(
                "Last lines of the server log",
                "Newest first, from `log.level` on: at most 5000 lines or 2 MiB since the server started.",
            )
            .query::<LogsQuery>()
            .returns::<Page<LogLine>>("A page."),
    ]
}

async fn audit(
    State(audit): State<Arc<Audit>>,
    Params(query): Params<AuditQuery>,
) -> Result<Json<Page<AuditEntry>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let before = before(query.cursor.as_deref())?;
    let filter = AuditFilter {
        user: query.user,
        operation: query.operation,
        text: query.text,
        from_unix_ms: query.from_unix_ms,
        until_unix_ms: query.until_unix_ms,
    };
    let (items, is_more) = web::block(move || audit.read(&filter, before, limit)).await?;
    let cursor = items.last().filter(|_| is_more).map(|entry| entry.number.to_string());
    Ok(Json(Page { items, cursor }))
}

async fn logs(
    State(log): State<Arc<LogRing>>,
    Params(query): Params<LogsQuery>,
) -> Result<Json<Page<LogLine>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let before = before(query.cursor.as_deref())?;
    let level = query.level.unwrap_or(LogLineLevel::Trace);
    let text = query.text.unwrap_or_default().to_lowercase();
    let wanted = |line: &LogLine| {
        line.level <= level
            && (text.is_empty()
                || line.text.to_lowercase().contains(&text)
                || line.target.to_lowercase().contains(&text))
    };
    let (items, is_more) = log.read(wanted, before, limit);
    let cursor = items.last().filter(|_| is_more).map(|line| line.number.to_string());
    Ok(Json(Page { items, cursor }))
}

/// Number of the last entry of the previous page.
fn before(cursor: Option<&str>) -> Result<u64, HttpProblem> {
    let number = cursor.map_or(Ok(u64::MAX), str::parse);
    number.map_err(|_| {
        HttpProblem::bad_request("the cursor is invalid: use the `cursor` of the previous page").at("cursor")
    })
}
