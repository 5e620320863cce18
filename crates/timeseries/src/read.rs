//! Questions: latest values, keys, points, aggregates. A question takes what it needs from memory under the lock, then
//! reads segments without it; segments that are replaced meanwhile stay until it is done.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::calendar::{Buckets, Interval};
use crate::column_store::ColumnStore;
use crate::error::{QueryError, StoreError};
use crate::flush::sources;
use crate::merge::{Data, Mask, Plan, Rank, Source};
use crate::segment::{Located, Segment, SegmentReader};
use crate::store::{Aggregation, Order, Query, Series, Visit};
use crate::summary::Accumulator;
use crate::value::{EntityId, TimedValue, ValueRef};

/// Texts of one answer, and what its intervals take: there may be as many of each key as there can be at all.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// For the texts and the intervals of an answer.
pub(crate) struct Room {
    left: usize,
}

impl Default for Room {
    fn default() -> Room {
        Room { left: ANSWER_BYTES_MAX }
    }
}

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), StoreError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(QueryError::TooLarge { max: ANSWER_BYTES_MAX })?;
        Ok(())
    }
}

/// What memory knew when the question came.
struct Snapshot {
    series: u32,
    in_memory: Vec<Source<'static>>,
    segments: Vec<Arc<Segment>>,
    mask: Mask,
}

impl ColumnStore {
    pub(crate) fn latest_values(&self, entities: &[EntityId], keys: &[&str]) -> Vec<Option<TimedValue>> {
        let state = self.read();
        let mut values = Vec::with_capacity(entities.len() * keys.len());
        for &entity in entities {
            let entity = state.catalog.entity(entity);
            values.extend(keys.iter().map(|key| {
                let series = state.catalog.series_of(entity?, key)?;
                state.catalog.latest_owned(series)
            }));
        }
        values
    }

    pub(crate) fn keys_of(&self, entity: EntityId) -> Vec<Box<str>> {
        let state = self.read();
        let catalog = &state.catalog;
        let Some(entity) = catalog.entity(entity) else {
            return Vec::new();
        };
        let with_latest = catalog
            .series_of_entity(entity)
            .filter(|&series| catalog.latest(series).is_some());
        let mut keys: Vec<Box<str>> = with_latest.map(|series| catalog.key_of(series).into()).collect();
        keys.sort_unstable();
        keys
    }

    /// Both ends included. `None`: there is no such series.
    fn snapshot(&self, series: Series<'_>, (min_ts, max_ts): (i64, i64)) -> Option<Snapshot> {
        let state = self.read();
        let series = state.catalog.find(series.entity, series.key)?;
        let mut in_memory = Vec::new();
        if let Some(head) = state.frozen.as_ref().and_then(|frozen| frozen.of(series)) {
            in_memory.extend(sources(head, u64::MAX - 1));
        }
        if let Some(head) = state.active.slot(state.catalog.series[series as usize].slot) {
            in_memory.extend(sources(head, u64::MAX));
        }
        let mask = state.mask(series);
        let is_touched = |segment: &&Arc<Segment>| {
            let extent = &segment.extent;
            extent.min_ts <= max_ts && min_ts.max(mask.cutoff) <= extent.max_ts
        };
        let segments = state.segments.iter().filter(is_touched).cloned().collect();
        Some(Snapshot {
            series,
            in_memory,
            segments,
            mask,
        })
    }

    fn with_plan<T>(
        &self,
        series: Series<'_>,
        span: (i64, i64),
        then: impl FnOnce(&Plan<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let Some(snapshot) = self.snapshot(series, span) else {
            return Ok(None);
        };
        let mut found: Vec<(&Segment, SegmentReader<'_>, Vec<Located>)> = Vec::new();
        for segment in &snapshot.segments {
            if !segment.may_have(snapshot.series) {
                continue;
            }
            let reader = segment.reader()?;
            let blocks = reader.find(snapshot.series, span.0, span.1)?;
            if !blocks.is_empty() {
                found.push((segment, reader, blocks));
            }
        }
        let mut sources = snapshot.in_memory;
        for (segment, reader, blocks) in &mut found {
            let rank = Rank {
                seq: segment.record.seq,
                order: 0,
            };
            let clean_seq = segment.record.clean_seq;
            let reader: &SegmentReader<'_> = reader;
            sources.extend(std::mem::take(blocks).into_iter().map(|located| Source {
                rank,
                clean_seq,
                data: Data::Disk(reader, located),
            }));
        }
        let plan = Plan::new(sources, span, &snapshot.mask, &self.counters.read);
        then(&plan).map(Some)
    }

    pub(crate) fn scan_series(
        &self,
        series: Series<'_>,
        range: Range<i64>,
        order: Order,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        if range.start >= range.end {
            return Ok(());
        }
        self.with_plan(series, (range.start, range.end - 1), |plan| {
            scan_plan(plan, order, visit)
        })?;
        Ok(())
    }

    pub(crate) fn query_series(
        &self,
        series: Series<'_>,
        query: &Query,
        room: &mut Room,
    ) -> Result<Vec<TimedValue>, StoreError> {
        match query {
            Query::Points { range, order, limit } => self.points(series, range, (*order, *limit), room),
            Query::Aggregate {
                range,
                interval: Interval::Millis(..=0),
                order,
                limit,
                ..
            } => self.points(series, range, (*order, *limit), room),
            Query::Aggregate {
                range,
                interval,
                aggregation,
                ..
            } => {
                let buckets = Buckets::new(range, interval)?;
                let span = (buckets.range().start, buckets.range().end - 1);
                let values = self.with_plan(series, span, |plan| aggregate(plan, &buckets, *aggregation, room))?;
                let values = values.unwrap_or_default();
                room.take(values.len() * size_of::<TimedValue>())?;
                Ok(values)
            }
        }
    }

    fn points(
        &self,
        series: Series<'_>,
        range: &Range<i64>,
        (order, limit): (Order, usize),
        room: &mut Room,
    ) -> Result<Vec<TimedValue>, StoreError> {
        let mut points = Vec::new();
        let mut has_room = Ok(());
        if limit == 0 {
            return Ok(points);
        }
        self.scan_series(series, range.clone(), order, &mut |ts_ms, value: ValueRef<'_>| {
            has_room = room.take(value.text_bytes());
            if has_room.is_err() {
                return ControlFlow::Break(());
            }
            points.push(TimedValue {
                ts_ms,
                value: value.to_owned(),
            });
            if points.len() >= limit {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        has_room.map(|()| points)
    }
}

fn scan_plan(plan: &Plan<'_>, order: Order, visit: &mut Visit<'_>) -> Result<(), StoreError> {
    for index in 0..plan.windows.len() {
        let is_ascending = order == Order::Ascending;
        let window = if is_ascending {
            index
        } else {
            plan.windows.len() - 1 - index
        };
        let rows = plan.rows(&plan.windows[window])?;
        for index in 0..rows.len() {
            let row = if is_ascending { index } else { rows.len() - 1 - index };
            if visit(rows.ts[row], rows.value(row)).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn aggregate(
    plan: &Plan<'_>,
    buckets: &Buckets,
    aggregation: Aggregation,
    room: &mut Room,
) -> Result<Vec<TimedValue>, StoreError> {
    let mut totals = vec![Accumulator::default(); buckets.len()];
    let mut near = 0;
    for window in &plan.windows {
        near = buckets.find(window.min_ts, near);
        let is_one_bucket = buckets.find(window.max_ts, near) == near;
        let summary = plan
            .whole_block(window)
            .filter(|_| is_one_bucket)
            .and_then(|source| source.entry())
            .map(|entry| &entry.summary)
            .filter(|summary| summary.answers(aggregation));
        if let Some(summary) = summary {
            plan.count_summary();
            totals[near].summary.merge(summary);
            continue;
        }
        let rows = plan.rows(window)?;
        let mut from = 0;
        while from < rows.len() {
            near = buckets.find(rows.ts[from], near);
            let end = buckets.end(near);
            let to = from + rows.ts[from..].partition_point(|&ts_ms| ts_ms < end);
            room.left += totals[near].text_bytes();
            totals[near].add_rows(&rows, from..to, aggregation);
            room.take(totals[near].text_bytes())?;
            from = to;
        }
    }
    let value = |(bucket, total): (usize, &Accumulator)| {
        total.result(aggregation).map(|value| TimedValue {
            ts_ms: buckets.middle(bucket),
            value,
        })
    };
    Ok(totals.iter().enumerate().filter_map(value).collect())
}
