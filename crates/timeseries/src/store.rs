//! The contract of a store of time series, whatever is below it: what callers may ask and rely on. The embedded one is
//! [`crate::ColumnStore`].
//!
//! # What holds for every store
//!
//! - A point is identified by entity, key and time; writing one again replaces its value. So replays do no harm.
//! - The caller has the log: [`Store::write`] takes the position at which the batch ends in it, and after a crash the caller
//!   replays what lies behind [`Store::durable_position`], in order. A batch at or before a position that was written is
//!   left out, so a batch is applied once.
//! - The latest value of a key is the one with the newest time, not the one that was written last; equal times replace. It
//!   outlives the time to live of its history and goes only by [`Store::delete`].
//! - Ranges are half open, `[start, end)`, in milliseconds since 1970.

use std::ops::Range;

use crate::calendar::Interval;
use crate::error::{StoreError, WriteError};
use crate::value::{Class, EntityId, Point, Position, TimedValue, ValueRef};

/// More buckets are refused; ThingsBoard's own limit of 700 is the API's matter.
pub const BUCKETS_MAX: usize = 100_000;

/// Of one value.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

pub trait Store: Send + Sync {
    /// All points or none. Of points with the same entity, key and time the last one stays. What is refused for good
    /// (too many series, a text too long) is in the answer and counted in the statistics.
    fn write(&self, points: &[Point<'_>], position: Position) -> Result<Written, WriteError>;

    /// Everything written so far is durable when this returns.
    fn flush(&self) -> Result<(), StoreError>;

    /// Replay from here.
    fn durable_position(&self) -> Position;

    /// One answer per key, in the order of the keys.
    fn latest(&self, entity: EntityId, keys: &[&str]) -> Result<Vec<Option<TimedValue>>, StoreError>;

    /// One answer per entity and key, entity by entity.
    fn latest_of_many(&self, entities: &[EntityId], keys: &[&str]) -> Result<Vec<Option<TimedValue>>, StoreError> {
        let mut all = Vec::with_capacity(entities.len() * keys.len());
        for &entity in entities {
            all.extend(self.latest(entity, keys)?);
        }
        Ok(all)
    }

    /// The keys that have a latest value, in order of the alphabet.
    fn keys(&self, entity: EntityId) -> Result<Vec<Box<str>>, StoreError>;

    /// Points of one key, one after the other, until `visit` says stop.
    fn scan(
        &self,
        series: Series<'_>,
        range: Range<i64>,
        order: Order,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError>;

    /// One answer per key, in the order of the keys.
    fn query(&self, entity: EntityId, keys: &[&str], query: &Query) -> Result<Vec<Vec<TimedValue>>, StoreError>;

    /// Durable when it returns. Points that are written later, to the same range too, are not deleted.
    fn delete(&self, delete: &Delete<'_>) -> Result<(), StoreError>;

    /// Durable with the next flush; older points are judged by the new class as well.
    fn set_class(&self, entity: EntityId, class: Class) -> Result<(), StoreError>;

    /// Series with a class of their own, whatever that of their entity is; `None`: that of the entity again. Durable with the
    /// next flush; older points are judged by the new class as well.
    fn set_series_classes(&self, classes: &[(Series<'_>, Option<Class>)]) -> Result<(), StoreError>;

    /// Whether any series has a class of its own.
    fn has_series_classes(&self) -> bool;

    /// `None`: forever. Points older than this are gone from the next [`Store::maintain`] on.
    fn set_ttl(&self, class: Class, ttl_ms: Option<u64>) -> Result<(), StoreError>;

    /// What was said with [`Store::set_ttl`].
    fn ttls(&self) -> Vec<(Class, u64)>;

    /// The classes that entities and series have now, each once.
    fn used_classes(&self) -> Vec<Class>;

    /// In the order in which they came, from the one with this number on; numbers stay.
    fn entities(&self, from: usize, limit: usize) -> Vec<(EntityId, Class)>;

    /// Does one piece of background work, if there is any: flush, merge, drop what is too old. The caller calls it again
    /// and again from a thread of its own.
    fn maintain(&self, now_ms: i64) -> Result<Maintained, StoreError>;

    fn stats(&self) -> Stats;
}

/// Gets points; [`std::ops::ControlFlow::Break`] ends the scan.
pub type Visit<'a> = dyn FnMut(i64, ValueRef<'_>) -> std::ops::ControlFlow<()> + 'a;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series<'a> {
    pub entity: EntityId,
    pub key: &'a str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub points: u64,
    /// Not stored: a series beyond the limit, a text beyond [`TEXT_BYTES_MAX`].
    pub refused_points: u64,
    /// Whose points these are: some of them.
    pub refused_of: Vec<EntityId>,
    /// The position was written before: nothing was done.
    pub is_replay: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    Ascending,
    /// ThingsBoard's default: the newest points when there is a limit.
    #[default]
    Descending,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// Points as they are; `limit` per key.
    Points {
        range: Range<i64>,
        order: Order,
        limit: usize,
    },
    /// One value per bucket that has any, in ascending order. Buckets begin at the start of the range; the time of a value
    /// is the middle of its bucket. An interval that is no time at all gives points instead, `limit` of them.
    Aggregate {
        range: Range<i64>,
        interval: Interval,
        aggregation: Aggregation,
        order: Order,
        limit: usize,
    },
}

/// [`crate::summary`] has the rules for mixed types.
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
    pub entity: EntityId,
    /// `None`: all keys.
    pub keys: Option<&'a [&'a str]>,
    pub range: Range<i64>,
    pub latest: LatestAfterDelete,
}

/// What becomes of a latest value whose time lies in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatestAfterDelete {
    Keep,
    Remove,
    /// The newest point that is left takes its place, if there is one.
    Rewrite,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// There is more to do now.
    pub has_more: bool,
}

/// Counters begin at zero when the store is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub entities: u64,
    pub series: u64,
    pub keys: u64,
    /// On disk, duplicates that are not merged yet included.
    pub stored_points: u64,
    pub stored_bytes: u64,
    pub segments: u64,
    pub tombstones: u64,
    /// In memory, not yet in a segment.
    pub head_points: u64,
    pub head_bytes: u64,
    pub head_bytes_max: u64,
    /// Catalog and latest values in memory.
    pub catalog_bytes: u64,
    pub written_points_total: u64,
    pub replayed_batches_total: u64,
    pub refused_points_total: u64,
    pub expired_points_total: u64,
    pub flushes_total: u64,
    pub flush_errors_total: u64,
    pub compactions_total: u64,
    pub compacted_bytes_total: u64,
    pub blocks_read_total: u64,
    pub summaries_used_total: u64,
    /// What keeps flush or merge from going on, in words.
    pub last_error: Option<String>,
}
