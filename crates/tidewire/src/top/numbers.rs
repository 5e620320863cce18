//! Statistics of a node from the API, and rates from two responses.

use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::remote::{ApiClient, ApiError};

/// One reading, with rates since the previous one.
#[derive(Clone, Debug)]
pub struct ServerNumbers {
    pub stats: Value,
    pub listeners: Value,
    /// In the order of `RATES`.
    pub per_s: [f64; RATES.len()],
    /// Number of busy cores.
    pub cpu_cores: Option<f64>,
}

/// Statistics whose rates are shown. Each rate is the sum of some totals.
pub const RATES: [(&str, &[&str]); 5] = [
    (
        "messages_received",
        &[
            "/messages/received/qos0",
            "/messages/received/qos1",
            "/messages/received/qos2",
        ],
    ),
    (
        "messages_sent",
        &["/messages/sent/qos0", "/messages/sent/qos1", "/messages/sent/qos2"],
    ),
    ("messages_dropped", &["/drops"]),
    ("bytes_received", &["/bytes_received"]),
    ("bytes_sent", &["/bytes_sent"]),
];

impl ServerNumbers {
    pub fn number(&self, pointer: &str) -> u64 {
        total(&self.stats, pointer)
    }

    pub fn text(&self, pointer: &str) -> &str {
        self.stats.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Names of the active alarms.
    pub fn alarms(&self) -> Vec<&str> {
        let names = self.stats.pointer("/alarms").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Non-zero values of a table such as `/drops`, largest first.
    pub fn largest(&self, pointer: &str) -> Vec<(&str, u64)> {
        let fields = self.stats.pointer(pointer).and_then(Value::as_object);
        let counts = fields.into_iter().flatten();
        let mut counts: Vec<(&str, u64)> = counts
            .map(|(name, count)| (name.as_str(), count.as_u64().unwrap_or(0)))
            .filter(|(_, count)| *count > 0)
            .collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    /// The complete response, for scripts.
    pub fn to_json(&self) -> Value {
        let mut per_s = Map::new();
        for ((name, _), rate) in RATES.iter().zip(self.per_s) {
            per_s.insert((*name).to_owned(), json!((rate * 10.0).round() / 10.0));
        }
        json!({ "per_s": per_s, "cpu_cores": self.cpu_cores, "stats": self.stats, "listeners": self.listeners })
    }
}

/// A number, or the sum of a table of numbers.
fn total(stats: &Value, pointer: &str) -> u64 {
    match stats.pointer(pointer) {
        Some(Value::Object(fields)) => fields.values().filter_map(Value::as_u64).sum(),
        Some(value) => value.as_u64().unwrap_or(0),
        None => 0,
    }
}

/// Reads repeatedly.
pub struct NumbersReader<'a> {
    api: &'a ApiClient,
    last: Value,
    last_request: Instant,
}

impl NumbersReader<'_> {
    pub fn new(api: &ApiClient) -> Result<NumbersReader<'_>, ApiError> {
        Ok(NumbersReader {
            api,
            last: api.get("/api/v1/stats")?,
            last_request: Instant::now(),
        })
    }

    pub fn fetch(&mut self) -> Result<ServerNumbers, ApiError> {
        let stats = self.api.get("/api/v1/stats")?;
        let seconds = self.last_request.elapsed().as_secs_f64();
        self.last_request = Instant::now();
        let listeners = self.api.get("/api/v1/listeners")?;
        let numbers = from_responses(&self.last, stats, listeners, seconds);
        self.last = numbers.stats.clone();
        Ok(numbers)
    }
}

/// The clock of the server gives the time between two readings, as long as it is the same process.
fn from_responses(last: &Value, stats: Value, listeners: Value, seconds: f64) -> ServerNumbers {
    let at = |stats: &Value| total(stats, "/at_unix_ms") as f64 / 1000.0;
    let apart = at(&stats) - at(last);
    let apart = if apart > 0.0 { apart } else { seconds.max(1e-3) };
    let has_restarted = total(&stats, "/node/started_at_unix_ms") != total(last, "/node/started_at_unix_ms");
    let rate = |(_, pointers): (&str, &[&str])| {
        let sum = |stats: &Value| pointers.iter().map(|pointer| total(stats, pointer)).sum::<u64>();
        let before = if has_restarted { 0 } else { sum(last) };
        sum(&stats).saturating_sub(before) as f64 / apart
    };
    let cpu = |stats: &Value| stats.pointer("/process/cpu_seconds").and_then(Value::as_f64);
    let cpu_cores = cpu(&stats).zip(cpu(last)).map(|(now, before)| (now - before) / apart);
    ServerNumbers {
        per_s: RATES.map(rate),
        cpu_cores: cpu_cores.filter(|cores| *cores >= 0.0),
        stats,
        listeners,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A reading at a given second, with a thousand messages in each second before.
    pub fn stats(second: u64, started: u64) -> Value {
        let messages = second * 1000;
        json!({
            "at_unix_ms": second * 1000,
            "node": { "name": "n1", "version": "0.1.0", "started_at_unix_ms": started, "uptime_s": 93_784, "shards": 2,
                "durability": "every acknowledged message is on disk" },
            "connections": { "current": 12_345, "maximum": 20_000, "refused": 3 },
            "sessions": { "current": 12_400, "maximum": 20_000 },
            "subscriptions": { "current": 99, "maximum": 100 },
            "retained": { "messages": 7, "bytes": 70 },
            "queued": { "messages": 5, "bytes": 500 },
            "inflight_messages": 4,
            "messages": { "received": { "qos0": messages, "qos1": messages, "qos2": 0 },
                "sent": { "qos0": 0, "qos1": 0, "qos2": 10 * messages } },
            "bytes_received": 1024 * messages,
            "bytes_sent": 0,
            "publish_ack": { "p50_ms": 0.254, "p99_ms": 3.5 },
            "drops": { "expired": second, "queue_full_by_count": 2 * second, "slow_consumer": 0 },
            "disconnects": { "by_client": 8 },
            "process": { "cpu_seconds": second as f64 / 4.0, "resident_bytes": 20_000_000 },
            "journal": { "file_bytes": 64 << 20, "backlog_bytes": 4096 },
            "disk": { "free_bytes": 21_u64 << 30, "total_bytes": 252_u64 << 30 },
            "alarms": ["journal_full", "action:http:web"],
        })
    }

    pub fn numbers() -> ServerNumbers {
        let listeners = json!([{ "name": "default", "transport": "tcp", "address": "0.0.0.0:1883", "connections": 12_345,
            "connections_max": 100_000, "accepted": 50_000, "refused": { "tls_handshake": 2 } }]);
        from_responses(&stats(10, 1), stats(12, 1), listeners, 9.9)
    }

    #[test]
    fn rates_follow_from_two_readings_by_the_servers_clock() {
        let numbers = numbers();
        assert_eq!(numbers.per_s, [2000.0, 10_000.0, 3.0, 1_024_000.0, 0.0]);
        assert_eq!(numbers.cpu_cores, Some(0.25));
        assert_eq!(
            numbers.largest("/drops"),
            [("queue_full_by_count", 24), ("expired", 12)]
        );
        let json = numbers.to_json();
        assert_eq!(
            (&json["per_s"]["messages_sent"], &json["cpu_cores"]),
            (&json!(10_000.0), &json!(0.25))
        );
        assert_eq!(json["stats"]["connections"]["current"], 12_345);
    }

    #[test]
    fn a_server_that_has_restarted_counts_from_zero() {
        let numbers = from_responses(&stats(100, 1), stats(2, 2), Value::Null, 4.0);
        assert_eq!(numbers.per_s[0], 1000.0);
        assert_eq!(numbers.cpu_cores, None);
    }
}
