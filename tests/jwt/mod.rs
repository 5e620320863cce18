//! Authentication by JSON Web Tokens. The tokens are signed here.

mod key_sets;
mod tokens;

use std::time::{SystemTime, UNIX_EPOCH};

use base64ct::{Base64UrlUnpadded, Encoding};
use rcgen::{CertificateParams, PKCS_ECDSA_P256_SHA256};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value as Json, json};

use crate::support::*;

/// Reason codes of CONNACK.
const BAD_USER_NAME_OR_PASSWORD: u8 = 0x86;
const NOT_AUTHORIZED: u8 = 0x87;
const SERVER_UNAVAILABLE: u8 = 0x88;
const BANNED: u8 = 0x8A;
const QUOTA_EXCEEDED: u8 = 0x97;

/// A key with P-256 that signs tokens.
pub struct Issuer {
    key: EcdsaKeyPair,
    /// Certificate of the key, in PEM format.
    pub certificate: String,
    id: String,
}

impl Issuer {
    pub fn new(id: &str) -> Issuer {
        let key = rcgen::KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let parameters = CertificateParams::new(["issuer".to_owned()]).expect("a name");
        let certificate = parameters.self_signed(&key).expect("a certificate").pem();
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der(), &random);
        Issuer {
            key: key.expect("a key"),
            certificate,
            id: id.to_owned(),
        }
    }

    /// Returns a token with the key id of the issuer.
    pub fn token(&self, claims: &Json) -> String {
        self.token_with(&json!({"alg": "ES256", "typ": "JWT", "kid": self.id}), claims)
    }

    pub fn token_with(&self, header: &Json, claims: &Json) -> String {
        let signed = format!("{}.{}", part(header), part(claims));
        format!("{signed}.{}", base64(&self.sign(signed.as_bytes())))
    }

    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        let signature = self.key.sign(&SystemRandom::new(), bytes);
        signature.expect("a signature").as_ref().to_vec()
    }

    /// Returns the public key as an entry of a key set.
    pub fn jwk(&self) -> Json {
        let point = self.key.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        json!({"kty": "EC", "crv": "P-256", "x": base64(x), "y": base64(y), "kid": self.id, "alg": "ES256"})
    }
}

pub fn base64(bytes: &[u8]) -> String {
    Base64UrlUnpadded::encode_string(bytes)
}

pub fn part(value: &Json) -> String {
    base64(value.to_string().as_bytes())
}

pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
}

/// Returns claims of a user that are valid for an hour, with more claims.
pub fn claims(user: &str, more: Json) -> Json {
    let mut claims = json!({"sub": user, "exp": now() + 3600});
    for (name, value) in more.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    claims
}

/// Connects with a token as the password, and returns the code of CONNACK.
#[track_caller]
pub fn code(server: &Server, user: &str, token: &str) -> u8 {
    let connect = Connect::new(V5, unique("jwt")).user(user, token);
    server.connect().handshake(&connect).code
}

#[track_caller]
fn session(server: &Server, user: &str, token: &str) -> Peer {
    server.session(&Connect::new(V5, unique("jwt")).user(user, token))
}
