//! What a worker of `net` does around its shard, in the same order, over model links instead of sockets.
//!
//! A tick: tell the shard what the last flush brought about → do what it asks → take letters, the news of the journal among them → read → timers → do what it asks →
//! journal → hand over mail → write every connection that got something. How much of each is done is drawn from the seed.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use broker::{CloseCause, ConnSlot, Effect, Event, Mail, Next, Now, Peer, ServerMessage, Shard, ShardId, Transport};
use mqtt::QoS;

use crate::accounts::Accounts;
use crate::keeper::{Follower, Keeper};
use crate::network::{ClientEnd, Network, take_piece};
use crate::tap::TapEnd;
use storage::model::Random;

/// Keep Alives are longer.
const LATE_MS: u64 = 500;

/// How long a connection that is being closed may take to drain.
const LINGER_MS: u64 = 2_000;

pub enum Letter {
    Mail(Mail),
    /// A connection whose CONNECT has been read elsewhere, with the bytes that are unread.
    Arrival {
        link: usize,
        bytes: Vec<u8>,
    },
    /// Over the API.
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

pub struct Worker {
    pub shard: Shard,
    pub follower: Follower,
    pub accounts: Accounts,
    pub tap: Option<TapEnd>,
    id: usize,
    pub inbox: VecDeque<Letter>,
    /// When it has last done what was due.
    pub last_tick_ms: u64,
    /// Serial numbers of what was published over the API and is kept.
    pub kept: Arc<Mutex<Vec<u64>>>,
    /// Of the last tick.
    seen_ms: u64,
    /// That was long ago: all that has come is read, and nobody counts as silent before the next tick.
    is_late: bool,
    /// Mail that has been taken with the batches that it refers to, and for whom.
    pub post: Vec<(usize, Mail)>,
    shards: u16,
    slots: Vec<Option<Connection>>,
    notices: Vec<Notice>,
    output_buffer_bytes: usize,
    /// Draws what is between letters; in every second run nothing is.
    whims: Option<Random>,
}

struct Connection {
    link: usize,
    unread: Vec<u8>,
    is_paused: bool,
    closing: Option<Closing>,
}

#[derive(Clone, Copy)]
struct Closing {
    cause: CloseCause,
    since_ms: u64,
}

/// What the shard is told at the beginning of the next tick.
enum Notice {
    Drained(usize),
    Closed(usize, CloseCause),
}

/// What a tick needs of the world.
pub struct Surroundings<'a> {
    pub now: Now,
    pub network: &'a mut Network,
    pub random: &'a mut Random,
    /// Links that the node has let go of in this tick.
    pub closed: &'a mut Vec<usize>,
    pub keeper: Option<&'a mut Keeper>,
}

impl Worker {
    pub fn new(
        id: usize,
        shards: u16,
        mut shard: Shard,
        output_buffer_bytes: usize,
        has_tap: bool,
        seed: u64,
    ) -> Worker {
        Worker {
            tap: has_tap.then(|| TapEnd::of(&mut shard)),
            shard,
            follower: Follower::default(),
            accounts: Accounts::default(),
            id,
            inbox: VecDeque::new(),
            last_tick_ms: 0,
            kept: Arc::default(),
            seen_ms: 0,
            is_late: false,
            post: Vec::new(),
            shards,
            slots: Vec::new(),
            notices: Vec::new(),
            output_buffer_bytes,
            whims: (seed & 1 == 1).then(|| Random::new(seed.wrapping_add(id as u64))),
        }
    }

    /// The inputs of a tick. `finish_tick` follows, when journal and mail have been taken.
    pub fn begin_tick(&mut self, s: &mut Surroundings<'_>) {
        self.is_late = s.now.monotonic_ms > self.seen_ms + LATE_MS;
        self.seen_ms = s.now.monotonic_ms;
        if let Some(keeper) = &mut s.keeper {
            keeper.walk_on(&mut self.follower, &mut self.shard, s.now);
        }
        self.shard.begin_tap_tick(s.now);
        self.deliver_notices(s);
        self.hear_of_journal(s);
        self.do_effects(s);
        self.read_inbox(s);
        self.append_now_and_then(s);
        match s.keeper.as_ref().is_some_and(|keeper| keeper.is_behind()) {
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

    /// A tick that reads much appends more than one batch.
    fn append_now_and_then(&mut self, s: &mut Surroundings<'_>) {
        if s.random.one_in(3) {
            self.append(s);
        }
    }

    /// What has been recorded, and then the mail that refers to it, before anything else is recorded.
    pub fn append(&mut self, s: &mut Surroundings<'_>) {
        self.shard.end_tap_tick(s.now);
        if let Some(keeper) = &mut s.keeper {
            keeper.append(&mut self.follower, &mut self.shard);
        }
        for to in 0..self.shards {
            let mail = self.shard.take_mail(ShardId(to));
            self.post.extend(mail.map(|mail| (usize::from(to), mail)));
        }
    }

    fn hear_of_journal(&mut self, s: &mut Surroundings<'_>) {
        if s.random.below(4) > 0 {
            self.shard.look_at_tap();
        }
        let Some(keeper) = &mut s.keeper else { return };
        if s.random.below(4) > 0 {
            keeper.hear(&mut self.follower, &mut self.shard, s.now);
        }
        while s.random.below(3) > 0 && keeper.answer(self.id, &mut self.shard, s.now, s.random) {}
    }

    /// Writes what is queued.
    pub fn finish_tick(&mut self, s: &mut Surroundings<'_>) {
        for slot in 0..self.slots.len() {
            self.flush(slot, s);
        }
        self.shard.outbox().end_tick();
    }

    /// Whether a tick would do something that does not depend on what others do.
    pub fn is_busy(&self, now: Now) -> bool {
        let is_due = self.shard.next_deadline().is_some_and(|at| at <= now.monotonic_ms);
        is_due
            || self.shard.is_waiting_for_tap()
            || self.shard.is_walking()
            || !self.notices.is_empty()
            || !self.inbox.is_empty()
    }

    fn deliver_notices(&mut self, s: &mut Surroundings<'_>) {
        for notice in std::mem::take(&mut self.notices) {
            match notice {
                Notice::Drained(slot) => {
                    if let Some(connection) = &mut self.slots[slot] {
                        connection.is_paused = false;
                        self.shard.drained(s.now, ConnSlot(slot as u32));
                    }
                }
                Notice::Closed(slot, cause) => self.close(slot, cause, s),
            }
        }
    }

    fn close(&mut self, slot: usize, cause: CloseCause, s: &mut Surroundings<'_>) {
        let Some(connection) = self.slots[slot].take() else {
            return;
        };
        self.shard.closed(s.now, ConnSlot(slot as u32), cause);
        s.network.links[connection.link].is_closed_by_node = true;
        s.closed.push(connection.link);
    }

    fn do_effects(&mut self, s: &mut Surroundings<'_>) {
        let mut effects = Vec::new();
        self.shard.take_effects(&mut effects);
        for effect in effects {
            match effect {
                Effect::Close { conn, .. } => self.begin_close(conn.0 as usize, CloseCause::Requested, s.now),
                Effect::Resume { conn } => {
                    if let Some(connection) = &mut self.slots[conn.0 as usize] {
                        connection.is_paused = false;
                    }
                }
                // Everybody may come in, so that nothing has to be decided.
                Effect::Fetch {
                    session,
                    connects,
                    positions,
                } => {
                    if let Some(keeper) = &mut s.keeper {
                        keeper.fetch(self.id, session, connects, positions);
                    }
                }
                // Everybody may come in, so that nothing has to be decided.
                Effect::Event(Event::SessionEnded { .. }) => self.accounts.ended += 1,
                Effect::Authenticate { .. } | Effect::Event(_) => {}
            }
        }
    }

    fn begin_close(&mut self, slot: usize, cause: CloseCause, now: Now) {
        if let Some(connection) = &mut self.slots[slot]
            && connection.closing.is_none()
        {
            connection.unread.clear();
            connection.closing = Some(Closing {
                cause,
                since_ms: now.monotonic_ms,
            });
        }
    }

    fn read_inbox(&mut self, s: &mut Surroundings<'_>) {
        let letters = match s.random.below(4) {
            0 => s.random.below(self.inbox.len() + 1),
            _ => self.inbox.len(),
        };
        for letter in self.inbox.drain(..letters).collect::<Vec<_>>() {
            self.take_calls(s);
            match letter {
                Letter::Mail(mail) => {
                    self.shard.mail(s.now, mail);
                }
                Letter::Arrival { link, bytes } => self.arrived(link, bytes, s),
                Letter::Publish(publish) => self.publish(&publish, s.now),
            }
        }
        self.take_calls(s);
    }

    /// As the API does: nobody is told of what may not be kept now.
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
        if is_waited_for && !self.shard.may_keep(now, &message()) {
            return;
        }
        self.shard.publish_from_server(now, message());
        if is_waited_for {
            let (kept, serial) = (Arc::clone(&self.kept), publish.serial);
            let tell = move || kept.lock().unwrap_or_else(PoisonError::into_inner).push(serial);
            self.shard.when_kept(Box::new(tell));
        }
    }

    /// Between two letters, as if these were letters, too: somebody outside asks to be told when all is kept, which is no record of
    /// its own, and the commit thread has news.
    fn take_calls(&mut self, s: &mut Surroundings<'_>) {
        let Some(whims) = &mut self.whims else { return };
        if whims.one_in(8) {
            self.shard.when_all_is_kept(None, Box::new(|| ()));
        }
        if let Some(keeper) = &mut s.keeper
            && whims.one_in(6)
        {
            keeper.hear(&mut self.follower, &mut self.shard, s.now);
        }
    }

    pub fn arrived(&mut self, link: usize, bytes: Vec<u8>, s: &mut Surroundings<'_>) {
        let slot = match self.slots.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[slot] = Some(Connection {
            link,
            unread: bytes,
            is_paused: false,
            closing: None,
        });
        let port = 1024 + (link % 60_000) as u16;
        let peer = Peer {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            transport: Transport::Tcp,
            listener: 0,
            maximum_packet_size: None,
            certificate_common_name: None,
            certificate: None,
        };
        self.shard.open(s.now, ConnSlot(slot as u32), peer);
        self.feed(slot, s);
    }

    fn read_links(&mut self, s: &mut Surroundings<'_>) {
        for slot in 0..self.slots.len() {
            let Some(connection) = &mut self.slots[slot] else {
                continue;
            };
            if connection.is_paused || connection.closing.is_some() {
                continue;
            }
            let link = &mut s.network.links[connection.link];
            if link.client_end == ClientEnd::Reset {
                self.notices.push(Notice::Closed(slot, CloseCause::Network));
                continue;
            }
            if s.random.below(5) > 0 || self.is_late {
                let bytes = match self.is_late {
                    true => link.to_node.drain(..).collect(),
                    false => take_piece(&mut link.to_node, s.random),
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

    /// Returns whether the shard has taken all packets that are there.
    fn feed(&mut self, slot: usize, s: &mut Surroundings<'_>) -> bool {
        loop {
            let Some(connection) = &mut self.slots[slot] else {
                return false;
            };
            if connection.is_paused || connection.closing.is_some() {
                return false;
            }
            if connection.unread.is_empty() {
                return true;
            }
            let received = self.shard.receive(s.now, ConnSlot(slot as u32), &connection.unread);
            connection.unread.drain(..received.consumed);
            match received.next {
                Next::Read { .. } => return true,
                // The rest waits for the next tick: journal and mail go before what is written.
                Next::Flush => return false,
                Next::Pause => connection.is_paused = true,
                Next::Closed => connection.unread.clear(),
            }
        }
    }

    fn flush(&mut self, slot: usize, s: &mut Surroundings<'_>) {
        let Some(connection) = &self.slots[slot] else {
            return;
        };
        let conn = ConnSlot(slot as u32);
        let link = &mut s.network.links[connection.link];
        let outbox = self.shard.outbox();
        if outbox.is_held(conn) {
            return self.linger(slot, s.now);
        }
        let queued = outbox.queued_bytes(conn);
        let was_held_back =
            outbox.has_backlog(conn) || queued > self.output_buffer_bytes || (connection.is_paused && queued > 0);
        let is_gone = link.client_end != ClientEnd::Open;
        let room = link.capacity.saturating_sub(link.to_client.len());
        let mut slices = Vec::new();
        outbox.slices(conn, usize::MAX, &mut slices);
        let mut written = slices.concat();
        written.truncate(if is_gone { queued } else { room });
        if !is_gone {
            link.to_client.extend(&written);
        }
        outbox.wrote(conn, written.len());
        let is_empty = written.len() == queued;
        self.after_flush(slot, is_empty, was_held_back, s.now);
    }

    fn after_flush(&mut self, slot: usize, is_empty: bool, may_have_waited: bool, now: Now) {
        match self.slots[slot].as_ref().and_then(|connection| connection.closing) {
            Some(Closing { cause, .. }) if is_empty => self.notices.push(Notice::Closed(slot, cause)),
            Some(_) => self.linger(slot, now),
            None if is_empty && may_have_waited => self.notices.push(Notice::Drained(slot)),
            None => {}
        }
    }

    /// A connection that is being closed has not got rid of everything: its time may be over.
    fn linger(&mut self, slot: usize, now: Now) {
        let closing = self.slots[slot].as_ref().and_then(|connection| connection.closing);
        if let Some(Closing { cause, since_ms }) = closing
            && now.monotonic_ms >= since_ms + LINGER_MS
        {
            self.notices.push(Notice::Closed(slot, cause));
        }
    }
}
