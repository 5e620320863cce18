//! The stages of a worker: connect, publish, finish, return, reconcile, close; and the intervals that it reports.

use std::sync::atomic::Ordering::Relaxed;

use super::client::{ClientSlot, LoadClient, LoadClientState};
use super::context::{LoadTimer, SendPermission};
use super::reconcile::{self, Findings};
use super::schedule::{ClientShare, MessagePace, SendSchedule};
use super::worker::{LoadWorker, SECOND_NS, WorkerReport, WorkerStage};
use super::{lifecycle, publish};
use crate::driver::{LoadInterval, Unaccepted};

/// Period of the checks whether a stage is complete.
const CHECK_NS: u64 = 20_000_000;
/// Sockets per second and worker whose segments are read from the kernel; each read is a system call.
const SEGMENT_SOCKETS_MAX: usize = 2_000;
/// Time to wait for duplicates after all messages have arrived.
const LINGER_NS: u64 = 100_000_000;
const CLOSE_NS: u64 = 2 * SECOND_NS;

impl LoadWorker {
    pub(super) fn prepare_publishing(&mut self, start_ns: u64) {
        let plan = self.cx.plan.clone();
        let scenario = &plan.job.scenario;
        for (number, (group, run)) in plan.groups.iter().zip(&mut self.cx.groups).enumerate() {
            if let Some(stall) = &group.group.stall {
                let begins_ns = start_ns + (stall.after_s * 1e9) as u64;
                self.cx.timers.add(begins_ns, LoadTimer::StallBegins(number));
                let ends_ns = begins_ns + (stall.for_s * 1e9) as u64;
                self.cx.timers.add(ends_ns, LoadTimer::StallEnds(number));
            }
            let (Some(publishing), Some(publish)) = (&group.publishing, &group.group.publish) else {
                continue;
            };
            let share = ClientShare {
                clients: group.group.clients,
                first: run.first_index,
                step: plan.threads,
                own: run.clients,
            };
            if publishing.is_open {
                let pace = MessagePace {
                    period_ns: publishing.period_ns,
                    burst_ns: publishing.burst_ns,
                };
                run.schedule = Some(SendSchedule::new(start_ns, pace, share, publish.messages));
            }
        }
        let ends_by_itself = plan.groups.iter().any(|group| group.publishing.is_some())
            && plan.groups.iter().all(|group| {
                group.publishing.is_none() || group.group.publish.as_ref().is_some_and(|publish| publish.messages > 0)
            });
        let length_ns = ((scenario.warm_up_s + scenario.duration_s) * 1e9) as u64;
        self.start_ns = Some(start_ns);
        self.end_ns = (!ends_by_itself).then_some(start_ns + length_ns);
        self.is_waiting_for_start = true;
        if start_ns > self.cx.now_ns {
            self.boundary_ns = self.boundary_ns.min(start_ns);
        }
    }

    fn begin_publishing(&mut self) {
        self.is_waiting_for_start = false;
        self.stage = WorkerStage::Publishing;
        self.cx.permission = SendPermission::Begin;
        self.cx.is_cycling = true;
        self.progress = (self.cx.now_ns, 0);
        for slot in 0..self.clients.len() {
            let client = &mut self.clients[slot];
            publish::pump(ClientSlot(slot as u32), client, &mut self.cx);
            let is_cycle = self.cx.plan.groups[client.group.position()].group.cycle.is_some();
            if is_cycle && client.state == LoadClientState::Absent {
                lifecycle::enqueue(ClientSlot(slot as u32), client, &mut self.cx);
            }
        }
    }

    /// Ends publishing: no new message is due. With `at_once`, messages that wait to be sent are not sent either.
    pub(super) fn end_publishing(&mut self, at_once: bool) {
        if !matches!(self.stage, WorkerStage::Publishing | WorkerStage::Finishing) {
            // Stopped before publishing began, perhaps while connecting: there is nothing to finish, but the driver
            // expects the answer.
            if at_once && !self.has_sent {
                self.is_waiting_for_start = false;
                self.cx.queue.clear();
                self.report_sent();
            }
            return;
        }
        self.cx.permission = if at_once {
            SendPermission::Nothing
        } else {
            SendPermission::Finish
        };
        self.cx.is_cycling = false;
        if self.stage == WorkerStage::Publishing {
            self.progress.0 = self.cx.now_ns;
        }
        self.stage = WorkerStage::Finishing;
        self.end_ns = None;
        self.next_check_ns = self.cx.now_ns;
        let plan = self.cx.plan.clone();
        for (slot, client) in self.clients.iter_mut().enumerate() {
            if plan.groups[client.group.position()].group.cycle.is_some() && client.state == LoadClientState::Ready {
                lifecycle::leave(ClientSlot(slot as u32), client, &mut self.cx, false);
            }
        }
    }

    /// Handles what happens at a time rather than on a socket.
    pub(super) fn handle_timers(&mut self) {
        let now_ns = self.cx.now_ns;
        if self.is_waiting_for_start && self.start_ns.is_some_and(|start_ns| start_ns <= now_ns) {
            self.begin_publishing();
        }
        self.end_intervals();
        if self.stage == WorkerStage::Publishing && self.end_ns.is_some_and(|end_ns| end_ns <= now_ns) {
            // Messages that were due just before the end are still sent.
            self.begin_messages();
            self.end_publishing(false);
        }
        if self.next_check_ns <= now_ns {
            self.check();
            // A check of a million flows takes long, so at most a tenth of the time is spent on checks.
            let took_ns = self.cx.plan.clock.now_ns() - now_ns;
            self.next_check_ns = now_ns + CHECK_NS.max(10 * took_ns);
        }
    }

    /// Reports the intervals that have ended. A message that was due in an interval belongs to it, even if this thread
    /// is late.
    pub(super) fn end_intervals(&mut self) {
        while self.boundary_ns <= self.cx.now_ns {
            while self.stage == WorkerStage::Publishing
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
        self.send_report(WorkerReport::Interval(interval));
        self.boundary_ns = self.boundary_after(end_ns);
        if self.cx.permission != SendPermission::Nothing {
            self.pump_windows(publish::write_off);
        }
    }

    /// Returns the next end of an interval: the start of publishing, whole seconds after it, the end of the warm-up and
    /// of the duration.
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

    pub(super) fn take_interval(&mut self, end_ns: u64) -> Box<LoadInterval> {
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
            WorkerStage::Connecting | WorkerStage::Returning => self.check_connected(),
            WorkerStage::Publishing | WorkerStage::Finishing => self.check_sent(),
            WorkerStage::Reconciling => self.check_complete(),
            WorkerStage::Closing => self.check_closed(),
            WorkerStage::Idle | WorkerStage::Done => {}
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
            self.send_report(WorkerReport::NoneAccepted(reason));
            self.stage = WorkerStage::Idle;
        } else if self.cx.awaited == 0 {
            self.stage = WorkerStage::Idle;
            self.send_report(WorkerReport::Settled {
                given_up: self.cx.given_up,
            });
        }
    }

    /// Ends publishing when all messages are sent and acknowledged, or when there is no more progress.
    fn check_sent(&mut self) {
        let is_finished = self
            .clients
            .iter()
            .all(|client| publish::has_finished(client, &self.cx));
        if is_finished && (self.stage == WorkerStage::Finishing || self.end_ns.is_none()) {
            return self.report_sent();
        }
        let drain_ns = (self.cx.plan.job.scenario.drain_s * 1e9) as u64;
        let is_late = self.cx.now_ns > self.progress.0 + drain_ns.max(SECOND_NS);
        if self.stage == WorkerStage::Finishing && self.cx.permission == SendPermission::Finish {
            // Messages that wait may be sent within the drain time. Those sent by then may still be acknowledged.
            if is_late {
                self.cx.permission = SendPermission::Nothing;
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
            client.give_up_messages();
            if let Some(publisher) = &mut client.publisher {
                // They may still be sent, but they are not expected.
                publisher.sent -= unsent;
            }
        }
    }

    fn waits_for_schedule(&self) -> bool {
        self.stage == WorkerStage::Publishing
            && self.cx.groups.iter().any(|run| {
                run.schedule
                    .as_ref()
                    .is_some_and(|schedule| schedule.next_due_ns().is_some())
            })
    }

    /// Returns a number that changes whenever a message is sent or acknowledged.
    fn sending_state(&self) -> u64 {
        let publishers = self
            .clients
            .iter()
            .filter_map(|client| Some((client.publisher.as_deref()?, client)));
        publishers.fold(1, |state, (publisher, client)| {
            state
                + (u64::from(publisher.sent) << 20)
                + client.session.in_flight_count() as u64
                + ((client.pending_out() as u64) << 8)
        })
    }

    fn report_sent(&mut self) {
        self.cx.permission = SendPermission::Nothing;
        self.cx.is_cycling = false;
        self.has_sent = true;
        self.stage = WorkerStage::Idle;
        let (mut counts, mut unaccepted) = (Vec::new(), Vec::new());
        for client in &self.clients {
            let Some(publisher) = &client.publisher else { continue };
            counts.push((client.group, client.index, u64::from(publisher.sent)));
            unaccepted.extend(publisher.unaccepted.ranges().iter().map(|range| {
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
        self.send_report(WorkerReport::Sent(counts, unaccepted));
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
        let state = self.cx.gaps.distinct + shares;
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
        self.stage = WorkerStage::Closing;
        self.cx.is_ending = true;
        self.progress.0 = self.cx.now_ns;
        for (slot, client) in self.clients.iter_mut().enumerate() {
            match client.state {
                LoadClientState::Queued => client.state = LoadClientState::Absent,
                LoadClientState::Absent | LoadClientState::GivenUp | LoadClientState::Disconnecting => {}
                _ => lifecycle::leave(ClientSlot(slot as u32), client, &mut self.cx, false),
            }
        }
    }

    fn check_closed(&mut self) {
        let is_closed = self.clients.iter().all(LoadClient::has_finished);
        if !is_closed && self.cx.now_ns < self.progress.0 + CLOSE_NS {
            return;
        }
        let interval = self.take_interval(self.cx.now_ns);
        self.send_report(WorkerReport::Interval(interval));
        let findings = match &self.sent_table {
            Some(table) => reconcile::compare(&self.clients, &mut self.cx, table),
            None => Findings::default(),
        };
        let shared = &self.cx.plan.shared;
        shared.last_arrival_ns.fetch_max(self.cx.last_message_ns, Relaxed);
        self.send_report(WorkerReport::Outcome(Box::new(findings)));
        self.stage = WorkerStage::Done;
    }
}
