//! The device platform at work: what devices say is kept in a log, taken from it in order by one thread, and given to
//! [`platform::Platform`]; what the platform has to tell devices goes to their sessions.
//!
//! ```text
//! shard ──► DeviceTap ──┐                          ┌──► Platform::ingest ──► time series, attributes, alarms
//! HTTP  ──► append ─────┴──► log ──► ingest thread ┤
//!                                                  └──► requests: attributes, calls, claims, provisioning
//! Outlet ◄── platform                                        │
//!   ├──► sessions of devices, on their shards  ◄─────────────┘
//!   ├──► subscribers (WebSocket)
//!   └──► other systems ([`Courier`])
//! ```
//!
//! # Invariants
//!
//! - What a device was acknowledged is in the log, and stays there until the platform does not need it after a crash.
//! - One order: that of the log. Connections, messages and requests of a device are processed as they came.
//! - Nothing here waits on a shard's thread. Everything that waits is bounded, and what is dropped is counted.

pub mod backup;
mod callers;
mod calls;
mod delivery;
mod devices;
mod downloads;
mod entry;
mod events;
mod gateway;
mod hub;
mod ingest;
mod lifecycle;
mod limits;
mod log;
mod ota;
mod outlet;
mod outward;
mod pollers;
mod processed;
mod recent;
mod requests;
mod sessions;
mod stats;
mod tap;
mod unfinished;
mod updates;
mod upkeep;
mod usage;

pub use calls::{Call, CallError, Keeping};
pub use devices::{DIRECTORY_NAME, Devices, Login, OpenError, Options, WaitingCall, WaitingChange};
pub use entry::{Entry, Kind};
pub use events::NodeEvent;
pub use hub::{DEVICE_PREFIX, PROVISION_PREFIX};
pub use ingest::error_chain;
pub use lifecycle::{EntityEvent, What};
pub use limits::OverLimit;
pub use log::{DIRECTORY_NAME as LOG_NAME, Full, Kept};
pub use ota::{CHUNK_BYTES_MAX, OtaError};
pub use outlet::Out;
pub use outward::{Courier, Parcel, Receipt};
pub use sessions::Wanted;
pub use stats::{Lag, Stats};
pub use tap::DeviceTap;
pub use unfinished::Untold;
pub use updates::{Update, Updates};
