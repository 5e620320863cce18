//! Helpers of the tests with real servers: temporary directories, certificates, the scripts in `dev/`, numbered
//! records, and a loop that sends until everything is accepted.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

#[path = "../../../../tests/support/ports.rs"]
mod ports;
#[path = "../../../../tests/support/shared.rs"]
pub mod shared;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use connectors::{DeliveryFailure, Record, Sink, sample};

pub use ports::free_port;

/// A generous limit for slow machines. Tests wait for conditions, not for times.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A temporary directory that other users can read. It is removed when dropped.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tidewire-{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("the directory for temporary files can be written to");
        Directory(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, content).expect("a file can be written");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server that a script in `dev/` runs.
pub struct Server {
    script: PathBuf,
    verb: String,
    pub directory: Directory,
    /// The first value that the script prints.
    pub address: String,
}

impl Server {
    /// Starts the script with its `options`.
    pub fn start(script: &str, verb: &str, options: &[&str]) -> Server {
        Server::start_in(Directory::new(script), script, verb, options)
    }

    pub fn start_in(directory: Directory, script: &str, verb: &str, options: &[&str]) -> Server {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev");
        let mut server = Server {
            script: root.join(script),
            verb: verb.to_owned(),
            directory,
            address: String::new(),
        };
        let output = server.run(verb, options);
        let first = output.lines().next().and_then(|line| line.split_once('='));
        server.address = first.expect("the script prints NAME=VALUE").1.to_owned();
        server
    }

    pub fn port(&self) -> u16 {
        let port = self.address.rsplit(':').next().expect("there is a last part");
        port.parse().expect("an address ends with a port")
    }

    /// Kills the server and restarts it at its old address after a second, so that clients notice. Does not block other
    /// tasks.
    pub async fn crash_and_return(server: &Arc<Server>) {
        let server = Arc::clone(server);
        let restart = move || {
            server.run("kill", &[]);
            std::thread::sleep(Duration::from_secs(1));
            server.run(&server.verb, &[]);
        };
        tokio::task::spawn_blocking(restart).await.expect("the scripts succeed");
    }

    /// Calls the script without blocking other tasks.
    pub async fn run_in_background(self: &Arc<Self>, verb: &str, options: &[&str]) {
        let (server, verb) = (Arc::clone(self), verb.to_owned());
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let call = move || {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            server.run(&verb, &options);
        };
        tokio::task::spawn_blocking(call).await.expect("the script succeeds");
    }

    fn run(&self, verb: &str, options: &[&str]) -> String {
        let mut command = Command::new(&self.script);
        command.arg(verb).arg(self.directory.path()).args(options);
        let output = command.output().expect("the script can be run");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {verb}: {errors}", self.script.display());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new(&self.script)
            .arg("kill")
            .arg(self.directory.path())
            .output();
    }
}

/// Writes `ca.pem`, `cert.pem` and `key.pem` for a server at 127.0.0.1 and localhost. Issuer and certificate have
/// different names, because OpenSSL treats a certificate with its issuer's name as self-issued.
pub fn certificates(directory: &Directory) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "issuer");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = rcgen::CertifiedIssuer::self_signed(params, key).expect("a certificate");
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = rcgen::CertificateParams::new(names).expect("names");
    params.distinguished_name.push(rcgen::DnType::CommonName, "server");
    let certificate = params.signed_by(&key, &ca).expect("a certificate");
    directory.write("ca.pem", ca.pem());
    directory.write("cert.pem", certificate.pem());
    directory.write("key.pem", key.serialize_pem());
}

/// Creates a record for each number from `fields`.
pub fn numbered(numbers: std::ops::Range<u32>, fields: impl Fn(u32) -> Vec<Option<Vec<u8>>>) -> Vec<Record> {
    let owned: Vec<Vec<Option<Vec<u8>>>> = numbers.map(fields).collect();
    let borrowed: Vec<Vec<Option<&[u8]>>> = owned
        .iter()
        .map(|fields| fields.iter().map(|field| field.as_deref()).collect())
        .collect();
    let slices: Vec<&[Option<&[u8]>]> = borrowed.iter().map(Vec::as_slice).collect();
    sample(0, &slices)
}

pub fn text(text: impl Into<String>) -> Option<Vec<u8>> {
    Some(text.into().into_bytes())
}

/// Sends records until all are accepted. Calls `between` after each round with the number of waiting records. Returns
/// the number of failed rounds.
pub async fn deliver(sink: &dyn Sink, records: &[Record], mut between: impl FnMut(usize)) -> usize {
    let end = Instant::now() + PATIENCE;
    let mut waiting = records.to_vec();
    let (mut failures, mut last) = (0, None);
    while !waiting.is_empty() {
        assert!(Instant::now() < end, "{} records still wait: {last:?}", waiting.len());
        let outcome = sink.send(&waiting).await;
        assert_eq!(outcome.len(), waiting.len());
        let mut again = |(record, result): (&Record, &Result<(), DeliveryFailure>)| match result {
            Ok(()) => None,
            Err(DeliveryFailure::Refused(reason)) => panic!("rejected: {reason}"),
            Err(failure) => {
                last = Some(failure.clone());
                Some(record.clone())
            }
        };
        waiting = waiting.iter().zip(&outcome).filter_map(&mut again).collect();
        if !waiting.is_empty() {
            failures += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        between(waiting.len());
    }
    failures
}

/// Delivers batches of new records, numbered from 0, during `fault` and a little longer. Returns the number of
/// delivered records and of failed rounds.
pub async fn deliver_during(
    fault: impl Future<Output = ()>,
    sink: &dyn Sink,
    batch: u32,
    fields: impl Fn(u32) -> Vec<Option<Vec<u8>>>,
) -> (u32, usize) {
    let is_over = AtomicBool::new(false);
    let fault = async {
        fault.await;
        is_over.store(true, Ordering::Release);
    };
    let load = async {
        let (mut sent, mut failures, mut batches_left) = (0, 0, 5);
        while batches_left > 0 {
            batches_left -= u32::from(is_over.load(Ordering::Acquire));
            failures += deliver(sink, &numbered(sent..sent + batch, &fields), |_| ()).await;
            sent += batch;
        }
        (sent, failures)
    };
    tokio::join!(load, fault).0
}

/// Waits until the condition holds.
pub async fn until(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "timed out waiting until {condition}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
