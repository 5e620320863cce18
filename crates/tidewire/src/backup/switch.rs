//! A restore that the API asked for: prepared beside the data while the server runs, put in its place at a start, before anything is open.
//!
//! ```text
//! DATA/restore/new/           the backup, copied and verified; the data directory to be
//! DATA/restore/intent.json    that it is to be restored, and how far that is; written as a whole
//! DATA/restore/outcome.json   what became of the last one
//! DATA/set-aside/NAME/        the data of before
//! ```
//!
//! The data directory itself may be a mount point and cannot be exchanged; what is in it is, one `rename` after another. The intent has the
//! phase, and is on the disk before the phase begins. Each phase can be begun again after a `kill -9`, so that a start always ends up with all
//! of the old or all of the new. Until the server has said that it is ready, the new is on trial: when it cannot be started, the old comes back.
//!
//! What a backup does not hold stays where it is: backups, reports, and the audit log, which goes on.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use storage::copy::sync_directory;

use super::mark;

pub const DIRECTORY: &str = "restore";
const NEW: &str = "new";
const INTENT: &str = "intent.json";
const OUTCOME: &str = "outcome.json";
pub const SET_ASIDE: &str = "set-aside";

/// Starts that may end before the server is ready, each for a reason of its own, such as a `kill -9`.
const TRIALS_MAX: u32 = 3;

/// What the journal has for its next segment.
const SPARE: &str = "journal/spare";

/// Directories that a backup holds; of files, all.
const HELD: [&str; 4] = [
    journal::DIRECTORY_NAME,
    integration::DIRECTORY_NAME,
    devices::DIRECTORY_NAME,
    api::HISTORY_NAME,
];
/// Files that say that a server has what is beside them.
const LOCKS: [&str; 4] = [
    "journal/lock",
    "history/lock",
    "platform/log/lock",
    "platform/timeseries/lock",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    /// Nothing has been moved.
    Prepared,
    /// The old is moved to what is set aside.
    SettingAside,
    /// All of the old is set aside; the new is moved in.
    MovingIn,
    /// All of the new is in its place; the server has to start with it.
    OnTrial,
    /// The new is moved out again.
    MovingOut,
    /// All of the new is out; the old is moved back.
    PuttingBack,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Intent {
    pub backup: String,
    pub prepared_unix_ms: u64,
    phase: Phase,
    /// Name of what is set aside.
    #[serde(default)]
    aside: String,
    #[serde(default)]
    trials: u32,
    /// Why the old has to come back.
    #[serde(default)]
    because: Option<String>,
}

impl Intent {
    /// Nothing has been moved: it can be left.
    pub fn is_prepared(&self) -> bool {
        self.phase == Phase::Prepared
    }

    /// What comes back if the server cannot be started with the new.
    pub fn needs(&self, set_aside: &str) -> bool {
        !self.is_prepared() && self.aside == set_aside
    }
}

/// What became of the last restore that was to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub backup: String,
    pub at_unix_ms: u64,
    /// Without one it was restored.
    pub failure: Option<String>,
    /// Where the data of before is, of one that was restored.
    pub set_aside: Option<String>,
}

/// What a start found to do.
#[derive(Debug, PartialEq, Eq)]
pub enum CarriedOut {
    Nothing,
    /// The data is that of this backup, on trial.
    Restored {
        backup: String,
    },
    /// The data is that of before.
    Failed {
        backup: String,
        because: String,
    },
}

/// Where the copy is made that will be the data.
pub fn staged(data_dir: &Path) -> PathBuf {
    data_dir.join(DIRECTORY).join(NEW)
}

pub fn make_directory(data_dir: &Path) -> io::Result<()> {
    private(&data_dir.join(DIRECTORY))
}

/// The copy is whole: from now on the next start takes it.
pub fn prepare(data_dir: &Path, backup: &str) -> Result<(), String> {
    let intent = Intent {
        backup: backup.to_owned(),
        prepared_unix_ms: now_ms(),
        phase: Phase::Prepared,
        aside: String::new(),
        trials: 0,
        because: None,
    };
    write(data_dir, INTENT, &intent)
}

/// What the next start would restore.
pub fn intent(data_dir: &Path) -> Result<Option<Intent>, String> {
    read(data_dir, INTENT)
}

pub fn outcome(data_dir: &Path) -> Result<Option<Outcome>, String> {
    read(data_dir, OUTCOME)
}

/// No start will restore it. What was copied goes.
pub fn forget(data_dir: &Path) -> Result<(), String> {
    remove_file(data_dir, INTENT)?;
    remove_copy(data_dir)
}

/// What was copied and never became an intent, or has been moved in.
pub fn remove_copy(data_dir: &Path) -> Result<(), String> {
    let copy = staged(data_dir);
    match fs::remove_dir_all(&copy) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removed", &copy, &error)),
        _ => Ok(()),
    }
}

/// It could not be prepared.
pub fn fail(data_dir: &Path, backup: &str, because: &str) -> Result<(), String> {
    let outcome = Outcome {
        backup: backup.to_owned(),
        at_unix_ms: now_ms(),
        failure: Some(because.to_owned()),
        set_aside: None,
    };
    write(data_dir, OUTCOME, &outcome)
}

/// Before anything of the data directory is open. `is_valid` is given the `runtime.toml` that would be in force. An error is one that the
/// server must not start with.
pub fn carry_out(data_dir: &Path, is_valid: impl Fn(&str) -> Result<(), String>) -> Result<CarriedOut, String> {
    carry_out_watched(data_dir, &is_valid, &mut || ())
}

/// `step` is called before everything that changes the disk.
fn carry_out_watched(
    data_dir: &Path,
    is_valid: &dyn Fn(&str) -> Result<(), String>,
    step: &mut dyn FnMut(),
) -> Result<CarriedOut, String> {
    let Some(intent) = intent(data_dir)? else {
        return Ok(CarriedOut::Nothing);
    };
    let _locks = lock(data_dir)?;
    Switch { data_dir, intent, step }.run(is_valid)
}

/// The server is ready with the new data. Nothing happens if there is none.
pub fn settle(data_dir: &Path) -> Result<Option<String>, String> {
    let Some(intent) = intent(data_dir)?.filter(|intent| intent.phase == Phase::OnTrial) else {
        return Ok(None);
    };
    // Space that was had for what was to come; not worth failing for.
    let _ = fs::remove_file(data_dir.join(SET_ASIDE).join(&intent.aside).join(SPARE));
    let outcome = Outcome {
        backup: intent.backup.clone(),
        at_unix_ms: now_ms(),
        failure: None,
        set_aside: Some(intent.aside),
    };
    write(data_dir, OUTCOME, &outcome)?;
    forget(data_dir)?;
    Ok(Some(intent.backup))
}

/// The server cannot be started with the new data: the next start has the old. False: no data is on trial.
pub fn reject(data_dir: &Path, because: &str) -> Result<bool, String> {
    let Some(mut intent) = intent(data_dir)?.filter(|intent| intent.phase == Phase::OnTrial) else {
        return Ok(false);
    };
    (intent.phase, intent.because) = (Phase::MovingOut, Some(because.to_owned()));
    write(data_dir, INTENT, &intent).map(|()| true)
}

struct Switch<'a> {
    data_dir: &'a Path,
    intent: Intent,
    step: &'a mut dyn FnMut(),
}

impl Switch<'_> {
    fn run(mut self, is_valid: &dyn Fn(&str) -> Result<(), String>) -> Result<CarriedOut, String> {
        loop {
            match self.intent.phase {
                Phase::Prepared => match self.check(is_valid).and_then(|()| self.begin()) {
                    Ok(()) => self.enter(Phase::SettingAside)?,
                    Err(because) => {
                        self.intent.because = Some(because);
                        return self.give_up();
                    }
                },
                Phase::SettingAside => {
                    let moved = self
                        .names_of_data()
                        .and_then(|names| self.move_all(&names, Direction::Aside));
                    self.enter_or(moved, Phase::MovingIn, Phase::PuttingBack)?;
                }
                Phase::MovingIn => {
                    let moved = self
                        .names_of_copy()
                        .and_then(|names| self.move_all(&names, Direction::In));
                    self.enter_or(moved, Phase::OnTrial, Phase::MovingOut)?;
                }
                Phase::OnTrial if self.intent.trials >= TRIALS_MAX => {
                    let trials = self.intent.trials;
                    self.intent.because = Some(format!("{trials} starts with it ended before the server was ready"));
                    self.enter(Phase::MovingOut)?;
                }
                Phase::OnTrial => {
                    self.intent.trials += 1;
                    self.enter(Phase::OnTrial)?;
                    let backup = self.intent.backup;
                    return Ok(CarriedOut::Restored { backup });
                }
                // With what a server has made on it: of the old, nothing is there.
                Phase::MovingOut => {
                    self.move_all(&self.names_of_data()?, Direction::Out)?;
                    self.enter(Phase::PuttingBack)?;
                }
                Phase::PuttingBack => {
                    // It goes when nothing is in it any more.
                    if !self.aside().exists() {
                        self.check_is_back()?;
                    } else {
                        let names = names(&self.aside())?;
                        self.move_all(&names, Direction::Back)?;
                        (self.step)();
                        fs::remove_dir(self.aside()).map_err(|error| failed("removed", &self.aside(), &error))?;
                    }
                    return self.give_up();
                }
            }
        }
    }

    /// Whether the server can be started with it, as far as can be told before.
    fn check(&self, is_valid: &dyn Fn(&str) -> Result<(), String>) -> Result<(), String> {
        let new = staged(self.data_dir);
        mark::check_data_dir(&new)?;
        if self.names_of_copy()?.is_empty() {
            return Err(format!(
                "{} is empty: somebody has removed what was to be restored",
                new.display()
            ));
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

    /// Of the old nothing is left to be moved back: because it has been.
    fn check_is_back(&self) -> Result<(), String> {
        match self.names_of_data()?.is_empty() {
            false => Ok(()),
            true => Err(format!(
                "{} is gone, so that there is no data of before to go back to, and the server could not be started with what was restored, \
                 which is in {}: move it where it is wanted, and then remove {}",
                self.aside().display(),
                staged(self.data_dir).display(),
                self.data_dir.join(DIRECTORY).join(INTENT).display()
            )),
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let parent = self.data_dir.join(SET_ASIDE);
        let base = chrono::Utc::now().format("before-restore-%Y%m%d-%H%M%S").to_string();
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut candidates = std::iter::once(base.clone()).chain(numbered);
        let aside = candidates.find(|name| !parent.join(name).exists()).unwrap_or(base);
        self.intent.aside = aside;
        (self.step)();
        private(&self.aside())
            .and_then(|()| sync_directory(&parent))
            .and_then(|()| sync_directory(self.data_dir))
            .map_err(|error| failed("made", &self.aside(), &error))
    }

    fn aside(&self) -> PathBuf {
        self.data_dir.join(SET_ASIDE).join(&self.intent.aside)
    }

    fn enter(&mut self, phase: Phase) -> Result<(), String> {
        (self.step)();
        self.intent.phase = phase;
        write(self.data_dir, INTENT, &self.intent)
    }

    fn enter_or(&mut self, moved: Result<(), String>, next: Phase, back: Phase) -> Result<(), String> {
        match moved {
            Ok(()) => self.enter(next),
            Err(because) => {
                self.intent.because = Some(because);
                self.enter(back)
            }
        }
    }

    /// Everything but what no backup holds.
    fn names_of_data(&self) -> Result<Vec<String>, String> {
        let mut held = BTreeSet::new();
        for name in names(self.data_dir)? {
            let is_directory = fs::symlink_metadata(self.data_dir.join(&name)).is_ok_and(|found| found.is_dir());
            if HELD.contains(&name.as_str()) || (!is_directory && !api::is_audit_file(&name)) {
                held.insert(name);
            }
        }
        Ok(held.into_iter().collect())
    }

    fn names_of_copy(&self) -> Result<Vec<String>, String> {
        let mut held = names(&staged(self.data_dir))?;
        held.retain(|name| !api::is_audit_file(name));
        Ok(held)
    }

    /// Names of what is still there: what has been moved before a kill is not moved twice.
    fn move_all(&mut self, names: &[String], direction: Direction) -> Result<(), String> {
        let (new, aside) = (staged(self.data_dir), self.aside());
        let (from, to) = match direction {
            Direction::Aside => (self.data_dir, aside.as_path()),
            Direction::In => (new.as_path(), self.data_dir),
            Direction::Out => (self.data_dir, new.as_path()),
            Direction::Back => (aside.as_path(), self.data_dir),
        };
        for name in names {
            let (from, to) = (from.join(name), to.join(name));
            (self.step)();
            fs::rename(&from, &to).map_err(|error| failed("moved", &from, &error))?;
        }
        for directory in [from, to] {
            sync_directory(directory).map_err(|error| failed("synced", directory, &error))?;
        }
        Ok(())
    }

    /// All of the old is in its place.
    fn give_up(mut self) -> Result<CarriedOut, String> {
        let because = self.intent.because.take().unwrap_or_else(|| "nobody knows why".into());
        let backup = self.intent.backup;
        (self.step)();
        fail(self.data_dir, &backup, &because)?;
        (self.step)();
        forget(self.data_dir)?;
        Ok(CarriedOut::Failed { backup, because })
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Aside,
    In,
    Out,
    Back,
}

/// Nobody else may have the data open.
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
                    "{shown} is in use by another process; a backup waits to be restored into it"
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed("locked", &path, &error)),
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
            .map_err(|error| format!("{} is damaged: {error}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", &path, &error)),
    }
}

fn write(data_dir: &Path, name: &str, value: &impl Serialize) -> Result<(), String> {
    let path = data_dir.join(DIRECTORY).join(name);
    serde_json::to_vec_pretty(value)
        .map_err(io::Error::from)
        .and_then(|text| storage::copy::replace(&path, &text))
        .map_err(|error| failed("written", &path, &error))
}

fn remove_file(data_dir: &Path, name: &str) -> Result<(), String> {
    let directory = data_dir.join(DIRECTORY);
    let path = directory.join(name);
    match fs::remove_file(&path) {
        Ok(()) => sync_directory(&directory),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
    .map_err(|error| failed("removed", &path, &error))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    format!("{} cannot be {what}: {error}", path.display())
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

    /// With a restore that is prepared.
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
        found.retain(|(name, _)| !name.starts_with(DIRECTORY) && !name.starts_with(SET_ASIDE));
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

    fn restored() -> CarriedOut {
        CarriedOut::Restored { backup: "one".into() }
    }

    /// Killed before its step of that number; whether it came to that.
    fn killed_at(path: &Path, number: usize, is_valid: &dyn Fn(&str) -> Result<(), String>) -> bool {
        let mut steps = 0;
        let mut step = || {
            if steps == number {
                // Nothing is caught on the way: as after a kill, the disk stays as it is.
                std::panic::resume_unwind(Box::new("killed"));
            }
            steps += 1;
        };
        catch_unwind(AssertUnwindSafe(|| carry_out_watched(path, is_valid, &mut step))).is_err()
    }

    #[test]
    fn a_kill_at_any_step_leaves_a_start_that_ends_with_all_of_the_new() {
        for number in 0.. {
            let path = data_dir("new");
            let was_killed = killed_at(&path, number, &|_| Ok(()));
            assert_eq!(carry_out(&path, |_| Ok(())), Ok(restored()), "killed at {number}");
            assert_eq!(files(&path), new(), "killed at {number}");
            assert_eq!(settle(&path), Ok(Some("one".into())));
            assert_eq!(carry_out(&path, |_| Ok(())), Ok(CarriedOut::Nothing));
            let outcome = outcome(&path).unwrap().unwrap();
            assert_eq!((outcome.backup.as_str(), outcome.failure), ("one", None));
            let aside = path.join(SET_ASIDE).join(outcome.set_aside.unwrap());
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
            assert_eq!(carry_out(&path, |_| Ok(())), Ok(restored()));
            // What a server with the new data has made.
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
            let after = carry_out(&path, |_| Ok(()));
            let failed = CarriedOut::Failed {
                backup: "one".into(),
                because: "the journal is damaged".into(),
            };
            // The kill may have come after the last word.
            assert!(after == Ok(failed) || after == Ok(CarriedOut::Nothing), "{after:?}");
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
        let carried = carry_out(&path, |runtime| Err(format!("it says {runtime}")));
        let Ok(CarriedOut::Failed { because, .. }) = carried else {
            panic!("{carried:?}");
        };
        assert!(
            because.contains("runtime.toml") && because.ends_with("it says new"),
            "{because}"
        );
        assert_eq!(files(&path), old());

        let path = data_dir("gone");
        fs::remove_dir_all(staged(&path)).unwrap();
        assert!(matches!(carry_out(&path, |_| Ok(())), Ok(CarriedOut::Failed { .. })));
        assert_eq!(files(&path), old());

        // A file in the way of what is to be moved.
        let path = data_dir("blocked");
        fill(&path, &[(&format!("{SET_ASIDE}/x/y"), "z")]);
        let is_blocked = |_: &str| {
            let aside = path.join(SET_ASIDE);
            fs::remove_dir_all(&aside).unwrap();
            fs::write(aside, "a file").unwrap();
            Ok(())
        };
        assert!(matches!(carry_out(&path, is_blocked), Ok(CarriedOut::Failed { .. })));
        fs::remove_file(path.join(SET_ASIDE)).unwrap();
        assert_eq!(files(&path), old());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn data_that_no_server_gets_ready_with_goes_after_some_starts() {
        let path = data_dir("trials");
        for _ in 0..TRIALS_MAX {
            assert_eq!(carry_out(&path, |_| Ok(())), Ok(restored()));
        }
        assert_eq!(intent(&path).unwrap().map(|intent| intent.phase), Some(Phase::OnTrial));
        assert!(matches!(carry_out(&path, |_| Ok(())), Ok(CarriedOut::Failed { .. })));
        assert_eq!(files(&path), old());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_was_restored_stays_when_there_is_nothing_to_go_back_to() {
        let path = data_dir("no-way-back");
        assert_eq!(carry_out(&path, |_| Ok(())), Ok(restored()));
        let aside = intent(&path).unwrap().unwrap().aside;
        fs::remove_dir_all(path.join(SET_ASIDE).join(&aside)).unwrap();
        assert_eq!(reject(&path, "the journal is damaged"), Ok(true));
        for _ in 0..2 {
            let refused = carry_out(&path, |_| Ok(())).unwrap_err();
            assert!(refused.contains(&aside) && refused.contains("intent.json"), "{refused}");
            assert_eq!(fs::read_to_string(staged(&path).join("journal/0.log")).unwrap(), "new");
        }
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_the_way_back_needs_is_known_from_the_first_move_on() {
        let path = data_dir("needs");
        let prepared = intent(&path).unwrap().unwrap();
        assert!(prepared.is_prepared() && !prepared.needs(""));
        assert_eq!(carry_out(&path, |_| Ok(())), Ok(restored()));
        let tried = intent(&path).unwrap().unwrap();
        assert!(!tried.is_prepared() && tried.needs(&tried.aside) && !tried.needs("another"));
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn what_is_cancelled_is_never_restored() {
        let path = data_dir("cancelled");
        forget(&path).unwrap();
        assert_eq!(carry_out(&path, |_| Ok(())), Ok(CarriedOut::Nothing));
        assert_eq!(files(&path), old());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn data_that_another_process_has_open_is_not_moved() {
        let path = data_dir("open");
        let held = journal::Directory::open(&path, journal::DIRECTORY_NAME).unwrap();
        let refused = carry_out(&path, |_| Ok(())).unwrap_err();
        assert!(refused.contains("in use"), "{refused}");
        drop(held);
        assert_eq!(carry_out(&path, |_| Ok(())), Ok(restored()));
        fs::remove_dir_all(&path).unwrap();
    }
}
