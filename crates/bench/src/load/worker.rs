//! One thread's share of the load: a poll loop that owns its connections.
//!
//! A turn handles orders, timers, new connections, due messages, one write per connection with pending data, and reads.
//! Only the poll blocks, and it ends at the next time at which something is due.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use mio::{Events, Poll, Token};

use super::client::{ClientSlot, LoadClient, LoadClientState, LoadSubscriber, ShareMember};
use super::clock::{EARLY_NS, EARLY_SHARE, SPIN_NS, WakeTimer};
use super::context::{ClientTimer, GroupRun, LoadContext, LoadTimer, SendPermission, TimerKind, Timers};
use super::flow::{FlowGaps, MessageFlow, ReceivedSet};
use super::meter::Meter;
use super::others::OtherRuns;
use super::plan::LoadPlan;
use super::reconcile::{Findings, SentTable};
use super::sources::SenderRanges;
use super::truth::SenderNumber;
use super::{lifecycle, publish, traffic};
use crate::driver::{ClientIndex, GroupIndex, LoadInterval, Unaccepted};
use crate::scenario::GroupPresence;

pub const WAKER: Token = Token(usize::MAX);
const ALARM: Token = Token(usize::MAX - 1);
pub const SECOND_NS: u64 = 1_000_000_000;
/// Most due messages per turn and group, before sockets are checked again.
const DUE_MAX: u32 = 1024;
/// Most connections that are started in one turn.
const CONNECTS_MAX: u32 = 32;

/// An order from the driver to its workers.
#[derive(Clone)]
pub enum WorkerOrder {
    Connect,
    Publish {
        start_ns: u64,
    },
    Return,
    Stop,
    /// End the interval now and report it.
    Cut,
    Reconcile(Arc<SentTable>),
    Quit,
}

/// A report from a worker to the driver.
pub enum WorkerReport {
    /// An interval that ends at a time common to all workers.
    Interval(Box<LoadInterval>),
    Cut(Box<LoadInterval>),
    Settled {
        given_up: u32,
    },
    /// No client was accepted after enough attempts; the last reason.
    NoneAccepted(String),
    Sent(Vec<(GroupIndex, ClientIndex, u64)>, Vec<(GroupIndex, Unaccepted)>),
    Outcome(Box<Findings>),
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerStage {
    Connecting,
    /// Ready: before the start, and after everything was sent.
    Idle,
    Publishing,
    Finishing,
    Returning,
    Reconciling,
    Closing,
    Done,
}

pub struct LoadWorker {
    pub(super) poll: Poll,
    pub(super) alarm: WakeTimer,
    /// When the timer fires, and for which time: before a due message it fires early.
    pub(super) alarm_at_ns: u64,
    pub(super) alarm_for_ns: u64,
    pub(super) orders: Receiver<WorkerOrder>,
    pub(super) notes: Sender<(u32, WorkerReport)>,
    pub(super) clients: Vec<LoadClient>,
    pub(super) cx: LoadContext,
    pub(super) buffer: Vec<u8>,
    pub(super) stage: WorkerStage,
    /// Start and end of publishing (no end if the number of messages is limited).
    pub(super) start_ns: Option<u64>,
    pub(super) end_ns: Option<u64>,
    pub(super) is_waiting_for_start: bool,
    /// The `Sent` report is made; it is made once.
    pub(super) has_sent: bool,
    /// When the current interval ends; the same for all workers.
    pub(super) boundary_ns: u64,
    pub(super) next_check_ns: u64,
    pub(super) next_connect_ns: u64,
    /// Time of the last progress, and the number whose change shows progress.
    pub(super) progress: (u64, u64),
    pub(super) sent_table: Option<Arc<SentTable>>,
    pub(super) complete_since_ns: Option<u64>,
    pub(super) next_segment_slot: usize,
}

impl LoadWorker {
    pub fn new(
        plan: Arc<LoadPlan>,
        thread: u32,
        poll: Poll,
        orders: Receiver<WorkerOrder>,
        notes: Sender<(u32, WorkerReport)>,
    ) -> std::io::Result<LoadWorker> {
        let now_ns = plan.clock.now_ns();
        let alarm = WakeTimer::new(poll.registry(), ALARM)?;
        let registry = poll.registry().try_clone()?;
        let cx = LoadContext {
            thread,
            registry,
            meter: Meter::new(now_ns),
            gaps: FlowGaps::default(),
            share_log: plan
                .shares
                .iter()
                .map(|share| vec![ReceivedSet::default(); share.sources.len()])
                .collect(),
            groups: Vec::new(),
            timers: Timers::default(),
            dirty: Vec::new(),
            readable: Vec::new(),
            queue: VecDeque::new(),
            connecting: 0,
            connected: 0,
            awaited: 0,
            given_up: 0,
            now_ns,
            last_message_ns: 0,
            permission: SendPermission::Nothing,
            is_ending: false,
            has_returned: false,
            is_cycling: false,
            deliveries: vec![0; plan.shared.delivered.len()],
            delivered: Vec::new(),
            scratch: String::new(),
            payload: Vec::new(),
            connect_count: thread,
            last_refusal: String::new(),
            plan,
        };
        Ok(LoadWorker {
            poll,
            alarm,
            alarm_at_ns: 0,
            alarm_for_ns: 0,
            orders,
            notes,
            clients: Vec::new(),
            cx,
            buffer: vec![0; traffic::READ_BYTES],
            stage: WorkerStage::Idle,
            start_ns: None,
            end_ns: None,
            is_waiting_for_start: false,
            has_sent: false,
            boundary_ns: (now_ns / SECOND_NS + 1) * SECOND_NS,
            next_check_ns: now_ns,
            next_connect_ns: now_ns,
            progress: (now_ns, 0),
            sent_table: None,
            complete_since_ns: None,
            next_segment_slot: 0,
        })
    }

    pub fn run(mut self) {
        self.make_clients();
        let mut events = Events::with_capacity(1024);
        while self.stage != WorkerStage::Done {
            self.cx.now_ns = self.cx.plan.clock.now_ns();
            self.take_orders();
            self.fire_timers();
            self.begin_connections();
            self.begin_messages();
            self.exchange_deliveries();
            self.flush_dirty();
            self.read_readable();
            self.handle_timers();
            if let Err(error) = self.wait(&mut events) {
                self.send_report(WorkerReport::Failed(format!("poll: {error}")));
                return;
            }
            for event in &events {
                self.on_event(event);
                self.send_due();
            }
            self.flush_dirty();
        }
    }

    pub(super) fn send_report(&self, note: WorkerReport) {
        // If the driver is gone, the order to quit follows.
        let _ = self.notes.send((self.cx.thread, note));
    }

    fn make_clients(&mut self) {
        let plan = self.cx.plan.clone();
        let mut known: HashMap<Vec<String>, Arc<SenderRanges>> = HashMap::new();
        for (number, group) in plan.groups.iter().enumerate() {
            let first_slot = ClientSlot(self.clients.len() as u32);
            let first_index = group.local.start + self.cx.thread;
            let own = (first_index..group.local.end).step_by(plan.threads as usize);
            for (place, index) in own.enumerate() {
                let mut client = LoadClient::new(group, GroupIndex::new(number), ClientIndex(index), place as u32);
                let subscriber =
                    (!group.group.subscribe.is_empty()).then(|| make_subscriber(&plan, &client, &mut known));
                lifecycle::create_parts(&mut client, &self.cx, subscriber);
                self.clients.push(client);
            }
            self.cx.groups.push(GroupRun {
                first_slot,
                clients: self.clients.len() as u32 - first_slot.0,
                first_index,
                schedule: None,
                is_stalled: false,
            });
        }
    }

    fn take_orders(&mut self) {
        loop {
            match self.orders.try_recv() {
                Ok(order) => self.execute(order),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.stage = WorkerStage::Done,
            }
        }
    }

    fn execute(&mut self, order: WorkerOrder) {
        match order {
            WorkerOrder::Connect => {
                self.next_connect_ns = self.cx.now_ns;
                self.call(|plan, client| plan.groups[client.group.position()].is_initially_connected());
                self.stage = WorkerStage::Connecting;
            }
            WorkerOrder::Publish { start_ns } => self.prepare_publishing(start_ns),
            WorkerOrder::Return => {
                self.cx.has_returned = true;
                self.call(|plan, client| plan.groups[client.group.position()].group.presence != GroupPresence::Always);
                self.stage = WorkerStage::Returning;
            }
            WorkerOrder::Stop => self.end_publishing(true),
            WorkerOrder::Cut => {
                let interval = self.take_interval(self.cx.now_ns);
                self.send_report(WorkerReport::Cut(interval));
            }
            WorkerOrder::Reconcile(table) => {
                self.sent_table = Some(table);
                self.stage = WorkerStage::Reconciling;
                self.progress = (self.cx.now_ns, u64::MAX);
                self.next_check_ns = self.cx.now_ns;
            }
            WorkerOrder::Quit => self.stage = WorkerStage::Done,
        }
    }

    /// Queues the absent clients for which `is_called` is true to connect.
    fn call(&mut self, is_called: impl Fn(&LoadPlan, &LoadClient) -> bool) {
        let plan = self.cx.plan.clone();
        for (slot, client) in self.clients.iter_mut().enumerate() {
            if client.state == LoadClientState::Absent
                && is_called(&plan, client)
                && plan.groups[client.group.position()].group.cycle.is_none()
            {
                client.is_awaited = true;
                self.cx.awaited += 1;
                lifecycle::enqueue(ClientSlot(slot as u32), client, &mut self.cx);
            }
        }
    }

    fn fire_timers(&mut self) {
        while let Some(timer) = self.cx.timers.pop(self.cx.now_ns) {
            match timer {
                LoadTimer::StallBegins(group) => self.cx.groups[group].is_stalled = true,
                LoadTimer::StallEnds(group) => self.end_stall(group),
                LoadTimer::Client(timer) => self.fire(timer),
            }
        }
    }

    fn fire(&mut self, timer: ClientTimer) {
        let Some(client) = self
            .clients
            .get_mut(timer.slot.index())
            .filter(|client| client.epoch == timer.epoch)
        else {
            return;
        };
        let (slot, cx) = (timer.slot, &mut self.cx);
        match timer.kind {
            TimerKind::Retry if client.state == LoadClientState::Queued => lifecycle::enqueue(slot, client, cx),
            TimerKind::ConnectDeadline if client.is_awaited || !client.is_connected() => {
                lifecycle::handle_disconnect(slot, client, cx, "not ready in time");
            }
            TimerKind::KeepAlive => lifecycle::keep_alive(slot, client, cx),
            TimerKind::Leave if client.state == LoadClientState::Ready => {
                let is_abrupt = cx
                    .group(client)
                    .group
                    .cycle
                    .as_ref()
                    .is_some_and(|cycle| cycle.is_abrupt);
                lifecycle::leave(slot, client, cx, is_abrupt);
            }
            TimerKind::LeaveDeadline => lifecycle::handle_disconnect(slot, client, cx, ""),
            TimerKind::Link => {
                if let Some(link) = &mut client.link {
                    link.handle_deadline();
                }
                traffic::on_ready(slot, client, cx, &mut self.buffer);
            }
            _ => {}
        }
    }

    fn end_stall(&mut self, group: usize) {
        let group = &mut self.cx.groups[group];
        group.is_stalled = false;
        for slot in group.slots() {
            let client = &mut self.clients[slot.index()];
            if client.link.is_some() {
                self.cx.mark_readable(slot, client);
            }
        }
    }

    fn begin_connections(&mut self) {
        let job = &self.cx.plan.job;
        let threads = self.cx.plan.threads;
        let connecting_max = (job.scenario.connecting_max / threads).max(1);
        let pause_ns = if job.connect_rate > 0.0 {
            (1e9 * f64::from(threads) / job.connect_rate) as u64
        } else {
            0
        };
        // Time in which no client waited to connect is not made up for.
        self.next_connect_ns = self.next_connect_ns.max(self.cx.now_ns.saturating_sub(100_000_000));
        for _ in 0..CONNECTS_MAX {
            if self.cx.connecting >= connecting_max || self.next_connect_ns > self.cx.now_ns {
                return;
            }
            let Some(slot) = self.cx.queue.pop_front() else { return };
            let client = &mut self.clients[slot.index()];
            if client.state == LoadClientState::Queued {
                lifecycle::connect(slot, client, &mut self.cx);
                self.next_connect_ns += pause_ns;
            }
        }
    }

    /// Sends the messages of the open model that are due within the current interval.
    pub(super) fn begin_messages(&mut self) {
        if self.stage != WorkerStage::Publishing {
            return;
        }
        for number in 0..self.cx.groups.len() {
            for _ in 0..DUE_MAX {
                let now_ns = self.cx.now_ns;
                let end_ns = self.end_ns.unwrap_or(u64::MAX).min(self.boundary_ns);
                let run = &mut self.cx.groups[number];
                let Some(schedule) = run.schedule.as_mut() else { break };
                let Some((place, due_ns)) = schedule.pop(now_ns.min(end_ns - 1)) else {
                    break;
                };
                let slot = run.slot(place);
                let client = &mut self.clients[slot.index()];
                self.cx.meter.interval.counts.due += 1;
                self.cx.meter.interval.lateness.record(now_ns - due_ns);
                if let Some(publisher) = client.publisher.as_deref_mut() {
                    publisher.due += 1;
                }
                publish::pump(slot, client, &mut self.cx);
            }
        }
    }

    /// QoS 0 with a window: shares the deliveries of this worker, and uses those that other workers shared.
    fn exchange_deliveries(&mut self) {
        let plan = self.cx.plan.clone();
        if plan.shared.delivered.is_empty() {
            return;
        }
        let mut delivered = std::mem::take(&mut self.cx.delivered);
        for &sender in &delivered {
            let count = std::mem::take(&mut self.cx.deliveries[sender.index()]);
            plan.shared.delivered[sender.index()].fetch_add(u64::from(count), Relaxed);
        }
        for sender in delivered.drain(..) {
            self.open_window(&plan, sender);
        }
        self.cx.delivered = delivered;
        if plan.shared.signals[self.cx.thread as usize]
            .has_deliveries
            .swap(false, Relaxed)
        {
            self.pump_windows(publish::pump);
        }
    }

    fn open_window(&mut self, plan: &LoadPlan, sender: SenderNumber) {
        let Some((group, index)) = plan.publisher(sender) else {
            return;
        };
        let index = index.0;
        let Some(local) = index.checked_sub(group.local.start).filter(|_| index < group.local.end) else {
            return;
        };
        let owner = local % plan.threads;
        if owner != self.cx.thread {
            let signal = &plan.shared.signals[owner as usize];
            if !signal.has_deliveries.swap(true, Relaxed) {
                // A worker that cannot be woken checks its windows within a second anyway.
                let _ = signal.waker.wake();
            }
            return;
        }
        let number = plan
            .groups
            .iter()
            .position(|other| std::ptr::eq(other, group))
            .unwrap_or(0);
        let slot = self.cx.groups[number].slot(local / plan.threads);
        publish::pump(slot, &mut self.clients[slot.index()], &mut self.cx);
    }

    pub(super) fn pump_windows(&mut self, pump: fn(ClientSlot, &mut LoadClient, &mut LoadContext)) {
        let plan = self.cx.plan.clone();
        for (number, group) in plan.groups.iter().enumerate() {
            if !group
                .publishing
                .as_ref()
                .is_some_and(|publishing| publishing.counts_deliveries)
            {
                continue;
            }
            let run = &self.cx.groups[number];
            for slot in run.slots() {
                pump(slot, &mut self.clients[slot.index()], &mut self.cx);
            }
        }
    }

    fn flush_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.cx.dirty);
        for &slot in &dirty {
            let client = &mut self.clients[slot.index()];
            client.is_dirty = false;
            traffic::flush(slot, client, &mut self.cx);
        }
        if self.cx.dirty.is_empty() {
            dirty.clear();
            self.cx.dirty = dirty;
        }
    }

    fn read_readable(&mut self) {
        for slot in std::mem::take(&mut self.cx.readable) {
            let client = &mut self.clients[slot.index()];
            client.is_readable = false;
            if client.link.is_some() {
                traffic::read(slot, client, &mut self.cx, &mut self.buffer);
            }
            self.send_due();
        }
    }

    fn on_event(&mut self, event: &mio::event::Event) {
        let slot = event.token().0;
        let Some(client) = self.clients.get_mut(slot) else {
            return;
        };
        client.is_peer_closed |= event.is_read_closed() || event.is_error();
        traffic::on_ready(ClientSlot(slot as u32), client, &mut self.cx, &mut self.buffer);
    }

    /// Sends due messages between reads: with all sockets full of input, one round of reading takes long.
    fn send_due(&mut self) {
        let now_ns = self.cx.now_ns;
        if self.stage == WorkerStage::Publishing && self.next_due_ns() <= now_ns {
            self.begin_messages();
            self.flush_dirty();
        }
        self.end_intervals();
    }

    pub(super) fn next_due_ns(&self) -> u64 {
        let due = self
            .cx
            .groups
            .iter()
            .filter_map(|run| run.schedule.as_ref()?.next_due_ns());
        due.min().unwrap_or(u64::MAX).max(self.start_ns.unwrap_or(0))
    }

    /// Sleeps until the next thing is due or a socket is ready.
    fn wait(&mut self, events: &mut Events) -> std::io::Result<()> {
        let mut timeout = Duration::ZERO;
        if self.cx.dirty.is_empty() && self.cx.readable.is_empty() {
            let next_ns = self.next_ns();
            let now_ns = self.cx.plan.clock.now_ns();
            let wait_ns = next_ns.saturating_sub(now_ns);
            let has_woken = self.alarm_for_ns == next_ns && self.alarm_at_ns <= now_ns;
            if wait_ns > SPIN_NS && !(has_woken && wait_ns <= EARLY_NS) {
                if self.alarm_for_ns != next_ns || self.alarm_at_ns <= now_ns {
                    let is_message = self.stage == WorkerStage::Publishing && self.next_due_ns() == next_ns;
                    let early_ns = if is_message {
                        EARLY_NS.min(wait_ns / EARLY_SHARE)
                    } else {
                        0
                    };
                    self.alarm.set(wait_ns - early_ns)?;
                    (self.alarm_for_ns, self.alarm_at_ns) = (next_ns, next_ns - early_ns);
                }
                // The timer wakes the poll first; this timeout is only a fallback.
                timeout = Duration::from_nanos(wait_ns) + Duration::from_millis(5);
            }
        }
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            result => result,
        }
    }

    fn next_ns(&self) -> u64 {
        let mut next_ns = self.boundary_ns.min(self.next_check_ns);
        let moments = [
            self.cx.timers.next_ns(),
            self.end_ns,
            self.start_ns.filter(|_| self.is_waiting_for_start),
        ];
        for moment in moments.into_iter().flatten() {
            next_ns = next_ns.min(moment);
        }
        if self.stage == WorkerStage::Publishing {
            next_ns = next_ns.min(self.next_due_ns());
        }
        let connecting_max = (self.cx.plan.job.scenario.connecting_max / self.cx.plan.threads).max(1);
        if !self.cx.queue.is_empty() && self.cx.connecting < connecting_max {
            next_ns = next_ns.min(self.next_connect_ns);
        }
        next_ns
    }
}

fn make_subscriber(
    plan: &LoadPlan,
    client: &LoadClient,
    known: &mut HashMap<Vec<String>, Arc<SenderRanges>>,
) -> LoadSubscriber {
    let group = &plan.groups[client.group.position()];
    let (shared, own): (Vec<String>, Vec<String>) = group
        .filters(client.index, plan.job.run)
        .into_iter()
        .partition(|filter| plan.share_id(filter).is_some());
    let is_divided = !shared.is_empty() || own.iter().any(|filter| filter.starts_with("$queue/"));
    // Only filters that many clients have in common are worth storing.
    let is_common = group
        .group
        .subscribe
        .iter()
        .all(|subscribe| !subscribe.filter.contains('%'));
    let hear = |filters: &[String]| Arc::new(plan.tree.senders_for(filters.iter().map(String::as_str)));
    let sources = match known.get(&own) {
        Some(sources) => sources.clone(),
        None => {
            let sources = hear(&own);
            if is_common {
                known.insert(own, sources.clone());
            }
            sources
        }
    };
    if !plan.shared.receivers.is_empty()
        && group.is_initially_connected()
        && group.group.presence == GroupPresence::Always
    {
        for sender in sources.iter() {
            plan.shared.receivers[sender.index()].fetch_add(1, Relaxed);
        }
    }
    let shares = shared
        .iter()
        .filter_map(|filter| plan.share_id(filter))
        .map(|share| ShareMember {
            share,
            next: vec![0; plan.shares[share as usize].sources.len()].into(),
        });
    LoadSubscriber {
        flows: vec![MessageFlow::default(); sources.len()].into(),
        sources,
        shares: shares.collect(),
        other_runs: plan.compares_other_runs().then(|| Box::new(OtherRuns::new(is_divided))),
        is_refused: false,
    }
}
