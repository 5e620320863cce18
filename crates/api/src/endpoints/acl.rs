//! The access rules of MQTT clients: read and replaced as a whole, because their order is their meaning.

use auth::{Acl, Action, PartialSubscription, Permission, Rule};
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::users::change_access;
use crate::access_admin::{AclRules, ChangeError};
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::if_match::{IfMatch, Tag, Tagged};
use crate::problem::Problem;

const BODY_MAX: usize = 8 * 1024 * 1024;

/// The rules in force. The first that matches decides.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AclView {
    pub rules: Vec<AclRule>,
    /// When no rule matches.
    pub no_match: RulePermission,
    /// What happens to a subscription of which the rules allow only a part.
    pub partial_subscription: PartialView,
    /// Where the rules are set, when they cannot be changed here.
    pub pinned_by: Option<String>,
}

/// The whole list, in order.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAcl {
    #[schemars(length(max = 100000))]
    rules: Vec<AclRule>,
}

/// A rule. A condition that is absent holds for everybody; an empty list is an error.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AclRule {
    pub permission: RulePermission,
    pub action: RuleAction,
    /// Topic filters; `%c` is the client id, `%u` the user name, `eq ` before one takes it literally.
    #[schemars(length(min = 1, max = 1000))]
    pub topics: Vec<String>,
    /// User names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<String>>,
    /// Client ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Vec<String>>,
    /// Networks or addresses: `10.0.0.0/8`, `::1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<String>>,
    /// `true`: only clients without user name; `false`: only clients with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anonymous: Option<bool>,
    /// Only messages of these QoS; with `publish` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<Vec<u8>>,
    /// Only messages with or without RETAIN; with `publish` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<bool>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RulePermission {
    Allow,
    Deny,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    Publish,
    Subscribe,
    All,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartialView {
    Refuse,
    Filter,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/acl", "acl", get)
            .tag("Access")
            .says("Access rules", "In the order in which they are asked.")
            .returns::<AclView>("The rules.")
            .has_etag(),
        Endpoint::put("/api/v1/acl", "set_acl", put)
            .tag("Access")
            .says("Replace the access rules", "All or nothing; everything that is wrong is reported. Holds at once, also for connected clients, and after a restart.")
            .takes::<NewAcl>(BODY_MAX)
            .takes_if_match()
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::CONFLICT)
            .returns::<AclView>("The rules now in force.")
            .has_etag(),
    ]
}

async fn get(State(app): State<App>) -> Result<Tagged<AclView>, Problem> {
    let access = app.access().clone();
    let view = view(app.block(move || access.acl()).await?);
    Ok(Tagged(Tag::of(&view.rules), view))
}

async fn put(
    State(app): State<App>,
    expected: IfMatch,
    body::Json(new): body::Json<NewAcl>,
) -> Result<Tagged<AclView>, Problem> {
    let rules: Vec<Rule> = new.rules.into_iter().map(Rule::from).collect();
    let access = app.access().clone();
    let change = move || {
        let present = access.acl();
        if let Some(source) = present.pinned_by {
            return Err(ChangeError::Pinned { source });
        }
        let shown: Vec<AclRule> = present.rules.into_iter().map(AclRule::from).collect();
        if !expected.holds(Some(&Tag::of(&shown))) {
            return Err(ChangeError::Changed);
        }
        Acl::compile(&rules, present.options).map_err(ChangeError::Rules)?;
        access.set_acl(rules)
    };
    change_access(&app, change).await?;
    get(State(app)).await
}

fn view(acl: AclRules) -> AclView {
    AclView {
        rules: acl.rules.into_iter().map(AclRule::from).collect(),
        no_match: acl.options.no_match.into(),
        partial_subscription: match acl.options.partial_subscription {
            PartialSubscription::Refuse => PartialView::Refuse,
            PartialSubscription::Filter => PartialView::Filter,
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

impl From<Rule> for AclRule {
    fn from(rule: Rule) -> AclRule {
        AclRule {
            permission: rule.permission.into(),
            action: match rule.action {
                Action::Publish => RuleAction::Publish,
                Action::Subscribe => RuleAction::Subscribe,
                Action::All => RuleAction::All,
            },
            topics: rule.topics,
            users: rule.users,
            clients: rule.clients,
            addresses: rule.addresses,
            anonymous: rule.anonymous,
            qos: rule.qos,
            retain: rule.retain,
        }
    }
}

impl From<AclRule> for Rule {
    fn from(rule: AclRule) -> Rule {
        Rule {
            permission: match rule.permission {
                RulePermission::Allow => Permission::Allow,
                RulePermission::Deny => Permission::Deny,
            },
            action: match rule.action {
                RuleAction::Publish => Action::Publish,
                RuleAction::Subscribe => Action::Subscribe,
                RuleAction::All => Action::All,
            },
            topics: rule.topics,
            users: rule.users,
            clients: rule.clients,
            addresses: rule.addresses,
            anonymous: rule.anonymous,
            qos: rule.qos,
            retain: rule.retain,
        }
    }
}
