//! Sources receive messages from an external system. A source confirms a message there only after the receiver has
//! accepted it.

use crate::sink::BoxFuture;

/// A message from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceMessage {
    /// The MQTT or Kafka topic.
    pub topic: String,
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    /// Kafka headers or MQTT user properties.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// All properties of an MQTT 5 PUBLISH, in wire format.
    pub properties: Vec<u8>,
    pub unix_ms: Option<u64>,
    pub origin: SourceOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceOrigin {
    Kafka {
        partition: i32,
        offset: i64,
        stamped_by: TimestampSource,
    },
    Mqtt {
        qos: u8,
        is_retained: bool,
        is_duplicate: bool,
    },
}

/// Which system set the timestamp of a Kafka record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampSource {
    /// The record has no timestamp.
    Unset,
    Producer,
    /// The broker, when it appended the record.
    Broker,
}

/// Accepts the messages of a source.
pub trait Receiver: Send + Sync {
    /// Resolves when all messages are stored as durably as the server can. The source then confirms them. It fetches no
    /// more until then. On an error no message counts as accepted: the source passes them again with back-off.
    fn receive<'a>(&'a self, batch: &'a [SourceMessage]) -> BoxFuture<'a, Result<(), String>>;
}

pub trait Source: Send + Sync {
    /// Connects, reconnects with back-off, and passes messages to the receiver in order, until `stop` is signalled.
    fn run<'a>(&'a self, receiver: &'a dyn Receiver, stop: StopSignal) -> BoxFuture<'a, ()>;

    /// Checks that the external system is reachable and accepts our credentials.
    fn check(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// Receives the stop signal of a task. Created by [`stop`].
#[derive(Clone, Debug)]
pub struct StopSignal(tokio::sync::watch::Receiver<bool>);

/// Sends the stop signal by [`StopHandle::stop`] or when it is dropped.
#[derive(Debug)]
pub struct StopHandle(tokio::sync::watch::Sender<bool>);

pub fn stop() -> (StopHandle, StopSignal) {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    (StopHandle(sender), StopSignal(receiver))
}

impl StopHandle {
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl StopSignal {
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Resolves when the task must stop.
    pub async fn stopped(&mut self) {
        // An error means that the [`StopHandle`] was dropped.
        let _ = self.0.wait_for(|is_stopped| *is_stopped).await;
    }
}
