//! Requests and responses of OpenSSL. `crates/net/tests/ocsp/create.sh` has created the files.

use super::*;

/// Times of the responses.
const THIS_UPDATE: i64 = 1_796_045_928;
const NEXT_UPDATE: i64 = 1_796_650_728;
const REVOKED_AT: i64 = 1_793_534_400;
const NOW: i64 = THIS_UPDATE + 60;

macro_rules! der {
    ($name:literal) => {
        &include_bytes!(concat!("../../tests/ocsp/", $name))[..]
    };
}

fn subject() -> OcspSubject {
    OcspSubject::new(der!("server.cert.der"), der!("ca.cert.der")).unwrap()
}

#[test]
fn request_is_that_of_openssl() {
    assert_eq!(subject().request(), der!("request.der"));
}

#[test]
fn responder_url_is_read_from_the_certificate() {
    assert_eq!(subject().responder_url(), Some("http://ocsp.example:2560/x"));
    let other = OcspSubject::new(der!("other.cert.der"), der!("ca.cert.der")).unwrap();
    assert_eq!(other.responder_url(), None);
}

#[test]
fn issuer_must_have_signed_the_certificate() {
    for issuer in [der!("stranger.cert.der"), der!("server.cert.der")] {
        assert_eq!(
            OcspSubject::new(der!("server.cert.der"), issuer),
            Err(OcspError::OtherIssuer)
        );
    }
    assert_eq!(
        OcspSubject::new(der!("server.cert.der"), b"garbage"),
        Err(OcspError::UnreadableCertificate)
    );
}

#[test]
fn good_responses_are_accepted() {
    let good = OcspValidity {
        this_update_unix_s: THIS_UPDATE,
        expires_at_unix_s: NEXT_UPDATE,
    };
    for (name, response) in [("by name", der!("good.der")), ("by key", der!("good-key-id.der"))] {
        assert_eq!(subject().check(response, NOW), Ok(good), "{name}");
    }
    // The other responses may be a second later.
    let delegated = subject().check(der!("good-delegated.der"), NOW).unwrap();
    assert!((0..5).contains(&(delegated.expires_at_unix_s - NEXT_UPDATE)));
    let endless = subject().check(der!("good-no-next-update.der"), NOW).unwrap();
    assert_eq!(
        endless.expires_at_unix_s - endless.this_update_unix_s,
        WITHOUT_NEXT_UPDATE_S
    );
}

#[test]
fn other_responses_are_not_accepted() {
    let foreign = "is not of the issuer of the server's certificate";
    let unusable = "does not allow it to sign responses (extended key usage OCSPSigning)";
    for (name, response, error) in [
        ("unknown", der!("unknown.der"), OcspError::UnknownStatus),
        ("other", der!("other.der"), OcspError::OtherCertificate),
        ("try later", der!("try-later.der"), OcspError::Refused { status: 3 }),
        ("namesake", der!("namesake.der"), OcspError::Signature),
        (
            "stranger",
            der!("stranger.der"),
            OcspError::Responder { problem: foreign },
        ),
        (
            "foreign",
            der!("foreign-certificate.der"),
            OcspError::Responder { problem: foreign },
        ),
        (
            "plain",
            der!("plain-certificate.der"),
            OcspError::Responder { problem: unusable },
        ),
        (
            "no certificate",
            der!("no-certificate.der"),
            OcspError::UnknownResponder,
        ),
        ("certificate", der!("ca.cert.der"), OcspError::Malformed),
        ("page", &b"<html></html>"[..], OcspError::Malformed),
        ("empty", &b""[..], OcspError::Malformed),
    ] {
        assert_eq!(subject().check(response, NOW), Err(error), "{name}");
    }
    let revoked = subject().check(der!("revoked.der"), NOW);
    assert_eq!(revoked, Err(OcspError::Revoked { at_unix_s: REVOKED_AT }));
    let message = revoked.unwrap_err().to_string();
    assert!(
        message.contains("revoked") && message.contains("2026-11-01T12:00:00"),
        "{message}"
    );
}

#[test]
fn response_is_valid_between_its_updates() {
    let check = |now: i64| subject().check(der!("good.der"), now).map(|_| ());
    let early = OcspError::Early {
        this_update_unix_s: THIS_UPDATE,
    };
    let expired = OcspError::Expired { at_unix_s: NEXT_UPDATE };
    assert_eq!(check(THIS_UPDATE - CLOCK_DIFFERENCE_S - 1), Err(early));
    assert_eq!(check(THIS_UPDATE - CLOCK_DIFFERENCE_S), Ok(()));
    assert_eq!(check(NEXT_UPDATE - 1), Ok(()));
    assert_eq!(check(NEXT_UPDATE), Err(expired));
}

#[test]
fn certificate_of_the_responder_must_be_valid() {
    let century_s = 100 * 366 * 86_400;
    let error = subject().check(der!("good-delegated.der"), NOW + century_s);
    let problem = "is not valid now";
    assert_eq!(error, Err(OcspError::Responder { problem }));
}

#[test]
fn damaged_responses_are_not_accepted() {
    for response in [der!("good.der"), der!("good-delegated.der")] {
        for index in 0..response.len() {
            assert!(subject().check(&response[..index], NOW).is_err(), "{index}");
        }
        let longer = [response, &b"x"[..]].concat();
        assert_eq!(subject().check(&longer, NOW), Err(OcspError::Malformed));
        // Each single bit of the signed part.
        let signed = 40..response.len().min(200);
        for index in signed {
            let mut damaged = response.to_vec();
            damaged[index] ^= 1;
            assert!(subject().check(&damaged, NOW).is_err(), "{index}");
        }
    }
    let certificate = der!("server.cert.der");
    for index in 0..certificate.len() {
        let mut damaged = certificate.to_vec();
        damaged[index] ^= 0xFF;
        let _ = OcspSubject::new(&damaged, der!("ca.cert.der"));
        let _ = OcspSubject::new(&certificate[..index], der!("ca.cert.der"));
    }
}

#[test]
fn long_elements_have_a_long_length() {
    assert_eq!(element(OCTET_STRING, &[&[7; 127]])[..2], [OCTET_STRING, 127]);
    assert_eq!(element(OCTET_STRING, &[&[7; 128]])[..3], [OCTET_STRING, 0x81, 128]);
    let long = element(OCTET_STRING, &[&[7; 200], &[8; 100]]);
    assert_eq!(long[..4], [OCTET_STRING, 0x82, 1, 44]);
    assert_eq!(Der(&long).enter(OCTET_STRING).unwrap().0.len(), 300);
}
