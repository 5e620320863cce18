//! Starts one FerretDB, one Kafka, one MariaDB and one PostgreSQL for all tests of a run. Each test uses its own
//! topics, databases, collections or tables.
//!
//! `make test` starts the servers and names their directory in `TIDEWIRE_TEST_SERVERS`. Without the variable, the first
//! test that needs a server starts it, and the server ends with the process. A test that stops a server or sets its
//! options starts its own. So does each test with a Redis, which starts in 0.05 s.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

pub static KAFKA: Shared = Shared::new("kafka");
pub static MARIADB: Shared = Shared::new("mariadb");
pub static MONGODB: Shared = Shared::new("mongodb");
pub static POSTGRES: Shared = Shared::new("postgres");

/// A server that a script in `dev/` starts.
pub struct Shared {
    script: &'static str,
    directory: OnceLock<PathBuf>,
}

impl Shared {
    const fn new(script: &'static str) -> Shared {
        Shared {
            script,
            directory: OnceLock::new(),
        }
    }

    /// Returns the data directory of the server. The first call starts the server.
    pub fn directory(&self) -> &Path {
        self.directory
            .get_or_init(|| match std::env::var_os("TIDEWIRE_TEST_SERVERS") {
                Some(all) => Path::new(&all).join(self.script),
                None => start(self.script),
            })
    }

    /// Returns the value of a line NAME=VALUE that the script printed.
    pub fn value(&self, name: &str) -> String {
        let path = self.directory().join("env");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        let line = lines.find(|(found, _)| *found == name);
        line.unwrap_or_else(|| panic!("{} has no {name}", path.display()))
            .1
            .to_owned()
    }
}

/// Starts a server under a shell. When this process ends, the shell reads the end of its input and stops the server.
fn start(script: &str) -> PathBuf {
    const GUARD: &str = r#"
        trap '' INT
        "$1" start "$2" </dev/null && echo started
        read -r _
        "$1" kill "$2"
        rm -rf "$2"
    "#;
    let directory = std::env::temp_dir().join(format!("tidewire-shared-{script}-{}", std::process::id()));
    let mut guard = Command::new("sh")
        .args(["-c", GUARD, "guard"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev").join(script))
        .arg(&directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell starts");
    let output = BufReader::new(guard.stdout.take().expect("the output is piped"));
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "started"), "dev/{script} does not start");
    // Dropping the guard would close its input and stop the server.
    std::mem::forget(guard);
    directory
}
