//! Files of a real disk as a whole: small ones that are replaced, and copies for backups, of files that never change, also while a
//! server has them, and of the beginnings of those that grow.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Files have what people and devices send: they are for nobody else.
pub(crate) const FILE_MODE: u32 = 0o600;

/// A file that never changes: linked where the file system can, copied where not. False: it is not there any more.
pub fn link_or_copy(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // Another file system, or one without links.
        Err(_) => copy_prefix(from, to, u64::MAX),
    }
}

/// So many bytes of a file, or all that it has. False: it is not there any more.
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

/// Replaces a file, or makes it: after a crash at any moment there is the old one or the new one, whole.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    write_synced(fresh, &mut &*bytes)
        .and_then(|()| fs::rename(fresh, path))
        .inspect_err(|_| {
            // The first error is the one to report.
            let _ = fs::remove_file(fresh);
        })?;
    match path.parent() {
        Some(parent) if parent != Path::new("") => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// The names in it survive a crash.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
