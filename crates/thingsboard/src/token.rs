//! JSON Web Tokens in ThingsBoard's format: HS512, with an access token for requests and a refresh token for new
//! tokens.
//!
//! The additional claim `stamp` is a keyed hash of the user's password hash. So all tokens become invalid when the
//! password changes, without a list of tokens. The key is stored in the data directory, readable only by its owner.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use base64ct::{Base64UrlUnpadded, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use platform::model::Issuer;
use serde::{Deserialize, Serialize};
use sha2::Sha512;
use zeroize::Zeroizing;

pub const ACCESS_S: i64 = 9_000;
pub const REFRESH_S: i64 = 604_800;
/// The scope of a refresh token. The scope of an access token is the user's authority.
pub const REFRESH_SCOPE: &str = "REFRESH_TOKEN";
const ISSUER: &str = "thingsboard.io";
const KEY_FILE: &str = "platform-token-key";
const KEY_BYTES: usize = 64;
/// Longer tokens are rejected.
const TOKEN_BYTES_MAX: usize = 4096;

/// The claims of both tokens. `None`: not part of a refresh token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenClaims {
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
    /// Time of the login, in seconds since 1970. Refreshed tokens have the time of the first one.
    #[serde(default)]
    pub login_at: i64,
    /// Differs for each refresh token of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// ID of the login to the console with which the token ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console_login: Option<String>,
    /// Users who act as the user with this token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issuers: Vec<Issuer>,
}

impl TokenClaims {
    pub fn new(sub: &str, user_id: &str, scope: &str, session_id: &str, stamp: &str, now_ms: i64) -> TokenClaims {
        let now_s = now_ms.div_euclid(1000);
        let lifetime_s = if scope == REFRESH_SCOPE { REFRESH_S } else { ACCESS_S };
        TokenClaims {
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
            login_at: now_s,
            jti: None,
            console_login: None,
            issuers: Vec::new(),
        }
    }

    pub fn is_refresh(&self) -> bool {
        self.scopes.iter().any(|scope| scope == REFRESH_SCOPE)
    }
}

fn unreadable_key(path: &Path, error: &io::Error) -> io::Error {
    let path = path.display();
    let text = match error.kind() {
        io::ErrorKind::UnexpectedEof => format!(
            "{path} has fewer than {KEY_BYTES} bytes; restore the file from a backup, or delete it, which logs out all users"
        ),
        _ => format!("cannot read {path}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The token was not signed with this key, or was changed.
    Wrong,
    Expired,
}

pub struct Signer {
    key: Zeroizing<[u8; KEY_BYTES]>,
}

impl Signer {
    /// Reads the key, or creates one that only its owner can read.
    pub fn open_or_create(data_dir: &Path) -> io::Result<Signer> {
        let path = data_dir.join(KEY_FILE);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        match fs::File::open(&path) {
            Ok(mut file) => {
                file.read_exact(&mut *key)
                    .map_err(|error| unreadable_key(&path, &error))?;
                return Ok(Signer { key });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable_key(&path, &error)),
        }
        getrandom::fill(&mut *key).map_err(io::Error::other)?;
        fs::create_dir_all(data_dir)?;
        // A crash leaves no incomplete key under this name.
        storage::copy::replace(&path, &*key)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))?;
        Ok(Signer { key })
    }

    pub fn sign(&self, claims: &TokenClaims) -> String {
        const HEADER: &[u8] = br#"{"alg":"HS512"}"#;
        let payload = serde_json::to_vec(claims).expect("claims can be serialized");
        let mut token = Base64UrlUnpadded::encode_string(HEADER);
        token.push('.');
        token.push_str(&Base64UrlUnpadded::encode_string(&payload));
        let signature = self.mac(token.as_bytes()).finalize().into_bytes();
        token.push('.');
        token.push_str(&Base64UrlUnpadded::encode_string(&signature));
        token
    }

    pub fn verify(&self, token: &str, now_ms: i64) -> Result<TokenClaims, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Wrong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Wrong)?;
        let signature = decode(signature)?;
        self.mac(signed.as_bytes())
            .verify_slice(&signature)
            .map_err(|_| TokenError::Wrong)?;
        // A token that this server signed has the fixed header, so the header need not be parsed.
        let (_, payload) = signed.split_once('.').ok_or(TokenError::Wrong)?;
        let claims: TokenClaims = serde_json::from_slice(&decode(payload)?).map_err(|_| TokenError::Wrong)?;
        if claims.exp <= now_ms.div_euclid(1000) {
            return Err(TokenError::Expired);
        }
        Ok(claims)
    }

    /// Identifies a password without revealing it.
    pub fn stamp(&self, password_hash: &str) -> String {
        let mac = self.mac(b"stamp\0").chain_update(password_hash);
        Base64UrlUnpadded::encode_string(&mac.finalize().into_bytes()[..12])
    }

    fn mac(&self, first: &[u8]) -> Hmac<Sha512> {
        let mac = Hmac::<Sha512>::new_from_slice(&*self.key).expect("HMAC accepts keys of any length");
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

    fn claims() -> TokenClaims {
        TokenClaims::new("a@b.c", "id", "TENANT_ADMIN", "session", "stamp", NOW)
    }

    #[test]
    fn signed_token_is_valid_until_it_expires() {
        let token = signer(1).sign(&claims());
        assert_eq!(signer(1).verify(&token, NOW).unwrap(), claims());
        let late = NOW + ACCESS_S * 1000;
        assert!(signer(1).verify(&token, late - 1000).is_ok());
        assert_eq!(signer(1).verify(&token, late), Err(TokenError::Expired));
    }

    #[test]
    fn invalid_tokens_are_rejected() {
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
    fn key_file_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir().join(format!("tidewire-token-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let token = Signer::open_or_create(&directory).unwrap().sign(&claims());
        let mode = fs::metadata(directory.join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(Signer::open_or_create(&directory).unwrap().verify(&token, NOW).is_ok());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn error_of_a_truncated_key_names_the_file() {
        let directory = std::env::temp_dir().join(format!("tidewire-token-short-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(KEY_FILE), "short").unwrap();
        let error = Signer::open_or_create(&directory).err().unwrap();
        let expected = format!(
            "{} has fewer than {KEY_BYTES} bytes",
            directory.join(KEY_FILE).display()
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
