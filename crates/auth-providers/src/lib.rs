//! Authentication providers that ask other systems.
//!
//! A system that knows clients is a [`LoginSource`].

mod source;

pub use source::{LoginSource, QuestionKey, SourceError, SourceFuture};
