//! Options of the authentication provider `mysql`.

use connectors::Secret;

use super::groups::provider_section;
use crate::config::key::KeySegment::Fixed;
use crate::config::value::Unset;

provider_section! {
    /// Authentication by a table of MySQL or MariaDB. The provider asks the database if `access.providers` contains
    /// `mysql`.
    pub struct MysqlAccess at [Fixed("access"), Fixed("mysql")] {
        /// Host name or address of the server, or the path of its Unix socket.
        restart host: String = "127.0.0.1";
        /// Port of the server.
        restart port: u16 = "3306" ["1", "65535"];
        /// Name of the database.
        restart database: String = "";
        /// User name at the database. It needs the right to read the table only.
        restart user: String = "";
        /// Password of the user. The server uses it with `mysql_native_password` and `caching_sha2_password`, and with
        /// `mysql_clear_password` only over verified TLS.
        restart password: Unset<Secret> = "";
        /// Maximum number of connections, and so of questions at a time.
        restart pool_size: u32 = "8" ["1", "256"] in "connections";
        /// SELECT statement that returns the row of a client, with the columns `password_hash`, `salt` (optional) and
        /// `is_superuser` (optional). The first row is used; without a row, the next provider decides. Placeholders are
        /// `${username}`, `${clientid}`, `${password}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`.
        /// Their values become parameters and are never part of the statement. `=` ignores case in the usual collations
        /// of MySQL; `BINARY` compares exactly, so that `METER` is not admitted with the password of `meter`.
        restart query: String = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} AND BINARY username = ${username} LIMIT 1";
    } + hash + tls + limits
}
