//! A segmented append-only log with group commit: what must survive a crash, of all shards, in one order.
//!
//! Bytes in, bytes out: what records mean is their owner's. [`Log`] is a machine without threads and clock on a [`Storage`];
//! [`Journal`] drives it with a thread of its own. A shard collects records in a [`Batch`] and appends it once per tick;
//! one sync covers what all shards appended while the previous one ran. The broker acknowledges when
//! [`Journal::committed`] has passed the end of the batch.
//!
//! # Layout on disk, format version 1
//!
//! All integers are little-endian. Directory `journal/`:
//!
//! ```text
//! {base, 16 hex digits}.log   a segment; the next one's base is where this one's blocks end
//! spare                       becomes the next segment: zeros
//! checkpoint                  where replay begins (checkpoint.rs)
//! lock                        locked by the process that has the journal open
//!
//! segment  header, blocks, zeros to the end of what is preallocated; a full segment is cut to its blocks
//! header   magic "TWJOURNL" | version u32 | crc32c u32 of the rest | base u64 | journal_id u64 | created_unix_ms u64 | zeros to 64
//! block    magic u32 | records_bytes u32 | lsn u64 | synced u64 | crc32c u32 of journal_id and the rest of these 32 bytes
//!          | reserved u32, zero | records
//! record   payload_bytes u32 | crc32c u32 of length and payload | payload
//! ```
//!
//! A position ([`Lsn`]) counts bytes of blocks from the beginning of the journal: in a segment it is at offset 64 + (lsn −
//! base). A record's position is that of its length. A block is one batch, never crosses segments, and counts as a whole or not at all.
//! `synced`: all before it was synced when the block was appended.
//!
//! # Invariants
//!
//! - What is committed is replayed after a crash, in order, byte by byte; what is replayed was appended.
//! - A segment is synced as a whole before the next one gets its name, and that is durable before a block follows.
//! - Damage of what was synced is reported with file and offset, never skipped, as far as anything behind it proves that
//!   it was synced; an unfinished end is cut (open.rs).
//! - A full disk or quota shows in [`State`] while there is still room for what is appended; nothing is lost, and it passes
//!   by itself. A failed sync or write is for good.

pub mod inspect;

mod batch;
mod catalog;
mod checkpoint;
mod commit;
mod config;
mod fetch;
mod follow;
mod histogram;
mod journal;
mod layout;
mod log;
mod lsn;
mod open;
mod open_error;
mod reader;
mod scan;
mod segments;
mod space;
mod status;
mod tail;
mod writer;

pub use batch::{BATCH_BYTES_MAX, Batch};
pub use config::{ConfigError, LogConfig, Policy, SEGMENT_BYTES_MIN, SEGMENTS_MIN};
pub use fetch::FETCHES_MAX;
pub use follow::{BlockRange, Follower};
pub use histogram::{COMMIT_BYTES_BOUNDS, COMMIT_LATENCY_BOUNDS_US, Histogram, HistogramCounts};
pub use journal::Journal;
pub use layout::{BLOCK_HEADER_BYTES, FORMAT_VERSION, Invalid, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES};
pub use log::Log;
pub use lsn::{Lsn, position};
pub use open::{Opened, Progress, Replay};
pub use open_error::{Damage, OpenError, ReplayError};
pub use reader::{LogReader, ReadError};
pub use status::{Health, LogStats, State};
pub use storage::{Directory, DirectoryError, Storage, StorageFile};
pub use tail::Appended;
pub use writer::FlushError;

/// Name of the journal's directory within the data directory.
pub const DIRECTORY_NAME: &str = "journal";
