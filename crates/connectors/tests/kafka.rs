//! Tests with real Kafka nodes: contents of messages, reporting of errors, and no loss during failures.
#![cfg(feature = "kafka")]
#![allow(clippy::print_stdout, reason = "reports the number of duplicates")]

#[path = "support/kafka.rs"]
mod helpers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::shared::KAFKA;
use crate::support::{Server, numbered, text, until};
use connectors::kafka::{KafkaActionConfig, KafkaConnectorConfig, KafkaSink, KafkaSource, KafkaSourceConfig};
use connectors::{
    BoxFuture, DeliveryFailure, HealthCell, HealthState, Receiver, Records, Sink, Source, SourceMessage, SourceOrigin,
    stop,
};
use helpers::*;
use rdkafka::admin::{AdminOptions, NewPartitions, NewTopic, TopicReplication};
use serde_json::json;

/// Returns the shared node of all tests, and a topic for the caller.
async fn shared(name: &str, partitions: i32) -> (String, String) {
    let (hosts, name) = (KAFKA.value("TIDEWIRE_KAFKA"), own(name));
    create(&hosts, &name, partitions, 1).await;
    (hosts, name)
}

/// Returns a name that other runs with the same Kafka do not use.
fn own(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_parts_of_a_message_arrive() {
    let (hosts, name) = &shared("message", 2).await;
    let config = action(
        "${name}",
        json!({"timestamp": "${at}", "headers": [{"name": "h1", "value": "${a}"}, {"name": "h2", "value": "${b}"}]}),
    );
    let fields: Vec<String> = config.templates().into_iter().map(|template| template.field).collect();
    assert_eq!(
        fields,
        [
            "value",
            "key",
            "kafka_topic",
            "timestamp",
            "headers[0].value",
            "headers[1].value"
        ]
    );
    let records = numbered(0..2, |number| match number {
        0 => vec![
            text("0 v"),
            text("k"),
            text(name.as_str()),
            text("1700000000000"),
            text("x"),
            None,
        ],
        _ => vec![
            None,
            None,
            text(name.as_str()),
            text("no time"),
            None,
            Some(vec![0, 255]),
        ],
    });
    let outcome = sink(hosts, &config).send(&records).await;
    assert_eq!(outcome, [Ok(()), Ok(())]);
    let mut found = read_all(hosts, name).await;
    found.sort_by_key(|message| message.value.is_none());
    assert_eq!(
        (found[0].key.as_deref(), found[0].value.as_deref()),
        (Some(&b"k"[..]), Some(&b"0 v"[..]))
    );
    assert_eq!(found[0].headers, [("h1".to_owned(), b"x".to_vec())]);
    assert_eq!(found[0].unix_ms, Some(1_700_000_000_000));
    assert_eq!((found[1].key.as_deref(), found[1].value.as_deref()), (None, None));
    assert_eq!(found[1].headers, [("h2".to_owned(), vec![0, 255])]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_compression_and_strategy_works() {
    let (hosts, name) = &shared("ways", 4).await;
    let mut sent = 0;
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let config = action(
            name,
            json!({"compression": compression, "partition_strategy": "round_robin"}),
        );
        let records = numbered(sent..sent + 40, |number| {
            vec![text(format!("{number} {:200}", "")), text("k")]
        });
        assert!(
            sink(hosts, &config).send(&records).await.iter().all(Result::is_ok),
            "{compression}"
        );
        sent += 40;
    }
    let found = read_all(hosts, name).await;
    assert_eq!(reconcile_unordered(&found), (0..sent).collect::<Vec<u32>>());
    for partition in 0..4 {
        let count = found.iter().filter(|message| message.partition == partition).count();
        assert_eq!(count, 50, "messages go to the partitions in turn");
    }
    for (strategy, per_record) in [("client", "partition_strategy"), ("topic", "partition_strategy")] {
        let config = action(name, json!({"partition_strategy": strategy}));
        assert_eq!(config.templates()[2].field, per_record);
        let records = numbered(1000..1020, |number| {
            vec![text(format!("{number}")), text(format!("{number}")), text(strategy)]
        });
        assert!(sink(hosts, &config).send(&records).await.iter().all(Result::is_ok));
        let found = read_all(hosts, name).await;
        let places: BTreeSet<i32> = found
            .iter()
            .rev()
            .filter(|found| found.number() >= 1000)
            .map(|found| found.partition)
            .collect();
        assert!(places.len() <= 2, "one partition each: {places:?}");
    }
}

fn reconcile_unordered(found: &[Found]) -> Vec<u32> {
    let mut numbers: Vec<u32> = found.iter().map(Found::number).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rejected_messages_do_not_block_others() {
    let (hosts, name) = &shared("poison", 1).await;
    let config = action("${t}", json!({"message_bytes_max": 20_000}));
    let records = numbered(0..5, |number| match number {
        1 => vec![text("x".repeat(30_000)), text("k"), text(name.as_str())],
        2 => vec![text("2"), text("k"), text("no such topic!")],
        3 => vec![text("3"), text("k"), text("absent")],
        _ => vec![text(number.to_string()), text("k"), text(name.as_str())],
    });
    let outcome = sink(hosts, &config).send(&records).await;
    for (index, word) in [
        (1, "too large"),
        (2, "not a valid kafka topic name"),
        (3, "does not exist"),
    ] {
        let Err(DeliveryFailure::Refused(reason)) = &outcome[index] else {
            panic!("{index}: {outcome:?}");
        };
        assert!(reason.to_lowercase().contains(word), "{index}: {reason}");
    }
    assert!(outcome[0].is_ok() && outcome[4].is_ok(), "{outcome:?}");
    assert_eq!(reconcile_unordered(&read_all(hosts, name).await), [0, 4]);
}

/// A topic's `max.message.bytes` limits a batch. librdkafka does not know it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_fit_the_topic() {
    let hosts = &KAFKA.value("TIDEWIRE_KAFKA");
    let (known, unknown) = (&own("narrow"), &own("narrow-too"));
    let topic = NewTopic::new(known, 2, TopicReplication::Fixed(1)).set("max.message.bytes", "20000");
    create_topic(hosts, &topic).await;
    let mut bridge = Bridge::start(hosts, &action(known, json!({"linger_ms": 50})));
    bridge.publish(3_000);
    let mut records = Records::new();
    records.push(1, 7, &[Some("x".repeat(30_000).as_bytes()), Some(b"key-7")]);
    bridge.action.buffer().append(&mut records).expect("room");
    bridge.publish(1_000);
    until("all is sent except the oversized message", async || {
        let stats = bridge.action.stats();
        (stats.sent, stats.failed) == (4_000, 1)
    })
    .await;
    let refused = bridge.action.health().last_error.unwrap_or_default();
    assert!(
        refused.contains(known) && refused.to_lowercase().contains("too large"),
        "{refused}"
    );
    let twice = reconcile(&read_all(hosts, known).await, 0..4_000);
    assert_eq!(twice, 0, "the limit was known before anything was sent");
    bridge.stop().await;

    // The topics of a template are unknown in advance, so that Kafka has to reject a batch first.
    create_topic(
        hosts,
        &NewTopic::new(unknown, 2, TopicReplication::Fixed(1)).set("max.message.bytes", "20000"),
    )
    .await;
    let bridge = Bridge::start(hosts, &action("${t}", json!({"linger_ms": 50})));
    for number in 0..2_000 {
        let value = if number == 1_000 {
            "x".repeat(30_000)
        } else {
            format!("{number} {:80}", "")
        };
        let fields = [Some(value.as_bytes()), Some(&b"key"[..]), Some(unknown.as_bytes())];
        records.push(1, 7, &fields);
    }
    bridge.action.buffer().append(&mut records).expect("room");
    until("all is sent except the oversized message", async || {
        let (stats, health) = (bridge.action.stats(), bridge.action.health());
        // An operator has nothing to do, so there is no alarm.
        assert_ne!(health.state, HealthState::Disconnected, "{:?}", health.last_error);
        (stats.sent, stats.failed) == (1_999, 1)
    })
    .await;
    let found = read_all(hosts, unknown).await;
    let numbers: BTreeSet<u32> = found.iter().map(Found::number).collect();
    assert_eq!(numbers.len(), 1_999);
    println!(
        "batches were too large for the topic: {} duplicates",
        found.len() - numbers.len()
    );
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_wait_for_a_missing_topic() {
    let (hosts, name) = (&KAFKA.value("TIDEWIRE_KAFKA"), &own("later"));
    let mut bridge = Bridge::start(hosts, &action(name, json!({})));
    bridge.publish(100);
    until("it is reported", async || {
        bridge.action.health().state == HealthState::Disconnected
    })
    .await;
    let error = bridge.action.health().last_error.expect("an error");
    assert!(error.contains(&format!("\"{name}\" does not exist")), "{error}");
    assert_eq!(bridge.action.stats().sent, 0);
    create(hosts, name, 1, 1).await;
    bridge.all_sent().await;
    let stats = bridge.stop().await;
    assert_eq!((stats.sent, stats.failed, stats.dropped.total()), (100, 0, 0));
    reconcile(&read_all(hosts, name).await, 0..100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn new_partitions_are_used() {
    let (hosts, name) = &shared("grows", 1).await;
    let mut bridge = Bridge::start(hosts, &action(name, json!({"partition_strategy": "round_robin"})));
    bridge.publish(10);
    bridge.all_sent().await;
    let more = NewPartitions::new(name, 3);
    let grown = admin(hosts).create_partitions([&more], &AdminOptions::new()).await;
    assert!(matches!(grown.as_deref(), Ok([Ok(_)])), "{grown:?}");
    until("all partitions have messages", async || {
        bridge.publish(30);
        bridge.all_sent().await;
        let found = read_all(hosts, name).await;
        found
            .iter()
            .map(|found| found.partition)
            .collect::<BTreeSet<i32>>()
            .len()
            == 3
    })
    .await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn wrong_credentials_and_addresses_are_reported() {
    let (_, name) = &shared("sasl", 1).await;
    let sasl = KAFKA.value("TIDEWIRE_KAFKA_SASL");
    for mechanism in ["plain", "scram_sha256", "scram_sha512"] {
        for (password, is_right) in [("tidewire", true), ("hunter2", false)] {
            let connector: KafkaConnectorConfig = serde_json::from_value(json!({
                "bootstrap_hosts": sasl,
                "authentication": {"mechanism": mechanism, "username": "tidewire", "password": password},
            }))
            .expect("a configuration");
            let checked = KafkaSink::new(&connector, &action(name, json!({})))
                .expect("valid options")
                .check()
                .await;
            assert_eq!(checked.is_ok(), is_right, "{mechanism}: {checked:?}");
            if let Err(error) = checked {
                assert!(
                    error.to_lowercase().contains("authentication") && !error.contains("hunter2"),
                    "{error}"
                );
            }
        }
    }
    let no_broker = connector("127.0.0.1:1");
    let error = KafkaSink::new(&no_broker, &action(name, json!({})))
        .expect("valid options")
        .check()
        .await
        .expect_err("no broker");
    assert!(error.contains("127.0.0.1:1"), "{error}");
    let wrong = KafkaSink::new(&no_broker, &action("a b", json!({"required_acks": "leader"})));
    let mut problems = connector("localhost").problems();
    problems.extend(wrong.err().expect("two problems"));
    let problems = problems.join("; ");
    for field in ["bootstrap_hosts", "kafka_topic", "required_acks"] {
        assert!(problems.contains(field), "{problems}");
    }
}

/// One listener requires a client certificate, the other one a password.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tls_checks_certificates_on_both_sides() {
    let (_, name) = &shared("tls", 1).await;
    let (tls, sasl_tls) = (
        KAFKA.value("TIDEWIRE_KAFKA_TLS"),
        KAFKA.value("TIDEWIRE_KAFKA_SASL_TLS"),
    );
    let file = |name: &str| format!("{}/{name}", KAFKA.value("TIDEWIRE_KAFKA_CERTIFICATES"));
    let ours = |name: &str| json!({"ca_file": file("ca.pem"), "cert_file": file(&format!("{name}.pem")), "key_file": file(&format!("{name}.key"))});
    let login = |password: &str| json!({"mechanism": "scram_sha512", "username": "tidewire", "password": password});
    let none = json!({"mechanism": "none"});
    let only_ca = json!({"ca_file": file("ca.pem")});
    let cases = [
        (&tls, ours("client"), &none, None),
        (&tls, only_ca.clone(), &none, Some("certificate")),
        (&tls, ours("stranger"), &none, Some("")),
        (&sasl_tls, only_ca.clone(), &login("tidewire"), None),
        (&sasl_tls, only_ca, &login("hunter2"), Some("uthentication")),
        (
            &sasl_tls,
            json!({"ca_file": file("stranger.pem")}),
            &login("tidewire"),
            Some("certificate"),
        ),
        (&sasl_tls, json!({"verify": false}), &login("tidewire"), None),
    ];
    for (hosts, tls, authentication, wrong) in cases {
        let connector = json!({"bootstrap_hosts": hosts, "tls": tls, "authentication": authentication});
        let connector: KafkaConnectorConfig = serde_json::from_value(connector).expect("a configuration");
        let sink = KafkaSink::new(&connector, &action(name, json!({}))).expect("valid options");
        match (sink.check().await, wrong) {
            (Ok(()), None) => {
                let sent = sink
                    .send(&numbered(0..10, |number| vec![text(format!("{number}")), None]))
                    .await;
                assert!(sent.iter().all(Result::is_ok), "{tls}: {sent:?}");
            }
            (Err(error), Some(word)) => assert!(error.contains(word) && !error.contains("hunter2"), "{tls}: {error}"),
            (checked, _) => panic!("{tls} {authentication}: {checked:?}"),
        }
    }
    let config = json!({"kafka_topics": [name], "group_id": name, "offset_reset": "earliest"});
    let config: KafkaSourceConfig = serde_json::from_value(config).expect("a configuration");
    let connector = json!({"bootstrap_hosts": tls, "tls": ours("client")});
    let connector: KafkaConnectorConfig = serde_json::from_value(connector).expect("a configuration");
    let source = KafkaSource::new(&connector, &config, HealthCell::new()).expect("valid options");
    take(&source, &Taker::default(), 30).await;
}

/// A receiver that can be made to refuse batches or to block.
#[derive(Default)]
struct Taker {
    taken: Mutex<Vec<SourceMessage>>,
    refusals_left: AtomicUsize,
    is_stuck: AtomicBool,
    wake: tokio::sync::Notify,
}

impl Receiver for Taker {
    fn receive<'a>(&'a self, batch: &'a [SourceMessage]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            while self.is_stuck.load(Ordering::Acquire) {
                self.wake.notified().await;
            }
            let refuse = |left: usize| left.checked_sub(1);
            if self
                .refusals_left
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, refuse)
                .is_ok()
            {
                return Err("queue is full".to_owned());
            }
            self.taken.lock().expect("no panic").extend_from_slice(batch);
            Ok(())
        })
    }
}

fn source(hosts: &str, kafka_topic: &str, health: &HealthCell) -> KafkaSource {
    let config: KafkaSourceConfig = serde_json::from_value(json!({
        "kafka_topics": [kafka_topic], "group_id": format!("group-of-{kafka_topic}"), "offset_reset": "earliest",
        "batch_records_max": 50, "commit_interval_ms": 100, "fetch_bytes_max": 65536,
    }))
    .expect("a configuration");
    KafkaSource::new(&connector(hosts), &config, health.clone()).expect("valid options")
}

/// Runs the source until `count` messages were received in total.
async fn take(source: &KafkaSource, taker: &Taker, count: usize) {
    let (stopper, stop) = stop();
    let enough = async {
        until("all is taken", async || {
            taker.taken.lock().expect("no panic").len() >= count
        })
        .await;
        stopper.stop();
    };
    tokio::join!(source.run(taker, stop), enough);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_source_commits_accepted_messages() {
    let (hosts, name) = &shared("source", 3).await;
    let headers = json!({"headers": [{"name": "h", "value": "${h}"}]});
    let sink = sink(hosts, &action(name, headers));
    let fields = |number: u32| {
        vec![
            text(format!("{number}")),
            text(format!("key-{}", number % 9)),
            text("x"),
        ]
    };
    assert!(sink.send(&numbered(0..500, fields)).await.iter().all(Result::is_ok));
    let health = HealthCell::new();
    let source = source(hosts, name, &health);
    source.check().await.expect("the topic exists");
    let taker = Taker::default();
    taker.refusals_left.store(3, Ordering::Release);
    take(&source, &taker, 500).await;
    assert_eq!(taker.refusals_left.load(Ordering::Acquire), 0);
    // Accepted messages are not delivered to the next run.
    assert!(sink.send(&numbered(500..600, fields)).await.iter().all(Result::is_ok));
    take(&source, &taker, 600).await;
    let taken = taker.taken.lock().expect("no panic");
    let mut offsets: BTreeMap<i32, i64> = BTreeMap::new();
    for message in taken.iter() {
        let SourceOrigin::Kafka { partition, offset, .. } = message.origin else {
            panic!("{message:?}");
        };
        let next = offsets.entry(partition).or_default();
        assert_eq!(*next, offset, "each once, in order");
        *next += 1;
        assert_eq!(message.headers, [("h".to_owned(), Some(b"x".to_vec()))]);
    }
    assert_eq!(taken.len(), 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_receiver_pauses_the_source() {
    let (hosts, name) = &shared("held", 1).await;
    let value = "x".repeat(1000);
    let records = numbered(0..3000, |number| vec![text(format!("{number} {value}")), None]);
    assert!(
        sink(hosts, &action(name, json!({})))
            .send(&records)
            .await
            .iter()
            .all(Result::is_ok)
    );
    let taker = Taker::default();
    taker.is_stuck.store(true, Ordering::Release);
    let health = HealthCell::new();
    let source = source(hosts, name, &health);
    let (stopper, stop) = stop();
    let scenario = async {
        // Long enough that the partitions are paused.
        tokio::time::sleep(Duration::from_secs(5)).await;
        taker.is_stuck.store(false, Ordering::Release);
        taker.wake.notify_one();
        until("all is taken", async || {
            taker.taken.lock().expect("no panic").len() >= 3000
        })
        .await;
        stopper.stop();
    };
    tokio::join!(source.run(&taker, stop), scenario);
    assert_eq!(taker.taken.lock().expect("no panic").len(), 3000);
}

/// A second source joins the group under load. The first one leaves, and returns after the second one has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sources_of_a_group_share_the_partitions() {
    let (hosts, name) = &shared("shared", 6).await;
    let sink = sink(hosts, &action(name, json!({})));
    let (first, second) = (Taker::default(), Taker::default());
    let count = |taker: &Taker| taker.taken.lock().expect("no panic").len();
    let (is_over, published) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = async {
        while !is_over.load(Ordering::Acquire) {
            let from = published.load(Ordering::Acquire) as u32;
            let fields = |number: u32| vec![text(format!("{number}")), text(format!("key-{}", number % 30))];
            let sent = sink.send(&numbered(from..from + 50, fields)).await;
            assert!(sent.iter().all(Result::is_ok), "{sent:?}");
            published.fetch_add(50, Ordering::AcqRel);
        }
    };
    let run = async |taker: &Taker, until_then: &dyn Fn() -> bool| {
        let source = source(hosts, name, &HealthCell::new());
        let (stopper, stop) = stop();
        let end = async {
            until("it has received enough", async || until_then()).await;
            stopper.stop();
        };
        tokio::join!(source.run(taker, stop), end);
    };
    let all = || {
        let published = published.load(Ordering::Acquire);
        let numbers: BTreeSet<u32> = [&first, &second].into_iter().flat_map(numbers).collect();
        is_over.load(Ordering::Acquire) && numbers.len() == published
    };
    let scenario = async {
        let has_taken_over = AtomicBool::new(false);
        let one = async {
            run(&first, &|| count(&second) > 500).await;
            // The other source has all partitions now.
            let before = count(&second);
            until("the second one takes over", async || count(&second) > before + 500).await;
            has_taken_over.store(true, Ordering::Release);
            run(&first, &all).await;
        };
        let other = async {
            until("the first one receives", async || count(&first) > 500).await;
            run(&second, &|| has_taken_over.load(Ordering::Acquire)).await;
            let before = count(&first);
            until("the first one takes over again", async || count(&first) > before + 500).await;
            is_over.store(true, Ordering::Release);
        };
        tokio::join!(one, other);
    };
    tokio::join!(load, scenario);
    let taken = count(&first) + count(&second);
    let published = published.load(Ordering::Acquire);
    println!("two sources: {published} published, {taken} taken");
}

fn numbers(taker: &Taker) -> Vec<u32> {
    let taken = taker.taken.lock().expect("no panic");
    let number = |message: &SourceMessage| {
        let value = message.payload.as_deref().expect("a value");
        std::str::from_utf8(value).expect("text").parse().expect("a number")
    };
    taken.iter().map(number).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_later_message_is_lost_after_a_topic_deletion() {
    let (hosts, name) = &shared("deleted", 4).await;
    let mut bridge = Bridge::start(hosts, &action(name, json!({})));
    let before = bridge.publish(2000);
    bridge.all_sent().await;
    delete(hosts, name).await;
    let after = bridge.publish(2000);
    until("it is reported", async || {
        bridge.action.health().state == HealthState::Disconnected
    })
    .await;
    create(hosts, name, 4, 1).await;
    bridge.all_sent().await;
    let stats = bridge.stop().await;
    assert_eq!((stats.failed, stats.dropped.total()), (0, 0));
    reconcile(&read_all(hosts, name).await, before..after);
}

async fn no_message_is_lost_when_kafka_is_killed(server: &Arc<Server>) {
    let hosts = server.address.clone();
    create(&hosts, "killed", 4, 1).await;
    let mut bridge = Bridge::start(&hosts, &action("killed", json!({})));
    let is_over = AtomicBool::new(false);
    let fault = async {
        Server::crash_and_return(server).await;
        is_over.store(true, Ordering::Release);
    };
    let load = async {
        while !is_over.load(Ordering::Acquire) {
            bridge.publish(200);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bridge.publish(1000);
    };
    tokio::join!(fault, load);
    bridge.all_sent().await;
    let published = bridge.next;
    let stats = bridge.stop().await;
    assert_eq!((stats.failed, stats.dropped.total()), (0, 0));
    let found = read_all(&hosts, "killed").await;
    let twice = reconcile(&found, 0..published);
    println!(
        "Kafka killed: {published} published, {} stored, {twice} duplicates",
        found.len()
    );
}

/// No message arrives and no rebalance happens in this test: the outage is shorter than the session timeout.
async fn a_source_is_connected_after_a_short_outage(server: &Arc<Server>) {
    let hosts = server.address.clone();
    create(&hosts, "outage", 2, 1).await;
    let health = HealthCell::new();
    let source = source(&hosts, "outage", &health);
    let taker = Taker::default();
    let (stopper, stop) = stop();
    let is = async |state: HealthState| {
        until("the source is as expected", async || health.get().state == state).await;
    };
    let outage = async {
        is(HealthState::Connected).await;
        let back = Server::crash_and_return(server);
        tokio::join!(back, is(HealthState::Disconnected));
        is(HealthState::Connected).await;
        stopper.stop();
    };
    tokio::join!(source.run(&taker, stop), outage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn faults_of_a_single_node() {
    let server = Arc::new(Server::start("kafka", "start", &[]));
    no_message_is_lost_when_kafka_is_killed(&server).await;
    a_source_is_connected_after_a_short_outage(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn faults_of_a_cluster() {
    let server = Arc::new(Server::start("kafka", "start", &["3"]));
    only_acks_all_waits_for_a_missing_replica(&server).await;
    a_partition_without_leader_does_not_block_others(&server).await;
    no_message_is_lost_when_leaders_are_killed(&server).await;
}

/// Batches have fewer records than the partition has keys: waiting records must not fill all batches.
async fn a_partition_without_leader_does_not_block_others(server: &Arc<Server>) {
    let hosts = server.address.clone();
    let replicas = TopicReplication::Variable(&[&[1], &[2], &[3]]);
    create_topic(&hosts, &NewTopic::new("alone", 3, replicas)).await;
    let mut delivery = KafkaActionConfig::default_delivery();
    delivery.batch.records_max = 10;
    let mut bridge = Bridge::start_with(&hosts, &action("alone", json!({})), delivery);
    bridge.publish(KEYS);
    bridge.all_sent().await;
    let found = read_all(&hosts, "alone").await;
    let waiting: BTreeSet<u32> = found
        .iter()
        .filter(|message| message.partition == 2)
        .map(|message| message.number() % KEYS)
        .collect();
    assert!((11..KEYS as usize / 2).contains(&waiting.len()), "{waiting:?}");
    server.run_in_background("kill", &["3"]).await;
    bridge.publish(20 * KEYS);
    let others = |published: u32| u64::from(published / KEYS * (KEYS - waiting.len() as u32)) + waiting.len() as u64;
    until("all others are sent", async || {
        bridge.action.stats().sent >= others(bridge.next)
    })
    .await;
    let assert_reported = |bridge: &Bridge| {
        let health = bridge.action.health();
        let error = health.last_error.unwrap_or_default();
        assert!(error.contains("\"alone\": partition 2 of 3 has no leader"), "{error}");
        assert_eq!(health.state, HealthState::Disconnected);
    };
    assert_reported(&bridge);
    for _ in 0..10 {
        bridge.publish(10 * KEYS);
        until("later messages are sent as well", async || {
            bridge.action.stats().sent == others(bridge.next)
        })
        .await;
        assert_reported(&bridge);
    }
    server.run_in_background("start", &[]).await;
    bridge.all_sent().await;
    until("it is connected", async || {
        bridge.action.health().state == HealthState::Connected
    })
    .await;
    let published = bridge.next;
    let stats = bridge.stop().await;
    assert_eq!((stats.failed, stats.dropped.total()), (0, 0));
    let twice = reconcile(&read_all(&hosts, "alone").await, 0..published);
    println!("a partition without a leader: {published} published, {twice} duplicates");
}

async fn only_acks_all_waits_for_a_missing_replica(server: &Arc<Server>) {
    let hosts = server.address.clone();
    let mut bridges = Vec::new();
    for (name, acks, idempotence) in [
        ("acks-idempotent", "all", true),
        ("acks-all", "all", false),
        ("acks-leader", "leader", false),
        ("acks-none", "none", false),
    ] {
        // The first node leads: unacknowledged messages are lost with the leader.
        let replicas = TopicReplication::Variable(&[&[1, 2, 3]]);
        let topic = NewTopic::new(name, 1, replicas).set("min.insync.replicas", "3");
        create_topic(&hosts, &topic).await;
        let config = action(name, json!({"required_acks": acks, "idempotence": idempotence}));
        let mut bridge = Bridge::start(&hosts, &config);
        bridge.publish(10);
        bridge.all_sent().await;
        bridges.push((name, bridge));
    }
    server.run_in_background("kill", &["3"]).await;
    for (name, bridge) in &mut bridges {
        bridge.publish(10);
        if !matches!(*name, "acks-idempotent" | "acks-all") {
            bridge.all_sent().await;
            continue;
        }
        until("too few in-sync replicas are reported", async || {
            let health = bridge.action.health();
            health.state == HealthState::Disconnected
                && health.last_error.is_some_and(|error| error.contains("in-sync"))
        })
        .await;
        assert_eq!(bridge.action.stats().sent, 10, "{name}");
    }
    server.run_in_background("start", &[]).await;
    for (name, bridge) in bridges {
        bridge.all_sent().await;
        let stats = bridge.stop().await;
        assert_eq!((stats.failed, stats.dropped.total()), (0, 0), "{name}");
        let twice = reconcile(&read_all(&hosts, name).await, 0..20);
        println!("{name}: {twice} duplicates");
        for id in producer_ids(server, name) {
            assert_eq!(id >= 0, name == "acks-idempotent", "{name}: producer {id}");
        }
    }
}

/// Returns the producer of each batch of a partition, from the disk of one of the nodes; -1 for a producer without
/// idempotence.
fn producer_ids(server: &Server, kafka_topic: &str) -> Vec<i64> {
    let directory = server.directory.join(&format!("data.1/{kafka_topic}-0"));
    let segments = fs::read_dir(directory)
        .expect("a replica")
        .map(|entry| entry.expect("a file").path());
    let logs = segments.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let mut ids = Vec::new();
    for log in logs {
        let bytes = fs::read(log).expect("a file that can be read");
        let mut rest = &bytes[..];
        // RecordBatch: baseOffset int64, batchLength int32 of the following bytes, ..., producerId int64 at 43. Zeros
        // are preallocated space.
        while rest.len() > 61 && rest[8..12] != [0; 4] {
            ids.push(i64::from_be_bytes(rest[43..51].try_into().expect("eight bytes")));
            let length = u32::from_be_bytes(rest[8..12].try_into().expect("four bytes"));
            rest = &rest[12 + length as usize..];
        }
    }
    assert!(!ids.is_empty(), "{kafka_topic} has no batches");
    ids
}

async fn no_message_is_lost_when_leaders_are_killed(server: &Arc<Server>) {
    let hosts = server.address.clone();
    create(&hosts, "moved", 6, 3).await;
    let mut bridge = Bridge::start(&hosts, &action("moved", json!({})));
    for node in ["1", "2"] {
        let is_over = AtomicBool::new(false);
        let fault = async {
            server.run_in_background("kill", &[node]).await;
            server.run_in_background("start", &[]).await;
            is_over.store(true, Ordering::Release);
        };
        let load = async {
            while !is_over.load(Ordering::Acquire) {
                bridge.publish(200);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::join!(fault, load);
    }
    bridge.publish(1000);
    bridge.all_sent().await;
    let published = bridge.next;
    let stats = bridge.stop().await;
    assert_eq!((stats.failed, stats.dropped.total()), (0, 0));
    // A leader that has just restarted may still report fewer messages.
    let mut found = Vec::new();
    until("all is stored", async || {
        found = read_all(&hosts, "moved").await;
        let numbers: BTreeSet<u32> = found.iter().map(Found::number).collect();
        println!("{} of {published} stored, in {} messages", numbers.len(), found.len());
        numbers.len() == published as usize
    })
    .await;
    let twice = reconcile(&found, 0..published);
    println!(
        "leaders killed: {published} published, {} stored, {twice} duplicates",
        found.len()
    );
}
