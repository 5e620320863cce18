//! Operations on whole files of a real disk: atomic replacement of small files, and copies for backups. Copies work
//! while a server uses the files: immutable files are copied completely, growing files up to a given length.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Owner only: the files contain the data of users and devices.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Copies a file that never changes: by a hard link if the file system supports it. Returns `false` if the file does
/// not exist.
pub fn link_or_copy(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // Another file system, or one without hard links.
        Err(_) => copy_prefix(from, to, u64::MAX),
    }
}

/// Copies the first `bytes` of a file, or all of a shorter one. Returns `false` if the file does not exist.
pub fn copy_prefix(from: &Path, to: &Path, bytes: u64) -> io::Result<bool> {
    match File::open(from) {
        Ok(file) => write_synced(to, &mut file.take(bytes)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub fn write_synced(to: &Path, from: &mut dyn Read) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(to)?;
    io::copy(from, &mut file)?;
    file.sync_all()
}

/// Replaces or creates a file atomically: after a crash the file has the old or the new contents.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    write_synced(temporary, &mut &*bytes)
        .and_then(|()| fs::rename(temporary, path))
        .inspect_err(|_| {
            // The first error is the one to report.
            let _ = fs::remove_file(temporary);
        })?;
    match path.parent() {
        Some(parent) if parent != Path::new("") => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// Makes the names in a directory durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
