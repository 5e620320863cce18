//! Bans: who may not connect, whatever it offers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use auth::{Ban, BanError, BanKind, Suspect};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use broker::{Identity, Shard, ShardId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::error;

use crate::app::{App, unix_ms};
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::Login;
use crate::paging::{self, Page, Place};
use crate::problem::Problem;
use crate::query::Params;

const BODY_MAX: usize = 16 * 1024;

/// What a ban goes by.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BanKind")]
pub enum Kind {
    ClientId,
    UserName,
    /// One IP address.
    Address,
    /// A regular expression that is found anywhere in the client id.
    ClientIdPattern,
    UserNamePattern,
    /// Such as `10.0.0.0/8`.
    Network,
}

impl From<Kind> for BanKind {
    fn from(kind: Kind) -> BanKind {
        match kind {
            Kind::ClientId => BanKind::ClientId,
            Kind::UserName => BanKind::UserName,
            Kind::Address => BanKind::Address,
            Kind::ClientIdPattern => BanKind::ClientIdPattern,
            Kind::UserNamePattern => BanKind::UserNamePattern,
            Kind::Network => BanKind::Network,
        }
    }
}

impl From<BanKind> for Kind {
    fn from(kind: BanKind) -> Kind {
        match kind {
            BanKind::ClientId => Kind::ClientId,
            BanKind::UserName => Kind::UserName,
            BanKind::Address => Kind::Address,
            BanKind::ClientIdPattern => Kind::ClientIdPattern,
            BanKind::UserNamePattern => Kind::UserNamePattern,
            BanKind::Network => Kind::Network,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Banned {
    pub kind: Kind,
    /// The client id, user name, address, pattern or network.
    pub who: String,
    pub reason: String,
    /// Who has banned it.
    pub by: String,
    pub at_unix_ms: u64,
    /// `null`: for good.
    pub until_unix_ms: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBan {
    kind: Kind,
    #[schemars(length(min = 1, max = 1024))]
    who: String,
    /// For other operators.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    reason: String,
    /// When it ends by itself; without it, never.
    until_unix_ms: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BannedQuery {
    kind: Option<Kind>,
    /// Part of who is banned, ignoring case.
    who: Option<String>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/banned";
    vec![
        Endpoint::get(ALL, "banned", list)
            .tag("Access")
            .says("Bans, page by page", "Those that hold, sorted by kind and name.")
            .query::<BannedQuery>()
            .returns::<Page<Banned>>("A page."),
        Endpoint::post(ALL, "ban", ban)
            .tag("Access")
            .says(
                "Ban clients",
                "Holds at once and after a restart. Who falls under it is disconnected, and told Banned (0x8A) when it connects again; \
                 its session stays. Devices of the platform are banned by client id or address.",
            )
            .takes::<NewBan>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .creates::<Banned>("Banned."),
        Endpoint::delete("/api/v1/banned/{kind}/{who}", "lift_ban", lift)
            .tag("Access")
            .says("Lift a ban", "Clients may connect again at once.")
            .path_parameter("kind", "As in the list, such as `client_id`.")
            .path_parameter("who", "Percent-encoded, also its slashes.")
            .returns_nothing("Lifted."),
    ]
}

async fn list(State(app): State<App>, Params(query): Params<BannedQuery>) -> Result<Json<Page<Banned>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let kind = query.kind.map(BanKind::from);
    let part = query.who.as_deref().unwrap_or("").to_ascii_lowercase();
    let place = |ban: &Ban| format!("{} {}", ban.kind.name(), ban.who);
    let after = Place::parse(query.cursor.as_deref())?.within;
    let mut bans = app.access().bans().list(unix_ms(SystemTime::now()));
    bans.sort_by_cached_key(place);
    bans.retain(|ban| {
        kind.is_none_or(|kind| kind == ban.kind)
            && ban.who.to_ascii_lowercase().contains(&part)
            && place(ban).as_bytes() > after.as_slice()
    });
    let is_more = bans.len() > limit;
    bans.truncate(limit);
    let cursor = bans.last().filter(|_| is_more).map(|last| Place {
        shard: 0,
        within: place(last).into_bytes(),
    });
    let cursor = cursor.map(|place| place.to_text());
    let items = bans.into_iter().map(view).collect();
    Ok(Json(Page { items, cursor }))
}

async fn ban(
    State(app): State<App>,
    Extension(login): Extension<Login>,
    body::Json(new): body::Json<NewBan>,
) -> Result<(StatusCode, Json<Banned>), Problem> {
    let now = unix_ms(SystemTime::now());
    if new.until_unix_ms.is_some_and(|until| until <= now) {
        return Err(Problem::invalid("until_unix_ms", "is in the past").expected(format!("more than {now}")));
    }
    let ban = Ban {
        kind: new.kind.into(),
        who: new.who,
        reason: new.reason,
        by: login.user.to_string(),
        at_unix_ms: now,
        until_unix_ms: new.until_unix_ms,
    };
    let access = app.access().clone();
    let ban = app.block(move || access.bans().add(ban, now)).await?.map_err(problem)?;
    disconnect(&app, now).await?;
    Ok((StatusCode::CREATED, Json(view(ban))))
}

async fn lift(State(app): State<App>, Path((kind, who)): Path<(String, String)>) -> Result<StatusCode, Problem> {
    let unknown = || Problem::not_found("there is no such ban");
    let kind = BanKind::parse(&kind).ok_or_else(unknown)?;
    let access = app.access().clone();
    let lifted = app.block(move || access.bans().remove(kind, &who)).await?;
    match lifted.map_err(problem)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(unknown()),
    }
}

/// Ends the connections of all that are banned.
async fn disconnect(app: &App, now: u64) -> Result<(), Problem> {
    let access = Arc::clone(app.access());
    let is_banned = move |who: &Identity| {
        let suspect = Suspect {
            client_id: &who.client_id,
            user_name: who.user_name.as_deref(),
            address: who.address,
        };
        access.bans().find(&suspect, now).is_some()
    };
    for shard in (0..app.net().shards()).map(ShardId) {
        let mut from = Some(0);
        while let Some(slot) = from {
            let is_banned = is_banned.clone();
            let visit = move |shard: &mut Shard, now| shard.kick_banned(now, slot, is_banned);
            from = app.on_shard(shard, visit).await?;
        }
    }
    Ok(())
}

fn problem(error: BanError) -> Problem {
    let detail = error.to_string();
    match error {
        BanError::Exists => Problem::conflict("exists", "It exists already", detail).at("who"),
        BanError::ReasonLength => Problem::invalid("reason", detail),
        BanError::Length | BanError::Pattern(_) | BanError::TooMany(_) => Problem::invalid("who", detail),
        BanError::Address => Problem::invalid("who", detail).expected(IpAddr::from([10, 1, 2, 3]).to_string()),
        BanError::Network(_) => Problem::invalid("who", detail).expected("10.0.0.0/8"),
        BanError::Storage(source) => {
            error!(error = %source, "a change of bans could not be kept");
            Problem::internal(detail)
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
