//! A system that knows clients, and the key under which its answers are stored.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;

use auth::{Credentials, ProviderOutcome};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A system that knows clients.
pub trait LoginSource: Send + Sync + 'static {
    /// Name in options, metrics and logs, such as `http`.
    fn name(&self) -> &'static str;

    /// Kind of the source, for logs.
    fn role(&self) -> &'static str {
        "authentication provider"
    }

    /// Returns the key of the question for these credentials: equal keys have equal answers. `None`: the credentials
    /// are not for this source, so the next provider decides.
    fn question(&self, credentials: &Credentials) -> Option<QuestionKey>;

    /// Asks. The time limit is that of the caller, and includes no password check. An error names the system and the
    /// cause, and contains no credentials.
    fn ask<'a>(&'a self, credentials: &'a Credentials) -> SourceFuture<'a>;
}

/// Answer of a source, later.
pub type SourceFuture<'a> = Pin<Box<dyn Future<Output = Result<SourceAnswer<'a>, SourceError>> + Send + 'a>>;

/// Answer of a source.
pub enum SourceAnswer<'a> {
    Decided(ProviderOutcome),
    /// The source has returned what the password is checked with.
    PasswordCheck(PasswordCheck<'a>),
}

/// A password check by this server. Its time is not part of the question: many clients with slow hashes could otherwise
/// make a source look as if it failed.
pub type PasswordCheck<'a> = Pin<Box<dyn Future<Output = Result<ProviderOutcome, Overloaded>> + Send + 'a>>;

/// This server has too many passwords to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overloaded;

impl From<ProviderOutcome> for SourceAnswer<'_> {
    fn from(outcome: ProviderOutcome) -> Self {
        SourceAnswer::Decided(outcome)
    }
}

/// Why a source has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// The other system failed. The text is shown to operators.
    Failed(String),
    /// The other system has answered, and its answer cannot be used. The client is denied whatever `on_failure` is,
    /// because the answer may depend on what the client sent.
    Invalid(String),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Failed(reason) | SourceError::Invalid(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for SourceError {}

/// Identifies a question. Contains only a keyed hash, because questions contain passwords.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuestionKey([u8; 32]);

impl QuestionKey {
    /// Returns the key of a question with these parts. The key of the hash is random for each process.
    pub fn of(parts: &[&[u8]]) -> QuestionKey {
        static KEY: OnceLock<[u8; 32]> = OnceLock::new();
        let key = KEY.get_or_init(|| {
            let mut key = [0; 32];
            getrandom::fill(&mut key).expect("the operating system provides random bytes");
            key
        });
        let mut hash = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        for part in parts {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        QuestionKey(hash.finalize().into_bytes().into())
    }
}

impl fmt::Debug for QuestionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuestionKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_of_parts_are_part_of_the_key() {
        assert!(QuestionKey::of(&[b"ab", b"c"]) == QuestionKey::of(&[b"ab", b"c"]));
        assert!(QuestionKey::of(&[b"ab", b"c"]) != QuestionKey::of(&[b"a", b"bc"]));
        assert!(QuestionKey::of(&[b"abc"]) != QuestionKey::of(&[b"abc", b""]));
    }
}
