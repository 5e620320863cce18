//! The certificates of the listeners and of the API. The API replaces them; the API and SIGHUP reload them, and the
//! server does when another program has replaced the files.
//!
//! A replacement is written next to the files, checked for every listener that will use it, and then renamed over
//! them. A file that is a link is not replaced, because another program manages its target.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use api::{
    CertificateAdmin, CertificateError, CertificateField, DiskState, ManagedItem, ServerCertificate, TlsReloader,
};
use net::tls::{CertificateOrigin, TlsError, TlsFiles};

use super::managed_certificates::ManagedSources;
use super::{list_files, translate};
use crate::config::Config;
use crate::config::files::{self, API_LABEL as API, chain};

pub struct NodeCertificates {
    net: net::ServerHandle,
    api: OnceLock<TlsReloader>,
    managed: ManagedSources,
    used_certificates: Mutex<Vec<UsedCertificate>>,
    /// Files of `crl_file` in force. Not locked while files are read.
    list_files: Mutex<Vec<ManagedItem>>,
}

/// The certificate that a listener uses.
struct UsedCertificate {
    label: String,
    files: TlsFiles,
    chain: Vec<Vec<u8>>,
    /// The file of `crl_file`.
    list_file: Option<ManagedItem>,
    /// Its files when they were read.
    read: FileVersions,
    /// Its files when the server looked last.
    seen: FileVersions,
    /// Why the changed files could not be used.
    failure: Option<String>,
}

/// Number of the inode, time of its last change in seconds and nanoseconds, and length of each file. `None`: the file
/// is missing. The time also changes with the owner, and no program sets it.
type FileVersions = Vec<Option<(u64, i64, i64, u64)>>;

/// Certificate files that were read and are usable.
pub struct LoadedCertificate {
    certificate: UsedCertificate,
    config: Arc<rustls::ServerConfig>,
}

/// All certificates as they are on disk now.
pub fn read(config: &Config) -> Result<Vec<LoadedCertificate>, String> {
    let named = files::tls_files_by_label(config).into_iter();
    named.map(|(label, files)| fresh(&label, &files)).collect()
}

fn fresh(label: &str, files: &TlsFiles) -> Result<LoadedCertificate, String> {
    let key = match label {
        API => "api.cert_file".to_owned(),
        label => format!("listeners.{label}"),
    };
    // Before the files: a change while they are read is another version.
    let versions = versions_of(files);
    let (config, chain) = load(files).map_err(|error| format!("{key}: {}", chain(&error)))?;
    report_unusable_lists(&key, files);
    let held = UsedCertificate {
        label: label.to_owned(),
        files: files.clone(),
        chain,
        list_file: list_files::of_listener(files),
        read: versions.clone(),
        seen: versions,
        failure: None,
    };
    Ok(LoadedCertificate {
        certificate: held,
        config,
    })
}

/// Unusable revocation lists in the data directory count as missing.
fn report_unusable_lists(key: &str, files: &TlsFiles) {
    let Some(authorities) = &files.client_authorities else {
        return;
    };
    for file in &files.downloaded_lists {
        // The file may be missing.
        let Ok(list) = fs::read(file) else { continue };
        if let Err(reason) = net::tls::check_revocation_list(&list, authorities) {
            tracing::error!(
                listener = key,
                file = %file.display(),
                reason,
                "cannot use a stored revocation list; it counts as missing"
            );
        }
    }
}

/// The files that another program replaces.
fn versions_of(files: &TlsFiles) -> FileVersions {
    let paths = [
        Some(&files.certificate),
        Some(&files.key),
        files.client_authorities.as_ref(),
        files.revocation_lists.as_ref(),
    ];
    let version = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec(), metadata.len()))
    };
    paths.into_iter().flatten().map(version).collect()
}

fn distinct_list_files(used: &[UsedCertificate]) -> Vec<ManagedItem> {
    list_files::distinct(used.iter().filter_map(|one| one.list_file.clone()))
}

fn load(files: &TlsFiles) -> Result<(Arc<rustls::ServerConfig>, Vec<Vec<u8>>), TlsError> {
    let config = net::tls::server_config(files)?;
    let chain = match files.awaits_certificate() {
        true => Vec::new(),
        false => net::tls::certificates(&files.certificate)?,
    };
    Ok((config, chain.iter().map(|der| der.to_vec()).collect()))
}

impl NodeCertificates {
    /// The configuration at the start of the server.
    pub fn new(config: &Config, net: net::ServerHandle, managed: ManagedSources) -> Result<NodeCertificates, String> {
        let used: Vec<_> = read(config)?.into_iter().map(|fresh| fresh.certificate).collect();
        Ok(NodeCertificates {
            net,
            managed,
            api: OnceLock::new(),
            list_files: Mutex::new(distinct_list_files(&used)),
            used_certificates: Mutex::new(used),
        })
    }

    /// Called once the API runs.
    pub fn connect(&self, api: TlsReloader) {
        // There is one API per process.
        let _ = self.api.set(api);
    }

    /// Applies the certificates of a configuration to the open listeners, and returns the errors. A listener that was
    /// removed keeps its certificate until the restart that closes it. A new listener has none before the restart.
    pub fn apply(&self, loaded: Vec<LoadedCertificate>) -> Vec<String> {
        let has_api = loaded.iter().any(|one| one.certificate.label == API);
        if let Some(api) = self.api.get().filter(|_| !has_api) {
            api.reload(None);
        }
        let mut held = self.lock();
        held.retain(|one| one.label != API || has_api);
        let mut failures = Vec::new();
        for one in loaded.into_iter().filter(|one| self.is_open(&one.certificate.label)) {
            // The server may have obtained a newer file since `loaded` was read.
            let one = match one.certificate.is_obtained() {
                true => fresh(&one.certificate.label, &one.certificate.files),
                false => Ok(one),
            };
            let one = match one {
                Ok(one) => one,
                Err(reason) => {
                    failures.push(reason);
                    continue;
                }
            };
            let own = held.iter().find(|own| own.label == one.certificate.label);
            if one.certificate.chain.is_empty() && !self.managed.has_acme() {
                failures.push(format!(
                    "{}: tls.acme takes effect after a restart; until then, nothing changes",
                    one.certificate.label
                ));
                continue;
            }
            if let Some(reason) = own.and_then(|own| one.certificate.lost(own)) {
                failures.push(reason);
                continue;
            }
            failures.extend(self.present(&one).err());
            match held.iter_mut().find(|own| own.label == one.certificate.label) {
                Some(own) => *own = one.certificate,
                None => held.push(one.certificate),
            }
        }
        self.update_list_files(&held);
        self.managed.certificates_replaced();
        failures
    }

    /// Call it after each change of the certificates in use.
    fn update_list_files(&self, used: &[UsedCertificate]) {
        *self.list_files() = distinct_list_files(used);
    }

    // The list is replaced as a whole, so a panic in another thread cannot leave it inconsistent.
    fn list_files(&self) -> MutexGuard<'_, Vec<ManagedItem>> {
        self.list_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a certificate to new connections.
    fn present(&self, fresh: &LoadedCertificate) -> Result<(), String> {
        let UsedCertificate { label, .. } = &fresh.certificate;
        if label == API {
            if let Some(api) = self.api.get() {
                api.reload(Some(fresh.config.clone()));
            }
            return Ok(());
        }
        let index = self.index(label).ok_or_else(|| format!("{label} is not open"))?;
        let reloaded = self.net.reload_tls(index as u16, fresh.config.clone());
        reloaded.map_err(|e| format!("cannot pass the new certificate of {label} to every worker: {e}"))
    }

    fn is_open(&self, label: &str) -> bool {
        label == API || self.index(label).is_some()
    }

    /// Searches the open listeners.
    fn index(&self, label: &str) -> Option<usize> {
        let listeners = self.net.listeners();
        listeners.iter().map(translate::label).position(|other| other == label)
    }

    /// Applies the pair to all of these listeners or to none.
    fn reload_some(
        &self,
        held: &mut [UsedCertificate],
        is_wanted: impl Fn(&UsedCertificate) -> bool,
    ) -> Result<(), CertificateError> {
        let mut all = Vec::new();
        for one in held.iter_mut().filter(|one| is_wanted(one)) {
            let fresh = fresh(&one.label, &one.files).map_err(|reason| CertificateError::Files { reason })?;
            if let Some(reason) = fresh.certificate.lost(one) {
                return Err(CertificateError::Files { reason });
            }
            all.push((one, fresh));
        }
        let mut failures = Vec::new();
        for (one, fresh) in all {
            failures.extend(self.present(&fresh).err());
            *one = fresh.certificate;
        }
        self.update_list_files(held);
        self.managed.certificates_replaced();
        match failures.is_empty() {
            true => Ok(()),
            false => Err(CertificateError::Workers {
                reason: failures.join("; "),
            }),
        }
    }

    /// Reloads a file that the server has obtained itself, for each listener that can use it. The error names the
    /// others, which keep the previous one.
    pub fn reload_file(&self, file: &Path) -> Result<(), String> {
        let is_used = |one: &UsedCertificate| {
            one.files.certificate == file
                || one.is_stapled_from(file)
                || one.files.downloaded_lists.iter().any(|list| list == file)
        };
        let mut failures = Vec::new();
        let mut held = self.lock();
        let mut has_replaced = false;
        for one in held.iter_mut().filter(|one| is_used(one)) {
            match self.reload_one(one, file) {
                Ok(is_new) => has_replaced |= is_new,
                Err(reason) => failures.push(reason),
            }
        }
        // Not after a new response alone.
        if has_replaced {
            self.managed.certificates_replaced();
        }
        self.update_list_files(&held);
        drop(held);
        match failures.is_empty() {
            true => Ok(()),
            false => Err(failures.join("; ")),
        }
    }

    /// Reloads the certificates whose files another program has replaced. Files that have changed since the previous
    /// call may be incomplete, so they are read at the next one.
    pub fn reload_changed_files(&self) {
        let mut used = self.lock();
        let mut has_replaced = false;
        for one in used.iter_mut() {
            let versions = versions_of(&one.files);
            let is_complete = versions == one.seen;
            one.seen.clone_from(&versions);
            if versions == one.read {
                one.failure = None;
                continue;
            }
            if !is_complete {
                continue;
            }
            let certificate = one.files.certificate.clone();
            match self.reload_one(one, &certificate) {
                Ok(is_new) => {
                    has_replaced |= is_new;
                    tracing::info!(
                        listener = one.label,
                        "certificates reloaded, because their files have changed"
                    );
                }
                // It is logged once.
                Err(reason) if one.failure.as_ref() == Some(&reason) => {}
                Err(reason) => {
                    tracing::error!(
                        listener = one.label,
                        reason,
                        "the files of certificates have changed, and cannot be used; the present certificates stay in use"
                    );
                    one.failure = Some(reason);
                }
            }
        }
        if has_replaced {
            self.managed.certificates_replaced();
        }
        self.update_list_files(&used);
    }

    /// Returns whether the certificate is a new one. A new OCSP response must not apply a new certificate, whose key
    /// may not be there yet.
    fn reload_one(&self, one: &mut UsedCertificate, file: &Path) -> Result<bool, String> {
        let fresh = fresh(&one.label, &one.files)?;
        if let Some(reason) = fresh.certificate.lost(one) {
            return Err(reason);
        }
        let is_new = fresh.certificate.chain != one.chain;
        if is_new && one.is_stapled_from(file) {
            return Err(format!(
                "{} has changed since {} has read it; it is used soon (tls.reload_interval), or after a reload",
                one.files.certificate.display(),
                one.label
            ));
        }
        self.present(&fresh)?;
        *one = fresh.certificate;
        Ok(is_new)
    }

    /// Applies the revocation lists and the OCSP stapling of a configuration.
    pub fn set_managed_sources(&self, config: &Config) {
        self.managed.set(config);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<UsedCertificate>> {
        self.used_certificates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CertificateAdmin for NodeCertificates {
    fn list(&self) -> Vec<ServerCertificate> {
        let view = |held: &UsedCertificate| ServerCertificate {
            listener: held.label.clone(),
            certificate_file: held.files.certificate.clone(),
            key_file: held.files.key.clone(),
            client_certificates: held.files.client_certificates,
            is_renewed: held.files.origin == CertificateOrigin::Acme,
            chain: held.chain.clone(),
            on_disk: match load(&held.files) {
                Ok((_, chain)) if chain == held.chain => DiskState::Same,
                Ok(_) => DiskState::Changed,
                Err(error) => DiskState::Unusable { reason: chain(&error) },
            },
        };
        self.lock().iter().map(view).collect()
    }

    fn replace(&self, listener: &str, certificate_pem: &[u8], key_pem: &[u8]) -> Result<(), CertificateError> {
        let mut held = self.lock();
        let own = held.iter().find(|one| one.label == listener);
        let files = own.ok_or(CertificateError::Unknown)?.files.clone();
        if files.origin == CertificateOrigin::Acme {
            return Err(CertificateError::ExternallyManaged {
                reason: format!("the server renews the certificate of {listener} itself (tls.acme)"),
            });
        }
        let pair = CertificateFiles::write(&files, certificate_pem, key_pem)?;
        let is_used = |one: &UsedCertificate| one.files.certificate == files.certificate || one.files.key == files.key;
        // The requested listener comes first.
        pair.check(&files, None)?;
        for other in held.iter().filter(|one| is_used(one)) {
            pair.check(&other.files, Some(&other.label))?;
        }
        pair.put_in_place()?;
        self.reload_some(&mut held, is_used)
    }

    fn reload(&self) -> Result<(), CertificateError> {
        self.reload_some(&mut self.lock(), |_| true)
    }

    fn managed(&self) -> Vec<ManagedItem> {
        let mut items = self.managed.items();
        items.extend(self.list_files().iter().cloned());
        items
    }
}

impl UsedCertificate {
    /// Whether the server replaces files of it while it runs.
    fn is_obtained(&self) -> bool {
        self.files.origin == CertificateOrigin::Acme
            || !self.files.downloaded_lists.is_empty()
            || self.files.stapling.is_some()
    }

    /// Whether handshakes contain the OCSP response in a file.
    fn is_stapled_from(&self, file: &Path) -> bool {
        self.files
            .stapling
            .as_ref()
            .is_some_and(|stapling| stapling.response == file)
    }

    /// Why this one must not replace `present`: the file that the server has obtained is missing now.
    fn lost(&self, present: &UsedCertificate) -> Option<String> {
        let is_lost = self.chain.is_empty() && !present.chain.is_empty();
        is_lost.then(|| {
            format!(
                "{} is missing; {} keeps its present certificate, and the server obtains a new one",
                self.files.certificate.display(),
                self.label
            )
        })
    }
}

/// New files next to those that they replace. Deleted on drop.
struct CertificateFiles {
    certificate: FileReplacement,
    key: FileReplacement,
}

struct FileReplacement {
    new: PathBuf,
    old: PathBuf,
}

impl Drop for FileReplacement {
    fn drop(&mut self) {
        // Missing if it was put in place.
        let _ = fs::remove_file(&self.new);
    }
}

impl CertificateFiles {
    /// Certificate and key may be in one file.
    fn write(files: &TlsFiles, certificate_pem: &[u8], key_pem: &[u8]) -> Result<CertificateFiles, CertificateError> {
        let both = [certificate_pem, b"\n", key_pem].concat();
        let (certificate_pem, key_pem) = match files.certificate == files.key {
            true => (&*both, &*both),
            false => (certificate_pem, key_pem),
        };
        Ok(CertificateFiles {
            certificate: FileReplacement::write(&files.certificate, "certificate.new", certificate_pem)?,
            key: FileReplacement::write(&files.key, "key.new", key_pem)?,
        })
    }

    /// Checks whether a listener could use the files. `other` is a listener that the request did not name.
    fn check(&self, files: &TlsFiles, other: Option<&str>) -> Result<(), CertificateError> {
        let new = |path: &PathBuf| match path {
            path if *path == self.certificate.old => self.certificate.new.clone(),
            path if *path == self.key.old => self.key.new.clone(),
            path => path.clone(),
        };
        let files = TlsFiles {
            certificate: new(&files.certificate),
            key: new(&files.key),
            ..files.clone()
        };
        let Err(error) = net::tls::server_config(&files) else {
            return Ok(());
        };
        let field = match error.path() == Some(&self.key.new) {
            true => CertificateField::Key,
            false => CertificateField::Certificate,
        };
        Err(match other {
            Some(label) => CertificateError::ExternallyManaged {
                reason: format!(
                    "{label} uses one of the files as well, and cannot use the new pair: {}",
                    error_text(&error)
                ),
            },
            None => CertificateError::Rejected {
                field,
                reason: error_text(&error),
            },
        })
    }

    fn put_in_place(self) -> Result<(), CertificateError> {
        let unwritten = |path: &Path, error: &io::Error| CertificateError::Files {
            reason: format!("cannot replace {}: {error}", path.display()),
        };
        let before = fs::read(&self.key.old).map_err(|error| unwritten(&self.key.old, &error))?;
        self.key
            .put_in_place()
            .map_err(|error| unwritten(&self.key.old, &error))?;
        if self.key.old == self.certificate.old {
            return Ok(());
        }
        if let Err(error) = self.certificate.put_in_place() {
            // Without its certificate the new key is useless.
            if let Err(error) = fs::write(&self.key.old, before) {
                tracing::error!(%error, file = %self.key.old.display(), "cannot put back the previous key");
            }
            return Err(unwritten(&self.certificate.old, &error));
        }
        Ok(())
    }
}

/// Describes the error in terms of the request, not of files.
fn error_text(error: &TlsError) -> String {
    match error {
        TlsError::NoCertificate { .. } => {
            "the text contains no certificate; PEM begins with -----BEGIN CERTIFICATE-----".into()
        }
        TlsError::NoKey { .. } => "the text contains no readable private key; encrypted keys are not supported".into(),
        TlsError::File { source, .. } => format!("the text is not valid PEM: {source}"),
        TlsError::KeyMismatch { .. } => "the key does not match the certificate".into(),
        TlsError::Rejected { source, .. } => format!("certificate and key cannot be used together: {source}"),
        TlsError::NoAuthorities | TlsError::NoRevocationList { .. } | TlsError::CipherSuites { .. } => chain(error),
    }
}

impl FileReplacement {
    /// Creates the file with the permissions of the existing one.
    fn write(old: &Path, ending: &str, bytes: &[u8]) -> Result<FileReplacement, CertificateError> {
        let failed = |error: io::Error| CertificateError::Files {
            reason: format!("cannot write to the directory of {}: {error}", old.display()),
        };
        let there = fs::symlink_metadata(old).map_err(failed)?;
        if there.is_symlink() {
            return Err(CertificateError::ExternallyManaged {
                reason: format!(
                    "{} is a link to a file that another program manages; replace the file there, then reload the certificates",
                    old.display()
                ),
            });
        }
        let mut name = old.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(ending);
        let new = old.with_file_name(name);
        // A file that a crash has left may be readable for others.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&new).map_err(failed)?;
        let replacement = FileReplacement {
            new,
            old: old.to_owned(),
        };
        file.write_all(bytes).map_err(failed)?;
        file.set_permissions(there.permissions()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        Ok(replacement)
    }

    fn put_in_place(&self) -> io::Result<()> {
        fs::rename(&self.new, &self.old)?;
        match self.old.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => fs::File::open(parent)?.sync_all(),
            _ => fs::File::open(".")?.sync_all(),
        }
    }
}
