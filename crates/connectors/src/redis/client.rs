//! The connection to Redis, which carries the batches of all actions. A failed connection is discarded, and the next
//! batch opens another one.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, RedisError, TlsMode, Value,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::config::{RedisConnectorConfig, RedisMode};
use super::error::describe;
use crate::config::address;

/// A Redis server or cluster, shared by its actions.
pub struct RedisConnector {
    client: AnyClient,
    connect_limit: Duration,
    answer_limit: Duration,
    /// The addresses, for errors.
    servers: String,
    connection: Mutex<Option<NumberedConnection>>,
}

enum AnyClient {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
    Sentinel(Box<Mutex<SentinelClient>>),
}

#[derive(Clone)]
enum AnyConnection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A connection with a number, so that a user who found it broken discards this connection and not its successor.
#[derive(Clone)]
pub(super) struct NumberedConnection {
    number: u64,
    connection: AnyConnection,
}

impl RedisConnector {
    /// Creates the connector. The errors name the fields.
    pub fn new(config: &RedisConnectorConfig) -> Result<RedisConnector, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let client = client(config).map_err(|problem| vec![problem])?;
        Ok(RedisConnector {
            client,
            connect_limit: Duration::from_millis(config.connect_timeout_ms),
            answer_limit: Duration::from_millis(config.answer_timeout_ms),
            servers: config.servers.join(", "),
            connection: Mutex::new(None),
        })
    }

    /// Returns the connection, and opens it if needed.
    pub(super) async fn connection(&self) -> Result<NumberedConnection, String> {
        self.connection_if(|| Ok(())).await
    }

    /// Like `connection`, but connects only if `may_connect` succeeds.
    pub(super) async fn connection_if(
        &self,
        may_connect: impl FnOnce() -> Result<(), String>,
    ) -> Result<NumberedConnection, String> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        may_connect()?;
        let limit = self.connect_limit;
        let connection = timeout(limit, self.connect())
            .await
            .map_err(|_| {
                format!(
                    "cannot connect to {}: no response within {} ms (connect_timeout_ms)",
                    self.servers,
                    limit.as_millis()
                )
            })?
            .map_err(|error| format!("cannot connect to {}: {}", self.servers, describe(&error)))?;
        let numbered = NumberedConnection {
            number: getrandom::u64().unwrap_or_default(),
            connection,
        };
        *slot = Some(numbered.clone());
        Ok(numbered)
    }

    async fn connect(&self) -> Result<AnyConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_limit))
            .set_response_timeout(Some(self.answer_limit));
        Ok(match &self.client {
            AnyClient::Single(client) => {
                AnyConnection::One(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            AnyClient::Cluster(client) => AnyConnection::Cluster(client.get_async_connection().await?),
            AnyClient::Sentinel(client) => {
                let mut client = client.lock().await;
                AnyConnection::One(client.get_async_connection_with_config(&config).await?)
            }
        })
    }

    /// Discards a broken connection.
    pub(super) async fn discard(&self, broken: &NumberedConnection) {
        let mut slot = self.connection.lock().await;
        if slot.as_ref().is_some_and(|current| current.number == broken.number) {
            *slot = None;
        }
    }
}

impl NumberedConnection {
    /// Runs a pipeline. Returns one response per command; errors of single commands are among them.
    pub async fn pipeline(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let count = pipeline.len();
        match &mut self.connection {
            AnyConnection::One(connection) => connection.req_packed_commands(pipeline, 0, count).await,
            AnyConnection::Cluster(connection) => connection.req_packed_commands(pipeline, 0, count).await,
        }
    }

    pub async fn command(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match &mut self.connection {
            AnyConnection::One(connection) => connection.req_packed_command(command).await,
            AnyConnection::Cluster(connection) => connection.req_packed_command(command).await,
        }
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.connection, AnyConnection::Cluster(_))
    }
}

fn client(config: &RedisConnectorConfig) -> Result<AnyClient, String> {
    let invalid = |error: RedisError| format!("servers: {}", describe(&error));
    let addresses = config.servers.iter().filter_map(|server| address(server));
    let addresses: Vec<ConnectionAddr> = addresses
        .map(|(host, port)| connection_addr(config, host, port))
        .collect();
    let certificates = config.certificates()?;
    match config.mode {
        RedisMode::Single => {
            let info = addresses.into_iter().next().ok_or("servers: must not be empty")?;
            let info = connection_info(config, info).map_err(invalid)?;
            let client = match certificates {
                Some(certificates) => Client::build_with_tls(info, certificates),
                None => Client::open(info),
            };
            client
                .map(|client| AnyClient::Single(Box::new(client)))
                .map_err(invalid)
        }
        RedisMode::Cluster => cluster(config, addresses)
            .map(|client| AnyClient::Cluster(Box::new(client)))
            .map_err(invalid),
        RedisMode::Sentinel => {
            let client = sentinel(config, addresses).map_err(invalid)?;
            Ok(AnyClient::Sentinel(Box::new(Mutex::new(client))))
        }
    }
}

fn connection_addr(config: &RedisConnectorConfig, host: &str, port: u16) -> ConnectionAddr {
    match &config.tls {
        None => ConnectionAddr::Tcp(host.to_owned(), port),
        Some(tls) => ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: !tls.verify,
            tls_params: None,
        },
    }
}

fn connection_info(config: &RedisConnectorConfig, addr: ConnectionAddr) -> Result<ConnectionInfo, RedisError> {
    let mut settings = RedisConnectionInfo::default().set_db(config.database.into());
    if let Some(user) = &config.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &config.password {
        settings = settings.set_password(password.expose());
    }
    Ok(addr.into_connection_info()?.set_redis_settings(settings))
}

fn tls_mode(config: &RedisConnectorConfig) -> Option<TlsMode> {
    let tls = config.tls.as_ref()?;
    Some(if tls.verify { TlsMode::Secure } else { TlsMode::Insecure })
}

fn cluster(config: &RedisConnectorConfig, nodes: Vec<ConnectionAddr>) -> Result<ClusterClient, RedisError> {
    let nodes = nodes.into_iter().map(|node| connection_info(config, node));
    let mut builder = ClusterClient::builder(nodes.collect::<Result<Vec<_>, _>>()?)
        .connection_timeout(Duration::from_millis(config.connect_timeout_ms))
        .response_timeout(Duration::from_millis(config.answer_timeout_ms));
    if let Some(mode) = tls_mode(config) {
        builder = builder.tls(mode);
    }
    if let Some(certificates) = config.certificates().ok().flatten() {
        builder = builder.certs(certificates);
    }
    builder.build()
}

/// The sentinels have a user and a password of their own. TLS is used for them if it is used for the master.
fn sentinel(config: &RedisConnectorConfig, sentinels: Vec<ConnectionAddr>) -> Result<SentinelClient, RedisError> {
    let master = config.sentinel_master.clone().unwrap_or_default();
    let mut builder = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)?;
    builder = builder.set_client_to_redis_db(config.database.into());
    if let Some(user) = &config.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = &config.password {
        builder = builder.set_client_to_redis_password(password.expose());
    }
    if let Some(user) = &config.sentinel_user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = &config.sentinel_password {
        builder = builder.set_client_to_sentinel_password(password.expose());
    }
    if let Some(mode) = tls_mode(config) {
        builder = builder
            .set_client_to_redis_tls_mode(mode)
            .set_client_to_sentinel_tls_mode(mode);
    }
    if let Some(certificates) = config.certificates().ok().flatten() {
        builder = builder
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    builder.build()
}
