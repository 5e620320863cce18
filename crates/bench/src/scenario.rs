//! The definition of a run: groups of clients, what each subscribes to and publishes, and for how long.
//!
//! A scenario is TOML in a file, a compiled-in preset, or made from the flags of `conn`, `pub` and `sub`. Patterns in
//! client ids, user names, topics and filters: `%i` number of the client in its group (from `start_number`), `%c`
//! client id, `%u` user name, `%g` group, `%s` sequence number (topics only), `%{rand:N}` a number from 1 to N (in
//! topics for every message, in user names for every client), `%r` identity of the run, `%%` a percent sign.

pub mod diagnostic;
pub mod document;
mod overrides;
pub mod presets;
mod schema;
#[cfg(test)]
mod tests;
mod validate;

use serde::{Deserialize, Serialize};

pub use validate::PAYLOAD_BYTES_MAX;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    pub name: String,
    /// One sentence for the list of scenarios.
    pub about: String,
    /// The figures that the source of the scenario has published; printed next to the result.
    pub published: Option<String>,
    /// Present if a rule of the broker sends the messages to Kafka, where they are counted.
    pub kafka: Option<ToKafka>,
    /// Present if the clients are devices of a platform, which must store their points.
    pub platform: Option<Fleet>,
    /// Time for which publishing is measured, after `warm_up_s`. If every publishing group has `messages`, it ends with
    /// the last message.
    pub duration_s: f64,
    pub warm_up_s: f64,
    /// Time without progress, after publishing has ended, after which missing messages count as lost.
    pub drain_s: f64,
    /// Connects per second over all groups; 0: as fast as `connecting_max` allows.
    pub connect_rate: f64,
    /// Most connections that wait for CONNACK at the same time.
    pub connecting_max: u32,
    pub group: Vec<ClientGroup>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientGroup {
    pub name: String,
    pub clients: u32,
    /// Whether `--scale` multiplies `clients`.
    pub scales: bool,
    pub start_number: u32,
    pub client_id: String,
    pub user_name: Option<String>,
    pub password: Option<String>,
    /// 3, 4 or 5: MQTT 3.1, 3.1.1, 5.0.
    pub version: u8,
    pub clean_start: bool,
    /// MQTT 5 only; with 3.1 and 3.1.1 the broker decides how long it keeps a session.
    pub session_expiry_s: u32,
    pub keep_alive_s: u16,
    pub presence: GroupPresence,
    /// Reconnects after a connection was lost.
    pub reconnects: bool,
    /// If present, the clients connect and disconnect all the time. Other clients publish once every client is ready,
    /// receivers included.
    pub cycle: Option<ConnectCycle>,
    pub subscribe: Vec<SubscribeSpec>,
    pub publish: Option<PublishSpec>,
    /// If present, the clients stop reading for a while, as a slow subscriber does.
    pub stall: Option<Stall>,
}

/// When a group is connected, relative to the publishing of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupPresence {
    #[default]
    Always,
    /// Connects when publishing has ended: replay of retained messages.
    AfterPublishing,
    /// Connects, subscribes, disconnects, and reconnects when publishing has ended: queued messages of persistent
    /// sessions.
    AwayWhilePublishing,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToKafka {
    /// The rule in SQL; its output must have `clientid`, the key of a record, and `payload`, its value.
    pub sql: String,
    pub kafka_topic: String,
    pub partitions: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// The device profile; it is created with an alarm rule for a low battery unless it exists.
    pub profile: String,
    /// The keys of the values in a message, separated by commas.
    pub keys: String,
    /// Whether alarms are cleared when the battery is full again. Those of ThingsBoard's load tool are never cleared.
    pub alarms_clear: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectCycle {
    /// Time between CONNACK (SUBACK if there are subscriptions) and the disconnect.
    #[serde(default)]
    pub stay_s: f64,
    /// Closes the socket without DISCONNECT.
    #[serde(default)]
    pub is_abrupt: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubscribeSpec {
    pub filter: String,
    #[serde(default)]
    pub qos: u8,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PublishSpec {
    pub topic: String,
    pub qos: u8,
    pub retain: bool,
    /// Open model: messages per second and client, on a schedule that does not wait for the broker. If absent: closed
    /// model.
    pub rate: Option<f64>,
    /// Open model: messages that are due within one such time are all due at its beginning. 0: evenly spread.
    pub burst_s: f64,
    /// QoS 1 and 2: unacknowledged messages per client, in both models; in the open model a message that must wait
    /// keeps its due time. QoS 0 in the closed model: messages per client that some subscriber has not received yet; 0:
    /// as fast as the socket accepts them.
    pub window: u32,
    /// Messages per client; 0: for as long as the scenario lasts.
    pub messages: u64,
    pub payload: Payload,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Payload {
    /// This many bytes. The first 16 contain publisher, sequence number and due time; the others are computed from
    /// these and are checked.
    Bytes(u32),
    /// Text with `${counter}`, `${walk}` (random walk), `${bool}`, `${float}`, `${int:1:100}`, `${random:100}` (this
    /// many letters and digits), `${timestamp_ms}`, `${client}`, and `${truth}`: 32 hexadecimal digits with the content
    /// of the 16 bytes above. Messages without `${truth}` are counted, not verified.
    Template(String),
    /// The JSON of ThingsBoard's smart meter: pulse counter, leakage flag, battery level.
    SmartMeter,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// Seconds after the beginning of publishing.
    pub after_s: f64,
    pub for_s: f64,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            name: String::new(),
            about: String::new(),
            published: None,
            kafka: None,
            platform: None,
            duration_s: 10.0,
            warm_up_s: 1.0,
            drain_s: 5.0,
            connect_rate: 0.0,
            connecting_max: 64,
            group: Vec::new(),
        }
    }
}

impl Default for ClientGroup {
    fn default() -> ClientGroup {
        ClientGroup {
            name: String::new(),
            clients: 1,
            scales: true,
            start_number: 0,
            client_id: "bench-%r-%g-%i".into(),
            user_name: None,
            password: None,
            version: 4,
            clean_start: true,
            session_expiry_s: 0,
            keep_alive_s: 300,
            presence: GroupPresence::Always,
            reconnects: false,
            cycle: None,
            subscribe: Vec::new(),
            publish: None,
            stall: None,
        }
    }
}

impl Default for PublishSpec {
    fn default() -> PublishSpec {
        PublishSpec {
            topic: String::new(),
            qos: 0,
            retain: false,
            rate: None,
            burst_s: 0.0,
            window: 0,
            messages: 0,
            payload: Payload::Bytes(64),
        }
    }
}
