//! Reads rows by a statement with parameters, for the authentication and the access rules of clients.
//!
//! A lookup may be dropped at any time; then its connection is closed.

use std::error::Error as StdError;

use futures_util::TryStreamExt;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, Kind, Type};
use tokio_postgres::{Error, Row, Statement};

use super::client::{PooledConnection, PostgresConnector};
use super::config::PostgresConnectorConfig;
use super::error::describe;
use super::sink::TextParameter;
use crate::outage::Outage;
use crate::sql::{LookupError, LookupRow, LookupValue, SqlDialect, SqlTemplate, are_text};

/// A statement that returns rows.
pub struct PostgresLookup {
    connector: PostgresConnector,
    sql: String,
    templates: Vec<String>,
    /// The row must have one of these columns.
    one_of: &'static [&'static str],
    outage: Outage,
    database: String,
    address: String,
}

impl PostgresLookup {
    /// The result needs at least one of the columns `one_of`. The errors name the fields; the statement is `query`.
    pub fn new(
        config: &PostgresConnectorConfig,
        query: &str,
        one_of: &'static [&'static str],
    ) -> Result<PostgresLookup, Vec<String>> {
        let statement = SqlTemplate::parse_query(query, SqlDialect::Numbered).map_err(|problem| vec![problem])?;
        Ok(PostgresLookup {
            connector: PostgresConnector::new(config)?,
            sql: statement.sql,
            templates: statement.templates,
            one_of,
            outage: Outage::default(),
            database: config.database.clone(),
            address: format!("{}:{}", config.host, config.port),
        })
    }

    /// The template of each parameter, in order.
    pub fn templates(&self) -> &[String] {
        &self.templates
    }

    /// Returns the first rows for these values of the parameters, at most `max`, in the order of the result.
    pub async fn rows(&self, values: &[Vec<u8>], max: usize) -> Result<Vec<LookupRow>, LookupError> {
        if !are_text(values) {
            return Err(LookupError::InvalidValue);
        }
        let mut first = true;
        loop {
            let mut taken = AbortOnDrop(Some(self.take().await?));
            let error = match self.ask(taken.connection(), values, max).await {
                Ok(rows) => {
                    taken.release();
                    return Ok(rows);
                }
                Err(AskError::NoColumn) => {
                    taken.release();
                    return Err(self.failed(&format!("the query returns no column {}", self.one_of[0])));
                }
                Err(AskError::Database(error)) => error,
            };
            if is_invalid_value(&error) {
                taken.release();
                return Err(LookupError::InvalidValue);
            }
            // A new connection helps if the old one is lost or the table has changed since it prepared the statement.
            if !(first && is_outdated(&error)) {
                return Err(self.failed(&describe(&error)));
            }
            first = false;
        }
    }

    async fn ask(
        &self,
        taken: &mut PooledConnection<'_>,
        values: &[Vec<u8>],
        max: usize,
    ) -> Result<Vec<LookupRow>, AskError> {
        let statement = taken.connection.prepared(&self.sql).await?;
        if !has_column(&statement, self.one_of) {
            return Err(AskError::NoColumn);
        }
        let values = values.iter().map(|value| TextParameter(Some(value)));
        let rows = taken
            .connection
            .client
            .query_raw(&statement, values.collect::<Vec<_>>())
            .await?;
        let mut rows = Box::pin(rows);
        let mut found = Vec::new();
        // The connection discards further rows.
        while found.len() < max
            && let Some(row) = rows.try_next().await?
        {
            found.push(lookup_row(&row));
        }
        Ok(found)
    }

    async fn take(&self) -> Result<PooledConnection<'_>, LookupError> {
        match self.connector.take_if(|| self.outage.may_connect()).await {
            Ok(taken) => {
                self.outage.end();
                Ok(taken)
            }
            Err(reason) => {
                let reason = reason.replace(" (connect_timeout_ms)", "");
                self.outage.begin(&reason);
                Err(LookupError::Failed(format!("database {:?}: {reason}", self.database)))
            }
        }
    }

    fn failed(&self, reason: &str) -> LookupError {
        LookupError::Failed(format!("database {:?} at {}: {reason}", self.database, self.address))
    }
}

enum AskError {
    NoColumn,
    Database(Error),
}

impl From<Error> for AskError {
    fn from(error: Error) -> AskError {
        AskError::Database(error)
    }
}

/// Closes a connection that is dropped before its answer. Otherwise it would wait for the answer.
struct AbortOnDrop<'a>(Option<PooledConnection<'a>>);

impl<'a> AbortOnDrop<'a> {
    fn connection(&mut self) -> &mut PooledConnection<'a> {
        self.0.as_mut().expect("the connection is taken only by `release`")
    }

    fn release(mut self) {
        if let Some(taken) = self.0.take() {
            taken.release();
        }
    }
}

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(taken) = &self.0 {
            taken.connection.abort();
        }
    }
}

fn lookup_row(row: &Row) -> LookupRow {
    let columns = row.columns().iter().enumerate();
    let columns = columns.map(|(index, column)| {
        let value = row.try_get::<_, RawValue>(index);
        (
            column.name().to_owned(),
            value.map_or(LookupValue::Unsupported, |raw| raw.0),
        )
    });
    LookupRow {
        columns: columns.collect(),
    }
}

struct RawValue(LookupValue);

impl<'a> FromSql<'a> for RawValue {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<RawValue, Box<dyn StdError + Sync + Send>> {
        if let Kind::Domain(inner) = ty.kind() {
            return RawValue::from_sql(inner, raw);
        }
        let is_text = matches!(ty.kind(), Kind::Enum(_)) || ty.name() == "citext";
        let bytes = match *ty {
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::CHAR | Type::UNKNOWN | Type::BYTEA => {
                raw.to_vec()
            }
            Type::BOOL => bool::from_sql(ty, raw)?.to_string().into_bytes(),
            Type::INT2 => i16::from_sql(ty, raw)?.to_string().into_bytes(),
            Type::INT4 => i32::from_sql(ty, raw)?.to_string().into_bytes(),
            Type::INT8 => i64::from_sql(ty, raw)?.to_string().into_bytes(),
            _ if is_text => raw.to_vec(),
            _ => return Ok(RawValue(LookupValue::Unsupported)),
        };
        Ok(RawValue(LookupValue::Bytes(bytes)))
    }

    fn from_sql_null(_: &Type) -> Result<RawValue, Box<dyn StdError + Sync + Send>> {
        Ok(RawValue(LookupValue::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn has_column(statement: &Statement, names: &[&str]) -> bool {
    statement.columns().iter().any(|column| names.contains(&column.name()))
}

/// Returns whether the database refuses a value of the client: SQLSTATE class 22 (data exception).
fn is_invalid_value(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("22"))
}

fn is_outdated(error: &Error) -> bool {
    let Some(code) = error.code() else {
        // The connection is lost.
        return true;
    };
    // A changed table, a deleted statement (through a pooler), and a server that shuts down.
    [
        SqlState::FEATURE_NOT_SUPPORTED,
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
    ]
    .contains(code)
}
