//! A server on a disk that can be made to fail: `faulty_disk.c`, built here and loaded into it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Config, Server};

/// For a server whose disk has faults once one of the files below is there.
pub fn config(toml: &str) -> Config {
    Config::new(toml)
        .environment("LD_PRELOAD", library().display().to_string())
        .environment("TIDEWIRE_TEST_FAULTS", "{dir}/faults")
}

/// Makes syncs of the journal fail while it is there; with the extension `once` a single one.
pub fn sync_fails(server: &Server) -> PathBuf {
    server.dir().join("faults.sync")
}

/// Makes syncs of the journal wait while it is there.
pub fn sync_held(server: &Server) -> PathBuf {
    server.dir().join("faults.held")
}

/// Makes writes of the journal find no space, after half of what they write, while it is there.
pub fn no_space(server: &Server) -> PathBuf {
    server.dir().join("faults.full")
}

fn library() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(directory).expect("cargo's directory for tests is writable");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/crash/faulty_disk.c");
    let own = directory.join(format!(
        "faulty_disk-{}-{:?}.so",
        std::process::id(),
        std::thread::current().id()
    ));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&own, &source])
        .status()
        .expect("there is a C compiler: the workspace has C in it");
    assert!(status.success(), "faulty_disk.c does not compile");
    // Another test may be doing the same.
    let library = directory.join("faulty_disk.so");
    fs::rename(&own, &library).expect("both are in one directory");
    library
}
