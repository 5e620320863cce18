//! Runs a server on a disk with simulated faults. Compiles `faulty_disk.c` and loads it into the server process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Config, Server};

/// Configuration of a server whose disk fails while one of the control files below exists.
pub fn config(toml: &str) -> Config {
    Config::new(toml)
        .environment("LD_PRELOAD", library("crash/faulty_disk").display().to_string())
        .environment("TIDEWIRE_TEST_FAULTS", "{dir}/faults")
}

/// Returns the control file that makes syncs of the journal fail. With the extension `once`, a single sync fails.
pub fn sync_fails(server: &Server) -> PathBuf {
    server.dir().join("faults.sync")
}

/// Returns the control file that makes syncs of action buffers fail.
pub fn buffer_sync_fails(server: &Server) -> PathBuf {
    server.dir().join("faults.buffers")
}

/// Returns the control file that makes syncs of the platform's ingest log fail.
pub fn platform_sync_fails(server: &Server) -> PathBuf {
    server.dir().join("faults.platform")
}

/// Returns the control file that makes syncs of the journal wait.
pub fn sync_held(server: &Server) -> PathBuf {
    server.dir().join("faults.held")
}

/// Returns whether a sync has waited since the control file of [`sync_held`] exists.
pub fn sync_waits(server: &Server) -> bool {
    server.dir().join("faults.waiting").exists()
}

/// Returns the control file that makes writes to the journal fail with ENOSPC after half of their bytes.
pub fn no_space(server: &Server) -> PathBuf {
    server.dir().join("faults.full")
}

/// Compiles `tests/NAME.c` to a library for `LD_PRELOAD`.
pub fn library(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(directory).expect("cargo's directory for tests is writable");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/{name}.c"));
    let name = name.replace('/', "-");
    let own = directory.join(format!(
        "{name}-{}-{:?}.so",
        std::process::id(),
        std::thread::current().id()
    ));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&own, &source])
        .status()
        .expect("a C compiler is installed, because the workspace contains C code");
    assert!(status.success(), "{name}.c does not compile");
    // Another test may build the library at the same time.
    let library = directory.join(format!("{name}.so"));
    fs::rename(&own, &library).expect("both files are in one directory");
    library
}
