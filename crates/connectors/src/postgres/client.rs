//! The connections to one database. A connection leaves the pool for a transaction, and returns only after the
//! transaction ended cleanly. Otherwise it is closed, and the database rolls back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls, Statement};

use super::config::PostgresConnectorConfig;
use super::error::describe;
use super::tls::MakeTls;
use crate::pool::{Pool, Pooled};

/// A database with its connection pool, shared by its actions.
pub struct PostgresConnector {
    config: Config,
    tls: Option<Arc<ClientConfig>>,
    limit: Duration,
    address: String,
    pool: Pool<PostgresConnection>,
}

/// A connection with its prepared statements.
pub(super) struct PostgresConnection {
    pub client: Client,
    prepared: HashMap<String, Statement>,
    /// Reads and writes the socket. It ends when the client is dropped and has all answers, or the connection is lost,
    /// which the client reports.
    task: AbortHandle,
}

/// A connection that is taken from the pool. It may return after its transaction ended.
pub(super) type PooledConnection<'a> = Pooled<'a, PostgresConnection>;

impl PostgresConnector {
    /// Creates the connector. The errors name the fields.
    pub fn new(options: &PostgresConnectorConfig) -> Result<PostgresConnector, Vec<String>> {
        let problems = options.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let tls = options.tls.as_ref().map(|tls| tls.client());
        let limit = Duration::from_millis(options.connect_timeout_ms);
        let mut config = Config::new();
        config
            .host(&options.host)
            .port(options.port)
            .dbname(&options.database)
            .user(&options.user)
            .application_name("tidewire")
            .connect_timeout(limit)
            .options(format!("-c statement_timeout={}", options.statement_timeout_ms))
            .ssl_mode(if tls.is_some() {
                SslMode::Require
            } else {
                SslMode::Disable
            });
        if let Some(password) = &options.password {
            config.password(password.expose());
        }
        Ok(PostgresConnector {
            config,
            tls: tls.transpose().map_err(|problem| vec![problem])?,
            limit,
            address: format!("{}:{}", options.host, options.port),
            pool: Pool::new(options.connections_max),
        })
    }

    /// Takes a connection from the pool, or opens one. Waits if all connections are in use.
    pub(super) async fn take(&self) -> Result<PooledConnection<'_>, String> {
        self.take_if(|| Ok(())).await
    }

    /// Like `take`, but opens a connection only if `may_connect` succeeds.
    pub(super) async fn take_if(
        &self,
        may_connect: impl FnOnce() -> Result<(), String>,
    ) -> Result<PooledConnection<'_>, String> {
        let open = async {
            may_connect()?;
            self.connect().await
        };
        self.pool.take(|connection| !connection.client.is_closed(), open).await
    }

    async fn connect(&self) -> Result<PostgresConnection, String> {
        let connecting = async {
            match &self.tls {
                Some(tls) => self
                    .config
                    .connect(MakeTls(Arc::clone(tls)))
                    .await
                    .map(|(client, task)| (client, tokio::spawn(task).abort_handle())),
                None => {
                    let connected = self.config.connect(NoTls).await;
                    connected.map(|(client, task)| (client, tokio::spawn(task).abort_handle()))
                }
            }
        };
        let address = &self.address;
        let (client, task) = timeout(self.limit, connecting)
            .await
            .map_err(|_| {
                format!(
                    "cannot connect to {address}: no response within {} ms (connect_timeout_ms)",
                    self.limit.as_millis()
                )
            })?
            .map_err(|error| format!("cannot connect to {address}: {}", describe(&error)))?;
        Ok(PostgresConnection {
            client,
            prepared: HashMap::new(),
            task,
        })
    }

    /// Checks that the database responds.
    pub(super) async fn check(&self) -> Result<(), String> {
        let taken = self.take().await?;
        let answer = timeout(self.limit, taken.connection.client.simple_query("")).await;
        answer
            .map_err(|_| {
                format!(
                    "no response from {} within {} ms (connect_timeout_ms)",
                    self.address,
                    self.limit.as_millis()
                )
            })?
            .map_err(|error| describe(&error))?;
        taken.release();
        Ok(())
    }

    /// Closes idle connections.
    pub(super) fn close(&self) {
        self.pool.clear();
    }
}

impl PostgresConnection {
    /// Returns a prepared statement. Each connection prepares it once.
    pub async fn prepared(&mut self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Closes the connection without waiting for answers.
    pub fn abort(&self) {
        self.task.abort();
    }
}
