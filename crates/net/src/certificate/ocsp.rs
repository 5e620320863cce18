//! OCSP for a certificate of the server: the request, and the check of the response [RFC 6960].
//!
//! A response is accepted if the issuer of the certificate has signed it, or a responder whose certificate the same
//! issuer has issued for this purpose. Requests have no nonce, because a stapled response is sent to many clients
//! [RFC 5019].
//!
//! Only a part of a response is signed, and responders use HTTP. The other parts must be exact DER, without further
//! elements: otherwise an attacker on the path could change them so that the server accepts the response, and clients
//! end the handshake.
//!
//! ```text
//! OCSPRequest       SEQUENCE { SEQUENCE { SEQUENCE OF SEQUENCE { CertID } } }
//! CertID            SEQUENCE { algorithm, hash of the issuer's name, hash of its key, serial }
//! OCSPResponse      SEQUENCE { ENUMERATED status, [0] SEQUENCE { OBJECT IDENTIFIER, OCTET STRING of Basic }? }
//! Basic             SEQUENCE { ResponseData, algorithm, signature, [0] SEQUENCE OF Certificate? }
//! ResponseData      SEQUENCE { [0] version?, responder, produced at, SEQUENCE OF SingleResponse, … }
//! responder         [1] Name, or [2] OCTET STRING with the SHA-1 of its key
//! SingleResponse    SEQUENCE { CertID, status, this update, [0] next update?, … }
//! status            [0] NULL: good, [1] { time, … }: revoked, [2] NULL: unknown
//! ```

use std::fmt;

use broker::rfc3339;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::pki_types::SignatureVerificationAlgorithm;

use super::signature::{PublicKey, Signed};
use super::{
    Der, EXPLICIT_VERSION, IA5_STRING, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, URI_NAME, extension, text,
    time,
};

const ENUMERATED: u8 = 0x0A;
/// `[0]` to `[2]`, constructed and primitive.
const EXPLICIT_0: u8 = 0xA0;
const EXPLICIT_1: u8 = 0xA1;
const EXPLICIT_2: u8 = 0xA2;
const IMPLICIT_0: u8 = 0x80;
const IMPLICIT_2: u8 = 0x82;

/// 1.3.14.3.2.26. Responders have to know only SHA-1 [RFC 5019 2.1.1]. It identifies the issuer and protects nothing.
const SHA1: &[u8] = &[0x2B, 0x0E, 0x03, 0x02, 0x1A];
const NULL: &[u8] = &[0x05, 0x00];
/// 1.3.6.1.5.5.7.48.1.1
const BASIC_RESPONSE: &[u8] = &[0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// 1.3.6.1.5.5.7.48.1
const OCSP_ACCESS: &[u8] = &[0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01];
/// 1.3.6.1.5.5.7.1.1, authorityInfoAccess
const AUTHORITY_ACCESS: &[u8] = &[0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x01];
/// 2.5.29.37, extKeyUsage
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1D, 0x25];
/// 1.3.6.1.5.5.7.3.9, id-kp-OCSPSigning
const OCSP_SIGNING: &[u8] = &[0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x09];

const SUCCESSFUL: u8 = 0;

/// Allowed difference between the clocks of the server and of a responder. It applies to the beginning of a response.
/// At its end there is no tolerance: clients reject an expired response, and accept a handshake without one.
const CLOCK_DIFFERENCE_S: i64 = 300;

/// Validity of a response without a next update. Its responder has newer information at any time.
const WITHOUT_NEXT_UPDATE_S: i64 = 86_400;

/// A certificate and its issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OcspSubject {
    issuer: Vec<u8>,
    id: CertificateId,
    responder_url: Option<String>,
}

/// Names a certificate in requests and responses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CertificateId {
    name_hash: Vec<u8>,
    key_hash: Vec<u8>,
    serial: Vec<u8>,
}

/// Period of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OcspValidity {
    /// This update, or the beginning of the certificate of the responder if that is later.
    pub begins_at_unix_s: i64,
    /// The next update, or a day after this update if the response has none, or the end of the certificate of the
    /// responder if that is earlier.
    pub expires_at_unix_s: i64,
}

impl OcspValidity {
    /// Whether the response is valid at this time.
    pub fn contains(&self, now_unix_s: i64) -> bool {
        self.check(now_unix_s).is_ok()
    }

    fn check(&self, now_unix_s: i64) -> Result<(), OcspError> {
        let OcspValidity {
            begins_at_unix_s,
            expires_at_unix_s,
        } = *self;
        if begins_at_unix_s > now_unix_s.saturating_add(CLOCK_DIFFERENCE_S) {
            return Err(OcspError::Early { begins_at_unix_s });
        }
        match expires_at_unix_s > now_unix_s {
            true => Ok(()),
            false => Err(OcspError::Expired {
                at_unix_s: expires_at_unix_s,
            }),
        }
    }
}

/// Why a certificate cannot have a response, or why a response is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OcspError {
    UnreadableCertificate,
    /// The issuer has not signed the certificate.
    OtherIssuer,
    /// The structure is not that of an OCSP response.
    Malformed,
    /// The responder has not answered the question.
    Refused {
        status: u8,
    },
    OtherCertificate,
    /// The response contains no certificate of the responder that it names.
    UnknownResponder,
    /// The responder's certificate is not of the issuer, or not for OCSP.
    Responder {
        problem: &'static str,
    },
    Signature,
    Revoked {
        at_unix_s: i64,
    },
    UnknownStatus,
    Early {
        begins_at_unix_s: i64,
    },
    Expired {
        at_unix_s: i64,
    },
}

impl fmt::Display for OcspError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OcspError::UnreadableCertificate => f.write_str("a certificate has an unexpected structure"),
            OcspError::OtherIssuer => f.write_str("the issuer has not signed the certificate of the server"),
            OcspError::Malformed => f.write_str("it is not a complete OCSP response"),
            OcspError::Refused { status } => write!(f, "the responder answered {}", refusal(*status)),
            OcspError::OtherCertificate => f.write_str("the response is for another certificate"),
            OcspError::UnknownResponder => {
                f.write_str("the response is not signed by the issuer, and has no certificate of its responder")
            }
            OcspError::Responder { problem } => write!(f, "the certificate of the responder {problem}"),
            OcspError::Signature => {
                f.write_str("the signature of the response is invalid, or its algorithm is not supported")
            }
            OcspError::Revoked { at_unix_s } => write!(
                f,
                "the authority has revoked the certificate of the server on {}",
                time_text(*at_unix_s)
            ),
            OcspError::UnknownStatus => f.write_str("the responder does not know the certificate of the server"),
            OcspError::Early { begins_at_unix_s } => write!(
                f,
                "the response is valid from {}, which is in the future; check the clock of the server",
                time_text(*begins_at_unix_s)
            ),
            OcspError::Expired { at_unix_s } => write!(f, "the response has expired on {}", time_text(*at_unix_s)),
        }
    }
}

impl std::error::Error for OcspError {}

/// OCSPResponseStatus [RFC 6960 4.2.1].
fn refusal(status: u8) -> String {
    let name = match status {
        1 => "malformedRequest",
        2 => "internalError",
        3 => "tryLater",
        5 => "sigRequired",
        6 => "unauthorized",
        _ => return format!("with the status {status}"),
    };
    name.to_owned()
}

fn time_text(unix_s: i64) -> String {
    rfc3339(u64::try_from(unix_s).unwrap_or_default().saturating_mul(1000))
}

impl OcspSubject {
    /// Takes two certificates, DER. Checks that the issuer has signed the certificate.
    pub fn new(certificate: &[u8], issuer: &[u8]) -> Result<OcspSubject, OcspError> {
        let own = Parts::parse(certificate).ok_or(OcspError::UnreadableCertificate)?;
        let authority = Parts::parse(issuer).ok_or(OcspError::UnreadableCertificate)?;
        if !own.is_issued_by(&authority) {
            return Err(OcspError::OtherIssuer);
        }
        Ok(OcspSubject {
            issuer: issuer.to_vec(),
            id: CertificateId {
                name_hash: sha1(own.issuer),
                key_hash: sha1(authority.key.bits),
                serial: own.serial.to_vec(),
            },
            responder_url: responder_url(own.rest),
        })
    }

    /// URL of the responder in the certificate (Authority Information Access).
    pub fn responder_url(&self) -> Option<&str> {
        self.responder_url.as_deref()
    }

    /// Returns the request for the responder, DER.
    pub fn request(&self) -> Vec<u8> {
        let algorithm = element(SEQUENCE, &[&element(OBJECT_IDENTIFIER, &[SHA1]), NULL]);
        let id = element(
            SEQUENCE,
            &[
                &algorithm,
                &element(OCTET_STRING, &[&self.id.name_hash]),
                &element(OCTET_STRING, &[&self.id.key_hash]),
                &element(INTEGER, &[&self.id.serial]),
            ],
        );
        // Request, list of requests, TBSRequest, OCSPRequest.
        (0..4).fold(id, |content, _| element(SEQUENCE, &[&content]))
    }

    /// Checks that a response, DER, says that the certificate is good now.
    pub fn check(&self, response: &[u8], now_unix_s: i64) -> Result<OcspValidity, OcspError> {
        let (status, validity) = self.read(response)?;
        validity.check(now_unix_s)?;
        status.check()?;
        Ok(validity)
    }

    /// Checks that a response, DER, says that the certificate is good in some period, and returns this period.
    pub fn good_period(&self, response: &[u8]) -> Result<OcspValidity, OcspError> {
        let (status, validity) = self.read(response)?;
        status.check()?;
        Ok(validity)
    }

    fn read(&self, response: &[u8]) -> Result<(CertificateStatus, OcspValidity), OcspError> {
        let response = Response::parse(response)?;
        let single = self.find(response.singles)?;
        let signer = self.check_signature(&response)?;
        let expires_at_unix_s = single
            .next_update_unix_s
            .unwrap_or(single.this_update_unix_s.saturating_add(WITHOUT_NEXT_UPDATE_S));
        let validity = OcspValidity {
            begins_at_unix_s: single.this_update_unix_s.max(signer.not_before_unix_s),
            expires_at_unix_s: expires_at_unix_s.min(signer.not_after_unix_s),
        };
        Ok((single.status, validity))
    }

    /// Returns the part of a response that is about the certificate.
    fn find(&self, mut singles: Der<'_>) -> Result<SingleResponse, OcspError> {
        while !singles.0.is_empty() {
            let mut single = singles.enter(SEQUENCE).ok_or(OcspError::Malformed)?;
            let id = single.enter(SEQUENCE).ok_or(OcspError::Malformed)?;
            if self.id.is(id) {
                return SingleResponse::parse(single).ok_or(OcspError::Malformed);
            }
        }
        Err(OcspError::OtherCertificate)
    }

    /// Returns the period in which the signer may sign responses.
    fn check_signature(&self, response: &Response<'_>) -> Result<SignerPeriod, OcspError> {
        let issuer = Parts::parse(&self.issuer).ok_or(OcspError::UnreadableCertificate)?;
        if issuer.is_named(response.responder) {
            response.check_signed_by(issuer.key)?;
            // Clients check the certificate of the issuer with that of the server.
            return Ok(SignerPeriod {
                not_before_unix_s: i64::MIN,
                not_after_unix_s: i64::MAX,
            });
        }
        let mut error = OcspError::UnknownResponder;
        let mut certificates = response.certificates;
        while !certificates.0.is_empty() {
            let certificate = certificates.whole().ok_or(OcspError::Malformed)?;
            let delegate = Parts::parse(certificate).ok_or(OcspError::Malformed)?;
            // Several certificates of a responder can have its name.
            if !delegate.is_named(response.responder) {
                continue;
            }
            let checked = delegate
                .check_delegate(&issuer)
                .map_err(|problem| OcspError::Responder { problem })
                .and_then(|()| response.check_signed_by(delegate.key));
            match checked {
                Ok(()) => return Ok(delegate.period),
                Err(reason) => error = reason,
            }
        }
        Err(error)
    }
}

impl CertificateId {
    fn is(&self, id: Der<'_>) -> bool {
        self.compare(id).unwrap_or(false)
    }

    fn compare(&self, mut id: Der<'_>) -> Option<bool> {
        let mut algorithm = id.enter(SEQUENCE)?;
        let is_same = algorithm.next()? == (OBJECT_IDENTIFIER, SHA1)
            && id.next()? == (OCTET_STRING, &self.name_hash[..])
            && id.next()? == (OCTET_STRING, &self.key_hash[..])
            && id.next()? == (INTEGER, &self.serial[..]);
        Some(is_same)
    }
}

/// A response of the type that this module knows.
struct Response<'a> {
    signature: Signed<'a>,
    /// Tag and content.
    responder: (u8, &'a [u8]),
    singles: Der<'a>,
    /// Certificates of the responder.
    certificates: Der<'a>,
}

impl<'a> Response<'a> {
    fn parse(response: &'a [u8]) -> Result<Response<'a>, OcspError> {
        let mut fields = Der(response).enter_last(SEQUENCE).ok_or(OcspError::Malformed)?;
        match fields.next() {
            Some((ENUMERATED, &[SUCCESSFUL])) => {}
            Some((ENUMERATED, &[status])) => return Err(OcspError::Refused { status }),
            _ => return Err(OcspError::Malformed),
        }
        Response::parse_basic(fields).ok_or(OcspError::Malformed)
    }

    fn parse_basic(mut fields: Der<'a>) -> Option<Response<'a>> {
        let mut typed = fields.enter_last(EXPLICIT_0)?.enter_last(SEQUENCE)?;
        if typed.next()? != (OBJECT_IDENTIFIER, BASIC_RESPONSE) {
            return None;
        }
        let basic = typed.enter_last(OCTET_STRING)?.0;
        let (signature, mut data, mut rest) = Signed::parse(basic)?;
        data.skip(EXPLICIT_VERSION);
        let responder = data.next()?;
        let _produced_at = data.next()?;
        let singles = data.enter(SEQUENCE)?;
        let certificates = match rest.0.is_empty() {
            true => rest,
            false => rest.enter_last(EXPLICIT_0)?.enter_last(SEQUENCE)?,
        };
        let mut unchecked = certificates;
        while !unchecked.0.is_empty() {
            Parts::parse(unchecked.whole()?)?;
        }
        Some(Response {
            signature,
            responder,
            singles,
            certificates,
        })
    }

    fn check_signed_by(&self, key: PublicKey<'_>) -> Result<(), OcspError> {
        match self.signature.is_by(key, algorithms()) {
            true => Ok(()),
            false => Err(OcspError::Signature),
        }
    }
}

enum CertificateStatus {
    Good,
    Revoked { at_unix_s: i64 },
    Unknown,
}

impl CertificateStatus {
    fn check(&self) -> Result<(), OcspError> {
        match *self {
            CertificateStatus::Good => Ok(()),
            CertificateStatus::Revoked { at_unix_s } => Err(OcspError::Revoked { at_unix_s }),
            CertificateStatus::Unknown => Err(OcspError::UnknownStatus),
        }
    }
}

/// The part of a response that is about one certificate.
struct SingleResponse {
    status: CertificateStatus,
    this_update_unix_s: i64,
    next_update_unix_s: Option<i64>,
}

impl SingleResponse {
    /// Takes the fields after CertID.
    fn parse(mut fields: Der<'_>) -> Option<SingleResponse> {
        let status = match fields.next()? {
            (IMPLICIT_0, _) => CertificateStatus::Good,
            (EXPLICIT_1, content) => CertificateStatus::Revoked {
                at_unix_s: time(Der(content).next()?)?,
            },
            (IMPLICIT_2, _) => CertificateStatus::Unknown,
            _ => return None,
        };
        let this_update_unix_s = time(fields.next()?)?;
        let next_update_unix_s = match fields.0.first() {
            Some(&EXPLICIT_0) => Some(time(fields.enter(EXPLICIT_0)?.next()?)?),
            _ => None,
        };
        Some(SingleResponse {
            status,
            this_update_unix_s,
            next_update_unix_s,
        })
    }
}

/// When the certificate of a signer is valid.
#[derive(Clone, Copy)]
struct SignerPeriod {
    not_before_unix_s: i64,
    not_after_unix_s: i64,
}

/// The fields of a certificate that OCSP needs. Names are whole elements.
struct Parts<'a> {
    signature: Signed<'a>,
    serial: &'a [u8],
    issuer: &'a [u8],
    period: SignerPeriod,
    subject: &'a [u8],
    key: PublicKey<'a>,
    /// The fields after the key.
    rest: Der<'a>,
}

impl<'a> Parts<'a> {
    fn parse(certificate: &'a [u8]) -> Option<Parts<'a>> {
        let (signature, mut tbs, rest) = Signed::parse(certificate)?;
        if !rest.0.is_empty() {
            return None;
        }
        tbs.skip(EXPLICIT_VERSION);
        let (_, serial) = tbs.next().filter(|(tag, _)| *tag == INTEGER)?;
        let _algorithm = tbs.enter(SEQUENCE)?;
        let issuer = tbs.whole()?;
        let mut validity = tbs.enter(SEQUENCE)?;
        let period = SignerPeriod {
            not_before_unix_s: time(validity.next()?)?,
            not_after_unix_s: time(validity.next()?)?,
        };
        let subject = tbs.whole()?;
        let key = PublicKey::read(&mut tbs)?;
        Some(Parts {
            signature,
            serial,
            issuer,
            period,
            subject,
            key,
            rest: tbs,
        })
    }

    fn is_issued_by(&self, issuer: &Parts<'_>) -> bool {
        self.issuer == issuer.subject && self.signature.is_by(issuer.key, algorithms())
    }

    /// Whether this is the responder of a response.
    fn is_named(&self, (tag, content): (u8, &[u8])) -> bool {
        match tag {
            EXPLICIT_1 => content == self.subject,
            EXPLICIT_2 => Der(content).next() == Some((OCTET_STRING, &sha1(self.key.bits)[..])),
            _ => false,
        }
    }

    /// Checks that the issuer has issued this certificate for responses [RFC 6960 4.2.2.2].
    fn check_delegate(&self, issuer: &Parts<'_>) -> Result<(), &'static str> {
        if !self.is_issued_by(issuer) {
            return Err("is not of the issuer of the server's certificate");
        }
        match self.is_for_ocsp() {
            true => Ok(()),
            false => Err("does not allow it to sign responses (extended key usage OCSPSigning)"),
        }
    }

    fn is_for_ocsp(&self) -> bool {
        let usages = extension(self.rest, EXTENDED_KEY_USAGE).and_then(|value| Der(value).enter(SEQUENCE));
        let Some(mut usages) = usages else { return false };
        while let Some(usage) = usages.next() {
            if usage == (OBJECT_IDENTIFIER, OCSP_SIGNING) {
                return true;
            }
        }
        false
    }
}

/// Reads the first URL of a responder from the fields after the key.
fn responder_url(rest: Der<'_>) -> Option<String> {
    let mut descriptions = Der(extension(rest, AUTHORITY_ACCESS)?).enter(SEQUENCE)?;
    while !descriptions.0.is_empty() {
        let mut description = descriptions.enter(SEQUENCE)?;
        let method = description.next()?;
        let (tag, location) = description.next()?;
        if method == (OBJECT_IDENTIFIER, OCSP_ACCESS) && tag == URI_NAME {
            return text(IA5_STRING, location).map(String::from);
        }
    }
    None
}

fn algorithms() -> &'static [&'static dyn SignatureVerificationAlgorithm] {
    rustls::crypto::ring::default_provider()
        .signature_verification_algorithms
        .all
}

fn sha1(bytes: &[u8]) -> Vec<u8> {
    digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec()
}

/// Encodes an element whose content consists of these parts.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let mut element = vec![tag];
    match content.len() {
        short @ 0..=0x7F => element.push(short as u8),
        _ => {
            element.push(0x80 | (length.len() - zeros) as u8);
            element.extend_from_slice(&length[zeros..]);
        }
    }
    element.extend_from_slice(&content);
    element
}

#[cfg(test)]
#[path = "ocsp_tests.rs"]
mod tests;
