//! What time does: devices that fall silent, durations, counters and generators of chains, answers that never come, usage,
//! checkpoints.

use std::collections::BTreeMap;

use timeseries::Position;

use super::host::Visit;
use super::waiting_calls::Stored;
use super::{IngestError, Outlet, Platform};
use crate::activity::ActivityEvent;
use crate::chain::{self, Answer, Refusal};
use crate::ids::{DeviceId, TenantId};
use crate::queue_statistics::QueueCounts;
use crate::repository::{Change, StateKind};
use crate::usage::{Counter, UsagePoint};

impl Platform {
    /// To be called about once a second. `position` is one of its own in the caller's log, behind all batches that were ingested
    /// and before those that will be: what chains say by themselves is stored as if it was said there. With the position of
    /// the last batch it waits for the next one.
    pub fn tick(&self, position: Position, now_ms: i64, outlet: &mut dyn Outlet) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        self.look_at_limits(&mut core);
        core.usage.roll(now_ms);
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.retry_due();
        visit.tick_chains();
        visit.expire_calls();
        visit.load_durations();
        if now_ms >= visit.core.next_check_ms {
            visit.core.next_check_ms = now_ms.saturating_add(self.options.check_ms);
            visit.check_silence();
            visit.check_durations();
        }
        visit.drain_queue();
        visit.judge_batch();
        if position > core.processed {
            core.processed_to(position);
        }
        core.forget_done(self.store.durable_position());
        self.write_pending(&mut core)?;
        if now_ms >= core.next_checkpoint_ms {
            core.next_checkpoint_ms = now_ms.saturating_add(self.options.checkpoint_ms);
            core.push_checkpoint();
            self.apply_pending(&mut core).map_err(IngestError::Repository)?;
        }
        Ok(())
    }

    /// Devices that are there without having said anything that is kept: they subscribed, pinged, asked. When each was heard.
    pub fn alive(&self, heard: &[(DeviceId, i64)], now_ms: i64, outlet: &mut dyn Outlet) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        for (id, at_ms) in heard {
            // A device that was deleted meanwhile is nobody's.
            if let Ok(sender) = visit.sender(*id) {
                visit.heard(&sender, *at_ms);
                visit.heard_behind(&sender, *at_ms);
            }
        }
        visit.drain_queue();
        self.write_pending(&mut core)
    }

    /// Everything that is kept now and then is kept now: before a stop.
    pub fn checkpoint(&self) -> Result<(), IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        core.forget_done(self.store.durable_position());
        core.push_checkpoint();
        self.apply_pending(&mut core).map_err(IngestError::Repository)
    }

    /// What tenants used since the last time, for their time series.
    pub fn take_usage(&self) -> Vec<UsagePoint> {
        self.core().usage.report()
    }

    /// How many devices of each tenant are active and how many are not, if that has changed; goes through all of them.
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

    /// How messages fared in the queues of tenants since the last time.
    pub fn take_queue_counts(&self) -> Vec<(TenantId, Vec<QueueCounts>)> {
        self.core().queue_statistics.take()
    }

    /// Of this month.
    pub fn usage(&self, tenant: TenantId, counter: Counter) -> u64 {
        self.core().usage.get(tenant, counter)
    }

    /// The answer to a call that went out as [`Outlet::call_device`]; an error is the name of one, such as `TIMEOUT`.
    pub fn answer(&self, number: u64, answer: Result<serde_json::Value, &str>, now_ms: i64, outlet: &mut dyn Outlet) {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.go_on(number, answer);
        visit.drain_queue();
    }

    /// What another system said to what went out as [`Outlet::send`].
    pub fn returned(&self, number: u64, said: Result<Answer, Refusal>, now_ms: i64, outlet: &mut dyn Outlet) {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.go_on_outside(number, said);
        visit.drain_queue();
    }

    /// What has waited too long for an answer fails. A part of [`Platform::tick`], for a caller whose clock stands still because a batch is
    /// not taken.
    pub fn expire_calls(&self, now_ms: i64, outlet: &mut dyn Outlet) {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.expire_calls();
        visit.drain_queue();
    }
}

impl super::Core {
    fn push_checkpoint(&mut self) {
        let changed: Vec<DeviceId> = self.changed_activity.drain().collect();
        for id in changed {
            if let Some(device) = self.devices.get(&id) {
                self.pending.push_change(Change::PutState {
                    state: StateKind::Activity,
                    id: id.0,
                    bytes: Some(device.activity.to_bytes()),
                });
            }
        }
    }
}

impl Visit<'_> {
    fn tick_chains(&mut self) {
        let now_ms = self.now_ms;
        let mut due = Vec::new();
        for periodic in self
            .core
            .periodic
            .iter_mut()
            .filter(|periodic| periodic.next_ms <= now_ms)
        {
            // After a pause it begins anew, rather than say everything that was missed.
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
            let done = chain::tick(&chain, node, tenant.0, &service, self);
            self.finish(tenant.entity(), tenant, None, &done);
        }
    }

    fn expire_calls(&mut self) {
        for number in self.core.calls.expired(self.now_ms) {
            match self.core.calls.is_outside(number) {
                true => self.go_on_outside(number, Err(Refusal::new("the other system has not answered in time"))),
                false => self.go_on(number, Err("TIMEOUT")),
            }
        }
    }

    fn go_on(&mut self, number: u64, answer: Result<serde_json::Value, &str>) {
        let Some((then, _)) = self.core.calls.remove(number) else {
            return;
        };
        let originator = then.message.originator;
        let tenant = self.tenant_of(originator);
        self.begin_message();
        let done = match answer {
            Ok(body) => chain::resume(then, "Success", Some(body), self),
            Err(error) => {
                let body = serde_json::json!({"error": error});
                chain::resume(then, "Failure", Some(body), self)
            }
        };
        self.finish(originator, tenant, None, &done);
    }

    /// A message of a queue that tries again waits there as long as it is under way.
    fn go_on_outside(&mut self, number: u64, said: Result<Answer, Refusal>) {
        let Some((then, Some(kept))) = self.core.calls.remove(number) else {
            return;
        };
        let originator = then.message.originator;
        let tenant = self.tenant_of(originator);
        match kept {
            Stored::InItsQueue(waiting) => self.go_on_waiting(waiting, |visit| chain::returned(then, said, visit)),
            Stored::Alone(number) => {
                self.begin_message();
                let done = self.go_on_alone(number, |visit| chain::returned(then, said, visit));
                self.finish(originator, tenant, None, &done);
            }
        }
    }

    fn check_silence(&mut self) {
        let (now_ms, timeout_ms) = (self.now_ms, self.platform.options.inactivity_timeout_ms);
        let mut silent = Vec::new();
        for (id, device) in &mut self.core.devices {
            if let Some(event) = device.activity.check(now_ms, timeout_ms) {
                silent.push((*id, event));
            }
        }
        silent.extend(self.missed());
        for (id, event) in silent {
            self.core.changed_activity.insert(id);
            if let Ok(sender) = self.sender(id) {
                self.tell_activity(&sender, Some(event), now_ms);
            }
        }
    }

    /// Devices that never came since they were made.
    fn missed(&mut self) -> Vec<(DeviceId, ActivityEvent)> {
        let (now_ms, timeout_ms) = (self.now_ms, self.platform.options.inactivity_timeout_ms);
        let directory = self.platform.entities.directory();
        let never_heard = |id: &DeviceId| {
            let known = self.core.devices.get(id).map(|device| device.activity);
            known.is_none_or(|activity| activity.last_activity_ms == 0 && activity.inactivity_alarm_ms == 0)
        };
        // Most have the default; what a shorter one of its own has made of a device is known of it.
        let is_due = |id: &DeviceId| {
            self.core.devices.contains_key(id) || now_ms >= id.0.created_ms().saturating_add(timeout_ms)
        };
        let all = directory.devices().map(|(id, _)| id);
        let due: Vec<DeviceId> = all.filter(|id| never_heard(id) && is_due(id)).collect();
        drop(directory);
        let missed = due.into_iter().filter_map(|id| {
            let event = self.activity(id).missed(id.0.created_ms(), now_ms, timeout_ms)?;
            Some((id, event))
        });
        missed.collect()
    }
}
