//! All integration tests of this crate in one binary. Linking one binary per file took longer than the tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

extern crate tidewire_api as api;

mod http;
mod thingsboard;
