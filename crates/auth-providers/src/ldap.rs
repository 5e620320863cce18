//! Clients whose passwords are in an LDAP directory, such as OpenLDAP or Active Directory.
//!
//! | login | requests |
//! |---|---|
//! | `bind` | a search with the configured user, then a bind as the entry that it found |
//! | `bind` with `user_dn` | a bind as this name, then a read of the own entry |
//! | `hash` | a search, then a comparison with the hash in the entry |
//!
//! Values of a client are inserted into parsed filters and names, so they are never part of their text. An empty
//! password is denied without a question: many servers answer such a bind with success and no rights [RFC 4513, 5.1.2].
//!
//! Directories compare names without case. The session gets the name as the directory writes it; otherwise a client
//! could avoid the access rules of its user by writing the name in another case.

mod groups;
mod login;
mod password;
mod template;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use auth::{Credentials, DenyReason, Password, Placeholder, ProviderOutcome};
use connectors::ldap::{
    BoundSession, LdapClient, LdapConnectorConfig, LdapDn, LdapEntry, LdapError, LdapFilter, LdapResult, LdapSearch,
    LdapSearchResult, SearchScope, codes,
};

use crate::provider::{SourceLimits, SourceProvider};
use crate::source::{LoginSource, QuestionKey, SourceError, SourceFuture};
use groups::GroupRules;
use login::LoginRules;
use password::PasswordMatch;
use template::{ClientValues, ValueTemplate};

const NAME: &str = "ldap";

/// Maximum length of a password. OpenLDAP closes connections at requests of 256 KiB, which would look like a failure.
const PASSWORD_BYTES_MAX: usize = 16 << 10;

/// Configuration of the provider. Texts may contain placeholders where this is said.
#[derive(Clone, Debug)]
pub struct LdapConfig {
    pub connection: LdapConnectorConfig,
    pub method: LdapMethod,
    /// Entry below which clients are searched. With placeholders.
    pub base_dn: String,
    /// Filter that finds the entry of a client. With placeholders. `None`: by `uid`, and with `user_dn` any entry.
    pub filter: Option<String>,
    /// Name for a bind without a search. With placeholders.
    pub user_dn: Option<String>,
    /// Attribute with the hash of the password, for [`LdapMethod::Hash`].
    pub password_attribute: String,
    pub is_superuser_attribute: Option<String>,
    /// Names of client attributes, and the attributes of the entry with their values.
    pub client_attributes: BTreeMap<String, String>,
    pub groups: LdapGroupConfig,
}

/// How a password is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdapMethod {
    Bind,
    Hash,
}

/// The groups of a client.
#[derive(Clone, Debug, Default)]
pub struct LdapGroupConfig {
    /// Attribute of the entry with the names of its groups.
    pub attribute: String,
    /// Filter that finds the groups instead. With placeholders, and `${dn}` for the name of the entry.
    pub filter: Option<String>,
    /// Entry below which groups are searched.
    pub base_dn: Option<String>,
    /// Names of groups. A client must be a member of one of them. Empty: no membership is required.
    pub required: Vec<String>,
    /// Name of the client attribute with the names of the groups.
    pub client_attribute: Option<String>,
    /// How this attribute names a group.
    pub names: LdapGroupNames,
}

/// How the attributes of a client name a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LdapGroupNames {
    /// By the first value of its name. Groups in different places can have the same one.
    #[default]
    First,
    /// By its whole name, normalized.
    Whole,
}

/// A directory with clients.
pub struct LdapSource {
    client: LdapClient,
    check: LoginCheck,
    filter: LdapFilter<ValueTemplate>,
    login: LoginRules,
    groups: GroupRules,
    /// Attributes of an entry that are needed.
    attributes: Vec<String>,
    /// Each placeholder once.
    placeholders: Vec<Placeholder>,
    warnings: Warnings,
}

/// How the entry is found, and the password checked.
enum LoginCheck {
    /// Bind as this name.
    Direct(LdapDn<ValueTemplate>),
    Search {
        base: LdapDn<ValueTemplate>,
        method: LdapMethod,
        password_attribute: String,
    },
}

/// The parsed filters, names and attributes of a configuration.
struct LoginParts {
    check: LoginCheck,
    filter: LdapFilter<ValueTemplate>,
    login: LoginRules,
    groups: GroupRules,
    attributes: Vec<String>,
    placeholders: Vec<Placeholder>,
}

/// Result of a search for one entry.
enum Found {
    One(LdapEntry),
    Nothing,
    Denied(DenyReason),
}

/// A connection for searches.
enum Searcher<'a, 'b> {
    Client(&'a LdapClient),
    Session(&'a mut BoundSession<'b>),
}

/// Warnings about the directory. Each kind is logged once, because clients can cause it as often as they connect.
#[derive(Default)]
struct Warnings(Mutex<HashSet<&'static str>>);

/// Creates the provider. Does not connect. The error names the field.
pub fn provider(config: &LdapConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<LdapSource>>, String> {
    Ok(SourceProvider::new(LdapSource::new(config)?, limits))
}

/// Checks filters, names and attributes. Does not connect and reads no file. The error names the field.
pub fn check(config: &LdapConfig) -> Result<(), String> {
    LoginParts::parse(config).map(drop)
}

impl From<LdapError> for SourceError {
    fn from(error: LdapError) -> SourceError {
        match error {
            LdapError::Lost(reason) => SourceError::Failed(reason),
            LdapError::Unusable(reason) => SourceError::Invalid(reason),
        }
    }
}

impl LdapSource {
    fn new(config: &LdapConfig) -> Result<LdapSource, String> {
        let client = LdapClient::new(&config.connection).map_err(|problems| problems.join("; "))?;
        for url in client.unencrypted_servers() {
            tracing::warn!(
                "access.ldap.servers: {url} has no TLS: passwords of clients are sent unencrypted; write ldaps:// or \
                 set starttls"
            );
        }
        let LoginParts {
            check,
            filter,
            login,
            groups,
            attributes,
            placeholders,
        } = LoginParts::parse(config)?;
        Ok(LdapSource {
            client,
            check,
            login,
            groups,
            attributes,
            placeholders,
            filter,
            warnings: Warnings::default(),
        })
    }

    /// Returns whether the directory can know these credentials.
    fn is_askable(&self, credentials: &Credentials) -> bool {
        let is_usable = |password: &Password| password.expose().len() <= PASSWORD_BYTES_MAX;
        credentials.password.as_ref().is_some_and(is_usable)
            && self
                .placeholders
                .iter()
                .all(|placeholder| template::is_usable(placeholder, credentials))
    }

    async fn decide(&self, credentials: &Credentials) -> Result<ProviderOutcome, SourceError> {
        let Some(password) = credentials.password.as_ref().filter(|_| self.is_askable(credentials)) else {
            return Ok(ProviderOutcome::Ignore);
        };
        // A server that reads a password up to its first NUL byte would take this one for an empty one.
        if password.is_empty() || password.expose().contains(&0) {
            return Ok(ProviderOutcome::Deny(DenyReason::WrongPassword));
        }
        let values = ClientValues::of(credentials);
        match &self.check {
            LoginCheck::Direct(dn) => {
                self.decide_by_name(&dn.render(&mut |value| values.text(value)), values, password)
                    .await
            }
            LoginCheck::Search {
                base,
                method,
                password_attribute,
            } => {
                let base_dn = base.render(&mut |value| values.text(value));
                let search = self.search(base_dn, SearchScope::Subtree, values);
                let result = self.client.search(&search).await?;
                let is_fixed = base.values().all(ValueTemplate::is_fixed);
                let entry = match self.one_entry(result, is_fixed)? {
                    Found::One(entry) => entry,
                    Found::Denied(reason) => return Ok(ProviderOutcome::Deny(reason)),
                    Found::Nothing => {
                        if *method == LdapMethod::Bind {
                            self.bind_as_nobody(&search.base).await?;
                        }
                        return Ok(ProviderOutcome::Ignore);
                    }
                };
                let denied = match method {
                    LdapMethod::Bind => self.denied_by_bind(&entry.dn, password).await?,
                    LdapMethod::Hash => self.denied_by_hash(entry.values(password_attribute), password),
                };
                match denied {
                    Some(reason) => Ok(ProviderOutcome::Deny(reason)),
                    None => self.admit(entry, values, Searcher::Client(&self.client)).await,
                }
            }
        }
    }

    /// Logs in with a name that contains the values of the client. The server does not say whether the name exists, so
    /// the next provider is not asked.
    async fn decide_by_name(
        &self,
        dn: &str,
        values: ClientValues<'_>,
        password: &Password,
    ) -> Result<ProviderOutcome, SourceError> {
        let (result, mut session) = self.client.bind(dn, password.expose()).await?;
        if let Some(reason) = self.denied_by_result(&result)? {
            session.release();
            return Ok(ProviderOutcome::Deny(reason));
        }
        let search = self.search(dn.to_owned(), SearchScope::Base, values);
        let found = session.search(&search).await?;
        let outcome = match self.one_entry(found, false)? {
            Found::One(entry) => self.admit(entry, values, Searcher::Session(&mut session)).await?,
            Found::Denied(reason) => ProviderOutcome::Deny(reason),
            Found::Nothing => {
                self.warnings.warn(
                    "a client may not read its own entry, or filter does not match it: it is rejected",
                    "allow clients to read the attributes that access.ldap uses",
                );
                ProviderOutcome::Deny(DenyReason::NotAuthorized)
            }
        };
        session.release();
        Ok(outcome)
    }

    fn search(&self, base: String, scope: SearchScope, values: ClientValues<'_>) -> LdapSearch {
        LdapSearch {
            base,
            scope,
            filter: self.filter.map(&mut |value| values.text(value).into_bytes()),
            attributes: self.attributes.clone(),
            // A second entry shows that the filter is ambiguous.
            limit: 2,
        }
    }

    /// `is_fixed`: the base of the search is the same for all clients.
    fn one_entry(&self, found: LdapSearchResult, is_fixed: bool) -> Result<Found, SourceError> {
        let LdapSearchResult { mut entries, result } = found;
        match result.code {
            codes::SUCCESS | codes::SIZE_LIMIT_EXCEEDED => {}
            codes::NO_SUCH_OBJECT | codes::INVALID_DN_SYNTAX | codes::REFERRAL => {
                if is_fixed || result.code == codes::REFERRAL {
                    self.warnings.warn(
                        "base_dn is not an entry that user may read, or on another server; referrals are not followed",
                        &result,
                    );
                }
                return Ok(Found::Nothing);
            }
            _ => {
                self.fail_if_broken(&result)?;
                self.warnings
                    .warn("the directory rejects the search for a client", &result);
                return Ok(Found::Denied(DenyReason::Unavailable));
            }
        }
        match (entries.pop(), entries.is_empty()) {
            (None, _) if result.is_success() => Ok(Found::Nothing),
            (Some(entry), true) if result.is_success() && !entry.dn.is_empty() => Ok(Found::One(entry)),
            _ => {
                self.warnings.warn(
                    "the filter matches several entries for a client: it is rejected",
                    "use an attribute that is unique",
                );
                Ok(Found::Denied(DenyReason::NotAuthorized))
            }
        }
    }

    async fn denied_by_bind(&self, dn: &str, password: &Password) -> Result<Option<DenyReason>, SourceError> {
        let (result, session) = self.client.bind(dn, password.expose()).await?;
        session.release();
        self.denied_by_result(&result)
    }

    /// Takes as long as the bind of a known user, except for the hash that the server computes.
    async fn bind_as_nobody(&self, base: &str) -> Result<(), SourceError> {
        let mut random = [0u8; 16];
        getrandom::fill(&mut random).map_err(|_| SourceError::Failed("no random bytes".to_owned()))?;
        let password = format!("{:x}", u128::from_ne_bytes(random));
        let bound = self
            .client
            .bind(&format!("cn={password},{base}"), password.as_bytes())
            .await?;
        bound.1.release();
        Ok(())
    }

    /// Only `success` is none.
    fn denied_by_result(&self, result: &LdapResult) -> Result<Option<DenyReason>, SourceError> {
        match result.code {
            codes::SUCCESS => Ok(None),
            codes::INVALID_CREDENTIALS
            | codes::INAPPROPRIATE_AUTHENTICATION
            | codes::NO_SUCH_OBJECT
            | codes::INVALID_DN_SYNTAX => Ok(Some(DenyReason::WrongPassword)),
            // A client can cause these with an entry that it may change, for example with an unreadable hash.
            codes::OPERATIONS_ERROR | codes::OTHER => {
                let server = self.client.name();
                Err(SourceError::Invalid(format!("{server}: {result}")))
            }
            _ => {
                self.fail_if_broken(result)?;
                self.warnings
                    .warn("the directory rejects the login of a client", result);
                Ok(Some(DenyReason::NotAuthorized))
            }
        }
    }

    /// Fails for results that no client can cause. All others deny, because `on_failure` can admit clients.
    fn fail_if_broken(&self, result: &LdapResult) -> Result<(), SourceError> {
        let hint = match result.code {
            codes::STRONGER_AUTHENTICATION_REQUIRED | codes::CONFIDENTIALITY_REQUIRED => {
                "; the server requires TLS: write ldaps:// or set starttls"
            }
            codes::OPERATIONS_ERROR => "; the server may require user and password for searches",
            codes::BUSY | codes::UNAVAILABLE | codes::OTHER => "",
            _ => return Ok(()),
        };
        let server = self.client.name();
        Err(SourceError::Failed(format!("{server}: {result}{hint}")))
    }

    fn denied_by_hash(&self, hashes: &[Vec<u8>], password: &Password) -> Option<DenyReason> {
        match password::check(hashes, password) {
            PasswordMatch::Right => None,
            PasswordMatch::Wrong => Some(DenyReason::WrongPassword),
            PasswordMatch::Unreadable(reason) => {
                self.warnings
                    .warn("the password of a client cannot be checked: it is rejected", reason);
                Some(DenyReason::NotAuthorized)
            }
        }
    }

    /// Decides about a client whose password is right.
    async fn admit(
        &self,
        entry: LdapEntry,
        values: ClientValues<'_>,
        searcher: Searcher<'_, '_>,
    ) -> Result<ProviderOutcome, SourceError> {
        let groups = match self.groups_of(&entry, values, searcher).await? {
            Ok(groups) => groups,
            Err(reason) => return Ok(ProviderOutcome::Deny(reason)),
        };
        match self.login.login(&entry, values, &groups) {
            Ok(login) => Ok(ProviderOutcome::Allow(Box::new(login))),
            Err(problem) => {
                self.warnings.warn(problem.summary, problem.detail);
                Ok(ProviderOutcome::Deny(DenyReason::NotAuthorized))
            }
        }
    }

    /// Returns the names of the groups, or why the client is denied.
    async fn groups_of(
        &self,
        entry: &LdapEntry,
        values: ClientValues<'_>,
        mut searcher: Searcher<'_, '_>,
    ) -> Result<Result<Vec<String>, DenyReason>, SourceError> {
        let rules = &self.groups;
        let names = match rules.search(values.with_dn(&entry.dn)) {
            None => rules.names_in(entry),
            Some(search) => {
                let found = searcher.search(&search).await?;
                if !found.result.is_success() {
                    self.fail_if_broken(&found.result)?;
                    self.warnings
                        .warn("the search for groups fails: clients are rejected", &found.result);
                    return Ok(Err(DenyReason::Unavailable));
                }
                found.entries.into_iter().map(|group| group.dn).collect()
            }
        };
        let groups = rules.groups(&names);
        if groups.unreadable > 0 {
            // A rule could deny something to one of these groups.
            self.warnings.warn(
                "names of groups cannot be read: clients are rejected",
                groups.unreadable,
            );
            return Ok(Err(DenyReason::Unavailable));
        }
        match groups.is_sufficient {
            true => Ok(Ok(groups.names)),
            false => Ok(Err(DenyReason::NotAuthorized)),
        }
    }
}

impl LoginParts {
    fn parse(config: &LdapConfig) -> Result<LoginParts, String> {
        let default_filter = match config.user_dn {
            Some(_) => "(objectClass=*)",
            None => "(uid=${username})",
        };
        let filter = config.filter.as_deref().unwrap_or(default_filter);
        let filter = template::filter("filter", filter, &mut ValueTemplate::parse)?;
        let check = LoginCheck::new(config)?;
        let groups = GroupRules::new(&config.groups)?;
        let name = match &check {
            LoginCheck::Direct(dn) => dn,
            LoginCheck::Search { base, .. } => base,
        };
        let login = LoginRules::new(config, &filter, name)?;
        let mut attributes = login.attributes();
        attributes.extend(groups.attribute());
        if let LoginCheck::Search {
            method: LdapMethod::Hash,
            password_attribute,
            ..
        } = &check
        {
            attributes.push(password_attribute);
        }
        let mut placeholders = Vec::new();
        let mut add = |value: &ValueTemplate| {
            for placeholder in value.placeholders() {
                if !placeholders.contains(placeholder) {
                    placeholders.push(placeholder.clone());
                }
            }
        };
        filter.map(&mut add);
        name.values().for_each(&mut add);
        groups.visit_values(&mut add);
        if placeholders.is_empty() {
            return Err("filter: needs a placeholder such as ${username}".to_owned());
        }
        if placeholders.contains(&Placeholder::UserName) && !login.compares_user_names() {
            return Err(
                "filter: ${username} is compared with no attribute: expected a condition such as (uid=${username}), to \
                 check how a client writes its name"
                    .to_owned(),
            );
        }
        let mut requested: Vec<String> = Vec::new();
        for name in attributes {
            if !requested.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                requested.push(name.to_owned());
            }
        }
        Ok(LoginParts {
            check,
            filter,
            login,
            groups,
            attributes: requested,
            placeholders,
        })
    }
}

impl LoginCheck {
    fn new(config: &LdapConfig) -> Result<LoginCheck, String> {
        if let Some(user_dn) = &config.user_dn {
            if config.method == LdapMethod::Hash {
                return Err("user_dn: needs the method bind".to_owned());
            }
            let dn = template::dn("user_dn", user_dn)?;
            if dn.values().all(ValueTemplate::is_fixed) {
                return Err("user_dn: needs a placeholder such as ${username}".to_owned());
            }
            return Ok(LoginCheck::Direct(dn));
        }
        Ok(LoginCheck::Search {
            base: template::dn("base_dn", &config.base_dn)?,
            method: config.method,
            password_attribute: template::attribute("password_attribute", &config.password_attribute)?,
        })
    }
}

impl Searcher<'_, '_> {
    async fn search(&mut self, search: &LdapSearch) -> Result<LdapSearchResult, LdapError> {
        match self {
            Searcher::Client(client) => client.search(search).await,
            Searcher::Session(session) => session.search(search).await,
        }
    }
}

impl Warnings {
    fn warn(&self, summary: &'static str, detail: impl Display) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.insert(summary) {
            true => tracing::warn!(provider = NAME, %detail, "{summary}"),
            false => tracing::debug!(provider = NAME, %detail, "{summary}"),
        }
    }
}

impl LoginSource for LdapSource {
    fn name(&self) -> &'static str {
        NAME
    }

    fn question(&self, credentials: &Credentials) -> Option<QuestionKey> {
        let password = credentials.password.as_ref()?;
        if !self.is_askable(credentials) {
            return None;
        }
        let name = credentials.user_name.as_deref().unwrap_or_default();
        let values = ClientValues::of(credentials);
        let values: Vec<String> = self.placeholders.iter().map(|found| values.value(found)).collect();
        let mut parts = vec![NAME.as_bytes(), name.as_bytes(), password.expose()];
        parts.extend(values.iter().map(String::as_bytes));
        Some(QuestionKey::of(&parts))
    }

    fn ask<'a>(&'a self, credentials: &'a Credentials) -> SourceFuture<'a> {
        Box::pin(async { Ok(self.decide(credentials).await?.into()) })
    }
}

#[cfg(test)]
mod tests;
