//! The sink: records into librdkafka, deliveries back.
//!
//! librdkafka keeps the order of a partition and sends again by itself for ever; a message comes back only delivered, refused,
//! or because its topic is gone or the producer has to be replaced. `send` enqueues the whole batch when it is polled
//! for the first time, so batches go in the order of the pump.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header as KafkaHeader, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer};

use super::client::{self, LastError};
use super::config::{
    Compression, Fields, KEY, KafkaActionConfig, KafkaConnectorConfig, RequiredAcks, UnknownTopic, VALUE, check_topic,
};
use super::delivery::Deliveries;
use super::partition::Chooser;
use super::topics::{Partitions, Topics};
use super::turned_away::{self, TurnedAway};
use crate::record::Record;
use crate::sink::{BoxFuture, Failure, Order, Outcome, Sink, all};

/// What a batch that was too large for a topic is divided by.
const BATCH_SHRINKS_BY: usize = 4;

pub struct KafkaSink {
    inner: Arc<Inner>,
}

struct Inner {
    options: ClientConfig,
    config: KafkaActionConfig,
    fields: Fields,
    /// Replaced after a fatal error.
    producer: RwLock<Arc<ThreadedProducer<Deliver>>>,
    shared: Arc<Shared>,
    chooser: Chooser,
    lookup_timeout: Duration,
    /// Batches are no larger than the only topic takes.
    is_fitted: AtomicBool,
}

/// What the producer's callbacks reach.
struct Shared {
    last_error: LastError,
    topics: Topics,
    unknown_topic: UnknownTopic,
    is_broken: AtomicBool,
    /// Of the next producer: less than configured after Kafka found a batch too large for a topic.
    batch_bytes: AtomicUsize,
    is_refreshing: AtomicBool,
    /// Why something could not be sent since Kafka was last asked: until then nothing else goes, or it would overtake.
    away: Mutex<Option<String>>,
    turned_away: TurnedAway,
}

struct Deliver {
    shared: Arc<Shared>,
    /// A message that is no smaller goes alone.
    batch_bytes: usize,
    deliveries: Deliveries,
}

impl ClientContext for Deliver {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Debug => self.shared.turned_away.hear(facility, message),
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => {}
            _ => client::log(level, facility, message),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if client::is_fatal(&error) {
            self.shared.is_broken.store(true, Release);
        }
        client::remember(&self.shared.last_error, &error, reason);
    }
}

impl ProducerContext for Deliver {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, token: usize) {
        let result = match result {
            Ok(_) => {
                self.shared.turned_away.delivered();
                Ok(())
            }
            Err((error, message)) if client::is_too_large(error) => {
                let bytes = message.payload_len() + message.key_len();
                Err(self.too_large(error, message.topic(), bytes))
            }
            Err((error, message)) => Err(self.shared.failure(error, message.topic())),
        };
        self.deliveries.settle(token, result);
    }
}

impl Deliver {
    /// Kafka limits a batch as it limits a message (`max.message.bytes` of the topic).
    fn too_large(&self, error: &KafkaError, kafka_topic: &str, bytes: usize) -> Failure {
        if bytes >= self.batch_bytes {
            return client::failure(error, kafka_topic, &self.shared.last_error);
        }
        let smaller = (self.batch_bytes / BATCH_SHRINKS_BY).max(1);
        self.shared.batch_bytes.fetch_min(smaller, AcqRel);
        self.shared.is_broken.store(true, Release);
        self.shared.note(Failure::Away(format!(
            "Kafka topic {kafka_topic:?} takes no batch of {} bytes (its max.message.bytes is less): batches have {smaller} from now on",
            self.batch_bytes
        )))
    }
}

impl Shared {
    fn failure(&self, error: &KafkaError, kafka_topic: &str) -> Failure {
        if client::is_fatal(error) {
            self.is_broken.store(true, Release);
        }
        if client::is_topic_unknown(error)
            || client::code(error) == Some(rdkafka::error::RDKafkaErrorCode::UnknownPartition)
        {
            self.topics.forget(kafka_topic);
        }
        // With access rules Kafka says of a topic that is not there, too, that we may not write to it.
        let is_denied = client::code(error) == Some(rdkafka::error::RDKafkaErrorCode::TopicAuthorizationFailed);
        match (client::is_topic_unknown(error), is_denied, self.unknown_topic) {
            (true, ..) => self.unknown(kafka_topic),
            (_, true, UnknownTopic::Refuse) => Failure::Refused(denied(kafka_topic)),
            _ => self.note(client::failure(error, kafka_topic, &self.last_error)),
        }
    }

    fn unknown(&self, kafka_topic: &str) -> Failure {
        let reason = missing(kafka_topic);
        match self.unknown_topic {
            UnknownTopic::Wait => self.note(Failure::Away(reason)),
            UnknownTopic::Refuse => Failure::Refused(reason),
        }
    }

    fn note(&self, failure: Failure) -> Failure {
        if let Failure::Away(reason) = &failure {
            self.away().get_or_insert_with(|| reason.clone());
        }
        failure
    }

    fn away(&self) -> MutexGuard<'_, Option<String>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn denied(kafka_topic: &str) -> String {
    format!("Kafka topic {kafka_topic:?}: we may not write to it")
}

fn missing(kafka_topic: &str) -> String {
    format!("the Kafka topic {kafka_topic:?} does not exist: create it, or correct kafka_topic of the action")
}

impl KafkaSink {
    /// Connects to nobody yet. The errors name the fields.
    pub fn new(connector: &KafkaConnectorConfig, config: &KafkaActionConfig) -> Result<KafkaSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut options = connector.options();
        set_options(&mut options, config);
        let shared = Arc::new(Shared {
            last_error: LastError::default(),
            topics: Topics::new(Duration::from_millis(config.partition_refresh_ms)),
            unknown_topic: config.unknown_topic(),
            is_broken: AtomicBool::new(false),
            batch_bytes: AtomicUsize::new(config.batch_bytes_max as usize),
            is_refreshing: AtomicBool::new(false),
            away: Mutex::default(),
            turned_away: TurnedAway::default(),
        });
        let producer =
            producer(&options, &shared).map_err(|error| vec![format!("librdkafka takes no such options: {error}")])?;
        let inner = Inner {
            options,
            fields: config.fields(),
            chooser: Chooser::new(config.partition_strategy),
            config: config.clone(),
            producer: RwLock::new(producer),
            shared,
            lookup_timeout: Duration::from_millis(connector.connect_timeout_ms),
            is_fitted: AtomicBool::new(config.fields().kafka_topic.is_some()),
        };
        Ok(KafkaSink { inner: Arc::new(inner) })
    }
}

fn producer(options: &ClientConfig, shared: &Arc<Shared>) -> Result<Arc<ThreadedProducer<Deliver>>, KafkaError> {
    let batch_bytes = shared.batch_bytes.load(Acquire);
    let context = Deliver {
        shared: Arc::clone(shared),
        batch_bytes,
        deliveries: Deliveries::default(),
    };
    let mut options = options.clone();
    options.set("batch.size", batch_bytes.to_string());
    ThreadedProducer::from_config_and_context(&options, context).map(Arc::new)
}

fn set_options(options: &mut ClientConfig, config: &KafkaActionConfig) {
    let acks = match config.required_acks {
        RequiredAcks::All => "all",
        RequiredAcks::Leader => "1",
        RequiredAcks::None => "0",
    };
    let compression = match config.compression {
        Compression::None => "none",
        Compression::Gzip => "gzip",
        Compression::Snappy => "snappy",
        Compression::Lz4 => "lz4",
        Compression::Zstd => "zstd",
    };
    options
        .set("acks", acks)
        .set("enable.idempotence", config.idempotence.to_string())
        .set("compression.type", compression)
        .set("linger.ms", config.linger_ms.to_string())
        .set("batch.num.messages", "100000")
        .set("message.max.bytes", config.message_bytes_max.to_string())
        .set(
            "max.in.flight.requests.per.connection",
            config.requests_in_flight.to_string(),
        )
        // The pump bounds what waits, and nothing is given up here.
        .set("message.timeout.ms", "0")
        .set("queue.buffering.max.messages", "0")
        .set("queue.buffering.max.kbytes", "2147483647")
        .set("topic.metadata.propagation.max.ms", "5000")
        .set(
            "topic.metadata.refresh.interval.ms",
            config.partition_refresh_ms.to_string(),
        )
        .set("allow.auto.create.topics", config.allow_auto_topic_creation.to_string())
        .set("debug", turned_away::DEBUG)
        .set_log_level(RDKafkaLogLevel::Debug);
}

impl Sink for KafkaSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            self.inner.fit_batches();
            let producer = match self.inner.producer() {
                Ok(producer) => producer,
                Err(reason) => return all(batch, Err(Failure::Away(reason))),
            };
            let mut away = self.inner.shared.away().clone().map(Failure::Away);
            let ticket = producer.context().deliveries.begin(batch.len());
            let now = Instant::now();
            let mut last = None;
            for (index, record) in batch.iter().enumerate() {
                let token = ticket.token(index);
                let enqueued = match &away {
                    Some(away) => Err(away.clone()),
                    None => self.inner.enqueue(&producer, record, token, now, &mut last),
                };
                if let Err(failure) = enqueued {
                    if let Failure::Away(_) = failure {
                        away = Some(failure.clone());
                    }
                    producer.context().deliveries.settle(token, Err(failure));
                }
            }
            let gone = || all(batch, Err(Failure::Away("the producer was replaced".to_owned())));
            ticket.done.await.unwrap_or_else(|_| gone())
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let checked = tokio::task::spawn_blocking(move || inner.check()).await;
            checked.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn turned_away(&self) -> Option<String> {
        self.inner.shared.turned_away.reason()
    }

    fn order(&self) -> Order {
        Order::BySink
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let producer = Arc::clone(&inner.producer.read().unwrap_or_else(PoisonError::into_inner));
            producer.purge(PurgeConfig::default().queue().inflight());
        })
    }
}

/// The topic of the record before, which is most often that of the next one.
type LastTopic<'a> = Option<(std::borrow::Cow<'a, str>, u32)>;

impl Inner {
    /// A producer that works.
    fn producer(&self) -> Result<Arc<ThreadedProducer<Deliver>>, String> {
        if self.shared.is_broken.swap(false, AcqRel) {
            let reason = self.shared.away().clone().unwrap_or_default();
            tracing::warn!(reason, "the Kafka producer cannot go on and is replaced");
            self.replace_producer()?;
        }
        Ok(Arc::clone(
            &self.producer.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// What the old one had on its way comes back as not sent, and is sent again by the new one.
    fn replace_producer(&self) -> Result<(), String> {
        let new = producer(&self.options, &self.shared).map_err(|error| {
            self.shared.is_broken.store(true, Release);
            error.to_string()
        })?;
        let mut producer = self.producer.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *producer, new);
        drop(producer);
        old.purge(PurgeConfig::default().queue().inflight());
        // Dropping it waits for its thread.
        tokio::task::spawn_blocking(move || drop(old));
        Ok(())
    }

    /// Before anything is sent: a batch that Kafka refuses is sent again, and what came behind it may be there already.
    fn fit_batches(&self) {
        if self.is_fitted.load(Acquire) || self.shared.away().is_some() {
            return;
        }
        tokio::task::block_in_place(|| {
            let producer = Arc::clone(&self.producer.read().unwrap_or_else(PoisonError::into_inner));
            let kafka_topic = &self.config.kafka_topic;
            let looked_up = self
                .shared
                .topics
                .look_up(producer.client(), kafka_topic, self.lookup_timeout);
            let absent = match looked_up {
                Ok(Some(_)) => None,
                Ok(None) => Some(self.shared.unknown(kafka_topic)),
                Err(error) => Some(self.shared.failure(&error, kafka_topic)),
            };
            if absent.is_some() {
                return;
            }
            self.is_fitted.store(true, Release);
            let limit = client::batch_limit(&self.options, kafka_topic, self.lookup_timeout);
            let Some(limit) = limit.filter(|limit| *limit < self.shared.batch_bytes.load(Acquire)) else {
                return;
            };
            tracing::info!(
                kafka_topic,
                limit,
                "batches are no larger than the topic's max.message.bytes"
            );
            self.shared.batch_bytes.fetch_min(limit, AcqRel);
            if let Err(reason) = self.replace_producer() {
                tracing::warn!(reason, "the Kafka producer cannot be replaced");
            }
        });
    }

    fn enqueue<'a>(
        &'a self,
        producer: &Arc<ThreadedProducer<Deliver>>,
        record: &'a Record,
        token: usize,
        now: Instant,
        last: &mut LastTopic<'a>,
    ) -> Result<(), Failure> {
        let kafka_topic = match self.fields.kafka_topic {
            None => std::borrow::Cow::Borrowed(self.config.kafka_topic.as_str()),
            Some(field) => record.text(field).unwrap_or_default(),
        };
        let partitions = match last {
            Some((name, partitions)) if *name == kafka_topic => *partitions,
            _ => self.partitions(producer, &kafka_topic, now)?,
        };
        let key = record.field(KEY);
        let partition_key = self.fields.partition_key.map_or(key, |field| record.field(field));
        let partition = self.chooser.choose(partition_key, partitions);
        let message = BaseRecord {
            topic: &kafka_topic,
            partition: Some(partition),
            payload: record.field(VALUE),
            key,
            timestamp: Some(self.timestamp(record)),
            headers: self.headers(record),
            delivery_opaque: token,
        };
        let sent = producer
            .send(message)
            .map_err(|(error, _)| self.shared.failure(&error, &kafka_topic));
        *last = Some((kafka_topic, partitions));
        sent
    }

    fn partitions(
        &self,
        producer: &Arc<ThreadedProducer<Deliver>>,
        kafka_topic: &str,
        now: Instant,
    ) -> Result<u32, Failure> {
        match self.shared.topics.get(kafka_topic, now) {
            Partitions::Some(count) => return Ok(count),
            Partitions::Stale(count) => {
                self.refresh(producer, kafka_topic);
                return Ok(count);
            }
            Partitions::Missing => return Err(self.shared.unknown(kafka_topic)),
            Partitions::Unknown => {}
        }
        check_topic(kafka_topic).map_err(Failure::Refused)?;
        // Later batches wait for this one: otherwise they would overtake it.
        let topics = &self.shared.topics;
        let looked_up =
            tokio::task::block_in_place(|| topics.look_up(producer.client(), kafka_topic, self.lookup_timeout));
        match looked_up {
            Ok(Some(count)) => Ok(count),
            Ok(None) => Err(self.shared.unknown(kafka_topic)),
            Err(error) => Err(self.shared.failure(&error, kafka_topic)),
        }
    }

    /// Looks for new partitions while the old ones are used.
    fn refresh(&self, producer: &Arc<ThreadedProducer<Deliver>>, kafka_topic: &str) {
        if self.shared.is_refreshing.swap(true, AcqRel) {
            return;
        }
        let (producer, kafka_topic) = (Arc::clone(producer), kafka_topic.to_owned());
        let (shared, timeout) = (Arc::clone(&self.shared), self.lookup_timeout);
        tokio::task::spawn_blocking(move || {
            // An error leaves what was known; the next message asks again.
            let _ = shared.topics.look_up(producer.client(), &kafka_topic, timeout);
            shared.is_refreshing.store(false, Release);
        });
    }

    fn timestamp(&self, record: &Record) -> i64 {
        let given = self.fields.timestamp.and_then(|field| record.text(field));
        let given = given
            .and_then(|text| text.trim().parse::<i64>().ok())
            .filter(|ms| *ms > 0);
        given.unwrap_or(record.unix_ms() as i64)
    }

    fn headers(&self, record: &Record) -> Option<OwnedHeaders> {
        if self.config.headers.is_empty() {
            return None;
        }
        let mut headers = OwnedHeaders::new_with_capacity(self.config.headers.len());
        for (index, header) in self.config.headers.iter().enumerate() {
            if let Some(value) = record.field(self.fields.headers + index) {
                headers = headers.insert(KafkaHeader {
                    key: &header.name,
                    value: Some(value),
                });
            }
        }
        Some(headers)
    }

    /// Blocks.
    fn check(&self) -> Result<(), String> {
        let producer = self.producer()?;
        let client = producer.client();
        let found = match self.fields.kafka_topic {
            None => self
                .shared
                .topics
                .look_up(client, &self.config.kafka_topic, self.lookup_timeout)
                .map(|partitions| partitions.is_some() || self.config.allow_auto_topic_creation),
            Some(_) => client.fetch_metadata(None, self.lookup_timeout).map(|_| true),
        };
        match found {
            Ok(true) => {
                self.shared.last_error.clear();
                *self.shared.away() = None;
                Ok(())
            }
            Ok(false) => Err(missing(&self.config.kafka_topic)),
            Err(error) => Err(format!(
                "Kafka at {}: {}",
                self.options.get("bootstrap.servers").unwrap_or_default(),
                self.shared.last_error.explain(&error)
            )),
        }
    }
}

#[cfg(test)]
#[path = "fatal_tests.rs"]
mod fatal_tests;
