//! All integration tests of this crate, in one binary: linking one per file took longer than the tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../../tests/support/scale.rs"]
mod scale;

mod broadcast;
mod costs;
mod data_streams;
mod enhanced_authentication;
mod lifetimes;
mod logins;
mod model;
mod mountpoint;
mod publish_limits;
mod questions;
mod queue_quotas;
mod restart;
mod rights;
mod session;
mod shares;
mod tap;
mod world;
