//! Shared subscriptions during recovery, with the messages that no member has.
//!
//! A group holds each message once, sorted by position: a returned message precedes those that were published after it.
//!
//! A member may be a session of another shard. The group's shard, which writes the group's snapshot, learns later what
//! the member's shard has recorded. Therefore records about a message take precedence over the snapshot: a returned
//! message stays in the group, a removed one stays removed, and the snapshot adds no message that was published after
//! the group became known.

use std::collections::BTreeMap;

use super::order::{self, SortedItem, SortedWithRuns};
use super::recovered::RecoveredGroup;
use crate::durable::record::{GroupKey, NotARecord, RecordPosition, SizedMessage};
use crate::message_size::MessageSize;

#[derive(Default)]
pub(super) struct RecoveringGroups {
    known: BTreeMap<GroupKey, RecoveringGroup>,
    /// Changes to groups that are not known yet, but may be later.
    unknown: BTreeMap<GroupKey, GroupMessages>,
}

struct RecoveringGroup {
    share_name: Box<str>,
    filter: Box<str>,
    /// Position of the first record of the group.
    since: RecordPosition,
    holding: GroupMessages,
}

#[derive(Default)]
struct GroupMessages {
    held: SortedWithRuns<HeldPosition>,
    /// Messages from before `since` that members have or had.
    taken: SortedWithRuns<HeldPosition>,
}

/// Position and size of a message. The low bit marks a removed message.
#[derive(Clone, Copy)]
struct HeldPosition(u64);

const SIZE_SHIFT: u32 = 1;
const POSITION_SHIFT: u32 = SIZE_SHIFT + u8::BITS;

impl RecoveringGroups {
    pub fn add_snapshot(&mut self, key: GroupKey, at: RecordPosition, share_name: &str, filter: &str) {
        let unknown = self.unknown.remove(&key);
        self.known.entry(key).or_insert_with(|| RecoveringGroup {
            share_name: share_name.into(),
            filter: filter.into(),
            since: at,
            holding: unknown.unwrap_or_default(),
        });
    }

    pub fn end(&mut self, key: GroupKey) {
        self.known.remove(&key);
        self.unknown.remove(&key);
    }

    /// Adds a message to the group. Also applies before the group is known: a message that it retains for a session of
    /// another shard may be in no snapshot, and any later change has a record after this one.
    pub fn add_message(&mut self, key: GroupKey, message: SizedMessage) -> Result<(), NotARecord> {
        let message = HeldPosition::new(message)?;
        let (holding, _) = self.group_messages_mut(key);
        holding.held.put(message);
        Ok(())
    }

    /// Adds the messages that a checkpoint lists, as far as the group's shard knew.
    pub fn add_messages(
        &mut self,
        key: GroupKey,
        messages: impl Iterator<Item = Result<SizedMessage, NotARecord>>,
    ) -> Result<(), NotARecord> {
        let Some(group) = self.known.get_mut(&key) else {
            return Ok(());
        };
        let (list, taken) = (group.holding.held.whole(), group.holding.taken.whole());
        let mut earlier = Vec::new();
        for message in messages {
            let message = message?;
            let held = HeldPosition::new(message)?;
            if message.position < group.since && order::find(taken, held.order()).is_none() {
                earlier.extend(order::try_put(list, held));
            }
        }
        earlier.sort_unstable_by_key(HeldPosition::order);
        earlier.dedup_by_key(|held| held.order());
        order::insert_all(list, earlier);
        Ok(())
    }

    /// A member returns a message to the group.
    pub fn return_to_group(&mut self, key: GroupKey, message: SizedMessage) -> Result<(), NotARecord> {
        let message = HeldPosition::new(message)?;
        let (holding, _) = self.group_messages_mut(key);
        holding.taken.remove(message.order());
        holding.held.put(message);
        Ok(())
    }

    /// Removes a message from the group: a member has received it, or it was dropped.
    pub fn remove_message(&mut self, key: GroupKey, message: RecordPosition) -> Result<(), NotARecord> {
        let held = HeldPosition::new(SizedMessage {
            position: message,
            size: MessageSize::UNKNOWN,
        })?;
        let (holding, since) = self.group_messages_mut(key);
        holding.held.remove(held.order());
        if since.is_none_or(|since| message < since) {
            holding.taken.put(held);
        }
        Ok(())
    }

    fn group_messages_mut(&mut self, key: GroupKey) -> (&mut GroupMessages, Option<RecordPosition>) {
        match self.known.get_mut(&key) {
            Some(group) => (&mut group.holding, Some(group.since)),
            None => (self.unknown.entry(key).or_default(), None),
        }
    }

    pub fn into_list(self) -> Vec<RecoveredGroup> {
        let list = self.known.into_iter().map(|(key, mut group)| {
            let held = group.holding.held.whole();
            order::compact(held);
            RecoveredGroup {
                key,
                share_name: group.share_name,
                filter: group.filter,
                messages: held.drain(..).map(HeldPosition::message).collect(),
            }
        });
        list.collect()
    }
}

impl HeldPosition {
    fn new(message: SizedMessage) -> Result<HeldPosition, NotARecord> {
        let position = message.position.0;
        if position >> (u64::BITS - POSITION_SHIFT) != 0 {
            return Err(NotARecord {
                expected: "a position below 2^55",
            });
        }
        Ok(HeldPosition(
            position << POSITION_SHIFT | u64::from(message.size.0) << SIZE_SHIFT,
        ))
    }

    fn message(self) -> SizedMessage {
        SizedMessage {
            position: RecordPosition(self.order()),
            size: MessageSize((self.0 >> SIZE_SHIFT) as u8),
        }
    }
}

impl SortedItem for HeldPosition {
    fn order(&self) -> u64 {
        self.0 >> POSITION_SHIFT
    }

    fn is_tombstone(&self) -> bool {
        self.0 & 1 != 0
    }

    fn make_tombstone(&mut self) {
        self.0 |= 1;
    }
}
