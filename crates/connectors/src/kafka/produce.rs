//! A producer beside those of actions: each record is told of by itself, with where it lies, and none is sent again by us.

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use tokio::sync::oneshot;

use super::client;
use super::config::KafkaConnectorConfig;

/// Partition and offset, or why not.
pub type Produced = Result<(i32, i64), String>;

pub struct KafkaProducer {
    producer: ThreadedProducer<Told>,
}

struct Told;

impl ClientContext for Told {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }
}

impl ProducerContext for Told {
    type DeliveryOpaque = Box<oneshot::Sender<Produced>>;

    fn delivery(&self, result: &DeliveryResult<'_>, sender: Self::DeliveryOpaque) {
        let said = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(client::text(error)),
        };
        // Whoever asked may have gone.
        let _ = sender.send(said);
    }
}

impl KafkaProducer {
    /// `options`: of librdkafka's. Nothing is connected to.
    pub fn new(config: &KafkaConnectorConfig, options: &[(&str, String)]) -> Result<KafkaProducer, String> {
        let mut all = config.options();
        for (name, value) in options {
            all.set(*name, value);
        }
        let producer = all.create_with_context(Told);
        producer
            .map(|producer| KafkaProducer { producer })
            .map_err(|error| format!("librdkafka takes no such options: {error}"))
    }

    /// Records of one topic and key arrive in the order of the calls.
    pub fn send(
        &self,
        topic: &str,
        key: Option<&str>,
        value: &str,
        headers: &[(String, String)],
    ) -> Result<oneshot::Receiver<Produced>, String> {
        let (sender, receiver) = oneshot::channel();
        let mut record = BaseRecord::with_opaque_to(topic, Box::new(sender)).payload(value);
        if let Some(key) = key {
            record = record.key(key);
        }
        if !headers.is_empty() {
            let mut all = OwnedHeaders::new_with_capacity(headers.len());
            for (name, value) in headers {
                all = all.insert(Header {
                    key: name,
                    value: Some(value),
                });
            }
            record = record.headers(all);
        }
        match self.producer.send(record) {
            Ok(()) => Ok(receiver),
            Err((error, _)) => Err(client::text(&error)),
        }
    }
}
