//! The Kafka source: a consumer group member that commits offsets only after the receiver has accepted the messages.
//!
//! A thread polls librdkafka. It must poll even while the receiver is busy; it pauses the partitions then. It sends
//! batches to the task of [`KafkaSource::run`], which passes them to the receiver in order and stores their offsets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message, Timestamp};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver as Batches, Sender, channel};
use tokio::time::timeout;

use super::client::{self, LastConnectionError};
use super::config::{KafkaConnectorConfig, KafkaSourceConfig, OffsetReset, check_topic};
use crate::backoff::Backoff;
use crate::config::{RetryConfig, at_least, out_of_range};
use crate::health::HealthCell;
use crate::loop_mark::{LOOP_PROPERTY, LoopMark};
use crate::sink::BoxFuture;
use crate::source::{Receiver, Source, SourceMessage, SourceOrigin, StopSignal, TimestampSource};

/// Maximum number of batches that wait for the receiver.
const BATCHES: usize = 2;
const POLL: Duration = Duration::from_millis(100);
/// How often unreachable brokers are queried: librdkafka reports that brokers are down, but not that they are up again.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long the receiver may take before partitions are paused, which discards fetched messages. It is longer than the
/// longest `durability.commit_interval`.
const PAUSE_AFTER: Duration = Duration::from_secs(3);

pub struct KafkaSource {
    options: ClientConfig,
    config: KafkaSourceConfig,
    health: HealthCell,
    loop_mark: Option<LoopMark>,
    lookup_timeout: Duration,
}

impl KafkaSource {
    /// Creates a source without connecting. It updates `health`. The errors name the fields.
    pub fn new(
        connector: &KafkaConnectorConfig,
        config: &KafkaSourceConfig,
        health: HealthCell,
    ) -> Result<KafkaSource, Vec<String>> {
        KafkaSource::with_loop_mark(connector, config, health, None)
    }

    /// Creates a source that adds a mark to each message. A sink with the same mark does not return the message to its
    /// topic.
    pub fn with_loop_mark(
        connector: &KafkaConnectorConfig,
        config: &KafkaSourceConfig,
        health: HealthCell,
        loop_mark: Option<LoopMark>,
    ) -> Result<KafkaSource, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut options = connector.options();
        set_options(&mut options, config);
        Ok(KafkaSource {
            options,
            config: config.clone(),
            health,
            loop_mark,
            lookup_timeout: Duration::from_millis(connector.connect_timeout_ms),
        })
    }

    fn consumer(&self) -> Result<Arc<KafkaConsumer>, KafkaError> {
        let context = ConsumerMonitor {
            last_error: LastConnectionError::default(),
            health: self.health.clone(),
            is_down: AtomicBool::new(false),
            is_member: AtomicBool::new(false),
        };
        let consumer = BaseConsumer::from_config_and_context(&self.options, context)?;
        let topics: Vec<&str> = self.config.kafka_topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics)?;
        Ok(Arc::new(consumer))
    }

    /// Passes batches to the receiver until the thread ends or `stop` is signalled.
    async fn pass_batches(
        &self,
        consumer: &KafkaConsumer,
        mut batches: Batches<Vec<SourceMessage>>,
        receiver: &dyn Receiver,
        mut stop: StopSignal,
    ) {
        let retry = RetryConfig::default();
        let mut backoff = Backoff::new(&retry);
        loop {
            let batch = tokio::select! {
                batch = batches.recv() => batch,
                () = stop.stopped() => None,
            };
            let Some(batch) = batch else {
                return;
            };
            while let Err(error) = tokio::select! {
                received = receiver.receive(&batch) => received,
                () = stop.stopped() => return,
            } {
                self.health
                    .error(format!("processing the messages failed, retrying: {error}"));
                tokio::select! {
                    () = tokio::time::sleep(backoff.pause()) => {}
                    () = stop.stopped() => return,
                }
            }
            backoff.reset();
            store(consumer, &batch);
        }
    }
}

impl KafkaSourceConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.kafka_topics.is_empty() {
            problems.push("kafka_topics: must name at least one topic".to_owned());
        }
        for (index, name) in self.kafka_topics.iter().enumerate() {
            if let Err(problem) = check_topic(name) {
                problems.push(format!("kafka_topics[{index}]: {problem}"));
            }
        }
        if self.group_id.is_empty() {
            problems.push("group_id: must not be empty".to_owned());
        }
        problems.extend(out_of_range([
            ("batch_records_max", self.batch_records_max.into(), 1..=10_000),
            ("commit_interval_ms", self.commit_interval_ms, at_least(10)),
            ("session_timeout_ms", self.session_timeout_ms, 6_000..=3_600_000),
            ("fetch_bytes_max", self.fetch_bytes_max, 65_536..=1 << 30),
        ]));
        problems
    }
}

fn set_options(options: &mut ClientConfig, config: &KafkaSourceConfig) {
    let reset = match config.offset_reset {
        OffsetReset::Latest => "latest",
        OffsetReset::Earliest => "earliest",
    };
    options
        .set("group.id", &config.group_id)
        .set("auto.offset.reset", reset)
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", config.commit_interval_ms.to_string())
        // Offsets are stored after the receiver has accepted the messages.
        .set("enable.auto.offset.store", "false")
        .set("session.timeout.ms", config.session_timeout_ms.to_string())
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set(
            "queued.max.messages.kbytes",
            (config.fetch_bytes_max / 1024).max(1).to_string(),
        )
        .set("allow.auto.create.topics", "false");
}

type KafkaConsumer = BaseConsumer<ConsumerMonitor>;

struct ConsumerMonitor {
    last_error: LastConnectionError,
    health: HealthCell,
    /// All brokers are down, since partitions were assigned.
    is_down: AtomicBool,
    /// The group has accepted this member, possibly without partitions.
    is_member: AtomicBool,
}

impl ConsumerMonitor {
    fn recovered(&self) {
        self.is_down.store(false, Ordering::Relaxed);
        self.last_error.clear();
        self.health.connected();
    }
}

impl ClientContext for ConsumerMonitor {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        client::remember(&self.last_error, &error, reason);
        if client::code(&error) == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.is_down.store(true, Ordering::Relaxed);
            self.health.disconnected(self.last_error.explain(&error));
        }
    }
}

impl ConsumerContext for ConsumerMonitor {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(_) = rebalance {
            self.is_member.store(true, Ordering::Relaxed);
            self.recovered();
        }
    }
}

impl Source for KafkaSource {
    fn run<'a>(&'a self, receiver: &'a dyn Receiver, stop: StopSignal) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.health.connecting();
            let consumer = match self.consumer() {
                Ok(consumer) => consumer,
                Err(error) => {
                    self.health.disconnected(client::text(&error));
                    return;
                }
            };
            let (sender, batches) = channel(BATCHES);
            let poller = Poller {
                consumer: Arc::clone(&consumer),
                sender,
                runtime: Handle::current(),
                health: self.health.clone(),
                loop_mark: self.loop_mark.clone(),
                records_max: self.config.batch_records_max as usize,
                is_paused: false,
                checked: Instant::now(),
                topic: self.config.kafka_topics[0].clone(),
            };
            let polling = tokio::task::spawn_blocking(move || poller.run());
            self.pass_batches(&consumer, batches, receiver, stop).await;
            // The thread ends after `pass_batches` has dropped the receiving end.
            let _ = polling.await;
            // Leaves the group, and commits stored offsets.
            let _ = tokio::task::spawn_blocking(move || drop(consumer)).await;
            self.health.disconnected_on_request();
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        let (options, topics, timeout) = (
            self.options.clone(),
            self.config.kafka_topics.clone(),
            self.lookup_timeout,
        );
        Box::pin(async move {
            let checked = tokio::task::spawn_blocking(move || check(&options, &topics, timeout)).await;
            checked.unwrap_or_else(|error| Err(error.to_string()))
        })
    }
}

/// Checks that the topics can be read. Blocks.
fn check(options: &ClientConfig, topics: &[String], timeout: Duration) -> Result<(), String> {
    let context = client::PlainClientContext::default();
    let last_error = context.last_error.clone();
    let explain = |error: &KafkaError| last_error.explain(error);
    let mut options = options.clone();
    // The check does not join the group.
    options.remove("group.id");
    let consumer: BaseConsumer<LookupContext> =
        BaseConsumer::from_config_and_context(&options, LookupContext(context)).map_err(|error| error.to_string())?;
    for topic in topics {
        let metadata = consumer
            .fetch_metadata(Some(topic), timeout)
            .map_err(|error| explain(&error))?;
        let found = metadata
            .topics()
            .iter()
            .any(|found| found.name() == topic && found.error().is_none());
        if !found {
            return Err(format!(
                "the Kafka topic {topic:?} does not exist, or the client may not read it"
            ));
        }
    }
    Ok(())
}

struct LookupContext(client::PlainClientContext);

impl ClientContext for LookupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.error(error, reason);
    }
}

impl ConsumerContext for LookupContext {}

/// Stores the offsets of a batch that the receiver has accepted.
fn store(consumer: &KafkaConsumer, batch: &[SourceMessage]) {
    let mut ends = BTreeMap::new();
    for message in batch {
        if let SourceOrigin::Kafka { partition, offset, .. } = message.origin {
            ends.insert((&*message.topic, partition), offset + 1);
        }
    }
    let mut offsets = TopicPartitionList::new();
    for ((kafka_topic, partition), end) in ends {
        // Only invalid offsets fail.
        let _ = offsets.add_partition_offset(kafka_topic, partition, Offset::Offset(end));
    }
    if let Err(error) = consumer.store_offsets(&offsets) {
        // The partition was assigned to another member, which receives the messages again.
        tracing::debug!(%error, "storing offsets failed");
    }
}

/// The polling thread.
struct Poller {
    consumer: Arc<KafkaConsumer>,
    sender: Sender<Vec<SourceMessage>>,
    runtime: Handle,
    health: HealthCell,
    loop_mark: Option<LoopMark>,
    records_max: usize,
    is_paused: bool,
    /// Time of the last query of unreachable brokers.
    checked: Instant,
    /// The topic whose metadata is queried.
    topic: String,
}

impl Poller {
    fn run(mut self) {
        let mut batch = Vec::new();
        while !self.sender.is_closed() {
            self.check_brokers();
            self.poll(&mut batch, POLL);
            while !batch.is_empty() && batch.len() < self.records_max && self.poll(&mut batch, Duration::ZERO) {}
            if !batch.is_empty() {
                self.pass_batch(&mut batch);
            }
        }
    }

    /// After a short outage the partitions are still assigned, so that no rebalance reports the recovery.
    fn check_brokers(&mut self) {
        let context = self.consumer.context();
        if !context.is_down.load(Ordering::Relaxed) || self.checked.elapsed() < CHECK_EVERY {
            return;
        }
        self.checked = Instant::now();
        // A group member without partitions counts as connected.
        if context.is_member.load(Ordering::Relaxed)
            && self.consumer.fetch_metadata(Some(&self.topic), CHECK_EVERY).is_ok()
        {
            context.recovered();
        }
    }

    /// Polls once. Returns whether there was a message.
    fn poll(&self, batch: &mut Vec<SourceMessage>, timeout: Duration) -> bool {
        match self.consumer.poll(timeout) {
            None => false,
            Some(Ok(message)) => {
                let mut message = incoming(&message);
                if let Some(mark) = &self.loop_mark {
                    let value = Some(mark.received(&message.topic).into_bytes());
                    message.headers.push((LOOP_PROPERTY.to_owned(), value));
                }
                batch.push(message);
                true
            }
            Some(Err(error)) => {
                self.health.error(self.consumer.context().last_error.explain(&error));
                false
            }
        }
    }

    /// Waits until the receiver accepts the batch. Polls in the meantime, because Kafka would otherwise remove the
    /// member.
    fn pass_batch(&mut self, batch: &mut Vec<SourceMessage>) {
        let since = Instant::now();
        loop {
            match self.runtime.block_on(timeout(POLL, self.sender.reserve())) {
                Ok(Ok(permit)) => {
                    permit.send(std::mem::take(batch));
                    break;
                }
                Ok(Err(_)) => return,
                Err(_) => {}
            };
            if since.elapsed() > PAUSE_AFTER {
                self.pause();
                // Messages that arrived before the pause took effect.
                self.poll(batch, Duration::ZERO);
            }
        }
        self.resume();
    }

    fn pause(&mut self) {
        // Includes partitions that were assigned since the last pause.
        if let Ok(assigned) = self.consumer.assignment()
            && self.consumer.pause(&assigned).is_ok()
        {
            self.is_paused = true;
        }
    }

    fn resume(&mut self) {
        if self.is_paused
            && let Ok(assigned) = self.consumer.assignment()
            && self.consumer.resume(&assigned).is_ok()
        {
            self.is_paused = false;
        }
    }
}

fn incoming(message: &BorrowedMessage<'_>) -> SourceMessage {
    let headers = message.headers().map(|headers| {
        let each = headers.iter();
        each.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect()
    });
    SourceMessage {
        topic: message.topic().to_owned(),
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
        properties: Vec::new(),
        unix_ms: message.timestamp().to_millis().map(|ms| ms.max(0) as u64),
        origin: SourceOrigin::Kafka {
            partition: message.partition(),
            offset: message.offset(),
            stamped_by: match message.timestamp() {
                Timestamp::NotAvailable => TimestampSource::Unset,
                Timestamp::CreateTime(_) => TimestampSource::Producer,
                Timestamp::LogAppendTime(_) => TimestampSource::Broker,
            },
        },
    }
}
