//! A checkpoint while the node lives on: one record or two of it, and then something happens.

use super::node::{Node, TOPICS, subscription, terms};
use super::*;

pub struct Checkpoint {
    pub began: u64,
    pub plan: Vec<Step>,
}

#[derive(Clone)]
pub enum Step {
    /// Of the first session after this key.
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

impl Node {
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
        self.write(&Record::Session(record));
    }

    pub fn write_entries<'a>(&mut self, key: u64, entries: impl Iterator<Item = (u64, &'a Item)>) {
        let mut bytes = Vec::new();
        for (seq, item) in entries {
            let target = Target {
                group: item.group.map(GroupKey),
                identifiers: item.identifiers.clone(),
                ..target(seq)
            };
            let mut entry = entry_of(Position(item.message), target);
            entry.is_released = item.is_released;
            entry.put(&mut bytes);
        }
        self.write(&Record::Entries {
            session: SessionKey(key),
            entries: Entries::from_written(&bytes),
        });
    }

    pub fn write_group(&mut self, key: u64) {
        self.write(&Record::Group {
            group: GroupKey(key),
            share_name: "n",
            filter: "f",
        });
    }

    pub fn begin_checkpoint(&mut self) {
        let mut plan: Vec<Step> = TOPICS.map(|topic| Step::Retained(topic.to_owned())).into();
        plan.push(Step::Delayed(0));
        let (sessions, groups) = (Step::Sessions(0), Step::Groups(0));
        plan.extend(if self.is_so() {
            [sessions, groups]
        } else {
            [groups, sessions]
        });
        if self.is_so() {
            plan.reverse();
        }
        let began = self.next_position();
        self.checkpoint = Some(Checkpoint { began, plan });
        let record = Record::Checkpoint {
            unix_ms: self.now_ms,
            shards: self.state.shards,
            last_key: self.state.last_key,
        };
        self.write(&record);
    }

    /// Writes the next part of a checkpoint, or begins one.
    pub fn step_checkpoint(&mut self) {
        let Some(checkpoint) = &mut self.checkpoint else {
            return self.begin_checkpoint();
        };
        let began = checkpoint.began;
        let more = match checkpoint.plan.pop() {
            None => Vec::new(),
            Some(Step::Sessions(after)) => self.tell_session(after),
            Some(Step::EntriesAfter { session, seq, below }) => self.tell_entries(session, seq, below),
            Some(Step::Groups(after)) => self.tell_group(began, after),
            Some(Step::GroupEntriesAfter { group, message }) => self.tell_group_entries(group, message),
            Some(Step::Retained(topic)) => self.tell_retained(&topic),
            Some(Step::Delayed(after)) => self.tell_delayed(after),
        };
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.plan.extend(more);
        }
    }

    pub fn tell_session(&mut self, after: u64) -> Vec<Step> {
        let Some((&key, session)) = self.state.sessions.range(after + 1..).next() else {
            return Vec::new();
        };
        let session = session.clone();
        self.write_session(key);
        self.write_entries(key, session.unnumbered.iter().map(|(_, item)| (0, item)));
        let entries = Step::EntriesAfter {
            session: key,
            seq: 0,
            below: session.next_seq,
        };
        vec![Step::Sessions(key), entries]
    }

    pub fn tell_entries(&mut self, key: u64, after: u64, below: u64) -> Vec<Step> {
        let Some(session) = self.state.sessions.get(&key).cloned() else {
            return Vec::new();
        };
        let next = session.entries.range(after + 1..).take_while(|(seq, _)| **seq < below);
        let next: Vec<(u64, &Item)> = next.take(2).map(|(seq, item)| (*seq, item)).collect();
        let Some((last, _)) = next.last() else {
            return Vec::new();
        };
        let more = Step::EntriesAfter {
            session: key,
            seq: *last,
            below,
        };
        self.write_entries(key, next.into_iter());
        vec![more]
    }

    pub fn tell_group(&mut self, began: u64, after: u64) -> Vec<Step> {
        self.hear(began);
        let Some((&key, _)) = self.state.groups.range(after + 1..).next() else {
            return Vec::new();
        };
        self.write_group(key);
        let entries = Step::GroupEntriesAfter { group: key, message: 0 };
        vec![Step::Groups(key), entries]
    }

    pub fn tell_group_entries(&mut self, key: u64, after: u64) -> Vec<Step> {
        let Some(believed) = self.believed.get(&key) else {
            return Vec::new();
        };
        let next: Vec<u64> = believed.range(after + 1..).take(2).copied().collect();
        let Some(&message) = next.last() else {
            return Vec::new();
        };
        let mut bytes = Vec::new();
        next.iter().for_each(|message| Position(*message).put(&mut bytes));
        self.write(&Record::GroupEntries {
            group: GroupKey(key),
            messages: Positions::from_written(&bytes),
        });
        vec![Step::GroupEntriesAfter { group: key, message }]
    }

    pub fn tell_retained(&mut self, topic: &str) -> Vec<Step> {
        if let Some(message) = self.state.retained.get(topic) {
            self.log.push(retained(*message, topic));
        }
        Vec::new()
    }

    pub fn tell_delayed(&mut self, after: u64) -> Vec<Step> {
        let Some((&message, &due_unix_ms)) = self.state.delayed.range(after + 1..).next() else {
            return Vec::new();
        };
        self.write(&Record::Delayed {
            message: Position(message),
            due_unix_ms,
        });
        vec![Step::Delayed(message)]
    }

    /// A checkpoint counts when all of it is written and all messages before it are routed.
    pub fn finish_checkpoint(&mut self) {
        let unrouted = &self.state.unrouted;
        let is_finished = |c: &mut Checkpoint| c.plan.is_empty() && unrouted.range(..c.began).next().is_none();
        if let Some(checkpoint) = self.checkpoint.take_if(is_finished) {
            self.finished.push(checkpoint.began as usize - 100);
        }
    }
}
