//! Authentication providers and sources of access rules that ask other systems.
//!
//! A system that knows clients is a [`LoginSource`]. [`SourceProvider`] asks it with limits and caches its answers. A
//! source of access rules is one as well: its question is about an admitted client, or about an action of this client,
//! and it answers with a [`Login`](auth::Login) that contains rules, or with a decision.
//!
//! [`oidc`] is not about MQTT clients: it logs users in to the console.

mod asking_client;
pub mod http;
pub mod jwt;
#[cfg(feature = "kerberos")]
pub mod kerberos;
#[cfg(feature = "ldap")]
pub mod ldap;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod oidc;
#[cfg(feature = "postgresql")]
pub mod postgresql;
mod provider;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis",
    feature = "sqlite"
))]
mod rows;
mod source;
#[cfg(any(
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis",
    feature = "sqlite"
))]
mod source_rules;
#[cfg(any(feature = "mysql", feature = "postgresql", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(
    feature = "ldap",
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis",
    feature = "sqlite"
))]
mod superuser;

pub use asking_client::AskingClient;
pub use provider::{
    AnswerOrigin, Examined, ExaminedFuture, OnFailure, SourceFailure, SourceLimits, SourceProvider, SourceStats,
    WatchedProvider,
};
pub use source::{LoginSource, Overloaded, PasswordCheck, QuestionKey, SourceAnswer, SourceError, SourceFuture};

/// Kind of the sources of access rules, for logs.
pub(crate) const ACCESS_SOURCE: &str = "access source";
