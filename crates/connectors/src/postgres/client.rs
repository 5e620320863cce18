//! The connections to one database. A connection is taken out for a transaction and comes back only when that ended cleanly:
//! one that failed, or whose user gave up in the middle, is closed, and the database rolls back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls, Statement};

use super::config::PostgresConnectorConfig;
use super::error::describe;
use super::tls::MakeTls;

/// Shared by the actions on one database.
pub struct PostgresConnector {
    config: Config,
    tls: Option<Arc<ClientConfig>>,
    limit: Duration,
    address: String,
    /// One permit for each connection.
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

/// A connection, with the statements that it has prepared.
pub(super) struct Connection {
    pub client: Client,
    prepared: HashMap<String, Statement>,
}

/// A connection out of the pool.
pub(super) struct Taken<'a> {
    pub connection: Connection,
    pool: &'a PostgresConnector,
    _permit: SemaphorePermit<'a>,
}

impl PostgresConnector {
    /// The errors name the fields.
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
            permits: Semaphore::new(options.connections_max as usize),
            idle: Mutex::new(Vec::new()),
        })
    }

    /// Waits for a connection; makes one if there is room.
    pub(super) async fn take(&self) -> Result<Taken<'_>, String> {
        let permit = self
            .permits
            .acquire()
            .await
            .expect("the semaphore is never closed while the connector lives");
        let connection = match self.idle_connection() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(Taken {
            connection,
            pool: self,
            _permit: permit,
        })
    }

    fn idle_connection(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| !connection.client.is_closed());
        idle.pop()
    }

    async fn connect(&self) -> Result<Connection, String> {
        let connecting = async {
            match &self.tls {
                Some(tls) => self
                    .config
                    .connect(MakeTls(Arc::clone(tls)))
                    .await
                    .map(|(client, task)| {
                        // Ends when the client is dropped, or the connection is lost, which the client's user is told.
                        tokio::spawn(task);
                        client
                    }),
                None => self.config.connect(NoTls).await.map(|(client, task)| {
                    tokio::spawn(task);
                    client
                }),
            }
        };
        let address = &self.address;
        let client = timeout(self.limit, connecting)
            .await
            .map_err(|_| {
                format!(
                    "cannot connect to {address}: no answer within {} ms",
                    self.limit.as_millis()
                )
            })?
            .map_err(|error| format!("cannot connect to {address}: {}", describe(&error)))?;
        Ok(Connection {
            client,
            prepared: HashMap::new(),
        })
    }

    /// Whether the database answers.
    pub(super) async fn check(&self) -> Result<(), String> {
        let taken = self.take().await?;
        let answer = timeout(self.limit, taken.connection.client.simple_query("")).await;
        answer
            .map_err(|_| format!("{} does not answer within {} ms", self.address, self.limit.as_millis()))?
            .map_err(|error| describe(&error))?;
        taken.give_back();
        Ok(())
    }

    /// Closes what nobody uses.
    pub(super) fn close(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Connection {
    /// Prepared once for each connection.
    pub async fn prepared(&mut self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

impl Taken<'_> {
    /// The transaction has ended.
    pub fn give_back(self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(self.connection);
    }
}
