//! Fuzzes client certificates, revocation lists and OCSP responses, DER.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use net::certificate::{CertificateField, OcspSubject, describe, describe_list};

const CERTIFICATE: &[u8] = include_bytes!("../../crates/net/tests/ocsp/server.cert.der");
const ISSUER: &[u8] = include_bytes!("../../crates/net/tests/ocsp/ca.cert.der");
/// When the responses of the seeds are valid.
const NOW_UNIX_S: i64 = 1_796_045_988;

const FIELDS: [CertificateField; 7] = [
    CertificateField::CommonName,
    CertificateField::Subject,
    CertificateField::SerialNumber,
    CertificateField::Fingerprint,
    CertificateField::DnsName,
    CertificateField::Uri,
    CertificateField::Email,
];

static SUBJECT: LazyLock<OcspSubject> =
    LazyLock::new(|| OcspSubject::new(CERTIFICATE, ISSUER).expect("the issuer has signed the certificate"));

fuzz_target!(|bytes: &[u8]| {
    if let Some(description) = describe(bytes) {
        assert!(!description.subject.contains(char::is_control), "{description:?}");
    }
    for field in FIELDS {
        if let Ok(name) = field.of(bytes) {
            assert!(!name.contains(char::is_control), "{field:?}: {name:?}");
        }
    }
    if let Some(list) = describe_list(bytes) {
        assert!(
            describe_list(&[bytes, b"x"].concat()).is_none(),
            "later bytes are ignored"
        );
        assert!(list.covers_the_same(&list) && !list.has_lower_number(&list));
    }
    if let Ok(subject) = OcspSubject::new(bytes, ISSUER) {
        assert!(!subject.request().is_empty());
    }
    match SUBJECT.check(bytes, NOW_UNIX_S) {
        Ok(validity) => assert!(validity.expires_at_unix_s > NOW_UNIX_S),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
