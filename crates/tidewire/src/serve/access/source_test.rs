//! Tests an action of a client against `access.sources`, for operators.

use std::sync::Arc;

use api::{SourcesTest, TestedSource};
use auth::{ClientAttributes, ClientRules, Credentials, RequestedAction, RulePart, SessionAcl};
use auth_providers::Examined;
use broker::{LoginGrant, SubscribeAccess};

use super::NodeAccess;
use super::configured::RuleParts;
use super::login_test::origin_word;
use super::session_login::SessionLogin;
use super::sources::{Decision, SessionSources};
use crate::config::options::access::source::AccessSourceKind;
use crate::serve::access_sources::rules_of;

const NOT_ASKED: &str = "not_asked";

/// Answers of the sources about one client.
struct Answers {
    /// Answers of the sources of rules, until one failed.
    rules: Vec<(AccessSourceKind, Examined)>,
    /// Answer of the HTTP service, if the sources before it do not decide.
    http: Option<(Decision, Examined)>,
}

impl Answers {
    /// Returns the source of rules that failed, so that the client cannot connect.
    fn failed(&self) -> Option<AccessSourceKind> {
        let (kind, last) = self.rules.last()?;
        rules_of(last.outcome.clone()).is_err().then_some(*kind)
    }
}

impl NodeAccess {
    /// Asks the sources about the action of a client, as a client that connects. `None` without other sources than the
    /// rules. Must not be called on a thread of a worker.
    pub(super) fn decisions_of_sources(
        &self,
        client: Credentials,
        attributes: &ClientAttributes,
    ) -> Option<SourcesTest> {
        let parts = self.compiled().parts?;
        let action = client.action.clone()?;
        let client = Arc::new(Credentials { action: None, ..client });
        let who = auth::Identity {
            client_id: &client.client_id,
            user_name: client.user_name.as_deref(),
            address: client.address,
            is_superuser: false,
            attributes,
            certificate: auth::CertificateIdentity {
                common_name: client.certificate_common_name.as_deref(),
                subject: client.certificate_subject.as_deref(),
            },
        };
        let sources = Arc::new(SessionSources::new((*client).clone(), self.sources.has_rules()));
        let rules = self.providers.wait_for(self.sources.examine_rules(&client))?;
        let of_sources: Result<Vec<_>, ()> = rules.iter().map(|(_, one)| rules_of(one.outcome.clone())).collect();
        let rules_known = of_sources.ok();
        let mut answers = Answers { rules, http: None };
        let mut is_open = rules_known.is_some();
        if let Some(known) = &rules_known {
            let (before, _) = self.sources.lists(&parts, None, known);
            is_open = decide(&parts.last.session_of(&before, &who), &action).is_none();
        }
        sources.set_rules(rules_known);
        if is_open {
            let question = self.sources.examine_action(&client, action.clone());
            answers.http = self.providers.wait_for(question)?;
        }
        if let Some((decision, _)) = &answers.http {
            sources.record(&self.sources.cache, &action, *decision, false);
        }
        let grant = SessionLogin::with_sources(&LoginGrant::None, sources);
        let rights = self.rights_of_sources(&parts, &grant, &who)?;
        let (is_allowed, filters_deliveries) = match &action {
            RequestedAction::Publish { topic, qos, retain } => (rights.can_publish(topic, *qos, *retain), false),
            RequestedAction::Subscribe { filter, .. } => match rights.can_subscribe(filter) {
                SubscribeAccess::Denied => (false, false),
                SubscribeAccess::Allowed => (true, false),
                SubscribeAccess::AllowedInPart => (true, true),
            },
        };
        Some(SourcesTest {
            is_allowed,
            filters_deliveries,
            decisions: self.tested_sources(&parts, &answers, &action, &who),
        })
    }

    /// Returns the decision of each source, in their order.
    fn tested_sources(
        &self,
        parts: &RuleParts,
        answers: &Answers,
        action: &RequestedAction,
        who: &auth::Identity<'_>,
    ) -> Vec<TestedSource> {
        let failed = answers.failed();
        let mut decided_by = None;
        let mut all = Vec::new();
        for kind in self.sources.order() {
            let name = kind.word();
            let tested = match (decided_by, failed) {
                (Some(other), _) => not_asked(name, format!("{other} has decided")),
                (None, Some(other)) if other != *kind => not_asked(
                    name,
                    format!("the client cannot connect, because {} fails", other.word()),
                ),
                _ => tested_source(*kind, parts, answers, (action, who)),
            };
            if !["ignore", NOT_ASKED].contains(&tested.decision) {
                decided_by = Some(name);
            }
            all.push(tested);
        }
        all
    }
}

fn not_asked(name: &'static str, reason: String) -> TestedSource {
    TestedSource {
        name,
        decision: NOT_ASKED,
        reason,
        origin: None,
        time: None,
    }
}

fn tested_source(
    kind: AccessSourceKind,
    parts: &RuleParts,
    answers: &Answers,
    (action, who): (&RequestedAction, &auth::Identity<'_>),
) -> TestedSource {
    let of_list = |list: RulePart<'_>| decide(&parts.last.session_of(&[list], who), action);
    let (decision, reason, examined) = match kind {
        AccessSourceKind::Rules => {
            let decision = of_list(RulePart::Server(&parts.rules));
            let reason = if decision.is_some() {
                "a rule matches"
            } else {
                "no rule matches"
            };
            (word(decision), reason.to_owned(), None)
        }
        AccessSourceKind::Http => match &answers.http {
            Some((decision, examined)) => {
                let answer = match decision {
                    Decision::Allow => "allow",
                    Decision::Deny => "deny",
                    Decision::Ignore => "ignore",
                    Decision::Failed => "failed",
                };
                let reason = match &examined.error {
                    Some(error) => error.clone(),
                    None if *decision == Decision::Failed => "too many questions are waiting for it".to_owned(),
                    None => format!("the service answers {answer}"),
                };
                (answer, reason, Some(examined))
            }
            None => ("failed", "the service was not asked".to_owned(), None),
        },
        AccessSourceKind::Mongodb
        | AccessSourceKind::Mysql
        | AccessSourceKind::Postgresql
        | AccessSourceKind::Redis
        | AccessSourceKind::Sqlite => {
            let answer = answers.rules.iter().find(|(source, _)| *source == kind);
            match answer.map(|(_, examined)| examined) {
                Some(examined) => {
                    let (decision, reason) = of_database(examined, &of_list, (action, who));
                    (decision, reason, Some(examined))
                }
                None => ("failed", "the source was not asked".to_owned(), None),
            }
        }
    };
    TestedSource {
        name: kind.word(),
        decision,
        reason,
        origin: examined.and_then(|examined| origin_word(examined.origin)),
        time: examined.map(|examined| examined.time),
    }
}

fn of_database(
    examined: &Examined,
    of_list: &dyn Fn(RulePart<'_>) -> Option<bool>,
    (action, who): (&RequestedAction, &auth::Identity<'_>),
) -> (&'static str, String) {
    let rules = match (&examined.error, rules_of(examined.outcome.clone())) {
        (Some(error), Err(())) => return ("failed", error.clone()),
        (None, Err(())) => return ("failed", "too many questions are waiting for it".to_owned()),
        (Some(error), Ok(_)) => {
            return (
                "ignore",
                format!("{error}; on_failure leaves the decision to the next source"),
            );
        }
        (None, Ok(None)) => return ("ignore", "it has no rules for this client".to_owned()),
        (None, Ok(Some(rules))) => rules,
    };
    let decision = word(of_list(RulePart::Client(&rules)));
    (decision, rule_text(&rules, action, who))
}

/// Names the rule of the client that decides.
fn rule_text(rules: &ClientRules, action: &RequestedAction, who: &auth::Identity<'_>) -> String {
    let count = rules.count();
    match rules.decisive(who, |acl| decide(acl, action).is_some()) {
        Some(rule) if rule.number == 0 => format!("built-in rule: {}", rule.text),
        Some(rule) => format!("rule {} of {count}: {}", rule.number, rule.text),
        None => format!("none of the {count} rules of this client matches"),
    }
}

fn decide(acl: &SessionAcl, action: &RequestedAction) -> Option<bool> {
    match action {
        RequestedAction::Publish { topic, qos, retain } => acl.decide_publish(topic, *qos, *retain),
        RequestedAction::Subscribe { filter, .. } => acl.decide_subscribe(filter).decision,
    }
}

fn word(decision: Option<bool>) -> &'static str {
    match decision {
        Some(true) => "allow",
        Some(false) => "deny",
        None => "ignore",
    }
}
