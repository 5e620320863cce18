//! The access rules of MQTT clients. They are read and replaced as one list, because their order matters.

use std::collections::BTreeMap;
use std::sync::Arc;

use auth::{AccessAction, AccessRule, Acl, PartialSubscriptionPolicy, Permission};
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use web::body;
use web::guard::RequiredAccess;
use web::if_match::{EntityTag, IfMatch, Tagged};
use web::problem::HttpProblem;

use super::users::change_access;
use crate::access_admin::{AccessAdmin, AclRules, ChangeError};
use crate::app::Endpoint;
use crate::concurrency::ChangeLock;

const BODY_MAX: usize = 8 * 1024 * 1024;

/// The access rules in force. The first rule that matches decides.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AclView {
    pub rules: Vec<AclRule>,
    /// The decision if no rule matches.
    pub no_match: RulePermission,
    /// How the server handles a subscription if the rules allow only some of its topics.
    pub partial_subscription: PartialSubscription,
    /// Where the configuration sets the rules, if it does: they cannot be changed here.
    pub pinned_by: Option<String>,
}

/// The complete list of rules, in order.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAcl {
    #[schemars(length(max = 100000))]
    rules: Vec<AclRule>,
}

/// An access rule. An absent condition matches every client; an empty list is an error.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AclRule {
    pub permission: RulePermission,
    /// `all` means publish and subscribe; `connect` binds client IDs to users.
    pub action: AclAction,
    /// Topic filters. `%c` stands for the client ID, `%u` for the user name, `${client_attrs.NAME}` for an attribute; a
    /// filter after `eq ` is compared literally. Empty for `connect`.
    #[schemars(length(max = 1000))]
    pub topics: Vec<String>,
    /// User names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<String>>,
    /// Client IDs. For `connect`, patterns: `%u` stands for the user name, and a last `*` for any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<String>>,
    /// Networks or addresses: `10.0.0.0/8`, `::1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<String>>,
    /// `true`: only clients without a user name; `false`: only clients with a user name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anonymous: Option<bool>,
    /// Attributes that an authentication provider has returned: the client must have each of these, with one of the
    /// values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, Vec<String>>>,
    /// Groups that an authentication provider has returned: the client must be a member of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// Common names of client certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_names: Option<Vec<String>>,
    /// Subjects of client certificates: `CN=meter-17,O=Example`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_subjects: Option<Vec<String>>,
    /// Only messages with one of these QoS levels. Only with `publish`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<Vec<u8>>,
    /// Only messages with (`true`) or without (`false`) RETAIN. Only with `publish`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<bool>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AccessPermission")]
pub enum RulePermission {
    Allow,
    Deny,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AccessAction")]
pub enum AclAction {
    Publish,
    Subscribe,
    All,
    Connect,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartialSubscription {
    Refuse,
    Filter,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/acl", "acl", RequiredAccess::Viewer, get)
            .tag("Access")
            .describe("Access rules", "In the order in which they are evaluated.")
            .returns::<AclView>("The rules.")
            .has_etag(),
        Endpoint::put("/api/v1/acl", "set_acl", RequiredAccess::Admin, put)
            .tag("Access")
            .describe("Replace the access rules", "Replaces the complete list, or changes nothing and reports all errors. The new rules apply at once, also to connected clients, and after a restart.")
            .takes::<NewAcl>(BODY_MAX)
            .takes_if_match()
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .returns::<AclView>("The rules now in force.")
            .has_etag()
            .changes(|app, _| {
                let access: Arc<dyn AccessAdmin> = app.part();
                serde_json::to_value(view(access.acl()).rules).ok()
            }),
        Endpoint::delete("/api/v1/acl/cache", "clear_access_cache", RequiredAccess::Admin, clear_cache)
            .tag("Access")
            .describe("Clear the cache of access sources", "Deletes the stored answers of `access.sources` that ask other systems. The next action of a client asks the HTTP service again, and the next connection of a client asks the databases. Connected clients keep the rules of databases with which they have connected, and their subscriptions.")
            .returns_nothing("The stored answers were deleted."),
    ]
}

async fn clear_cache(State(access): State<Arc<dyn AccessAdmin>>) -> StatusCode {
    access.clear_access_cache();
    StatusCode::NO_CONTENT
}

async fn get(State(access): State<Arc<dyn AccessAdmin>>) -> Result<Tagged<AclView>, HttpProblem> {
    let view = view(web::block(move || access.acl()).await?);
    Ok(Tagged(EntityTag::of(&view.rules), view))
}

async fn put(
    State(access): State<Arc<dyn AccessAdmin>>,
    State(lock): State<ChangeLock>,
    expected: IfMatch,
    body::Json(new): body::Json<NewAcl>,
) -> Result<Tagged<AclView>, HttpProblem> {
    let rules: Vec<AccessRule> = new.rules.into_iter().map(AccessRule::from).collect();
    let shown = access.clone();
    let change = move || {
        let present = access.acl();
        if let Some(source) = present.pinned_by {
            return Err(ChangeError::Pinned { source });
        }
        let shown: Vec<AclRule> = present.rules.into_iter().map(AclRule::from).collect();
        if !expected.matches(Some(&EntityTag::of(&shown))) {
            return Err(ChangeError::Changed);
        }
        Acl::compile(&rules, present.options).map_err(ChangeError::Rules)?;
        access.set_acl(rules)
    };
    change_access(&lock, change).await?;
    get(State(shown)).await
}

fn view(acl: AclRules) -> AclView {
    AclView {
        rules: acl.rules.into_iter().map(AclRule::from).collect(),
        no_match: acl.options.no_match.into(),
        partial_subscription: match acl.options.partial_subscription {
            PartialSubscriptionPolicy::Refuse => PartialSubscription::Refuse,
            PartialSubscriptionPolicy::Filter => PartialSubscription::Filter,
        },
        pinned_by: acl.pinned_by,
    }
}

impl From<Permission> for RulePermission {
    fn from(permission: Permission) -> RulePermission {
        match permission {
            Permission::Allow => RulePermission::Allow,
            Permission::Deny => RulePermission::Deny,
        }
    }
}

impl From<AccessRule> for AclRule {
    fn from(rule: AccessRule) -> AclRule {
        AclRule {
            permission: rule.permission.into(),
            action: match rule.action {
                AccessAction::Publish => AclAction::Publish,
                AccessAction::Subscribe => AclAction::Subscribe,
                AccessAction::All => AclAction::All,
                AccessAction::Connect => AclAction::Connect,
            },
            topics: rule.topics,
            users: rule.users,
            clients: rule.clients,
            addresses: rule.addresses,
            anonymous: rule.anonymous,
            attributes: rule.attributes,
            groups: rule.groups,
            certificate_names: rule.certificate_names,
            certificate_subjects: rule.certificate_subjects,
            qos: rule.qos,
            retain: rule.retain,
        }
    }
}

impl From<AclRule> for AccessRule {
    fn from(rule: AclRule) -> AccessRule {
        AccessRule {
            permission: match rule.permission {
                RulePermission::Allow => Permission::Allow,
                RulePermission::Deny => Permission::Deny,
            },
            action: match rule.action {
                AclAction::Publish => AccessAction::Publish,
                AclAction::Subscribe => AccessAction::Subscribe,
                AclAction::All => AccessAction::All,
                AclAction::Connect => AccessAction::Connect,
            },
            topics: rule.topics,
            users: rule.users,
            clients: rule.clients,
            addresses: rule.addresses,
            anonymous: rule.anonymous,
            attributes: rule.attributes,
            groups: rule.groups,
            certificate_names: rule.certificate_names,
            certificate_subjects: rule.certificate_subjects,
            qos: rule.qos,
            retain: rule.retain,
        }
    }
}
