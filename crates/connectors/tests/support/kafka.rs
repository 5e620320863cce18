//! Helpers of the tests with real Kafka nodes: topics and their contents, an action with its buffer, and a check that
//! all messages arrived in order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use connectors::kafka::{KafkaActionConfig, KafkaConnectorConfig, KafkaSink};
use connectors::{Action, ActionBuffer, ActionStats, BufferConfig, DeliveryConfig, QueryMode, Records, RetryConfig};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::support::{Directory, PATIENCE, until};

pub fn admin(hosts: &str) -> AdminClient<DefaultClientContext> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", hosts).create().expect("valid options")
}

pub async fn create(hosts: &str, name: &str, partitions: i32, replicas: i32) {
    create_topic(
        hosts,
        &NewTopic::new(name, partitions, TopicReplication::Fixed(replicas)),
    )
    .await;
}

/// Returns when all partitions have a leader. Kafka answers earlier, and then says for a moment that the topic does not
/// exist.
pub async fn create_topic(hosts: &str, topic: &NewTopic<'_>) {
    until("the topic is created", async || {
        let created = admin(hosts).create_topics([topic], &AdminOptions::new()).await;
        matches!(created.as_deref(), Ok([Ok(_)]))
    })
    .await;
    let admin = admin(hosts);
    until("the partitions have leaders", async || {
        let metadata = admin.inner().fetch_metadata(Some(topic.name), PATIENCE);
        metadata.is_ok_and(|metadata| {
            let partitions = metadata.topics().iter().flat_map(|found| found.partitions());
            let led = partitions.filter(|partition| partition.leader() >= 0).count();
            led == usize::try_from(topic.num_partitions).unwrap_or_default()
        })
    })
    .await;
}

pub async fn delete(hosts: &str, name: &str) {
    let deleted = admin(hosts).delete_topics(&[name], &AdminOptions::new()).await;
    assert!(matches!(deleted.as_deref(), Ok([Ok(_)])), "{deleted:?}");
}

pub fn connector(hosts: &str) -> KafkaConnectorConfig {
    serde_json::from_value(json!({"bootstrap_hosts": hosts})).expect("a configuration")
}

/// Returns the configuration of an action on `kafka_topic`, changed by `with`.
pub fn action(kafka_topic: &str, with: Value) -> KafkaActionConfig {
    let mut config = json!({"kafka_topic": kafka_topic, "partition_refresh_ms": 1000});
    let fields = with.as_object().expect("an object").clone();
    config.as_object_mut().expect("an object").extend(fields);
    serde_json::from_value(config).expect("a configuration")
}

pub fn sink(hosts: &str, config: &KafkaActionConfig) -> KafkaSink {
    KafkaSink::new(&connector(hosts), config).expect("a valid configuration")
}

#[derive(Debug)]
pub struct Found {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub unix_ms: Option<i64>,
}

impl Found {
    pub fn number(&self) -> u32 {
        let value = self.value.as_deref().expect("a value");
        let digits = std::str::from_utf8(value).expect("text").split(' ').next();
        digits.expect("there is a first word").parse().expect("a number")
    }
}

/// Reads all messages of a topic.
pub async fn read_all(hosts: &str, name: &str) -> Vec<Found> {
    let (hosts, name) = (hosts.to_owned(), name.to_owned());
    tokio::task::spawn_blocking(move || read_all_blocking(&hosts, &name))
        .await
        .expect("no panic")
}

pub fn read_all_blocking(hosts: &str, name: &str) -> Vec<Found> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", hosts)
        .set("group.id", "reads-all")
        .set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create().expect("valid options");
    // A leader that has just restarted may not know yet how far its followers are.
    let end = Instant::now() + PATIENCE;
    let partitions = loop {
        let metadata = consumer
            .fetch_metadata(Some(name), PATIENCE)
            .expect("Kafka is reachable");
        let partitions = metadata.topics()[0].partitions();
        let is_settled =
            |partition: &rdkafka::metadata::MetadataPartition| partition.isr().len() == partition.replicas().len();
        if !partitions.is_empty() && partitions.iter().all(is_settled) {
            break partitions.iter().map(|partition| partition.id()).collect::<Vec<i32>>();
        }
        assert!(Instant::now() < end, "the replicas of {name} do not catch up");
        std::thread::sleep(Duration::from_millis(100));
    };
    let (mut offsets, mut left) = (TopicPartitionList::new(), 0);
    for partition in partitions {
        let (low, high) = consumer
            .fetch_watermarks(name, partition, PATIENCE)
            .expect("Kafka is reachable");
        left += high - low;
        offsets
            .add_partition_offset(name, partition, Offset::Beginning)
            .expect("an offset");
    }
    consumer.assign(&offsets).expect("partitions");
    let (mut found, end) = (Vec::new(), Instant::now() + PATIENCE);
    while left > 0 {
        assert!(Instant::now() < end, "{left} messages are missing");
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else {
            continue;
        };
        left -= 1;
        let headers = message.headers().map(|headers| {
            let each = headers.iter();
            each.map(|header| (header.key.to_owned(), header.value.unwrap_or_default().to_vec()))
                .collect()
        });
        found.push(Found {
            partition: message.partition(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
            unix_ms: message.timestamp().to_millis(),
        });
    }
    found
}

/// An action with its disk buffer.
pub struct Bridge {
    pub directory: Directory,
    pub action: Action,
    pub next: u32,
}

pub const KEYS: u32 = 50;

impl Bridge {
    pub fn start(hosts: &str, config: &KafkaActionConfig) -> Bridge {
        Bridge::start_with(hosts, config, KafkaActionConfig::default_delivery())
    }

    pub fn start_with(hosts: &str, config: &KafkaActionConfig, delivery: DeliveryConfig) -> Bridge {
        let directory = Directory::new("kafka-buffer");
        let buffer = ActionBuffer::open(directory.path(), &BufferConfig::default(), QueryMode::Async, || ());
        let action = Action::new("test", buffer.expect("a directory that can be written to"));
        let delivery = DeliveryConfig {
            retry: RetryConfig {
                first_ms: 50,
                longest_ms: 500,
                ..RetryConfig::default()
            },
            health_check_interval_ms: 500,
            ..delivery
        };
        action.start(Arc::new(sink(hosts, config)), &delivery, &Handle::current());
        Bridge {
            directory,
            action,
            next: 0,
        }
    }

    /// Publishes `count` messages with 50 keys. Returns the number of messages so far.
    pub fn publish(&mut self, count: u32) -> u32 {
        self.publish_sized(count, 80)
    }

    pub fn publish_sized(&mut self, count: u32, bytes: usize) -> u32 {
        let mut records = Records::new();
        for number in self.next..self.next + count {
            let (value, key) = (format!("{number} {:bytes$}", ""), format!("key-{}", number % KEYS));
            records.push(
                1,
                u64::from(number % KEYS),
                &[Some(value.as_bytes()), Some(key.as_bytes())],
            );
        }
        self.action.buffer().append(&mut records).expect("space");
        self.next += count;
        self.next
    }

    pub async fn all_sent(&self) {
        until("all is sent", async || self.action.stats().sent == u64::from(self.next)).await;
    }

    pub async fn stop(self) -> ActionStats {
        self.action.stop(PATIENCE).await;
        let stats = self.action.stats();
        self.action.buffer().shut_down().expect("the disk is there");
        drop(self.directory);
        stats
    }
}

/// Asserts that all numbers arrived, and that the first arrivals of each key are in order. Returns the number of
/// duplicates.
pub fn reconcile(found: &[Found], numbers: Range<u32>) -> usize {
    let mut first_of_key: BTreeMap<Vec<u8>, Vec<u32>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for message in found {
        if seen.insert(message.number()) {
            let key = message.key.clone().expect("a key");
            first_of_key.entry(key).or_default().push(message.number());
        }
    }
    let missing: Vec<u32> = numbers.filter(|number| !seen.contains(number)).collect();
    let mut of_partition: BTreeMap<i32, usize> = BTreeMap::new();
    for message in found {
        *of_partition.entry(message.partition).or_default() += 1;
    }
    assert!(
        missing.is_empty(),
        "{} missing, {:?} to {:?}; stored per partition: {of_partition:?}",
        missing.len(),
        missing.first(),
        missing.last()
    );
    for (key, numbers) in first_of_key {
        assert!(
            numbers.is_sorted(),
            "key {}: {numbers:?}",
            String::from_utf8_lossy(&key)
        );
    }
    found.len() - seen.len()
}
