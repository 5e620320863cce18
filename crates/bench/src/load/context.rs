//! What the parts of a worker share besides the clients themselves.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use mio::Registry;

use super::client::Client;
use super::flow::{Ledger, Received};
use super::meter::Meter;
use super::plan::{GroupPlan, Plan};
use super::schedule::Schedule;

pub struct Context {
    pub plan: Arc<Plan>,
    pub thread: u32,
    pub registry: Registry,
    pub meter: Meter,
    pub ledger: Ledger,
    /// By shared subscription and the sender's position in it.
    pub share_log: Vec<Vec<Received>>,
    pub groups: Vec<GroupRun>,
    pub timers: Timers,
    /// Clients with something to write, and with something left to read.
    pub dirty: Vec<u32>,
    pub hot: Vec<u32>,
    /// Waiting for their turn to connect.
    pub queue: std::collections::VecDeque<u32>,
    /// Connections without CONNACK.
    pub connecting: u32,
    pub connected: u64,
    /// Awaited clients that are not ready yet.
    pub awaited: u32,
    pub given_up: u32,
    /// Read once per batch of input.
    pub now_ns: u64,
    /// When the last message came.
    pub last_message_ns: u64,
    pub permission: Permission,
    /// Nobody connects again.
    pub is_ending: bool,
    /// Those who were away have been called.
    pub has_returned: bool,
    /// Clients that come and go do so now.
    pub is_cycling: bool,
    /// Deliveries since the last turn, by sender, and of whom there were any (QoS 0 with a window).
    pub deliveries: Vec<u32>,
    pub delivered: Vec<u32>,
    pub scratch: String,
    pub payload: Vec<u8>,
    /// Another host and source address for every connection.
    pub turn: u32,
    pub last_refusal: String,
}

/// What publishers may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Nothing,
    /// Send what was due already.
    Finish,
    Begin,
}

/// What a group does in this worker.
pub struct GroupRun {
    /// The slots of its clients are `first_slot..first_slot + clients`.
    pub first_slot: u32,
    pub clients: u32,
    /// Index in the group of the first.
    pub first_index: u32,
    pub schedule: Option<Schedule>,
    pub is_stalled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimerKind {
    /// The connection is not ready in time.
    ConnectDeadline,
    Retry,
    KeepAlive,
    /// The stay of a client that comes and goes is over.
    Leave,
    LeaveDeadline,
    /// Slot is the group.
    StallBegins,
    StallEnds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    pub at_ns: u64,
    pub slot: u32,
    pub epoch: u32,
    pub kind: TimerKind,
}

/// At most a few per connection; those of earlier connections are thrown away when their time comes.
#[derive(Default)]
pub struct Timers(BinaryHeap<Reverse<Timer>>);

impl Timers {
    pub fn add(&mut self, at_ns: u64, kind: TimerKind, slot: u32, epoch: u32) {
        self.0.push(Reverse(Timer {
            at_ns,
            slot,
            epoch,
            kind,
        }));
    }

    pub fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|timer| timer.0.at_ns)
    }

    pub fn pop(&mut self, now_ns: u64) -> Option<Timer> {
        self.0.peek().filter(|timer| timer.0.at_ns <= now_ns)?;
        self.0.pop().map(|timer| timer.0)
    }
}

impl Context {
    pub fn group(&self, client: &Client) -> &GroupPlan {
        &self.plan.groups[usize::from(client.group)]
    }

    pub fn mark_dirty(&mut self, slot: u32, client: &mut Client) {
        if !client.is_dirty {
            client.is_dirty = true;
            self.dirty.push(slot);
        }
    }

    pub fn mark_hot(&mut self, slot: u32, client: &mut Client) {
        if !client.is_hot {
            client.is_hot = true;
            self.hot.push(slot);
        }
    }

    /// Nobody has to wait for it any longer.
    pub fn settle(&mut self, client: &mut Client) {
        if std::mem::take(&mut client.is_awaited) {
            self.awaited -= 1;
        }
    }

    pub fn count_segments(&mut self, client: &mut Client) {
        if let Some(link) = &client.link {
            let total = super::tcp_info::segments(&link.stream);
            let counts = &mut self.meter.interval.counts;
            counts.segments_in += u64::from(total.received.wrapping_sub(client.segments.received));
            counts.segments_out += u64::from(total.sent.wrapping_sub(client.segments.sent));
            client.segments = total;
        }
    }
}
