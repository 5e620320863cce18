//! Keys that verify signatures. A key works only with the algorithms of its type: an RSA key never verifies an HMAC.

use std::fmt;

use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, UnparsedPublicKey,
};
use ring::{hmac, signature};

use super::algorithm::Algorithm;

const RSA_BITS_MIN: usize = 2048;
const RSA_BITS_MAX: usize = 8192;
/// An uncompressed point begins with this byte (SEC 1, 2.3.3).
const UNCOMPRESSED: u8 = 4;

/// A public key or a shared secret.
pub struct VerificationKey(KeyMaterial);

enum KeyMaterial {
    Secret(Box<HmacKeys>),
    Rsa(PublicKeyComponents<Vec<u8>>),
    P256(UnparsedPublicKey<Vec<u8>>),
    P384(UnparsedPublicKey<Vec<u8>>),
    Ed25519(UnparsedPublicKey<Vec<u8>>),
}

/// A key for each algorithm for which the secret is long enough.
struct HmacKeys {
    hs256: hmac::Key,
    hs384: Option<hmac::Key>,
    hs512: Option<hmac::Key>,
}

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The file contains neither a public key nor a certificate.
    NoPublicKey,
    Malformed,
    /// The type or the curve of the key is not supported.
    Unsupported,
    RsaBits(usize),
    SecretBytes(usize),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::NoPublicKey => f.write_str(
                "found no public key in PEM format, expected a section PUBLIC KEY or CERTIFICATE, \
                 as `openssl pkey -in private.pem -pubout` writes it",
            ),
            KeyError::Malformed => f.write_str("the public key is malformed"),
            KeyError::Unsupported => {
                f.write_str("the type of the key is not supported, expected RSA, ECDSA with P-256 or P-384, or Ed25519")
            }
            KeyError::RsaBits(bits) => write!(
                f,
                "found an RSA key with {bits} bits, expected {RSA_BITS_MIN} to {RSA_BITS_MAX} bits"
            ),
            KeyError::SecretBytes(bytes) => write!(
                f,
                "found a secret with {bytes} bytes, expected at least 32 (RFC 7518, 3.2): `openssl rand -base64 32` \
                 makes one"
            ),
        }
    }
}

impl std::error::Error for KeyError {}

impl VerificationKey {
    /// The secret must be at least as long as the hash (RFC 7518, 3.2). A secret with 32 bytes verifies only HS256.
    pub fn secret(secret: &[u8]) -> Result<VerificationKey, KeyError> {
        if secret.len() < 32 {
            return Err(KeyError::SecretBytes(secret.len()));
        }
        let long_enough = |bytes, algorithm| (secret.len() >= bytes).then(|| hmac::Key::new(algorithm, secret));
        Ok(VerificationKey(KeyMaterial::Secret(Box::new(HmacKeys {
            hs256: hmac::Key::new(hmac::HMAC_SHA256, secret),
            hs384: long_enough(48, hmac::HMAC_SHA384),
            hs512: long_enough(64, hmac::HMAC_SHA512),
        }))))
    }

    /// Modulus and exponent, most significant byte first.
    pub fn rsa(modulus: &[u8], exponent: &[u8]) -> Result<VerificationKey, KeyError> {
        let (n, e) = (without_zeros(modulus), without_zeros(exponent));
        let bits = n
            .first()
            .map_or(0, |first| n.len() * 8 - first.leading_zeros() as usize);
        if !(RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits) {
            return Err(KeyError::RsaBits(bits));
        }
        if e.is_empty() {
            return Err(KeyError::Malformed);
        }
        let (n, e) = (n.to_vec(), e.to_vec());
        Ok(VerificationKey(KeyMaterial::Rsa(PublicKeyComponents { n, e })))
    }

    /// An uncompressed point of P-256.
    pub fn p256(point: &[u8]) -> Result<VerificationKey, KeyError> {
        let point = uncompressed(point, 32)?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED as &dyn signature::VerificationAlgorithm, point);
        Ok(VerificationKey(KeyMaterial::P256(key)))
    }

    /// An uncompressed point of P-384.
    pub fn p384(point: &[u8]) -> Result<VerificationKey, KeyError> {
        let point = uncompressed(point, 48)?;
        let key = UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED as &dyn signature::VerificationAlgorithm, point);
        Ok(VerificationKey(KeyMaterial::P384(key)))
    }

    pub fn ed25519(key: &[u8]) -> Result<VerificationKey, KeyError> {
        if key.len() != 32 {
            return Err(KeyError::Malformed);
        }
        let key = UnparsedPublicKey::new(&ED25519 as &dyn signature::VerificationAlgorithm, key.to_vec());
        Ok(VerificationKey(KeyMaterial::Ed25519(key)))
    }

    /// Returns the algorithms that the key can verify.
    pub fn algorithms(&self) -> Vec<Algorithm> {
        match &self.0 {
            KeyMaterial::Secret(keys) => {
                let is_usable = |algorithm: &Algorithm| keys.key(*algorithm).is_some();
                Algorithm::HMAC.into_iter().filter(is_usable).collect()
            }
            KeyMaterial::Rsa(_) => Algorithm::RSA.to_vec(),
            KeyMaterial::P256(_) => vec![Algorithm::Es256],
            KeyMaterial::P384(_) => vec![Algorithm::Es384],
            KeyMaterial::Ed25519(_) => vec![Algorithm::EdDsa],
        }
    }

    /// Returns whether the signature is valid. An algorithm of another type of key is never valid.
    pub fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match (&self.0, algorithm) {
            (KeyMaterial::Secret(keys), _) => keys
                .key(algorithm)
                .is_some_and(|key| hmac::verify(key, message, signature).is_ok()),
            (KeyMaterial::Rsa(key), _) => {
                rsa_parameters(algorithm).is_some_and(|parameters| key.verify(parameters, message, signature).is_ok())
            }
            (KeyMaterial::P256(key), Algorithm::Es256)
            | (KeyMaterial::P384(key), Algorithm::Es384)
            | (KeyMaterial::Ed25519(key), Algorithm::EdDsa) => key.verify(message, signature).is_ok(),
            _ => false,
        }
    }
}

impl fmt::Debug for VerificationKey {
    /// Shows no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            KeyMaterial::Secret(_) => "VerificationKey(secret)",
            KeyMaterial::Rsa(_) => "VerificationKey(RSA)",
            KeyMaterial::P256(_) => "VerificationKey(P-256)",
            KeyMaterial::P384(_) => "VerificationKey(P-384)",
            KeyMaterial::Ed25519(_) => "VerificationKey(Ed25519)",
        })
    }
}

impl HmacKeys {
    fn key(&self, algorithm: Algorithm) -> Option<&hmac::Key> {
        match algorithm {
            Algorithm::Hs256 => Some(&self.hs256),
            Algorithm::Hs384 => self.hs384.as_ref(),
            Algorithm::Hs512 => self.hs512.as_ref(),
            _ => None,
        }
    }
}

fn rsa_parameters(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
        Algorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
        Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
        Algorithm::Ps384 => &RSA_PSS_2048_8192_SHA384,
        Algorithm::Ps512 => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn uncompressed(point: &[u8], coordinate_bytes: usize) -> Result<Vec<u8>, KeyError> {
    match point.first() == Some(&UNCOMPRESSED) && point.len() == 1 + 2 * coordinate_bytes {
        true => Ok(point.to_vec()),
        false => Err(KeyError::Malformed),
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
