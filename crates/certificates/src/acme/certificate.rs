//! The file of the certificate, and when it is due for renewal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use net::certificate::describe;
use net::tls::{TlsFiles, certificates, server_config};

use super::AcmeConfig;

/// Comment line in the file, before the directory URL.
const DIRECTORY_LINE: &str = "# Issued by ";

/// What the file contains.
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
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
            Ok(text) => text,
        };
        StoredCertificate::parse(&path, &text).map(Some)
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

    fn has_names(&self, domains: &[String]) -> bool {
        let has = |domain: &String| self.names.iter().any(|name| name.eq_ignore_ascii_case(domain));
        domains.iter().all(has) && self.names.len() == domains.len()
    }
}

/// Puts a certificate aside that cannot be used, so that the listeners start without it. The server then obtains a new
/// one.
pub fn discard_damaged(files: &Path) -> Result<(), String> {
    let Err(reason) = StoredCertificate::read(files) else {
        return Ok(());
    };
    let (path, aside) = (path(files), files.join("certificate.damaged"));
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

/// Checks a certificate and its key and writes them to the file. Returns when the certificate expires.
pub fn store(config: &AcmeConfig, key_pem: &str, chain_pem: &str) -> Result<i64, String> {
    crate::create_private(&config.files)?;
    let text = format!("{DIRECTORY_LINE}{}\n{key_pem}\n{chain_pem}", config.directory);
    let (path, new) = (path(&config.files), config.files.join("certificate.checked"));
    let unwritten = |path: &Path, error: io::Error| format!("cannot write {}: {error}", path.display());
    storage::copy::replace(&new, text.as_bytes()).map_err(|error| unwritten(&new, error))?;
    let checked = StoredCertificate::parse(&new, &text);
    // It has a private key.
    fs::remove_file(&new).map_err(|error| unwritten(&new, error))?;
    let checked = checked.map_err(|reason| format!("the authority's certificate is unusable: {reason}"))?;
    if !checked.has_names(&config.domains) {
        return Err(format!(
            "the authority's certificate has other names than requested: {}",
            checked.names.join(", ")
        ));
    }
    storage::copy::replace(&path, text.as_bytes()).map_err(|error| unwritten(&path, error))?;
    Ok(checked.not_after_unix_s)
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
    fn names_match_in_any_order() {
        let domains = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let stored = stored(0, 1);
        assert!(stored.has_names(&domains(&["A.example", "b.example"])));
        assert!(!stored.has_names(&domains(&["a.example"])));
        assert!(!stored.has_names(&domains(&["a.example", "c.example"])));
    }
}
