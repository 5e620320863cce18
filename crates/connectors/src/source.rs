//! The other direction: a source takes messages from outside and hands them over, and tells the outside that it has them
//! only when the receiver does.

use crate::sink::BoxFuture;

/// A message from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Of MQTT or of Kafka.
    pub topic: String,
    pub key: Option<Vec<u8>>,
    pub payload: Option<Vec<u8>>,
    /// Headers or user properties.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// All properties of an MQTT 5 message, as they stood in the packet.
    pub properties: Vec<u8>,
    pub unix_ms: Option<u64>,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Kafka {
        partition: i32,
        offset: i64,
        stamped_by: StampedBy,
    },
    Mqtt {
        qos: u8,
        is_retained: bool,
        is_duplicate: bool,
    },
}

/// Who set the timestamp of a Kafka record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampedBy {
    /// There is none.
    Nobody,
    Producer,
    /// The broker, when it appended the record.
    Broker,
}

/// Takes what a source has.
pub trait Receiver: Send + Sync {
    /// Resolves when all messages are as safe as they will be: then the source confirms them. While it does not resolve the
    /// source fetches no more. An error means that none counts as taken: the source hands them over again, with back-off.
    fn receive<'a>(&'a self, batch: &'a [Incoming]) -> BoxFuture<'a, Result<(), String>>;
}

pub trait Source: Send + Sync {
    /// Connects, reconnects with back-off and hands over messages, in their order, until `stop` says so.
    fn run<'a>(&'a self, receiver: &'a dyn Receiver, stop: Stop) -> BoxFuture<'a, ()>;

    /// Whether the origin can be reached and takes our credentials.
    fn check(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// Tells a task to end. Made by [`stop`].
#[derive(Clone, Debug)]
pub struct Stop(tokio::sync::watch::Receiver<bool>);

/// Ends what holds the other half, by [`Stopper::stop`] or when it is dropped.
#[derive(Debug)]
pub struct Stopper(tokio::sync::watch::Sender<bool>);

pub fn stop() -> (Stopper, Stop) {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Resolves when it is time to end.
    pub async fn stopped(&mut self) {
        // An error: the other half is gone.
        let _ = self.0.wait_for(|is_stopped| *is_stopped).await;
    }
}
