//! A real Kafka from `dev/kafka`, what operators do to it, and all that its topics have.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::support::*;

/// A test that waits for Kafka waits for a Java program on a machine that may be busy.
const KAFKA_PATIENCE: Duration = Duration::from_secs(60);

/// One at a time: each takes half a gigabyte.
static TURN: Mutex<()> = Mutex::new(());

/// A Kafka that ends with it.
pub struct Kafka {
    directory: PathBuf,
    pub address: String,
    /// With the user `tidewire` and the same password, by PLAIN and SCRAM.
    pub sasl: String,
    /// Where `krb5.conf` and `tidewire.keytab` are, of a Kafka with Kerberos.
    #[cfg_attr(not(feature = "gssapi"), allow(dead_code))]
    pub kerberos: Option<PathBuf>,
    _turn: MutexGuard<'static, ()>,
}

/// A record as it stands in Kafka.
pub struct Found {
    pub partition: i32,
    pub key: String,
    pub value: String,
}

impl Kafka {
    pub fn start(nodes: u32) -> Kafka {
        Kafka::start_with(&[&nodes.to_string()])
    }

    /// `options`: as the script takes them.
    pub fn start_with(options: &[&str]) -> Kafka {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let name = unique(&format!("tidewire-rules-kafka-{}", std::process::id()));
        let directory = std::env::temp_dir().join(name);
        let output = script(&[&["start", &directory.to_string_lossy()], options].concat());
        let told = |name: &str| {
            output
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
        };
        Kafka {
            address: told("TIDEWIRE_KAFKA=").expect("the script tells it"),
            sasl: told("TIDEWIRE_KAFKA_SASL=").expect("the script tells it"),
            kerberos: told("TIDEWIRE_KAFKA_KERBEROS=").map(PathBuf::from),
            directory,
            _turn: turn,
        }
    }

    /// Returns when all can be written to.
    pub fn topic(&self, name: &str, partitions: u32) {
        self.call("topic", &[name, &partitions.to_string()]);
        self.wait_for_partitions(name, partitions as usize);
    }

    /// Returns when nobody can write to it any more.
    pub fn delete_topic(&self, name: &str) {
        self.call("delete-topic", &[name]);
        self.wait_for_partitions(name, 0);
    }

    /// `verb`: `stop`, `kill`, or `start` for what does not run.
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
            assert!(Instant::now() < end, "{name} has not got {count} partitions");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until all replicas are there; how many partitions are led by others than those that are preferred.
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

    /// Partitions that are led by others than those that are preferred; all that there are when nothing is known.
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

    /// What topics of this name had that are deleted, but for files that are in `seen`: Kafka removes them a minute later.
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
                found.append(&mut crate::kafka_log::records(&path, partition));
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

    /// All that a topic has, once all its replicas are there.
    pub fn read(&self, name: &str) -> Vec<Found> {
        let consumer = self.consumer();
        self.wait_until_settled(name);
        let (mut places, mut left) = (TopicPartitionList::new(), 0);
        for partition in partitions(&consumer, name) {
            let marks = consumer.fetch_watermarks(name, partition, KAFKA_PATIENCE);
            let (low, high) = marks.expect("Kafka is there");
            left += high - low;
            let added = places.add_partition_offset(name, partition, Offset::Beginning);
            added.expect("an offset");
        }
        consumer.assign(&places).expect("partitions");
        let (mut found, mut came) = (Vec::new(), Instant::now());
        while left > 0 {
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else {
                assert!(came.elapsed() < KAFKA_PATIENCE, "{left} messages do not come");
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
        let directory = self.directory.to_string_lossy();
        let _ = Command::new(SCRIPT).args(["kill", &directory]).output();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/kafka");

fn script(arguments: &[&str]) -> String {
    let output = Command::new(SCRIPT).args(arguments).output().expect("dev/kafka runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "dev/kafka {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Those that have a leader.
fn partitions(consumer: &BaseConsumer, name: &str) -> Vec<i32> {
    let Ok(metadata) = consumer.fetch_metadata(Some(name), KAFKA_PATIENCE) else {
        return Vec::new();
    };
    let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
    let led = partitions.filter(|partition| partition.leader() >= 0);
    led.map(|partition| partition.id()).collect()
}

/// With all replicas in sync.
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

/// Writes in order, and keeps what it could not write yet.
pub struct Producer(ThreadedProducer<DefaultProducerContext>);

impl Producer {
    pub fn send(&self, name: &str, key: &str, value: &str) {
        let sent = self.0.send(BaseRecord::to(name).key(key).payload(value));
        assert!(sent.is_ok(), "librdkafka takes a record");
    }

    pub fn flush(&self) {
        self.0.flush(KAFKA_PATIENCE).expect("Kafka is there");
    }
}
