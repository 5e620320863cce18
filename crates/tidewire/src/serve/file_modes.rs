//! Permissions of files with secrets, checked at the start.
//!
//! The server creates its files for its own user only. Files that exist with wider permissions, as after a copy or with
//! another umask, are restricted, with a warning. Other files in the data directory stay as they are.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::device_platform;

/// Permissions of the group and of other users.
const OF_OTHERS: u32 = 0o077;
/// Names in one warning.
const NAMED_MAX: usize = 5;

/// Directories of the data directory that the server creates, with everything in them.
const DIRECTORIES: [&str; 11] = [
    journal::DIRECTORY_NAME,
    integration::DIRECTORY_NAME,
    device_platform::DIRECTORY_NAME,
    api::HISTORY_NAME,
    certificates::ACME_DIRECTORY,
    certificates::LIST_DIRECTORY,
    certificates::STAPLE_DIRECTORY,
    "backups",
    "benchmarks",
    "replaced-data",
    "restore",
];
/// Files of the data directory that the server creates, besides the files of the audit log.
const FILES: [&str; 10] = [
    "admin-password",
    "admins",
    "admins-one-time",
    "admins-totp",
    "api-keys.json",
    "banned.json",
    "platform-token-key",
    "runtime.toml",
    "stores.json",
    "users",
];

#[derive(Default)]
struct RestrictedFiles {
    count: usize,
    /// The first ones.
    named: Vec<String>,
    /// Files whose permissions cannot be changed, with the first error.
    failed: Option<(PathBuf, io::Error)>,
}

/// Removes the permissions of other users from the server's files.
pub fn restrict(data_dir: &Path) {
    let mut restricted = RestrictedFiles::default();
    for name in DIRECTORIES {
        restricted.visit(&data_dir.join(name));
    }
    for entry in restricted.entries(data_dir) {
        let name = entry.file_name();
        let is_own = |name: &str| FILES.contains(&name) || web::audit::is_audit_file(name);
        if name.to_str().is_some_and(is_own) {
            restricted.visit(&entry.path());
        }
    }
    restricted.report();
}

impl RestrictedFiles {
    /// Follows no symbolic links.
    fn visit(&mut self, path: &Path) {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return;
        };
        if metadata.is_symlink() {
            return;
        }
        self.restrict(path, &metadata);
        if metadata.is_dir() {
            self.entries(path).iter().for_each(|entry| self.visit(&entry.path()));
        }
    }

    /// Returns the entries of a directory. An unreadable directory is reported.
    fn entries(&mut self, directory: &Path) -> Vec<fs::DirEntry> {
        let read = fs::read_dir(directory).and_then(|entries| entries.collect());
        read.unwrap_or_else(|error| {
            self.failed.get_or_insert((directory.to_owned(), error));
            Vec::new()
        })
    }

    fn restrict(&mut self, path: &Path, metadata: &Metadata) {
        let mode = metadata.mode() & 0o7777;
        if mode & OF_OTHERS == 0 {
            return;
        }
        match fs::set_permissions(path, fs::Permissions::from_mode(mode & !OF_OTHERS)) {
            Ok(()) => {
                self.count += 1;
                if self.named.len() < NAMED_MAX {
                    self.named.push(format!("{} ({mode:o})", path.display()));
                }
            }
            Err(error) => {
                self.failed.get_or_insert((path.to_owned(), error));
            }
        }
    }

    fn report(&self) {
        if self.count > 0 {
            tracing::warn!(
                count = self.count,
                files = self.named.join(", "),
                "files of the server were accessible to other users of this machine; their permissions were restricted"
            );
        }
        if let Some((path, error)) = &self.failed {
            tracing::warn!(
                file = %path.display(),
                %error,
                "other users of this machine can access files of the server, and their permissions cannot be changed"
            );
        }
    }
}

/// Warns about files with secrets that every user of this machine can read. The configuration names them, so the server
/// does not change them.
pub fn warn_of_readable_secrets<'a>(files: impl Iterator<Item = (&'static str, &'a Path)>) {
    for (option, path) in files {
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.mode() & 0o7777);
        if mode & 0o004 != 0 {
            tracing::warn!(
                option,
                file = %path.display(),
                mode = format!("{mode:o}"),
                "every user of this machine can read a file with secrets: run chmod 600 on it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn own_files_are_restricted_and_others_stay() {
        let data = std::env::temp_dir().join(format!("tidewire-modes-{}", std::process::id()));
        let _ = fs::remove_dir_all(&data);
        fs::create_dir_all(data.join("platform/log")).unwrap();
        fs::create_dir_all(data.join("mine")).unwrap();
        let files = [
            "platform/entities.sqlite",
            "users",
            "audit.jsonl",
            "audit.1.jsonl",
            "mine/a",
            "notes.txt",
        ];
        for file in files {
            fs::write(data.join(file), "x").unwrap();
            fs::set_permissions(data.join(file), fs::Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(data.join("platform"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(data.join("platform/log"), fs::Permissions::from_mode(0o770)).unwrap();
        std::os::unix::fs::symlink(data.join("notes.txt"), data.join("banned.json")).unwrap();
        restrict(&data);
        let mode = |file: &str| fs::metadata(data.join(file)).unwrap().mode() & 0o7777;
        assert_eq!([mode("platform"), mode("platform/log")], [0o700; 2]);
        assert_eq!(files.map(mode), [0o600, 0o600, 0o600, 0o600, 0o644, 0o644]);
        fs::remove_dir_all(&data).unwrap();
    }
}
