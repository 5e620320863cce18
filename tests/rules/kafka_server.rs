//! A real Kafka from `dev/kafka`, what operators do to it, and all that its topics have.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
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
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let name = unique(&format!("tidewire-rules-kafka-{}", std::process::id()));
        let directory = std::env::temp_dir().join(name);
        let output = script(&["start", &directory.to_string_lossy(), &nodes.to_string()]);
        let address = output.lines().find_map(|line| line.strip_prefix("TIDEWIRE_KAFKA="));
        Kafka {
            address: address.expect("the script tells the address").to_owned(),
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

    /// All that a topic has, once all its replicas are there.
    pub fn read(&self, name: &str) -> Vec<Found> {
        let consumer = self.consumer();
        let settled = Instant::now() + KAFKA_PATIENCE;
        while !is_settled(&consumer, name) {
            assert!(Instant::now() < settled, "the replicas of {name} do not catch up");
            std::thread::sleep(Duration::from_millis(100));
        }
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

fn is_settled(consumer: &BaseConsumer, name: &str) -> bool {
    let Ok(metadata) = consumer.fetch_metadata(Some(name), KAFKA_PATIENCE) else {
        return false;
    };
    let mut partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
    partitions.all(|partition| partition.leader() >= 0 && partition.isr().len() == partition.replicas().len())
}
