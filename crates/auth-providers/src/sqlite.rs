//! Clients whose passwords or access rules are in a table of an SQLite file that another program writes.

mod file;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use auth::HashSettings;
use connectors::sql::{LookupError, LookupRow, SqlDialect, SqlTemplate, are_text};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::PASSWORD_COLUMNS;
use crate::sql::{RULE_COLUMNS, RowLookup, SqlRules, SqlSource};
use file::{FileError, FileVersion, OpenFile, Query};

/// Configuration of the provider.
pub struct SqliteConfig {
    pub file: SqliteFile,
    /// SELECT statement with placeholders. Its first row is used.
    pub query: String,
    pub hash: HashSettings,
}

/// The file, and limits of its queries.
pub struct SqliteFile {
    pub path: PathBuf,
    /// Maximum number of queries at a time. Each occupies a thread.
    pub connections_max: u32,
    /// Maximum time that a query waits for a lock of another program.
    pub busy_timeout: Duration,
    /// Maximum time of a query.
    pub query_timeout: Duration,
}

/// A table with clients.
pub type SqliteSource = SqlSource<SqliteLookup>;

/// A table with access rules.
pub type SqliteRules = SqlRules<SqliteLookup>;

/// A query for rows of a file.
pub struct SqliteLookup {
    /// One permit per query at a time. It is never closed.
    permits: Arc<Semaphore>,
    reader: Arc<Reader>,
}

/// Reads the file on threads that may block.
struct Reader {
    path: PathBuf,
    query: Query,
    templates: Vec<String>,
    busy_timeout: Duration,
    query_timeout: Duration,
    idle: Mutex<Vec<OpenFile>>,
}

/// Creates the provider. Fails if the file or the query is unusable. The error names the field.
pub fn provider(config: &SqliteConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<SqliteSource>>, String> {
    let lookup = SqliteLookup::new(&config.file, &config.query, PASSWORD_COLUMNS)?;
    Ok(SourceProvider::new(SqlSource::new(lookup, config.hash)?, limits))
}

/// Creates the source of access rules that a query with placeholders returns. Fails if the file or the query is
/// unusable. The error names the field.
pub fn rules(file: &SqliteFile, query: &str, limits: SourceLimits) -> Result<Arc<SourceProvider<SqliteRules>>, String> {
    SqlRules::source(SqliteLookup::new(file, query, RULE_COLUMNS)?, limits)
}

/// Checks that the file is a database.
pub fn check_file(path: &Path) -> Result<(), String> {
    let opened = FileVersion::of(path).and_then(|version| OpenFile::open(path, version, Duration::ZERO));
    match opened.and_then(|file| file.check()) {
        Ok(()) | Err(FileError::Busy) => Ok(()),
        Err(error) => Err(error.text(path)),
    }
}

impl SqliteLookup {
    /// The result needs at least one of the columns `one_of`.
    fn new(config: &SqliteFile, query: &str, one_of: &'static [&'static str]) -> Result<SqliteLookup, String> {
        let statement = SqlTemplate::parse_query(query, SqlDialect::QuestionMarks)?;
        let reader = Reader {
            path: config.path.clone(),
            query: Query {
                sql: statement.sql,
                parameters: statement.templates.len(),
                one_of,
            },
            templates: statement.templates,
            busy_timeout: config.busy_timeout,
            query_timeout: config.query_timeout,
            idle: Mutex::new(Vec::new()),
        };
        match reader.open().and_then(|mut file| file.check_query(&reader.query)) {
            // A program that writes at this time does not prevent the start.
            Ok(()) | Err(FileError::Busy) => {}
            Err(error) => {
                let field = if error.concerns_query() { "query" } else { "file" };
                return Err(format!("{field}: {}", error.text(&reader.path)));
            }
        }
        Ok(SqliteLookup {
            permits: Arc::new(Semaphore::new(config.connections_max.max(1) as usize)),
            reader: Arc::new(reader),
        })
    }
}

impl Reader {
    fn open(&self) -> Result<OpenFile, FileError> {
        let version = FileVersion::of(&self.path)?;
        self.open_version(version)
    }

    fn open_version(&self, version: FileVersion) -> Result<OpenFile, FileError> {
        OpenFile::open(&self.path, version, self.busy_timeout)
    }

    fn rows(&self, values: &[Vec<u8>], max: usize) -> Result<Vec<LookupRow>, FileError> {
        let version = FileVersion::of(&self.path)?;
        let idle = self.take_idle(version);
        let mut file = idle.map_or_else(|| self.open_version(version), Ok)?;
        let rows = file.rows(&self.query, values, max, Instant::now() + self.query_timeout)?;
        self.lock().push(file);
        Ok(rows)
    }

    /// Closes idle connections to another version of the file.
    fn take_idle(&self, version: FileVersion) -> Option<OpenFile> {
        let mut idle = self.lock();
        idle.retain(|file| file.version == version);
        idle.pop()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpenFile>> {
        // Every update leaves the list valid, so a panic cannot leave it inconsistent.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RowLookup for SqliteLookup {
    const NAME: &'static str = "sqlite";

    fn templates(&self) -> &[String] {
        &self.reader.templates
    }

    async fn rows(&self, values: &[Vec<u8>], max: usize) -> Result<Vec<LookupRow>, LookupError> {
        if !are_text(values) {
            return Err(LookupError::InvalidValue);
        }
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let (reader, values) = (self.reader.clone(), values.to_vec());
        let running = spawn_blocking(move || {
            // If the client is gone, the query still occupies a permit until its end.
            let _permit = permit;
            let rows = reader.rows(&values, max);
            rows.map_err(|error| error.text(&reader.path))
        });
        let rows = running
            .await
            .map_err(|_| LookupError::Failed("the query was interrupted".to_owned()))?;
        rows.map_err(LookupError::Failed)
    }
}

#[cfg(test)]
mod tests;
