//! A producer with a fatal error is replaced, and the next producer sends its in-flight messages.
//!
//! A real broker cannot be made to cause such an error on demand, so the test uses librdkafka's mock cluster and its
//! function for test errors.
#![allow(unsafe_code)]

use std::time::Instant;

use rdkafka::bindings::rd_kafka_test_fatal_error;
use rdkafka::mocking::MockCluster;
use rdkafka::types::RDKafkaRespErr;

use super::*;
use crate::record::sample;

const WAIT_MAX: Duration = Duration::from_secs(30);

async fn until(condition: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < WAIT_MAX, "timed out waiting until {condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_producer_with_a_fatal_error_is_replaced() {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 4, 1).expect("a topic");
    let connector = serde_json::json!({"bootstrap_hosts": cluster.bootstrap_servers()});
    let config = serde_json::json!({"kafka_topic": "t", "key": "${id}", "linger_ms": 0});
    let connector = serde_json::from_value(connector).expect("a configuration");
    let config = serde_json::from_value(config).expect("a configuration");
    let sink = Arc::new(KafkaSink::new(&connector, &config).expect("valid options"));
    let records = sample(0, &[&[Some(b"a"), Some(b"1")], &[Some(b"b"), Some(b"2")]]);
    until("messages are delivered", async || {
        sink.send(&records).await.iter().all(Result::is_ok)
    })
    .await;

    cluster.broker_down(1).expect("the broker exists");
    let failed = sink.inner.producer().expect("a producer");
    let ticket = sink.inner.enqueue_batch(&records).expect("messages are in flight");
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
    // As the pump does.
    until("the messages are returned", async || {
        let _ = sink.check().await;
        pending.is_finished()
    })
    .await;
    let outcome = pending.await.expect("no panic");
    assert!(
        outcome
            .iter()
            .all(|result| matches!(result, Err(DeliveryFailure::Unreachable(_)))),
        "{outcome:?}"
    );
    cluster.broker_up(1).expect("the broker exists");
    until("the next producer sends them", async || {
        sink.check().await.is_ok() && sink.send(&records).await.iter().all(Result::is_ok)
    })
    .await;
    let works = sink.inner.producer().expect("a producer");
    assert!(!Arc::ptr_eq(&failed, &works), "the producer was not replaced");
}
