//! The embedded repository: one SQLite file in WAL mode, with one writing and several reading connections. All SQL of
//! the platform is in this directory. Calls block, so they must not run on threads that serve sockets.
//!
//! SQLite ignores the part of its write-ahead log behind a damaged frame, and starts without a missing log. The
//! repository detects both: `generation.rs` counts transactions outside of the database.

mod alarms;
mod apply;
mod entities;
mod generation;
mod schema;
mod values;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use self::generation::GenerationFile;
use crate::ids::{AlarmId, EntityId, EntityType, Uuid};
use crate::model::{Alarm, Attribute, AttributeScope, Relation};
use crate::page::{PageData, PageLink};
use crate::repository::{
    AlarmSelection, EntityRecord, RelationSelection, Repository, RepositoryChange, RepositoryError, Selection,
    StateKind,
};

/// File name within the platform's directory.
pub const FILE_NAME: &str = "entities.sqlite";

/// Reading connections.
const READERS: usize = 2;

/// Longest integrity check at the start.
const CHECK_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct SqliteRepository {
    path: PathBuf,
    writer: Mutex<Writer>,
    /// Error of the last change, if the database failed.
    write_failure: Mutex<Option<String>>,
    check: IntegrityCheck,
    readers: Vec<Mutex<Connection>>,
    next_reader: AtomicUsize,
}

#[derive(Debug)]
struct Writer {
    connection: Connection,
    generation: GenerationFile,
}

/// The integrity check of an opened database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegrityCheck {
    pub took: Duration,
    /// False if the check was stopped because it took too long.
    pub is_complete: bool,
}

#[derive(Debug)]
pub enum SqliteOpenError {
    /// The database has fewer transactions than it had: its write-ahead log is damaged or missing, or the file was
    /// replaced by an older one.
    Behind {
        path: PathBuf,
        generation: u64,
        expected: u64,
    },
    Missing {
        path: PathBuf,
        expected: u64,
    },
    /// The integrity check has found damage.
    Damaged {
        path: PathBuf,
        problem: String,
    },
    Generation {
        path: PathBuf,
        source: io::Error,
    },
    Sqlite {
        path: PathBuf,
        source: rusqlite::Error,
    },
    /// The file was written by a newer version.
    Version {
        path: PathBuf,
        version: i64,
    },
}

impl fmt::Display for SqliteOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SqliteOpenError::Behind {
                path,
                generation,
                expected,
            } => write!(
                f,
                "the entity database {shown} has lost its last {lost} transactions ({generation} of {expected} remain): its \
                 write-ahead log {shown}-wal is damaged or missing, or the database was replaced by an older one. {way_out}",
                shown = path.display(),
                lost = expected - generation,
                way_out = way_out(path),
            ),
            SqliteOpenError::Missing { path, expected } => write!(
                f,
                "the entity database {} with {expected} transactions is missing. {}",
                path.display(),
                way_out(path)
            ),
            SqliteOpenError::Damaged { path, problem } => write!(
                f,
                "the entity database {} is damaged: {problem}. Restore a backup",
                path.display()
            ),
            SqliteOpenError::Generation { path, .. } => write!(f, "cannot use {}", path.display()),
            SqliteOpenError::Sqlite { path, .. } => write!(f, "cannot open the entity database {}", path.display()),
            SqliteOpenError::Version { path, version } => write!(
                f,
                "{} has format version {version}, but this program supports versions up to {}. Use the newer tidewire that wrote it, or restore a backup",
                path.display(),
                schema::VERSION
            ),
        }
    }
}

impl std::error::Error for SqliteOpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SqliteOpenError::Sqlite { source, .. } => Some(source),
            SqliteOpenError::Generation { source, .. } => Some(source),
            SqliteOpenError::Version { .. }
            | SqliteOpenError::Behind { .. }
            | SqliteOpenError::Missing { .. }
            | SqliteOpenError::Damaged { .. } => None,
        }
    }
}

impl SqliteRepository {
    /// Opens or creates the file in this directory. Fails if transactions are missing ([`SqliteOpenError::Behind`]).
    pub fn open(directory: &Path) -> Result<SqliteRepository, SqliteOpenError> {
        let path = directory.join(FILE_NAME);
        let wrap = |source| SqliteOpenError::Sqlite {
            path: path.clone(),
            source,
        };
        let check = check(directory)?;
        let mut connection = Connection::open(&path).map_err(wrap)?;
        schema::configure(&connection).map_err(wrap)?;
        match schema::version(&connection).map_err(wrap)? {
            0 => schema::create(&mut connection).map_err(wrap)?,
            version if version > schema::VERSION => return Err(SqliteOpenError::Version { path, version }),
            version => schema::migrate(&mut connection, version).map_err(wrap)?,
        }
        let generation = schema::generation(&connection).map_err(wrap)?;
        let generation = GenerationFile::open(directory, generation).map_err(generation_error(directory))?;
        let readers = (0..READERS).map(|_| open_reader(&path).map(Mutex::new));
        let readers = readers.collect::<Result<_, _>>().map_err(wrap)?;
        Ok(SqliteRepository {
            writer: Mutex::new(Writer { connection, generation }),
            write_failure: Mutex::new(None),
            check,
            readers,
            next_reader: AtomicUsize::new(0),
            path,
        })
    }

    /// Returns the integrity check that was made when the database was opened.
    pub fn integrity_check(&self) -> IntegrityCheck {
        self.check
    }

    /// Returns the transactions that are missing from a database that does not open because of this. The next opening
    /// accepts the loss if `is_accepted`. The files remain as they are.
    pub fn missing_transactions(directory: &Path, is_accepted: bool) -> Result<Option<u64>, SqliteOpenError> {
        let missing = match check(directory) {
            Ok(_) => return Ok(None),
            Err(SqliteOpenError::Behind {
                generation, expected, ..
            }) => expected - generation,
            Err(SqliteOpenError::Missing { expected, .. }) => expected,
            Err(error) => return Err(error),
        };
        if is_accepted {
            GenerationFile::remove(directory).map_err(generation_error(directory))?;
        }
        Ok(Some(missing))
    }

    /// Returns the number of transactions, without opening the repository: that of the database or that of its file,
    /// whichever is higher. `None` if neither can be read, which opening the repository reports.
    pub fn transactions(directory: &Path) -> Option<u64> {
        let path = directory.join(FILE_NAME);
        let in_database = || {
            if !path.is_file() {
                return None;
            }
            schema::generation(&open_reader(&path).ok()?).ok()
        };
        let in_file = GenerationFile::read(directory).ok().flatten();
        in_database().max(in_file)
    }

    /// Returns a state of a repository without opening it. `None` if there is no repository.
    pub fn stored_state(directory: &Path, state: StateKind, id: Uuid) -> Result<Option<Vec<u8>>, SqliteOpenError> {
        let path = directory.join(FILE_NAME);
        if !path.is_file() {
            return Ok(None);
        }
        let read = || {
            let reader = open_reader(&path)?;
            match schema::version(&reader)? {
                0 => Ok(None),
                _ => values::state(&reader, state, id),
            }
        };
        read().map_err(|source| SqliteOpenError::Sqlite {
            path: path.clone(),
            source,
        })
    }

    /// Copies the current contents of a repository to a new file in `target`. The repository may be in use.
    pub fn copy_to(directory: &Path, target: &Path) -> Result<(), SqliteOpenError> {
        let path = directory.join(FILE_NAME);
        let copy = target.join(FILE_NAME);
        let wrap = |source| SqliteOpenError::Sqlite {
            path: path.clone(),
            source,
        };
        let reader = open_reader(&path).map_err(wrap)?;
        let name = copy.to_string_lossy();
        reader.execute("VACUUM INTO ?1", [&name]).map_err(wrap)?;
        Ok(())
    }

    fn read(&self) -> MutexGuard<'_, Connection> {
        let index = self.next_reader.fetch_add(1, Ordering::Relaxed) % self.readers.len();
        self.readers[index]
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn way_out(path: &Path) -> String {
    let data_dir = path.ancestors().nth(2).unwrap_or(Path::new("."));
    format!(
        "Restore a backup of the whole data directory, or accept the loss: tidewire journal repair --accept-loss --data-dir {}",
        data_dir.display()
    )
}

fn generation_error(directory: &Path) -> impl FnOnce(io::Error) -> SqliteOpenError {
    let path = directory.join(generation::FILE_NAME);
    move |source| SqliteOpenError::Generation { path, source }
}

/// Checks the file for missing transactions and for damage, on a connection that cannot change it: closing a writing
/// connection would replace a damaged write-ahead log.
fn check(directory: &Path) -> Result<IntegrityCheck, SqliteOpenError> {
    let path = directory.join(FILE_NAME);
    let wrap = |source| SqliteOpenError::Sqlite {
        path: path.clone(),
        source,
    };
    let expected = GenerationFile::read(directory).map_err(generation_error(directory))?;
    let has_file = path.try_exists().map_err(|source| SqliteOpenError::Generation {
        path: path.clone(),
        source,
    })?;
    if !has_file {
        return match expected.unwrap_or(0) {
            0 => Ok(IntegrityCheck {
                took: Duration::ZERO,
                is_complete: true,
            }),
            expected => Err(SqliteOpenError::Missing { path, expected }),
        };
    }
    roll_back(&path).map_err(wrap)?;
    let reader = open_reader(&path).map_err(wrap)?;
    let begun = Instant::now();
    let problem = find_damage(&reader).map_err(wrap)?;
    let took = begun.elapsed();
    let is_complete = problem.is_some();
    if let Some(problem) = problem.filter(|problem| problem != "ok") {
        return Err(SqliteOpenError::Damaged { path, problem });
    }
    let generation = schema::generation(&reader).map_err(wrap)?;
    if let Some(expected) = expected.filter(|expected| *expected > generation) {
        return Err(SqliteOpenError::Behind {
            path,
            generation,
            expected,
        });
    }
    Ok(IntegrityCheck { took, is_complete })
}

/// Undoes a transaction that was interrupted before the database had a write-ahead log: in a restored backup, the
/// change to a write-ahead log. A connection that cannot write fails while there is such a transaction.
fn roll_back(path: &Path) -> rusqlite::Result<()> {
    let mut journal = path.to_owned().into_os_string();
    journal.push("-journal");
    if !Path::new(&journal).exists() {
        return Ok(());
    }
    let connection = Connection::open(path)?;
    connection.query_row("PRAGMA schema_version", [], |_| Ok(()))
}

/// Returns the first problem of the database, or "ok". `None` if the check takes too long.
fn find_damage(reader: &Connection) -> rusqlite::Result<Option<String>> {
    let interrupt = reader.get_interrupt_handle();
    let (done, is_done) = mpsc::channel::<()>();
    let result = thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(CHECK_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
        let result = reader.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
        drop(done);
        result
    });
    match result {
        Err(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::OperationInterrupted => Ok(None),
        result => result.map(Some),
    }
}

fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch("PRAGMA busy_timeout = 5000; PRAGMA cache_size = -4096; PRAGMA temp_store = MEMORY;")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn storage(doing: &'static str) -> impl Fn(rusqlite::Error) -> RepositoryError {
    move |source| RepositoryError::Storage {
        operation: doing,
        source: Box::new(source),
    }
}

impl Writer {
    /// Applies all changes in one transaction.
    fn apply(&mut self, changes: &[RepositoryChange]) -> Result<(), RepositoryError> {
        let transaction = self.connection.transaction().map_err(storage("begin a transaction"))?;
        for change in changes {
            apply::apply(&transaction, change)?;
        }
        let generation = schema::count_transaction(&transaction).map_err(storage("count a transaction"))?;
        transaction.commit().map_err(storage("commit"))?;
        self.generation.advance(generation);
        Ok(())
    }
}

impl Repository for SqliteRepository {
    fn apply(&self, changes: &[RepositoryChange]) -> Result<(), RepositoryError> {
        let mut writer = self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let applied = writer.apply(changes);
        let mut failure = self
            .write_failure
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        *failure = match &applied {
            Err(RepositoryError::Storage { operation, source }) => {
                Some(format!("{}: cannot {operation}: {source}", self.path.display()))
            }
            _ => None,
        };
        applied
    }

    fn write_failure(&self) -> Option<String> {
        self.write_failure
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .clone()
    }

    fn checkpoint(&self) -> Result<(), RepositoryError> {
        let mut wal = self.path.clone().into_os_string();
        wal.push("-wal");
        let mut writer = self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if fs::metadata(wal).is_ok_and(|wal| wal.len() > 0) {
            let connection = &writer.connection;
            // A reader may be at work. The rest then follows with the next call.
            connection
                .execute_batch("PRAGMA busy_timeout = 0; PRAGMA wal_checkpoint(TRUNCATE);")
                .and(connection.execute_batch("PRAGMA busy_timeout = 5000;"))
                .map_err(storage("copy the write-ahead log to the database"))?;
        }
        writer.generation.sync().map_err(|source| RepositoryError::Storage {
            operation: "store the number of transactions",
            source: Box::new(source),
        })
    }

    fn get(&self, id: EntityId) -> Result<Option<EntityRecord>, RepositoryError> {
        entities::get(&self.read(), id).map_err(storage("read an entity"))
    }

    fn find_by_key(&self, kind: EntityType, unique_key: &str) -> Result<Option<EntityRecord>, RepositoryError> {
        entities::find_by_key(&self.read(), kind, unique_key).map_err(storage("read an entity by its key"))
    }

    fn find_by_name(
        &self,
        kind: EntityType,
        tenant: Uuid,
        name: &str,
    ) -> Result<Option<EntityRecord>, RepositoryError> {
        entities::find_by_name(&self.read(), kind, tenant, name).map_err(storage("read an entity by its name"))
    }

    fn page(
        &self,
        kind: EntityType,
        selection: &Selection,
        link: &PageLink,
    ) -> Result<PageData<EntityRecord>, RepositoryError> {
        entities::page(&self.read(), kind, selection, link).map_err(storage("list entities"))
    }

    fn count(&self, kind: EntityType, selection: &Selection) -> Result<usize, RepositoryError> {
        entities::count(&self.read(), kind, selection).map_err(storage("count entities"))
    }

    fn for_each(&self, kind: EntityType, visit: &mut dyn FnMut(EntityRecord)) -> Result<(), RepositoryError> {
        entities::for_each(&self.read(), kind, visit).map_err(storage("read all entities"))
    }

    fn relations(&self, selection: &RelationSelection) -> Result<Vec<Relation>, RepositoryError> {
        values::relations(&self.read(), selection).map_err(storage("read relations"))
    }

    fn attributes(
        &self,
        entity: Uuid,
        scope: AttributeScope,
        keys: Option<&[&str]>,
    ) -> Result<Vec<Attribute>, RepositoryError> {
        values::attributes(&self.read(), entity, scope, keys).map_err(storage("read attributes"))
    }

    fn attribute_count(&self, entity: Uuid) -> Result<usize, RepositoryError> {
        values::attribute_count(&self.read(), entity).map_err(storage("count attributes"))
    }

    fn alarm(&self, id: AlarmId) -> Result<Option<Alarm>, RepositoryError> {
        alarms::get(&self.read(), id)
    }

    fn active_alarm(&self, originator: Uuid, kind: &str) -> Result<Option<Alarm>, RepositoryError> {
        alarms::active(&self.read(), originator, kind)
    }

    fn alarms_of(
        &self,
        entities: &[Uuid],
        selection: &AlarmSelection,
        link: &PageLink,
    ) -> Result<PageData<(Uuid, Alarm)>, RepositoryError> {
        alarms::page_of(&self.read(), entities, selection, link)
    }

    fn alarms(&self, selection: &AlarmSelection, link: &PageLink) -> Result<PageData<Alarm>, RepositoryError> {
        alarms::page(&self.read(), selection, link)
    }

    fn alarm_types(&self, tenant: Uuid) -> Result<Vec<String>, RepositoryError> {
        alarms::types(&self.read(), tenant).map_err(storage("read types of alarms"))
    }

    fn state(&self, state: StateKind, id: Uuid) -> Result<Option<Vec<u8>>, RepositoryError> {
        values::state(&self.read(), state, id).map_err(storage("read a state"))
    }

    fn for_each_state(&self, state: StateKind, visit: &mut dyn FnMut(Uuid, &[u8])) -> Result<(), RepositoryError> {
        values::for_each_state(&self.read(), state, visit).map_err(storage("read all states"))
    }

    fn part(&self, of: Uuid, number: u32) -> Result<Option<Vec<u8>>, RepositoryError> {
        values::part(&self.read(), of, number).map_err(storage("read a part of a package"))
    }
}
