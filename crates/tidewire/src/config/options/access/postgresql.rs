//! Options of the authentication provider `postgresql`.

use connectors::Secret;

use super::groups::provider_section;
use crate::config::key::KeySegment::Fixed;
use crate::config::value::Unset;

provider_section! {
    /// Authentication by a table of PostgreSQL. The provider asks the database if `access.providers` contains
    /// `postgresql`.
    pub struct PostgresqlAccess at [Fixed("access"), Fixed("postgresql")] {
        /// Host name or address of the server, or the directory of its Unix socket.
        restart host: String = "127.0.0.1";
        /// Port of the server.
        restart port: u16 = "5432" ["1", "65535"];
        /// Name of the database.
        restart database: String = "";
        /// User name at the database. It needs the right to read the table only.
        restart user: String = "";
        /// Password of the user.
        restart password: Unset<Secret> = "";
        /// Maximum number of connections, and so of questions at a time.
        restart pool_size: u32 = "8" ["1", "256"] in "connections";
        /// SELECT statement that returns the row of a client, with the columns `password_hash`, `salt` (optional) and
        /// `is_superuser` (optional). The first row is used; without a row, the next provider decides. Placeholders are
        /// `${username}`, `${clientid}`, `${password}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`.
        /// Their values become parameters and are never part of the statement.
        restart query: String = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1";
    } + hash + tls + limits
}
