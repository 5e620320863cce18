//! Options of the file action. It has no connector, because it writes local files.

use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{at_least, out_of_range};
use crate::sink::FieldTemplate;

/// Files that the action writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileActionConfig {
    /// Absolute path of the directory. It is created if it does not exist.
    pub directory: PathBuf,
    /// Name of the files. The current file is `NAME.jsonl`; completed files are `NAME-TIME.jsonl`.
    #[serde(default = "name")]
    pub name: String,
    /// Template of a line. It must yield JSON.
    #[serde(default = "line")]
    pub line: String,
    /// Size in bytes at which a file is complete and a new one begins.
    #[serde(default = "file_bytes_max")]
    #[schemars(range(min = 1024))]
    pub file_bytes_max: u64,
    /// Age in seconds at which a file is complete and a new one begins. Default: no limit.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub file_age_max_s: Option<u64>,
    /// Maximum number of files. The oldest files are deleted.
    #[serde(default = "files_max")]
    #[schemars(range(min = 2, max = 10_000))]
    pub files_max: u32,
    /// When a line counts as written.
    #[serde(default)]
    pub sync: FileSync,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileSync {
    /// Synced to the disk. Survives a power failure.
    #[default]
    Fsync,
    /// Handed to the operating system. Survives a crash of the process, but not a power failure.
    Os,
}

fn name() -> String {
    "messages".to_owned()
}

fn line() -> String {
    "${.}".to_owned()
}

fn file_bytes_max() -> u64 {
    64 << 20
}

fn files_max() -> u32 {
    16
}

impl FileActionConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.directory.is_absolute() {
            problems.push("directory: must be an absolute path".to_owned());
        }
        let mut parts = Path::new(&self.name).components();
        let is_name =
            matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == self.name.as_str());
        if !is_name || self.name.contains('\0') {
            problems.push("name: must be a file name without directories".to_owned());
        }
        problems.extend(out_of_range([
            ("file_bytes_max", self.file_bytes_max, at_least(1024)),
            ("file_age_max_s", self.file_age_max_s.unwrap_or(1), at_least(1)),
            ("files_max", self.files_max.into(), 2..=10_000),
        ]));
        problems
    }

    pub fn templates(&self) -> Vec<FieldTemplate> {
        vec![FieldTemplate::document("line", &self.line)]
    }
}
