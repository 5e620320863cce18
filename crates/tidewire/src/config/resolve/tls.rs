//! Resolves the TLS options of listeners and of the API, and checks `tls.acme`.

use std::path::{Path, PathBuf};

use connectors::http::Fetcher;
use net::tls::{OldestVersion, Stapling, check_cipher_suites};

use super::{Config, ListenerTls, Resolver};
use crate::config::address::Bind;
use crate::config::key::OptionKey;
use crate::config::options::certificates::AcmeChallenge;
use crate::config::options::listeners::{PeerName, TlsDefaults, TlsOptions, TlsVersion, VerifyClient};
use crate::config::value::Unset;

const NEEDS_CLIENT_CERTIFICATES: &str =
    "needs client certificates: set `verify_client` to \"required\" or \"optional\"";

/// Defaults of the TLS options of listeners.
pub(super) struct TlsSource {
    pub options: TlsDefaults,
    /// File of the certificate of `tls.acme`, if that is on.
    pub acme_file: Option<PathBuf>,
    pub data_dir: PathBuf,
}

impl Config {
    /// Whether the server obtains its certificate with ACME.
    pub fn has_acme(&self) -> bool {
        !self.acme.domains.is_empty()
    }

    /// File with the certificate of the API. `None`: the API has no TLS.
    pub fn api_certificate(&self) -> Option<PathBuf> {
        crate::config::files::api_tls_files(self).map(|files| files.certificate)
    }

    /// The address on which the challenge of ACME is answered, with its option.
    pub fn acme_bind(&self) -> Option<(&'static str, &Bind)> {
        self.has_acme().then_some(match self.acme.challenge {
            AcmeChallenge::Http01 => ("http_bind", &self.acme.http_bind),
            AcmeChallenge::TlsAlpn01 => ("tls_alpn_bind", &self.acme.tls_alpn_bind),
        })
    }
}

/// Returns the OCSP stapling of a certificate.
pub fn stapling(data_dir: &Path, certificate: &Path, url: &Unset<String>, issuer: &Unset<PathBuf>) -> Stapling {
    Stapling {
        response: ::certificates::staple_file(data_dir, certificate, url.0.as_deref()),
        issuer: issuer.0.clone(),
        responder_url: url.0.clone(),
    }
}

/// Returns the setting of `net`.
pub fn oldest_version(version: TlsVersion) -> OldestVersion {
    match version {
        TlsVersion::V1_2 => OldestVersion::Tls12,
        TlsVersion::V1_3 => OldestVersion::Tls13,
    }
}

impl Resolver<'_> {
    pub(super) fn listener_tls(&mut self, path: &[&str], own: TlsOptions, defaults: &TlsSource) -> Option<ListenerTls> {
        let either = |own: Unset<PathBuf>, default: &Unset<PathBuf>| own.0.or_else(|| default.0.clone());
        let has_own = own.cert_file.0.is_some() || own.key_file.0.is_some();
        let acme_file = defaults.acme_file.clone().filter(|_| !has_own);
        let is_acme = acme_file.is_some();
        let (cert_file, key_file) = match acme_file {
            Some(file) => (Some(file.clone()), Some(file)),
            None => (
                either(own.cert_file.clone(), &defaults.options.cert_file),
                either(own.key_file.clone(), &defaults.options.key_file),
            ),
        };
        let ca_file = either(own.ca_file.clone(), &defaults.options.ca_file);
        for (option, file) in [("cert_file", &cert_file), ("key_file", &key_file)] {
            if file.is_none() {
                let message = format!("is missing: set it, or `tls.{option}` for all listeners");
                self.add_missing(path, option, message);
            }
        }
        self.check_client_certificates(path, &own, ca_file.is_some());
        let (url, issuer) = (&own.ocsp_responder_url, &own.ocsp_issuer_file);
        self.check_ocsp(path, own.ocsp_stapling, url, issuer);
        let stapled = cert_file.as_ref().filter(|_| own.ocsp_stapling);
        let stapling = stapled.map(|file| stapling(&defaults.data_dir, file, url, issuer));
        for url in &own.crl_urls {
            if let Err(message) = Fetcher::check_url(url) {
                self.add_diagnostic(&OptionKey::of(path).child("crl_urls"), message);
            }
        }
        let (key, cipher_suites) = match own.cipher_suites.is_empty() {
            true => (
                OptionKey::of(&["tls", "cipher_suites"]),
                defaults.options.cipher_suites.clone(),
            ),
            false => (OptionKey::of(path).child("cipher_suites"), own.cipher_suites),
        };
        self.check_suites(&key, &cipher_suites, own.min_tls_version);
        Some(ListenerTls {
            cert_file: cert_file?,
            key_file: key_file?,
            is_acme,
            stapling,
            ca_file,
            crl_file: own.crl_file.0,
            crl_url_files: own
                .crl_urls
                .iter()
                .map(|url| ::certificates::list_file(&defaults.data_dir, url))
                .collect(),
            crl_urls: own.crl_urls,
            verify_client: own.verify_client,
            peer_cert_as_user_name: own.peer_cert_as_user_name,
            peer_cert_as_client_id: own.peer_cert_as_client_id,
            min_tls_version: own.min_tls_version,
            cipher_suites,
            is_for_quic: false,
        })
    }

    fn check_ocsp(&mut self, path: &[&str], is_on: bool, url: &Unset<String>, issuer: &Unset<PathBuf>) {
        if let Some(Err(message)) = url.0.as_deref().map(Fetcher::check_url) {
            self.add_diagnostic(&OptionKey::of(path).child("ocsp_responder_url"), message);
        }
        for (option, is_set) in [
            ("ocsp_responder_url", url.0.is_some()),
            ("ocsp_issuer_file", issuer.0.is_some()),
        ] {
            if is_set && !is_on {
                self.add_missing(path, option, "needs `ocsp_stapling = true`".into());
            }
        }
    }

    fn check_client_certificates(&mut self, path: &[&str], own: &TlsOptions, has_authorities: bool) {
        if own.verify_client != VerifyClient::None {
            if !has_authorities {
                let message = "is missing: verifying client certificates needs certificate authorities";
                self.add_missing(path, "ca_file", message.into());
            }
            return;
        }
        for (option, is_set) in [
            ("crl_file", own.crl_file.0.is_some()),
            ("crl_urls", !own.crl_urls.is_empty()),
            ("peer_cert_as_user_name", own.peer_cert_as_user_name != PeerName::Off),
            ("peer_cert_as_client_id", own.peer_cert_as_client_id != PeerName::Off),
        ] {
            if is_set {
                self.add_missing(path, option, NEEDS_CLIENT_CERTIFICATES.into());
            }
        }
    }

    fn check_suites(&mut self, key: &OptionKey, suites: &[String], oldest: TlsVersion) {
        let is_new = |message: &String| !self.diagnostics.iter().any(|other| other.message == *message);
        if let Err(message) = check_cipher_suites(suites, oldest_version(oldest))
            && is_new(&message)
        {
            self.add_diagnostic(key, message);
        }
    }

    pub(super) fn check_api_tls(&mut self, config: &Config) {
        let api = &config.api;
        for (is_missing, option) in [
            (api.cert_file.0.is_some() && api.key_file.0.is_none(), "key_file"),
            (api.key_file.0.is_some() && api.cert_file.0.is_none(), "cert_file"),
        ] {
            if is_missing {
                let message = "is missing: HTTPS needs `api.cert_file` and `api.key_file`";
                self.add_missing(&["api"], option, message.into());
            }
        }
        self.check_ocsp(
            &["api"],
            api.ocsp_stapling,
            &api.ocsp_responder_url,
            &api.ocsp_issuer_file,
        );
        if api.ocsp_stapling && config.api_certificate().is_none() {
            let message = "needs a certificate: set `api.cert_file` or `api.acme`";
            self.add_diagnostic(&OptionKey::of(&["api", "ocsp_stapling"]), message.into());
        }
        let key = OptionKey::of(&["api", "acme"]);
        if api.acme && !config.has_acme() {
            self.add_diagnostic(&key, "needs a certificate of `tls.acme`: set `tls.acme.domains`".into());
        }
        if api.acme && api.cert_file.0.is_some() {
            self.add_diagnostic(&key, "excludes `api.cert_file`: set only one of them".into());
        }
        let key = OptionKey::of(&["api", "cipher_suites"]);
        self.check_suites(&key, &api.cipher_suites, api.min_tls_version);
    }

    pub(super) fn check_acme(&mut self, config: &Config) {
        let acme = &config.acme;
        let path = ["tls", "acme"];
        if !config.has_acme() {
            if acme.agree_to_terms {
                let message = "is missing: list the host names of the certificate";
                self.add_missing(&path, "domains", message.into());
            }
            return;
        }
        if cfg!(not(feature = "acme")) {
            let message = "needs the part `acme`, which this build does not contain (tidewire version --features)";
            self.add_missing(&path, "domains", message.into());
        }
        if self.entries.contains_key(&OptionKey::of(&["tls", "cert_file"])) {
            let message = "excludes `tls.cert_file`: set only one of them, or `cert_file` of single listeners";
            self.add_missing(&path, "domains", message.into());
        }
        for (at, domain) in acme.domains.iter().enumerate() {
            if let Some(problem) = domain_problem(domain) {
                self.add_missing(&path, "domains", format!("found \"{domain}\", {problem}"));
            }
            if acme.domains[..at]
                .iter()
                .any(|other| other.eq_ignore_ascii_case(domain))
            {
                self.add_missing(&path, "domains", format!("contains \"{domain}\" twice"));
            }
        }
        if !acme.agree_to_terms {
            let message = "must be true: read the terms of service of the authority, and agree to them";
            self.add_missing(&path, "agree_to_terms", message.into());
        }
        let is_url = Fetcher::check_url(&acme.directory).is_ok() && acme.directory.starts_with("https://");
        if !is_url {
            let message = format!("found \"{}\", expected a URL with https", acme.directory);
            self.add_missing(&path, "directory", message);
        }
        for contact in &acme.contact {
            if !contact
                .strip_prefix("mailto:")
                .is_some_and(|address| address.contains('@'))
            {
                let message = format!("found \"{contact}\", expected an address such as \"mailto:ops@example.org\"");
                self.add_missing(&path, "contact", message);
            }
        }
        for (is_missing, option) in [
            (
                acme.eab_key_id.0.is_some() && acme.eab_key_file.0.is_none(),
                "eab_key_file",
            ),
            (
                acme.eab_key_file.0.is_some() && acme.eab_key_id.0.is_none(),
                "eab_key_id",
            ),
        ] {
            if is_missing {
                let message = "is missing: an external account has `eab_key_id` and `eab_key_file`";
                self.add_missing(&path, option, message.into());
            }
        }
    }

    /// A problem of an option that may not be set: it is reported where its table is.
    fn add_missing(&mut self, path: &[&str], option: &str, message: String) {
        let key = OptionKey::of(path).child(option);
        match self.entries.contains_key(&key) {
            true => self.add_diagnostic(&key, message),
            false => self.add_diagnostic_at(self.any_origin_below(path), &key, message),
        }
    }
}

/// Why a name cannot be a domain of the certificate.
fn domain_problem(domain: &str) -> Option<&'static str> {
    const EXPECTED: &str = "expected a host name such as \"mqtt.example.org\"";
    const NAME_MAX: usize = 253;
    const LABEL_MAX: usize = 63;
    if domain.contains('*') {
        return Some("but names with * need a challenge by DNS, which the server does not support");
    }
    if domain.parse::<std::net::IpAddr>().is_ok() {
        return Some("but a certificate for an address is not supported; expected a host name");
    }
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= LABEL_MAX
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_name = domain.len() <= NAME_MAX && domain.contains('.') && domain.split('.').all(is_label);
    (!is_name).then_some(EXPECTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_host_names() {
        for domain in ["mqtt.example.org", "a-b.C.example", "xn--bcher-kva.example"] {
            assert_eq!(domain_problem(domain), None, "{domain}");
        }
        for domain in [
            "",
            "localhost",
            "*.example.org",
            "192.0.2.1",
            "2001:db8::1",
            "-a.example",
            "a..example",
            "bücher.example",
            "https://example.org",
            "example.org.",
        ] {
            assert!(domain_problem(domain).is_some(), "{domain}");
        }
    }
}
