//! A later build reads the data directory of an earlier one, and refuses the one of a newer build.
//!
//! `tests/fixtures/data-0.1.0.tar.gz` is a data directory that version 0.1.0 wrote before it was killed. `dev/fixture`
//! writes a new one with the present build. docs/internals/formats.md tells when that is needed.

mod contents;
mod newer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

/// Names a file to which the test writes the data directory of the present build.
const WRITE_TO: &str = "TIDEWIRE_WRITE_FIXTURE";

const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n[durability]\nsegment_bytes = \"64KiB\"\n\
                      [limits]\nshutdown_grace = \"500ms\"\n";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Runs tar in a directory.
#[track_caller]
fn tar(directory: &Path, args: &[&str]) {
    let output = Command::new("tar").current_dir(directory).args(args).output();
    let output = output.expect("tar is installed");
    assert!(output.status.success(), "{output:?}");
}

/// Replaces the data directory of a stopped server by the one in an archive.
fn unpack(server: &Server, archive: &Path) {
    fs::remove_dir_all(server.dir().join("data")).expect("the server has stopped");
    tar(server.dir(), &["-xzf", &archive.display().to_string()]);
}

#[test]
fn data_of_version_0_1_0_is_read() {
    let mut server = Server::start(&Config::new(CONFIG));
    server.kill();
    unpack(&server, &fixtures().join("data-0.1.0.tar.gz"));
    server.spawn_again();
    server.wait_until_ready();
    contents::check(&server);
}

#[test]
fn data_of_this_build_is_read_after_a_kill() {
    let mut server = Server::start(&Config::new(CONFIG));
    contents::make(&server);
    server.kill();
    if let Ok(archive) = std::env::var(WRITE_TO) {
        tar(server.dir(), &["--sort=name", "-czf", &archive, "data"]);
    }
    server.spawn_again();
    server.wait_until_ready();
    contents::check(&server);
}
