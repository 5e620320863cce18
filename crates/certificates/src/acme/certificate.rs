//! The file of the certificate, and when it is due for renewal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use net::certificate::describe;
use net::tls::{TlsFiles, certificates, server_config};

use super::AcmeConfig;
use crate::{now_unix_s, time_text};

/// Comment line in the file, before the directory URL.
const DIRECTORY_LINE: &str = "# Issued by ";
/// Allowed difference between the clocks of the server and of the authority.
const CLOCK_DIFFERENCE_S: i64 = 3600;

/// Contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCertificate {
    /// URL of the directory of the authority.
    pub directory: String,
    pub names: Vec<String>,
    pub not_before_unix_s: i64,
    pub not_after_unix_s: i64,
}

pub fn path(files: &Path) -> PathBuf {
    files.join("certificate.pem")
}

impl StoredCertificate {
    /// Reads the file. `None` if it does not exist. The error says why it cannot be used.
    pub fn read(files: &Path) -> Result<Option<StoredCertificate>, String> {
        let path = path(files);
        let text = read_text(&path)?;
        text.map(|text| StoredCertificate::parse(&path, &text)).transpose()
    }

    fn parse(path: &Path, text: &str) -> Result<StoredCertificate, String> {
        let unusable = |reason: &dyn std::fmt::Display| format!("{} cannot be used: {reason}", path.display());
        let files = TlsFiles {
            certificate: path.to_owned(),
            key: path.to_owned(),
            ..TlsFiles::default()
        };
        server_config(&files).map_err(|error| unusable(&error))?;
        let chain = certificates(path).map_err(|error| unusable(&error))?;
        let described = chain.first().and_then(|first| describe(first));
        let described = described.ok_or_else(|| unusable(&"its dates cannot be read"))?;
        let directory = text.lines().find_map(|line| line.strip_prefix(DIRECTORY_LINE));
        Ok(StoredCertificate {
            directory: directory.unwrap_or_default().trim().to_owned(),
            names: described.names,
            not_before_unix_s: described.not_before_unix_s,
            not_after_unix_s: described.not_after_unix_s,
        })
    }

    /// Two thirds of the lifetime.
    fn due_unix_s(&self) -> i64 {
        let lifetime = self.not_after_unix_s.saturating_sub(self.not_before_unix_s).max(0);
        self.not_before_unix_s
            .saturating_add(lifetime / 3 * 2 + lifetime % 3 * 2 / 3)
    }

    /// Clients do not accept a certificate before its validity, nor after it.
    fn check_validity(&self, now_unix_s: i64) -> Result<(), String> {
        let (begin, end) = (self.not_before_unix_s, self.not_after_unix_s);
        if begin <= now_unix_s.saturating_add(CLOCK_DIFFERENCE_S) && now_unix_s < end {
            return Ok(());
        }
        Err(format!(
            "it is valid from {} to {}, and the clock of the server says {}",
            time_text(begin),
            time_text(end),
            time_text(now_unix_s)
        ))
    }

    fn has_names(&self, domains: &[String]) -> bool {
        let has = |domain: &String| self.names.iter().any(|name| name.eq_ignore_ascii_case(domain));
        domains.iter().all(has) && self.names.len() == domains.len()
    }
}

/// Returns the text of a file. `None` if it does not exist.
fn read_text(path: &Path) -> Result<Option<String>, String> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// Puts a certificate aside that cannot be used, so that the listeners start without it. The server then obtains a new
/// one. A file that cannot be read stays where it is: it may be a good one.
pub fn discard_damaged(files: &Path) -> Result<(), String> {
    let path = path(files);
    let Some(text) = read_text(&path)? else {
        return Ok(());
    };
    let Err(reason) = StoredCertificate::parse(&path, &text) else {
        return Ok(());
    };
    let aside = files.join("certificate.damaged");
    fs::rename(&path, &aside).map_err(|error| format!("{reason}; and it cannot be renamed: {error}"))?;
    tracing::error!(
        reason,
        renamed_to = %aside.display(),
        "the certificate of tls.acme cannot be used; the server obtains a new one"
    );
    Ok(())
}

/// Returns when the certificate is due, or why a new one is needed now.
pub fn reason_to_renew(
    stored: &Result<Option<StoredCertificate>, String>,
    config: &AcmeConfig,
    now_unix_s: i64,
) -> Result<i64, String> {
    let stored = match stored {
        Err(reason) => return Err(reason.clone()),
        Ok(None) => return Err("there is none yet".to_owned()),
        Ok(Some(stored)) => stored,
    };
    if stored.directory != config.directory {
        return Err("tls.acme.directory has changed".to_owned());
    }
    if !stored.has_names(&config.domains) {
        return Err("tls.acme.domains has changed".to_owned());
    }
    match stored.due_unix_s() {
        due if due > now_unix_s => Ok(due),
        _ => Err("two thirds of its lifetime have passed".to_owned()),
    }
}

/// Why a new certificate is not used.
#[derive(Debug)]
pub enum CheckError {
    /// The certificate itself.
    Unusable(String),
    /// It cannot be checked now.
    Unwritten(String),
}

/// A certificate that was checked, with its key.
#[derive(Debug)]
pub struct NewCertificate {
    text: String,
    stored: StoredCertificate,
}

impl NewCertificate {
    /// Checks the certificate of an order and its key.
    pub fn check(config: &AcmeConfig, key_pem: &str, chain_pem: &str) -> Result<NewCertificate, CheckError> {
        crate::create_private(&config.files).map_err(CheckError::Unwritten)?;
        let text = format!("{DIRECTORY_LINE}{}\n{key_pem}\n{chain_pem}", config.directory);
        let new = config.files.join("certificate.checked");
        let written = storage::copy::replace(&new, text.as_bytes());
        written.map_err(|error| CheckError::Unwritten(unwritten(&new, &error)))?;
        let checked = StoredCertificate::parse(&new, &text);
        // It has a private key.
        fs::remove_file(&new).map_err(|error| CheckError::Unwritten(unwritten(&new, &error)))?;
        let checked = checked.and_then(|one| one.check_validity(now_unix_s()).map(|()| one));
        let stored = checked
            .map_err(|reason| CheckError::Unusable(format!("the authority's certificate is unusable: {reason}")))?;
        if !stored.has_names(&config.domains) {
            return Err(CheckError::Unusable(format!(
                "the authority's certificate has other names than requested: {}",
                stored.names.join(", ")
            )));
        }
        Ok(NewCertificate { text, stored })
    }

    pub fn is_due(&self) -> bool {
        self.stored.due_unix_s() <= now_unix_s()
    }

    /// Writes it to the file. Returns when it expires.
    pub fn store(&self, config: &AcmeConfig) -> Result<i64, String> {
        let path = path(&config.files);
        storage::copy::replace(&path, self.text.as_bytes()).map_err(|error| unwritten(&path, &error))?;
        Ok(self.stored.not_after_unix_s)
    }
}

fn unwritten(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(not_before_unix_s: i64, not_after_unix_s: i64) -> StoredCertificate {
        StoredCertificate {
            directory: "https://ca.example/dir".into(),
            names: vec!["b.example".into(), "a.example".into()],
            not_before_unix_s,
            not_after_unix_s,
        }
    }

    #[test]
    fn certificate_is_due_after_two_thirds_of_its_lifetime() {
        assert_eq!(stored(1000, 1090).due_unix_s(), 1060);
        assert_eq!(stored(1000, 1005).due_unix_s(), 1003);
        assert_eq!(stored(1000, 900).due_unix_s(), 1000);
    }

    #[test]
    fn certificate_must_be_valid_now() {
        let stored = stored(10_000, 20_000);
        for (now, is_valid) in [
            (6_399, false),
            // The clock of the server may be slow.
            (6_400, true),
            (10_000, true),
            (19_999, true),
            (20_000, false),
        ] {
            assert_eq!(stored.check_validity(now).is_ok(), is_valid, "{now}");
        }
        let error = stored.check_validity(20_000).unwrap_err();
        assert!(error.contains("to 1970-01-01T05:33:20Z"), "{error}");
    }

    #[test]
    fn file_that_cannot_be_read_is_not_put_aside() {
        let files = std::env::temp_dir().join(format!("tidewire-acme-unreadable-{}", std::process::id()));
        assert_eq!(discard_damaged(&files), Ok(()));
        // A directory cannot be read.
        fs::create_dir_all(path(&files)).unwrap();
        let error = discard_damaged(&files).unwrap_err();
        assert!(error.starts_with("cannot read "), "{error}");
        assert!(path(&files).exists());
        fs::remove_dir_all(&files).unwrap();
    }

    #[test]
    fn names_match_in_any_order() {
        let domains = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let stored = stored(0, 1);
        assert!(stored.has_names(&domains(&["A.example", "b.example"])));
        assert!(!stored.has_names(&domains(&["a.example"])));
        assert!(!stored.has_names(&domains(&["a.example", "c.example"])));
    }
}
