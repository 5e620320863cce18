//! The connector and the task behind it, which owns the socket.
//!
//! The task begins when somebody first needs it, and ends with the last of connector, sinks and sources. It connects, with
//! back-off; what is sent to it while there is no connection fails at once, for the pump to send again.

mod task;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::config::{MqttConnectorConfig, MqttSourceConfig, MqttVersion};
use super::incoming::{Counters, Delivery, Registration};
use super::outgoing::{Batch, LoopMark};

/// Batches and acceptances that wait for the task.
const COMMANDS_MAX: usize = 64;

/// Shared by the actions and sources on one broker.
pub struct MqttConnector {
    shared: Arc<Shared>,
    /// Made with the task.
    commands: OnceLock<mpsc::Sender<Command>>,
}

/// What connector and task both see.
pub(super) struct Shared {
    config: MqttConnectorConfig,
    tls: Option<Arc<ClientConfig>>,
    sources: Mutex<Vec<Arc<Registration>>>,
    counters: Counters,
    state: watch::Sender<State>,
    /// By which we know messages that have been here.
    mark: LoopMark,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Connected,
    /// And will try again.
    Failed(String),
}

pub(super) enum Command {
    Publish(Batch),
    Accepted(Vec<u64>),
    /// Sources have come or gone. `has_left_messages`: one that went has not accepted all that it was given.
    Sources {
        has_left_messages: bool,
    },
}

/// Messages that were received and dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MqttCounters {
    /// They were ours, and have come back.
    pub dropped_loop: u64,
    /// No source wants them: a subscription of an earlier configuration, in a session that the broker has kept.
    pub dropped_no_source: u64,
}

impl MqttConnector {
    /// The errors name the fields.
    pub fn new(config: &MqttConnectorConfig) -> Result<MqttConnector, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let tls = config.tls.as_ref().map(|tls| tls.client()).transpose();
        Ok(MqttConnector {
            shared: Arc::new(Shared {
                config: config.clone(),
                tls: tls.map_err(|problem| vec![problem])?,
                sources: Mutex::new(Vec::new()),
                counters: Counters::default(),
                state: watch::channel(State::Connecting).0,
                mark: LoopMark::new(&mark(&config.client_id).map_err(|error| vec![error])?),
            }),
            commands: OnceLock::new(),
        })
    }

    /// What user properties of the name [`super::LOOP_PROPERTY`] say of messages that have gone out through here. None: nothing is marked.
    pub fn sent_mark(&self) -> Option<&str> {
        let config = &self.shared.config;
        let has_properties = config.version == MqttVersion::V5;
        (config.loop_protection && has_properties).then_some(&self.shared.mark.sent)
    }

    pub fn counters(&self) -> MqttCounters {
        let counters = &self.shared.counters;
        MqttCounters {
            dropped_loop: counters.dropped_loop.load(Ordering::Relaxed),
            dropped_no_source: counters.dropped_no_source.load(Ordering::Relaxed),
        }
    }

    /// The way to the task; starts it. Must be called on a tokio runtime.
    pub(super) fn commands(&self) -> &mpsc::Sender<Command> {
        self.commands.get_or_init(|| {
            let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
            tokio::spawn(task::run(Arc::clone(&self.shared), receiver));
            sender
        })
    }

    /// Whether there is a connection; waits for a try that is under way.
    pub(super) async fn check(&self) -> Result<(), String> {
        self.commands();
        let mut state = self.shared.state.subscribe();
        // Connecting and CONNECT have a limit each.
        let limit = Duration::from_millis(2 * self.shared.config.connect_timeout_ms);
        let decided = timeout(limit, state.wait_for(|state| *state != State::Connecting)).await;
        match decided.ok().and_then(Result::ok).as_deref() {
            Some(State::Connected) => Ok(()),
            Some(State::Failed(reason)) => Err(reason.clone()),
            _ => Err(format!("still connecting to {}", self.shared.config.server)),
        }
    }

    /// Takes messages in from now on. Before the first use of the connector this keeps those from being dropped that the broker has
    /// kept for us.
    pub(super) fn register(&self, config: &MqttSourceConfig) -> (Arc<Registration>, mpsc::Receiver<Delivery>) {
        let (queue, receiver) = mpsc::channel(self.shared.config.receive_max.into());
        let registration = Arc::new(Registration {
            config: config.clone(),
            queue,
            refusal: Mutex::new(None),
        });
        self.shared
            .with_sources(|sources| sources.push(Arc::clone(&registration)));
        self.tell_sources(false);
        (registration, receiver)
    }

    /// Unsubscribes.
    pub(super) fn unregister(&self, registration: &Arc<Registration>, has_left_messages: bool) {
        self.shared
            .with_sources(|sources| sources.retain(|other| !Arc::ptr_eq(other, registration)));
        self.tell_sources(has_left_messages);
    }

    /// If there is no task yet it will find out by itself. If its queue is full it is told later, by a task of its own.
    fn tell_sources(&self, has_left_messages: bool) {
        let Some(commands) = self.commands.get() else {
            return;
        };
        let command = Command::Sources { has_left_messages };
        if let Err(mpsc::error::TrySendError::Full(command)) = commands.try_send(command) {
            let commands = commands.clone();
            tokio::spawn(async move { commands.send(command).await });
        }
    }
}

/// Client ids need not differ between brokers, this does.
fn mark(client_id: &str) -> Result<String, String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| format!("no random number: {error}"))?;
    Ok(format!("{client_id}/{:016x}", u64::from_le_bytes(random)))
}

impl Shared {
    fn with_sources<T>(&self, work: impl FnOnce(&mut Vec<Arc<Registration>>) -> T) -> T {
        work(&mut self.sources.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sources(&self) -> Vec<Arc<Registration>> {
        self.with_sources(|sources| sources.clone())
    }
}
