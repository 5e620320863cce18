//! The device platform: manages tenants, devices and credentials, decodes device messages, runs alarm rules and rule
//! chains, and encodes responses. Entities, their JSON and their semantics are those of ThingsBoard. Data is stored in
//! a repository and in a time-series store.
//!
//! ```text
//! device message ──► decode ──► rule chain (chain), a node of which ──► time series, attributes, alarms
//!                               runs the alarm rules (alarm_rules)
//!                                        │
//! entities ──► repository ◄──────────────┘
//! ```
//!
//! The caller passes in the time. Calls that use the repository block, so they must run on threads that serve no
//! sockets. Only `sqlite/` contains SQL.

mod activity;
pub mod alarm_rules;
pub mod chain;
mod cpu_time;
pub mod credentials;
pub mod decode;
mod directory;
pub mod entities;
mod fixed_limits;
pub mod ids;
mod limits;
pub mod model;
mod page;
mod platform;
mod queue_statistics;
pub mod repository;
mod retention;
mod shares;
mod sqlite;
mod usage;

pub use activity::{Activity, ActivityEvent, TIMEOUT_KEY};
pub use directory::{DeviceDirectory, DeviceEntry};
pub use fixed_limits::fixed_limits;
pub use limits::{
    ApiFeature, ApiState, Bucket, LIMITED_ENTITIES, LimitError, RateLimit, SocketLimits, TenantLimits, TransportRates,
};
pub use page::{PAGE_SIZE_MAX, PageData, PageError, PageLink, Sort, SortDirection};
pub use platform::{
    AlarmChange, ApiStateChange, AttributesChange, ChainEvent, IngestError, IngestInput, IngestMessage, Ingested,
    KeyKind, NoOutlet, Platform, PlatformOpenError, PlatformOptions, PlatformOutlet, PlatformStats, RefusedKeys,
    RetentionError,
};
pub use queue_statistics::{Exception, QueueCounts};
pub use retention::TimesToLive;
pub use shares::{TenantLoad, TenantShares};
pub use sqlite::{FILE_NAME, IntegrityCheck, SqliteOpenError, SqliteRepository};
pub use usage::{UsageCounter, UsagePoint};
