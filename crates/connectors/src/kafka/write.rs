//! The Kafka sink: passes records to librdkafka and returns their delivery results.
//!
//! librdkafka preserves the order within a partition and retries without limit. A message returns only if it is
//! delivered or rejected, its topic was deleted, or the producer is replaced. `send` enqueues the whole batch when it
//! is first polled, so that batches keep the order of the pump.

use std::collections::HashSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Header as KafkaHeader, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer};

use tokio::sync::Notify;

use super::client::{self, LastConnectionError};
use super::config::{
    Compression, FieldIndexes, KEY, KafkaActionConfig, KafkaConnectorConfig, RequiredAcks, UnknownTopic, VALUE,
    check_topic,
};
use super::delivery::{BatchTicket, Deliveries, MessageToken};
use super::leaders::Leaders;
use super::partition::PartitionSelector;
use super::rejections::{self, Rejections};
use super::topics::{CachedPartitions, TopicCache};
use crate::loop_mark::LoopMark;
use crate::record::Record;
use crate::sink::{BatchOutcome, BoxFuture, DeliveryFailure, OrderGuarantee, Sink, all};

/// A batch that takes longer may contain messages for a partition without a leader.
const SLOW_BATCH: Duration = Duration::from_secs(5);
/// Divisor of the batch size after a topic has rejected a batch as too large.
const BATCH_DIVISOR: u32 = 4;
/// A producer that is replaced later has another problem, which is then reported.
const REPLACED_WITHIN: Duration = Duration::from_secs(30);
/// Below this size, each message is sent alone.
const BATCH_BYTES_MIN: u32 = 1024;

pub struct KafkaSink {
    inner: Arc<KafkaSinkInner>,
}

struct KafkaSinkInner {
    options: ClientConfig,
    config: KafkaActionConfig,
    fields: FieldIndexes,
    /// The mark of messages that the connector's sources have received.
    loop_mark: Option<LoopMark>,
    /// Messages that were not sent for this reason, and that the pump has not counted yet.
    skipped_echoes: AtomicU64,
    /// Replaced after a fatal error, and after it was retired.
    producer: RwLock<Arc<ThreadedProducer<DeliveryContext>>>,
    shared: Arc<KafkaSinkShared>,
    chooser: PartitionSelector,
    lookup_timeout: Duration,
    /// Held while messages are passed to the producer or purged from it.
    producer_lock: Mutex<()>,
    /// Whether the batch size respects the limit of the topic. True for a template as topic.
    is_batch_size_set: AtomicBool,
}

/// State shared with the producer's callbacks.
struct KafkaSinkShared {
    last_error: LastConnectionError,
    topics: TopicCache,
    unknown_topic: UnknownTopic,
    is_broken: AtomicBool,
    is_refreshing: AtomicBool,
    /// Reason of the first failure since the last check. Until the next check nothing is sent, because later messages
    /// would overtake the failed ones.
    unreachable: Mutex<Option<String>>,
    rejections: Rejections,
    leaders: Leaders,
    /// The producer accepts no more messages. It is replaced when it has none in flight.
    is_retired: AtomicBool,
    /// Signals that the producer's queue must be purged.
    purge_queue: Notify,
    /// Batch size of the next producer.
    batch_bytes: AtomicU32,
    /// When the batch size was reduced, until the producer is replaced.
    reduced_at: Mutex<Option<Instant>>,
}

struct DeliveryContext {
    shared: Arc<KafkaSinkShared>,
    deliveries: Deliveries,
    /// Batch size of this producer. A single longer message exceeds it.
    batch_bytes: u32,
}

impl ClientContext for DeliveryContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Debug => self.shared.rejections.parse_log(facility, message),
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

impl ProducerContext for DeliveryContext {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let result = match result {
            Ok(_) => {
                self.shared.rejections.delivered();
                Ok(())
            }
            Err((error, message)) if client::is_too_large(error) => Err(self.too_large(error, message)),
            Err((error, message)) => Err(self.shared.failure(error, message.topic())),
        };
        self.deliveries.settle(MessageToken::from_opaque(opaque), result);
    }
}

impl DeliveryContext {
    /// Classifies a size error, which applies to the whole batch of the message.
    fn too_large(&self, error: &KafkaError, message: &BorrowedMessage<'_>) -> DeliveryFailure {
        let (kafka_topic, batch_bytes) = (message.topic(), self.batch_bytes);
        if batch_bytes < BATCH_BYTES_MIN || bytes(message) >= batch_bytes as usize {
            let error = client::text(error);
            return DeliveryFailure::Refused(format!(
                "Kafka topic {kafka_topic:?}: the message exceeds the topic's max.message.bytes: {error}"
            ));
        }
        let smaller = match batch_bytes / BATCH_DIVISOR {
            smaller if smaller < BATCH_BYTES_MIN => 1,
            smaller => smaller,
        };
        if self.shared.batch_bytes.fetch_min(smaller, AcqRel) > smaller {
            tracing::warn!(
                kafka_topic,
                batch_bytes,
                smaller,
                "a batch exceeds the Kafka topic's max.message.bytes; the batch size is reduced"
            );
        }
        self.shared.reduced_at().get_or_insert_with(Instant::now);
        let failure = self.shared.retire(format!(
            "Kafka topic {kafka_topic:?}: batches of {batch_bytes} bytes exceed its max.message.bytes; the batch size is reduced"
        ));
        self.shared.purge_queue.notify_one();
        failure
    }
}

/// Returns a lower bound of the message's size.
fn bytes(message: &BorrowedMessage<'_>) -> usize {
    let headers = message.headers();
    let headers = headers.iter().flat_map(|headers| headers.iter());
    let headers: usize = headers
        .map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len))
        .sum();
    message.payload_len() + message.key_len() + headers
}

impl KafkaSinkShared {
    fn reduced_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.reduced_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, error: &KafkaError, kafka_topic: &str) -> DeliveryFailure {
        if client::is_fatal(error) {
            self.is_broken.store(true, Release);
        }
        if client::is_topic_unknown(error)
            || client::code(error) == Some(rdkafka::error::RDKafkaErrorCode::UnknownPartition)
        {
            self.topics.forget(kafka_topic);
        }
        // With access rules, Kafka reports missing write permission also for a topic that does not exist.
        let is_denied = client::code(error) == Some(rdkafka::error::RDKafkaErrorCode::TopicAuthorizationFailed);
        match (client::is_topic_unknown(error), is_denied, self.unknown_topic) {
            (true, ..) => self.unknown(kafka_topic),
            (_, true, UnknownTopic::Refuse) => DeliveryFailure::Refused(denied(kafka_topic)),
            _ => self.note(client::failure(error, kafka_topic, &self.last_error)),
        }
    }

    fn unknown(&self, kafka_topic: &str) -> DeliveryFailure {
        let reason = missing(kafka_topic);
        match self.unknown_topic {
            UnknownTopic::Wait => self.note(DeliveryFailure::Unreachable(reason)),
            UnknownTopic::Refuse => DeliveryFailure::Refused(reason),
        }
    }

    /// Retires the producer: it accepts no more messages, and its queue is to be purged.
    fn retire(&self, reason: String) -> DeliveryFailure {
        self.is_retired.store(true, Release);
        self.note(DeliveryFailure::Unreachable(reason))
    }

    fn note(&self, failure: DeliveryFailure) -> DeliveryFailure {
        if let DeliveryFailure::Unreachable(reason) = &failure {
            self.unreachable().get_or_insert_with(|| reason.clone());
        }
        failure
    }

    /// Queries the topic's metadata, and updates which partitions have no leader.
    fn look_up<C: ClientContext>(
        &self,
        client: &Client<C>,
        kafka_topic: &str,
        timeout: Duration,
    ) -> Result<Option<u32>, KafkaError> {
        let Some(layout) = self.topics.look_up(client, kafka_topic, timeout)? else {
            return Ok(None);
        };
        if let Some(back) = self.leaders.update(kafka_topic, &layout) {
            self.note(DeliveryFailure::Unreachable(back));
        }
        Ok(Some(layout.partitions))
    }

    /// Queries several topics. `is_refreshing` must be set; it is cleared at the end.
    fn refresh<'a, C: ClientContext>(
        &self,
        client: &Client<C>,
        kafka_topics: impl IntoIterator<Item = &'a String>,
        timeout: Duration,
    ) {
        let mut kafka_topics = kafka_topics.into_iter();
        // After an error the cached state remains and the next user queries again. The other topics would fail as well.
        _ = kafka_topics.try_for_each(|kafka_topic| self.look_up(client, kafka_topic, timeout).map(drop));
        self.is_refreshing.store(false, Release);
    }

    fn unreachable(&self) -> MutexGuard<'_, Option<String>> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn denied(kafka_topic: &str) -> String {
    format!("Kafka topic {kafka_topic:?}: no permission to write")
}

fn missing(kafka_topic: &str) -> String {
    format!("the Kafka topic {kafka_topic:?} does not exist: create it, or correct the action's kafka_topic")
}

impl KafkaSink {
    /// Creates a sink without connecting. The errors name the fields.
    pub fn new(connector: &KafkaConnectorConfig, config: &KafkaActionConfig) -> Result<KafkaSink, Vec<String>> {
        KafkaSink::with_loop_mark(connector, config, None)
    }

    /// Creates a sink that does not return a message to the topic from which a source with the same mark received it.
    /// Such a message counts as sent, and as a skipped echo.
    pub fn with_loop_mark(
        connector: &KafkaConnectorConfig,
        config: &KafkaActionConfig,
        loop_mark: Option<LoopMark>,
    ) -> Result<KafkaSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut options = connector.options();
        set_options(&mut options, config);
        let shared = Arc::new(KafkaSinkShared {
            last_error: LastConnectionError::default(),
            topics: TopicCache::new(Duration::from_millis(config.partition_refresh_ms)),
            unknown_topic: config.unknown_topic(),
            is_broken: AtomicBool::new(false),
            is_refreshing: AtomicBool::new(false),
            unreachable: Mutex::default(),
            rejections: Rejections::default(),
            leaders: Leaders::default(),
            purge_queue: Notify::new(),
            is_retired: AtomicBool::new(false),
            batch_bytes: AtomicU32::new(config.batch_bytes_max),
            reduced_at: Mutex::default(),
        });
        let producer =
            producer(&options, &shared).map_err(|error| vec![format!("librdkafka rejects the options: {error}")])?;
        let inner = KafkaSinkInner {
            options,
            fields: config.fields(),
            chooser: PartitionSelector::new(config.partition_strategy),
            config: config.clone(),
            loop_mark,
            skipped_echoes: AtomicU64::new(0),
            producer: RwLock::new(producer),
            shared,
            lookup_timeout: Duration::from_millis(connector.connect_timeout_ms),
            producer_lock: Mutex::default(),
            is_batch_size_set: AtomicBool::new(config.fields().kafka_topic.is_some()),
        };
        Ok(KafkaSink { inner: Arc::new(inner) })
    }
}

fn producer(
    options: &ClientConfig,
    shared: &Arc<KafkaSinkShared>,
) -> Result<Arc<ThreadedProducer<DeliveryContext>>, KafkaError> {
    let batch_bytes = shared.batch_bytes.load(Acquire);
    let mut options = options.clone();
    options.set("batch.size", batch_bytes.to_string());
    let context = DeliveryContext {
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
        // The pump limits the queue, and librdkafka must not drop anything.
        .set("message.timeout.ms", "0")
        .set("queue.buffering.max.messages", "0")
        .set("queue.buffering.max.kbytes", "2147483647")
        .set("topic.metadata.propagation.max.ms", "5000")
        .set(
            "topic.metadata.refresh.interval.ms",
            config.partition_refresh_ms.to_string(),
        )
        .set("allow.auto.create.topics", config.allow_auto_topic_creation.to_string())
        .set("debug", rejections::DEBUG)
        .set_log_level(RDKafkaLogLevel::Debug);
}

impl Sink for KafkaSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        Box::pin(async move {
            match self.inner.enqueue_batch(batch) {
                Ok(ticket) => self.inner.wait(batch, ticket).await,
                Err(reason) => all(batch, Err(DeliveryFailure::Unreachable(reason))),
            }
        })
    }

    fn is_replacing_connection(&self) -> bool {
        self.inner
            .shared
            .reduced_at()
            .is_some_and(|since| since.elapsed() < REPLACED_WITHIN)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let checked = tokio::task::spawn_blocking(move || inner.check()).await;
            checked.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn rejection(&self) -> Option<String> {
        let shared = &self.inner.shared;
        shared.rejections.reason().or_else(|| shared.leaders.reason())
    }

    fn take_skipped_echoes(&self) -> u64 {
        self.inner.skipped_echoes.swap(0, Relaxed)
    }

    fn order(&self) -> OrderGuarantee {
        OrderGuarantee::BySink
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let producer = Arc::clone(&inner.producer.read().unwrap_or_else(PoisonError::into_inner));
            producer.purge(PurgeConfig::default().queue().inflight());
        })
    }
}

/// The previous record's topic and number of partitions. The next record usually has the same topic.
type LastTopic<'a> = Option<(std::borrow::Cow<'a, str>, u32)>;

impl KafkaSinkInner {
    /// Enqueues a whole batch in librdkafka.
    fn enqueue_batch(self: &Arc<Self>, batch: &[Record]) -> Result<BatchTicket, String> {
        let _gate = self.lock_producer();
        if let Some(unreachable) = self.shared.unreachable().clone() {
            return Err(unreachable);
        }
        if !self.is_batch_size_set.load(Acquire) {
            tokio::task::block_in_place(|| self.limit_batch_size());
        }
        if self.shared.is_retired.load(Acquire) {
            return Err("the Kafka producer is being replaced".to_owned());
        }
        let producer = self.producer()?;
        let ticket = producer.context().deliveries.begin(batch.len());
        let now = Instant::now();
        if !self.shared.leaders.are_complete() {
            self.refresh(self.shared.leaders.due_for_check(now), &producer);
        }
        let (mut unreachable, mut last) = (None, None);
        // Ordering keys with a returned record. Later records with these keys must not overtake it.
        let mut held = HashSet::new();
        for (index, record) in batch.iter().enumerate() {
            let token = ticket.token(index);
            let enqueued = match &unreachable {
                Some(unreachable) => Err(DeliveryFailure::clone(unreachable)),
                None if !held.is_empty() && held.contains(&record.key_hash()) => Err(DeliveryFailure::NotSent),
                None => self.enqueue(&producer, record, token, now, &mut last),
            };
            if let Err(failure) = enqueued {
                match &failure {
                    DeliveryFailure::Unreachable(_) => unreachable = Some(failure.clone()),
                    DeliveryFailure::Temporary(_) => _ = held.insert(record.key_hash()),
                    DeliveryFailure::Refused(_) | DeliveryFailure::NotSent => {}
                }
                producer.context().deliveries.settle(token, Err(failure));
            }
        }
        Ok(ticket)
    }

    async fn wait(self: &Arc<Self>, batch: &[Record], mut ticket: BatchTicket) -> BatchOutcome {
        loop {
            tokio::select! {
                outcome = &mut ticket.done => {
                    let gone = |_| all(batch, Err(DeliveryFailure::Unreachable("the producer was replaced".to_owned())));
                    return outcome.unwrap_or_else(gone);
                }
                () = self.shared.purge_queue.notified() => tokio::task::block_in_place(|| self.purge_queue()),
                () = tokio::time::sleep(SLOW_BATCH) => self.check_leaders(batch).await,
            }
        }
    }

    /// Checks whether a partition without a leader delays the batch.
    async fn check_leaders(self: &Arc<Self>, batch: &[Record]) {
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
                .refresh(inner.current().client(), &kafka_topics, inner.lookup_timeout);
            let leaders = &inner.shared.leaders;
            if let Some(reason) = leaders.reason().filter(|_| leaders.take_has_lost()) {
                inner.shared.retire(reason);
                inner.purge_queue();
            }
        });
        // An error would be a panic of the task; the next check repeats it.
        let _ = looking.await;
    }

    /// Purges the messages that wait in librdkafka. Messages in flight to a broker remain.
    fn purge_queue(&self) {
        let _gate = self.lock_producer();
        if !self.shared.is_retired.load(Acquire) {
            // Another task has purged the queue, and the producer was replaced since.
            return;
        }
        self.current().purge(PurgeConfig::default().queue());
    }

    /// Replaces a retired producer after its messages have returned. Blocks.
    fn replace_retired(&self) -> Result<(), String> {
        if !self.shared.is_retired.load(Acquire) {
            return Ok(());
        }
        let producer = self.current();
        if producer.in_flight_count() > 0 {
            // librdkafka puts unanswered messages into its queue again.
            producer.purge(PurgeConfig::default().queue());
            let reason = self.shared.unreachable().clone();
            return Err(
                reason.unwrap_or_else(|| "messages of the previous Kafka producer are still in flight".to_owned())
            );
        }
        drop(producer);
        self.replace_producer()?;
        self.shared.reduced_at().take();
        self.shared.is_broken.store(false, Release);
        self.shared.is_retired.store(false, Release);
        Ok(())
    }

    fn lock_producer(&self) -> MutexGuard<'_, ()> {
        self.producer_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Arc<ThreadedProducer<DeliveryContext>> {
        Arc::clone(&self.producer.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the producer, after replacing a failed one.
    fn producer(&self) -> Result<Arc<ThreadedProducer<DeliveryContext>>, String> {
        if self.shared.is_broken.swap(false, AcqRel) {
            tracing::warn!("the Kafka producer had a fatal error and is replaced");
            self.replace_producer()?;
        }
        Ok(self.current())
    }

    /// Replaces the producer. Messages in flight in the old one return as not sent; the pump sends them again.
    fn replace_producer(&self) -> Result<(), String> {
        let new = producer(&self.options, &self.shared).map_err(|error| {
            self.shared.is_broken.store(true, Release);
            error.to_string()
        })?;
        let mut producer = self.producer.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *producer, new);
        drop(producer);
        old.purge(PurgeConfig::default().queue().inflight());
        // Dropping it joins its thread.
        tokio::task::spawn_blocking(move || drop(old));
        Ok(())
    }

    /// Reduces the batch size to the limit of the topic before the first message is sent. A rejected batch is retried,
    /// and later messages would overtake it. Blocks.
    fn limit_batch_size(&self) {
        let kafka_topic = &self.config.kafka_topic;
        let is_there = self
            .shared
            .look_up(self.current().client(), kafka_topic, self.lookup_timeout)
            .is_ok_and(|partitions| partitions.is_some());
        if !is_there {
            // The next sender gets the same error and reports it.
            return;
        }
        self.is_batch_size_set.store(true, Release);
        let limit = client::batch_limit(&self.options, kafka_topic, self.lookup_timeout);
        let Some(limit) = limit.filter(|limit| *limit < self.shared.batch_bytes.load(Acquire)) else {
            return;
        };
        tracing::info!(
            kafka_topic,
            limit,
            "batch size reduced to the topic's max.message.bytes"
        );
        self.shared.batch_bytes.fetch_min(limit, AcqRel);
        if let Err(reason) = self.replace_producer() {
            tracing::warn!(reason, "replacing the Kafka producer failed");
        }
    }

    fn enqueue<'a>(
        &'a self,
        producer: &Arc<ThreadedProducer<DeliveryContext>>,
        record: &'a Record,
        token: MessageToken,
        now: Instant,
        last: &mut LastTopic<'a>,
    ) -> Result<(), DeliveryFailure> {
        let kafka_topic = match self.fields.kafka_topic {
            None => std::borrow::Cow::Borrowed(self.config.kafka_topic.as_str()),
            Some(field) => record.text(field).unwrap_or_default(),
        };
        let loop_mark = self.loop_mark.as_ref();
        if loop_mark.is_some_and(|mark| mark.is_echo(record, &kafka_topic)) {
            self.skipped_echoes.fetch_add(1, Relaxed);
            producer.context().deliveries.settle(token, Ok(()));
            return Ok(());
        }
        let partitions = match last {
            Some((name, partitions)) if *name == kafka_topic => *partitions,
            _ => self.partitions(producer, &kafka_topic, now)?,
        };
        let key = record.field(KEY);
        let partition_key = self.fields.partition_key.map_or(key, |field| record.field(field));
        let leaders = &self.shared.leaders;
        let has_leader = |partition| leaders.are_complete() || leaders.has(&kafka_topic, partition);
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
            delivery_opaque: token.to_opaque(),
        };
        let sent = producer
            .send(message)
            .map_err(|(error, _)| self.shared.failure(&error, &kafka_topic));
        *last = Some((kafka_topic, partitions));
        sent
    }

    /// Returns a failure of all records if no partition has a leader, otherwise of this record.
    fn without_leader(&self, kafka_topic: &str) -> DeliveryFailure {
        let leaders = &self.shared.leaders;
        let reason = leaders
            .reason()
            .unwrap_or_else(|| "a partition has no leader".to_owned());
        let is_all = self.fields.kafka_topic.is_none() && leaders.has_none(kafka_topic);
        match is_all {
            true => self.shared.note(DeliveryFailure::Unreachable(reason)),
            false => DeliveryFailure::Temporary(reason),
        }
    }

    fn partitions(
        &self,
        producer: &Arc<ThreadedProducer<DeliveryContext>>,
        kafka_topic: &str,
        now: Instant,
    ) -> Result<u32, DeliveryFailure> {
        match self.shared.topics.get(kafka_topic, now) {
            CachedPartitions::Known(count) => return Ok(count),
            CachedPartitions::Stale(count) => {
                self.refresh(vec![kafka_topic.to_owned()], producer);
                return Ok(count);
            }
            CachedPartitions::Missing => return Err(self.shared.unknown(kafka_topic)),
            CachedPartitions::Unknown => {}
        }
        check_topic(kafka_topic).map_err(DeliveryFailure::Refused)?;
        // Later batches wait for this query. Otherwise they would overtake this one.
        let shared = &self.shared;
        let looked_up =
            tokio::task::block_in_place(|| shared.look_up(producer.client(), kafka_topic, self.lookup_timeout));
        match looked_up {
            Ok(Some(count)) => Ok(count),
            Ok(None) => Err(self.shared.unknown(kafka_topic)),
            Err(error) => Err(self.shared.failure(&error, kafka_topic)),
        }
    }

    /// Queries partitions and leaders in the background, while the cached state is used.
    fn refresh(&self, kafka_topics: Vec<String>, producer: &Arc<ThreadedProducer<DeliveryContext>>) {
        if kafka_topics.is_empty() || self.shared.is_refreshing.swap(true, AcqRel) {
            return;
        }
        let (producer, shared, timeout) = (Arc::clone(producer), Arc::clone(&self.shared), self.lookup_timeout);
        tokio::task::spawn_blocking(move || shared.refresh(producer.client(), &kafka_topics, timeout));
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

    /// Checks the topic, after replacing a retired or failed producer. Blocks.
    fn check(&self) -> Result<(), String> {
        self.replace_retired()?;
        let producer = self.producer()?;
        // Nothing is sent until all messages have returned.
        let is_unreachable = self.shared.unreachable().is_some();
        match self.topic_exists(producer.client(), is_unreachable) {
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
        match &mut *self.shared.unreachable() {
            // A failure occurred during the check. All messages have to return before the next check.
            Some(reason) if !is_unreachable => Err(reason.clone()),
            unreachable => {
                *unreachable = None;
                Ok(())
            }
        }
    }

    fn topic_exists<C: ClientContext>(&self, client: &Client<C>, is_unreachable: bool) -> Result<bool, KafkaError> {
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
                .and_then(|layout| shared.leaders.update(kafka_topic, layout));
            match back {
                Some(reason) if !is_unreachable => _ = shared.note(DeliveryFailure::Unreachable(reason)),
                _ if is_unreachable => shared.leaders.set(kafka_topic, layout),
                _ => {}
            }
        }
        Ok(is_there)
    }
}

#[cfg(test)]
#[path = "echo_tests.rs"]
mod echo_tests;
#[cfg(test)]
#[path = "fatal_tests.rs"]
mod fatal_tests;
