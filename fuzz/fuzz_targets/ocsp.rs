//! Fuzzes responses of OCSP responders, and certificates.

#![no_main]

use libfuzzer_sys::fuzz_target;
use net::certificate::{OcspError, OcspSubject, describe};

const CERTIFICATE: &[u8] = include_bytes!("../../crates/net/tests/ocsp/server.cert.der");
const ISSUER: &[u8] = include_bytes!("../../crates/net/tests/ocsp/ca.cert.der");

fuzz_target!(|bytes: &[u8]| {
    let subject = OcspSubject::new(CERTIFICATE, ISSUER).expect("the issuer has signed the certificate");
    if let Ok(validity) = subject.good_period(bytes) {
        // A response ends with its last byte.
        let longer = [bytes, b"x"].concat();
        assert_eq!(subject.good_period(&longer), Err(OcspError::Malformed));
        assert_eq!(
            subject.good_period(&bytes[..bytes.len() - 1]),
            Err(OcspError::Malformed)
        );
        // It is valid from its beginning, and not at its end.
        let (begin, end) = (validity.begins_at_unix_s, validity.expires_at_unix_s);
        assert_eq!(subject.check(bytes, begin), Ok(validity));
        assert_eq!(subject.check(bytes, end), Err(OcspError::Expired { at_unix_s: end }));
    }
    let _ = describe(bytes);
    let _ = OcspSubject::new(CERTIFICATE, bytes);
    if let Ok(subject) = OcspSubject::new(bytes, ISSUER) {
        // The request contains the serial number of the certificate.
        assert!(subject.request().len() < bytes.len());
    }
});
