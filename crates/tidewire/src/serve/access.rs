//! Authentication and authorization for the shards, and changes of them through the API: users and access rules from
//! the configuration and from changes at run time.
//!
//! Users come from `access.users` and `access.password_file`, which the API does not change, and from the API, which
//! stores its users in `users` of the data directory. The access rules of the API are stored as `access.rules` in
//! `runtime.toml`. Shards never wait for a lock that is held during a disk write: they read a compiled snapshot.

mod admission;
mod certificates;
mod configured;
#[cfg(feature = "kerberos")]
mod kerberos;
mod login_test;
mod outcome;
mod overview;
mod rights;
mod scram;
mod session_login;
mod source_admission;
mod source_test;
mod sources;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::{
    AccessAdmin, AccessOrder, AclRules, AuthProviderFigures, ChangeError, LoginTest, LoginTestError, LoginTestOutcome,
    SourcesTest,
};
use auth::{
    AccessRule, BanCandidate, Bans, ChainStep, ClientAttributes, LoginAttempt, LoginLimiter, Password, PasswordHash,
    ProviderOutcome, UserError, UserSummary, Users,
};
use auth_providers::AskingClient;
use broker::inbox::InboxClient;
use broker::{
    AccessControl, AccessQuestion, AccessRequest, AdmissionStep, AuthOutcome, ClientIdentity, ConnectCredentials,
    ConnectIdentity, LoginGrant, Operator, SessionAccess, SessionSlot, ShardId,
};
use mqtt::ReasonCode;
use net::certificate::CertificateField;
use net::{AuthQuestion, CallError, OpenAccessQuestion};

use super::access_sources::AccessSources;
use super::guesses::{LOCKED_OUT, login_attempt};
use super::open_questions::TOO_MANY_QUESTIONS;
use super::providers::Providers;
use crate::config::files::chain;
use crate::config::options::access::jwt::TokenFrom;
use crate::config::options::access::{ProviderKind, UnknownUsers};
use crate::config::{Config, LoadedConfig};
use crate::device_platform::DevicePlatform;
use admission::{Mountpoints, NameAttributes};
use certificates::{CertificateNames, NamedCredentials, certificate_name};
use configured::{CompiledRules, RuleOrigin, access_without_rules, compile, save_rules};
pub use configured::{ConfiguredAccess, RuleParts, has_other_sources};
use outcome::{auth_outcome, can_be_guess, client_login};
use overview::ConfiguredOrder;
use rights::{SessionRights, without_mountpoint};
use scram::Scram;
use session_login::SessionLogin;
use source_admission::renewed_grant;
pub use sources::{Asked, Decision, DecisionCache, SourceQuestion, SourceRules};

/// Maximum time that a change waits until all shards have applied it to their sessions.
const SHARDS_TIMEOUT: Duration = Duration::from_secs(10);

/// File of the data directory with the users of the API.
const USERS_FILE: &str = "users";

/// File of the data directory with the bans.
pub const BANS_FILE: &str = "banned.json";

/// Replaces a user name that may be a secret.
const HIDDEN_NAME: &str = "***";

pub struct NodeAccess {
    providers: Providers,
    order: ConfiguredOrder,
    scram: Scram,
    certificates: CertificateNames,
    mountpoints: Mountpoints,
    name_attributes: NameAttributes,
    /// Access rules see topics with the mountpoint of the client.
    includes_mountpoint: bool,
    /// Clients whose user name is unknown may connect like anonymous ones.
    admits_unknown_users: bool,
    /// The user name of a client can be its token.
    has_tokens_as_names: bool,
    /// All users, from all sources.
    users: Arc<Users>,
    sources: Arc<AccessSources>,
    /// Access of all clients except superusers while there are no rules.
    without_rules: Arc<dyn SessionAccess>,
    acl: RwLock<CompiledRules>,
    bans: Bans,
    login_limiter: Arc<LoginLimiter>,
    state: Mutex<NodeAccessState>,
    /// Held while `runtime.toml` is read, changed and applied. Taken before `state`.
    runtime_file: Mutex<()>,
    data_dir: PathBuf,
    net: OnceLock<net::ServerHandle>,
    devices: Option<DevicePlatform>,
}

/// State for changes; locked for the duration of a change.
struct NodeAccessState {
    /// Users of the API, which are written to the data directory.
    own: Users,
    /// Users of the configuration, and where they are set.
    configured: HashMap<String, String>,
    rules: AclRules,
}

impl NodeAccess {
    pub fn new(
        loaded: &LoadedConfig,
        devices: Option<DevicePlatform>,
        login_limiter: Arc<LoginLimiter>,
    ) -> Result<NodeAccess, String> {
        let config = &loaded.config;
        let own_file = config.data_dir.join(USERS_FILE);
        let own = match own_file.exists() {
            true => Users::load(&own_file).map_err(|e| chain(&e))?,
            false => Users::empty().map_err(|e| chain(&e))?,
        };
        let users = Arc::new(Users::empty().map_err(|e| chain(&e))?);
        let admits_unknown_users = config.access.unknown_users == UnknownUsers::Anonymous;
        let providers = Providers::new(config, &users)?;
        let sources = Arc::new(AccessSources::new(config)?);
        let configured = ConfiguredAccess::new(loaded, sources.are_remote())?;
        let access = NodeAccess {
            providers,
            order: ConfiguredOrder::new(config),
            scram: Scram::new(config, &users)?,
            certificates: CertificateNames::new(config),
            mountpoints: Mountpoints::new(config),
            name_attributes: NameAttributes::new(config),
            includes_mountpoint: config.access.include_mountpoint,
            admits_unknown_users,
            has_tokens_as_names: has_tokens_as_names(config),
            users,
            sources,
            without_rules: access_without_rules()?,
            acl: RwLock::new(configured.acl.clone()),
            bans: Bans::open(&config.data_dir.join(BANS_FILE)).map_err(|e| chain(&e))?,
            login_limiter,
            state: Mutex::new(NodeAccessState {
                own,
                configured: HashMap::new(),
                rules: AclRules::default(),
            }),
            runtime_file: Mutex::default(),
            data_dir: config.data_dir.clone(),
            net: OnceLock::new(),
            devices,
        };
        access.apply(configured)?;
        Ok(access)
    }

    /// Returns whether the server asks other systems for access rules.
    pub fn has_other_sources(&self) -> bool {
        self.sources.are_remote()
    }

    /// Changes after this call reach existing sessions.
    pub fn connect(&self, net: net::ServerHandle) {
        let _ = self.net.set(net);
    }

    /// Applies users and rules of a configuration. They are in use even if the call fails; the error says for which
    /// sessions they could not be applied.
    pub fn apply(&self, configured: ConfiguredAccess) -> Result<(), String> {
        let mut state = self.lock();
        let all = Users::empty().map_err(|e| chain(&e))?;
        // Users of the configuration have priority over those of the API with the same name.
        for users in [&state.own, &configured.users] {
            users.copy_into(&all).map_err(|e| chain(&e))?;
        }
        let demoted = self.demoted(&all);
        let invalid = self.users.replace(&all);
        state.configured = configured.sources;
        state.rules = configured.rules;
        self.replace_acl(configured.acl);
        drop(state);
        // A failure of one step or shard must not leave the old rights to the clients of the others.
        let steps = [self.log_out(invalid), self.forget_logins(demoted), self.update_shards()];
        let applied: Result<(), CallError> = steps.into_iter().collect();
        applied.map_err(|e| {
            format!("the new users and rules are in use, but could not be applied to all connected clients: {e}")
        })
    }

    /// Returns the superusers that are none among the new users.
    fn demoted(&self, new: &Users) -> Vec<Box<str>> {
        let is_demoted = |name: &str| new.get(name).is_some_and(|user| !user.is_superuser);
        let superusers = self.users.list().into_iter().filter(|user| user.is_superuser);
        let demoted = superusers.filter(|user| is_demoted(&user.name));
        demoted.map(|user| user.name.into()).collect()
    }

    pub fn lock_runtime_file(&self) -> MutexGuard<'_, ()> {
        self.runtime_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, NodeAccessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace_acl(&self, acl: CompiledRules) {
        let mut current = self.acl.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = acl.open
            && acl.open > current.open
        {
            open.warn();
        }
        *current = acl;
    }

    fn compiled(&self) -> CompiledRules {
        self.acl.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Disconnects these users.
    fn log_out(&self, names: Vec<Box<str>>) -> Result<(), CallError> {
        if names.is_empty() {
            return Ok(());
        }
        let names: Arc<HashSet<Box<str>>> = Arc::new(names.into_iter().collect());
        self.visit_sessions(move |mut operator, slot| operator.kick_users(slot, |name| names.contains(name)))
    }

    /// Disconnects users that are no superusers any more if other systems know their access rules. Nothing was asked
    /// about a superuser, so without a new login, everything would be denied.
    fn forget_logins(&self, names: Vec<Box<str>>) -> Result<(), CallError> {
        if names.is_empty() || !self.sources.are_remote() {
            return Ok(());
        }
        let names: Arc<HashSet<Box<str>>> = Arc::new(names.into_iter().collect());
        self.visit_sessions(move |mut operator, slot| {
            operator.forget_logins(slot, |who| {
                let is_user_of_server = SessionLogin::of(&who.grant).is_none();
                is_user_of_server && who.user_name.as_deref().is_some_and(|name| names.contains(name))
            })
        })
    }

    /// Visits all sessions, a bounded number at a time. `visit` returns the slot to continue at.
    fn visit_sessions(
        &self,
        visit: impl Fn(Operator<'_>, SessionSlot) -> Option<SessionSlot> + Clone + Send + 'static,
    ) -> Result<(), CallError> {
        let Some(net) = self.net.get() else {
            return Ok(());
        };
        let visit_shard = |shard| {
            let mut from = Some(SessionSlot::FIRST);
            while let Some(slot) = from {
                let visit = visit.clone();
                from = net.call(shard, SHARDS_TIMEOUT, move |shard, now| {
                    visit(shard.operator(now), slot)
                })?;
            }
            Ok(())
        };
        // All shards, also after a failure.
        let visited: Vec<Result<(), CallError>> = (0..net.shards()).map(ShardId).map(visit_shard).collect();
        visited.into_iter().collect()
    }

    /// Applies the current rules to existing sessions.
    fn update_shards(&self) -> Result<(), CallError> {
        match self.net.get() {
            Some(net) => net
                .call_all(SHARDS_TIMEOUT, |shard, now| shard.operator(now).access_changed())
                .map(drop),
            None => Ok(()),
        }
    }

    /// Like `update_shards`, for a change that takes effect in any case.
    fn update_shards_or_log(&self) {
        if let Err(error) = self.update_shards() {
            tracing::error!(%error, "cannot apply changed users or rules to every session");
        }
    }

    /// Returns the device that the credentials belong to, or a device to be provisioned. A user of the broker is never
    /// a device.
    fn device(&self, offered: &ConnectIdentity<'_>) -> Option<InboxClient> {
        let devices = self.devices.as_ref()?;
        if let Some(certificate) = offered.certificate
            && let Some(login) = devices.certificate_login(certificate)
        {
            return Some(login);
        }
        if offered.user_name.is_some_and(|name| self.users.get(name).is_some()) {
            return None;
        }
        devices.device_login(offered)
    }

    fn device_outcome(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        let devices = self.devices.as_ref()?;
        let offered = identity(credentials);
        if devices.is_reserved(offered.client_id) {
            return Some(AuthOutcome::Deny {
                reason: ReasonCode::ClientIdentifierNotValid,
                detail: "client IDs that begin with $device/ or $provision/ are reserved for devices",
            });
        }
        if let Some(conflict) = self.conflicting_device(credentials) {
            return Some(conflict);
        }
        // As in ThingsBoard, such a login needs no credentials, so none are tested.
        let found = devices
            .provision_login(&offered, credentials.address)
            .or_else(|| self.device(&offered))?;
        if let Some(outcome) = self.banned(&found.client_id, credentials) {
            return Some(outcome);
        }
        Some(AuthOutcome::Inbox(Box::new(found)))
    }

    /// Returns the rejection of a banned client.
    fn banned(&self, client_id: &str, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        self.banned_user(client_id, credentials.user_name.as_deref(), credentials.address)
    }

    fn banned_user(&self, client_id: &str, user_name: Option<&str>, address: IpAddr) -> Option<AuthOutcome> {
        let suspect = BanCandidate {
            client_id,
            user_name,
            address,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let kind = self.bans.find(&suspect, now.as_millis() as u64)?;
        Some(AuthOutcome::Deny {
            reason: ReasonCode::Banned,
            detail: kind.reason(),
        })
    }

    /// Returns the user name that access rules see. The name of an unknown user is not verified.
    fn verified_name<'a>(&self, user_name: Option<&'a str>) -> Option<&'a str> {
        user_name.filter(|name| !self.admits_unknown_users || self.users.get(name).is_some())
    }

    /// Returns the credentials if they could be a guess. The certificate of a device is verified, and a login for
    /// provisioning tests nothing.
    fn login_attempt<'a>(&self, named: &'a NamedCredentials<'_>) -> Option<LoginAttempt<'a>> {
        if self.is_certificate_login(named) {
            return None;
        }
        let credentials = &*named.credentials;
        let devices = self.devices.as_ref();
        let is_provision = devices.is_some_and(|devices| devices.is_provision(&identity(credentials)));
        login_attempt(credentials).filter(|_| !is_provision && !self.has_device_certificate(credentials))
    }

    fn has_device_certificate(&self, credentials: &ConnectCredentials) -> bool {
        let (Some(devices), Some(certificate)) = (self.devices.as_ref(), credentials.certificate.as_deref()) else {
            return false;
        };
        devices.certificate_login(certificate).is_some()
    }

    /// Returns the rejection of a client whose address has failed too often.
    fn locked_out(&self, attempt: Option<&LoginAttempt<'_>>) -> Option<AuthOutcome> {
        self.login_limiter.admit(attempt?, Instant::now()).err()?;
        Some(AuthOutcome::Deny {
            // Temporary: MQTT 3.1.1 clients get 3 (Server unavailable) and retry.
            reason: ReasonCode::QuotaExceeded,
            detail: LOCKED_OUT,
        })
    }

    fn record_attempt(&self, attempt: Option<&LoginAttempt<'_>>, outcome: &AuthOutcome) {
        let Some(attempt) = attempt else { return };
        match outcome {
            // Nothing was verified.
            AuthOutcome::Allow(login)
                if SessionLogin::of(&login.grant).is_none() && self.verified_name(attempt.user_name).is_none() => {}
            AuthOutcome::Allow(_) | AuthOutcome::Inbox(_) => self.login_limiter.record_success(attempt),
            AuthOutcome::Deny {
                reason: ReasonCode::BadUserNameOrPassword | ReasonCode::NotAuthorized,
                ..
            } => self.login_limiter.record_failure(attempt, Instant::now()),
            _ => {}
        }
    }

    /// Answers a question of the pool with the decision of the providers.
    fn answer(&self, question: AuthQuestion, outcome: ProviderOutcome) {
        let outcome = self.conclude(question.credentials(), outcome);
        question.answer(outcome);
    }

    fn conclude(&self, credentials: &ConnectCredentials, outcome: ProviderOutcome) -> AuthOutcome {
        let named = match self.named(credentials) {
            Ok(named) => named,
            Err(outcome) => return outcome,
        };
        // Other logins of the address may have failed while this one waited for the other system.
        if let Some(locked_out) = self.locked_out(self.login_attempt(&named).as_ref()) {
            return locked_out;
        }
        let attempt = self.login_attempt(&named).filter(|_| can_be_guess(&outcome));
        let outcome = auth_outcome(outcome);
        self.record_attempt(attempt.as_ref(), &outcome);
        let outcome = named.name_session(self.admit(&named.credentials, outcome));
        // The client may have been banned in the meantime.
        let outcome = self
            .banned(&credentials.client_id, &named.credentials)
            .unwrap_or(outcome);
        self.with_sources(&named.credentials, outcome)
    }

    /// Returns what the providers need to know of a question of the pool, or the decision without them.
    fn prepare(&self, credentials: &ConnectCredentials) -> Result<auth::Credentials, AuthOutcome> {
        let named = self.named(credentials)?;
        #[cfg(feature = "kerberos")]
        if let Some(outcome) = self.kerberos_step(credentials, &named) {
            return Err(self.with_sources(&named.credentials, outcome));
        }
        if let Some(outcome) = self.scram_step(credentials, &named) {
            return Err(self.with_sources(&named.credentials, outcome));
        }
        // Other logins of the address may have failed while this one was queued.
        match self.locked_out(self.login_attempt(&named).as_ref()) {
            Some(locked_out) => Err(locked_out),
            None => Ok(offered(&named.credentials)),
        }
    }

    pub fn login_limiter(&self) -> &Arc<LoginLimiter> {
        &self.login_limiter
    }

    fn is_superuser(&self, name: &str) -> bool {
        self.users.get(name).is_some_and(|user| user.is_superuser)
    }

    fn change_own(&self, name: &str, change: impl Fn(&Users) -> Result<(), UserError>) -> Result<(), ChangeError> {
        let state = self.lock();
        if let Some(source) = state.configured.get(name) {
            return Err(ChangeError::Pinned { source: source.clone() });
        }
        let before = state.own.snapshot(name);
        change(&state.own).map_err(ChangeError::User)?;
        if let Err(error) = state.own.save(&self.data_dir.join(USERS_FILE)) {
            state.own.restore(name, before);
            return Err(ChangeError::Storage(error));
        }
        let was_superuser = self.is_superuser(name);
        self.users.restore(name, state.own.snapshot(name));
        drop(state);
        if self.is_superuser(name) == was_superuser {
            return Ok(());
        }
        if was_superuser
            && self.users.contains(name)
            && let Err(error) = self.forget_logins(vec![name.into()])
        {
            tracing::error!(%error, "cannot disconnect every client of a user that is no superuser any more");
        }
        self.update_shards_or_log();
        Ok(())
    }
}

impl AccessAdmin for NodeAccess {
    fn users(&self) -> Vec<UserSummary> {
        self.users.list()
    }

    fn hash_password(&self, password: &Password) -> Result<PasswordHash, auth::CreateError> {
        self.scram.hash(password)
    }

    fn add_user(&self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), ChangeError> {
        self.change_own(name, |own| own.add(name, hash.clone(), is_superuser))
    }

    fn change_user(
        &self,
        name: &str,
        hash: Option<PasswordHash>,
        is_superuser: Option<bool>,
    ) -> Result<(), ChangeError> {
        self.change_own(name, |own| {
            if let Some(is_superuser) = is_superuser {
                own.set_superuser(name, is_superuser)?;
            }
            hash.clone().map_or(Ok(()), |hash| own.set_password(name, hash))
        })
    }

    fn remove_user(&self, name: &str) -> Result<(), ChangeError> {
        self.change_own(name, |own| own.remove(name))
    }

    fn acl(&self) -> AclRules {
        self.lock().rules.clone()
    }

    fn bans(&self) -> &Bans {
        &self.bans
    }

    fn auth_providers(&self) -> Vec<AuthProviderFigures> {
        self.providers.figures()
    }

    fn access_sources(&self) -> Vec<AuthProviderFigures> {
        self.sources.figures()
    }

    fn access_order(&self) -> AccessOrder {
        self.order_with_state()
    }

    fn test_login(&self, test: &LoginTest) -> Result<LoginTestOutcome, LoginTestError> {
        self.login_test(test)
    }

    fn audited_user_name(&self, user_name: &str) -> Box<str> {
        self.shown_user_name(user_name)
    }

    fn clear_access_cache(&self) {
        self.sources.clear_cache();
    }

    fn test_sources(&self, client: auth::Credentials, attributes: &ClientAttributes) -> Option<SourcesTest> {
        self.decisions_of_sources(client, attributes)
    }

    fn answer_question(&self, question: AccessQuestion) -> bool {
        self.wait_for_sources(question)
    }

    fn set_acl(&self, rules: Vec<AccessRule>) -> Result<(), ChangeError> {
        let runtime_file = self.lock_runtime_file();
        let mut state = self.lock();
        if let Some(source) = &state.rules.pinned_by {
            return Err(ChangeError::Pinned { source: source.clone() });
        }
        let origin = RuleOrigin {
            has_acl_file: false,
            has_other_sources: self.sources.are_remote(),
        };
        let acl = compile(&rules, state.rules.options, origin).map_err(ChangeError::Rules)?;
        save_rules(&self.data_dir, &rules)?;
        state.rules.rules = rules;
        self.replace_acl(acl);
        drop(state);
        drop(runtime_file);
        self.update_shards_or_log();
        Ok(())
    }
}

fn has_tokens_as_names(config: &Config) -> bool {
    config.provider_kinds().contains(&ProviderKind::Jwt) && config.jwt.from == TokenFrom::UserName
}

impl AccessControl for NodeAccess {
    /// Decides only if no hash is needed.
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        let named = match self.named(credentials) {
            Ok(named) => named,
            Err(outcome) => return Some(outcome),
        };
        if let Some(banned) = self.banned(&credentials.client_id, &named.credentials) {
            return Some(banned);
        }
        #[cfg(feature = "kerberos")]
        if credentials
            .method
            .as_deref()
            .is_some_and(|method| self.is_kerberos(method))
        {
            return self.kerberos_refusal(credentials);
        }
        if let Some(outcome) = self.scram_step(credentials, &named) {
            return Some(self.with_sources(&named.credentials, outcome));
        }
        let mut attempt = self.login_attempt(&named);
        if let Some(locked_out) = self.locked_out(attempt.as_ref()) {
            return Some(locked_out);
        }
        let known = self
            .device_outcome(credentials)
            .or_else(|| self.certificate_outcome(&named));
        let outcome = match known {
            Some(outcome) => outcome,
            None => {
                let chain = self.providers.chain(credentials.listener);
                let outcome = chain.authenticate_now(&offered(&named.credentials))?;
                attempt = attempt.filter(|_| can_be_guess(&outcome));
                auth_outcome(outcome)
            }
        };
        self.record_attempt(attempt.as_ref(), &outcome);
        let outcome = named.name_session(self.admit(&named.credentials, outcome));
        Some(self.with_sources(&named.credentials, outcome))
    }

    fn session_name(&self, offered: &ConnectIdentity<'_>) -> Option<Box<str>> {
        self.device(offered)
            .map(|login| login.client_id)
            .or_else(|| self.certificates.client_id(offered))
    }

    fn assigned_client_id(&self, offered: &ConnectIdentity<'_>) -> Option<Box<str>> {
        let assigned = self.certificates.client_id(offered)?;
        self.device(offered).is_none().then_some(assigned)
    }

    fn supports_auth_method(&self, method: &str) -> bool {
        #[cfg(feature = "kerberos")]
        if self.is_kerberos(method) {
            return true;
        }
        self.scram.method(method).is_some()
    }

    /// With the platform, a name that no user has may be the access token of a device. It may also be a JSON Web Token.
    fn shown_user_name(&self, user_name: &str) -> Box<str> {
        let is_public = self.devices.is_none() && !self.has_tokens_as_names;
        match is_public || self.users.contains(user_name) {
            true => user_name.into(),
            false => HIDDEN_NAME.into(),
        }
    }

    fn requires_grants(&self) -> bool {
        self.sources.are_remote()
    }

    fn must_prepare(&self, grant: &LoginGrant) -> bool {
        SessionLogin::sources(grant).is_some()
    }

    fn admission(&self, who: &ClientIdentity, requests: &[AccessRequest<'_>]) -> AdmissionStep {
        self.admission_step(who, requests)
    }

    fn renewed_grant(&self, old: &LoginGrant, new: LoginGrant) -> LoginGrant {
        renewed_grant(old, new)
    }

    fn session(&self, who: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        // The client is offline. Its rights are checked when it connects, before it receives anything.
        if who.grant == LoginGrant::Forgotten {
            return None;
        }
        let mountpoint = self.hidden_mountpoint(who);
        let grant = &who.grant;
        let who = self.verified_identity(who);
        let CompiledRules {
            acl, after_own, parts, ..
        } = self.compiled();
        if let Some(parts) = &parts {
            let rights = self.rights_of_sources(parts, grant, &who)?;
            return Some(without_mountpoint(rights, mountpoint));
        }
        let own = SessionLogin::of(grant).and_then(|login| login.rules.as_ref());
        let acl = match (acl, own) {
            (_, Some(own)) => after_own.session_with(own, &who),
            (Some(acl), None) => acl.session(&who),
            (None, None) => return (!who.is_superuser).then(|| self.without_rules.clone()),
        };
        (!acl.is_unrestricted()).then(|| without_mountpoint(Arc::new(SessionRights(acl)), mountpoint))
    }
}

/// Authenticates clients whose credentials need a hash or another system.
pub struct ClientAuthenticator(pub Arc<NodeAccess>);

impl net::Authenticator for ClientAuthenticator {
    fn authorize(&self, question: OpenAccessQuestion) -> Result<(), OpenAccessQuestion> {
        self.0.ask_sources(question)
    }

    fn authenticate(&self, question: AuthQuestion) {
        let access = &self.0;
        let credentials = question.credentials();
        let offered = match access.prepare(credentials) {
            Ok(offered) => offered,
            Err(outcome) => return question.answer(outcome),
        };
        let chain = access.providers.chain(credentials.listener);
        match chain.advance(question.step(), &offered) {
            ChainStep::Decided(outcome) => access.answer(question, outcome),
            ChainStep::Ask { provider, next } => {
                let Some(open) = access.providers.open_questions.open_for(credentials) else {
                    return question.answer(TOO_MANY_QUESTIONS);
                };
                let access = access.clone();
                let (client, leave) = AskingClient::new();
                question.on_gone(leave);
                self.0.providers.spawn(client.ask(async move {
                    let _open = open;
                    match provider.authenticate(Arc::new(offered)).await {
                        ProviderOutcome::Ignore => question.continue_at(next),
                        decided => access.answer(question, decided),
                    }
                }));
            }
        }
    }
}

fn identity(credentials: &ConnectCredentials) -> ConnectIdentity<'_> {
    ConnectIdentity {
        client_id: &credentials.client_id,
        user_name: credentials.user_name.as_deref(),
        password: credentials.password.as_deref(),
        certificate: credentials.certificate.as_deref(),
        listener: credentials.listener,
    }
}

fn offered(credentials: &ConnectCredentials) -> auth::Credentials {
    auth::Credentials {
        client_id: credentials.client_id.to_string(),
        user_name: credentials.user_name.as_deref().map(str::to_owned),
        password: credentials
            .password
            .as_ref()
            .map(|password| Password::new(password.to_vec())),
        address: credentials.address,
        certificate_common_name: certificate_name(CertificateField::CommonName, credentials),
        certificate_subject: certificate_name(CertificateField::Subject, credentials),
        action: None,
    }
}
