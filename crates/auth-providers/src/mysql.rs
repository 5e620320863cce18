//! Clients whose passwords are in a table of MySQL or MariaDB.

use std::sync::Arc;

use auth::HashSettings;
use connectors::mysql::{MysqlConnection, MysqlLookup};
use connectors::sql::{LookupError, LookupRow};

use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::PASSWORD_COLUMNS;
use crate::sql::{RowLookup, SqlSource};

/// Configuration of the provider.
pub struct MysqlConfig {
    pub connection: MysqlConnection,
    /// SELECT statement with placeholders. Its first row is used.
    pub query: String,
    pub hash: HashSettings,
}

/// A table with clients.
pub type MysqlSource = SqlSource<MysqlLookup>;

/// Creates the provider. Does not connect. The error names the field.
pub fn provider(config: &MysqlConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<MysqlSource>>, String> {
    let lookup = MysqlLookup::new(&config.connection, &config.query, PASSWORD_COLUMNS);
    let lookup = lookup.map_err(|problems| problems.join("; "))?;
    Ok(SourceProvider::new(SqlSource::new(lookup, config.hash)?, limits))
}

impl RowLookup for MysqlLookup {
    const NAME: &'static str = "mysql";

    fn templates(&self) -> &[String] {
        MysqlLookup::templates(self)
    }

    async fn first_row(&self, values: &[Vec<u8>]) -> Result<Option<LookupRow>, LookupError> {
        // The method of the type itself.
        MysqlLookup::first_row(self, values).await
    }
}
