//! Writes a checkpoint in parts of one or two records, with other actions of the node between them.

use super::node::{ModelNode, TOPICS, subscription, terms};
use super::*;

pub struct ModelCheckpoint {
    pub began: u64,
    pub plan: Vec<ModelCheckpointStep>,
}

#[derive(Clone)]
pub enum ModelCheckpointStep {
    /// Continues with the first session after this key.
    Sessions(u64),
    EntriesAfter {
        session: u64,
        seq: u64,
        below: u64,
    },
    Groups(u64),
    GroupEntriesAfter {
        group: u64,
        message: u64,
    },
    Retained(String),
    Delayed(u64),
}

impl ModelNode {
    pub fn write_session(&mut self, key: u64) {
        let session = self.state.sessions[&key].clone();
        let record = SessionRecord {
            session: SessionKey(key),
            left_unix_ms: session.left,
            terms: terms(session.expiry_s, session.has_will),
            started: session.started,
            subscriptions: session
                .subscriptions
                .iter()
                .map(|(filter, id)| subscription(filter, *id))
                .collect(),
            received: session.received.iter().copied().collect(),
            ..session_record(session.next_seq)
        };
        self.write(&JournalRecord::Session(record));
    }

    pub fn write_entries<'a>(&mut self, key: u64, entries: impl Iterator<Item = (u64, &'a ExpectedEntry)>) {
        let mut bytes = Vec::new();
        for (seq, item) in entries {
            let target = RecordTarget {
                group: item.group.map(GroupKey),
                identifiers: item.identifiers.clone(),
                ..target(seq)
            };
            let mut entry = entry_of(sized(item.message), target);
            entry.is_released = item.is_released;
            if item.is_released {
                entry.size = MessageSize::UNKNOWN;
            }
            entry.put(&mut bytes);
        }
        self.write(&JournalRecord::Entries {
            session: SessionKey(key),
            entries: Entries::from_written(&bytes),
        });
    }

    pub fn write_group(&mut self, key: u64) {
        self.write(&JournalRecord::Group {
            group: GroupKey(key),
            share_name: "n",
            filter: "f",
        });
    }

    pub fn begin_checkpoint(&mut self) {
        let mut plan: Vec<ModelCheckpointStep> = TOPICS
            .map(|topic| ModelCheckpointStep::Retained(topic.to_owned()))
            .into();
        plan.push(ModelCheckpointStep::Delayed(0));
        let (sessions, groups) = (ModelCheckpointStep::Sessions(0), ModelCheckpointStep::Groups(0));
        plan.extend(if self.flip() {
            [sessions, groups]
        } else {
            [groups, sessions]
        });
        if self.flip() {
            plan.reverse();
        }
        let began = self.next_position();
        self.checkpoint = Some(ModelCheckpoint { began, plan });
        let record = JournalRecord::Checkpoint {
            unix_ms: self.now_ms,
            shards: self.state.shards,
            last_key: self.state.last_key,
        };
        self.write(&record);
    }

    /// Writes the next part of a checkpoint, or starts one.
    pub fn step_checkpoint(&mut self) {
        let Some(checkpoint) = &mut self.checkpoint else {
            return self.begin_checkpoint();
        };
        let began = checkpoint.began;
        let more = match checkpoint.plan.pop() {
            None => Vec::new(),
            Some(ModelCheckpointStep::Sessions(after)) => self.write_session_step(after),
            Some(ModelCheckpointStep::EntriesAfter { session, seq, below }) => {
                self.write_entries_step(session, seq, below)
            }
            Some(ModelCheckpointStep::Groups(after)) => self.write_group_step(began, after),
            Some(ModelCheckpointStep::GroupEntriesAfter { group, message }) => {
                self.write_group_entries_step(group, message)
            }
            Some(ModelCheckpointStep::Retained(topic)) => self.write_retained_step(&topic),
            Some(ModelCheckpointStep::Delayed(after)) => self.write_delayed_step(after),
        };
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.plan.extend(more);
        }
    }

    pub fn write_session_step(&mut self, after: u64) -> Vec<ModelCheckpointStep> {
        let Some((&key, session)) = self.state.sessions.range(after + 1..).next() else {
            return Vec::new();
        };
        let session = session.clone();
        self.write_session(key);
        self.write_entries(key, session.unnumbered.iter().map(|(_, item)| (0, item)));
        let entries = ModelCheckpointStep::EntriesAfter {
            session: key,
            seq: 0,
            below: session.next_seq,
        };
        vec![ModelCheckpointStep::Sessions(key), entries]
    }

    pub fn write_entries_step(&mut self, key: u64, after: u64, below: u64) -> Vec<ModelCheckpointStep> {
        let Some(session) = self.state.sessions.get(&key).cloned() else {
            return Vec::new();
        };
        let next = session.entries.range(after + 1..).take_while(|(seq, _)| **seq < below);
        let next: Vec<(u64, &ExpectedEntry)> = next.take(2).map(|(seq, item)| (*seq, item)).collect();
        let Some((last, _)) = next.last() else {
            return Vec::new();
        };
        let more = ModelCheckpointStep::EntriesAfter {
            session: key,
            seq: *last,
            below,
        };
        self.write_entries(key, next.into_iter());
        vec![more]
    }

    pub fn write_group_step(&mut self, began: u64, after: u64) -> Vec<ModelCheckpointStep> {
        self.receive_changes(began);
        let Some((&key, _)) = self.state.groups.range(after + 1..).next() else {
            return Vec::new();
        };
        self.write_group(key);
        let entries = ModelCheckpointStep::GroupEntriesAfter { group: key, message: 0 };
        vec![ModelCheckpointStep::Groups(key), entries]
    }

    pub fn write_group_entries_step(&mut self, key: u64, after: u64) -> Vec<ModelCheckpointStep> {
        let Some(believed) = self.believed.get(&key) else {
            return Vec::new();
        };
        let next: Vec<u64> = believed.range(after + 1..).take(2).copied().collect();
        let Some(&message) = next.last() else {
            return Vec::new();
        };
        let mut bytes = Vec::new();
        next.iter().for_each(|message| sized(*message).put(&mut bytes));
        self.write(&JournalRecord::GroupEntries {
            group: GroupKey(key),
            messages: SizedMessages::from_written(&bytes),
        });
        vec![ModelCheckpointStep::GroupEntriesAfter { group: key, message }]
    }

    pub fn write_retained_step(&mut self, topic: &str) -> Vec<ModelCheckpointStep> {
        if let Some(message) = self.state.retained.get(topic) {
            self.log.push(retained(*message, topic));
        }
        Vec::new()
    }

    pub fn write_delayed_step(&mut self, after: u64) -> Vec<ModelCheckpointStep> {
        let Some((&message, &due_unix_ms)) = self.state.delayed.range(after + 1..).next() else {
            return Vec::new();
        };
        self.write(&JournalRecord::Delayed {
            message: RecordPosition(message),
            due_unix_ms,
        });
        vec![ModelCheckpointStep::Delayed(message)]
    }

    /// A checkpoint is valid when it is complete and all earlier messages have been routed.
    pub fn finish_checkpoint(&mut self) {
        let unrouted = &self.state.unrouted;
        let is_finished = |c: &mut ModelCheckpoint| c.plan.is_empty() && unrouted.range(..c.began).next().is_none();
        if let Some(checkpoint) = self.checkpoint.take_if(is_finished) {
            self.finished.push(checkpoint.began as usize - 100);
        }
    }
}
