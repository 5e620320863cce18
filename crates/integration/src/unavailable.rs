//! A sink that replaces one that cannot be created, for example because a file with a secret is missing. Records stay
//! in the action's buffer, as for an unreachable target, until the action is restarted.

use connectors::{BatchOutcome, BoxFuture, DeliveryFailure, Record, Sink, all};

pub struct UnavailableSink {
    /// Why the sink cannot be created.
    pub reason: String,
}

impl Sink for UnavailableSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        Box::pin(async { all(batch, Err(DeliveryFailure::Unreachable(self.reason.clone()))) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Err(self.reason.clone()) })
    }
}
