//! Obtains OCSP responses for the server's certificates, and stores them in the data directory for stapling.
//!
//! The responder is the one of the configuration or of the certificate. The administrator chooses both, so a client
//! cannot choose the requests of the server. A response replaces the stored one only after its check (`net::tls`). If
//! the responder fails, the stored response stays in use until it expires. If the authority has revoked the
//! certificate, the stored response is deleted.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use connectors::http::Fetcher;
use connectors::{Backoff, RetryConfig, TlsConfig};
use net::certificate::{OcspError, OcspSubject, OcspValidity};
use net::tls::{STAPLE_BYTES_MAX, staple_subject, stored_staple};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::downloads::DownloadTiming;
use crate::pause::pause;
use crate::{FileChanged, ManagedStatus, StatusCell, Task, create_private, now_unix_s, time_text};

/// Longest pause after a failure. With a long `refresh`, the stored response could expire although the responder is
/// available again.
const RETRY_LONGEST: Duration = Duration::from_secs(3600);

/// A certificate whose response is obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StapleSource {
    /// Name in alarms and metrics.
    pub name: String,
    /// File of the certificate, PEM.
    pub certificate: PathBuf,
    /// File with the certificate of the issuer. `None`: it follows the certificate of the server in its file.
    pub issuer: Option<PathBuf>,
    /// HTTP or HTTPS. `None`: the URL in the certificate.
    pub responder_url: Option<String>,
    /// Where the response is stored, DER.
    pub file: PathBuf,
    /// CA certificates for HTTPS. `None`: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// Longest time between two requests.
    pub refresh: Duration,
    pub timeout: Duration,
}

/// The certificates whose responses are obtained. They can change while the server runs.
#[derive(Clone, Debug)]
pub struct Staples {
    sources: watch::Sender<Vec<StapleSource>>,
    /// Counts the replacements of certificates.
    replaced: watch::Sender<u64>,
    /// By the file of the response.
    statuses: Arc<Mutex<BTreeMap<PathBuf, StatusCell>>>,
}

impl Staples {
    pub fn new(sources: Vec<StapleSource>) -> Staples {
        Staples {
            sources: watch::Sender::new(sources),
            replaced: watch::Sender::new(0),
            statuses: Arc::default(),
        }
    }

    /// Replaces the sources. The responder of an unchanged one is not asked again.
    pub fn set(&self, sources: Vec<StapleSource>) {
        self.sources.send_if_modified(|present| {
            let is_changed = *present != sources;
            *present = sources;
            is_changed
        });
    }

    /// Call it when files of certificates have been reloaded. A certificate without a response gets one soon. Do not
    /// call it for a new response: after a failure, that would end the pause before the next attempt.
    pub fn certificates_replaced(&self) {
        self.replaced.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The states of all responses.
    pub fn statuses(&self) -> Vec<ManagedStatus> {
        self.lock().values().map(StatusCell::get).collect()
    }

    /// Obtains responses until the server stops.
    pub fn task(&self, timing: DownloadTiming, changed: FileChanged) -> Task {
        let staples = self.clone();
        Box::pin(async move { staples.run(timing, changed).await })
    }

    async fn run(self, timing: DownloadTiming, changed: FileChanged) {
        let mut sources = self.sources.subscribe();
        let mut running: Vec<(StapleSource, tokio::task::AbortHandle)> = Vec::new();
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
                .retain(|file, _| wanted.iter().any(|source| source.file == *file));
            for source in wanted {
                if running.iter().any(|(other, _)| *other == source) {
                    continue;
                }
                let staple = Staple {
                    status: self.status(&source),
                    source: source.clone(),
                    replaced: self.replaced.subscribe(),
                    timing,
                    changed: changed.clone(),
                    waits_for_use: false,
                };
                running.push((source, tasks.spawn(staple.run())));
            }
            tokio::select! {
                changed = sources.changed() => if changed.is_err() { return },
                // A task ends only when it is aborted, or with a panic, which has been reported.
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    fn status(&self, source: &StapleSource) -> StatusCell {
        let mut statuses = self.lock();
        let status = statuses
            .entry(source.file.clone())
            .or_insert_with(|| StatusCell::new(source.name.clone()));
        status.clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, StatusCell>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of one certificate.
struct Staple {
    source: StapleSource,
    status: StatusCell,
    replaced: watch::Receiver<u64>,
    timing: DownloadTiming,
    changed: FileChanged,
    /// The listeners do not use the stored response yet, or still use a deleted one.
    waits_for_use: bool,
}

impl Staple {
    async fn run(mut self) {
        let stored = self.stored().map(|validity| validity.expires_at_unix_s);
        self.status.stored(stored);
        let mut backoff = Backoff::new(&RetryConfig {
            first_ms: self.timing.first_retry.as_millis() as u64,
            longest_ms: self.source.refresh.min(RETRY_LONGEST).as_millis() as u64,
            ..RetryConfig::default()
        });
        loop {
            let length = match self.update().await {
                Ok(validity) => {
                    backoff.reset();
                    self.succeeded();
                    self.pause(validity)
                }
                Err(reason) => {
                    let pause = backoff.pause();
                    self.report(&reason, pause);
                    pause
                }
            };
            tokio::select! {
                () = pause(length, || {}) => {}
                () = self.needs_response() => backoff.reset(),
            }
        }
    }

    /// Asks the responder once, and puts its response in use.
    async fn update(&mut self) -> Result<OcspValidity, String> {
        let refreshed = self.refresh().await;
        // Also after a failure: the reason why the stored response could not be used may be gone.
        match (refreshed, self.put_in_use()) {
            (refreshed, Ok(())) => refreshed,
            (Ok(_), Err(unused)) => Err(unused),
            (Err(reason), Err(unused)) => Err(format!("{reason}; {unused}")),
        }
    }

    fn put_in_use(&mut self) -> Result<(), String> {
        if self.waits_for_use {
            (self.changed)(&self.source.file)
                .map_err(|reason| format!("the listeners still use the previous response: {reason}"))?;
            self.waits_for_use = false;
        }
        Ok(())
    }

    /// Asks the responder, and stores its response if it is due. Returns the validity of the stored response.
    async fn refresh(&mut self) -> Result<OcspValidity, String> {
        let subject = self.subject()?;
        let response = self.ask(&subject).await?;
        let new = match subject.check(&response, now_unix_s()) {
            Ok(validity) => validity,
            Err(error) => {
                if matches!(error, OcspError::Revoked { .. }) {
                    self.discard()?;
                }
                return Err(error.to_string());
            }
        };
        let stored = stored_staple(&self.source.file, &subject, now_unix_s());
        if let Some(stored) = stored.filter(|stored| !is_due(stored, &new, now_unix_s())) {
            self.status.stored(Some(stored.expires_at_unix_s));
            return Ok(stored);
        }
        self.store(&response)?;
        self.waits_for_use = true;
        tracing::info!(
            certificate = self.source.name,
            expires_at = time_text(new.expires_at_unix_s),
            "OCSP response obtained"
        );
        self.status.stored(Some(new.expires_at_unix_s));
        Ok(new)
    }

    fn subject(&self) -> Result<OcspSubject, String> {
        staple_subject(&self.source.certificate, self.source.issuer.as_deref())
    }

    /// The validity of the stored response. `None`: none is stored that the listeners can use.
    fn stored(&self) -> Option<OcspValidity> {
        let subject = self.subject().ok()?;
        stored_staple(&self.source.file, &subject, now_unix_s())
    }

    async fn ask(&self, subject: &OcspSubject) -> Result<Vec<u8>, String> {
        let source = &self.source;
        let url = source.responder_url.as_deref().or(subject.responder_url());
        let url = url.ok_or("the certificate names no OCSP responder; set ocsp_responder_url")?;
        let tls = TlsConfig {
            ca_file: source.ca_file.clone(),
            ..TlsConfig::default()
        };
        let fetcher = Fetcher::new(tls, source.timeout, STAPLE_BYTES_MAX);
        let answer = fetcher.post(url, "application/ocsp-request", subject.request()).await;
        let answer = answer.map_err(|reason| format!("{url}: {reason}"))?;
        match answer.status {
            200 => Ok(answer.body),
            status => Err(format!(
                "{url}: the server answered {status} {}, expected 200; redirects are not followed",
                answer.reason
            )),
        }
    }

    fn store(&self, response: &[u8]) -> Result<(), String> {
        let file = &self.source.file;
        if let Some(directory) = file.parent() {
            create_private(directory)?;
        }
        storage::copy::replace(file, response).map_err(|error| format!("cannot write {}: {error}", file.display()))
    }

    /// Deletes the response of a certificate that the authority has revoked.
    fn discard(&mut self) -> Result<(), String> {
        let file = &self.source.file;
        match fs::remove_file(file) {
            Ok(()) => self.waits_for_use = true,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(format!(
                    "the certificate is revoked, but its stored response cannot be deleted: {}: {error}",
                    file.display()
                ));
            }
        }
        self.status.stored(None);
        Ok(())
    }

    /// Waits until certificates have been reloaded, and this one has no stored response, or the last attempt failed:
    /// the reason may be gone.
    async fn needs_response(&mut self) {
        while self.replaced.changed().await.is_ok() {
            if self.stored().is_none() || self.status.get().last_error.is_some() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    /// The time until the next request: early enough to try again before the response expires.
    fn pause(&self, validity: OcspValidity) -> Duration {
        let left = validity.expires_at_unix_s.saturating_sub(now_unix_s());
        let left = Duration::from_secs(u64::try_from(left).unwrap_or_default());
        (left / 2).min(self.source.refresh).max(self.timing.shortest)
    }

    fn succeeded(&self) {
        if self.status.get().last_error.is_some() {
            tracing::info!(certificate = self.source.name, "the OCSP response is available again");
        }
        self.status.succeeded();
    }

    fn report(&self, reason: &str, pause: Duration) {
        self.status.failed(reason);
        let stored = self.stored().map(|validity| validity.expires_at_unix_s);
        self.status.stored(stored);
        let stapled = match stored {
            None => "clients get no response".to_owned(),
            Some(end) => format!("clients get the stored response until {}", time_text(end)),
        };
        tracing::warn!(
            certificate = self.source.name,
            reason,
            stapled,
            retry_ms = pause.as_millis() as u64,
            "cannot obtain an OCSP response for the certificate of the server"
        );
    }
}

/// Whether a new response replaces the stored one, which is valid. Many responders sign a new one for each request. A
/// replacement ends the resumption of TLS sessions, so the stored one is used for half of its validity.
fn is_due(stored: &OcspValidity, new: &OcspValidity, now_unix_s: i64) -> bool {
    let half_s = (stored.expires_at_unix_s - stored.begins_at_unix_s) / 2;
    let is_later = new.begins_at_unix_s >= stored.begins_at_unix_s && new.expires_at_unix_s > stored.expires_at_unix_s;
    is_later && now_unix_s >= stored.begins_at_unix_s.saturating_add(half_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_response_is_replaced_after_half_of_its_validity() {
        let validity = |from: i64, to: i64| OcspValidity {
            begins_at_unix_s: from,
            expires_at_unix_s: to,
        };
        let stored = validity(100, 200);
        assert!(!is_due(&stored, &validity(149, 249), 149));
        assert!(is_due(&stored, &validity(150, 250), 150));
        // The same response again, and an older one of another server of the responder.
        assert!(!is_due(&stored, &stored, 190));
        assert!(!is_due(&stored, &validity(90, 190), 190));
    }
}
