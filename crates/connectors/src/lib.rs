//! What goes out to other systems, and what comes in from them: one model for all of them.
//!
//! A *connector* is where: a connection with its health. An *action* sends to it: a [`Sink`] with templates and a
//! buffer of its own, and a pump between the two. A [`Source`] takes from it. Nothing here runs on the data plane except
//! appending to a buffer, which threads of the data plane call once per tick; the rest belongs on an ordinary multi-threaded
//! tokio runtime.
//!
//! # Invariants
//!
//! - What was appended and not dropped for a counted reason is handed to the sink until that confirms or refuses it: at least once.
//! - The cursor never passes a record that was neither confirmed, refused nor dropped.
//! - Records of one key reach the sink in their order.
//! - A record that the sink refuses stops no other.
//! - Everything that waits is bounded; what is dropped is counted by reason.

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
mod metrics;
pub mod mqtt;
pub mod postgres;
mod pump;
mod record;
pub mod redis;
mod secret;
mod sink;
mod source;
mod stream;
mod tls;

pub use backoff::Backoff;
pub use buffer::{Buffer, BufferError, BufferStats, Full, NoRoom, Ticket};
pub use config::{BatchConfig, BufferConfig, BufferMode, DeliveryConfig, Overflow, QueryMode, RetryConfig, SyncMode};
pub use fallback::{Fallback, FellBack};
pub use health::{Health, HealthCell, HealthState};
pub use metrics::{ActionStats, Dropped, LATENCY_BOUNDS_US, LatencyBucket};
pub use pump::Action;
pub use record::{Record, RecordWriter, Records, sample};
pub use secret::{REDACTED, Secret};
pub use sink::{BoxFuture, Failure, Order, Outcome, Sink, Template, all};
pub use source::{Incoming, Origin, Receiver, Source, StampedBy, Stop, Stopper, stop};
pub use tls::TlsConfig;
