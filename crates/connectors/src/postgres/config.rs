//! Options of the PostgreSQL connector and its action.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::statement::Statement;
use crate::config::{at_least, out_of_range};
use crate::secret::Secret;
use crate::sink::Template;
use crate::tls::TlsConfig;

/// Which database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresConnectorConfig {
    pub host: String,
    #[serde(default = "port")]
    pub port: u16,
    pub database: String,
    pub user: String,
    #[serde(default)]
    pub password: Option<Secret>,
    /// Connections at a time, and so transactions at a time.
    #[serde(default = "connections_max")]
    #[schemars(range(min = 1, max = 256))]
    pub connections_max: u32,
    /// How long connecting may take, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1))]
    pub connect_timeout_ms: u64,
    /// How long the database may work on one statement, in milliseconds. It ends longer ones itself.
    #[serde(default = "statement_timeout_ms")]
    #[schemars(range(min = 1))]
    pub statement_timeout_ms: u64,
    /// TLS. None: what is sent, the password's proof included, can be read on the way.
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

/// What is done with each message: either `sql` or `copy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PostgresActionConfig {
    /// One statement, with templates where values go: `INSERT INTO t (device, temp) VALUES (${clientid}, ${payload.temp})`.
    /// Templates become parameters: nothing in a message is ever read as SQL. They stand without quotes.
    pub sql: Option<String>,
    /// Copies messages into a table, some times faster than inserting them.
    pub copy: Option<PostgresCopyConfig>,
}

/// COPY into a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresCopyConfig {
    /// `table` or `schema.table`.
    pub table: String,
    pub columns: Vec<PostgresColumn>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresColumn {
    pub name: String,
    /// Template.
    pub value: String,
}

impl PostgresConnectorConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (field, value) in [("host", &self.host), ("database", &self.database), ("user", &self.user)] {
            if value.is_empty() || value.contains('\0') {
                problems.push(format!("{field}: must not be empty"));
            }
        }
        problems.extend(out_of_range([
            ("connections_max", self.connections_max.into(), 1..=256),
            ("connect_timeout_ms", self.connect_timeout_ms, at_least(1)),
            ("statement_timeout_ms", self.statement_timeout_ms, at_least(1)),
        ]));
        problems.extend(self.tls.as_ref().and_then(|tls| tls.client().err()));
        problems
    }
}

impl PostgresActionConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        match (&self.sql, &self.copy) {
            (Some(sql), None) => Statement::parse(sql).err().into_iter().collect(),
            (None, Some(copy)) => copy.problems(),
            _ => vec!["sql: give either sql or copy".to_owned()],
        }
    }

    /// The templates to fill in for each message, in the order of the parameters or columns.
    pub fn templates(&self) -> Vec<Template> {
        if let Some(copy) = &self.copy {
            let column =
                |column: &PostgresColumn| Template::new(format!("copy.columns.{}", column.name), &column.value);
            return copy.columns.iter().map(column).collect();
        }
        let statement = self.sql.as_deref().and_then(|sql| Statement::parse(sql).ok());
        let templates = statement.map(|statement| statement.templates).unwrap_or_default();
        templates.iter().map(|text| Template::new("sql", text)).collect()
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
            problems.push("copy.columns: must name one column at least".to_owned());
        }
        if !self.columns.iter().all(|column| is_name(&column.name)) {
            problems.push("copy.columns: a name is missing".to_owned());
        }
        problems
    }

    /// The statement; a line of data for each row follows.
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
