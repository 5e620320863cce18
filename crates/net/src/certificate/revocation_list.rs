//! Reads certificate revocation lists (CRL) [RFC 5280 5.1]: issuer, scope, number, validity, and the signature.
//!
//! ```text
//! CertificateList {
//!     TBSCertList { version?, algorithm, issuer, this update, next update?, revoked?, [0] extensions? },
//!     algorithm, signature
//! }
//! ```

use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm};

use super::signature::{PublicKey, Signed};
use super::{
    Der, EXPLICIT_VERSION, GENERALIZED_TIME, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, UTC_TIME,
    distinguished_name, time,
};

/// `[0]`, which has the same tag as the version of a certificate.
const LIST_EXTENSIONS: u8 = EXPLICIT_VERSION;
/// 2.5.29.20, cRLNumber
const LIST_NUMBER: &[u8] = &[0x55, 0x1D, 0x14];
/// 2.5.29.28, issuingDistributionPoint
const DISTRIBUTION_POINT: &[u8] = &[0x55, 0x1D, 0x1C];

/// Issuer, scope, number and validity of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationListDescription {
    /// `CN=plant authority, O=Example`.
    pub issuer: String,
    /// The issuing distribution point, DER, if the list covers only a part of the issuer's certificates.
    pub scope: Option<Vec<u8>>,
    /// The number of the list, which grows with each list of the issuer: big-endian, without leading zeros.
    pub number: Option<Vec<u8>>,
    pub this_update_unix_s: i64,
    /// When the list expires. `None`: it does not say.
    pub next_update_unix_s: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureCheck {
    Valid,
    Invalid,
    /// No given authority has the name of the issuer.
    UnknownIssuer,
}

/// Parses a list. `None` if the structure is not that of a revocation list.
pub fn describe_list(list: &[u8]) -> Option<RevocationListDescription> {
    let mut outer = Der(list);
    let mut list = outer.enter(SEQUENCE).filter(|_| outer.0.is_empty())?;
    let mut tbs = list.enter(SEQUENCE)?;
    tbs.skip(INTEGER);
    let _algorithm = tbs.enter(SEQUENCE)?;
    let issuer = tbs.enter(SEQUENCE)?;
    let this_update = time(tbs.next()?)?;
    let next_update = match tbs.0.first() {
        Some(&(UTC_TIME | GENERALIZED_TIME)) => Some(time(tbs.next()?)?),
        _ => None,
    };
    if tbs.0.first() == Some(&SEQUENCE) {
        let _revoked = tbs.next()?;
    }
    let mut description = RevocationListDescription {
        issuer: distinguished_name(issuer)?,
        scope: None,
        number: None,
        this_update_unix_s: this_update,
        next_update_unix_s: next_update,
    };
    if tbs.0.first() == Some(&LIST_EXTENSIONS) {
        let extensions = tbs.enter(LIST_EXTENSIONS)?.enter(SEQUENCE)?;
        read_extensions(extensions, &mut description)?;
    }
    Some(description)
}

fn read_extensions(mut extensions: Der<'_>, description: &mut RevocationListDescription) -> Option<()> {
    while !extensions.0.is_empty() {
        let mut extension = extensions.enter(SEQUENCE)?;
        let (_, name) = extension.next().filter(|(tag, _)| *tag == OBJECT_IDENTIFIER)?;
        let mut value = extension.next()?;
        if value.0 != OCTET_STRING {
            // The value just read was the `critical` flag.
            value = extension.next()?;
        }
        match name {
            LIST_NUMBER => {
                let (_, number) = Der(value.1).next().filter(|(tag, _)| *tag == INTEGER)?;
                let zeros = number.iter().take_while(|byte| **byte == 0).count();
                description.number = Some(number[zeros..].to_vec());
            }
            DISTRIBUTION_POINT => description.scope = Some(value.1.to_vec()),
            _ => {}
        }
    }
    Some(())
}

impl RevocationListDescription {
    /// Whether this list and the other one cover the same certificates.
    pub fn covers_the_same(&self, other: &RevocationListDescription) -> bool {
        self.issuer == other.issuer && self.scope == other.scope
    }

    /// Whether the number of this list is lower than the other one's. A list without a number is lower than one with.
    pub fn has_lower_number(&self, other: &RevocationListDescription) -> bool {
        let order =
            |list: &RevocationListDescription| list.number.as_ref().map(|number| (number.len(), number.clone()));
        order(self) < order(other)
    }
}

/// Checks the signature of a list with the authorities that have the name of its issuer.
pub fn check_list_signature(
    list: &[u8],
    authorities: &[CertificateDer<'_>],
    algorithms: &[&dyn SignatureVerificationAlgorithm],
) -> SignatureCheck {
    let Some(signed) = SignedList::parse(list) else {
        return SignatureCheck::Invalid;
    };
    let keys = authorities.iter().filter_map(|authority| Authority::parse(authority));
    let mut result = SignatureCheck::UnknownIssuer;
    for authority in keys.filter(|authority| authority.subject == signed.issuer) {
        match signed.signature.is_by(authority.key, algorithms) {
            true => return SignatureCheck::Valid,
            false => result = SignatureCheck::Invalid,
        }
    }
    result
}

/// Signature and issuer of a list.
struct SignedList<'a> {
    signature: Signed<'a>,
    issuer: &'a [u8],
}

impl<'a> SignedList<'a> {
    fn parse(list: &'a [u8]) -> Option<SignedList<'a>> {
        let (signature, mut tbs, _) = Signed::parse(list)?;
        tbs.skip(INTEGER);
        let _algorithm = tbs.enter(SEQUENCE)?;
        let issuer = tbs.enter(SEQUENCE)?.0;
        Some(SignedList { signature, issuer })
    }
}

/// Subject and key of a certificate.
struct Authority<'a> {
    subject: &'a [u8],
    key: PublicKey<'a>,
}

impl<'a> Authority<'a> {
    fn parse(certificate: &'a [u8]) -> Option<Authority<'a>> {
        let mut certificate = Der(certificate).enter(SEQUENCE)?;
        let mut tbs = certificate.enter(SEQUENCE)?;
        tbs.skip(EXPLICIT_VERSION);
        for _serial_algorithm_issuer_validity in 0..4 {
            tbs.next()?;
        }
        let subject = tbs.enter(SEQUENCE)?.0;
        let key = PublicKey::read(&mut tbs)?;
        Some(Authority { subject, key })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
        CrlIssuingDistributionPoint, DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
        SerialNumber,
    };

    use super::*;

    fn authority(name: &str) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::CrlSign, KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        (certificate, Issuer::new(params, key))
    }

    fn list(issuer: &Issuer<'static, KeyPair>) -> Vec<u8> {
        numbered_list(issuer, 1, None)
    }

    fn numbered_list(issuer: &Issuer<'static, KeyPair>, number: u64, scope: Option<&str>) -> Vec<u8> {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(17),
            revocation_time: rcgen::date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2026, 1, 1),
            next_update: rcgen::date_time_ymd(2026, 2, 1),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: scope.map(|uri| CrlIssuingDistributionPoint {
                distribution_point: CrlDistributionPoint {
                    uris: vec![uri.to_owned()],
                },
                scope: None,
            }),
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(issuer).unwrap().der().to_vec()
    }

    #[test]
    fn list_is_described() {
        let (_, issuer) = authority("plant");
        let described = describe_list(&list(&issuer)).unwrap();
        assert!(described.issuer.contains("CN=plant"), "{described:?}");
        assert_eq!(
            (described.this_update_unix_s, described.next_update_unix_s),
            (1_767_225_600, Some(1_769_904_000))
        );
    }

    #[test]
    fn lists_are_compared_by_scope_and_number() {
        let (_, issuer) = authority("plant");
        let described = |number, scope| describe_list(&numbered_list(&issuer, number, scope)).unwrap();
        let plain = described(255, None);
        assert_eq!(
            (plain.scope.as_ref(), plain.number.as_deref()),
            (None, Some(&[255][..]))
        );
        assert!(plain.has_lower_number(&described(256, None)) && !described(256, None).has_lower_number(&plain));
        assert!(!plain.has_lower_number(&plain));
        let unnumbered = RevocationListDescription {
            number: None,
            ..plain.clone()
        };
        assert!(unnumbered.has_lower_number(&plain) && !unnumbered.has_lower_number(&unnumbered));
        let (first, second) = (described(1, Some("http://a/1")), described(2, Some("http://a/2")));
        assert!(!first.covers_the_same(&second) && !first.covers_the_same(&plain));
        assert!(first.covers_the_same(&described(3, Some("http://a/1"))));
    }

    #[test]
    fn other_bytes_are_no_list() {
        let (certificate, issuer) = authority("plant");
        let list = list(&issuer);
        let longer = [&list[..], b"x"].concat();
        for bytes in [&b""[..], b"<html>", &list[..list.len() - 1], &longer, &certificate] {
            assert_eq!(describe_list(bytes), None);
        }
    }

    #[test]
    fn signature_is_checked_with_the_key_of_the_issuer() {
        let algorithms = rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .all;
        let (certificate, issuer) = authority("plant");
        let (other, _) = authority("other");
        let (namesake, _) = authority("plant");
        let list = list(&issuer);
        let check =
            |list: &[u8], authorities: &[CertificateDer<'static>]| check_list_signature(list, authorities, algorithms);
        assert_eq!(
            check(&list, &[other.clone(), namesake.clone(), certificate.clone()]),
            SignatureCheck::Valid
        );
        assert_eq!(check(&list, &[namesake]), SignatureCheck::Invalid);
        assert_eq!(check(&list, &[other]), SignatureCheck::UnknownIssuer);
        let mut changed = list.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert_eq!(check(&changed, &[certificate]), SignatureCheck::Invalid);
    }
}
