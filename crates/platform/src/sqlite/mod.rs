//! The embedded repository: one SQLite file in WAL mode, with one writing and several reading connections. All SQL of
//! the platform is in this directory. Calls block, so they must not run on threads that serve sockets.

mod alarms;
mod apply;
mod entities;
mod schema;
mod values;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use rusqlite::{Connection, OpenFlags};

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

#[derive(Debug)]
pub struct SqliteRepository {
    writer: Mutex<Connection>,
    readers: Vec<Mutex<Connection>>,
    next_reader: AtomicUsize,
}

#[derive(Debug)]
pub enum SqliteOpenError {
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
            SqliteOpenError::Sqlite { path, .. } => write!(f, "cannot open the entity database {}", path.display()),
            SqliteOpenError::Version { path, version } => write!(
                f,
                "the entity database {} has version {version}, but this program supports versions up to {}: use a newer program",
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
            SqliteOpenError::Version { .. } => None,
        }
    }
}

impl SqliteRepository {
    /// Opens or creates the file in this directory.
    pub fn open(directory: &Path) -> Result<SqliteRepository, SqliteOpenError> {
        let path = directory.join(FILE_NAME);
        let wrap = |source| SqliteOpenError::Sqlite {
            path: path.clone(),
            source,
        };
        let mut writer = Connection::open(&path).map_err(wrap)?;
        schema::configure(&writer).map_err(wrap)?;
        match schema::version(&writer).map_err(wrap)? {
            0 => schema::create(&mut writer).map_err(wrap)?,
            version if version > schema::VERSION => return Err(SqliteOpenError::Version { path, version }),
            version => schema::migrate(&mut writer, version).map_err(wrap)?,
        }
        let readers = (0..READERS).map(|_| open_reader(&path).map(Mutex::new));
        Ok(SqliteRepository {
            writer: Mutex::new(writer),
            readers: readers.collect::<Result<_, _>>().map_err(wrap)?,
            next_reader: AtomicUsize::new(0),
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

impl Repository for SqliteRepository {
    fn apply(&self, changes: &[RepositoryChange]) -> Result<(), RepositoryError> {
        let mut writer = self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let transaction = writer.transaction().map_err(storage("begin a transaction"))?;
        for change in changes {
            apply::apply(&transaction, change)?;
        }
        transaction.commit().map_err(storage("commit"))
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
