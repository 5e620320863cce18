//! How the passwords of a database are hashed, with the names of EMQX.

use crate::config::value::choice;

choice! {
    /// Algorithm of password hashes.
    pub enum HashAlgorithm {
        Plain = "plain",
        Md5 = "md5",
        /// SHA-1.
        Sha = "sha",
        Sha256 = "sha256",
        Sha512 = "sha512",
        Bcrypt = "bcrypt",
        Pbkdf2 = "pbkdf2",
        Argon2 = "argon2",
    }
}

choice! {
    /// Where the salt of a digest is.
    pub enum SaltPosition { Prefix = "prefix", Suffix = "suffix", Disable = "disable" }
}

choice! {
    /// Hash function of PBKDF2.
    pub enum MacFunction { Sha = "sha", Sha224 = "sha224", Sha256 = "sha256", Sha384 = "sha384", Sha512 = "sha512" }
}
