//! A real Kafka cluster from `dev/kafka`: administration, and the records of its topics.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::shared::KAFKA;
use super::*;

/// Timeout for Kafka operations. Kafka is a Java program and the machine may be busy.
const KAFKA_PATIENCE: Duration = Duration::from_secs(60);

/// Number of nodes that tests may still start. Each node needs 256 MiB of memory.
static NODES_LEFT: Mutex<u32> = Mutex::new(4);
static NODES_CHANGED: Condvar = Condvar::new();

/// Reservation of nodes by a test until the test ends.
struct Nodes(u32);

impl Nodes {
    fn wait_for(count: u32) -> Nodes {
        let left = NODES_LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        let left = NODES_CHANGED.wait_while(left, |left| *left < count);
        *left.unwrap_or_else(PoisonError::into_inner) -= count;
        Nodes(count)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        *NODES_LEFT.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        NODES_CHANGED.notify_all();
    }
}

/// The Kafka cluster shared by all tests, or a separate one that stops when the value is dropped.
pub struct Kafka {
    directory: PathBuf,
    pub address: String,
    /// Address for SASL PLAIN and SCRAM. User and password are `tidewire`.
    pub sasl: String,
    /// Directory of `krb5.conf` and `tidewire.keytab` if Kafka uses Kerberos.
    #[cfg_attr(not(feature = "gssapi"), allow(dead_code))]
    pub kerberos: Option<PathBuf>,
    replicas: i32,
    own: Option<Nodes>,
}

/// A record read from Kafka.
pub struct Found {
    pub partition: i32,
    pub key: String,
    pub value: String,
}

impl Kafka {
    /// Returns the single node that all tests share.
    pub fn shared() -> Kafka {
        Kafka {
            directory: KAFKA.directory().to_owned(),
            address: KAFKA.value("TIDEWIRE_KAFKA"),
            sasl: KAFKA.value("TIDEWIRE_KAFKA_SASL"),
            kerberos: None,
            replicas: 1,
            own: None,
        }
    }

    /// Starts separate nodes, for a test that stops them.
    pub fn start(nodes: u32) -> Kafka {
        Kafka::start_with(nodes, &[])
    }

    /// Starts separate nodes with these options of the script.
    pub fn start_with(nodes: u32, options: &[&str]) -> Kafka {
        let own = Nodes::wait_for(nodes);
        let name = unique(&format!("tidewire-rules-kafka-{}", std::process::id()));
        let directory = std::env::temp_dir().join(name);
        let output = script(&[&["start", &directory.to_string_lossy(), &nodes.to_string()], options].concat());
        let value = |name: &str| {
            output
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
        };
        Kafka {
            address: value("TIDEWIRE_KAFKA=").expect("the script prints the address"),
            sasl: value("TIDEWIRE_KAFKA_SASL=").expect("the script prints the address"),
            kerberos: value("TIDEWIRE_KAFKA_KERBEROS=").map(PathBuf::from),
            directory,
            replicas: nodes as i32,
            own: Some(own),
        }
    }

    /// Creates a topic with a unique name. Returns the name when all partitions have a leader.
    pub fn topic(&self, prefix: &str, partitions: u32) -> String {
        let name = unique(&format!("{prefix}-{}", std::process::id()));
        self.create_topic(&name, partitions);
        name
    }

    /// Creates a topic. Returns when all partitions have a leader.
    pub fn create_topic(&self, name: &str, partitions: u32) {
        let topic = NewTopic::new(name, partitions as i32, TopicReplication::Fixed(self.replicas));
        let created = block_on(self.admin().create_topics([&topic], &AdminOptions::new()));
        assert!(matches!(created.as_deref(), Ok([Ok(_)])), "{created:?}");
        self.wait_for_partitions(name, partitions as usize);
    }

    /// Deletes a topic. Returns when it has no partitions left and the only node has renamed their directories.
    pub fn delete_topic(&self, name: &str) {
        let deleted = block_on(self.admin().delete_topics(&[name], &AdminOptions::new()));
        assert!(matches!(deleted.as_deref(), Ok([Ok(_)])), "{deleted:?}");
        self.wait_for_partitions(name, 0);
        let start = Instant::now();
        while self.has_directory(name) {
            assert!(
                start.elapsed() < KAFKA_PATIENCE,
                "Kafka does not rename the directories of {name}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn has_directory(&self, name: &str) -> bool {
        let entries = std::fs::read_dir(self.directory.join("data.1")).expect("the data of the only node");
        let is_partition = |directory: &str| {
            let partition = directory.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
            partition.is_some_and(|partition| partition.parse::<u32>().is_ok())
        };
        entries
            .map_while(Result::ok)
            .any(|entry| is_partition(&entry.file_name().to_string_lossy()))
    }

    /// Creates an admin client. Kafka's own tool would need a second of CPU time per call.
    fn admin(&self) -> AdminClient<DefaultClientContext> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.address);
        config.create().expect("valid options")
    }

    /// Runs `verb`: `stop`, `kill`, or `start` for a node that is not running.
    pub fn call(&self, verb: &str, more: &[&str]) {
        let directory = self.directory.to_string_lossy();
        let mut arguments = vec![verb, &directory];
        arguments.extend(more);
        script(&arguments);
    }

    fn consumer(&self) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.address);
        config.set("group.id", "reads-all").set("enable.auto.commit", "false");
        config.create().expect("valid options")
    }

    fn wait_for_partitions(&self, name: &str, count: usize) {
        let (consumer, end) = (self.consumer(), Instant::now() + KAFKA_PATIENCE);
        while partitions(&consumer, name).len() != count {
            assert!(Instant::now() < end, "{name} does not have {count} partitions");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until all replicas are in sync. Returns the number of partitions whose leader is not the preferred one.
    pub fn wait_until_settled(&self, name: &str) -> usize {
        let (consumer, end) = (self.consumer(), Instant::now() + KAFKA_PATIENCE);
        loop {
            if let Some(metadata) = settled(&consumer, name) {
                return misplaced(&metadata);
            }
            assert!(Instant::now() < end, "the replicas of {name} do not catch up");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the number of partitions whose leader is not the preferred one, or `usize::MAX` if it is unknown.
    pub fn misplaced(&self, name: &str) -> usize {
        let metadata = self.consumer().fetch_metadata(Some(name), KAFKA_PATIENCE);
        metadata.map_or(usize::MAX, |metadata| misplaced(&metadata))
    }

    pub fn is_empty(&self, name: &str) -> bool {
        let consumer = self.consumer();
        let is_empty = |partition: i32| {
            let marks = consumer.fetch_watermarks(name, partition, KAFKA_PATIENCE);
            marks.is_ok_and(|(low, high)| low == high)
        };
        partitions(&consumer, name).into_iter().all(is_empty)
    }

    /// Returns the records of deleted topics of this name, except those in files in `seen`. Kafka removes the files
    /// after a minute.
    pub fn read_deleted(&self, name: &str, seen: &mut HashSet<PathBuf>) -> Vec<Found> {
        let mut found = Vec::new();
        let entries = std::fs::read_dir(self.directory.join("data.1")).expect("the data of the only node");
        for entry in entries.map_while(Result::ok) {
            let (directory, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            let Some((partition, _)) = directory
                .strip_suffix("-delete")
                .and_then(|rest| rest.strip_prefix(name)?.strip_prefix('-')?.split_once('.'))
            else {
                continue;
            };
            if seen.insert(path.clone()) {
                let partition = partition.parse().expect("a number");
                found.append(&mut super::kafka_log::records(&path, partition));
            }
        }
        found
    }

    pub fn producer(&self) -> Producer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.address);
        config.set("enable.idempotence", "true").set("linger.ms", "1");
        Producer(config.create().expect("valid options"))
    }

    /// Waits until all replicas are in sync and returns all records of the topic.
    pub fn read(&self, name: &str) -> Vec<Found> {
        let consumer = self.consumer();
        self.wait_until_settled(name);
        let (mut places, mut left) = (TopicPartitionList::new(), 0);
        for partition in partitions(&consumer, name) {
            let marks = consumer.fetch_watermarks(name, partition, KAFKA_PATIENCE);
            let (low, high) = marks.expect("Kafka is running");
            left += high - low;
            let added = places.add_partition_offset(name, partition, Offset::Beginning);
            added.expect("an offset");
        }
        consumer.assign(&places).expect("partitions");
        let (mut found, mut came) = (Vec::new(), Instant::now());
        while left > 0 {
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else {
                assert!(came.elapsed() < KAFKA_PATIENCE, "{left} messages do not arrive");
                continue;
            };
            (left, came) = (left - 1, Instant::now());
            let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
            found.push(Found {
                partition: message.partition(),
                key: text(message.key()),
                value: text(message.payload()),
            });
        }
        found
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        if self.own.is_none() {
            return;
        }
        let directory = self.directory.to_string_lossy();
        let _ = Command::new(SCRIPT).args(["kill", &directory]).output();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/kafka");

fn script(arguments: &[&str]) -> String {
    let output = Command::new(SCRIPT).args(arguments).output().expect("dev/kafka runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "dev/kafka {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the partitions that have a leader.
fn partitions(consumer: &BaseConsumer, name: &str) -> Vec<i32> {
    let Ok(metadata) = consumer.fetch_metadata(Some(name), KAFKA_PATIENCE) else {
        return Vec::new();
    };
    let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
    let led = partitions.filter(|partition| partition.leader() >= 0);
    led.map(|partition| partition.id()).collect()
}

/// Returns the metadata of the topic if all replicas are in sync.
fn settled(consumer: &BaseConsumer, name: &str) -> Option<Metadata> {
    let metadata = consumer.fetch_metadata(Some(name), KAFKA_PATIENCE).ok()?;
    let mut partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
    let is_settled =
        partitions.all(|partition| partition.leader() >= 0 && partition.isr().len() == partition.replicas().len());
    is_settled.then_some(metadata)
}

fn misplaced(metadata: &Metadata) -> usize {
    let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
    let is_misplaced =
        |partition: &rdkafka::metadata::MetadataPartition| Some(&partition.leader()) != partition.replicas().first();
    partitions.filter(|partition| is_misplaced(partition)).count()
}

/// Producer that writes in order and buffers records while Kafka is unavailable.
pub struct Producer(ThreadedProducer<DefaultProducerContext>);

impl Producer {
    pub fn send(&self, name: &str, key: &str, value: &str) {
        let sent = self.0.send(BaseRecord::to(name).key(key).payload(value));
        assert!(sent.is_ok(), "librdkafka accepts a record");
    }

    pub fn flush(&self) {
        self.0.flush(KAFKA_PATIENCE).expect("Kafka is running");
    }
}
