//! Shared subscriptions and the messages that they hold while no member has them.
//!
//! A group holds a message once, and its order is the order of positions: a message that a member gives back goes before those that
//! were published after it.
//!
//! A member may be a session of another shard, so the shard that has the group, and writes its snapshot, hears late of what the
//! member's shard has recorded. Therefore records about a message count more than the snapshot does: what was given back stays,
//! what was taken stays away, and of messages that were published after the group was met the snapshot says nothing new.

use std::collections::BTreeMap;

use super::order::{self, InOrder, InRuns};
use super::recovered::RecoveredGroup;
use crate::durable::record::{GroupKey, NotARecord, Position};

#[derive(Default)]
pub(super) struct Groups {
    known: BTreeMap<GroupKey, Group>,
    /// What became of messages of groups that have not been met: they may be met yet.
    aside: BTreeMap<GroupKey, Holding>,
}

struct Group {
    share_name: Box<str>,
    filter: Box<str>,
    /// Where it was met first.
    since: Position,
    holding: Holding,
}

#[derive(Default)]
struct Holding {
    held: InRuns<Held>,
    /// Of those from before the group was met: what members have, or had.
    taken: InRuns<Held>,
}

/// The position of a message, doubled; odd once it has left.
#[derive(Clone, Copy)]
struct Held(u64);

impl Groups {
    pub fn meet(&mut self, key: GroupKey, at: Position, share_name: &str, filter: &str) {
        let aside = self.aside.remove(&key);
        self.known.entry(key).or_insert_with(|| Group {
            share_name: share_name.into(),
            filter: filter.into(),
            since: at,
            holding: aside.unwrap_or_default(),
        });
    }

    pub fn end(&mut self, key: GroupKey) {
        self.known.remove(&key);
        self.aside.remove(&key);
    }

    /// The group gets a message. Also before it is met: what it has lent by then to a session of another shard may be in no snapshot, and whatever
    /// else becomes of it has a record behind this one.
    pub fn hold(&mut self, key: GroupKey, message: Position) -> Result<(), NotARecord> {
        let message = Held::new(message)?;
        let (holding, _) = self.holding(key);
        holding.held.put(message);
        Ok(())
    }

    /// What the group had at the time of a checkpoint, as far as its shard knew.
    pub fn hold_all(
        &mut self,
        key: GroupKey,
        messages: impl Iterator<Item = Result<Position, NotARecord>>,
    ) -> Result<(), NotARecord> {
        let Some(group) = self.known.get_mut(&key) else {
            return Ok(());
        };
        let (list, taken) = (group.holding.held.whole(), group.holding.taken.whole());
        let mut earlier = Vec::new();
        for message in messages {
            let message = message?;
            let held = Held::new(message)?;
            if message < group.since && order::find(taken, held.order()).is_none() {
                earlier.extend(order::try_put(list, held));
            }
        }
        earlier.sort_unstable_by_key(Held::order);
        earlier.dedup_by_key(|held| held.0);
        order::insert_all(list, earlier);
        Ok(())
    }

    /// A member gives a message back.
    pub fn give_back(&mut self, key: GroupKey, message: Position) -> Result<(), NotARecord> {
        let message = Held::new(message)?;
        let (holding, _) = self.holding(key);
        holding.taken.remove(message.order());
        holding.held.put(message);
        Ok(())
    }

    /// The group holds a message no longer: a member has it, or nobody.
    pub fn take(&mut self, key: GroupKey, message: Position) -> Result<(), NotARecord> {
        let held = Held::new(message)?;
        let (holding, since) = self.holding(key);
        holding.held.remove(held.order());
        if since.is_none_or(|since| message < since) {
            holding.taken.put(held);
        }
        Ok(())
    }

    fn holding(&mut self, key: GroupKey) -> (&mut Holding, Option<Position>) {
        match self.known.get_mut(&key) {
            Some(group) => (&mut group.holding, Some(group.since)),
            None => (self.aside.entry(key).or_default(), None),
        }
    }

    pub fn into_list(self) -> Vec<RecoveredGroup> {
        let list = self.known.into_iter().map(|(key, mut group)| {
            let held = group.holding.held.whole();
            order::tidy(held);
            RecoveredGroup {
                key,
                share_name: group.share_name,
                filter: group.filter,
                messages: held.drain(..).map(Held::position).collect(),
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
