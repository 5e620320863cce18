//! Password hashes: parse, verify, create.
//!
//! | text | algorithm | written by |
//! |---|---|---|
//! | `$argon2id$v=19$m=..,t=..,p=..$salt$hash` | argon2id, PHC string, base64 without padding | us, Mosquitto 2.1 |
//! | `$7$iterations$salt$hash` | PBKDF2-HMAC-SHA512, 64 bytes, base64 with padding | Mosquitto 2.0 |
//! | `$6$salt$hash` | SHA-512(password, salt), base64 with padding | Mosquitto 1.x |
//! | `$pbkdf2-sha512$i=..,l=..$salt$hash`, `$pbkdf2-sha256$…` | PBKDF2, PHC string | many |
//! | `$sha256$salt$hex` | SHA-256(salt, password), salt as text | import from EMQX, `salt_position = prefix` |
//! | `$sha256-suffix$salt$hex` | SHA-256(password, salt) | import from EMQX, `salt_position = suffix` |
//! | `$scram-sha-256$i=..$salt$stored$server`, `$scram-sha-512$…` | SCRAM verifier, base64 without padding | us |
//!
//! The `sha256` rows are this project's notation for values that EMQX stores in two columns. A SCRAM verifier checks
//! a password as well as an exchange (`scram.rs`). A salt contains no `$`, `:`,
//! whitespace or control character, so that every hash fits into a field of a password file.
//!
//! Invariants: parameters are checked against the bounds below before any computation; hashes are compared in constant
//! time; no error and no `Debug` text contains a salt or a hash.
//!
//! [`PasswordHash::verify`] takes from a microsecond to a second. Never call it on a data-plane thread.

mod columns;
mod parse;
mod scram;

use std::borrow::Cow;
use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use base64ct::{Base64Unpadded, Encoding};
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::secret::Password;
use crate::verified::PasswordCheck;
pub use columns::{HashAlgorithm, HashSettings, MacFunction, SaltPosition, StoredPassword};
pub use parse::HashError;
pub use scram::ScramMethod;

/// The OWASP minimum for argon2id: 19 MiB, 2 passes, 1 lane. Every concurrent verification allocates that much memory.
const ARGON2_DEFAULT: Argon2Cost = Argon2Cost {
    memory_kib: 19_456,
    passes: 2,
    lanes: 1,
};
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;
/// The minimum of RFC 7677. Clients compute the iterations at each login, and many of them are small devices.
pub const SCRAM_ITERATIONS: u32 = 4096;
/// Maximum length of a password in MQTT [MQTT-3.1.3.6].
const PASSWORD_BYTES_MAX: usize = 65_535;

/// A stored hash with its parameters. Equality compares the text; it does not check passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    text: Box<str>,
    scheme: HashScheme,
    salt: Box<[u8]>,
    hash: Box<[u8]>,
}

/// Hash algorithm and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HashScheme {
    Argon2id(Argon2Cost),
    Pbkdf2Sha256 {
        iterations: u32,
    },
    Pbkdf2Sha512 {
        iterations: u32,
    },
    Sha512Suffix,
    Sha256Prefix,
    Sha256Suffix,
    /// The hash is StoredKey, followed by ServerKey.
    Scram {
        method: ScramMethod,
        iterations: u32,
    },
}

/// The parts of a SCRAM verifier.
#[derive(Clone, Copy)]
pub(crate) struct ScramVerifier<'a> {
    pub method: ScramMethod,
    pub iterations: u32,
    pub salt: &'a [u8],
    pub stored_key: &'a [u8],
    pub server_key: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Argon2Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

impl PasswordHash {
    pub fn parse(text: &str) -> Result<PasswordHash, HashError> {
        parse::parse(text)
    }

    /// Creates an argon2id hash with a random salt.
    pub fn create(password: &Password) -> Result<PasswordHash, CreateError> {
        check_length(password)?;
        Ok(Self::argon2id(password, random_bytes::<SALT_BYTES>()?))
    }

    /// Creates a SCRAM verifier with a random salt. The password must be printable ASCII: clients prepare other
    /// characters in different ways, or not at all [RFC 4013].
    pub fn create_scram(
        password: &Password,
        method: ScramMethod,
        iterations: u32,
    ) -> Result<PasswordHash, CreateError> {
        check_length(password)?;
        if !password.expose().iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(CreateError::NotAscii);
        }
        if parse::check_iterations(iterations).is_err() {
            return Err(CreateError::Iterations);
        }
        let salt = random_bytes::<SALT_BYTES>()?;
        let mut keys = vec![0; 2 * method.digest_bytes()];
        scram::derive_keys(method, password.expose(), &salt, iterations, &mut keys);
        Ok(Self::of_scram(method, iterations, &salt, &keys))
    }

    /// `keys` is StoredKey, followed by ServerKey.
    pub(crate) fn of_scram(method: ScramMethod, iterations: u32, salt: &[u8], keys: &[u8]) -> PasswordHash {
        let scheme = HashScheme::Scram { method, iterations };
        let (stored_key, server_key) = keys.split_at(method.digest_bytes());
        let text = format!(
            "${}$i={iterations}${}${}${}",
            scheme.name(),
            Base64Unpadded::encode_string(salt),
            Base64Unpadded::encode_string(stored_key),
            Base64Unpadded::encode_string(server_key),
        );
        PasswordHash {
            text: text.into(),
            scheme,
            salt: salt.into(),
            hash: keys.into(),
        }
    }

    /// Returns the SCRAM verifier. `None` if the hash has another scheme.
    pub(crate) fn scram(&self) -> Option<ScramVerifier<'_>> {
        let HashScheme::Scram { method, iterations } = self.scheme else {
            return None;
        };
        let (stored_key, server_key) = self.hash.split_at(method.digest_bytes());
        Some(ScramVerifier {
            method,
            iterations,
            salt: &self.salt,
            stored_key,
            server_key,
        })
    }

    /// Creates a hash of random bytes at the default cost, which matches no known password. Passwords of unknown users
    /// are verified against it.
    pub(crate) fn decoy() -> Result<PasswordHash, CreateError> {
        let hash = random_bytes::<HASH_BYTES>()?;
        Ok(Self::of_argon2id(random_bytes::<SALT_BYTES>()?, hash.to_vec()))
    }

    /// Returns whether this hash was made from `password`. An empty password never matches, but takes as long.
    pub fn verify(&self, password: &Password) -> bool {
        if password.expose().len() > PASSWORD_BYTES_MAX {
            return false;
        }
        let mut computed = Zeroizing::new(vec![0u8; self.hash.len()]);
        self.scheme.compute(password.expose(), &self.salt, &mut computed);
        let is_equal: bool = computed.ct_eq(&self.hash).into();
        is_equal && !password.expose().is_empty()
    }

    /// Returns whether the hash has another scheme or a lower cost than a new one by [`PasswordHash::create`] or
    /// [`PasswordHash::create_scram`].
    pub fn is_outdated(&self) -> bool {
        match self.scheme {
            HashScheme::Argon2id(cost) => {
                cost.memory_kib < ARGON2_DEFAULT.memory_kib
                    || cost.passes < ARGON2_DEFAULT.passes
                    || self.hash.len() < HASH_BYTES
            }
            HashScheme::Scram { iterations, .. } => iterations < SCRAM_ITERATIONS,
            _ => true,
        }
    }

    /// Returns the text as stored in a password file.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns `argon2id`, `pbkdf2-sha512`, …: nothing secret.
    pub fn scheme_name(&self) -> &'static str {
        self.scheme.name()
    }

    fn argon2id(password: &Password, salt: [u8; SALT_BYTES]) -> PasswordHash {
        let mut hash = vec![0u8; HASH_BYTES];
        HashScheme::Argon2id(ARGON2_DEFAULT).compute(password.expose(), &salt, &mut hash);
        Self::of_argon2id(salt, hash)
    }

    fn of_argon2id(salt: [u8; SALT_BYTES], hash: Vec<u8>) -> PasswordHash {
        let scheme = HashScheme::Argon2id(ARGON2_DEFAULT);
        let Argon2Cost {
            memory_kib,
            passes,
            lanes,
        } = ARGON2_DEFAULT;
        let text = format!(
            "$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${}${}",
            Base64Unpadded::encode_string(&salt),
            Base64Unpadded::encode_string(&hash),
        );
        PasswordHash {
            text: text.into(),
            scheme,
            salt: Box::new(salt),
            hash: hash.into(),
        }
    }

    #[cfg(test)]
    pub(crate) fn salted_sha256(salt: &str, password: &Password) -> PasswordHash {
        let mut hash = [0u8; 32];
        HashScheme::Sha256Prefix.compute(password.expose(), salt.as_bytes(), &mut hash);
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self::parse(&format!("$sha256${salt}${hex}")).expect("a well-formed hash")
    }
}

impl PasswordCheck for PasswordHash {
    fn identity(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.text.as_bytes())
    }

    fn matches(&self, password: &Password) -> bool {
        self.verify(password)
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordHash({}, ***)", self.scheme_name())
    }
}

impl HashScheme {
    fn name(self) -> &'static str {
        match self {
            HashScheme::Argon2id(_) => "argon2id",
            HashScheme::Pbkdf2Sha256 { .. } => "pbkdf2-sha256",
            HashScheme::Pbkdf2Sha512 { .. } => "pbkdf2-sha512",
            HashScheme::Sha512Suffix => "sha512",
            HashScheme::Sha256Prefix | HashScheme::Sha256Suffix => "sha256",
            HashScheme::Scram { method, .. } => match method {
                ScramMethod::Sha256 => "scram-sha-256",
                ScramMethod::Sha512 => "scram-sha-512",
            },
        }
    }

    /// Computes the hash. `out` has the length of the scheme's digest; for argon2 and PBKDF2 any length that `parse`
    /// accepts.
    fn compute(self, password: &[u8], salt: &[u8], out: &mut [u8]) {
        match self {
            HashScheme::Argon2id(cost) => cost.compute(password, salt, out),
            HashScheme::Pbkdf2Sha256 { iterations } => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, out),
            HashScheme::Pbkdf2Sha512 { iterations } => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations, out),
            HashScheme::Sha512Suffix => digest::<Sha512>([password, salt], out),
            HashScheme::Sha256Prefix => digest::<Sha256>([salt, password], out),
            HashScheme::Sha256Suffix => digest::<Sha256>([password, salt], out),
            HashScheme::Scram { method, iterations } => scram::derive_keys(method, password, salt, iterations, out),
        }
    }
}

impl Argon2Cost {
    fn compute(self, password: &[u8], salt: &[u8], out: &mut [u8]) {
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(out.len()))
            .expect("`parse` accepts only parameters within argon2's limits");
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(password, salt, out)
            .expect("password, salt and output are within argon2's limits: `verify` and `parse` checked them");
    }
}

fn digest<D: Digest>(parts: [&[u8]; 2], out: &mut [u8]) {
    let mut digest = D::new();
    for part in parts {
        digest.update(part);
    }
    out.copy_from_slice(&digest.finalize());
}

fn check_length(password: &Password) -> Result<(), CreateError> {
    if password.is_empty() {
        return Err(CreateError::EmptyPassword);
    }
    if password.expose().len() > PASSWORD_BYTES_MAX {
        return Err(CreateError::PasswordTooLong);
    }
    Ok(())
}

pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], CreateError> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|_| CreateError::NoRandomness)?;
    Ok(bytes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    EmptyPassword,
    PasswordTooLong,
    /// A password for SCRAM has a character that is not printable ASCII.
    NotAscii,
    /// The number of iterations for SCRAM is out of bounds.
    Iterations,
    NoRandomness,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CreateError::EmptyPassword => "the password is empty",
            CreateError::PasswordTooLong => "the password is longer than 65535 bytes, the limit of MQTT",
            CreateError::NotAscii => "a password for SCRAM may contain only printable ASCII characters",
            CreateError::Iterations => "the number of iterations is out of bounds: the range is 1 to 2000000",
            CreateError::NoRandomness => "the operating system provides no random bytes",
        })
    }
}

impl std::error::Error for CreateError {}

#[cfg(test)]
mod tests;
