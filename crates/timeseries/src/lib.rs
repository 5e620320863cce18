//! Time series: telemetry history and latest values. [`Store`] is the contract, [`ColumnStore`] the embedded store: heads in
//! memory, columns in immutable files.
//!
//! ```text
//! write ──► heads (head.rs): a byte stream per series, sealed to blocks (block.rs)
//!             │ flush: everything, with the position of the caller's log
//!             ▼
//!           fresh segments (segment.rs) ──► merge: by window of time and class (compact.rs)
//!
//! query ──► heads and segments ──► windows of time (merge.rs) ──► points, or summaries of blocks (summary.rs)
//! ```
//!
//! Directory `timeseries/`, format version 1; each file has its layout in the source file that is named:
//!
//! ```text
//! manifest                    what counts (manifest.rs)
//! {number, 16 hex digits}.segment   points (segment.rs, block.rs, ints.rs, doubles.rs, texts.rs)
//! {number, 16 hex digits}.series    entities, keys, series, latest values (series_log.rs)
//! lock                        locked by the process that has the store open
//! ```
//!
//! # Invariants
//!
//! - What the manifest refers to was synced, name and contents, before it refers to it. Segments never change.
//! - A crash at any moment leaves the old manifest or the new one; the caller's log has the rest from the position in it.
//! - Of two points of a series with the same time the one that was written later wins, wherever they lie.
//! - Damage is an error with file and offset; nothing is skipped.
//! - A full disk stops flushes, then writes; nothing is lost, and it passes by itself.

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
mod export_parquet;
mod file_name;
mod files;
mod flush;
mod head;
mod ints;
mod manifest;
mod merge;
mod merge_files;
mod read;
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

pub use calendar::{CalendarUnit, Interval};
pub use column_store::ColumnStore;
pub use config::Config;
pub use copy::copy_to;
pub use error::{QueryError, StoreError, WriteError};
pub use export::{ExportError, export_csv};
pub use export_parquet::{EXPORT_GROUP_ROWS, EXPORT_GROUP_TEXT_BYTES, export_parquet};
pub use storage::{Directory, DirectoryError, Storage};
pub use store::{
    Aggregation, BUCKETS_MAX, Delete, LatestAfterDelete, Maintained, Order, Query, Series, Stats, Store,
    TEXT_BYTES_MAX, Visit, Written,
};
pub use value::{Class, EntityId, Kept, Point, Position, TimedValue, Value, ValueRef};

/// Name of the store's directory within the data directory.
pub const DIRECTORY_NAME: &str = "timeseries";

/// Of all files. A reader refuses what is newer.
pub const FORMAT_VERSION: u32 = 1;
