//! One thread's share of the load: a poll loop that owns its connections.
//!
//! A turn: orders, timers, new connections, what is due, one write per connection that has something to write, reads. Nothing in it
//! blocks but the poll, and the poll ends at the next moment at which something is due.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use mio::{Events, Poll, Token};

use super::client::{Client, ShareMember, State, Subscriber};
use super::clock::{Alarm, EARLY_NS, EARLY_SHARE, SPIN_NS};
use super::context::{Context, GroupRun, Permission, Timer, TimerKind, Timers};
use super::flow::{Flow, Ledger, Received};
use super::meter::Meter;
use super::others::Others;
use super::plan::Plan;
use super::reconcile::{Findings, SentTable};
use super::sources::Sources;
use super::{lifecycle, publish, traffic};
use crate::driver::{Interval, Unaccepted};
use crate::scenario::Presence;

pub const WAKER: Token = Token(usize::MAX);
const ALARM: Token = Token(usize::MAX - 1);
pub const SECOND_NS: u64 = 1_000_000_000;
/// Messages that are begun in one turn, before sockets are looked at again.
const DUE_MAX: u32 = 1024;
/// Connections that are begun in one turn.
const CONNECTS_MAX: u32 = 32;

/// From the driver to its workers.
#[derive(Clone)]
pub enum Order {
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

/// From a worker to the driver.
pub enum Note {
    /// At a moment that all workers have in common.
    Interval(Box<Interval>),
    Cut(Box<Interval>),
    Settled {
        given_up: u32,
    },
    /// Nobody was ever let in, and enough have tried.
    Hopeless(String),
    Sent(Vec<(u16, u32, u64)>, Vec<(u16, Unaccepted)>),
    Outcome(Box<Findings>),
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    /// Ready, before the start and after everything was sent.
    Idle,
    Publishing,
    Finishing,
    Returning,
    Reconciling,
    Closing,
    Done,
}

pub struct Worker {
    pub(super) poll: Poll,
    pub(super) alarm: Alarm,
    /// When it rings, and for which moment: before a message is due it rings early.
    pub(super) alarm_at_ns: u64,
    pub(super) alarm_for_ns: u64,
    pub(super) orders: Receiver<Order>,
    pub(super) notes: Sender<(u32, Note)>,
    pub(super) clients: Vec<Client>,
    pub(super) cx: Context,
    pub(super) buffer: Vec<u8>,
    pub(super) stage: Stage,
    /// Publishing begins and ends (without an end when it is the messages that do).
    pub(super) start_ns: Option<u64>,
    pub(super) end_ns: Option<u64>,
    pub(super) awaits_start: bool,
    /// What was sent is reported; it comes once.
    pub(super) has_sent: bool,
    /// When the running interval ends; the same for all workers.
    pub(super) boundary_ns: u64,
    pub(super) next_check_ns: u64,
    pub(super) next_connect_ns: u64,
    /// Since when nothing has changed, and the number by which that is told.
    pub(super) progress: (u64, u64),
    pub(super) sent_table: Option<Arc<SentTable>>,
    pub(super) complete_since_ns: Option<u64>,
    pub(super) next_segment_slot: usize,
}

impl Worker {
    pub fn new(
        plan: Arc<Plan>,
        thread: u32,
        poll: Poll,
        orders: Receiver<Order>,
        notes: Sender<(u32, Note)>,
    ) -> std::io::Result<Worker> {
        let now_ns = plan.clock.now_ns();
        let alarm = Alarm::new(poll.registry(), ALARM)?;
        let registry = poll.registry().try_clone()?;
        let cx = Context {
            thread,
            registry,
            meter: Meter::new(now_ns),
            ledger: Ledger::default(),
            share_log: plan
                .shares
                .iter()
                .map(|share| vec![Received::default(); share.sources.len()])
                .collect(),
            groups: Vec::new(),
            timers: Timers::default(),
            dirty: Vec::new(),
            hot: Vec::new(),
            queue: VecDeque::new(),
            connecting: 0,
            connected: 0,
            awaited: 0,
            given_up: 0,
            now_ns,
            last_message_ns: 0,
            permission: Permission::Nothing,
            is_ending: false,
            has_returned: false,
            is_cycling: false,
            deliveries: vec![0; plan.shared.delivered.len()],
            delivered: Vec::new(),
            scratch: String::new(),
            payload: Vec::new(),
            turn: thread,
            last_refusal: String::new(),
            plan,
        };
        Ok(Worker {
            poll,
            alarm,
            alarm_at_ns: 0,
            alarm_for_ns: 0,
            orders,
            notes,
            clients: Vec::new(),
            cx,
            buffer: vec![0; traffic::READ_BYTES],
            stage: Stage::Idle,
            start_ns: None,
            end_ns: None,
            awaits_start: false,
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
        while self.stage != Stage::Done {
            self.cx.now_ns = self.cx.plan.clock.now_ns();
            self.take_orders();
            self.fire_timers();
            self.begin_connections();
            self.begin_messages();
            self.exchange_deliveries();
            self.flush_dirty();
            self.read_hot();
            self.keep_time();
            if let Err(error) = self.wait(&mut events) {
                self.note(Note::Failed(format!("poll: {error}")));
                return;
            }
            for event in &events {
                self.on_event(event);
                self.be_punctual();
            }
            self.flush_dirty();
        }
    }

    pub(super) fn note(&self, note: Note) {
        // When the driver is gone, the order to quit is on its way.
        let _ = self.notes.send((self.cx.thread, note));
    }

    fn make_clients(&mut self) {
        let plan = self.cx.plan.clone();
        let mut known: HashMap<Vec<String>, Arc<Sources>> = HashMap::new();
        for (number, group) in plan.groups.iter().enumerate() {
            let first_slot = self.clients.len() as u32;
            let first_index = group.local.start + self.cx.thread;
            let own = (first_index..group.local.end).step_by(plan.threads as usize);
            for (place, index) in own.enumerate() {
                let mut client = Client::new(group, number as u16, index, place as u32);
                let subscriber =
                    (!group.group.subscribe.is_empty()).then(|| make_subscriber(&plan, &client, &mut known));
                lifecycle::equip(&mut client, &self.cx, subscriber);
                self.clients.push(client);
            }
            self.cx.groups.push(GroupRun {
                first_slot,
                clients: self.clients.len() as u32 - first_slot,
                first_index,
                schedule: None,
                is_stalled: false,
            });
        }
    }

    fn take_orders(&mut self) {
        loop {
            match self.orders.try_recv() {
                Ok(order) => self.obey(order),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.stage = Stage::Done,
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Connect => {
                self.next_connect_ns = self.cx.now_ns;
                self.call(|plan, client| plan.groups[usize::from(client.group)].is_present_at_first());
                self.stage = Stage::Connecting;
            }
            Order::Publish { start_ns } => self.prepare_publishing(start_ns),
            Order::Return => {
                self.cx.has_returned = true;
                self.call(|plan, client| plan.groups[usize::from(client.group)].group.presence != Presence::Always);
                self.stage = Stage::Returning;
            }
            Order::Stop => self.end_publishing(true),
            Order::Cut => {
                let interval = self.take_interval(self.cx.now_ns);
                self.note(Note::Cut(interval));
            }
            Order::Reconcile(table) => {
                self.sent_table = Some(table);
                self.stage = Stage::Reconciling;
                self.progress = (self.cx.now_ns, u64::MAX);
                self.next_check_ns = self.cx.now_ns;
            }
            Order::Quit => self.stage = Stage::Done,
        }
    }

    /// Clients that shall connect now.
    fn call(&mut self, is_called: impl Fn(&Plan, &Client) -> bool) {
        let plan = self.cx.plan.clone();
        for (slot, client) in self.clients.iter_mut().enumerate() {
            if client.state == State::Away
                && is_called(&plan, client)
                && plan.groups[usize::from(client.group)].group.cycle.is_none()
            {
                client.is_awaited = true;
                self.cx.awaited += 1;
                lifecycle::enqueue(slot as u32, client, &mut self.cx);
            }
        }
    }

    fn fire_timers(&mut self) {
        while let Some(timer) = self.cx.timers.pop(self.cx.now_ns) {
            match timer.kind {
                TimerKind::StallBegins => self.cx.groups[timer.slot as usize].is_stalled = true,
                TimerKind::StallEnds => self.end_stall(timer.slot),
                _ => self.fire(timer),
            }
        }
    }

    fn fire(&mut self, timer: Timer) {
        let Some(client) = self
            .clients
            .get_mut(timer.slot as usize)
            .filter(|client| client.epoch == timer.epoch)
        else {
            return;
        };
        let (slot, cx) = (timer.slot, &mut self.cx);
        match timer.kind {
            TimerKind::Retry if client.state == State::Queued => lifecycle::enqueue(slot, client, cx),
            TimerKind::ConnectDeadline if client.is_awaited || !client.is_connected() => {
                lifecycle::lose(slot, client, cx, "not ready in time");
            }
            TimerKind::KeepAlive => lifecycle::keep_alive(slot, client, cx),
            TimerKind::Leave if client.state == State::Ready => {
                let is_abrupt = cx
                    .group(client)
                    .group
                    .cycle
                    .as_ref()
                    .is_some_and(|cycle| cycle.is_abrupt);
                lifecycle::leave(slot, client, cx, is_abrupt);
            }
            TimerKind::LeaveDeadline => lifecycle::lose(slot, client, cx, ""),
            _ => {}
        }
    }

    fn end_stall(&mut self, group: u32) {
        let group = &mut self.cx.groups[group as usize];
        group.is_stalled = false;
        for slot in group.first_slot..group.first_slot + group.clients {
            let client = &mut self.clients[slot as usize];
            if client.link.is_some() {
                self.cx.mark_hot(slot, client);
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
        // A pause in which nobody wanted to connect is not made up for.
        self.next_connect_ns = self.next_connect_ns.max(self.cx.now_ns.saturating_sub(100_000_000));
        for _ in 0..CONNECTS_MAX {
            if self.cx.connecting >= connecting_max || self.next_connect_ns > self.cx.now_ns {
                return;
            }
            let Some(slot) = self.cx.queue.pop_front() else { return };
            let client = &mut self.clients[slot as usize];
            if client.state == State::Queued {
                lifecycle::connect(slot, client, &mut self.cx);
                self.next_connect_ns += pause_ns;
            }
        }
    }

    /// The open model: everything that is due, as far as the running interval reaches.
    pub(super) fn begin_messages(&mut self) {
        if self.stage != Stage::Publishing {
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
                let slot = run.first_slot + place;
                let client = &mut self.clients[slot as usize];
                self.cx.meter.interval.counts.due += 1;
                self.cx.meter.interval.lateness.record(now_ns - due_ns);
                if let Some(publisher) = client.publisher.as_deref_mut() {
                    publisher.due += 1;
                }
                publish::pump(slot, client, &mut self.cx);
            }
        }
    }

    /// QoS 0 with a window: tells the other workers what has come, and hears what came to them.
    fn exchange_deliveries(&mut self) {
        let plan = self.cx.plan.clone();
        if plan.shared.delivered.is_empty() {
            return;
        }
        let mut delivered = std::mem::take(&mut self.cx.delivered);
        for &sender in &delivered {
            let count = std::mem::take(&mut self.cx.deliveries[sender as usize]);
            plan.shared.delivered[sender as usize].fetch_add(u64::from(count), Relaxed);
        }
        for sender in delivered.drain(..) {
            self.open_window(&plan, sender);
        }
        self.cx.delivered = delivered;
        if plan.shared.doors[self.cx.thread as usize]
            .has_deliveries
            .swap(false, Relaxed)
        {
            self.pump_windows(publish::pump);
        }
    }

    fn open_window(&mut self, plan: &Plan, sender: u32) {
        let Some((group, index)) = plan.publisher(sender) else {
            return;
        };
        let Some(local) = index.checked_sub(group.local.start).filter(|_| index < group.local.end) else {
            return;
        };
        let owner = local % plan.threads;
        if owner != self.cx.thread {
            let door = &plan.shared.doors[owner as usize];
            if !door.has_deliveries.swap(true, Relaxed) {
                // A worker that cannot be woken looks by itself at the latest after a second.
                let _ = door.waker.wake();
            }
            return;
        }
        let number = plan
            .groups
            .iter()
            .position(|other| std::ptr::eq(other, group))
            .unwrap_or(0);
        let slot = self.cx.groups[number].first_slot + local / plan.threads;
        publish::pump(slot, &mut self.clients[slot as usize], &mut self.cx);
    }

    pub(super) fn pump_windows(&mut self, pump: fn(u32, &mut Client, &mut Context)) {
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
            for slot in run.first_slot..run.first_slot + run.clients {
                pump(slot, &mut self.clients[slot as usize], &mut self.cx);
            }
        }
    }

    fn flush_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.cx.dirty);
        for &slot in &dirty {
            let client = &mut self.clients[slot as usize];
            client.is_dirty = false;
            traffic::flush(slot, client, &mut self.cx);
        }
        if self.cx.dirty.is_empty() {
            dirty.clear();
            self.cx.dirty = dirty;
        }
    }

    fn read_hot(&mut self) {
        for slot in std::mem::take(&mut self.cx.hot) {
            let client = &mut self.clients[slot as usize];
            client.is_hot = false;
            if client.link.is_some() {
                traffic::read(slot, client, &mut self.cx, &mut self.buffer);
            }
            self.be_punctual();
        }
    }

    fn on_event(&mut self, event: &mio::event::Event) {
        let slot = event.token().0;
        let Some(client) = self.clients.get_mut(slot) else {
            return;
        };
        client.sees_end |= event.is_read_closed() || event.is_error();
        traffic::on_ready(slot as u32, client, &mut self.cx, &mut self.buffer);
    }

    /// With every socket full of input one round of reading takes long; what is due in the meantime is not kept waiting.
    fn be_punctual(&mut self) {
        let now_ns = self.cx.now_ns;
        if self.stage == Stage::Publishing && self.next_due_ns() <= now_ns {
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
        if self.cx.dirty.is_empty() && self.cx.hot.is_empty() {
            let next_ns = self.next_ns();
            let now_ns = self.cx.plan.clock.now_ns();
            let wait_ns = next_ns.saturating_sub(now_ns);
            let has_woken = self.alarm_for_ns == next_ns && self.alarm_at_ns <= now_ns;
            if wait_ns > SPIN_NS && !(has_woken && wait_ns <= EARLY_NS) {
                if self.alarm_for_ns != next_ns || self.alarm_at_ns <= now_ns {
                    let is_message = self.stage == Stage::Publishing && self.next_due_ns() == next_ns;
                    let early_ns = if is_message {
                        EARLY_NS.min(wait_ns / EARLY_SHARE)
                    } else {
                        0
                    };
                    self.alarm.set(wait_ns - early_ns)?;
                    (self.alarm_for_ns, self.alarm_at_ns) = (next_ns, next_ns - early_ns);
                }
                // The alarm is first; this is the net below it.
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
            self.start_ns.filter(|_| self.awaits_start),
        ];
        for moment in moments.into_iter().flatten() {
            next_ns = next_ns.min(moment);
        }
        if self.stage == Stage::Publishing {
            next_ns = next_ns.min(self.next_due_ns());
        }
        let connecting_max = (self.cx.plan.job.scenario.connecting_max / self.cx.plan.threads).max(1);
        if !self.cx.queue.is_empty() && self.cx.connecting < connecting_max {
            next_ns = next_ns.min(self.next_connect_ns);
        }
        next_ns
    }
}

fn make_subscriber(plan: &Plan, client: &Client, known: &mut HashMap<Vec<String>, Arc<Sources>>) -> Subscriber {
    let group = &plan.groups[usize::from(client.group)];
    let (shared, own): (Vec<String>, Vec<String>) = group
        .filters(client.index, plan.job.run)
        .into_iter()
        .partition(|filter| plan.share_id(filter).is_some());
    let is_divided = !shared.is_empty() || own.iter().any(|filter| filter.starts_with("$queue/"));
    // Only filters that many have are worth remembering.
    let is_common = group
        .group
        .subscribe
        .iter()
        .all(|subscribe| !subscribe.filter.contains('%'));
    let hear = |filters: &[String]| Arc::new(plan.tree.heard_by(filters.iter().map(String::as_str)));
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
    if !plan.shared.receivers.is_empty() && group.is_present_at_first() && group.group.presence == Presence::Always {
        for sender in sources.iter() {
            plan.shared.receivers[sender as usize].fetch_add(1, Relaxed);
        }
    }
    let shares = shared
        .iter()
        .filter_map(|filter| plan.share_id(filter))
        .map(|share| ShareMember {
            share,
            next: vec![0; plan.shares[share as usize].sources.len()].into(),
        });
    Subscriber {
        flows: vec![Flow::default(); sources.len()].into(),
        sources,
        shares: shares.collect(),
        inbound: Default::default(),
        others: plan.hears_others().then(|| Box::new(Others::new(is_divided))),
        is_refused: false,
    }
}
