//! Time series: telemetry history and latest values. [`TimeseriesStore`] is the contract. [`ColumnStore`] is the
//! embedded store, with new points (heads) in memory and columns in immutable files (segments).
//!
//! ```text
//! write ──► heads (head.rs): one byte stream per series, sealed to blocks (block.rs)
//!             │ flush: all heads, with the position of the caller's log
//!             ▼
//!           fresh segments (segment.rs) ──► merge by time window and class (compact.rs)
//!
//! query ──► heads and segments ──► time windows (merge.rs) ──► points, or block summaries (summary.rs)
//! ```
//!
//! Directory `timeseries/`, format version 1. The named source files describe the layout of each file:
//!
//! ```text
//! manifest                    list of the valid files (manifest.rs)
//! {number, 16 hex digits}.segment   points (segment.rs, block.rs, ints.rs, doubles.rs, texts.rs)
//! {number, 16 hex digits}.series    entities, keys, series, latest values (series_log.rs)
//! lock                        locked by the process that has the store open
//! ```
//!
//! # Invariants
//!
//! - Name and contents of a file are synced before the manifest refers to it. Segments never change.
//! - A crash leaves the old manifest or the new one. The caller's log holds the rest, from the position in the manifest
//!   on.
//! - If a series has two points with the same time, the one written later wins, in whichever files they are.
//! - Damage is reported as an error with file and offset. Nothing is skipped.
//! - A full disk stops flushes, then writes. Nothing is lost, and writing resumes when space is available.

mod block;
mod bytes;
mod calendar;
mod catalog;
mod column_store;
mod compact;
mod config;
mod copy;
mod delete;
mod doubles;
mod error;
mod export;
#[cfg(feature = "parquet")]
mod export_parquet;
mod file_name;
mod files;
mod flush;
mod head;
mod index;
mod ints;
mod manifest;
mod merge;
mod merge_files;
mod read;
mod repair;
mod rewrite;
mod rows;
mod segment;
mod series_log;
mod state;
mod store;
mod summary;
mod texts;
mod value;
mod write;

pub use calendar::{BucketInterval, CalendarUnit};
pub use column_store::ColumnStore;
pub use config::StoreConfig;
pub use copy::{copy_to, durable_position_of, next_file_of};
pub use error::{QueryError, StoreError, WriteError};
pub use export::{ExportError, export_csv};
#[cfg(feature = "parquet")]
pub use export_parquet::{EXPORT_GROUP_ROWS, EXPORT_GROUP_TEXT_BYTES, export_parquet};
pub use manifest::NAME as MANIFEST_NAME;
pub use repair::{LostFile, StoreLoss, accept_loss};
pub use storage::{DirectoryError, Storage, StorageDirectory, StoreKind};
pub use store::{
    Aggregation, BUCKETS_MAX, Delete, LatestAfterDelete, MaintenanceResult, PointOrder, PointVisitor, Query,
    RejectReason, RejectedPoints, Series, StoreStats, TEXT_BYTES_MAX, TimeseriesStore, WriteOutcome,
};
pub use value::{
    LogPosition, Point, PointDestination, PointValue, RetentionClass, TelemetryEntityId, TimedValue, ValueRef,
};

/// Name of the store's directory within the data directory.
pub const DIRECTORY_NAME: &str = "timeseries";

/// Format version of all files. Newer versions are rejected.
pub const FORMAT_VERSION: u32 = 1;
