//! Copies of files of a real disk, for backups: of files that never change, also while a server has them, and of the beginnings of
//! those that grow.

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

/// The names in it survive a crash.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
