//! The hashes of passwords in databases.

use auth::HashSettings;

use crate::config::options::access::password_hash::{HashAlgorithm, MacFunction, SaltPosition};

/// The options of a section.
pub struct HashOptions {
    pub algorithm: HashAlgorithm,
    pub salt_position: SaltPosition,
    pub mac_fun: MacFunction,
    pub iterations: u32,
    pub dk_length: u32,
}

/// Converts the options of a section.
pub fn hash_settings(options: &HashOptions) -> HashSettings {
    HashSettings {
        algorithm: match options.algorithm {
            HashAlgorithm::Plain => auth::HashAlgorithm::Plain,
            HashAlgorithm::Md5 => auth::HashAlgorithm::Md5,
            HashAlgorithm::Sha => auth::HashAlgorithm::Sha1,
            HashAlgorithm::Sha256 => auth::HashAlgorithm::Sha256,
            HashAlgorithm::Sha512 => auth::HashAlgorithm::Sha512,
            HashAlgorithm::Bcrypt => auth::HashAlgorithm::Bcrypt,
            HashAlgorithm::Pbkdf2 => auth::HashAlgorithm::Pbkdf2,
            HashAlgorithm::Argon2 => auth::HashAlgorithm::Argon2,
        },
        salt_position: match options.salt_position {
            SaltPosition::Prefix => auth::SaltPosition::Prefix,
            SaltPosition::Suffix => auth::SaltPosition::Suffix,
            SaltPosition::Disable => auth::SaltPosition::Disable,
        },
        mac: match options.mac_fun {
            MacFunction::Sha => auth::MacFunction::Sha1,
            MacFunction::Sha224 => auth::MacFunction::Sha224,
            MacFunction::Sha256 => auth::MacFunction::Sha256,
            MacFunction::Sha384 => auth::MacFunction::Sha384,
            MacFunction::Sha512 => auth::MacFunction::Sha512,
        },
        iterations: options.iterations,
        key_bytes: (options.dk_length > 0).then_some(options.dk_length as usize),
    }
}
