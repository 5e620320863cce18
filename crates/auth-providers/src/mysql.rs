//! Clients whose passwords or access rules are in a table of MySQL or MariaDB.

use std::sync::Arc;

use auth::HashSettings;
use connectors::mysql::{MysqlConnection, MysqlLookup};
use connectors::sql::{LookupError, LookupRow};

use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::PASSWORD_COLUMNS;
use crate::sql::{RULE_COLUMNS, RowLookup, SqlRules, SqlSource};

/// Configuration of the provider.
pub struct MysqlConfig {
    pub connection: MysqlConnection,
    /// SELECT statement with placeholders. Its first row is used.
    pub query: String,
    pub hash: HashSettings,
}

/// A table with clients.
pub type MysqlSource = SqlSource<MysqlLookup>;

/// A table with access rules.
pub type MysqlRules = SqlRules<MysqlLookup>;

/// Creates the provider. Does not connect. The error names the field.
pub fn provider(config: &MysqlConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<MysqlSource>>, String> {
    let lookup = MysqlLookup::new(&config.connection, &config.query, PASSWORD_COLUMNS);
    let lookup = lookup.map_err(|problems| problems.join("; "))?;
    Ok(SourceProvider::new(SqlSource::new(lookup, config.hash)?, limits))
}

/// Creates the source of access rules that a query with placeholders returns. Does not connect. The error names the
/// field.
pub fn rules(
    connection: &MysqlConnection,
    query: &str,
    limits: SourceLimits,
) -> Result<Arc<SourceProvider<MysqlRules>>, String> {
    let lookup = MysqlLookup::new(connection, query, RULE_COLUMNS);
    SqlRules::source(lookup.map_err(|problems| problems.join("; "))?, limits)
}

impl RowLookup for MysqlLookup {
    const NAME: &'static str = "mysql";

    fn templates(&self) -> &[String] {
        MysqlLookup::templates(self)
    }

    async fn rows(&self, values: &[Vec<u8>], max: usize) -> Result<Vec<LookupRow>, LookupError> {
        // The method of the type itself.
        MysqlLookup::rows(self, values, max).await
    }
}
