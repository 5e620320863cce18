//! Spans of messages with a sampled trace context (W3C Trace Context, in the user property `traceparent`).
//!
//! Two kinds of spans: `mqtt.publish` when the server has accepted a message, a child of the publisher's span, and
//! `mqtt.deliver` from then until it is sent to a subscriber. The message is forwarded with its `traceparent` unchanged
//! ([MQTT-3.3.2-17]), so that the subscriber's span is a child of the publisher's span as well.
//!
//! The sinks run on the threads of the shards. They never wait: spans that do not fit into the queue are counted.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use broker::trace::{PacketDirection, TraceFilter, TraceSink, TracedPacket};
use broker::{ConnectionEvent, Shard};
use mqtt::{Packet, Publish};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use web::unix_ms;

use super::{attributes, scope, unix_ns};
use crate::shards::Shards;
use crate::telemetry::ExportCounters;

/// Limit of spans that wait for the collector.
const QUEUE: usize = 4096;
/// Messages whose `mqtt.publish` is remembered, for their deliveries. Twice as many at most.
const RECEIPTS: usize = 8192;
/// Maximum bytes of each text that comes from a client. Longer ones are cut.
const TEXT_BYTES_MAX: usize = 512;
const ATTACH_PAUSE: Duration = Duration::from_secs(1);

/// `SpanKind` of OTLP.
const SERVER: u8 = 2;
const PRODUCER: u8 = 4;

/// A part of a trace.
pub struct Span {
    name: &'static str,
    kind: u8,
    trace_id: u128,
    span_id: u64,
    parent_id: u64,
    trace_state: Box<str>,
    started_at_ms: u64,
    ended_at_ms: u64,
    client_id: Box<str>,
    address: Box<str>,
    topic: Box<str>,
    qos: u8,
    payload_bytes: usize,
}

/// A valid and sampled `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TraceParent {
    trace_id: u128,
    parent_id: u64,
}

/// The `mqtt.publish` of a message.
#[derive(Clone, Copy)]
struct Receipt {
    span_id: u64,
    at_ms: u64,
}

/// The newest receipts. The older half is dropped when the newer half is full.
#[derive(Default)]
struct Receipts {
    newer: HashMap<TraceParent, Receipt>,
    older: HashMap<TraceParent, Receipt>,
}

/// Spans on their way to the collector.
pub struct SpanQueue {
    spans: mpsc::Receiver<Span>,
    sink: SpanSink,
}

#[derive(Clone)]
struct SpanSink {
    spans: mpsc::Sender<Span>,
    receipts: Arc<Mutex<Receipts>>,
    counters: Arc<ExportCounters>,
    ids: Arc<SpanIds>,
}

#[derive(Default)]
struct SpanIds {
    random: RandomState,
    last: AtomicU64,
}

impl SpanQueue {
    pub fn new(counters: Arc<ExportCounters>) -> SpanQueue {
        let (sender, spans) = mpsc::channel(QUEUE);
        let sink = SpanSink {
            spans: sender,
            receipts: Arc::default(),
            counters,
            ids: Arc::default(),
        };
        SpanQueue { spans, sink }
    }

    /// Starts to record the messages of all shards, as soon as they answer.
    pub async fn attach(&self, shards: &Shards) {
        loop {
            let sink = self.sink.clone();
            let begin = move |shard: &mut Shard, now| {
                let filter = TraceFilter::default();
                shard.operator(now).trace(filter, Box::new(sink.clone()))
            };
            match shards.on_all_shards(begin).await {
                Ok(has_space) if has_space.contains(&false) => {
                    tracing::warn!(
                        "no messages are traced for OpenTelemetry: the limit of concurrent traces is reached"
                    );
                    return;
                }
                Ok(_) => return,
                Err(_) => sleep(ATTACH_PAUSE).await,
            }
        }
    }

    /// Waits for a span and then for others. Returns at most `spans_max`.
    pub async fn batch(&mut self, spans_max: usize, wait: Duration) -> Vec<Span> {
        let mut batch = Vec::new();
        // The sink here keeps the channel open.
        batch.extend(self.spans.recv().await);
        let until = Instant::now() + wait;
        while batch.len() < spans_max
            && let Ok(Some(span)) = timeout_at(until, self.spans.recv()).await
        {
            batch.push(span);
        }
        batch
    }
}

impl SpanIds {
    /// Returns an id that is not 0.
    fn next(&self) -> u64 {
        self.random.hash_one(self.last.fetch_add(1, Ordering::Relaxed)).max(1)
    }
}

impl Receipts {
    fn put(&mut self, parent: TraceParent, receipt: Receipt) {
        if self.newer.len() >= RECEIPTS {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(parent, receipt);
    }

    fn get(&self, parent: TraceParent) -> Option<Receipt> {
        self.newer.get(&parent).or_else(|| self.older.get(&parent)).copied()
    }
}

impl TraceParent {
    /// Parses `00-<trace id>-<parent id>-<flags>`. Returns `None` if it is invalid or not sampled.
    fn parse(text: &str) -> Option<TraceParent> {
        let mut fields = text.split('-');
        let mut hex = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits)?;
            let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            field.bytes().all(is_hex).then_some(field)
        };
        let (version, trace_id, parent_id, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let is_known = version == "00" && fields.next().is_none();
        let parent = TraceParent {
            trace_id: u128::from_str_radix(trace_id, 16).ok().filter(|id| *id != 0)?,
            parent_id: u64::from_str_radix(parent_id, 16).ok().filter(|id| *id != 0)?,
        };
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        // Later versions may have more fields.
        ((is_known || !matches!(version, "00" | "ff")) && is_sampled).then_some(parent)
    }
}

impl SpanSink {
    fn record(&self, packet: &TracedPacket<'_>, publish: &Publish<'_>, parent: TraceParent) {
        let Ok(place) = self.spans.try_reserve() else {
            self.counters.dropped_spans.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let now_ms = unix_ms(SystemTime::now());
        let span_id = self.ids.next();
        let mut receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, kind, receipt) = match packet.direction {
            PacketDirection::Received => {
                let receipt = Receipt { span_id, at_ms: now_ms };
                receipts.put(parent, receipt);
                ("mqtt.publish", SERVER, None)
            }
            PacketDirection::Sent => ("mqtt.deliver", PRODUCER, receipts.get(parent)),
        };
        drop(receipts);
        let trace_state = publish
            .properties
            .user_properties()
            .find(|(name, _)| *name == "tracestate");
        let trace_state = trace_state.map_or("", |(_, value)| value);
        place.send(Span {
            name,
            kind,
            trace_id: parent.trace_id,
            span_id,
            parent_id: receipt.map_or(parent.parent_id, |receipt| receipt.span_id),
            trace_state: shortened(trace_state),
            started_at_ms: receipt.map_or(now_ms, |receipt| receipt.at_ms.min(now_ms)),
            ended_at_ms: now_ms,
            client_id: shortened(packet.client.client_id),
            address: packet.client.address.to_string().into(),
            topic: shortened(packet.topic.unwrap_or(publish.topic)),
            qos: publish.qos as u8,
            payload_bytes: publish.payload.len(),
        });
    }
}

/// Texts of clients are long, and the queue has a place for each span, not for each byte.
fn shortened(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].into()
}

impl TraceSink for SpanSink {
    fn has_ended(&self) -> bool {
        self.spans.is_closed()
    }

    fn packet(&mut self, packet: &TracedPacket<'_>) {
        let Packet::Publish(publish) = packet.packet else {
            return;
        };
        let mut properties = publish.properties.user_properties();
        let parent = properties.find(|(name, _)| *name == "traceparent");
        if let Some(parent) = parent.and_then(|(_, value)| TraceParent::parse(value)) {
            self.record(packet, publish, parent);
        }
    }

    fn event(&mut self, _: &ConnectionEvent) {}

    fn skipped_bytes(&mut self, _: usize) {}
}

pub fn document(batch: &[Span], resource: &Value) -> Value {
    let spans: Vec<Value> = batch.iter().map(Span::to_json).collect();
    json!({"resourceSpans": [{
        "resource": resource,
        "scopeSpans": [{"scope": scope(), "spans": spans}],
    }]})
}

impl Span {
    fn to_json(&self) -> Value {
        let mut all = attributes(&[
            ("messaging.system", "mqtt"),
            ("messaging.destination.name", &self.topic),
            ("messaging.client.id", &self.client_id),
            ("network.peer.address", &self.address),
        ]);
        let number = |key: &str, value: usize| json!({"key": key, "value": {"intValue": value.to_string()}});
        all.push(number("messaging.message.body.size", self.payload_bytes));
        all.push(number("messaging.mqtt.qos", usize::from(self.qos)));
        json!({
            "traceId": format!("{:032x}", self.trace_id),
            "spanId": format!("{:016x}", self.span_id),
            "parentSpanId": format!("{:016x}", self.parent_id),
            "traceState": self.trace_state,
            "name": self.name,
            "kind": self.kind,
            "startTimeUnixNano": unix_ns(self.started_at_ms),
            "endTimeUnixNano": unix_ns(self.ended_at_ms),
            "attributes": all,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_and_sampled_contexts_are_traced() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let expected = TraceParent {
            trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            parent_id: 0x00f0_67aa_0ba9_02b7,
        };
        assert_eq!(TraceParent::parse(parent), Some(expected));
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-more";
        assert_eq!(TraceParent::parse(later), Some(expected));
        for other in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-é",
        ] {
            assert_eq!(TraceParent::parse(other), None, "{other}");
        }
    }

    #[test]
    fn receipts_are_bounded_and_keep_the_newest() {
        let parent = |number: u64| TraceParent {
            trace_id: 1,
            parent_id: number,
        };
        let mut receipts = Receipts::default();
        for number in 0..5 * RECEIPTS as u64 {
            let receipt = Receipt {
                span_id: number,
                at_ms: 0,
            };
            receipts.put(parent(number), receipt);
            assert!(receipts.newer.len() + receipts.older.len() <= 2 * RECEIPTS);
        }
        let last = 5 * RECEIPTS as u64 - 1;
        assert!(receipts.get(parent(last - RECEIPTS as u64 + 1)).is_some());
        assert!(receipts.get(parent(0)).is_none());
    }
}
