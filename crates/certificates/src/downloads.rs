//! Downloads revocation lists of client certificates (CRL), and stores them in the data directory.
//!
//! Only URLs of the configuration are fetched, never one from a certificate that a client presents: before its chain is
//! verified, such a URL is a request of an attacker. A list replaces the stored one only after its check: structure,
//! signature, that it is of the same authority, and that it is not older. The stored list stays in use until then, also
//! after a restart.
//!
//! The first list of a URL binds the URL to the issuer and the scope of this list. Two URLs cannot have the same ones,
//! because every list in `ca_file` has a valid signature: an attacker between the server and one URL could send the
//! list of another authority.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use connectors::http::Fetcher;
use connectors::{Backoff, RetryConfig, TlsConfig};
use net::certificate::{RevocationListDescription, describe_list};
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::pause::pause;
use crate::{FileChanged, ManagedStatus, StatusCell, Task, create_private, now_unix_s, time_text};

/// Allowed difference between the clocks of the server and of an authority.
const CLOCK_DIFFERENCE_S: i64 = 300;

/// A list to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSource {
    /// HTTP or HTTPS.
    pub url: String,
    /// Where the list is stored, DER.
    pub file: PathBuf,
    /// Files with the authorities of the listeners that use the list.
    pub authorities: Vec<PathBuf>,
    /// CA certificates for HTTPS. `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// Longest time between two downloads.
    pub refresh: Duration,
    pub timeout: Duration,
    pub bytes_max: usize,
}

/// Pauses that no option sets.
#[derive(Clone, Copy, Debug)]
pub struct DownloadTiming {
    /// Shortest time between two downloads of a list.
    pub shortest: Duration,
    /// Pause after the first failure. It doubles up to `ListSource::refresh`.
    pub first_retry: Duration,
}

impl Default for DownloadTiming {
    fn default() -> DownloadTiming {
        DownloadTiming {
            shortest: Duration::from_secs(5),
            first_retry: Duration::from_secs(10),
        }
    }
}

/// Called with the file of a list.
pub type ListChanged = FileChanged;

/// The lists that are downloaded. The lists can change while the server runs.
#[derive(Clone, Debug)]
pub struct Downloads {
    sources: watch::Sender<Vec<ListSource>>,
    statuses: Arc<Mutex<BTreeMap<String, StatusCell>>>,
}

impl Downloads {
    pub fn new(sources: Vec<ListSource>) -> Downloads {
        Downloads {
            sources: watch::Sender::new(sources),
            statuses: Arc::default(),
        }
    }

    /// Replaces the lists. Unchanged ones are not fetched again.
    pub fn set(&self, sources: Vec<ListSource>) {
        self.sources.send_if_modified(|present| {
            let is_changed = *present != sources;
            *present = sources;
            is_changed
        });
    }

    /// The states of all lists, by URL.
    pub fn statuses(&self) -> Vec<ManagedStatus> {
        self.lock().values().map(StatusCell::get).collect()
    }

    /// Downloads lists until the server stops.
    pub fn task(&self, timing: DownloadTiming, changed: ListChanged) -> Task {
        let downloads = self.clone();
        Box::pin(async move { downloads.run(timing, changed).await })
    }

    async fn run(self, timing: DownloadTiming, changed: ListChanged) {
        let mut sources = self.sources.subscribe();
        let mut running: Vec<(ListSource, tokio::task::AbortHandle)> = Vec::new();
        let mut tasks = JoinSet::new();
        loop {
            let wanted = sources.borrow_and_update().clone();
            running.retain(|(source, task)| {
                let is_wanted = wanted.contains(source);
                if !is_wanted {
                    task.abort();
                }
                is_wanted
            });
            self.lock()
                .retain(|url, _| wanted.iter().any(|source| source.url == *url));
            for source in wanted {
                if running.iter().any(|(other, _)| *other == source) {
                    continue;
                }
                let download = Download {
                    status: self.status(&source.url),
                    source: source.clone(),
                    all: self.sources.subscribe(),
                    timing,
                    changed: changed.clone(),
                    waits_for_use: false,
                    has_reported_expiry: false,
                };
                running.push((source, tasks.spawn(download.run())));
            }
            tokio::select! {
                changed = sources.changed() => if changed.is_err() { return },
                // A task ends only when it is aborted, or with a panic, which has been reported.
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    fn status(&self, url: &str) -> StatusCell {
        let mut statuses = self.lock();
        let status = statuses
            .entry(url.to_owned())
            .or_insert_with(|| StatusCell::new(url.to_owned()));
        status.clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, StatusCell>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of one list.
struct Download {
    source: ListSource,
    /// The lists of all URLs.
    all: watch::Receiver<Vec<ListSource>>,
    status: StatusCell,
    timing: DownloadTiming,
    changed: ListChanged,
    /// The stored list may not be in use yet.
    waits_for_use: bool,
    /// The expiry of the stored list is in the log.
    has_reported_expiry: bool,
}

impl Download {
    async fn run(mut self) {
        let stored = stored(&self.source);
        self.waits_for_use = stored.is_some();
        self.status
            .stored(stored.and_then(|(_, description)| description.next_update_unix_s));
        let mut backoff = Backoff::new(&RetryConfig {
            first_ms: self.timing.first_retry.as_millis() as u64,
            longest_ms: self.source.refresh.as_millis() as u64,
            ..RetryConfig::default()
        });
        loop {
            let length = match self.update().await {
                Ok(next_update_unix_s) => {
                    backoff.reset();
                    self.pause(next_update_unix_s)
                }
                Err(reason) => {
                    let pause = backoff.pause();
                    self.report(&reason, pause);
                    pause
                }
            };
            pause(length, || self.report_expiry()).await;
        }
    }

    /// Reports once that the stored list has expired. No download needs to have failed: the machine may have slept.
    fn report_expiry(&mut self) {
        let end = self.status.get().expires_at_unix_s.filter(|end| *end <= now_unix_s());
        match end {
            None => self.has_reported_expiry = false,
            Some(_) if self.has_reported_expiry => {}
            Some(end) => {
                self.has_reported_expiry = true;
                tracing::error!(
                    url = self.source.url,
                    expired_at = time_text(end),
                    "the revocation list has expired; tls.crl.missing decides about the certificates of its authority"
                );
            }
        }
    }

    /// Downloads the list once, and puts it in use. Returns when it expires.
    async fn update(&mut self) -> Result<Option<i64>, String> {
        let refreshed = self.refresh().await;
        // Also without a new list: the reason why the stored one could not be used may be gone.
        if self.waits_for_use {
            (self.changed)(&self.source.file).map_err(|reason| format!("the stored list is not in use: {reason}"))?;
            self.waits_for_use = false;
        }
        let expires_at = refreshed?;
        if let Some(end) = expires_at.filter(|end| *end <= now_unix_s()) {
            return Err(format!("the list has expired at {}", time_text(end)));
        }
        if self.status.get().last_error.is_some() {
            tracing::info!(url = self.source.url, "the revocation list is available again");
        }
        self.status.succeeded();
        Ok(expires_at)
    }

    /// Downloads the list, and stores it if it is a newer one. Returns when it expires.
    async fn refresh(&mut self) -> Result<Option<i64>, String> {
        let list = self.download().await?;
        let new = check(&self.source, &list)?;
        let expires_at = new.next_update_unix_s;
        // All later lists would be older.
        if new.this_update_unix_s > now_unix_s().saturating_add(CLOCK_DIFFERENCE_S) {
            return Err(format!(
                "the list is of {}, which is in the future; check the clock of the server",
                time_text(new.this_update_unix_s)
            ));
        }
        // A stored list whose authority is no longer in `ca_file` has no use.
        let stored = usable(&self.source);
        if let Some((bytes, stored)) = &stored {
            if *bytes == list {
                return Ok(expires_at);
            }
            check_successor(stored, &new)
                .map_err(|reason| format!("{reason}; stored in {}", self.source.file.display()))?;
        }
        // No other download can store a list before this one: there is no waiting point in between.
        self.check_unique(&new, stored.is_some())?;
        self.store(&list)?;
        self.waits_for_use = true;
        tracing::info!(
            url = self.source.url,
            issuer = new.issuer,
            expires_at = expires_at.map(time_text),
            "revocation list downloaded"
        );
        self.status.stored(expires_at);
        Ok(expires_at)
    }

    /// Checks that no other URL has a list of this authority. Of two URLs with stored lists, the first one counts.
    fn check_unique(&self, new: &RevocationListDescription, has_stored: bool) -> Result<(), String> {
        let all = self.all.borrow();
        let is_own = |other: &ListSource| other.url == self.source.url;
        let before = all.iter().take_while(|other| !is_own(other)).count();
        let others = match has_stored {
            true => all.get(..before).unwrap_or_default(),
            false => &all[..],
        };
        let shares_authorities = |other: &ListSource| {
            other
                .authorities
                .iter()
                .any(|file| self.source.authorities.contains(file))
        };
        for other in others
            .iter()
            .filter(|other| !is_own(other) && shares_authorities(other))
        {
            if usable(other).is_some_and(|(_, description)| description.covers_the_same(new)) {
                return Err(format!(
                    "the list is of {}, whose list already comes from {}: each list needs one URL, so correct \
                     crl_urls; if the other URL has the wrong list, delete {}",
                    new.issuer,
                    other.url,
                    other.file.display()
                ));
            }
        }
        Ok(())
    }

    async fn download(&self) -> Result<Vec<u8>, String> {
        let source = &self.source;
        let tls = TlsConfig {
            ca_file: source.ca_file.clone(),
            ..TlsConfig::default()
        };
        let fetcher = Fetcher::new(tls, source.timeout, source.bytes_max);
        let answer = fetcher.get(&source.url).await?;
        if answer.status != 200 {
            return Err(format!(
                "the server answered {} {}, expected 200; redirects are not followed",
                answer.status, answer.reason
            ));
        }
        match answer.body.starts_with(b"-----BEGIN") {
            false => Ok(answer.body),
            true => CertificateRevocationListDer::from_pem_slice(&answer.body)
                .map(|list| list.to_vec())
                .map_err(|_| "it is not a revocation list in PEM".to_owned()),
        }
    }

    fn store(&self, list: &[u8]) -> Result<(), String> {
        let file = &self.source.file;
        if let Some(directory) = file.parent() {
            create_private(directory)?;
        }
        storage::copy::replace(file, list).map_err(|error| format!("cannot write {}: {error}", file.display()))
    }

    /// The time until the next download: early enough to try again before the list expires.
    fn pause(&self, expires_at_unix_s: Option<i64>) -> Duration {
        let Some(end) = expires_at_unix_s else {
            return self.source.refresh;
        };
        let left = Duration::from_secs(u64::try_from(end - now_unix_s()).unwrap_or_default());
        (left / 10 * 9).min(self.source.refresh).max(self.timing.shortest)
    }

    fn report(&self, reason: &str, pause: Duration) {
        self.status.failed(reason);
        let stored = match self.status.get().expires_at_unix_s {
            None => "no list is stored".to_owned(),
            Some(end) if end <= now_unix_s() => format!("the stored list has expired at {}", time_text(end)),
            Some(end) => format!("the stored list stays in use until {}", time_text(end)),
        };
        tracing::warn!(
            url = self.source.url,
            reason,
            stored,
            retry_ms = pause.as_millis() as u64,
            "cannot update the revocation list"
        );
    }
}

/// Checks that an authority of a listener that uses the list has signed it.
fn check(source: &ListSource, list: &[u8]) -> Result<RevocationListDescription, String> {
    let mut result = Err("no listener uses it".to_owned());
    for authorities in &source.authorities {
        result = net::tls::check_revocation_list(list, authorities);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The stored list. A damaged one counts as missing.
fn stored(source: &ListSource) -> Option<(Vec<u8>, RevocationListDescription)> {
    let bytes = fs::read(&source.file).ok()?;
    let description = describe_list(&bytes)?;
    Some((bytes, description))
}

/// The stored list. `None` also if its authority is no longer in `ca_file`.
fn usable(source: &ListSource) -> Option<(Vec<u8>, RevocationListDescription)> {
    stored(source).filter(|(bytes, _)| check(source, bytes).is_ok())
}

/// Checks that a list may replace the stored one.
fn check_successor(stored: &RevocationListDescription, new: &RevocationListDescription) -> Result<(), String> {
    if new.issuer != stored.issuer {
        return Err(format!(
            "the list is of {} instead of {}; if the authority has changed, delete the stored list",
            new.issuer, stored.issuer
        ));
    }
    if new.scope != stored.scope {
        return Err(format!(
            "the list of {} has another issuing distribution point than the stored one; if the authority has changed \
             it, delete the stored list",
            new.issuer
        ));
    }
    if new.this_update_unix_s < stored.this_update_unix_s {
        return Err(format!(
            "the list of {} is older than the stored one of {}",
            time_text(new.this_update_unix_s),
            time_text(stored.this_update_unix_s)
        ));
    }
    if new.has_lower_number(stored) {
        return Err(
            "the list has a lower number (cRLNumber) than the stored one; if the authority counts from the beginning \
             again, delete the stored list"
                .to_owned(),
        );
    }
    Ok(())
}
