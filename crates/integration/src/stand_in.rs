//! Takes the place of a sink that cannot be made, for example because a file with a secret is gone: what rules have for it is
//! kept in the action's buffer, as if the target were away, until the action is started again.

use connectors::{BoxFuture, Failure, Outcome, Record, Sink, all};

pub struct StandIn {
    /// Why there is no other sink.
    pub because: String,
}

impl Sink for StandIn {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        Box::pin(async { all(batch, Err(Failure::Away(self.because.clone()))) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Err(self.because.clone()) })
    }
}
