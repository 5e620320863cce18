//! Tests with the real ACME authority Pebble, and of revocation lists and OCSP responses.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod acme;
mod authority_failures;
mod interrupted;
mod lists;
mod pebble;
mod staples;
mod support;
