//! Options of the PostgreSQL connector and its action.

use std::net::Ipv6Addr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{at_least, is_host, out_of_range};
use crate::secret::Secret;
use crate::sink::FieldTemplate;
use crate::sql::{SqlDialect, SqlTemplate};
use crate::tls::TlsConfig;

/// Connection to a PostgreSQL database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresConnectorConfig {
    /// Host name or address of the server.
    pub host: String,
    /// Port of the server.
    #[serde(default = "port")]
    #[schemars(range(min = 1))]
    pub port: u16,
    /// Name of the database.
    pub database: String,
    /// User name.
    pub user: String,
    /// Password of the user.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Maximum number of connections, which also limits the concurrent transactions.
    #[serde(default = "connections_max")]
    #[schemars(range(min = 1, max = 256))]
    pub connections_max: u32,
    /// Maximum time to connect, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1))]
    pub connect_timeout_ms: u64,
    /// Maximum run time of a statement, in milliseconds. The database cancels longer statements.
    #[serde(default = "statement_timeout_ms")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub statement_timeout_ms: u64,
    /// TLS settings. Without them, all data including the password hash is sent unencrypted.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
}

fn port() -> u16 {
    5432
}

fn connections_max() -> u32 {
    4
}

fn statement_timeout_ms() -> u64 {
    30_000
}

/// Statement or table for each message: either `sql` or `copy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PostgresActionConfig {
    /// One statement with templates as values, for example `INSERT INTO t (device, temp) VALUES (${clientid},
    /// ${payload.temp})`. Write templates without quotes. They become parameters, so that message content is never
    /// executed as SQL.
    pub sql: Option<String>,
    /// Copies messages into a table, which is several times faster than INSERT.
    pub copy: Option<PostgresCopyConfig>,
}

/// Table and columns for COPY.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresCopyConfig {
    /// Name of the table, as `table` or `schema.table`.
    pub table: String,
    /// Columns that the action writes.
    pub columns: Vec<PostgresColumn>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresColumn {
    /// Name of the column.
    pub name: String,
    /// Template of the column's value.
    pub value: String,
}

impl PostgresConnectorConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (field, value) in [("database", &self.database), ("user", &self.user)] {
            if value.is_empty() || value.contains('\0') {
                problems.push(format!("{field}: must not be empty or contain NUL"));
            }
        }
        let is_socket = self.host.starts_with('/') && !self.host.contains('\0');
        let is_address = self.host.parse::<Ipv6Addr>().is_ok();
        if !is_socket && !is_address && !is_host(&self.host) {
            problems.push(format!(
                "host: found {:?}, expected a host name, an address, or the directory of a Unix socket",
                self.host
            ));
        }
        problems.extend(out_of_range([
            ("connections_max", self.connections_max.into(), 1..=256),
            ("connect_timeout_ms", self.connect_timeout_ms, at_least(1)),
            ("port", self.port.into(), at_least(1)),
            // Limit of PostgreSQL.
            ("statement_timeout_ms", self.statement_timeout_ms, 1..=i32::MAX as u64),
        ]));
        problems.extend(self.tls.as_ref().and_then(|tls| tls.client().err()));
        problems
    }
}

impl PostgresActionConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        match (&self.sql, &self.copy) {
            (Some(sql), None) => SqlTemplate::parse(sql, SqlDialect::Numbered)
                .err()
                .into_iter()
                .collect(),
            (None, Some(copy)) => copy.problems(),
            _ => vec!["sql: set either sql or copy".to_owned()],
        }
    }

    /// Returns the templates in the order of the parameters or columns.
    pub fn templates(&self) -> Vec<FieldTemplate> {
        if let Some(copy) = &self.copy {
            let column = |column: &PostgresColumn| {
                FieldTemplate::document(format!("copy.columns.{}", column.name), &column.value)
            };
            return copy.columns.iter().map(column).collect();
        }
        let statement = self
            .sql
            .as_deref()
            .and_then(|sql| SqlTemplate::parse(sql, SqlDialect::Numbered).ok());
        let templates = statement.map(|statement| statement.templates).unwrap_or_default();
        templates.iter().map(|text| FieldTemplate::new("sql", text)).collect()
    }
}

impl PostgresCopyConfig {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let is_name = |name: &str| !name.is_empty() && !name.contains('\0');
        if !self.table.split('.').all(is_name) {
            problems.push("copy.table: must be table or schema.table".to_owned());
        }
        if self.columns.is_empty() {
            problems.push("copy.columns: must name at least one column".to_owned());
        }
        if !self.columns.iter().all(|column| is_name(&column.name)) {
            problems.push("copy.columns: a column has no name".to_owned());
        }
        let names = self.columns.iter().map(|column| ("copy.columns", &column.name));
        for (field, name) in std::iter::once(("copy.table", &self.table)).chain(names) {
            if name.contains("${") {
                problems.push(format!("{field}: found a template in {name:?}, expected a fixed name"));
            }
        }
        problems
    }

    /// Returns the COPY statement, which is followed by one line of data per row.
    pub(super) fn sql(&self) -> String {
        let table: Vec<String> = self.table.split('.').map(quoted).collect();
        let columns: Vec<String> = self.columns.iter().map(|column| quoted(&column.name)).collect();
        let (table, columns) = (table.join("."), columns.join(", "));
        format!("COPY {table} ({columns}) FROM STDIN (FORMAT text, ENCODING 'UTF8')")
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
