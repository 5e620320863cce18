//! Shared subscriptions and the messages that they hold while no member has them.
//!
//! A group holds a message once, and its order is the order of positions: a message that a member gives back goes before those that
//! were published after it.

use std::collections::{BTreeMap, VecDeque};

use super::order::{self, InOrder};
use super::recovered::RecoveredGroup;
use crate::durable::record::{GroupKey, NotARecord, Position};

#[derive(Default)]
pub(super) struct Groups {
    known: BTreeMap<GroupKey, Group>,
    /// What members gave back to a group that has not been met: it may be met yet.
    aside: BTreeMap<GroupKey, VecDeque<Held>>,
}

struct Group {
    share_name: Box<str>,
    filter: Box<str>,
    held: VecDeque<Held>,
}

/// The position of a message, doubled; odd once it has left.
#[derive(Clone, Copy)]
struct Held(u64);

impl Groups {
    pub fn meet(&mut self, key: GroupKey, share_name: &str, filter: &str) {
        let held = match self.known.remove(&key) {
            Some(group) => group.held,
            None => self.aside.remove(&key).unwrap_or_default(),
        };
        let group = Group {
            share_name: share_name.into(),
            filter: filter.into(),
            held,
        };
        self.known.insert(key, group);
    }

    pub fn end(&mut self, key: GroupKey) {
        self.known.remove(&key);
        self.aside.remove(&key);
    }

    /// The group gets a message.
    pub fn hold(&mut self, key: GroupKey, message: Position) -> Result<(), NotARecord> {
        let message = Held::new(message)?;
        if let Some(group) = self.known.get_mut(&key) {
            order::put(&mut group.held, message);
        }
        Ok(())
    }

    /// What the group had at the time of a checkpoint.
    pub fn hold_all(
        &mut self,
        key: GroupKey,
        messages: impl Iterator<Item = Result<Position, NotARecord>>,
    ) -> Result<(), NotARecord> {
        let Some(group) = self.known.get_mut(&key) else {
            return Ok(());
        };
        let mut earlier = Vec::new();
        for message in messages {
            let message = Held::new(message?)?;
            earlier.extend(order::try_put(&mut group.held, message));
        }
        earlier.sort_unstable_by_key(Held::order);
        earlier.dedup_by_key(|held| held.0);
        order::insert_all(&mut group.held, earlier);
        Ok(())
    }

    /// A member gives a message back.
    pub fn give_back(&mut self, key: GroupKey, message: Position) -> Result<(), NotARecord> {
        let message = Held::new(message)?;
        let list = match self.known.get_mut(&key) {
            Some(group) => &mut group.held,
            None => self.aside.entry(key).or_default(),
        };
        order::put(list, message);
        Ok(())
    }

    /// The group holds a message no longer: a member has it, or nobody.
    pub fn take(&mut self, key: GroupKey, message: Position) {
        if let Some(group) = self.known.get_mut(&key) {
            order::remove(&mut group.held, message.0 << 1);
        } else if let Some(list) = self.aside.get_mut(&key) {
            order::remove(list, message.0 << 1);
            if list.is_empty() {
                self.aside.remove(&key);
            }
        }
    }

    pub fn into_list(self) -> Vec<RecoveredGroup> {
        let list = self.known.into_iter().map(|(key, mut group)| {
            order::tidy(&mut group.held);
            RecoveredGroup {
                key,
                share_name: group.share_name,
                filter: group.filter,
                messages: group.held.into_iter().map(Held::position).collect(),
            }
        });
        list.collect()
    }
}

impl Held {
    fn new(message: Position) -> Result<Held, NotARecord> {
        if message.0 >> 63 != 0 {
            return Err(NotARecord {
                expected: "a position below 2^63",
            });
        }
        Ok(Held(message.0 << 1))
    }

    fn position(self) -> Position {
        Position(self.0 >> 1)
    }
}

impl InOrder for Held {
    fn order(&self) -> u64 {
        self.0 & !1
    }

    fn is_gone(&self) -> bool {
        self.0 & 1 != 0
    }

    fn go(&mut self) {
        self.0 |= 1;
    }
}
