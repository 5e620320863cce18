//! Backups that the API makes: directories below one of the data directory, one at a time, by `tidewire backup` in a process of its own,
//! which can be ended at any point and takes no memory of the server's.
//!
//! One is made under a name that begins with a dot, and gets its own when it is whole: what a crash leaves is no backup, and goes at
//! the next start. What is in one is said in a file beside it, which is not restored.
//!
//! One that is to be restored is copied beside the data, by `tidewire restore` in the same way, which verifies it; the next start does the
//! rest ([`switch`]).

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use api::{
    Backup, BackupAdmin, BackupError, BackupState, FailedBackup, RestoreOutcome, Restoring, RunningBackup, SetAside,
};

use super::restart::Restart;
use crate::backup::switch::Intent;
use crate::backup::{TIED, switch};
use crate::{backup, output};

const DIRECTORY: &str = "backups";
const BACKUPS_MAX: usize = 100;
/// Data of before restores.
const SET_ASIDE_MAX: usize = 10;
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
    restart: Restart,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    failure: Option<FailedBackup>,
    /// The copy that will be restored.
    preparing: Option<Running>,
}

struct Running {
    name: String,
    started_at: SystemTime,
    total_bytes: u64,
    child: Child,
    is_cancelled: bool,
}

impl Backups {
    pub fn new(data_dir: &Path, reserve_bytes: u64, restart: Restart) -> Backups {
        let backups = Backups {
            data_dir: data_dir.to_owned(),
            directory: data_dir.join(DIRECTORY),
            reserve_bytes,
            state: Arc::default(),
            restart,
        };
        // A copy that was never finished. One that is to be restored says so.
        let left_over = switch::intent(data_dir).map(|intent| intent.is_none());
        if let Err(error) = left_over.and_then(|is| if is { switch::remove_copy(data_dir) } else { Ok(()) }) {
            tracing::warn!(error, "what a restore that was not finished has left stays");
        }
        let set_aside = data_dir.join(switch::SET_ASIDE);
        for directory in [&backups.directory, &set_aside] {
            remove_unfinished(directory);
        }
        backups
    }

    /// What a copy would hold, as far as it can be told.
    fn total_bytes(&self) -> u64 {
        let beside = [DIRECTORY, switch::SET_ASIDE, switch::DIRECTORY];
        size(&self.data_dir, &beside.map(|name| self.data_dir.join(name)))
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

    /// One that ends with its output, and with this process.
    fn spawn(command: &str, data_dir: &Path, option: &str, other: &Path) -> Result<Child, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
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
            .map_err(|error| format!("the process that makes it cannot be started: {error}"))
    }

    /// Reads what the process says on a thread of its own, which then calls `end` with that.
    fn follow(child: &mut Child, end: impl FnOnce(&str, &str) + Send + 'static) -> Result<(), BackupError> {
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
                BackupError::Files {
                    because: format!("no thread for it: {error}"),
                }
            })
    }

    fn set_aside(&self) -> Vec<SetAside> {
        let directory = self.data_dir.join(switch::SET_ASIDE);
        let whole = names(&directory)
            .into_iter()
            .filter(|name| !name.starts_with(UNFINISHED));
        let mut all: Vec<SetAside> = whole
            .map(|name| SetAside {
                at: modified(&directory.join(&name)),
                bytes: size(&directory.join(&name), &[]),
                name,
            })
            .collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.at));
        all
    }

    /// What is on its way to be restored.
    fn restoring(&self) -> Result<Option<Restoring>, BackupError> {
        let preparing = self.lock().preparing.as_ref().map(Running::view);
        if let Some(mut running) = preparing {
            running.copied_bytes = size(&switch::staged(&self.data_dir), &[]);
            return Ok(Some(Restoring::Preparing(running)));
        }
        let intent = switch::intent(&self.data_dir).map_err(files)?;
        let prepared = intent.filter(Intent::is_prepared);
        Ok(prepared.map(|intent| Restoring::Prepared {
            name: intent.backup,
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(intent.prepared_unix_ms),
        }))
    }

    /// Why the server is not to start anew just for its configuration.
    pub fn check_restart(&self) -> Result<(), String> {
        let state = self.lock();
        let because = if state.running.is_some() {
            "a backup is being made, which would end with it"
        } else if state.preparing.is_some() {
            "a backup is being prepared to be restored, which would end with it"
        } else if self.prepared().is_ok() {
            "a backup is to be restored at the next start: restart and restore, or cancel that first"
        } else {
            return Ok(());
        };
        Err(because.to_owned())
    }

    /// What the next start restores, as long as it has not begun.
    fn prepared(&self) -> Result<Intent, BackupError> {
        let intent = switch::intent(&self.data_dir).map_err(files)?;
        let intent = intent.ok_or(BackupError::NotPrepared)?;
        match intent.is_prepared() {
            true => Ok(intent),
            false => Err(BackupError::OnTrial),
        }
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

impl Running {
    fn view(&self) -> RunningBackup {
        RunningBackup {
            name: self.name.clone(),
            started_at: self.started_at,
            copied_bytes: 0,
            total_bytes: self.total_bytes,
        }
    }
}

fn files(because: String) -> BackupError {
    BackupError::Files { because }
}

/// What a crash has left.
fn remove_unfinished(directory: &Path) {
    for name in names(directory).iter().filter(|name| name.starts_with(UNFINISHED)) {
        if let Err(error) = fs::remove_dir_all(directory.join(name)) {
            tracing::warn!(%error, name, "what was not finished stays");
        }
    }
}

/// One that is gone half is none any more.
fn remove_whole(directory: &Path, name: &str) -> Result<(), BackupError> {
    let (path, doomed) = (directory.join(name), unfinished(directory, name));
    let removed = fs::rename(&path, &doomed).and_then(|()| fs::remove_dir_all(&doomed));
    removed.map_err(|error| files(format!("{} cannot be removed: {error}", path.display())))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BackupAdmin for Backups {
    fn state(&self) -> Result<BackupState, BackupError> {
        let (running, failure) = {
            let state = self.lock();
            (state.running.as_ref().map(Running::view), state.failure.clone())
        };
        let finished = names(&self.directory)
            .into_iter()
            .filter(|name| !name.starts_with(UNFINISHED));
        let mut finished: Vec<Backup> = finished.map(|name| describe(&self.directory, name)).collect();
        finished.sort_by_key(|one| std::cmp::Reverse(one.made_at));
        Ok(BackupState {
            directory: fs::canonicalize(&self.directory).unwrap_or_else(|_| self.directory.clone()),
            running: running.map(|running| RunningBackup {
                copied_bytes: size(&unfinished(&self.directory, &running.name), &[]),
                ..running
            }),
            failure,
            finished,
            restoring: self.restoring()?,
            restored: switch::outcome(&self.data_dir)
                .map_err(files)?
                .map(|outcome| RestoreOutcome {
                    name: outcome.backup,
                    at: SystemTime::UNIX_EPOCH + Duration::from_millis(outcome.at_unix_ms),
                    failure: outcome.failure,
                    set_aside: outcome.set_aside,
                }),
            set_aside: self.set_aside(),
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
        let to = unfinished(&self.directory, &name);
        let mut child = Backups::spawn("backup", &self.data_dir, "--to", &to).map_err(files)?;
        let (own, directory, making) = (self.state.clone(), self.directory.clone(), name.clone());
        Backups::follow(&mut child, move |said, complaint| {
            end(&own, &directory, &making, said, complaint)
        })?;
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
        self.path(name)?;
        let removed = remove_whole(&self.directory, name);
        let _ = fs::remove_file(words_file(&self.directory, name));
        removed
    }

    fn restore(&self, name: &str) -> Result<(), BackupError> {
        let from = self.path(name)?;
        let set_aside = self.set_aside().len();
        let mut state = self.lock();
        if state.preparing.is_some() || switch::intent(&self.data_dir).map_err(files)?.is_some() {
            return Err(BackupError::Restoring);
        }
        if set_aside >= SET_ASIDE_MAX {
            return Err(BackupError::TooMuchSetAside { max: SET_ASIDE_MAX });
        }
        let total_bytes = size(&from, &[]);
        // Full segments of the journal are linked, not copied.
        self.check_space(total_bytes - size(&from.join(journal::DIRECTORY_NAME), &[]).min(total_bytes))?;
        switch::remove_copy(&self.data_dir).map_err(files)?;
        switch::make_directory(&self.data_dir).map_err(|error| files(format!("no place for a copy: {error}")))?;
        let mut child = Backups::spawn("restore", &switch::staged(&self.data_dir), "--from", &from).map_err(files)?;
        let (own, data_dir, preparing) = (self.state.clone(), self.data_dir.clone(), name.to_owned());
        Backups::follow(&mut child, move |_, complaint| {
            end_preparing(&own, &data_dir, &preparing, complaint)
        })?;
        state.preparing = Some(Running {
            name: name.to_owned(),
            started_at: SystemTime::now(),
            total_bytes,
            child,
            is_cancelled: false,
        });
        Ok(())
    }

    fn cancel_restore(&self) -> Result<(), BackupError> {
        let mut state = self.lock();
        if let Some(preparing) = state.preparing.as_mut() {
            preparing.is_cancelled = true;
            let killed = preparing.child.kill();
            return killed.map_err(|error| files(format!("the process that prepares it cannot be ended: {error}")));
        }
        let intent = self.prepared()?;
        switch::forget(&self.data_dir).map_err(files)?;
        tracing::info!(backup = intent.backup, "the backup will not be restored");
        Ok(())
    }

    fn restore_now(&self) -> Result<(), BackupError> {
        let state = self.lock();
        if state.running.is_some() {
            return Err(BackupError::Running);
        }
        let intent = self.prepared()?;
        tracing::warn!(backup = intent.backup, "starting anew, to restore a backup");
        self.restart.ask().map_err(files)
    }

    fn remove_set_aside(&self, name: &str) -> Result<(), BackupError> {
        let known = self.set_aside().into_iter().find(|one| one.name == name);
        let known = known.ok_or(BackupError::Unknown)?;
        let intent = switch::intent(&self.data_dir).map_err(files)?;
        if intent.is_some_and(|intent| intent.needs(&known.name)) {
            return Err(BackupError::OnTrial);
        }
        remove_whole(&self.data_dir.join(switch::SET_ASIDE), &known.name)
    }
}

/// The process has closed its output.
fn end_preparing(own: &Mutex<State>, data_dir: &Path, name: &str, complaint: &str) {
    // Held until it is on the disk: what is cancelled is cancelled before or after.
    let mut state = lock(own);
    let Some(mut preparing) = state.preparing.take() else {
        return;
    };
    let ended = preparing.child.wait();
    let prepared = match ended {
        _ if preparing.is_cancelled => Err(None),
        Ok(status) if status.success() => switch::prepare(data_dir, name).map_err(Some),
        Ok(_) if !complaint.trim().is_empty() => Err(Some(output::complaint_of(complaint).to_owned())),
        Ok(status) => Err(Some(format!("the process that prepared it ended with {status}"))),
        Err(error) => Err(Some(format!("the process that prepared it is gone: {error}"))),
    };
    let Err(failed) = prepared else {
        tracing::warn!(backup = name, "the next start restores this backup");
        return;
    };
    if let Err(error) = switch::forget(data_dir) {
        tracing::warn!(error, "what was prepared stays");
    }
    let Some(because) = failed else {
        return tracing::info!(backup = name, "the backup will not be restored");
    };
    tracing::error!(because, backup = name, "the backup cannot be restored");
    if let Err(error) = switch::fail(data_dir, name, &because) {
        tracing::warn!(error, "that it cannot be restored is not kept");
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
    let words = words_file(directory, &name);
    Backup {
        made_at: modified(if words.exists() { &words } else { &path }),
        bytes: size(&path, &[]),
        holds: fs::read_to_string(words_file(directory, &name)).unwrap_or_default(),
        name,
    }
}

fn modified(path: &Path) -> SystemTime {
    let modified = fs::metadata(path).and_then(|there| there.modified());
    modified.unwrap_or(SystemTime::UNIX_EPOCH)
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
