//! The action: publishes, and waits for the broker's word.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::config::MqttActionConfig;
use super::link::{Command, MqttConnector};
use super::outgoing::Batch;
use super::properties::Slot;
use crate::record::Record;
use crate::sink::{BoxFuture, Failure, Order, Outcome, Sink, Template, all};

pub struct MqttSink {
    connector: Arc<MqttConnector>,
    templates: Vec<Template>,
    properties: Arc<[Slot]>,
}

impl MqttSink {
    /// The errors name the fields.
    pub fn new(connector: Arc<MqttConnector>, config: &MqttActionConfig) -> Result<MqttSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(MqttSink {
            connector,
            templates: config.templates(),
            properties: config.slots().1.into(),
        })
    }

    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    async fn send_all(&self, batch: &[Record]) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        let command = Command::Publish(Batch {
            records: batch.to_vec(),
            properties: Arc::clone(&self.properties),
            reply,
        });
        // The task ends after all that could ask it.
        let _ = self.connector.commands().send(command).await;
        outcome
            .await
            .unwrap_or_else(|_| all(batch, Err(Failure::Away("the server is ending".to_owned()))))
    }
}

impl Sink for MqttSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        Box::pin(self.send_all(batch))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.connector.check())
    }

    /// One connection carries everything, in the order in which it was asked to.
    fn order(&self) -> Order {
        Order::BySink
    }
}
