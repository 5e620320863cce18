//! A producer that librdkafka has given up for good is replaced, and what it had on its way is sent by the next one.
//!
//! No broker can be made to do that at will: librdkafka's own brokers and its own way to raise such an error are used.
#![allow(unsafe_code)]

use std::time::Instant;

use rdkafka::bindings::rd_kafka_test_fatal_error;
use rdkafka::mocking::MockCluster;
use rdkafka::types::RDKafkaRespErr;

use super::*;
use crate::record::sample;

const WAIT_MAX: Duration = Duration::from_secs(30);

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < WAIT_MAX, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_producer_that_has_failed_for_good_is_replaced() {
    let cluster = MockCluster::new(1).expect("librdkafka has one");
    cluster.create_topic("t", 4, 1).expect("a topic");
    let connector = serde_json::json!({"bootstrap_hosts": cluster.bootstrap_servers()});
    let config = serde_json::json!({"kafka_topic": "t", "key": "${id}", "linger_ms": 0});
    let connector = serde_json::from_value(connector).expect("a configuration");
    let config = serde_json::from_value(config).expect("a configuration");
    let sink = Arc::new(KafkaSink::new(&connector, &config).expect("sound"));
    let records = sample(0, &[&[Some(b"a"), Some(b"1")], &[Some(b"b"), Some(b"2")]]);
    until("messages go", async || {
        sink.send(&records).await.iter().all(Result::is_ok)
    })
    .await;

    cluster.broker_down(1).expect("there is one");
    let failed = sink.inner.producer().expect("it works");
    let ticket = sink.inner.hand_over(&records).expect("they are on their way");
    let pending = tokio::spawn({
        let (sink, records) = (Arc::clone(&sink), records.clone());
        async move { sink.inner.wait(&records, ticket).await }
    });
    // SAFETY: the client lives as long as `failed`, and the reason is a text that ends with a zero.
    let raised = unsafe {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        rd_kafka_test_fatal_error(failed.client().native_ptr(), error, c"raised by a test".as_ptr())
    };
    assert_eq!(raised, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
    // As the pump does it.
    until("they come back", async || {
        let _ = sink.check().await;
        pending.is_finished()
    })
    .await;
    let outcome = pending.await.expect("it does not panic");
    assert!(
        outcome.iter().all(|result| matches!(result, Err(Failure::Away(_)))),
        "{outcome:?}"
    );
    cluster.broker_up(1).expect("there is one");
    until("the next producer sends them", async || {
        sink.check().await.is_ok() && sink.send(&records).await.iter().all(Result::is_ok)
    })
    .await;
    let works = sink.inner.producer().expect("it works");
    assert!(!Arc::ptr_eq(&failed, &works), "it is another one");
}
