//! What the node says of itself afterwards: the audit log, and the last lines of the ordinary one.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::app::App;
use crate::audit::{AuditEntry, AuditFilter};
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::log_ring::{LogLevel, LogLine};
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::query::Params;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Exactly this user; `key:` and its name for an API key.
    user: Option<String>,
    /// Exactly this operation, such as `add_user`.
    operation: Option<String>,
    /// Part of the entry, ignoring case.
    text: Option<String>,
    /// From this time on.
    from_unix_ms: Option<u64>,
    /// Before this time.
    until_unix_ms: Option<u64>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogsQuery {
    /// Of this level or a graver one.
    level: Option<LogLevel>,
    /// Part of the text or the target, ignoring case.
    text: Option<String>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/audit", "audit", audit)
            .tag("Node")
            .says(
                "Who changed what over the API",
                "The newest first: every change and every login, with who, when, from where, what was sent (without secrets) and the \
                 status of the answer; also what was refused for want of a role. Publishing and trying things out are not in it. \
                 20 MiB are kept.",
            )
            .needs(Need::Admin)
            .query::<AuditQuery>()
            .returns::<Page<AuditEntry>>("A page."),
        Endpoint::get("/api/v1/logs", "logs", logs)
            .tag("Node")
            .says(
                "The last lines of the log",
                "The newest first, as far as `log.level` lets them through: 5000 lines or 2 MiB since the server started.",
            )
            .query::<LogsQuery>()
            .returns::<Page<LogLine>>("A page."),
    ]
}

async fn audit(State(app): State<App>, Params(query): Params<AuditQuery>) -> Result<Json<Page<AuditEntry>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let before = before(query.cursor.as_deref())?;
    let filter = AuditFilter {
        user: query.user,
        operation: query.operation,
        text: query.text,
        from_unix_ms: query.from_unix_ms,
        until_unix_ms: query.until_unix_ms,
    };
    let own = app.clone();
    let (items, is_more) = app.block(move || own.audit().read(&filter, before, limit)).await?;
    let cursor = items.last().filter(|_| is_more).map(|entry| entry.number.to_string());
    Ok(Json(Page { items, cursor }))
}

async fn logs(State(app): State<App>, Params(query): Params<LogsQuery>) -> Result<Json<Page<LogLine>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let before = before(query.cursor.as_deref())?;
    let level = query.level.unwrap_or(LogLevel::Trace);
    let text = query.text.unwrap_or_default().to_lowercase();
    let wanted = |line: &LogLine| {
        line.level <= level
            && (text.is_empty()
                || line.text.to_lowercase().contains(&text)
                || line.target.to_lowercase().contains(&text))
    };
    let (items, is_more) = app.config().log.read(wanted, before, limit);
    let cursor = items.last().filter(|_| is_more).map(|line| line.number.to_string());
    Ok(Json(Page { items, cursor }))
}

/// The number of the last entry of the page before.
fn before(cursor: Option<&str>) -> Result<u64, Problem> {
    let number = cursor.map_or(Ok(u64::MAX), str::parse);
    number.map_err(|_| Problem::bad_request("this cursor did not come from here").at("cursor"))
}
