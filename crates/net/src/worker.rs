//! The event loop of one worker. A worker exclusively owns one shard, its connections and their buffers.
//!
//! A tick: poll → record which sockets are ready → tell the shard the results of the last flush → process the mailbox →
//! accept → read → run timers → perform the shard's effects → send messages to other workers → write each connection
//! with output, once. All inputs to the shard come before the flush, so that its output leaves in one write per
//! connection and tick.
//!
//! `thread_sharing.rs` polls and calls `tick`. Nothing in a tick may block. Blocking work runs on other threads, and
//! its result arrives as a mailbox item.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use broker::{CloseCause, ConnSlot, Effect, FinishedCheckpoint, Mail, Now, Shard, ShardId};
use mio::{Events, Poll, Token, Waker};

use ::journal::{LogHealth, Lsn};

use crate::acceptor::{self, Acceptor};
use crate::auth_pool::AuthQueue;
use crate::client_presence::WaitingClient;
use crate::clock::millis;
use crate::counters::{EarlyCloseReason, NetCounters};
use crate::deadlines::Deadlines;
use crate::flush_notice::FlushNotice;
use crate::latency::{AckLatency, EndedTick};
use crate::listener::ListenerSocket;
use crate::mailbox::{self, MAILBOX_BYTES_MAX, MAILBOX_ITEMS_MAX, Mailbox, MailboxSender, WeightBytes};
use crate::mailbox_item::MailboxItem;
use crate::outlet::WriteBuffers;
use crate::quic::QuicWorker;
use crate::read_buffers::ReadBuffers;
use crate::server_common::ServerCommon;
use crate::slots::SlotTable;
use crate::thread_sharing::{EVENTS, SharedThreadWorker};

const WAKE: Token = Token(usize::MAX);

/// Lower tokens are connections, by slot: a process has fewer descriptors than a quarter of the tokens, also with 32
/// bits. Tokens from here on are listeners, by index.
pub(crate) const FIRST_LISTENER: usize = 1 << (usize::BITS - 2);

/// First token of workers that share this worker's thread, by shard: far above the listeners.
pub(crate) const FIRST_SHARED_WORKER: usize = 1 << (usize::BITS - 1);

/// Maximum time for which deadlines wait until sockets are read. Under constant load some sockets always have data.
const DEADLINES_HELD_MAX_MS: u64 = 2_000;

/// A longer time between two ticks means that the process stalled or was idle.
const STALL_MS: u64 = 500;

/// Interval for checking whether a full mailbox has space. Only then, and during a shutdown, does a worker check
/// without an event.
const RETRY_MS: u64 = 1;

/// Size of the pool for connections that buffer more than usual in their handshake.
const HANDSHAKE_POOL_BYTES: usize = 8 * 1024 * 1024;

/// Maximum number of connections disconnected per tick of a shutdown.
const SHUT_DOWN_BATCH: usize = 256;

/// Resources of a worker that are created before its thread, because creating them may fail.
pub(crate) struct WorkerResources {
    pub(crate) id: ShardId,
    pub(crate) address: MailboxSender<MailboxItem>,
    poll: Poll,
    mailbox: Mailbox<MailboxItem>,
    acceptors: Vec<Option<Acceptor>>,
    quic: QuicWorker,
}

impl WorkerResources {
    pub(crate) fn new(id: ShardId, sockets: &[ListenerSocket], common: &ServerCommon) -> io::Result<WorkerResources> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let (address, mailbox) = mailbox::mailbox(Box::new(waker), MAILBOX_ITEMS_MAX, MAILBOX_BYTES_MAX);
        let mut acceptors = Vec::new();
        for (index, socket) in sockets.iter().enumerate() {
            let ListenerSocket::Tcp(socket) = socket else {
                acceptors.push(None);
                continue;
            };
            let mut socket = mio::net::TcpListener::from_std(socket.try_clone()?);
            acceptor::register_listener(poll.registry(), &mut socket, Token(FIRST_LISTENER + index))?;
            acceptors.push(Some(Acceptor {
                socket,
                is_ready: true,
                paused_until_ms: 0,
            }));
        }
        let quic = QuicWorker::new(id, sockets, common, poll.registry())?;
        Ok(WorkerResources {
            id,
            address,
            poll,
            mailbox,
            acceptors,
            quic,
        })
    }
}

pub(crate) struct NetWorker {
    pub(crate) id: ShardId,
    pub(crate) common: Arc<ServerCommon>,
    pub(crate) shard: Shard,
    pub(crate) now: Now,
    pub(crate) poll: Poll,
    pub(crate) slots: SlotTable,
    /// By listener. `None` for QUIC.
    pub(crate) acceptors: Vec<Option<Acceptor>>,
    pub(crate) quic: QuicWorker,
    /// One per listener; replaced by a reload.
    pub(crate) tls_configs: Vec<Option<Arc<rustls::ServerConfig>>>,
    pub(crate) counters: NetCounters,
    pub(crate) latency: AckLatency,
    pub(crate) buffers: ReadBuffers,
    pub(crate) scratch: WriteBuffers,
    pub(crate) ready_list: Vec<ConnSlot>,
    pub(crate) flush_list: Vec<ConnSlot>,
    pub(crate) dirty: Vec<ConnSlot>,
    pub(crate) notices: Vec<FlushNotice>,
    /// One per listener, because each has its own timeout.
    pub(crate) handshake_deadlines: Vec<Deadlines>,
    pub(crate) handshake_pool_bytes: usize,
    linger_deadlines: Deadlines,
    /// Time since which deadlines wait until all sockets with data have been read.
    deadlines_held_since_ms: Option<u64>,
    /// The last poll may have been before a stall. Deadlines wait for another one.
    is_poll_stale: bool,
    pub(crate) mailbox: Mailbox<MailboxItem>,
    pub(crate) mailboxes: Vec<MailboxSender<MailboxItem>>,
    /// Items that a full mailbox has returned, by worker. While there are any, no socket is read.
    pub(crate) unsent: Vec<VecDeque<MailboxItem>>,
    pub(crate) unsent_items: usize,
    /// Connections whose output waits until those items are sent.
    pub(crate) held_output: Vec<ConnSlot>,
    /// Workers that received an item in this tick and may be asleep.
    pub(crate) workers_to_wake: Vec<bool>,
    /// Workers that have arrived to share this worker's thread.
    pub(crate) arrived_workers: Vec<SharedThreadWorker>,
    pub(crate) auth: AuthQueue,
    /// Clients with open questions to the authenticator.
    pub(crate) waiting_clients: HashMap<ConnSlot, WaitingClient>,
    pub(crate) effects: Vec<Effect>,
    /// End of the records that this worker has appended, and the committed position that it has processed.
    pub(crate) appended: Lsn,
    pub(crate) committed: Lsn,
    /// End of the last appended records if nothing waits for them; otherwise 0.
    pub(crate) deferred_end: Lsn,
    pub(crate) journal_health: LogHealth,
    /// Number of checkpoints that this worker has started.
    pub(crate) checkpoints: u64,
    /// Result of this worker's part of a checkpoint, and the end of its records, until they are committed.
    pub(crate) checkpointed: Option<(FinishedCheckpoint, Lsn)>,
    stopping: Option<ShutdownProgress>,
}

#[derive(Clone, Copy)]
struct ShutdownProgress {
    deadline_ms: u64,
    /// The shard has disconnected all clients.
    has_disconnected_all: bool,
}

impl NetWorker {
    pub(crate) fn new(
        resources: WorkerResources,
        shard: Shard,
        common: Arc<ServerCommon>,
        auth: AuthQueue,
        mailboxes: Vec<MailboxSender<MailboxItem>>,
    ) -> NetWorker {
        let config = &common.config;
        let now = common.clock.now();
        NetWorker {
            id: resources.id,
            shard,
            now,
            poll: resources.poll,
            slots: SlotTable::new(),
            acceptors: resources.acceptors,
            quic: resources.quic,
            tls_configs: common
                .listeners
                .iter()
                .map(|listener| listener.config.tls.clone())
                .collect(),
            counters: NetCounters::default(),
            latency: AckLatency::default(),
            buffers: ReadBuffers::new(),
            scratch: WriteBuffers::default(),
            ready_list: Vec::new(),
            flush_list: Vec::new(),
            dirty: Vec::new(),
            notices: Vec::new(),
            handshake_deadlines: common
                .listeners
                .iter()
                .map(|listener| Deadlines::new(millis(listener.config.handshake_timeout)))
                .collect(),
            handshake_pool_bytes: HANDSHAKE_POOL_BYTES,
            linger_deadlines: Deadlines::new(millis(config.linger_timeout)),
            deadlines_held_since_ms: None,
            is_poll_stale: false,
            mailbox: resources.mailbox,
            unsent: mailboxes.iter().map(|_| VecDeque::new()).collect(),
            unsent_items: 0,
            held_output: Vec::new(),
            workers_to_wake: vec![false; mailboxes.len()],
            arrived_workers: Vec::new(),
            mailboxes,
            auth,
            waiting_clients: HashMap::new(),
            effects: Vec::new(),
            // Records appended during recovery may not be committed yet.
            appended: common
                .node_journal
                .journal()
                .map_or(Lsn(0), |journal| journal.stats().next),
            committed: Lsn(0),
            deferred_end: Lsn(0),
            journal_health: LogHealth::Ok,
            checkpoints: 0,
            checkpointed: None,
            stopping: None,
            common,
        }
    }

    pub(crate) fn poll(&mut self, events: &mut Events, mut timeout: Option<Duration>) {
        while let Err(error) = self.poll.poll(events, timeout) {
            // Any error other than an interruption means that the loop is broken. Panic instead of spinning.
            assert_eq!(error.kind(), io::ErrorKind::Interrupted, "poll failed: {error}");
            // SIGCONT interrupts the poll of a stopped process. Without another poll, the tick would judge deadlines
            // before it knows which sockets have data.
            timeout = Some(Duration::ZERO);
        }
    }

    /// Returns whether there is work that the poll does not report.
    pub(crate) fn is_due(&mut self, now_ms: u64) -> bool {
        self.mailbox.has_item() || self.due_ms().is_some_and(|due_ms| due_ms <= now_ms)
    }

    pub(crate) fn tick(&mut self, events: &Events) {
        let (began, now) = self.common.clock.read();
        let appended_before = self.appended;
        let is_after_stall = now.monotonic_ms - self.now.monotonic_ms > STALL_MS;
        if is_after_stall {
            self.deadlines_held_since_ms = None;
        }
        // A process can be stopped between its poll and its reading of the clock. One more poll is enough, so that
        // ticks that are all slow do not hold deadlines for ever.
        self.is_poll_stale = is_after_stall && !self.is_poll_stale;
        self.now = now;
        self.counters.ticks += 1;
        // Before anything is recorded, so that everything recorded earlier has been appended.
        self.continue_checkpoint();
        self.shard.begin_tick(self.now);
        // First, while each slot still has the connection that the event belongs to.
        let has_all_events = self.record_events(events) < EVENTS;
        self.deliver_notices();
        self.process_commits();
        self.do_effects();
        self.read_mailbox();
        self.accept_ready();
        self.receive_quic();
        self.send_unsent();
        if self.can_read() {
            self.read_ready();
        } else {
            self.shard.is_not_reading(self.now);
        }
        if self.can_expire_deadlines(has_all_events) {
            self.run_timers();
        }
        self.continue_shut_down();
        self.do_effects();
        self.flush_all();
        self.transmit_quic();
        self.record_latency(began, appended_before);
        self.common.counters[usize::from(self.id.0)].publish(&self.counters);
    }

    /// Returns when there is work that neither the poll nor the mailbox reports, in monotonic milliseconds. 0 means
    /// now.
    pub(crate) fn due_ms(&self) -> Option<u64> {
        let has_to_read = !self.ready_list.is_empty();
        if (has_to_read && self.can_read())
            || !self.flush_list.is_empty()
            || !self.notices.is_empty()
            || self.is_poll_stale
            || self.has_new_commit()
        {
            return Some(0);
        }
        let paused = self
            .acceptors
            .iter()
            .flatten()
            .filter(|acceptor| acceptor.is_ready)
            .map(|acceptor| acceptor.paused_until_ms);
        if self.shard.inspect().is_checkpoint_active() {
            return Some(0);
        }
        // No event reports that other workers have fewer unsent bytes.
        let looks_again =
            self.unsent_items > 0 || (has_to_read && self.is_unsent_limit_reached()) || self.stopping.is_some();
        [
            self.shard.inspect().next_deadline(),
            self.handshake_deadlines.iter().filter_map(Deadlines::next_ms).min(),
            self.linger_deadlines.next_ms(),
            self.quic.due_ms(self.now.monotonic_ms),
            looks_again.then_some(self.now.monotonic_ms + RETRY_MS),
            self.next_journal_check_ms(),
        ]
        .into_iter()
        .flatten()
        .chain(paused)
        .min()
    }

    /// Returns whether every socket that had data at the last poll has been read, so that a client whose packet has
    /// arrived in time is not closed for its silence.
    fn can_expire_deadlines(&mut self, has_all_events: bool) -> bool {
        if self.is_poll_stale {
            return false;
        }
        if has_all_events && self.ready_list.is_empty() && !self.quic.has_unread_datagrams() {
            self.deadlines_held_since_ms = None;
            return true;
        }
        let now_ms = self.now.monotonic_ms;
        let since_ms = *self.deadlines_held_since_ms.get_or_insert(now_ms);
        now_ms - since_ms > DEADLINES_HELD_MAX_MS
    }

    /// Returns the number of events.
    fn record_events(&mut self, events: &Events) -> usize {
        let mut count = 0;
        for event in events {
            count += 1;
            match event.token() {
                WAKE => {}
                Token(index) if index >= FIRST_LISTENER => {
                    let index = index - FIRST_LISTENER;
                    match self.acceptors.get_mut(index) {
                        Some(Some(acceptor)) => acceptor.is_ready = true,
                        _ => self.quic.socket_is_ready(index),
                    }
                }
                Token(slot) => self.record_event(ConnSlot(slot as u32), event),
            }
        }
        count
    }

    fn record_event(&mut self, slot: ConnSlot, event: &mio::event::Event) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if event.is_error() {
            return self.handle_broken(slot);
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

    /// Processes at most as much as a mailbox holds: otherwise a fast sender could keep the tick from ending.
    fn read_mailbox(&mut self) {
        let mut bytes = 0;
        for _ in 0..MAILBOX_ITEMS_MAX {
            if bytes >= MAILBOX_BYTES_MAX {
                return;
            }
            let Some(item) = self.mailbox.next() else { return };
            bytes += item.weight_bytes();
            match item {
                MailboxItem::Mail(mail) => self.mail(mail),
                MailboxItem::HandedOver(handed_over) => self.handed_over(*handed_over),
                MailboxItem::CloseHandedOver(tenure) => self.close_handed_over(&tenure),
                MailboxItem::MovedConnection(moved) => self.receive_moved(*moved),
                MailboxItem::Authenticated { ticket, outcome } => self.authenticated(ticket, outcome),
                MailboxItem::Authorized { ticket, is_answered } => self.authorized(ticket, is_answered),
                MailboxItem::Call(call) => call(&mut self.shard, self.now),
                MailboxItem::Committed => self.process_commits(),
                MailboxItem::ReloadTls { listener, config } => {
                    if let Some(current) = self.tls_configs.get_mut(usize::from(listener)) {
                        *current = Some(config);
                        self.reload_quic(usize::from(listener));
                    }
                }
                MailboxItem::Quic(mail) => self.receive_quic_mail(*mail),
                MailboxItem::SharedThreadWorker(shared_worker) => self.arrived_workers.push(shared_worker),
                MailboxItem::ShutDown { deadline } => self.begin_shut_down(deadline),
            }
        }
    }

    /// Records the latency of acknowledgements at the end of a tick.
    fn record_latency(&mut self, began: Instant, appended_before: Lsn) {
        let histogram = &self.common.ack_latency_us[usize::from(self.id.0)];
        let tick = EndedTick {
            began,
            appended_before,
            appended: self.appended,
            committed: self.committed,
            has_journal_failed: self.journal_health == LogHealth::Failed,
        };
        self.latency.record(&tick, &self.shard, histogram);
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
                self.refuse(conn.slot, EarlyCloseReason::HandshakeTimeout);
            }
        }
        while let Some(conn) = self.linger_deadlines.pop_due(self.now.monotonic_ms) {
            self.linger_expired(conn);
        }
    }

    pub(crate) fn linger_until_deadline(&mut self, slot: ConnSlot) {
        if let Some(conn) = self.slots.reference(slot) {
            self.linger_deadlines.push(self.now.monotonic_ms, conn);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    fn begin_shut_down(&mut self, deadline: Instant) {
        self.acceptors.clear();
        self.quic.stop_accepting();
        if self.stopping.is_none() {
            self.common.stopping_workers.fetch_add(1, Ordering::Release);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline_ms = self.now.monotonic_ms + millis(left);
        self.stopping = Some(ShutdownProgress {
            deadline_ms,
            has_disconnected_all: false,
        });
        for slot in self.slots.occupied() {
            if self.is_in_handshake(slot) {
                self.refuse(slot, EarlyCloseReason::ShuttingDown);
            }
        }
    }

    fn continue_shut_down(&mut self) {
        if let Some(stopping) = &mut self.stopping
            && !stopping.has_disconnected_all
        {
            stopping.has_disconnected_all = !self.shard.shut_down(self.now, SHUT_DOWN_BATCH);
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.stopping.is_some_and(|stopping| {
            let is_empty = stopping.has_disconnected_all
                && self.slots.len() == 0
                && self.notices.is_empty()
                && self.unsent_items == 0
                && self.quic.has_no_connections()
                && self.common.is_drained();
            is_empty || self.now.monotonic_ms >= stopping.deadline_ms
        })
    }

    /// Closes the connections that remain after the shutdown deadline, and reports each to the shard.
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

/// Returns the seed of a shard, so that each shard draws from its own sequence.
pub(crate) fn seed_of(seed: u64, id: ShardId) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    seed.wrapping_add(GOLDEN.wrapping_mul(u64::from(id.0) + 1))
}
