//! Stores definitions on the disk. Only the owner can read the files, because they contain secrets.
//!
//! A small `definitions.json` is replaced by every change. For a larger one, changes are appended to
//! `definitions.changes` as lines of JSON, until that file is as large as `definitions.json`. The cost of a change
//! therefore does not depend on the number of definitions. Opening reads the file and then applies the changes. Changes
//! are idempotent, so that applying them again is harmless if a crash occurs after the replacement of the file and
//! before the deletion of the changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::definition::{ActionDefinition, ConnectorDefinition, RuleDefinition, SourceDefinition};

/// Maximum number of stored versions of a rule.
pub const HISTORY_MAX: usize = 50;

/// A file up to this size is replaced by every change.
const WHOLE_BYTES_MAX: u64 = 64 << 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Definitions {
    pub connectors: BTreeMap<String, ConnectorDefinition>,
    /// By `type:name`.
    pub actions: BTreeMap<String, ActionDefinition>,
    /// By `type:name`.
    pub sources: BTreeMap<String, SourceDefinition>,
    pub rules: BTreeMap<String, RuleDefinition>,
}

/// Definitions and state that the API has stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredDefinitions {
    #[serde(flatten)]
    pub definitions: Definitions,
    /// Earlier versions of rules, the latest last. Includes deleted rules.
    pub history: BTreeMap<String, Vec<Version>>,
    /// Paused actions, including declared ones.
    pub paused: BTreeSet<String>,
}

/// A version of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "RuleVersion")]
pub struct Version {
    /// Number of the version, from 1.
    pub version: u64,
    pub since_unix_ms: u64,
    /// `null`: the rule was deleted.
    pub rule: Option<RuleDefinition>,
}

/// The new value of one definition; `None` deletes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefinitionChange {
    Connector(String, Option<ConnectorDefinition>),
    Action(String, Option<ActionDefinition>),
    Source(String, Option<SourceDefinition>),
    Rule(String, Version),
    Paused(String, bool),
}

impl Definitions {
    pub fn apply(&mut self, change: &DefinitionChange) {
        match change {
            DefinitionChange::Connector(name, definition) => set(&mut self.connectors, name, definition),
            DefinitionChange::Action(id, definition) => set(&mut self.actions, id, definition),
            DefinitionChange::Source(id, definition) => set(&mut self.sources, id, definition),
            DefinitionChange::Rule(id, version) => set(&mut self.rules, id, &version.rule),
            DefinitionChange::Paused(..) => {}
        }
    }
}

fn set<T: Clone>(all: &mut BTreeMap<String, T>, name: &str, definition: &Option<T>) {
    match definition {
        Some(definition) => _ = all.insert(name.to_owned(), definition.clone()),
        None => _ = all.remove(name),
    }
}

impl StoredDefinitions {
    /// Applies a change. Idempotent.
    pub fn apply(&mut self, change: &DefinitionChange) {
        self.definitions.apply(change);
        match change {
            DefinitionChange::Paused(id, true) => _ = self.paused.insert(id.clone()),
            DefinitionChange::Paused(id, false) => _ = self.paused.remove(id),
            DefinitionChange::Action(id, definition) if definition.as_ref().is_none_or(|it| !it.enable) => {
                _ = self.paused.remove(id)
            }
            _ => {}
        }
        if let DefinitionChange::Rule(id, version) = change
            && version.version > self.version(id)
        {
            let versions = self.history.entry(id.clone()).or_default();
            versions.push(version.clone());
            let surplus = versions.len().saturating_sub(HISTORY_MAX);
            versions.drain(..surplus);
        }
    }

    /// Returns the latest version of a rule, or 0.
    pub fn version(&self, id: &str) -> u64 {
        let latest = self.history.get(id).and_then(|versions| versions.last());
        latest.map_or(0, |latest| latest.version)
    }
}

#[derive(Debug)]
pub struct DefinitionStore {
    path: PathBuf,
    /// Size of `definitions.json`.
    whole_bytes: u64,
    changes_path: PathBuf,
    /// Size of the valid part of `definitions.changes`. Data behind it was never confirmed to a caller.
    changes_bytes: u64,
}

impl DefinitionStore {
    /// Opens the store. Without a file there are no definitions.
    pub fn open(directory: &Path) -> Result<(DefinitionStore, StoredDefinitions), String> {
        let mut store = DefinitionStore {
            path: directory.join(crate::DEFINITIONS_NAME),
            whole_bytes: 0,
            changes_path: directory.join("definitions.changes"),
            changes_bytes: 0,
        };
        let mut stored = StoredDefinitions::default();
        if let Some(bytes) = read(&store.path)? {
            store.whole_bytes = bytes.len() as u64;
            stored = serde_json::from_slice(&bytes).map_err(|error| {
                let (path, error) = (store.path.display(), input_errors::plain(&error));
                format!("{path}: {error}; repair the file, or move it away to start without connectors and rules")
            })?;
        }
        if let Some(bytes) = read(&store.changes_path)? {
            let valid_bytes = apply_all(&bytes, &mut stored).map_err(|problem| {
                let path = store.changes_path.display();
                format!("{path}: {problem}; repair the line, or delete it to start without that change")
            })?;
            store.changes_bytes = valid_bytes;
        }
        Ok((store, stored))
    }

    /// Stores a change. `after` returns everything including the change. On an error nothing has changed.
    pub fn save(&mut self, change: &DefinitionChange, after: impl FnOnce() -> StoredDefinitions) -> Result<(), String> {
        let cannot = |path: &Path, error: io::Error| format!("cannot write {}: {error}", path.display());
        if self.changes_bytes == 0 && self.whole_bytes <= WHOLE_BYTES_MAX {
            return self.replace(&after()).map_err(|error| cannot(&self.path, error));
        }
        self.add(change).map_err(|error| cannot(&self.changes_path, error))?;
        if self.changes_bytes >= self.whole_bytes
            && let Err(error) = self.replace(&after())
        {
            // The change itself is stored. The next change repeats the replacement.
            let error = cannot(&self.path, error);
            tracing::warn!(
                error,
                "replacing the definitions file failed; changes stay in definitions.changes"
            );
        }
        Ok(())
    }

    fn add(&mut self, change: &DefinitionChange) -> io::Result<()> {
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
            // Truncates the failed line if possible, so that it is not applied after a restart.
            let _ = file.set_len(at).and_then(|()| file.sync_all());
            return Err(error);
        }
        if at == 0 {
            self.sync_directory()?;
        }
        self.changes_bytes = at + line.len() as u64;
        Ok(())
    }

    /// Replaces the file. After a crash the old or the new file exists.
    fn replace(&mut self, stored: &StoredDefinitions) -> io::Result<()> {
        fs::create_dir_all(self.directory())?;
        let bytes = serde_json::to_vec_pretty(stored)?;
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

/// Applies all changes. Returns the size of the valid part: an incomplete last line was never confirmed to a caller.
fn apply_all(bytes: &[u8], stored: &mut StoredDefinitions) -> Result<u64, String> {
    let mut end = 0;
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    for (line, number) in lines.zip(1..) {
        let is_last = end + line.len() == bytes.len();
        match serde_json::from_slice::<DefinitionChange>(line) {
            Ok(change) if line.ends_with(b"\n") => stored.apply(&change),
            Err(error) if !is_last => return Err(format!("line {number}: {}", input_errors::plain(&error))),
            _ => break,
        }
        end += line.len();
    }
    Ok(end as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: u64, sql: Option<&str>) -> DefinitionChange {
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
        DefinitionChange::Rule(
            id,
            Version {
                version,
                since_unix_ms,
                rule,
            },
        )
    }

    fn save(store: &mut DefinitionStore, stored: &mut StoredDefinitions, change: &DefinitionChange) {
        let before = stored.clone();
        stored.apply(change);
        store
            .save(change, || {
                let mut after = before;
                after.apply(change);
                after
            })
            .expect("the files are writable");
    }

    #[test]
    fn definitions_survive_a_crash_at_any_point() {
        let directory = std::env::temp_dir().join(format!("tidewire-definitions-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let (mut store, mut stored) = DefinitionStore::open(&directory).expect("an empty store");
        let changes = directory.join("definitions.changes");
        let mut had_changes = 0;
        for number in 0..300 {
            let older = fs::read(&changes).ok();
            let change = change(number, (number % 5 > 0).then_some("SELECT 1"));
            save(&mut store, &mut stored, &change);
            assert_eq!(DefinitionStore::open(&directory).expect("whole").1, stored, "{number}");
            match (older, fs::read(&changes)) {
                (_, Ok(now)) => {
                    had_changes += 1;
                    // A line whose write was interrupted.
                    fs::write(&changes, [&now[..], b"{\"rule\":[\"r"].concat()).expect("writable");
                    assert_eq!(DefinitionStore::open(&directory).expect("whole").1, stored, "{number}");
                    fs::write(&changes, &now).expect("writable");
                }
                // The file was replaced, but the changes were not deleted.
                (Some(mut older), Err(_)) => {
                    older.extend(serde_json::to_vec(&change).expect("plain data"));
                    older.push(b'\n');
                    fs::write(&changes, older).expect("writable");
                    let (reopened, same) = DefinitionStore::open(&directory).expect("whole");
                    assert_eq!(same, stored, "{number}");
                    store = reopened;
                }
                _ => {}
            }
        }
        assert!(had_changes > 100, "{had_changes}");
        fs::write(&changes, "{}\n{}\n").expect("writable");
        let error = DefinitionStore::open(&directory).expect_err("a damaged line");
        assert!(error.contains("definitions.changes: line 1: "), "{error}");
        fs::remove_dir_all(&directory).expect("a directory of the test");
    }
}
