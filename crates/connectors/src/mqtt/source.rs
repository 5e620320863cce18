//! The source: hands over what the subscriptions bring, and has it acknowledged when the receiver has it.

use std::sync::Arc;
use std::sync::PoisonError;

use tokio::sync::{Mutex, mpsc};

use super::config::MqttSourceConfig;
use super::incoming::{Delivery, Registration};
use super::link::{Command, MqttConnector};
use crate::backoff::Backoff;
use crate::config::RetryConfig;
use crate::sink::BoxFuture;
use crate::source::{Incoming, Receiver, Source, Stop};

/// Messages that are handed over at once.
const BATCH_MAX: usize = 256;

/// Made before the connector is used for the first time it misses nothing that the broker has kept. While it exists
/// messages are taken in; `run` hands them over.
///
/// When it is dropped the subscription stays in the session: the broker keeps what arrives until the source is made again, with
/// this connector or after a start. Until then what it has not accepted holds back the acknowledgements of the connector's other
/// sources. A source that is not to come back is ended with [`MqttSource::unsubscribe`].
pub struct MqttSource {
    connector: Arc<MqttConnector>,
    registration: Arc<Registration>,
    queue: Mutex<Queue>,
}

struct Queue {
    receiver: mpsc::Receiver<Delivery>,
    /// Handed over and not accepted; the next `run` hands them over again.
    messages: Vec<Incoming>,
    tickets: Vec<u64>,
}

impl MqttSource {
    /// The errors name the fields.
    pub fn new(connector: Arc<MqttConnector>, config: &MqttSourceConfig) -> Result<MqttSource, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let (registration, receiver) = connector.register(config);
        Ok(MqttSource {
            connector,
            registration,
            queue: Mutex::new(Queue {
                receiver,
                messages: Vec::new(),
                tickets: Vec::new(),
            }),
        })
    }

    /// Ends the source for good.
    pub fn unsubscribe(mut self) {
        let queue = self.queue.get_mut();
        let has_left_messages = !queue.tickets.is_empty() || !queue.receiver.is_empty();
        self.connector.unregister(&self.registration, has_left_messages);
    }

    async fn run_until(&self, receiver: &dyn Receiver, mut stop: Stop) {
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
            let taken = tokio::select! {
                taken = receiver.receive(&queue.messages) => taken,
                () = stop.stopped() => return,
            };
            if let Err(reason) = taken {
                tracing::info!(reason, "messages of an MQTT source are not accepted yet");
                tokio::select! {
                    () = tokio::time::sleep(backoff.pause()) => continue,
                    () = stop.stopped() => return,
                }
            }
            backoff.reset();
            queue.messages.clear();
            let accepted = Command::Accepted(std::mem::take(&mut queue.tickets));
            // The task ends after all that could ask it.
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

impl Queue {
    /// Waits for one message and takes what else is there. `false`: there will be none. Losing the future loses nothing.
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

    fn take(&mut self, delivery: Delivery) {
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
            tracing::warn!(refusal, "an MQTT source gets nothing");
        }
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
    }
}

impl Source for MqttSource {
    fn run<'a>(&'a self, receiver: &'a dyn Receiver, stop: Stop) -> BoxFuture<'a, ()> {
        Box::pin(self.run_until(receiver, stop))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.check_all())
    }
}
