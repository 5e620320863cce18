//! The engine: definitions in, what runs out of them; changes at run time, kept before they are in force.
//!
//! Its calls may take a while (a pump is stopped, a file is synced): not for the threads of the data plane. Clients of other
//! systems run on a runtime of the engine's own.
//!
//! Two locks: whoever changes something has `changes` for as long as that takes, and is alone with it; `state` is locked for moments only,
//! never while something is stopped, opened or written, so that looking (views, metrics) waits for no change.

mod action;
mod connector;
mod declare;
mod fallback;
mod measure;
mod rule;
mod source;
mod trouble;
mod views;
mod warnings;

pub(crate) use action::action_problems;
pub use connector::ConnectorTest;
pub(crate) use fallback::{Reached, fallback_circle};
pub use measure::{Measured, Measures};
pub(crate) use rule::rule_id_problem;
pub use trouble::{Trouble, Troubles};
pub use views::{ActionView, ConnectorView, RuleView, SourceView};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use broker::ShardId;
use connectors::{Action, ActionStats, Buffer, BufferMode, DeliveryConfig, Fallback, Health, Overflow, Stopper};
use rules::{Template, Text};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::compile::{RuleState, compile, published, republish, template};
use crate::declared::{Declared, Origins};
use crate::definition::{
    ActionDefinition, ConnectorDefinition, RuleAction, RuleDefinition, SourceDefinition, name_problem, restore_secrets,
};
use crate::environment::{SharedStore, Surroundings, unix_ms};
use crate::event::{Scene, peer_name};
use crate::fallback::Target as FallbackTarget;
use crate::kinds::{self, Connector, Problems, Target};
use crate::loops::Bridge;
use crate::metrics::{RuleCounts, SourceMetrics};
use crate::node_events::NodeEvents;
use crate::runner::{Runner, hash};
use crate::set::{InForce, LiveAction, LiveFallback, LiveRule, RuleSet};
use crate::sources::SourceReceiver;
use crate::store::{Change, Definitions, Kept, Store, Version};
use crate::tail::Listener;
use crate::tap::RuleTap;

/// Of each kind of thing that can be defined.
const DEFINITIONS_MAX: usize = 100_000;

/// How long what was read from a buffer may still be sent when its action is changed or stopped.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Of clients of other systems.
const THREADS: usize = 2;

/// How long a shard may take to come to what is in force now.
const SHARD_WITHIN: Duration = Duration::from_secs(1);

/// A buffer with less room than this, or than an eighth of it, is full for publishers: what they send within a tick still fits.
const HEADROOM_MAX: u64 = 1 << 20;

/// The ordering key that stands for the client that published, whatever the rule puts out.
const BY_CLIENT: &str = "${clientid}";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    NotFound(String),
    /// Something else has to be changed first.
    Conflict(String),
    /// The configuration has it; `source` says where.
    Pinned {
        what: String,
        source: String,
    },
    /// Each names its field.
    Invalid(Problems),
    /// The definition could not be kept, and is not in force.
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

/// Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    node: String,
    directory: PathBuf,
    /// Of whoever changes something.
    changes: Mutex<Store>,
    in_force: Arc<InForce>,
    values: SharedStore,
    runtime: Mutex<Option<Runtime>>,
    runtime_handle: tokio::runtime::Handle,
    /// The server, once it runs.
    net: Arc<OnceLock<net::Handle>>,
    is_serving: AtomicBool,
    /// Buffers have kept something, or have room again.
    progress: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What holds: `kept`, and over it what is declared.
    definitions: Definitions,
    /// What the API has defined.
    kept: Kept,
    origins: Origins,
    connectors: BTreeMap<String, Result<Connector, Problems>>,
    /// Of actions that are enabled.
    actions: BTreeMap<String, Result<Running, Problems>>,
    /// What actions had counted before they were last changed or disabled.
    counted_before: BTreeMap<String, ActionStats>,
    /// Of sources that are enabled.
    sources: BTreeMap<String, Result<HeldSource, Problems>>,
    source_metrics: BTreeMap<String, Arc<SourceMetrics>>,
    rules: BTreeMap<String, RuleState>,
}

struct HeldSource {
    origin: kinds::Origin,
    /// What hands on what it takes in, once the server runs.
    run: Option<(Stopper, JoinHandle<()>)>,
}

struct Running {
    action: Arc<Action>,
    /// Why it sends nothing and only keeps what it is given: its target cannot be made.
    problems: Problems,
    templates: Vec<Template>,
    ordering_key: Option<Template>,
    fallbacks: Vec<FallbackTarget>,
    is_kept: bool,
    headroom: Option<u64>,
    /// Not while it is being changed.
    is_open: bool,
    bridge: Bridge,
}

impl Engine {
    /// Reads the definitions below `data_directory` and starts what they and the configuration define. What cannot be started is told and
    /// shown, and does not keep the rest from running.
    pub fn open(data_directory: &Path, node: &str, declared: Declared) -> Result<Engine, String> {
        let directory = data_directory.join(crate::DIRECTORY_NAME);
        let (store, kept) = Store::open(&directory)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("connectors")
            .enable_all()
            .build()
            .map_err(|error| format!("no threads for connectors: {error}"))?;
        let engine = Engine {
            inner: Arc::new(Inner {
                node: node.to_owned(),
                directory,
                changes: Mutex::new(store),
                in_force: Arc::default(),
                values: SharedStore::default(),
                runtime_handle: runtime.handle().clone(),
                runtime: Mutex::new(Some(runtime)),
                net: Arc::default(),
                is_serving: AtomicBool::new(false),
                progress: Arc::default(),
                state: Mutex::new(State {
                    definitions: declared.over(&kept.definitions),
                    kept,
                    origins: declared.origins(),
                    ..State::default()
                }),
            }),
        };
        engine.start_all();
        Ok(engine)
    }

    /// The server whose messages these rules are for. Once, before it starts.
    pub fn serve(&self, net: net::Handle) {
        // The first one stays: there is one server.
        let _ = self.inner.net.set(net);
    }

    /// The server runs and takes what sources bring.
    pub fn start_sources(&self) {
        let _changes = self.changes();
        self.inner.is_serving.store(true, Ordering::Release);
        let definitions: Vec<SourceDefinition> = self.state().definitions.sources.values().cloned().collect();
        for definition in &definitions {
            self.run_source(definition);
        }
    }

    /// For one shard, of a server that has its ports.
    pub fn tap(&self, seed: u64) -> RuleTap {
        let inner = &self.inner;
        let listeners = inner.net.get().map(net::Handle::listeners).unwrap_or_default();
        let scene = Scene {
            listeners: listeners.iter().map(|it| Text::from(peer_name(it.address))).collect(),
            ..Scene::new(&inner.node)
        };
        RuleTap::new(scene, inner.in_force.clone(), inner.values.clone(), seed)
    }

    /// For alarms.
    pub fn node_events(&self, net: net::Handle) -> NodeEvents {
        let inner = &self.inner;
        NodeEvents::new(&inner.node, inner.in_force.clone(), inner.values.clone(), net)
    }

    /// Stops pumps and closes buffers: what was appended is kept. The engine can do nothing after that.
    pub fn shut_down(&self) {
        let _changes = self.changes();
        self.inner.in_force.replace(RuleSet::default());
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
        // All are there until all have stopped: one may have another for a fallback.
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

    /// For moments.
    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For as long as a change takes; before `state`.
    fn changes(&self) -> MutexGuard<'_, Store> {
        self.inner.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_all(&self) {
        let _changes = self.changes();
        let definitions = self.state().definitions.clone();
        for definition in definitions.connectors.values() {
            self.start_connector(definition);
        }
        for definition in definitions.sources.values() {
            self.make_source(definition);
        }
        for definition in definitions.actions.values() {
            self.start_action(definition);
        }
        for definition in definitions.rules.values() {
            self.prepare_rule(definition);
        }
        let state = self.state();
        self.enforce_all(&state);
        let enabled = definitions.rules.values().filter(|rule| rule.enable);
        enabled.for_each(|rule| state.warn(rule));
    }

    /// Puts all rules and actions as they are now into force.
    fn enforce_all(&self, state: &State) {
        let actions = state.live_actions();
        let ids = RuleSet::new(Vec::new(), Arc::clone(&actions));
        let rules = state.definitions.rules.values();
        let rules = rules
            .filter_map(|definition| state.live_rule(definition, &ids))
            .collect();
        self.inner.in_force.replace(RuleSet::new(rules, actions));
    }

    /// Actions are in another state, or there are others.
    fn enforce_actions(&self) {
        let state = self.state();
        let now = self.inner.in_force.get();
        let ids = state
            .actions
            .iter()
            .filter(|(_, action)| action.is_ok())
            .map(|(id, _)| id);
        match ids.eq(now.actions.iter().map(|action| &action.id)) {
            true => self.inner.in_force.put_actions(state.live_actions()),
            false => self.enforce_all(&state),
        }
        drop(state);
        // Who waits for an action that has been changed goes on.
        if let Some(net) = self.inner.net.get() {
            net.wake_waiting();
        }
    }

    /// A rule is another one, or is no more.
    fn enforce_rule(&self, state: &State, id: &str) {
        let now = self.inner.in_force.get();
        let definition = state.definitions.rules.get(id);
        let live = definition.and_then(|definition| state.live_rule(definition, &now));
        self.inner.in_force.put_rule(id, live);
    }

    /// Returns when every shard has come to what is in force now, and appends to nothing else.
    fn wait_for_shards(&self) {
        let Some(net) = self.inner.net.get() else {
            return;
        };
        // The first question may be answered in a tick that had begun before; the second one is in a later one.
        for _ in 0..2 {
            for shard in (0..net.shards()).map(ShardId) {
                if let Err(error) = net.call(shard, SHARD_WITHIN, |_, _| ()) {
                    tracing::debug!(%error, "a worker does not answer");
                }
            }
        }
    }

    /// Keeps a change. If that fails nothing has changed.
    fn keep(&self, store: &mut Store, change: &Change) -> Result<(), EngineError> {
        let after = || {
            let mut kept = self.state().kept.clone();
            kept.apply(change);
            kept
        };
        store.save(change, after).map_err(EngineError::Storage)?;
        let mut state = self.state();
        // What is declared is not changed here.
        state.definitions.apply(change);
        state.kept.apply(change);
        Ok(())
    }
}

impl State {
    /// Sorted by id.
    fn live_actions(&self) -> Arc<[LiveAction]> {
        let running = self
            .actions
            .iter()
            .filter_map(|(id, action)| Some((id, action.as_ref().ok()?)));
        running
            .map(|(id, running)| running.live(id, self.live_fallbacks(running)))
            .collect()
    }

    /// `set`: what has the actions. None if the rule is not enabled, or wrong.
    fn live_rule(&self, definition: &RuleDefinition, set: &RuleSet) -> Option<LiveRule> {
        let rule = self.rules.get(&definition.id).filter(|_| definition.enable)?;
        compile(definition, rule, |id| set.position(id)).ok()
    }
}

fn close_buffer(id: &str, action: &Action) {
    if let Err(error) = action.buffer().shut_down() {
        tracing::error!(action = id, %error, "the buffer of an action was not closed as it should be");
    }
}

fn not_found(what: &str, name: &str) -> EngineError {
    EngineError::NotFound(format!("there is no {what} {name:?}"))
}

/// What the configuration has is changed there.
fn free(what: &str, name: &str, origins: &BTreeMap<String, String>) -> Result<(), EngineError> {
    match origins.get(name) {
        None => Ok(()),
        Some(source) => Err(EngineError::Pinned {
            what: format!("{what} {name:?}"),
            source: source.clone(),
        }),
    }
}

fn valid(problems: Problems) -> Result<(), EngineError> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(EngineError::Invalid(problems))
    }
}

/// For one more, unless it is there already.
fn room<T>(what: &str, all: &BTreeMap<String, T>, name: &str, problems: &mut Problems) {
    if all.len() >= DEFINITIONS_MAX && !all.contains_key(name) {
        problems.push(format!(
            "there are {DEFINITIONS_MAX} {what} already, the most there can be"
        ));
    }
}
