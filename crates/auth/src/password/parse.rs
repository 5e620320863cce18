//! Text formats of password hashes, and the bounds of their parameters.

use std::fmt;

use base64ct::{Base64, Base64Unpadded, Encoding};

use super::{Argon2Cost, HashScheme, PasswordHash, ScramMethod};

/// Maximum length of a hash, enough for every format at its bounds. Longer text is rejected unread.
pub(crate) const TEXT_BYTES_MAX: usize = 512;
const ARGON2_MEMORY_KIB: ParameterBound = ParameterBound {
    name: "m (memory, KiB)",
    min: 8,
    max: 256 * 1024,
};
const ARGON2_PASSES: ParameterBound = ParameterBound {
    name: "t (passes)",
    min: 1,
    max: 64,
};
const ARGON2_LANES: ParameterBound = ParameterBound {
    name: "p (lanes)",
    min: 1,
    max: 16,
};
/// Memory times passes: about one second of computation.
const ARGON2_WORK_KIB: ParameterBound = ParameterBound {
    name: "m * t (work, KiB)",
    min: 8,
    max: 1024 * 1024,
};
/// About one second of computation with SHA-512.
const PBKDF2_ITERATIONS: ParameterBound = ParameterBound {
    name: "iterations",
    min: 1,
    max: 2_000_000,
};
const SALT_BYTES: ParameterBound = ParameterBound {
    name: "salt length in bytes",
    min: 1,
    max: 64,
};
/// Argon2's specification requires at least 8 bytes.
const ARGON2_SALT_BYTES: ParameterBound = ParameterBound {
    name: "salt length in bytes",
    min: 8,
    max: 64,
};
const PHC_HASH_BYTES: ParameterBound = ParameterBound {
    name: "hash length in bytes",
    min: 16,
    max: 64,
};

pub(super) struct ParameterBound {
    name: &'static str,
    min: u64,
    max: u64,
}

impl ParameterBound {
    pub(super) const fn new(name: &'static str, min: u64, max: u64) -> ParameterBound {
        ParameterBound { name, min, max }
    }

    pub(super) fn check(&self, value: u64) -> Result<(), HashError> {
        if (self.min..=self.max).contains(&value) {
            return Ok(());
        }
        Err(HashError::OutOfBounds {
            name: self.name,
            value,
            min: self.min,
            max: self.max,
        })
    }

    pub(super) fn parse(&self, text: &str) -> Result<u32, HashError> {
        // Digits only, because `u64::from_str` accepts a leading `+`.
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(HashError::NotANumber { name: self.name });
        }
        // A value that exceeds 64 bits exceeds every bound.
        let value = text.parse::<u64>().unwrap_or(u64::MAX);
        self.check(value)?;
        Ok(u32::try_from(value).expect("every bound is below 2^32"))
    }
}

pub(super) fn parse(text: &str) -> Result<PasswordHash, HashError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(HashError::TooLong);
    }
    let Some(body) = text.strip_prefix('$') else {
        return Err(HashError::NotHashed);
    };
    let fields: Vec<&str> = body.split('$').collect();
    let (scheme, salt, hash) = match fields.as_slice() {
        ["argon2id", version, parameters, salt, hash] => argon2id(version, parameters, salt, hash)?,
        ["pbkdf2-sha256", parameters, salt, hash] => phc_pbkdf2(Digest::Sha256, parameters, salt, hash)?,
        ["pbkdf2-sha512", parameters, salt, hash] => phc_pbkdf2(Digest::Sha512, parameters, salt, hash)?,
        ["7", iterations, salt, hash] => mosquitto_pbkdf2(iterations, salt, hash)?,
        ["6", salt, hash] => mosquitto_sha512(salt, hash)?,
        ["sha256", salt, hash] => salted_sha256(HashScheme::Sha256Prefix, salt, hash)?,
        ["sha256-suffix", salt, hash] => salted_sha256(HashScheme::Sha256Suffix, salt, hash)?,
        ["scram-sha-256", parameters, salt, stored_key, server_key] => {
            scram(ScramMethod::Sha256, parameters, salt, [stored_key, server_key])?
        }
        ["scram-sha-512", parameters, salt, stored_key, server_key] => {
            scram(ScramMethod::Sha512, parameters, salt, [stored_key, server_key])?
        }
        [
            "argon2id" | "pbkdf2-sha256" | "pbkdf2-sha512" | "7" | "6" | "sha256" | "sha256-suffix" | "scram-sha-256"
            | "scram-sha-512",
            ..,
        ] => {
            return Err(HashError::WrongShape);
        }
        _ => return Err(HashError::UnknownScheme),
    };
    Ok(PasswordHash {
        text: text.into(),
        scheme,
        salt: salt.into(),
        hash: hash.into(),
    })
}

type HashParts = (HashScheme, Vec<u8>, Vec<u8>);

enum Digest {
    Sha256,
    Sha512,
}

fn argon2id(version: &str, parameters: &str, salt: &str, hash: &str) -> Result<HashParts, HashError> {
    if version != "v=19" {
        return Err(HashError::Argon2Version);
    }
    let [memory_kib, passes, lanes] = named(parameters, ["m=", "t=", "p="])?;
    let memory_kib = ARGON2_MEMORY_KIB.parse(memory_kib)?;
    let passes = ARGON2_PASSES.parse(passes)?;
    let lanes = ARGON2_LANES.parse(lanes)?;
    ARGON2_WORK_KIB.check(u64::from(memory_kib) * u64::from(passes))?;
    // RFC 9106, 3.1: at least 8 KiB per lane.
    ParameterBound {
        min: 8 * u64::from(lanes),
        ..ARGON2_MEMORY_KIB
    }
    .check(memory_kib.into())?;
    let salt = decode::<Base64Unpadded>("salt", salt, &ARGON2_SALT_BYTES)?;
    let hash = decode::<Base64Unpadded>("hash", hash, &PHC_HASH_BYTES)?;
    Ok((
        HashScheme::Argon2id(Argon2Cost {
            memory_kib,
            passes,
            lanes,
        }),
        salt,
        hash,
    ))
}

fn phc_pbkdf2(digest: Digest, parameters: &str, salt: &str, hash: &str) -> Result<HashParts, HashError> {
    let (iterations, stated_len) = match named(parameters, ["i=", "l="]) {
        Ok([iterations, len]) => (iterations, Some(PHC_HASH_BYTES.parse(len)?)),
        Err(_) => (named(parameters, ["i="])?[0], None),
    };
    let iterations = PBKDF2_ITERATIONS.parse(iterations)?;
    let salt = decode::<Base64Unpadded>("salt", salt, &SALT_BYTES)?;
    let hash = decode::<Base64Unpadded>("hash", hash, &PHC_HASH_BYTES)?;
    if stated_len.is_some_and(|len| len as usize != hash.len()) {
        return Err(HashError::HashLength);
    }
    let scheme = match digest {
        Digest::Sha256 => HashScheme::Pbkdf2Sha256 { iterations },
        Digest::Sha512 => HashScheme::Pbkdf2Sha512 { iterations },
    };
    Ok((scheme, salt, hash))
}

fn scram(method: ScramMethod, parameters: &str, salt: &str, keys: [&str; 2]) -> Result<HashParts, HashError> {
    let [iterations] = named(parameters, ["i="])?;
    let iterations = PBKDF2_ITERATIONS.parse(iterations)?;
    let salt = decode::<Base64Unpadded>("salt", salt, &SALT_BYTES)?;
    let mut hash = Vec::new();
    for key in keys {
        let key = decode::<Base64Unpadded>("hash", key, &PHC_HASH_BYTES)?;
        if key.len() != method.digest_bytes() {
            return Err(HashError::HashLength);
        }
        hash.extend(key);
    }
    Ok((HashScheme::Scram { method, iterations }, salt, hash))
}

/// Checks the iterations of a new SCRAM verifier.
pub(super) fn check_iterations(iterations: u32) -> Result<(), HashError> {
    PBKDF2_ITERATIONS.check(iterations.into())
}

fn mosquitto_pbkdf2(iterations: &str, salt: &str, hash: &str) -> Result<HashParts, HashError> {
    let iterations = PBKDF2_ITERATIONS.parse(iterations)?;
    let (salt, hash) = mosquitto_salt_and_hash(salt, hash)?;
    Ok((HashScheme::Pbkdf2Sha512 { iterations }, salt, hash))
}

fn mosquitto_sha512(salt: &str, hash: &str) -> Result<HashParts, HashError> {
    let (salt, hash) = mosquitto_salt_and_hash(salt, hash)?;
    Ok((HashScheme::Sha512Suffix, salt, hash))
}

fn mosquitto_salt_and_hash(salt: &str, hash: &str) -> Result<(Vec<u8>, Vec<u8>), HashError> {
    let salt = decode::<Base64>("salt", salt, &SALT_BYTES)?;
    let hash = decode::<Base64>("hash", hash, &PHC_HASH_BYTES)?;
    if hash.len() != 64 {
        return Err(HashError::HashLength);
    }
    Ok((salt, hash))
}

fn salted_sha256(scheme: HashScheme, salt: &str, hash: &str) -> Result<HashParts, HashError> {
    SALT_BYTES.check(salt.len() as u64)?;
    if salt.chars().any(|c| c == ':' || c.is_whitespace() || c.is_control()) {
        return Err(HashError::SaltCharacter);
    }
    let hash = decode_hex(hash)?;
    if hash.len() != 32 {
        return Err(HashError::HashLength);
    }
    Ok((scheme, salt.as_bytes().to_vec(), hash))
}

/// Splits `m=1,t=2` into its values. All names must be present in this order, as PHC prescribes.
fn named<'a, const N: usize>(parameters: &'a str, names: [&str; N]) -> Result<[&'a str; N], HashError> {
    let mut values = [""; N];
    let mut parts = parameters.split(',');
    for (value, name) in values.iter_mut().zip(names) {
        let part = parts.next().ok_or(HashError::Parameters)?;
        *value = part.strip_prefix(name).ok_or(HashError::Parameters)?;
    }
    match parts.next() {
        None => Ok(values),
        Some(_) => Err(HashError::Parameters),
    }
}

fn decode<E: Encoding>(name: &'static str, text: &str, bound: &ParameterBound) -> Result<Vec<u8>, HashError> {
    let bytes = E::decode_vec(text).map_err(|_| HashError::NotBase64 { name })?;
    bound.check(bytes.len() as u64)?;
    Ok(bytes)
}

pub(super) fn decode_hex(text: &str) -> Result<Vec<u8>, HashError> {
    let digit = |byte: u8| (byte as char).to_digit(16).ok_or(HashError::NotHex);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(HashError::NotHex);
    }
    pairs
        .iter()
        .map(|&[high, low]| Ok((digit(high)? * 16 + digit(low)?) as u8))
        .collect()
}

/// Why a text is not a usable password hash. Contains nothing of the text except numbers that are out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashError {
    /// The text does not start with `$`: most likely a plain-text password.
    NotHashed,
    UnknownScheme,
    /// Wrong number of `$` fields for the scheme.
    WrongShape,
    TooLong,
    Argon2Version,
    Parameters,
    NotANumber {
        name: &'static str,
    },
    OutOfBounds {
        name: &'static str,
        value: u64,
        min: u64,
        max: u64,
    },
    NotBase64 {
        name: &'static str,
    },
    NotHex,
    HashLength,
    SaltCharacter,
    /// A column of a database that is no text.
    NotText,
    /// A column of a database that contains no hash of bcrypt.
    NotBcrypt,
    /// A column of a database that contains no hash of argon2.
    NotArgon2,
}

impl fmt::Display for HashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashError::NotHashed => f.write_str("not a password hash: it does not start with `$`"),
            HashError::UnknownScheme => f.write_str(
                "unknown password hash scheme; supported are $argon2id$, $pbkdf2-sha512$, $pbkdf2-sha256$, $7$ and $6$ \
                 (Mosquitto), $sha256$ and $sha256-suffix$, $scram-sha-256$ and $scram-sha-512$",
            ),
            HashError::WrongShape => f.write_str("the password hash has too few or too many `$` fields"),
            HashError::TooLong => write!(f, "the password hash is longer than {TEXT_BYTES_MAX} bytes"),
            HashError::Argon2Version => f.write_str("the argon2 version is not `v=19`"),
            HashError::Parameters => f.write_str(
                "the parameters are not `m=..,t=..,p=..` (argon2id) or `i=..` or `i=..,l=..` (pbkdf2, scram: `i=..`)",
            ),
            HashError::NotANumber { name } => write!(f, "{name} is not a number"),
            HashError::OutOfBounds {
                name,
                value: u64::MAX,
                min,
                max,
            } => {
                write!(f, "{name} is too large: the range is {min} to {max}")
            }
            HashError::OutOfBounds { name, value, min, max } => {
                write!(f, "{name} is {value}: the range is {min} to {max}")
            }
            HashError::NotBase64 { name } => write!(f, "the {name} is not valid base64"),
            HashError::NotHex => f.write_str("the hash is not hexadecimal"),
            HashError::HashLength => f.write_str("the hash has the wrong length"),
            HashError::SaltCharacter => {
                f.write_str("the salt must not contain a colon, whitespace or a control character")
            }
            HashError::NotText => f.write_str("the hash is not UTF-8 text"),
            HashError::NotBcrypt => f.write_str("the hash does not begin with $2a$, $2b$ or $2y$ (bcrypt)"),
            HashError::NotArgon2 => f.write_str("the hash does not begin with $argon2id$"),
        }
    }
}

impl std::error::Error for HashError {}
