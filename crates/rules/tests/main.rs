//! All integration tests of this crate in one binary: linking one binary per file took longer than the tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../../tests/support/scale.rs"]
mod scale;

mod cost;
mod emqx_functions;
mod emqx_statements;
mod errors;
mod evaluation;
mod functions;
mod limits;
#[cfg(not(feature = "jq"))]
mod no_jq;
mod properties;
mod support;
