//! Authentication providers that ask other systems.
//!
//! A system that knows clients is a [`LoginSource`]. [`SourceProvider`] asks it with limits and caches its answers.

pub mod http;
mod provider;
mod source;

pub use provider::{OnFailure, SourceLimits, SourceProvider, SourceStats, WatchedProvider};
pub use source::{LoginSource, QuestionKey, SourceError, SourceFuture};
