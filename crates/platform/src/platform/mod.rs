//! Processes device messages, and produces time series, attributes, alarms and messages to devices and other systems.
//!
//! ```text
//! Incoming ──► decode ──► chain of the device's profile, or the tenant's root (alarm rules are a node of it)
//!                           │
//!                           ├──► pending points ──────► timeseries::Store, with the position of the batch
//!                           ├──► pending changes ─────► Repository, with the position and rule counters
//!                           └──► Outlet: subscribers, devices, other systems, in order per device
//! ```
//!
//! # Invariants
//!
//! - The results of a batch are written after all its messages have been processed. After a crash the caller replays
//!   its log from [`Platform::replay_position`]. A replayed point overwrites the same point. For batches up to the
//!   position in the repository, a replay writes only points. It does not repeat alarms, attributes and outgoing
//!   messages.
//! - Counts and durations of alarm rules are stored in the same transaction as the position, so no message counts
//!   twice.
//! - All waiting work (RPC requests, deferred messages, retries) is bounded and counted.
//!
//! One lock serializes the messages of a platform, which preserves their order.

mod alarms;
mod attributes;
mod behind;
mod budget;
mod chain_event;
mod deferred;
mod durations;
pub(crate) mod fixed_limits;
mod gateway;
mod host;
mod ingest;
mod key_limit;
mod limited;
mod off_times;
mod ota;
mod outlet;
mod pending;
mod retention;
mod retries;
mod slices;
mod tick;
mod waiting_calls;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use timeseries::{LogPosition, TimeseriesStore};

pub use alarms::AlarmChange;
pub use attributes::AttributesChange;
pub use chain_event::ChainEvent;
pub use ingest::{IngestError, IngestInput, IngestMessage, Ingested};
pub use key_limit::{KeyKind, RefusedKeys};
pub use limited::ApiStateChange;
pub use outlet::{NoOutlet, PlatformOutlet};
pub use retention::RetentionError;

use crate::activity::Activity;
use crate::alarm_rules::{AlarmRules, AlarmRulesState};
use crate::chain::{
    ChainError, ChainMessage, ChainNodes, CompiledChain, NodeError, NodeStatistics, Script, ScriptRunner, ScriptUsage,
    Warning,
};
use crate::decode::{DecodeLimits, ProfileTransport};
use crate::entities::Entities;
use crate::ids::{DeviceId, DeviceProfileId, EntityType, RuleChainId, TenantId, Uuid};
use crate::limits::{ApiFeature, ApiState, TenantLimits};
use crate::model::RuleChain;
use crate::queue_statistics::QueueStatistics;
use crate::repository::{RepositoryChange, RepositoryError, StateKind};
use crate::usage::{ApiUsage, UsageCounter};
use behind::GatewayDevices;
use deferred::DeferredQueue;
use key_limit::AttributeCounts;
use off_times::OffTimes;
use pending::PendingWrites;
use retention::Retention;
use retries::{QueuesByName, Retries};
use slices::NodeTimes;
use waiting_calls::WaitingCalls;

#[derive(Clone, Debug)]
pub struct PlatformOptions {
    /// Part of the keys of message counts.
    pub service: String,
    pub limits: DecodeLimits,
    pub inactivity_timeout_ms: i64,
    /// Interval of checks for silent devices and rule durations, in milliseconds.
    pub check_ms: i64,
    /// Interval at which activity, counters and usage are saved.
    pub checkpoint_ms: i64,
    /// Interval at which usage is written as time series.
    pub usage_ms: i64,
    /// Limit of pending RPC and external requests of chains.
    pub waiting_calls_max: usize,
    /// Limit of deferred messages, and separately of messages that wait for a retry.
    pub queued_max: usize,
    /// Days to store telemetry if the tenant profile does not set them. 0 means that it never expires.
    pub telemetry_days: u32,
    /// Days to store usage and queue statistics; 0 stores them forever.
    pub usage_days: u32,
    /// Limit of the attributes of an entity. The store has the same limit for keys of telemetry.
    pub keys_max: usize,
    /// Runs the scripts of rule chains. Without it they run in the thread of the chains, which only tests should do.
    pub scripts: Option<Arc<dyn ScriptRunner>>,
}

impl Default for PlatformOptions {
    fn default() -> PlatformOptions {
        PlatformOptions {
            service: "tidewire".to_owned(),
            limits: DecodeLimits::default(),
            inactivity_timeout_ms: 600_000,
            check_ms: 60_000,
            checkpoint_ms: 10_000,
            usage_ms: 60_000,
            waiting_calls_max: 100_000,
            queued_max: 100_000,
            telemetry_days: 0,
            usage_days: 0,
            keys_max: 10_000,
            scripts: None,
        }
    }
}

/// Counters begin at zero when the platform is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlatformStats {
    pub messages_total: u64,
    pub points_total: u64,
    /// Messages that could not be decoded, or whose device was deleted.
    pub refused_messages_total: u64,
    pub failed_messages_total: u64,
    /// Messages that exceeded the nodes, size or time of a message in rule chains.
    pub exceeding_messages_total: u64,
    pub rule_nodes_total: u64,
    pub scripts_total: u64,
    pub alarms_created_total: u64,
    /// Replayed messages, of which only points were stored.
    pub replayed_messages_total: u64,
    /// Changes rejected by the repository because of a conflicting change.
    pub refused_changes_total: u64,
    /// Values with new keys of entities that have too many, of telemetry and attributes.
    pub refused_keys_total: u64,
    /// Requests and deferred messages beyond the limits.
    pub dropped_calls_total: u64,
    pub dropped_queued_total: u64,
    /// Retries of failed messages.
    pub retried_messages_total: u64,
    /// Messages that wait for a retry, or for an earlier message of a sequential queue.
    pub waiting_retries: u64,
    /// Messages of tenants whose rule engine is off until next month.
    pub over_limit_messages_total: u64,
    pub waiting_calls: u64,
    pub script_usage: ScriptUsage,
    pub device_states: u64,
    /// Heap size of the device states.
    pub device_state_bytes: u64,
}

pub struct Platform {
    entities: Arc<Entities>,
    store: Arc<dyn TimeseriesStore>,
    options: PlatformOptions,
    core: Mutex<PlatformCore>,
    /// Held while a chain is read and compiled, which may take seconds. Ensures that the last saved chain is
    /// installed last.
    reloading: Mutex<()>,
    retention: Mutex<Retention>,
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Platform")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// State that message processing changes, behind one lock.
#[derive(Default)]
struct PlatformCore {
    chains: HashMap<RuleChainId, Arc<CompiledChain>>,
    roots: HashMap<TenantId, RuleChainId>,
    queue_statistics: QueueStatistics,
    rules: HashMap<DeviceProfileId, Arc<AlarmRules>>,
    transports: HashMap<DeviceProfileId, Arc<ProfileTransport>>,
    devices: HashMap<DeviceId, DeviceState>,
    usage: ApiUsage,
    /// Copy of the directory's limits, for tenants that have any.
    limits: HashMap<TenantId, Arc<TenantLimits>>,
    limits_version: u64,
    /// The states and limits reported by the last calls.
    api_states: HashMap<TenantId, [Option<ApiState>; ApiFeature::ALL.len()]>,
    reported_limits: HashMap<TenantId, [u64; UsageCounter::ALL.len()]>,
    reported_limits_version: u64,
    /// Whether the last report had all features of all tenants on. If there are also no limits, the next report
    /// checks nothing.
    are_enabled: bool,
    off_times: OffTimes,
    /// Copy of the directory's storage days, for tenants whose profiles set them.
    storage_days: HashMap<TenantId, u32>,
    ttls_version: u64,
    pending: PendingWrites,
    /// End of the pending batch.
    pending_position: Option<LogPosition>,
    /// The last batch whose changes are in the repository.
    applied: LogPosition,
    /// The last batch that was processed.
    processed: LogPosition,
    /// The last batch that was processed or replayed. During a replay it is lower than `applied`.
    replayed: LogPosition,
    calls: WaitingCalls,
    /// Deferred work of chains, done after the current message.
    queue: DeferredQueue,
    queues: QueuesByName,
    retries: Retries,
    node_times: NodeTimes,
    /// The next turn of waiting messages while batches arrive.
    next_turn: Option<Instant>,
    periodic: Vec<PeriodicNode>,
    changed_counters: HashSet<DeviceId>,
    /// Devices with saved counters of alarm rules that have not been loaded since the start.
    unloaded: VecDeque<DeviceId>,
    changed_activity: HashSet<DeviceId>,
    owner_values: OwnerValues,
    gateway_names: HashMap<(DeviceId, Box<str>), DeviceId>,
    gateway_devices: GatewayDevices,
    /// Points rejected by the store, not reported yet.
    rejected_points: Vec<timeseries::RejectedPoints>,
    attribute_counts: AttributeCounts,
    last_tick_ms: i64,
    next_check_ms: i64,
    next_checkpoint_ms: i64,
    stats: PlatformStats,
}

/// A fast hash that resists chosen keys little. This suffices, because the platform creates most keys itself.
type HashMap<K, V> = hashbrown::HashMap<K, V, foldhash::fast::RandomState>;
type HashSet<K> = hashbrown::HashSet<K, foldhash::fast::RandomState>;

/// Server attributes of customers and tenants that alarm rules read.
type OwnerValues = HashMap<(Uuid, Box<str>), Option<timeseries::PointValue>>;

#[derive(Default)]
struct DeviceState {
    activity: Activity,
    alarms: Option<Box<DeviceAlarms>>,
}

struct DeviceAlarms {
    rules: Arc<AlarmRules>,
    state: AlarmRulesState,
}

struct PeriodicNode {
    tenant: TenantId,
    chain: RuleChainId,
    node: usize,
    period_ms: i64,
    next_ms: i64,
}

#[derive(Debug)]
pub enum PlatformOpenError {
    Repository(RepositoryError),
    Chain { id: RuleChainId, source: ChainError },
}

impl fmt::Display for PlatformOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlatformOpenError::Repository(_) => f.write_str("cannot read the platform's state"),
            PlatformOpenError::Chain { id, .. } => write!(f, "cannot compile rule chain {id}"),
        }
    }
}

impl std::error::Error for PlatformOpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PlatformOpenError::Repository(error) => Some(error),
            PlatformOpenError::Chain { source, .. } => Some(source),
        }
    }
}

impl From<RepositoryError> for PlatformOpenError {
    fn from(error: RepositoryError) -> PlatformOpenError {
        PlatformOpenError::Repository(error)
    }
}

fn compile(chain: &RuleChain) -> Result<CompiledChain, PlatformOpenError> {
    let id = chain.id.unwrap_or_default();
    let empty = serde_json::Value::Null;
    let metadata = chain.metadata.as_ref().unwrap_or(&empty);
    CompiledChain::compile(chain.tenant_id, id, metadata).map_err(|source| PlatformOpenError::Chain { id, source })
}

impl Platform {
    /// Compiles all chains and loads the saved state.
    pub fn open(
        entities: Arc<Entities>,
        store: Arc<dyn TimeseriesStore>,
        options: PlatformOptions,
    ) -> Result<Platform, PlatformOpenError> {
        let mut core = PlatformCore {
            calls: WaitingCalls::new(options.waiting_calls_max),
            queue: DeferredQueue::new(options.queued_max),
            retries: Retries::new(options.queued_max),
            ..PlatformCore::default()
        };
        let repository = entities.repository();
        let mut chains = Vec::new();
        repository.for_each(EntityType::RuleChain, &mut |record| {
            chains.push(record.read::<RuleChain>())
        })?;
        for chain in chains {
            let chain = chain?;
            core.put_chain(&chain, compile(&chain)?, 0);
        }
        repository.for_each_state(StateKind::Activity, &mut |device, bytes| {
            if let Some(activity) = Activity::from_bytes(bytes) {
                core.devices.entry(DeviceId(device)).or_default().activity = activity;
            }
        })?;
        repository.for_each_state(StateKind::AlarmRules, &mut |device, _| {
            core.unloaded.push_back(DeviceId(device));
        })?;
        repository.for_each_state(StateKind::Usage, &mut |tenant, bytes| core.usage.restore(tenant, bytes))?;
        repository.for_each_state(StateKind::OffTimes, &mut |tenant, bytes| {
            core.off_times.restore(tenant, bytes)
        })?;
        core.queues = QueuesByName::of(entities.stored_queues()?);
        repository.for_each_state(StateKind::Retry, &mut |id, bytes| core.retries.restore(id, bytes))?;
        core.retries.sort_lanes();
        if let Some(bytes) = repository.state(StateKind::Position, Uuid::NULL)? {
            core.applied = LogPosition(bytes.try_into().map_or(0, u64::from_le_bytes));
        }
        core.processed = core.applied;
        core.replayed = store.durable_position().min(core.applied);
        Ok(Platform {
            entities,
            retention: Mutex::new(Retention::new(store.ttls())),
            store,
            options,
            core: Mutex::new(core),
            reloading: Mutex::default(),
        })
    }

    fn core(&self) -> MutexGuard<'_, PlatformCore> {
        self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn entities(&self) -> &Arc<Entities> {
        &self.entities
    }

    pub fn store(&self) -> &Arc<dyn TimeseriesStore> {
        &self.store
    }

    /// The position from which the caller must replay its log. Everything before it is durable.
    pub fn replay_position(&self) -> LogPosition {
        self.store.durable_position().min(self.core().applied)
    }

    /// The end of the last batch whose entity changes are durable. A replay must end a batch there.
    pub fn applied_position(&self) -> LogPosition {
        self.core().applied
    }

    /// Returns true if chains created points without an incoming message. They are stored with the next batch, which
    /// may be empty.
    pub fn has_pending_points(&self) -> bool {
        self.core().pending.has_points()
    }

    pub fn stats(&self) -> PlatformStats {
        let core = self.core();
        let alarms = core.devices.values().filter_map(|device| device.alarms.as_ref());
        let alarm_bytes: usize = alarms
            .map(|alarms| size_of::<DeviceAlarms>() + alarms.state.heap_bytes())
            .sum();
        PlatformStats {
            waiting_calls: core.calls.len() as u64,
            script_usage: self.script_usage(),
            device_states: core.devices.len() as u64,
            waiting_retries: core.retries.count() as u64,
            device_state_bytes: (core.devices.allocation_size() + alarm_bytes) as u64,
            ..core.stats.clone()
        }
    }

    /// Runs a script outside of any chain, and waits for its result.
    pub fn run_script(&self, script: &Script, message: &ChainMessage<'_>) -> Result<serde_json::Value, NodeError> {
        script.run(message, self.options.scripts.as_deref())
    }

    /// Use of the processor by scripts.
    pub fn script_usage(&self) -> ScriptUsage {
        let scripts = self.options.scripts.as_ref();
        scripts.map(|scripts| scripts.usage()).unwrap_or_default()
    }

    /// Warnings about the compiled chains, for operators.
    pub fn chain_warnings(&self) -> Vec<(RuleChainId, Vec<Warning>)> {
        let core = self.core();
        let chains = core.chains.values().filter(|chain| !chain.warnings().is_empty());
        chains.map(|chain| (chain.id, chain.warnings().to_vec())).collect()
    }

    /// Returns `None` if there is no such chain.
    pub fn chain_nodes(&self, id: RuleChainId) -> Option<ChainNodes> {
        Some(self.core().chains.get(&id)?.node_states())
    }

    /// Returns the counters of nodes since the last call. Saving a chain resets its counters.
    pub fn take_statistics(&self) -> Vec<(RuleChainId, Vec<NodeStatistics>)> {
        let core = self.core();
        let chains = core.chains.values().map(|chain| (chain.id, chain.take_statistics()));
        chains.filter(|(_, nodes)| !nodes.is_empty()).collect()
    }

    /// Applies a chain that was saved, made the root, or deleted.
    pub fn reload_chain(&self, id: RuleChainId, now_ms: i64) -> Result<(), PlatformOpenError> {
        // A slow reload must not overwrite the result of a newer one.
        let _turn = self.reloading.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match self.entities.repository().get(id.entity())? {
            Some(record) => {
                let chain = record.read::<RuleChain>()?;
                let compiled = compile(&chain)?;
                self.core().put_chain(&chain, compiled, now_ms);
            }
            None => {
                let mut core = self.core();
                core.remove_chain(id);
                core.roots.retain(|_, root| *root != id);
            }
        }
        Ok(())
    }

    /// Applies a saved profile. Its devices use the new alarm rules from their next message.
    pub fn reload_profile(&self, id: DeviceProfileId) {
        let mut core = self.core();
        core.rules.remove(&id);
        core.transports.remove(&id);
    }

    /// The transport settings of the device's profile.
    pub fn transport(&self, device: DeviceId) -> Option<Arc<ProfileTransport>> {
        let profile = self.entities.directory().device(device)?.profile;
        if let Some(transport) = self.core().transports.get(&profile) {
            return Some(Arc::clone(transport));
        }
        let known = self.entities.directory().profile(profile).cloned()?;
        // Saving a profile rejects settings that cannot be parsed.
        let transport = Arc::new(ProfileTransport::of(&known).ok()?);
        self.core().transports.insert(profile, Arc::clone(&transport));
        Some(transport)
    }

    /// Waits for the call that is processing messages. After that, everything that outlets have received is stored,
    /// unless a store rejected it.
    pub fn wait_for_stores(&self) {
        drop(self.core());
    }

    pub fn is_active(&self, id: DeviceId) -> bool {
        self.core()
            .devices
            .get(&id)
            .is_some_and(|device| device.activity.is_active)
    }

    /// Finishes deleted entities with [`Entities::finish_deleted`], and removes their counts and times.
    pub fn finish_deleted(&self, ids: &[Uuid]) -> Result<(), crate::entities::EntityError> {
        self.entities.finish_deleted(ids)?;
        let mut core = self.core();
        for id in ids {
            core.attribute_counts.remove(*id);
            core.node_times.remove(TenantId(*id));
            if let Some(scripts) = &self.options.scripts {
                scripts.tenant_deleted(TenantId(*id));
            }
        }
        Ok(())
    }

    /// Drops the state of a deleted device. Its stored points are deleted with [`Platform::finish_deleted`].
    pub fn device_deleted(&self, id: DeviceId) {
        let mut core = self.core();
        core.devices.remove(&id);
        core.attribute_counts.remove(id.0);
        core.changed_counters.remove(&id);
        core.changed_activity.remove(&id);
    }

    /// Discards the rule counters of a device that was given another profile.
    pub fn discard_alarm_rules(&self, id: DeviceId) -> Result<(), RepositoryError> {
        let mut core = self.core();
        if let Some(device) = core.devices.get_mut(&id) {
            device.alarms = None;
        }
        core.changed_counters.remove(&id);
        self.entities.repository().apply(&[RepositoryChange::PutState {
            state: StateKind::AlarmRules,
            id: id.0,
            bytes: None,
        }])
    }
}

impl PlatformCore {
    /// Marks everything up to the position as processed. Pending results are written with this position.
    fn processed_to(&mut self, position: LogPosition) {
        self.processed = self.processed.max(position);
        self.replayed = self.replayed.max(position);
        self.pending_position = Some(position);
    }

    /// Installs a chain. A chain that is no longer the root stays registered as root until the new root is installed,
    /// so that messages always find one.
    fn put_chain(&mut self, chain: &RuleChain, compiled: CompiledChain, now_ms: i64) {
        let id = chain.id.unwrap_or_default();
        self.remove_chain(id);
        for (node, period_s) in compiled.periodic_nodes() {
            let period_ms = i64::try_from(period_s.saturating_mul(1000)).unwrap_or(i64::MAX);
            self.periodic.push(PeriodicNode {
                tenant: chain.tenant_id,
                chain: id,
                node,
                period_ms,
                next_ms: now_ms.saturating_add(period_ms),
            });
        }
        self.chains.insert(id, Arc::new(compiled));
        if chain.root {
            self.roots.insert(chain.tenant_id, id);
        }
    }

    fn remove_chain(&mut self, id: RuleChainId) {
        self.chains.remove(&id);
        self.periodic.retain(|periodic| periodic.chain != id);
    }
}
