//! Describes the `$SYS` topics of `sys.rs` for the reference page.

use crate::stats::ShardStats;
use crate::sys::{LoadAverages, SysInfo, emqx_tree, mosquitto_tree};

/// A topic, with `<node>` and `<client id>` as placeholders, and what its payload is.
pub type SysTopic = (String, String);

/// Returns the topics that Mosquitto has, too.
pub fn mosquitto_sys_topics() -> Vec<SysTopic> {
    described(
        mosquitto_tree(&ShardStats::default(), &LoadAverages::default(), &info()),
        |topic| mosquitto(topic.trim_start_matches("$SYS/broker/")),
    )
}

/// Returns the topics that EMQX has, too.
pub fn emqx_sys_topics() -> Vec<SysTopic> {
    described(emqx_tree(&ShardStats::default(), &info()), |topic| {
        emqx(topic.trim_start_matches("$SYS/brokers/<node>/"))
    })
}

fn described(topics: Vec<(String, String)>, description: impl Fn(&str) -> String) -> Vec<SysTopic> {
    topics
        .into_iter()
        .map(|(topic, _)| {
            let text = description(&topic);
            (topic, text)
        })
        .collect()
}

fn info() -> SysInfo {
    SysInfo {
        node: "<node>".to_owned(),
        version: String::new(),
        uptime_ms: 0,
        unix_ms: 0,
        sockets_total: 0,
        resident_bytes: Some(0),
    }
}

fn mosquitto(name: &str) -> String {
    if let Some(load) = name.strip_prefix("load/") {
        let (what, span) = load.rsplit_once('/').unwrap_or((load, ""));
        let minutes = span.trim_end_matches("min");
        return format!("{} per minute, moving average over {minutes} min.", load_name(what));
    }
    match name {
        "version" => "Name and version of the server.",
        "uptime" => "Time since the start, in seconds.",
        "clients/total" => "Sessions, connected or not.",
        "clients/maximum" => "Highest number of connected clients since the start.",
        "clients/connected" | "clients/active" => "Connected clients.",
        "clients/disconnected" | "clients/inactive" => "Sessions without a connection.",
        "messages/received" => "MQTT packets received since the start.",
        "messages/sent" => "MQTT packets sent since the start.",
        "messages/stored" | "store/messages/count" => "Queued and retained messages.",
        "store/messages/bytes" => "Bytes of queued and retained messages.",
        "retained messages/count" => "Retained messages.",
        "subscriptions/count" => "Subscriptions.",
        "shared_subscriptions/count" => "Share groups.",
        "bytes/received" => "Bytes of MQTT packets received since the start.",
        "bytes/sent" => "Bytes of MQTT packets sent since the start.",
        "publish/messages/received" => "PUBLISH packets received since the start.",
        "publish/messages/sent" => "PUBLISH packets sent since the start.",
        "publish/messages/dropped" => "Messages dropped for a subscriber since the start.",
        "publish/bytes/received" => "Bytes of PUBLISH packets received since the start.",
        "publish/bytes/sent" => "Bytes of PUBLISH packets sent since the start.",
        "heap/current" => "Resident memory of the process, in bytes.",
        _ => "",
    }
    .to_owned()
}

fn load_name(name: &str) -> &'static str {
    match name {
        "messages/received" => "MQTT packets received",
        "messages/sent" => "MQTT packets sent",
        "publish/received" => "PUBLISH packets received",
        "publish/sent" => "PUBLISH packets sent",
        "publish/dropped" => "Messages dropped for a subscriber",
        "bytes/received" => "Bytes received",
        "bytes/sent" => "Bytes sent",
        "sockets" => "Accepted connections",
        "connections" => "CONNECT packets",
        _ => "",
    }
}

fn emqx(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("metrics/packets/")
        && let [packet, direction] = rest.split('/').collect::<Vec<_>>()[..]
    {
        return format!("{} packets {direction} since the start.", packet.to_ascii_uppercase());
    }
    if let Some(rest) = name.strip_prefix("metrics/messages/qos")
        && let [qos, direction] = rest.split('/').collect::<Vec<_>>()[..]
    {
        return format!("PUBLISH packets at QoS {qos} {direction} since the start.");
    }
    if let Some((name, kind)) = name.strip_prefix("stats/").and_then(|rest| rest.rsplit_once('/')) {
        let text = gauge_name(name);
        return match kind {
            "max" => format!("{text}: highest number since the start."),
            _ => format!("{text}."),
        };
    }
    match name {
        "$SYS/brokers" => "Name of this node.",
        "version" => "Version of the server.",
        "sysdescr" => "`tidewire`.",
        "uptime" => "Time since the start, in milliseconds.",
        "datetime" => "Time of the node (RFC 3339).",
        "metrics/bytes/received" => "Bytes of MQTT packets received since the start.",
        "metrics/bytes/sent" => "Bytes of MQTT packets sent since the start.",
        "metrics/packets/received" => "MQTT packets received since the start.",
        "metrics/packets/sent" => "MQTT packets sent since the start.",
        "metrics/messages/received" => "PUBLISH packets received since the start.",
        "metrics/messages/sent" => "PUBLISH packets sent since the start.",
        "metrics/messages/acked" => "QoS 1 and 2 deliveries that subscribers acknowledged.",
        "metrics/messages/forward" => "Messages forwarded from one worker thread to another.",
        "metrics/messages/dropped" | "metrics/messages/dropped/no_subscribers" => {
            "Messages without a subscriber since the start."
        }
        "metrics/messages/dropped/expired" => "Messages whose Message Expiry Interval passed.",
        "metrics/delivery/dropped" => "Messages dropped for a subscriber since the start.",
        "metrics/delivery/dropped/too_large" => "Messages above the Maximum Packet Size of a subscriber.",
        "metrics/delivery/dropped/qos0_msg" => "QoS 0 messages dropped because a subscriber read too slowly.",
        "metrics/delivery/dropped/queue_full" => "Messages dropped because the queue of a session was full.",
        "metrics/client/connected" => "CONNECTs answered with success since the start.",
        "metrics/client/disconnected" => "Connections that ended since the start.",
        "metrics/session/takenover" => "Sessions that a new connection took over.",
        _ => "",
    }
    .to_owned()
}

fn gauge_name(name: &str) -> &'static str {
    match name {
        "connections" | "sessions" => "Sessions, connected or not",
        "live_connections" => "Connected clients",
        "subscriptions" | "suboptions" => "Subscriptions",
        "subscriptions/shared" => "Share groups",
        "retained" => "Retained messages",
        "delayed" => "Delayed messages",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_has_a_description() {
        for (topic, text) in mosquitto_sys_topics().into_iter().chain(emqx_sys_topics()) {
            let is_complete =
                text.ends_with('.') && text.starts_with(|first: char| first.is_uppercase() || first == '`');
            assert!(is_complete, "{topic}: {text:?}");
        }
    }
}
