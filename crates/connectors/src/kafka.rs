//! Kafka producer and consumer, based on librdkafka.
//!
//! The sink is an idempotent producer that never drops a message by itself. Messages that Kafka does not accept yet
//! wait in librdkafka; the pump limits their number. The source commits an offset only after the receiver has accepted
//! the message.

mod client;
mod config;
mod delivery;
mod leaders;
mod partition;
mod produce;
mod read;
mod rejections;
mod targets;
mod topics;
mod write;

pub use config::{
    Authentication, Compression, KafkaActionConfig, KafkaConnectorConfig, KafkaHeaderConfig, KafkaSourceConfig,
    KafkaTls, OffsetReset, PartitionStrategy, RequiredAcks, UnknownTopic,
};
pub use produce::{KafkaProducer, ProduceResult, TargetRefusal};
pub use read::KafkaSource;
pub use write::KafkaSink;
