//! Kafka, in both directions, over librdkafka.
//!
//! The sink is an idempotent producer that never gives a message up by itself: what Kafka does not take now waits in
//! librdkafka, and the pump bounds how much that is. The source commits an offset only when the receiver has the message.

mod client;
mod config;
mod delivery;
mod leaders;
mod partition;
mod produce;
mod read;
mod topics;
mod turned_away;
mod write;

pub use config::{
    Authentication, Compression, Header, KafkaActionConfig, KafkaConnectorConfig, KafkaSourceConfig, KafkaTls,
    OffsetReset, PartitionStrategy, RequiredAcks, UnknownTopic,
};
pub use produce::{KafkaProducer, Produced};
pub use read::KafkaSource;
pub use write::KafkaSink;
