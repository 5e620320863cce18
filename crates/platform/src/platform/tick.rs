//! Periodic work: silent devices, rule durations, counter and generator nodes, expired requests, usage, checkpoints.

use std::collections::BTreeMap;

use timeseries::LogPosition;

use super::host::PlatformCall;
use super::waiting_calls::{StoredRecord, WaitingScript, WaitsFor};
use super::{IngestError, Platform, PlatformCore, PlatformOptions, PlatformOutlet};
use crate::activity::ActivityEvent;
use crate::chain::{self, Continuation, ExternalAnswer, ExternalError, ScriptAnswer};
use crate::ids::{DeviceId, TenantId};
use crate::queue_statistics::QueueCounts;
use crate::repository::{RepositoryChange, StateKind};
use crate::usage::{UsageCounter, UsagePoint};

const SCRIPT_DID_NOT_RUN: &str =
    "the script did not run within 60 seconds: the scripts of this tenant use all of its CPU time";

impl Platform {
    /// The caller calls this about once a second. `position` should be a separate position in the caller's log, after
    /// all ingested batches and before all later ones. Points that chains create without a message are stored with this
    /// position. If it is the position of the last batch, the points wait for the next batch.
    pub fn tick(&self, position: LogPosition, now_ms: i64, outlet: &mut dyn PlatformOutlet) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        core.observe_time(now_ms, &self.options);
        self.refresh_limits(&mut core);
        core.usage.reset_past_periods(now_ms);
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        visit.retry_due();
        visit.tick_chains();
        visit.expire_calls();
        visit.load_durations();
        if now_ms >= visit.core.next_check_ms {
            visit.core.next_check_ms = now_ms.saturating_add(self.options.check_ms);
            visit.check_inactivity();
            visit.check_durations();
        }
        visit.drain_queue();
        visit.decide_batch();
        if position > core.processed {
            core.processed_to(position);
        }
        core.remove_done(self.store.durable_position());
        self.write_pending(&mut core)?;
        if now_ms >= core.next_checkpoint_ms {
            core.next_checkpoint_ms = now_ms.saturating_add(self.options.checkpoint_ms);
            core.push_checkpoint();
            self.apply_pending(&mut core).map_err(IngestError::Repository)?;
        }
        Ok(())
    }

    /// Records activity that is not in the log, such as pings and subscriptions, with its time per device.
    pub fn record_active(
        &self,
        active_devices: &[(DeviceId, i64)],
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        for (id, at_ms) in active_devices {
            // Skips devices that have been deleted.
            if let Ok(sender) = visit.sender(*id) {
                visit.record_activity(&sender, *at_ms);
                visit.record_gateway_device_activity(&sender, *at_ms);
            }
        }
        visit.drain_queue();
        self.write_pending(&mut core)
    }

    /// Saves all periodically saved state now, before a shutdown.
    pub fn checkpoint(&self) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        core.remove_done(self.store.durable_position());
        core.push_checkpoint();
        self.apply_pending(&mut core).map_err(IngestError::Repository)
    }

    /// Returns usage of tenants since the last call, for their time series.
    pub fn take_usage(&self) -> Vec<UsagePoint> {
        self.core().usage.report()
    }

    /// Returns the numbers of active and inactive devices of each tenant, if they changed. Scans all devices.
    pub fn take_device_counts(&self, now_ms: i64) -> Vec<UsagePoint> {
        let mut core = self.core();
        let mut counts: BTreeMap<TenantId, (u64, u64)> = BTreeMap::new();
        for (id, device) in self.entities.directory().devices() {
            let is_active = core.devices.get(&id).is_some_and(|state| state.activity.is_active);
            let (active, inactive) = counts.entry(device.tenant).or_default();
            *(if is_active { active } else { inactive }) += 1;
        }
        let counts = counts
            .into_iter()
            .map(|(tenant, (active, inactive))| (tenant, active, inactive));
        core.usage.report_devices(counts, now_ms)
    }

    /// Returns queue statistics of tenants since the last call.
    pub fn take_queue_counts(&self) -> Vec<(TenantId, Vec<QueueCounts>)> {
        self.core().queue_statistics.take()
    }

    /// Usage of this month.
    pub fn usage(&self, tenant: TenantId, counter: UsageCounter) -> u64 {
        self.core().usage.get(tenant, counter)
    }

    /// Passes in the answer to an RPC request sent with [`PlatformOutlet::call_device`]. An error is a name such as
    /// `TIMEOUT`.
    pub fn answer(
        &self,
        number: u64,
        answer: Result<serde_json::Value, &str>,
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        visit.resume_call(number, answer);
        visit.drain_queue();
    }

    /// Passes in the result of an external request sent with [`PlatformOutlet::send`].
    pub fn returned(
        &self,
        number: u64,
        result: Result<ExternalAnswer, ExternalError>,
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        visit.resume_external(number, result);
        visit.drain_queue();
    }

    /// Continues chains whose scripts have answered. Does nothing if there are no answers.
    pub fn take_script_answers(&self, now_ms: i64, outlet: &mut dyn PlatformOutlet) {
        let answers = self.options.scripts.as_ref().map(|scripts| scripts.take_answers());
        for (number, answer) in answers.into_iter().flatten() {
            let mut core = self.core();
            let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
            visit.resume_script(number, answer);
            visit.drain_queue();
        }
    }

    /// Fails requests that waited too long for an answer. [`Platform::tick`] also does this. A caller uses this
    /// function while it cannot call `tick`, because a batch is not accepted.
    pub fn expire_calls(&self, now_ms: i64, outlet: &mut dyn PlatformOutlet) {
        let mut core = self.core();
        core.observe_time(now_ms, &self.options);
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        visit.expire_calls();
        visit.drain_queue();
    }
}

impl super::PlatformCore {
    fn push_checkpoint(&mut self) {
        let changed: Vec<DeviceId> = self.changed_activity.drain().collect();
        for id in changed {
            if let Some(device) = self.devices.get(&id) {
                self.pending.push_change(RepositoryChange::PutState {
                    state: StateKind::Activity,
                    id: id.0,
                    bytes: Some(device.activity.to_bytes()),
                });
            }
        }
    }
}

impl PlatformCore {
    /// Shortens waits that are longer than the original ones, if the clock was set back.
    fn observe_time(&mut self, now_ms: i64, options: &PlatformOptions) {
        let was_set_back = now_ms < self.last_tick_ms;
        self.last_tick_ms = now_ms;
        if !was_set_back {
            return;
        }
        let limit = |at_ms: &mut i64, wait_ms: i64| *at_ms = (*at_ms).min(now_ms.saturating_add(wait_ms));
        limit(&mut self.next_check_ms, options.check_ms);
        limit(&mut self.next_checkpoint_ms, options.checkpoint_ms);
        for periodic in &mut self.periodic {
            limit(&mut periodic.next_ms, periodic.period_ms);
        }
        self.calls.limit_waits(now_ms);
    }
}

impl PlatformCall<'_> {
    fn tick_chains(&mut self) {
        let now_ms = self.now_ms;
        let mut due = Vec::new();
        for periodic in self
            .core
            .periodic
            .iter_mut()
            .filter(|periodic| periodic.next_ms <= now_ms)
        {
            // Ticks that were missed while the server was paused are skipped.
            periodic.next_ms = periodic.next_ms.saturating_add(periodic.period_ms);
            if periodic.next_ms <= now_ms {
                periodic.next_ms = now_ms.saturating_add(periodic.period_ms);
            }
            due.push((periodic.chain, periodic.node, periodic.tenant));
        }
        for (id, node, tenant) in due {
            let Some(chain) = self.core.chains.get(&id).cloned() else {
                continue;
            };
            let service = self.platform.options.service.clone();
            self.begin_message();
            self.begin_unqueued(tenant);
            let done = chain::tick(&chain, node, tenant.0, &service, self);
            self.finish(tenant.entity(), tenant, None, done);
        }
    }

    fn expire_calls(&mut self) {
        for number in self.core.calls.expired(self.now_ms) {
            match self.core.calls.waits_for(number) {
                Some(WaitsFor::External(_)) => self.resume_external(
                    number,
                    Err(ExternalError::new("the external system did not answer in time")),
                ),
                Some(WaitsFor::Script(script)) => {
                    if let Some(scripts) = &self.platform.options.scripts {
                        scripts.cancel(script.tenant, number);
                    }
                    self.resume_script(number, ScriptAnswer::failed(SCRIPT_DID_NOT_RUN));
                }
                Some(WaitsFor::Device) => self.resume_call(number, Err("TIMEOUT")),
                None => {}
            }
        }
    }

    fn resume_script(&mut self, number: u64, answer: ScriptAnswer) {
        let Some((then, WaitsFor::Script(waits))) = self.core.calls.remove(number) else {
            return;
        };
        let WaitingScript {
            tenant,
            stored,
            budget,
            depth,
        } = *waits;
        let originator = then.message.originator;
        let run = |visit: &mut Self, then: Continuation| chain::script_returned(then, answer, visit);
        match stored {
            StoredRecord::QueuedMessage(waiting) => self.resume_waiting(waiting, |visit| {
                (visit.budget, visit.depth) = (budget, depth);
                run(visit, then)
            }),
            StoredRecord::Continuation(number) => {
                (self.budget, self.depth) = (budget, depth);
                self.begin_slice();
                self.begin_unqueued(tenant);
                self.continuing = Some(number);
                let done = self.resume_continuation(number, |visit| run(visit, then));
                self.finish(originator, tenant, None, done);
                self.continuing = None;
                self.depth = 0;
                self.leave_script_lane(number, tenant);
            }
        }
        self.depth = 0;
    }

    fn resume_call(&mut self, number: u64, answer: Result<serde_json::Value, &str>) {
        let Some((then, _)) = self.core.calls.remove(number) else {
            return;
        };
        let originator = then.message.originator;
        let tenant = self.tenant_of(originator);
        self.begin_message();
        self.begin_unqueued(tenant);
        let done = match answer {
            Ok(body) => chain::resume(then, "Success", Some(body), self),
            Err(error) => {
                let body = serde_json::json!({"error": error});
                chain::resume(then, "Failure", Some(body), self)
            }
        };
        self.finish(originator, tenant, None, done);
    }

    /// A message in a retrying queue stays there while its requests are outstanding.
    fn resume_external(&mut self, number: u64, result: Result<ExternalAnswer, ExternalError>) {
        let Some((then, WaitsFor::External(stored))) = self.core.calls.remove(number) else {
            return;
        };
        let originator = then.message.originator;
        let tenant = self.tenant_of(originator);
        match stored {
            StoredRecord::QueuedMessage(waiting) => {
                self.resume_waiting(waiting, |visit| chain::returned(then, result, visit))
            }
            StoredRecord::Continuation(number) => {
                self.begin_message();
                self.begin_unqueued(tenant);
                let done = self.resume_continuation(number, |visit| chain::returned(then, result, visit));
                self.finish(originator, tenant, None, done);
            }
        }
    }

    fn check_inactivity(&mut self) {
        let (now_ms, timeout_ms) = (self.now_ms, self.platform.options.inactivity_timeout_ms);
        let mut silent = Vec::new();
        for (id, device) in &mut self.core.devices {
            if let Some(event) = device.activity.check(now_ms, timeout_ms) {
                silent.push((*id, event));
            }
        }
        silent.extend(self.devices_never_active());
        for (id, event) in silent {
            self.core.changed_activity.insert(id);
            if let Ok(sender) = self.sender(id) {
                self.send_activity_event(&sender, Some(event), now_ms);
            }
        }
    }

    /// Devices that have sent nothing since they were created.
    fn devices_never_active(&mut self) -> Vec<(DeviceId, ActivityEvent)> {
        let (now_ms, timeout_ms) = (self.now_ms, self.platform.options.inactivity_timeout_ms);
        let directory = self.platform.entities.directory();
        let never_heard = |id: &DeviceId| {
            let known = self.core.devices.get(id).map(|device| device.activity);
            known.is_none_or(|activity| activity.last_activity_ms == 0 && activity.inactivity_alarm_ms == 0)
        };
        // Skips devices that cannot be due. A device with a timeout shorter than the default has an entry in
        // `devices`.
        let is_due = |id: &DeviceId| {
            self.core.devices.contains_key(id) || now_ms >= id.0.created_ms().saturating_add(timeout_ms)
        };
        let all = directory.devices().map(|(id, _)| id);
        let due: Vec<DeviceId> = all.filter(|id| never_heard(id) && is_due(id)).collect();
        drop(directory);
        let missed = due.into_iter().filter_map(|id| {
            let event = self
                .activity(id)
                .first_inactivity(id.0.created_ms(), now_ms, timeout_ms)?;
            Some((id, event))
        });
        missed.collect()
    }
}
