//! Tests a connect, publish or subscribe against the access rules, with the code that decides for real clients.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use auth::{
    AccessAction, AccessRule, Acl, AclOptions, CertificateIdentity, ClientAttributes, Credentials, Identity,
    PartialSubscriptionPolicy, Permission, RequestedAction, SubscriptionGrant, preset,
};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use mqtt::QoS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use web::body;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::problem::HttpProblem;
use web::role::Role;

use super::acl::{AclAction, AclRule};
use crate::access_admin::{AccessAdmin, AclRules, SourcesTest};
use crate::app::Endpoint;
use crate::concurrency::SourceQuestions;
use crate::shards::Shards;

const BODY_MAX: usize = 8 * 1024 * 1024;

/// Name of the source that has the rules of this server.
const RULES: &str = "rules";

/// Reason of a denial that no source can change.
const PROTECTED: &str = "a built-in rule protects the topics of the server";

/// A client and the action to test.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessTest {
    /// `connect`, `publish` or `subscribe`.
    action: AclAction,
    /// Topic name; for `subscribe`, topic filter; absent for `connect`.
    #[serde(default)]
    topic: String,
    #[serde(default)]
    client_id: String,
    /// User name. Absent: the client sends none.
    #[serde(default)]
    user_name: Option<String>,
    /// IP address of the client. Default: 127.0.0.1.
    #[serde(default)]
    address: Option<IpAddr>,
    /// Attributes of the client (`client_attrs`). Absent: those of the connected client with this client ID.
    #[serde(default)]
    attributes: Option<BTreeMap<String, String>>,
    /// Groups of the client.
    #[serde(default)]
    groups: Vec<String>,
    /// Common name of the client certificate.
    #[serde(default)]
    certificate_name: Option<String>,
    /// Subject of the client certificate: `CN=meter-17,O=Example`.
    #[serde(default)]
    certificate_subject: Option<String>,
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    #[serde(default)]
    retain: bool,
    /// Rules to test instead of the rules in force.
    #[serde(default)]
    rules: Option<Vec<AclRule>>,
}

/// The decision and its reason.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AccessTestResult {
    pub is_allowed: bool,
    /// The subscription is granted, and messages that the rules deny are not delivered.
    pub filters_deliveries: bool,
    /// Index of the rule that decided, counted from 0. `null`: no rule of the list decided.
    pub rule: Option<usize>,
    /// The decisive rule, such as `rule 2 matches first`.
    pub reason: String,
    /// The decisions of `access.sources` in their order, if there are other sources than `rules`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceDecision>,
}

/// The decision of a source of access rules.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SourceDecision {
    /// Name in `access.sources`.
    pub source: String,
    /// `allow`, `deny`, `ignore` (the next source decides), `failed`, or `not_asked` after a source that decides.
    pub decision: String,
    /// The decisive rule or answer, the error, or why the source was not asked.
    pub reason: String,
    /// Where the answer comes from: `asked`, `cache`, `shared` (the answer to an equal question) or `overloaded`.
    /// `null`: this server decides, or the source was not asked.
    pub origin: Option<String>,
    /// Time until the answer.
    pub took_ms: Option<f64>,
}

/// The error of another system can contain values of clients.
pub(super) const REASON_FOR_VIEWERS: &str = "operators see the reason";

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/v1/acl/test", "test_acl", RequiredAccess::Viewer, test)
            .tag("Access")
            .describe(
                "Test the access rules",
                "Returns whether a client may connect with its client id, publish or subscribe, and which rule decides. Changes nothing. With other sources than `rules` in `access.sources`, it asks them as for a client that connects, within their time limits, and returns the decision of each with its reason. Does not test the rules of a login and does not test passwords, bans and `access.anonymous`.",
            )
            .takes::<AccessTest>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<AccessTestResult>("The decision and its reason."),
    ]
}

async fn test(
    State(access): State<Arc<dyn AccessAdmin>>,
    State(questions): State<SourceQuestions>,
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(mut question): body::Json<AccessTest>,
) -> Result<Json<AccessTestResult>, HttpProblem> {
    if question.attributes.is_none() {
        question.attributes = Some(attributes_of(&shards, &question.client_id).await?);
    }
    let question = Question::check(question)?;
    let answer = move || -> Result<AccessTestResult, HttpProblem> {
        let in_force = access.acl();
        let users = access.users();
        let user = users
            .iter()
            .find(|user| Some(&user.name) == question.user_name.as_ref());
        let mut question = question;
        if user.is_none() && in_force.admits_unknown_users {
            question.user_name = None;
        }
        let is_superuser = user.is_some_and(|user| user.is_superuser);
        let action = question.action().filter(|_| question.rules.is_none() && !is_superuser);
        let tested = match action {
            Some(action) => {
                let asks_others = !access.access_sources().is_empty();
                let _permit = asks_others.then(|| questions.admit(login.role)).transpose()?;
                access.test_sources(question.client(action), &question.attributes)
            }
            None => None,
        };
        let mut result = match tested {
            Some(tested) => question.of_sources(tested, &in_force),
            None => question.answer(in_force, is_superuser)?,
        };
        if login.role == Role::Viewer {
            let failed = result.sources.iter_mut().filter(|source| source.decision == "failed");
            failed.for_each(|source| source.reason = REASON_FOR_VIEWERS.to_owned());
        }
        Ok(result)
    };
    web::block(answer).await?.map(Json)
}

/// Returns the attributes of a connected client.
async fn attributes_of(shards: &Shards, client_id: &str) -> Result<BTreeMap<String, String>, HttpProblem> {
    let wanted = client_id.to_owned();
    let home = shards.home_of(client_id);
    let grant = shards.on_shard(home, move |shard, _| shard.inspect().grant_of(&wanted));
    let grant = grant.await?;
    let attributes = grant.attributes().into_iter();
    Ok(attributes
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

/// A checked question.
struct Question {
    act: TestedAction,
    topic: String,
    client_id: String,
    user_name: Option<String>,
    address: IpAddr,
    qos: QoS,
    attributes: ClientAttributes,
    certificate_name: Option<String>,
    certificate_subject: Option<String>,
    rules: Option<Vec<AccessRule>>,
}

#[derive(Clone, Copy)]
enum TestedAction {
    Connect,
    Publish { qos: QoS, retain: bool },
    Subscribe,
}

impl Question {
    fn check(asked: AccessTest) -> Result<Question, HttpProblem> {
        let qos = QoS::from_bits(asked.qos);
        let qos = qos.ok_or_else(|| HttpProblem::invalid("qos", "out of range").expected("0, 1 or 2"))?;
        let refuse = |detail: String| HttpProblem::invalid("topic", detail);
        let act = match asked.action {
            AclAction::Publish => {
                mqtt::validate_topic_name(&asked.topic).map_err(|error| refuse(error.to_string()))?;
                TestedAction::Publish {
                    qos,
                    retain: asked.retain,
                }
            }
            AclAction::Subscribe => {
                mqtt::validate_filter(&asked.topic).map_err(|error| refuse(error.to_string()))?;
                TestedAction::Subscribe
            }
            AclAction::Connect if asked.topic.is_empty() => TestedAction::Connect,
            AclAction::Connect => return Err(refuse("a connect has no topic".into())),
            AclAction::All => {
                return Err(HttpProblem::invalid("action", "only one action can be tested")
                    .expected("connect, publish or subscribe"));
            }
        };
        let attributes = asked.attributes.unwrap_or_default().into_iter();
        let attributes = attributes.map(|(name, value)| (name.into(), value.into()));
        Ok(Question {
            act,
            topic: asked.topic,
            client_id: asked.client_id,
            user_name: asked.user_name,
            address: asked.address.unwrap_or(IpAddr::from([127, 0, 0, 1])),
            qos,
            attributes: ClientAttributes::new(attributes.collect())
                .map_err(|error| HttpProblem::invalid("attributes", error.to_string()))?
                .with_groups(asked.groups.into_iter().map(Box::from))
                .map_err(|error| HttpProblem::invalid("groups", error.to_string()))?,
            certificate_name: asked.certificate_name,
            certificate_subject: asked.certificate_subject,
            rules: asked
                .rules
                .map(|rules| rules.into_iter().map(AccessRule::from).collect()),
        })
    }

    /// Returns the action for sources. They do not decide about connects.
    fn action(&self) -> Option<RequestedAction> {
        let topic = self.topic.as_str().into();
        match self.act {
            TestedAction::Connect => None,
            TestedAction::Publish { qos, retain } => Some(RequestedAction::Publish { topic, qos, retain }),
            TestedAction::Subscribe => Some(RequestedAction::Subscribe {
                filter: topic,
                qos: self.qos,
            }),
        }
    }

    fn client(&self, action: RequestedAction) -> Credentials {
        Credentials {
            client_id: self.client_id.clone(),
            user_name: self.user_name.clone(),
            password: None,
            address: self.address,
            certificate_common_name: self.certificate_name.as_deref().map(Box::from),
            certificate_subject: self.certificate_subject.as_deref().map(Box::from),
            action: Some(action),
        }
    }

    fn answer(&self, in_force: AclRules, is_superuser: bool) -> Result<AccessTestResult, HttpProblem> {
        let rules = self.rules.as_ref().unwrap_or(&in_force.rules);
        if is_superuser {
            return Ok(AccessTestResult::allowed(
                "the user is a superuser: access rules do not apply",
            ));
        }
        if let TestedAction::Connect = self.act {
            return self.answer_connect(rules, in_force.options);
        }
        let is_open = !in_force.is_acl_file && rules.iter().all(|rule| rule.action == AccessAction::Connect);
        let mut options = in_force.options;
        if is_open {
            options.no_match = Permission::Allow;
        }
        let own = preset::protect_system();
        let mut all: Vec<AccessRule> = own.iter().chain(rules).cloned().collect();
        all.extend(preset::hide_clients());
        let (is_allowed, filters_deliveries) = self.ask(&all, options)?;
        let decisive = all.iter().position(|rule| self.is_decided_by(rule));
        let number = decisive.and_then(|index| index.checked_sub(own.len()));
        Ok(AccessTestResult {
            is_allowed,
            filters_deliveries,
            rule: number.filter(|number| *number < rules.len()),
            reason: match (decisive, number) {
                (None, _) if is_open => "there are no rules: a client that may connect may use all topics".into(),
                (None, _) => "no rule matches".into(),
                (_, None) => "only the server may publish to this topic".into(),
                (_, Some(number)) if number < rules.len() => format!("rule {} matches first", number + 1),
                _ => "only superusers may receive the names of clients, unless a rule allows it".into(),
            },
            sources: Vec::new(),
        })
    }

    fn answer_connect(&self, rules: &[AccessRule], options: AclOptions) -> Result<AccessTestResult, HttpProblem> {
        let (is_allowed, _) = self.ask(rules, options)?;
        if !rules.iter().any(|rule| rule.action == AccessAction::Connect) {
            return Ok(AccessTestResult::allowed(
                "there are no rules for connecting: every client id is allowed",
            ));
        }
        // A rule matches if it allows the client as the only rule.
        let is_match = |rule: &AccessRule| {
            let allowing = AccessRule {
                permission: Permission::Allow,
                ..rule.clone()
            };
            rule.action == AccessAction::Connect && self.ask(&[allowing], options).is_ok_and(|(is_match, _)| is_match)
        };
        let rule = rules.iter().position(is_match);
        Ok(AccessTestResult {
            is_allowed,
            filters_deliveries: false,
            rule,
            reason: match rule {
                Some(index) => format!("rule {} matches first", index + 1),
                None => "no rule for connecting matches".into(),
            },
            sources: Vec::new(),
        })
    }

    /// Adds the decisive rule of the list, and what the whole list of sources decides.
    fn of_sources(&self, tested: SourcesTest, in_force: &AclRules) -> AccessTestResult {
        let is_decisive = |decision: &str| ["allow", "deny", "failed"].contains(&decision);
        let decisive = tested.decisions.iter().find(|source| is_decisive(source.decision));
        let of_rules = tested.decisions.iter().find(|source| source.name == RULES);
        let has_decided = of_rules.is_some_and(|source| source.decision != "not_asked" && is_decisive(source.decision));
        let rule = has_decided
            .then(|| in_force.rules.iter().position(|rule| self.is_decided_by(rule)))
            .flatten();
        AccessTestResult {
            is_allowed: tested.is_allowed,
            filters_deliveries: tested.filters_deliveries,
            rule,
            reason: match decisive {
                Some(source) if source.decision == "failed" => format!("the source {} does not answer", source.name),
                Some(source) if source.decision == "allow" && !tested.is_allowed => PROTECTED.into(),
                Some(source) => format!("the source {} decides", source.name),
                None if in_force.options.no_match == Permission::Deny => {
                    "no source decides, and access.no_match is deny".into()
                }
                None if tested.is_allowed => "no source decides, and access.no_match is allow".into(),
                None => PROTECTED.into(),
            },
            sources: tested
                .decisions
                .into_iter()
                .map(|source| SourceDecision {
                    reason: match rule.filter(|_| source.name == RULES) {
                        Some(rule) => format!("rule {} matches first", rule + 1),
                        None => source.reason,
                    },
                    source: source.name.into(),
                    decision: source.decision.into(),
                    origin: source.origin.map(str::to_owned),
                    took_ms: source.time.map(|time| time.as_secs_f64() * 1000.0),
                })
                .collect(),
        }
    }

    /// Whether this rule decides when it is the only one.
    fn is_decided_by(&self, rule: &AccessRule) -> bool {
        let opposite = match rule.permission {
            Permission::Allow => Permission::Deny,
            Permission::Deny => Permission::Allow,
        };
        let options = AclOptions {
            no_match: opposite,
            partial_subscription: PartialSubscriptionPolicy::Refuse,
        };
        let alone = self.ask(std::slice::from_ref(rule), options);
        alone.is_ok_and(|(is_allowed, _)| is_allowed == (rule.permission == Permission::Allow))
    }

    /// Returns whether the action is allowed, and whether deliveries are filtered.
    fn ask(&self, rules: &[AccessRule], options: AclOptions) -> Result<(bool, bool), HttpProblem> {
        let acl = Acl::compile(rules, options).map_err(|errors| HttpProblem::invalid("rules", errors.to_string()))?;
        let identity = Identity {
            client_id: &self.client_id,
            user_name: self.user_name.as_deref(),
            address: self.address,
            is_superuser: false,
            attributes: &self.attributes,
            certificate: CertificateIdentity {
                common_name: self.certificate_name.as_deref(),
                subject: self.certificate_subject.as_deref(),
            },
        };
        let session = acl.session(&identity);
        Ok(match self.act {
            TestedAction::Connect => (acl.can_connect(&identity), false),
            TestedAction::Publish { qos, retain } => (session.publish(&self.topic, qos, retain), false),
            TestedAction::Subscribe => match session.subscribe(&self.topic) {
                SubscriptionGrant::Allowed { filter_deliveries } => (true, filter_deliveries),
                SubscriptionGrant::Denied => (false, false),
            },
        })
    }
}

impl AccessTestResult {
    fn allowed(reason: &str) -> AccessTestResult {
        AccessTestResult {
            is_allowed: true,
            filters_deliveries: false,
            rule: None,
            reason: reason.into(),
            sources: Vec::new(),
        }
    }
}
