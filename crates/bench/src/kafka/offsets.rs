//! The end offsets of the partitions of a Kafka topic: the number of records that were ever written to each.

use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

const PATIENCE: Duration = Duration::from_secs(10);

pub struct Offsets {
    consumer: BaseConsumer,
    kafka_topic: String,
    partitions: u32,
}

impl Offsets {
    /// Connects to Kafka; fails unless the topic exists with this number of partitions.
    pub fn of(bootstrap_hosts: &str, kafka_topic: &str, partitions: u32) -> Result<Offsets, String> {
        let failed = |error| format!("Kafka at {bootstrap_hosts}: {error}");
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap_hosts)
            .create()
            .map_err(failed)?;
        let metadata = consumer.fetch_metadata(Some(kafka_topic), PATIENCE).map_err(failed)?;
        let found = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
        if found != partitions as usize {
            return Err(format!(
                "Kafka at {bootstrap_hosts}: topic {kafka_topic:?} has {found} partitions, expected {partitions}; \
                 `dev/kafka topic DIR {kafka_topic} {partitions}` makes it"
            ));
        }
        Ok(Offsets {
            consumer,
            kafka_topic: kafka_topic.to_owned(),
            partitions,
        })
    }

    pub fn read(&self) -> Result<Vec<u64>, String> {
        let end = |partition| {
            let marks = self
                .consumer
                .fetch_watermarks(&self.kafka_topic, partition as i32, PATIENCE);
            let marks = marks.map_err(|error| format!("cannot read the end offset of partition {partition}: {error}"));
            marks.map(|(_, end)| end.max(0) as u64)
        };
        (0..self.partitions).map(end).collect()
    }
}
