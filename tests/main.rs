//! All end-to-end tests of the program, in one binary. Linking one binary per suite took longer than running most
//! suites.
//!
//! `cargo test -p tidewire --test it crash::` runs one suite.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod abuse;
mod architecture;
mod book;
mod command_line;
mod conformance;
mod crash;
mod database_logins;
mod devices;
mod formats;
mod jwt;
#[cfg(feature = "kerberos")]
mod kerberos_logins;
mod ldap_logins;
mod operations;
mod providers;
mod rules;
mod single_sign_on;
mod support;
