//! Bans of clients. A ban takes precedence over credentials.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use auth::{Ban, BanCandidate, BanError, BanKind};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use broker::{ClientIdentity, SessionSlot, Shard, ShardId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::error;
use web::audit_state::ChangeTarget;
use web::body;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::paging::{self, CursorPosition, Page};
use web::problem::HttpProblem;
use web::query::Params;
use web::unix_ms;

use crate::access_admin::AccessAdmin;
use crate::app::{App, Endpoint};
use crate::shards::Shards;

const BODY_MAX: usize = 16 * 1024;

/// The client property that a ban is compared with.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BanKind")]
pub enum BanKindView {
    ClientId,
    UserName,
    /// An IP address.
    Address,
    /// A regular expression that may match anywhere in the client ID.
    ClientIdPattern,
    UserNamePattern,
    /// A network, such as `10.0.0.0/8`.
    Network,
}

impl From<BanKindView> for BanKind {
    fn from(kind: BanKindView) -> BanKind {
        match kind {
            BanKindView::ClientId => BanKind::ClientId,
            BanKindView::UserName => BanKind::UserName,
            BanKindView::Address => BanKind::Address,
            BanKindView::ClientIdPattern => BanKind::ClientIdPattern,
            BanKindView::UserNamePattern => BanKind::UserNamePattern,
            BanKindView::Network => BanKind::Network,
        }
    }
}

impl From<BanKind> for BanKindView {
    fn from(kind: BanKind) -> BanKindView {
        match kind {
            BanKind::ClientId => BanKindView::ClientId,
            BanKind::UserName => BanKindView::UserName,
            BanKind::Address => BanKindView::Address,
            BanKind::ClientIdPattern => BanKindView::ClientIdPattern,
            BanKind::UserNamePattern => BanKindView::UserNamePattern,
            BanKind::Network => BanKindView::Network,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Banned {
    pub kind: BanKindView,
    /// The client ID, user name, address, pattern or network.
    pub who: String,
    pub reason: String,
    /// User who set the ban.
    pub by: String,
    pub at_unix_ms: u64,
    /// `null`: it does not expire.
    pub until_unix_ms: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBan {
    kind: BanKindView,
    #[schemars(length(min = 1, max = 1024))]
    who: String,
    /// A note for other operators.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    reason: String,
    /// When the ban expires. Absent: never.
    until_unix_ms: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BannedQuery {
    kind: Option<BanKindView>,
    /// Part of the banned value, ignoring case.
    who: Option<String>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/banned";
    vec![
        Endpoint::get(ALL, "banned", RequiredAccess::Viewer, list)
            .tag("Access")
            .describe("Bans, page by page", "Bans in force, sorted by kind and value.")
            .query::<BannedQuery>()
            .returns::<Page<Banned>>("A page."),
        Endpoint::post(ALL, "ban", RequiredAccess::Admin, ban)
            .tag("Access")
            .describe(
                "Ban clients",
                "Applies at once and after a restart. Matching clients are disconnected, and receive Banned (0x8A) when they connect again; \
                 their sessions stay. Ban a device of the platform by its client ID or address.",
            )
            .takes::<NewBan>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<Banned>("Banned."),
        Endpoint::delete("/api/v1/banned/{kind}/{who}", "lift_ban", RequiredAccess::Admin, lift)
            .tag("Access")
            .describe("Delete a ban", "The clients may connect again at once.")
            .path_parameter("kind", "Kind from the list, such as `client_id`.")
            .path_parameter("who", "Percent-encoded, including slashes.")
            .returns_nothing("Lifted.")
            .changes(ban_state),
    ]
}

/// For the audit log.
fn ban_state(app: &App, target: &ChangeTarget) -> Option<Value> {
    let access: Arc<dyn AccessAdmin> = app.part();
    let kind = BanKind::parse(target.parameter("kind"))?;
    let who = target.parameter("who");
    let bans = access.bans().list(unix_ms(SystemTime::now())).into_iter();
    let ban = bans.into_iter().find(|ban| ban.kind == kind && ban.who == who)?;
    serde_json::to_value(view(ban)).ok()
}

async fn list(
    State(access): State<Arc<dyn AccessAdmin>>,
    Params(query): Params<BannedQuery>,
) -> Result<Json<Page<Banned>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let kind = query.kind.map(BanKind::from);
    let part = query.who.as_deref().unwrap_or("").to_ascii_lowercase();
    let place = |ban: &Ban| format!("{} {}", ban.kind.name(), ban.who);
    let after = CursorPosition::parse(query.cursor.as_deref())?.within;
    let mut bans = access.bans().list(unix_ms(SystemTime::now()));
    bans.sort_by_cached_key(place);
    bans.retain(|ban| {
        kind.is_none_or(|kind| kind == ban.kind)
            && ban.who.to_ascii_lowercase().contains(&part)
            && place(ban).as_bytes() > after.as_slice()
    });
    let is_more = bans.len() > limit;
    bans.truncate(limit);
    let cursor = bans.last().filter(|_| is_more).map(|last| CursorPosition {
        shard: 0,
        within: place(last).into_bytes(),
    });
    let cursor = cursor.map(|place| place.to_text());
    let items = bans.into_iter().map(view).collect();
    Ok(Json(Page { items, cursor }))
}

async fn ban(
    State(access): State<Arc<dyn AccessAdmin>>,
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(new): body::Json<NewBan>,
) -> Result<(StatusCode, Json<Banned>), HttpProblem> {
    let now = unix_ms(SystemTime::now());
    if new.until_unix_ms.is_some_and(|until| until <= now) {
        return Err(HttpProblem::invalid("until_unix_ms", "is in the past").expected(format!("more than {now}")));
    }
    let ban = Ban {
        kind: new.kind.into(),
        who: new.who,
        reason: new.reason,
        by: login.user.to_string(),
        at_unix_ms: now,
        until_unix_ms: new.until_unix_ms,
    };
    let admin = access.clone();
    let ban = web::block(move || admin.bans().add(ban, now)).await?.map_err(problem)?;
    disconnect(access, &shards, now).await?;
    Ok((StatusCode::CREATED, Json(view(ban))))
}

async fn lift(
    State(access): State<Arc<dyn AccessAdmin>>,
    Path((kind, who)): Path<(String, String)>,
) -> Result<StatusCode, HttpProblem> {
    let unknown = || HttpProblem::not_found("no such ban");
    let kind = BanKind::parse(&kind).ok_or_else(unknown)?;
    let lifted = web::block(move || access.bans().remove(kind, &who)).await?;
    match lifted.map_err(problem)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(unknown()),
    }
}

/// Disconnects all banned clients.
async fn disconnect(access: Arc<dyn AccessAdmin>, shards: &Shards, now: u64) -> Result<(), HttpProblem> {
    let is_banned = move |who: &ClientIdentity| {
        let suspect = BanCandidate {
            client_id: &who.client_id,
            user_name: who.user_name.as_deref(),
            address: who.address,
        };
        access.bans().find(&suspect, now).is_some()
    };
    for shard in (0..shards.count()).map(ShardId) {
        let mut from = Some(SessionSlot::FIRST);
        while let Some(slot) = from {
            let is_banned = is_banned.clone();
            let visit = move |shard: &mut Shard, now| shard.operator(now).kick_banned(slot, is_banned);
            from = shards.on_shard(shard, visit).await?;
        }
    }
    Ok(())
}

fn problem(error: BanError) -> HttpProblem {
    let detail = error.to_string();
    match error {
        BanError::Exists => HttpProblem::conflict("exists", "Already exists", detail).at("who"),
        BanError::ReasonLength => HttpProblem::invalid("reason", detail),
        BanError::Length | BanError::Pattern(_) | BanError::TooMany(_) => HttpProblem::invalid("who", detail),
        BanError::Address => HttpProblem::invalid("who", detail).expected(IpAddr::from([10, 1, 2, 3]).to_string()),
        BanError::Network(_) => HttpProblem::invalid("who", detail).expected("10.0.0.0/8"),
        BanError::Storage { .. } => {
            error!(error = detail, "a change of the bans has failed");
            HttpProblem::internal(detail)
        }
    }
}

fn view(ban: Ban) -> Banned {
    Banned {
        kind: ban.kind.into(),
        who: ban.who,
        reason: ban.reason,
        by: ban.by,
        at_unix_ms: ban.at_unix_ms,
        until_unix_ms: ban.until_unix_ms,
    }
}
