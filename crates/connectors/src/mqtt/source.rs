//! The MQTT source: passes received messages to the receiver, and acknowledges them after it has accepted them.

use std::sync::Arc;
use std::sync::PoisonError;

use tokio::sync::{Mutex, mpsc};

use super::config::MqttSourceConfig;
use super::incoming::{MessageTicket, Registration, SourceDelivery};
use super::link::{LinkCommand, MqttConnector};
use crate::backoff::Backoff;
use crate::config::RetryConfig;
use crate::sink::BoxFuture;
use crate::source::{Receiver, Source, SourceMessage, StopSignal};

/// Maximum number of messages per call of the receiver.
const BATCH_MAX: usize = 256;

/// A source receives messages as long as it exists; `run` passes them to the receiver. Create it before the first use
/// of the connector, so that no message of a stored session is missed.
///
/// Dropping it does not unsubscribe: the broker stores messages for the session until the source is created again, with
/// this connector or after a restart. Until then, its unaccepted messages delay the acknowledgements of the connector's
/// other sources. Call [`MqttSource::unsubscribe`] to remove a source permanently.
pub struct MqttSource {
    connector: Arc<MqttConnector>,
    registration: Arc<Registration>,
    queue: Mutex<DeliveryQueue>,
}

struct DeliveryQueue {
    receiver: mpsc::Receiver<SourceDelivery>,
    /// Messages passed to the receiver and not accepted. The next `run` passes them again.
    messages: Vec<SourceMessage>,
    tickets: Vec<MessageTicket>,
}

impl MqttSource {
    /// Creates the source and registers it. The errors name the fields.
    pub fn new(connector: Arc<MqttConnector>, config: &MqttSourceConfig) -> Result<MqttSource, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let (registration, receiver) = connector.register(config);
        Ok(MqttSource {
            connector,
            registration,
            queue: Mutex::new(DeliveryQueue {
                receiver,
                messages: Vec::new(),
                tickets: Vec::new(),
            }),
        })
    }

    /// Removes the source permanently.
    pub fn unsubscribe(mut self) {
        let queue = self.queue.get_mut();
        let has_left_messages = !queue.tickets.is_empty() || !queue.receiver.is_empty();
        self.connector.unregister(&self.registration, has_left_messages);
    }

    async fn run_until(&self, receiver: &dyn Receiver, mut stop: StopSignal) {
        let mut queue = self.queue.lock().await;
        let commands = self.connector.commands();
        let mut backoff = Backoff::new(&RetryConfig::default());
        while !stop.is_stopped() {
            if queue.messages.is_empty() {
                tokio::select! {
                    filled = queue.fill() => if !filled { return },
                    () = stop.stopped() => return,
                }
            }
            let received = tokio::select! {
                received = receiver.receive(&queue.messages) => received,
                () = stop.stopped() => return,
            };
            if let Err(reason) = received {
                tracing::info!(reason, "processing messages of an MQTT source failed, retrying");
                tokio::select! {
                    () = tokio::time::sleep(backoff.pause()) => continue,
                    () = stop.stopped() => return,
                }
            }
            backoff.reset();
            queue.messages.clear();
            let accepted = LinkCommand::Accepted(std::mem::take(&mut queue.tickets));
            // An error means that the task has ended; it outlives the connector otherwise.
            let _ = commands.send(accepted).await;
        }
    }

    async fn check_all(&self) -> Result<(), String> {
        self.connector.check().await?;
        match self.registration.refusal() {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }
}

impl DeliveryQueue {
    /// Waits for a message and adds further available ones. Returns false if there will be none. Cancel-safe.
    async fn fill(&mut self) -> bool {
        let Some(first) = self.receiver.recv().await else {
            return false;
        };
        self.take(first);
        while self.messages.len() < BATCH_MAX
            && let Ok(delivery) = self.receiver.try_recv()
        {
            self.take(delivery);
        }
        true
    }

    fn take(&mut self, delivery: SourceDelivery) {
        self.tickets.extend(delivery.ticket);
        self.messages.push(delivery.message);
    }
}

impl Registration {
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_refusal(&self, refusal: Option<String>) {
        if let Some(refusal) = &refusal {
            tracing::warn!(refusal, "a subscription of an MQTT source was rejected");
        }
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
    }
}

impl Source for MqttSource {
    fn run<'a>(&'a self, receiver: &'a dyn Receiver, stop: StopSignal) -> BoxFuture<'a, ()> {
        Box::pin(self.run_until(receiver, stop))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.check_all())
    }
}
