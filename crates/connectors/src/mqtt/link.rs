//! The connector and its task, which owns the socket.
//!
//! The task starts at the first use of the connector. It ends when the connector and its sinks and sources are dropped.
//! It connects with back-off. Batches that arrive while there is no connection fail immediately; the pump sends them
//! again.

mod task;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use trust::Targets;

use super::config::{MqttConnectorConfig, MqttSourceConfig, MqttVersion};
use super::incoming::{IncomingCounters, MessageTicket, Registration, SourceDelivery};
use super::outgoing::PublishBatch;
use crate::loop_mark::LoopMark;
use crate::stream::DialOptions;

/// Maximum number of commands that wait for the task.
const COMMANDS_MAX: usize = 64;

/// A connection to one broker, shared by its actions and sources.
pub struct MqttConnector {
    shared: Arc<MqttConnectorShared>,
    /// Created with the task.
    commands: OnceLock<mpsc::Sender<LinkCommand>>,
}

/// State shared by the connector and its task.
pub(super) struct MqttConnectorShared {
    config: MqttConnectorConfig,
    dialing: DialOptions,
    sources: Mutex<Vec<Arc<Registration>>>,
    counters: IncomingCounters,
    state: watch::Sender<LinkState>,
    /// Identifies messages that have passed through this connector.
    mark: LoopMark,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LinkState {
    Connecting,
    Connected,
    /// The task will retry.
    Failed(String),
}

pub(super) enum LinkCommand {
    Publish(PublishBatch),
    Accepted(Vec<MessageTicket>),
    /// Sources were added or removed. `has_left_messages` is true if a removed source did not accept all of its
    /// messages.
    Sources {
        has_left_messages: bool,
    },
}

/// Messages that were dropped or not sent, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MqttCounters {
    /// Our own messages that returned.
    pub dropped_loop: u64,
    /// Messages that were not sent, because they came from this broker under the same topic.
    pub skipped_echo: u64,
    /// Messages without a matching source, from a subscription of an earlier configuration in a stored session.
    pub dropped_no_source: u64,
}

impl MqttConnector {
    /// Creates a connector. The errors name the fields.
    pub fn new(config: &MqttConnectorConfig) -> Result<MqttConnector, Vec<String>> {
        MqttConnector::with_targets(config, None)
    }

    /// Creates a connector that only connects to addresses that `targets` allows.
    pub fn with_targets(config: &MqttConnectorConfig, targets: Option<Targets>) -> Result<MqttConnector, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let tls = config.tls.as_ref().map(|tls| tls.client()).transpose();
        Ok(MqttConnector {
            shared: Arc::new(MqttConnectorShared {
                config: config.clone(),
                dialing: DialOptions {
                    tls: tls.map_err(|problem| vec![problem])?,
                    limit: Duration::from_millis(config.connect_timeout_ms),
                    targets,
                },
                sources: Mutex::new(Vec::new()),
                counters: IncomingCounters::default(),
                state: watch::channel(LinkState::Connecting).0,
                mark: LoopMark::generate(&config.client_id).map_err(|error| vec![error])?,
            }),
            commands: OnceLock::new(),
        })
    }

    /// Returns the value of the user property [`super::LOOP_PROPERTY`] of messages sent through this connector, or
    /// `None` if messages are not marked.
    pub fn sent_mark(&self) -> Option<&str> {
        let config = &self.shared.config;
        let has_properties = config.version == MqttVersion::V5;
        (config.loop_protection && has_properties).then_some(&self.shared.mark.sent)
    }

    pub fn counters(&self) -> MqttCounters {
        let counters = &self.shared.counters;
        MqttCounters {
            dropped_loop: counters.dropped_loop.load(Ordering::Relaxed),
            skipped_echo: counters.skipped_echo.load(Ordering::Relaxed),
            dropped_no_source: counters.dropped_no_source.load(Ordering::Relaxed),
        }
    }

    /// Returns the command channel of the task, and starts the task if needed. Must be called on a tokio runtime.
    pub(super) fn commands(&self) -> &mpsc::Sender<LinkCommand> {
        self.commands.get_or_init(|| {
            let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
            tokio::spawn(task::run(Arc::clone(&self.shared), receiver));
            sender
        })
    }

    /// Returns whether the task is connected. Waits for a connection attempt in progress.
    pub(super) async fn check(&self) -> Result<(), String> {
        self.commands();
        let mut state = self.shared.state.subscribe();
        // Connecting and the CONNECT handshake have a limit each.
        let limit = Duration::from_millis(self.shared.config.connect_timeout_ms.saturating_mul(2));
        let decided = timeout(limit, state.wait_for(|state| *state != LinkState::Connecting)).await;
        match decided.ok().and_then(Result::ok).as_deref() {
            Some(LinkState::Connected) => Ok(()),
            Some(LinkState::Failed(reason)) => Err(reason.clone()),
            _ => Err(format!("still connecting to {}", self.shared.config.server)),
        }
    }

    /// Registers a source. Register sources before the first use of the connector: otherwise messages of a stored
    /// session are dropped.
    pub(super) fn register(&self, config: &MqttSourceConfig) -> (Arc<Registration>, mpsc::Receiver<SourceDelivery>) {
        let (queue, receiver) = mpsc::channel(self.shared.config.receive_max.into());
        let registration = Arc::new(Registration {
            config: config.clone(),
            queue,
            refusal: Mutex::new(None),
        });
        self.shared
            .with_sources(|sources| sources.push(Arc::clone(&registration)));
        self.notify_sources(false);
        (registration, receiver)
    }

    /// Unregisters a source and unsubscribes.
    pub(super) fn unregister(&self, registration: &Arc<Registration>, has_left_messages: bool) {
        self.shared
            .with_sources(|sources| sources.retain(|other| !Arc::ptr_eq(other, registration)));
        self.notify_sources(has_left_messages);
    }

    /// Notifies the task of changed sources. A task that has not started reads them by itself. If the channel is full,
    /// the command is sent by a spawned task.
    fn notify_sources(&self, has_left_messages: bool) {
        let Some(commands) = self.commands.get() else {
            return;
        };
        let command = LinkCommand::Sources { has_left_messages };
        if let Err(mpsc::error::TrySendError::Full(command)) = commands.try_send(command) {
            let commands = commands.clone();
            tokio::spawn(async move { commands.send(command).await });
        }
    }
}

impl MqttConnectorShared {
    fn with_sources<T>(&self, work: impl FnOnce(&mut Vec<Arc<Registration>>) -> T) -> T {
        work(&mut self.sources.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sources(&self) -> Vec<Arc<Registration>> {
        self.with_sources(|sources| sources.clone())
    }
}
