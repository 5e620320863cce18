//! Sends items to the mailboxes of other workers: messages of the shard, at most one item per tick, and moving
//! connections.
//!
//! If a mailbox is full, its items are queued here in order, and this worker reads no socket until they are sent.
//! `mailbox.rs` explains why that cannot deadlock. A shard that only forwards messages of others, for example of a
//! share group, may queue much without reading a socket. Therefore all workers stop reading when their queues together
//! exceed a limit.

use std::sync::atomic::Ordering::Relaxed;

use broker::ShardId;

use crate::counters::EarlyCloseReason;
use crate::mailbox::{UnsentItem, WeightBytes};
use crate::mailbox_item::MailboxItem;
use crate::worker::NetWorker;

/// Maximum size of the unsent items of all workers, in bytes.
const UNSENT_BYTES_MAX: usize = 64 << 20;

impl NetWorker {
    /// Returns whether sockets may be read: they are the source of new messages and journal records.
    pub(crate) fn can_read(&self) -> bool {
        self.unsent_items == 0 && !self.is_unsent_limit_reached() && !self.is_journal_behind()
    }

    pub(crate) fn is_unsent_limit_reached(&self) -> bool {
        self.common.unsent_bytes.load(Relaxed) >= UNSENT_BYTES_MAX
    }

    /// Sends an item, or queues it if the mailbox is full. Does not wake the receiver.
    pub(crate) fn send(&mut self, to: ShardId, item: MailboxItem) {
        let index = usize::from(to.0);
        let returned = if self.unsent[index].is_empty() {
            self.try_send(index, item)
        } else {
            Some(item)
        };
        if let Some(item) = returned {
            self.counters.mail_held += 1;
            self.unsent_items += 1;
            self.common.unsent_bytes.fetch_add(item.weight_bytes(), Relaxed);
            self.unsent[index].push_back(item);
        }
        self.workers_to_wake[index] = true;
    }

    fn try_send(&mut self, to: usize, item: MailboxItem) -> Option<MailboxItem> {
        match self.mailboxes[to].try_send(item) {
            Ok(()) => None,
            Err(UnsentItem::Full(item)) => Some(item),
            Err(UnsentItem::Closed(item)) => {
                // Workers end only during a shutdown of the server.
                self.drop_undeliverable(item);
                None
            }
        }
    }

    /// Sends an item that may be lost: only if the mailbox has space now. Returns whether it was sent.
    #[cfg(feature = "quic")]
    pub(crate) fn send_lossy(&mut self, to: ShardId, item: MailboxItem) -> bool {
        let index = usize::from(to.0);
        // After an item that must arrive first, such as the connection itself.
        self.unsent[index].is_empty() && self.mailboxes[index].try_send(item).is_ok()
    }

    fn drop_undeliverable(&mut self, item: MailboxItem) {
        if let MailboxItem::MovedConnection(moved) = item {
            let connection = moved.connection;
            self.common.listeners[usize::from(connection.listener)].count_refusal(EarlyCloseReason::ShuttingDown);
            self.count_out(&connection);
        }
    }

    pub(crate) fn send_unsent(&mut self) {
        for to in 0..self.unsent.len() {
            while let Some(item) = self.unsent[to].pop_front() {
                self.workers_to_wake[to] = true;
                let bytes = item.weight_bytes();
                if let Some(back) = self.try_send(to, item) {
                    self.unsent[to].push_front(back);
                    break;
                }
                self.unsent_items -= 1;
                self.common.unsent_bytes.fetch_sub(bytes, Relaxed);
            }
        }
    }

    /// Sends the messages for each other shard as one item per batch, even if earlier items are still queued: the item
    /// refers to the position of the journal batch that has just been appended.
    pub(crate) fn send_mail(&mut self) {
        for shard in (0..self.common.shards).map(ShardId) {
            if shard != self.id
                && let Some(mail) = self.shard.take_mail(shard)
            {
                self.send(shard, MailboxItem::Mail(mail));
            }
        }
        for (to, wake) in self.workers_to_wake.iter_mut().enumerate() {
            if std::mem::take(wake) {
                self.mailboxes[to].wake();
            }
        }
    }
}
