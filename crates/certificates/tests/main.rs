//! Tests with the real ACME authority Pebble, and of revocation lists and OCSP responses.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod acme;
mod authority_failures;
mod interrupted;
mod lists;
mod pebble;
#[path = "../../../tests/support/ports.rs"]
mod ports;
mod staples;
mod support;
