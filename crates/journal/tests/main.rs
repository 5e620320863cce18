//! All integration tests of this crate, in one binary: linking one per file took longer than the tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../../tests/support/scale.rs"]
mod scale;

mod crashes;
mod damage;
mod faults;
mod follow;
mod inspect;
mod interval;
mod journal;
mod missing;
mod scratch;
mod skip;
mod threads;
