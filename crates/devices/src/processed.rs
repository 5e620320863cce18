//! How far the log has been processed. Readers and writers of attributes over HTTP wait for earlier acknowledged
//! messages. The processing thread never waits for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

use journal::Lsn;
use tokio::sync::oneshot;

use crate::mutex::lock;

/// Refusals for requests that do not wait yet. Few take longer than the commit of their record.
const REFUSALS_MAX: usize = 100;

#[derive(Default)]
pub struct ProcessedPosition {
    waiting: Mutex<ProcessedWaiters>,
}

#[derive(Default)]
struct ProcessedWaiters {
    upto: Lsn,
    /// Includes closed channels until the next cleanup.
    waiters: VecDeque<ProcessedWaiter>,
    /// Why the latest refused changes were not applied as a whole, by position.
    refusals: VecDeque<(Lsn, String)>,
}

/// Waits for the records of a part of the log.
struct ProcessedWaiter {
    records: Range<Lsn>,
    sender: oneshot::Sender<Option<String>>,
}

impl ProcessedWaiters {
    fn refusal(&self, records: &Range<Lsn>) -> Option<String> {
        let found = self.refusals.iter().find(|(at, _)| records.contains(at));
        found.map(|(_, reason)| reason.clone())
    }
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
        let (due, rest): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(|waiter| waiter.records.end <= upto);
        waiting.waiters = rest;
        for waiter in due {
            let _ = waiter.sender.send(waiting.refusal(&waiter.records));
        }
    }

    /// Records that the change at this position was not applied as a whole. Called before it counts as processed.
    pub fn set_refused(&self, at: Lsn, reason: String) {
        let mut waiting = lock(&self.waiting);
        if waiting.refusals.len() >= REFUSALS_MAX {
            waiting.refusals.pop_front();
        }
        waiting.refusals.push_back((at, reason));
    }

    pub fn has_reached(&self, end: Lsn) -> bool {
        end <= lock(&self.waiting).upto
    }

    /// Completes when everything before `end` has been processed.
    pub fn wait_for(&self, end: Lsn) -> oneshot::Receiver<Option<String>> {
        self.wait_for_records(end..end)
    }

    /// As [`ProcessedPosition::wait_for`], for the end of the records. The result is why a change among them was not
    /// applied as a whole.
    pub fn wait_for_records(&self, records: Range<Lsn>) -> oneshot::Receiver<Option<String>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        if records.end <= waiting.upto {
            let _ = sender.send(waiting.refusal(&records));
        } else {
            waiting.waiters.retain(|waiter| !waiter.sender.is_closed());
            waiting.waiters.push_back(ProcessedWaiter { records, sender });
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

    #[test]
    fn waiter_receives_the_refusal_of_its_change() {
        let processed = ProcessedPosition::default();
        let changes = [Lsn(0)..Lsn(10), Lsn(10)..Lsn(20), Lsn(20)..Lsn(30)];
        let waiting = changes.clone().map(|change| processed.wait_for_records(change));
        processed.set_refused(Lsn(14), "full".to_owned());
        processed.set_processed(Lsn(30));
        let results = waiting.map(|mut waiting| waiting.try_recv().unwrap());
        assert_eq!(results, [None, Some("full".to_owned()), None]);
        // A request may begin to wait later.
        let late = changes.map(|change| processed.wait_for_records(change).try_recv().unwrap());
        assert_eq!(late, results);
        (0..REFUSALS_MAX as u64).for_each(|at| processed.set_refused(Lsn(100 + at), String::new()));
        assert_eq!(lock(&processed.waiting).refusals.len(), REFUSALS_MAX);
    }
}
