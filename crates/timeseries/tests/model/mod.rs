//! A simple reference store with maps in memory. The tests compare other stores with it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use timeseries::{
    Aggregation, BucketInterval, Delete, LatestAfterDelete, LogPosition, MaintenanceResult, Point, PointDestination,
    PointOrder, PointValue, PointVisitor, Query, RetentionClass, Series, StoreError, StoreStats, TelemetryEntityId,
    TimedValue, TimeseriesStore, WriteError, WriteOutcome,
};

#[derive(Default)]
pub struct NaiveStore {
    state: Mutex<State>,
}

type Id = (TelemetryEntityId, String);

#[derive(Default)]
struct State {
    points: BTreeMap<Id, BTreeMap<i64, PointValue>>,
    latest: BTreeMap<Id, TimedValue>,
    classes: BTreeMap<TelemetryEntityId, RetentionClass>,
    series_classes: BTreeMap<Id, RetentionClass>,
    ttl_ms: BTreeMap<RetentionClass, u64>,
    now_ms: Option<i64>,
    position: LogPosition,
}

impl State {
    fn cutoff(&self, entity: TelemetryEntityId, key: &str) -> i64 {
        let own = self.series_classes.get(&(entity, key.to_owned()));
        let class = own.or_else(|| self.classes.get(&entity)).copied().unwrap_or_default();
        match (self.now_ms, self.ttl_ms.get(&class)) {
            (Some(now_ms), Some(&ttl_ms)) => now_ms - ttl_ms as i64,
            _ => i64::MIN,
        }
    }

    fn range(&self, entity: TelemetryEntityId, key: &str, range: Range<i64>) -> Vec<TimedValue> {
        let start = range.start.max(self.cutoff(entity, key));
        if start >= range.end {
            return Vec::new();
        }
        let Some(points) = self.points.get(&(entity, key.to_owned())) else {
            return Vec::new();
        };
        let points = points.range(start..range.end);
        points
            .map(|(&ts_ms, value)| TimedValue {
                ts_ms,
                value: value.clone(),
            })
            .collect()
    }
}

impl TimeseriesStore for NaiveStore {
    fn write(&self, points: &[Point<'_>], position: LogPosition) -> Result<WriteOutcome, WriteError> {
        let mut state = self.state.lock().unwrap();
        if position <= state.position {
            return Ok(WriteOutcome {
                is_replay: true,
                ..WriteOutcome::default()
            });
        }
        state.position = position;
        for point in points {
            let id = (point.entity, point.key.to_owned());
            let value = point.value.to_owned();
            let is_newest = state.latest.get(&id).is_none_or(|latest| latest.ts_ms <= point.ts_ms);
            if is_newest && point.destination != PointDestination::HistoryOnly {
                let ts_ms = point.ts_ms;
                let value = value.clone();
                state.latest.insert(id.clone(), TimedValue { ts_ms, value });
            }
            let history = state.points.entry(id).or_default();
            if point.destination != PointDestination::LatestOnly {
                history.insert(point.ts_ms, value);
            }
        }
        Ok(WriteOutcome {
            points: points.len() as u64,
            ..WriteOutcome::default()
        })
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn durable_position(&self) -> LogPosition {
        self.state.lock().unwrap().position
    }

    fn latest(&self, entity: TelemetryEntityId, keys: &[&str]) -> Result<Vec<Option<TimedValue>>, StoreError> {
        let state = self.state.lock().unwrap();
        Ok(keys
            .iter()
            .map(|key| state.latest.get(&(entity, (*key).to_owned())).cloned())
            .collect())
    }

    fn keys(&self, entity: TelemetryEntityId) -> Result<Vec<Box<str>>, StoreError> {
        let state = self.state.lock().unwrap();
        let keys = state.latest.keys().filter(|(of, _)| *of == entity);
        Ok(keys.map(|(_, key)| key.as_str().into()).collect())
    }

    fn scan(
        &self,
        series: Series<'_>,
        range: Range<i64>,
        order: PointOrder,
        visit: &mut PointVisitor<'_>,
    ) -> Result<(), StoreError> {
        let mut points = self.state.lock().unwrap().range(series.entity, series.key, range);
        if order == PointOrder::Descending {
            points.reverse();
        }
        for point in points {
            if visit(point.ts_ms, point.value.as_ref()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn query(
        &self,
        entity: TelemetryEntityId,
        keys: &[&str],
        query: &Query,
    ) -> Result<Vec<Vec<TimedValue>>, StoreError> {
        let state = self.state.lock().unwrap();
        Ok(keys.iter().map(|key| answer(&state, entity, key, query)).collect())
    }

    fn delete(&self, delete: &Delete<'_>) -> Result<(), StoreError> {
        let mut state = self.state.lock().unwrap();
        let is_named = |key: &str| delete.keys.is_none_or(|keys| keys.contains(&key));
        let is_hit = |(entity, key): &Id| *entity == delete.entity && is_named(key);
        let ids: Vec<Id> = state.points.keys().filter(|id| is_hit(id)).cloned().collect();
        for id in ids {
            state
                .points
                .get_mut(&id)
                .unwrap()
                .retain(|ts_ms, _| !delete.range.contains(ts_ms));
            let is_latest_hit = state
                .latest
                .get(&id)
                .is_some_and(|latest| delete.range.contains(&latest.ts_ms));
            if is_latest_hit && delete.latest != LatestAfterDelete::Keep {
                state.latest.remove(&id);
                let left = state.range(id.0, &id.1, i64::MIN..i64::MAX).pop();
                if let (LatestAfterDelete::Rewrite, Some(left)) = (delete.latest, left) {
                    state.latest.insert(id, left);
                }
            }
        }
        Ok(())
    }

    fn set_class(&self, entity: TelemetryEntityId, class: RetentionClass) -> Result<(), StoreError> {
        self.state.lock().unwrap().classes.insert(entity, class);
        Ok(())
    }

    fn set_series_classes(&self, classes: &[(Series<'_>, Option<RetentionClass>)]) -> Result<(), StoreError> {
        let own = &mut self.state.lock().unwrap().series_classes;
        for (series, class) in classes {
            let id = (series.entity, series.key.to_owned());
            match class {
                Some(class) => own.insert(id, *class),
                None => own.remove(&id),
            };
        }
        Ok(())
    }

    fn has_series_classes(&self) -> bool {
        !self.state.lock().unwrap().series_classes.is_empty()
    }

    fn ttls(&self) -> Vec<(RetentionClass, u64)> {
        let state = self.state.lock().unwrap();
        state.ttl_ms.iter().map(|(class, ttl_ms)| (*class, *ttl_ms)).collect()
    }

    fn used_classes(&self) -> Vec<RetentionClass> {
        let state = self.state.lock().unwrap();
        let used = state.classes.values().chain(state.series_classes.values());
        let used: std::collections::BTreeSet<RetentionClass> = used.copied().chain([RetentionClass(0)]).collect();
        used.into_iter().collect()
    }

    fn entities(&self, from: usize, limit: usize) -> Vec<(TelemetryEntityId, RetentionClass)> {
        let state = self.state.lock().unwrap();
        let mut entities: Vec<TelemetryEntityId> = state.latest.keys().map(|(entity, _)| *entity).collect();
        entities.dedup();
        let class = |entity| (entity, state.classes.get(&entity).copied().unwrap_or_default());
        entities.into_iter().skip(from).take(limit).map(class).collect()
    }

    fn set_ttl(&self, class: RetentionClass, ttl_ms: Option<u64>) -> Result<(), StoreError> {
        let ttl = &mut self.state.lock().unwrap().ttl_ms;
        match ttl_ms {
            Some(ttl_ms) => ttl.insert(class, ttl_ms),
            None => ttl.remove(&class),
        };
        Ok(())
    }

    fn maintain(&self, now_ms: i64) -> Result<MaintenanceResult, StoreError> {
        self.state.lock().unwrap().now_ms = Some(now_ms);
        Ok(MaintenanceResult::default())
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

fn answer(state: &State, entity: TelemetryEntityId, key: &str, query: &Query) -> Vec<TimedValue> {
    match query {
        Query::Points { range, order, limit } => {
            let mut points = state.range(entity, key, range.clone());
            if *order == PointOrder::Descending {
                points.reverse();
            }
            points.truncate(*limit);
            points
        }
        Query::Aggregate {
            range,
            interval: BucketInterval::Millis(interval),
            aggregation,
            order,
            limit,
        } => {
            if *interval <= 0 {
                let (range, order, limit) = (range.clone(), *order, *limit);
                return answer(state, entity, key, &Query::Points { range, order, limit });
            }
            let end = range.end.max(range.start + 1);
            let mut found = Vec::new();
            let mut start = range.start;
            while start < end {
                let next = (start + interval).min(end);
                let values = state.range(entity, key, start..next);
                if let Some(value) = aggregate(&values, *aggregation) {
                    let ts_ms = start + (next - start) / 2;
                    found.push(TimedValue { ts_ms, value });
                }
                start = next;
            }
            found
        }
        Query::Aggregate { .. } => unimplemented!("calendars have tables of examples"),
    }
}

fn aggregate(points: &[TimedValue], aggregation: Aggregation) -> Option<PointValue> {
    let longs: Vec<i64> = points.iter().filter_map(|point| long(&point.value)).collect();
    let doubles: Vec<f64> = points.iter().filter_map(|point| double(&point.value)).collect();
    let long_sum: i128 = longs.iter().map(|&value| i128::from(value)).sum();
    let sum = long_sum as f64 + doubles.iter().sum::<f64>();
    let count = longs.len() + doubles.len();
    let is_max = aggregation == Aggregation::Max;
    match aggregation {
        Aggregation::Count => (!points.is_empty()).then_some(PointValue::Long(points.len() as i64)),
        Aggregation::Sum | Aggregation::Avg if count == 0 => None,
        Aggregation::Avg => Some(PointValue::Double(sum / count as f64)),
        Aggregation::Sum => match i64::try_from(long_sum) {
            Ok(sum) if doubles.is_empty() => Some(PointValue::Long(sum)),
            _ => Some(PointValue::Double(sum)),
        },
        Aggregation::Min | Aggregation::Max if count == 0 => extreme_of_others(points, is_max),
        Aggregation::Min | Aggregation::Max => {
            if doubles.is_empty() {
                return if is_max {
                    longs.into_iter().max()
                } else {
                    longs.into_iter().min()
                }
                .map(PointValue::Long);
            }
            let all = longs.into_iter().map(|value| value as f64).chain(doubles);
            all.reduce(if is_max { f64::max } else { f64::min })
                .map(PointValue::Double)
        }
    }
}

fn extreme_of_others(points: &[TimedValue], is_max: bool) -> Option<PointValue> {
    let texts = |is_json: bool| {
        let text = |point: &TimedValue| match &point.value {
            PointValue::String(text) if !is_json => Some(text.clone()),
            PointValue::Json(text) if is_json => Some(text.clone()),
            _ => None,
        };
        let texts = points.iter().filter_map(text);
        if is_max { texts.max() } else { texts.min() }
    };
    let bools = points.iter().filter_map(|point| match point.value {
        PointValue::Bool(value) => Some(value),
        _ => None,
    });
    let bools = if is_max { bools.max() } else { bools.min() };
    texts(false)
        .map(PointValue::String)
        .or(bools.map(PointValue::Bool))
        .or(texts(true).map(PointValue::Json))
}

fn long(value: &PointValue) -> Option<i64> {
    match value {
        PointValue::Long(value) => Some(*value),
        _ => None,
    }
}

fn double(value: &PointValue) -> Option<f64> {
    match value {
        PointValue::Double(value) => Some(*value),
        _ => None,
    }
}
