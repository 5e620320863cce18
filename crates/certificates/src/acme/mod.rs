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

mod account;
mod certificate;
mod challenges;
mod client;
mod failure;
mod order;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use connectors::{Backoff, RetryConfig};
use tokio::time::{sleep, timeout};

use crate::{FileChanged, StatusCell, Task, now_unix_s, time_text};
pub use account::{ExternalAccount, read_external_account};
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
    let backoff = |first: Duration| {
        Backoff::new(&RetryConfig {
            first_ms: first.as_millis() as u64,
            longest_ms: config.timing.longest_retry.as_millis() as u64,
            ..RetryConfig::default()
        })
    };
    let mut rejected = backoff(config.timing.first_retry_rejected);
    let mut unreachable = backoff(config.timing.first_retry_unreachable);
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
                        let pause = rejected.pause();
                        report(config, status, &failure, pause, is_in_use);
                        sleep(pause).await;
                        continue;
                    }
                    is_in_use = true;
                    rejected.reset();
                    status.succeeded();
                }
                let left = Duration::from_secs(u64::try_from(due_unix_s - now_unix_s()).unwrap_or_default());
                sleep(left.clamp(Duration::from_secs(1), SLEEP_MAX)).await;
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
        let attempt = timeout(ATTEMPT_LIMIT, order::obtain(config, server.challenges())).await;
        let result = attempt.unwrap_or_else(|_| {
            Err(Failure::rejected(format!(
                "the authority did not issue the certificate within {} s",
                ATTEMPT_LIMIT.as_secs()
            )))
        });
        let problem = match result {
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
                    rejected.reset();
                    unreachable.reset();
                    status.succeeded();
                }
                // It is valid, even if it is due.
                let unused = put_in_use(config, changed).err();
                is_in_use = unused.is_none();
                unused.or(is_due)
            }
            Err(failure) => Some(failure),
        };
        if let Some(failure) = problem {
            let pause = match failure.is_unreachable {
                true => unreachable.pause(),
                false => rejected.pause(),
            };
            // An authority that asks for patience may count early attempts against its limits.
            let pause = pause.max(failure.retry_after.unwrap_or_default());
            report(config, status, &failure, pause, is_in_use);
            sleep(pause).await;
        }
    }
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
