//! All integration tests of this crate, in one binary: linking one per file took longer than the tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../../tests/support/scale.rs"]
mod scale;

mod arbitrary;
mod differential;
mod fuzz_seeds;
mod hostile;
mod packets;
mod roundtrip;
mod table;
mod tables_of_the_standard;
mod topic;
