//! Clients whose passwords or access rules are in a table of PostgreSQL.

use std::sync::Arc;

use auth::HashSettings;
use connectors::postgres::{PostgresConnectorConfig, PostgresLookup};
use connectors::sql::{LookupError, LookupRow};

use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::PASSWORD_COLUMNS;
use crate::sql::{RULE_COLUMNS, RowLookup, SqlRules, SqlSource};

/// Configuration of the provider.
pub struct PostgresqlConfig {
    pub connection: PostgresConnectorConfig,
    /// SELECT statement with placeholders. Its first row is used.
    pub query: String,
    pub hash: HashSettings,
}

/// A table with clients.
pub type PostgresqlSource = SqlSource<PostgresLookup>;

/// A table with access rules.
pub type PostgresqlRules = SqlRules<PostgresLookup>;

/// Creates the provider. Does not connect. The error names the field.
pub fn provider(
    config: &PostgresqlConfig,
    limits: SourceLimits,
) -> Result<Arc<SourceProvider<PostgresqlSource>>, String> {
    let lookup = PostgresLookup::new(&config.connection, &config.query, PASSWORD_COLUMNS);
    let lookup = lookup.map_err(|problems| problems.join("; "))?;
    Ok(SourceProvider::new(SqlSource::new(lookup, config.hash)?, limits))
}

/// Creates the source of access rules that a query with placeholders returns. Does not connect. The error names the
/// field.
pub fn rules(
    connection: &PostgresConnectorConfig,
    query: &str,
    limits: SourceLimits,
) -> Result<Arc<SourceProvider<PostgresqlRules>>, String> {
    let lookup = PostgresLookup::new(connection, query, RULE_COLUMNS);
    SqlRules::source(lookup.map_err(|problems| problems.join("; "))?, limits)
}

impl RowLookup for PostgresLookup {
    const NAME: &'static str = "postgresql";

    fn templates(&self) -> &[String] {
        PostgresLookup::templates(self)
    }

    async fn rows(&self, values: &[Vec<u8>], max: usize) -> Result<Vec<LookupRow>, LookupError> {
        // The method of the type itself.
        PostgresLookup::rows(self, values, max).await
    }
}
