//! An LDAP client for the authentication of clients: bind and search (RFC 4511) over TCP, TLS or StartTLS.
//!
//! The protocol is written here, because the crate `ldap3` panics on malformed answers, and a panic ends the process
//! (docs/adr/0003-panic-policy.md). docs/dependencies.md has the alternatives. `ber.rs` reads and writes the encoding,
//! `message.rs` the few messages that a login needs, `filter.rs` and `dn.rs` the text forms. `connection.rs` is one
//! connection, `client.rs` the pool.
//!
//! Limits: referrals are not followed, SASL is not supported, a message has at most 1 MiB, and the answer to a search
//! 4 MiB.

mod ber;
mod client;
mod connection;
mod dn;
mod error;
mod filter;
mod message;

pub use client::{BoundSession, LdapClient, LdapConnectorConfig};
pub use dn::{LdapDn, folded};
pub use error::LdapError;
pub use filter::LdapFilter;
pub use message::{
    LdapEntry, LdapMessage, LdapResponse, LdapResult, LdapSearch, LdapSearchResult, MalformedLdap, SearchScope, codes,
    decode, message_length,
};

#[cfg(test)]
mod tests;
