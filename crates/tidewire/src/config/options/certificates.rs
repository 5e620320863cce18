//! Options of certificates, revocation lists and OCSP responses that the server obtains itself.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::address::Bind;
use crate::config::key::KeySegment::Fixed;
use crate::config::option::section;
use crate::config::units::ByteSize;
use crate::config::value::{Unset, choice};

choice! {
    /// How the server proves that it owns its domains.
    pub enum AcmeChallenge {
        /// A file over HTTP, port 80.
        Http01 = "http-01",
        /// A certificate over TLS, port 443.
        TlsAlpn01 = "tls-alpn-01",
    }
}

choice! {
    /// Decides about client certificates without a valid revocation list.
    pub enum MissingListPolicy { Deny = "deny", Allow = "allow" }
}

section! {
    /// Automatic certificates from Let's Encrypt or another authority with ACME (RFC 8555). They are on if `domains` is
    /// set. All `tls` and `wss` listeners without a `cert_file` of their own use the certificate, and the API with
    /// `api.acme`. The server renews it after two thirds of its lifetime. The book describes it in *Guides: Automatic
    /// certificates*.
    pub struct AcmeOptions at [Fixed("tls"), Fixed("acme")] {
        /// Host names for which the certificate is valid. Setting them enables the `tls` and `wss` listeners named
        /// `default`, and excludes `tls.cert_file`. Names with `*` are not possible, because they need a challenge by
        /// DNS.
        restart domains: Vec<String> = "";
        /// Whether you agree to the terms of service of the authority. Must be true.
        restart agree_to_terms: bool = "false";
        /// Addresses at which the authority may reach you, such as `mailto:ops@example.org`.
        restart contact: Vec<String> = "";
        /// URL of the authority's directory. The default is Let's Encrypt. For tests, use its staging environment,
        /// `https://acme-staging-v02.api.letsencrypt.org/directory`, whose limits are higher.
        restart directory: String = "https://acme-v02.api.letsencrypt.org/directory";
        /// How the server proves that it owns the domains: `http-01` or `tls-alpn-01`.
        restart challenge: AcmeChallenge = "http-01";
        /// Address and port for `http-01`. The authority connects to port 80 of each domain. The server answers only
        /// `/.well-known/acme-challenge/` and the tokens of a running order.
        restart http_bind: Bind = "0.0.0.0:80";
        /// Address and port for `tls-alpn-01`. The authority connects to port 443 of each domain. No listener can use
        /// the same port: choose `http-01` if a listener or the API needs port 443.
        restart tls_alpn_bind: Bind = "0.0.0.0:443";
        /// CA certificates (PEM) that the directory is verified with. Empty: those that the operating system trusts.
        restart ca_file: Unset<PathBuf> = "";
        /// Key ID of an external account, if the authority requires one.
        restart eab_key_id: Unset<String> = "";
        /// File with the HMAC key of the external account, in base64url as the authority shows it.
        restart eab_key_file: Unset<PathBuf> = "";
    }
}

section! {
    /// Download of the revocation lists in `crl_urls` of listeners. EMQX has these settings in `crl_cache`.
    pub struct CrlOptions at [Fixed("tls"), Fixed("crl")] {
        /// Longest time between two downloads of a list. The server fetches a list earlier if it expires earlier.
        live refresh_interval: Duration = "15m" ["1s", "7d"];
        /// Time limit of a download.
        live timeout: Duration = "15s" ["100ms", "5m"];
        /// Maximum size of a list. A larger one counts as a failed download.
        live max_bytes: ByteSize = "16MiB" ["1KiB", "256MiB"];
        /// CA certificates (PEM) for `https` URLs. Empty: those that the operating system trusts.
        live ca_file: Unset<PathBuf> = "";
        /// Decides about client certificates whose revocation list is missing or has expired: `deny` rejects them.
        /// `allow` accepts them, with an alarm, even if their authority has revoked them since the last download.
        /// Certificates on the last list are always rejected. Applies only to listeners with `crl_urls`, and then also
        /// to their `crl_file`. A listener with only a `crl_file` always denies.
        live missing: MissingListPolicy = "deny";
    }
}

section! {
    /// OCSP responses for the certificates of listeners and of the API with `ocsp_stapling`. EMQX has these settings in
    /// `ssl_options.ocsp` of each listener.
    pub struct OcspOptions at [Fixed("tls"), Fixed("ocsp")] {
        /// Longest time between two requests for a certificate. The server asks earlier if half of the remaining
        /// validity of the stored response is shorter.
        live refresh_interval: Duration = "5m" ["1s", "7d"];
        /// Time limit of a request. EMQX calls it `refresh_http_timeout`.
        live timeout: Duration = "15s" ["100ms", "5m"];
        /// CA certificates (PEM) for `https` URLs of responders. Empty: those that the operating system trusts.
        live ca_file: Unset<PathBuf> = "";
    }
}
