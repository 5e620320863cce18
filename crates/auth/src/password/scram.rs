//! The hash functions of SCRAM, and the keys of a verifier [RFC 5802, section 3].

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};
use zeroize::Zeroizing;

/// A hash function of SCRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScramMethod {
    Sha256,
    Sha512,
}

impl ScramMethod {
    pub const ALL: [ScramMethod; 2] = [ScramMethod::Sha256, ScramMethod::Sha512];

    /// Returns the Authentication Method of MQTT.
    pub fn name(self) -> &'static str {
        match self {
            ScramMethod::Sha256 => "SCRAM-SHA-256",
            ScramMethod::Sha512 => "SCRAM-SHA-512",
        }
    }

    pub fn of_name(name: &str) -> Option<ScramMethod> {
        ScramMethod::ALL.into_iter().find(|method| method.name() == name)
    }

    pub(crate) fn digest_bytes(self) -> usize {
        match self {
            ScramMethod::Sha256 => 32,
            ScramMethod::Sha512 => 64,
        }
    }

    pub(crate) fn hmac(self, key: &[u8], message: &[u8]) -> Zeroizing<Vec<u8>> {
        match self {
            ScramMethod::Sha256 => hmac::<Hmac<Sha256>>(key, message),
            ScramMethod::Sha512 => hmac::<Hmac<Sha512>>(key, message),
        }
    }

    pub(crate) fn digest(self, message: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            ScramMethod::Sha256 => Sha256::digest(message).to_vec(),
            ScramMethod::Sha512 => Sha512::digest(message).to_vec(),
        })
    }
}

fn hmac<M: Mac + KeyInit>(key: &[u8], message: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(message);
    Zeroizing::new(mac.finalize().into_bytes().to_vec())
}

/// Computes StoredKey, followed by ServerKey. `out` has twice the length of the digest. Takes as long as PBKDF2.
pub(super) fn derive_keys(method: ScramMethod, password: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
    let mut salted = Zeroizing::new(vec![0; method.digest_bytes()]);
    match method {
        ScramMethod::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut salted),
        ScramMethod::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut salted),
    }
    let client_key = method.hmac(&salted, b"Client Key");
    let (stored_key, server_key) = out.split_at_mut(method.digest_bytes());
    stored_key.copy_from_slice(&method.digest(&client_key));
    server_key.copy_from_slice(&method.hmac(&salted, b"Server Key"));
}
