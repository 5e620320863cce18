//! How far the log has been processed, for those who want to see what was acknowledged before they asked: a reader of attributes over HTTP,
//! and whoever changes attributes. Nobody waits on the thread that processes.

use std::collections::VecDeque;
use std::sync::Mutex;

use journal::Lsn;
use tokio::sync::oneshot;

use crate::hub::lock;

#[derive(Default)]
pub struct Processed {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    upto: Lsn,
    /// Whoever has gone is told all the same, or not at all.
    waiters: VecDeque<(Lsn, oneshot::Sender<()>)>,
}

impl Processed {
    /// All before it has been processed.
    pub fn reached(&self, upto: Lsn) {
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

    /// Done when all before `end` has been processed.
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
    fn who_waits_is_told_when_it_is_reached() {
        let processed = Processed::default();
        processed.reached(Lsn(10));
        let [mut before, mut at, mut behind] = [5, 10, 11].map(|end| processed.wait_for(Lsn(end)));
        assert!(before.try_recv().is_ok() && at.try_recv().is_ok() && behind.try_recv().is_err());
        // Who has gone leaves nothing behind.
        drop(processed.wait_for(Lsn(99)));
        drop(processed.wait_for(Lsn(99)));
        let mut far = processed.wait_for(Lsn(100));
        assert_eq!(lock(&processed.waiting).waiters.len(), 2);
        processed.reached(Lsn(50));
        assert!(behind.try_recv().is_ok() && far.try_recv().is_err());
        processed.reached(Lsn(100));
        assert!(far.try_recv().is_ok() && lock(&processed.waiting).waiters.is_empty());
    }
}
