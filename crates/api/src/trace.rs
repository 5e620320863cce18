//! Traces: shards pass packets to a sink, which sends them to the viewer.
//!
//! A sink runs on a shard's thread. It converts packets to JSON as far as its rate and its queue permit, and counts the
//! others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;

use broker::trace::{PacketDirection, TraceFilter, TraceSink, TracedPacket};
use broker::{ConnectionEvent, Shard};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use web::problem::HttpProblem;
use web::unix_ms;

use crate::packet_fields::{PacketViewOptions, fields};
use crate::shards::Shards;

/// Limit of entries per second and viewer.
pub const PER_SECOND_MAX: u32 = 5000;
/// Limit of each payload.
pub const PAYLOAD_BYTES_MAX: usize = 4096;
/// Limit of entries that are queued for a viewer.
const QUEUE: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub struct TraceLimits {
    pub per_second: u32,
    pub payload_bytes: usize,
}

/// The viewer's end of a trace. Dropping it ends the trace.
pub struct TraceReader {
    entries: mpsc::Receiver<Value>,
    counters: Arc<TraceCounters>,
}

/// Shared by the sinks of all shards.
#[derive(Default)]
struct TraceCounters {
    /// Entries that were omitted since the last entry.
    omitted: AtomicU64,
    skipped_bytes: AtomicU64,
    second: AtomicU64,
    sent_in_second: AtomicU32,
}

#[derive(Clone)]
struct ChannelTraceSink {
    entries: mpsc::Sender<Value>,
    counters: Arc<TraceCounters>,
    limits: TraceLimits,
}

impl Shards {
    /// Starts a trace on all shards.
    pub async fn trace(&self, filter: TraceFilter, limits: TraceLimits) -> Result<TraceReader, HttpProblem> {
        let (sender, entries) = mpsc::channel(QUEUE);
        let counters = Arc::new(TraceCounters::default());
        let sink = ChannelTraceSink {
            entries: sender,
            counters: counters.clone(),
            limits,
        };
        let begin = move |shard: &mut Shard, now| shard.operator(now).trace(filter.clone(), Box::new(sink.clone()));
        let has_room = self.on_all_shards(begin).await?;
        if has_room.contains(&false) {
            return Err(HttpProblem::unavailable("the limit of concurrent traces is reached"));
        }
        Ok(TraceReader { entries, counters })
    }
}

impl TraceReader {
    /// Returns the next entry; `None` when the server stops.
    pub async fn next(&mut self) -> Option<Value> {
        self.entries.recv().await
    }

    /// Returns an entry with the number of omitted entries, if there are any.
    pub fn take_omitted(&self) -> Option<Value> {
        let (entries, bytes) = self.counters.take_omitted();
        (entries > 0 || bytes > 0).then(|| json!({ "type": "omitted", "omitted": entries, "omitted_bytes": bytes }))
    }
}

impl TraceCounters {
    /// Whether another entry may be sent in this second.
    fn take(&self, per_second: u32, unix_s: u64) -> bool {
        if self.second.swap(unix_s, Ordering::Relaxed) != unix_s {
            self.sent_in_second.store(0, Ordering::Relaxed);
        }
        self.sent_in_second.fetch_add(1, Ordering::Relaxed) < per_second
    }

    fn take_omitted(&self) -> (u64, u64) {
        let entries = self.omitted.swap(0, Ordering::Relaxed);
        (entries, self.skipped_bytes.swap(0, Ordering::Relaxed))
    }
}

impl ChannelTraceSink {
    /// Sends an entry, if the rate and the queue permit it.
    fn send(&self, kind: &str, fill: impl FnOnce(&mut Map<String, Value>)) {
        let at_unix_ms = unix_ms(SystemTime::now());
        let has_turn = self.counters.take(self.limits.per_second, at_unix_ms / 1000);
        let Some(permit) = self.entries.try_reserve().ok().filter(|_| has_turn) else {
            self.counters.omitted.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (omitted, bytes) = self.counters.take_omitted();
        let mut entry = Map::new();
        entry.insert("type".into(), kind.into());
        entry.insert("at_unix_ms".into(), at_unix_ms.into());
        fill(&mut entry);
        entry.insert("omitted".into(), omitted.into());
        if bytes > 0 {
            entry.insert("omitted_bytes".into(), bytes.into());
        }
        permit.send(entry.into());
    }
}

impl TraceSink for ChannelTraceSink {
    fn has_ended(&self) -> bool {
        self.entries.is_closed()
    }

    fn packet(&mut self, packet: &TracedPacket<'_>) {
        let style = PacketViewOptions {
            payload_bytes_max: self.limits.payload_bytes,
            is_user_name_secret: packet.is_user_name_secret,
            topic: packet.topic,
        };
        self.send("packet", |entry| {
            entry.insert("direction".into(), direction(packet.direction).into());
            entry.insert("packet".into(), packet.packet.packet_type().name().into());
            entry.insert("client_id".into(), packet.client.client_id.into());
            entry.insert("address".into(), packet.client.address.to_string().into());
            entry.insert("bytes".into(), packet.size.into());
            entry.insert("fields".into(), fields(packet.packet, style).into());
        });
    }

    fn event(&mut self, event: &ConnectionEvent) {
        self.send("event", |entry| put_event(entry, event));
    }

    fn skipped_bytes(&mut self, bytes: usize) {
        self.counters.skipped_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

fn put_event(entry: &mut Map<String, Value>, event: &ConnectionEvent) {
    let mut put = |name: &str, value: Value| _ = entry.insert(name.to_owned(), value);
    match event {
        ConnectionEvent::Connected {
            client_id,
            address,
            session_present,
            ..
        } => {
            put("event", "connected".into());
            put("client_id", (**client_id).into());
            put("address", address.to_string().into());
            put("fields", json!({ "session_present": session_present }));
        }
        ConnectionEvent::Refused {
            client_id,
            address,
            reason,
            detail,
            ..
        } => {
            put("event", "refused".into());
            put("client_id", (**client_id).into());
            put("address", address.to_string().into());
            put("fields", json!({ "reason": reason.name(), "detail": detail }));
        }
        ConnectionEvent::Disconnected {
            client_id,
            address,
            reason,
            detail,
        } => {
            put("event", "disconnected".into());
            put("client_id", (**client_id).into());
            put("address", address.to_string().into());
            put("fields", json!({ "reason": reason.name(), "detail": detail }));
        }
        ConnectionEvent::AddressChanged {
            client_id,
            from,
            address,
        } => {
            put("event", "address_changed".into());
            put("client_id", (**client_id).into());
            put("address", address.to_string().into());
            put("fields", json!({ "from": from.to_string() }));
        }
        ConnectionEvent::StreamEnded {
            client_id,
            address,
            reason,
            detail,
        } => {
            put("event", "stream_ended".into());
            put("client_id", (**client_id).into());
            put("address", address.to_string().into());
            put("fields", json!({ "reason": reason.name(), "detail": detail }));
        }
        ConnectionEvent::SessionEnded { client_id, detail } => {
            put("event", "session_ended".into());
            put("client_id", (**client_id).into());
            put("fields", json!({ "detail": detail }));
        }
        ConnectionEvent::Dropping { client_id, reason } => {
            put("event", "dropping".into());
            put("client_id", (**client_id).into());
            put("fields", json!({ "reason": reason.name() }));
        }
        ConnectionEvent::OverLimit {
            client_id,
            owner,
            exceeded,
        } => {
            put("event", "over_limit".into());
            put("client_id", (**client_id).into());
            let fields = json!({ "owner": owner, "limit": exceeded.limit.name(), "option": exceeded.option });
            put("fields", fields);
        }
        ConnectionEvent::Throttled {
            client_id,
            user_name,
            owner,
            limit,
        } => {
            put("event", "throttled".into());
            put("client_id", (**client_id).into());
            let (limit, option) = (limit.name(), limit.option());
            let fields = json!({ "user_name": user_name, "owner": owner, "limit": limit, "option": option });
            put("fields", fields);
        }
    }
}

fn direction(direction: PacketDirection) -> &'static str {
    match direction {
        PacketDirection::Received => "received",
        PacketDirection::Sent => "sent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn entries_above_the_rate_are_counted() {
        let (sender, entries) = mpsc::channel(2);
        let counters = Arc::new(TraceCounters::default());
        let limits = TraceLimits {
            per_second: u32::MAX,
            payload_bytes: 1,
        };
        let mut viewing = TraceReader {
            entries,
            counters: counters.clone(),
        };
        let sink = ChannelTraceSink {
            entries: sender,
            counters,
            limits,
        };
        for _ in 0..5 {
            sink.send("packet", |_| {});
        }
        for _ in 0..2 {
            assert_eq!(viewing.next().await.unwrap()["omitted"], 0);
        }
        sink.send("packet", |_| {});
        assert_eq!(viewing.next().await.unwrap()["omitted"], 3);
        assert_eq!(viewing.take_omitted(), None);
        assert!(sink.counters.take(2, 7) && sink.counters.take(2, 7) && !sink.counters.take(2, 7));
        assert!(sink.counters.take(2, 8));
        drop(viewing);
        assert!(sink.has_ended());
    }
}
