//! A segmented append-only log with group commit. It stores the state of all shards that must survive a crash, in one
//! order.
//!
//! The journal stores opaque bytes; the owner of a record defines its meaning. [`RecordLog`] is a state machine on a
//! [`Storage`], without threads or a clock. [`Journal`] runs a [`RecordLog`] on a thread of its own. A shard collects
//! records in a [`LogBatch`] and appends the batch once per tick. One sync covers everything that all shards appended
//! while the previous sync ran. The broker acknowledges a message when [`Journal::committed`] has passed the end of its
//! batch.
//!
//! # Layout on disk, format version 1
//!
//! All integers are little-endian. Directory `journal/`:
//!
//! ```text
//! {base, 16 hex digits}.log   a segment; its blocks end at the base of the next segment
//! spare                       preallocated zeros; renamed to become the next segment
//! checkpoint                  start of replay (checkpoint.rs)
//! newest-{base, 16 hex digits}  empty; states the base of the newest segment (segments.rs)
//! lock                        locked by the process that has the journal open
//!
//! segment  header, blocks, zeros up to the preallocated length; a full segment is truncated to its blocks
//! header   magic "TWJOURNL" | version u32 | crc32c u32 of the rest | base u64 | journal_id u64 | created_unix_ms u64
//!          | zeros to 64
//! block    magic u32 | records_bytes u32 | lsn u64 | synced u64
//!          | crc32c u32 of journal_id and the rest of these 32 bytes | record_version u32 | records
//! record   payload_bytes u32 | crc32c u32 of length and payload | payload
//! lost     payload_bytes u32 | inverted crc32c u32 of length and payload | zeros
//! ```
//!
//! A position ([`Lsn`]) counts bytes of blocks since the journal was created. Within a segment, position `lsn` is at
//! file offset 64 + (lsn − base). The position of a record is the position of its length field. A block holds one
//! batch, never crosses segments, and is replayed completely or not at all. `synced`: everything before this position
//! was on disk when the block was appended. A repair replaces a damaged record by a lost one of the same length, so
//! that later records stay at their positions. Replay skips lost records. Reading one by its position fails as damaged.
//!
//! `record_version` is the owner's [`LogConfig::record_version`]. It never decreases along a log, because a log with
//! blocks of a later version does not open. Only blocks that a repair wrote have 0.
//!
//! # Invariants
//!
//! - Committed records are replayed after a crash, in order and byte for byte; replay returns only records that were
//!   appended.
//! - A segment is synced completely before the next one gets its name, and the name is durable before a block is
//!   written to it.
//! - Damage to synced data is reported with file and offset, never skipped, if anything behind it proves that it was
//!   synced. An unfinished write at the end is truncated (open.rs).
//! - A log without its last segment, or without its last synced blocks, does not open: the name `newest-*` and the
//!   checkpoint tell how far it reached. The log cannot detect that its whole directory is missing; the owner must.
//! - [`LogState`] reports a full disk or quota while there is still space for appended records. Nothing is lost, and
//!   the state clears when space is available. A failed sync or write is permanent until the log is opened again.

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

pub use batch::{BATCH_BYTES_MAX, LogBatch};
pub use checkpoint::CHECKPOINT_NAME;
pub use config::{ConfigError, FlushPolicy, LogConfig, SEGMENT_BYTES_MIN, SEGMENTS_MIN};
pub use fetch::FETCHES_MAX;
pub use follow::{BlockFollower, BlockRange};
pub use histogram::{AtomicHistogram, COMMIT_BYTES_BOUNDS, COMMIT_LATENCY_BOUNDS_US, HistogramCounts};
pub use journal::Journal;
pub use layout::{BLOCK_HEADER_BYTES, FORMAT_VERSION, InvalidBlock, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES};
pub use log::RecordLog;
pub use lsn::{Lsn, position};
pub use open::{OpenProgress, OpenReport, ReplayVisitor};
pub use open_error::{Damage, OpenError, ReplayError, VersionOf};
pub use reader::{LogReader, ReadError};
pub use segments::{ReachedPosition, has_log, reached_position};
pub use status::{LogHealth, LogState, LogStats};
pub use storage::{DirectoryError, Storage, StorageDirectory, StorageFile, StoreKind};
pub use tail::Appended;
pub use writer::FlushError;

/// Name of the journal directory within the data directory.
pub const DIRECTORY_NAME: &str = "journal";
