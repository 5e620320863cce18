//! A sink does not return a message to the topic from which a source of the same connector received it. Uses
//! librdkafka's mock cluster.

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use serde_json::json;

use super::*;
use crate::loop_mark::LOOP_PROPERTY;
use crate::record::{Records, records};

/// Returns a record for a topic. Its message has these marks.
fn record(kafka_topic: &str, marks: &[String]) -> Record {
    let mut batch = Records::new();
    batch.push(1, 1, &[Some(b"value"), None, Some(kafka_topic.as_bytes())]);
    batch.carry(LOOP_PROPERTY, marks.len(), |writer| {
        for mark in marks {
            writer.field(|out| out.extend_from_slice(mark.as_bytes()));
        }
        true
    });
    let mut found = Vec::new();
    records(&Arc::new(batch.take()), 0, &mut |record| found.push(record)).expect("a chunk");
    found.pop().expect("a record")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_do_not_return_to_their_topic() {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    for name in ["own", "other"] {
        cluster.create_topic(name, 1, 1).expect("a topic");
    }
    let connector = serde_json::from_value(json!({"bootstrap_hosts": cluster.bootstrap_servers()}));
    let connector: KafkaConnectorConfig = connector.expect("a configuration");
    let config = json!({"kafka_topic": "${topic}", "value": "${payload}", "linger_ms": 0});
    let config: KafkaActionConfig = serde_json::from_value(config).expect("a configuration");
    let (mark, stranger) = (LoopMark::new("one"), LoopMark::new("two"));
    let sink = KafkaSink::with_loop_mark(&connector, &config, Some(mark.clone())).expect("valid options");
    assert_eq!(
        config.fields().kafka_topic,
        Some(2),
        "the field of `record` with the topic"
    );
    sink.check().await.expect("Kafka is reachable");
    let batch = [
        record("own", &[mark.received("own")]),
        record("own", &[mark.received("other"), mark.received("own")]),
        record("own", &[mark.received("other")]),
        record("own", &[stranger.received("own")]),
        record("own", &[]),
        record("other", &[mark.received("own")]),
    ];
    let outcome = sink.send(&batch).await;
    assert!(outcome.len() == 6 && outcome.iter().all(Result::is_ok), "{outcome:?}");
    assert_eq!((sink.take_skipped_echoes(), sink.take_skipped_echoes()), (2, 0));
    let counted = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = connector.options().create().expect("valid options");
        let wait = Duration::from_secs(30);
        ["own", "other"].map(|name| consumer.fetch_watermarks(name, 0, wait).expect("the topic exists").1)
    });
    assert_eq!(counted.await.expect("no panic"), [3, 1]);
}
