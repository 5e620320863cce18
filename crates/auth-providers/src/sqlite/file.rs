//! A connection to the file. It can only read: the file is opened read-only, and the authorizer refuses every action of
//! a statement except reading tables and calling functions, such as ATTACH, PRAGMA and writes.

use std::fmt::Write;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use connectors::sql::{LookupRow, LookupValue};
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Connection, Error, ErrorCode, OpenFlags, Row, ffi};

/// Instructions of SQLite's virtual machine between two checks of the time limit. They take about 0.1 ms.
const INSTRUCTIONS_PER_CHECK: i32 = 10_000;

/// The query of the options.
pub(super) struct Query {
    pub sql: String,
    /// Number of parameters.
    pub parameters: usize,
    /// The result needs one of these columns.
    pub one_of: &'static [&'static str],
}

/// Identity and state of the file. They differ after the file is replaced or overwritten.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: (i64, i64),
}

/// A connection to a version of the file.
pub(super) struct OpenFile {
    connection: Connection,
    pub version: FileVersion,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum FileError {
    Missing(io::Error),
    /// The path is a directory, for example.
    NoFile,
    /// Another program has locked the file for too long.
    Busy,
    TooSlow,
    NoColumn(&'static str),
    /// The statement has parameters that are no placeholders.
    Parameters,
    /// The statement does more than reading.
    NotAllowed,
    Statement(String),
    File(String),
}

impl FileVersion {
    /// Does not open the file: closing it again would end the locks that SQLite has on it in this process.
    pub fn of(path: &Path) -> Result<FileVersion, FileError> {
        let metadata = std::fs::metadata(path).map_err(FileError::Missing)?;
        if !metadata.is_file() {
            return Err(FileError::NoFile);
        }
        Ok(FileVersion {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified_ns: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

impl OpenFile {
    /// Opens the file. The caller reads `version` first, so that a file that is replaced in between is opened again.
    pub fn open(path: &Path, version: FileVersion, busy_timeout: Duration) -> Result<OpenFile, FileError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let mut connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(busy_timeout)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
            // Functions in views and indexes of the file must be harmless.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
            connection.authorizer(Some(authorization))?;
            Ok(connection)
        };
        let connection = open().map_err(|error| FileError::new(&error))?;
        Ok(OpenFile { connection, version })
    }

    /// Reads the header and the tables, which fails if the file is not a database.
    pub fn check(&self) -> Result<(), FileError> {
        let count = self
            .connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
        count.map_err(|error| FileError::new(&error))
    }

    /// Checks the query without running it.
    pub fn check_query(&mut self, query: &Query) -> Result<(), FileError> {
        self.check()?;
        self.prepared(query).map(drop)
    }

    /// Returns the first rows of the query for these values, which are text, at most `max`.
    pub fn rows(
        &mut self,
        query: &Query,
        values: &[Vec<u8>],
        max: usize,
        until: Instant,
    ) -> Result<Vec<LookupRow>, FileError> {
        let is_late = move || Instant::now() >= until;
        let limited = self.connection.progress_handler(INSTRUCTIONS_PER_CHECK, Some(is_late));
        limited.map_err(|error| FileError::new(&error))?;
        let mut statement = self.prepared(query)?;
        let read = |statement: &mut CachedStatement<'_>| -> rusqlite::Result<Vec<LookupRow>> {
            for (index, value) in values.iter().enumerate() {
                statement.raw_bind_parameter(index + 1, String::from_utf8_lossy(value))?;
            }
            let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let mut rows = statement.raw_query();
            let mut found = Vec::new();
            while found.len() < max
                && let Some(row) = rows.next()?
            {
                found.push(lookup_row(&names, row)?);
            }
            Ok(found)
        };
        read(&mut statement).map_err(|error| FileError::new(&error))
    }

    fn prepared(&self, query: &Query) -> Result<CachedStatement<'_>, FileError> {
        let statement = self.connection.prepare_cached(&query.sql);
        let statement = statement.map_err(|error| FileError::new(&error))?;
        if statement.parameter_count() != query.parameters {
            return Err(FileError::Parameters);
        }
        if !statement.column_names().any(|name| query.one_of.contains(&name)) {
            return Err(FileError::NoColumn(query.one_of[0]));
        }
        Ok(statement)
    }
}

/// Allows reading, and calling functions that have no effect outside of the statement.
fn authorization(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if !function_name.eq_ignore_ascii_case("load_extension") => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }
}

fn lookup_row(names: &[String], row: &Row<'_>) -> rusqlite::Result<LookupRow> {
    let columns = names.iter().enumerate();
    let columns = columns.map(|(index, name)| {
        let value = match row.get_ref(index)? {
            ValueRef::Null => LookupValue::Null,
            ValueRef::Integer(number) => LookupValue::Bytes(number.to_string().into_bytes()),
            ValueRef::Real(_) => LookupValue::Unsupported,
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => LookupValue::Bytes(bytes.to_vec()),
        };
        Ok((name.clone(), value))
    });
    Ok(LookupRow {
        columns: columns.collect::<rusqlite::Result<_>>()?,
    })
}

impl FileError {
    fn new(error: &Error) -> FileError {
        let Some(code) = error.sqlite_error() else {
            return FileError::Statement(error.to_string());
        };
        match code.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => FileError::Busy,
            ErrorCode::OperationInterrupted => FileError::TooSlow,
            ErrorCode::AuthorizationForStatementDenied => FileError::NotAllowed,
            ErrorCode::Unknown => FileError::Statement(error.to_string()),
            _ => FileError::File(text_with_hint(error, code.extended_code)),
        }
    }

    /// Whether the query is wrong, not the file.
    pub fn concerns_query(&self) -> bool {
        matches!(
            self,
            FileError::NoColumn(_) | FileError::Parameters | FileError::NotAllowed | FileError::Statement(_)
        )
    }

    /// Returns the text for operators.
    pub fn text(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            FileError::Missing(error) => format!("cannot read {path}: {error}"),
            FileError::NoFile => format!("cannot read {path}: not a file"),
            FileError::Busy => format!("{path}: another program has locked the database"),
            FileError::TooSlow => format!("{path}: the query took too long"),
            FileError::NoColumn(name) => format!("{path}: the query returns no column {name}"),
            FileError::Parameters => format!(
                "{path}: the query contains a parameter such as `:name` or `@name`: only placeholders such as \
                 ${{username}} are possible"
            ),
            FileError::NotAllowed => format!("{path}: the query does more than reading tables of this file"),
            FileError::Statement(reason) | FileError::File(reason) => format!("{path}: {reason}"),
        }
    }
}

/// Adds what an operator can do.
fn text_with_hint(error: &Error, extended_code: i32) -> String {
    let mut text = error.to_string();
    let hint = match extended_code {
        ffi::SQLITE_READONLY_ROLLBACK | ffi::SQLITE_READONLY_RECOVERY => {
            "a program that wrote the database has crashed; open the database with a program that may write"
        }
        ffi::SQLITE_READONLY_CANTINIT | ffi::SQLITE_CANTOPEN => {
            "in WAL mode, the server needs write access to the directory, or a program that has the database open"
        }
        _ => return text,
    };
    let _ = write!(text, " ({hint})");
    text
}
