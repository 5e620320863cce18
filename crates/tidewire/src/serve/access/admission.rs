//! Asks the sources of `access.sources` about a client, before it gets its session and when it acts.
//!
//! Sources of rules, such as a database, are asked when the client connects. The HTTP service is asked for each action,
//! and when the client connects for its will and for the filters of the session that it continues. After a restart, the
//! decisions about these filters are forgotten, so that nothing is delivered through a filter that was not decided.

use std::sync::Arc;

use auth::{ClientAttributes, Login};
use broker::{
    AccessQuestion, AccessRequest, AdmissionStep, AuthOutcome, ClientIdentity, ConnectCredentials, LoginGrant,
    SessionAccess,
};
use mqtt::ReasonCode;
use net::OpenAccessQuestion;

use super::configured::RuleParts;
use super::rights::{AskingRights, SessionRights};
use super::sources::{Asked, ClientRulesState, SessionSources, SourceQuestion};
use super::{NodeAccess, offered};

/// The login of a session, for its access rules.
pub struct SessionGrant {
    pub login: Login,
    /// Set if `access.sources` has other sources than the built-in rules.
    pub sources: Option<Arc<SessionSources>>,
}

pub fn grant_of(grant: &LoginGrant) -> Option<&SessionGrant> {
    match grant {
        LoginGrant::Of(grant) => grant.downcast_ref(),
        LoginGrant::None | LoginGrant::Forgotten => None,
    }
}

pub fn sources_of(grant: &LoginGrant) -> Option<&Arc<SessionSources>> {
    grant_of(grant)?.sources.as_ref()
}

/// Returns whether a provider has verified the user name of the login.
pub fn has_provider(grant: &LoginGrant) -> bool {
    grant_of(grant).is_some_and(|grant| grant.login.provider.is_some())
}

/// Returns the grant of a client that has authenticated again. It keeps the answers of the sources.
pub fn renewed_grant(old: &LoginGrant, new: LoginGrant) -> LoginGrant {
    match (grant_of(&new), sources_of(old)) {
        (Some(renewed), Some(sources)) => LoginGrant::Of(Arc::new(SessionGrant {
            login: renewed.login.clone(),
            sources: Some(sources.clone()),
        })),
        _ => new,
    }
}

/// The rejection of a client about which a source does not answer.
const NO_ANSWER: AdmissionStep = AdmissionStep::Deny {
    reason: ReasonCode::ServerUnavailable,
    detail: "a source of access rules does not answer",
};

impl NodeAccess {
    /// Gives an admitted client what the sources will know about it.
    pub(super) fn with_sources(&self, credentials: &ConnectCredentials, mut outcome: AuthOutcome) -> AuthOutcome {
        let AuthOutcome::Allow(login) = &mut outcome else {
            return outcome;
        };
        if !self.sources.are_remote() {
            return outcome;
        }
        let user_name = login.user_name.as_deref().or(credentials.user_name.as_deref());
        let user_name = match has_provider(&login.grant) {
            true => user_name,
            false => self.verified_name(user_name),
        };
        let client = auth::Credentials {
            user_name: user_name.map(str::to_owned),
            password: None,
            ..offered(credentials)
        };
        let granted = grant_of(&login.grant).map(|grant| grant.login.clone());
        login.grant = LoginGrant::Of(Arc::new(SessionGrant {
            login: granted.unwrap_or_default(),
            sources: Some(Arc::new(SessionSources::new(client, self.sources.has_rules()))),
        }));
        outcome
    }

    /// Returns the identity that access rules see. Looks up again whether a user of the server is a superuser: that may
    /// have changed since the login.
    pub(super) fn verified_identity<'a>(
        &self,
        who: &'a ClientIdentity,
        grant: Option<&'a SessionGrant>,
    ) -> auth::Identity<'a> {
        let of_provider = grant.map(|grant| &grant.login).filter(|login| login.provider.is_some());
        let user_name = who.user_name.as_deref();
        let user_name = match of_provider {
            Some(_) => user_name,
            None => self.verified_name(user_name),
        };
        auth::Identity {
            client_id: &who.client_id,
            user_name,
            address: who.address,
            is_superuser: match of_provider {
                Some(login) => login.is_superuser,
                None => user_name.is_some_and(|name| self.is_superuser(name)),
            },
            attributes: of_provider.map_or(ClientAttributes::NONE, |login| &login.attributes),
        }
    }

    /// Returns the access rules of a session with several sources; `None` if everything is allowed.
    pub(super) fn rights_of_sources(
        &self,
        parts: &RuleParts,
        grant: Option<&SessionGrant>,
        who: &auth::Identity<'_>,
    ) -> Option<Arc<dyn SessionAccess>> {
        if who.is_superuser {
            return None;
        }
        let sources = grant.and_then(|grant| Some((grant, grant.sources.as_ref()?)));
        let known = sources.and_then(|(grant, sources)| Some((grant, sources, sources.rules()?)));
        let Some((grant, sources, rules)) = known else {
            // The user was a superuser when it connected.
            return Some(Arc::new(SessionRights(parts.nothing.session(who))));
        };
        let (before, after) = self.sources.lists(parts, grant.login.rules.as_deref(), &rules);
        let before = parts.last.session_of(&before, who);
        Some(match after {
            None => Arc::new(SessionRights(before)),
            Some(after) => Arc::new(AskingRights {
                before,
                after: parts.last.session_of(&after, who),
                sources: sources.clone(),
                settings: self.sources.cache.clone(),
            }),
        })
    }

    /// Returns the next step for a client with sources.
    pub(super) fn admission_step(&self, who: &ClientIdentity, requests: &[AccessRequest<'_>]) -> AdmissionStep {
        let grant = grant_of(&who.grant);
        let Some((grant, sources)) = grant.and_then(|grant| Some((grant, grant.sources.as_ref()?))) else {
            return AdmissionStep::Admit;
        };
        let identity = self.verified_identity(who, Some(grant));
        if identity.is_superuser {
            return AdmissionStep::Admit;
        }
        match sources.rules_state() {
            ClientRulesState::Known => {}
            ClientRulesState::Failed => return NO_ANSWER,
            ClientRulesState::Missing => match self.sources.rules_now(sources.client()) {
                Some(Ok(rules)) => sources.set_rules(Some(rules)),
                Some(Err(())) => return NO_ANSWER,
                None => {
                    let question = SourceQuestion {
                        sources: sources.clone(),
                        asked: Asked::Rules,
                    };
                    return AdmissionStep::Ask(AccessQuestion(Box::new(question)));
                }
            },
        }
        let rights = self
            .compiled()
            .parts
            .and_then(|parts| self.asking_rights(&parts, grant, &identity));
        let Some(rights) = rights else {
            return AdmissionStep::Admit;
        };
        match rights.login_question(requests) {
            Some(question) => AdmissionStep::Ask(question),
            None if sources.has_failed() => NO_ANSWER,
            None => AdmissionStep::Admit,
        }
    }

    /// Returns the rights of a session if they may ask.
    fn asking_rights(&self, parts: &RuleParts, grant: &SessionGrant, who: &auth::Identity<'_>) -> Option<AskingRights> {
        let sources = grant.sources.as_ref()?;
        let rules = sources.rules()?;
        let (before, after) = self.sources.lists(parts, grant.login.rules.as_deref(), &rules);
        let after = after?;
        Some(AskingRights {
            before: parts.last.session_of(&before, who),
            after: parts.last.session_of(&after, who),
            sources: sources.clone(),
            settings: self.sources.cache.clone(),
        })
    }

    /// Asks the sources. Called on the thread of a worker.
    pub(super) fn ask_sources(&self, mut open: OpenAccessQuestion) -> Result<(), OpenAccessQuestion> {
        let Some(question) = open.take::<SourceQuestion>() else {
            return Err(open);
        };
        let permit = self
            .sources
            .open_questions
            .open_for_actions(question.sources.client().address, question.bytes());
        let sources = self.sources.clone();
        self.providers.spawn(async move {
            match permit {
                Some(_permit) => sources.answer(question).await,
                None => sources.refuse(question),
            }
            open.answered();
        });
        Ok(())
    }
}
