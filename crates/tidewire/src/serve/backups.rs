//! Backups through the API: directories below `backups/` of the data directory, one at a time. `tidewire backup` makes
//! them in a process of its own, which can be stopped at any time and uses no memory of the server.
//!
//! An unfinished backup has a name that begins with a dot, and is renamed when it is complete. After a crash, the next
//! start deletes unfinished ones. A file next to each backup describes its contents; that file is not restored.
//!
//! For a restore, `tidewire restore` copies and verifies the backup in the same way. The next start does the rest
//! ([`switch`]).

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use api::{
    Backup, BackupAdmin, BackupAdminError, Backups, FailedBackup, ReplacedData, Restore, RestoreOutcome, RestoreState,
    RunningBackup,
};

use web::unix_ms;

use super::restart::RestartRequest;
use crate::backup::switch::RestoreIntent;
use crate::backup::{TIED, switch};
use crate::{backup, output};

const DIRECTORY: &str = "backups";
const BACKUPS_MAX: usize = 100;
/// Maximum number of directories of replaced data.
const REPLACED_DATA_MAX: usize = 10;
/// Prefix of the name of an unfinished backup.
const UNFINISHED: &str = ".";
/// Maximum size of the output of the process.
const SAID_BYTES_MAX: u64 = 64 << 10;

pub struct NodeBackups {
    data_dir: PathBuf,
    directory: PathBuf,
    /// Free disk space that a backup must not use.
    reserve_bytes: u64,
    state: Arc<Mutex<BackupsState>>,
    restart: RestartRequest,
}

#[derive(Default)]
struct BackupsState {
    running: Option<BackupProcess>,
    failure: Option<FailedBackup>,
    /// Directory of the copy that will be restored.
    preparing: Option<BackupProcess>,
}

struct BackupProcess {
    name: String,
    started_at: SystemTime,
    total_bytes: u64,
    child: Child,
    is_cancelled: bool,
}

impl NodeBackups {
    pub fn new(data_dir: &Path, reserve_bytes: u64, restart: RestartRequest) -> NodeBackups {
        let backups = NodeBackups {
            data_dir: data_dir.to_owned(),
            directory: data_dir.join(DIRECTORY),
            reserve_bytes,
            state: Arc::default(),
            restart,
        };
        // An unfinished copy. A copy that will be restored has an intent.
        let left_over = switch::intent(data_dir).map(|intent| intent.is_none());
        if let Err(error) = left_over.and_then(|is| if is { switch::remove_copy(data_dir) } else { Ok(()) }) {
            tracing::warn!(error, "cannot delete the files of an unfinished restore");
        }
        let replaced_data = data_dir.join(switch::REPLACED_DATA);
        for directory in [&backups.directory, &replaced_data] {
            remove_unfinished(directory);
        }
        backups
    }

    /// Returns the estimated size of a backup.
    fn total_bytes(&self) -> u64 {
        let beside = [DIRECTORY, switch::REPLACED_DATA, switch::DIRECTORY];
        size(&self.data_dir, &beside.map(|name| self.data_dir.join(name)))
    }

    fn check_space(&self, needed_bytes: u64) -> Result<(), BackupAdminError> {
        let space = rustix::fs::statvfs(&self.data_dir).map_err(|error| BackupAdminError::Files {
            reason: format!("{}: {error}", self.data_dir.display()),
        })?;
        let free_bytes = (space.f_bavail * space.f_frsize).saturating_sub(self.reserve_bytes);
        match needed_bytes > free_bytes {
            true => Err(BackupAdminError::Space {
                needed_bytes,
                free_bytes,
            }),
            false => Ok(()),
        }
    }

    /// Starts a process that ends when its output is closed or this process ends.
    fn spawn(command: &str, data_dir: &Path, option: &str, other: &Path) -> Result<Child, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find the program file of the server: {error}"))?;
        Command::new(program)
            .arg(command)
            .arg("--data-dir")
            .arg(data_dir)
            .arg(option)
            .arg(other)
            .arg(TIED)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the backup process: {error}"))
    }

    /// Reads the output of the process on a thread, and then passes it to `end`.
    fn follow(child: &mut Child, end: impl FnOnce(&str, &str) + Send + 'static) -> Result<(), BackupAdminError> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let work = move || {
            let said = stdout.map(read).unwrap_or_default();
            let complaint = stderr.map(read).unwrap_or_default();
            end(&said, &complaint);
            drop(stdin);
        };
        thread::Builder::new()
            .name("backup".into())
            .spawn(work)
            .map(drop)
            .map_err(|error| {
                let _ = child.kill().and_then(|()| child.wait());
                BackupAdminError::Files {
                    reason: format!("cannot start a thread: {error}"),
                }
            })
    }

    fn replaced_data(&self) -> Vec<ReplacedData> {
        let directory = self.data_dir.join(switch::REPLACED_DATA);
        let whole = names(&directory)
            .into_iter()
            .filter(|name| !name.starts_with(UNFINISHED));
        let mut all: Vec<ReplacedData> = whole
            .map(|name| ReplacedData {
                at_unix_ms: modified(&directory.join(&name)),
                bytes: size(&directory.join(&name), &[]),
                name,
            })
            .collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.at_unix_ms));
        all
    }

    /// Returns the restore that is being prepared.
    fn restoring(&self) -> Result<Option<Restore>, BackupAdminError> {
        let preparing = self.lock().preparing.as_ref().map(BackupProcess::view);
        if let Some(running) = preparing {
            return Ok(Some(Restore {
                name: running.name,
                state: RestoreState::Preparing,
                since_unix_ms: running.started_at_unix_ms,
                copied_bytes: size(&switch::staged(&self.data_dir), &[]),
                total_bytes: running.total_bytes,
            }));
        }
        let intent = switch::intent(&self.data_dir).map_err(files)?;
        let prepared = intent.filter(RestoreIntent::is_prepared);
        Ok(prepared.map(|intent| Restore {
            name: intent.backup,
            state: RestoreState::Prepared,
            since_unix_ms: intent.prepared_unix_ms,
            copied_bytes: 0,
            total_bytes: 0,
        }))
    }

    /// Returns why the server must not restart only for its configuration.
    pub fn check_restart(&self) -> Result<(), String> {
        let state = self.lock();
        let reason = if state.running.is_some() {
            "a backup is in progress, and a restart would stop it"
        } else if state.preparing.is_some() {
            "the preparation of a restore is in progress, and a restart would stop it"
        } else if self.prepared().is_ok() {
            "a backup will be restored at the next start: restart with restore, or cancel the restore first"
        } else {
            return Ok(());
        };
        Err(reason.to_owned())
    }

    /// Returns the backup that the next start restores.
    fn prepared(&self) -> Result<RestoreIntent, BackupAdminError> {
        let intent = switch::intent(&self.data_dir).map_err(files)?;
        let intent = intent.ok_or(BackupAdminError::NotPrepared)?;
        match intent.is_prepared() {
            true => Ok(intent),
            false => Err(BackupAdminError::RestoreUnconfirmed),
        }
    }

    /// Returns `false` if this backup is not in progress.
    fn cancel(&self, name: &str) -> io::Result<bool> {
        let mut state = self.lock();
        let Some(running) = state.running.as_mut().filter(|running| running.name == name) else {
            return Ok(false);
        };
        running.is_cancelled = true;
        running.child.kill().map(|()| true)
    }

    fn lock(&self) -> MutexGuard<'_, BackupsState> {
        lock(&self.state)
    }
}

impl BackupProcess {
    fn view(&self) -> RunningBackup {
        RunningBackup {
            name: self.name.clone(),
            started_at_unix_ms: unix_ms(self.started_at),
            copied_bytes: 0,
            total_bytes: self.total_bytes,
        }
    }
}

fn files(reason: String) -> BackupAdminError {
    BackupAdminError::Files { reason }
}

/// Deletes what a crash has left.
fn remove_unfinished(directory: &Path) {
    for name in names(directory).iter().filter(|name| name.starts_with(UNFINISHED)) {
        if let Err(error) = fs::remove_dir_all(directory.join(name)) {
            tracing::warn!(%error, name, "cannot delete an unfinished backup");
        }
    }
}

/// Renames the backup first, so that a partly deleted one does not count as complete.
fn remove_backup(directory: &Path, name: &str) -> Result<(), BackupAdminError> {
    let (path, doomed) = (directory.join(name), unfinished_path(directory, name));
    let removed = fs::rename(&path, &doomed).and_then(|()| fs::remove_dir_all(&doomed));
    removed.map_err(|error| files(format!("cannot remove {}: {error}", path.display())))
}

fn lock(state: &Mutex<BackupsState>) -> MutexGuard<'_, BackupsState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BackupAdmin for NodeBackups {
    fn state(&self) -> Result<Backups, BackupAdminError> {
        let (running, failure) = {
            let state = self.lock();
            (state.running.as_ref().map(BackupProcess::view), state.failure.clone())
        };
        let finished = names(&self.directory)
            .into_iter()
            .filter(|name| !name.starts_with(UNFINISHED));
        let mut items: Vec<Backup> = finished.map(|name| describe(&self.directory, name)).collect();
        items.sort_by_key(|one| std::cmp::Reverse(one.created_at_unix_ms));
        let directory = fs::canonicalize(&self.directory).unwrap_or_else(|_| self.directory.clone());
        Ok(Backups {
            directory: directory.display().to_string(),
            running: running.map(|running| RunningBackup {
                copied_bytes: size(&unfinished_path(&self.directory, &running.name), &[]),
                ..running
            }),
            failure,
            items,
            restore: self.restoring()?,
            restored: switch::outcome(&self.data_dir)
                .map_err(files)?
                .map(|outcome| RestoreOutcome {
                    name: outcome.backup,
                    at_unix_ms: outcome.at_unix_ms,
                    failure: outcome.failure,
                    previous_data: outcome.previous_data,
                }),
            replaced_data: self.replaced_data(),
        })
    }

    fn start(&self) -> Result<String, BackupAdminError> {
        let mut state = self.lock();
        if state.running.is_some() {
            return Err(BackupAdminError::Running);
        }
        if names(&self.directory).len() >= BACKUPS_MAX {
            return Err(BackupAdminError::TooMany { max: BACKUPS_MAX });
        }
        let total_bytes = self.total_bytes();
        // Full segments of the journal are linked, not copied.
        let journal_bytes = size(&self.data_dir.join(journal::DIRECTORY_NAME), &[]);
        self.check_space(total_bytes - journal_bytes.min(total_bytes))?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|error| BackupAdminError::Files {
            reason: format!("cannot create {}: {error}", self.directory.display()),
        })?;
        let now = jiff::Timestamp::now().strftime("tidewire-%Y%m%d-%H%M%S");
        let name = unused_name(&self.directory, now.to_string());
        let to = unfinished_path(&self.directory, &name);
        let mut child = NodeBackups::spawn("backup", &self.data_dir, "--to", &to).map_err(files)?;
        let (own, directory, making) = (self.state.clone(), self.directory.clone(), name.clone());
        NodeBackups::follow(&mut child, move |said, complaint| {
            end(&own, &directory, &making, said, complaint)
        })?;
        state.running = Some(BackupProcess {
            name: name.clone(),
            started_at: SystemTime::now(),
            total_bytes,
            child,
            is_cancelled: false,
        });
        Ok(name)
    }

    fn path(&self, name: &str) -> Result<PathBuf, BackupAdminError> {
        let known = names(&self.directory).into_iter().find(|known| known == name);
        let known = known.filter(|name| !name.starts_with(UNFINISHED));
        Ok(self.directory.join(known.ok_or(BackupAdminError::Unknown)?))
    }

    fn remove(&self, name: &str) -> Result<(), BackupAdminError> {
        let cancelled = self.cancel(name).map_err(|error| BackupAdminError::Files {
            reason: format!("cannot stop the backup process: {error}"),
        })?;
        if cancelled {
            return Ok(());
        }
        self.path(name)?;
        let removed = remove_backup(&self.directory, name);
        let _ = fs::remove_file(words_file(&self.directory, name));
        removed
    }

    fn restore(&self, name: &str) -> Result<(), BackupAdminError> {
        let from = self.path(name)?;
        let replaced_data = self.replaced_data().len();
        let mut state = self.lock();
        if state.preparing.is_some() || switch::intent(&self.data_dir).map_err(files)?.is_some() {
            return Err(BackupAdminError::Restoring);
        }
        if replaced_data >= REPLACED_DATA_MAX {
            return Err(BackupAdminError::TooMuchReplacedData { max: REPLACED_DATA_MAX });
        }
        let total_bytes = size(&from, &[]);
        // Full segments of the journal are linked, not copied.
        self.check_space(total_bytes - size(&from.join(journal::DIRECTORY_NAME), &[]).min(total_bytes))?;
        switch::remove_copy(&self.data_dir).map_err(files)?;
        switch::make_directory(&self.data_dir)
            .map_err(|error| files(format!("cannot create a directory for the copy: {error}")))?;
        let mut child =
            NodeBackups::spawn("restore", &switch::staged(&self.data_dir), "--from", &from).map_err(files)?;
        let (own, data_dir, preparing) = (self.state.clone(), self.data_dir.clone(), name.to_owned());
        NodeBackups::follow(&mut child, move |_, complaint| {
            end_preparing(&own, &data_dir, &preparing, complaint)
        })?;
        state.preparing = Some(BackupProcess {
            name: name.to_owned(),
            started_at: SystemTime::now(),
            total_bytes,
            child,
            is_cancelled: false,
        });
        Ok(())
    }

    fn cancel_restore(&self) -> Result<(), BackupAdminError> {
        let mut state = self.lock();
        if let Some(preparing) = state.preparing.as_mut() {
            preparing.is_cancelled = true;
            let killed = preparing.child.kill();
            return killed.map_err(|error| files(format!("cannot stop the restore process: {error}")));
        }
        let intent = self.prepared()?;
        switch::cancel(&self.data_dir).map_err(files)?;
        tracing::info!(backup = intent.backup, "the restore was cancelled");
        Ok(())
    }

    fn restore_now(&self) -> Result<(), BackupAdminError> {
        let state = self.lock();
        if state.running.is_some() {
            return Err(BackupAdminError::Running);
        }
        let intent = self.prepared()?;
        tracing::warn!(backup = intent.backup, "restarting to restore a backup");
        self.restart.request().map_err(files)
    }

    fn remove_replaced_data(&self, name: &str) -> Result<(), BackupAdminError> {
        let known = self.replaced_data().into_iter().find(|one| one.name == name);
        let known = known.ok_or(BackupAdminError::Unknown)?;
        let intent = switch::intent(&self.data_dir).map_err(files)?;
        if intent.is_some_and(|intent| intent.needs_old_data(&known.name)) {
            return Err(BackupAdminError::RestoreUnconfirmed);
        }
        remove_backup(&self.data_dir.join(switch::REPLACED_DATA), &known.name)
    }
}

/// Called when the process has closed its output.
fn end_preparing(own: &Mutex<BackupsState>, data_dir: &Path, name: &str, complaint: &str) {
    // Holds the lock until the intent is on the disk, so that a cancellation comes either before or after.
    let mut state = lock(own);
    let Some(mut preparing) = state.preparing.take() else {
        return;
    };
    let ended = preparing.child.wait();
    let prepared = match ended {
        _ if preparing.is_cancelled => Err(None),
        Ok(status) if status.success() => switch::prepare(data_dir, name).map_err(Some),
        Ok(_) if !complaint.trim().is_empty() => Err(Some(output::error_output_of(complaint).to_owned())),
        Ok(status) => Err(Some(format!("the restore process ended with {status}"))),
        Err(error) => Err(Some(format!("the restore process is missing: {error}"))),
    };
    let Err(failed) = prepared else {
        tracing::warn!(backup = name, "the next start restores this backup");
        return;
    };
    if let Err(error) = switch::cancel(data_dir) {
        tracing::warn!(error, "cannot delete the prepared restore");
    }
    let Some(reason) = failed else {
        return tracing::info!(backup = name, "the restore was cancelled");
    };
    tracing::error!(reason, backup = name, "the backup cannot be restored");
    if let Err(error) = switch::fail(data_dir, name, &reason) {
        tracing::warn!(error, "could not record that this backup is not restorable");
    }
}

fn read(from: impl Read) -> String {
    let mut text = Vec::new();
    let mut from = from.take(SAID_BYTES_MAX);
    // A read error means that the process has ended.
    let _ = from.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Called when the process has closed its output.
fn end(own: &Mutex<BackupsState>, directory: &Path, name: &str, said: &str, complaint: &str) {
    let failed = {
        let mut state = lock(own);
        let Some(running) = state.running.as_mut() else { return };
        let ended = running.child.wait();
        let result = match ended {
            _ if running.is_cancelled => Err(None),
            Ok(status) if status.success() => keep(directory, name, backup::summary_line(said)).map_err(Some),
            Ok(_) if !complaint.trim().is_empty() => Err(Some(output::error_output_of(complaint).to_owned())),
            Ok(status) => Err(Some(format!("the backup process ended with {status}"))),
            Err(error) => Err(Some(format!("the backup process is missing: {error}"))),
        };
        match result {
            Ok(()) => {
                tracing::info!(name, "a backup was made");
                (state.running, state.failure) = (None, None);
                return;
            }
            Err(failed) => failed,
        }
    };
    let _ = fs::remove_dir_all(unfinished_path(directory, name));
    let _ = fs::remove_file(words_file(directory, name));
    match &failed {
        Some(reason) => tracing::error!(reason, name, "a backup failed"),
        None => tracing::info!(name, "a backup was cancelled"),
    }
    let mut state = lock(own);
    state.running = None;
    state.failure = failed.map(|reason| FailedBackup {
        name: name.to_owned(),
        at_unix_ms: unix_ms(SystemTime::now()),
        reason,
    });
}

fn keep(directory: &Path, name: &str, holds: &str) -> Result<(), String> {
    fs::write(words_file(directory, name), holds)
        .and_then(|()| fs::rename(unfinished_path(directory, name), directory.join(name)))
        .and_then(|()| fs::File::open(directory)?.sync_all())
        .map_err(|error: io::Error| format!("cannot finish {}: {error}", directory.join(name).display()))
}

fn unfinished_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{UNFINISHED}{name}"))
}

fn words_file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.txt"))
}

/// Returns the name, which contains the time in seconds. A suffix distinguishes names of the same second.
pub(super) fn unused_name(directory: &Path, base: String) -> String {
    let is_free = |name: &String| !directory.join(name).exists();
    let numbered = (2..).map(|number| format!("{base}-{number}"));
    std::iter::once(base.clone())
        .chain(numbered)
        .find(is_free)
        .unwrap_or(base)
}

fn describe(directory: &Path, name: String) -> Backup {
    let path = directory.join(&name);
    let words = words_file(directory, &name);
    Backup {
        created_at_unix_ms: modified(if words.exists() { &words } else { &path }),
        bytes: size(&path, &[]),
        contents: fs::read_to_string(words_file(directory, &name)).unwrap_or_default(),
        name,
    }
}

fn modified(path: &Path) -> u64 {
    let modified = fs::metadata(path).and_then(|there| there.modified());
    modified.map_or(0, unix_ms)
}

/// Returns the names of the directories in a directory.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Returns the size of all files below. Unreadable files do not count.
fn size(directory: &Path, without: &[PathBuf]) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(there) if there.is_dir() && !without.contains(&entry.path()) => size(&entry.path(), without),
        Ok(there) if there.is_file() => there.len(),
        _ => 0,
    });
    sizes.sum()
}
