//! Why a request has no result.

use std::fmt;

use super::message::MalformedLdap;

/// The text names the server, and contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapError {
    /// No server can be reached, or the connection is lost.
    Lost(String),
    /// The server has answered, and its answer cannot be used. A client can cause it, for example with an entry that it
    /// may change.
    Unusable(String),
}

impl LdapError {
    /// Adds the server to the text.
    pub(super) fn of_server(self, url: &str) -> LdapError {
        match self {
            LdapError::Lost(reason) => LdapError::Lost(format!("{url}: {reason}")),
            LdapError::Unusable(reason) => LdapError::Unusable(format!("{url}: {reason}")),
        }
    }
}

impl From<MalformedLdap> for LdapError {
    fn from(error: MalformedLdap) -> LdapError {
        LdapError::Unusable(error.to_string())
    }
}

impl fmt::Display for LdapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LdapError::Lost(reason) | LdapError::Unusable(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for LdapError {}
