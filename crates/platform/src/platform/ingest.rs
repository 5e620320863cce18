//! Batches of what devices said: decoded, sent along chains, written.

use std::fmt;
use std::sync::Arc;

use timeseries::{Position, StoreError, WriteError};

use super::host::Visit;
use super::retries::Work;
use super::{Core, Outlet, Platform};
use crate::activity::ActivityEvent;
use crate::chain::{self, Chain, Continuation, Data, Message, Metadata, POST_ATTRIBUTES, POST_TELEMETRY, Run};
use crate::decode::{DecodeError, KeyValue, RpcRequest, Telemetry, attributes};
use crate::directory::DeviceEntry;
use crate::ids::{DeviceId, RuleChainId, TenantId, Uuid};
use crate::limits::ApiFeature;
use crate::model::DeviceProfile;
use crate::repository::{Change, RepositoryError, StateKind};
use crate::usage::Counter;

const POINTS_REFUSED: &str = "points are not stored: the device has too many keys, or there are too many series";

/// A message of a device, or what happened to its connection.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Where it is in the caller's log.
    pub at: Position,
    pub device: DeviceId,
    /// When it came.
    pub received_ms: i64,
    pub said: Said<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum Said<'a> {
    Telemetry(&'a [u8]),
    Attributes(&'a [u8]),
    /// A call to the server, which a chain answers.
    RpcRequest {
        id: i32,
        body: &'a [u8],
    },
    Connected,
    Disconnected,
    /// Subscribed, pinged, asked: it is there.
    Alive,
    GatewayTelemetry(&'a [u8]),
    GatewayAttributes(&'a [u8]),
    GatewayConnect(&'a [u8]),
    GatewayDisconnect(&'a [u8]),
}

/// What became of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingested {
    pub messages: u64,
    pub points: u64,
    /// Messages that were not understood, by their index in the batch.
    pub refused: Vec<(usize, String)>,
    /// `false`: it waits in memory for the store, and is written by the next call.
    pub is_written: bool,
}

/// The batch was not taken: what was taken before cannot be written yet. Call again with the same batch.
#[derive(Debug)]
pub enum IngestError {
    Store(WriteError),
    Repository(RepositoryError),
    /// Too many messages that failed in rule chains wait for their retries.
    RetriesFull,
    /// The store does not take how long points are to be kept.
    TimeToLive(StoreError),
}

impl fmt::Display for IngestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let IngestError::RetriesFull = self {
            return f.write_str(
                "too many messages that failed in rule chains wait for their retries; more are taken when some of them are done",
            );
        }
        f.write_str("messages of devices cannot be stored now; they are taken again when that passes")
    }
}

impl std::error::Error for IngestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            IngestError::Store(error) => Some(error),
            IngestError::Repository(error) => Some(error),
            IngestError::RetriesFull => None,
            IngestError::TimeToLive(error) => Some(error),
        }
    }
}

/// Why a message had no effect.
#[derive(Debug)]
pub(super) enum Refused {
    Decode(DecodeError),
    Unknown,
    Gateway(String),
}

impl From<DecodeError> for Refused {
    fn from(error: DecodeError) -> Refused {
        Refused::Decode(error)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Decode(error) => error.fmt(f),
            Refused::Unknown => f.write_str("the device was deleted"),
            Refused::Gateway(problem) => f.write_str(problem),
        }
    }
}

impl Platform {
    /// `position` is where the batch ends in the caller's log; it grows from batch to batch.
    pub fn ingest(
        &self,
        batch: &[Incoming<'_>],
        position: Position,
        now_ms: i64,
        outlet: &mut dyn Outlet,
    ) -> Result<Ingested, IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        self.look_at_limits(&mut core);
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.begin(position)?;
        let mut ingested = Ingested::default();
        let points_before = visit.core.stats.points_total;
        for (index, incoming) in batch.iter().enumerate() {
            visit.at = Some(incoming.at);
            visit.core.stats.messages_total += 1;
            visit.core.stats.replayed_messages_total += u64::from(visit.is_replay);
            if let Err(problem) = visit.take(incoming) {
                visit.core.stats.refused_messages_total += 1;
                visit.outlet.failed(incoming.device.entity(), "", &problem.to_string());
                ingested.refused.push((index, problem.to_string()));
            }
        }
        visit.end(position);
        ingested.messages = batch.len() as u64;
        ingested.points = core.stats.points_total - points_before;
        ingested.is_written = self.write_pending(&mut core).is_ok();
        self.tell_refused(&mut core, outlet);
        Ok(ingested)
    }

    fn tell_refused(&self, core: &mut Core, outlet: &mut dyn Outlet) {
        for id in std::mem::take(&mut core.refused_of) {
            let device = DeviceId(Uuid(id.0));
            if self.entities.directory().device(device).is_some() {
                outlet.failed(device.entity(), "", POINTS_REFUSED);
            }
        }
    }

    /// Points first: a crash in between replays the batch, whose points replace themselves.
    pub(super) fn write_pending(&self, core: &mut Core) -> Result<(), IngestError> {
        if let Some(position) = core.pending_position {
            self.keep_by_own_times(core).map_err(IngestError::TimeToLive)?;
            let written = self.store.write(&core.pending.points(), position);
            core.refused_of.extend(written.map_err(IngestError::Store)?.refused_of);
            core.pending.clear_points();
            core.pending_position = None;
        }
        if core.pending.has_changes() {
            self.apply_pending(core).map_err(IngestError::Repository)?;
        }
        Ok(())
    }

    /// With the position and all that machines counted up to it.
    pub(super) fn apply_pending(&self, core: &mut Core) -> Result<(), RepositoryError> {
        let mut changes = core.pending.take_changes();
        let count = changes.len();
        core.push_states(&mut changes);
        let repository = self.entities.repository();
        match repository.apply(&changes) {
            Ok(()) => {}
            Err(RepositoryError::Unique { .. } | RepositoryError::Version { .. }) => {
                // One of them lost against a change from elsewhere: the others are applied one by one.
                for (index, change) in changes.iter().enumerate() {
                    match repository.apply(std::slice::from_ref(change)) {
                        Ok(()) => {}
                        Err(RepositoryError::Unique { .. } | RepositoryError::Version { .. }) => {
                            core.stats.refused_changes_total += 1;
                        }
                        Err(error) => {
                            changes.truncate(count);
                            let rest = changes.into_iter().skip(index);
                            rest.for_each(|change| core.pending.push_change(change));
                            return Err(error);
                        }
                    }
                }
            }
            Err(error) => {
                changes.truncate(count);
                changes.into_iter().for_each(|change| core.pending.push_change(change));
                return Err(error);
            }
        }
        core.pending.changes_are_stored();
        core.applied = core.processed;
        core.changed_counters.clear();
        core.usage.saved();
        Ok(())
    }
}

impl Core {
    fn push_states(&self, changes: &mut Vec<Change>) {
        for id in &self.changed_counters {
            let alarms = self.devices.get(id).and_then(|device| device.alarms.as_ref());
            let bytes = alarms.filter(|alarms| alarms.state.has_counters());
            changes.push(Change::PutState {
                state: StateKind::AlarmRules,
                id: id.0,
                bytes: bytes.map(|alarms| alarms.state.counters(&alarms.rules)),
            });
        }
        for (tenant, bytes) in self.usage.unsaved() {
            changes.push(Change::PutState {
                state: StateKind::Usage,
                id: tenant,
                bytes: Some(bytes),
            });
        }
        changes.push(Change::PutState {
            state: StateKind::Position,
            id: Uuid::NULL,
            bytes: Some(self.processed.0.to_le_bytes().to_vec()),
        });
    }
}

/// A device as its messages need it.
pub(super) struct Sender {
    pub id: DeviceId,
    pub entry: DeviceEntry,
    pub profile: Option<Arc<DeviceProfile>>,
}

impl Visit<'_> {
    /// Of what ends at `position` in the caller's log: what waits from before goes first, unless this is a replay.
    pub fn begin(&mut self, position: Position) -> Result<(), IngestError> {
        self.is_replay = position <= self.core.applied;
        if self.is_replay {
            return Ok(());
        }
        self.retry_due();
        self.drain_queue();
        if self.core.retries.is_full() {
            self.platform.write_pending(self.core)?;
            return Err(IngestError::RetriesFull);
        }
        Ok(())
    }

    /// What went through checkpoints belongs to it, and is a replay when this is one.
    pub fn end(&mut self, position: Position) {
        self.drain_queue();
        self.judge_batch();
        self.core.processed_to(position);
    }

    fn take(&mut self, incoming: &Incoming<'_>) -> Result<(), Refused> {
        let at_ms = incoming.received_ms;
        match incoming.said {
            // Of a gateway that was deleted, too.
            Said::Disconnected => self.all_went(incoming.device, at_ms),
            // Its connection of before a kill has no end in the log.
            Said::Connected => drop(self.core.behind.all_went(incoming.device)),
            _ => {}
        }
        let sender = self.sender(incoming.device)?;
        match incoming.said {
            Said::Telemetry(body) => {
                let telemetry = Telemetry::decode(body, at_ms, &self.platform.options.limits)?;
                self.telemetry(&sender, &telemetry, at_ms);
            }
            Said::Attributes(body) => {
                let values = attributes(body, &self.platform.options.limits)?;
                self.client_attributes(&sender, &values, at_ms);
            }
            Said::RpcRequest { id, body } => self.rpc_request(&sender, id, body, at_ms)?,
            Said::Connected => self.connected(&sender, at_ms),
            Said::Disconnected => self.disconnected(&sender, at_ms),
            Said::Alive => self.heard(&sender, at_ms),
            Said::GatewayTelemetry(body) => self.gateway_telemetry(&sender, body, at_ms)?,
            Said::GatewayAttributes(body) => self.gateway_attributes(&sender, body, at_ms)?,
            Said::GatewayConnect(body) => self.gateway_connect(&sender, body, at_ms)?,
            Said::GatewayDisconnect(body) => self.gateway_disconnect(&sender, body, at_ms)?,
        }
        Ok(())
    }

    pub fn sender(&self, id: DeviceId) -> Result<Sender, Refused> {
        let directory = self.platform.entities.directory();
        let entry = directory.device(id).ok_or(Refused::Unknown)?.clone();
        let profile = directory.profile(entry.profile).cloned();
        Ok(Sender { id, entry, profile })
    }

    pub fn telemetry(&mut self, sender: &Sender, telemetry: &Telemetry<'_>, at_ms: i64) {
        let points = telemetry.point_count() as u64;
        self.heard(sender, at_ms);
        self.count(sender, Counter::TransportMessages, 1);
        self.count(sender, Counter::TransportPoints, points);
        self.core.stats.points_total += points;
        for (ts_ms, values) in telemetry.groups() {
            let mut message = sender.message(POST_TELEMETRY, Data::Values(values), ts_ms);
            message.metadata.put("ts", ts_ms.to_string());
            self.run(sender, message);
        }
    }

    pub fn client_attributes(&mut self, sender: &Sender, values: &[KeyValue<'_>], at_ms: i64) {
        self.heard(sender, at_ms);
        self.count(sender, Counter::TransportMessages, 1);
        self.count(sender, Counter::TransportPoints, values.len() as u64);
        let mut message = sender.message(POST_ATTRIBUTES, Data::Values(values), at_ms);
        message.metadata.put("notifyDevice", "false");
        self.run(sender, message);
    }

    fn rpc_request(&mut self, sender: &Sender, id: i32, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let request = RpcRequest::decode(body)?;
        self.heard(sender, at_ms);
        self.count(sender, Counter::TransportMessages, 1);
        let params: serde_json::Value = serde_json::from_str(&request.params).unwrap_or_default();
        let data = serde_json::json!({"method": request.method, "params": params});
        let mut message = sender.message("TO_SERVER_RPC_REQUEST", Data::Json(data), at_ms);
        message.metadata.put("requestId", id.to_string());
        self.run(sender, message);
        Ok(())
    }

    pub fn heard(&mut self, sender: &Sender, at_ms: i64) {
        let event = self.activity(sender.id).heard(at_ms);
        self.core.changed_activity.insert(sender.id);
        self.tell_activity(sender, event, at_ms);
    }

    pub fn connected(&mut self, sender: &Sender, at_ms: i64) {
        let event = self.activity(sender.id).connected(at_ms);
        self.core.changed_activity.insert(sender.id);
        self.tell_activity(sender, event, at_ms);
    }

    pub fn disconnected(&mut self, sender: &Sender, at_ms: i64) {
        let event = self.activity(sender.id).disconnected(at_ms);
        self.core.changed_activity.insert(sender.id);
        self.tell_activity(sender, event, at_ms);
    }

    pub fn tell_activity(&mut self, sender: &Sender, event: Option<ActivityEvent>, at_ms: i64) {
        let Some(event) = event else { return };
        let timeout_ms = self.platform.options.inactivity_timeout_ms;
        let body = self.activity(sender.id).json(event, timeout_ms);
        let mut message = sender.message(event.message_type(), Data::Json(body), at_ms);
        message.metadata.put("scope", "SERVER_SCOPE");
        self.run(sender, message);
    }

    pub fn count(&mut self, sender: &Sender, counter: Counter, count: u64) {
        if !self.is_replay {
            self.core.usage.add(sender.entry.tenant, counter, count, self.now_ms);
        }
    }

    /// That of the profile, if there is one, or the tenant's root chain.
    fn chain_of(&mut self, sender: &Sender) -> Option<Arc<Chain>> {
        let tenant = sender.entry.tenant;
        let profile = sender.profile.as_ref();
        let own = profile.and_then(|profile| profile.default_rule_chain_id);
        let found = self.core.chain_or_root(own, tenant);
        if found.is_none() {
            let nothing = Run::failed(
                RuleChainId::NULL,
                "the tenant has no root rule chain: nothing was done with a message",
            );
            self.finish(sender.id.entity(), tenant, None, &nothing);
        }
        found
    }

    pub fn run(&mut self, sender: &Sender, message: Message<'_>) {
        self.begin_message();
        if self.is_off(sender.entry.tenant, ApiFeature::RuleEngine) {
            self.core.stats.over_limit_messages_total += 1;
            return;
        }
        let Some(chain) = self.chain_of(sender) else { return };
        let profile = sender.profile.as_ref();
        let queue = profile.and_then(|profile| profile.default_queue_name.as_deref());
        if let Some(queue) = self.retrying_queue(queue) {
            let work = Work::Message {
                chain: chain.id,
                message: message.into_owned(),
            };
            return self.run_in_queue(&queue, sender.entry.tenant, work);
        }
        self.apply_rules_beside(&chain, &message);
        let done = chain::run(&chain, message, self);
        self.finish(sender.id.entity(), sender.entry.tenant, queue, &done);
    }

    /// What alarm rules say without a message: from their node on, or from the start of a chain that has none.
    pub fn run_from_rules(&mut self, sender: &Sender, label: &str, message: Message<'_>) {
        self.begin_message();
        let Some(chain) = self.chain_of(sender) else { return };
        let node = chain.device_profile_nodes().next();
        let done = match node {
            Some(node) => {
                let message = message.into_owned();
                chain::resume(
                    Continuation {
                        chain: chain.id,
                        node,
                        name: None,
                        message,
                        returns: Vec::new(),
                    },
                    label,
                    None,
                    self,
                )
            }
            None => chain::run(&chain, message, self),
        };
        self.finish(sender.id.entity(), sender.entry.tenant, None, &done);
    }
}

impl Core {
    pub fn chain_or_root(&self, id: Option<RuleChainId>, tenant: TenantId) -> Option<Arc<Chain>> {
        let chain = |id: RuleChainId| self.chains.get(&id).filter(|chain| chain.tenant == tenant);
        let root = || chain(self.roots.get(&tenant).copied()?);
        id.and_then(chain).or_else(root).cloned()
    }
}

impl Sender {
    pub fn message<'a>(&'a self, kind: &'static str, data: Data<'a>, ts_ms: i64) -> Message<'a> {
        let mut metadata = Metadata::default();
        metadata.put("deviceName", &*self.entry.name);
        if let Some(profile) = &self.profile {
            metadata.put("deviceType", profile.name.as_str());
        }
        Message {
            kind: kind.into(),
            originator: self.id.entity(),
            customer: self.entry.customer,
            metadata,
            data,
            ts_ms,
        }
    }
}
