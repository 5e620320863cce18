//! All integration tests of this crate, in one binary: linking one per file took longer than the tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod broken_database;
mod contract;
mod decoders;
mod entities;
mod platform;
mod queues;
mod repository;
mod retention;
mod scratch;
