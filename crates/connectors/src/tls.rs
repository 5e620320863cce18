//! TLS towards a target: whom to trust and what to show, for every connector that speaks TLS itself.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use trust::{Client, Part, Trust};

/// TLS towards the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// File with the certificates to trust, in PEM. None: those that the operating system trusts.
    pub ca_file: Option<PathBuf>,
    /// File with our certificate, in PEM, for targets that ask for one. Needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// File with the key of our certificate, in PEM.
    pub key_file: Option<PathBuf>,
    /// Whether the target's certificate is checked. Without, anybody on the way can read and change everything.
    pub verify: bool,
}

impl Default for TlsConfig {
    fn default() -> TlsConfig {
        TlsConfig {
            ca_file: None,
            cert_file: None,
            key_file: None,
            verify: true,
        }
    }
}

impl TlsConfig {
    /// What rustls needs. The error names the field and the file.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let client = Client {
            trust: Trust::of(self.ca_file.as_deref(), self.verify),
            cert_file: self.cert_file.as_deref(),
            key_file: self.key_file.as_deref(),
            versions: rustls::ALL_VERSIONS,
        };
        let field = |part| match part {
            Part::Ca => "tls.ca_file",
            Part::Cert => "tls.cert_file",
            Part::Key => "tls.key_file",
            Part::Versions => "tls",
        };
        let config = client.config();
        config
            .map(Arc::new)
            .map_err(|problem| format!("{}: {problem}", field(problem.part)))
    }
}
