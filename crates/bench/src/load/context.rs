//! State that the parts of a worker share, apart from the clients.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use mio::Registry;

use super::client::{ClientSlot, ConnectEpoch, LoadClient};
use super::flow::{FlowGaps, ReceivedSet};
use super::link::LoadLink;
use super::meter::Meter;
use super::plan::{GroupPlan, LoadPlan};
use super::schedule::SendSchedule;
use super::truth::SenderNumber;

pub struct LoadContext {
    pub plan: Arc<LoadPlan>,
    pub thread: u32,
    pub registry: Registry,
    pub meter: Meter,
    pub gaps: FlowGaps,
    /// By shared subscription and the sender's position in its sources.
    pub share_log: Vec<Vec<ReceivedSet>>,
    pub groups: Vec<GroupRun>,
    pub timers: Timers,
    /// Clients that have data to write, and clients that may have more to read.
    pub dirty: Vec<ClientSlot>,
    pub readable: Vec<ClientSlot>,
    /// Clients that wait for their turn to connect.
    pub queue: std::collections::VecDeque<ClientSlot>,
    /// Connections that have not received CONNACK.
    pub connecting: u32,
    pub connected: u64,
    /// Awaited clients that are not ready yet.
    pub awaited: u32,
    pub given_up: u32,
    /// The time; read once per batch of input.
    pub now_ns: u64,
    /// When the last message arrived.
    pub last_message_ns: u64,
    pub permission: SendPermission,
    /// No client connects any more.
    pub is_ending: bool,
    /// The absent clients have been queued to connect.
    pub has_returned: bool,
    /// Clients that come and go do so now.
    pub is_cycling: bool,
    /// Deliveries since the last turn by sender, and the senders that have any (QoS 0 with a window).
    pub deliveries: Vec<u32>,
    pub delivered: Vec<SenderNumber>,
    pub scratch: String,
    pub payload: Vec<u8>,
    /// Counts connections, so that each one uses the next host and source address.
    pub connect_count: u32,
    pub last_refusal: String,
}

/// The messages that publishers may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPermission {
    Nothing,
    /// Messages that were due already.
    Finish,
    Begin,
}

/// The state of a group in this worker.
pub struct GroupRun {
    /// The slots of its `clients` are consecutive and begin here.
    pub first_slot: ClientSlot,
    pub clients: u32,
    /// The index in the group of the worker's first client.
    pub first_index: u32,
    pub schedule: Option<SendSchedule>,
    pub is_stalled: bool,
}

impl GroupRun {
    /// Returns the slot of the group's client at `place` in this worker.
    pub fn slot(&self, place: u32) -> ClientSlot {
        ClientSlot(self.first_slot.0 + place)
    }

    pub fn slots(&self) -> impl Iterator<Item = ClientSlot> + use<> {
        let first = self.first_slot.0;
        (first..first + self.clients).map(ClientSlot)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimerKind {
    /// The connection must be ready by now.
    ConnectDeadline,
    Retry,
    KeepAlive,
    /// A client that comes and goes disconnects.
    Leave,
    LeaveDeadline,
    /// A deadline of QUIC.
    Link,
}

/// A timer of one connection of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientTimer {
    pub slot: ClientSlot,
    pub epoch: ConnectEpoch,
    pub kind: TimerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadTimer {
    Client(ClientTimer),
    /// The clients of the group, by number, stop reading.
    StallBegins(usize),
    StallEnds(usize),
}

/// Timers by time. Each connection has a few; those of earlier connections are ignored when they expire.
#[derive(Default)]
pub struct Timers(BinaryHeap<Reverse<(u64, LoadTimer)>>);

impl Timers {
    pub fn add(&mut self, at_ns: u64, timer: LoadTimer) {
        self.0.push(Reverse((at_ns, timer)));
    }

    /// Adds a timer of the client's current connection.
    pub fn add_for_client(&mut self, at_ns: u64, kind: TimerKind, slot: ClientSlot, client: &LoadClient) {
        let epoch = client.epoch;
        self.add(at_ns, LoadTimer::Client(ClientTimer { slot, epoch, kind }));
    }

    pub fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    pub fn pop(&mut self, now_ns: u64) -> Option<LoadTimer> {
        self.0.peek().filter(|Reverse((at_ns, _))| *at_ns <= now_ns)?;
        self.0.pop().map(|Reverse((_, timer))| timer)
    }
}

impl LoadContext {
    pub fn group(&self, client: &LoadClient) -> &GroupPlan {
        &self.plan.groups[client.group.position()]
    }

    pub fn mark_dirty(&mut self, slot: ClientSlot, client: &mut LoadClient) {
        if !client.is_dirty {
            client.is_dirty = true;
            self.dirty.push(slot);
        }
    }

    pub fn mark_readable(&mut self, slot: ClientSlot, client: &mut LoadClient) {
        if !client.is_readable {
            client.is_readable = true;
            self.readable.push(slot);
        }
    }

    /// Sets the timer of a QUIC connection, after anything that may have changed its deadline.
    pub fn set_link_timer(&mut self, slot: ClientSlot, client: &mut LoadClient) {
        let deadline = client.link.as_mut().and_then(LoadLink::new_deadline);
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let at_ns = self.plan.clock.now_ns() + left.as_nanos() as u64;
            self.timers.add_for_client(at_ns, TimerKind::Link, slot, client);
        }
    }

    /// Records that the phase no longer waits for this client.
    pub fn settle(&mut self, client: &mut LoadClient) {
        if std::mem::take(&mut client.is_awaited) {
            self.awaited -= 1;
        }
    }

    pub fn count_segments(&mut self, client: &mut LoadClient) {
        if let Some(link) = &client.link {
            let total = link.segments();
            let counts = &mut self.meter.interval.counts;
            counts.segments_in += u64::from(total.received.wrapping_sub(client.segments.received));
            counts.segments_out += u64::from(total.sent.wrapping_sub(client.segments.sent));
            client.segments = total;
        }
    }
}
