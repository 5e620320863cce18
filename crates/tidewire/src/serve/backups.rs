//! Backups that the API makes: directories below one of the data directory, one at a time, by `tidewire backup` in a process of its own,
//! which can be ended at any point and takes no memory of the server's.
//!
//! One is made under a name that begins with a dot, and gets its own when it is whole: what a crash leaves is no backup, and goes at
//! the next start. What is in one is said in a file beside it, which is not restored.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use api::{Backup, BackupAdmin, BackupError, BackupState, FailedBackup, RunningBackup};

use crate::{backup, output};

const DIRECTORY: &str = "backups";
const BACKUPS_MAX: usize = 100;
/// Of a name that is not whole yet.
const UNFINISHED: &str = ".";
/// Of what the process says and complains about.
const SAID_BYTES_MAX: u64 = 64 << 10;

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
    child: Child,
    is_cancelled: bool,
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

    fn spawn(&self, name: &str) -> Result<Child, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
        Command::new(program)
            .arg("backup")
            .arg("--data-dir")
            .arg(&self.data_dir)
            .arg("--to")
            .arg(unfinished(&self.directory, name))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the process that makes it cannot be started: {error}"))
    }

    /// False: it is not the one that is being made.
    fn cancel(&self, name: &str) -> io::Result<bool> {
        let mut state = self.lock();
        let Some(running) = state.running.as_mut().filter(|running| running.name == name) else {
            return Ok(false);
        };
        running.is_cancelled = true;
        running.child.kill().map(|()| true)
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
        let files = |because: String| BackupError::Files { because };
        let mut child = self.spawn(&name).map_err(files)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (own, directory, making) = (self.state.clone(), self.directory.clone(), name.clone());
        let work = move || {
            let said = stdout.map(read).unwrap_or_default();
            let complaint = stderr.map(read).unwrap_or_default();
            end(&own, &directory, &making, &said, &complaint);
        };
        if let Err(error) = thread::Builder::new().name("backup".into()).spawn(work) {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(files(format!("no thread for it: {error}")));
        }
        state.running = Some(Running {
            name: name.clone(),
            started_at: SystemTime::now(),
            total_bytes,
            child,
            is_cancelled: false,
        });
        Ok(name)
    }

    fn path(&self, name: &str) -> Result<PathBuf, BackupError> {
        let known = names(&self.directory).into_iter().find(|known| known == name);
        let known = known.filter(|name| !name.starts_with(UNFINISHED));
        Ok(self.directory.join(known.ok_or(BackupError::Unknown)?))
    }

    fn remove(&self, name: &str) -> Result<(), BackupError> {
        let cancelled = self.cancel(name).map_err(|error| BackupError::Files {
            because: format!("the process that makes it cannot be ended: {error}"),
        })?;
        if cancelled {
            return Ok(());
        }
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

fn read(from: impl Read) -> String {
    let mut text = Vec::new();
    let mut from = from.take(SAID_BYTES_MAX);
    // What cannot be read is a process that has ended.
    let _ = from.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The process has closed its output.
fn end(own: &Mutex<State>, directory: &Path, name: &str, said: &str, complaint: &str) {
    let failed = {
        let mut state = lock(own);
        let Some(running) = state.running.as_mut() else { return };
        let ended = running.child.wait();
        let kept = match ended {
            _ if running.is_cancelled => Err(None),
            Ok(status) if status.success() => keep(directory, name, backup::holdings_of(said)).map_err(Some),
            Ok(_) if !complaint.trim().is_empty() => Err(Some(output::complaint_of(complaint).to_owned())),
            Ok(status) => Err(Some(format!("the process that made it ended with {status}"))),
            Err(error) => Err(Some(format!("the process that made it is gone: {error}"))),
        };
        match kept {
            Ok(()) => {
                tracing::info!(name, "a backup was made");
                (state.running, state.failure) = (None, None);
                return;
            }
            Err(failed) => failed,
        }
    };
    let _ = fs::remove_dir_all(unfinished(directory, name));
    let _ = fs::remove_file(words_file(directory, name));
    match &failed {
        Some(because) => tracing::error!(because, name, "a backup failed"),
        None => tracing::info!(name, "a backup was cancelled"),
    }
    let mut state = lock(own);
    state.running = None;
    state.failure = failed.map(|because| FailedBackup {
        name: name.to_owned(),
        at: SystemTime::now(),
        because,
    });
}

fn keep(directory: &Path, name: &str, holds: &str) -> Result<(), String> {
    fs::write(words_file(directory, name), holds)
        .and_then(|()| fs::rename(unfinished(directory, name), directory.join(name)))
        .and_then(|()| fs::File::open(directory)?.sync_all())
        .map_err(|error: io::Error| format!("{} cannot be finished: {error}", directory.join(name).display()))
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
