//! The compact form of a signed token (RFC 7515, 3.1).

use base64ct::{Base64UrlUnpadded, Encoding};
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::key::VerificationKey;

/// Maximum length of a token. Tokens with access rules have a few kilobytes.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Maximum length of a header. It is decoded before the signature is verified.
const HEADER_BYTES_MAX: usize = 4 * 1024;

/// A token whose signature is not verified yet.
pub struct UnverifiedToken<'a> {
    /// Header and claims as the signature covers them.
    signed: &'a str,
    claims: &'a str,
    signature: &'a str,
    pub header: Result<TokenHeader, TokenError>,
}

/// The fields of a header that are used. Keys and addresses of keys in a header are never used.
#[derive(Debug)]
pub struct TokenHeader {
    pub algorithm: Algorithm,
    pub key_id: Option<String>,
}

/// Why a token is rejected. Contains nothing from the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    TooLong,
    /// The header has no algorithm, or one that is not supported, such as `none`.
    Algorithm,
    /// The header has an extension that must be understood (`crit`), or `b64`.
    Extension,
    Malformed,
    /// No key has the key id of the header and may be used with its algorithm.
    NoKey,
    Signature,
}

impl TokenError {
    pub fn text(self) -> &'static str {
        match self {
            TokenError::TooLong => "the token is too long",
            TokenError::Algorithm => "the algorithm of the token is not allowed",
            TokenError::Extension => "the header of the token has an extension that is not supported",
            TokenError::Malformed => "the token is malformed",
            TokenError::NoKey => "no key has the key id of the token and may be used with its algorithm",
            TokenError::Signature => "the signature of the token is not valid",
        }
    }
}

impl<'a> UnverifiedToken<'a> {
    /// Returns `None` if the text does not look like a token: three parts, the first of which is a JSON object.
    pub fn parse(text: &'a [u8]) -> Option<UnverifiedToken<'a>> {
        let text = std::str::from_utf8(text).ok()?;
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        if claims.contains('.') || header.is_empty() {
            return None;
        }
        if header.len() > HEADER_BYTES_MAX || text.len() > TOKEN_BYTES_MAX {
            // The beginning of a JSON object in base64url.
            return header.starts_with("ey").then_some(UnverifiedToken {
                signed,
                claims,
                signature,
                header: Err(TokenError::TooLong),
            });
        }
        let header = Base64UrlUnpadded::decode_vec(header).ok()?;
        let header: Map<String, Value> = serde_json::from_slice(&header).ok()?;
        Some(UnverifiedToken {
            signed,
            claims,
            signature,
            header: TokenHeader::of(&header),
        })
    }

    /// Returns whether the signature is valid with this key and the algorithm of the header. The caller has checked
    /// that the algorithm is allowed for the key.
    pub fn is_signed_by(&self, key: &VerificationKey, algorithm: Algorithm) -> bool {
        let Ok(signature) = Base64UrlUnpadded::decode_vec(self.signature) else {
            return false;
        };
        key.verify(algorithm, self.signed.as_bytes(), &signature)
    }

    /// Decodes the claims. Call this only after the signature is verified.
    pub fn claims(&self) -> Result<Map<String, Value>, TokenError> {
        let claims = Base64UrlUnpadded::decode_vec(self.claims).map_err(|_| TokenError::Malformed)?;
        serde_json::from_slice(&claims).map_err(|_| TokenError::Malformed)
    }
}

impl TokenHeader {
    fn of(header: &Map<String, Value>) -> Result<TokenHeader, TokenError> {
        // RFC 7515, 4.1.11: a header with an extension that is not understood must be rejected. None is.
        if header.contains_key("crit") || header.contains_key("b64") {
            return Err(TokenError::Extension);
        }
        let name = header.get("alg").and_then(Value::as_str);
        let algorithm = name.and_then(Algorithm::of_name).ok_or(TokenError::Algorithm)?;
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return Err(TokenError::Malformed),
        };
        Ok(TokenHeader { algorithm, key_id })
    }
}
