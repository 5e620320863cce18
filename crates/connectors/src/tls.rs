//! TLS settings of connectors that use rustls: trusted certificates and the client certificate.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use trust::{ClientTls, TlsSetting, Trust};

/// TLS settings of the connection to the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// File with the trusted CA certificates, in PEM format. Default: the certificates that the operating system
    /// trusts.
    pub ca_file: Option<PathBuf>,
    /// File with the client certificate, in PEM format, for targets that require one. Needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// File with the private key of the client certificate, in PEM format.
    pub key_file: Option<PathBuf>,
    /// Whether the server verifies the target's certificate. Without verification, an attacker on the network path can
    /// read and change all messages.
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
    /// Builds the rustls configuration. The error names the field and the file.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let client = ClientTls {
            trust: Trust::of(self.ca_file.as_deref(), self.verify),
            cert_file: self.cert_file.as_deref(),
            key_file: self.key_file.as_deref(),
            versions: rustls::ALL_VERSIONS,
        };
        let field = |part| match part {
            TlsSetting::Ca => "tls.ca_file",
            TlsSetting::Cert => "tls.cert_file",
            TlsSetting::Key => "tls.key_file",
            TlsSetting::Versions => "tls",
        };
        let config = client.config();
        config
            .map(Arc::new)
            .map_err(|problem| format!("{}: {problem}", field(problem.part)))
    }
}
