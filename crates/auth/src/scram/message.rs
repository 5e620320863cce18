//! The messages of a client [RFC 5802, section 7].

use base64ct::{Base64, Encoding};

use super::ScramError;
use crate::users::is_clear_name;

/// Maximum length of a message: a user name in which each byte is escaped, and a nonce.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4096;
/// Clients send 16 to 64 bytes.
const NONCE_BYTES_MAX: usize = 512;

/// client-first-message: `n,,n=alice,r=nonce`.
pub(super) struct ClientFirst<'a> {
    /// `n,,`: channel binding and authorization identity.
    pub gs2_header: &'a str,
    /// The message without this header.
    pub bare: &'a str,
    pub user_name: String,
    pub nonce: &'a str,
}

/// client-final-message: `c=biws,r=nonces,p=proof`.
pub(super) struct ClientFinal<'a> {
    pub channel_binding: Vec<u8>,
    pub nonce: &'a str,
    pub without_proof: &'a str,
    pub proof: Vec<u8>,
}

impl<'a> ClientFirst<'a> {
    pub fn parse(message: &'a [u8]) -> Result<ClientFirst<'a>, ScramError> {
        let text = text(message)?;
        let (binding, rest) = text.split_once(',').ok_or(ScramError::Malformed)?;
        match binding {
            "n" | "y" => {}
            _ if binding.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(ScramError::Malformed),
        }
        let (authorization, bare) = rest.split_once(',').ok_or(ScramError::Malformed)?;
        let mut attributes = bare.split(',');
        // A mandatory extension `m=` would stand first. None is supported.
        let user_name = user_name(attribute(attributes.next(), "n=")?)?;
        let nonce = attribute(attributes.next(), "r=")?;
        if nonce.is_empty() || nonce.len() > NONCE_BYTES_MAX || !nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ScramError::Malformed);
        }
        check_extensions(attributes)?;
        if !authorization.is_empty() && self::user_name(attribute(Some(authorization), "a=")?)? != user_name {
            return Err(ScramError::AuthorizationIdentity);
        }
        Ok(ClientFirst {
            gs2_header: &text[..text.len() - bare.len()],
            bare,
            user_name,
            nonce,
        })
    }
}

impl<'a> ClientFinal<'a> {
    pub fn parse(message: &'a [u8]) -> Result<ClientFinal<'a>, ScramError> {
        let text = text(message)?;
        let (without_proof, proof) = text.rsplit_once(',').ok_or(ScramError::Malformed)?;
        let mut attributes = without_proof.split(',');
        let channel_binding = base64(attribute(attributes.next(), "c=")?)?;
        let nonce = attribute(attributes.next(), "r=")?;
        check_extensions(attributes)?;
        Ok(ClientFinal {
            channel_binding,
            nonce,
            without_proof,
            proof: base64(attribute(Some(proof), "p=")?)?,
        })
    }
}

fn text(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(ScramError::TooLong);
    }
    str::from_utf8(message).map_err(|_| ScramError::Malformed)
}

fn attribute<'a>(attribute: Option<&'a str>, name: &str) -> Result<&'a str, ScramError> {
    attribute
        .and_then(|attribute| attribute.strip_prefix(name))
        .ok_or(ScramError::Malformed)
}

/// Optional extensions are ignored, but must have the form `x=value`.
fn check_extensions<'a>(mut attributes: impl Iterator<Item = &'a str>) -> Result<(), ScramError> {
    let is_extension = |attribute: &str| match attribute.as_bytes() {
        [letter, b'=', _, ..] => letter.is_ascii_alphabetic() && *letter != b'm',
        _ => false,
    };
    match attributes.all(is_extension) {
        true => Ok(()),
        false => Err(ScramError::Malformed),
    }
}

fn base64(text: &str) -> Result<Vec<u8>, ScramError> {
    Base64::decode_vec(text).map_err(|_| ScramError::Malformed)
}

/// Decodes a `saslname`: `=2C` is a comma, `=3D` an equals sign, and no other `=` is allowed.
fn user_name(encoded: &str) -> Result<String, ScramError> {
    let mut parts = encoded.split('=');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (character, rest) = match part.split_at_checked(2) {
            Some(("2C", rest)) => (',', rest),
            Some(("3D", rest)) => ('=', rest),
            _ => return Err(ScramError::Malformed),
        };
        name.push(character);
        name.push_str(rest);
    }
    match is_clear_name(&name) {
        true => Ok(name),
        false => Err(ScramError::UserName),
    }
}
