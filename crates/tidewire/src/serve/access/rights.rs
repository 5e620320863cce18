//! Access rules of a session, for the broker.

use std::collections::HashSet;
use std::sync::Arc;

use auth::{Permission, RequestedAction, SessionAcl, SubscriptionDecision, SubscriptionGrant};
use broker::{AccessQuestion, AccessRequest, Mountpoint, SessionAccess, SubscribeAccess};
use mqtt::QoS;

use super::sources::{Asked, Decision, DecisionCache, SessionSources, SourceQuestion};

/// Maximum number of actions of a question. Further filters of a SUBSCRIBE are denied, so that a packet causes few
/// requests.
const ACTIONS_MAX: usize = 1000;

/// Hides the mountpoint of a session from its rules, so that they see the topics that the client sees.
pub fn without_mountpoint(rights: Arc<dyn SessionAccess>, mountpoint: Option<&Mountpoint>) -> Arc<dyn SessionAccess> {
    match mountpoint {
        None => rights,
        Some(mountpoint) => Arc::new(RightsBelow {
            rights,
            prefix: mountpoint.clone(),
        }),
    }
}

/// Returns the requests as the client sees them.
pub fn requests_below<'r>(mountpoint: &Mountpoint, requests: &[AccessRequest<'r>]) -> Vec<AccessRequest<'r>> {
    let prefix = mountpoint.as_str();
    let below = requests.iter().filter_map(|request| {
        Some(match *request {
            AccessRequest::Publish { topic, qos, retain } => AccessRequest::Publish {
                topic: topic.strip_prefix(prefix)?,
                qos,
                retain,
            },
            AccessRequest::Subscribe { filter, qos } => AccessRequest::Subscribe {
                filter: filter.strip_prefix(prefix)?,
                qos,
            },
        })
    });
    below.collect()
}

pub struct SessionRights(pub SessionAcl);

impl SessionAccess for SessionRights {
    fn can_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.0.publish(topic, qos, retain)
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        subscribe_access(self.0.subscribe(filter))
    }

    fn can_receive(&self, topic: &str) -> bool {
        self.0.can_receive(topic)
    }
}

fn subscribe_access(grant: SubscriptionGrant) -> SubscribeAccess {
    match grant {
        SubscriptionGrant::Denied => SubscribeAccess::Denied,
        SubscriptionGrant::Allowed {
            filter_deliveries: true,
        } => SubscribeAccess::AllowedInPart,
        SubscriptionGrant::Allowed {
            filter_deliveries: false,
        } => SubscribeAccess::Allowed,
    }
}

/// Access rules that contain an HTTP service. An action that the lists before it leave open is asked for. Without an
/// answer, it is denied.
pub struct AskingRights {
    /// Rules before the service.
    pub before: SessionAcl,
    /// Rules after it, with `access.no_match`.
    pub after: SessionAcl,
    pub sources: Arc<SessionSources>,
    pub settings: Arc<DecisionCache>,
}

impl AskingRights {
    /// Returns the question that must be answered before the client is admitted.
    pub fn login_question(&self, requests: &[AccessRequest<'_>]) -> Option<AccessQuestion> {
        // The step is repeated after the answer, for the remaining filters of the session.
        let mut actions = self.open_actions(requests, |request| self.sources.is_login_decided(request));
        actions.truncate(ACTIONS_MAX);
        self.ask(Asked::Login, actions)
    }

    /// Returns different actions that neither the rules nor an earlier answer decide: at most one more than
    /// `ACTIONS_MAX`.
    fn open_actions(
        &self,
        requests: &[AccessRequest<'_>],
        is_decided: impl Fn(&AccessRequest<'_>) -> bool,
    ) -> Vec<RequestedAction> {
        let is_open = |request: &&AccessRequest<'_>| !self.decide_before(request) && !is_decided(request);
        let mut found = HashSet::new();
        let open = requests
            .iter()
            .filter(is_open)
            .filter(|request| found.insert(**request));
        open.map(action_of).take(ACTIONS_MAX + 1).collect()
    }

    fn ask(&self, asked: fn(Vec<RequestedAction>) -> Asked, actions: Vec<RequestedAction>) -> Option<AccessQuestion> {
        (!actions.is_empty()).then(|| {
            AccessQuestion(Box::new(SourceQuestion {
                sources: self.sources.clone(),
                asked: asked(actions),
            }))
        })
    }

    /// Returns whether the rules before the service decide.
    fn decide_before(&self, request: &AccessRequest<'_>) -> bool {
        match *request {
            AccessRequest::Publish { topic, qos, retain } => self.before.decide_publish(topic, qos, retain).is_some(),
            AccessRequest::Subscribe { filter, .. } => self.before.decide_subscribe(filter).decision.is_some(),
        }
    }

    fn publish(&self, decision: Option<Decision>, topic: &str, qos: QoS, retain: bool) -> bool {
        match decision {
            Some(Decision::Allow) => true,
            Some(Decision::Ignore) => self.after.publish(topic, qos, retain),
            Some(Decision::Deny | Decision::Failed) | None => false,
        }
    }

    fn subscribe(&self, filter: &str, decision: Option<Decision>) -> SubscribeAccess {
        let before = self.before.decide_subscribe(filter);
        let decided = |is_allowed| SubscriptionDecision {
            decision: Some(is_allowed),
            ..before
        };
        let decision = match (before.decision, decision) {
            (Some(_), _) => before,
            (None, Some(Decision::Allow)) => decided(true),
            (None, Some(Decision::Ignore)) => before.then(self.after.decide_subscribe(filter)),
            (None, Some(Decision::Deny | Decision::Failed) | None) => decided(false),
        };
        let options = self.after.options();
        subscribe_access(decision.grant(options.no_match == Permission::Allow, options))
    }
}

fn action_of(request: &AccessRequest<'_>) -> RequestedAction {
    match *request {
        AccessRequest::Publish { topic, qos, retain } => RequestedAction::Publish {
            topic: topic.into(),
            qos,
            retain,
        },
        AccessRequest::Subscribe { filter, qos } => RequestedAction::Subscribe {
            filter: filter.into(),
            qos,
        },
    }
}

impl SessionAccess for AskingRights {
    fn can_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.before.decide_publish(topic, qos, retain).unwrap_or_else(|| {
            let request = AccessRequest::Publish { topic, qos, retain };
            let decision = self.sources.decision_to_publish(&self.settings, &request);
            self.publish(decision, topic, qos, retain)
        })
    }

    fn can_publish_will(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.before
            .decide_publish(topic, qos, retain)
            .unwrap_or_else(|| self.publish(self.sources.will(), topic, qos, retain))
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        self.subscribe(filter, self.sources.decision_to_subscribe(filter))
    }

    fn keeps_subscription(&self, filter: &str) -> SubscribeAccess {
        self.subscribe(filter, self.sources.stored_decision(filter))
    }

    /// The decision about the filter is the decision about its messages, unless a rule before the service is about the
    /// topic.
    fn can_receive(&self, topic: &str) -> bool {
        self.before
            .decide_receive(topic)
            .unwrap_or_else(|| match self.sources.decision_to_receive(topic) {
                Some(Decision::Allow) => true,
                Some(Decision::Ignore) => self.after.can_receive(topic),
                Some(Decision::Deny | Decision::Failed) | None => false,
            })
    }

    fn asks(&self) -> bool {
        true
    }

    fn question(&self, requests: &[AccessRequest<'_>]) -> Option<AccessQuestion> {
        let is_decided = |request: &AccessRequest<'_>| self.sources.is_decided(&self.settings, request);
        let mut actions = self.open_actions(requests, is_decided);
        if actions.len() > ACTIONS_MAX {
            actions.truncate(ACTIONS_MAX);
            self.sources.deny_others();
        }
        self.ask(Asked::Actions, actions)
    }

    fn packet_handled(&self) {
        self.sources.forget_answers();
    }

    fn stored_filters(&self) -> usize {
        self.sources.stored_filters()
    }

    fn retain_filters(&self, is_subscribed: &dyn Fn(&str) -> bool) {
        self.sources.retain_filters(is_subscribed);
    }

    fn set_subscribed(&self, filter: &str, is_subscribed: bool) {
        self.sources.set_subscribed(filter, is_subscribed);
    }
}

/// Rules for topics without the prefix. Topics that do not have it are denied.
struct RightsBelow {
    rights: Arc<dyn SessionAccess>,
    prefix: Mountpoint,
}

impl RightsBelow {
    fn below<'t>(&self, topic: &'t str) -> Option<&'t str> {
        topic.strip_prefix(self.prefix.as_str())
    }
}

impl SessionAccess for RightsBelow {
    fn can_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.below(topic)
            .is_some_and(|topic| self.rights.can_publish(topic, qos, retain))
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        match self.below(filter) {
            Some(filter) => self.rights.can_subscribe(filter),
            None => SubscribeAccess::Denied,
        }
    }

    fn keeps_subscription(&self, filter: &str) -> SubscribeAccess {
        match self.below(filter) {
            Some(filter) => self.rights.keeps_subscription(filter),
            None => SubscribeAccess::Denied,
        }
    }

    fn can_receive(&self, topic: &str) -> bool {
        self.below(topic).is_some_and(|topic| self.rights.can_receive(topic))
    }

    fn can_publish_will(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.below(topic)
            .is_some_and(|topic| self.rights.can_publish_will(topic, qos, retain))
    }

    fn asks(&self) -> bool {
        self.rights.asks()
    }

    fn question(&self, requests: &[AccessRequest<'_>]) -> Option<AccessQuestion> {
        self.rights.question(&requests_below(&self.prefix, requests))
    }

    fn packet_handled(&self) {
        self.rights.packet_handled();
    }

    fn stored_filters(&self) -> usize {
        self.rights.stored_filters()
    }

    fn retain_filters(&self, is_subscribed: &dyn Fn(&str) -> bool) {
        let prefix = self.prefix.as_str();
        self.rights
            .retain_filters(&|filter| is_subscribed(&format!("{prefix}{filter}")));
    }

    fn set_subscribed(&self, filter: &str, is_subscribed: bool) {
        if let Some(filter) = self.below(filter) {
            self.rights.set_subscribed(filter, is_subscribed);
        }
    }
}
