//! Passwords that a database stores in the columns `password_hash` and `salt`, with the settings of EMQX.
//!
//! | algorithm | `password_hash` | salt |
//! |---|---|---|
//! | `plain` | the salted password | before or after the password, or not used |
//! | `md5`, `sha`, `sha256`, `sha384`, `sha512` | digest of the salted password, hexadecimal | the same |
//! | `pbkdf2` | derived key, hexadecimal | the bytes of the column |
//! | `bcrypt` | `$2a$`, `$2b$` or `$2y$`, cost, salt and hash | part of `password_hash` |
//! | `argon2` | PHC string `$argon2id$…`, which EMQX does not have | part of `password_hash` |
//!
//! Invariants: the cost that a row contains is checked against bounds before any computation; hashes are compared in
//! constant time; no error and no `Debug` text contains a salt or a hash.

use std::borrow::Cow;
use std::fmt;

use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::parse::{ParameterBound, decode_hex};
use super::{
    ARGON2_DEFAULT, CreateError, HashError, HashScheme, PASSWORD_BYTES_MAX, PasswordHash, digest, random_bytes,
};
use crate::secret::Password;
use crate::verified::PasswordCheck;

/// Maximum length of the column `salt`. Longer values are rejected unread.
const SALT_COLUMN_BYTES_MAX: u64 = 4096;
/// Maximum length of the column `password_hash` for `plain`. The other algorithms have shorter values.
const PLAIN_BYTES_MAX: u64 = PASSWORD_BYTES_MAX as u64 + SALT_COLUMN_BYTES_MAX;
/// Cost 14 takes about one second.
const BCRYPT_COST: ParameterBound = ParameterBound::new("bcrypt cost", 4, 14);
/// The default of EMQX.
const BCRYPT_DEFAULT_COST: u32 = 10;
const BCRYPT_SALT_BYTES: usize = 16;
/// bcrypt computes 24 bytes and stores 23.
const BCRYPT_HASH_BYTES: usize = 23;
/// bcrypt uses this many bytes of a password, including a NUL byte at its end.
const BCRYPT_PASSWORD_BYTES: usize = 72;
const DECOY_SALT_BYTES: usize = 16;

/// How the passwords of a database are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashSettings {
    pub algorithm: HashAlgorithm,
    /// For `plain` and digests.
    pub salt_position: SaltPosition,
    /// Hash function of PBKDF2.
    pub mac: MacFunction,
    /// Iterations of PBKDF2.
    pub iterations: u32,
    /// Length of the key that PBKDF2 derives. `None`: the length of the hash function.
    pub key_bytes: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    Plain,
    Md5,
    Sha1,
    Sha256,
    Sha384,
    Sha512,
    Bcrypt,
    Pbkdf2,
    Argon2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaltPosition {
    Prefix,
    Suffix,
    /// The salt is not used.
    Disable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MacFunction {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// A password as a database stores it.
#[derive(Clone)]
pub struct StoredPassword {
    scheme: ColumnScheme,
    salt: Box<[u8]>,
    /// For `plain`, the SHA-256 of the column, so that the comparison does not depend on its length.
    hash: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnScheme {
    /// `plain`, and digests.
    Salted(HashAlgorithm, SaltPosition),
    Pbkdf2 {
        mac: MacFunction,
        iterations: u32,
    },
    Bcrypt {
        cost: u32,
    },
    Argon2(HashScheme),
}

impl HashSettings {
    /// Returns whether a check takes longer than some microseconds, so that it needs a thread of its own.
    pub fn is_slow(&self) -> bool {
        matches!(
            self.algorithm,
            HashAlgorithm::Bcrypt | HashAlgorithm::Pbkdf2 | HashAlgorithm::Argon2
        )
    }

    /// Returns why the algorithm does not protect passwords, for a warning.
    pub fn weakness(&self) -> Option<&'static str> {
        match self.algorithm {
            HashAlgorithm::Plain => Some("the database contains the passwords themselves"),
            HashAlgorithm::Md5 | HashAlgorithm::Sha1 => Some("who reads the hashes finds most passwords within hours"),
            _ => None,
        }
    }

    /// Reads the columns of a row. A missing salt is empty.
    pub fn read(&self, password_hash: &[u8], salt: &[u8]) -> Result<StoredPassword, HashError> {
        ParameterBound::new("salt length in bytes", 0, SALT_COLUMN_BYTES_MAX).check(salt.len() as u64)?;
        match self.algorithm {
            HashAlgorithm::Plain => {
                ParameterBound::new("password length in bytes", 0, PLAIN_BYTES_MAX).check(password_hash.len() as u64)?;
                Ok(self.salted(salt, Sha256::digest(password_hash).to_vec()))
            }
            HashAlgorithm::Bcrypt => bcrypt_columns(text(password_hash)?),
            HashAlgorithm::Argon2 => argon2_columns(text(password_hash)?),
            HashAlgorithm::Pbkdf2 => Ok(StoredPassword {
                scheme: self.pbkdf2(),
                salt: salt.into(),
                hash: hex_column(password_hash, self.key_bytes())?,
            }),
            algorithm => Ok(self.salted(salt, hex_column(password_hash, digest_bytes(algorithm))?)),
        }
    }

    /// Returns a random password, for the check of an unknown user.
    pub fn decoy(&self) -> Result<StoredPassword, CreateError> {
        let scheme = match self.algorithm {
            HashAlgorithm::Bcrypt => ColumnScheme::Bcrypt {
                cost: BCRYPT_DEFAULT_COST,
            },
            HashAlgorithm::Pbkdf2 => self.pbkdf2(),
            HashAlgorithm::Argon2 => ColumnScheme::Argon2(HashScheme::Argon2id(ARGON2_DEFAULT)),
            algorithm => ColumnScheme::Salted(algorithm, self.salt_position),
        };
        let hash_bytes = match self.algorithm {
            HashAlgorithm::Bcrypt => BCRYPT_HASH_BYTES,
            HashAlgorithm::Pbkdf2 => self.key_bytes(),
            algorithm => digest_bytes(algorithm),
        };
        scheme.decoy(hash_bytes)
    }

    fn salted(&self, salt: &[u8], hash: impl Into<Box<[u8]>>) -> StoredPassword {
        StoredPassword {
            scheme: ColumnScheme::Salted(self.algorithm, self.salt_position),
            salt: salt.into(),
            hash: hash.into(),
        }
    }

    fn pbkdf2(&self) -> ColumnScheme {
        ColumnScheme::Pbkdf2 {
            mac: self.mac,
            iterations: self.iterations,
        }
    }

    fn key_bytes(&self) -> usize {
        self.key_bytes.unwrap_or_else(|| self.mac.output_bytes())
    }
}

impl MacFunction {
    fn output_bytes(self) -> usize {
        match self {
            MacFunction::Sha1 => 20,
            MacFunction::Sha224 => 28,
            MacFunction::Sha256 => 32,
            MacFunction::Sha384 => 48,
            MacFunction::Sha512 => 64,
        }
    }
}

impl StoredPassword {
    /// Returns whether `password` is the stored one. An empty password never is.
    pub fn verify(&self, password: &Password) -> bool {
        if password.expose().len() > PASSWORD_BYTES_MAX {
            return false;
        }
        let mut computed = Zeroizing::new(vec![0u8; self.hash.len()]);
        self.scheme.compute(password.expose(), &self.salt, &mut computed);
        let is_equal: bool = computed.ct_eq(&self.hash).into();
        is_equal && !password.is_empty()
    }

    /// Returns a random password whose check takes as long as that of this one.
    pub fn decoy(&self) -> Result<StoredPassword, CreateError> {
        self.scheme.decoy(self.hash.len())
    }

    /// Returns whether the checks of both take equally long.
    pub fn costs_as_much_as(&self, other: &StoredPassword) -> bool {
        self.scheme == other.scheme && self.hash.len() == other.hash.len()
    }
}

impl PasswordCheck for StoredPassword {
    fn identity(&self) -> Cow<'_, [u8]> {
        let mut identity = format!("{:?} {} ", self.scheme, self.salt.len()).into_bytes();
        identity.extend_from_slice(&self.salt);
        identity.extend_from_slice(&self.hash);
        Cow::Owned(identity)
    }

    fn matches(&self, password: &Password) -> bool {
        self.verify(password)
    }
}

impl fmt::Debug for StoredPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredPassword({:?}, ***)", self.scheme)
    }
}

impl ColumnScheme {
    fn decoy(self, hash_bytes: usize) -> Result<StoredPassword, CreateError> {
        // No algorithm takes longer for some bytes than for others.
        let random = random_bytes::<64>()?;
        Ok(StoredPassword {
            scheme: self,
            salt: Box::new(random_bytes::<DECOY_SALT_BYTES>()?),
            hash: random.iter().copied().cycle().take(hash_bytes).collect(),
        })
    }

    fn compute(self, password: &[u8], salt: &[u8], out: &mut [u8]) {
        match self {
            ColumnScheme::Salted(algorithm, position) => {
                let parts = match position {
                    SaltPosition::Prefix => [salt, password],
                    SaltPosition::Suffix => [password, salt],
                    SaltPosition::Disable => [password, b""],
                };
                match algorithm {
                    HashAlgorithm::Md5 => digest::<Md5>(parts, out),
                    HashAlgorithm::Sha1 => digest::<Sha1>(parts, out),
                    HashAlgorithm::Sha384 => digest::<Sha384>(parts, out),
                    HashAlgorithm::Sha512 => digest::<Sha512>(parts, out),
                    // For `plain`, `read` computes the SHA-256 of the column.
                    _ => digest::<Sha256>(parts, out),
                }
            }
            ColumnScheme::Pbkdf2 { mac, iterations } => match mac {
                MacFunction::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, out),
                MacFunction::Sha224 => pbkdf2::pbkdf2_hmac::<Sha224>(password, salt, iterations, out),
                MacFunction::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, out),
                MacFunction::Sha384 => pbkdf2::pbkdf2_hmac::<Sha384>(password, salt, iterations, out),
                MacFunction::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, out),
            },
            ColumnScheme::Bcrypt { cost } => bcrypt_hash(cost, password, salt, out),
            ColumnScheme::Argon2(scheme) => scheme.compute(password, salt, out),
        }
    }
}

fn digest_bytes(algorithm: HashAlgorithm) -> usize {
    match algorithm {
        HashAlgorithm::Md5 => 16,
        HashAlgorithm::Sha1 => 20,
        HashAlgorithm::Sha384 => 48,
        HashAlgorithm::Sha512 => 64,
        _ => 32,
    }
}

/// A column of the type CHAR(n) has spaces after its value.
fn text(column: &[u8]) -> Result<&str, HashError> {
    std::str::from_utf8(column)
        .map(str::trim_end)
        .map_err(|_| HashError::NotText)
}

fn hex_column(column: &[u8], length: usize) -> Result<Box<[u8]>, HashError> {
    let text = text(column)?;
    if text.len() != 2 * length {
        return Err(HashError::HashLength);
    }
    decode_hex(text).map(Vec::into_boxed_slice)
}

fn argon2_columns(text: &str) -> Result<StoredPassword, HashError> {
    let parsed = PasswordHash::parse(text)?;
    match parsed.scheme {
        HashScheme::Argon2id(_) => Ok(StoredPassword {
            scheme: ColumnScheme::Argon2(parsed.scheme),
            salt: parsed.salt,
            hash: parsed.hash,
        }),
        _ => Err(HashError::NotArgon2),
    }
}

fn bcrypt_columns(text: &str) -> Result<StoredPassword, HashError> {
    let fields: Vec<&str> = text.split('$').collect();
    // `2x` marks hashes of a faulty implementation.
    let ["", "2a" | "2b" | "2y", cost, salt_and_hash] = fields.as_slice() else {
        return Err(HashError::NotBcrypt);
    };
    let cost = BCRYPT_COST.parse(cost)?;
    let (salt, hash) = salt_and_hash.split_at_checked(22).ok_or(HashError::HashLength)?;
    Ok(StoredPassword {
        scheme: ColumnScheme::Bcrypt { cost },
        salt: bcrypt_decode(salt, BCRYPT_SALT_BYTES)?,
        hash: bcrypt_decode(hash, BCRYPT_HASH_BYTES)?,
    })
}

/// Decodes the base64 of bcrypt. Some implementations set the unused bits of the last character.
fn bcrypt_decode(text: &str, length: usize) -> Result<Box<[u8]>, HashError> {
    const ALPHABET: &[u8; 64] = b"./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    if text.len() != (length * 8).div_ceil(6) {
        return Err(HashError::HashLength);
    }
    let mut bytes = Vec::with_capacity(length);
    let (mut bits, mut pending) = (0u32, 0);
    for byte in text.bytes() {
        let value = ALPHABET.iter().position(|&letter| letter == byte);
        let value = value.ok_or(HashError::NotBase64 { name: "bcrypt hash" })?;
        bits = bits << 6 | value as u32;
        pending += 6;
        if pending >= 8 {
            pending -= 8;
            bytes.push((bits >> pending) as u8);
        }
    }
    Ok(bytes.into())
}

/// Longer passwords are cut, as all implementations of bcrypt do.
fn bcrypt_hash(cost: u32, password: &[u8], salt: &[u8], out: &mut [u8]) {
    let mut key = Zeroizing::new([0u8; BCRYPT_PASSWORD_BYTES]);
    let length = password.len().min(BCRYPT_PASSWORD_BYTES);
    key[..length].copy_from_slice(&password[..length]);
    let key = &key[..(length + 1).min(BCRYPT_PASSWORD_BYTES)];
    let salt: [u8; BCRYPT_SALT_BYTES] = salt
        .try_into()
        .expect("`bcrypt_columns` and `decoy` create salts of 16 bytes");
    out.copy_from_slice(&bcrypt::bcrypt(cost, salt, key)[..BCRYPT_HASH_BYTES]);
}

#[cfg(test)]
mod tests;
