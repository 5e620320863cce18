//! Which messages some shard has not routed yet, by the shard that took them.
//!
//! A queue for each shard that takes messages, and how far each of the others has come with it. A message stays until all before it
//! have been routed: what is outstanding is little while the shards run.

use std::collections::VecDeque;

use super::recovered::Unrouted;
use crate::durable::record::{NotARecord, Position};
use crate::interest::SHARDS_MAX;

#[derive(Default)]
pub(super) struct Routes {
    taken_by: Vec<Taken>,
}

struct Taken {
    messages: VecDeque<(Position, u64)>,
    routed: [Position; SHARDS_MAX],
}

impl Routes {
    pub fn message(&mut self, from: u16, position: Position, others: u64) -> Result<(), NotARecord> {
        if others != 0 {
            self.taken_by(from)?.messages.push_back((position, others));
        }
        Ok(())
    }

    pub fn routed(&mut self, by: u16, from: u16, up_to: Position) -> Result<(), NotARecord> {
        shard(by)?;
        let taken = self.taken_by(from)?;
        let routed = &mut taken.routed[usize::from(by)];
        *routed = up_to.max(*routed);
        while let Some(first) = taken.messages.front()
            && taken.outstanding(*first) == 0
        {
            taken.messages.pop_front();
        }
        Ok(())
    }

    pub fn forget(&mut self) {
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

    fn taken_by(&mut self, from: u16) -> Result<&mut Taken, NotARecord> {
        let from = usize::from(shard(from)?);
        while self.taken_by.len() <= from {
            self.taken_by.push(Taken {
                messages: VecDeque::new(),
                routed: [Position(0); SHARDS_MAX],
            });
        }
        Ok(&mut self.taken_by[from])
    }
}

impl Taken {
    /// Those of a message's shards that have not routed it.
    fn outstanding(&self, (position, others): (Position, u64)) -> u64 {
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
            shards: self.outstanding(*message),
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
