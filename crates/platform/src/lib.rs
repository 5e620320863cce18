//! The device platform: tenants, devices and what they log in with; what devices send and are answered; alarm rules; rule
//! chains. ThingsBoard's entities, JSON and semantics, on a repository and a time-series store.
//!
//! ```text
//! bytes of a device ──► decode ──► alarm rules (alarm_rules) ──► rule chain (chain) ──► time series, attributes, alarms
//!                                        │                          │
//! entities ──► repository ◄──────────────┴──────────────────────────┘
//! ```
//!
//! Time is passed in. Calls that touch the repository block: they belong on threads that serve no sockets. No SQL is outside
//! `sqlite/`.

mod activity;
pub mod alarm_rules;
pub mod chain;
pub mod credentials;
pub mod decode;
mod directory;
pub mod entities;
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
pub use directory::{DeviceEntry, Directory};
pub use limits::{
    ApiFeature, ApiState, Bucket, LIMITED_ENTITIES, LimitError, RateLimit, Sockets, TenantLimits, TransportRates,
};
pub use page::{PAGE_SIZE_MAX, Page, PageError, PageLink, Sort, SortOrder};
pub use platform::{
    AlarmChange, ApiStateChange, AttributesChange, Incoming, IngestError, Ingested, News, NoOutlet, OpenError, Options,
    Outlet, Platform, RetentionError, Said, Stats,
};
pub use queue_statistics::{Exception, QueueCounts};
pub use retention::TimesToLive;
pub use shares::{Load, Shares};
pub use sqlite::{FILE_NAME, OpenError as SqliteOpenError, SqliteRepository};
pub use usage::{Counter, UsagePoint};
