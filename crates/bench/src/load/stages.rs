//! What a worker does when: connect, publish, finish, return, reconcile, close; and the intervals that it reports.

use std::sync::atomic::Ordering::Relaxed;

use super::client::{Client, State};
use super::context::{Permission, TimerKind};
use super::reconcile::{self, Findings};
use super::schedule::{Pace, Schedule, Share};
use super::worker::{Note, SECOND_NS, Stage, Worker};
use super::{lifecycle, publish};
use crate::driver::{Interval, Unaccepted};

/// How often slow conditions are looked at.
const CHECK_NS: u64 = 20_000_000;
/// Sockets per second and worker of which the kernel is asked for segments; each is a system call.
const SEGMENT_SOCKETS_MAX: usize = 2_000;
/// After everything has come: time for what should not.
const LINGER_NS: u64 = 100_000_000;
const CLOSE_NS: u64 = 2 * SECOND_NS;

impl Worker {
    pub(super) fn prepare_publishing(&mut self, start_ns: u64) {
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
                let pace = Pace {
                    period_ns: publishing.period_ns,
                    burst_ns: publishing.burst_ns,
                };
                run.schedule = Some(Schedule::new(start_ns, pace, share, publish.messages));
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
    pub(super) fn end_publishing(&mut self, at_once: bool) {
        if !matches!(self.stage, Stage::Publishing | Stage::Finishing) {
            // Stopped before it began, perhaps while connecting: there is nothing to finish, and the answer is due all the same.
            if at_once && !self.has_sent {
                self.awaits_start = false;
                self.cx.queue.clear();
                self.report_sent();
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

    /// Everything that happens at a time rather than at a socket.
    pub(super) fn keep_time(&mut self) {
        let now_ns = self.cx.now_ns;
        if self.awaits_start && self.start_ns.is_some_and(|start_ns| start_ns <= now_ns) {
            self.begin_publishing();
        }
        self.end_intervals();
        if self.stage == Stage::Publishing && self.end_ns.is_some_and(|end_ns| end_ns <= now_ns) {
            // What was due just before the end is still begun.
            self.begin_messages();
            self.end_publishing(false);
        }
        if self.next_check_ns <= now_ns {
            self.check();
            // A look at a million flows takes long; no more than a tenth of the time goes into looking.
            let took_ns = self.cx.plan.clock.now_ns() - now_ns;
            self.next_check_ns = now_ns + CHECK_NS.max(10 * took_ns);
        }
    }

    /// Reports every interval that has ended. What was due in it belongs to it, however late this thread comes.
    pub(super) fn end_intervals(&mut self) {
        while self.boundary_ns <= self.cx.now_ns {
            while self.stage == Stage::Publishing
                && self.next_due_ns() < self.boundary_ns.min(self.end_ns.unwrap_or(u64::MAX))
            {
                self.begin_messages();
            }
            self.report();
        }
    }

    fn report(&mut self) {
        let end_ns = self.boundary_ns;
        let interval = self.take_interval(end_ns);
        self.note(Note::Interval(interval));
        self.boundary_ns = self.boundary_after(end_ns);
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

    pub(super) fn take_interval(&mut self, end_ns: u64) -> Box<Interval> {
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

    /// Ends publishing when everything has left and is acknowledged, and when nothing moves any more.
    fn check_sent(&mut self) {
        let is_finished = self
            .clients
            .iter()
            .all(|client| publish::has_finished(client, &self.cx));
        if is_finished && (self.stage == Stage::Finishing || self.end_ns.is_none()) {
            return self.report_sent();
        }
        let drain_ns = (self.cx.plan.job.scenario.drain_s * 1e9) as u64;
        let is_late = self.cx.now_ns > self.progress.0 + drain_ns.max(SECOND_NS);
        if self.stage == Stage::Finishing && self.cx.permission == Permission::Finish {
            // A backlog has the drain time to leave. What has left by then may still be acknowledged.
            if is_late {
                self.cx.permission = Permission::Nothing;
                self.progress = (self.cx.now_ns, 0);
            }
            return;
        }
        let state = self.sending_state();
        if state != self.progress.1 {
            self.progress = (self.cx.now_ns, state);
        } else if is_late && self.end_ns.is_none() && !self.waits_for_schedule() {
            self.give_up_sending();
            self.report_sent();
        }
    }

    fn give_up_sending(&mut self) {
        for client in &mut self.clients {
            let unsent = if client.pending_out() > 0 {
                client.unsent_qos0()
            } else {
                0
            };
            if let Some(publisher) = &mut client.publisher {
                publisher.outbound.give_up();
                // They may still leave, but nobody waits for them.
                publisher.sent -= unsent;
            }
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
        self.has_sent = true;
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
            self.cx.plan.shared.last_progress_ns.fetch_max(self.cx.now_ns, Relaxed);
        }
        let is_complete = reconcile::is_complete(&self.clients, &self.cx, &table);
        let since_ns = *self.complete_since_ns.get_or_insert(self.cx.now_ns);
        if !is_complete {
            self.complete_since_ns = None;
        }
        let last_ns = self.cx.plan.shared.last_progress_ns.load(Relaxed).max(self.progress.0);
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
        let shared = &self.cx.plan.shared;
        shared.last_arrival_ns.fetch_max(self.cx.last_message_ns, Relaxed);
        self.note(Note::Outcome(Box::new(findings)));
        self.stage = Stage::Done;
    }
}
