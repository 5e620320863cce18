//! Backups that the API makes: directories below one of the data directory, each as `tidewire backup` makes them, one at a time.
//!
//! One is made under a name that begins with a dot, and gets its own when it is whole: what a crash leaves is no backup, and goes at
//! the next start. What is in one is said in a file beside it, which is not restored.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use api::{Backup, BackupAdmin, BackupError, BackupState, FailedBackup, RunningBackup};

use crate::backup;

const DIRECTORY: &str = "backups";
const BACKUPS_MAX: usize = 100;
/// Of a name that is not whole yet.
const UNFINISHED: &str = ".";

pub struct Backups {
    data_dir: PathBuf,
    directory: PathBuf,
    /// Of the disk that is left alone.
    reserve_bytes: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    failure: Option<FailedBackup>,
}

struct Running {
    name: String,
    started_at: SystemTime,
    total_bytes: u64,
}

impl Backups {
    pub fn new(data_dir: &Path, reserve_bytes: u64) -> Backups {
        let backups = Backups {
            data_dir: data_dir.to_owned(),
            directory: data_dir.join(DIRECTORY),
            reserve_bytes,
            state: Arc::default(),
        };
        for name in names(&backups.directory)
            .iter()
            .filter(|name| name.starts_with(UNFINISHED))
        {
            if let Err(error) = fs::remove_dir_all(backups.directory.join(name)) {
                tracing::warn!(%error, name, "a backup that was not finished stays");
            }
        }
        backups
    }

    /// What a copy would hold, as far as it can be told.
    fn total_bytes(&self) -> u64 {
        size(&self.data_dir, &[self.data_dir.join(DIRECTORY)])
    }

    fn check_space(&self, needed_bytes: u64) -> Result<(), BackupError> {
        let space = rustix::fs::statvfs(&self.data_dir).map_err(|error| BackupError::Files {
            because: format!("{}: {error}", self.data_dir.display()),
        })?;
        let free_bytes = (space.f_bavail * space.f_frsize).saturating_sub(self.reserve_bytes);
        match needed_bytes > free_bytes {
            true => Err(BackupError::Space {
                needed_bytes,
                free_bytes,
            }),
            false => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BackupAdmin for Backups {
    fn state(&self) -> Result<BackupState, BackupError> {
        let (running, failure) = {
            let state = self.lock();
            let running = state.running.as_ref();
            let running = running.map(|one| (one.name.clone(), one.started_at, one.total_bytes));
            (running, state.failure.clone())
        };
        let finished = names(&self.directory)
            .into_iter()
            .filter(|name| !name.starts_with(UNFINISHED));
        let mut finished: Vec<Backup> = finished.map(|name| describe(&self.directory, name)).collect();
        finished.sort_by_key(|one| std::cmp::Reverse(one.made_at));
        Ok(BackupState {
            directory: fs::canonicalize(&self.directory).unwrap_or_else(|_| self.directory.clone()),
            running: running.map(|(name, started_at, total_bytes)| RunningBackup {
                copied_bytes: size(&unfinished(&self.directory, &name), &[]),
                name,
                started_at,
                total_bytes,
            }),
            failure,
            finished,
        })
    }

    fn start(&self) -> Result<String, BackupError> {
        let mut state = self.lock();
        if state.running.is_some() {
            return Err(BackupError::Running);
        }
        if names(&self.directory).len() >= BACKUPS_MAX {
            return Err(BackupError::TooMany { max: BACKUPS_MAX });
        }
        let total_bytes = self.total_bytes();
        // Full segments of the journal are linked, not copied.
        let journal_bytes = size(&self.data_dir.join(journal::DIRECTORY_NAME), &[]);
        self.check_space(total_bytes - journal_bytes.min(total_bytes))?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|error| BackupError::Files {
            because: format!("{} cannot be made: {error}", self.directory.display()),
        })?;
        let name = unused_name(&self.directory);
        state.running = Some(Running {
            name: name.clone(),
            started_at: SystemTime::now(),
            total_bytes,
        });
        let (own, data_dir, directory) = (self.state.clone(), self.data_dir.clone(), self.directory.clone());
        let making = name.clone();
        let work = move || {
            let result = make(&data_dir, &directory, &making);
            let mut state = lock(&own);
            state.running = None;
            state.failure = match result {
                Ok(()) => {
                    tracing::info!(name = making, "a backup was made");
                    None
                }
                Err(because) => {
                    tracing::error!(because, name = making, "a backup failed");
                    Some(FailedBackup {
                        name: making,
                        at: SystemTime::now(),
                        because,
                    })
                }
            };
        };
        if let Err(error) = thread::Builder::new().name("backup".into()).spawn(work) {
            state.running = None;
            return Err(BackupError::Files {
                because: format!("no thread for it: {error}"),
            });
        }
        Ok(name)
    }

    fn path(&self, name: &str) -> Result<PathBuf, BackupError> {
        let known = names(&self.directory).into_iter().find(|known| known == name);
        let known = known.filter(|name| !name.starts_with(UNFINISHED));
        Ok(self.directory.join(known.ok_or(BackupError::Unknown)?))
    }

    fn remove(&self, name: &str) -> Result<(), BackupError> {
        let path = self.path(name)?;
        // One that is gone half is no backup any more.
        let doomed = unfinished(&self.directory, name);
        let removed = fs::rename(&path, &doomed).and_then(|()| fs::remove_dir_all(&doomed));
        let _ = fs::remove_file(words_file(&self.directory, name));
        removed.map_err(|error| BackupError::Files {
            because: format!("{} cannot be removed: {error}", path.display()),
        })
    }
}

fn make(data_dir: &Path, directory: &Path, name: &str) -> Result<(), String> {
    let unfinished = unfinished(directory, name);
    let kept = backup::back_up(data_dir, &unfinished).and_then(|copied| {
        fs::write(words_file(directory, name), copied.holdings.to_string())
            .and_then(|()| fs::rename(&unfinished, directory.join(name)))
            .and_then(|()| fs::File::open(directory)?.sync_all())
            .map_err(|error: io::Error| format!("{} cannot be finished: {error}", directory.join(name).display()))
    });
    if kept.is_err() {
        let _ = fs::remove_dir_all(&unfinished);
        let _ = fs::remove_file(words_file(directory, name));
    }
    kept
}

fn unfinished(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{UNFINISHED}{name}"))
}

fn words_file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.txt"))
}

/// By the time, to the second; two within one are told apart.
fn unused_name(directory: &Path) -> String {
    let base = chrono::Utc::now().format("tidewire-%Y%m%d-%H%M%S").to_string();
    let is_free = |name: &String| !directory.join(name).exists();
    let numbered = (2..).map(|number| format!("{base}-{number}"));
    std::iter::once(base.clone())
        .chain(numbered)
        .find(is_free)
        .unwrap_or(base)
}

fn describe(directory: &Path, name: String) -> Backup {
    let path = directory.join(&name);
    let made_at = fs::metadata(words_file(directory, &name)).or_else(|_| fs::metadata(&path));
    Backup {
        made_at: made_at
            .and_then(|there| there.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH),
        bytes: size(&path, &[]),
        holds: fs::read_to_string(words_file(directory, &name)).unwrap_or_default(),
        name,
    }
}

/// Of the directories in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Bytes of all files below; what cannot be read is not counted.
fn size(directory: &Path, without: &[PathBuf]) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(there) if there.is_dir() && !without.contains(&entry.path()) => size(&entry.path(), without),
        Ok(there) if there.is_file() => there.len(),
        _ => 0,
    });
    sizes.sum()
}
