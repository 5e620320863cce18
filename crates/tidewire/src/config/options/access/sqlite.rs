//! Options of the authentication provider `sqlite`.

use std::path::PathBuf;
use std::time::Duration;

use super::OnFailure;
use super::password_hash::{HashAlgorithm, MacFunction, SaltPosition};
use crate::config::key::KeySegment::Fixed;
use crate::config::option::section;
use crate::config::value::Unset;

section! {
    /// Authentication by a table of an SQLite file. The provider reads the file if `access.providers` contains
    /// `sqlite`.
    pub struct SqliteAccess at [Fixed("access"), Fixed("sqlite")] {
        /// File with the database. Another program may write it while the server runs, or replace it by renaming
        /// another file. The server opens it for reading only, and does not start if it is missing or no database.
        restart file: Unset<PathBuf> = "";
        /// Maximum number of queries at a time. Each occupies a thread.
        restart pool_size: u32 = "4" ["1", "64"] in "queries";
        /// SELECT statement that returns the row of a client, with the columns `password_hash`, `salt` (optional) and
        /// `is_superuser` (optional). The first row is used; without a row, the next provider decides. Placeholders are
        /// `${username}`, `${clientid}`, `${password}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`.
        /// Their values become parameters and are never part of the statement. It may only read tables of this file.
        restart query: String = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1";
        /// How the passwords of the table are hashed: `plain`, `md5`, `sha`, `sha256`, `sha512`, `pbkdf2`, `bcrypt`, or
        /// `argon2` (a PHC string of argon2id). Digests and keys of PBKDF2 are hexadecimal. `plain`, `md5` and `sha` do
        /// not protect passwords: the server warns at the start.
        restart password_hash_algorithm: HashAlgorithm = "sha256";
        /// Where the salt is: before the password (`prefix`), after it (`suffix`), or not used (`disable`). Has no
        /// effect for `pbkdf2`, `bcrypt` and `argon2`.
        restart salt_position: SaltPosition = "prefix";
        /// Hash function of `pbkdf2`: `sha`, `sha224`, `sha256`, `sha384` or `sha512`.
        restart mac_fun: MacFunction = "sha256";
        /// Iterations of `pbkdf2`.
        restart iterations: u32 = "4096" ["1", "2000000"] in "iterations";
        /// Length of the keys of `pbkdf2`. `0`: the length of the hash function.
        restart dk_length: u32 = "0" ["0", "128"] in "bytes";
        /// Maximum time until a client has an answer, including the wait for other questions. At most half of it is a
        /// wait for a program that has locked the database.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions at a time. Further questions wait. A value above `pool_size` has no effect.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server unavailable).
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of cached answers. Answers that do not allow a client occupy at most a quarter.
        restart cache_size: u32 = "100000" ["0", "10000000"] in "answers";
        /// How long an answer that allows a client is valid: a changed or deleted row takes effect after this time.
        /// `0s` asks for each connection.
        restart cache_allowed: Duration = "1m" ["0s", "1d"];
        /// How long another answer is valid.
        restart cache_denied: Duration = "10s" ["0s", "1d"];
        /// Decision about a client if the file is missing, locked or damaged: `deny` rejects it (0x88, Server
        /// unavailable), `ignore` asks the next provider, `allow` admits it without a check.
        restart on_failure: OnFailure = "deny";
    }
}
