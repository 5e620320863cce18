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
//! Entries that a backup does not contain stay in place: backups, reports, and the audit log.

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
            if HELD.contains(&name.as_str()) || (!is_directory && !web::audit::is_audit_file(&name)) {
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
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const OLD: [(&str, &str); 8] = [
        ("admins", "old"),
        ("audit.jsonl", "goes on"),
        ("banned.json", "old"),
        ("journal/1.log", "old"),
        (SPARE, "zeros"),
        ("platform/log/1.log", "old"),
        ("backups/one/admins", "kept"),
        ("lost+found/x", "not ours"),
    ];
    const BACKUP: [(&str, &str); 4] = [
        ("admins", "new"),
        ("audit.jsonl", "of then"),
        ("journal/0.log", "new"),
        ("runtime.toml", "new"),
    ];

    fn fill(directory: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn error_of_an_unusable_data_directory_names_it() {
        let path = std::env::temp_dir().join(format!("tidewire-switch-file-{}", std::process::id()));
        fs::write(&path, "a file").unwrap();
        let error = intent(&path).err().unwrap();
        let expected = format!("node.data_dir: cannot use {}: Not a directory", path.display());
        assert!(error.starts_with(&expected), "{error}");
        fs::remove_file(&path).unwrap();
    }

    /// Creates a data directory with a prepared restore.
    fn data_dir(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tidewire-switch-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fill(&path, &OLD);
        make_directory(&path).unwrap();
        fill(&staged(&path), &BACKUP);
        prepare(&path, "one").unwrap();
        path
    }

    fn files(directory: &Path) -> Vec<(String, String)> {
        let (mut found, mut directories) = (Vec::new(), vec![directory.to_owned()]);
        while let Some(next) = directories.pop() {
            for entry in fs::read_dir(next).unwrap().flatten() {
                let path = entry.path();
                match path.is_dir() {
                    true => directories.push(path),
                    false => {
                        let name = path.strip_prefix(directory).unwrap().display().to_string();
                        found.push((name, fs::read_to_string(&path).unwrap()));
                    }
                }
            }
        }
        found.retain(|(name, _)| !name.starts_with(DIRECTORY) && !name.starts_with(REPLACED_DATA));
        found.sort();
        found
    }

    fn listed(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut all: Vec<_> = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        all.sort();
        all
    }

    fn old() -> Vec<(String, String)> {
        listed(&OLD)
    }

    fn new() -> Vec<(String, String)> {
        listed(&[
            ("admins", "new"),
            ("audit.jsonl", "goes on"),
            ("journal/0.log", "new"),
            ("runtime.toml", "new"),
            ("backups/one/admins", "kept"),
            ("lost+found/x", "not ours"),
        ])
    }

    fn restored() -> RestoreResult {
        RestoreResult::Restored { backup: "one".into() }
    }

    /// Kills the restore before the step with this number. Returns whether it got that far.
    fn killed_at(path: &Path, number: usize, is_valid: &dyn Fn(&str) -> Result<(), String>) -> bool {
        let mut steps = 0;
        let mut step = || {
            if steps == number {
                // The panic is not handled in between, so that the disk stays as after a kill.
                std::panic::resume_unwind(Box::new("killed"));
            }
            steps += 1;
        };
        catch_unwind(AssertUnwindSafe(|| run_with_steps(path, is_valid, &mut step))).is_err()
    }

    #[test]
    fn a_kill_at_any_step_leaves_a_start_that_ends_with_all_of_the_new() {
        for number in 0.. {
            let path = data_dir("new");
            let was_killed = killed_at(&path, number, &|_| Ok(()));
            assert_eq!(
                run_pending_restore(&path, |_| Ok(())),
                Ok(restored()),
                "killed at {number}"
            );
            assert_eq!(files(&path), new(), "killed at {number}");
            assert_eq!(finish_trial(&path), Ok(Some("one".into())));
            assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(RestoreResult::Nothing));
            let outcome = outcome(&path).unwrap().unwrap();
            assert_eq!((outcome.backup.as_str(), outcome.failure), ("one", None));
            let aside = path.join(REPLACED_DATA).join(outcome.previous_data.unwrap());
            assert_eq!(fs::read_to_string(aside.join("journal/1.log")).unwrap(), "old");
            assert!(!aside.join(SPARE).exists(), "it has nothing in it");
            assert!(aside.join("banned.json").exists() && aside.join("platform/log").exists());
            assert!(!staged(&path).exists());
            fs::remove_dir_all(&path).unwrap();
            if !was_killed {
                assert!(number > 8, "{number}");
                return;
            }
        }
    }

    #[test]
    fn a_kill_at_any_step_of_the_way_back_leaves_all_of_the_old() {
        for number in 0.. {
            let path = data_dir("back");
            assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
            // A file that a server with the new data has created.
            fill(
                &path,
                &[
                    ("journal/2.log", "newer"),
                    ("platform/x", "newer"),
                    ("banned.json", "newer"),
                ],
            );
            assert_eq!(reject(&path, "the journal is damaged"), Ok(true));
            let was_killed = killed_at(&path, number, &|_| Ok(()));
            let after = run_pending_restore(&path, |_| Ok(()));
            let failed = RestoreResult::Failed {
                backup: "one".into(),
                reason: "the journal is damaged".into(),
            };
            // The kill may come after the last step.
            assert!(after == Ok(failed) || after == Ok(RestoreResult::Nothing), "{after:?}");
            assert_eq!(files(&path), old(), "killed at {number}");
            let outcome = outcome(&path).unwrap().unwrap();
            assert_eq!(outcome.failure.as_deref(), Some("the journal is damaged"));
            assert!(!staged(&path).exists());
            fs::remove_dir_all(&path).unwrap();
            if !was_killed {
                assert!(number > 8, "{number}");
                return;
            }
        }
    }

    #[test]
    fn what_cannot_be_restored_leaves_the_old_and_says_why() {
        let path = data_dir("invalid");
        let carried = run_pending_restore(&path, |runtime| Err(format!("it says {runtime}")));
        let Ok(RestoreResult::Failed { reason, .. }) = carried else {
            panic!("{carried:?}");
        };
        assert!(
            reason.contains("runtime.toml") && reason.ends_with("it says new"),
            "{reason}"
        );
        assert_eq!(files(&path), old());

        let path = data_dir("gone");
        fs::remove_dir_all(staged(&path)).unwrap();
        assert!(matches!(
            run_pending_restore(&path, |_| Ok(())),
            Ok(RestoreResult::Failed { .. })
        ));
        assert_eq!(files(&path), old());

        // A file at the target of a move.
        let path = data_dir("blocked");
        fill(&path, &[(&format!("{REPLACED_DATA}/x/y"), "z")]);
        let is_blocked = |_: &str| {
            let aside = path.join(REPLACED_DATA);
            fs::remove_dir_all(&aside).unwrap();
            fs::write(aside, "a file").unwrap();
            Ok(())
        };
        assert!(matches!(
            run_pending_restore(&path, is_blocked),
            Ok(RestoreResult::Failed { .. })
        ));
        fs::remove_file(path.join(REPLACED_DATA)).unwrap();
        assert_eq!(files(&path), old());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn data_that_no_server_gets_ready_with_goes_after_some_starts() {
        let path = data_dir("trials");
        for _ in 0..TRIALS_MAX {
            assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
        }
        assert_eq!(
            intent(&path).unwrap().map(|intent| intent.phase),
            Some(RestorePhase::OnTrial)
        );
        assert!(matches!(
            run_pending_restore(&path, |_| Ok(())),
            Ok(RestoreResult::Failed { .. })
        ));
        assert_eq!(files(&path), old());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_was_restored_stays_when_there_is_nothing_to_go_back_to() {
        let path = data_dir("no-way-back");
        assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
        let aside = intent(&path).unwrap().unwrap().aside;
        fs::remove_dir_all(path.join(REPLACED_DATA).join(&aside)).unwrap();
        assert_eq!(reject(&path, "the journal is damaged"), Ok(true));
        for _ in 0..2 {
            let refused = run_pending_restore(&path, |_| Ok(())).unwrap_err();
            assert!(refused.contains(&aside) && refused.contains("intent.json"), "{refused}");
            assert_eq!(fs::read_to_string(staged(&path).join("journal/0.log")).unwrap(), "new");
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_the_way_back_needs_is_known_from_the_first_move_on() {
        let path = data_dir("needs");
        let prepared = intent(&path).unwrap().unwrap();
        assert!(prepared.is_prepared() && !prepared.needs_old_data(""));
        assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
        let tried = intent(&path).unwrap().unwrap();
        assert!(!tried.is_prepared() && tried.needs_old_data(&tried.aside) && !tried.needs_old_data("another"));
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_is_cancelled_is_never_restored() {
        let path = data_dir("cancelled");
        cancel(&path).unwrap();
        assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(RestoreResult::Nothing));
        assert_eq!(files(&path), old());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn data_that_another_process_has_open_is_not_moved() {
        let path = data_dir("open");
        let held = journal::StorageDirectory::open(&path, journal::DIRECTORY_NAME).unwrap();
        let refused = run_pending_restore(&path, |_| Ok(())).unwrap_err();
        assert!(refused.contains("another process uses"), "{refused}");
        drop(held);
        assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
        fs::remove_dir_all(&path).unwrap();
    }
}
