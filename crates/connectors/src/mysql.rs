//! MySQL and MariaDB: reads a row, for the authentication of clients.
//!
//! The authentication methods are `mysql_native_password` and `caching_sha2_password`. The password is sent in clear
//! text (`mysql_clear_password`, for accounts of PAM and LDAP) only over TLS with verification. The server cannot read
//! files of this machine with LOAD DATA LOCAL INFILE, because the client has no handler for such requests.

mod config;
mod error;
mod lookup;

pub use config::MysqlConnection;
pub use lookup::MysqlLookup;
