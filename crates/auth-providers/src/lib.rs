//! Authentication providers that ask other systems.
//!
//! A system that knows clients is a [`LoginSource`]. [`SourceProvider`] asks it with limits and caches its answers.

pub mod http;
pub mod jwt;
#[cfg(feature = "ldap")]
pub mod ldap;
#[cfg(feature = "postgresql")]
pub mod postgresql;
mod provider;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "postgresql", feature = "redis"))]
mod rows;
mod source;
#[cfg(any(feature = "ldap", feature = "postgresql", feature = "redis"))]
mod superuser;

pub use provider::{OnFailure, SourceLimits, SourceProvider, SourceStats, WatchedProvider};
pub use source::{LoginSource, QuestionKey, SourceError, SourceFuture};
