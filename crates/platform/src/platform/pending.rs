//! What a batch of messages has to have written: points, in a form without a text per key, and changes of entities.

use std::ops::Range;

use timeseries::{EntityId, Point, TimedValue, Value};

use crate::ids::Uuid;
use crate::model::{Alarm, Attribute, Scope};
use crate::repository::Change;

#[derive(Debug, Default)]
pub struct Pending {
    /// All keys, one behind the other.
    keys: String,
    points: Vec<PendingPoint>,
    /// One of the points has one of its own.
    has_ttls: bool,
    changes: Vec<Change>,
}

#[derive(Debug)]
struct PendingPoint {
    entity: EntityId,
    key: Range<usize>,
    ts_ms: i64,
    value: Value,
    /// 0: as the tenant says.
    ttl_s: u32,
}

impl Pending {
    pub fn push_point(&mut self, entity: Uuid, key: &str, ts_ms: i64, value: Value, ttl_s: u32) {
        self.has_ttls |= ttl_s > 0;
        let start = self.keys.len();
        self.keys.push_str(key);
        self.points.push(PendingPoint {
            entity: entity.into(),
            key: start..self.keys.len(),
            ts_ms,
            value,
            ttl_s,
        });
    }

    pub fn has_ttls(&self) -> bool {
        self.has_ttls
    }

    /// Of each point in its order: its own time to live, or 0.
    pub fn ttls(&self) -> impl Iterator<Item = (EntityId, &str, u32)> {
        let all = self.points.iter();
        all.map(|point| (point.entity, &self.keys[point.key.clone()], point.ttl_s))
    }

    pub fn points(&self) -> Vec<Point<'_>> {
        let points = self.points.iter().map(|point| Point {
            entity: point.entity,
            key: &self.keys[point.key.clone()],
            ts_ms: point.ts_ms,
            value: point.value.as_ref(),
        });
        points.collect()
    }

    pub fn has_points(&self) -> bool {
        !self.points.is_empty()
    }

    pub fn clear_points(&mut self) {
        self.keys.clear();
        self.points.clear();
        self.has_ttls = false;
    }

    /// The newest of this batch; the last one of equal times.
    pub fn latest(&self, entity: Uuid, key: &str) -> Option<TimedValue> {
        let entity = EntityId::from(entity);
        let points = self
            .points
            .iter()
            .filter(|point| point.entity == entity && self.keys[point.key.clone()] == *key);
        let newest = points.max_by_key(|point| point.ts_ms)?;
        Some(TimedValue {
            ts_ms: newest.ts_ms,
            value: newest.value.clone(),
        })
    }

    pub fn push_change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Replaces what the batch has of the same alarm already.
    pub fn push_alarm(&mut self, alarm: &Alarm, propagated_to: Vec<Uuid>) {
        let same = self.changes.iter_mut().rev().find_map(|change| match change {
            Change::PutAlarm { alarm: known, .. } if known.id == alarm.id => Some(known),
            _ => None,
        });
        match same {
            Some(known) => known.clone_from(alarm),
            None => self.changes.push(Change::PutAlarm {
                alarm: alarm.clone(),
                propagated_to,
            }),
        }
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Of an alarm that is not in the repository yet.
    pub fn alarms(&self) -> impl DoubleEndedIterator<Item = &Alarm> {
        self.changes.iter().filter_map(|change| match change {
            Change::PutAlarm { alarm, .. } => Some(alarm),
            _ => None,
        })
    }

    /// What the batch did to an attribute; the inner `None`: deleted.
    pub fn attribute(&self, of: Uuid, in_scope: Scope, key: &str) -> Option<Option<&Attribute>> {
        self.changes.iter().rev().find_map(|change| match change {
            Change::PutAttribute {
                entity,
                scope,
                attribute,
            } if *entity == of && *scope == in_scope && attribute.key == key => Some(Some(attribute)),
            Change::DeleteAttribute {
                entity,
                scope,
                key: deleted,
            } if *entity == of && *scope == in_scope && deleted == key => Some(None),
            _ => None,
        })
    }
}
