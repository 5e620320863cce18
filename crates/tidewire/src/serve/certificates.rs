//! The certificates of the listeners and of the API: what is in force, replaced by the API, loaded anew by it or by SIGHUP.
//!
//! A replacement is written beside the files, checked there for every listener that will use it, and only then renamed over them. A
//! file that is a link is left to whoever keeps what it points to.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use api::{CertificateAdmin, CertificateError, CertificateField, OnDisk, ServerCertificate, TlsReloader};
use net::tls::{TlsError, TlsFiles};

use super::translate;
use crate::config::Config;
use crate::config::files::{self, chain};

/// The API's, among the labels of listeners, which have a dot.
const API: &str = "api";

pub struct Certificates {
    net: net::Handle,
    api: OnceLock<TlsReloader>,
    held: Mutex<Vec<Held>>,
}

/// What one listener has in force.
struct Held {
    label: String,
    files: TlsFiles,
    chain: Vec<Vec<u8>>,
}

/// Files that have been read and can be used.
pub struct Fresh {
    held: Held,
    config: Arc<rustls::ServerConfig>,
}

/// All certificates as they are on disk now.
pub fn read(config: &Config) -> Result<Vec<Fresh>, String> {
    let named = named_files(config).into_iter();
    named.map(|(label, files)| fresh(&label, &files)).collect()
}

/// By listener, as in `tls.default`.
fn named_files(config: &Config) -> Vec<(String, TlsFiles)> {
    let listeners = config.listeners.iter().filter_map(|listener| {
        let tls = listener.tls.as_ref()?;
        Some((listener.label(), files::tls_files(tls)))
    });
    let api = files::api_tls_files(&config.api).map(|files| (API.to_owned(), files));
    listeners.chain(api).collect()
}

fn fresh(label: &str, files: &TlsFiles) -> Result<Fresh, String> {
    let key = match label {
        API => "api.cert_file".to_owned(),
        label => format!("listeners.{label}"),
    };
    let (config, chain) = load(files).map_err(|error| format!("{key}: {}", chain(&error)))?;
    let held = Held {
        label: label.to_owned(),
        files: files.clone(),
        chain,
    };
    Ok(Fresh { held, config })
}

fn load(files: &TlsFiles) -> Result<(Arc<rustls::ServerConfig>, Vec<Vec<u8>>), TlsError> {
    let config = net::tls::server_config(files)?;
    let chain = net::tls::certificates(&files.certificate)?;
    Ok((config, chain.iter().map(|der| der.to_vec()).collect()))
}

impl Certificates {
    /// What the server has been started with.
    pub fn new(config: &Config, net: net::Handle) -> Result<Certificates, String> {
        Ok(Certificates {
            net,
            api: OnceLock::new(),
            held: Mutex::new(read(config)?.into_iter().map(|fresh| fresh.held).collect()),
        })
    }

    /// Once it is served.
    pub fn connect(&self, api: TlsReloader) {
        // There is one API per process.
        let _ = self.api.set(api);
    }

    /// Takes over what a configuration has for those that are open; says what went wrong. A listener that is gone from it shows its own
    /// until the restart that closes it, one that it adds shows none before that.
    pub fn take_over(&self, fresh: Vec<Fresh>) -> Vec<String> {
        let has_api = fresh.iter().any(|one| one.held.label == API);
        if let Some(api) = self.api.get().filter(|_| !has_api) {
            api.reload(None);
        }
        let mut held = self.lock();
        held.retain(|one| one.label != API || has_api);
        let mut failures = Vec::new();
        for one in fresh.into_iter().filter(|one| self.is_open(&one.held.label)) {
            failures.extend(self.present(&one).err());
            match held.iter_mut().find(|own| own.label == one.held.label) {
                Some(own) => *own = one.held,
                None => held.push(one.held),
            }
        }
        failures
    }

    /// To whoever connects from now on.
    fn present(&self, fresh: &Fresh) -> Result<(), String> {
        let Held { label, .. } = &fresh.held;
        if label == API {
            if let Some(api) = self.api.get() {
                api.reload(Some(fresh.config.clone()));
            }
            return Ok(());
        }
        let index = self.index(label).ok_or_else(|| format!("{label} is not open"))?;
        let reloaded = self.net.reload_tls(index as u16, fresh.config.clone());
        reloaded.map_err(|e| format!("not every worker has the new certificate of {label}: {e}"))
    }

    fn is_open(&self, label: &str) -> bool {
        label == API || self.index(label).is_some()
    }

    /// Among the listeners that were opened.
    fn index(&self, label: &str) -> Option<usize> {
        let listeners = self.net.listeners();
        listeners.iter().map(translate::label).position(|other| other == label)
    }

    /// Those for which it holds, all or none.
    fn reload_some(&self, held: &mut [Held], is_wanted: impl Fn(&Held) -> bool) -> Result<(), CertificateError> {
        let mut all = Vec::new();
        for one in held.iter_mut().filter(|one| is_wanted(one)) {
            let fresh = fresh(&one.label, &one.files).map_err(|because| CertificateError::Files { because })?;
            all.push((one, fresh));
        }
        let mut failures = Vec::new();
        for (one, fresh) in all {
            failures.extend(self.present(&fresh).err());
            *one = fresh.held;
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(CertificateError::Workers {
                because: failures.join("; "),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CertificateAdmin for Certificates {
    fn list(&self) -> Vec<ServerCertificate> {
        let view = |held: &Held| ServerCertificate {
            listener: held.label.clone(),
            certificate_file: held.files.certificate.clone(),
            key_file: held.files.key.clone(),
            client_certificates: held.files.client_certificates,
            chain: held.chain.clone(),
            on_disk: match load(&held.files) {
                Ok((_, chain)) if chain == held.chain => OnDisk::Same,
                Ok(_) => OnDisk::Changed,
                Err(error) => OnDisk::Unusable { because: chain(&error) },
            },
        };
        self.lock().iter().map(view).collect()
    }

    fn replace(&self, listener: &str, certificate_pem: &[u8], key_pem: &[u8]) -> Result<(), CertificateError> {
        let mut held = self.lock();
        let own = held.iter().find(|one| one.label == listener);
        let files = own.ok_or(CertificateError::Unknown)?.files.clone();
        let pair = Pair::write(&files, certificate_pem, key_pem)?;
        let is_used = |one: &Held| one.files.certificate == files.certificate || one.files.key == files.key;
        // The listener itself first: it is the one that was spoken of.
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
}

/// New files beside those that they are to replace; gone when dropped.
struct Pair {
    certificate: Replacement,
    key: Replacement,
}

struct Replacement {
    new: PathBuf,
    old: PathBuf,
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // It is not there when it has been put in place.
        let _ = fs::remove_file(&self.new);
    }
}

impl Pair {
    /// One file may hold both.
    fn write(files: &TlsFiles, certificate_pem: &[u8], key_pem: &[u8]) -> Result<Pair, CertificateError> {
        let both = [certificate_pem, b"\n", key_pem].concat();
        let (certificate_pem, key_pem) = match files.certificate == files.key {
            true => (&*both, &*both),
            false => (certificate_pem, key_pem),
        };
        Ok(Pair {
            certificate: Replacement::write(&files.certificate, "certificate.new", certificate_pem)?,
            key: Replacement::write(&files.key, "key.new", key_pem)?,
        })
    }

    /// Whether a listener could use them. `other` is one that was not spoken of.
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
            Some(label) => CertificateError::NotOurs {
                because: format!(
                    "{label} has one of the files, too, and could not use the new pair: {}",
                    words(&error)
                ),
            },
            None => CertificateError::Rejected {
                field,
                because: words(&error),
            },
        })
    }

    fn put_in_place(self) -> Result<(), CertificateError> {
        let unwritten = |path: &Path, error: &io::Error| CertificateError::Files {
            because: format!("{} cannot be replaced: {error}", path.display()),
        };
        let before = fs::read(&self.key.old).map_err(|error| unwritten(&self.key.old, &error))?;
        self.key
            .put_in_place()
            .map_err(|error| unwritten(&self.key.old, &error))?;
        if self.key.old == self.certificate.old {
            return Ok(());
        }
        if let Err(error) = self.certificate.put_in_place() {
            // Without its certificate the new key is of no use.
            if let Err(error) = fs::write(&self.key.old, before) {
                tracing::error!(%error, file = %self.key.old.display(), "the key that was there cannot be put back");
            }
            return Err(unwritten(&self.certificate.old, &error));
        }
        Ok(())
    }
}

/// In terms of what was sent, not of files.
fn words(error: &TlsError) -> String {
    match error {
        TlsError::NoCertificate { .. } => {
            "there is no certificate in it; PEM begins with -----BEGIN CERTIFICATE-----".into()
        }
        TlsError::NoKey { .. } => "there is no private key in it that can be read; an encrypted one cannot".into(),
        TlsError::File { source, .. } => format!("this is not PEM: {source}"),
        TlsError::OtherKey { .. } => "it is the key of another certificate".into(),
        TlsError::Rejected { source, .. } => format!("certificate and key cannot be used together: {source}"),
        TlsError::NoAuthorities => chain(error),
    }
}

impl Replacement {
    /// With the permissions of what is there.
    fn write(old: &Path, ending: &str, bytes: &[u8]) -> Result<Replacement, CertificateError> {
        let failed = |error: io::Error| CertificateError::Files {
            because: format!("nothing can be written beside {}: {error}", old.display()),
        };
        let there = fs::symlink_metadata(old).map_err(failed)?;
        if there.is_symlink() {
            return Err(CertificateError::NotOurs {
                because: format!(
                    "{} is a link to a file that something else keeps; replace it there, then load certificates anew",
                    old.display()
                ),
            });
        }
        let mut name = old.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(ending);
        let new = old.with_file_name(name);
        // What a crash has left may be somebody else's to read.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&new).map_err(failed)?;
        let replacement = Replacement {
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
