//! Messages that some shard has not routed yet, per receiving shard.
//!
//! One queue per receiving shard, with the position that each other shard has reached. A message is removed once all
//! messages before it have been routed. While the shards run, few messages are outstanding.

use std::collections::VecDeque;

use super::recovered::Unrouted;
use crate::durable::record::{NotARecord, RecordPosition};
use crate::interest::SHARDS_MAX;

#[derive(Default)]
pub(super) struct UnroutedTable {
    taken_by: Vec<UnroutedMessages>,
}

struct UnroutedMessages {
    messages: VecDeque<(RecordPosition, u64)>,
    routed: [RecordPosition; SHARDS_MAX],
}

impl UnroutedTable {
    pub fn message(&mut self, from: u16, position: RecordPosition, others: u64) -> Result<(), NotARecord> {
        if others != 0 {
            self.messages_from(from)?.messages.push_back((position, others));
        }
        Ok(())
    }

    pub fn routed(&mut self, by: u16, from: u16, up_to: RecordPosition) -> Result<(), NotARecord> {
        shard(by)?;
        let taken = self.messages_from(from)?;
        let routed = &mut taken.routed[usize::from(by)];
        *routed = up_to.max(*routed);
        while let Some(first) = taken.messages.front()
            && taken.unrouted_shards(*first) == 0
        {
            taken.messages.pop_front();
        }
        Ok(())
    }

    pub fn clear(&mut self) {
        self.taken_by.clear();
    }

    pub fn into_list(self) -> Vec<Unrouted> {
        let mut list: Vec<Unrouted> = (0..)
            .zip(&self.taken_by)
            .flat_map(|(from, taken)| taken.list(from))
            .collect();
        list.sort_unstable_by_key(|unrouted| unrouted.message);
        list
    }

    fn messages_from(&mut self, from: u16) -> Result<&mut UnroutedMessages, NotARecord> {
        let from = usize::from(shard(from)?);
        while self.taken_by.len() <= from {
            self.taken_by.push(UnroutedMessages {
                messages: VecDeque::new(),
                routed: [RecordPosition(0); SHARDS_MAX],
            });
        }
        Ok(&mut self.taken_by[from])
    }
}

impl UnroutedMessages {
    /// Returns the shards of a message that have not routed it.
    fn unrouted_shards(&self, (position, others): (RecordPosition, u64)) -> u64 {
        let mut left = others;
        let mut outstanding = 0;
        while left != 0 {
            let by = left.trailing_zeros() as usize;
            left &= left - 1;
            outstanding |= u64::from(self.routed[by] < position) << by;
        }
        outstanding
    }

    fn list(&self, from: u16) -> impl Iterator<Item = Unrouted> {
        let outstanding = self.messages.iter().map(move |message| Unrouted {
            message: message.0,
            from,
            shards: self.unrouted_shards(*message),
        });
        outstanding.filter(|unrouted| unrouted.shards != 0)
    }
}

fn shard(shard: u16) -> Result<u16, NotARecord> {
    if usize::from(shard) < SHARDS_MAX {
        return Ok(shard);
    }
    Err(NotARecord {
        expected: "a shard below 64",
    })
}
