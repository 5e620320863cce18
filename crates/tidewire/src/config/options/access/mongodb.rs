//! Options of the authentication provider `mongodb`.

use std::path::PathBuf;
use std::time::Duration;

use connectors::Secret;

use super::OnFailure;
use super::password_hash::{HashAlgorithm, MacFunction, SaltPosition};
use crate::config::key::KeySegment::Fixed;
use crate::config::option::section;
use crate::config::value::{Unset, choice};

choice! {
    /// Kind of a MongoDB installation.
    pub enum MongoType { Single = "single", Rs = "rs", Sharded = "sharded" }
}

choice! {
    /// Members of a replica set that are asked.
    pub enum MongoReadFrom { Master = "master", SlaveOk = "slave_ok" }
}

section! {
    /// Authentication by a collection of MongoDB. The provider asks the database if `access.providers` contains
    /// `mongodb`.
    pub struct MongodbAccess at [Fixed("access"), Fixed("mongodb")] {
        /// Kind of the installation: one server (`single`), a replica set (`rs`), or the routers (`mongos`) of a
        /// sharded cluster (`sharded`).
        restart mongo_type: MongoType = "single";
        /// Addresses as `host:port`: of the server, of some members of the replica set, or of the routers. The first
        /// one that can be reached is used; in a replica set, the server finds the other members. `mongodb+srv`
        /// addresses are not supported.
        restart servers: Vec<String> = "127.0.0.1:27017";
        /// Name of the replica set.
        restart replica_set_name: Unset<String> = "";
        /// Members of a replica set that are asked: only the primary (`master`), or the first one that can be reached
        /// (`slave_ok`), whose data may be older.
        restart r_mode: MongoReadFrom = "master";
        /// Name of the database.
        restart database: String = "";
        /// User name at the database, for SCRAM-SHA-256 or SCRAM-SHA-1. It needs the right to read the collection only.
        restart user: Unset<String> = "";
        /// Password of the user.
        restart password: Unset<Secret> = "";
        /// Database that contains the user.
        restart auth_source: String = "admin";
        /// Maximum number of connections.
        restart pool_size: u32 = "8" ["1", "256"] in "connections";
        /// Collection with the documents of clients.
        restart collection: String = "mqtt_user";
        /// Filter that selects the document of a client, as JSON. The first document is used; without one, the next
        /// provider decides. Values may have the placeholders `${username}`, `${clientid}`, `${password}`,
        /// `${peerhost}`, `${cert_common_name}` and `${cert_subject}`. What a client sends is always a text in the
        /// filter, and never an operator. A value of `$where`, `$regex`, `$expr` and other operators that give texts a
        /// meaning cannot have a placeholder.
        restart filter: String = "{\"username\": \"${username}\"}";
        /// Field of a document with the hash of the password. A client whose document does not have it cannot log in.
        restart password_hash_field: String = "password_hash";
        /// Field of a document with the salt. Empty: there is none.
        restart salt_field: Unset<String> = "salt";
        /// Field of a document that makes a client a superuser: `true` or a number from 1 on. Empty: there is none.
        restart is_superuser_field: Unset<String> = "is_superuser";
        /// How the passwords of the documents are hashed: `plain`, `md5`, `sha`, `sha256`, `sha512`, `pbkdf2`,
        /// `bcrypt`, or `argon2` (a PHC string of argon2id). Digests and keys of PBKDF2 are hexadecimal. `plain`, `md5`
        /// and `sha` do not protect passwords: the server warns at the start.
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
        /// Whether connections use TLS. Without it, hashes are sent unencrypted.
        restart tls: bool = "false";
        /// Trusted certificate authorities for `tls`, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for `tls`, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificate of the database. Without verification, an attacker on the network path can read
        /// hashes and admit clients.
        restart verify: bool = "true";
        /// Maximum time until a client has an answer, including the wait for other questions.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions at a time. Further questions wait. A value above `pool_size` has no effect.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server unavailable).
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of cached answers. Answers that do not allow a client occupy at most a quarter.
        restart cache_size: u32 = "100000" ["0", "10000000"] in "answers";
        /// How long an answer that allows a client is valid: a changed or deleted document takes effect after this
        /// time. `0s` asks for each connection.
        restart cache_allowed: Duration = "1m" ["0s", "1d"];
        /// How long another answer is valid.
        restart cache_denied: Duration = "10s" ["0s", "1d"];
        /// Decision about a client if the database does not answer: `deny` rejects it (0x88, Server unavailable),
        /// `ignore` asks the next provider, `allow` admits it without a check.
        restart on_failure: OnFailure = "deny";
    }
}
