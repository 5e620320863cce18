//! Clients whose passwords are in a table of PostgreSQL.

mod rules;

use std::sync::Arc;

use auth::HashSettings;
use connectors::postgres::{PostgresConnectorConfig, PostgresLookup};
use connectors::sql::{LookupError, LookupRow};

use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::PASSWORD_COLUMNS;
use crate::sql::{RowLookup, SqlSource};

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
pub type PostgresqlSource = SqlSource<PostgresLookup>;

/// Creates the provider. Does not connect. The error names the field.
pub fn provider(
    config: &PostgresqlConfig,
    limits: SourceLimits,
) -> Result<Arc<SourceProvider<PostgresqlSource>>, String> {
    let lookup = PostgresLookup::new(&config.connection, &config.query, PASSWORD_COLUMNS);
    let lookup = lookup.map_err(|problems| problems.join("; "))?;
    Ok(SourceProvider::new(SqlSource::new(lookup, config.hash)?, limits))
}

impl RowLookup for PostgresLookup {
    const NAME: &'static str = NAME;

    fn templates(&self) -> &[String] {
        PostgresLookup::templates(self)
    }

    async fn first_row(&self, values: &[Vec<u8>]) -> Result<Option<LookupRow>, LookupError> {
        // The method of the type itself.
        PostgresLookup::first_row(self, values).await
    }
}
