//! The connections to the servers of one directory.
//!
//! Searches use connections that are logged in with the configured user. Logins of clients use other connections,
//! because a bind changes the rights of its connection. A connection that is dropped during a request is closed.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::connection::LdapConnection;
use super::error::LdapError;
use super::message::{LdapResult, LdapSearch, LdapSearchResult};
use crate::config::is_host;
use crate::outage::Outage;
use crate::secret::Secret;
use crate::stream::DialOptions;
use crate::tls::TlsConfig;

const PORT: u16 = 389;
const TLS_PORT: u16 = 636;

/// An older idle connection is closed instead of used, because firewalls and servers drop it without notice.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Servers of one directory.
#[derive(Clone, Debug)]
pub struct LdapConnectorConfig {
    /// `ldap://host:port` or `ldaps://host:port`. The first one that can be reached is used.
    pub servers: Vec<String>,
    /// Whether connections to `ldap://` servers begin TLS before the first login.
    pub starttls: bool,
    /// Name for searches. `None`: searches are anonymous.
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// Maximum number of connections for searches, and for logins of clients.
    pub connections_max: u32,
    /// Maximum time to connect, for all servers together.
    pub connect_timeout_ms: u64,
    pub tls: TlsConfig,
}

/// A directory, with its connections.
pub struct LdapClient {
    servers: Vec<LdapServer>,
    tls: Option<Arc<ClientConfig>>,
    /// Time limit of one server.
    limit: Duration,
    user: Option<(String, Secret)>,
    searches: LdapPool,
    logins: LdapPool,
    outage: Outage,
}

struct LdapServer {
    /// As in the configuration, for errors.
    url: String,
    host: String,
    port: u16,
    security: LdapSecurity,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LdapSecurity {
    Plain,
    StartTls,
    Tls,
}

struct LdapPool {
    /// One permit per connection.
    permits: Semaphore,
    idle: Mutex<Vec<IdleConnection>>,
}

struct IdleConnection {
    connection: LdapConnection,
    url: String,
    since: Instant,
}

struct TakenConnection<'a> {
    connection: LdapConnection,
    /// URL of the server.
    url: String,
    /// Whether it has been idle, so that it may be lost.
    was_idle: bool,
    pool: &'a LdapPool,
    _permit: SemaphorePermit<'a>,
}

/// A connection that is logged in as a client.
pub struct BoundSession<'a>(TakenConnection<'a>);

impl LdapClient {
    /// Does not connect. The errors name the fields.
    pub fn new(config: &LdapConnectorConfig) -> Result<LdapClient, Vec<String>> {
        let mut problems = Vec::new();
        let mut servers = Vec::new();
        for url in &config.servers {
            match LdapServer::parse(url, config.starttls) {
                Ok(server) => servers.push(server),
                Err(problem) => problems.push(problem),
            }
        }
        if config.servers.is_empty() {
            problems.push("servers: is empty, expected for example ldaps://ldap.example.org".to_owned());
        }
        let has_tls = servers.iter().any(|server| server.security != LdapSecurity::Plain);
        if !has_tls && problems.is_empty() && config.tls.ca_file.is_some() {
            problems.push("ca_file: no server uses TLS: write ldaps:// or set starttls".to_owned());
        }
        let user = match (&config.user, &config.password) {
            (Some(user), Some(password)) if !password.expose().is_empty() => Some((user.clone(), password.clone())),
            (None, None) => None,
            // With an empty password, the server would accept any name as an anonymous login [RFC 4513, 5.1.2].
            (Some(_), _) => {
                problems.push("password: is missing: user needs it".to_owned());
                None
            }
            (None, Some(_)) => {
                problems.push("user: is missing: password needs it".to_owned());
                None
            }
        };
        let tls = has_tls.then(|| config.tls.client()).transpose();
        let tls = tls.unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        if !problems.is_empty() {
            return Err(problems);
        }
        let each = config.connect_timeout_ms / servers.len().max(1) as u64;
        Ok(LdapClient {
            servers,
            tls,
            limit: Duration::from_millis(each.max(1)),
            user,
            searches: LdapPool::new(config.connections_max),
            logins: LdapPool::new(config.connections_max),
            outage: Outage::default(),
        })
    }

    /// Returns the servers on other machines to which passwords are sent unencrypted.
    pub fn unencrypted_servers(&self) -> impl Iterator<Item = &str> {
        let is_open = |server: &&LdapServer| server.security == LdapSecurity::Plain && !server.is_loopback();
        self.servers.iter().filter(is_open).map(|server| server.url.as_str())
    }

    /// Searches with the configured user.
    pub async fn search(&self, search: &LdapSearch) -> Result<LdapSearchResult, LdapError> {
        let mut may_use_idle = true;
        loop {
            let mut taken = self.take(&self.searches, may_use_idle).await?;
            match taken.connection.search(search).await {
                Ok(result) => {
                    taken.release();
                    return Ok(result);
                }
                // The server may have closed the idle connection, as after a restart.
                Err(LdapError::Lost(_)) if taken.was_idle => may_use_idle = false,
                Err(error) => return Err(error.of_server(&taken.url)),
            }
        }
    }

    /// Logs in as a client. The session is usable only if the result is a success.
    pub async fn bind(&self, dn: &str, password: &[u8]) -> Result<(LdapResult, BoundSession<'_>), LdapError> {
        let mut may_use_idle = true;
        loop {
            let mut taken = self.take(&self.logins, may_use_idle).await?;
            match taken.connection.bind(dn, password).await {
                Ok(result) => return Ok((result, BoundSession(taken))),
                Err(LdapError::Lost(_)) if taken.was_idle => may_use_idle = false,
                Err(error) => return Err(error.of_server(&taken.url)),
            }
        }
    }

    /// Returns a server's name for an error about its results.
    pub fn name(&self) -> String {
        let urls: Vec<&str> = self.servers.iter().map(|server| server.url.as_str()).collect();
        urls.join(", ")
    }

    async fn take<'a>(&'a self, pool: &'a LdapPool, may_use_idle: bool) -> Result<TakenConnection<'a>, LdapError> {
        let permit = pool
            .permits
            .acquire()
            .await
            .expect("the semaphore is never closed while the client lives");
        let idle = pool.idle_connection(may_use_idle);
        let was_idle = idle.is_some();
        let (connection, url) = match idle {
            Some(idle) => (idle.connection, idle.url),
            None => {
                let connected = self.connect(std::ptr::eq(pool, &self.searches)).await;
                // No client can cause it, whatever the server answers to the configured user.
                connected.map_err(LdapError::Lost)?
            }
        };
        Ok(TakenConnection {
            connection,
            url,
            was_idle,
            pool,
            _permit: permit,
        })
    }

    /// Connects to the first server that can be reached.
    async fn connect(&self, for_searches: bool) -> Result<(LdapConnection, String), String> {
        self.outage.may_connect()?;
        let mut problems = Vec::new();
        for server in &self.servers {
            let connected = timeout(self.limit, self.connect_to(server, for_searches)).await;
            let connected =
                connected.unwrap_or_else(|_| Err(format!("cannot log in within {} ms", self.limit.as_millis())));
            match connected {
                Ok(connection) => {
                    self.outage.end();
                    return Ok((connection, server.url.clone()));
                }
                Err(problem) => problems.push(format!("{}: {problem}", server.url)),
            }
        }
        let problem = problems.join("; ");
        self.outage.begin(&problem);
        Err(problem)
    }

    async fn connect_to(&self, server: &LdapServer, for_searches: bool) -> Result<LdapConnection, String> {
        let dial = DialOptions {
            tls: self.tls.clone().filter(|_| server.security == LdapSecurity::Tls),
            limit: self.limit,
            // A server administrator defines the servers.
            targets: None,
        };
        let mut connection = LdapConnection::new(dial.connect(&server.host, server.port).await?);
        if server.security == LdapSecurity::StartTls {
            let tls = self.tls.clone().expect("`new` creates it for this server");
            let encrypted = connection.start_tls(tls, &server.host).await;
            connection = encrypted.map_err(|error| error.to_string())?;
        }
        if let Some((user, password)) = self.user.as_ref().filter(|_| for_searches) {
            let result = connection.bind(user, password.expose().as_bytes()).await;
            let result = result.map_err(|error| error.to_string())?;
            if !result.is_success() {
                return Err(format!("the login with user and password failed: {result}"));
            }
        }
        Ok(connection)
    }
}

impl BoundSession<'_> {
    /// Searches with the rights of the client.
    pub async fn search(&mut self, search: &LdapSearch) -> Result<LdapSearchResult, LdapError> {
        let found = self.0.connection.search(search).await;
        found.map_err(|error| error.of_server(&self.0.url))
    }

    /// Returns the connection to the pool. Its next user logs in again.
    pub fn release(self) {
        self.0.release();
    }
}

impl TakenConnection<'_> {
    fn release(self) {
        self.pool.lock().push(IdleConnection {
            connection: self.connection,
            url: self.url,
            since: Instant::now(),
        });
    }
}

impl LdapPool {
    fn new(connections_max: u32) -> LdapPool {
        LdapPool {
            permits: Semaphore::new(connections_max.max(1) as usize),
            idle: Mutex::default(),
        }
    }

    /// Returns the connection that was used last. Without `may_use`, closes all: if one is lost, so are the others.
    fn idle_connection(&self, may_use: bool) -> Option<IdleConnection> {
        let mut idle = self.lock();
        idle.retain(|connection| may_use && connection.since.elapsed() < IDLE_MAX);
        idle.pop()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<IdleConnection>> {
        // Every update leaves the list valid, so a panic cannot leave it inconsistent.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LdapServer {
    fn parse(url: &str, starttls: bool) -> Result<LdapServer, String> {
        let wrong = |problem: &str| {
            Err(format!(
                "servers: {url:?} {problem}, for example ldaps://ldap.example.org"
            ))
        };
        let Some((scheme, rest)) = url.split_once("://") else {
            return wrong("has no scheme: expected ldap:// or ldaps://");
        };
        let (default_port, security) = match (scheme, starttls) {
            ("ldap", false) => (PORT, LdapSecurity::Plain),
            ("ldap", true) => (PORT, LdapSecurity::StartTls),
            ("ldaps", false) => (TLS_PORT, LdapSecurity::Tls),
            ("ldaps", true) => return wrong("uses TLS from the beginning: remove starttls, or write ldap://"),
            _ => return wrong("has an unknown scheme: expected ldap:// or ldaps://"),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or_default())),
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = port.map_or(Some(default_port), |port| port.parse().ok().filter(|port| *port > 0));
        let Some(port) = port else {
            return wrong("has no valid port");
        };
        if host.parse::<Ipv6Addr>().is_err() && !is_host(host) {
            return wrong("needs a host, an optional port and nothing else");
        }
        Ok(LdapServer {
            url: url.to_owned(),
            host: host.to_owned(),
            port,
            security,
        })
    }

    fn is_loopback(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        address.map_or(self.host.eq_ignore_ascii_case("localhost"), |address| {
            address.to_canonical().is_loopback()
        })
    }
}
