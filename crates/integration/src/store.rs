//! Definitions on the disk, readable by their owner only because they hold secrets.
//!
//! `definitions.json` is replaced as a whole while it is small. When it is not, changes are added to `definitions.changes`, a line of JSON
//! for each, until they are as much as the file itself: so a change costs what it changes. A start reads the file and then the
//! changes. A change is added before the file is replaced, so that making all of them again gives what was there also after a crash
//! between replacing the file and removing them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::definition::{ActionDefinition, ConnectorDefinition, RuleDefinition, SourceDefinition};

/// Versions of one rule that are kept.
pub const HISTORY_MAX: usize = 50;

/// A file up to this size is replaced with each change.
const WHOLE_BYTES_MAX: u64 = 64 << 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Definitions {
    pub connectors: BTreeMap<String, ConnectorDefinition>,
    /// By `type:name`.
    pub actions: BTreeMap<String, ActionDefinition>,
    /// By name in FROM.
    pub sources: BTreeMap<String, SourceDefinition>,
    pub rules: BTreeMap<String, RuleDefinition>,
}

/// What the API has defined.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    #[serde(flatten)]
    pub definitions: Definitions,
    /// What rules were before, the latest last; also of rules that were deleted.
    pub history: BTreeMap<String, Vec<Version>>,
    /// Actions, also such as are declared elsewhere.
    pub paused: BTreeSet<String>,
}

/// A rule as it was from a time on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Version {
    /// From 1.
    pub version: u64,
    pub since_unix_ms: u64,
    /// None: the rule was deleted.
    pub rule: Option<RuleDefinition>,
}

/// One definition as it is from now on. None: it is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Connector(String, Option<ConnectorDefinition>),
    Action(String, Option<ActionDefinition>),
    Source(String, Option<SourceDefinition>),
    Rule(String, Version),
    Paused(String, bool),
}

impl Definitions {
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Connector(name, definition) => set(&mut self.connectors, name, definition),
            Change::Action(id, definition) => set(&mut self.actions, id, definition),
            Change::Source(id, definition) => set(&mut self.sources, id, definition),
            Change::Rule(id, version) => set(&mut self.rules, id, &version.rule),
            Change::Paused(..) => {}
        }
    }
}

fn set<T: Clone>(all: &mut BTreeMap<String, T>, name: &str, definition: &Option<T>) {
    match definition {
        Some(definition) => _ = all.insert(name.to_owned(), definition.clone()),
        None => _ = all.remove(name),
    }
}

impl Kept {
    /// Again and again has the effect of once.
    pub fn apply(&mut self, change: &Change) {
        self.definitions.apply(change);
        match change {
            Change::Paused(id, true) => _ = self.paused.insert(id.clone()),
            Change::Paused(id, false) => _ = self.paused.remove(id),
            Change::Action(id, definition) if definition.as_ref().is_none_or(|it| !it.enable) => {
                _ = self.paused.remove(id)
            }
            _ => {}
        }
        if let Change::Rule(id, version) = change
            && version.version > self.version(id)
        {
            let versions = self.history.entry(id.clone()).or_default();
            versions.push(version.clone());
            let surplus = versions.len().saturating_sub(HISTORY_MAX);
            versions.drain(..surplus);
        }
    }

    /// Of a rule, the latest; 0 if there was none.
    pub fn version(&self, id: &str) -> u64 {
        let latest = self.history.get(id).and_then(|versions| versions.last());
        latest.map_or(0, |latest| latest.version)
    }
}

#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// Of `definitions.json`.
    whole_bytes: u64,
    changes_path: PathBuf,
    /// What counts of `definitions.changes`; what may stand behind it was told to nobody.
    changes_bytes: u64,
}

impl Store {
    /// Nothing is defined where there is no file.
    pub fn open(directory: &Path) -> Result<(Store, Kept), String> {
        let mut store = Store {
            path: directory.join("definitions.json"),
            whole_bytes: 0,
            changes_path: directory.join("definitions.changes"),
            changes_bytes: 0,
        };
        let mut kept = Kept::default();
        if let Some(bytes) = read(&store.path)? {
            store.whole_bytes = bytes.len() as u64;
            kept = serde_json::from_slice(&bytes).map_err(|error| {
                let path = store.path.display();
                format!("{path}: {error}; repair the file, or move it away to begin without connectors and rules")
            })?;
        }
        if let Some(bytes) = read(&store.changes_path)? {
            let counts = make_again(&bytes, &mut kept).map_err(|problem| {
                let path = store.changes_path.display();
                format!("{path}: {problem}; repair the line, or delete it to begin without that change")
            })?;
            store.changes_bytes = counts;
        }
        Ok((store, kept))
    }

    /// `after`: everything as it is with the change. If it fails nothing has changed.
    pub fn save(&mut self, change: &Change, after: impl FnOnce() -> Kept) -> Result<(), String> {
        let cannot = |path: &Path, error: io::Error| format!("{} cannot be written: {error}", path.display());
        if self.changes_bytes == 0 && self.whole_bytes <= WHOLE_BYTES_MAX {
            return self.replace(&after()).map_err(|error| cannot(&self.path, error));
        }
        self.add(change).map_err(|error| cannot(&self.changes_path, error))?;
        if self.changes_bytes >= self.whole_bytes
            && let Err(error) = self.replace(&after())
        {
            // The change is kept all the same; the next one tries again.
            let error = cannot(&self.path, error);
            tracing::warn!(error, "changes of definitions stay in a file of their own");
        }
        Ok(())
    }

    fn add(&mut self, change: &Change) -> io::Result<()> {
        let at = self.changes_bytes;
        let mut line = serde_json::to_vec(change)?;
        line.push(b'\n');
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.changes_path)?;
        let written = (|| {
            file.set_len(at)?;
            file.write_all_at(&line, at)?;
            file.sync_all()
        })();
        if let Err(error) = written {
            // As far as the disk lets us: a start before the next change should not find it either.
            let _ = file.set_len(at).and_then(|()| file.sync_all());
            return Err(error);
        }
        if at == 0 {
            self.sync_directory()?;
        }
        self.changes_bytes = at + line.len() as u64;
        Ok(())
    }

    /// After a crash there is the old file or the new one.
    fn replace(&mut self, kept: &Kept) -> io::Result<()> {
        fs::create_dir_all(self.directory())?;
        let bytes = serde_json::to_vec_pretty(kept)?;
        storage::copy::replace(&self.path, &bytes)?;
        self.whole_bytes = bytes.len() as u64;
        if self.changes_bytes > 0 {
            fs::remove_file(&self.changes_path)?;
            self.changes_bytes = 0;
            self.sync_directory()?;
        }
        Ok(())
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(self.directory())?.sync_all()
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Returns how many bytes of it count: a last line that is not whole was being written when the power failed, and told to nobody.
fn make_again(bytes: &[u8], kept: &mut Kept) -> Result<u64, String> {
    let mut end = 0;
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    for (line, number) in lines.zip(1..) {
        let is_last = end + line.len() == bytes.len();
        match serde_json::from_slice::<Change>(line) {
            Ok(change) if line.ends_with(b"\n") => kept.apply(&change),
            Err(error) if !is_last => return Err(format!("line {number}: {error}")),
            _ => break,
        }
        end += line.len();
    }
    Ok(end as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: u64, sql: Option<&str>) -> Change {
        let id = format!("r{}", number % 7);
        let rule = sql.map(|sql| RuleDefinition {
            id: id.clone(),
            name: String::new(),
            sql: sql.to_owned(),
            actions: Vec::new(),
            enable: true,
            description: "x".repeat(1000),
        });
        let (version, since_unix_ms) = (number / 7 + 1, number);
        Change::Rule(
            id,
            Version {
                version,
                since_unix_ms,
                rule,
            },
        )
    }

    fn save(store: &mut Store, kept: &mut Kept, change: &Change) {
        let before = kept.clone();
        kept.apply(change);
        store
            .save(change, || {
                let mut after = before;
                after.apply(change);
                after
            })
            .expect("it is writable");
    }

    #[test]
    fn everything_comes_back_whatever_a_crash_has_left() {
        let directory = std::env::temp_dir().join(format!("tidewire-definitions-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let (mut store, mut kept) = Store::open(&directory).expect("nothing is there");
        let changes = directory.join("definitions.changes");
        let mut had_changes = 0;
        for number in 0..300 {
            let older = fs::read(&changes).ok();
            let change = change(number, (number % 5 > 0).then_some("SELECT 1"));
            save(&mut store, &mut kept, &change);
            assert_eq!(Store::open(&directory).expect("whole").1, kept, "{number}");
            match (older, fs::read(&changes)) {
                (_, Ok(now)) => {
                    had_changes += 1;
                    // A line that was being written.
                    fs::write(&changes, [&now[..], b"{\"rule\":[\"r"].concat()).expect("writable");
                    assert_eq!(Store::open(&directory).expect("whole").1, kept, "{number}");
                    fs::write(&changes, &now).expect("writable");
                }
                // All has been replaced, and what was replaced is still there.
                (Some(mut older), Err(_)) => {
                    older.extend(serde_json::to_vec(&change).expect("plain data"));
                    older.push(b'\n');
                    fs::write(&changes, older).expect("writable");
                    let (again, same) = Store::open(&directory).expect("whole");
                    assert_eq!(same, kept, "{number}");
                    store = again;
                }
                _ => {}
            }
        }
        assert!(had_changes > 100, "{had_changes}");
        fs::write(&changes, "{}\n{}\n").expect("writable");
        let error = Store::open(&directory).expect_err("a damaged line");
        assert!(error.contains("definitions.changes: line 1: "), "{error}");
        fs::remove_dir_all(&directory).expect("it is ours");
    }
}
