//! Where messages go that an action has given up: refused by the target for good, tried too often, too old, or dropped by a full
//! buffer.

use crate::record::Record;
use crate::sink::BoxFuture;

pub trait Fallback: Send + Sync {
    /// Ends when each of them is kept elsewhere, or nothing can be done with it. It may wait; when the action is stopped meanwhile it is
    /// dropped, and they come again.
    fn take<'a>(&'a self, given_up: &'a [Record]) -> BoxFuture<'a, FellBack>;
}

/// What became of messages that were given up. One that goes to two counts twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FellBack {
    pub taken: u64,
    /// Of which nothing is left.
    pub lost: u64,
    /// Why the last one of these was lost.
    pub reason: String,
}

impl FellBack {
    pub fn lose(&mut self, messages: u64, reason: impl FnOnce() -> String) {
        if messages > 0 {
            self.lost += messages;
            self.reason = reason();
        }
    }
}
