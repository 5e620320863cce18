//! Clients whose passwords are in a table of PostgreSQL.
//!
//! A query with placeholders returns the row of a client. Placeholders become parameters of a prepared statement, so
//! that the values of a client are never part of SQL text. A value that the type of its column does not have, such as
//! NUL bytes or text for an integer, belongs to no row.

mod rules;

use std::sync::Arc;

use auth::{Credentials, HashSettings, ProviderOutcome, TemplateUse};
use connectors::postgres::{LookupError, LookupRow, LookupValue, PostgresConnectorConfig, PostgresLookup};

use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::{PASSWORD_COLUMNS, Parameters, RowCheck, SALT_COLUMN, SUPERUSER_COLUMN, UserRow};
use crate::source::{LoginSource, QuestionKey, SourceError, SourceFuture};
use crate::superuser::is_true;

pub use rules::{PostgresqlRules, PostgresqlRulesConfig, rules};

const NAME: &str = "postgresql";

/// Configuration of the provider.
pub struct PostgresqlConfig {
    pub connection: PostgresConnectorConfig,
    /// SELECT statement with placeholders. Its first row is used.
    pub query: String,
    pub hash: HashSettings,
}

/// A table with clients.
pub struct PostgresqlSource {
    lookup: PostgresLookup,
    parameters: Parameters,
    check: RowCheck,
}

/// Creates the provider. Does not connect. The error names the field.
pub fn provider(
    config: &PostgresqlConfig,
    limits: SourceLimits,
) -> Result<Arc<SourceProvider<PostgresqlSource>>, String> {
    Ok(SourceProvider::new(PostgresqlSource::new(config)?, limits))
}

impl PostgresqlSource {
    fn new(config: &PostgresqlConfig) -> Result<PostgresqlSource, String> {
        let lookup = PostgresLookup::new(&config.connection, &config.query, PASSWORD_COLUMNS);
        let lookup = lookup.map_err(|problems| problems.join("; "))?;
        Ok(PostgresqlSource {
            parameters: Parameters::parse(TemplateUse::Login, "query", lookup.templates())?,
            lookup,
            check: RowCheck::new(NAME, config.hash)?,
        })
    }

    async fn decide(&self, credentials: &Credentials) -> Result<ProviderOutcome, SourceError> {
        let Some(values) = self.parameters.values(credentials) else {
            return Ok(ProviderOutcome::Ignore);
        };
        let row = match self.lookup.first_row(&values).await {
            Ok(Some(row)) => Some(user_row(row)?),
            Ok(None) | Err(LookupError::InvalidValue) => None,
            Err(LookupError::Failed(reason)) => return Err(SourceError::Failed(reason)),
        };
        self.check.outcome(credentials, row).await
    }
}

impl LoginSource for PostgresqlSource {
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

fn user_row(mut row: LookupRow) -> Result<UserRow, SourceError> {
    let password = PASSWORD_COLUMNS.iter().find_map(|name| Some((name, row.take(name)?)));
    let Some((name, value)) = password else {
        return Err(SourceError::Failed(format!(
            "the query returns no column {}",
            PASSWORD_COLUMNS[0]
        )));
    };
    let mut optional = |name| bytes(name, row.take(name).unwrap_or(LookupValue::Null));
    Ok(UserRow {
        salt: optional(SALT_COLUMN)?.unwrap_or_default(),
        is_superuser: optional(SUPERUSER_COLUMN)?.is_some_and(|value| is_true(&value)),
        password_hash: bytes(name, value)?,
    })
}

fn bytes(name: &str, value: LookupValue) -> Result<Option<Vec<u8>>, SourceError> {
    match value {
        LookupValue::Null => Ok(None),
        LookupValue::Bytes(bytes) => Ok(Some(bytes)),
        LookupValue::Unsupported => Err(SourceError::Failed(format!(
            "the column {name} of the query is neither text nor bytea, boolean or integer: add a cast"
        ))),
    }
}
