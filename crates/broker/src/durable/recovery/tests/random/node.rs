//! A model node that performs random actions, writes records, and tracks the expected state.

use std::collections::{BTreeMap, BTreeSet};

use super::checkpoint::ModelCheckpoint;
use super::*;

/// A model node.
pub struct ModelNode {
    pub log: ModelLog,
    pub state: ExpectedRecovery,
    /// Messages that the groups' shards believe to be held.
    pub believed: BTreeMap<u64, BTreeSet<u64>>,
    /// Changes that the groups' shards have not received: position of the record, group, message, and whether the group
    /// holds it now.
    pub mail: Vec<(u64, u64, u64, bool)>,
    pub now_ms: u64,
    pub random: u64,
    pub checkpoint: Option<ModelCheckpoint>,
    /// Positions at which valid checkpoints started.
    pub finished: Vec<usize>,
}

pub const TOPICS: [&str; 3] = ["a", "b", "c"];
const SHARDS: u16 = 4;

impl ModelNode {
    pub fn new() -> ModelNode {
        let mut node = ModelNode {
            log: Vec::new(),
            state: ExpectedRecovery::default(),
            believed: BTreeMap::new(),
            mail: Vec::new(),
            now_ms: 1000,
            random: 1,
            checkpoint: None,
            finished: Vec::new(),
        };
        node.boot();
        node
    }

    pub fn act(&mut self, action: u8, seed: u8) {
        self.random = self.random.wrapping_add(u64::from(seed)) ^ u64::from(action) << 32;
        self.now_ms += 1;
        match action {
            0 => self.new_session(),
            1 => self.new_group(),
            2..=6 => self.publish(),
            7 => self.deliver_to_member(),
            8..=10 => self.settle(),
            11 => self.return_to_group(),
            12 => self.connect_or_leave(),
            13 => self.change_subscriptions(),
            14 => self.change_retained_and_delayed(),
            15 => self.route(),
            16..=22 => self.step_checkpoint(),
            23 => self.number(),
            24 => self.receive_changes(u64::MAX),
            25 => self.free(),
            26 => self.drop_from_group(),
            27 => self.end_session(),
            28 => self.end_group(),
            _ => self.boot(),
        }
        self.finish_checkpoint();
    }

    pub fn number_below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % n
    }

    pub fn flip(&mut self) -> bool {
        self.number_below(2) == 1
    }

    pub fn pick<T: Clone>(&mut self, all: impl Iterator<Item = T>) -> Option<T> {
        let all: Vec<T> = all.collect();
        if all.is_empty() {
            return None;
        }
        let at = self.number_below(all.len());
        Some(all[at].clone())
    }

    pub fn any_session(&mut self) -> Option<u64> {
        let keys = self.state.sessions.clone();
        self.pick(keys.into_keys())
    }

    pub fn any_group(&mut self) -> Option<u64> {
        let keys = self.state.groups.clone();
        self.pick(keys.into_keys())
    }

    pub fn session(&mut self, key: u64) -> &mut SessionView {
        self.state
            .sessions
            .get_mut(&key)
            .expect("the key was picked from the map")
    }

    pub fn next_position(&self) -> u64 {
        100 + self.log.len() as u64
    }

    pub fn write(&mut self, record: &JournalRecord<'_>) {
        self.log.push(put(record));
    }

    pub fn next_key(&mut self) -> u64 {
        self.state.last_key += 1;
        self.state.last_key
    }

    pub fn boot(&mut self) {
        self.checkpoint = None;
        self.receive_changes(u64::MAX);
        for session in self.state.sessions.values_mut() {
            for (_, item) in std::mem::take(&mut session.unnumbered) {
                session.entries.insert(session.next_seq, item);
                session.next_seq += 1;
            }
            if session.left.is_none() {
                session.left = Some(self.now_ms);
                session.started = session.next_seq - 1;
            }
        }
        self.state.unrouted.clear();
        self.state.shards = SHARDS + self.number_below(3) as u16;
        let record = JournalRecord::Boot {
            unix_ms: self.now_ms,
            shards: self.state.shards,
            last_key: self.state.last_key,
        };
        self.write(&record);
    }

    pub fn new_session(&mut self) {
        if self.state.sessions.len() >= 4 {
            return;
        }
        let key = self.next_key();
        let session = SessionView {
            next_seq: 1,
            expiry_s: 60,
            has_will: self.flip(),
            ..SessionView::default()
        };
        self.state.sessions.insert(key, session);
        self.write_session(key);
    }

    pub fn new_group(&mut self) {
        if self.state.groups.len() < 2 {
            let key = self.next_key();
            self.state.groups.insert(key, Vec::new());
            self.believed.insert(key, BTreeSet::new());
            self.write_group(key);
        }
    }

    pub fn publish(&mut self) {
        let position = self.next_position();
        let mut list = Vec::new();
        let sessions: Vec<u64> = self.state.sessions.keys().copied().collect();
        for key in sessions {
            if self.flip() {
                list.push(self.queue(key, position, None));
            }
        }
        if let Some(group) = self.any_group() {
            if self.flip() {
                self.hold(group, position);
                list.push(RecordTarget {
                    to: Recipient::Group(GroupKey(group)),
                    ..target(0)
                });
            } else if let Some(member) = self.any_session().filter(|key| !self.has(*key, position)) {
                list.push(self.queue(member, position, Some(group)));
            }
        }
        self.write_message(position, &list);
    }

    pub fn has(&self, key: u64, message: u64) -> bool {
        let session = &self.state.sessions[&key];
        session.unnumbered.iter().any(|(at, _)| *at == message)
            || session.entries.values().any(|item| item.message == message)
    }

    pub fn write_message(&mut self, position: u64, list: &[RecordTarget]) {
        let publisher = self.any_session().filter(|_| self.flip()).map(|key| {
            let packet_id = 1 + self.number_below(4) as u16;
            self.session(key).received.insert(packet_id);
            (SessionKey(key), packet_id)
        });
        let due_unix_ms = (self.number_below(6) == 0).then_some(self.now_ms);
        if let Some(due) = due_unix_ms {
            self.state.delayed.insert(position, due);
        }
        let others = [0, 0, 0, 0b10, 0b110][self.number_below(5)];
        if others != 0 {
            self.state.unrouted.insert(position, others);
        }
        let topic = TOPICS[self.number_below(3)];
        let payload = ["", "p"][self.number_below(2)];
        let retained = self.flip().then_some(RetainedTerms { expires_unix_ms: None });
        if retained.is_some() {
            self.state.retained.remove(topic);
        }
        if retained.is_some() && !payload.is_empty() {
            self.state.retained.insert(topic.to_owned(), position);
        }
        let bytes = message_with(list, |message| {
            message.publisher = publisher;
            message.due_unix_ms = due_unix_ms;
            message.others = others;
            message.topic = topic;
            message.payload = payload.as_bytes();
            message.retained = retained;
        });
        self.log.push(bytes);
    }

    pub fn queue(&mut self, key: u64, message: u64, group: Option<u64>) -> RecordTarget {
        let identifiers = [vec![], vec![], vec![7], vec![8, 9]][self.number_below(4)].clone();
        let is_numbered = self.number_below(4) != 0;
        let item = ExpectedEntry {
            message,
            is_released: false,
            group,
            identifiers: identifiers.clone(),
        };
        let session = self.session(key);
        let seq = if is_numbered { session.next_seq } else { 0 };
        if is_numbered {
            session.entries.insert(seq, item);
            session.next_seq += 1;
        } else {
            session.unnumbered.push((message, item));
        }
        RecordTarget {
            to: Recipient::Session(SessionKey(key)),
            group: group.map(GroupKey),
            identifiers,
            ..target(seq)
        }
    }

    pub fn hold(&mut self, group: u64, message: u64) {
        let held = self
            .state
            .groups
            .get_mut(&group)
            .expect("the key was picked from the map");
        held.push(message);
        held.sort_unstable();
        self.believed.entry(group).or_default().insert(message);
    }

    /// Delivers a held message to a member. The member's shard sees the delivery at once; the group's shard learns of
    /// the record later, through `mail`.
    pub fn deliver_to_member(&mut self) {
        let Some(group) = self.any_group() else { return };
        let held = self.at_hand(group);
        let (Some(message), Some(member)) = (self.pick(held.into_iter()), self.any_session()) else {
            return;
        };
        if self.has(member, message) {
            return;
        }
        self.unhold(group, message);
        self.mail.push((self.next_position(), group, message, false));
        let target = self.queue(member, message, Some(group));
        self.log.push(queued(message, &[target]));
    }

    /// Messages that a group holds and its shard knows of.
    pub fn at_hand(&self, group: u64) -> Vec<u64> {
        let believed = &self.believed[&group];
        let is_on_its_way = |message| self.mail.iter().any(|mail| (mail.1, mail.2) == (group, message));
        let held = self.state.groups[&group].iter().copied();
        held.filter(|message| believed.contains(message) && !is_on_its_way(*message))
            .collect()
    }

    pub fn unhold(&mut self, group: u64, message: u64) {
        let held = self
            .state
            .groups
            .get_mut(&group)
            .expect("the key was picked from the map");
        held.retain(|other| *other != message);
    }

    /// The groups' shards receive all changes recorded before `until`.
    pub fn receive_changes(&mut self, until: u64) {
        for (at, group, message, is_held) in std::mem::take(&mut self.mail) {
            if at >= until {
                self.mail.push((at, group, message, is_held));
            } else if let Some(believed) = self.believed.get_mut(&group) {
                match is_held {
                    true => believed.insert(message),
                    false => believed.remove(&message),
                };
            }
        }
    }

    pub fn settle(&mut self) {
        let mut bytes = Vec::new();
        for _ in 0..2 {
            let Some(key) = self.any_session() else { break };
            let seqs: Vec<u64> = self.session(key).entries.keys().copied().collect();
            let first = seqs.first().copied().filter(|_| self.flip());
            let Some(seq) = first.or(self.pick(seqs.into_iter())) else {
                continue;
            };
            let is_release = self.flip();
            let entries = &mut self.session(key).entries;
            match is_release {
                true => entries.get_mut(&seq).expect("picked").is_released = true,
                false => drop(entries.remove(&seq)),
            }
            AcknowledgedEntry {
                session: SessionKey(key),
                seq,
                is_release,
            }
            .put(&mut bytes);
        }
        self.write(&JournalRecord::Settled(SettledItems::from_written(&bytes)));
    }

    pub fn return_to_group(&mut self) {
        let Some(key) = self.any_session() else { return };
        let session = self.session(key).clone();
        let numbered = session.entries.iter().filter(|(_, item)| !item.is_released);
        let unnumbered = session.unnumbered.iter().map(|(_, item)| (&0, item));
        let all = numbered.chain(unnumbered).filter(|(_, item)| item.group.is_some());
        let Some((seq, item)) = self.pick(all) else { return };
        self.session(key).entries.remove(seq);
        if *seq == 0 {
            self.session(key).unnumbered.retain(|(at, _)| *at != item.message);
        }
        let group = item.group.expect("entries with a group were picked");
        if let Some(held) = self.state.groups.get_mut(&group) {
            held.push(item.message);
            held.sort_unstable();
        }
        self.mail.push((self.next_position(), group, item.message, true));
        self.write(&JournalRecord::Returned {
            session: SessionKey(key),
            seq: *seq,
            group: GroupKey(group),
            message: RecordPosition(item.message),
            size: sized(item.message).size,
        });
    }

    pub fn drop_from_group(&mut self) {
        let Some(group) = self.any_group() else { return };
        let held = self.at_hand(group);
        if let Some(message) = self.pick(held.into_iter()) {
            self.unhold(group, message);
            self.believed.entry(group).or_default().remove(&message);
            self.write(&JournalRecord::GroupDropped {
                group: GroupKey(group),
                message: RecordPosition(message),
            });
        }
    }

    pub fn number(&mut self) {
        let Some(key) = self.any_session() else { return };
        let session = self.session(key);
        if session.unnumbered.is_empty() {
            return;
        }
        let (message, item) = session.unnumbered.remove(0);
        let target = RecordTarget {
            to: Recipient::Session(SessionKey(key)),
            group: item.group.map(GroupKey),
            identifiers: item.identifiers.clone(),
            ..target(session.next_seq)
        };
        session.entries.insert(session.next_seq, item);
        session.next_seq += 1;
        self.log.push(queued(message, &[target]));
    }

    pub fn connect_or_leave(&mut self) {
        let Some(key) = self.any_session() else { return };
        let (now_ms, has_will, is_will_done) = (self.now_ms, self.flip(), self.flip());
        let session = self.session(key);
        let key = SessionKey(key);
        if session.left.is_none() {
            session.left = Some(now_ms);
            session.expiry_s = 30;
            session.has_will &= has_will;
            session.started = session.next_seq - 1;
            let started = session.started;
            self.write(&JournalRecord::Disconnected {
                session: key,
                unix_ms: now_ms,
                expiry_s: 30,
                has_will,
                started,
            });
        } else if is_will_done {
            session.has_will = false;
            self.write(&JournalRecord::WillPublished { session: key });
        } else {
            session.left = None;
            (session.expiry_s, session.has_will) = (90, has_will);
            let terms = terms(90, has_will);
            self.write(&JournalRecord::Connected { session: key, terms });
        }
    }

    pub fn change_subscriptions(&mut self) {
        let Some(key) = self.any_session() else { return };
        let (filter, is_new) = (TOPICS[self.number_below(3)], self.flip());
        let identifier = self.flip().then_some(5);
        let subscriptions = &mut self.session(key).subscriptions;
        let session = SessionKey(key);
        if is_new {
            subscriptions.insert(filter.to_owned(), identifier);
            let subscription = subscription(filter, identifier);
            self.write(&JournalRecord::Subscribed { session, subscription });
        } else {
            subscriptions.remove(filter);
            self.write(&JournalRecord::Unsubscribed { session, filter });
        }
    }

    pub fn change_retained_and_delayed(&mut self) {
        let (topic, is_new) = (TOPICS[self.number_below(3)], self.flip());
        self.state.retained.remove(topic);
        if is_new {
            self.state.retained.insert(topic.to_owned(), 50);
            self.log.push(retained(50, topic));
        } else {
            self.write(&JournalRecord::RetainedCleared { topic });
        }
        if let Some((message, _)) = self.state.delayed.pop_first() {
            let message = RecordPosition(message);
            self.write(&JournalRecord::DelayedDone { message });
        }
    }

    pub fn route(&mut self) {
        let (by, up_to) = (
            1 + self.number_below(2),
            self.next_position() - self.number_below(5) as u64,
        );
        for (_, others) in self.state.unrouted.range_mut(..=up_to) {
            *others &= !(1 << by);
        }
        self.state.unrouted.retain(|_, others| *others != 0);
        self.log.push(routed(by as u16, up_to));
    }

    pub fn free(&mut self) {
        let Some(key) = self.any_session() else { return };
        if let Some(packet_id) = self.session(key).received.pop_last() {
            self.write(&JournalRecord::PacketIdFreed {
                session: SessionKey(key),
                packet_id,
            });
        }
    }

    pub fn end_session(&mut self) {
        if let Some(key) = self.any_session() {
            self.state.sessions.remove(&key);
            self.write(&JournalRecord::Ended {
                session: SessionKey(key),
            });
        }
    }

    pub fn end_group(&mut self) {
        if let Some(key) = self.any_group() {
            self.state.groups.remove(&key);
            self.believed.remove(&key);
            self.write(&JournalRecord::GroupEnded { group: GroupKey(key) });
        }
    }

    /// Expected state if the process ends now.
    pub fn expected(&self) -> ExpectedRecovery {
        let mut state = self.state.clone();
        for session in state.sessions.values_mut() {
            for (_, item) in std::mem::take(&mut session.unnumbered) {
                session.entries.insert(session.next_seq, item);
                session.next_seq += 1;
            }
        }
        let entries = state.sessions.values().flat_map(|session| session.entries.values());
        let queued = entries.filter(|item| !item.is_released).map(|item| item.message);
        let held = state.groups.values().flatten().copied();
        let retained = state
            .retained
            .values()
            .chain(state.delayed.keys())
            .chain(state.unrouted.keys());
        state.lowest = queued.chain(held).chain(retained.copied()).min();
        state
    }
}

pub fn terms(expiry_s: u32, has_will: bool) -> ConnectSettings<'static> {
    let with_will = session_record(1).terms;
    ConnectSettings {
        expiry_s,
        will: with_will.will.filter(|_| has_will),
        ..ConnectSettings::default()
    }
}

pub fn subscription(filter: &str, identifier: Option<u32>) -> SubscriptionRecord<'_> {
    SubscriptionRecord {
        filter,
        options: Default::default(),
        identifier,
        is_replaying: false,
    }
}
