//! The producer of a rule chain's Kafka node. It reports partition and offset of each record, and never resends a
//! record.
//!
//! A tenant defines the brokers, so every connection is checked (`targets.rs`). After one broker is rejected, all
//! records fail at once with that reason, even if other brokers are allowed. Otherwise records for an unreachable
//! broker would wait until they time out.

use std::time::Instant;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer};
use tokio::sync::{oneshot, watch};
use trust::Targets;

use super::config::{KafkaConnectorConfig, check_topic};
use super::{client, targets};

/// Partition and offset, or the reason of the failure.
pub type ProduceResult = Result<(i32, i64), String>;

pub struct KafkaProducer {
    producer: ThreadedProducer<TargetCheckContext>,
}

pub(super) struct TargetCheckContext {
    pub targets: Targets,
    pub refusal: watch::Sender<Option<TargetRefusal>>,
}

/// A broker that the producer must not connect to.
#[derive(Clone, Debug)]
pub struct TargetRefusal {
    pub reason: String,
    pub at: Instant,
}

impl TargetCheckContext {
    /// Stores the first refusal. librdkafka retries by itself.
    pub fn set_refused(&self, reason: String) {
        self.refusal.send_if_modified(|refusal| {
            let is_first = refusal.is_none();
            refusal.get_or_insert_with(|| TargetRefusal {
                reason,
                at: Instant::now(),
            });
            is_first
        });
    }
}

impl ClientContext for TargetCheckContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }
}

impl ProducerContext for TargetCheckContext {
    type DeliveryOpaque = Box<oneshot::Sender<ProduceResult>>;

    fn delivery(&self, result: &DeliveryResult<'_>, sender: Self::DeliveryOpaque) {
        let result = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(client::text(error)),
        };
        // The receiver may have been dropped.
        let _ = sender.send(result);
    }
}

impl KafkaProducer {
    /// Creates a producer with further options of librdkafka. It connects in the background, to addresses that
    /// `targets` allows.
    pub fn new(
        config: &KafkaConnectorConfig,
        options: &[(&str, String)],
        targets: Targets,
    ) -> Result<KafkaProducer, String> {
        let mut all = config.options();
        all.remove(client::BOOTSTRAP);
        for (name, value) in options {
            all.set(*name, value);
        }
        let context = TargetCheckContext {
            targets,
            refusal: watch::channel(None).0,
        };
        let producer = all
            .create_with_context(context)
            .map_err(|error| format!("librdkafka rejects the options: {error}"))?;
        targets::add_brokers(&producer, &config.bootstrap_hosts)?;
        Ok(KafkaProducer { producer })
    }

    /// Waits until a connection is refused, and drops the records that are not delivered by then.
    pub async fn refused(&self) -> TargetRefusal {
        let mut refusal = self.producer.context().refusal.subscribe();
        let refused = refusal
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|refusal| refusal.clone());
        let undelivered = PurgeConfig::default().queue().inflight().non_blocking();
        self.producer.purge(undelivered);
        refused.expect("the sender lives as long as the producer, and only sets a refusal")
    }

    /// The first refusal of a connection, after which all records fail.
    pub fn refusal(&self) -> Option<TargetRefusal> {
        self.producer.context().refusal.borrow().clone()
    }

    /// Sends a record. Records of one topic and key arrive in the order of the calls.
    pub fn send(
        &self,
        topic: &str,
        key: Option<&str>,
        value: &str,
        headers: &[(String, String)],
    ) -> Result<oneshot::Receiver<ProduceResult>, String> {
        check_topic(topic)?;
        // librdkafka treats names as C strings.
        if let Some((name, _)) = headers.iter().find(|(name, _)| name.contains('\0')) {
            return Err(format!("the name of the header {name:?} contains NUL"));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_topic_and_header_names_are_rejected() {
        let config = serde_json::from_str(r#"{"bootstrap_hosts": "127.0.0.1:1"}"#).expect("a configuration");
        let policy = std::sync::Arc::new(trust::TargetPolicy::new("", |_| true));
        let targets = Targets::new(&policy, "tenant", "Kafka");
        let producer = KafkaProducer::new(&config, &[], targets).expect("a producer");
        for topic in ["", ".", "..", "a/b", "a b", "a\0b", "a\r\nb", "ü"] {
            let error = producer.send(topic, None, "v", &[]).expect_err(topic);
            assert!(error.contains("not a valid Kafka topic name"), "{error}");
        }
        let header = |name: &str| [(name.to_owned(), "v\0".to_owned())];
        let error = producer.send("t", None, "v", &header("a\0b")).expect_err("NUL");
        assert!(error.contains("contains NUL"), "{error}");
        assert!(producer.send("t", Some("k\0"), "v\0", &header("a")).is_ok());
    }
}
