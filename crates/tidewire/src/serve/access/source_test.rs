//! Tests an action of a client against `access.sources`, for operators.

use std::sync::Arc;

use api::SourcesTest;
use auth::{ClientAttributes, Credentials, RequestedAction, RulePart};
use broker::{LoginGrant, SubscribeAccess};

use super::NodeAccess;
use super::configured::RuleParts;
use super::session_login::SessionLogin;
use super::sources::{Asked, Decision, SessionSources, SourceQuestion};
use crate::config::options::access::source::AccessSourceKind;

impl NodeAccess {
    /// Asks the sources about the action of a client, as a client that connects. `None` without other sources than the
    /// rules.
    pub(super) fn decisions_of_sources(
        &self,
        client: Credentials,
        attributes: &ClientAttributes,
    ) -> Option<SourcesTest> {
        let parts = self.compiled().parts?;
        let action = client.action.clone()?;
        let asked = Credentials { action: None, ..client };
        let sources = Arc::new(SessionSources::new(asked, self.sources.has_rules()));
        let ask = |asked| {
            self.sources.answer(SourceQuestion {
                sources: sources.clone(),
                asked,
            })
        };
        self.providers.wait_for(async {
            ask(Asked::Rules).await;
            ask(Asked::Actions(vec![action.clone()])).await;
        })?;
        let client = sources.client().clone();
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
        let grant = SessionLogin::with_sources(&LoginGrant::None, sources.clone());
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
            decisions: self.decisions(&parts, &sources, &action, &who),
        })
    }

    fn decisions(
        &self,
        parts: &RuleParts,
        sources: &SessionSources,
        action: &RequestedAction,
        who: &auth::Identity<'_>,
    ) -> Vec<(&'static str, &'static str)> {
        let rules = sources.rules();
        let mut of_sources = rules.iter().flat_map(|rules| rules.iter());
        let mut is_decided = false;
        let mut decisions = Vec::new();
        for kind in self.sources.order() {
            let of_list = |list: Option<RulePart<'_>>| {
                let list: Vec<RulePart<'_>> = list.into_iter().collect();
                let list = parts.last.session_of(&list, who);
                let decision = match action {
                    RequestedAction::Publish { topic, qos, retain } => list.decide_publish(topic, *qos, *retain),
                    RequestedAction::Subscribe { filter, .. } => list.decide_subscribe(filter).decision,
                };
                match decision {
                    Some(true) => "allow",
                    Some(false) => "deny",
                    None => "ignore",
                }
            };
            let decision = match kind {
                AccessSourceKind::Rules => of_list(Some(RulePart::Server(&parts.rules))),
                AccessSourceKind::Http => match sources.answer(action) {
                    Some(Decision::Allow) => "allow",
                    Some(Decision::Deny) => "deny",
                    Some(Decision::Ignore) => "ignore",
                    Some(Decision::Failed) | None => "failed",
                },
                AccessSourceKind::Mongodb | AccessSourceKind::Postgresql | AccessSourceKind::Redis
                    if rules.is_none() =>
                {
                    "failed"
                }
                AccessSourceKind::Mongodb | AccessSourceKind::Postgresql | AccessSourceKind::Redis => {
                    let rules = of_sources.next().and_then(Option::as_deref);
                    of_list(rules.map(RulePart::Client))
                }
            };
            decisions.push((kind.word(), if is_decided { "not_asked" } else { decision }));
            is_decided |= decision != "ignore";
        }
        decisions
    }
}
