//! One shard's event loop. It owns one shard, its connections and their buffers; nothing else touches them.
//!
//! A tick: poll → note what is ready → tell the shard what the last flush brought about → empty the mailbox → accept → read → timers →
//! do what the shard asked for → hand mail to other workers → write every connection that got something, once. All inputs to
//! the shard come before the flush, so that its output leaves in one write per connection and tick.
//!
//! `crew.rs` polls and calls for ticks. Nothing in a tick may block; work that may is done elsewhere and comes back as a letter.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use broker::{Checkpointed, CloseCause, ConnSlot, Effect, Mail, Now, Shard, ShardId};
use mio::{Events, Interest, Poll, Token, Waker};

use ::journal::{Health, Lsn};

use crate::accept::Acceptor;
use crate::auth_pool::AuthQueue;
use crate::counters::{NetCounters, Refusal};
use crate::crew::Lodger;
use crate::deadlines::Deadlines;
use crate::flush::Notice;
use crate::handshake::POT_BYTES;
use crate::latency::AckLatency;
use crate::letter::Letter;
use crate::mailbox::{self, Address, MAILBOX_BYTES, MAILBOX_LETTERS, Mailbox, Weight};
use crate::outlet::Scratch;
use crate::receive::ReadBuffers;
use crate::server::Common;
use crate::slots::Slots;

const WAKE: Token = Token(usize::MAX);

/// Tokens below are connections, by slot; above are listeners, by index.
const FIRST_LISTENER: usize = u32::MAX as usize + 1;

/// Workers that lodge with this one, by shard: far above the listeners.
pub(crate) const FIRST_LODGER: usize = 1 << 48;

/// How soon a worker looks again for space in a full mailbox. Only then, and while shutting down, does it look without being woken.
const RETRY_MS: u64 = 1;

/// Connections told to go per tick of a shutdown.
const SHUT_DOWN_BATCH: usize = 256;

/// What a worker is made of, before its thread runs: everything that can fail.
pub(crate) struct WorkerSeat {
    pub(crate) id: ShardId,
    pub(crate) address: Address<Letter>,
    poll: Poll,
    mailbox: Mailbox<Letter>,
    acceptors: Vec<Acceptor>,
}

impl WorkerSeat {
    pub(crate) fn new(id: ShardId, sockets: &[TcpListener]) -> io::Result<WorkerSeat> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let (address, mailbox) = mailbox::mailbox(Box::new(waker), MAILBOX_LETTERS, MAILBOX_BYTES);
        let mut acceptors = Vec::new();
        for (index, socket) in sockets.iter().enumerate() {
            let mut socket = mio::net::TcpListener::from_std(socket.try_clone()?);
            poll.registry()
                .register(&mut socket, Token(FIRST_LISTENER + index), Interest::READABLE)?;
            acceptors.push(Acceptor {
                socket,
                is_ready: true,
                paused_until_ms: 0,
            });
        }
        Ok(WorkerSeat {
            id,
            address,
            poll,
            mailbox,
            acceptors,
        })
    }
}

pub(crate) struct Worker {
    pub(crate) id: ShardId,
    pub(crate) common: Arc<Common>,
    pub(crate) shard: Shard,
    pub(crate) now: Now,
    pub(crate) poll: Poll,
    pub(crate) slots: Slots,
    pub(crate) acceptors: Vec<Acceptor>,
    /// Per listener; replaced by a reload.
    pub(crate) tls_configs: Vec<Option<Arc<rustls::ServerConfig>>>,
    pub(crate) counters: NetCounters,
    pub(crate) latency: AckLatency,
    pub(crate) buffers: ReadBuffers,
    pub(crate) scratch: Scratch,
    pub(crate) ready_list: Vec<u32>,
    pub(crate) flush_list: Vec<u32>,
    pub(crate) dirty: Vec<ConnSlot>,
    pub(crate) notices: Vec<Notice>,
    /// Per listener: each has its own timeout.
    pub(crate) handshake_deadlines: Vec<Deadlines>,
    pub(crate) handshake_pot_bytes: usize,
    linger_deadlines: Deadlines,
    pub(crate) mailbox: Mailbox<Letter>,
    pub(crate) addresses: Vec<Address<Letter>>,
    /// Letters that a full mailbox has returned, by worker. While there are any, no socket is read.
    pub(crate) held: Vec<VecDeque<Letter>>,
    pub(crate) held_letters: usize,
    /// Connections whose output waits until those are gone.
    pub(crate) held_output: Vec<u32>,
    /// Which workers got something in this tick and may be asleep.
    pub(crate) rings: Vec<bool>,
    /// Workers that want to lodge with this one's thread.
    pub(crate) newcomers: Vec<Lodger>,
    pub(crate) auth: AuthQueue,
    pub(crate) effects: Vec<Effect>,
    /// The end of what this worker has appended, and how far it has heard that the journal is.
    pub(crate) appended: Lsn,
    pub(crate) committed: Lsn,
    /// The end of what it has appended last, if nobody waits for that.
    pub(crate) at_leisure: Lsn,
    pub(crate) journal_health: Health,
    /// Checkpoints that this worker has begun.
    pub(crate) checkpoints: u64,
    /// What the last one came to, and the end of its records; until the journal has them.
    pub(crate) checkpointed: Option<(Checkpointed, Lsn)>,
    clock: Clock,
    stopping: Option<Stopping>,
}

#[derive(Clone, Copy)]
struct Stopping {
    deadline_ms: u64,
    /// The shard has said that everybody has been told.
    is_everyone_told: bool,
}

impl Worker {
    pub(crate) fn new(
        seat: WorkerSeat,
        shard: Shard,
        common: Arc<Common>,
        auth: AuthQueue,
        addresses: Vec<Address<Letter>>,
    ) -> Worker {
        let clock = Clock { origin: common.origin };
        let config = &common.config;
        let now = clock.now();
        Worker {
            id: seat.id,
            shard,
            now,
            poll: seat.poll,
            slots: Slots::new(),
            acceptors: seat.acceptors,
            tls_configs: common
                .listeners
                .iter()
                .map(|listener| listener.config.tls.clone())
                .collect(),
            counters: NetCounters::default(),
            latency: AckLatency::default(),
            buffers: ReadBuffers::new(),
            scratch: Scratch::default(),
            ready_list: Vec::new(),
            flush_list: Vec::new(),
            dirty: Vec::new(),
            notices: Vec::new(),
            handshake_deadlines: common
                .listeners
                .iter()
                .map(|listener| Deadlines::new(millis(listener.config.handshake_timeout)))
                .collect(),
            handshake_pot_bytes: POT_BYTES,
            linger_deadlines: Deadlines::new(millis(config.linger_timeout)),
            mailbox: seat.mailbox,
            held: addresses.iter().map(|_| VecDeque::new()).collect(),
            held_letters: 0,
            held_output: Vec::new(),
            rings: vec![false; addresses.len()],
            newcomers: Vec::new(),
            addresses,
            auth,
            effects: Vec::new(),
            // What restoring has recorded is not known to be kept.
            appended: common.keeper.journal().map_or(Lsn(0), |journal| journal.stats().next),
            committed: Lsn(0),
            at_leisure: Lsn(0),
            journal_health: Health::Ok,
            checkpoints: 0,
            checkpointed: None,
            clock,
            stopping: None,
            common,
        }
    }

    pub(crate) fn poll(&mut self, events: &mut Events, timeout: Option<Duration>) {
        if let Err(error) = self.poll.poll(events, timeout) {
            // Anything but a signal means that the loop itself is broken, and a worker that spins helps nobody.
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "poll failed: {error}");
        }
    }

    /// Whether there is something to do that no event of the poll tells.
    pub(crate) fn is_due(&mut self, now_ms: u64) -> bool {
        self.mailbox.has_letter() || self.due_ms().is_some_and(|due_ms| due_ms <= now_ms)
    }

    pub(crate) fn tick(&mut self, events: &Events) {
        let (began, now) = self.clock.read();
        let appended_before = self.appended;
        self.now = now;
        self.counters.ticks += 1;
        // Before anything is recorded: what was recorded before has been appended.
        self.walk_on();
        self.shard.begin_tap_tick(self.now);
        // First, while every slot is still that of the connection the event is for.
        self.note_events(events);
        self.deliver_notices();
        self.hear_of_journal();
        self.do_effects();
        self.read_mailbox();
        self.accept_ready();
        self.send_held();
        if self.may_read() {
            self.read_ready();
        } else {
            self.shard.is_not_reading(self.now);
        }
        self.run_timers();
        self.shut_down_more();
        self.do_effects();
        self.flush_all();
        self.note_latency(began, appended_before);
        self.common.counters[usize::from(self.id.0)].publish(&self.counters);
    }

    /// When it has something to do that no event and no letter tells; 0 is at once.
    pub(crate) fn due_ms(&self) -> Option<u64> {
        let has_to_read = !self.ready_list.is_empty();
        if (has_to_read && self.may_read())
            || !self.flush_list.is_empty()
            || !self.notices.is_empty()
            || self.is_journal_news()
        {
            return Some(0);
        }
        let paused = self
            .acceptors
            .iter()
            .filter(|acceptor| acceptor.is_ready)
            .map(|acceptor| acceptor.paused_until_ms);
        if self.shard.is_walking() {
            return Some(0);
        }
        // Nobody says that others hold less.
        let looks_again = self.held_letters > 0 || (has_to_read && self.do_others_hold()) || self.stopping.is_some();
        [
            self.shard.next_deadline(),
            self.handshake_deadlines.iter().filter_map(Deadlines::next_ms).min(),
            self.linger_deadlines.next_ms(),
            looks_again.then_some(self.now.monotonic_ms + RETRY_MS),
            self.look_at_journal_ms(),
        ]
        .into_iter()
        .flatten()
        .chain(paused)
        .min()
    }

    fn note_events(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                WAKE => {}
                Token(index) if index >= FIRST_LISTENER => {
                    if let Some(acceptor) = self.acceptors.get_mut(index - FIRST_LISTENER) {
                        acceptor.is_ready = true;
                    }
                }
                Token(slot) => self.note_event(slot as u32, event),
            }
        }
    }

    fn note_event(&mut self, slot: u32, event: &mio::event::Event) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if event.is_error() {
            return self.broken(slot);
        }
        if (event.is_writable() || event.is_write_closed()) && connection.is_write_blocked {
            connection.is_write_blocked = false;
            self.list_for_flush(slot);
        }
        if event.is_readable() || event.is_read_closed() {
            let Some(connection) = self.slots.get_mut(slot) else {
                return;
            };
            connection.is_readable = true;
            connection.is_read_closed |= event.is_read_closed();
            self.list_for_read(slot);
        }
    }

    /// What a mailbox holds at most: a sender that is as fast as this would keep the tick from its end.
    fn read_mailbox(&mut self) {
        let mut bytes = 0;
        for _ in 0..MAILBOX_LETTERS {
            if bytes >= MAILBOX_BYTES {
                return;
            }
            let Some(letter) = self.mailbox.next() else { return };
            bytes += letter.weight_bytes();
            match letter {
                Letter::Mail(mail) => self.mail(mail),
                Letter::HandedOver(handed_over) => self.handed_over(*handed_over),
                Letter::EndTenure(tenure) => self.end_tenure(&tenure),
                Letter::Arrival(arrival) => self.arrived(*arrival),
                Letter::Authenticated { ticket, outcome } => self.authenticated(ticket, outcome),
                Letter::Call(call) => call(&mut self.shard, self.now),
                Letter::Committed => self.hear_of_journal(),
                Letter::ReloadTls { listener, config } => {
                    if let Some(current) = self.tls_configs.get_mut(usize::from(listener)) {
                        *current = Some(config);
                    }
                }
                Letter::Lodger(lodger) => self.newcomers.push(lodger),
                Letter::ShutDown { deadline } => self.begin_shut_down(deadline),
            }
        }
    }

    fn mail(&mut self, mail: Mail) {
        self.shard.mail(self.now, mail);
        if self.shard.outbox().is_over_soft_limit() {
            self.flush_all();
        }
    }

    fn run_timers(&mut self) {
        self.shard.run_timers(self.now);
        let now_ms = self.now.monotonic_ms;
        while let Some(conn) = self
            .handshake_deadlines
            .iter_mut()
            .find_map(|deadlines| deadlines.pop_due(now_ms))
        {
            if self.slots.is_current(conn) && self.is_in_handshake(conn.slot) {
                self.refuse(conn.slot, Refusal::HandshakeTimeout);
            }
        }
        while let Some(conn) = self.linger_deadlines.pop_due(self.now.monotonic_ms) {
            self.linger_is_over(conn);
        }
    }

    pub(crate) fn linger_until_deadline(&mut self, slot: u32) {
        if let Some(conn) = self.slots.reference(slot) {
            self.linger_deadlines.push(self.now.monotonic_ms, conn);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    fn begin_shut_down(&mut self, deadline: Instant) {
        self.acceptors.clear();
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline_ms = self.now.monotonic_ms + millis(left);
        self.stopping = Some(Stopping {
            deadline_ms,
            is_everyone_told: false,
        });
        for slot in self.slots.occupied() {
            if self.is_in_handshake(slot) {
                self.refuse(slot, Refusal::ShuttingDown);
            }
        }
    }

    fn shut_down_more(&mut self) {
        if let Some(stopping) = &mut self.stopping
            && !stopping.is_everyone_told
        {
            stopping.is_everyone_told = !self.shard.shut_down(self.now, SHUT_DOWN_BATCH);
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.stopping.is_some_and(|stopping| {
            let is_everyone_gone = stopping.is_everyone_told && self.slots.len() == 0 && self.notices.is_empty();
            is_everyone_gone || self.now.monotonic_ms >= stopping.deadline_ms
        })
    }

    /// Whoever is still here had its time. The shard hears of each.
    pub(crate) fn end(&mut self) {
        for slot in self.slots.occupied() {
            self.closed(slot, CloseCause::Requested);
            self.remove(slot);
        }
        self.do_effects();
        self.append_to_journal();
        self.common.counters[usize::from(self.id.0)].publish(&self.counters);
    }
}

/// Each shard draws from its own sequence.
pub(crate) fn seed_of(seed: u64, id: ShardId) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    seed.wrapping_add(GOLDEN.wrapping_mul(u64::from(id.0) + 1))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What the monotonic clock begins with: what was before the process has a time too.
pub(crate) const MONOTONIC_START_MS: u64 = 1 << 42;

/// The same for all workers of a server, so that a deadline means the same everywhere.
pub(crate) struct Clock {
    pub(crate) origin: Instant,
}

impl Clock {
    pub(crate) fn now(&self) -> Now {
        self.read().1
    }

    /// The same, as the system tells it, too.
    pub(crate) fn read(&self) -> (Instant, Now) {
        let instant = Instant::now();
        let unix = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = Now {
            monotonic_ms: MONOTONIC_START_MS + millis(instant.saturating_duration_since(self.origin)),
            unix_ms: millis(unix),
        };
        (instant, now)
    }
}
