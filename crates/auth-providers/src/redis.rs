//! Clients whose passwords are in hashes of Redis or Valkey.
//!
//! A command with placeholders in its key reads the fields of a client. The key is one argument of the command, so the
//! values of a client never add an argument or a command.

mod rules;

use std::sync::Arc;

use auth::{Credentials, HashSettings, ProviderOutcome, TemplateUse};
use connectors::redis::{RedisConnectorConfig, RedisLookup, RedisLookupError};

use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::{PASSWORD_COLUMNS, Parameters, RowCheck, SALT_COLUMN, SUPERUSER_COLUMN, UserRow};
use crate::source::{LoginSource, QuestionKey, SourceAnswer, SourceError, SourceFuture};
use crate::superuser::is_true;

pub use rules::{RedisRules, RedisRulesConfig, rules};

const NAME: &str = "redis";

/// Configuration of the provider.
pub struct RedisConfig {
    pub connection: RedisConnectorConfig,
    /// `HMGET key field…`, `HGET key field` or `HGETALL key`, with placeholders in the key.
    pub command: String,
    pub hash: HashSettings,
}

/// A server with hashes of clients.
pub struct RedisSource {
    lookup: RedisLookup,
    /// The key.
    parameters: Parameters,
    /// `None`: all fields.
    fields: Option<Vec<String>>,
    check: RowCheck,
}

/// Creates the provider. Does not connect. The error names the field.
pub fn provider(config: &RedisConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<RedisSource>>, String> {
    Ok(SourceProvider::new(RedisSource::new(config)?, limits))
}

impl RedisSource {
    fn new(config: &RedisConfig) -> Result<RedisSource, String> {
        let command = ReadCommand::parse(&config.command)?;
        let lookup = RedisLookup::new(&config.connection).map_err(|problems| problems.join("; "))?;
        Ok(RedisSource {
            lookup,
            parameters: Parameters::parse(TemplateUse::Login, "cmd", &[command.key])?,
            fields: command.fields,
            check: RowCheck::new(NAME, config.hash)?,
        })
    }

    async fn decide<'a>(&'a self, credentials: &'a Credentials) -> Result<SourceAnswer<'a>, SourceError> {
        let Some(values) = self.parameters.values(credentials) else {
            return Ok(ProviderOutcome::Ignore.into());
        };
        let row = match self.read(&values[0]).await {
            Ok(fields) => user_row(fields),
            // The key of another application, or of an unknown user.
            Err(RedisLookupError::NoHash) => None,
            Err(RedisLookupError::Failed(reason)) => return Err(SourceError::Failed(reason)),
        };
        Ok(SourceAnswer::PasswordCheck(Box::pin(
            self.check.outcome(credentials, row),
        )))
    }

    async fn read(&self, key: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, RedisLookupError> {
        let Some(names) = &self.fields else {
            return self.lookup.all_fields(key).await;
        };
        let values = self.lookup.fields(key, names).await?;
        let pairs = names.iter().zip(values);
        Ok(pairs
            .filter_map(|(name, value)| Some((name.clone().into_bytes(), value?)))
            .collect())
    }
}

impl LoginSource for RedisSource {
    fn name(&self) -> &'static str {
        NAME
    }

    fn question(&self, credentials: &Credentials) -> Option<QuestionKey> {
        self.parameters.question(NAME, credentials)
    }

    fn ask<'a>(&'a self, credentials: &'a Credentials) -> SourceFuture<'a> {
        Box::pin(self.decide(credentials))
    }
}

/// The command of the option `cmd`.
#[derive(Debug, PartialEq, Eq)]
struct ReadCommand {
    key: String,
    fields: Option<Vec<String>>,
}

impl ReadCommand {
    fn parse(text: &str) -> Result<ReadCommand, String> {
        let mut words = words(text)?.into_iter();
        let (name, key) = (words.next().unwrap_or_default(), words.next());
        let fields: Vec<String> = words.collect();
        let key =
            key.ok_or("cmd: needs a command and a key, for example HMGET mqtt_user:${username} password_hash salt")?;
        if !key.contains("${") {
            return Err("cmd: the key needs a placeholder such as ${username}".to_owned());
        }
        let known = |field: &&String| !is_known_field(field);
        if let Some(unknown) = fields.iter().find(known) {
            return Err(format!(
                "cmd: unknown field {unknown:?}: expected password_hash (or password), salt or is_superuser"
            ));
        }
        let fields = match name.to_ascii_uppercase().as_str() {
            "HGETALL" if fields.is_empty() => None,
            "HGETALL" => return Err("cmd: HGETALL takes a key only".to_owned()),
            "HGET" if fields.len() != 1 => return Err("cmd: HGET takes a key and one field".to_owned()),
            "HGET" | "HMGET" => Some(fields),
            _ => return Err(format!("cmd: found {name:?}, expected HMGET, HGET or HGETALL")),
        };
        if fields
            .as_ref()
            .is_some_and(|fields| !fields.iter().any(|field| PASSWORD_COLUMNS.contains(&field.as_str())))
        {
            return Err("cmd: needs the field password_hash (or password)".to_owned());
        }
        Ok(ReadCommand { key, fields })
    }
}

fn is_known_field(field: &str) -> bool {
    PASSWORD_COLUMNS.contains(&field) || [SALT_COLUMN, SUPERUSER_COLUMN].contains(&field)
}

/// Splits at spaces. Double quotes keep spaces in a word.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or("cmd: a quote is not closed")?,
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    Ok(words)
}

/// `None`: there is no hash, or it has none of the fields.
fn user_row(fields: Vec<(Vec<u8>, Vec<u8>)>) -> Option<UserRow> {
    let mut row = UserRow::default();
    let mut is_found = false;
    for (name, value) in fields {
        let Ok(name) = str::from_utf8(&name) else { continue };
        match name {
            SALT_COLUMN => row.salt = value,
            SUPERUSER_COLUMN => row.is_superuser = is_true(&value),
            name if name == PASSWORD_COLUMNS[0] => row.password_hash = Some(value),
            name if PASSWORD_COLUMNS.contains(&name) => {
                row.password_hash.get_or_insert(value);
            }
            _ => continue,
        }
        is_found = true;
    }
    is_found.then_some(row)
}

#[cfg(test)]
mod tests;
