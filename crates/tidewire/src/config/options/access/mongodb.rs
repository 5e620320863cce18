//! Options of the authentication provider `mongodb`.

use connectors::Secret;

use super::groups::provider_section;
use crate::config::key::KeySegment::Fixed;
use crate::config::value::{Unset, choice};

choice! {
    /// Kind of a MongoDB installation.
    pub enum MongoType { Single = "single", Rs = "rs", Sharded = "sharded" }
}

choice! {
    /// Members of a replica set that are asked.
    pub enum MongoReadFrom { Master = "master", SlaveOk = "slave_ok" }
}

provider_section! {
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
        /// Maximum number of connections, and so of questions at a time.
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
    } + hash + tls + limits
}
