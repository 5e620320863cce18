//! Receives the messages that an action gave up: rejected by the target, out of attempts, expired, or dropped by a full
//! buffer.

use crate::record::Record;
use crate::sink::BoxFuture;

pub trait Fallback: Send + Sync {
    /// Resolves when every message is stored by a fallback action or is lost. It may wait. If the action stops during
    /// the call, the pump drops the future and passes the same messages again later.
    fn take<'a>(&'a self, given_up: &'a [Record]) -> BoxFuture<'a, FallbackOutcome>;
}

/// Result of handing messages to fallback actions. A message that goes to two actions counts twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FallbackOutcome {
    pub taken: u64,
    /// Messages that no fallback action could store.
    pub lost: u64,
    /// Why the last message was lost.
    pub reason: String,
}

impl FallbackOutcome {
    pub fn add_lost(&mut self, messages: u64, reason: impl FnOnce() -> String) {
        if messages > 0 {
            self.lost += messages;
            self.reason = reason();
        }
    }
}
