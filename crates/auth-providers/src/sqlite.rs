//! Clients whose passwords are in a table of an SQLite file that another program writes.

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
use crate::sql::{RowLookup, SqlSource};
use file::{FileError, FileVersion, OpenFile, Query};

/// Configuration of the provider.
pub struct SqliteConfig {
    pub file: PathBuf,
    /// SELECT statement with placeholders. Its first row is used.
    pub query: String,
    /// Maximum number of queries at a time. Each occupies a thread.
    pub connections_max: u32,
    /// Maximum time that a query waits for a lock of another program.
    pub busy_timeout: Duration,
    /// Maximum time of a query.
    pub query_timeout: Duration,
    pub hash: HashSettings,
}

/// A table with clients.
pub type SqliteSource = SqlSource<SqliteLookup>;

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
    let lookup = SqliteLookup::new(config)?;
    Ok(SourceProvider::new(SqlSource::new(lookup, config.hash)?, limits))
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
    fn new(config: &SqliteConfig) -> Result<SqliteLookup, String> {
        let statement = SqlTemplate::parse_query(&config.query, SqlDialect::QuestionMarks)?;
        let reader = Reader {
            path: config.file.clone(),
            query: Query {
                sql: statement.sql,
                parameters: statement.templates.len(),
                one_of: PASSWORD_COLUMNS,
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

    fn first_row(&self, values: &[Vec<u8>]) -> Result<Option<LookupRow>, FileError> {
        let version = FileVersion::of(&self.path)?;
        let idle = self.take_idle(version);
        let mut file = idle.map_or_else(|| self.open_version(version), Ok)?;
        let row = file.first_row(&self.query, values, Instant::now() + self.query_timeout)?;
        self.lock().push(file);
        Ok(row)
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

    async fn first_row(&self, values: &[Vec<u8>]) -> Result<Option<LookupRow>, LookupError> {
        if !are_text(values) {
            return Err(LookupError::InvalidValue);
        }
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let (reader, values) = (self.reader.clone(), values.to_vec());
        let running = spawn_blocking(move || {
            // If the client is gone, the query still occupies a permit until its end.
            let _permit = permit;
            reader.first_row(&values).map_err(|error| error.text(&reader.path))
        });
        let row = running
            .await
            .map_err(|_| LookupError::Failed("the query was interrupted".to_owned()))?;
        row.map_err(LookupError::Failed)
    }
}

#[cfg(test)]
mod tests;
