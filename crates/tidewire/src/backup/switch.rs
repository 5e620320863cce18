//! A restore that was requested through the API: prepared in the data directory while the server runs, and put in
//! place at a start, before any store is opened.
//!
//! ```text
//! DATA/restore/new/           the copied and verified backup, which becomes the data directory
//! DATA/restore/intent.json    the request to restore it, and the phase; replaced atomically
//! DATA/restore/outcome.json   result of the last restore
//! DATA/replaced-data/NAME/        the previous data
//! ```
//!
//! The data directory itself may be a mount point and cannot be replaced. Its entries are replaced, one `rename` after
//! another. The intent contains the phase and is on the disk before the phase begins. Each phase can be repeated after
//! `kill -9`, so that a start ends with either all old data or all new data. The new data is on trial until the server
//! reports that it is ready: if the server cannot start with it, the old data is put back.
//!
//! Entries that a backup does not contain stay in place: backups, reports, and the audit log; `acme/` only if this
//! backup has none.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use storage::copy::sync_directory;

use super::mark;

use crate::device_platform;

pub const DIRECTORY: &str = "restore";
const NEW: &str = "new";
const INTENT: &str = "intent.json";
const OUTCOME: &str = "outcome.json";
pub const REPLACED_DATA: &str = "replaced-data";

/// Maximum number of starts that may end before the server is ready, each for a reason of its own, such as `kill -9`.
const TRIALS_MAX: u32 = 3;

/// Space that the journal has reserved for its next segment.
const SPARE: &str = "journal/spare";

/// Directories that a backup contains. It contains all files.
const HELD: [&str; 4] = [
    journal::DIRECTORY_NAME,
    integration::DIRECTORY_NAME,
    device_platform::DIRECTORY_NAME,
    api::HISTORY_NAME,
];
/// Account and certificate of `tls.acme`, which only some backups contain. Without them, the present ones stay, because
/// the server would have to obtain others.
const OPTIONAL: &str = certificates::ACME_DIRECTORY;
/// Lock files: a server uses the directory that contains one.
const LOCKS: [&str; 4] = [
    "journal/lock",
    "history/lock",
    "platform/log/lock",
    "platform/timeseries/lock",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RestorePhase {
    /// Nothing was moved.
    Prepared,
    /// The old data is being moved aside.
    SettingAside,
    /// All old data is aside. The new data is being moved in.
    MovingIn,
    /// All new data is in place. The server must start with it.
    OnTrial,
    /// The new data is being moved out again.
    MovingOut,
    /// All new data is out. The old data is being moved back.
    PuttingBack,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RestoreIntent {
    pub backup: String,
    pub prepared_unix_ms: u64,
    phase: RestorePhase,
    /// Name of the directory of the old data.
    #[serde(default)]
    aside: String,
    #[serde(default)]
    trials: u32,
    /// Why the old data must be put back.
    #[serde(default)]
    reason: Option<String>,
    /// The backup has no directory [`OPTIONAL`], so the present one stays.
    #[serde(default)]
    keeps_optional: bool,
}

impl RestoreIntent {
    /// Nothing was moved, so the restore can be cancelled.
    pub fn is_prepared(&self) -> bool {
        self.phase == RestorePhase::Prepared
    }

    /// Name of the old data that is put back if the server cannot start with the new data.
    pub fn needs_old_data(&self, replaced_data: &str) -> bool {
        !self.is_prepared() && self.aside == replaced_data
    }
}

/// Result of the last restore.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastRestore {
    pub backup: String,
    pub at_unix_ms: u64,
    /// `None` if the backup was restored.
    pub failure: Option<String>,
    /// Directory of the old data after a successful restore.
    pub previous_data: Option<String>,
}

/// Result of handling a pending restore at the start.
#[derive(Debug, PartialEq, Eq)]
pub enum RestoreResult {
    Nothing,
    /// The data is that of this backup, on trial.
    Restored {
        backup: String,
    },
    /// The old data is in place.
    Failed {
        backup: String,
        reason: String,
    },
}

/// Directory of the copy that will become the data.
pub fn staged(data_dir: &Path) -> PathBuf {
    data_dir.join(DIRECTORY).join(NEW)
}

pub fn make_directory(data_dir: &Path) -> io::Result<()> {
    private(&data_dir.join(DIRECTORY))
}

/// Marks the copy as complete. The next start restores it.
pub fn prepare(data_dir: &Path, backup: &str) -> Result<(), String> {
    let intent = RestoreIntent {
        backup: backup.to_owned(),
        prepared_unix_ms: now_ms(),
        phase: RestorePhase::Prepared,
        aside: String::new(),
        trials: 0,
        reason: None,
        keeps_optional: false,
    };
    write(data_dir, INTENT, &intent)
}

/// Returns the restore that the next start would carry out.
pub fn intent(data_dir: &Path) -> Result<Option<RestoreIntent>, String> {
    read(data_dir, INTENT)
}

pub fn outcome(data_dir: &Path) -> Result<Option<LastRestore>, String> {
    read(data_dir, OUTCOME)
}

/// Cancels the restore and deletes the copy.
pub fn cancel(data_dir: &Path) -> Result<(), String> {
    remove_file(data_dir, INTENT)?;
    remove_copy(data_dir)
}

/// Deletes a copy that never became an intent, or was moved in.
pub fn remove_copy(data_dir: &Path) -> Result<(), String> {
    let copy = staged(data_dir);
    match fs::remove_dir_all(&copy) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("delete", &copy, &error)),
        _ => Ok(()),
    }
}

/// Records that the restore could not be prepared.
pub fn fail(data_dir: &Path, backup: &str, reason: &str) -> Result<(), String> {
    let outcome = LastRestore {
        backup: backup.to_owned(),
        at_unix_ms: now_ms(),
        failure: Some(reason.to_owned()),
        previous_data: None,
    };
    write(data_dir, OUTCOME, &outcome)
}

/// Carries out a prepared restore. Called before any part of the data directory is open. `is_valid` gets the
/// `runtime.toml` that would be in use. The server must not start after an error.
pub fn run_pending_restore(
    data_dir: &Path,
    is_valid: impl Fn(&str) -> Result<(), String>,
) -> Result<RestoreResult, String> {
    run_with_steps(data_dir, &is_valid, &mut || ())
}

/// Calls `step` before each change of the disk. For tests.
fn run_with_steps(
    data_dir: &Path,
    is_valid: &dyn Fn(&str) -> Result<(), String>,
    step: &mut dyn FnMut(),
) -> Result<RestoreResult, String> {
    let Some(intent) = intent(data_dir)? else {
        return Ok(RestoreResult::Nothing);
    };
    let _locks = lock(data_dir)?;
    RestoreSwitch { data_dir, intent, step }.run(is_valid)
}

/// Returns whether the server uses restored data on trial and may start with it once more.
pub fn has_trials_left(data_dir: &Path) -> bool {
    let intent = intent(data_dir).ok().flatten();
    intent.is_some_and(|intent| intent.phase == RestorePhase::OnTrial && intent.trials < TRIALS_MAX)
}

/// Ends the trial: the server is ready with the new data. Does nothing without a trial.
pub fn finish_trial(data_dir: &Path) -> Result<Option<String>, String> {
    let Some(intent) = intent(data_dir)?.filter(|intent| intent.phase == RestorePhase::OnTrial) else {
        return Ok(None);
    };
    // Deletes space that was reserved for later segments. A failure does not matter.
    let _ = fs::remove_file(data_dir.join(REPLACED_DATA).join(&intent.aside).join(SPARE));
    let outcome = LastRestore {
        backup: intent.backup.clone(),
        at_unix_ms: now_ms(),
        failure: None,
        previous_data: Some(intent.aside),
    };
    write(data_dir, OUTCOME, &outcome)?;
    cancel(data_dir)?;
    Ok(Some(intent.backup))
}

/// Records that the server cannot start with the new data, so that the next start puts back the old data. Returns
/// `false` if no data is on trial.
pub fn reject(data_dir: &Path, reason: &str) -> Result<bool, String> {
    let Some(mut intent) = intent(data_dir)?.filter(|intent| intent.phase == RestorePhase::OnTrial) else {
        return Ok(false);
    };
    (intent.phase, intent.reason) = (RestorePhase::MovingOut, Some(reason.to_owned()));
    write(data_dir, INTENT, &intent).map(|()| true)
}

struct RestoreSwitch<'a> {
    data_dir: &'a Path,
    intent: RestoreIntent,
    step: &'a mut dyn FnMut(),
}

impl RestoreSwitch<'_> {
    fn run(mut self, is_valid: &dyn Fn(&str) -> Result<(), String>) -> Result<RestoreResult, String> {
        loop {
            match self.intent.phase {
                RestorePhase::Prepared => match self.check(is_valid).and_then(|()| self.begin()) {
                    Ok(()) => self.enter(RestorePhase::SettingAside)?,
                    Err(reason) => {
                        self.intent.reason = Some(reason);
                        return self.finish_rollback();
                    }
                },
                RestorePhase::SettingAside => {
                    let moved = self
                        .data_file_names()
                        .and_then(|names| self.move_all(&names, MoveDirection::Aside));
                    self.enter_or(moved, RestorePhase::MovingIn, RestorePhase::PuttingBack)?;
                }
                RestorePhase::MovingIn => {
                    let moved = self
                        .copy_file_names()
                        .and_then(|names| self.move_all(&names, MoveDirection::In));
                    self.enter_or(moved, RestorePhase::OnTrial, RestorePhase::MovingOut)?;
                }
                RestorePhase::OnTrial if self.intent.trials >= TRIALS_MAX => {
                    let trials = self.intent.trials;
                    self.intent.reason = Some(format!("{trials} starts with it ended before the server was ready"));
                    self.enter(RestorePhase::MovingOut)?;
                }
                RestorePhase::OnTrial => {
                    self.intent.trials += 1;
                    self.enter(RestorePhase::OnTrial)?;
                    let backup = self.intent.backup;
                    return Ok(RestoreResult::Restored { backup });
                }
                // Including files that a server has created in it: no old data is there.
                RestorePhase::MovingOut => {
                    self.move_all(&self.data_file_names()?, MoveDirection::Out)?;
                    self.enter(RestorePhase::PuttingBack)?;
                }
                RestorePhase::PuttingBack => {
                    // Deleted when it is empty.
                    if !self.old_data_dir().exists() {
                        self.check_rolled_back()?;
                    } else {
                        let names = names(&self.old_data_dir())?;
                        self.move_all(&names, MoveDirection::Back)?;
                        (self.step)();
                        fs::remove_dir(self.old_data_dir())
                            .map_err(|error| failed("delete", &self.old_data_dir(), &error))?;
                    }
                    return self.finish_rollback();
                }
            }
        }
    }

    /// Checks whether the server can start with the new data, as far as that is known before.
    fn check(&self, is_valid: &dyn Fn(&str) -> Result<(), String>) -> Result<(), String> {
        let new = staged(self.data_dir);
        mark::check_data_dir(&new)?;
        if self.copy_file_names()?.is_empty() {
            return Err(format!("{} is empty: the data to restore was removed", new.display()));
        }
        let path = new.join(crate::config::RUNTIME_FILE);
        let runtime = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed("read", &path, &error)),
        };
        is_valid(&runtime)
            .map_err(|message| format!("with {} the configuration is not valid: {message}", path.display()))
    }

    /// No old data is left to be moved back, because all of it was moved.
    fn check_rolled_back(&self) -> Result<(), String> {
        match self.data_file_names()?.is_empty() {
            false => Ok(()),
            true => Err(format!(
                "the server could not start with the restored data, and the previous data in {} is missing. The restored data is in {}: \
                 move it to where you need it, then delete {}",
                self.old_data_dir().display(),
                staged(self.data_dir).display(),
                self.data_dir.join(DIRECTORY).join(INTENT).display()
            )),
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let parent = self.data_dir.join(REPLACED_DATA);
        let base = jiff::Timestamp::now()
            .strftime("before-restore-%Y%m%d-%H%M%S")
            .to_string();
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut candidates = std::iter::once(base.clone()).chain(numbered);
        let aside = candidates.find(|name| !parent.join(name).exists()).unwrap_or(base);
        self.intent.aside = aside;
        self.intent.keeps_optional = !staged(self.data_dir).join(OPTIONAL).exists();
        (self.step)();
        private(&self.old_data_dir())
            .and_then(|()| sync_directory(&parent))
            .and_then(|()| sync_directory(self.data_dir))
            .map_err(|error| failed("create", &self.old_data_dir(), &error))
    }

    fn old_data_dir(&self) -> PathBuf {
        self.data_dir.join(REPLACED_DATA).join(&self.intent.aside)
    }

    fn enter(&mut self, phase: RestorePhase) -> Result<(), String> {
        (self.step)();
        self.intent.phase = phase;
        write(self.data_dir, INTENT, &self.intent)
    }

    fn enter_or(&mut self, moved: Result<(), String>, next: RestorePhase, back: RestorePhase) -> Result<(), String> {
        match moved {
            Ok(()) => self.enter(next),
            Err(reason) => {
                self.intent.reason = Some(reason);
                self.enter(back)
            }
        }
    }

    /// Entries of the data directory that a backup can contain.
    fn data_file_names(&self) -> Result<Vec<String>, String> {
        let mut held = BTreeSet::new();
        for name in names(self.data_dir)? {
            let is_directory = fs::symlink_metadata(self.data_dir.join(&name)).is_ok_and(|found| found.is_dir());
            let is_replaced = name == OPTIONAL && !self.intent.keeps_optional;
            if is_replaced || HELD.contains(&name.as_str()) || (!is_directory && !web::audit::is_audit_file(&name)) {
                held.insert(name);
            }
        }
        Ok(held.into_iter().collect())
    }

    fn copy_file_names(&self) -> Result<Vec<String>, String> {
        let mut held = names(&staged(self.data_dir))?;
        held.retain(|name| !web::audit::is_audit_file(name));
        Ok(held)
    }

    /// Names of the remaining entries. An entry that was moved before a kill is not moved again.
    fn move_all(&mut self, names: &[String], direction: MoveDirection) -> Result<(), String> {
        let (new, aside) = (staged(self.data_dir), self.old_data_dir());
        let (from, to) = match direction {
            MoveDirection::Aside => (self.data_dir, aside.as_path()),
            MoveDirection::In => (new.as_path(), self.data_dir),
            MoveDirection::Out => (self.data_dir, new.as_path()),
            MoveDirection::Back => (aside.as_path(), self.data_dir),
        };
        for name in names {
            let (from, to) = (from.join(name), to.join(name));
            (self.step)();
            fs::rename(&from, &to).map_err(|error| failed("move", &from, &error))?;
        }
        for directory in [from, to] {
            sync_directory(directory).map_err(|error| failed("sync", directory, &error))?;
        }
        Ok(())
    }

    /// All old data is in place.
    fn finish_rollback(mut self) -> Result<RestoreResult, String> {
        let reason = self.intent.reason.take().unwrap_or_else(|| "unknown reason".into());
        let backup = self.intent.backup;
        (self.step)();
        fail(self.data_dir, &backup, &reason)?;
        (self.step)();
        cancel(self.data_dir)?;
        Ok(RestoreResult::Failed { backup, reason })
    }
}

#[derive(Clone, Copy)]
enum MoveDirection {
    Aside,
    In,
    Out,
    Back,
}

/// Fails if another process has the data open.
fn lock(data_dir: &Path) -> Result<Vec<File>, String> {
    let mut held = Vec::new();
    for name in LOCKS {
        let path = data_dir.join(name);
        let Ok(file) = File::options().write(true).open(&path) else {
            continue;
        };
        match file.try_lock() {
            Ok(()) => held.push(file),
            Err(TryLockError::WouldBlock) => {
                let shown = data_dir.display();
                return Err(format!(
                    "another process uses {shown}: stop it first, so that the requested backup can be restored"
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path, &error)),
        }
    }
    Ok(held)
}

fn names(directory: &Path) -> Result<Vec<String>, String> {
    let unreadable = |error: io::Error| failed("read", directory, &error);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        names.extend(entry.map_err(unreadable)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

fn private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

fn read<T: serde::de::DeserializeOwned>(data_dir: &Path, name: &str) -> Result<Option<T>, String> {
    let path = data_dir.join(DIRECTORY).join(name);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| format!("{} is damaged: {}", path.display(), input_errors::plain(&error))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(match fs::metadata(data_dir.join(".")) {
            Ok(_) => failed("read", &path, &error),
            // The file is only the first one that the server looks for in an unusable data directory.
            Err(error) => format!(
                "node.data_dir: cannot use {}: {error}; give the user of the server access to it, or choose another \
                 directory with --set node.data_dir=PATH",
                data_dir.display()
            ),
        }),
    }
}

fn write(data_dir: &Path, name: &str, value: &impl Serialize) -> Result<(), String> {
    let path = data_dir.join(DIRECTORY).join(name);
    serde_json::to_vec_pretty(value)
        .map_err(io::Error::from)
        .and_then(|text| storage::copy::replace(&path, &text))
        .map_err(|error| failed("write", &path, &error))
}

fn remove_file(data_dir: &Path, name: &str) -> Result<(), String> {
    let directory = data_dir.join(DIRECTORY);
    let path = directory.join(name);
    match fs::remove_file(&path) {
        Ok(()) => sync_directory(&directory),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
    .map_err(|error| failed("delete", &path, &error))
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {doing} {}: {error}", path.display())
}

fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_millis() as u64
}

#[cfg(test)]
mod tests;
