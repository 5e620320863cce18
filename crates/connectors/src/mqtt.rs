//! MQTT bridge: an action that publishes to another broker, and a source that subscribes there. Supports MQTT 3.1,
//! 3.1.1 and 5.
//!
//! A connector is one client of the other broker. Its actions and sources share one connection, so that the broker can
//! recognise our own messages and not send them back.
//!
//! - `link.rs` is the task that owns the socket: connects, reads, writes, reconnects.
//! - `outgoing.rs` and `incoming.rs` hold the in-flight messages of each direction. They do no I/O and read no clock.
//! - `sink.rs` and `source.rs` are the interfaces to the pump and the receiver.
//!
//! Delivery is at least once in both directions. After a lost connection, unconfirmed messages are sent again, also at
//! QoS 2. A message that the receiver has not accepted is not acknowledged; a broker that stores the session sends it
//! again.

mod config;
mod connect;
mod incoming;
mod link;
mod outgoing;
mod properties;
mod sink;
mod source;

pub use config::{MqttActionConfig, MqttConnectorConfig, MqttSourceConfig, MqttSubscription, MqttVersion};
pub use link::{MqttConnector, MqttCounters};
pub use properties::{PublishUserProperties, message_properties, message_user_properties};
pub use sink::MqttSink;
pub use source::MqttSource;

pub use crate::loop_mark::LOOP_PROPERTY;
