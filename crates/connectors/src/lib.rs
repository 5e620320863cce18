//! Connectors, actions and sources: how the server exchanges messages with other systems.
//!
//! A *connector* is a connection to an external system, with its health. An *action* sends messages through it: a
//! [`Sink`] with templates, a buffer of its own, and a *pump* that moves records from the buffer to the sink. A
//! [`Source`] receives messages from the external system. Threads of the data plane only append to buffers, once per
//! tick. Everything else runs on a multi-threaded tokio runtime.
//!
//! # Invariants
//!
//! - Delivery is at least once: an appended record is passed to the sink until it confirms or rejects it, unless the
//!   record is dropped for a counted reason.
//! - The cursor never passes a record that is neither confirmed, rejected nor dropped.
//! - Records with the same key reach the sink in order.
//! - A rejected record does not block others.
//! - Every queue is bounded. Dropped records are counted by reason.

mod backoff;
mod buffer;
mod config;
pub mod console;
mod fallback;
pub mod file;
mod health;
pub mod http;
mod isolate;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "ldap")]
pub mod ldap;
mod loop_mark;
mod metrics;
#[cfg(feature = "mongodb")]
pub mod mongodb;
pub mod mqtt;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(
    feature = "ldap",
    feature = "mongodb",
    feature = "mysql",
    feature = "postgresql",
    feature = "redis"
))]
mod outage;
#[cfg(any(feature = "mongodb", feature = "mysql", feature = "postgresql"))]
mod pool;
#[cfg(feature = "postgresql")]
pub mod postgres;
mod pump;
mod record;
#[cfg(feature = "redis")]
pub mod redis;
mod secret;
mod sink;
mod source;
pub mod sql;
mod stream;
mod tls;

pub use backoff::Backoff;
pub use buffer::{ActionBuffer, AppendTicket, BufferError, BufferFull, BufferStats, FallbackQueueFull};
pub use config::{BatchConfig, BufferConfig, BufferMode, DeliveryConfig, Overflow, QueryMode, RetryConfig, SyncMode};
pub use fallback::{Fallback, FallbackOutcome};
pub use health::{ConnectionHealth, HealthCell, HealthState};
pub use loop_mark::LoopMark;
pub use metrics::{ActionStats, Dropped, LATENCY_BOUNDS_US, LatencyBucket};
pub use pump::Action;
pub use record::{Record, RecordWriter, Records, sample};
pub use secret::{REDACTED, Secret};
pub use sink::{BatchOutcome, BoxFuture, DeliveryFailure, FieldTemplate, OrderGuarantee, Sink, all};
pub use source::{Receiver, Source, SourceMessage, SourceOrigin, StopHandle, StopSignal, TimestampSource, stop};
pub use tls::TlsConfig;
