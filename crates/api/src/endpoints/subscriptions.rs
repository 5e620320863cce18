//! Subscriptions of one client and of all clients, and share groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use broker::{ClientView, SessionSlot, ShardId, SharedMemberView, SubscriptionListFilter, SubscriptionView};
use mqtt::{QoS, ReasonCode, RetainHandling, SubscriptionOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use web::body;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::paging::{self, Page};
use web::problem::HttpProblem;
use web::query::Params;
use web::role::Role;

use crate::access_admin::AccessAdmin;
use crate::app::Endpoint;
use crate::concurrency::SourceQuestions;
use crate::shards::Shards;

/// A subscription of a session.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Subscription")]
pub struct ApiSubscription {
    pub client_id: String,
    /// Topic filter as the client sent it, including `$share/<name>/`.
    pub filter: String,
    /// Maximum QoS.
    #[schemars(range(max = 2))]
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    #[schemars(range(max = 2))]
    pub retain_handling: u8,
    /// Subscription Identifier.
    pub identifier: Option<u32>,
}

/// Members of a shared subscription within one shard.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SharedGroup {
    pub share_name: String,
    pub filter: String,
    pub members: usize,
    pub online: usize,
    /// Messages that wait for a member.
    pub queued: usize,
}

/// Members of a share group, those with the most messages first.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SharedMembers {
    /// Number of all members. The list considers the 2,000 that joined first.
    pub members: usize,
    pub items: Vec<SharedMember>,
}

/// A member of a shared subscription. The numbers cover its whole session, which may have other subscriptions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SharedMember {
    pub client_id: String,
    pub is_connected: bool,
    /// Maximum QoS.
    #[schemars(range(max = 2))]
    pub qos: u8,
    /// Messages sent and not acknowledged.
    pub inflight: usize,
    /// Receive Maximum: highest number of messages in flight.
    pub receive_maximum: u16,
    /// Messages in its queue.
    pub queued: usize,
    /// Bytes of the messages in its queue, in memory and in the journal.
    pub queued_bytes: usize,
    pub messages_sent: u64,
}

/// A subscription to create for a client.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSubscription {
    /// Topic filter.
    #[schemars(length(min = 1, max = 65535))]
    filter: String,
    /// Maximum QoS.
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    #[serde(default)]
    no_local: bool,
    #[serde(default)]
    retain_as_published: bool,
    /// 0: send retained messages; 1: only if the subscription is new; 2: never.
    #[serde(default)]
    #[schemars(range(max = 2))]
    retain_handling: u8,
}

/// Result of the subscription.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GrantedSubscription")]
pub struct GrantedSubscription {
    #[schemars(range(max = 2))]
    pub qos: u8,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterQuery {
    /// Topic filter of the subscription.
    filter: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubscriptionsQuery {
    /// Part of the topic filter.
    filter: Option<String>,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupsQuery {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MembersQuery {
    /// `group` of `$share/group/filter`.
    share_name: String,
    /// Topic filter of the subscription, without `$share/` and the share name.
    filter: String,
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<usize>,
}

/// Limit of the members of one group that a request reads.
const MEMBERS_LOOKED_AT: usize = 2000;

pub fn endpoints() -> Vec<Endpoint> {
    const OF_CLIENT: &str = "/api/v1/clients/{client_id}/subscriptions";
    const ID: &str = "Percent-encoded, including slashes.";
    const BODY_MAX: usize = 256 * 1024;
    vec![
        Endpoint::get(OF_CLIENT, "client_subscriptions", RequiredAccess::Viewer, of_client)
            .tag("Subscriptions")
            .in_namespace()
            .describe("Subscriptions of a client", "All of them.")
            .path_parameter("client_id", ID)
            .returns::<Vec<ApiSubscription>>("Its subscriptions."),
        Endpoint::post(OF_CLIENT, "subscribe_client", RequiredAccess::Admin, subscribe)
            .tag("Subscriptions")
            .in_namespace()
            .describe(
                "Subscribe a client",
                "As if the client had sent SUBSCRIBE: its access rules apply, and retained messages are sent.",
            )
            .path_parameter("client_id", ID)
            .takes::<NewSubscription>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .creates::<GrantedSubscription>("The client is subscribed."),
        Endpoint::delete(OF_CLIENT, "unsubscribe_client", RequiredAccess::Admin, unsubscribe)
            .tag("Subscriptions")
            .in_namespace()
            .describe(
                "Unsubscribe a client",
                "The client is not notified: MQTT has no packet for this.",
            )
            .path_parameter("client_id", ID)
            .query::<FilterQuery>()
            .returns_nothing("The client is unsubscribed."),
        Endpoint::get("/api/v1/subscriptions", "subscriptions", RequiredAccess::Viewer, all)
            .tag("Subscriptions")
            .in_namespace()
            .describe(
                "Subscriptions of all clients, page by page",
                "A page contains whole sessions, so it may be longer than `limit`.",
            )
            .query::<SubscriptionsQuery>()
            .returns::<Page<ApiSubscription>>("A page."),
        Endpoint::get("/api/v1/shared-groups", "shared_groups", RequiredAccess::Viewer, groups)
            .tag("Subscriptions")
            .in_namespace()
            .describe("Share groups", "Up to `limit` per shard.")
            .query::<GroupsQuery>()
            .returns::<Vec<SharedGroup>>("The groups."),
        Endpoint::get(
            "/api/v1/shared-groups/members",
            "shared_members",
            RequiredAccess::Viewer,
            members,
        )
        .tag("Subscriptions")
        .in_namespace()
        .describe(
            "Members of a shared subscription",
            "Messages in flight and in the queue of each member, to find members that lag behind.",
        )
        .query::<MembersQuery>()
        .fails(StatusCode::NOT_FOUND)
        .returns::<SharedMembers>("Up to `limit` members."),
    ]
}

async fn of_client(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(client_id): Path<String>,
) -> Result<Json<Vec<ApiSubscription>>, HttpProblem> {
    let wanted = client_id.clone();
    let found = shards
        .on_client(&login, &client_id, move |shard, _| {
            shard.inspect().subscriptions_of(&wanted)
        })
        .await?;
    Ok(Json(found.into_iter().map(view).collect()))
}

async fn subscribe(
    State(shards): State<Shards>,
    State(access): State<Arc<dyn AccessAdmin>>,
    State(questions): State<SourceQuestions>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(client_id): Path<String>,
    body::Json(new): body::Json<NewSubscription>,
) -> Result<(StatusCode, Json<GrantedSubscription>), HttpProblem> {
    mqtt::validate_filter(&new.filter)
        .map_err(|error| HttpProblem::invalid("filter", error.to_string()).expected("a topic filter"))?;
    let options = options(&new)?;
    let (wanted, filter, qos) = (client_id.clone(), new.filter.clone(), options.maximum_qos);
    let question = shards
        .on_client(&login, &client_id, move |shard, now| {
            Some(shard.operator(now).subscription_question(&wanted, &filter, qos))
        })
        .await?;
    if let Some(question) = question {
        let role = login.namespace.as_ref().map_or(login.role, |_| Role::Viewer);
        let permit = questions.admit(role)?;
        let ask = move || {
            let _permit = permit;
            access.answer_question(question)
        };
        if !web::block(ask).await? {
            let detail = "a source of access rules does not answer about this filter; try again later";
            return Err(HttpProblem::unavailable(detail));
        }
    }
    let wanted = client_id.clone();
    let subscribe =
        move |shard: &mut broker::Shard, now| shard.operator(now).subscribe_client(&wanted, &new.filter, options);
    let reason = shards.on_client(&login, &client_id, subscribe).await?;
    match reason {
        ReasonCode::Success | ReasonCode::GrantedQoS1 | ReasonCode::GrantedQoS2 => {
            Ok((StatusCode::CREATED, Json(GrantedSubscription { qos: reason.to_u8() })))
        }
        refused => Err(HttpProblem::invalid(
            "filter",
            format!("the subscription was rejected: {refused}"),
        )),
    }
}

fn options(new: &NewSubscription) -> Result<SubscriptionOptions, HttpProblem> {
    let out_of_range = |field| HttpProblem::invalid(field, "out of range").expected("0, 1 or 2");
    Ok(SubscriptionOptions {
        maximum_qos: QoS::from_bits(new.qos).ok_or_else(|| out_of_range("qos"))?,
        no_local: new.no_local,
        retain_as_published: new.retain_as_published,
        retain_handling: RetainHandling::from_bits(new.retain_handling)
            .ok_or_else(|| out_of_range("retain_handling"))?,
    })
}

async fn unsubscribe(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(client_id): Path<String>,
    Params(query): Params<FilterQuery>,
) -> Result<StatusCode, HttpProblem> {
    let wanted = client_id.clone();
    let unsubscribe =
        move |shard: &mut broker::Shard, now| shard.operator(now).unsubscribe_client(&wanted, &query.filter);
    match shards.on_client(&login, &client_id, unsubscribe).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(HttpProblem::not_found(
            "the client has no subscription with this filter",
        )),
    }
}

async fn all(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Params(query): Params<SubscriptionsQuery>,
) -> Result<Json<Page<ApiSubscription>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let filter = SubscriptionListFilter {
        filter: query.filter,
        topic_prefix: login.topic_prefix(),
    };
    paging::collect(shards.count(), query.cursor.as_deref(), limit, |place, wanted| {
        let (shards, filter) = (&shards, filter.clone());
        async move {
            let from = SessionSlot(place.to_number()?);
            let look = move |shard: &mut broker::Shard, _| shard.inspect().subscriptions(&filter, from, wanted);
            let (found, next) = shards.on_shard(ShardId(place.shard), look).await?;
            Ok((
                found.into_iter().map(view).collect(),
                next.map(|slot| slot.0.to_be_bytes().into()),
            ))
        }
    })
    .await
}

async fn groups(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Params(query): Params<GroupsQuery>,
) -> Result<Json<Vec<SharedGroup>>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    let prefix = login.topic_prefix().unwrap_or_default();
    let of_shards = shards
        .on_all_shards(move |shard, _| shard.inspect().shared_groups_below(&prefix, limit))
        .await?;
    let view = |group: broker::SharedGroupView| SharedGroup {
        share_name: group.share_name,
        filter: group.filter,
        members: group.members,
        online: group.online,
        queued: group.queued,
    };
    Ok(Json(of_shards.into_iter().flatten().map(view).collect()))
}

async fn members(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    Params(query): Params<MembersQuery>,
) -> Result<Json<SharedMembers>, HttpProblem> {
    let limit = paging::limit(query.limit)?;
    login.check_topic(&query.filter)?;
    let home = broker::group_home_shard(&query.share_name, &query.filter, shards.count());
    let found = shards.on_shard(home, move |shard, _| {
        shard
            .inspect()
            .shared_members(&query.share_name, &query.filter, MEMBERS_LOOKED_AT)
    });
    let found = found.await?;
    let (members, mut count) =
        found.ok_or_else(|| HttpProblem::not_found("no shared subscription with this name and filter has a member"))?;
    let mut of_shards: BTreeMap<ShardId, Vec<SharedMemberView>> = BTreeMap::new();
    for member in members {
        of_shards.entry(member.session.shard).or_default().push(member);
    }
    let mut items = Vec::new();
    for (shard, members) in of_shards {
        let clients = shards
            .on_shard(shard, move |shard, _| shard.inspect().clients_of(&members))
            .await?;
        let is_visible = |(_, client): &(SharedMemberView, ClientView)| match &login.namespace {
            Some(namespace) => client
                .mountpoint
                .as_ref()
                .is_some_and(|prefix| prefix.starts_with(namespace.prefix())),
            None => true,
        };
        let clients = clients.into_iter().filter(is_visible);
        items.extend(clients.map(|(member, client)| SharedMember {
            client_id: client.client_id,
            is_connected: client.is_connected,
            qos: member.qos as u8,
            inflight: client.inflight,
            receive_maximum: client.receive_maximum,
            queued: client.queued,
            queued_bytes: client.queued_bytes,
            messages_sent: client.messages_sent,
        }));
    }
    items.sort_by(|a, b| (b.queued, b.inflight, &a.client_id).cmp(&(a.queued, a.inflight, &b.client_id)));
    if login.namespace.is_some() {
        count = items.len();
    }
    items.truncate(limit);
    Ok(Json(SharedMembers { members: count, items }))
}

fn view(subscription: SubscriptionView) -> ApiSubscription {
    let options = subscription.options;
    ApiSubscription {
        client_id: subscription.client_id,
        filter: subscription.filter,
        qos: options.maximum_qos as u8,
        no_local: options.no_local,
        retain_as_published: options.retain_as_published,
        retain_handling: options.retain_handling as u8,
        identifier: subscription.identifier,
    }
}
