//! Letters to other workers: mail of the shard, at most one letter per tick, and connections on their way home.
//!
//! A letter that a full mailbox returns is held back, in order, and no socket is read until it is gone. `mailbox.rs` says why that
//! cannot deadlock. A shard that only passes on what others send, such as the home of a shared group, may hold much though it reads
//! nothing: when all of them hold too much, nobody reads.

use std::sync::atomic::Ordering::Relaxed;

use broker::ShardId;

use crate::counters::Refusal;
use crate::letter::Letter;
use crate::mailbox::{Returned, Weight};
use crate::worker::Worker;

/// That all workers hold back.
const HELD_BYTES_MAX: usize = 64 << 20;

impl Worker {
    /// Sockets are what makes mail, and records of the journal.
    pub(crate) fn may_read(&self) -> bool {
        self.held_letters == 0 && !self.do_others_hold() && !self.is_journal_behind()
    }

    pub(crate) fn do_others_hold(&self) -> bool {
        self.common.held_bytes.load(Relaxed) >= HELD_BYTES_MAX
    }

    /// Sends a letter, or holds it back if there is no space. Does not ring.
    pub(crate) fn send(&mut self, to: ShardId, letter: Letter) {
        let index = usize::from(to.0);
        let returned = if self.held[index].is_empty() {
            self.offer(index, letter)
        } else {
            Some(letter)
        };
        if let Some(letter) = returned {
            self.counters.mail_held += 1;
            self.held_letters += 1;
            self.common.held_bytes.fetch_add(letter.weight_bytes(), Relaxed);
            self.held[index].push_back(letter);
        }
        self.rings[index] = true;
    }

    fn offer(&mut self, to: usize, letter: Letter) -> Option<Letter> {
        match self.addresses[to].offer(letter) {
            Ok(()) => None,
            Err(Returned::Full(letter)) => Some(letter),
            Err(Returned::Gone(letter)) => {
                // Only a server that shuts down has workers that are gone.
                self.undeliverable(letter);
                None
            }
        }
    }

    fn undeliverable(&mut self, letter: Letter) {
        if let Letter::Arrival(arrival) = letter {
            let connection = arrival.connection;
            self.common.listeners[usize::from(connection.listener)].count_refusal(Refusal::ShuttingDown);
            self.count_out(&connection);
        }
    }

    pub(crate) fn send_held(&mut self) {
        for to in 0..self.held.len() {
            while let Some(letter) = self.held[to].pop_front() {
                self.rings[to] = true;
                let bytes = letter.weight_bytes();
                if let Some(back) = self.offer(to, letter) {
                    self.held[to].push_front(back);
                    break;
                }
                self.held_letters -= 1;
                self.common.held_bytes.fetch_sub(bytes, Relaxed);
            }
        }
    }

    /// One letter per shard and batch, also behind one that is held back: it says where the journal has its messages by the batch that has
    /// just been appended.
    pub(crate) fn send_mail(&mut self) {
        for shard in (0..self.common.shards).map(ShardId) {
            if shard != self.id
                && let Some(mail) = self.shard.take_mail(shard)
            {
                self.send(shard, Letter::Mail(mail));
            }
        }
        for (to, ring) in self.rings.iter_mut().enumerate() {
            if std::mem::take(ring) {
                self.addresses[to].ring();
            }
        }
    }
}
