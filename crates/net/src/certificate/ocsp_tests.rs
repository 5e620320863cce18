//! Requests and responses of OpenSSL. `crates/net/tests/ocsp/create.sh` has created the files.

use super::*;

/// Times of the responses.
const THIS_UPDATE: i64 = 1_796_052_750;
const NEXT_UPDATE: i64 = 1_796_657_550;
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
        begins_at_unix_s: THIS_UPDATE,
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
        endless.expires_at_unix_s - endless.begins_at_unix_s,
        WITHOUT_NEXT_UPDATE_S
    );
}

/// Clients check the certificate of the responder when they receive the response.
#[test]
fn response_ends_with_the_certificate_of_its_responder() {
    let response = der!("good-delegated-for-a-day.der");
    let day_s = 86_400;
    let validity = subject().check(response, NOW).unwrap();
    assert!((THIS_UPDATE - 60..=THIS_UPDATE + 60).contains(&(validity.expires_at_unix_s - day_s)));
    assert_eq!(subject().good_period(response), Ok(validity));
    let at_unix_s = validity.expires_at_unix_s;
    assert_eq!(
        subject().check(response, at_unix_s),
        Err(OcspError::Expired { at_unix_s })
    );
}

#[test]
fn responder_can_have_several_certificates() {
    let good = der!("good-delegated.der");
    let (own, plain) = (certificate_of(good), certificate_of(der!("plain-certificate.der")));
    // The parts that are not signed can be put together again.
    assert_eq!(with_certificates(good, &[own]), good);
    for certificates in [&[plain, own][..], &[own, plain], &[der!("other.cert.der"), own]] {
        let response = with_certificates(good, certificates);
        assert!(subject().check(&response, NOW).is_ok());
    }
    let response = with_certificates(good, &[plain]);
    let problem = "does not allow it to sign responses (extended key usage OCSPSigning)";
    assert_eq!(subject().check(&response, NOW), Err(OcspError::Responder { problem }));
}

/// Clients may reject what an attacker can add to the parts of a response that are not signed.
#[test]
fn parts_without_a_signature_have_no_further_elements() {
    let good = der!("good-delegated.der");
    let own = certificate_of(good);
    let longer = [own, &b"\x05\x00"[..]].concat();
    let inner = Der(own).enter(SEQUENCE).unwrap().0;
    let padded = element(SEQUENCE, &[inner, NULL]);
    for certificates in [&[own, NULL][..], &[&longer[..]], &[&padded[..]], &[own, &b"x"[..]]] {
        let response = with_certificates(good, certificates);
        assert_eq!(subject().check(&response, NOW), Err(OcspError::Malformed));
    }
    let (oid, basic) = basic_of(good);
    let octets = |basic: &[u8]| element(OCTET_STRING, &[basic]);
    let rebuilt = |typed: &[&[u8]], behind: &[u8]| {
        let typed = element(EXPLICIT_0, &[&element(SEQUENCE, typed)]);
        element(SEQUENCE, &[&[ENUMERATED, 1, SUCCESSFUL], &typed, behind])
    };
    assert_eq!(rebuilt(&[oid, &octets(basic)], b""), good);
    let content = Der(basic).enter(SEQUENCE).unwrap().0;
    for response in [
        rebuilt(&[oid, &octets(basic)], NULL),
        rebuilt(&[oid, &octets(basic), NULL], b""),
        rebuilt(&[oid, &octets(&[basic, NULL].concat())], b""),
        rebuilt(&[oid, &octets(&element(SEQUENCE, &[content, NULL]))], b""),
    ] {
        assert_eq!(subject().check(&response, NOW), Err(OcspError::Malformed));
    }
}

/// The object identifier and the content of the basic response.
fn basic_of(response: &[u8]) -> (&[u8], &[u8]) {
    let mut fields = Der(response).enter(SEQUENCE).unwrap();
    let _status = fields.next().unwrap();
    let mut typed = fields.enter(EXPLICIT_0).unwrap().enter(SEQUENCE).unwrap();
    let oid = typed.whole().unwrap();
    (oid, typed.enter(OCTET_STRING).unwrap().0)
}

/// The first certificate of a response.
fn certificate_of(response: &[u8]) -> &[u8] {
    let mut basic = Der(basic_of(response).1).enter(SEQUENCE).unwrap();
    for _data_algorithm_signature in 0..3 {
        basic.next().unwrap();
    }
    let mut certificates = basic.enter(EXPLICIT_0).unwrap().enter(SEQUENCE).unwrap();
    certificates.whole().unwrap()
}

/// The response with other certificates.
fn with_certificates(response: &[u8], certificates: &[&[u8]]) -> Vec<u8> {
    let (oid, basic) = basic_of(response);
    let mut basic = Der(basic).enter(SEQUENCE).unwrap();
    let [data, algorithm, signature] = [(); 3].map(|()| basic.whole().unwrap());
    let certificates = element(EXPLICIT_0, &[&element(SEQUENCE, certificates)]);
    let basic = element(SEQUENCE, &[data, algorithm, signature, &certificates]);
    let typed = element(SEQUENCE, &[oid, &element(OCTET_STRING, &[&basic])]);
    element(
        SEQUENCE,
        &[&[ENUMERATED, 1, SUCCESSFUL], &element(EXPLICIT_0, &[&typed])],
    )
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
        begins_at_unix_s: THIS_UPDATE,
    };
    let expired = OcspError::Expired { at_unix_s: NEXT_UPDATE };
    assert_eq!(check(THIS_UPDATE - CLOCK_DIFFERENCE_S - 1), Err(early));
    assert_eq!(check(THIS_UPDATE - CLOCK_DIFFERENCE_S), Ok(()));
    assert_eq!(check(NEXT_UPDATE - 1), Ok(()));
    assert_eq!(check(NEXT_UPDATE), Err(expired));
}

/// An attacker on the path can send an old response again.
#[test]
fn expired_revocation_is_not_believed() {
    let revoked = der!("revoked.der");
    let later = subject().check(revoked, NEXT_UPDATE + 60);
    assert!(matches!(later, Err(OcspError::Expired { .. })), "{later:?}");
    assert_eq!(
        subject().good_period(revoked),
        Err(OcspError::Revoked { at_unix_s: REVOKED_AT })
    );
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
