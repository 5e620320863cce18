//! What threads send to a worker: one bounded queue with one order for all senders, and a bell that rings only for a sleeper.
//!
//! Bounded twice: by letters, and by the bytes they weigh, because mail of a whole tick can be large. A letter that does
//! not fit comes back to its sender, who keeps it.
//!
//! Why this cannot deadlock: a worker never waits for space in another's mailbox. While it holds letters back it stops reading
//! sockets, which is what makes new mail, but goes on emptying its own mailbox and writing to sockets; neither can wait.
//! So every full mailbox is emptied by its owner at the owner's next tick, whatever the owner itself holds back.
//!
//! Sleeping: the owner raises `is_asleep` and then looks once more into the queue; a sender puts its letter in and then looks at
//! the flag. Both orders are sequentially consistent, so at least one of them sees the other. A bell costs a system call,
//! hence one `ring` per batch, and none while the owner is awake.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{Receiver, SendError, SyncSender, TrySendError, sync_channel};

/// Letters a mailbox holds.
pub(crate) const MAILBOX_LETTERS: usize = 1024;

/// Bytes a mailbox holds; an empty one takes a single letter of any weight.
pub(crate) const MAILBOX_BYTES: usize = 16 * 1024 * 1024;

pub(crate) trait Weight: Send {
    fn weight_bytes(&self) -> usize;
}

/// Wakes the owner out of its poll.
pub(crate) trait Bell: Send + Sync {
    fn ring(&self) -> io::Result<()>;
}

impl Bell for mio::Waker {
    fn ring(&self) -> io::Result<()> {
        self.wake()
    }
}

/// Why a letter came back.
#[derive(Debug)]
pub(crate) enum Returned<T> {
    Full(T),
    /// The owner has ended; nothing will ever be read.
    Gone(T),
}

/// The owner's end.
pub(crate) struct Mailbox<T> {
    receiver: Receiver<T>,
    /// Found when about to sleep.
    found: Option<T>,
    shared: Arc<Shared>,
}

/// A sender's end.
pub(crate) struct Address<T> {
    sender: SyncSender<T>,
    shared: Arc<Shared>,
}

struct Shared {
    is_asleep: AtomicBool,
    queued_bytes: AtomicUsize,
    bytes_max: usize,
    bell: Box<dyn Bell>,
}

pub(crate) fn mailbox<T: Weight>(bell: Box<dyn Bell>, letters: usize, bytes: usize) -> (Address<T>, Mailbox<T>) {
    let (sender, receiver) = sync_channel(letters);
    let shared = Arc::new(Shared {
        is_asleep: AtomicBool::new(false),
        queued_bytes: AtomicUsize::new(0),
        bytes_max: bytes,
        bell,
    });
    (
        Address {
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

impl<T> Clone for Address<T> {
    fn clone(&self) -> Self {
        Address {
            sender: self.sender.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<T: Weight> Address<T> {
    /// Puts a letter in without ringing; call `ring` after the last one of a batch.
    pub(crate) fn offer(&self, letter: T) -> Result<(), Returned<T>> {
        let weight = letter.weight_bytes();
        let before = self.shared.queued_bytes.fetch_add(weight, Ordering::Relaxed);
        if weight > 0 && before > 0 && before + weight > self.shared.bytes_max {
            self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            return Err(Returned::Full(letter));
        }
        self.sender.try_send(letter).map_err(|error| {
            self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            match error {
                TrySendError::Full(letter) => Returned::Full(letter),
                TrySendError::Disconnected(letter) => Returned::Gone(letter),
            }
        })
    }

    /// Waits for space. Only for threads that no worker waits for.
    pub(crate) fn send(&self, letter: T) -> Result<(), Returned<T>> {
        let weight = letter.weight_bytes();
        self.shared.queued_bytes.fetch_add(weight, Ordering::Relaxed);
        if let Err(SendError(letter)) = self.sender.send(letter) {
            self.shared.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
            return Err(Returned::Gone(letter));
        }
        self.ring();
        Ok(())
    }

    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.shared.is_asleep.load(Ordering::SeqCst) && self.shared.is_asleep.swap(false, Ordering::SeqCst) {
            // The bell can only fail when its counter is at its maximum, and then the owner is being woken already.
            let _ = self.shared.bell.ring();
        }
    }
}

impl<T: Weight> Mailbox<T> {
    /// The next letter, in the order in which they were accepted.
    pub(crate) fn next(&mut self) -> Option<T> {
        let letter = match self.found.take() {
            Some(letter) => letter,
            None => self.receiver.try_recv().ok()?,
        };
        self.shared
            .queued_bytes
            .fetch_sub(letter.weight_bytes(), Ordering::Relaxed);
        Some(letter)
    }

    pub(crate) fn has_letter(&mut self) -> bool {
        if self.found.is_none() {
            self.found = self.receiver.try_recv().ok();
        }
        self.found.is_some()
    }

    /// To be called right before a poll that may wait: false when a letter is there and the poll must not wait.
    pub(crate) fn may_sleep(&mut self) -> bool {
        if self.found.is_some() {
            return false;
        }
        self.shared.is_asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.has_letter() {
            self.awake();
            return false;
        }
        true
    }

    /// To be called right after the poll.
    pub(crate) fn awake(&self) {
        self.shared.is_asleep.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::thread;

    #[derive(Debug, PartialEq, Eq, Clone, Copy)]
    struct Note {
        sender: usize,
        number: usize,
        weight: usize,
    }

    impl Weight for Note {
        fn weight_bytes(&self) -> usize {
            self.weight
        }
    }

    #[derive(Default)]
    struct Handbell {
        rung: Mutex<usize>,
        condition: Condvar,
    }

    impl Bell for Arc<Handbell> {
        fn ring(&self) -> io::Result<()> {
            *self.rung.lock().unwrap() += 1;
            self.condition.notify_all();
            Ok(())
        }
    }

    fn note(number: usize, weight: usize) -> Note {
        Note {
            sender: 0,
            number,
            weight,
        }
    }

    #[test]
    fn letters_arrive_in_order_and_a_full_box_returns_them() {
        let bell = Arc::new(Handbell::default());
        let (address, mut mailbox) = mailbox(Box::new(bell), 2, 1000);
        address.offer(note(1, 0)).unwrap();
        address.offer(note(2, 0)).unwrap();
        assert!(matches!(
            address.offer(note(3, 0)),
            Err(Returned::Full(Note { number: 3, .. }))
        ));
        assert_eq!(mailbox.next().unwrap().number, 1);
        address.offer(note(3, 0)).unwrap();
        assert_eq!(mailbox.next().unwrap().number, 2);
        assert_eq!(mailbox.next().unwrap().number, 3);
        assert!(mailbox.next().is_none());
    }

    #[test]
    fn weight_is_bounded_but_one_letter_always_fits() {
        let bell = Arc::new(Handbell::default());
        let (address, mut mailbox) = mailbox(Box::new(bell), 100, 1000);
        address.offer(note(1, 5000)).unwrap();
        assert!(matches!(address.offer(note(2, 1)), Err(Returned::Full(_))));
        address.offer(note(3, 0)).unwrap();
        mailbox.next().unwrap();
        address.offer(note(2, 1000)).unwrap();
        assert!(matches!(address.offer(note(4, 1)), Err(Returned::Full(_))));
    }

    #[test]
    fn the_bell_rings_once_and_only_for_a_sleeper() {
        let bell = Arc::new(Handbell::default());
        let (address, mut mailbox) = mailbox(Box::new(bell.clone()), 100, 1000);
        address.offer(note(1, 0)).unwrap();
        address.ring();
        assert_eq!(*bell.rung.lock().unwrap(), 0);
        assert!(!mailbox.may_sleep(), "there is a letter");
        mailbox.next().unwrap();
        assert!(mailbox.may_sleep());
        for number in 0..3 {
            address.offer(note(number, 0)).unwrap();
            address.ring();
        }
        assert_eq!(*bell.rung.lock().unwrap(), 1);
    }

    #[test]
    fn a_mailbox_whose_owner_ended_says_so() {
        let (address, mailbox) = mailbox(Box::new(Arc::new(Handbell::default())), 1, 1);
        drop(mailbox);
        assert!(matches!(address.offer(note(1, 0)), Err(Returned::Gone(_))));
        assert!(matches!(address.send(note(1, 0)), Err(Returned::Gone(_))));
    }

    /// Four threads push against a tiny mailbox; the owner sleeps on the bell whenever it may. A lost wake-up would hang here.
    #[test]
    fn many_senders_keep_their_own_order_and_no_wake_up_is_lost() {
        const SENDERS: usize = 4;
        const LETTERS: usize = 20_000;
        let bell = Arc::new(Handbell::default());
        let (address, mut mailbox) = mailbox(Box::new(bell.clone()), 8, 64);
        let threads: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let address = address.clone();
                thread::spawn(move || {
                    for number in 0..LETTERS {
                        let mut letter = Note {
                            sender,
                            number,
                            weight: number % 16,
                        };
                        while let Err(Returned::Full(back)) = address.offer(letter) {
                            letter = back;
                            thread::yield_now();
                        }
                        address.ring();
                    }
                })
            })
            .collect();
        let mut next = [0; SENDERS];
        let mut heard = 0;
        while next.iter().sum::<usize>() < SENDERS * LETTERS {
            while let Some(letter) = mailbox.next() {
                assert_eq!(letter.number, next[letter.sender]);
                next[letter.sender] += 1;
            }
            if next.iter().sum::<usize>() < SENDERS * LETTERS && mailbox.may_sleep() {
                let mut rung = bell.rung.lock().unwrap();
                while *rung == heard {
                    rung = bell.condition.wait(rung).unwrap();
                }
                heard = *rung;
            }
            mailbox.awake();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(mailbox.shared.queued_bytes.load(Ordering::Relaxed), 0);
    }
}
