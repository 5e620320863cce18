//! Mailboxes of workers: one bounded queue with a single order for all senders, and a wake-up only if the owner sleeps.
//!
//! A mailbox is bounded by items and by bytes, because the messages of a whole tick can be large. An item that does not
//! fit is returned to its sender.
//!
//! Why this cannot deadlock: a worker never waits for space in another's mailbox. While it has unsent items it stops
//! reading sockets, the source of new messages, but continues to empty its own mailbox and to write to sockets, which
//! never blocks. Every full mailbox is therefore emptied at the owner's next tick, regardless of the owner's own unsent
//! items.
//!
//! Sleeping: the owner sets `is_asleep` and then checks the queue again. A sender queues its item and then checks the
//! flag. Both sequences are sequentially consistent, so at least one side sees the other. A wake-up costs a system
//! call, therefore a sender calls `wake` once per batch, and nothing happens if the owner is awake.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{Receiver, SendError, SyncSender, TrySendError, sync_channel};

/// Maximum number of items in a mailbox.
pub(crate) const MAILBOX_ITEMS_MAX: usize = 1024;

/// Maximum number of bytes in a mailbox. An empty mailbox accepts one item of any size.
pub(crate) const MAILBOX_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(crate) trait WeightBytes: Send {
    fn weight_bytes(&self) -> usize;
}

/// Wakes the owner from its poll.
pub(crate) trait OwnerWaker: Send + Sync {
    fn wake(&self) -> io::Result<()>;
}

impl OwnerWaker for mio::Waker {
    fn wake(&self) -> io::Result<()> {
        self.wake()
    }
}

/// Why an item was not sent. Contains the item.
#[derive(Debug)]
pub(crate) enum UnsentItem<T> {
    Full(T),
    /// The owner has stopped and will not read any more.
    Closed(T),
}

/// The owner's side.
pub(crate) struct Mailbox<T> {
    receiver: Receiver<T>,
    /// An item found by the check before sleeping.
    found: Option<T>,
    shared: Arc<MailboxShared>,
}

/// A sender's side.
pub(crate) struct MailboxSender<T> {
    sender: SyncSender<T>,
    shared: Arc<MailboxShared>,
}

struct MailboxShared {
    is_asleep: AtomicBool,
    queued_bytes: AtomicUsize,
    bytes_max: usize,
    waker: Box<dyn OwnerWaker>,
}

pub(crate) fn mailbox<T: WeightBytes>(
    waker: Box<dyn OwnerWaker>,
    items: usize,
    bytes: usize,
) -> (MailboxSender<T>, Mailbox<T>) {
    let (sender, receiver) = sync_channel(items);
    let shared = Arc::new(MailboxShared {
        is_asleep: AtomicBool::new(false),
        queued_bytes: AtomicUsize::new(0),
        bytes_max: bytes,
        waker,
    });
    (
        MailboxSender {
            sender,
            shared: shared.clone(),
        },
        Mailbox {
            receiver,
            found: None,
            shared,
        },
    )
}

impl<T> Clone for MailboxSender<T> {
    fn clone(&self) -> Self {
        MailboxSender {
            sender: self.sender.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<T: WeightBytes> MailboxSender<T> {
    /// Queues an item without a wake-up. Call `wake` after the last item of a batch.
    pub(crate) fn try_send(&self, item: T) -> Result<(), UnsentItem<T>> {
        let weight = item.weight_bytes();
        let before = self.shared.queued_bytes.fetch_add(weight, Ordering::Relaxed);
        if weight > 0 && before > 0 && before + weight > self.shared.bytes_max {
            self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            return Err(UnsentItem::Full(item));
        }
        self.sender.try_send(item).map_err(|error| {
            self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            match error {
                TrySendError::Full(item) => UnsentItem::Full(item),
                TrySendError::Disconnected(item) => UnsentItem::Closed(item),
            }
        })
    }

    /// Queues an item, and waits for space. Only for threads on which no worker waits.
    pub(crate) fn send(&self, item: T) -> Result<(), UnsentItem<T>> {
        let weight = item.weight_bytes();
        self.shared.queued_bytes.fetch_add(weight, Ordering::Relaxed);
        if let Err(SendError(item)) = self.sender.send(item) {
            self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            return Err(UnsentItem::Closed(item));
        }
        self.wake();
        Ok(())
    }

    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.shared.is_asleep.load(Ordering::SeqCst) && self.shared.is_asleep.swap(false, Ordering::SeqCst) {
            // Waking fails only if the waker's counter is at its maximum, and then a wake-up is already pending.
            let _ = self.shared.waker.wake();
        }
    }
}

impl<T: WeightBytes> Mailbox<T> {
    /// Returns the next item, in the order in which items were queued.
    pub(crate) fn next(&mut self) -> Option<T> {
        let item = match self.found.take() {
            Some(item) => item,
            None => self.receiver.try_recv().ok()?,
        };
        self.shared
            .queued_bytes
            .fetch_sub(item.weight_bytes(), Ordering::Relaxed);
        Some(item)
    }

    pub(crate) fn has_item(&mut self) -> bool {
        if self.found.is_none() {
            self.found = self.receiver.try_recv().ok();
        }
        self.found.is_some()
    }

    /// Call before a poll that may block. Returns `false` if an item is queued, so that the poll must not block.
    pub(crate) fn can_sleep(&mut self) -> bool {
        if self.found.is_some() {
            return false;
        }
        self.shared.is_asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.has_item() {
            self.set_awake();
            return false;
        }
        true
    }

    /// Call right after the poll.
    pub(crate) fn set_awake(&self) {
        self.shared.is_asleep.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::thread;

    #[derive(Debug, PartialEq, Eq, Clone, Copy)]
    struct MailboxNote {
        sender: usize,
        number: usize,
        weight: usize,
    }

    impl WeightBytes for MailboxNote {
        fn weight_bytes(&self) -> usize {
            self.weight
        }
    }

    #[derive(Default)]
    struct CountingWaker {
        wake_ups: Mutex<usize>,
        condition: Condvar,
    }

    impl OwnerWaker for Arc<CountingWaker> {
        fn wake(&self) -> io::Result<()> {
            *self.wake_ups.lock().unwrap() += 1;
            self.condition.notify_all();
            Ok(())
        }
    }

    fn note(number: usize, weight: usize) -> MailboxNote {
        MailboxNote {
            sender: 0,
            number,
            weight,
        }
    }

    #[test]
    fn items_arrive_in_order_and_a_full_mailbox_returns_them() {
        let waker = Arc::new(CountingWaker::default());
        let (to_owner, mut mailbox) = mailbox(Box::new(waker), 2, 1000);
        to_owner.try_send(note(1, 0)).unwrap();
        to_owner.try_send(note(2, 0)).unwrap();
        assert!(matches!(
            to_owner.try_send(note(3, 0)),
            Err(UnsentItem::Full(MailboxNote { number: 3, .. }))
        ));
        assert_eq!(mailbox.next().unwrap().number, 1);
        to_owner.try_send(note(3, 0)).unwrap();
        assert_eq!(mailbox.next().unwrap().number, 2);
        assert_eq!(mailbox.next().unwrap().number, 3);
        assert!(mailbox.next().is_none());
    }

    #[test]
    fn bytes_are_bounded_but_one_item_always_fits() {
        let waker = Arc::new(CountingWaker::default());
        let (to_owner, mut mailbox) = mailbox(Box::new(waker), 100, 1000);
        to_owner.try_send(note(1, 5000)).unwrap();
        assert!(matches!(to_owner.try_send(note(2, 1)), Err(UnsentItem::Full(_))));
        to_owner.try_send(note(3, 0)).unwrap();
        mailbox.next().unwrap();
        to_owner.try_send(note(2, 1000)).unwrap();
        assert!(matches!(to_owner.try_send(note(4, 1)), Err(UnsentItem::Full(_))));
    }

    #[test]
    fn wake_up_happens_once_and_only_for_a_sleeping_owner() {
        let waker = Arc::new(CountingWaker::default());
        let (to_owner, mut mailbox) = mailbox(Box::new(waker.clone()), 100, 1000);
        to_owner.try_send(note(1, 0)).unwrap();
        to_owner.wake();
        assert_eq!(*waker.wake_ups.lock().unwrap(), 0);
        assert!(!mailbox.can_sleep(), "an item is queued");
        mailbox.next().unwrap();
        assert!(mailbox.can_sleep());
        for number in 0..3 {
            to_owner.try_send(note(number, 0)).unwrap();
            to_owner.wake();
        }
        assert_eq!(*waker.wake_ups.lock().unwrap(), 1);
    }

    #[test]
    fn send_to_a_stopped_owner_fails() {
        let (to_owner, mailbox) = mailbox(Box::new(Arc::new(CountingWaker::default())), 1, 1);
        drop(mailbox);
        assert!(matches!(to_owner.try_send(note(1, 0)), Err(UnsentItem::Closed(_))));
        assert!(matches!(to_owner.send(note(1, 0)), Err(UnsentItem::Closed(_))));
    }

    /// Four threads send to a tiny mailbox; the owner sleeps whenever it may. A lost wake-up would hang the test.
    #[test]
    fn concurrent_senders_keep_order_and_lose_no_wake_up() {
        const SENDERS: usize = 4;
        const ITEMS: usize = 20_000;
        let waker = Arc::new(CountingWaker::default());
        let (to_owner, mut mailbox) = mailbox(Box::new(waker.clone()), 8, 64);
        let threads: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let to_owner = to_owner.clone();
                thread::spawn(move || {
                    for number in 0..ITEMS {
                        let mut item = MailboxNote {
                            sender,
                            number,
                            weight: number % 16,
                        };
                        while let Err(UnsentItem::Full(back)) = to_owner.try_send(item) {
                            item = back;
                            thread::yield_now();
                        }
                        to_owner.wake();
                    }
                })
            })
            .collect();
        let mut next = [0; SENDERS];
        let mut handled = 0;
        while next.iter().sum::<usize>() < SENDERS * ITEMS {
            while let Some(item) = mailbox.next() {
                assert_eq!(item.number, next[item.sender]);
                next[item.sender] += 1;
            }
            if next.iter().sum::<usize>() < SENDERS * ITEMS && mailbox.can_sleep() {
                let mut wake_ups = waker.wake_ups.lock().unwrap();
                while *wake_ups == handled {
                    wake_ups = waker.condition.wait(wake_ups).unwrap();
                }
                handled = *wake_ups;
            }
            mailbox.set_awake();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(mailbox.shared.queued_bytes.load(Ordering::Relaxed), 0);
    }
}
