//! Options of the authentication provider `redis`.

use connectors::Secret;

use super::groups::provider_section;
use crate::config::key::KeySegment::Fixed;
use crate::config::value::{Unset, choice};

choice! {
    /// Kind of a Redis installation.
    pub enum RedisType { Single = "single", Cluster = "cluster", Sentinel = "sentinel" }
}

provider_section! {
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
    } + hash + tls + limits
}
