//! Options of the authentication provider `redis`.

use std::path::PathBuf;
use std::time::Duration;

use connectors::Secret;

use super::OnFailure;
use super::password_hash::{HashAlgorithm, MacFunction, SaltPosition};
use crate::config::key::KeySegment::Fixed;
use crate::config::option::section;
use crate::config::value::{Unset, choice};

choice! {
    /// Kind of a Redis installation.
    pub enum RedisType { Single = "single", Cluster = "cluster", Sentinel = "sentinel" }
}

section! {
    /// Authentication by hashes of Redis or Valkey. The provider asks the server if `access.providers` contains
    /// `redis`.
    pub struct RedisAccess at [Fixed("access"), Fixed("redis")] {
        /// Kind of the installation: one server (`single`), a `cluster`, or a master that sentinels monitor
        /// (`sentinel`).
        restart redis_type: RedisType = "single";
        /// Addresses as `host:port`: of the server, of some nodes of the cluster, or of the sentinels.
        restart servers: Vec<String> = "127.0.0.1:6379";
        /// Name of the master at the sentinels.
        restart sentinel_master: Unset<String> = "";
        /// User name at the sentinels, if they have access control lists.
        restart sentinel_user: Unset<String> = "";
        /// Password of the sentinels. It is independent of `password`, which is that of the master.
        restart sentinel_password: Unset<Secret> = "";
        /// User name, for servers with access control lists.
        restart user: Unset<String> = "";
        /// Password of the user.
        restart password: Unset<Secret> = "";
        /// Number of the database. A cluster has only database 0.
        restart database: u32 = "0";
        /// Command that returns the fields of a client: `HMGET`, `HGET` or `HGETALL`, a key with placeholders, and the
        /// fields `password_hash` (or `password`), `salt` and `is_superuser`. Without these fields, the next provider
        /// decides. Placeholders are `${username}`, `${clientid}`, `${password}`, `${peerhost}`, `${cert_common_name}`
        /// and `${cert_subject}`.
        restart cmd: String = "HMGET mqtt_user:${username} password_hash salt is_superuser";
        /// How the passwords of the hashes are hashed: `plain`, `md5`, `sha`, `sha256`, `sha512`, `pbkdf2`, `bcrypt`,
        /// or `argon2` (a PHC string of argon2id). Digests and keys of PBKDF2 are hexadecimal. `plain`, `md5` and `sha`
        /// do not protect passwords: the server warns at the start.
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
        /// Whether connections use TLS. Without it, passwords are sent unencrypted.
        restart tls: bool = "false";
        /// Trusted certificate authorities for `tls`, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for `tls`, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificate of the server. Without verification, an attacker on the network path can read
        /// passwords and admit clients.
        restart verify: bool = "true";
        /// Maximum time until a client has an answer, including the wait for other questions.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions at a time. Further questions wait.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server unavailable).
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of cached answers. Answers that do not allow a client occupy at most a quarter.
        restart cache_size: u32 = "100000" ["0", "10000000"] in "answers";
        /// How long an answer that allows a client is valid: a changed or deleted hash takes effect after this time.
        /// `0s` asks for each connection.
        restart cache_allowed: Duration = "1m" ["0s", "1d"];
        /// How long another answer is valid.
        restart cache_denied: Duration = "10s" ["0s", "1d"];
        /// Decision about a client if the server does not answer: `deny` rejects it (0x88, Server unavailable),
        /// `ignore` asks the next provider, `allow` admits it without a check.
        restart on_failure: OnFailure = "deny";
    }
}
