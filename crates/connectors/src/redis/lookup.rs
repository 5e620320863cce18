//! Reads the fields of a hash, for the authentication and the access rules of clients.

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use super::client::RedisConnector;
use super::config::RedisConnectorConfig;
use super::error::describe;
use crate::outage::Outage;

/// A server or cluster with hashes.
pub struct RedisLookup {
    connector: RedisConnector,
    outage: Outage,
    /// The addresses, for errors.
    servers: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisLookupError {
    /// The key belongs to no hash.
    NoHash,
    /// The server cannot be asked. The text is for operators.
    Failed(String),
}

impl RedisLookup {
    /// The errors name the fields.
    pub fn new(config: &RedisConnectorConfig) -> Result<RedisLookup, Vec<String>> {
        Ok(RedisLookup {
            connector: RedisConnector::new(config)?,
            outage: Outage::default(),
            servers: config.servers.join(", "),
        })
    }

    /// Returns the values of these fields. A field that the hash does not have, or all if there is no hash, are `None`.
    pub async fn fields(&self, key: &[u8], fields: &[String]) -> Result<Vec<Option<Vec<u8>>>, RedisLookupError> {
        let mut command = redis::cmd("HMGET");
        command.arg(key).arg(fields);
        match self.run(&command).await? {
            Value::Array(values) if values.len() == fields.len() => values.into_iter().map(|v| self.bytes(v)).collect(),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns all fields of a hash with their values. Without a hash, the list is empty.
    pub async fn all_fields(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, RedisLookupError> {
        let mut command = redis::cmd("HGETALL");
        command.arg(key);
        let pairs: Vec<(Value, Value)> = match self.run(&command).await? {
            Value::Map(pairs) => pairs,
            Value::Array(flat) if flat.len() % 2 == 0 => {
                let mut flat = flat.into_iter();
                std::iter::from_fn(|| Some((flat.next()?, flat.next()?))).collect()
            }
            _ => return Err(self.unexpected()),
        };
        let pairs = pairs.into_iter().map(|(name, value)| {
            let (name, value) = (self.bytes(name)?, self.bytes(value)?);
            Ok((name.unwrap_or_default(), value.unwrap_or_default()))
        });
        pairs.collect()
    }

    /// A lost connection is replaced once.
    async fn run(&self, command: &redis::Cmd) -> Result<Value, RedisLookupError> {
        let mut first = true;
        loop {
            let connection = self.connector.connection_if(|| self.outage.may_connect()).await;
            let mut connection = connection.map_err(|reason| {
                let reason = reason.replace(" (connect_timeout_ms)", "");
                self.outage.begin(&reason);
                RedisLookupError::Failed(format!("Redis: {reason}"))
            })?;
            self.outage.end();
            let error = match connection.command(command).await.and_then(Value::extract_error) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if error.code() == Some("WRONGTYPE") {
                return Err(RedisLookupError::NoHash);
            }
            if !concerns_command(&error) {
                self.connector.discard(&connection).await;
            }
            if !first || !error.is_connection_dropped() {
                return Err(self.failed(&describe(&error)));
            }
            first = false;
        }
    }

    fn bytes(&self, value: Value) -> Result<Option<Vec<u8>>, RedisLookupError> {
        match value {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::SimpleString(text) => Ok(Some(text.into_bytes())),
            Value::Int(number) => Ok(Some(number.to_string().into_bytes())),
            _ => Err(self.unexpected()),
        }
    }

    fn unexpected(&self) -> RedisLookupError {
        self.failed("the server returned no fields of a hash")
    }

    fn failed(&self, reason: &str) -> RedisLookupError {
        RedisLookupError::Failed(format!("Redis at {}: {reason}", self.servers))
    }
}

/// Returns whether the connection is usable after this error.
fn concerns_command(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::ResponseError | ServerErrorKind::NoPerm | ServerErrorKind::CrossSlot)
    )
}
