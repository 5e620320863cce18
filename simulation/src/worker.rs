//! A worker of `net` around its shard, in the same order, with model links instead of sockets.
//!
//! A tick: report the results of the last flush → handle effects → handle mail and commits → read → timers → handle
//! effects → append to the journal → send mail → write output. The seed determines how much of each is done.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use broker::{
    CloseCause, ConnSlot, ConnectionEvent, Effect, Mail, NextAction, Now, Peer, ServerMessage, Shard, ShardId,
    Transport,
};
use mqtt::QoS;

use crate::network::{ClientEnd, LinkIndex, Network, take_chunk};
use crate::node_journal::{SimulatedJournal, WorkerJournal};
use crate::stats_check::StatsCheck;
use crate::tap::TapHandle;
use storage::model::Random;

/// Keep-alive intervals are longer than this.
const LATE_MS: u64 = 500;

/// Time that a closing connection may take to drain.
const LINGER_MS: u64 = 2_000;

pub enum InboxItem {
    Mail(Mail),
    /// A connection whose CONNECT another worker has read, with the unread bytes.
    Arrival {
        link: LinkIndex,
        bytes: Vec<u8>,
    },
    /// A message published over the API.
    Publish(ServerPublish),
}

pub struct ServerPublish {
    pub serial: u64,
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub expiry_s: Option<u32>,
}

pub struct SimulatedWorker {
    pub shard: Shard,
    pub worker_journal: WorkerJournal,
    pub stats_check: StatsCheck,
    pub tap: Option<TapHandle>,
    id: usize,
    pub inbox: VecDeque<InboxItem>,
    /// Time of the last tick that ran the timers.
    pub last_tick_ms: u64,
    /// Serial numbers of messages that were published over the API and are stored.
    pub stored_serials: Arc<Mutex<Vec<u64>>>,
    /// Time of the last tick.
    seen_ms: u64,
    /// The last tick was long ago: read all input, and check keep-alives only in the next tick.
    is_late: bool,
    /// Mail with its receiver, taken together with the batch that it refers to.
    pub outgoing_mail: Vec<(usize, Mail)>,
    shards: u16,
    slots: Vec<Option<SimulatedConnection>>,
    notices: Vec<ShardNotice>,
    output_buffer_bytes: usize,
    /// Selects events between two messages of other shards. `None` in every second run.
    interleaving: Option<Random>,
}

struct SimulatedConnection {
    link: LinkIndex,
    unread: Vec<u8>,
    is_paused: bool,
    closing: Option<ClosingConnection>,
}

#[derive(Clone, Copy)]
struct ClosingConnection {
    cause: CloseCause,
    since_ms: u64,
}

/// Event that is reported to the shard in the next tick.
enum ShardNotice {
    Drained(ConnSlot),
    Closed(ConnSlot, CloseCause),
}

/// The parts of the world that a tick uses.
pub struct TickContext<'a> {
    pub now: Now,
    pub network: &'a mut Network,
    pub random: &'a mut Random,
    /// Links that the node has closed in this tick.
    pub closed: &'a mut Vec<LinkIndex>,
    pub journal: Option<&'a mut SimulatedJournal>,
}

impl SimulatedWorker {
    pub fn new(
        id: usize,
        shards: u16,
        mut shard: Shard,
        output_buffer_bytes: usize,
        has_tap: bool,
        seed: u64,
    ) -> SimulatedWorker {
        SimulatedWorker {
            tap: has_tap.then(|| TapHandle::of(&mut shard)),
            shard,
            worker_journal: WorkerJournal::default(),
            stats_check: StatsCheck::default(),
            id,
            inbox: VecDeque::new(),
            last_tick_ms: 0,
            stored_serials: Arc::default(),
            seen_ms: 0,
            is_late: false,
            outgoing_mail: Vec::new(),
            shards,
            slots: Vec::new(),
            notices: Vec::new(),
            output_buffer_bytes,
            interleaving: (seed & 1 == 1).then(|| Random::new(seed.wrapping_add(id as u64))),
        }
    }

    /// Handles the inputs of a tick. `finish_tick` follows after the journal and the mail.
    pub fn begin_tick(&mut self, s: &mut TickContext<'_>) {
        self.is_late = s.now.monotonic_ms > self.seen_ms + LATE_MS;
        self.seen_ms = s.now.monotonic_ms;
        if let Some(journal) = &mut s.journal {
            journal.continue_checkpoint(&mut self.worker_journal, &mut self.shard, s.now);
        }
        self.shard.begin_tick(s.now);
        self.deliver_notices(s);
        self.receive_journal_events(s);
        self.do_effects(s);
        self.read_inbox(s);
        self.append_now_and_then(s);
        match s.journal.as_ref().is_some_and(|journal| journal.is_behind()) {
            true => self.shard.is_not_reading(s.now),
            false => self.read_links(s),
        }
        self.append_now_and_then(s);
        if !self.is_late {
            self.last_tick_ms = s.now.monotonic_ms;
            self.shard.run_timers(s.now);
        }
        self.do_effects(s);
    }

    /// A tick that reads much appends several batches.
    fn append_now_and_then(&mut self, s: &mut TickContext<'_>) {
        if s.random.one_in(3) {
            self.append(s);
        }
    }

    /// Appends the batch, and takes the mail that refers to it before anything else is recorded.
    pub fn append(&mut self, s: &mut TickContext<'_>) {
        self.shard.tap(s.now).end_tick();
        if let Some(journal) = &mut s.journal {
            journal.append(&mut self.worker_journal, &mut self.shard, s.now);
        }
        for to in 0..self.shards {
            let mail = self.shard.take_mail(ShardId(to));
            self.outgoing_mail.extend(mail.map(|mail| (usize::from(to), mail)));
        }
    }

    fn receive_journal_events(&mut self, s: &mut TickContext<'_>) {
        if s.random.below(4) > 0 {
            self.shard.tap(s.now).run_stored_actions();
        }
        let Some(journal) = &mut s.journal else { return };
        if s.random.below(4) > 0 {
            journal.receive_commit(&mut self.worker_journal, &mut self.shard, s.now);
        }
        while s.random.below(3) > 0 && journal.answer(self.id, &mut self.shard, s.now, s.random) {}
    }

    /// Writes the queued output.
    pub fn finish_tick(&mut self, s: &mut TickContext<'_>) {
        for slot in (0..self.slots.len() as u32).map(ConnSlot) {
            self.flush(slot, s);
        }
        self.shard.outbox().end_tick();
    }

    /// Returns whether a tick would make progress without input from others.
    pub fn is_busy(&self, now: Now) -> bool {
        let is_due = self
            .shard
            .inspect()
            .next_deadline()
            .is_some_and(|at| at <= now.monotonic_ms);
        is_due
            || self.shard.inspect().taps().is_waiting()
            || self.shard.inspect().is_checkpoint_active()
            || !self.notices.is_empty()
            || !self.inbox.is_empty()
    }

    fn deliver_notices(&mut self, s: &mut TickContext<'_>) {
        for notice in std::mem::take(&mut self.notices) {
            match notice {
                ShardNotice::Drained(slot) => {
                    if let Some(connection) = &mut self.slots[slot.index()] {
                        connection.is_paused = false;
                        self.shard.drained(s.now, slot);
                    }
                }
                ShardNotice::Closed(slot, cause) => self.close(slot, cause, s),
            }
        }
    }

    fn close(&mut self, slot: ConnSlot, cause: CloseCause, s: &mut TickContext<'_>) {
        let Some(connection) = self.slots[slot.index()].take() else {
            return;
        };
        self.shard.closed(s.now, slot, cause);
        s.network.links[connection.link.index()].is_closed_by_node = true;
        s.closed.push(connection.link);
    }

    fn do_effects(&mut self, s: &mut TickContext<'_>) {
        let mut effects = Vec::new();
        self.shard.take_effects(&mut effects);
        for effect in effects {
            match effect {
                Effect::Close { conn, .. } => self.begin_close(conn, CloseCause::Requested, s.now),
                Effect::Resume { conn } => {
                    if let Some(connection) = &mut self.slots[conn.index()] {
                        connection.is_paused = false;
                    }
                }
                Effect::Fetch { purpose, positions } => {
                    if let Some(journal) = &mut s.journal {
                        journal.fetch(self.id, purpose, positions);
                    }
                }
                // All clients are authenticated immediately, so this effect does not occur.
                Effect::Event(ConnectionEvent::SessionEnded { .. }) => self.stats_check.ended += 1,
                Effect::Authenticate { .. } | Effect::Authorize { .. } | Effect::Event(_) => {}
            }
        }
    }

    fn begin_close(&mut self, slot: ConnSlot, cause: CloseCause, now: Now) {
        if let Some(connection) = &mut self.slots[slot.index()]
            && connection.closing.is_none()
        {
            connection.unread.clear();
            connection.closing = Some(ClosingConnection {
                cause,
                since_ms: now.monotonic_ms,
            });
        }
    }

    fn read_inbox(&mut self, s: &mut TickContext<'_>) {
        let letters = match s.random.below(4) {
            0 => s.random.below(self.inbox.len() + 1),
            _ => self.inbox.len(),
        };
        for letter in self.inbox.drain(..letters).collect::<Vec<_>>() {
            self.run_api_calls(s);
            match letter {
                InboxItem::Mail(mail) => {
                    self.shard.mail(s.now, mail);
                }
                InboxItem::Arrival { link, bytes } => self.arrived(link, bytes, s),
                InboxItem::Publish(publish) => self.publish(&publish, s.now),
            }
        }
        self.run_api_calls(s);
    }

    /// Like the API: publishes nothing that cannot be stored now.
    fn publish(&mut self, publish: &ServerPublish, now: Now) {
        let message = || ServerMessage {
            topic: &publish.topic,
            payload: &publish.payload,
            properties: &[],
            qos: publish.qos,
            retain: publish.retain,
            expiry_s: publish.expiry_s,
            mark: 0,
        };
        let is_waited_for = publish.qos != QoS::AtMostOnce;
        let mut server = self.shard.server_publisher(now);
        if is_waited_for && !server.can_store(&message()) {
            return;
        }
        server.publish(message());
        if is_waited_for {
            let (stored_serials, serial) = (Arc::clone(&self.stored_serials), publish.serial);
            let record_stored = move || {
                stored_serials
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(serial)
            };
            server.call_when_stored(Box::new(record_stored));
        }
    }

    /// Between two letters: an API call waits for all commits without writing a record, and the commit thread reports a
    /// commit.
    fn run_api_calls(&mut self, s: &mut TickContext<'_>) {
        let Some(interleaving) = &mut self.interleaving else {
            return;
        };
        if interleaving.one_in(8) {
            self.shard.server_publisher(s.now).call_when_all_stored(Box::new(|| ()));
        }
        if let Some(journal) = &mut s.journal
            && interleaving.one_in(6)
        {
            journal.receive_commit(&mut self.worker_journal, &mut self.shard, s.now);
        }
    }

    pub fn arrived(&mut self, link: LinkIndex, bytes: Vec<u8>, s: &mut TickContext<'_>) {
        let free = self.slots.iter().position(Option::is_none);
        if free.is_none() {
            self.slots.push(None);
        }
        let slot = ConnSlot(free.unwrap_or(self.slots.len() - 1) as u32);
        self.slots[slot.index()] = Some(SimulatedConnection {
            link,
            unread: bytes,
            is_paused: false,
            closing: None,
        });
        let port = 1024 + (link.index() % 60_000) as u16;
        let peer = Peer {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            transport: Transport::Tcp,
            listener: 0,
            maximum_packet_size: None,
            certificate_common_name: None,
            certificate: None,
        };
        self.shard.open(s.now, slot, peer);
        self.feed(slot, s);
    }

    fn read_links(&mut self, s: &mut TickContext<'_>) {
        for slot in (0..self.slots.len() as u32).map(ConnSlot) {
            let Some(connection) = &mut self.slots[slot.index()] else {
                continue;
            };
            if connection.is_paused || connection.closing.is_some() {
                continue;
            }
            let link = &mut s.network.links[connection.link.index()];
            if link.client_end == ClientEnd::Reset {
                self.notices.push(ShardNotice::Closed(slot, CloseCause::Network));
                continue;
            }
            if s.random.below(5) > 0 || self.is_late {
                let bytes = match self.is_late {
                    true => link.to_node.drain(..).collect(),
                    false => take_chunk(&mut link.to_node, s.random),
                };
                connection.unread.extend_from_slice(&bytes);
            }
            if !link.to_node.is_empty() {
                self.shard.is_not_reading(s.now);
            }
            let has_ended = link.client_end == ClientEnd::Finished && link.to_node.is_empty();
            let is_read = self.feed(slot, s);
            if has_ended && is_read {
                self.begin_close(slot, CloseCause::Peer, s.now);
            }
        }
    }

    /// Returns whether the shard has handled all complete packets.
    fn feed(&mut self, slot: ConnSlot, s: &mut TickContext<'_>) -> bool {
        loop {
            let Some(connection) = &mut self.slots[slot.index()] else {
                return false;
            };
            if connection.is_paused || connection.closing.is_some() {
                return false;
            }
            if connection.unread.is_empty() {
                return true;
            }
            let received = self.shard.receive(s.now, slot, &connection.unread);
            connection.unread.drain(..received.consumed);
            match received.next {
                NextAction::Read { .. } => return true,
                // The rest waits for the next tick, because journal and mail precede output.
                NextAction::Flush => return false,
                NextAction::Pause => connection.is_paused = true,
                NextAction::Closed => connection.unread.clear(),
            }
        }
    }

    fn flush(&mut self, slot: ConnSlot, s: &mut TickContext<'_>) {
        let Some(connection) = &self.slots[slot.index()] else {
            return;
        };
        let link = &mut s.network.links[connection.link.index()];
        let outbox = self.shard.outbox();
        if outbox.is_held(slot) {
            return self.linger(slot, s.now);
        }
        let queued = outbox.queued_bytes(slot);
        let was_held_back =
            outbox.has_backlog(slot) || queued > self.output_buffer_bytes || (connection.is_paused && queued > 0);
        let is_gone = link.client_end != ClientEnd::Open;
        let room = link.capacity.saturating_sub(link.to_client.len());
        let mut slices = Vec::new();
        outbox.slices(slot, usize::MAX, &mut slices);
        let mut written = slices.concat();
        written.truncate(if is_gone { queued } else { room });
        if !is_gone {
            link.to_client.extend(&written);
        }
        outbox.record_written(slot, written.len());
        let is_empty = written.len() == queued;
        self.after_flush(slot, is_empty, was_held_back, s.now);
    }

    fn after_flush(&mut self, slot: ConnSlot, is_empty: bool, may_have_waited: bool, now: Now) {
        match self.slots[slot.index()]
            .as_ref()
            .and_then(|connection| connection.closing)
        {
            Some(ClosingConnection { cause, .. }) if is_empty => self.notices.push(ShardNotice::Closed(slot, cause)),
            Some(_) => self.linger(slot, now),
            None if is_empty && may_have_waited => self.notices.push(ShardNotice::Drained(slot)),
            None => {}
        }
    }

    /// Closes a connection that has not drained within the linger time.
    fn linger(&mut self, slot: ConnSlot, now: Now) {
        let closing = self.slots[slot.index()]
            .as_ref()
            .and_then(|connection| connection.closing);
        if let Some(ClosingConnection { cause, since_ms }) = closing
            && now.monotonic_ms >= since_ms + LINGER_MS
        {
            self.notices.push(ShardNotice::Closed(slot, cause));
        }
    }
}
