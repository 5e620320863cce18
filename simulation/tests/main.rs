//! All integration tests of this crate, in one binary.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../tests/support/scale.rs"]
mod scale;

mod planted;
mod seeds;
