//! Tests with the real ACME authority Pebble, and of downloads of revocation lists.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod acme;
mod authority_failures;
mod interrupted;
mod lists;
mod pebble;
mod support;
