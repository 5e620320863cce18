//! The cipher suites of a listener: their names, and the check that a list leaves a usable one.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, SignatureAlgorithm, SupportedCipherSuite};

use super::{OldestVersion, TlsError};

/// Suites that the TLS library has, with their names in the IANA registry and in OpenSSL.
const NAMES: [(CipherSuite, &str, &str); 9] = [
    (
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        "TLS_AES_256_GCM_SHA384",
        "TLS_AES_256_GCM_SHA384",
    ),
    (
        CipherSuite::TLS13_AES_128_GCM_SHA256,
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_128_GCM_SHA256",
    ),
    (
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_CHACHA20_POLY1305_SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-RSA-CHACHA20-POLY1305",
    ),
];

/// Checks the names of a list, and that it leaves a suite for the allowed versions. An empty list means all suites.
pub fn check_cipher_suites(names: &[String], oldest: OldestVersion) -> Result<(), String> {
    let mut has_usable = names.is_empty();
    for name in names {
        let suite = find(name).ok_or_else(|| {
            let known: Vec<&str> = NAMES.iter().map(|(_, iana, _)| *iana).collect();
            format!(
                "\"{name}\" is not a cipher suite that this server has; expected {}, or the name in OpenSSL",
                known.join(", ")
            )
        })?;
        has_usable |= oldest == OldestVersion::Tls12 || is_tls13(suite);
    }
    match has_usable {
        true => Ok(()),
        false => Err(
            "no cipher suite of the list is one of TLS 1.3, and min_tls_version allows nothing else; add \
             TLS_AES_256_GCM_SHA384 or another suite of TLS 1.3"
                .to_owned(),
        ),
    }
}

/// The provider with the suites of the list, in the order of the list.
pub(super) fn provider(names: &[String], oldest: OldestVersion) -> Result<Arc<CryptoProvider>, TlsError> {
    let mut provider = rustls::crypto::ring::default_provider();
    if names.is_empty() {
        return Ok(Arc::new(provider));
    }
    check_cipher_suites(names, oldest).map_err(|reason| TlsError::CipherSuites { reason })?;
    let all = std::mem::take(&mut provider.cipher_suites);
    for suite in names.iter().filter_map(|name| find(name)) {
        let known = all.iter().find(|one| one.suite() == suite);
        // A list may have a suite under both of its names.
        if let Some(known) = known.filter(|known| !provider.cipher_suites.contains(known)) {
            provider.cipher_suites.push(*known);
        }
    }
    Ok(Arc::new(provider))
}

/// Checks that a suite can be used with the key of the certificate: those of TLS 1.2 need an RSA or an ECDSA key.
pub(super) fn check_key(suites: &[SupportedCipherSuite], key: SignatureAlgorithm) -> Result<(), TlsError> {
    if suites.iter().any(|suite| suite.usable_for_signature_algorithm(key)) {
        return Ok(());
    }
    let (has, needs) = match key {
        SignatureAlgorithm::RSA => ("an RSA", "ECDSA"),
        _ => ("an ECDSA", "RSA"),
    };
    Err(TlsError::CipherSuites {
        reason: format!(
            "all cipher suites of the list need an {needs} key, but the certificate has {has} key; add a suite for it, \
             or one of TLS 1.3"
        ),
    })
}

fn find(name: &str) -> Option<CipherSuite> {
    let is_name = |known: &str| known.eq_ignore_ascii_case(name);
    let row = NAMES
        .iter()
        .find(|(_, iana, openssl)| is_name(iana) || is_name(openssl));
    row.map(|(suite, ..)| *suite)
}

fn is_tls13(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_AES_256_GCM_SHA384
            | CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{CertificateOrigin, TlsFiles, server_config};

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn every_suite_of_the_library_has_a_name() {
        let all = rustls::crypto::ring::default_provider().cipher_suites;
        assert_eq!(all.len(), NAMES.len());
        for suite in all {
            let (_, iana, openssl) = NAMES.iter().find(|(known, ..)| *known == suite.suite()).unwrap();
            assert_eq!(find(iana), Some(suite.suite()));
            assert_eq!(find(openssl), Some(suite.suite()));
            assert_eq!(
                is_tls13(suite.suite()),
                matches!(suite, SupportedCipherSuite::Tls13(_)),
                "{iana}"
            );
        }
    }

    #[test]
    fn suites_keep_the_order_of_the_list() {
        let names = list(&[
            "ECDHE-RSA-AES128-GCM-SHA256",
            "tls_aes_128_gcm_sha256",
            "TLS_AES_128_GCM_SHA256",
        ]);
        let provider = provider(&names, OldestVersion::Tls12).unwrap();
        let suites: Vec<CipherSuite> = provider.cipher_suites.iter().map(SupportedCipherSuite::suite).collect();
        let expected = [
            CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            CipherSuite::TLS13_AES_128_GCM_SHA256,
        ];
        assert_eq!(suites, expected);
    }

    #[test]
    fn unusable_lists_are_rejected() {
        let unknown = check_cipher_suites(&list(&["AES128-SHA"]), OldestVersion::Tls12).unwrap_err();
        assert!(
            unknown.starts_with("\"AES128-SHA\" is not a cipher suite") && unknown.contains("TLS_AES_256_GCM_SHA384"),
            "{unknown}"
        );
        let old = list(&["ECDHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(check_cipher_suites(&old, OldestVersion::Tls12), Ok(()));
        let none = check_cipher_suites(&old, OldestVersion::Tls13).unwrap_err();
        assert!(none.contains("min_tls_version"), "{none}");
        assert_eq!(check_cipher_suites(&[], OldestVersion::Tls13), Ok(()));
    }

    #[test]
    fn suites_must_fit_the_key() {
        let ecdsa = provider(&list(&["ECDHE-ECDSA-AES128-GCM-SHA256"]), OldestVersion::Tls12).unwrap();
        assert!(check_key(&ecdsa.cipher_suites, SignatureAlgorithm::ECDSA).is_ok());
        let error = check_key(&ecdsa.cipher_suites, SignatureAlgorithm::RSA).unwrap_err();
        assert!(error.to_string().contains("the certificate has an RSA key"), "{error}");
    }

    #[test]
    fn suites_must_fit_a_certificate_that_has_not_arrived() {
        let create = |suite: &str| {
            server_config(&TlsFiles {
                origin: CertificateOrigin::Acme,
                certificate: "/nonexistent/certificate.pem".into(),
                cipher_suites: list(&[suite]),
                ..TlsFiles::default()
            })
        };
        assert!(create("ECDHE-ECDSA-AES128-GCM-SHA256").is_ok());
        let error = create("ECDHE-RSA-AES128-GCM-SHA256").unwrap_err();
        assert!(error.to_string().contains("need an RSA key"), "{error}");
    }
}
