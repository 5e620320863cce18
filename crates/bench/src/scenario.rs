//! What a run does: groups of clients, what each subscribes to and publishes, and for how long.
//!
//! A scenario is data: TOML in a file, a preset that is compiled in, or made from the flags of a verb. Patterns in client ids, user
//! names, topics and filters: `%i` number of the client in its group (from `start_number`), `%c` client id, `%u` user name, `%g`
//! group, `%s` sequence number (topics only), `%{rand:N}` a number from 1 to N (in topics for every message, in user names for every
//! client), `%r` identity of the run, `%%` a percent sign.

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
    /// What its source has published, printed beside the result.
    pub published: Option<String>,
    /// A rule of the broker takes the messages to Kafka, where they are counted.
    pub kafka: Option<ToKafka>,
    /// The clients are devices of a platform, which has to store what they say.
    pub platform: Option<Fleet>,
    /// Publishing is measured for so long, after `warm_up_s`. With `messages` in every publishing group it ends with the last.
    pub duration_s: f64,
    pub warm_up_s: f64,
    /// After publishing has ended, messages may take so long without any progress before they count as lost.
    pub drain_s: f64,
    /// Connects per second over all groups; 0: as fast as `connecting_max` permits.
    pub connect_rate: f64,
    /// Connections that may be without CONNACK at the same time.
    pub connecting_max: u32,
    pub group: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Group {
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
    /// MQTT 5 only; 3.1 and 3.1.1 keep a session that is not clean for as long as the broker likes.
    pub session_expiry_s: u32,
    pub keep_alive_s: u16,
    pub presence: Presence,
    /// Connects again after a connection was lost.
    pub reconnects: bool,
    /// Publishes begin once every client is ready, receivers included; `Cycle` clients connect and leave all the time instead.
    pub cycle: Option<Cycle>,
    pub subscribe: Vec<Subscribe>,
    pub publish: Option<Publish>,
    /// Stops reading for a while: a slow subscriber.
    pub stall: Option<Stall>,
}

/// When a group is connected, relative to the publishing of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    #[default]
    Always,
    /// Connects when publishing is done: replay of retained messages.
    AfterPublishing,
    /// Connects, subscribes, leaves, and comes back when publishing is done: queued messages of persistent sessions.
    AwayWhilePublishing,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToKafka {
    /// The rule; its output has `clientid`, the key of a record, and `payload`, its value.
    pub sql: String,
    pub kafka_topic: String,
    pub partitions: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// The device profile, which is made with an alarm rule for a low battery if it is not there.
    pub profile: String,
    /// Of the values in a message, with commas between them.
    pub keys: String,
    /// Alarms are cleared when the battery is full again. Those of ThingsBoard's load tool never are.
    pub alarms_clear: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cycle {
    /// Time between CONNACK (SUBACK where there are subscriptions) and leaving.
    #[serde(default)]
    pub stay_s: f64,
    /// Leaves by closing the socket without DISCONNECT.
    #[serde(default)]
    pub is_abrupt: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    pub filter: String,
    #[serde(default)]
    pub qos: u8,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Publish {
    pub topic: String,
    pub qos: u8,
    pub retain: bool,
    /// Open model: messages per second and client, on a schedule that does not wait for anybody. Without: closed model.
    pub rate: Option<f64>,
    /// Open model: all messages that are due within so many seconds are due at their beginning. 0: evenly spread.
    pub burst_s: f64,
    /// QoS 1 and 2: unacknowledged messages per client, in both models; in the open model a message that has to wait keeps its due time.
    /// QoS 0 in the closed model: messages per client that not every subscriber has received yet; 0: as fast as the socket takes them.
    pub window: u32,
    /// Messages per client; 0: for as long as the scenario lasts.
    pub messages: u64,
    pub payload: Payload,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Payload {
    /// So many bytes; the first 16 say who sent them, when and as which, the others follow from these and are checked too.
    Bytes(u32),
    /// Text with `${counter}`, `${walk}` (random walk), `${bool}`, `${float}`, `${int:1:100}`, `${random:100}` (so many
    /// letters and digits), `${timestamp_ms}`, `${client}`, and `${truth}`:
    /// 32 hexadecimal digits that carry what the first 16 bytes carry otherwise. Messages without are counted, not verified.
    Template(String),
    /// A JSON of ThingsBoard's smart meter: pulse counter, leakage flag, battery level.
    SmartMeter,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// After the beginning of publishing.
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

impl Default for Group {
    fn default() -> Group {
        Group {
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
            presence: Presence::Always,
            reconnects: false,
            cycle: None,
            subscribe: Vec::new(),
            publish: None,
            stall: None,
        }
    }
}

impl Default for Publish {
    fn default() -> Publish {
        Publish {
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
