//! Size and free space of the data directory's disk.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::statvfs;
use schemars::JsonSchema;
use serde::Serialize;

/// The data directory, if there is one.
#[derive(Clone)]
pub struct DataDirectory(Option<Arc<Path>>);

impl DataDirectory {
    pub fn new(path: Option<&Path>) -> DataDirectory {
        DataDirectory(path.map(Arc::from))
    }

    pub fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }

    pub fn disk(&self) -> Option<DiskView> {
        DiskView::of(self.path()?)
    }
}

/// The disk of the data directory.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct DiskView {
    /// Bytes that this process may still write.
    pub free_bytes: u64,
    pub total_bytes: u64,
}

impl DiskView {
    /// `None`: the operating system does not report it.
    pub fn of(directory: &Path) -> Option<DiskView> {
        let status = statvfs(directory).ok()?;
        Some(DiskView {
            free_bytes: status.f_bavail.saturating_mul(status.f_frsize),
            total_bytes: status.f_blocks.saturating_mul(status.f_frsize),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_known_for_existing_directories_only() {
        let disk = DiskView::of(&std::env::temp_dir()).unwrap();
        assert!(disk.free_bytes <= disk.total_bytes && disk.total_bytes > 1 << 20);
        assert!(DiskView::of(Path::new("/no/such/directory")).is_none());
    }
}
