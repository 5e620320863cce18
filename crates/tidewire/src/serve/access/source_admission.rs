//! Asks the sources of `access.sources` about a client, before it gets its session and when it acts.
//!
//! Sources of rules, such as a database, are asked when the client connects. The HTTP service is asked for each action,
//! and when the client connects for its will and for the filters of the session that it continues. After a restart, the
//! decisions about these filters are forgotten, so that nothing is delivered through a filter that was not decided.

use std::sync::Arc;

use auth::SessionAcl;
use auth_providers::AskingClient;
use broker::{
    AccessQuestion, AccessRequest, AdmissionStep, AuthOutcome, ClientIdentity, ConnectCredentials, LoginGrant,
    Mountpoint, SessionAccess,
};
use mqtt::ReasonCode;
use net::OpenAccessQuestion;

use super::configured::RuleParts;
use super::rights::{AskingRights, SessionRights, requests_below};
use super::session_login::SessionLogin;
use super::sources::{Asked, ClientRulesState, Decision, SessionSources, SourceQuestion};
use super::{NodeAccess, offered};

/// Returns the grant of a client that has authenticated again. It keeps the answers of the sources.
pub fn renewed_grant(old: &LoginGrant, new: LoginGrant) -> LoginGrant {
    match SessionLogin::sources(old) {
        Some(sources) => SessionLogin::with_sources(&new, sources.clone()),
        None => new,
    }
}

/// Rights that follow from known rules.
enum KnownRights {
    Fixed(SessionAcl),
    /// With an HTTP service.
    Asking(AskingRights),
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
        let user_name = match SessionLogin::of(&login.grant) {
            Some(_) => user_name,
            None => self.verified_name(user_name),
        };
        let certificate = SessionLogin::certificate(&login.grant);
        let client = auth::Credentials {
            user_name: user_name.map(str::to_owned),
            password: None,
            // The names of the session, because the credentials of a re-authentication contain no certificate.
            certificate_common_name: certificate.common_name.map(Into::into),
            certificate_subject: certificate.subject.map(Into::into),
            ..offered(credentials)
        };
        let sources = Arc::new(SessionSources::new(client, self.sources.has_rules()));
        login.grant = SessionLogin::with_sources(&login.grant, sources);
        outcome
    }

    /// Returns the identity that access rules see. Looks up again whether a user of the server is a superuser: that may
    /// have changed since the login.
    pub(super) fn verified_identity<'a>(&self, who: &'a ClientIdentity) -> auth::Identity<'a> {
        let of_provider = SessionLogin::of(&who.grant);
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
            attributes: SessionLogin::attributes(&who.grant),
            certificate: SessionLogin::certificate(&who.grant),
        }
    }

    /// Returns the prefix that access rules do not see.
    pub(super) fn hidden_mountpoint<'a>(&self, who: &'a ClientIdentity) -> Option<&'a Mountpoint> {
        who.mountpoint.as_ref().filter(|_| !self.includes_mountpoint)
    }

    /// Returns the access rules of a session with several sources; `None` if everything is allowed.
    pub(super) fn rights_of_sources(
        &self,
        parts: &RuleParts,
        grant: &LoginGrant,
        who: &auth::Identity<'_>,
    ) -> Option<Arc<dyn SessionAccess>> {
        if who.is_superuser {
            return None;
        }
        Some(match self.known_rights(parts, grant, who) {
            Some(KnownRights::Fixed(rules)) => Arc::new(SessionRights(rules)),
            Some(KnownRights::Asking(rights)) => Arc::new(rights),
            // The user was a superuser when it connected.
            None => Arc::new(SessionRights(parts.nothing.session(who))),
        })
    }

    /// Returns the rights of a client that is no superuser. `None` if its rules are not known.
    fn known_rights(&self, parts: &RuleParts, grant: &LoginGrant, who: &auth::Identity<'_>) -> Option<KnownRights> {
        let sources = SessionLogin::sources(grant)?;
        let rules = sources.rules()?;
        let own = SessionLogin::of(grant).and_then(|login| login.rules.as_deref());
        let (before, after) = self.sources.lists(parts, own, &rules);
        let before = parts.last.session_of(&before, who);
        Some(match after {
            None => KnownRights::Fixed(before),
            Some(after) => KnownRights::Asking(AskingRights {
                before,
                after: parts.last.session_of(&after, who),
                sources: sources.clone(),
                settings: self.sources.cache.clone(),
            }),
        })
    }

    /// Rejects a client that was banned, or whose user was removed, while it waited for an answer.
    fn rejected_since_login(&self, who: &ClientIdentity) -> Option<AdmissionStep> {
        let name = who.user_name.as_deref();
        if let Some(AuthOutcome::Deny { reason, detail }) = self.banned_user(&who.client_id, name, who.address) {
            return Some(AdmissionStep::Deny { reason, detail });
        }
        let is_of_server = SessionLogin::of(&who.grant).is_none() && !self.admits_unknown_users;
        let is_removed = is_of_server && name.is_some_and(|name| !self.users.contains(name));
        is_removed.then_some(AdmissionStep::Deny {
            reason: ReasonCode::NotAuthorized,
            detail: "the user was removed",
        })
    }

    /// Returns the next step for a client with sources.
    pub(super) fn admission_step(&self, who: &ClientIdentity, requests: &[AccessRequest<'_>]) -> AdmissionStep {
        let Some(sources) = SessionLogin::sources(&who.grant) else {
            return AdmissionStep::Admit;
        };
        if let Some(rejection) = self.rejected_since_login(who) {
            return rejection;
        }
        let identity = self.verified_identity(who);
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
        let parts = self.compiled().parts;
        let rights = parts.and_then(|parts| self.known_rights(&parts, &who.grant, &identity));
        let Some(KnownRights::Asking(rights)) = rights else {
            return AdmissionStep::Admit;
        };
        let requests = match self.hidden_mountpoint(who) {
            Some(mountpoint) => requests_below(mountpoint, requests),
            None => requests.to_vec(),
        };
        match rights.login_question(&requests) {
            Some(question) => AdmissionStep::Ask(question),
            None if sources.has_failed() => NO_ANSWER,
            None => AdmissionStep::Admit,
        }
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
        let (client, leave) = AskingClient::new();
        open.on_gone(leave);
        self.providers.spawn(client.ask(async move {
            match permit {
                Some(_permit) => sources.answer(question).await,
                None => sources.refuse(question),
            }
            open.answered();
        }));
        Ok(())
    }

    /// Asks the sources about a subscription that an operator requests, and waits for the answer. Returns whether there
    /// is one. Must not be called on a thread of a worker.
    pub(super) fn wait_for_sources(&self, AccessQuestion(question): AccessQuestion) -> bool {
        let Ok(question) = question.downcast::<SourceQuestion>() else {
            return false;
        };
        let Asked::Actions(actions) = &question.asked else {
            return false;
        };
        let (sources, actions) = (question.sources.clone(), actions.clone());
        let is_failed = |action| sources.answer(action) == Some(Decision::Failed);
        let asked = self.providers.wait_for(self.sources.answer(*question));
        let is_answered = asked.is_some() && !actions.iter().any(is_failed);
        if !is_answered {
            // A failure decides nothing later.
            sources.forget_failures();
        }
        is_answered
    }
}
