//! The platform at work: messages of devices in, time series, attributes, alarms and effects out.
//!
//! ```text
//! Incoming ──► decode ──► chain of the device's profile, or the tenant's root (alarm rules are a node of it)
//!                           │
//!                           ├──► pending points ──────► timeseries::Store, with the position of the batch
//!                           ├──► pending changes ─────► Repository, with the position and what machines counted
//!                           └──► Outlet: subscribers, devices, other systems, in order per device
//! ```
//!
//! # Invariants
//!
//! - A batch is written once its messages are processed; the caller replays from [`Platform::replay_position`]. Points that come
//!   again replace themselves. Batches up to the position in the repository are replayed for their points only: alarms,
//!   attributes and messages to others do not happen twice.
//! - Counts and durations of alarm rules are kept in the transaction that has the position, so they count no message twice.
//! - Everything that waits (calls to devices, queues of checkpoints) is bounded and counted.
//!
//! One lock: messages of one platform are processed one after the other, which is what keeps the order.

mod alarms;
mod aside;
mod attributes;
mod behind;
mod budget;
mod durations;
mod gateway;
mod host;
mod ingest;
mod limited;
mod news;
mod off_times;
mod ota;
mod outlet;
mod pending;
mod retention;
mod retries;
mod slow_scripts;
mod tick;
mod waiting_calls;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use timeseries::{Position, Store};

pub use alarms::AlarmChange;
pub use attributes::AttributesChange;
pub use ingest::{Incoming, IngestError, Ingested, Said};
pub use limited::ApiStateChange;
pub use news::News;
pub use outlet::{NoOutlet, Outlet};
pub use retention::RetentionError;

use crate::activity::Activity;
use crate::alarm_rules::{Rules, State};
use crate::chain::{Chain, ChainError, ChainNodes, NodeStatistics, Warning};
use crate::decode::{Limits, Transport};
use crate::entities::Entities;
use crate::ids::{DeviceId, DeviceProfileId, EntityType, RuleChainId, TenantId, Uuid};
use crate::limits::{ApiFeature, ApiState, TenantLimits};
use crate::model::RuleChain;
use crate::queue_statistics::QueueStatistics;
use crate::repository::{Change, RepositoryError, StateKind};
use crate::usage::{Counter, Usage};
use aside::AsideQueue;
use behind::Behind;
use off_times::OffTimes;
use pending::Pending;
use retention::Retention;
use retries::{Queues, Retries};
use slow_scripts::SlowScripts;
use waiting_calls::WaitingCalls;

#[derive(Clone, Debug)]
pub struct Options {
    /// Part of the keys of message counts.
    pub service: String,
    pub limits: Limits,
    pub inactivity_timeout_ms: i64,
    /// Between looks for devices that fell silent, and for durations of alarm rules.
    pub check_ms: i64,
    /// Between times at which activity, counters and usage are kept.
    pub checkpoint_ms: i64,
    /// Between times at which usage becomes time series.
    pub usage_ms: i64,
    /// Calls to devices that chains wait for.
    pub waiting_calls_max: usize,
    /// Messages in queues of checkpoint nodes, and as many that wait for a retry.
    pub queued_max: usize,
    /// Days for which telemetry is kept of tenants whose profiles do not say; 0 is for ever.
    pub ttl_days: u32,
    /// The same of what tenants used.
    pub usage_ttl_days: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            service: "tidewire".to_owned(),
            limits: Limits::default(),
            inactivity_timeout_ms: 600_000,
            check_ms: 60_000,
            checkpoint_ms: 10_000,
            usage_ms: 60_000,
            waiting_calls_max: 100_000,
            queued_max: 100_000,
            ttl_days: 0,
            usage_ttl_days: 0,
        }
    }
}

/// Counters begin at zero when the platform is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub messages_total: u64,
    pub points_total: u64,
    /// Not understood, or of a device that is gone.
    pub refused_messages_total: u64,
    pub failed_messages_total: u64,
    pub rule_nodes_total: u64,
    pub scripts_total: u64,
    pub alarms_created_total: u64,
    /// Of a batch that was processed before: points only.
    pub replayed_messages_total: u64,
    /// Refused by the repository: another change was first.
    pub refused_changes_total: u64,
    /// Calls and queued messages beyond the limits.
    pub dropped_calls_total: u64,
    pub dropped_queued_total: u64,
    /// Tries of messages that had failed.
    pub retried_messages_total: u64,
    /// Messages that wait for a retry, or behind one.
    pub waiting_retries: u64,
    /// Of tenants whose rule engine is off until the next month.
    pub over_limit_messages_total: u64,
    pub waiting_calls: u64,
    pub device_states: u64,
    /// On the heap, of states of devices.
    pub device_state_bytes: u64,
}

pub struct Platform {
    entities: Arc<Entities>,
    store: Arc<dyn Store>,
    options: Options,
    core: Mutex<Core>,
    /// Held while a chain is read and compiled, which may take seconds: the one that was saved last is the last to be put in.
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

/// All that messages change.
#[derive(Default)]
struct Core {
    chains: HashMap<RuleChainId, Arc<Chain>>,
    roots: HashMap<TenantId, RuleChainId>,
    slow_scripts: SlowScripts,
    queue_statistics: QueueStatistics,
    rules: HashMap<DeviceProfileId, Arc<Rules>>,
    transports: HashMap<DeviceProfileId, Arc<Transport>>,
    devices: HashMap<DeviceId, DeviceState>,
    usage: Usage,
    /// Of tenants that have any: a copy of the directory's.
    limits: HashMap<TenantId, Arc<TenantLimits>>,
    limits_version: u64,
    /// What outlets were told.
    api_states: HashMap<TenantId, [Option<ApiState>; ApiFeature::ALL.len()]>,
    told_limits: HashMap<TenantId, [u64; Counter::ALL.len()]>,
    told_limits_version: u64,
    /// All of them: without limits there is nothing to look at then.
    are_enabled: bool,
    off_times: OffTimes,
    /// Days for which points are kept, of tenants whose profiles say: a copy of the directory's.
    storage_days: HashMap<TenantId, u32>,
    ttls_version: u64,
    pending: Pending,
    /// Where the batch that is pending ends.
    pending_position: Option<Position>,
    /// The last batch whose changes are in the repository.
    applied: Position,
    /// The last batch that was processed.
    processed: Position,
    /// Likewise, of those that are replayed as well: behind `applied` while that goes on.
    replayed: Position,
    calls: WaitingCalls,
    /// What chains have put aside, to be done when what is at hand is done.
    queue: AsideQueue,
    queues: Queues,
    retries: Retries,
    periodic: Vec<Periodic>,
    changed_counters: HashSet<DeviceId>,
    /// With counters of alarm rules from before the start that nobody has looked at.
    unloaded: VecDeque<DeviceId>,
    changed_activity: HashSet<DeviceId>,
    owner_values: OwnerValues,
    gateway_names: HashMap<(DeviceId, Box<str>), DeviceId>,
    behind: Behind,
    /// Whose points the store refused, and who is not told yet.
    refused_of: Vec<timeseries::EntityId>,
    next_check_ms: i64,
    next_checkpoint_ms: i64,
    stats: Stats,
}

/// Most keys are identifiers that the platform made.
type HashMap<K, V> = hashbrown::HashMap<K, V, foldhash::fast::RandomState>;
type HashSet<K> = hashbrown::HashSet<K, foldhash::fast::RandomState>;

/// Server attributes of customers and tenants that alarm rules asked for.
type OwnerValues = HashMap<(Uuid, Box<str>), Option<timeseries::Value>>;

#[derive(Default)]
struct DeviceState {
    activity: Activity,
    alarms: Option<Box<DeviceAlarms>>,
}

struct DeviceAlarms {
    rules: Arc<Rules>,
    state: State,
}

struct Periodic {
    tenant: TenantId,
    chain: RuleChainId,
    node: usize,
    period_ms: i64,
    next_ms: i64,
}

#[derive(Debug)]
pub enum OpenError {
    Repository(RepositoryError),
    Chain { id: RuleChainId, source: ChainError },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Repository(_) => f.write_str("the platform's states cannot be read"),
            OpenError::Chain { id, .. } => write!(f, "the rule chain {id} cannot be compiled"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Repository(error) => Some(error),
            OpenError::Chain { source, .. } => Some(source),
        }
    }
}

impl From<RepositoryError> for OpenError {
    fn from(error: RepositoryError) -> OpenError {
        OpenError::Repository(error)
    }
}

fn compile(chain: &RuleChain) -> Result<Chain, OpenError> {
    let id = chain.id.unwrap_or_default();
    let empty = serde_json::Value::Null;
    let metadata = chain.metadata.as_ref().unwrap_or(&empty);
    Chain::compile(chain.tenant_id, id, metadata).map_err(|source| OpenError::Chain { id, source })
}

impl Platform {
    /// Compiles all chains and reads what machines kept.
    pub fn open(entities: Arc<Entities>, store: Arc<dyn Store>, options: Options) -> Result<Platform, OpenError> {
        let mut core = Core {
            calls: WaitingCalls::new(options.waiting_calls_max),
            queue: AsideQueue::new(options.queued_max),
            retries: Retries::new(options.queued_max),
            ..Core::default()
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
        core.queues = Queues::of(entities.stored_queues()?);
        repository.for_each_state(StateKind::Retry, &mut |id, bytes| core.retries.restore(id, bytes))?;
        core.retries.restored();
        if let Some(bytes) = repository.state(StateKind::Position, Uuid::NULL)? {
            core.applied = Position(bytes.try_into().map_or(0, u64::from_le_bytes));
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

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn entities(&self) -> &Arc<Entities> {
        &self.entities
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The caller's log is needed from here on: what is before is durable.
    pub fn replay_position(&self) -> Position {
        self.store.durable_position().min(self.core().applied)
    }

    /// Where the last batch ends whose changes of entities are durable: a replay must end a batch there.
    pub fn applied_position(&self) -> Position {
        self.core().applied
    }

    /// Chains have said something by themselves that is stored with the next batch, which may be an empty one.
    pub fn has_pending_points(&self) -> bool {
        self.core().pending.has_points()
    }

    pub fn stats(&self) -> Stats {
        let core = self.core();
        let alarms = core.devices.values().filter_map(|device| device.alarms.as_ref());
        let alarm_bytes: usize = alarms
            .map(|alarms| size_of::<DeviceAlarms>() + alarms.state.heap_bytes())
            .sum();
        Stats {
            waiting_calls: core.calls.len() as u64,
            device_states: core.devices.len() as u64,
            waiting_retries: core.retries.count() as u64,
            device_state_bytes: (core.devices.allocation_size() + alarm_bytes) as u64,
            ..core.stats.clone()
        }
    }

    /// What an operator has to know of the chains that run.
    pub fn chain_warnings(&self) -> Vec<(RuleChainId, Vec<Warning>)> {
        let core = self.core();
        let chains = core.chains.values().filter(|chain| !chain.warnings().is_empty());
        chains.map(|chain| (chain.id, chain.warnings().to_vec())).collect()
    }

    /// `None`: there is no such chain.
    pub fn chain_nodes(&self, id: RuleChainId) -> Option<ChainNodes> {
        Some(self.core().chains.get(&id)?.node_states())
    }

    /// What nodes did since this was asked last; of a chain that was saved meanwhile, since then.
    pub fn take_statistics(&self) -> Vec<(RuleChainId, Vec<NodeStatistics>)> {
        let core = self.core();
        let chains = core.chains.values().map(|chain| (chain.id, chain.take_statistics()));
        chains.filter(|(_, nodes)| !nodes.is_empty()).collect()
    }

    /// After a chain was saved, made the root, or deleted.
    pub fn reload_chain(&self, id: RuleChainId, now_ms: i64) -> Result<(), OpenError> {
        // Of two at once none puts what the other has changed since.
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

    /// After a profile was saved: its devices take its alarm rules over with their next message.
    pub fn reload_profile(&self, id: DeviceProfileId) {
        let mut core = self.core();
        core.rules.remove(&id);
        core.transports.remove(&id);
    }

    /// What the device's profile says of topics and payloads.
    pub fn transport(&self, device: DeviceId) -> Option<Arc<Transport>> {
        let profile = self.entities.directory().device(device)?.profile;
        if let Some(transport) = self.core().transports.get(&profile) {
            return Some(Arc::clone(transport));
        }
        let known = self.entities.directory().profile(profile).cloned()?;
        // Saving a profile refuses what cannot be parsed.
        let transport = Arc::new(Transport::of(&known).ok()?);
        self.core().transports.insert(profile, Arc::clone(&transport));
        Some(transport)
    }

    /// What outlets were told of before is stored when this returns, as far as it can be stored now.
    pub fn settle(&self) {
        drop(self.core());
    }

    pub fn is_active(&self, id: DeviceId) -> bool {
        self.core()
            .devices
            .get(&id)
            .is_some_and(|device| device.activity.is_active)
    }

    /// After it was deleted; what is stored of it goes with [`Entities::forget_deleted`].
    pub fn device_deleted(&self, id: DeviceId) {
        let mut core = self.core();
        core.devices.remove(&id);
        core.changed_counters.remove(&id);
        core.changed_activity.remove(&id);
    }

    /// A device was given another profile: what the rules of the one before counted is nothing to those of the new one.
    pub fn forget_alarm_rules(&self, id: DeviceId) -> Result<(), RepositoryError> {
        let mut core = self.core();
        if let Some(device) = core.devices.get_mut(&id) {
            device.alarms = None;
        }
        core.changed_counters.remove(&id);
        self.entities.repository().apply(&[Change::PutState {
            state: StateKind::AlarmRules,
            id: id.0,
            bytes: None,
        }])
    }
}

impl Core {
    /// All before it has been processed; what came of that is written with this position.
    fn processed_to(&mut self, position: Position) {
        self.processed = self.processed.max(position);
        self.replayed = self.replayed.max(position);
        self.pending_position = Some(position);
    }

    /// One that is the root no more is it until the new one is put: messages in between are not to find none.
    fn put_chain(&mut self, chain: &RuleChain, compiled: Chain, now_ms: i64) {
        let id = chain.id.unwrap_or_default();
        self.remove_chain(id);
        for (node, period_s) in compiled.periodic_nodes() {
            let period_ms = i64::try_from(period_s.saturating_mul(1000)).unwrap_or(i64::MAX);
            self.periodic.push(Periodic {
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
