//! Reads public keys from PEM and DER: SubjectPublicKeyInfo and X.509 certificates (RFC 5280, 4.1).

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};

use super::key::{KeyError, VerificationKey};

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
/// The version of a certificate: `[0] EXPLICIT`.
const VERSION: u8 = 0xA0;

const RSA_ENCRYPTION: &[u8] = &[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01];
const EC_PUBLIC_KEY: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01];
const P256: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2B, 0x81, 0x04, 0x00, 0x22];
const ED25519: &[u8] = &[0x2B, 0x65, 0x70];

/// Reads the first public key, or the key of the first certificate, of a PEM file.
pub fn key_of_pem(pem: &[u8]) -> Result<VerificationKey, KeyError> {
    if let Ok(key) = SubjectPublicKeyInfoDer::from_pem_slice(pem) {
        return key_of_spki(key.as_ref());
    }
    match CertificateDer::from_pem_slice(pem) {
        Ok(certificate) => key_of_spki(spki_of_certificate(&certificate).ok_or(KeyError::Malformed)?),
        Err(_) => Err(KeyError::NoPublicKey),
    }
}

/// Returns the SubjectPublicKeyInfo of a certificate. The certificate is not verified: the operator has chosen it.
fn spki_of_certificate(der: &[u8]) -> Option<&[u8]> {
    let mut certificate = Reader(Reader(der).take(SEQUENCE)?);
    let mut fields = Reader(certificate.take(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.take(VERSION)?;
    }
    fields.take(INTEGER)?;
    // Signature algorithm, issuer, validity, subject.
    for _ in 0..4 {
        fields.take(SEQUENCE)?;
    }
    fields.element(SEQUENCE)
}

/// Reads a DER-encoded SubjectPublicKeyInfo.
pub fn key_of_spki(der: &[u8]) -> Result<VerificationKey, KeyError> {
    let SubjectPublicKey {
        algorithm,
        parameters,
        key,
    } = read_spki(der).ok_or(KeyError::Malformed)?;
    match (algorithm, parameters) {
        (RSA_ENCRYPTION, _) => {
            let (n, e) = read_rsa_key(key).ok_or(KeyError::Malformed)?;
            VerificationKey::rsa(n, e)
        }
        (EC_PUBLIC_KEY, Some(P256)) => VerificationKey::p256(key),
        (EC_PUBLIC_KEY, Some(P384)) => VerificationKey::p384(key),
        (ED25519, _) => VerificationKey::ed25519(key),
        _ => Err(KeyError::Unsupported),
    }
}

struct SubjectPublicKey<'a> {
    algorithm: &'a [u8],
    /// The first object identifier of the parameters.
    parameters: Option<&'a [u8]>,
    key: &'a [u8],
}

fn read_spki(der: &[u8]) -> Option<SubjectPublicKey<'_>> {
    let mut fields = Reader(Reader(der).take(SEQUENCE)?);
    let mut identifier = Reader(fields.take(SEQUENCE)?);
    let algorithm = identifier.take(OBJECT_IDENTIFIER)?;
    let parameters = identifier.take(OBJECT_IDENTIFIER);
    // The first byte is the number of unused bits.
    let key = fields.take(BIT_STRING)?.strip_prefix(&[0])?;
    Some(SubjectPublicKey {
        algorithm,
        parameters,
        key,
    })
}

/// Returns modulus and exponent of an RSAPublicKey (RFC 8017, A.1.1).
fn read_rsa_key(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Reader(Reader(der).take(SEQUENCE)?);
    Some((fields.take(INTEGER)?, fields.take(INTEGER)?))
}

/// Reads DER elements in order.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the content of the next element, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (header, content) = self.next(tag)?;
        let whole = self.0;
        self.0 = &whole[header + content..];
        Some(&whole[header..header + content])
    }

    /// Returns the next element with its header.
    fn element(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (header, content) = self.next(tag)?;
        Some(&self.0[..header + content])
    }

    /// Returns the lengths of header and content of the next element. Keys and certificates have less than 64 KiB.
    fn next(&self, tag: u8) -> Option<(usize, usize)> {
        let (header, content) = match *self.0 {
            [found, length, ..] if found == tag && length < 0x80 => (2, usize::from(length)),
            [found, 0x81, length, ..] if found == tag => (3, usize::from(length)),
            [found, 0x82, high, low, ..] if found == tag => (4, usize::from(high) << 8 | usize::from(low)),
            _ => return None,
        };
        (self.0.len() >= header + content).then_some((header, content))
    }
}
