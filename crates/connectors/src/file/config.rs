//! Options of the file action. It has no connector: the file is here.

use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{at_least, out_of_range};
use crate::sink::Template;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileActionConfig {
    /// Made if it is missing.
    pub directory: PathBuf,
    /// The file that is written is `NAME.jsonl`; full ones are `NAME-TIME.jsonl`.
    #[serde(default = "name")]
    pub name: String,
    /// Template. Must give JSON.
    #[serde(default = "line")]
    pub line: String,
    /// A file that has so many bytes is full.
    #[serde(default = "file_bytes_max")]
    #[schemars(range(min = 1024))]
    pub file_bytes_max: u64,
    /// A file that is so old is full, in seconds. None: whatever its age.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub file_age_max_s: Option<u64>,
    /// Files that are kept; the oldest are removed.
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
    /// On the disk: survives a power cut.
    #[default]
    Fsync,
    /// With the operating system: survives the end of the process.
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
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.directory.is_absolute() {
            problems.push("directory: must be an absolute path".to_owned());
        }
        let mut parts = Path::new(&self.name).components();
        let is_name =
            matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == self.name.as_str());
        if !is_name || self.name.contains('\0') {
            problems.push("name: must be the name of a file, without directories".to_owned());
        }
        problems.extend(out_of_range([
            ("file_bytes_max", self.file_bytes_max, at_least(1024)),
            ("file_age_max_s", self.file_age_max_s.unwrap_or(1), at_least(1)),
            ("files_max", self.files_max.into(), 2..=10_000),
        ]));
        problems
    }

    pub fn templates(&self) -> Vec<Template> {
        vec![Template::new("line", &self.line)]
    }
}
