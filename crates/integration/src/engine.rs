//! The engine: runs the defined connectors, actions, sources and rules, and changes them at run time. A change is
//! stored before it takes effect.
//!
//! Calls may take long, for example to stop a pump or to sync a file. Do not call them from the data plane. The engine
//! has its own tokio runtime for connectors.
//!
//! There are two locks. A change holds `changes` for its whole duration, so that changes are serialized. `state` is
//! locked only briefly and never while a pump is stopped, a buffer is opened or a file is written. Views and metrics
//! therefore never wait for a change.

mod action;
mod connector;
mod declare;
mod fallback;
mod fallback_delivery;
mod measure;
mod reopen;
mod rule;
#[cfg(test)]
mod slow_lane_tests;
mod source;
mod trouble;
mod views;
mod warnings;

pub use connector::ConnectorTest;
pub use measure::{MeasuredDefinition, Measures};
pub use trouble::{EngineFailure, EngineFailures};
pub use views::{ActionView, ConnectorView, RuleView, SourceView};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use broker::ShardId;
use connectors::{Action, ActionBuffer, ActionStats, BufferMode, ConnectionHealth, Fallback, Overflow, StopHandle};
use rules::{Template, Text};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::cause::hash;
use crate::clock::unix_ms;
use crate::compile::{RuleState, compile, published};
use crate::compile_action::{FallbackTarget, action_problems, fallback_targets, ordering_key, templates};
use crate::declared::{DeclarationOrigins, DeclaredDefinitions};
use crate::definition::{
    ActionDefinition, ConnectorDefinition, RuleActionDefinition, RuleDefinition, SourceDefinition, name_problem,
    restore_secrets, rule_id_problem,
};
use crate::environment::{LiveEnvironment, SharedStore};
use crate::event::{EventContext, peer_name};
use crate::kinds::{self, ActionTarget, Connector, Problems};
use crate::loops::MarkPolicy;
use crate::metrics::{RuleCounts, SourceMetrics};
use crate::node_events::NodeEvents;
use crate::runner::RuleRunner;
use crate::secrets::SecretPolicy;
use crate::set::{ActiveRules, LiveAction, LiveFallback, LiveRule, RuleSet};
use crate::slow_lane::SlowLane;
use crate::sources::SourceReceiver;
use crate::store::{DefinitionChange, DefinitionStore, Definitions, StoredDefinitions, Version};
use crate::tail::TailListener;
use crate::tap::RuleTap;

/// Maximum number of definitions of each kind.
pub(crate) const DEFINITIONS_MAX: usize = 100_000;

/// How long a pump may still send the records that it has read when its action is changed or stopped.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Threads of the connectors' runtime.
const THREADS: usize = 2;

/// Maximum time to wait for a shard to use the current rules.
const SHARD_WITHIN: Duration = Duration::from_secs(1);

/// Publishers are held back when the free space of a buffer is less than this or less than an eighth of the buffer. The
/// messages that were accepted in the same tick then still fit.
const HEADROOM_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    NotFound(String),
    /// Another definition uses this one and must be changed first.
    Conflict(String),
    /// The definition is in the configuration, at `source`.
    Pinned {
        what: String,
        source: String,
    },
    /// The problems of the definition. Each names its field.
    Invalid(Problems),
    /// The definition could not be stored and is not in effect.
    Storage(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::NotFound(what) | EngineError::Conflict(what) | EngineError::Storage(what) => f.write_str(what),
            EngineError::Pinned { what, source } => write!(f, "{what} is set by {source} and cannot be changed here"),
            EngineError::Invalid(problems) => f.write_str(&problems.join("; ")),
        }
    }
}

impl std::error::Error for EngineError {}

/// Returns why the disk buffer in a directory must not be opened, if an earlier copy has replaced it.
pub type OlderBufferCheck = Box<dyn Fn(&Path) -> Option<String> + Send + Sync>;

/// A handle to the engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineShared>,
}

pub(crate) struct EngineShared {
    node: String,
    directory: PathBuf,
    /// Held during a change.
    changes: Mutex<DefinitionStore>,
    active_rules: Arc<ActiveRules>,
    values: SharedStore,
    slow_lane: Arc<SlowLane>,
    runtime: Mutex<Option<Runtime>>,
    runtime_handle: tokio::runtime::Handle,
    /// The server, after [`Engine::serve`].
    net: Arc<OnceLock<net::ServerHandle>>,
    is_serving: AtomicBool,
    /// Notified when a buffer has committed records or has space again.
    progress: Arc<Notify>,
    /// Secrets that definitions of the API may refer to.
    secret_policy: OnceLock<SecretPolicy>,
    older_buffer: OlderBufferCheck,
    /// Minimum time between two syncs of a buffer.
    commit_interval: Duration,
    state: Mutex<EngineState>,
}

#[derive(Default)]
struct EngineState {
    /// Effective definitions: `stored`, overridden by declared ones.
    definitions: Definitions,
    /// Definitions of the API.
    stored: StoredDefinitions,
    origins: DeclarationOrigins,
    connectors: BTreeMap<String, Result<Connector, Problems>>,
    /// Enabled actions.
    actions: BTreeMap<String, Result<ActionEntry, Problems>>,
    /// Enabled sources.
    sources: BTreeMap<String, Result<SourceEntry, Problems>>,
    source_metrics: BTreeMap<String, Arc<SourceMetrics>>,
    /// Counters of closed actions. They are added to those of the next action with the same id.
    action_counts: BTreeMap<String, ActionStats>,
    rules: BTreeMap<String, RuleState>,
}

/// A created source and its task.
struct SourceEntry {
    handle: kinds::SourceHandle,
    /// The task that processes messages, after the server has started.
    run: Option<(StopHandle, JoinHandle<()>)>,
}

struct ActionEntry {
    action: Arc<Action>,
    /// Why the target cannot be created. The action then only buffers messages.
    problems: Problems,
    templates: Vec<Template>,
    ordering_key: Option<Template>,
    fallbacks: Vec<FallbackTarget>,
    is_awaited: bool,
    free_bytes_min: Option<u64>,
    /// False while the action is being changed.
    is_open: bool,
    bridge: MarkPolicy,
}

impl Engine {
    /// Reads the definitions below `data_directory` and starts everything that they and the configuration define.
    /// Failures to start something are logged and shown, and do not affect the rest. `commit_interval` is the minimum
    /// time between two syncs of a buffer.
    pub fn open(
        data_directory: &Path,
        node: &str,
        declared: DeclaredDefinitions,
        older_buffer: OlderBufferCheck,
        commit_interval: Duration,
    ) -> Result<Engine, String> {
        let directory = data_directory.join(crate::DIRECTORY_NAME);
        let (store, stored) = DefinitionStore::open(&directory)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("connectors")
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start the threads of the connectors: {error}"))?;
        let (values, net) = (SharedStore::default(), Arc::default());
        let engine = Engine {
            inner: Arc::new(EngineShared {
                slow_lane: Arc::new(SlowLane::new(values.clone(), Arc::clone(&net))),
                node: node.to_owned(),
                directory,
                changes: Mutex::new(store),
                active_rules: Arc::default(),
                values,
                runtime_handle: runtime.handle().clone(),
                runtime: Mutex::new(Some(runtime)),
                net,
                is_serving: AtomicBool::new(false),
                progress: Arc::default(),
                secret_policy: OnceLock::new(),
                older_buffer,
                commit_interval,
                state: Mutex::new(EngineState {
                    definitions: declared.override_stored(&stored.definitions),
                    stored,
                    origins: declared.origins(),
                    ..EngineState::default()
                }),
            }),
        };
        engine.start_all();
        engine.inner.active_rules.put_rule_time(declared.rule_time);
        engine
            .start_reopening()
            .map_err(|error| format!("cannot start the thread that reopens buffers: {error}"))?;
        Ok(engine)
    }

    /// Sets the server whose messages the rules process. Call it once, before the server starts.
    pub fn serve(&self, net: net::ServerHandle) {
        // A second call has no effect: there is one server.
        let _ = self.inner.net.set(net);
    }

    /// Starts processing the messages of sources, after the server has started.
    pub fn start_sources(&self) {
        let _changes = self.changes();
        self.inner.is_serving.store(true, Ordering::Release);
        let definitions: Vec<SourceDefinition> = self.state().definitions.sources.values().cloned().collect();
        for definition in &definitions {
            self.run_source(definition);
        }
    }

    /// Creates the tap of a shard. The server must have bound its ports.
    pub fn tap(&self, seed: u64) -> RuleTap {
        let inner = &self.inner;
        let listeners = inner.net.get().map(net::ServerHandle::listeners).unwrap_or_default();
        let context = EventContext {
            listeners: listeners.iter().map(|it| Text::from(peer_name(it.address))).collect(),
            ..EventContext::new(&inner.node)
        };
        let lane = Arc::clone(&inner.slow_lane);
        RuleTap::new(context, inner.active_rules.clone(), inner.values.clone(), lane, seed)
    }

    /// Sets the evaluation time above which a rule is evaluated on separate threads. `None` disables this.
    pub fn set_slow_rule_threshold(&self, threshold: Option<Duration>) {
        self.inner.slow_lane.set_threshold(threshold);
    }

    /// Sets the secrets that definitions of the API may refer to. Without this, they can refer to none.
    pub fn set_secret_policy(&self, policy: SecretPolicy) {
        // Called once, at the start.
        let _ = self.inner.secret_policy.set(policy);
    }

    /// Returns a problem for each reference to a secret that a definition of the API must not contain.
    fn secret_problems(&self, field: &str, config: &serde_json::Value, schema: Option<Schema>) -> Problems {
        let none = SecretPolicy::default();
        let policy = self.inner.secret_policy.get().unwrap_or(&none);
        policy.problems(field, config, schema.as_ref())
    }

    /// Returns the sender of alarm events to rules.
    pub fn node_events(&self, net: net::ServerHandle) -> NodeEvents {
        let inner = &self.inner;
        NodeEvents::new(&inner.node, inner.active_rules.clone(), inner.values.clone(), net)
    }

    /// Stops pumps and closes buffers. Appended records stay in durable buffers. The engine is unusable afterwards.
    pub fn shut_down(&self) {
        let _changes = self.changes();
        self.inner.active_rules.replace(RuleSet::default());
        let sources: Vec<String> = self.state().sources.keys().cloned().collect();
        for id in &sources {
            self.stop_source(id);
        }
        let running: Vec<Arc<Action>> = self
            .state()
            .actions
            .values()
            .flatten()
            .map(|it| it.action.clone())
            .collect();
        // All buffers stay open until all pumps have stopped, because an action may be the fallback of another one.
        self.inner.runtime_handle.block_on(async {
            for action in &running {
                action.stop(STOP_WITHIN).await;
            }
        });
        let actions = std::mem::take(&mut self.state().actions);
        for (id, running) in &actions {
            if let Ok(running) = running {
                close_buffer(id, &running.action);
            }
        }
        let runtime = self.inner.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(STOP_WITHIN);
        }
    }

    /// Locks the state. Hold it only briefly.
    fn state(&self) -> MutexGuard<'_, EngineState> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a change. Lock it before `state`.
    fn changes(&self) -> MutexGuard<'_, DefinitionStore> {
        self.inner.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_all(&self) {
        let _changes = self.changes();
        let definitions = self.state().definitions.clone();
        for definition in definitions.connectors.values() {
            self.start_connector(definition);
        }
        for definition in definitions.sources.values() {
            self.create_source(definition);
        }
        for definition in definitions.actions.values() {
            self.start_action(definition);
        }
        for definition in definitions.rules.values() {
            self.prepare_rule(definition);
        }
        let state = self.state();
        self.apply_all(&state);
        let enabled = definitions.rules.values().filter(|rule| rule.enable);
        enabled.for_each(|rule| state.warn(rule));
    }

    /// Compiles all rules with the current actions and makes them the active rules.
    fn apply_all(&self, state: &EngineState) {
        let actions = state.live_actions();
        let ids = RuleSet::new(Vec::new(), Arc::clone(&actions));
        let rules = state.definitions.rules.values();
        let rules = rules
            .filter_map(|definition| state.live_rule(definition, &ids))
            .collect();
        let mut set = RuleSet::new(rules, actions);
        set.rule_time = self.inner.active_rules.get().rule_time;
        self.inner.active_rules.replace(set);
    }

    /// Updates the active rules after actions were added, removed or changed.
    fn apply_actions(&self) {
        let state = self.state();
        let now = self.inner.active_rules.get();
        let ids = state
            .actions
            .iter()
            .filter(|(_, action)| action.is_ok())
            .map(|(id, _)| id);
        match ids.eq(now.actions.iter().map(|action| &action.id)) {
            true => self.inner.active_rules.put_actions(state.live_actions()),
            false => self.apply_all(&state),
        }
        drop(state);
        // Publishers that wait for a changed action continue.
        if let Some(net) = self.inner.net.get() {
            net.wake_tap_waiters();
        }
    }

    /// Updates the active rules after a rule was added, changed or deleted.
    fn apply_rule(&self, state: &EngineState, id: &str) {
        let now = self.inner.active_rules.get();
        let definition = state.definitions.rules.get(id);
        let live = definition.and_then(|definition| state.live_rule(definition, &now));
        self.inner.active_rules.put_rule(id, live);
    }

    /// Waits until no shard uses earlier rules or appends to the buffers of earlier actions.
    fn wait_for_shards(&self) {
        let Some(net) = self.inner.net.get() else {
            return;
        };
        // A shard may answer the first call in a tick that began before the change, with the earlier rules. It answers
        // the second call in a later tick.
        for _ in 0..2 {
            for shard in (0..net.shards()).map(ShardId) {
                if let Err(error) = net.call(shard, SHARD_WITHIN, |_, _| ()) {
                    tracing::debug!(%error, "a worker did not respond in time");
                }
            }
        }
    }

    /// Stores a change. On an error nothing changes.
    fn store_change(&self, store: &mut DefinitionStore, change: &DefinitionChange) -> Result<(), EngineError> {
        let after = || {
            let mut stored = self.state().stored.clone();
            stored.apply(change);
            stored
        };
        store.save(change, after).map_err(EngineError::Storage)?;
        let mut state = self.state();
        // `definitions` stays correct: callers have checked that the definition is not declared in the configuration.
        state.definitions.apply(change);
        state.stored.apply(change);
        Ok(())
    }
}

impl EngineState {
    /// Returns the actions, sorted by id.
    fn live_actions(&self) -> Arc<[LiveAction]> {
        let running = self
            .actions
            .iter()
            .filter_map(|(id, action)| Some((id, action.as_ref().ok()?)));
        running
            .map(|(id, running)| running.live(id, self.live_fallbacks(running)))
            .collect()
    }

    /// Compiles a rule with the actions of `set`. Returns `None` if the rule is disabled or invalid.
    fn live_rule(&self, definition: &RuleDefinition, set: &RuleSet) -> Option<LiveRule> {
        let rule = self.rules.get(&definition.id).filter(|_| definition.enable)?;
        compile(definition, rule, |id| set.position(id)).ok()
    }
}

fn close_buffer(id: &str, action: &Action) {
    if let Err(error) = action.buffer().shut_down() {
        tracing::error!(action = id, %error, "closing the buffer of an action failed");
    }
}

fn not_found(kind: &str, name: &str) -> EngineError {
    EngineError::NotFound(format!("there is no {kind} {name:?}"))
}

/// Returns an error if the definition is declared in the configuration.
fn check_not_pinned(kind: &str, name: &str, origins: &BTreeMap<String, String>) -> Result<(), EngineError> {
    match origins.get(name) {
        None => Ok(()),
        Some(source) => Err(EngineError::Pinned {
            what: format!("{kind} {name:?}"),
            source: source.clone(),
        }),
    }
}

fn check_valid(problems: Problems) -> Result<(), EngineError> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(EngineError::Invalid(problems))
    }
}

/// Adds a problem if a new definition would exceed the limit.
fn check_limit<T>(kinds: &str, all: &BTreeMap<String, T>, name: &str, problems: &mut Problems) {
    if all.len() >= DEFINITIONS_MAX && !all.contains_key(name) {
        problems.push(format!("the limit of {DEFINITIONS_MAX} {kinds} is reached"));
    }
}
