//! A node that does random things, writes them down, and remembers what they come to.

use std::collections::{BTreeMap, BTreeSet};

use super::checkpoint::Checkpoint;
use super::*;

/// A node that does random things, and writes them down.
pub struct Node {
    pub log: Log,
    pub state: View,
    /// What the shards that have groups believe that these hold.
    pub believed: BTreeMap<u64, BTreeSet<u64>>,
    /// What they have not heard yet: where it was recorded, group, message, whether the group has it now.
    pub mail: Vec<(u64, u64, u64, bool)>,
    pub now_ms: u64,
    pub random: u64,
    pub checkpoint: Option<Checkpoint>,
    /// Where checkpoints began that count.
    pub finished: Vec<usize>,
}

pub const TOPICS: [&str; 3] = ["a", "b", "c"];
const SHARDS: u16 = 4;

impl Node {
    pub fn new() -> Node {
        let mut node = Node {
            log: Vec::new(),
            state: View::default(),
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
            7 => self.give_to_member(),
            8..=10 => self.settle(),
            11 => self.give_back(),
            12 => self.connect_or_leave(),
            13 => self.change_subscriptions(),
            14 => self.change_retained_and_delayed(),
            15 => self.route(),
            16..=22 => self.step_checkpoint(),
            23 => self.number(),
            24 => self.hear(u64::MAX),
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

    pub fn is_so(&mut self) -> bool {
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
        self.state.sessions.get_mut(&key).expect("the caller has picked it")
    }

    pub fn next_position(&self) -> u64 {
        100 + self.log.len() as u64
    }

    pub fn write(&mut self, record: &Record<'_>) {
        self.log.push(put(record));
    }

    pub fn next_key(&mut self) -> u64 {
        self.state.last_key += 1;
        self.state.last_key
    }

    pub fn boot(&mut self) {
        self.checkpoint = None;
        self.hear(u64::MAX);
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
        let record = Record::Boot {
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
            has_will: self.is_so(),
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
            if self.is_so() {
                list.push(self.queue(key, position, None));
            }
        }
        if let Some(group) = self.any_group() {
            if self.is_so() {
                self.hold(group, position);
                list.push(Target {
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

    pub fn write_message(&mut self, position: u64, list: &[Target]) {
        let publisher = self.any_session().filter(|_| self.is_so()).map(|key| {
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
        let retained = self.is_so().then_some(RetainedTerms { expires_unix_ms: None });
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

    pub fn queue(&mut self, key: u64, message: u64, group: Option<u64>) -> Target {
        let identifiers = [vec![], vec![], vec![7], vec![8, 9]][self.number_below(4)].clone();
        let is_numbered = self.number_below(4) != 0;
        let item = Item {
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
        Target {
            to: Recipient::Session(SessionKey(key)),
            group: group.map(GroupKey),
            identifiers,
            ..target(seq)
        }
    }

    pub fn hold(&mut self, group: u64, message: u64) {
        let held = self.state.groups.get_mut(&group).expect("the caller has picked it");
        held.push(message);
        held.sort_unstable();
        self.believed.entry(group).or_default().insert(message);
    }

    /// What a group holds, and its shard knows of; as if the mail to the member were there at once, and the answer were not.
    pub fn give_to_member(&mut self) {
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

    /// What a group holds, and its shard knows that it does.
    pub fn at_hand(&self, group: u64) -> Vec<u64> {
        let believed = &self.believed[&group];
        let is_on_its_way = |message| self.mail.iter().any(|mail| (mail.1, mail.2) == (group, message));
        let held = self.state.groups[&group].iter().copied();
        held.filter(|message| believed.contains(message) && !is_on_its_way(*message))
            .collect()
    }

    pub fn unhold(&mut self, group: u64, message: u64) {
        let held = self.state.groups.get_mut(&group).expect("the caller has picked it");
        held.retain(|other| *other != message);
    }

    /// The shards that have groups hear of what was recorded before `until`.
    pub fn hear(&mut self, until: u64) {
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
            let first = seqs.first().copied().filter(|_| self.is_so());
            let Some(seq) = first.or(self.pick(seqs.into_iter())) else {
                continue;
            };
            let is_release = self.is_so();
            let entries = &mut self.session(key).entries;
            match is_release {
                true => entries.get_mut(&seq).expect("picked").is_released = true,
                false => drop(entries.remove(&seq)),
            }
            Settled {
                session: SessionKey(key),
                seq,
                is_release,
            }
            .put(&mut bytes);
        }
        self.write(&Record::Settled(SettledItems::from_written(&bytes)));
    }

    pub fn give_back(&mut self) {
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
        let group = item.group.expect("only such were picked");
        if let Some(held) = self.state.groups.get_mut(&group) {
            held.push(item.message);
            held.sort_unstable();
        }
        self.mail.push((self.next_position(), group, item.message, true));
        self.write(&Record::Returned {
            session: SessionKey(key),
            seq: *seq,
            group: GroupKey(group),
            message: Position(item.message),
        });
    }

    pub fn drop_from_group(&mut self) {
        let Some(group) = self.any_group() else { return };
        let held = self.at_hand(group);
        if let Some(message) = self.pick(held.into_iter()) {
            self.unhold(group, message);
            self.believed.entry(group).or_default().remove(&message);
            self.write(&Record::GroupDropped {
                group: GroupKey(group),
                message: Position(message),
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
        let target = Target {
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
        let (now_ms, has_will, is_will_done) = (self.now_ms, self.is_so(), self.is_so());
        let session = self.session(key);
        let key = SessionKey(key);
        if session.left.is_none() {
            session.left = Some(now_ms);
            session.expiry_s = 30;
            session.has_will &= has_will;
            session.started = session.next_seq - 1;
            let started = session.started;
            self.write(&Record::Disconnected {
                session: key,
                unix_ms: now_ms,
                expiry_s: 30,
                has_will,
                started,
            });
        } else if is_will_done {
            session.has_will = false;
            self.write(&Record::WillDone { session: key });
        } else {
            session.left = None;
            (session.expiry_s, session.has_will) = (90, has_will);
            let terms = terms(90, has_will);
            self.write(&Record::Connected { session: key, terms });
        }
    }

    pub fn change_subscriptions(&mut self) {
        let Some(key) = self.any_session() else { return };
        let (filter, is_new) = (TOPICS[self.number_below(3)], self.is_so());
        let identifier = self.is_so().then_some(5);
        let subscriptions = &mut self.session(key).subscriptions;
        let session = SessionKey(key);
        if is_new {
            subscriptions.insert(filter.to_owned(), identifier);
            let subscription = subscription(filter, identifier);
            self.write(&Record::Subscribed { session, subscription });
        } else {
            subscriptions.remove(filter);
            self.write(&Record::Unsubscribed { session, filter });
        }
    }

    pub fn change_retained_and_delayed(&mut self) {
        let (topic, is_new) = (TOPICS[self.number_below(3)], self.is_so());
        self.state.retained.remove(topic);
        if is_new {
            self.state.retained.insert(topic.to_owned(), 50);
            self.log.push(retained(50, topic));
        } else {
            self.write(&Record::RetainedGone { topic });
        }
        if let Some((message, _)) = self.state.delayed.pop_first() {
            let message = Position(message);
            self.write(&Record::DelayedDone { message });
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
            self.write(&Record::Freed {
                session: SessionKey(key),
                packet_id,
            });
        }
    }

    pub fn end_session(&mut self) {
        if let Some(key) = self.any_session() {
            self.state.sessions.remove(&key);
            self.write(&Record::Ended {
                session: SessionKey(key),
            });
        }
    }

    pub fn end_group(&mut self) {
        if let Some(key) = self.any_group() {
            self.state.groups.remove(&key);
            self.believed.remove(&key);
            self.write(&Record::GroupEnded { group: GroupKey(key) });
        }
    }

    /// The state if the process ends now.
    pub fn expected(&self) -> View {
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
        let kept = state
            .retained
            .values()
            .chain(state.delayed.keys())
            .chain(state.unrouted.keys());
        state.lowest = queued.chain(held).chain(kept.copied()).min();
        state
    }
}

pub fn terms(expiry_s: u32, has_will: bool) -> Terms<'static> {
    let with_will = session_record(1).terms;
    Terms {
        expiry_s,
        will: with_will.will.filter(|_| has_will),
        ..Terms::default()
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
