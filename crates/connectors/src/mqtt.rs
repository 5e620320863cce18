//! MQTT bridge: an action that publishes to another broker, and a source that subscribes there. Any broker, MQTT 3.1, 3.1.1
//! and 5.
//!
//! A connector is one client of the other broker: one connection for its actions and its sources, so that the
//! broker can tell what came from us and not send it back.
//!
//! - `link.rs` is the task that owns the socket: connects, reads, writes, waits, connects again.
//! - `outgoing.rs` and `incoming.rs` hold what is under way in each direction; no I/O, no clock.
//! - `sink.rs` and `source.rs` are what the pump and the receiver see.
//!
//! Delivery is at least once in both directions. What the broker had not confirmed when the connection was lost is sent
//! again, at QoS 2 too. What the receiver has not accepted is not acknowledged; a broker that keeps the session sends it again.

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
pub use outgoing::LOOP_PROPERTY;
pub use properties::{UserProperties, properties_of_the_message, user_properties_of_the_message};
pub use sink::MqttSink;
pub use source::MqttSource;
