//! The connections to one database, and the choice of a server.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::time::timeout;

use super::bson::{Bson, BsonDocument};
use super::connection::{MongoConnection, MongoUser};
use super::error::MongoError;
use crate::config::address;
use crate::outage::Outage;
use crate::pool::Pool;
use crate::secret::Secret;
use crate::stream::DialOptions;
use crate::tls::TlsConfig;

/// An older idle connection is closed instead of used, because firewalls and servers drop it without notice.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of servers that are tried. A replica set has at most 50 members.
const SERVERS_MAX: usize = 60;

/// Kind of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MongoKind {
    /// One server, whatever its role is.
    Single,
    /// A replica set with this name.
    ReplicaSet,
    /// Routers (`mongos`) of a sharded cluster.
    Sharded,
}

/// Members of a replica set that are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MongoReadMode {
    /// Only the primary.
    Primary,
    /// The first member that can be reached. Its data may be older.
    AnyMember,
}

/// Servers with a database.
#[derive(Clone, Debug)]
pub struct MongoConnectorConfig {
    pub kind: MongoKind,
    /// `host:port` of the server, of some members, or of the routers.
    pub servers: Vec<String>,
    /// Name of the replica set. `None` for other kinds.
    pub replica_set: Option<String>,
    pub read_mode: MongoReadMode,
    pub database: String,
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// Database that contains the user.
    pub auth_source: String,
    /// Maximum number of connections.
    pub connections_max: u32,
    /// Maximum time to connect, including the login, for all `servers` together.
    pub connect_timeout_ms: u64,
    pub tls: Option<TlsConfig>,
}

/// A query, without its filter.
#[derive(Clone, Debug)]
pub struct MongoFind {
    pub collection: String,
    /// Fields that are returned. Empty: all.
    pub projection: BsonDocument,
    /// Order of the documents. Empty: that of the server.
    pub sort: BsonDocument,
    /// Maximum number of documents. At least 1.
    pub limit: u32,
    /// The server ends the query after this time.
    pub timeout_ms: u64,
}

/// A database, with its connections.
pub struct MongoClient {
    kind: MongoKind,
    servers: Vec<(String, u16)>,
    replica_set: Option<String>,
    read_mode: MongoReadMode,
    database: String,
    user: Option<MongoUser>,
    tls: Option<Arc<ClientConfig>>,
    /// Time limit of one server.
    limit: Duration,
    pool: Pool<MongoConnection>,
    outage: Outage,
}

/// A server that is not used, and members of its replica set that could be.
struct Unsuitable {
    problem: String,
    others: Vec<(String, u16)>,
}

impl MongoClient {
    /// Does not connect. The errors name the fields.
    pub fn new(config: &MongoConnectorConfig) -> Result<MongoClient, Vec<String>> {
        let mut problems = Vec::new();
        let mut servers = Vec::new();
        for server in &config.servers {
            match address(server) {
                Some((host, port)) => servers.push((host.to_owned(), port)),
                None => problems.push(format!("servers: found {server:?}, expected host:port")),
            }
        }
        match (config.kind, config.servers.len()) {
            (_, 0) => problems.push("servers: is empty, expected for example localhost:27017".to_owned()),
            (MongoKind::Single, 2..) => {
                problems
                    .push("servers: must name one host:port; a replica set or a sharded cluster may have more".into());
            }
            _ => {}
        }
        if (config.kind == MongoKind::ReplicaSet) != config.replica_set.is_some() {
            problems.push("replica_set_name: must be set if and only if mongo_type is rs".to_owned());
        }
        let is_name = |name: &str| !name.is_empty() && !name.contains(['\0', '/', '\\', '.', ' ', '"', '$']);
        for (field, name) in [("database", &config.database), ("auth_source", &config.auth_source)] {
            // MongoDB has users of certificates and other systems in this database.
            if !is_name(name) && name != "$external" {
                problems.push(format!("{field}: found {name:?}, expected the name of a database"));
            }
        }
        let user = match (&config.user, &config.password) {
            (Some(user), Some(password)) if !password.expose().is_empty() => Some(MongoUser {
                name: user.clone(),
                password: password.clone(),
                source: config.auth_source.clone(),
            }),
            (None, None) => None,
            (Some(_), _) => {
                problems.push("password: is missing: user needs it".to_owned());
                None
            }
            (None, Some(_)) => {
                problems.push("user: is missing: password needs it".to_owned());
                None
            }
        };
        let tls = config.tls.as_ref().map(TlsConfig::client).transpose();
        let tls = tls.unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        if !problems.is_empty() {
            return Err(problems);
        }
        let each = config.connect_timeout_ms / servers.len().max(1) as u64;
        Ok(MongoClient {
            kind: config.kind,
            servers,
            replica_set: config.replica_set.clone(),
            read_mode: config.read_mode,
            database: config.database.clone(),
            user,
            tls,
            limit: Duration::from_millis(each.max(1)),
            pool: Pool::new(config.connections_max.max(1)),
            outage: Outage::default(),
        })
    }

    /// Returns the first documents that match the filter.
    pub async fn find(&self, find: &MongoFind, filter: BsonDocument) -> Result<Vec<BsonDocument>, MongoError> {
        let limit = find.limit.clamp(1, i32::MAX as u32) as i32;
        let mut command = BsonDocument::new()
            .with("find", find.collection.as_str())
            .with("filter", filter);
        if find.sort != BsonDocument::default() {
            command = command.with("sort", find.sort.clone());
        }
        if find.projection != BsonDocument::default() {
            command = command.with("projection", find.projection.clone());
        }
        command = command
            .with("limit", limit)
            // All documents are in the first answer, and the server keeps no cursor.
            .with("batchSize", limit)
            .with("singleBatch", true)
            .with("maxTimeMS", i64::try_from(find.timeout_ms).unwrap_or(i64::MAX));
        let answer = self.command(command).await?;
        let cursor = answer.document("cursor");
        let batch = cursor.and_then(|cursor| match cursor.get("firstBatch") {
            Some(Bson::Array(batch)) => Some(batch),
            _ => None,
        });
        let unusable = |reason: &str| MongoError::Unusable(format!("{}: {reason}", self.name()));
        let batch = batch.ok_or_else(|| unusable("the answer to a query has no documents"))?;
        // Missing documents could be rules that deny.
        if cursor.and_then(|cursor| cursor.get("id")).and_then(Bson::as_f64) != Some(0.0) {
            return Err(unusable("the server does not return all documents at once"));
        }
        let documents = batch.iter().map(|value| match value {
            Bson::Document(document) => Ok(document.clone()),
            _ => Err(unusable("the answer to a query contains something else than documents")),
        });
        documents.collect()
    }

    /// Executes a command in the database.
    pub async fn command(&self, command: BsonDocument) -> Result<BsonDocument, MongoError> {
        let mut command = command.with("$db", self.database.as_str());
        if let Some(mode) = self.read_preference() {
            command = command.with("$readPreference", BsonDocument::new().with("mode", mode));
        }
        loop {
            let open = async {
                self.outage.may_connect()?;
                self.connect().await
            };
            let usable = |connection: &MongoConnection| connection.used.elapsed() < IDLE_MAX;
            // No client can cause that, whatever the servers answer.
            let mut taken = self.pool.take(usable, open).await.map_err(MongoError::Lost)?;
            match taken.connection.command(command.clone()).await {
                Ok(answer) => {
                    taken.connection.was_idle = true;
                    taken.release();
                    return Ok(answer);
                }
                // The server may have closed the idle connections, as after a restart, or is not the primary any more.
                Err(MongoError::Lost(_)) if taken.connection.was_idle => self.pool.clear(),
                Err(error) => return Err(error.of_server(&taken.connection.server)),
            }
        }
    }

    /// Returns the servers' names for an error.
    fn name(&self) -> String {
        let names: Vec<String> = self.servers.iter().map(name_of).collect();
        names.join(", ")
    }

    fn read_preference(&self) -> Option<&'static str> {
        match (self.kind, self.read_mode) {
            // As drivers do for a direct connection, which may be one to a secondary.
            (MongoKind::Single, _) => Some("primaryPreferred"),
            (MongoKind::ReplicaSet, MongoReadMode::AnyMember) => Some("secondaryPreferred"),
            _ => None,
        }
    }

    /// Connects to the first server that is suitable, and remembers whether one is.
    async fn connect(&self) -> Result<MongoConnection, String> {
        let connected = self.connect_to_first().await;
        match &connected {
            Ok(_) => self.outage.end(),
            Err(problem) => self.outage.begin(problem),
        }
        connected
    }

    async fn connect_to_first(&self) -> Result<MongoConnection, String> {
        let mut problems = Vec::new();
        let mut tried: Vec<(String, u16)> = Vec::new();
        let mut waiting: VecDeque<(String, u16)> = self.servers.iter().cloned().collect();
        while let Some(server) = waiting.pop_front() {
            if tried.contains(&server) || tried.len() >= SERVERS_MAX {
                continue;
            }
            let connected = timeout(self.limit, self.connect_to(&server)).await;
            let unsuitable = match connected {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(unsuitable)) => unsuitable,
                Err(_) => Unsuitable::because(format!("cannot log in within {} ms", self.limit.as_millis())),
            };
            problems.push(format!("{}: {}", name_of(&server), unsuitable.problem));
            // The primary is the first one of them.
            for other in unsuitable.others.into_iter().rev() {
                waiting.push_front(other);
            }
            tried.push(server);
        }
        Err(problems.join("; "))
    }

    async fn connect_to(&self, server: &(String, u16)) -> Result<MongoConnection, Unsuitable> {
        let dial = DialOptions {
            tls: self.tls.clone(),
            limit: self.limit,
            // A server administrator defines the servers.
            targets: None,
        };
        let stream = dial.connect(&server.0, server.1).await.map_err(Unsuitable::because)?;
        let mut connection = MongoConnection::new(stream, name_of(server));
        let hello = connection.hello(self.user.as_ref()).await;
        let hello = hello.map_err(|error| Unsuitable::because(error.to_string()))?;
        self.check_role(&hello)?;
        if let Some(user) = &self.user {
            connection.log_in(user, &hello).await.map_err(Unsuitable::because)?;
        }
        Ok(connection)
    }

    /// Returns why a server with this answer to `hello` is not used.
    fn check_role(&self, hello: &BsonDocument) -> Result<(), Unsuitable> {
        let is_primary = hello.is_true("isWritablePrimary") || hello.is_true("ismaster");
        match self.kind {
            MongoKind::Single => Ok(()),
            MongoKind::Sharded if hello.text("msg") == Some("isdbgrid") => Ok(()),
            MongoKind::Sharded => Err(Unsuitable::because("is no mongos (mongo_type)".to_owned())),
            MongoKind::ReplicaSet => {
                let name = hello.text("setName");
                if name != self.replica_set.as_deref() {
                    let problem = match name {
                        Some(name) => format!("is a member of the replica set {name:?} (replica_set_name)"),
                        None => "is no member of a replica set (mongo_type)".to_owned(),
                    };
                    return Err(Unsuitable::because(problem));
                }
                let is_readable = self.read_mode == MongoReadMode::AnyMember && hello.is_true("secondary");
                match is_primary || is_readable {
                    true => Ok(()),
                    false => Err(Unsuitable {
                        problem: "is not the primary".to_owned(),
                        others: members(hello),
                    }),
                }
            }
        }
    }
}

impl Unsuitable {
    fn because(problem: String) -> Unsuitable {
        Unsuitable {
            problem,
            others: Vec::new(),
        }
    }
}

/// Returns the members that a server knows, the primary first.
fn members(hello: &BsonDocument) -> Vec<(String, u16)> {
    let hosts = hello.array("hosts").iter().filter_map(|host| match host {
        Bson::Text(host) => Some(host.as_str()),
        _ => None,
    });
    let all = hello.text("primary").into_iter().chain(hosts);
    let addresses = all.filter_map(|host| address(host).map(|(host, port)| (host.to_owned(), port)));
    addresses.take(SERVERS_MAX).collect()
}

fn name_of((host, port): &(String, u16)) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}
