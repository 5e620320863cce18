//! The sink: records into librdkafka, deliveries back.
//!
//! librdkafka keeps the order of a partition and sends again by itself for ever; a message comes back only delivered, refused,
//! or because its topic is gone or the producer has to be replaced. `send` enqueues the whole batch when it is polled
//! for the first time, so batches go in the order of the pump.

use std::collections::HashSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Header as KafkaHeader, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer};

use tokio::sync::Notify;

use super::client::{self, LastError};
use super::config::{
    Compression, Fields, KEY, KafkaActionConfig, KafkaConnectorConfig, RequiredAcks, UnknownTopic, VALUE, check_topic,
};
use super::delivery::{Deliveries, Ticket};
use super::leaders::Leaders;
use super::partition::Chooser;
use super::topics::{Partitions, Topics};
use super::turned_away::{self, TurnedAway};
use crate::record::Record;
use crate::sink::{BoxFuture, Failure, Order, Outcome, Sink, all};

/// A batch that is not back then may be for a partition that has no leader.
const LONG: Duration = Duration::from_secs(5);
/// Kafka's batches are made smaller by this when a topic does not take them.
const SMALLER: u32 = 4;
/// Below, each message goes alone.
const BATCH_BYTES_MIN: u32 = 1024;

pub struct KafkaSink {
    inner: Arc<Inner>,
}

struct Inner {
    options: ClientConfig,
    config: KafkaActionConfig,
    fields: Fields,
    /// Replaced after a fatal error, and when something was taken back from it.
    producer: RwLock<Arc<ThreadedProducer<Deliver>>>,
    shared: Arc<Shared>,
    chooser: Chooser,
    lookup_timeout: Duration,
    /// Held while messages are given to the producer, or taken back.
    gate: Mutex<()>,
    /// Batches are no larger than the only topic takes.
    is_fitted: AtomicBool,
}

/// What the producer's callbacks reach.
struct Shared {
    last_error: LastError,
    topics: Topics,
    unknown_topic: UnknownTopic,
    is_broken: AtomicBool,
    is_refreshing: AtomicBool,
    /// Why something could not be sent since Kafka was last asked: until then nothing else goes, or it would overtake.
    away: Mutex<Option<String>>,
    turned_away: TurnedAway,
    leaders: Leaders,
    /// The producer gets nothing more, and is replaced when nothing of it is on its way any more.
    is_retired: AtomicBool,
    /// What waits in it is to be taken back at once.
    take_back: Notify,
    /// Of Kafka's batches, for the next producer.
    batch_bytes: AtomicU32,
}

struct Deliver {
    shared: Arc<Shared>,
    deliveries: Deliveries,
    /// Of its batches, unless a message alone has more.
    batch_bytes: u32,
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
            Err((error, message)) if client::is_too_large(error) => Err(self.too_large(error, message)),
            Err((error, message)) => Err(self.shared.failure(error, message.topic())),
        };
        self.deliveries.settle(token, result);
    }
}

impl Deliver {
    /// The error is that of the whole batch in which librdkafka sent the message.
    fn too_large(&self, error: &KafkaError, message: &BorrowedMessage<'_>) -> Failure {
        let (kafka_topic, batch_bytes) = (message.topic(), self.batch_bytes);
        if batch_bytes < BATCH_BYTES_MIN || bytes(message) >= batch_bytes as usize {
            let error = client::text(error);
            return Failure::Refused(format!(
                "Kafka topic {kafka_topic:?} takes no message as large as this one, see its max.message.bytes: {error}"
            ));
        }
        let smaller = match batch_bytes / SMALLER {
            smaller if smaller < BATCH_BYTES_MIN => 1,
            smaller => smaller,
        };
        if self.shared.batch_bytes.fetch_min(smaller, AcqRel) > smaller {
            tracing::warn!(
                kafka_topic,
                batch_bytes,
                smaller,
                "a Kafka topic takes no batches as large as this: they are made smaller"
            );
        }
        let failure = self.shared.retire(format!(
            "Kafka topic {kafka_topic:?} takes no batches of {batch_bytes} bytes: they are made smaller"
        ));
        self.shared.take_back.notify_one();
        failure
    }
}

/// At least.
fn bytes(message: &BorrowedMessage<'_>) -> usize {
    let headers = message.headers();
    let headers = headers.iter().flat_map(|headers| headers.iter());
    let headers: usize = headers
        .map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len))
        .sum();
    message.payload_len() + message.key_len() + headers
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

    /// The producer gets nothing more, and is to be taken back from.
    fn retire(&self, reason: String) -> Failure {
        self.is_retired.store(true, Release);
        self.note(Failure::Away(reason))
    }

    fn note(&self, failure: Failure) -> Failure {
        if let Failure::Away(reason) = &failure {
            self.away().get_or_insert_with(|| reason.clone());
        }
        failure
    }

    /// Asks Kafka, and takes notice of partitions that have lost their leaders or have one again.
    fn look_up<C: ClientContext>(
        &self,
        client: &Client<C>,
        kafka_topic: &str,
        timeout: Duration,
    ) -> Result<Option<u32>, KafkaError> {
        let Some(layout) = self.topics.look_up(client, kafka_topic, timeout)? else {
            return Ok(None);
        };
        if let Some(back) = self.leaders.look(kafka_topic, &layout) {
            self.note(Failure::Away(back));
        }
        Ok(Some(layout.partitions))
    }

    /// The same for some; `is_refreshing` is set.
    fn look_at<'a, C: ClientContext>(
        &self,
        client: &Client<C>,
        kafka_topics: impl IntoIterator<Item = &'a String>,
        timeout: Duration,
    ) {
        let mut kafka_topics = kafka_topics.into_iter();
        // An error leaves what was known: who needs to know asks again. Others would get the same one.
        _ = kafka_topics.try_for_each(|kafka_topic| self.look_up(client, kafka_topic, timeout).map(drop));
        self.is_refreshing.store(false, Release);
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
            is_refreshing: AtomicBool::new(false),
            away: Mutex::default(),
            turned_away: TurnedAway::default(),
            leaders: Leaders::default(),
            take_back: Notify::new(),
            is_retired: AtomicBool::new(false),
            batch_bytes: AtomicU32::new(config.batch_bytes_max),
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
            gate: Mutex::default(),
            is_fitted: AtomicBool::new(config.fields().kafka_topic.is_some()),
        };
        Ok(KafkaSink { inner: Arc::new(inner) })
    }
}

fn producer(options: &ClientConfig, shared: &Arc<Shared>) -> Result<Arc<ThreadedProducer<Deliver>>, KafkaError> {
    let batch_bytes = shared.batch_bytes.load(Acquire);
    let mut options = options.clone();
    options.set("batch.size", batch_bytes.to_string());
    let context = Deliver {
        shared: Arc::clone(shared),
        deliveries: Deliveries::default(),
        batch_bytes,
    };
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
            match self.inner.hand_over(batch) {
                Ok(ticket) => self.inner.wait(batch, ticket).await,
                Err(reason) => all(batch, Err(Failure::Away(reason))),
            }
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
        let shared = &self.inner.shared;
        shared.turned_away.reason().or_else(|| shared.leaders.reason())
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
    /// All of a batch into librdkafka.
    fn hand_over(self: &Arc<Self>, batch: &[Record]) -> Result<Ticket, String> {
        let _gate = self.gate();
        if let Some(away) = self.shared.away().clone() {
            return Err(away);
        }
        if !self.is_fitted.load(Acquire) {
            tokio::task::block_in_place(|| self.fit_batches());
        }
        if self.shared.is_retired.load(Acquire) {
            return Err("what was sent comes back first".to_owned());
        }
        let producer = self.producer()?;
        let ticket = producer.context().deliveries.begin(batch.len());
        let now = Instant::now();
        if !self.shared.leaders.are_all_there() {
            self.look_at(self.shared.leaders.to_look_at(now), &producer);
        }
        let (mut away, mut last) = (None, None);
        // Ordering keys of which something was turned back: what comes behind it must not overtake it.
        let mut held = HashSet::new();
        for (index, record) in batch.iter().enumerate() {
            let token = ticket.token(index);
            let enqueued = match &away {
                Some(away) => Err(Failure::clone(away)),
                None if !held.is_empty() && held.contains(&record.key_hash()) => Err(Failure::Untried),
                None => self.enqueue(&producer, record, token, now, &mut last),
            };
            if let Err(failure) = enqueued {
                match &failure {
                    Failure::Away(_) => away = Some(failure.clone()),
                    Failure::Busy(_) => _ = held.insert(record.key_hash()),
                    Failure::Refused(_) | Failure::Untried => {}
                }
                producer.context().deliveries.settle(token, Err(failure));
            }
        }
        Ok(ticket)
    }

    async fn wait(self: &Arc<Self>, batch: &[Record], mut ticket: Ticket) -> Outcome {
        loop {
            tokio::select! {
                outcome = &mut ticket.done => {
                    let gone = |_| all(batch, Err(Failure::Away("the producer was replaced".to_owned())));
                    return outcome.unwrap_or_else(gone);
                }
                () = self.shared.take_back.notified() => tokio::task::block_in_place(|| self.take_back()),
                () = tokio::time::sleep(LONG) => self.takes_long(batch).await,
            }
        }
    }

    /// Perhaps because a partition has no leader.
    async fn takes_long(self: &Arc<Self>, batch: &[Record]) {
        let kafka_topics: HashSet<String> = match self.fields.kafka_topic {
            None => HashSet::from([self.config.kafka_topic.clone()]),
            Some(field) => batch
                .iter()
                .filter_map(|record| Some(record.text(field)?.into_owned()))
                .collect(),
        };
        if self.shared.is_refreshing.swap(true, AcqRel) {
            return;
        }
        let inner = Arc::clone(self);
        let looking = tokio::task::spawn_blocking(move || {
            inner
                .shared
                .look_at(inner.current().client(), &kafka_topics, inner.lookup_timeout);
            let leaders = &inner.shared.leaders;
            if let Some(reason) = leaders.reason().filter(|_| leaders.take_lost()) {
                inner.shared.retire(reason);
                inner.take_back();
            }
        });
        // It does not panic; if it did the next look would.
        let _ = looking.await;
    }

    /// What waits in librdkafka comes back; what is on its way to a broker is waited for.
    fn take_back(&self) {
        let _gate = self.gate();
        if !self.shared.is_retired.load(Acquire) {
            // Somebody else has done so, and all has come back since.
            return;
        }
        self.current().purge(PurgeConfig::default().queue());
    }

    /// Replaces a producer from which something was taken back. Blocks.
    fn replace_retired(&self) -> Result<(), String> {
        if !self.shared.is_retired.load(Acquire) {
            return Ok(());
        }
        let producer = self.current();
        if producer.in_flight_count() > 0 {
            // What a broker has not answered is put in the queue again.
            producer.purge(PurgeConfig::default().queue());
            let reason = self.shared.away().clone();
            return Err(reason.unwrap_or_else(|| "messages are on their way still".to_owned()));
        }
        drop(producer);
        self.replace_producer()?;
        self.shared.is_broken.store(false, Release);
        self.shared.is_retired.store(false, Release);
        Ok(())
    }

    fn gate(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Arc<ThreadedProducer<Deliver>> {
        Arc::clone(&self.producer.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A producer that works.
    fn producer(&self) -> Result<Arc<ThreadedProducer<Deliver>>, String> {
        if self.shared.is_broken.swap(false, AcqRel) {
            tracing::warn!("the Kafka producer has failed for good and is replaced");
            self.replace_producer()?;
        }
        Ok(self.current())
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

    /// Before anything is sent: a batch that Kafka refuses is sent again, and what came behind it may be there already. Blocks.
    fn fit_batches(&self) {
        let kafka_topic = &self.config.kafka_topic;
        let is_there = self
            .shared
            .look_up(self.current().client(), kafka_topic, self.lookup_timeout)
            .is_ok_and(|partitions| partitions.is_some());
        if !is_there {
            // Whoever sends next meets the same, and says so.
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
        let leaders = &self.shared.leaders;
        let has_leader = |partition| leaders.are_all_there() || leaders.has(&kafka_topic, partition);
        let partition = self.chooser.choose(partition_key, partitions, has_leader);
        if !has_leader(partition) {
            let failure = self.without_leader(&kafka_topic);
            *last = Some((kafka_topic, partitions));
            return Err(failure);
        }
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

    /// Others go on, if there are any.
    fn without_leader(&self, kafka_topic: &str) -> Failure {
        let leaders = &self.shared.leaders;
        let reason = leaders
            .reason()
            .unwrap_or_else(|| "a partition has no leader".to_owned());
        let is_all = self.fields.kafka_topic.is_none() && leaders.has_none(kafka_topic);
        match is_all {
            true => self.shared.note(Failure::Away(reason)),
            false => Failure::Busy(reason),
        }
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
                self.look_at(vec![kafka_topic.to_owned()], producer);
                return Ok(count);
            }
            Partitions::Missing => return Err(self.shared.unknown(kafka_topic)),
            Partitions::Unknown => {}
        }
        check_topic(kafka_topic).map_err(Failure::Refused)?;
        // Later batches wait for this one: otherwise they would overtake it.
        let shared = &self.shared;
        let looked_up =
            tokio::task::block_in_place(|| shared.look_up(producer.client(), kafka_topic, self.lookup_timeout));
        match looked_up {
            Ok(Some(count)) => Ok(count),
            Ok(None) => Err(self.shared.unknown(kafka_topic)),
            Err(error) => Err(self.shared.failure(&error, kafka_topic)),
        }
    }

    /// Looks for new partitions, and for leaders, while what is known is used.
    fn look_at(&self, kafka_topics: Vec<String>, producer: &Arc<ThreadedProducer<Deliver>>) {
        if kafka_topics.is_empty() || self.shared.is_refreshing.swap(true, AcqRel) {
            return;
        }
        let (producer, shared, timeout) = (Arc::clone(producer), Arc::clone(&self.shared), self.lookup_timeout);
        tokio::task::spawn_blocking(move || shared.look_at(producer.client(), &kafka_topics, timeout));
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
        self.replace_retired()?;
        let producer = self.producer()?;
        // Nothing is sent then before all has come back.
        let is_away = self.shared.away().is_some();
        match self.is_topic_there(producer.client(), is_away) {
            Ok(true) => {}
            Ok(false) => return Err(missing(&self.config.kafka_topic)),
            Err(error) => {
                return Err(format!(
                    "Kafka at {}: {}",
                    self.options.get("bootstrap.servers").unwrap_or_default(),
                    self.shared.last_error.explain(&error)
                ));
            }
        }
        let leaders = &self.shared.leaders;
        if self.fields.kafka_topic.is_none() && leaders.has_none(&self.config.kafka_topic) {
            return Err(leaders.reason().unwrap_or_default());
        }
        self.shared.last_error.clear();
        match &mut *self.shared.away() {
            // Only now: all has to come back first.
            Some(reason) if !is_away => Err(reason.clone()),
            away => {
                *away = None;
                Ok(())
            }
        }
    }

    fn is_topic_there<C: ClientContext>(&self, client: &Client<C>, is_away: bool) -> Result<bool, KafkaError> {
        let (shared, timeout) = (&self.shared, self.lookup_timeout);
        let mut kafka_topics = shared.leaders.kafka_topics();
        if self.fields.kafka_topic.is_some() {
            client.fetch_metadata(None, timeout)?;
        } else {
            kafka_topics = vec![self.config.kafka_topic.clone()];
        }
        let mut is_there = true;
        for kafka_topic in &kafka_topics {
            let layout = shared.topics.look_up(client, kafka_topic, timeout)?;
            is_there &= layout.is_some() || self.fields.kafka_topic.is_some() || self.config.allow_auto_topic_creation;
            let back = layout
                .as_ref()
                .and_then(|layout| shared.leaders.look(kafka_topic, layout));
            match back {
                Some(reason) if !is_away => _ = shared.note(Failure::Away(reason)),
                _ if is_away => shared.leaders.are_now(kafka_topic, layout),
                _ => {}
            }
        }
        Ok(is_there)
    }
}

#[cfg(test)]
#[path = "fatal_tests.rs"]
mod fatal_tests;
