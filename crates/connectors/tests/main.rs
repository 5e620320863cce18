//! All integration tests of this crate, in one binary: linking one per file took longer than the tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod file;
mod http;
mod kafka;
mod mqtt;
mod mysql;
mod postgres;
mod redis;
mod support;
