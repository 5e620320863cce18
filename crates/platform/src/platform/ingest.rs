//! Processes batches of device messages: decodes them, runs the chains, and writes the results.

use std::fmt;
use std::sync::Arc;

use timeseries::{LogPosition, StoreError, WriteError};

use super::host::PlatformCall;
use super::retries::RetryWork;
use super::{Platform, PlatformCore, PlatformOutlet};
use crate::activity::ActivityEvent;
use crate::chain::{
    self, ChainMessage, ChainRun, CompiledChain, Continuation, MessageData, Metadata, POST_ATTRIBUTES, POST_TELEMETRY,
};
use crate::decode::{KeyValue, PayloadDecodeError, RpcRequest, Telemetry, attributes};
use crate::directory::DeviceEntry;
use crate::ids::{DeviceId, RuleChainId, TenantId, Uuid};
use crate::limits::ApiFeature;
use crate::model::DeviceProfile;
use crate::repository::{RepositoryChange, RepositoryError, StateKind};
use crate::usage::UsageCounter;

/// A device message, or a change of the device's connection.
#[derive(Clone, Copy, Debug)]
pub struct IngestInput<'a> {
    /// Position in the caller's log.
    pub at: LogPosition,
    pub device: DeviceId,
    /// Receive time.
    pub received_ms: i64,
    pub message: IngestMessage<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum IngestMessage<'a> {
    Telemetry(&'a [u8]),
    Attributes(&'a [u8]),
    /// RPC request of the device, answered by a chain.
    RpcRequest {
        id: i32,
        body: &'a [u8],
    },
    Connected,
    Disconnected,
    /// The device subscribed, pinged or sent a request, and thus is active.
    Alive,
    GatewayTelemetry(&'a [u8]),
    GatewayAttributes(&'a [u8]),
    GatewayConnect(&'a [u8]),
    GatewayDisconnect(&'a [u8]),
}

/// Result of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingested {
    pub messages: u64,
    pub points: u64,
    /// Messages that could not be processed, by index in the batch.
    pub refused: Vec<(usize, String)>,
    /// If false, the results wait in memory for the store. The next call writes them.
    pub is_written: bool,
}

/// The batch was not accepted, because earlier results cannot be written yet. Call again with the same batch.
#[derive(Debug)]
pub enum IngestError {
    Store(WriteError),
    Repository(RepositoryError),
    /// Too many failed messages wait for their retries.
    RetriesFull,
    /// The store rejected the time to live of points.
    TimeToLive(StoreError),
}

impl fmt::Display for IngestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let IngestError::RetriesFull = self {
            return f.write_str(
                "too many failed messages of rule chains wait for their retries; \
                 new messages are accepted when some of them are done",
            );
        }
        f.write_str("storing device messages failed; retrying")
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
pub(super) enum MessageRejection {
    Decode(PayloadDecodeError),
    Unknown,
    Gateway(String),
}

impl From<PayloadDecodeError> for MessageRejection {
    fn from(error: PayloadDecodeError) -> MessageRejection {
        MessageRejection::Decode(error)
    }
}

impl fmt::Display for MessageRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageRejection::Decode(error) => error.fmt(f),
            MessageRejection::Unknown => f.write_str("the device was deleted"),
            MessageRejection::Gateway(problem) => f.write_str(problem),
        }
    }
}

impl Platform {
    /// Processes a batch. `position` is its end in the caller's log, which grows from batch to batch.
    pub fn ingest(
        &self,
        batch: &[IngestInput<'_>],
        position: LogPosition,
        now_ms: i64,
        outlet: &mut dyn PlatformOutlet,
    ) -> Result<Ingested, IngestError> {
        let mut core = self.core();
        self.write_pending(&mut core)?;
        self.refresh_limits(&mut core);
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
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
        self.report_rejected_points(&mut core, outlet);
        Ok(ingested)
    }

    fn report_rejected_points(&self, core: &mut PlatformCore, outlet: &mut dyn PlatformOutlet) {
        if !core.rejected_points.is_empty() {
            let is_device = |device| self.entities.directory().device(device).is_some();
            core.report_rejected_points(is_device, self.options.keys_max, outlet);
        }
    }

    /// Writes points before changes. After a crash between the two, the batch is replayed and overwrites its points.
    pub(super) fn write_pending(&self, core: &mut PlatformCore) -> Result<(), IngestError> {
        if let Some(position) = core.pending_position {
            self.set_series_classes(core).map_err(IngestError::TimeToLive)?;
            let written = self.store.write(&core.pending.points(), position);
            core.rejected_points
                .extend(written.map_err(IngestError::Store)?.rejected);
            core.pending.clear_points();
            core.pending_position = None;
        }
        if core.pending.has_changes() {
            self.apply_pending(core).map_err(IngestError::Repository)?;
        }
        Ok(())
    }

    /// Applies the changes together with the position and the counters of the alarm rules at that position.
    pub(super) fn apply_pending(&self, core: &mut PlatformCore) -> Result<(), RepositoryError> {
        let mut changes = core.pending.take_changes();
        let count = changes.len();
        core.push_states(&mut changes);
        let repository = self.entities.repository();
        match repository.apply(&changes) {
            Ok(()) => {}
            Err(RepositoryError::Unique { .. } | RepositoryError::Version { .. }) => {
                // A change conflicts with one made elsewhere. Applies the changes one by one.
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

impl PlatformCore {
    fn push_states(&self, changes: &mut Vec<RepositoryChange>) {
        for id in &self.changed_counters {
            let alarms = self.devices.get(id).and_then(|device| device.alarms.as_ref());
            let bytes = alarms.filter(|alarms| alarms.state.has_counters());
            changes.push(RepositoryChange::PutState {
                state: StateKind::AlarmRules,
                id: id.0,
                bytes: bytes.map(|alarms| alarms.state.counters(&alarms.rules)),
            });
        }
        for (tenant, bytes) in self.usage.unsaved() {
            changes.push(RepositoryChange::PutState {
                state: StateKind::Usage,
                id: tenant,
                bytes: Some(bytes),
            });
        }
        changes.push(RepositoryChange::PutState {
            state: StateKind::Position,
            id: Uuid::NULL,
            bytes: Some(self.processed.0.to_le_bytes().to_vec()),
        });
    }
}

/// A device with the data that its messages need.
pub(super) struct SendingDevice {
    pub id: DeviceId,
    pub entry: DeviceEntry,
    pub profile: Option<Arc<DeviceProfile>>,
}

impl PlatformCall<'_> {
    /// Begins the part of the caller's log that ends at `position`. Does due retries and deferred work first, unless
    /// this is a replay.
    pub fn begin(&mut self, position: LogPosition) -> Result<(), IngestError> {
        self.is_replay = position <= self.core.applied;
        if self.is_replay {
            return Ok(());
        }
        self.continue_before_batch();
        self.drain_queue();
        if self.core.retries.is_full() {
            self.platform.write_pending(self.core)?;
            return Err(IngestError::RetriesFull);
        }
        Ok(())
    }

    /// Ends the part. Its deferred work belongs to it, and is a replay if this is one.
    pub fn end(&mut self, position: LogPosition) {
        self.drain_queue();
        self.decide_batch();
        self.core.processed_to(position);
    }

    fn take(&mut self, incoming: &IngestInput<'_>) -> Result<(), MessageRejection> {
        let at_ms = incoming.received_ms;
        match incoming.message {
            // Also for a gateway that was deleted.
            IngestMessage::Disconnected => self.disconnect_gateway_devices(incoming.device, at_ms),
            // After a crash, the log lacks the disconnect of the previous connection.
            IngestMessage::Connected => drop(self.core.gateway_devices.disconnect_all(incoming.device)),
            _ => {}
        }
        let sender = self.sender(incoming.device)?;
        match incoming.message {
            IngestMessage::Telemetry(body) => {
                let telemetry = Telemetry::decode(body, at_ms, &self.platform.options.limits)?;
                self.telemetry(&sender, &telemetry, at_ms);
            }
            IngestMessage::Attributes(body) => {
                let values = attributes(body, &self.platform.options.limits)?;
                self.client_attributes(&sender, &values, at_ms);
            }
            IngestMessage::RpcRequest { id, body } => self.rpc_request(&sender, id, body, at_ms)?,
            IngestMessage::Connected => self.connected(&sender, at_ms),
            IngestMessage::Disconnected => self.disconnected(&sender, at_ms),
            IngestMessage::Alive => self.record_activity(&sender, at_ms),
            IngestMessage::GatewayTelemetry(body) => self.gateway_telemetry(&sender, body, at_ms)?,
            IngestMessage::GatewayAttributes(body) => self.gateway_attributes(&sender, body, at_ms)?,
            IngestMessage::GatewayConnect(body) => self.gateway_connect(&sender, body, at_ms)?,
            IngestMessage::GatewayDisconnect(body) => self.gateway_disconnect(&sender, body, at_ms)?,
        }
        Ok(())
    }

    pub fn sender(&self, id: DeviceId) -> Result<SendingDevice, MessageRejection> {
        let directory = self.platform.entities.directory();
        let entry = directory.device(id).ok_or(MessageRejection::Unknown)?.clone();
        let profile = directory.profile(entry.profile).cloned();
        Ok(SendingDevice { id, entry, profile })
    }

    pub fn telemetry(&mut self, sender: &SendingDevice, telemetry: &Telemetry<'_>, at_ms: i64) {
        let points = telemetry.point_count() as u64;
        self.record_activity(sender, at_ms);
        self.count(sender, UsageCounter::TransportMessages, 1);
        self.count(sender, UsageCounter::TransportPoints, points);
        self.core.stats.points_total += points;
        for (ts_ms, values) in telemetry.groups() {
            let mut message = sender.message(POST_TELEMETRY, MessageData::Values(values), ts_ms);
            message.metadata.put("ts", ts_ms.to_string());
            self.run(sender, message);
        }
    }

    pub fn client_attributes(&mut self, sender: &SendingDevice, values: &[KeyValue<'_>], at_ms: i64) {
        self.record_activity(sender, at_ms);
        self.count(sender, UsageCounter::TransportMessages, 1);
        self.count(sender, UsageCounter::TransportPoints, values.len() as u64);
        let mut message = sender.message(POST_ATTRIBUTES, MessageData::Values(values), at_ms);
        message.metadata.put("notifyDevice", "false");
        self.run(sender, message);
    }

    fn rpc_request(
        &mut self,
        sender: &SendingDevice,
        id: i32,
        body: &[u8],
        at_ms: i64,
    ) -> Result<(), MessageRejection> {
        let request = RpcRequest::decode(body)?;
        self.record_activity(sender, at_ms);
        self.count(sender, UsageCounter::TransportMessages, 1);
        let params: serde_json::Value = serde_json::from_str(&request.params).unwrap_or_default();
        let data = serde_json::json!({"method": request.method, "params": params});
        let mut message = sender.message("TO_SERVER_RPC_REQUEST", MessageData::Json(data), at_ms);
        message.metadata.put("requestId", id.to_string());
        self.run(sender, message);
        Ok(())
    }

    pub fn record_activity(&mut self, sender: &SendingDevice, at_ms: i64) {
        let clock_ms = self.clock_of_events();
        let event = self.activity(sender.id).record(at_ms, clock_ms);
        self.core.changed_activity.insert(sender.id);
        self.send_activity_event(sender, event, at_ms);
    }

    pub fn connected(&mut self, sender: &SendingDevice, at_ms: i64) {
        let clock_ms = self.clock_of_events();
        let event = self.activity(sender.id).connected(at_ms, clock_ms);
        self.core.changed_activity.insert(sender.id);
        self.send_activity_event(sender, event, at_ms);
    }

    pub fn disconnected(&mut self, sender: &SendingDevice, at_ms: i64) {
        let clock_ms = self.clock_of_events();
        let event = self.activity(sender.id).disconnected(at_ms, clock_ms);
        self.core.changed_activity.insert(sender.id);
        self.send_activity_event(sender, event, at_ms);
    }

    /// The present time, unless the events are replayed.
    fn clock_of_events(&self) -> Option<i64> {
        (!self.is_replay).then_some(self.now_ms)
    }

    pub fn send_activity_event(&mut self, sender: &SendingDevice, event: Option<ActivityEvent>, at_ms: i64) {
        let Some(event) = event else { return };
        let timeout_ms = self.platform.options.inactivity_timeout_ms;
        let body = self.activity(sender.id).json(event, timeout_ms);
        let mut message = sender.message(event.message_type(), MessageData::Json(body), at_ms);
        message.metadata.put("scope", "SERVER_SCOPE");
        self.run(sender, message);
    }

    pub fn count(&mut self, sender: &SendingDevice, counter: UsageCounter, count: u64) {
        if !self.is_replay {
            self.core.usage.add(sender.entry.tenant, counter, count, self.now_ms);
        }
    }

    /// The chain of the device's profile, or the tenant's root chain.
    fn chain_of(&mut self, sender: &SendingDevice) -> Option<Arc<CompiledChain>> {
        let tenant = sender.entry.tenant;
        let profile = sender.profile.as_ref();
        let own = profile.and_then(|profile| profile.default_rule_chain_id);
        let found = self.core.chain_or_root(own, tenant);
        if found.is_none() {
            let nothing = ChainRun::failed(
                RuleChainId::NULL,
                "the tenant has no root rule chain: the message was not processed",
            );
            self.finish(sender.id.entity(), tenant, None, nothing);
        }
        found
    }

    pub fn run(&mut self, sender: &SendingDevice, message: ChainMessage<'_>) {
        self.begin_message();
        if self.is_off(sender.entry.tenant, ApiFeature::RuleEngine) {
            self.core.stats.over_limit_messages_total += 1;
            return;
        }
        let Some(chain) = self.chain_of(sender) else { return };
        let profile = sender.profile.as_ref();
        let queue = profile.and_then(|profile| profile.default_queue_name.as_deref());
        if let Some(queue) = self.waiting_queue(sender.entry.tenant, queue) {
            let tenant = sender.entry.tenant;
            let work = RetryWork::Message {
                chain: chain.id,
                message: self.timed(tenant, |_| message.into_owned()),
            };
            return self.run_in_queue(&queue, tenant, work);
        }
        self.apply_rules_separately(&chain, &message);
        let done = chain::run(&chain, message, self);
        self.finish(sender.id.entity(), sender.entry.tenant, queue, done);
    }

    /// Runs messages that alarm rules create without an incoming message. They start after the rules node, or at the
    /// start of a chain without one.
    pub fn run_from_rules(&mut self, sender: &SendingDevice, label: &str, message: ChainMessage<'_>) {
        self.begin_message();
        self.begin_unqueued(sender.entry.tenant);
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
        self.finish(sender.id.entity(), sender.entry.tenant, None, done);
    }
}

impl PlatformCore {
    pub fn chain_or_root(&self, id: Option<RuleChainId>, tenant: TenantId) -> Option<Arc<CompiledChain>> {
        let chain = |id: RuleChainId| self.chains.get(&id).filter(|chain| chain.tenant == tenant);
        let root = || chain(self.roots.get(&tenant).copied()?);
        id.and_then(chain).or_else(root).cloned()
    }
}

impl SendingDevice {
    pub fn message<'a>(&'a self, kind: &'static str, data: MessageData<'a>, ts_ms: i64) -> ChainMessage<'a> {
        let mut metadata = Metadata::default();
        metadata.put("deviceName", &*self.entry.name);
        if let Some(profile) = &self.profile {
            metadata.put("deviceType", profile.name.as_str());
        }
        ChainMessage {
            kind: kind.into(),
            originator: self.id.entity(),
            customer: self.entry.customer,
            metadata,
            data,
            ts_ms,
        }
    }
}
