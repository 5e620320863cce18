//! The MQTT action: publishes messages and waits for their acknowledgements.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use super::config::MqttActionConfig;
use super::link::{LinkCommand, MqttConnector};
use super::outgoing::PublishBatch;
use super::properties::FieldRole;
use crate::record::Record;
use crate::sink::{BatchOutcome, BoxFuture, DeliveryFailure, FieldTemplate, OrderGuarantee, Sink, all};

pub struct MqttSink {
    connector: Arc<MqttConnector>,
    templates: Vec<FieldTemplate>,
    properties: Arc<[FieldRole]>,
    /// Messages that came from the broker under the same topic, and that the pump has not counted yet.
    skipped_echoes: Arc<AtomicU64>,
}

impl MqttSink {
    /// Creates the sink. The errors name the fields.
    pub fn new(connector: Arc<MqttConnector>, config: &MqttActionConfig) -> Result<MqttSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(MqttSink {
            connector,
            templates: config.templates(),
            properties: config.slots().1.into(),
            skipped_echoes: Arc::default(),
        })
    }

    pub fn templates(&self) -> &[FieldTemplate] {
        &self.templates
    }

    async fn send_all(&self, batch: &[Record]) -> BatchOutcome {
        let (reply, outcome) = oneshot::channel();
        let command = LinkCommand::Publish(PublishBatch {
            records: batch.to_vec(),
            properties: Arc::clone(&self.properties),
            skipped_echoes: Arc::clone(&self.skipped_echoes),
            reply,
        });
        // An error means that the task has ended; it outlives the connector otherwise.
        let _ = self.connector.commands().send(command).await;
        outcome.await.unwrap_or_else(|_| {
            all(
                batch,
                Err(DeliveryFailure::Unreachable("the server is shutting down".to_owned())),
            )
        })
    }
}

impl Sink for MqttSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        Box::pin(self.send_all(batch))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.connector.check())
    }

    fn take_skipped_echoes(&self) -> u64 {
        self.skipped_echoes.swap(0, Ordering::Relaxed)
    }

    /// One connection carries all messages in the order of their commands.
    fn order(&self) -> OrderGuarantee {
        OrderGuarantee::BySink
    }
}
