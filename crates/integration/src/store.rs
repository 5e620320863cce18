//! Definitions on the disk: one file, replaced as a whole, readable by its owner only because it holds secrets.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::definition::{ActionDefinition, ConnectorDefinition, RuleDefinition, SourceDefinition};

/// Versions of one rule that are kept.
pub const HISTORY_MAX: usize = 50;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Definitions {
    pub connectors: BTreeMap<String, ConnectorDefinition>,
    /// By `type:name`.
    pub actions: BTreeMap<String, ActionDefinition>,
    /// By name in FROM.
    pub sources: BTreeMap<String, SourceDefinition>,
    pub rules: BTreeMap<String, RuleDefinition>,
    /// What rules were before, the latest last; also of rules that were deleted.
    pub history: BTreeMap<String, Vec<Version>>,
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

impl Definitions {
    /// Notes what a rule is from now on.
    pub fn note(&mut self, id: &str, rule: Option<RuleDefinition>, unix_ms: u64) {
        let versions = self.history.entry(id.to_owned()).or_default();
        let version = versions.last().map_or(1, |last| last.version + 1);
        versions.push(Version {
            version,
            since_unix_ms: unix_ms,
            rule,
        });
        let surplus = versions.len().saturating_sub(HISTORY_MAX);
        versions.drain(..surplus);
    }
}

#[derive(Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    pub fn new(directory: &Path) -> Store {
        Store {
            path: directory.join("definitions.json"),
        }
    }

    /// Nothing is defined where there is no file.
    pub fn load(&self) -> Result<Definitions, String> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Definitions::default()),
            Err(error) => return Err(format!("{}: {error}", self.path.display())),
        };
        serde_json::from_slice(&bytes).map_err(|error| {
            let path = self.path.display();
            format!("{path}: {error}; repair the file, or move it away to begin without connectors and rules")
        })
    }

    pub fn save(&self, definitions: &Definitions) -> Result<(), String> {
        self.replace(definitions)
            .map_err(|error| format!("{} cannot be written: {error}", self.path.display()))
    }

    /// After a crash there is the old file or the new one.
    fn replace(&self, definitions: &Definitions) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory)?;
        let fresh = self.path.with_extension("json.new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(&serde_json::to_vec_pretty(definitions)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        File::open(directory)?.sync_all()
    }
}
