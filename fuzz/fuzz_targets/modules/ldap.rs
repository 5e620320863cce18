//! The modules of the LDAP client that decode and write. Its crate needs a runtime and TLS.

#[path = "../../../crates/connectors/src/ldap/ber.rs"]
pub mod ber;
#[path = "../../../crates/connectors/src/ldap/dn.rs"]
pub mod dn;
#[path = "../../../crates/connectors/src/ldap/filter.rs"]
pub mod filter;
#[path = "../../../crates/connectors/src/ldap/message.rs"]
pub mod message;
