//! Signatures of certificates, revocation lists and OCSP responses. All three have the same structure.
//!
//! ```text
//! SEQUENCE { signed SEQUENCE, algorithm SEQUENCE, signature BIT STRING, … }
//! ```

use rustls::pki_types::SignatureVerificationAlgorithm;

use super::{Der, SEQUENCE};

const BIT_STRING: u8 = 0x03;

/// Public key of a certificate: the contents of its algorithm and of its bits.
#[derive(Clone, Copy)]
pub(super) struct PublicKey<'a> {
    pub algorithm: &'a [u8],
    pub bits: &'a [u8],
}

impl<'a> PublicKey<'a> {
    /// Reads SubjectPublicKeyInfo.
    pub fn read(fields: &mut Der<'a>) -> Option<PublicKey<'a>> {
        let mut key = fields.enter(SEQUENCE)?;
        Some(PublicKey {
            algorithm: key.enter(SEQUENCE)?.0,
            bits: bits(key.next()?)?,
        })
    }
}

/// The signed bytes of a structure, and their signature.
#[derive(Clone, Copy)]
pub(super) struct Signed<'a> {
    message: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Signed<'a> {
    /// Returns also the fields of the signed part, and what follows the signature.
    pub fn parse(structure: &'a [u8]) -> Option<(Signed<'a>, Der<'a>, Der<'a>)> {
        let mut outer = Der(structure).enter_last(SEQUENCE)?;
        let message = outer.whole()?;
        let signed = Signed {
            message,
            algorithm: outer.enter(SEQUENCE)?.0,
            signature: bits(outer.next()?)?,
        };
        Some((signed, Der(message).enter(SEQUENCE)?, outer))
    }

    /// Whether the owner of the key has signed the message, with one of the algorithms.
    pub fn is_by(&self, key: PublicKey<'_>, algorithms: &[&dyn SignatureVerificationAlgorithm]) -> bool {
        algorithms.iter().any(|algorithm| {
            algorithm.signature_alg_id().as_ref() == self.algorithm
                && algorithm.public_key_alg_id().as_ref() == key.algorithm
                && algorithm
                    .verify_signature(key.bits, self.message, self.signature)
                    .is_ok()
        })
    }
}

/// The content of a BIT STRING of whole bytes.
fn bits((tag, content): (u8, &[u8])) -> Option<&[u8]> {
    content.strip_prefix(&[0]).filter(|_| tag == BIT_STRING)
}
