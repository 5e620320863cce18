//! The worker's side of the journal: appends one batch per tick, before messages and output leave the worker, and
//! processes commits.
//!
//! The commit thread wakes a worker only if something in the worker waits for the commit. Records that nothing waits
//! for get no commit of their own. While the journal is too far behind, workers read no socket: clients get
//! back-pressure, nothing is lost, and no buffer grows.

use std::thread;
use std::time::Duration;

use ::journal::{Journal, LogBatch, LogHealth, Lsn, ReadError, RecordLog};
use broker::durable::compaction::MovePart;
use broker::durable::record::RecordPosition;
use broker::durable::recovery::RecoveredState;
use broker::durable::restore::{RestoreCounts, restore};
use broker::{FetchPurpose, Shard};

use crate::mailbox_item::{MailboxItem, wake_for_commit};
use crate::server_common::ServerCommon;
use crate::worker::NetWorker;

/// Maximum size of records appended by all workers and not yet committed. Beyond it no socket is read.
const BACKLOG_BYTES_MAX: usize = 32 * 1024 * 1024;

/// State of a previous process from which the server continues.
pub struct RestartState {
    pub log: RecordLog,
    /// State recovered from the records of the log.
    pub recovered: RecoveredState,
    /// `LogConfig::max_bytes`.
    pub quota_bytes: u64,
    /// `LogConfig::segment_bytes`.
    pub segment_bytes: u64,
}

impl RestartState {
    /// Restores the shards. Records that they write are in the log when this returns, and durable with the
    /// first commit. After a read error the start fails without discarding anything, because the disk may be readable
    /// at the next start.
    pub(crate) fn restore(
        self,
        common: &ServerCommon,
        shards: &mut [Shard],
    ) -> Result<(RecordLog, RestoreCounts), ReadError> {
        let RestartState { mut log, recovered, .. } = self;
        common.clock.continue_journal_time(&recovered);
        let now = common.clock.now();
        for shard in &mut *shards {
            shard.start_journaling(recovered.last_key);
        }
        let reader = log.reader();
        let mut failed = None;
        let mut read = |positions: &[RecordPosition], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
            let positions: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
            reader.read_many(&positions, |index, record| match record {
                Ok(record) => each(index, Some(record)),
                Err(error) => {
                    match error {
                        ReadError::Io { .. } => _ = failed.get_or_insert(error),
                        error => common.observer.journal_error(UNREADABLE, &error),
                    }
                    each(index, None);
                }
            });
        };
        let mut append = |batch: &mut LogBatch| {
            let at = log.append(batch);
            (at.base.0, at.end.0)
        };
        let restored = restore(now, shards, recovered, &mut read, &mut append);
        match failed {
            // No record written during the restore reaches the disk.
            Some(error) => Err(error),
            None => Ok((log, restored)),
        }
    }
}

/// Logged with file and offset.
const UNREADABLE: &str = "cannot read a message from the journal";
const UNREADABLE_NOW: &str = "journal read failed, retrying every second; affected clients wait";

/// Interval between retries of a failed read.
const READ_RETRY: Duration = Duration::from_secs(1);

/// Interval at which a worker checks whether a full journal has space.
const FULL_CHECK_MS: u64 = 100;

/// Interval at which an idle server checks whether the system's clock was set. After a crash within it, the step counts
/// as time for which the server was off. The API reads statistics every second, which checks the clock too. Longer than
/// the patience of the tests, so that it does not hide a missing wake-up.
const CLOCK_CHECK_MS: u64 = 30_000;

impl NetWorker {
    /// Processes the commits of the journal and the results of the tap. Called at the start of a tick.
    pub(crate) fn process_commits(&mut self) {
        self.process_journal_commits();
        self.process_tap_results();
    }

    /// Runs after the journal's commits, because the tap may wait for them.
    fn process_tap_results(&mut self) {
        if self.shard.inspect().taps().is_offloading() {
            self.request_commit_wake_up();
            self.shard.tap(self.now).take_offloaded();
        }
        if self.shard.inspect().taps().is_waiting() {
            self.request_commit_wake_up();
            self.shard.tap(self.now).run_stored_actions();
        }
    }

    fn process_journal_commits(&mut self) {
        let Some(journal) = self.common.node_journal.journal() else {
            return;
        };
        let health = journal.health();
        if health != self.journal_health {
            self.journal_health = health;
            self.shard.journal(self.now).set_health(health);
        }
        let (node_journal, now_ms) = (&self.common.node_journal, self.now.monotonic_ms);
        let is_early = node_journal
            .idle_checkpoint_ms(now_ms)
            .is_some_and(|early_ms| now_ms > early_ms);
        if is_early && node_journal.is_checkpoint_due(Lsn(0), now_ms) {
            self.begin_checkpoint();
        }
        let is_waiting = self.is_waiting_for_journal();
        if is_waiting {
            self.request_commit_wake_up();
        }
        if is_waiting || self.appended > self.committed {
            self.committed = self.common.node_journal.journal().map_or(Lsn(0), Journal::committed);
            self.shard.journal(self.now).committed(self.committed.0);
            self.report_checkpoint();
        }
        if health == LogHealth::Failed {
            self.shard.disconnect_waiting(self.now);
        }
    }

    /// Reports this worker's part of a checkpoint when it is committed.
    fn report_checkpoint(&mut self) {
        if let Some((part, _)) = self.checkpointed.take_if(|(_, end)| *end <= self.committed) {
            let (now_ms, observer) = (self.now.monotonic_ms, self.common.observer.clone());
            self.common.node_journal.finish_checkpoint(part, now_ms, observer);
        }
    }

    /// Returns whether anything waits for appended records. A part of a checkpoint is reported when it is committed.
    fn is_waiting_for_journal(&self) -> bool {
        self.shard.inspect().ledger().first_awaited().is_some()
            || self.checkpointed.is_some()
            || self.shard.inspect().is_checkpoint_active()
    }

    /// Returns whether the journal has committed a record before the worker started to wait for it.
    pub(crate) fn has_new_commit(&self) -> bool {
        let is_committed = |end| {
            self.common
                .node_journal
                .journal()
                .is_some_and(|journal| journal.committed().0 >= end)
        };
        self.shard.inspect().ledger().first_awaited().is_some_and(is_committed)
    }

    /// Returns when to check the journal without an event: publishers may wait until it has space, it may be longer
    /// than necessary, or its time may have to be recorded because the system's clock was set.
    pub(crate) fn next_journal_check_ms(&self) -> Option<u64> {
        let (now_ms, soon_ms) = (self.now.monotonic_ms, self.now.monotonic_ms + FULL_CHECK_MS);
        if self.journal_health != LogHealth::Ok || self.shard.inspect().taps().is_full() {
            return Some(soon_ms);
        }
        let node_journal = &self.common.node_journal;
        let early_ms = node_journal.idle_checkpoint_ms(now_ms);
        let has_clock_check = self.id.0 == 0 && node_journal.journal().is_some();
        let clock_ms = has_clock_check.then_some(now_ms + CLOCK_CHECK_MS);
        let early_ms = early_ms.map(|early_ms| soon_ms.max(early_ms + 1));
        early_ms.into_iter().chain(clock_ms).min()
    }

    /// Requests a wake-up by the commit thread. The worker requests it before it reads the committed position, so that
    /// one of the two threads sees the other.
    fn request_commit_wake_up(&self) {
        self.common.node_journal.wait(usize::from(self.id.0));
    }

    /// Appends the batch of a tick. Called before messages are sent, which refer to the batch, and before output is
    /// written.
    pub(crate) fn append_to_journal(&mut self) {
        if self.shard.inspect().taps().is_used() {
            self.request_commit_wake_up();
            self.shard.tap(self.now).end_tick();
        }
        let Some(journal) = self.common.node_journal.journal() else {
            return;
        };
        let is_waiting = self.is_waiting_for_journal();
        if is_waiting {
            self.request_commit_wake_up();
        }
        let Some(batch) = self.shard.journal(self.now).batch() else {
            if is_waiting && self.deferred_end > self.committed {
                self.deferred_end = Lsn(0);
                journal.request_commit();
            }
            return;
        };
        let at = match is_waiting {
            true => journal.append(batch),
            false => journal.append_deferred(batch),
        };
        self.deferred_end = if is_waiting { Lsn(0) } else { at.end };
        self.appended = at.end;
        if !self.shard.inspect().is_checkpoint_active() {
            self.common.node_journal.mark_used();
        }
        self.shard.journal(self.now).appended(at.base.0, at.end.0);
        if let Some((_, end)) = self.checkpointed.as_mut().filter(|(_, end)| *end == Lsn(u64::MAX)) {
            *end = at.end;
        }
        if self
            .common
            .node_journal
            .is_checkpoint_due(at.end, self.now.monotonic_ms)
        {
            self.begin_checkpoint();
        }
    }

    /// Starts a checkpoint in all shards.
    fn begin_checkpoint(&mut self) {
        self.common.node_journal.begin_checkpoint(self.mailboxes.len());
        self.mailboxes.iter().for_each(wake_for_commit);
    }

    /// Continues a checkpoint.
    pub(crate) fn continue_checkpoint(&mut self) {
        let begun = self.common.node_journal.checkpoints();
        if std::mem::replace(&mut self.checkpoints, begun) != begun {
            let part = self.common.node_journal.part();
            let part = MovePart {
                before: RecordPosition(part.before.0),
                bytes: part.bytes,
            };
            self.shard.journal(self.now).begin_checkpoint(part);
        }
        if let Some(part) = self.shard.journal(self.now).continue_checkpoint() {
            self.checkpointed = Some((part, Lsn(u64::MAX)));
        }
    }

    /// Returns whether clients have to wait until the journal has caught up.
    pub(crate) fn is_journal_behind(&self) -> bool {
        let Some(journal) = self.common.node_journal.journal() else {
            return false;
        };
        // A failed journal never catches up. Messages that need no journal are still processed.
        if journal.health() == LogHealth::Failed || journal.backlog_bytes() <= BACKLOG_BYTES_MAX {
            return false;
        }
        self.request_commit_wake_up();
        journal.backlog_bytes() > BACKLOG_BYTES_MAX
    }

    /// Reads messages on a thread of the journal, and passes the leading ones that could be read to the shard. Records
    /// that are appended but not yet written cannot be read.
    pub(crate) fn fetch(&mut self, purpose: FetchPurpose, positions: Vec<RecordPosition>) {
        let Some(journal) = self.common.node_journal.journal() else {
            return;
        };
        let mailbox = self.mailboxes[usize::from(self.id.0)].clone();
        let observer = self.common.observer.clone();
        let wanted = positions.iter().map(|position| Lsn(position.0)).collect();
        journal.fetch(wanted, move |fetched| {
            let (mut is_broken, mut is_early) = (false, false);
            let is_available = |record: &Result<Vec<u8>, ReadError>| match record {
                Err(ReadError::Busy | ReadError::NotWritten { .. }) => {
                    is_early = true;
                    false
                }
                // A read error does not discard the message, unlike damage. A message that was only to be rewritten
                // stays where it is.
                Err(error @ ReadError::Io { .. }) => {
                    observer.journal_error(UNREADABLE_NOW, error);
                    is_broken = purpose != FetchPurpose::Move;
                    false
                }
                _ => true,
            };
            let read: Vec<_> = fetched.into_iter().take_while(is_available).collect();
            let report = |error: ReadError| observer.journal_error(UNREADABLE, &error);
            let records: Vec<_> = read.into_iter().map(|record| record.map_err(report).ok()).collect();
            let is_retry = purpose.is_retried() && is_early && records.is_empty();
            let item = MailboxItem::Call(Box::new(move |shard, now| match is_retry {
                true => shard.journal(now).retry_fetch(purpose, positions),
                false => shard.journal(now).fetched(purpose, &positions, records),
            }));
            // If the worker has stopped, the records are not needed.
            let send = move || _ = mailbox.send(item);
            match is_broken || is_retry {
                true => send_later(send),
                false => send(),
            }
        });
    }
}

/// Runs `work` after the retry interval on a thread of its own. The number of sessions that wait for a failing disk is
/// bounded.
fn send_later(work: impl FnOnce() + Send + 'static) {
    let wait = || {
        thread::sleep(READ_RETRY);
        work();
    };
    // If no thread can be started, the client has to reconnect.
    let _ = thread::Builder::new().name("journal-retry".into()).spawn(wait);
}
