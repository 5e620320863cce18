//! Traces: from the shards, which show packets to a sink, to whoever looks at them.
//!
//! A sink runs on a shard's thread: it takes what its rate and its queue have room for, as JSON that is complete, and counts the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;

use broker::trace::{Direction, TraceFilter, TraceSink, TracedPacket};
use broker::{Event, Shard};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::app::{App, unix_ms};
use crate::packet_fields::{Style, fields};
use crate::problem::Problem;

/// Entries a second that a viewer can have.
pub const PER_SECOND_MAX: u32 = 5000;
/// Of each payload.
pub const PAYLOAD_BYTES_MAX: usize = 4096;
/// Entries that a viewer may be behind.
const QUEUE: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub struct TraceLimits {
    pub per_second: u32,
    pub payload_bytes: usize,
}

/// What comes out of a trace, which ends when this is dropped.
pub struct Viewing {
    entries: mpsc::Receiver<Value>,
    counters: Arc<Counters>,
}

/// Shared by the sinks of all shards.
#[derive(Default)]
struct Counters {
    /// Entries that were not shown since the one before.
    left_out: AtomicU64,
    passed_over_bytes: AtomicU64,
    second: AtomicU64,
    taken: AtomicU32,
}

#[derive(Clone)]
struct Sink {
    entries: mpsc::Sender<Value>,
    counters: Arc<Counters>,
    limits: TraceLimits,
}

impl App {
    /// Begins a trace on all shards.
    pub async fn trace(&self, filter: TraceFilter, limits: TraceLimits) -> Result<Viewing, Problem> {
        let (sender, entries) = mpsc::channel(QUEUE);
        let counters = Arc::new(Counters::default());
        let sink = Sink {
            entries: sender,
            counters: counters.clone(),
            limits,
        };
        let begin = move |shard: &mut Shard, _| shard.trace(filter.clone(), Box::new(sink.clone()));
        let has_room = self.on_all(begin).await?;
        if has_room.contains(&false) {
            return Err(Problem::unavailable("there are too many traces already"));
        }
        Ok(Viewing { entries, counters })
    }
}

impl Viewing {
    /// The next entry; none when the server ends.
    pub async fn next(&mut self) -> Option<Value> {
        self.entries.recv().await
    }

    /// What was not shown and has not been told of, if there is any.
    pub fn take_left_out(&self) -> Option<Value> {
        let (entries, bytes) = self.counters.take_left_out();
        (entries > 0 || bytes > 0).then(|| json!({ "type": "left_out", "left_out": entries, "left_out_bytes": bytes }))
    }
}

impl Counters {
    /// Whether one more may be shown in this second.
    fn take(&self, per_second: u32, unix_s: u64) -> bool {
        if self.second.swap(unix_s, Ordering::Relaxed) != unix_s {
            self.taken.store(0, Ordering::Relaxed);
        }
        self.taken.fetch_add(1, Ordering::Relaxed) < per_second
    }

    fn take_left_out(&self) -> (u64, u64) {
        let entries = self.left_out.swap(0, Ordering::Relaxed);
        (entries, self.passed_over_bytes.swap(0, Ordering::Relaxed))
    }
}

impl Sink {
    /// Makes an entry if there is room for it.
    fn tell(&self, kind: &str, fill: impl FnOnce(&mut Map<String, Value>)) {
        let at_unix_ms = unix_ms(SystemTime::now());
        let has_turn = self.counters.take(self.limits.per_second, at_unix_ms / 1000);
        let Some(permit) = self.entries.try_reserve().ok().filter(|_| has_turn) else {
            self.counters.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (left_out, bytes) = self.counters.take_left_out();
        let mut entry = Map::new();
        entry.insert("type".into(), kind.into());
        entry.insert("at_unix_ms".into(), at_unix_ms.into());
        fill(&mut entry);
        entry.insert("left_out".into(), left_out.into());
        if bytes > 0 {
            entry.insert("left_out_bytes".into(), bytes.into());
        }
        permit.send(entry.into());
    }
}

impl TraceSink for Sink {
    fn is_over(&self) -> bool {
        self.entries.is_closed()
    }

    fn packet(&mut self, packet: &TracedPacket<'_>) {
        let style = Style {
            payload_bytes_max: self.limits.payload_bytes,
            is_device: packet.is_device,
            topic: packet.topic,
        };
        self.tell("packet", |entry| {
            entry.insert("direction".into(), direction(packet.direction).into());
            entry.insert("packet".into(), packet.packet.packet_type().name().into());
            entry.insert("client_id".into(), packet.client.client_id.into());
            entry.insert("address".into(), packet.client.address.to_string().into());
            entry.insert("bytes".into(), packet.size.into());
            entry.insert("fields".into(), fields(packet.packet, style).into());
        });
    }

    fn event(&mut self, event: &Event) {
        self.tell("event", |entry| put_event(entry, event));
    }

    fn passed_over(&mut self, bytes: usize) {
        self.counters
            .passed_over_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

fn put_event(entry: &mut Map<String, Value>, event: &Event) {
    let mut put = |name: &str, value: Value| _ = entry.insert(name.to_owned(), value);
    match event {
        Event::Connected {
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
        Event::Refused {
            client_id,
            address,
            reason,
            because,
            ..
        } => {
            put("event", "refused".into());
            put("client_id", (**client_id).into());
            put("address", address.to_string().into());
            put("fields", json!({ "reason": reason.name(), "because": because }));
        }
        Event::Disconnected {
            client_id,
            address,
            reason,
            because,
        } => {
            put("event", "disconnected".into());
            put("client_id", (**client_id).into());
            put("address", address.to_string().into());
            put("fields", json!({ "reason": reason.name(), "because": because }));
        }
        Event::SessionEnded { client_id, because } => {
            put("event", "session_ended".into());
            put("client_id", (**client_id).into());
            put("fields", json!({ "because": because }));
        }
        Event::Dropping { client_id, reason } => {
            put("event", "dropping".into());
            put("client_id", (**client_id).into());
            put("fields", json!({ "reason": reason.name() }));
        }
    }
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Received => "received",
        Direction::Sent => "sent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_beyond_the_rate_is_counted() {
        let (sender, entries) = mpsc::channel(2);
        let counters = Arc::new(Counters::default());
        let limits = TraceLimits {
            per_second: u32::MAX,
            payload_bytes: 1,
        };
        let mut viewing = Viewing {
            entries,
            counters: counters.clone(),
        };
        let sink = Sink {
            entries: sender,
            counters,
            limits,
        };
        for _ in 0..5 {
            sink.tell("packet", |_| {});
        }
        for _ in 0..2 {
            assert_eq!(viewing.next().await.unwrap()["left_out"], 0);
        }
        sink.tell("packet", |_| {});
        assert_eq!(viewing.next().await.unwrap()["left_out"], 3);
        assert_eq!(viewing.take_left_out(), None);
        assert!(sink.counters.take(2, 7) && sink.counters.take(2, 7) && !sink.counters.take(2, 7));
        assert!(sink.counters.take(2, 8));
        drop(viewing);
        assert!(sink.is_over());
    }
}
