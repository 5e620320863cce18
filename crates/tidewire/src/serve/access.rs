//! Who may connect and what they may do: users and rules from the configuration and from changes made while running, as
//! the shards ask for them and as the API changes them.
//!
//! Users come from `access.users` and `access.password_file`, which only their files change, and from the API, which
//! keeps its own in `users` of the data directory. The API's rules are kept as `access.rules` in `runtime.toml` there.
//! Shards never wait for a lock held over a disk write: they read a compiled snapshot.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{AccessAdmin, AclRules, ChangeError};
use auth::{
    Acl, AclErrors, AclOptions, AnonymousPolicy, AnonymousProvider, Bans, Chain, DenyReason, Grant, Outcome, Password,
    PasswordHash, Permission, Rule, SessionAcl, Suspect, UserError, UserSummary, Users, UsersProvider,
    VerifiedPasswords, preset,
};
use broker::{
    Access, AuthOutcome, Credentials, Device, DeviceKey, Identity, Offered, SessionAccess, ShardId, SubscribeAccess,
};
use devices::{DEVICE_PREFIX, Devices, Login, PROVISION_PREFIX};
use mqtt::{QoS, ReasonCode};
use net::CallError;
use platform::credentials::{MqttLogin, certificate_hash};

use crate::config::files::chain;
use crate::config::key::Key;
use crate::config::options::access::{Anonymous, NoMatch, PartialSubscription};
use crate::config::{Config, Loaded, runtime};

/// Verified passwords that are remembered, so that a device that comes back does not cost a hash.
const VERIFIED_MAX: usize = 100_000;

/// How long a change waits for the shards to have looked at their sessions again.
const SHARDS_TIMEOUT: Duration = Duration::from_secs(10);

/// File of the data directory with the users that the API made.
const USERS_FILE: &str = "users";

/// And with whom it has banned.
const BANS_FILE: &str = "banned.json";

pub struct NodeAccess {
    chain: Chain,
    /// Everyone, from wherever they come.
    users: Arc<Users>,
    /// `None` while there are no rules: then whoever may connect may do everything that is not the server's own.
    acl: RwLock<Option<Arc<Acl>>>,
    bans: Bans,
    state: Mutex<State>,
    /// Held by whoever changes `runtime.toml`, from reading it until what it says is in force. Taken before `state`.
    runtime_file: Mutex<()>,
    data_dir: PathBuf,
    net: OnceLock<net::Handle>,
    devices: Option<Arc<Devices>>,
}

/// What a change needs to know; locked for the length of a change.
struct State {
    /// Users that the API made: what is written to the data directory.
    own: Users,
    /// Users that the configuration made, and where.
    configured: HashMap<String, String>,
    rules: AclRules,
}

impl NodeAccess {
    pub fn new(loaded: &Loaded, devices: Option<Arc<Devices>>) -> Result<NodeAccess, String> {
        let config = &loaded.config;
        let own_file = config.data_dir.join(USERS_FILE);
        let own = match own_file.exists() {
            true => Users::load(&own_file).map_err(|e| chain(&e))?,
            false => Users::empty().map_err(|e| chain(&e))?,
        };
        let users = Arc::new(Users::empty().map_err(|e| chain(&e))?);
        let verified = VerifiedPasswords::new(VERIFIED_MAX).map_err(|e| chain(&e))?;
        let anonymous = AnonymousProvider {
            policy: anonymous_policy(config.access.anonymous),
        };
        let access = NodeAccess {
            chain: Chain::new(vec![
                Arc::new(anonymous),
                Arc::new(UsersProvider::new(users.clone(), verified)),
            ]),
            users,
            acl: RwLock::new(None),
            bans: Bans::open(&config.data_dir.join(BANS_FILE)).map_err(|e| chain(&e))?,
            state: Mutex::new(State {
                own,
                configured: HashMap::new(),
                rules: AclRules::default(),
            }),
            runtime_file: Mutex::default(),
            data_dir: config.data_dir.clone(),
            net: OnceLock::new(),
            devices,
        };
        access.apply(Configured::new(loaded)?)?;
        Ok(access)
    }

    /// From now on changes reach the sessions that are there.
    pub fn connect(&self, net: net::Handle) {
        let _ = self.net.set(net);
    }

    /// Takes over users and rules of a configuration. What it has taken over is in force even if it fails, which says what
    /// has not been done.
    pub fn apply(&self, configured: Configured) -> Result<(), String> {
        let mut state = self.lock();
        let all = Users::empty().map_err(|e| chain(&e))?;
        // The configuration's users win over the API's of the same name.
        for users in [&state.own, &configured.users] {
            users.copy_into(&all).map_err(|e| chain(&e))?;
        }
        let invalid = self.users.replace(&all);
        state.configured = configured.sources;
        state.rules = configured.rules;
        *self.acl.write().unwrap_or_else(PoisonError::into_inner) = configured.acl;
        drop(state);
        self.log_out(invalid)
            .and_then(|()| self.tell_shards())
            .map_err(|e| format!("users and rules are in force, but not for every client that is connected: {e}"))
    }

    pub fn lock_runtime_file(&self) -> MutexGuard<'_, ()> {
        self.runtime_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compiled(&self) -> Option<Arc<Acl>> {
        self.acl.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the connections of these users.
    fn log_out(&self, names: Vec<Box<str>>) -> Result<(), CallError> {
        let Some(net) = self.net.get().filter(|_| !names.is_empty()) else {
            return Ok(());
        };
        let names: Arc<HashSet<Box<str>>> = Arc::new(names.into_iter().collect());
        for shard in (0..net.shards()).map(ShardId) {
            let mut from = Some(0);
            while let Some(slot) = from {
                let names = names.clone();
                from = net.call(shard, SHARDS_TIMEOUT, move |shard, now| {
                    shard.kick_users(now, slot, |name| names.contains(name))
                })?;
            }
        }
        Ok(())
    }

    /// Sessions that are there are looked at again under the rules in force.
    fn tell_shards(&self) -> Result<(), CallError> {
        match self.net.get() {
            Some(net) => net
                .call_all(SHARDS_TIMEOUT, |shard, _| shard.access_changed())
                .map(drop),
            None => Ok(()),
        }
    }

    /// As `tell_shards`, for a change that is made and kept whatever comes of it.
    fn tell_shards_or_log(&self) {
        if let Err(error) = self.tell_shards() {
            tracing::error!(%error, "not every session was looked at again after a change of users or rules");
        }
    }

    /// Who this is, if it is a device, or nobody yet who wants to become one. A user of the broker is no device, whatever its name.
    fn device(&self, offered: &Offered<'_>) -> Option<Login> {
        let devices = self.devices.as_deref()?;
        if let Some(certificate) = offered.certificate
            && let Some(login) = devices.certificate_login(&certificate_hash(certificate))
        {
            return Some(login);
        }
        if offered.user_name.is_some_and(|name| self.users.get(name).is_some()) {
            return None;
        }
        devices.device_login(&login(offered))
    }

    fn device_outcome(&self, credentials: &Credentials) -> Option<AuthOutcome> {
        let devices = self.devices.as_deref()?;
        let offered = Offered {
            client_id: &credentials.client_id,
            user_name: credentials.user_name.as_deref(),
            password: credentials.password.as_deref(),
            certificate: credentials.certificate.as_deref(),
        };
        if [DEVICE_PREFIX, PROVISION_PREFIX]
            .iter()
            .any(|prefix| offered.client_id.starts_with(prefix))
        {
            return Some(AuthOutcome::Deny {
                reason: ReasonCode::ClientIdentifierNotValid,
                because: "client ids that begin with $device/ or $provision/ are those of devices",
            });
        }
        let found = self
            .device(&offered)
            .or_else(|| devices.provision_login(&login(&offered)))?;
        if let Some(outcome) = self.banned(&found.client_id, credentials) {
            return Some(outcome);
        }
        Some(AuthOutcome::Device(Box::new(Device {
            key: DeviceKey(u128::from_be_bytes(found.session.0)),
            client_id: found.client_id,
            name: found.name,
        })))
    }

    /// The refusal of whoever is banned, under the client id of its session.
    fn banned(&self, client_id: &str, credentials: &Credentials) -> Option<AuthOutcome> {
        let suspect = Suspect {
            client_id,
            user_name: credentials.user_name.as_deref(),
            address: credentials.address,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let kind = self.bans.find(&suspect, now.as_millis() as u64)?;
        Some(AuthOutcome::Deny {
            reason: ReasonCode::Banned,
            because: kind.because(),
        })
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
        if self.is_superuser(name) != was_superuser {
            self.tell_shards_or_log();
        }
        Ok(())
    }
}

/// Users and rules of a configuration, read and found good.
pub struct Configured {
    users: Users,
    /// Where each of them is set.
    sources: HashMap<String, String>,
    rules: AclRules,
    acl: Option<Arc<Acl>>,
}

impl Configured {
    pub fn new(loaded: &Loaded) -> Result<Configured, String> {
        let (users, sources) = configured_users(loaded)?;
        let rules = configured_rules(loaded)?;
        let acl = compile(&rules.rules, rules.options).map_err(|e| chain(&e))?;
        Ok(Configured {
            users,
            sources,
            rules,
            acl,
        })
    }
}

/// No rules at all, and whoever may connect may do everything that is not the server's own.
fn compile(rules: &[Rule], options: AclOptions) -> Result<Option<Arc<Acl>>, AclErrors> {
    if rules.is_empty() {
        return Ok(None);
    }
    let mut all = preset::protect_system();
    all.extend_from_slice(rules);
    Acl::compile(&all, options).map(|acl| Some(Arc::new(acl)))
}

/// The users of the configuration, and by name where each is set.
fn configured_users(loaded: &Loaded) -> Result<(Users, HashMap<String, String>), String> {
    let config = &loaded.config;
    let mut sources = HashMap::new();
    let users = match config.access.password_file.0.as_deref() {
        Some(path) => Users::load(path).map_err(|e| format!("access.password_file: {}", chain(&e)))?,
        None => Users::empty().map_err(|e| chain(&e))?,
    };
    for user in users.list() {
        sources.insert(user.name, "access.password_file".to_owned());
    }
    for (name, hash) in &config.users {
        users
            .set(name, hash.clone(), false)
            .map_err(|e| format!("access.users.{name}: {}", chain(&e)))?;
        sources.insert(
            name.clone(),
            format!("access.users ({})", origin_of(loaded, &["access", "users", name])),
        );
    }
    Ok((users, sources))
}

fn origin_of(loaded: &Loaded, key: &[&str]) -> String {
    let value = loaded.effective.iter().find(|value| value.key.words() == key);
    value.map_or_else(|| "default".to_owned(), |value| value.origin.to_string())
}

fn configured_rules(loaded: &Loaded) -> Result<AclRules, String> {
    let config = &loaded.config;
    let mut rules = config.access.rules.0.clone();
    let mut pinned_by = None;
    let rules_value = loaded
        .effective
        .iter()
        .find(|value| value.key.words() == ["access", "rules"]);
    if let Some(value) = rules_value.filter(|value| value.origin.is_pinned()) {
        pinned_by = Some(format!("access.rules ({})", value.origin));
    }
    if let Some(path) = config.access.acl_file.0.as_deref() {
        rules.extend(auth::load_mosquitto_acl(path).map_err(|e| format!("access.acl_file: {}", chain(&e)))?);
        pinned_by = Some(format!(
            "access.acl_file ({})",
            origin_of(loaded, &["access", "acl_file"])
        ));
    }
    Ok(AclRules {
        rules,
        options: acl_options(config),
        pinned_by,
    })
}

/// Puts the rules into `runtime.toml`, beside whatever else is there.
fn save_rules(data_dir: &Path, rules: &[Rule]) -> io::Result<()> {
    let mut document = runtime::read(data_dir)?;
    let rules = toml::Value::try_from(rules).map_err(io::Error::other)?;
    runtime::set(&mut document, &Key::of(&["access", "rules"]), rules)?;
    runtime::write(data_dir, &document)
}

impl AccessAdmin for NodeAccess {
    fn users(&self) -> Vec<UserSummary> {
        self.users.list()
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

    fn set_acl(&self, rules: Vec<Rule>) -> Result<(), ChangeError> {
        let runtime_file = self.lock_runtime_file();
        let mut state = self.lock();
        if let Some(source) = &state.rules.pinned_by {
            return Err(ChangeError::Pinned { source: source.clone() });
        }
        let acl = compile(&rules, state.rules.options).map_err(ChangeError::Rules)?;
        save_rules(&self.data_dir, &rules).map_err(ChangeError::Storage)?;
        state.rules.rules = rules;
        *self.acl.write().unwrap_or_else(PoisonError::into_inner) = acl;
        drop(state);
        drop(runtime_file);
        self.tell_shards_or_log();
        Ok(())
    }
}

fn anonymous_policy(anonymous: Anonymous) -> AnonymousPolicy {
    match anonymous {
        Anonymous::Never => AnonymousPolicy::Never,
        Anonymous::Loopback => AnonymousPolicy::LoopbackOnly,
        Anonymous::Always => AnonymousPolicy::Always,
    }
}

fn acl_options(config: &Config) -> AclOptions {
    AclOptions {
        no_match: match config.access.no_match {
            NoMatch::Deny => Permission::Deny,
            NoMatch::Allow => Permission::Allow,
        },
        partial_subscription: match config.access.partial_subscription {
            PartialSubscription::Refuse => auth::PartialSubscription::Refuse,
            PartialSubscription::Filter => auth::PartialSubscription::Filter,
        },
    }
}

impl Access for NodeAccess {
    /// Only what needs no hash is decided here.
    fn authenticate_now(&self, credentials: &Credentials) -> Option<AuthOutcome> {
        self.banned(&credentials.client_id, credentials)
            .or_else(|| self.device_outcome(credentials))
            .or_else(|| self.chain.authenticate_now(&offered(credentials)).map(answer))
    }

    fn session_name(&self, offered: &Offered<'_>) -> Option<Box<str>> {
        self.device(offered).map(|login| login.client_id)
    }

    fn knows_method(&self, _: &str) -> bool {
        false
    }

    /// Who is a superuser is looked up anew: it may have changed since the client logged in.
    fn session(&self, who: &Identity) -> Option<Arc<dyn SessionAccess>> {
        let user_name = who.user_name.as_deref();
        let who = auth::Identity {
            client_id: &who.client_id,
            user_name,
            address: who.address,
            is_superuser: user_name.is_some_and(|name| self.is_superuser(name)),
        };
        let acl = self.compiled()?.session(&who);
        (!acl.is_unrestricted()).then(|| Arc::new(Rights(acl)) as Arc<dyn SessionAccess>)
    }
}

impl net::Authenticator for NodeAccess {
    fn authenticate(&self, credentials: &Credentials) -> AuthOutcome {
        let outcome = answer(self.chain.authenticate(&offered(credentials)));
        // It may have been banned while its password was hashed.
        self.banned(&credentials.client_id, credentials).unwrap_or(outcome)
    }
}

fn login<'a>(offered: &Offered<'a>) -> MqttLogin<'a> {
    MqttLogin {
        client_id: offered.client_id,
        user_name: offered.user_name,
        password: offered.password,
    }
}

fn offered(credentials: &Credentials) -> auth::Credentials {
    auth::Credentials {
        client_id: credentials.client_id.to_string(),
        user_name: credentials.user_name.as_deref().map(str::to_owned),
        password: credentials
            .password
            .as_ref()
            .map(|password| Password::new(password.to_vec())),
        address: credentials.address,
    }
}

fn answer(outcome: Outcome) -> AuthOutcome {
    match outcome {
        Outcome::Allow { is_superuser } => AuthOutcome::Allow {
            is_superuser,
            data: None,
        },
        Outcome::Deny(reason) => AuthOutcome::Deny {
            reason: reason.reason_code(),
            because: words(reason),
        },
        Outcome::Ignore => AuthOutcome::Deny {
            reason: ReasonCode::NotAuthorized,
            because: "nobody knows this client",
        },
    }
}

fn words(reason: DenyReason) -> &'static str {
    match reason {
        DenyReason::UnknownUser => "unknown user",
        DenyReason::WrongPassword => "wrong password",
        DenyReason::NoPassword => "a user name without a password",
        DenyReason::AnonymousRefused => {
            "no user name and password, which are needed from this address (access.anonymous)"
        }
        DenyReason::NotAuthorized => "refused by policy",
    }
}

struct Rights(SessionAcl);

impl SessionAccess for Rights {
    fn may_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.0.publish(topic, qos, retain)
    }

    fn may_subscribe(&self, filter: &str) -> SubscribeAccess {
        match self.0.subscribe(filter) {
            Grant::Denied => SubscribeAccess::Denied,
            Grant::Allowed {
                filter_deliveries: true,
            } => SubscribeAccess::AllowedInPart,
            Grant::Allowed {
                filter_deliveries: false,
            } => SubscribeAccess::Allowed,
        }
    }

    fn may_receive(&self, topic: &str) -> bool {
        self.0.may_receive(topic)
    }
}
