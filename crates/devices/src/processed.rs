//! How far the log has been processed. Readers and writers of attributes over HTTP wait for earlier acknowledged
//! messages. The processing thread never waits for them.

use std::collections::VecDeque;
use std::sync::Mutex;

use journal::Lsn;
use tokio::sync::oneshot;

use crate::mutex::lock;

#[derive(Default)]
pub struct ProcessedPosition {
    waiting: Mutex<ProcessedWaiters>,
}

#[derive(Default)]
struct ProcessedWaiters {
    upto: Lsn,
    /// Includes closed channels until the next cleanup.
    waiters: VecDeque<(Lsn, oneshot::Sender<()>)>,
}

impl ProcessedPosition {
    /// Records that everything before `upto` has been processed.
    pub fn set_processed(&self, upto: Lsn) {
        let mut waiting = lock(&self.waiting);
        waiting.upto = upto;
        if waiting.waiters.is_empty() {
            return;
        }
        let all = std::mem::take(&mut waiting.waiters);
        let (due, rest): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(|(end, _)| *end <= upto);
        waiting.waiters = rest;
        drop(waiting);
        for (_, sender) in due {
            let _ = sender.send(());
        }
    }

    pub fn has_reached(&self, end: Lsn) -> bool {
        end <= lock(&self.waiting).upto
    }

    /// Completes when everything before `end` has been processed.
    pub fn wait_for(&self, end: Lsn) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        if end <= waiting.upto {
            let _ = sender.send(());
        } else {
            waiting.waiters.retain(|(_, sender)| !sender.is_closed());
            waiting.waiters.push_back((end, sender));
        }
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_complete_when_their_position_is_reached() {
        let processed = ProcessedPosition::default();
        processed.set_processed(Lsn(10));
        let [mut before, mut at, mut behind] = [5, 10, 11].map(|end| processed.wait_for(Lsn(end)));
        assert!(before.try_recv().is_ok() && at.try_recv().is_ok() && behind.try_recv().is_err());
        // Closed waiters are removed.
        drop(processed.wait_for(Lsn(99)));
        drop(processed.wait_for(Lsn(99)));
        let mut far = processed.wait_for(Lsn(100));
        assert_eq!(lock(&processed.waiting).waiters.len(), 2);
        processed.set_processed(Lsn(50));
        assert!(behind.try_recv().is_ok() && far.try_recv().is_err());
        processed.set_processed(Lsn(100));
        assert!(far.try_recv().is_ok() && lock(&processed.waiting).waiters.is_empty());
    }
}
