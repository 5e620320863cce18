//! The contract between callers and any store of time series. The embedded implementation is [`crate::ColumnStore`].
//!
//! # Guarantees of every store
//!
//! - A point is identified by entity, key and time. Writing it again replaces its value, so replays are harmless.
//! - The caller owns the log. [`TimeseriesStore::write`] takes the log position at which the batch ends. After a crash
//!   the caller replays everything after [`TimeseriesStore::durable_position`], in order. A batch at or before a
//!   position that is already written is skipped, so each batch is applied once.
//! - The latest value of a key is the one with the newest time, not the one written last. Equal times replace. It
//!   outlives the TTL of its history; only [`TimeseriesStore::delete`] removes it.
//! - Ranges are half open, `[start, end)`, in Unix milliseconds.

use std::ops::Range;

use crate::calendar::BucketInterval;
use crate::error::{StoreError, WriteError};
use crate::value::{LogPosition, Point, RetentionClass, TelemetryEntityId, TimedValue, ValueRef};

/// Maximum number of buckets of a query. ThingsBoard's own limit of 700 is checked by the API.
pub const BUCKETS_MAX: usize = 100_000;

/// Maximum size of one text value, in bytes.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

pub trait TimeseriesStore: Send + Sync {
    /// Writes all points or none. Of points with the same entity, key and time the last one wins. Points that can never
    /// be stored (too many series, text too long) are reported in the result and counted in the statistics.
    fn write(&self, points: &[Point<'_>], position: LogPosition) -> Result<WriteOutcome, WriteError>;

    /// Makes everything written so far durable.
    fn flush(&self) -> Result<(), StoreError>;

    /// Returns the log position from which the caller replays.
    fn durable_position(&self) -> LogPosition;

    /// Returns one value per key, in the order of `keys`.
    fn latest(&self, entity: TelemetryEntityId, keys: &[&str]) -> Result<Vec<Option<TimedValue>>, StoreError>;

    /// Returns the keys that have a latest value, in alphabetical order.
    fn keys(&self, entity: TelemetryEntityId) -> Result<Vec<Box<str>>, StoreError>;

    /// Passes the points of one key to `visit` until it returns `Break`.
    fn scan(
        &self,
        series: Series<'_>,
        range: Range<i64>,
        order: PointOrder,
        visit: &mut PointVisitor<'_>,
    ) -> Result<(), StoreError>;

    /// Returns one list per key, in the order of `keys`.
    fn query(
        &self,
        entity: TelemetryEntityId,
        keys: &[&str],
        query: &Query,
    ) -> Result<Vec<Vec<TimedValue>>, StoreError>;

    /// Deletes points durably. Points written later, also to the same range, are not affected.
    fn delete(&self, delete: &Delete<'_>) -> Result<(), StoreError>;

    /// Sets the class of an entity. Durable with the next flush. Also applies to older points.
    fn set_class(&self, entity: TelemetryEntityId, class: RetentionClass) -> Result<(), StoreError>;

    /// Sets classes of single series, which override the class of their entity; `None` removes the override. Durable
    /// with the next flush. Also applies to older points.
    fn set_series_classes(&self, classes: &[(Series<'_>, Option<RetentionClass>)]) -> Result<(), StoreError>;

    /// Returns whether any series overrides the class of its entity.
    fn has_series_classes(&self) -> bool;

    /// Sets the TTL of a class; `None` means forever. Expired points are hidden from the next
    /// [`TimeseriesStore::maintain`] on.
    fn set_ttl(&self, class: RetentionClass, ttl_ms: Option<u64>) -> Result<(), StoreError>;

    /// Returns the TTLs set by [`TimeseriesStore::set_ttl`].
    fn ttls(&self) -> Vec<(RetentionClass, u64)>;

    /// Returns the classes that entities and series currently have, without duplicates.
    fn used_classes(&self) -> Vec<RetentionClass>;

    /// Returns entities in the order of their creation, starting at index `from`. Indexes are stable.
    fn entities(&self, from: usize, limit: usize) -> Vec<(TelemetryEntityId, RetentionClass)>;

    /// Does one unit of background work, if there is any: flush, merge, or removal of expired files. The caller calls
    /// it repeatedly on a thread of its own.
    fn maintain(&self, now_ms: i64) -> Result<MaintenanceResult, StoreError>;

    fn stats(&self) -> StoreStats;
}

/// Receives points. [`std::ops::ControlFlow::Break`] ends the scan.
pub type PointVisitor<'a> = dyn FnMut(i64, ValueRef<'_>) -> std::ops::ControlFlow<()> + 'a;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series<'a> {
    pub entity: TelemetryEntityId,
    pub key: &'a str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOutcome {
    pub points: u64,
    /// Points that were rejected: the series limit is reached, or the text exceeds [`TEXT_BYTES_MAX`].
    pub rejected_points: u64,
    /// The first rejected point of at most 100 entities.
    pub rejected: Vec<RejectedPoints>,
    /// The position was written before. The batch was skipped.
    pub is_replay: bool,
}

/// Rejected points of an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedPoints {
    pub entity: TelemetryEntityId,
    /// Key and reason of the first one.
    pub key: Box<str>,
    pub reason: RejectReason,
    pub points: u64,
}

/// Why a point was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The entity has [`crate::StoreConfig::keys_max`] keys.
    TooManyKeys,
    /// The store has [`crate::StoreConfig::series_max`] series.
    TooManySeries,
    /// The text exceeds [`TEXT_BYTES_MAX`].
    TextTooLong,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PointOrder {
    Ascending,
    /// ThingsBoard's default. With a limit, returns the newest points.
    #[default]
    Descending,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// Single points. `limit` applies to each key.
    Points {
        range: Range<i64>,
        order: PointOrder,
        limit: usize,
    },
    /// One value per non-empty bucket, in ascending order. Buckets begin at the start of the range; the time of a value
    /// is the middle of its bucket. With an interval of zero or less, returns at most `limit` points instead.
    Aggregate {
        range: Range<i64>,
        interval: BucketInterval,
        aggregation: Aggregation,
        order: PointOrder,
        limit: usize,
    },
}

/// Aggregation function. [`crate::summary`] defines the rules for mixed types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    Min,
    Max,
    Avg,
    Sum,
    Count,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Delete<'a> {
    pub entity: TelemetryEntityId,
    /// `None` means all keys.
    pub keys: Option<&'a [&'a str]>,
    pub range: Range<i64>,
    pub latest: LatestAfterDelete,
}

/// Treatment of a latest value whose time is in the deleted range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatestAfterDelete {
    Keep,
    Remove,
    /// Replace it by the newest remaining point, if there is one.
    Rewrite,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceResult {
    /// More work can be done immediately.
    pub has_more: bool,
}

/// Counters start at zero when the store is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreStats {
    pub entities: u64,
    pub series: u64,
    pub keys: u64,
    /// Points on disk, including duplicates that are not merged yet.
    pub stored_points: u64,
    pub stored_bytes: u64,
    pub segments: u64,
    pub tombstones: u64,
    /// Points in memory that are not in a segment yet.
    pub head_points: u64,
    pub head_bytes: u64,
    pub head_bytes_max: u64,
    /// Memory of the catalog and the latest values, in bytes.
    pub catalog_bytes: u64,
    pub written_points_total: u64,
    pub rejected_points_total: u64,
    pub flushes_total: u64,
    pub flush_errors_total: u64,
    pub compactions_total: u64,
    pub blocks_read_total: u64,
    pub summaries_used_total: u64,
    /// Last error of a flush or merge, or `None` if the last one succeeded.
    pub last_error: Option<String>,
}
