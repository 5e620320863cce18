//! The sources of access rules of `access.sources`: created from their options, asked, and in their order.

mod create;

use std::sync::Arc;

use api::AuthProviderFigures;
use auth::{ClientRules, Credentials, DenyReason, ProviderOutcome, RemoteProvider, RequestedAction, RulePart};
use auth_providers::{AskingClient, Examined, SourceFailure, WatchedProvider};
use tokio::task::JoinSet;

use super::access::{Asked, Decision, DecisionCache, RuleParts, SourceQuestion, SourceRules, has_other_sources};
use super::open_questions::OpenQuestions;
use super::providers::figures;
use crate::config::Config;
use crate::config::options::access::source::AccessSourceKind;

/// Number of questions about one client at a time, for the filters of a session.
const ACTIONS_AT_A_TIME: usize = 16;

/// The sources in their order.
pub struct AccessSources {
    order: Vec<AccessSourceKind>,
    /// Sources of rules, in their order.
    rules: Vec<RuleSource>,
    http: Option<HttpService>,
    watched: Vec<Arc<dyn WatchedProvider>>,
    is_remote: bool,
    pub cache: Arc<DecisionCache>,
    /// Separate from those of logins, so that a slow service of one kind does not prevent the other.
    pub open_questions: OpenQuestions,
}

/// A source of rules of a client.
struct RuleSource {
    kind: AccessSourceKind,
    source: Arc<dyn RemoteProvider>,
    watched: Arc<dyn WatchedProvider>,
}

/// The service that decides about actions.
#[derive(Clone)]
struct HttpService {
    source: Arc<dyn RemoteProvider>,
    watched: Arc<dyn WatchedProvider>,
}

/// Rules before the HTTP service, and those after it. Without the service, the second list is `None`.
pub type OrderedLists<'a> = (Vec<RulePart<'a>>, Option<Vec<RulePart<'a>>>);

impl AccessSources {
    /// The error names the option.
    pub fn new(config: &Config) -> Result<AccessSources, String> {
        let http = &config.access_sources.http;
        let mut sources = AccessSources {
            order: config.access.sources.clone(),
            rules: Vec::new(),
            http: None,
            watched: Vec::new(),
            is_remote: has_other_sources(config),
            cache: Arc::new(DecisionCache::new(http.cache_size as usize, http.cache_ttl)),
            open_questions: OpenQuestions::default(),
        };
        for kind in &config.access.sources {
            sources.add(*kind, config)?;
        }
        Ok(sources)
    }

    fn add(&mut self, kind: AccessSourceKind, config: &Config) -> Result<(), String> {
        let options = &config.access_sources;
        match kind {
            AccessSourceKind::Rules => {}
            AccessSourceKind::Http => {
                let source = create::http(options)?;
                self.watched.push(source.clone());
                self.http = Some(HttpService {
                    source: source.clone(),
                    watched: source,
                });
            }
            #[cfg(feature = "postgresql")]
            AccessSourceKind::Postgresql => {
                let source = create::postgresql(&options.postgresql)?;
                self.add_rules(kind, source.clone(), source);
            }
            #[cfg(feature = "mysql")]
            AccessSourceKind::Mysql => {
                let source = create::mysql(&options.mysql)?;
                self.add_rules(kind, source.clone(), source);
            }
            #[cfg(feature = "sqlite")]
            AccessSourceKind::Sqlite => {
                let source = create::sqlite(&options.sqlite)?;
                self.add_rules(kind, source.clone(), source);
            }
            #[cfg(feature = "mongodb")]
            AccessSourceKind::Mongodb => {
                let source = create::mongodb(&options.mongodb)?;
                self.add_rules(kind, source.clone(), source);
            }
            #[cfg(feature = "redis")]
            AccessSourceKind::Redis => {
                let source = create::redis(&options.redis)?;
                self.add_rules(kind, source.clone(), source);
            }
            #[cfg(not(all(
                feature = "mongodb",
                feature = "mysql",
                feature = "postgresql",
                feature = "redis",
                feature = "sqlite"
            )))]
            absent => {
                let kind = absent.word();
                return Err(format!(
                    "access.sources: this build has no {kind:?}; use a build with the feature {kind}"
                ));
            }
        }
        Ok(())
    }

    #[cfg(any(
        feature = "mongodb",
        feature = "mysql",
        feature = "postgresql",
        feature = "redis",
        feature = "sqlite"
    ))]
    fn add_rules(
        &mut self,
        kind: AccessSourceKind,
        source: Arc<dyn RemoteProvider>,
        watched: Arc<dyn WatchedProvider>,
    ) {
        self.watched.push(watched.clone());
        self.rules.push(RuleSource { kind, source, watched });
    }

    /// Returns the last failure of a source, and whether it failed at the last question. `None`: this server decides.
    pub fn health(&self, name: &str) -> Option<(Option<SourceFailure>, bool)> {
        let source = self.watched.iter().find(|source| source.name() == name)?;
        Some((source.last_failure(), source.stats().is_failing))
    }

    /// Asks the sources of rules about a client, in their order until one fails.
    pub async fn examine_rules(&self, client: &Arc<Credentials>) -> Vec<(AccessSourceKind, Examined)> {
        let mut all = Vec::with_capacity(self.rules.len());
        for source in &self.rules {
            let examined = source.watched.clone().examine(client.clone()).await;
            let has_failed = rules_of(examined.outcome.clone()).is_err();
            all.push((source.kind, examined));
            if has_failed {
                break;
            }
        }
        all
    }

    /// Asks the HTTP service about an action of a client. `None` without a service.
    pub async fn examine_action(&self, client: &Credentials, action: RequestedAction) -> Option<(Decision, Examined)> {
        let http = self.http.as_ref()?;
        let question = Credentials {
            action: Some(action),
            ..client.clone()
        };
        let examined = http.watched.clone().examine(Arc::new(question)).await;
        Some((decision_of(&examined.outcome), examined))
    }

    /// Returns whether there are other sources than the built-in rules.
    pub fn are_remote(&self) -> bool {
        self.is_remote
    }

    pub fn order(&self) -> &[AccessSourceKind] {
        &self.order
    }

    /// Returns whether a source of rules must be asked about each client.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    pub fn figures(&self) -> Vec<AuthProviderFigures> {
        self.watched.iter().map(|source| figures(&**source)).collect()
    }

    /// Deletes all stored answers.
    pub fn clear_cache(&self) {
        self.cache.clear();
        self.watched.iter().for_each(|source| source.clear_cache());
    }

    /// Puts the rules of a client in order. `own` are those of its login.
    pub fn lists<'a>(
        &self,
        parts: &'a RuleParts,
        own: Option<&'a ClientRules>,
        rules: &'a SourceRules,
    ) -> OrderedLists<'a> {
        let mut before = vec![RulePart::Server(&parts.protected)];
        before.extend(own.map(RulePart::Client));
        let mut after = None;
        let mut of_sources = rules.iter();
        for kind in &self.order {
            let list = after.as_mut().unwrap_or(&mut before);
            match kind {
                AccessSourceKind::Rules => list.push(RulePart::Server(&parts.rules)),
                AccessSourceKind::Http => after = Some(Vec::new()),
                AccessSourceKind::Mongodb
                | AccessSourceKind::Mysql
                | AccessSourceKind::Postgresql
                | AccessSourceKind::Redis
                | AccessSourceKind::Sqlite => {
                    let rules = of_sources.next().and_then(Option::as_deref);
                    list.extend(rules.map(RulePart::Client));
                }
            }
        }
        after
            .as_mut()
            .unwrap_or(&mut before)
            .push(RulePart::Server(&parts.last));
        (before, after)
    }

    /// Returns the rules of a client if no source has to be asked. An error: a source has no answer.
    pub fn rules_now(&self, client: &Credentials) -> Option<Result<SourceRules, ()>> {
        let mut rules = Vec::with_capacity(self.rules.len());
        for RuleSource { source, .. } in &self.rules {
            match rules_of(source.authenticate_now(client)?) {
                Ok(of_source) => rules.push(of_source),
                Err(()) => return Some(Err(())),
            }
        }
        Some(Ok(rules))
    }

    async fn rules(&self, client: &Arc<Credentials>) -> Option<SourceRules> {
        let mut rules = Vec::with_capacity(self.rules.len());
        for RuleSource { source, .. } in &self.rules {
            let outcome = source.clone().authenticate(client.clone()).await;
            rules.push(rules_of(outcome).ok()?);
        }
        Some(rules)
    }

    /// Asks the sources, and stores the answer.
    pub async fn answer(&self, question: SourceQuestion) {
        let sources = &question.sources;
        let client = sources.client();
        match question.asked {
            Asked::Rules => sources.set_rules(self.rules(client).await),
            Asked::Actions(actions) => {
                self.decide(client, actions, |action, decision, is_cached| {
                    sources.record(&self.cache, action, decision, is_cached);
                })
                .await;
                if AskingClient::current().is_gone() {
                    // Nothing handles the packet.
                    sources.forget_answers();
                }
            }
            Asked::Login(actions) => {
                self.decide(client, actions, |action, decision, is_cached| {
                    sources.record_login(&self.cache, action, decision, is_cached);
                })
                .await;
            }
        }
    }

    /// Answers without asking, because too many questions are open.
    pub fn refuse(&self, question: SourceQuestion) {
        let sources = &question.sources;
        match question.asked {
            Asked::Rules => sources.set_rules(None),
            Asked::Actions(actions) => {
                for action in &actions {
                    sources.record(&self.cache, action, Decision::Failed, false);
                }
            }
            Asked::Login(actions) => {
                for action in &actions {
                    sources.record_login(&self.cache, action, Decision::Failed, false);
                }
            }
        }
    }

    /// Decides about actions, some at a time. After a failure, the remaining ones fail at once, so that the client does
    /// not wait for each of them. They also fail if the client has closed its connection. Each action gets a decision:
    /// otherwise the client would ask for it again and again.
    async fn decide(
        &self,
        client: &Arc<Credentials>,
        actions: Vec<RequestedAction>,
        record: impl Fn(&RequestedAction, Decision, bool),
    ) {
        let Some(http) = &self.http else { return };
        let asking = AskingClient::current();
        let mut waiting = actions.into_iter();
        let mut running = JoinSet::new();
        // The actions of `running`.
        let mut open = Vec::new();
        let mut has_failed = false;
        loop {
            while running.len() < ACTIONS_AT_A_TIME
                && !has_failed
                && !asking.is_gone()
                && let Some(action) = waiting.next()
            {
                open.push(action.clone());
                let question = http.clone().decide(client.clone(), action);
                running.spawn(asking.clone().ask(question));
            }
            // An error is a panic, which the log shows. It may have ended the question about any of the open actions.
            let Some(Ok((action, decision, is_cached))) = running.join_next().await else {
                break;
            };
            open.retain(|other| *other != action);
            has_failed |= decision == Decision::Failed;
            record(&action, decision, is_cached);
        }
        let undecided = open.into_iter().chain(waiting);
        undecided.for_each(|action| record(&action, Decision::Failed, false));
    }
}

impl HttpService {
    /// Returns the decision, and whether it may be stored.
    async fn decide(self, client: Arc<Credentials>, action: RequestedAction) -> (RequestedAction, Decision, bool) {
        let question = Credentials {
            action: Some(action.clone()),
            ..(*client).clone()
        };
        let outcome = self.source.authenticate(Arc::new(question)).await;
        let decision = decision_of(&outcome);
        // While the service fails, `ignore` may be the decision of `on_failure`.
        let is_cached = decision != Decision::Ignore || !self.watched.stats().is_failing;
        (action, decision, is_cached)
    }
}

fn decision_of(outcome: &ProviderOutcome) -> Decision {
    match outcome {
        ProviderOutcome::Allow(_) => Decision::Allow,
        ProviderOutcome::Ignore => Decision::Ignore,
        ProviderOutcome::Deny(DenyReason::Unavailable) => Decision::Failed,
        ProviderOutcome::Deny(_) => Decision::Deny,
    }
}

/// Returns the rules of a client. An error: the source has no answer.
pub fn rules_of(outcome: ProviderOutcome) -> Result<Option<Arc<ClientRules>>, ()> {
    match outcome {
        ProviderOutcome::Allow(login) => Ok(login.rules),
        ProviderOutcome::Ignore => Ok(None),
        ProviderOutcome::Deny(_) => Err(()),
    }
}

#[cfg(test)]
mod tests;
