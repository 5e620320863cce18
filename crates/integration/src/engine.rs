//! The engine: definitions in, what runs out of them; changes at run time, kept before they are in force.
//!
//! Its calls may take a while (a pump is stopped, a file is synced): not for the threads of the data plane. Clients of other
//! systems run on a runtime of the engine's own.

mod action;
mod connector;
mod declare;
mod measure;
mod rule;
mod source;
mod views;

pub(crate) use action::action_problems;
pub use connector::ConnectorTest;
pub use measure::{Measured, Measures};
pub(crate) use rule::rule_id_problem;
pub use views::{ActionView, ConnectorView, RuleView, SourceView};

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use broker::ShardId;
use connectors::{Action, ActionStats, Buffer, BufferMode, DeliveryConfig, Health, Overflow, Stopper};
use rules::{Template, Text};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::compile::{RuleState, compile, republish, template};
use crate::declared::{Declared, Origins};
use crate::definition::{
    ActionDefinition, ConnectorDefinition, RuleAction, RuleDefinition, SourceDefinition, name_problem, restore_secrets,
};
use crate::environment::{SharedStore, Surroundings, unix_ms};
use crate::event::Scene;
use crate::kinds::{self, Connector, Problems, Target};
use crate::metrics::{RuleCounts, SourceMetrics};
use crate::runner::Runner;
use crate::set::{InForce, LiveAction, RuleSet};
use crate::sources::SourceReceiver;
use crate::store::{Definitions, Store, Version};
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

struct Inner {
    node: String,
    directory: PathBuf,
    store: Store,
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
    kept: Definitions,
    declared: Declared,
    origins: Origins,
    connectors: BTreeMap<String, Result<Connector, Problems>>,
    /// Of actions that are enabled.
    actions: BTreeMap<String, Result<Running, Problems>>,
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
    templates: Vec<Template>,
    ordering_key: Option<Template>,
    is_kept: bool,
    headroom: Option<u64>,
    /// Not while it is being changed.
    is_open: bool,
}

impl Engine {
    /// Reads the definitions below `data_directory` and starts what they and the configuration define. What cannot be started is told and
    /// shown, and does not keep the rest from running.
    pub fn open(data_directory: &Path, node: &str, declared: Declared) -> Result<Engine, String> {
        let directory = data_directory.join(crate::DIRECTORY_NAME);
        let store = Store::new(&directory);
        let kept = store.load()?;
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
                store,
                in_force: Arc::default(),
                values: SharedStore::default(),
                runtime_handle: runtime.handle().clone(),
                runtime: Mutex::new(Some(runtime)),
                net: Arc::default(),
                is_serving: AtomicBool::new(false),
                progress: Arc::default(),
                state: Mutex::new(State {
                    definitions: declared.over(&kept),
                    kept,
                    origins: declared.origins(),
                    declared,
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
        let mut state = self.state();
        self.inner.is_serving.store(true, Ordering::Release);
        let definitions: Vec<SourceDefinition> = state.definitions.sources.values().cloned().collect();
        for definition in &definitions {
            self.run_source(&mut state, definition);
        }
    }

    /// For one shard.
    pub fn tap(&self, seed: u64) -> RuleTap {
        let inner = &self.inner;
        RuleTap::new(&inner.node, inner.in_force.clone(), inner.values.clone(), seed)
    }

    /// Stops pumps and closes buffers: what was appended is kept. The engine can do nothing after that.
    pub fn shut_down(&self) {
        self.inner.in_force.replace(RuleSet::default());
        let mut state = self.state();
        for id in state.sources.keys().cloned().collect::<Vec<_>>() {
            self.stop_source(&mut state, &id);
        }
        let actions = std::mem::take(&mut state.actions);
        drop(state);
        self.inner.runtime_handle.block_on(async {
            for running in actions.values().flatten() {
                running.action.stop(STOP_WITHIN).await;
            }
        });
        for (id, running) in &actions {
            if let Ok(running) = running
                && let Err(error) = running.action.buffer().shut_down()
            {
                tracing::error!(action = %id, %error, "the buffer of an action was not closed as it should be");
            }
        }
        let runtime = self.inner.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_timeout(STOP_WITHIN);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_all(&self) {
        let mut state = self.state();
        let definitions = state.definitions.clone();
        for definition in definitions.connectors.values() {
            self.start_connector(&mut state, definition);
        }
        for definition in definitions.sources.values() {
            self.make_source(&mut state, definition);
        }
        for definition in definitions.actions.values() {
            self.start_action(&mut state, definition);
        }
        for definition in definitions.rules.values() {
            let rule = state.rules.entry(definition.id.clone()).or_default();
            if let Err(problems) = rule.prepare(definition) {
                tracing::error!(rule = %definition.id, problems = %problems.join("; "), "a rule is not in force");
            }
        }
        self.enforce(&state);
    }

    /// Puts the rules as they are now into force.
    fn enforce(&self, state: &State) {
        let running = state
            .actions
            .iter()
            .filter_map(|(id, action)| Some((id, action.as_ref().ok()?)));
        let actions: Vec<LiveAction> = running.map(|(id, running)| running.live(id)).collect();
        let index = |id: &str| actions.iter().position(|action| action.id == id);
        let enabled = state.definitions.rules.values().filter(|rule| rule.enable);
        let rules = enabled.filter_map(|definition| {
            let rule = state.rules.get(&definition.id)?;
            compile(definition, rule, index).ok()
        });
        let rules = rules.collect();
        self.inner.in_force.replace(RuleSet::new(rules, actions));
        // Who waits for an action that has been changed goes on.
        if let Some(net) = self.inner.net.get() {
            net.wake_waiting();
        }
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

    /// Keeps changed definitions. If that fails nothing has changed.
    fn save(&self, state: &mut State, changed: Definitions) -> Result<(), EngineError> {
        self.inner.store.save(&changed).map_err(EngineError::Storage)?;
        state.definitions = state.declared.over(&changed);
        state.kept = changed;
        Ok(())
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

fn room(what: &str, count: usize, problems: &mut Problems) {
    if count >= DEFINITIONS_MAX {
        problems.push(format!(
            "there are {DEFINITIONS_MAX} {what} already, the most there can be"
        ));
    }
}
