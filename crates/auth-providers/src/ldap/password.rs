//! Hashes in `userPassword`: a scheme in braces and base64 [RFC 2307], as OpenLDAP writes them.

use auth::{HashAlgorithm, HashSettings, MacFunction, Password, SaltPosition, StoredPassword};
use base64ct::{Base64, Encoding};

/// Maximum number of values of an entry. Each costs a hash.
const VALUES_MAX: usize = 16;

/// Schemes, and the length of the digest. Those with a salt have the salt after the digest.
const SCHEMES: [(&str, HashAlgorithm, usize, bool); 10] = [
    ("SSHA", HashAlgorithm::Sha1, 20, true),
    ("SSHA256", HashAlgorithm::Sha256, 32, true),
    ("SSHA384", HashAlgorithm::Sha384, 48, true),
    ("SSHA512", HashAlgorithm::Sha512, 64, true),
    ("SMD5", HashAlgorithm::Md5, 16, true),
    ("SHA", HashAlgorithm::Sha1, 20, false),
    ("SHA256", HashAlgorithm::Sha256, 32, false),
    ("SHA384", HashAlgorithm::Sha384, 48, false),
    ("SHA512", HashAlgorithm::Sha512, 64, false),
    ("MD5", HashAlgorithm::Md5, 16, false),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PasswordMatch {
    Right,
    Wrong,
    /// No value is a hash. The text is for the operator.
    Unreadable(&'static str),
}

/// Returns whether the password is that of one of the values.
pub(super) fn check(values: &[Vec<u8>], password: &Password) -> PasswordMatch {
    if values.is_empty() {
        return PasswordMatch::Unreadable(
            "the entry has no password_attribute, or the configured user may not read it",
        );
    }
    let mut readable = values
        .iter()
        .take(VALUES_MAX)
        .filter_map(|value| read(value))
        .peekable();
    if readable.peek().is_none() {
        return PasswordMatch::Unreadable(
            "the hash has an unknown scheme: expected {SSHA}, {SHA}, {SMD5}, {MD5} or one with SHA-2; method = \"bind\" \
             supports all",
        );
    }
    match readable.any(|stored| stored.verify(password)) {
        true => PasswordMatch::Right,
        false => PasswordMatch::Wrong,
    }
}

fn read(value: &[u8]) -> Option<StoredPassword> {
    let text = str::from_utf8(value).ok()?;
    let (scheme, encoded) = text.strip_prefix('{')?.split_once('}')?;
    let found = SCHEMES.iter().find(|(name, ..)| name.eq_ignore_ascii_case(scheme));
    let (_, algorithm, digest_bytes, is_salted) = *found?;
    let bytes = Base64::decode_vec(encoded.trim_end()).ok()?;
    let (digest, salt) = bytes.split_at_checked(digest_bytes)?;
    if !is_salted && !salt.is_empty() {
        return None;
    }
    let settings = HashSettings {
        algorithm,
        salt_position: SaltPosition::Suffix,
        // For PBKDF2 only.
        mac: MacFunction::Sha256,
        iterations: 1,
        key_bytes: None,
    };
    let hexadecimal: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    settings.read(hexadecimal.as_bytes(), salt).ok()
}
