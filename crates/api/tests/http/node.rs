//! A node under test: a server with shards, the API, and users and rules that can be changed.

use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, SystemTime};

use ::web::admins::Admins;
use api::{
    AccessAdmin, AclRules, ApiConfig, ApiHandle, ChangeError, ClientEventSender, LoginTest, LoginTestError,
    LoginTestOutcome, LoginTestStep, LoginVerdict, NodeInfo, TestedLogin,
};
use auth::{
    AccessRule, Acl, AclOptions, BanCandidate, Bans, ClientAttributes, LoginLimiter, LoginLimits, PasswordHash,
    SessionAcl, SubscriptionGrant, UserSummary, Users,
};
use broker::{
    AccessControl, AuthOutcome, ClientIdentity, ClientLogin, ConnectCredentials, Mountpoint, SessionAccess,
    ShardConfig, SubscribeAccess, Transport,
};
use mqtt::{QoS, ReasonCode};
use net::{AuthQuestion, Authenticator, ConnectionObserver, ListenerConfig, PreparedServer, Server, ServerConfig};
use serde_json::{Value, json};

use super::peer::Peer;
use super::web::{self, Answer};

pub struct Node {
    pub api: Option<ApiHandle>,
    pub net: net::ServerHandle,
    pub access: Arc<TestAccess>,
    pub address: SocketAddr,
    pub password: String,
    pub token: String,
    pub data_dir: PathBuf,
    /// Shards that have not started.
    pub prepared: Option<PreparedServer>,
}

impl Node {
    pub fn start(shards: u16) -> Node {
        Node::start_with(shards, |_| {})
    }

    pub fn start_with(shards: u16, change: impl FnOnce(&mut ApiConfig)) -> Node {
        let mut node = Node::starting(shards, change);
        let prepared = node.prepared.take().unwrap();
        prepared.start(None, Vec::new()).unwrap();
        node
    }

    /// A node whose lock-outs last longer than a test on a slow machine.
    pub fn with_long_lockout() -> Node {
        let lockout = Duration::from_secs(3600);
        let limits = LoginLimits {
            lockout,
            lockout_max: lockout,
            ..LoginLimits::default()
        };
        Node::start_with(1, |config| {
            config.login_limiter = Arc::new(LoginLimiter::new(limits, |_| ()))
        })
    }

    /// A node that is reading its journal.
    pub fn starting(shards: u16, change: impl FnOnce(&mut ApiConfig)) -> Node {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let data_dir = std::env::temp_dir().join(format!("tidewire-api-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&data_dir);
        let (admins, password) = Admins::open_or_create(&data_dir).unwrap();
        let password = password.unwrap().expose().to_owned();
        let access = Arc::new(TestAccess::new(data_dir.clone()));
        let (events, client_events) = api::client_events("test-node");
        let server = ServerConfig {
            listeners: vec![ListenerConfig::new("default", Transport::Tcp, loopback())],
            handed_over: Some(of_api()),
            workers: NonZeroU16::new(shards),
            seed: 7,
            ..ServerConfig::default()
        };
        let observer = Arc::new(Events(events));
        let shard = Arc::new(ShardConfig::default());
        let prepared = Server::prepare(server, shard, access.clone(), access.clone(), observer).unwrap();
        let net = prepared.handle();
        access.net.set(net.clone()).ok().unwrap();
        let mut config = ApiConfig::new(loopback());
        config.data_dir = Some(data_dir.clone());
        change(&mut config);
        let node = NodeInfo {
            name: "test-node".into(),
            version: "0.0.1".into(),
            started_at: SystemTime::now(),
            durability: "memory only".into(),
        };
        let api = api::start(config, net.clone(), access.clone(), admins, node).unwrap();
        api.publish_client_events(client_events);
        let address = SocketAddr::from(([127, 0, 0, 1], api.address().port()));
        Node {
            api: Some(api),
            net,
            access,
            address,
            password,
            token: String::new(),
            data_dir,
            prepared: Some(prepared),
        }
    }

    /// Logs in as the first admin.
    pub fn with_login(mut self) -> Node {
        self.log_in();
        self
    }

    pub fn log_in(&mut self) {
        self.token = self.login("admin", &self.password).ok().json()["token"]
            .as_str()
            .unwrap()
            .to_owned();
    }

    pub fn login(&self, user: &str, password: &str) -> Answer {
        self.send("POST", "/api/v1/login", &json!({ "user": user, "password": password }))
    }

    pub fn get(&self, target: &str) -> Answer {
        self.request("GET", target, "")
    }

    pub fn delete(&self, target: &str) -> Answer {
        self.request("DELETE", target, "")
    }

    pub fn send(&self, method: &str, target: &str, body: &Value) -> Answer {
        self.request(method, target, &body.to_string())
    }

    pub fn request(&self, method: &str, target: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        let mut headers = Vec::new();
        if !self.token.is_empty() {
            headers.push(("Authorization", bearer.as_str()));
        }
        if !body.is_empty() {
            headers.push(("Content-Type", "application/json"));
        }
        web::request(self.address, method, target, &headers, body)
    }

    /// Returns all items of a list, and asserts that pages do not exceed the limit.
    pub fn all_pages(&self, target: &str, limit: usize) -> Vec<Value> {
        let separator = if target.contains('?') { '&' } else { '?' };
        let (mut items, mut cursor) = (Vec::new(), String::new());
        for _ in 0..1000 {
            let page = self
                .get(&format!("{target}{separator}limit={limit}{cursor}"))
                .ok()
                .json();
            let found = page["items"].as_array().unwrap();
            assert!(found.len() <= limit, "{} > {limit}", found.len());
            items.extend(found.iter().cloned());
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
        panic!("the list has no end");
    }

    pub fn mqtt_address(&self) -> SocketAddr {
        self.net.listeners()[0].address
    }

    pub fn peer(&self, client_id: &str) -> Peer {
        Peer::connect(self.mqtt_address(), client_id, None)
    }

    /// Waits for a condition on the statistics, which lag one tick behind the sockets.
    #[track_caller]
    pub fn wait_for(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = SystemTime::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(SystemTime::now() < deadline, "timeout while waiting for {what}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(api) = self.api.take() {
            api.stop(Duration::from_secs(5));
        }
        self.net.shutdown(Duration::from_secs(1));
        let _ = fs::remove_dir_all(&self.data_dir);
    }
}

/// The MQTT listener on the API's own port.
fn of_api() -> ListenerConfig {
    let mut listener = ListenerConfig::new("api", Transport::WebSocket, loopback());
    listener.max_connections = 3;
    listener.handshake_timeout = Duration::from_secs(3);
    listener
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

struct Events(ClientEventSender);

impl ConnectionObserver for Events {
    fn event(&self, event: &broker::ConnectionEvent, is_wanted: bool) {
        if is_wanted {
            self.0.offer(event);
        }
    }
}

/// Users and rules like those of the binary: tables in memory, and files in a directory.
pub struct TestAccess {
    data_dir: PathBuf,
    users: Users,
    acl: RwLock<(Vec<AccessRule>, Arc<Acl>)>,
    bans: Bans,
    pub pinned_by: Mutex<Option<String>>,
    pub net: OnceLock<net::ServerHandle>,
}

impl TestAccess {
    fn new(data_dir: PathBuf) -> TestAccess {
        let rules = vec![
            AccessRule::allow(auth::AccessAction::All, &["#"]),
            AccessRule::allow(auth::AccessAction::All, &["$SYS/#"]),
        ];
        let acl = Arc::new(Acl::compile(&rules, AclOptions::default()).unwrap());
        TestAccess {
            users: Users::empty().unwrap(),
            bans: Bans::open(&data_dir.join("banned.json")).unwrap(),
            acl: RwLock::new((rules, acl)),
            pinned_by: Mutex::default(),
            net: OnceLock::new(),
            data_dir,
        }
    }

    fn save(&self) -> Result<(), ChangeError> {
        self.users
            .save(&self.data_dir.join("users"))
            .map_err(ChangeError::Storage)
    }

    pub fn users_file(&self) -> String {
        fs::read_to_string(self.data_dir.join("users")).unwrap()
    }
}

impl AccessAdmin for TestAccess {
    fn users(&self) -> Vec<UserSummary> {
        self.users.list()
    }

    fn add_user(&self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), ChangeError> {
        self.users.add(name, hash, is_superuser).map_err(ChangeError::User)?;
        self.save()
    }

    fn change_user(
        &self,
        name: &str,
        hash: Option<PasswordHash>,
        is_superuser: Option<bool>,
    ) -> Result<(), ChangeError> {
        if !self.users.contains(name) {
            return Err(ChangeError::User(auth::UserError::Unknown));
        }
        if let Some(hash) = hash {
            self.users.set_password(name, hash).map_err(ChangeError::User)?;
        }
        if let Some(is_superuser) = is_superuser {
            self.users
                .set_superuser(name, is_superuser)
                .map_err(ChangeError::User)?;
        }
        self.save()
    }

    fn remove_user(&self, name: &str) -> Result<(), ChangeError> {
        self.users.remove(name).map_err(ChangeError::User)?;
        self.save()
    }

    fn acl(&self) -> AclRules {
        let pinned_by = self.pinned_by.lock().unwrap().clone();
        AclRules {
            rules: self.acl.read().unwrap().0.clone(),
            options: AclOptions::default(),
            pinned_by,
            ..AclRules::default()
        }
    }

    fn bans(&self) -> &Bans {
        &self.bans
    }

    fn test_login(&self, test: &LoginTest) -> Result<LoginTestOutcome, LoginTestError> {
        if test.listener.is_some() {
            return Err(LoginTestError::UnknownListener);
        }
        if !test.tester.is_loopback() || test.client_id == "locked" {
            return Err(LoginTestError::LockedOut(Duration::from_secs(4)));
        }
        let is_allowed = test
            .password
            .as_ref()
            .is_some_and(|password| password.expose() == b"sesame");
        let step = LoginTestStep {
            provider: "http",
            verdict: if is_allowed {
                LoginVerdict::Right
            } else {
                LoginVerdict::Wrong
            },
            reason: "it decides".to_owned(),
            origin: Some("asked"),
            time: Some(Duration::from_millis(2)),
        };
        Ok(LoginTestOutcome {
            is_allowed,
            reason: "http decides".to_owned(),
            steps: vec![step],
            login: is_allowed.then(TestedLogin::default),
        })
    }

    fn audited_user_name(&self, user_name: &str) -> Box<str> {
        match self.users.contains(user_name) {
            true => user_name.into(),
            false => "***".into(),
        }
    }

    fn set_acl(&self, rules: Vec<AccessRule>) -> Result<(), ChangeError> {
        let acl = Arc::new(Acl::compile(&rules, AclOptions::default()).map_err(ChangeError::Rules)?);
        *self.acl.write().unwrap() = (rules, acl);
        let changed = self.net.get().unwrap().call_all(Duration::from_secs(5), |shard, now| {
            shard.operator(now).access_changed()
        });
        changed
            .map(drop)
            .map_err(|error| ChangeError::Storage(std::io::Error::other(error)))
    }
}

impl AccessControl for TestAccess {
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        let suspect = BanCandidate {
            client_id: &credentials.client_id,
            user_name: credentials.user_name.as_deref(),
            address: credentials.address,
        };
        if let Some(kind) = self.bans.find(&suspect, 0) {
            return Some(AuthOutcome::Deny {
                reason: ReasonCode::Banned,
                detail: kind.reason(),
            });
        }
        // The clients of a tenant have a prefix: `a@acme` has `acme/`.
        let tenant = credentials.client_id.split_once('@');
        let mountpoint = tenant.map(|(_, tenant)| Mountpoint::new(&format!("{tenant}/")).unwrap());
        let login = ClientLogin {
            mountpoint,
            ..ClientLogin::default()
        };
        credentials
            .user_name
            .is_none()
            .then(|| AuthOutcome::Allow(Box::new(login)))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, who: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        let acl = self.acl.read().unwrap().1.clone();
        let session = acl.session(&auth::Identity {
            client_id: &who.client_id,
            user_name: who.user_name.as_deref(),
            address: who.address,
            is_superuser: who.is_superuser,
            attributes: ClientAttributes::NONE,
            certificate: auth::CertificateIdentity::default(),
        });
        Some(Arc::new(Rules(session)))
    }
}

struct Rules(SessionAcl);

impl SessionAccess for Rules {
    fn can_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.0.publish(topic, qos, retain)
    }

    fn can_subscribe(&self, filter: &str) -> SubscribeAccess {
        match self.0.subscribe(filter) {
            SubscriptionGrant::Denied => SubscribeAccess::Denied,
            SubscriptionGrant::Allowed {
                filter_deliveries: true,
            } => SubscribeAccess::AllowedInPart,
            SubscriptionGrant::Allowed {
                filter_deliveries: false,
            } => SubscribeAccess::Allowed,
        }
    }

    fn can_receive(&self, topic: &str) -> bool {
        self.0.can_receive(topic)
    }
}

impl Authenticator for TestAccess {
    fn authenticate(&self, question: AuthQuestion) {
        let outcome = self.decide(question.credentials());
        question.answer(outcome);
    }
}

impl TestAccess {
    fn decide(&self, credentials: &ConnectCredentials) -> AuthOutcome {
        let (Some(name), Some(password)) = (&credentials.user_name, &credentials.password) else {
            return AuthOutcome::Deny {
                reason: ReasonCode::BadUserNameOrPassword,
                detail: "no credentials",
            };
        };
        let line = self
            .users
            .to_file_text()
            .lines()
            .find_map(|line| Some(line.strip_prefix(&**name)?.strip_prefix(':')?.to_owned()));
        let password = auth::Password::new(password.to_vec());
        let hash = line.map(|line| PasswordHash::parse(line.trim_end_matches(":superuser")).unwrap());
        match hash.is_some_and(|hash| hash.verify(&password)) {
            true => AuthOutcome::Allow(Box::default()),
            false => AuthOutcome::Deny {
                reason: ReasonCode::BadUserNameOrPassword,
                detail: "wrong password",
            },
        }
    }
}

impl Node {
    /// Starts a second API on an address that is in use.
    pub fn try_api_on(node: &Node, address: SocketAddr) -> api::ApiStartError {
        let data_dir = node.data_dir.join("second");
        let (admins, _) = Admins::open_or_create(&data_dir).unwrap();
        let info = NodeInfo {
            name: String::new(),
            version: String::new(),
            started_at: SystemTime::now(),
            durability: String::new(),
        };
        match api::start(
            ApiConfig::new(address),
            node.net.clone(),
            node.access.clone(),
            admins,
            info,
        ) {
            Ok(_) => panic!("the port is in use"),
            Err(error) => error,
        }
    }
}

impl Node {
    /// Restarts with a viewer in the file of console users, and logs in as this user.
    pub fn with_viewer(self, name: &str, password: &str) -> Node {
        let users = Users::load_console(&self.data_dir.join("admins")).unwrap();
        let hash = PasswordHash::create(&auth::Password::new(password)).unwrap();
        users.add(name, hash, false).unwrap();
        users.save(&self.data_dir.join("admins")).unwrap();
        let (admins, none) = Admins::open_or_create(&self.data_dir).unwrap();
        assert!(none.is_none());
        let info = NodeInfo {
            name: "test-node".into(),
            version: "0.0.1".into(),
            started_at: SystemTime::now(),
            durability: "memory only".into(),
        };
        let api = api::start(
            ApiConfig::new(loopback()),
            self.net.clone(),
            self.access.clone(),
            admins,
            info,
        )
        .unwrap();
        let mut node = self;
        node.address = api.address();
        node.api.replace(api).unwrap().stop(Duration::from_secs(5));
        node.token = node.login(name, password).ok().json()["token"]
            .as_str()
            .unwrap()
            .to_owned();
        node
    }
}

impl Node {
    /// Creates a console user with this role, and returns the token of a login. Needs the login of an administrator.
    pub fn token_of_new_user(&self, name: &str, role: &str) -> String {
        let made = self.send("POST", "/api/v1/console-users", &json!({ "name": name, "role": role }));
        let password = made.json()["password"].as_str().unwrap().to_owned();
        let own = format!("the password of {name}");
        let change = json!({ "current_password": password, "new_password": own });
        let first = self.token_of(name, &password);
        self.request_as(&first, "POST", "/api/v1/password", &change).ok();
        self.token_of(name, &own)
    }

    pub fn token_of(&self, name: &str, password: &str) -> String {
        let login = self.login(name, password).ok().json();
        login["token"].as_str().unwrap().to_owned()
    }

    /// Creates an API key and returns its secret.
    pub fn new_key(&self, key: &Value) -> String {
        let made = self.send("POST", "/api/v1/api-keys", key);
        assert_eq!(made.status, 201, "{}", made.body);
        made.json()["secret"].as_str().unwrap().to_owned()
    }

    /// Sends a request with another token.
    pub fn request_as(&self, token: &str, method: &str, target: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {token}");
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut headers = vec![("Authorization", bearer.as_str())];
        if !body.is_empty() {
            headers.push(("Content-Type", "application/json"));
        }
        web::request(self.address, method, target, &headers, &body)
    }
}

impl Node {
    /// Returns the raw answer on a new connection.
    pub fn api_connections(&self) -> String {
        use std::io::{Read, Write};
        let mut stream = web::connect(self.address);
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }

    pub fn start_named(name: &str) -> Node {
        let mut node = Node::start(1);
        let (admins, _) = Admins::open_or_create(&node.data_dir).unwrap();
        let info = NodeInfo {
            name: name.into(),
            version: "0.0.1".into(),
            started_at: SystemTime::now(),
            durability: "memory only".into(),
        };
        let api = api::start(
            ApiConfig::new(loopback()),
            node.net.clone(),
            node.access.clone(),
            admins,
            info,
        )
        .unwrap();
        node.address = api.address();
        node.api.replace(api).unwrap().stop(Duration::from_secs(5));
        node
    }
}
