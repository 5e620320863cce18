//! Certificates, revocation lists and OCSP responses that the server obtains itself: `tls.acme`, `crl_urls` and
//! `ocsp_stapling`. Files that another program replaces: `tls.reload_interval`.
//!
//! `open` opens the port of the ACME challenge, so that a start fails if another program uses it. `start` begins the
//! work once the listeners exist.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::{ManagedItem, ManagedKind};
use certificates::downloads::{DownloadTiming, Downloads, ListChanged, ListSource};
use certificates::staples::{StapleSource, Staples};
#[cfg(feature = "acme")]
use certificates::{
    ACME_DIRECTORY,
    acme::{Acme, AcmeConfig, AcmeTiming, ChallengeKind, discard_damaged, read_external_account},
};
use certificates::{ManagedStatus, StatusCell, Task, Worker};

use super::StartFailure;
use super::certificates::NodeCertificates;
use crate::config::Config;
use crate::config::files::tls_files_by_label;

/// States of the certificate, the lists and the OCSP responses, for alarms and metrics, and what to download.
#[derive(Clone)]
pub struct ManagedSources {
    acme: Option<StatusCell>,
    downloads: Downloads,
    staples: Staples,
}

/// Work that has not started.
pub struct ManagedCertificates {
    sources: ManagedSources,
    reload_interval: Duration,
    #[cfg(feature = "acme")]
    acme: Option<Acme>,
}

impl ManagedCertificates {
    /// Call it before the listeners read their certificates: a damaged one of `tls.acme` is put aside.
    pub fn open(config: &Config) -> Result<ManagedCertificates, StartFailure> {
        #[cfg(feature = "acme")]
        let acme = open_acme(config)?;
        #[cfg(feature = "acme")]
        let status = acme.as_ref().map(Acme::status);
        #[cfg(not(feature = "acme"))]
        let status = None;
        Ok(ManagedCertificates {
            sources: ManagedSources {
                acme: status,
                downloads: Downloads::new(list_sources(config)),
                staples: Staples::new(staple_sources(config)),
            },
            reload_interval: config.tls_reload_interval,
            #[cfg(feature = "acme")]
            acme,
        })
    }

    pub fn sources(&self) -> ManagedSources {
        self.sources.clone()
    }

    pub fn start(self, certificates: &Arc<NodeCertificates>) -> Result<Worker, String> {
        let reload = certificates.clone();
        let changed: ListChanged = Arc::new(move |file: &Path| reload.reload_file(file));
        let timing = DownloadTiming::default();
        let lists = self.sources.downloads.task(timing, changed.clone());
        let staples = self.sources.staples.task(timing, changed.clone());
        let mut tasks: Vec<Task> = vec![lists, staples];
        if !self.reload_interval.is_zero() {
            tasks.push(reload_task(certificates.clone(), self.reload_interval));
        }
        #[cfg(feature = "acme")]
        tasks.extend(self.acme.map(|acme| acme.task(changed)));
        Worker::start(tasks).map_err(|error| format!("cannot start the thread that obtains certificates: {error}"))
    }
}

fn reload_task(certificates: Arc<NodeCertificates>, period: Duration) -> Task {
    Box::pin(async move {
        loop {
            tokio::time::sleep(period).await;
            let certificates = certificates.clone();
            // The other tasks of this thread do not wait for the disk.
            let _ = tokio::task::spawn_blocking(move || certificates.reload_changed_files()).await;
        }
    })
}

#[cfg(feature = "acme")]
fn open_acme(config: &Config) -> Result<Option<Acme>, StartFailure> {
    use crate::config::files::chain;
    use crate::config::options::certificates::AcmeChallenge;
    let Some((option, bind)) = config.acme_bind() else {
        return Ok(None);
    };
    let options = &config.acme;
    let files = config.data_dir.join(ACME_DIRECTORY);
    discard_damaged(&files)?;
    let external = options.eab_key_id.0.as_ref().zip(options.eab_key_file.0.as_ref());
    let external_account = external
        .map(|(id, file)| read_external_account(id, file))
        .transpose()
        .map_err(|error| format!("tls.acme.eab_key_file: {error}"))?;
    let option = format!("tls.acme.{option}");
    let acme = Acme::open(AcmeConfig {
        directory: options.directory.clone(),
        domains: options.domains.clone(),
        contact: options.contact.clone(),
        challenge: match options.challenge {
            AcmeChallenge::Http01 => ChallengeKind::Http01,
            AcmeChallenge::TlsAlpn01 => ChallengeKind::TlsAlpn01,
        },
        bind: bind.resolve(&option)?,
        ca_file: options.ca_file.0.clone(),
        external_account,
        files,
        timing: AcmeTiming::default(),
    });
    let acme = acme.map_err(|error| {
        let message = format!("{option}: {}", chain(&error));
        match error.source.kind() {
            std::io::ErrorKind::AddrInUse => StartFailure::PortInUse(message),
            std::io::ErrorKind::PermissionDenied => StartFailure::Other(format!(
                "{message}; a port below 1024 needs the capability CAP_NET_BIND_SERVICE, or forward the port to another \
                 one and set {option}"
            )),
            _ => StartFailure::Other(message),
        }
    })?;
    tracing::info!(address = %acme.address(), "answering challenges of the certificate authority");
    Ok(Some(acme))
}

/// The lists of all listeners, each URL once.
fn list_sources(config: &Config) -> Vec<ListSource> {
    let mut sources: Vec<ListSource> = Vec::new();
    for tls in config.listeners.iter().filter_map(|listener| listener.tls.as_ref()) {
        for (url, file) in tls.crl_urls.iter().zip(&tls.crl_url_files) {
            match sources.iter_mut().find(|source| source.url == *url) {
                Some(source) => source.authorities.extend(tls.ca_file.clone()),
                None => sources.push(ListSource {
                    url: url.clone(),
                    file: file.clone(),
                    authorities: tls.ca_file.iter().cloned().collect(),
                    ca_file: config.crl.ca_file.0.clone(),
                    refresh: config.crl.refresh_interval,
                    timeout: config.crl.timeout,
                    bytes_max: usize::try_from(config.crl.max_bytes.0).unwrap_or(usize::MAX),
                }),
            }
        }
    }
    for source in &mut sources {
        source.authorities.sort();
        source.authorities.dedup();
    }
    sources
}

/// The stapled certificates of all listeners and of the API. Those with the same certificate and responder share a
/// response.
fn staple_sources(config: &Config) -> Vec<StapleSource> {
    let mut sources: Vec<StapleSource> = Vec::new();
    for (_, files) in tls_files_by_label(config) {
        let Some(stapling) = files.stapling else { continue };
        if sources.iter().any(|source| source.file == stapling.response) {
            continue;
        }
        let certificate = files.certificate.display();
        let name = match &stapling.responder_url {
            None => certificate.to_string(),
            Some(url) => format!("{certificate} ({url})"),
        };
        sources.push(StapleSource {
            name,
            certificate: files.certificate,
            issuer: stapling.issuer,
            responder_url: stapling.responder_url,
            file: stapling.response,
            ca_file: config.ocsp.ca_file.0.clone(),
            refresh: config.ocsp.refresh_interval,
            timeout: config.ocsp.timeout,
        });
    }
    sources
}

impl ManagedSources {
    /// Applies the revocation lists and the OCSP stapling of a new configuration.
    pub fn set(&self, config: &Config) {
        self.downloads.set(list_sources(config));
        self.staples.set(staple_sources(config));
    }

    /// Call it when certificates of the server have been reloaded.
    pub fn certificates_replaced(&self) {
        self.staples.certificates_replaced();
    }

    pub fn has_acme(&self) -> bool {
        self.acme.is_some()
    }

    pub fn items(&self) -> Vec<ManagedItem> {
        let acme = self
            .acme
            .iter()
            .map(|status| item(ManagedKind::Certificate, status.get()));
        let lists = self.downloads.statuses().into_iter();
        let staples = self.staples.statuses().into_iter();
        acme.chain(lists.map(|status| item(ManagedKind::RevocationList, status)))
            .chain(staples.map(|status| item(ManagedKind::Staple, status)))
            .collect()
    }
}

fn item(kind: ManagedKind, status: ManagedStatus) -> ManagedItem {
    ManagedItem {
        kind,
        name: status.name,
        expires_at_unix_s: status.expires_at_unix_s,
        // The server obtains the next one itself.
        notice_at_unix_s: None,
        failures: status.failures,
        last_error: status.last_error,
    }
}
