//! Automatic certificates from a certificate authority with ACME (RFC 8555), such as Let's Encrypt.
//!
//! One certificate for all domains, renewed after two thirds of its lifetime. `order.rs` obtains it, `account.rs` keeps
//! the account at the authority, and `challenges.rs` answers the authority's checks that the server owns the domains.
//! `failure.rs` says what failed and what to do.
//!
//! # Files below `acme/` of the data directory, mode 0600, replaced atomically
//!
//! - `certificate.pem`: a comment with the directory URL, the private key, the certificate, the intermediate ones. One
//!   file, so that key and certificate always belong together.
//! - `account-HASH.json`: the account and its key; `HASH` identifies the directory URL.
//! - `order.json`: the order in progress and the private key of its certificate.
//! - `attempt.json`: the last failures, and when the next attempt may begin.

mod account;
mod attempts;
mod certificate;
mod challenges;
mod client;
mod failure;
mod order;
mod order_file;
mod registration;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use connectors::{Backoff, RetryConfig};
use serde::Serialize;
use tokio::time::timeout;

use crate::pause::pause;
use crate::{FileChanged, StatusCell, Task, now_unix_ms, now_unix_s, time_text};
pub use account::{ExternalAccount, read_external_account};
use attempts::Attempts;
use certificate::StoredCertificate;
pub use certificate::discard_damaged;
use challenges::ChallengeServer;
pub use challenges::StartError;
use failure::Failure;

/// Longest sleep, because the clock can change and the machine can be suspended.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// Limit of one attempt to obtain a certificate.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(600);

/// How the server proves that it owns a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeKind {
    /// A file over HTTP on port 80 (RFC 8555, 8.3).
    Http01,
    /// A certificate over TLS on port 443 (RFC 8737).
    TlsAlpn01,
}

#[derive(Clone, Debug)]
pub struct AcmeConfig {
    /// URL of the authority's directory.
    pub directory: String,
    pub domains: Vec<String>,
    /// Contact URLs, such as `mailto:ops@example.org`.
    pub contact: Vec<String>,
    pub challenge: ChallengeKind,
    /// Address on which the challenge is answered.
    pub bind: SocketAddr,
    /// CA certificates of the directory. `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    pub external_account: Option<ExternalAccount>,
    /// Directory of the files.
    pub files: PathBuf,
    pub timing: AcmeTiming,
}

/// Pauses that no option sets.
#[derive(Clone, Copy, Debug)]
pub struct AcmeTiming {
    /// After the first attempt that the authority rejected. Let's Encrypt allows five per hour.
    pub first_retry_rejected: Duration,
    /// After the first attempt without an answer of the authority.
    pub first_retry_unreachable: Duration,
    /// The pauses double up to this one.
    pub longest_retry: Duration,
    /// Limit of a request to the authority.
    pub request_limit: Duration,
}

impl Default for AcmeTiming {
    fn default() -> AcmeTiming {
        AcmeTiming {
            first_retry_rejected: Duration::from_secs(300),
            first_retry_unreachable: Duration::from_secs(30),
            longest_retry: Duration::from_secs(6 * 3600),
            request_limit: Duration::from_secs(30),
        }
    }
}

/// Called after a new certificate has been written to the file.
pub type CertificateChanged = FileChanged;

/// Obtains and renews the certificate.
pub struct Acme {
    config: AcmeConfig,
    server: ChallengeServer,
    status: StatusCell,
}

impl Acme {
    /// Opens the port of the challenge.
    pub fn open(config: AcmeConfig) -> Result<Acme, StartError> {
        Ok(Acme {
            server: ChallengeServer::open(config.challenge, config.bind)?,
            status: StatusCell::new(config.domains.join(", ")),
            config,
        })
    }

    /// The address on which the challenge is answered.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn status(&self) -> StatusCell {
        self.status.clone()
    }

    /// Obtains certificates until the server stops.
    pub fn task(self, changed: CertificateChanged) -> Task {
        Box::pin(async move {
            let server = self.server.serve();
            tokio::select! {
                () = server => {}
                () = renew(&self.config, &self.server, &self.status, &changed) => {}
            }
        })
    }
}

async fn renew(config: &AcmeConfig, server: &ChallengeServer, status: &StatusCell, changed: &CertificateChanged) {
    let mut attempts = Attempts::read(config);
    // Waited for once: later pauses are those of this process.
    let mut has_waited = false;
    let mut unused = Backoff::new(&RetryConfig {
        first_ms: config.timing.first_retry_rejected.as_millis() as u64,
        longest_ms: config.timing.longest_retry.as_millis() as u64,
        ..RetryConfig::default()
    });
    // The listeners have read the stored certificate at the start.
    let mut is_in_use = true;
    loop {
        let stored = StoredCertificate::read(&config.files);
        status.stored(
            stored
                .as_ref()
                .ok()
                .and_then(|stored| Some(stored.as_ref()?.not_after_unix_s)),
        );
        match certificate::reason_to_renew(&stored, config, now_unix_s()) {
            Ok(due_unix_s) => {
                if !is_in_use {
                    if let Err(failure) = put_in_use(config, changed) {
                        let length = unused.pause();
                        report(config, status, &failure, length, is_in_use);
                        pause(length, || ()).await;
                        continue;
                    }
                    is_in_use = true;
                    unused.reset();
                    status.succeeded();
                }
                // The server may have ended before it deleted the file.
                order::discard_stored(config);
                let left = Duration::from_secs(u64::try_from(due_unix_s - now_unix_s()).unwrap_or_default());
                pause(left.clamp(Duration::from_secs(1), SLEEP_MAX), || ()).await;
                continue;
            }
            Err(_) if !has_waited => {
                has_waited = true;
                wait_for_earlier_pause(config, status, &attempts).await;
                continue;
            }
            Err(why) => {
                tracing::info!(
                    domains = config.domains.join(", "),
                    directory = config.directory,
                    why,
                    "requesting a certificate"
                );
            }
        }
        let problem = match attempt(config, server, &mut attempts).await {
            Ok(not_after_unix_s) => {
                tracing::info!(
                    domains = config.domains.join(", "),
                    expires_at = time_text(not_after_unix_s),
                    "certificate obtained"
                );
                status.stored(Some(not_after_unix_s));
                let stored = StoredCertificate::read(&config.files);
                let is_due = certificate::reason_to_renew(&stored, config, now_unix_s())
                    .err()
                    .map(|why| {
                        Failure::rejected(format!("the authority's certificate is due for renewal at once: {why}"))
                            .with_advice("check the clock of the server")
                    });
                if is_due.is_none() {
                    attempts.succeeded();
                    status.succeeded();
                }
                // It is valid, even if it is due.
                let problem = put_in_use(config, changed).err();
                is_in_use = problem.is_none();
                if let Some(failure) = problem.filter(|_| is_due.is_none()) {
                    let length = unused.pause();
                    report(config, status, &failure, length, is_in_use);
                    pause(length, || ()).await;
                    continue;
                }
                is_due
            }
            Err(failure) => Some(failure),
        };
        if let Some(failure) = problem {
            let length = attempts.failed(&failure);
            report(config, status, &failure, length, is_in_use);
            pause(length, || ()).await;
        }
    }
}

/// Waits as long as an earlier run of the server would have.
async fn wait_for_earlier_pause(config: &AcmeConfig, status: &StatusCell, attempts: &Attempts<'_>) {
    let rest = attempts.rest(now_unix_ms());
    if rest.is_zero() {
        return;
    }
    let reason = attempts.reason();
    if let Some(reason) = reason {
        status.had_failed(reason);
    }
    tracing::warn!(
        domains = config.domains.join(", "),
        reason = reason.unwrap_or("the server ended during the last attempt"),
        retry_ms = rest.as_millis() as u64,
        "waiting before the next request for a certificate, because the last one failed before the restart"
    );
    pause(rest, || ()).await;
}

async fn attempt(config: &AcmeConfig, server: &ChallengeServer, attempts: &mut Attempts<'_>) -> Result<i64, Failure> {
    attempts.begin()?;
    let obtained = timeout(ATTEMPT_LIMIT, order::obtain(config, server.challenges())).await;
    obtained.unwrap_or_else(|_| {
        Err(Failure::rejected(format!(
            "the authority did not issue the certificate within {} s",
            ATTEMPT_LIMIT.as_secs()
        )))
    })
}

/// Writes a file that only the user of the server can read. It is on the disk afterwards.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), String> {
    if let Some(directory) = path.parent() {
        crate::create_private(directory)?;
    }
    let unwritten = |error: &dyn std::fmt::Display| format!("cannot write {}: {error}", path.display());
    let text = serde_json::to_vec_pretty(value).map_err(|error| unwritten(&error))?;
    storage::copy::replace(path, &text).map_err(|error| unwritten(&error))
}

/// Applies the stored certificate.
fn put_in_use(config: &AcmeConfig, changed: &CertificateChanged) -> Result<(), Failure> {
    changed(&certificate::path(&config.files))
        .map_err(|reason| Failure::rejected(format!("the new certificate is stored, but not in use: {reason}")))
}

fn report(config: &AcmeConfig, status: &StatusCell, failure: &Failure, pause: Duration, is_in_use: bool) {
    let reason = failure.to_string();
    status.failed(&reason);
    let domains = config.domains.join(", ");
    let retry_ms = pause.as_millis() as u64;
    if !is_in_use {
        tracing::error!(domains, reason, retry_ms, "cannot use the stored certificate");
        return;
    }
    match status.get().expires_at_unix_s.filter(|end| *end > now_unix_s()) {
        Some(end) => tracing::warn!(
            domains,
            reason,
            retry_ms,
            expires_at = time_text(end),
            "cannot renew the certificate; the present one stays in use"
        ),
        None => tracing::error!(
            domains,
            reason,
            retry_ms,
            "cannot obtain a certificate; TLS clients cannot connect"
        ),
    }
}
