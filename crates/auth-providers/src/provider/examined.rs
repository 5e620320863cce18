//! The outcome of a source with the way in which it came about, for operators.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use auth::ProviderOutcome;

/// The outcome of a source for one client.
#[derive(Clone, Debug)]
pub struct Examined {
    pub outcome: ProviderOutcome,
    pub origin: AnswerOrigin,
    /// Time until the outcome, including the wait for other questions.
    pub time: Duration,
    /// Why the source failed. The outcome is then that of `on_failure`, or a denial. Contains no credentials.
    pub error: Option<String>,
}

/// Where an outcome comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerOrigin {
    /// The credentials are not for this source, so it was not asked.
    NotForSource,
    /// A cached answer.
    Cached,
    Asked,
    /// The answer to an equal question that another client has asked.
    Shared,
    /// The source was not asked, or too late for an answer, because too many questions wait.
    Overloaded,
}

/// An [`Examined`] outcome, later.
pub type ExaminedFuture = Pin<Box<dyn Future<Output = Examined> + Send>>;

impl Examined {
    pub(super) fn new(outcome: ProviderOutcome, origin: AnswerOrigin, started: Instant) -> Examined {
        Examined {
            outcome,
            origin,
            time: started.elapsed(),
            error: None,
        }
    }
}
