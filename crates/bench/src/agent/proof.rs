//! Proof of the shared token without sending it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use base64ct::{Base64, Encoding};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

const NONCE_BYTES: usize = 32;
/// Least length. A shorter token could be guessed from one recorded proof.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: u64 = 4096;

/// A shared secret; empty on loopback, where only users of this machine can connect.
#[derive(Clone, Default)]
pub struct SharedSecret(Vec<u8>);

impl std::fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(***)")
    }
}

impl SharedSecret {
    pub fn read(path: &Path) -> Result<SharedSecret, String> {
        let fail = |what: String| format!("--token-file {}: {what}", path.display());
        let about = fs::metadata(path).map_err(|error| fail(error.to_string()))?;
        if about.len() > TOKEN_BYTES_MAX {
            return Err(fail(format!("the token is longer than {TOKEN_BYTES_MAX} bytes")));
        }
        let text = fs::read(path).map_err(|error| fail(error.to_string()))?;
        let token = text.trim_ascii();
        match token.len() >= TOKEN_BYTES_MIN {
            true => Ok(SharedSecret(token.to_vec())),
            false => Err(fail(format!("the token is shorter than {TOKEN_BYTES_MIN} bytes"))),
        }
    }

    pub fn is_needed_at(address: IpAddr) -> bool {
        !address.is_loopback()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn prove(&self, nonce: &str) -> String {
        let tag = hmac::sign(&self.key(), nonce.as_bytes());
        Base64::encode_string(tag.as_ref())
    }

    pub fn is_proven(&self, nonce: &str, proof: &str) -> bool {
        let tag = Base64::decode_vec(proof).unwrap_or_default();
        hmac::verify(&self.key(), nonce.as_bytes(), &tag).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

pub fn nonce() -> Result<String, String> {
    let mut bytes = [0; NONCE_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| "the system provides no random numbers".to_string())?;
    Ok(Base64::encode_string(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_proven_with_other_token_or_nonce_is_false() {
        let (token, other) = (
            SharedSecret(b"0123456789abcdef".to_vec()),
            SharedSecret(b"0123456789abcdeg".to_vec()),
        );
        let nonce = nonce().unwrap();
        assert!(token.is_proven(&nonce, &token.prove(&nonce)));
        assert!(!token.is_proven(&nonce, &other.prove(&nonce)));
        assert!(!token.is_proven("another nonce", &token.prove(&nonce)));
        assert!(!token.is_proven(&nonce, "not base64"));
        assert_eq!(format!("{token:?}"), "Token(***)");
    }
}
