//! Checks for `tidewire check` whether the server can write to its paths. Creates nothing.

use std::fs;
use std::path::Path;

use rustix::fs::{Access, access};

use super::Config;

/// Returns one message per option whose path the server cannot use.
pub fn unusable_paths(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    problems.extend(unusable_directory("node.data_dir", &config.data_dir));
    if let Some(file) = config.log.file.0.as_deref() {
        problems.extend(unusable_file("log.file", file));
    }
    problems
}

/// The server creates the directory and its parents.
fn unusable_directory(key: &str, path: &Path) -> Option<String> {
    let shown = path.display();
    let existing = path
        .ancestors()
        .map(|path| match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        })
        .find(|path| path.exists())?;
    if !existing.is_dir() {
        return Some(format!(
            "{key}: cannot use {shown}: {} is not a directory",
            existing.display()
        ));
    }
    let error = access(existing, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!("{key}: cannot write to {}: {error}", existing.display()))
}

/// The server creates the file, but not its directory.
fn unusable_file(key: &str, path: &Path) -> Option<String> {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(file) if file.is_dir() => Some(format!("{key}: {shown} is a directory")),
        Ok(_) => {
            let error = access(path, Access::WRITE_OK).err()?;
            Some(format!("{key}: cannot write to {shown}: {error}"))
        }
        Err(_) => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            let error = access(parent, Access::WRITE_OK | Access::EXEC_OK).err();
            match (error, parent.is_dir()) {
                (None, true) => None,
                (None, false) => Some(format!("{key}: {} is not a directory", parent.display())),
                (Some(error), _) => Some(format!("{key}: cannot create {shown}: {error}")),
            }
        }
    }
}
