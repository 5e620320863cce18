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
use super::clock::{Alarm, SPIN_NS};
use super::context::{Context, GroupRun, Permission, Timer, TimerKind, Timers};
use super::flow::{Flow, Ledger, Received};
use super::meter::Meter;
use super::plan::Plan;
use super::reconcile::{self, Findings, SentTable};
use super::schedule::{Schedule, Share};
use super::sources::Sources;
use super::{lifecycle, publish, traffic};
use crate::driver::{Interval, Unaccepted};
use crate::scenario::Presence;

pub const WAKER: Token = Token(usize::MAX);
const ALARM: Token = Token(usize::MAX - 1);
const SECOND_NS: u64 = 1_000_000_000;
/// How often slow conditions are looked at.
const CHECK_NS: u64 = 20_000_000;
/// Messages that are begun in one turn, before sockets are looked at again.
const DUE_MAX: u32 = 1024;
/// Connections that are begun in one turn.
const CONNECTS_MAX: u32 = 32;
/// Sockets per second and worker of which the kernel is asked for segments; each is a system call.
const SEGMENT_SOCKETS_MAX: usize = 2_000;
/// After everything has come: time for what should not.
const LINGER_NS: u64 = 100_000_000;
const CLOSE_NS: u64 = 2 * SECOND_NS;

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
enum Stage {
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
    poll: Poll,
    alarm: Alarm,
    alarm_at_ns: u64,
    orders: Receiver<Order>,
    notes: Sender<(u32, Note)>,
    clients: Vec<Client>,
    cx: Context,
    buffer: Vec<u8>,
    stage: Stage,
    /// Publishing begins and ends (without an end when it is the messages that do).
    start_ns: Option<u64>,
    end_ns: Option<u64>,
    awaits_start: bool,
    /// When the running interval ends; the same for all workers.
    boundary_ns: u64,
    next_check_ns: u64,
    next_connect_ns: u64,
    /// Since when nothing has changed, and the number by which that is told.
    progress: (u64, u64),
    sent_table: Option<Arc<SentTable>>,
    complete_since_ns: Option<u64>,
    next_segment_slot: usize,
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
            orders,
            notes,
            clients: Vec::new(),
            cx,
            buffer: vec![0; traffic::READ_BYTES],
            stage: Stage::Idle,
            start_ns: None,
            end_ns: None,
            awaits_start: false,
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
            }
            self.flush_dirty();
        }
    }

    fn note(&self, note: Note) {
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

    fn prepare_publishing(&mut self, start_ns: u64) {
        let plan = self.cx.plan.clone();
        let scenario = &plan.job.scenario;
        for (number, (group, run)) in plan.groups.iter().zip(&mut self.cx.groups).enumerate() {
            if let Some(stall) = &group.group.stall {
                let begins_ns = start_ns + (stall.after_s * 1e9) as u64;
                self.cx.timers.add(begins_ns, TimerKind::StallBegins, number as u32, 0);
                self.cx.timers.add(
                    begins_ns + (stall.for_s * 1e9) as u64,
                    TimerKind::StallEnds,
                    number as u32,
                    0,
                );
            }
            let (Some(publishing), Some(publish)) = (&group.publishing, &group.group.publish) else {
                continue;
            };
            let share = Share {
                clients: group.group.clients,
                first: run.first_index,
                step: plan.threads,
                own: run.clients,
            };
            if publishing.is_open {
                run.schedule = Some(Schedule::new(start_ns, publishing.period_ns, share, publish.messages));
            }
        }
        let ends_by_itself = plan.groups.iter().any(|group| group.publishing.is_some())
            && plan.groups.iter().all(|group| {
                group.publishing.is_none() || group.group.publish.as_ref().is_some_and(|publish| publish.messages > 0)
            });
        let length_ns = ((scenario.warm_up_s + scenario.duration_s) * 1e9) as u64;
        self.start_ns = Some(start_ns);
        self.end_ns = (!ends_by_itself).then_some(start_ns + length_ns);
        self.awaits_start = true;
        if start_ns > self.cx.now_ns {
            self.boundary_ns = self.boundary_ns.min(start_ns);
        }
    }

    fn begin_publishing(&mut self) {
        self.awaits_start = false;
        self.stage = Stage::Publishing;
        self.cx.permission = Permission::Begin;
        self.cx.is_cycling = true;
        self.progress = (self.cx.now_ns, 0);
        for slot in 0..self.clients.len() {
            let client = &mut self.clients[slot];
            publish::pump(slot as u32, client, &mut self.cx);
            let is_cycle = self.cx.plan.groups[usize::from(client.group)].group.cycle.is_some();
            if is_cycle && client.state == State::Away {
                lifecycle::enqueue(slot as u32, client, &mut self.cx);
            }
        }
    }

    /// Nothing new begins. `at_once`: what has waited until now does not leave any more either.
    fn end_publishing(&mut self, at_once: bool) {
        if !matches!(self.stage, Stage::Publishing | Stage::Finishing) {
            // Stopped before it began: there is nothing to finish, and the answer is due all the same.
            if at_once && std::mem::take(&mut self.awaits_start) {
                self.stage = Stage::Finishing;
            }
            return;
        }
        self.cx.permission = if at_once {
            Permission::Nothing
        } else {
            Permission::Finish
        };
        self.cx.is_cycling = false;
        if self.stage == Stage::Publishing {
            self.progress.0 = self.cx.now_ns;
        }
        self.stage = Stage::Finishing;
        self.end_ns = None;
        self.next_check_ns = self.cx.now_ns;
        let plan = self.cx.plan.clone();
        for (slot, client) in self.clients.iter_mut().enumerate() {
            if plan.groups[usize::from(client.group)].group.cycle.is_some() && client.state == State::Ready {
                lifecycle::leave(slot as u32, client, &mut self.cx, false);
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

    /// The open model: everything that is due.
    fn begin_messages(&mut self) {
        if self.stage != Stage::Publishing {
            return;
        }
        for number in 0..self.cx.groups.len() {
            for _ in 0..DUE_MAX {
                let now_ns = self.cx.now_ns;
                let end_ns = self.end_ns.unwrap_or(u64::MAX);
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

    fn pump_windows(&mut self, pump: fn(u32, &mut Client, &mut Context)) {
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

    /// Sleeps until the next thing is due or a socket is ready.
    fn wait(&mut self, events: &mut Events) -> std::io::Result<()> {
        let mut timeout = Duration::ZERO;
        if self.cx.dirty.is_empty() && self.cx.hot.is_empty() {
            let next_ns = self.next_ns();
            let now_ns = self.cx.plan.clock.now_ns();
            let wait_ns = next_ns.saturating_sub(now_ns);
            if wait_ns > SPIN_NS {
                if self.alarm_at_ns > next_ns || self.alarm_at_ns <= now_ns {
                    self.alarm.set(wait_ns)?;
                    self.alarm_at_ns = next_ns;
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
            for run in &self.cx.groups {
                next_ns = next_ns.min(
                    run.schedule
                        .as_ref()
                        .and_then(Schedule::next_due_ns)
                        .unwrap_or(u64::MAX),
                );
            }
        }
        let connecting_max = (self.cx.plan.job.scenario.connecting_max / self.cx.plan.threads).max(1);
        if !self.cx.queue.is_empty() && self.cx.connecting < connecting_max {
            next_ns = next_ns.min(self.next_connect_ns);
        }
        next_ns
    }

    /// Everything that happens at a time rather than at a socket.
    fn keep_time(&mut self) {
        let now_ns = self.cx.now_ns;
        if self.awaits_start && self.start_ns.is_some_and(|start_ns| start_ns <= now_ns) {
            self.begin_publishing();
        }
        if self.stage == Stage::Publishing && self.end_ns.is_some_and(|end_ns| end_ns <= now_ns) {
            // What was due just before the end is still begun.
            self.begin_messages();
            self.end_publishing(false);
        }
        if self.boundary_ns <= now_ns {
            self.report();
        }
        if self.next_check_ns <= now_ns {
            self.next_check_ns = now_ns + CHECK_NS;
            self.check();
        }
    }

    fn report(&mut self) {
        let end_ns = self.boundary_ns;
        let interval = self.take_interval(end_ns);
        self.note(Note::Interval(interval));
        while self.boundary_ns <= self.cx.now_ns {
            self.boundary_ns = self.boundary_after(self.boundary_ns);
        }
        if self.cx.permission != Permission::Nothing {
            self.pump_windows(publish::write_off);
        }
    }

    /// The moments at which intervals end: the start of publishing, whole seconds from there, the end of the warm-up and of the duration.
    fn boundary_after(&self, boundary_ns: u64) -> u64 {
        let next_ns = boundary_ns + SECOND_NS;
        let Some(start_ns) = self.start_ns else { return next_ns };
        let Some(past_ns) = boundary_ns.checked_sub(start_ns) else {
            return next_ns.min(start_ns);
        };
        let scenario = &self.cx.plan.job.scenario;
        let whole_ns = start_ns + (past_ns / SECOND_NS + 1) * SECOND_NS;
        let warm_ns = start_ns + (scenario.warm_up_s * 1e9) as u64;
        let end_ns = start_ns + ((scenario.warm_up_s + scenario.duration_s) * 1e9) as u64;
        let special = [warm_ns, end_ns]
            .into_iter()
            .filter(|special| *special > boundary_ns)
            .min();
        special.map_or(whole_ns, |special| special.min(whole_ns))
    }

    fn take_interval(&mut self, end_ns: u64) -> Box<Interval> {
        let count = self.clients.len().min(SEGMENT_SOCKETS_MAX);
        for _ in 0..count {
            let slot = self.next_segment_slot % self.clients.len();
            self.next_segment_slot = slot + 1;
            self.cx.count_segments(&mut self.clients[slot]);
        }
        Box::new(self.cx.meter.take(end_ns, self.cx.connected))
    }

    fn check(&mut self) {
        match self.stage {
            Stage::Connecting | Stage::Returning => self.check_connected(),
            Stage::Publishing | Stage::Finishing => self.check_sent(),
            Stage::Reconciling => self.check_complete(),
            Stage::Closing => self.check_closed(),
            Stage::Idle | Stage::Done => {}
        }
    }

    fn check_connected(&mut self) {
        let enough = self
            .cx
            .plan
            .job
            .scenario
            .connecting_max
            .min(self.cx.given_up + self.cx.awaited);
        if self.cx.given_up > 0 && self.cx.given_up >= enough && self.cx.plan.shared.ever_connected.load(Relaxed) == 0 {
            let reason = self.cx.last_refusal.clone();
            self.note(Note::Hopeless(reason));
            self.stage = Stage::Idle;
        } else if self.cx.awaited == 0 {
            self.stage = Stage::Idle;
            self.note(Note::Settled {
                given_up: self.cx.given_up,
            });
        }
    }

    fn check_sent(&mut self) {
        let is_finished = self
            .clients
            .iter()
            .all(|client| publish::has_finished(client, &self.cx));
        if is_finished && (self.stage == Stage::Finishing || self.end_ns.is_none()) {
            return self.report_sent();
        }
        let drain_ns = (self.cx.plan.job.scenario.drain_s * 1e9) as u64;
        if self.stage == Stage::Finishing
            && self.cx.permission == Permission::Finish
            && self.cx.now_ns > self.progress.0 + drain_ns
        {
            // A backlog that does not get smaller in the time it has is not sent; what was sent may still be acknowledged.
            self.cx.permission = Permission::Nothing;
            self.progress = (self.cx.now_ns, 0);
        }
        let state = self.sending_state();
        if state != self.progress.1 {
            let since_ns = if self.cx.permission == Permission::Finish {
                self.progress.0
            } else {
                self.cx.now_ns
            };
            self.progress = (since_ns, state);
        } else if self.cx.permission != Permission::Finish
            && self.cx.now_ns > self.progress.0 + drain_ns.max(SECOND_NS)
            && self.end_ns.is_none()
            && !self.waits_for_schedule()
        {
            for client in &mut self.clients {
                if let Some(publisher) = &mut client.publisher {
                    publisher.outbound.give_up();
                }
            }
            self.report_sent();
        }
    }

    fn waits_for_schedule(&self) -> bool {
        self.stage == Stage::Publishing
            && self.cx.groups.iter().any(|run| {
                run.schedule
                    .as_ref()
                    .is_some_and(|schedule| schedule.next_due_ns().is_some())
            })
    }

    /// Changes whenever something leaves or is acknowledged.
    fn sending_state(&self) -> u64 {
        let publishers = self
            .clients
            .iter()
            .filter_map(|client| Some((client.publisher.as_deref()?, client.pending_out())));
        publishers.fold(1, |state, (publisher, pending)| {
            state
                + (u64::from(publisher.sent) << 20)
                + u64::from(publisher.outbound.unacknowledged())
                + ((pending as u64) << 8)
        })
    }

    fn report_sent(&mut self) {
        self.cx.permission = Permission::Nothing;
        self.cx.is_cycling = false;
        self.stage = Stage::Idle;
        let (mut counts, mut unaccepted) = (Vec::new(), Vec::new());
        for client in &self.clients {
            let Some(publisher) = &client.publisher else { continue };
            counts.push((client.group, client.index, u64::from(publisher.sent)));
            unaccepted.extend(publisher.outbound.unaccepted.iter().map(|range| {
                let (from, to) = (u64::from(range.start), u64::from(range.end));
                (
                    client.group,
                    Unaccepted {
                        client: client.index,
                        from,
                        to,
                    },
                )
            }));
        }
        self.note(Note::Sent(counts, unaccepted));
    }

    fn check_complete(&mut self) {
        let Some(table) = self.sent_table.clone() else { return };
        let drain_ns = (self.cx.plan.job.scenario.drain_s * 1e9) as u64;
        let shares: u64 = self
            .cx
            .plan
            .shared
            .share_received
            .iter()
            .map(|count| count.load(Relaxed))
            .sum();
        let state = self.cx.ledger.distinct + shares;
        if state != self.progress.1 {
            self.progress = (self.cx.now_ns, state);
            self.cx.plan.shared.last_arrival_ns.fetch_max(self.cx.now_ns, Relaxed);
        }
        let is_complete = reconcile::is_complete(&self.clients, &self.cx, &table);
        let since_ns = *self.complete_since_ns.get_or_insert(self.cx.now_ns);
        if !is_complete {
            self.complete_since_ns = None;
        }
        let last_ns = self.cx.plan.shared.last_arrival_ns.load(Relaxed).max(self.progress.0);
        let is_over = is_complete && self.cx.now_ns >= since_ns + LINGER_NS || self.cx.now_ns > last_ns + drain_ns;
        if is_over {
            self.close_all();
        }
    }

    fn close_all(&mut self) {
        self.stage = Stage::Closing;
        self.cx.is_ending = true;
        self.progress.0 = self.cx.now_ns;
        for (slot, client) in self.clients.iter_mut().enumerate() {
            match client.state {
                State::Queued => client.state = State::Away,
                State::Away | State::Gone | State::Leaving => {}
                _ => lifecycle::leave(slot as u32, client, &mut self.cx, false),
            }
        }
    }

    fn check_closed(&mut self) {
        let is_closed = self.clients.iter().all(Client::has_finished);
        if !is_closed && self.cx.now_ns < self.progress.0 + CLOSE_NS {
            return;
        }
        let interval = self.take_interval(self.cx.now_ns);
        self.note(Note::Interval(interval));
        let findings = match &self.sent_table {
            Some(table) => reconcile::compare(&self.clients, &mut self.cx, table),
            None => Findings::default(),
        };
        self.note(Note::Outcome(Box::new(findings)));
        self.stage = Stage::Done;
    }
}

fn make_subscriber(plan: &Plan, client: &Client, known: &mut HashMap<Vec<String>, Arc<Sources>>) -> Subscriber {
    let group = &plan.groups[usize::from(client.group)];
    let (shared, own): (Vec<String>, Vec<String>) = group
        .filters(client.index, plan.job.run)
        .into_iter()
        .partition(|filter| plan.share_id(filter).is_some());
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
        is_refused: false,
    }
}
