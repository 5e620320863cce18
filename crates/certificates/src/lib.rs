//! Certificates, revocation lists and OCSP responses that the server obtains itself, in the background.
//!
//! - `acme` obtains and renews the server's certificate (RFC 8555). Cargo feature `acme`.
//! - `downloads` fetches revocation lists of client certificates.
//! - `staples` obtains OCSP responses for the server's certificates.
//!
//! All store their result in a file of the data directory and then call the function that reloads it, again until it
//! succeeds. They never run on a worker. A failure leaves the previous file in use.

#[cfg(feature = "acme")]
pub mod acme;
pub mod downloads;
mod pause;
pub mod staples;
mod status;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{SHA256, digest};

pub use status::{ManagedStatus, StatusCell};
pub use worker::{Task, Worker};

/// Called with a file after it has changed. The error says which listener cannot use it.
pub type FileChanged = Arc<dyn Fn(&Path) -> Result<(), String> + Send + Sync>;

/// Directory of ACME accounts and certificates below the data directory.
pub const ACME_DIRECTORY: &str = "acme";
/// Directory of downloaded revocation lists below the data directory.
pub const LIST_DIRECTORY: &str = "crl";

/// File of the certificate from the ACME authority, with its key.
pub fn certificate_file(data_dir: &Path) -> PathBuf {
    data_dir.join(ACME_DIRECTORY).join("certificate.pem")
}

/// File of the revocation list from a URL.
pub fn list_file(data_dir: &Path, url: &str) -> PathBuf {
    data_dir.join(LIST_DIRECTORY).join(format!("{}.crl", short_hash(url)))
}

/// Directory of OCSP responses below the data directory.
pub const STAPLE_DIRECTORY: &str = "ocsp";

/// File of the OCSP response for the certificate in a file, from the responder of the configuration, if it has one.
pub fn staple_file(data_dir: &Path, certificate: &Path, responder_url: Option<&str>) -> PathBuf {
    let name = format!("{}\n{}", certificate.display(), responder_url.unwrap_or_default());
    data_dir
        .join(STAPLE_DIRECTORY)
        .join(format!("{}.der", short_hash(&name)))
}

/// The beginning of the SHA-256 of a text, hexadecimal, for names of files.
fn short_hash(text: &str) -> String {
    const BYTES: usize = 16;
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref()[..BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Creates a directory that only the user of the server can read. Its name is on the disk afterwards.
fn create_private(directory: &Path) -> Result<(), String> {
    use std::os::unix::fs::DirBuilderExt;
    if directory.is_dir() {
        return Ok(());
    }
    let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let created = created.and_then(|()| directory.parent().map_or(Ok(()), storage::copy::sync_directory));
    created.map_err(|error| format!("cannot create {}: {error}", directory.display()))
}

/// The time as Unix seconds.
fn now_unix_s() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// The time as Unix milliseconds.
fn now_unix_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// `2026-11-30T01:02:03Z`
pub fn time_text(unix_s: i64) -> String {
    jiff::Timestamp::from_second(unix_s).map_or_else(|_| format!("Unix time {unix_s}"), |time| time.to_string())
}
