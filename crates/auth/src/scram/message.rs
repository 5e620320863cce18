//! The messages of a client [RFC 5802, section 7].

use base64ct::{Base64, Encoding};

use super::ScramError;
use crate::users::USER_NAME_BYTES_MAX;

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
    match name.is_empty() || name.len() > USER_NAME_BYTES_MAX || name.contains(is_prohibited) {
        true => Err(ScramError::UserName),
        false => Ok(name),
    }
}

/// Returns whether SASLprep prohibits or deletes a character, or maps it to a space [RFC 4013, RFC 3454]. Such
/// characters let two different names look alike.
fn is_prohibited(character: char) -> bool {
    match u32::from(character) {
        // Control characters.
        0..=0x1F | 0x7F..=0x9F | 0x6DD | 0x70F | 0x2028..=0x2029 | 0x1D173..=0x1D17A => true,
        // Spaces.
        0xA0 | 0x1680 | 0x2000..=0x200A | 0x202F | 0x205F | 0x3000 => true,
        // Invisible characters, variation selectors, and characters that change the display.
        0xAD | 0x34F | 0x340..=0x341 | 0x180B..=0x180E | 0x200B..=0x200F | 0x202A..=0x202E | 0x2060..=0x206F => true,
        0xFE00..=0xFE0F | 0xFEFF | 0xFFF9..=0xFFFD | 0x2FF0..=0x2FFB => true,
        // Private use, and tags.
        0xE000..=0xF8FF | 0xF0000.. => true,
        0xE0000..=0xE0FFF => true,
        // Not characters.
        0xFDD0..=0xFDEF => true,
        code => code & 0xFFFE == 0xFFFE,
    }
}
