//! Counts the records of a journal, and the state that a server would recover from them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use broker::durable::record::{JournalRecord, RecordPosition};
use broker::durable::recovery::{RecoveredState, Recovery};
use journal::inspect::{InspectError, InspectionReport, inspect_records};
use serde_json::{Value, json};

use crate::config::files::chain;

#[derive(Debug, Default)]
pub struct JournalSummary {
    /// Records by kind, those before the checkpoint included.
    pub kinds: BTreeMap<&'static str, u64>,
    pub sessions: usize,
    pub subscriptions: usize,
    pub queued_messages: usize,
    pub shared_subscriptions: usize,
    pub shared_messages: usize,
    pub retained_messages: usize,
    pub delayed_messages: usize,
    /// Acknowledged, and not yet recorded by all cores that have subscribers of it: a start does that.
    pub unrouted_messages: usize,
    /// Why the records do not come to a state; the numbers above are then 0.
    pub problem: Option<String>,
}

impl JournalSummary {
    /// Reads the journal of a data directory.
    pub fn read(data_dir: &Path) -> Result<(InspectionReport, JournalSummary), InspectError> {
        let mut summary = JournalSummary::default();
        // The start of the replay is known only at the end. Records before it are only counted.
        let from = replay_from(data_dir)?;
        let mut recovery = Recovery::new();
        let report = inspect_records(data_dir, &mut |position, payload| {
            let position = RecordPosition(position.0);
            let kind = JournalRecord::read_at(position, payload).map_or("unknown", |record| kind_of(&record));
            *summary.kinds.entry(kind).or_default() += 1;
            if position.0 >= from
                && summary.problem.is_none()
                && let Err(error) = recovery.record(position, payload)
            {
                summary.problem = Some(chain(&error));
            }
        })?;
        if summary.problem.is_none() {
            summary.count(&recovery.finish());
        }
        Ok((report, summary))
    }

    fn count(&mut self, recovered: &RecoveredState) {
        self.sessions = recovered.sessions.len();
        self.subscriptions = recovered
            .sessions
            .iter()
            .map(|session| session.subscriptions.len())
            .sum();
        let pages = recovered.sessions.iter().flat_map(|session| session.pages.iter());
        let paged: usize = pages.map(|page| page.count as usize).sum();
        let listed: usize = recovered.sessions.iter().map(|session| session.entries.len()).sum();
        self.queued_messages = listed + paged;
        self.shared_subscriptions = recovered.groups.len();
        self.shared_messages = recovered.groups.iter().map(|group| group.messages.len()).sum();
        self.retained_messages = recovered.retained.len();
        self.delayed_messages = recovered.delayed.len();
        self.unrouted_messages = recovered.unrouted.len();
    }

    pub fn json(&self) -> Value {
        json!({
            "records_by_kind": self.kinds,
            "sessions": self.sessions,
            "subscriptions": self.subscriptions,
            "queued_messages": self.queued_messages,
            "shared_subscriptions": self.shared_subscriptions,
            "shared_messages": self.shared_messages,
            "retained_messages": self.retained_messages,
            "delayed_messages": self.delayed_messages,
            "unrouted_messages": self.unrouted_messages,
            "problem": self.problem,
        })
    }
}

/// One line.
impl fmt::Display for JournalSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(problem) = &self.problem {
            return write!(f, "unknown: {problem}");
        }
        write!(
            f,
            "{} with {} and {} queued, {}",
            count(self.sessions, "session"),
            count(self.subscriptions, "subscription"),
            count(self.queued_messages, "message"),
            count(self.retained_messages, "retained message"),
        )?;
        if self.shared_subscriptions > 0 {
            let held = count(self.shared_messages, "message");
            write!(
                f,
                ", {} holding {held}",
                count(self.shared_subscriptions, "shared subscription")
            )?;
        }
        if self.delayed_messages > 0 {
            write!(f, ", {}", count(self.delayed_messages, "delayed message"))?;
        }
        if self.unrouted_messages > 0 {
            write!(f, ", {} to be routed", count(self.unrouted_messages, "message"))?;
        }
        Ok(())
    }
}

/// Where replay begins.
fn replay_from(data_dir: &Path) -> Result<u64, InspectError> {
    journal::inspect::replay_from(data_dir).map(|lsn| lsn.0)
}

/// A number and its noun.
pub fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

pub fn kind_of(record: &JournalRecord<'_>) -> &'static str {
    match record {
        JournalRecord::Boot { .. } => "boot",
        JournalRecord::Checkpoint { .. } => "checkpoint",
        JournalRecord::Time { .. } => "time",
        JournalRecord::Message(_) => "message",
        JournalRecord::Queued { .. } => "queued",
        JournalRecord::Routed { .. } => "routed",
        JournalRecord::Settled(_) => "settled",
        JournalRecord::PacketIdFreed { .. } => "freed",
        JournalRecord::Session(_) => "session",
        JournalRecord::Entries { .. } => "entries",
        JournalRecord::Page { .. } | JournalRecord::PageLoaded { .. } | JournalRecord::Pages { .. } => "pages",
        JournalRecord::Connected { .. } => "connected",
        JournalRecord::Disconnected { .. } => "disconnected",
        JournalRecord::WillPublished { .. } => "will_done",
        JournalRecord::Ended { .. } => "ended",
        JournalRecord::Subscribed { .. } => "subscribed",
        JournalRecord::Unsubscribed { .. } => "unsubscribed",
        JournalRecord::Replayed { .. } => "replayed",
        JournalRecord::Group { .. } => "group",
        JournalRecord::GroupEntries { .. } => "group_entries",
        JournalRecord::GroupEnded { .. } => "group_ended",
        JournalRecord::Returned { .. } => "returned",
        JournalRecord::GroupDropped { .. } => "group_dropped",
        JournalRecord::HeldDropped { .. } => "unheld",
        JournalRecord::Retained { .. } => "retained",
        JournalRecord::RetainedCleared { .. } => "retained_gone",
        JournalRecord::Delayed { .. } => "delayed",
        JournalRecord::DelayedDone { .. } => "delayed_done",
        JournalRecord::Damaged => "lost",
    }
}
