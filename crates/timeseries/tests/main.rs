//! All integration tests of this crate, in one binary: linking one per file took longer than the tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../../tests/support/scale.rs"]
mod scale;

mod contract;
mod contract_suite;
mod damage;
mod lifecycle;
mod model;
#[cfg(feature = "parquet")]
mod parquet;
mod properties;
mod random;
mod threads;
