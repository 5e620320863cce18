//! The device platform. A log stores the messages of devices. One thread reads the log in order and passes the
//! messages to [`platform::Platform`]. Messages of the platform go to the sessions of the devices.
//!
//! ```text
//! shard ──► DeviceInbox ┐                          ┌──► Platform::ingest ──► time series, attributes, alarms
//! HTTP  ──► append ─────┴──► log ──► ingest thread ┤
//!                                                  └──► requests: attributes, calls, claims, provisioning
//! Outlet ◄── platform                                        │
//!   ├──► sessions of devices, on their shards  ◄─────────────┘
//!   ├──► subscribers (WebSocket)
//!   └──► other systems ([`ExternalSender`])
//! ```
//!
//! # Invariants
//!
//! - An acknowledged device message is in the log until the platform no longer needs it for crash recovery.
//! - The log defines the order. Connections, messages and requests of a device are processed in the order of arrival.
//! - Nothing here blocks a shard's thread. Every queue is bounded, and drops are counted.

mod activity;
pub mod backup;
mod callers;
mod calls;
mod clock;
mod delivery;
mod device_requests;
mod devices;
mod downlinks;
mod downloads;
mod entry;
mod error_chain;
mod events;
mod external_requests;
mod fixed_limits;
mod follow_up;
mod hub;
mod inbox;
mod ingest;
mod lifecycle;
mod limit_reports;
mod limits;
mod log;
pub mod loss;
mod mutex;
mod open_error;
mod options;
mod ota;
mod outlet;
mod pollers;
mod processed;
mod provisioners;
mod recent;
mod recorded_events;
mod requests;
mod session_id;
mod sessions;
mod stats;
mod stop_signal;
mod store_failures;
mod transports;
mod updates;
mod upkeep;
mod usage;
mod user_changes;

pub use calls::{DeviceRpc, Persistence, RpcError};
pub use devices::{AttributeChangeError, DeviceLogin, Devices, PendingCall, WaitingChange};
pub use entry::{EntryKind, IngestEntry};
pub use error_chain::error_chain;
pub use events::NodeEvent;
pub use external_requests::{ExternalReceipt, ExternalRequest, ExternalSender};
pub use fixed_limits::FIXED_LIMITS;
pub use follow_up::OtaNotificationError;
pub use lifecycle::{EntityEvent, EventDetail};
pub use limits::OverLimit;
pub use log::{DIRECTORY_NAME as LOG_NAME, LogFull, PendingAppend};
pub use open_error::DevicesOpenError;
pub use options::{DIRECTORY_NAME, DevicesOptions};
pub use ota::{CHUNK_BYTES_MAX, OtaError};
pub use outlet::DeviceOutlet;
pub use session_id::{DEVICE_PREFIX, PROVISION_PREFIX};
pub use sessions::DownlinkKind;
pub use stats::{DevicesStats, Lag};
pub use updates::{Update, Updates};
