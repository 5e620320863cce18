//! How fast an action is, from appending to confirmation.
//!
//! ```text
//! throughput null MESSAGES [disk|memory|hybrid]    a sink that takes everything: what buffer and pump can do
//! throughput drain MESSAGES                        the same from a disk buffer that was filled before
//! throughput kafka MESSAGES HOSTS TOPIC            1 KB messages to a Kafka topic that exists
//! throughput ceiling MESSAGES HOSTS TOPIC          the same with a plain loop over librdkafka's producer
//! ```
//!
//! Two threads append, each 100 messages at a time, as two workers would per tick.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use connectors::{
    Action, BatchConfig, BoxFuture, Buffer, BufferConfig, BufferMode, DeliveryConfig, Outcome, QueryMode, Record,
    Records, Sink,
};

const THREADS: u64 = 2;
const BATCH: u64 = 100;
const CLIENTS: u64 = 15_000;

struct Null;

impl Sink for Null {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        Box::pin(async move { connectors::all(batch, Ok(())) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let messages = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let mode = match arguments.get(2) {
        Some(&"memory") => BufferMode::Memory,
        Some(&"hybrid") => BufferMode::Hybrid,
        _ => BufferMode::Disk,
    };
    match arguments.as_slice() {
        ["null", ..] => run(messages, mode, Arc::new(Null), &many(8), false),
        ["drain", ..] => run(messages, BufferMode::Disk, Arc::new(Null), &many(8), true),
        #[cfg(feature = "kafka")]
        ["kafka", _, hosts, topic] => kafka::run(messages, hosts, topic),
        #[cfg(feature = "kafka")]
        ["ceiling", _, hosts, topic] => kafka::ceiling(messages, hosts, topic),
        _ => println!("throughput null|drain|kafka|ceiling MESSAGES [MODE | HOSTS TOPIC]"),
    }
}

fn many(in_flight: u32) -> DeliveryConfig {
    DeliveryConfig {
        in_flight,
        batch: BatchConfig::default(),
        ..DeliveryConfig::default()
    }
}

fn run(messages: u64, mode: BufferMode, sink: Arc<dyn Sink>, delivery: &DeliveryConfig, fills_first: bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("threads");
    let directory = std::env::temp_dir().join(format!("tidewire-throughput-{}", std::process::id()));
    let config = BufferConfig {
        mode,
        memory_bytes: if mode == BufferMode::Memory { 1 << 30 } else { 32 << 20 },
        ..BufferConfig::default()
    };
    let buffer = Buffer::open(&directory, &config, QueryMode::Async, || ()).expect("a directory");
    let action = Action::new("throughput", buffer.clone());
    let started = Instant::now();
    if !fills_first {
        action.start(Arc::clone(&sink), delivery, runtime.handle());
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let buffer = &buffer;
            scope.spawn(move || append(buffer, thread, messages / THREADS));
        }
    });
    let appended = started.elapsed();
    let resumed = Instant::now();
    if fills_first {
        action.start(sink, delivery, runtime.handle());
    }
    let sent = messages / THREADS / BATCH * BATCH * THREADS;
    while action.stats().sent < sent {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = |time: Duration| sent as f64 / time.as_secs_f64();
    println!("appended {sent} in {appended:.2?}: {:.0} messages/s", rate(appended));
    match fills_first {
        true => println!(
            "drained in {:.2?}: {:.0} messages/s",
            resumed.elapsed(),
            rate(resumed.elapsed())
        ),
        false => println!(
            "all confirmed after {:.2?}: {:.0} messages/s",
            started.elapsed(),
            rate(started.elapsed())
        ),
    }
    println!("{:?}; refused appends {}", cpu(), action.stats().held_back);
    runtime.block_on(action.stop(Duration::from_secs(5)));
    buffer.shut_down().expect("the disk is there");
    let _ = std::fs::remove_dir_all(directory);
}

fn append(buffer: &Buffer, thread: u64, messages: u64) {
    let mut records = Records::new();
    let value = [b'x'; 1000];
    for number in 0..messages / BATCH {
        for index in 0..BATCH {
            let client = (number * BATCH + index) * THREADS + thread;
            let key = format!("client-{}", client % CLIENTS);
            records.push(1, client % CLIENTS, &[Some(&value), Some(key.as_bytes())]);
        }
        while buffer.append(&mut records).is_err() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Seconds of processor time, ours and the kernel's for us.
fn cpu() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .split(' ')
        .skip(13)
        .take(2)
        .filter_map(|ticks| ticks.parse().ok())
        .collect();
    match fields.as_slice() {
        [user, system] => format!("CPU {:.2} s user, {:.2} s system", user / 100.0, system / 100.0),
        _ => "CPU unknown".to_owned(),
    }
}

#[cfg(feature = "kafka")]
mod kafka {
    //! The real thing, and what it is compared with.

    use connectors::kafka::{KafkaActionConfig, KafkaConnectorConfig, KafkaSink};
    use rdkafka::config::ClientConfig;
    use rdkafka::error::RDKafkaErrorCode;
    use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};

    use super::*;

    pub fn run(messages: u64, hosts: &str, topic: &str) {
        let connector = format!(r#"{{"bootstrap_hosts": "{hosts}"}}"#);
        let connector: KafkaConnectorConfig = serde_json::from_str(&connector).expect("hosts");
        let config = format!(r#"{{"kafka_topic": "{topic}"}}"#);
        let config: KafkaActionConfig = serde_json::from_str(&config).expect("a topic");
        let sink = KafkaSink::new(&connector, &config).expect("sound");
        super::run(
            messages,
            BufferMode::Disk,
            Arc::new(sink),
            &KafkaActionConfig::default_delivery(),
            false,
        );
    }

    pub fn ceiling(messages: u64, hosts: &str, topic: &str) {
        let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
            .set("bootstrap.servers", hosts)
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .set("batch.size", "917504")
            .set("batch.num.messages", "100000")
            .create()
            .expect("hosts");
        let value = [b'x'; 1000];
        let started = Instant::now();
        for number in 0..messages {
            let key = format!("client-{}", number % CLIENTS);
            let mut record = BaseRecord::to(topic).payload(&value[..]).key(key.as_bytes());
            while let Err((error, back)) = producer.send(record) {
                assert_eq!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::QueueFull), "{error}");
                record = back;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        producer.flush(Duration::from_secs(600)).expect("all is delivered");
        let time = started.elapsed();
        println!(
            "{messages} in {time:.2?}: {:.0} messages/s",
            messages as f64 / time.as_secs_f64()
        );
        println!("{:?}", cpu());
    }
}
