//! Metrics and traces reach an OpenTelemetry collector.

use serde_json::{Value, json};

use super::*;
use crate::rules::bad_input::metric;
use crate::rules::web_server::WebServer;

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT_ID: &str = "00f067aa0ba902b7";

fn config(web: &WebServer, more: &str) -> Config {
    let endpoint = web.address;
    Config::new(format!("[opentelemetry]\nendpoint = \"http://{endpoint}\"\n{more}"))
}

fn documents(web: &WebServer, key: &str) -> Vec<Value> {
    let bodies = web.bodies().into_iter();
    let documents = bodies.map(|body| serde_json::from_str::<Value>(&body).expect("the body is JSON"));
    documents
        .filter_map(|document| Some(document.get(key)?[0].clone()))
        .collect()
}

fn spans(web: &WebServer) -> Vec<Value> {
    let documents = documents(web, "resourceSpans").into_iter();
    let spans = documents.flat_map(|document| document["scopeSpans"][0]["spans"].as_array().cloned().unwrap());
    spans.collect()
}

/// Publishes a message with this trace context to a subscriber of `t/#`.
fn publish(server: &Server, topic: &str, traceparent: &str) {
    let mut subscriber = server.session(&Connect::new(V5, unique("subscriber")));
    subscriber.subscribe("t/#", 1);
    let mut publisher = server.session(&Connect::new(V5, unique("publisher")));
    let message = Publish::new(topic, "12345").qos(1);
    let message = message.property(prop::user("traceparent", traceparent));
    assert_eq!(publisher.publish(&message), 0);
    let received = subscriber.expect(kind::PUBLISH).body;
    // [MQTT-3.3.2-17]
    let forwarded = prop::user("traceparent", traceparent);
    assert!(received.windows(forwarded.len()).any(|bytes| bytes == forwarded));
}

fn attribute<'a>(of: &'a Value, key: &str) -> &'a Value {
    let attributes = of["attributes"].as_array().expect("there are attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key} in {of}"))["value"]
}

#[test]
fn metrics_are_those_of_the_metrics_page() {
    let web = WebServer::here();
    let server = Server::start(&config(&web, "metrics_interval = \"1s\"\nservice_name = \"plant\"\n"));
    let _client = server.session(&Connect::new(V5, "client"));
    let metric = |document: &Value, name: &str| {
        let all = document["scopeMetrics"][0]["metrics"].as_array().unwrap().clone();
        all.into_iter().find(|metric| metric["name"] == name).unwrap()
    };
    let connections =
        |document: &Value| metric(document, "tidewire_broker_connections")["gauge"]["dataPoints"][0].clone();
    server.wait_until("the connection is exported", |_| {
        documents(&web, "resourceMetrics")
            .last()
            .is_some_and(|document| connections(document)["asInt"] == "1")
    });
    let document = documents(&web, "resourceMetrics").pop().unwrap();
    assert_eq!(attribute(&document["resource"], "service.name")["stringValue"], "plant");
    assert_eq!(document["scopeMetrics"][0]["scope"]["name"], "tidewire");
    let received = metric(&document, "tidewire_broker_packets_received");
    assert_eq!(
        (&received["unit"], &received["sum"]["isMonotonic"]),
        (&json!("1"), &json!(true))
    );
    let points = received["sum"]["dataPoints"].as_array().unwrap();
    let connect = points
        .iter()
        .find(|point| attribute(point, "type")["stringValue"] == "connect");
    assert_eq!(connect.unwrap()["asInt"], "1");
    let commits = metric(&document, "tidewire_journal_commit_seconds");
    let point = &commits["histogram"]["dataPoints"][0];
    let count = |text: &Value| text.as_str().unwrap().parse::<u64>().unwrap();
    let buckets: Vec<u64> = point["bucketCounts"].as_array().unwrap().iter().map(count).collect();
    assert_eq!(buckets.len(), point["explicitBounds"].as_array().unwrap().len() + 1);
    assert_eq!(buckets.iter().sum::<u64>(), count(&point["count"]));
    let names = |text: &str| text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    let all = names(&server.http_get("/metrics").1);
    let exported = document["scopeMetrics"][0]["metrics"].as_array().unwrap().len();
    // Families without samples are not exported.
    assert!(exported <= all && exported > all / 2, "{exported} of {all}");
}

#[test]
fn sampled_messages_have_a_span_per_step() {
    let web = WebServer::here();
    let server = Server::start(&config(&web, "traces = true\n"));
    let is_traced = |server: &Server| {
        publish(server, "t/first", &format!("00-{TRACE_ID}-{PARENT_ID}-01"));
        spans(&web).len() >= 2
    };
    server.wait_until("the messages are traced", is_traced);
    publish(&server, "t/silent", &format!("00-{TRACE_ID}-{PARENT_ID}-00"));
    let other = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    publish(&server, "t/last", other);
    let of_topic = |topic: &str| -> Vec<Value> {
        let all = spans(&web).into_iter();
        all.filter(|span| attribute(span, "messaging.destination.name")["stringValue"] == topic)
            .collect()
    };
    server.wait_until("the spans have arrived", |_| of_topic("t/last").len() == 2);
    assert_eq!(of_topic("t/silent"), Vec::<Value>::new());
    let last = of_topic("t/last");
    let named = |name: &str| last.iter().find(|span| span["name"] == name).unwrap();
    let (publish, deliver) = (named("mqtt.publish"), named("mqtt.deliver"));
    assert_eq!(publish["parentSpanId"], "b7ad6b7169203331");
    assert_eq!(deliver["parentSpanId"], publish["spanId"]);
    assert_eq!(publish["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(deliver["startTimeUnixNano"], publish["startTimeUnixNano"]);
    assert_eq!(attribute(publish, "messaging.message.body.size")["intValue"], "5");
}

#[test]
fn spans_wait_for_the_collector() {
    let web = WebServer::away();
    let server = Server::start(&config(&web, "traces = true\nmetrics_interval = \"off\"\n"));
    let failed = ["signal=\"traces\"", "result=\"failed\""];
    let has_failed = |server: &Server| {
        publish(server, "t/1", &format!("00-{TRACE_ID}-{PARENT_ID}-01"));
        metric(server, "tidewire_opentelemetry_exports_total", &failed) > 0.0
    };
    server.wait_until("an export has failed", has_failed);
    assert!(
        server
            .log()
            .contains("the OpenTelemetry collector has not accepted the data")
    );
    web.come();
    server.wait_until("the spans have arrived", |_| spans(&web).len() >= 2);
    server.wait_until("the log has the end of the failure", |server| {
        server.log().contains("the OpenTelemetry collector accepts data again")
    });
    assert_eq!(metric(&server, "tidewire_opentelemetry_dropped_spans_total", &[]), 0.0);
}

#[test]
fn rejected_spans_are_counted_and_not_sent_again() {
    let web = WebServer::answering(400);
    let server = Server::start(&config(&web, "traces = true\nmetrics_interval = \"off\"\n"));
    let dropped = |server: &Server| {
        publish(server, "t/1", &format!("00-{TRACE_ID}-{PARENT_ID}-01"));
        metric(server, "tidewire_opentelemetry_dropped_spans_total", &[]) > 0.0
    };
    server.wait_until("spans are dropped", dropped);
    assert!(server.log().contains("answer 400 Bad Request"), "{}", server.log());
}
