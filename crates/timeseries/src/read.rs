//! Queries: latest values, keys, points, aggregates. A query copies the data in memory under the lock, and reads
//! segments without it. Segments that are replaced during the query remain until it ends.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::calendar::{BucketBounds, BucketInterval};
use crate::column_store::ColumnStore;
use crate::error::{QueryError, StoreError};
use crate::flush::sources;
use crate::index::SeriesIndex;
use crate::merge::{MergePlan, MergeSource, PointMask, SourceData, SourceRank};
use crate::segment::{LocatedBlock, SegmentReader, StoreSegment};
use crate::store::{Aggregation, PointOrder, PointVisitor, Query, Series};
use crate::summary::Accumulator;
use crate::value::{TelemetryEntityId, TimedValue, ValueRef};

/// Maximum size of texts and buckets in one answer, in bytes. Each key may have the maximum number of buckets.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Remaining bytes for the texts and buckets of an answer.
pub(crate) struct AnswerBudget {
    left: usize,
}

impl Default for AnswerBudget {
    fn default() -> AnswerBudget {
        AnswerBudget { left: ANSWER_BYTES_MAX }
    }
}

impl AnswerBudget {
    fn take(&mut self, bytes: usize) -> Result<(), StoreError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(QueryError::TooLarge { max: ANSWER_BYTES_MAX })?;
        Ok(())
    }
}

/// State of one series in memory at the start of a query.
struct SeriesSnapshot {
    series: SeriesIndex,
    in_memory: Vec<MergeSource<'static>>,
    segments: Vec<Arc<StoreSegment>>,
    mask: PointMask,
}

impl ColumnStore {
    pub(crate) fn latest_values(&self, entity: TelemetryEntityId, keys: &[&str]) -> Vec<Option<TimedValue>> {
        let state = self.read();
        let entity = state.catalog.entity(entity);
        let latest = |key: &&str| {
            let series = state.catalog.series_of(entity?, key)?;
            state.catalog.latest_owned(series)
        };
        keys.iter().map(latest).collect()
    }

    pub(crate) fn keys_of(&self, entity: TelemetryEntityId) -> Vec<Box<str>> {
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

    /// Takes the snapshot of a series for a time span with both ends included. `None` if the series does not exist.
    fn snapshot(&self, series: Series<'_>, (min_ts, max_ts): (i64, i64)) -> Option<SeriesSnapshot> {
        let state = self.read();
        let series = state.catalog.find(series.entity, series.key)?;
        let mut in_memory = Vec::new();
        if let Some(head) = state.frozen.as_ref().and_then(|frozen| frozen.of(series)) {
            in_memory.extend(sources(head, u64::MAX - 1));
        }
        if let Some(head) = state.active.slot(state.catalog.series[series.index()].slot) {
            in_memory.extend(sources(head, u64::MAX));
        }
        let mask = state.mask(series);
        let is_touched = |segment: &&Arc<StoreSegment>| {
            let extent = &segment.extent;
            extent.min_ts <= max_ts && min_ts.max(mask.cutoff) <= extent.max_ts
        };
        let segments = state.segments.iter().filter(is_touched).cloned().collect();
        Some(SeriesSnapshot {
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
        then: impl FnOnce(&MergePlan<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let Some(snapshot) = self.snapshot(series, span) else {
            return Ok(None);
        };
        let mut found: Vec<(&StoreSegment, SegmentReader<'_>, Vec<LocatedBlock>)> = Vec::new();
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
            let rank = SourceRank {
                seq: segment.record.seq,
                order: 0,
            };
            let clean_seq = segment.record.clean_seq;
            let reader: &SegmentReader<'_> = reader;
            sources.extend(std::mem::take(blocks).into_iter().map(|located| MergeSource {
                rank,
                clean_seq,
                data: SourceData::Disk(reader, located),
            }));
        }
        let plan = MergePlan::new(sources, span, &snapshot.mask, &self.counters.read);
        then(&plan).map(Some)
    }

    pub(crate) fn scan_series(
        &self,
        series: Series<'_>,
        range: Range<i64>,
        order: PointOrder,
        visit: &mut PointVisitor<'_>,
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
        budget: &mut AnswerBudget,
    ) -> Result<Vec<TimedValue>, StoreError> {
        match query {
            Query::Points { range, order, limit } => self.points(series, range, (*order, *limit), budget),
            Query::Aggregate {
                range,
                interval: BucketInterval::Millis(..=0),
                order,
                limit,
                ..
            } => self.points(series, range, (*order, *limit), budget),
            Query::Aggregate {
                range,
                interval,
                aggregation,
                ..
            } => {
                let buckets = BucketBounds::new(range, interval)?;
                let span = (buckets.range().start, buckets.range().end - 1);
                let values = self.with_plan(series, span, |plan| aggregate(plan, &buckets, *aggregation, budget))?;
                let values = values.unwrap_or_default();
                budget.take(values.len() * size_of::<TimedValue>())?;
                Ok(values)
            }
        }
    }

    fn points(
        &self,
        series: Series<'_>,
        range: &Range<i64>,
        (order, limit): (PointOrder, usize),
        budget: &mut AnswerBudget,
    ) -> Result<Vec<TimedValue>, StoreError> {
        let mut points = Vec::new();
        let mut within_budget = Ok(());
        if limit == 0 {
            return Ok(points);
        }
        self.scan_series(series, range.clone(), order, &mut |ts_ms, value: ValueRef<'_>| {
            within_budget = budget.take(value.text_bytes());
            if within_budget.is_err() {
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
        within_budget.map(|()| points)
    }
}

fn scan_plan(plan: &MergePlan<'_>, order: PointOrder, visit: &mut PointVisitor<'_>) -> Result<(), StoreError> {
    for index in 0..plan.windows.len() {
        let is_ascending = order == PointOrder::Ascending;
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
    plan: &MergePlan<'_>,
    buckets: &BucketBounds,
    aggregation: Aggregation,
    budget: &mut AnswerBudget,
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
            .filter(|summary| summary.is_sufficient_for(aggregation));
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
            budget.left += totals[near].text_bytes();
            totals[near].add_rows(&rows, from..to, aggregation);
            budget.take(totals[near].text_bytes())?;
            from = to;
        }
    }
    let value = |(bucket, total): (usize, &Accumulator)| {
        total.result(aggregation).map(|value| TimedValue {
            ts_ms: buckets.midpoint(bucket),
            value,
        })
    };
    Ok(totals.iter().enumerate().filter_map(value).collect())
}
