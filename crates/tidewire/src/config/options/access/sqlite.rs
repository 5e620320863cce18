//! Options of the authentication provider `sqlite`.

use std::path::PathBuf;

use super::groups::provider_section;
use crate::config::key::KeySegment::Fixed;
use crate::config::value::Unset;

provider_section! {
    /// Authentication by a table of an SQLite file. The provider reads the file if `access.providers` contains
    /// `sqlite`.
    pub struct SqliteAccess at [Fixed("access"), Fixed("sqlite")] {
        /// File with the database. Another program may write it while the server runs, or replace it by renaming
        /// another file. The server opens it for reading only, and does not start if it is missing or no database.
        restart file: Unset<PathBuf> = "";
        /// Maximum number of queries at a time. Each occupies a thread. A query waits for a program that has locked the
        /// database, for at most half of `timeout`.
        restart pool_size: u32 = "4" ["1", "64"] in "queries";
        /// SELECT statement that returns the row of a client, with the columns `password_hash`, `salt` (optional) and
        /// `is_superuser` (optional). The first row is used; without a row, the next provider decides. Placeholders are
        /// `${username}`, `${clientid}`, `${password}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`.
        /// Their values become parameters and are never part of the statement. It may only read tables of this file.
        restart query: String = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1";
    } + hash + limits
}
