//! The time that a plain producer needs for the same records: a loop over librdkafka in this process, with the defaults
//! of tidewire's Kafka action.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};

use crate::cost::process::Process;
use crate::observe::UsageSource;
use crate::result::ProducerCeiling;

const RECORDS: u64 = 500_000;
const KEYS: u64 = 15_000;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn measure(bootstrap_hosts: &str, kafka_topic: &str, payload_bytes: usize) -> Result<ProducerCeiling, String> {
    let failed = |error: KafkaError| format!("the plain producer to {bootstrap_hosts} cannot be measured: {error}");
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap_hosts)
        .set("enable.idempotence", "true")
        .set("linger.ms", "5")
        .set("batch.size", "917504")
        .set("batch.num.messages", "100000")
        .create()
        .map_err(failed)?;
    let mut process = Process::new(std::process::id())?;
    let (before, started) = (process.read()?, Instant::now());
    let value = vec![b'x'; payload_bytes];
    for number in 0..RECORDS {
        let key = format!("client-{}", number % KEYS);
        send(&producer, BaseRecord::to(kafka_topic).payload(&value).key(&key)).map_err(failed)?;
    }
    producer.flush(PATIENCE).map_err(failed)?;
    let cpu_s = process.read()?.cpu_s - before.cpu_s;
    Ok(ProducerCeiling {
        records: RECORDS,
        records_per_s: RECORDS as f64 / started.elapsed().as_secs_f64(),
        cpu_s_per_million: cpu_s * 1e6 / RECORDS as f64,
    })
}

/// Sends a record; waits while librdkafka's queue is full.
fn send(
    producer: &ThreadedProducer<DefaultProducerContext>,
    record: BaseRecord<'_, String, Vec<u8>>,
) -> Result<(), KafkaError> {
    let mut next = record;
    while let Err((error, back)) = producer.send(next) {
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
            return Err(error);
        }
        next = back;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
