//! Reads rows by a statement with parameters, for the authentication and the access rules of clients.
//!
//! A lookup may be dropped at any time; then its connection is closed.

use std::time::Duration;

use mysql_async::consts::ColumnType;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, Params, Row, Statement, Value};
use tokio::time::timeout;

use super::config::MysqlConnection;
use super::error::{describe, is_invalid_value, is_outdated};
use crate::outage::Outage;
use crate::pool::{Pool, Pooled};
use crate::sql::{LookupError, LookupRow, LookupValue, SqlDialect, SqlTemplate, are_text};

/// A statement that returns rows.
pub struct MysqlLookup {
    options: Opts,
    connect_limit: Duration,
    pool: Pool<Conn>,
    statement: SqlTemplate,
    /// The row must have one of these columns.
    one_of: &'static [&'static str],
    outage: Outage,
    database: String,
    address: String,
}

impl MysqlLookup {
    /// The result needs at least one of the columns `one_of`. The errors name the fields; the statement is `query`.
    pub fn new(
        connection: &MysqlConnection,
        query: &str,
        one_of: &'static [&'static str],
    ) -> Result<MysqlLookup, Vec<String>> {
        let statement = SqlTemplate::parse_query(query, SqlDialect::QuestionMarks).map_err(|problem| vec![problem])?;
        let address = match connection.host.starts_with('/') {
            true => connection.host.clone(),
            false => format!("{}:{}", connection.host, connection.port),
        };
        Ok(MysqlLookup {
            options: connection.options()?,
            connect_limit: Duration::from_millis(connection.connect_timeout_ms),
            pool: Pool::new(connection.connections_max),
            statement,
            one_of,
            outage: Outage::default(),
            database: connection.database.clone(),
            address,
        })
    }

    /// The template of each parameter, in order.
    pub fn templates(&self) -> &[String] {
        &self.statement.templates
    }

    /// Returns the first rows for these values of the parameters, at most `max`, in the order of the result.
    pub async fn rows(&self, values: &[Vec<u8>], max: usize) -> Result<Vec<LookupRow>, LookupError> {
        if !are_text(values) {
            return Err(LookupError::InvalidValue);
        }
        let mut first = true;
        loop {
            let mut taken = self.take().await?;
            let error = match self.ask(&mut taken.connection, values, max).await {
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
            if is_invalid_value(&error, values.iter().all(|value| value.is_ascii())) {
                taken.release();
                return Err(LookupError::InvalidValue);
            }
            if first && is_outdated(&error) {
                // A server that ended one connection, for example with a restart, has ended the idle ones too.
                self.pool.clear();
                first = false;
                continue;
            }
            return Err(self.failed(&describe(&error)));
        }
    }

    async fn ask(&self, connection: &mut Conn, values: &[Vec<u8>], max: usize) -> Result<Vec<LookupRow>, AskError> {
        // The connection remembers its prepared statements.
        let statement = connection.prep(self.statement.sql.as_str()).await?;
        if !has_column(&statement, self.one_of) {
            return Err(AskError::NoColumn);
        }
        let values = values.iter().cloned().map(Value::Bytes).collect();
        let mut result = connection.exec_iter(&statement, Params::Positional(values)).await?;
        let mut found = Vec::new();
        while found.len() < max
            && let Some(row) = result.next().await?
        {
            found.push(lookup_row(row));
        }
        // Reads further rows, so that the connection can be used again.
        result.drop_result().await?;
        Ok(found)
    }

    async fn take(&self) -> Result<Pooled<'_, Conn>, LookupError> {
        let open = async {
            self.outage.may_connect()?;
            self.connect().await
        };
        match self.pool.take(|connection| !connection.is_disconnected(), open).await {
            Ok(taken) => {
                self.outage.end();
                Ok(taken)
            }
            Err(reason) => {
                self.outage.begin(&reason);
                Err(LookupError::Failed(format!("database {:?}: {reason}", self.database)))
            }
        }
    }

    async fn connect(&self) -> Result<Conn, String> {
        let address = &self.address;
        let connected = timeout(self.connect_limit, Conn::new(self.options.clone())).await;
        let connected = connected.map_err(|_| {
            let limit_ms = self.connect_limit.as_millis();
            format!("cannot connect to {address}: no response within {limit_ms} ms")
        })?;
        connected.map_err(|error| format!("cannot connect to {address}: {}", describe(&error)))
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

fn has_column(statement: &Statement, names: &[&str]) -> bool {
    let columns = statement.columns();
    columns.iter().any(|column| names.contains(&&*column.name_str()))
}

fn lookup_row(row: Row) -> LookupRow {
    let columns = row.columns();
    let values = row.unwrap_raw().into_iter();
    let columns = columns.iter().zip(values).map(|(column, value)| {
        let value = value.map_or(LookupValue::Null, |value| lookup_value(column.column_type(), value));
        (column.name_str().into_owned(), value)
    });
    LookupRow {
        columns: columns.collect(),
    }
}

fn lookup_value(column: ColumnType, value: Value) -> LookupValue {
    LookupValue::Bytes(match value {
        Value::NULL => return LookupValue::Null,
        Value::Bytes(bytes) if column == ColumnType::MYSQL_TYPE_BIT => bit_field(&bytes).to_string().into_bytes(),
        Value::Bytes(bytes) => bytes,
        Value::Int(number) => number.to_string().into_bytes(),
        Value::UInt(number) => number.to_string().into_bytes(),
        _ => return LookupValue::Unsupported,
    })
}

/// Returns the number of a `BIT` column, which has at most 8 bytes.
fn bit_field(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_bytes() {
        let bytes = |text: &str| LookupValue::Bytes(text.as_bytes().to_vec());
        for (column, value, expected) in [
            (
                ColumnType::MYSQL_TYPE_VAR_STRING,
                Value::Bytes(b"x".to_vec()),
                bytes("x"),
            ),
            (ColumnType::MYSQL_TYPE_TINY, Value::Int(1), bytes("1")),
            (
                ColumnType::MYSQL_TYPE_LONGLONG,
                Value::UInt(u64::MAX),
                bytes("18446744073709551615"),
            ),
            (ColumnType::MYSQL_TYPE_BIT, Value::Bytes(vec![1]), bytes("1")),
            (ColumnType::MYSQL_TYPE_BIT, Value::Bytes(vec![1, 0]), bytes("256")),
            (
                ColumnType::MYSQL_TYPE_DOUBLE,
                Value::Double(1.0),
                LookupValue::Unsupported,
            ),
            (ColumnType::MYSQL_TYPE_NULL, Value::NULL, LookupValue::Null),
        ] {
            assert_eq!(lookup_value(column, value), expected);
        }
    }
}
