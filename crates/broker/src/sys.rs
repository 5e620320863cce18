//! Statistics as topics: Mosquitto's tree `$SYS/broker/…` and EMQX's `$SYS/brokers/<node>/…`, with the names and
//! payloads that tools for those brokers expect.
//!
//! Pure functions from numbers to topics and payloads. The caller decides when to publish them, and should use
//! `ServerPublisher::publish_sys`, so that statistics do not count themselves as undelivered messages.

use std::fmt::Write;

use mqtt::{PacketType, QoS};

use crate::effect::{ConnectionEvent, DropReason};
use crate::stats::ShardStats;

/// Properties of a node besides its statistics.
#[derive(Clone, Debug)]
pub struct SysInfo {
    /// `name@host`, as in EMQX. Must be a topic level: no `/`, `+`, `#`.
    pub node: String,
    pub version: String,
    pub uptime_ms: u64,
    pub unix_ms: u64,
    /// Connections accepted since the start, including those that never sent a CONNECT.
    pub sockets_total: u64,
    /// Memory of the process.
    pub resident_bytes: Option<u64>,
}

/// Exponentially weighted moving averages over one, five and fifteen minutes, as rates per minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadAverage {
    pub per_minute: [f64; 3],
}

const LOAD_SECONDS: [f64; 3] = [60.0, 300.0, 900.0];
const LOAD_NAMES: [&str; 3] = ["1min", "5min", "15min"];

impl LoadAverage {
    /// Updates the averages as Mosquitto does: adds the events since the last update, as a rate per minute.
    pub fn update(&mut self, events: u64, interval_s: f64) {
        if interval_s <= 0.0 {
            return;
        }
        let rate = events as f64 * 60.0 / interval_s;
        for (average, seconds) in self.per_minute.iter_mut().zip(LOAD_SECONDS) {
            *average = rate + (-interval_s / seconds).exp() * (*average - rate);
        }
    }
}

/// The averages of Mosquitto's tree, kept between publications.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadAverages {
    loads: [LoadAverage; LOADS.len()],
    last: [u64; LOADS.len()],
}

type SysCounter = fn(&ShardStats, &SysInfo) -> u64;

/// Name below `$SYS/broker/load/`, and the total whose rate it is.
const LOADS: [(&str, SysCounter); 9] = [
    ("messages/received", |stats, _| stats.packets_received.iter().sum()),
    ("messages/sent", |stats, _| stats.packets_sent.iter().sum()),
    ("publish/received", |stats, _| stats.messages_received.iter().sum()),
    ("publish/sent", |stats, _| stats.messages_sent.iter().sum()),
    ("publish/dropped", |stats, _| dropped(stats)),
    ("bytes/received", |stats, _| stats.bytes_received),
    ("bytes/sent", |stats, _| stats.bytes_sent),
    ("sockets", |_, info| info.sockets_total),
    ("connections", |stats, _| {
        stats.packets_received[PacketType::Connect as usize]
    }),
];

impl LoadAverages {
    pub fn update(&mut self, stats: &ShardStats, info: &SysInfo, interval_s: f64) {
        for (at, (_, count)) in LOADS.iter().enumerate() {
            let total = count(stats, info);
            self.loads[at].update(total.saturating_sub(self.last[at]), interval_s);
            self.last[at] = total;
        }
    }
}

/// Returns the number of dropped messages, without those that had no subscriber.
fn dropped(stats: &ShardStats) -> u64 {
    let all: u64 = stats.drops.iter().sum();
    all - stats.drops[DropReason::NoSubscriber as usize]
}

pub type SysTopics = Vec<(String, String)>;

/// Returns Mosquitto's tree.
pub fn mosquitto_tree(stats: &ShardStats, loads: &LoadAverages, info: &SysInfo) -> SysTopics {
    let mut topics = SysTopics::new();
    let mut put = |name: &str, value: String| topics.push((format!("$SYS/broker/{name}"), value));
    put("version", format!("tidewire version {}", info.version));
    put("uptime", format!("{} seconds", info.uptime_ms / 1000));
    let away = stats.sessions.saturating_sub(stats.connections);
    for (name, value) in [
        ("clients/total", stats.sessions),
        ("clients/maximum", stats.connections_max),
        ("clients/connected", stats.connections),
        ("clients/active", stats.connections),
        ("clients/disconnected", away),
        ("clients/inactive", away),
        ("messages/received", stats.packets_received.iter().sum()),
        ("messages/sent", stats.packets_sent.iter().sum()),
        ("messages/stored", stats.queued_messages + stats.retained_messages),
        ("store/messages/count", stats.queued_messages + stats.retained_messages),
        ("store/messages/bytes", stats.queued_bytes + stats.retained_bytes),
        ("retained messages/count", stats.retained_messages),
        ("subscriptions/count", stats.subscriptions),
        ("shared_subscriptions/count", stats.shared_groups),
        ("bytes/received", stats.bytes_received),
        ("bytes/sent", stats.bytes_sent),
        ("publish/messages/received", stats.messages_received.iter().sum()),
        ("publish/messages/sent", stats.messages_sent.iter().sum()),
        ("publish/messages/dropped", dropped(stats)),
        ("publish/bytes/received", stats.publish_bytes_received),
        ("publish/bytes/sent", stats.publish_bytes_sent),
    ] {
        put(name, value.to_string());
    }
    if let Some(bytes) = info.resident_bytes {
        put("heap/current", bytes.to_string());
    }
    for ((name, _), load) in LOADS.iter().zip(&loads.loads) {
        for (span, value) in LOAD_NAMES.iter().zip(load.per_minute) {
            put(&format!("load/{name}/{span}"), format!("{value:.2}"));
        }
    }
    topics
}

/// Returns EMQX's tree: `brokers`, and per node `version`, `uptime`, `datetime`, `sysdescr`, `stats/#` and `metrics/#`.
pub fn emqx_tree(stats: &ShardStats, info: &SysInfo) -> SysTopics {
    let mut topics = vec![("$SYS/brokers".to_owned(), info.node.clone())];
    let mut put = |name: &str, value: String| topics.push((format!("$SYS/brokers/{}/{name}", info.node), value));
    put("version", info.version.clone());
    put("sysdescr", "tidewire".to_owned());
    put("uptime", info.uptime_ms.to_string());
    put("datetime", rfc3339(info.unix_ms));
    for (name, count, max) in emqx_stats(stats) {
        put(&format!("stats/{name}/count"), count.to_string());
        if let Some(max) = max {
            put(&format!("stats/{name}/max"), max.to_string());
        }
    }
    for (name, value) in emqx_metrics(stats) {
        put(&format!("metrics/{name}"), value.to_string());
    }
    topics
}

/// Name, current value, and maximum if it is known.
fn emqx_stats(stats: &ShardStats) -> [(&'static str, u64, Option<u64>); 8] {
    [
        ("connections", stats.sessions, Some(stats.sessions_max)),
        ("live_connections", stats.connections, Some(stats.connections_max)),
        ("sessions", stats.sessions, Some(stats.sessions_max)),
        ("subscriptions", stats.subscriptions, Some(stats.subscriptions_max)),
        ("suboptions", stats.subscriptions, Some(stats.subscriptions_max)),
        ("subscriptions/shared", stats.shared_groups, None),
        ("retained", stats.retained_messages, None),
        ("delayed", stats.delayed_messages, None),
    ]
}

fn emqx_metrics(stats: &ShardStats) -> Vec<(String, u64)> {
    let mut metrics: Vec<(String, u64)> = Vec::new();
    let mut put = |name: &str, value: u64| metrics.push((name.to_owned(), value));
    put("bytes/received", stats.bytes_received);
    put("bytes/sent", stats.bytes_sent);
    put("packets/received", stats.packets_received.iter().sum());
    put("packets/sent", stats.packets_sent.iter().sum());
    for (name, kind) in FROM_CLIENTS {
        put(
            &format!("packets/{name}/received"),
            stats.packets_received[kind as usize],
        );
    }
    for (name, kind) in TO_CLIENTS {
        put(&format!("packets/{name}/sent"), stats.packets_sent[kind as usize]);
    }
    put("messages/received", stats.messages_received.iter().sum());
    put("messages/sent", stats.messages_sent.iter().sum());
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].map(|qos| qos as usize) {
        put(&format!("messages/qos{qos}/received"), stats.messages_received[qos]);
        put(&format!("messages/qos{qos}/sent"), stats.messages_sent[qos]);
    }
    put("messages/acked", stats.messages_acknowledged);
    put("messages/forward", stats.messages_forwarded);
    put("messages/dropped", stats.drops[DropReason::NoSubscriber as usize]);
    put(
        "messages/dropped/no_subscribers",
        stats.drops[DropReason::NoSubscriber as usize],
    );
    put("messages/dropped/expired", stats.drops[DropReason::Expired as usize]);
    put("delivery/dropped", dropped(stats));
    put(
        "delivery/dropped/too_large",
        stats.drops[DropReason::TooLargeForClient as usize],
    );
    put(
        "delivery/dropped/qos0_msg",
        stats.drops[DropReason::SlowConsumer as usize],
    );
    let queue_full = [
        DropReason::QueueFullByCount,
        DropReason::QueueFullByBytes,
        DropReason::UserQueueFull,
    ];
    put(
        "delivery/dropped/queue_full",
        queue_full.iter().map(|reason| stats.drops[*reason as usize]).sum(),
    );
    put("client/connected", stats.connections_total);
    put("client/disconnected", stats.disconnects.iter().sum());
    put("session/takenover", stats.takeovers);
    metrics
}

const FROM_CLIENTS: [(&str, PacketType); 11] = [
    ("connect", PacketType::Connect),
    ("publish", PacketType::Publish),
    ("puback", PacketType::PubAck),
    ("pubrec", PacketType::PubRec),
    ("pubrel", PacketType::PubRel),
    ("pubcomp", PacketType::PubComp),
    ("subscribe", PacketType::Subscribe),
    ("unsubscribe", PacketType::Unsubscribe),
    ("pingreq", PacketType::PingReq),
    ("disconnect", PacketType::Disconnect),
    ("auth", PacketType::Auth),
];

const TO_CLIENTS: [(&str, PacketType); 11] = [
    ("connack", PacketType::ConnAck),
    ("publish", PacketType::Publish),
    ("puback", PacketType::PubAck),
    ("pubrec", PacketType::PubRec),
    ("pubrel", PacketType::PubRel),
    ("pubcomp", PacketType::PubComp),
    ("suback", PacketType::SubAck),
    ("unsuback", PacketType::UnsubAck),
    ("pingresp", PacketType::PingResp),
    ("disconnect", PacketType::Disconnect),
    ("auth", PacketType::Auth),
];

/// A connect or disconnect event, as a topic of EMQX's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTopic {
    pub topic: String,
    /// JSON.
    pub payload: String,
}

/// Returns `None` for other events. Wildcards of a client id are percent-encoded, because a topic cannot contain them.
/// The payload has the client id itself.
pub fn event_topic(node: &str, event: &ConnectionEvent, unix_ms: u64) -> Option<EventTopic> {
    let (client_id, name, fields) = match event {
        ConnectionEvent::Connected {
            client_id,
            user_name,
            address,
            session_present,
        } => {
            let user_name = user_name.as_deref().map_or("null".to_owned(), quoted);
            let address = quoted(&address.ip().to_string());
            let fields = format!(
                r#""username":{user_name},"ipaddress":{address},"session_present":{session_present},"connected_at":{unix_ms}"#
            );
            (client_id, "connected", fields)
        }
        ConnectionEvent::Disconnected {
            client_id,
            address,
            reason,
            ..
        } => {
            let (address, reason) = (quoted(&address.ip().to_string()), quoted(reason.name()));
            let fields = format!(r#""ipaddress":{address},"reason":{reason},"disconnected_at":{unix_ms}"#);
            (client_id, "disconnected", fields)
        }
        ConnectionEvent::Refused { .. }
        | ConnectionEvent::AddressChanged { .. }
        | ConnectionEvent::StreamEnded { .. }
        | ConnectionEvent::SessionEnded { .. }
        | ConnectionEvent::Dropping { .. }
        | ConnectionEvent::OverLimit { .. }
        | ConnectionEvent::Throttled { .. } => return None,
    };
    let level = client_id.replace('+', "%2B").replace('#', "%23");
    let topic = format!("$SYS/brokers/{node}/clients/{level}/{name}");
    mqtt::validate_topic_name(&topic).ok()?;
    let payload = format!(r#"{{"clientid":{},{fields},"ts":{unix_ms}}}"#, quoted(client_id));
    Some(EventTopic { topic, payload })
}

/// Encodes a JSON string.
fn quoted(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => write!(json, "\\u{:04x}", u32::from(c)).expect("writing to a String cannot fail"),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

/// Formats a time as UTC with milliseconds. The conversion of days uses the Gregorian calendar with March as the first
/// month, so that the leap day is the last day of a year.
pub fn rfc3339(unix_ms: u64) -> String {
    let (days, ms_of_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let day = days + 719_468; // from 0000-03-01
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (seconds, ms) = (ms_of_day / 1000, ms_of_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::DisconnectReason;

    fn info() -> SysInfo {
        SysInfo {
            node: "tidewire@here".into(),
            version: "1.2.3".into(),
            uptime_ms: 61_500,
            unix_ms: 1_709_210_096_789,
            sockets_total: 12,
            resident_bytes: Some(4096),
        }
    }

    fn stats() -> ShardStats {
        let mut stats = ShardStats {
            connections: 3,
            connections_max: 9,
            sessions: 5,
            subscriptions: 7,
            ..ShardStats::default()
        };
        stats.packets_received[PacketType::Connect as usize] = 4;
        stats.packets_received[PacketType::Publish as usize] = 6;
        stats.messages_received = [1, 2, 3];
        stats.drops[DropReason::Expired as usize] = 2;
        stats.drops[DropReason::NoSubscriber as usize] = 40;
        stats
    }

    fn value<'a>(topics: &'a SysTopics, topic: &str) -> &'a str {
        let mut found = topics.iter().filter(|(name, _)| name == topic);
        let value = &found.next().unwrap_or_else(|| panic!("no topic {topic}")).1;
        assert!(found.next().is_none(), "{topic} twice");
        value
    }

    #[test]
    fn mosquitto_tree_has_the_expected_names_and_formats() {
        let topics = mosquitto_tree(&stats(), &LoadAverages::default(), &info());
        for (topic, expected) in [
            ("$SYS/broker/version", "tidewire version 1.2.3"),
            ("$SYS/broker/uptime", "61 seconds"),
            ("$SYS/broker/clients/connected", "3"),
            ("$SYS/broker/clients/total", "5"),
            ("$SYS/broker/clients/disconnected", "2"),
            ("$SYS/broker/clients/maximum", "9"),
            ("$SYS/broker/messages/received", "10"),
            ("$SYS/broker/publish/messages/received", "6"),
            ("$SYS/broker/publish/messages/dropped", "2"),
            ("$SYS/broker/subscriptions/count", "7"),
            ("$SYS/broker/retained messages/count", "0"),
            ("$SYS/broker/heap/current", "4096"),
            ("$SYS/broker/load/messages/received/1min", "0.00"),
            ("$SYS/broker/load/connections/15min", "0.00"),
        ] {
            assert_eq!(value(&topics, topic), expected, "{topic}");
        }
    }

    #[test]
    fn emqx_tree_has_the_expected_names() {
        let topics = emqx_tree(&stats(), &info());
        for (topic, expected) in [
            ("$SYS/brokers", "tidewire@here"),
            ("$SYS/brokers/tidewire@here/version", "1.2.3"),
            ("$SYS/brokers/tidewire@here/uptime", "61500"),
            ("$SYS/brokers/tidewire@here/datetime", "2024-02-29T12:34:56.789Z"),
            ("$SYS/brokers/tidewire@here/stats/live_connections/count", "3"),
            ("$SYS/brokers/tidewire@here/stats/live_connections/max", "9"),
            ("$SYS/brokers/tidewire@here/metrics/packets/connect/received", "4"),
            ("$SYS/brokers/tidewire@here/metrics/messages/qos2/received", "3"),
            (
                "$SYS/brokers/tidewire@here/metrics/messages/dropped/no_subscribers",
                "40",
            ),
        ] {
            assert_eq!(value(&topics, topic), expected, "{topic}");
        }
    }

    #[test]
    fn every_topic_is_valid_and_unique() {
        let mut topics = mosquitto_tree(&stats(), &LoadAverages::default(), &info());
        topics.extend(emqx_tree(&stats(), &info()));
        let names: std::collections::BTreeSet<_> = topics.iter().map(|(topic, _)| topic).collect();
        assert_eq!(names.len(), topics.len());
        for topic in names {
            assert_eq!(mqtt::validate_topic_name(topic), Ok(()), "{topic}");
        }
    }

    #[test]
    fn load_approaches_the_rate_and_decays_without_events() {
        let mut load = LoadAverage::default();
        load.update(10, 10.0);
        // 60 a minute for 10 s: 60 * (1 - e^(-1/6)), 60 * (1 - e^(-1/30)), 60 * (1 - e^(-1/90)).
        for (average, expected) in load.per_minute.iter().zip([9.211, 1.967, 0.663]) {
            assert!((average - expected).abs() < 0.001, "{average} {expected}");
        }
        for _ in 0..1000 {
            load.update(10, 10.0);
        }
        assert!(load.per_minute.iter().all(|average| (average - 60.0).abs() < 0.1));
        let before = load;
        load.update(0, 60.0);
        assert!((load.per_minute[0] - before.per_minute[0] / std::f64::consts::E).abs() < 1e-9);
        load.update(5, 0.0);
        assert!(load.per_minute.iter().all(|average| average.is_finite()));
    }

    #[test]
    fn loads_count_events_since_the_last_update() {
        let (mut loads, info) = (LoadAverages::default(), info());
        loads.update(&stats(), &info, 10.0);
        let first = mosquitto_tree(&stats(), &loads, &info);
        assert_eq!(value(&first, "$SYS/broker/load/messages/received/1min"), "9.21");
        assert_eq!(value(&first, "$SYS/broker/load/sockets/1min"), "11.05");
        loads.update(&stats(), &info, 60.0);
        let second = mosquitto_tree(&stats(), &loads, &info);
        assert_eq!(value(&second, "$SYS/broker/load/messages/received/1min"), "3.39");
    }

    #[test]
    fn client_events_are_json_below_the_client_id() {
        let address = "192.0.2.7:1234".parse().unwrap();
        let connected = ConnectionEvent::Connected {
            client_id: "a\"b".into(),
            user_name: Some("ada".into()),
            address,
            session_present: false,
        };
        let event = event_topic("n", &connected, 5).unwrap();
        assert_eq!(event.topic, "$SYS/brokers/n/clients/a\"b/connected");
        assert_eq!(
            event.payload,
            r#"{"clientid":"a\"b","username":"ada","ipaddress":"192.0.2.7","session_present":false,"connected_at":5,"ts":5}"#
        );
        let gone = ConnectionEvent::Disconnected {
            client_id: "c".into(),
            address,
            reason: DisconnectReason::KeepAliveTimeout,
            detail: "".into(),
        };
        assert_eq!(
            event_topic("n", &gone, 6).unwrap().payload,
            r#"{"clientid":"c","ipaddress":"192.0.2.7","reason":"keep_alive_timeout","disconnected_at":6,"ts":6}"#
        );
        let wild = ConnectionEvent::Connected {
            client_id: "a+b#".into(),
            user_name: None,
            address,
            session_present: false,
        };
        let event = event_topic("n", &wild, 5).unwrap();
        assert_eq!(event.topic, "$SYS/brokers/n/clients/a%2Bb%23/connected");
        assert!(event.payload.starts_with(r#"{"clientid":"a+b#","#), "{}", event.payload);
    }

    #[test]
    fn dates_are_correct_across_leap_years_and_centuries() {
        for (unix_ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(unix_ms), expected);
        }
    }
}
