//! May this client publish that, and which rule says so: asked of the code that decides for real.

use std::net::IpAddr;

use auth::{Acl, AclOptions, Grant, Identity, PartialSubscription, Permission, Rule, preset};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mqtt::QoS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::acl::{AclRule, RuleAction};
use crate::access_admin::AclRules;
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::problem::Problem;

const BODY_MAX: usize = 8 * 1024 * 1024;

/// Who wants to do what.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessQuestion {
    /// `publish` or `subscribe`.
    action: RuleAction,
    /// A topic name, or a topic filter when it is about a subscription.
    topic: String,
    #[serde(default)]
    client_id: String,
    /// Absent: without one.
    #[serde(default)]
    user_name: Option<String>,
    /// Of the client; 127.0.0.1 if it is not given.
    #[serde(default)]
    address: Option<IpAddr>,
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    #[serde(default)]
    retain: bool,
    /// Rules to try instead of those in force.
    #[serde(default)]
    rules: Option<Vec<AclRule>>,
}

/// Whether it may, and why.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AccessAnswer {
    pub is_allowed: bool,
    /// The subscription is granted, and what the rules deny is left out of its deliveries.
    pub filters_deliveries: bool,
    /// Which rule decided, counted from 0. `null`: none of the list.
    pub rule: Option<usize>,
    pub because: String,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/v1/acl/test", "test_acl", test)
            .tag("Access")
            .says(
                "Try the access rules",
                "May this client do that, and which rule says so. Nothing is changed. Whether the client may connect is another question.",
            )
            .needs(Need::Viewer)
            .takes::<AccessQuestion>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<AccessAnswer>("The answer."),
    ]
}

async fn test(
    State(app): State<App>,
    body::Json(question): body::Json<AccessQuestion>,
) -> Result<Json<AccessAnswer>, Problem> {
    let question = Question::check(question)?;
    let access = app.access().clone();
    let answer = move || {
        let in_force = access.acl();
        let is_superuser = access
            .users()
            .iter()
            .any(|user| user.is_superuser && Some(&user.name) == question.user_name.as_ref());
        question.answer(in_force, is_superuser)
    };
    app.block(answer).await?.map(Json)
}

/// Checked.
struct Question {
    act: Act,
    topic: String,
    client_id: String,
    user_name: Option<String>,
    address: IpAddr,
    rules: Option<Vec<Rule>>,
}

#[derive(Clone, Copy)]
enum Act {
    Publish { qos: QoS, retain: bool },
    Subscribe,
}

impl Question {
    fn check(asked: AccessQuestion) -> Result<Question, Problem> {
        let qos = QoS::from_bits(asked.qos);
        let qos = qos.ok_or_else(|| Problem::invalid("qos", "out of range").expected("0, 1 or 2"))?;
        let refuse = |detail: String| Problem::invalid("topic", detail);
        let act = match asked.action {
            RuleAction::Publish => {
                mqtt::validate_topic_name(&asked.topic).map_err(|error| refuse(error.to_string()))?;
                Act::Publish {
                    qos,
                    retain: asked.retain,
                }
            }
            RuleAction::Subscribe => {
                mqtt::validate_filter(&asked.topic).map_err(|error| refuse(error.to_string()))?;
                Act::Subscribe
            }
            RuleAction::All => return Err(Problem::invalid("action", "one at a time").expected("publish or subscribe")),
        };
        Ok(Question {
            act,
            topic: asked.topic,
            client_id: asked.client_id,
            user_name: asked.user_name,
            address: asked.address.unwrap_or(IpAddr::from([127, 0, 0, 1])),
            rules: asked.rules.map(|rules| rules.into_iter().map(Rule::from).collect()),
        })
    }

    fn answer(&self, in_force: AclRules, is_superuser: bool) -> Result<AccessAnswer, Problem> {
        let rules = self.rules.as_ref().unwrap_or(&in_force.rules);
        if is_superuser {
            return Ok(AccessAnswer::yes("the user is a superuser: rules are not asked"));
        }
        if rules.is_empty() {
            return Ok(AccessAnswer::yes(
                "there are no rules: who may connect may do everything",
            ));
        }
        let own = preset::protect_system();
        let all: Vec<Rule> = own.iter().chain(rules).cloned().collect();
        let (is_allowed, filters_deliveries) = self.ask(&all, in_force.options)?;
        let decisive = all.iter().position(|rule| self.is_decided_by(rule));
        Ok(AccessAnswer {
            is_allowed,
            filters_deliveries,
            rule: decisive.and_then(|index| index.checked_sub(own.len())),
            because: match decisive {
                Some(index) if index < own.len() => "only the server publishes there".into(),
                Some(index) => format!("rule {} matches first", index - own.len() + 1),
                None => "no rule matches".into(),
            },
        })
    }

    /// Whether this rule, asked alone, has the last word.
    fn is_decided_by(&self, rule: &Rule) -> bool {
        let opposite = match rule.permission {
            Permission::Allow => Permission::Deny,
            Permission::Deny => Permission::Allow,
        };
        let options = AclOptions {
            no_match: opposite,
            partial_subscription: PartialSubscription::Refuse,
        };
        let alone = self.ask(std::slice::from_ref(rule), options);
        alone.is_ok_and(|(is_allowed, _)| is_allowed == (rule.permission == Permission::Allow))
    }

    /// Allowed, and with deliveries filtered.
    fn ask(&self, rules: &[Rule], options: AclOptions) -> Result<(bool, bool), Problem> {
        let acl = Acl::compile(rules, options).map_err(|errors| Problem::invalid("rules", errors.to_string()))?;
        let session = acl.session(&Identity {
            client_id: &self.client_id,
            user_name: self.user_name.as_deref(),
            address: self.address,
            is_superuser: false,
        });
        Ok(match self.act {
            Act::Publish { qos, retain } => (session.publish(&self.topic, qos, retain), false),
            Act::Subscribe => match session.subscribe(&self.topic) {
                Grant::Allowed { filter_deliveries } => (true, filter_deliveries),
                Grant::Denied => (false, false),
            },
        })
    }
}

impl AccessAnswer {
    fn yes(because: &str) -> AccessAnswer {
        AccessAnswer {
            is_allowed: true,
            filters_deliveries: false,
            rule: None,
            because: because.into(),
        }
    }
}
