//! JSON Web Tokens as ThingsBoard makes them: HS512, an access token for requests and a refresh token for new ones.
//!
//! Beside ThingsBoard's claims there is `stamp`, a keyed hash of the user's password hash: a token is worth nothing once the
//! password was changed, without anything to remember. The key is in the data directory, for its owner only.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use base64ct::{Base64UrlUnpadded, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha512;
use zeroize::Zeroizing;

pub const ACCESS_S: i64 = 9_000;
pub const REFRESH_S: i64 = 604_800;
/// The scope of a refresh token; that of an access token is the user's authority.
pub const REFRESH_SCOPE: &str = "REFRESH_TOKEN";
const ISSUER: &str = "thingsboard.io";
const KEY_FILE: &str = "platform-token-key";
const KEY_BYTES: usize = 64;
/// A longer one is none of ours.
const TOKEN_BYTES_MAX: usize = 4096;

/// The claims of both kinds; what a refresh token lacks is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claims {
    pub sub: String,
    pub user_id: String,
    pub scopes: Vec<String>,
    pub session_id: String,
    pub exp: i64,
    pub iss: String,
    pub iat: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    pub is_public: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub customer_id: Option<String>,
    pub stamp: String,
    /// The administrator of the node who was given it to act as the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Claims {
    pub fn new(sub: &str, user_id: &str, scope: &str, session_id: &str, stamp: &str, now_ms: i64) -> Claims {
        let now_s = now_ms.div_euclid(1000);
        let lifetime_s = if scope == REFRESH_SCOPE { REFRESH_S } else { ACCESS_S };
        Claims {
            sub: sub.to_owned(),
            user_id: user_id.to_owned(),
            scopes: vec![scope.to_owned()],
            session_id: session_id.to_owned(),
            exp: now_s.saturating_add(lifetime_s),
            iss: ISSUER.to_owned(),
            iat: now_s,
            enabled: None,
            is_public: false,
            tenant_id: None,
            customer_id: None,
            stamp: stamp.to_owned(),
            by: None,
        }
    }

    pub fn is_refresh(&self) -> bool {
        self.scopes.iter().any(|scope| scope == REFRESH_SCOPE)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// Not one of ours, or changed.
    Wrong,
    Expired,
}

pub struct Signer {
    key: Zeroizing<[u8; KEY_BYTES]>,
}

impl Signer {
    /// Reads the key, or makes one that nobody else can read.
    pub fn open_or_create(data_dir: &Path) -> io::Result<Signer> {
        let path = data_dir.join(KEY_FILE);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        match fs::File::open(&path) {
            Ok(mut file) => {
                file.read_exact(&mut *key)?;
                return Ok(Signer { key });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        getrandom::fill(&mut *key).map_err(io::Error::other)?;
        fs::create_dir_all(data_dir)?;
        // A crash in between leaves no half a key under the name that is looked for.
        storage::copy::replace(&path, &*key)?;
        Ok(Signer { key })
    }

    pub fn sign(&self, claims: &Claims) -> String {
        const HEADER: &[u8] = br#"{"alg":"HS512"}"#;
        let payload = serde_json::to_vec(claims).expect("claims are plain data");
        let mut token = Base64UrlUnpadded::encode_string(HEADER);
        token.push('.');
        token.push_str(&Base64UrlUnpadded::encode_string(&payload));
        let signature = self.mac(token.as_bytes()).finalize().into_bytes();
        token.push('.');
        token.push_str(&Base64UrlUnpadded::encode_string(&signature));
        token
    }

    pub fn verify(&self, token: &str, now_ms: i64) -> Result<Claims, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Wrong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Wrong)?;
        let signature = decode(signature)?;
        self.mac(signed.as_bytes())
            .verify_slice(&signature)
            .map_err(|_| TokenError::Wrong)?;
        // What we signed has our header; it need not be read.
        let (_, payload) = signed.split_once('.').ok_or(TokenError::Wrong)?;
        let claims: Claims = serde_json::from_slice(&decode(payload)?).map_err(|_| TokenError::Wrong)?;
        if claims.exp <= now_ms.div_euclid(1000) {
            return Err(TokenError::Expired);
        }
        Ok(claims)
    }

    /// Tells one password from the next without telling anything of either.
    pub fn stamp(&self, password_hash: &str) -> String {
        let mac = self.mac(b"stamp\0").chain_update(password_hash);
        Base64UrlUnpadded::encode_string(&mac.finalize().into_bytes()[..12])
    }

    fn mac(&self, first: &[u8]) -> Hmac<Sha512> {
        let mac = Hmac::<Sha512>::new_from_slice(&*self.key).expect("a key of any length is good");
        mac.chain_update(first)
    }
}

fn decode(text: &str) -> Result<Vec<u8>, TokenError> {
    Base64UrlUnpadded::decode_vec(text).map_err(|_| TokenError::Wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    fn signer(byte: u8) -> Signer {
        Signer {
            key: Zeroizing::new([byte; KEY_BYTES]),
        }
    }

    fn claims() -> Claims {
        Claims::new("a@b.c", "id", "TENANT_ADMIN", "session", "stamp", NOW)
    }

    #[test]
    fn what_was_signed_is_read_back_until_it_expires() {
        let token = signer(1).sign(&claims());
        assert_eq!(signer(1).verify(&token, NOW).unwrap(), claims());
        let late = NOW + ACCESS_S * 1000;
        assert!(signer(1).verify(&token, late - 1000).is_ok());
        assert_eq!(signer(1).verify(&token, late), Err(TokenError::Expired));
    }

    #[test]
    fn anything_else_is_refused() {
        let token = signer(1).sign(&claims());
        let (head, rest) = token.split_once('.').unwrap();
        let (payload, signature) = rest.split_once('.').unwrap();
        let none = Base64UrlUnpadded::encode_string(br#"{"alg":"none"}"#);
        let other = signer(2).sign(&claims());
        for wrong in [
            String::new(),
            "a.b".into(),
            "..".into(),
            other,
            format!("{none}.{payload}."),
            format!("{none}.{payload}.{signature}"),
            format!("{head}.{payload}"),
            format!("{head}.{payload}a.{signature}"),
            "x".repeat(TOKEN_BYTES_MAX + 1),
        ] {
            assert_eq!(signer(1).verify(&wrong, NOW), Err(TokenError::Wrong), "{wrong}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_key_is_kept_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir().join(format!("tidewire-token-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let token = Signer::open_or_create(&directory).unwrap().sign(&claims());
        let mode = fs::metadata(directory.join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(Signer::open_or_create(&directory).unwrap().verify(&token, NOW).is_ok());
        fs::remove_dir_all(&directory).unwrap();
    }
}
