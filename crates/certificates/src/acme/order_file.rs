//! The order in progress: `order.json`, written before the authority is asked for the order and again with its URL.
//!
//! With the private key and the URL on the disk, a certificate that was issued can be fetched later, after a failure or
//! a restart. Without them, the server would have to order another one, which counts against the limits of the
//! authority.

use std::fs;
use std::io;
use std::path::PathBuf;

use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};

use super::AcmeConfig;
use super::failure::Failure;

/// After as many failed attempts to continue an order, the server orders another certificate.
const CONTINUED_MAX: u32 = 3;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderFile {
    directory: String,
    domains: Vec<String>,
    /// Private key of the certificate.
    key_pem: String,
    /// URL of the order. `None`: the authority has not answered yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// Attempts in a row to continue the order that failed.
    #[serde(default)]
    failed: u32,
}

fn path(config: &AcmeConfig) -> PathBuf {
    config.files.join("order.json")
}

impl OrderFile {
    /// Creates the key of a certificate and writes the file.
    pub fn create(config: &AcmeConfig) -> Result<OrderFile, Failure> {
        let key = KeyPair::generate();
        let key =
            key.map_err(|error| Failure::rejected(format!("cannot create the key of the certificate: {error}")))?;
        let file = OrderFile {
            directory: config.directory.clone(),
            domains: config.domains.clone(),
            key_pem: key.serialize_pem(),
            url: None,
            failed: 0,
        };
        file.write(config).map(|()| file)
    }

    /// Counts a failed attempt to continue the order. Returns whether another one is useful: an authority that has
    /// forgotten the order may have any answer.
    pub fn count_failure(&mut self, config: &AcmeConfig) -> Result<bool, Failure> {
        self.failed += 1;
        self.write(config).map(|()| self.failed < CONTINUED_MAX)
    }

    /// Whether the file has this key. `certificate_file`: PEM with a private key.
    pub fn has_key_of(&self, certificate_file: &str) -> bool {
        certificate_file.contains(self.key_pem.trim())
    }

    /// Adds the URL of the order.
    pub fn set_url(&mut self, config: &AcmeConfig, url: &str) -> Result<(), Failure> {
        self.url = Some(url.to_owned());
        self.write(config)
    }

    fn write(&self, config: &AcmeConfig) -> Result<(), Failure> {
        super::write_json(&path(config), self).map_err(Failure::unwritten)
    }

    /// Reads the order of these domains at this authority, if there is one. A damaged file counts as none: the server
    /// orders another certificate.
    pub fn read(config: &AcmeConfig) -> Option<OrderFile> {
        let path = path(config);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(
                    file = %path.display(),
                    %error,
                    "the file of the order cannot be read; the server orders another certificate"
                );
                return None;
            }
        };
        match serde_json::from_slice::<OrderFile>(&text) {
            Ok(file) => Some(file).filter(|file| file.directory == config.directory && file.domains == config.domains),
            // The text of the error could contain the key.
            Err(error) => {
                tracing::warn!(
                    file = %path.display(),
                    line = error.line(),
                    column = error.column(),
                    "the file of the order is damaged; the server orders another certificate"
                );
                None
            }
        }
    }

    pub fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Returns the certificate request, DER.
    pub fn request(&self) -> Result<Vec<u8>, String> {
        let request = KeyPair::from_pem(&self.key_pem).and_then(|key| {
            let mut params = CertificateParams::new(self.domains.clone())?;
            params.distinguished_name = DistinguishedName::new();
            params.serialize_request(&key).map(|request| request.der().to_vec())
        });
        request.map_err(|error| format!("cannot create the certificate request: {error}"))
    }
}

/// Deletes the file, because its order has a result.
pub fn remove(config: &AcmeConfig) -> io::Result<()> {
    match fs::remove_file(path(config)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
