//! What a batch of messages has to have written: points, in a form without a text per key, and changes of entities. What later messages
//! of the batch ask for is found without a look at all of it.

use std::cell::RefCell;
use std::ops::Range;

use timeseries::{EntityId, Kept, Point, TimedValue, Value};

use super::{HashMap, HashSet};
use crate::ids::{AlarmId, TenantId, Uuid};
use crate::model::{Alarm, Attribute, Scope};
use crate::repository::Change;
use crate::shares::{Load, Shares};

/// Of points, and as much of changes, that chains may have waiting: many times what a batch has in it. A tenant has its part.
const BYTES_MAX: usize = 256 << 20;

#[derive(Debug)]
pub struct Pending {
    /// All keys, one behind the other.
    keys: String,
    points: Vec<PendingPoint>,
    /// One of the points has one of its own.
    has_ttls: bool,
    newest: RefCell<Newest>,
    points_load: Shares,
    /// When points were looked through last for those that others replace: how many were left.
    distinct_points: usize,
    changes: Vec<Change>,
    changes_load: Shares,
    /// The last change of each, by its place in `changes`.
    attributes: HashMap<(Uuid, Scope), HashMap<String, usize>>,
    alarms: HashMap<AlarmId, usize>,
    /// By originator and type.
    alarms_of: HashMap<Uuid, HashMap<String, usize>>,
}

impl Default for Pending {
    fn default() -> Pending {
        let most = Load {
            count: usize::MAX,
            bytes: BYTES_MAX,
        };
        Pending {
            keys: String::new(),
            points: Vec::new(),
            has_ttls: false,
            newest: RefCell::default(),
            points_load: Shares::new(most),
            distinct_points: 0,
            changes: Vec::new(),
            changes_load: Shares::new(most),
            attributes: HashMap::default(),
            alarms: HashMap::default(),
            alarms_of: HashMap::default(),
        }
    }
}

/// The newest point of each series, by its place: as far as somebody has asked.
#[derive(Debug, Default)]
struct Newest {
    seen: usize,
    of: HashMap<EntityId, HashMap<String, usize>>,
}

/// Where a point is kept, and for how long.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keeping {
    pub kept: Kept,
    /// 0: as the tenant says.
    pub ttl_s: u32,
}

impl Keeping {
    /// 0: as the tenant says.
    pub fn for_seconds(ttl_s: u32) -> Keeping {
        Keeping {
            ttl_s,
            ..Keeping::default()
        }
    }

    /// What is no part of the history has no time to live, and says nothing of that of the others.
    fn is_history(self) -> bool {
        self.kept != Kept::AsLatest
    }
}

#[derive(Debug)]
struct PendingPoint {
    tenant: TenantId,
    entity: EntityId,
    key: Range<usize>,
    ts_ms: i64,
    value: Value,
    keeping: Keeping,
}

impl PendingPoint {
    fn weight(&self) -> usize {
        let text = match &self.value {
            Value::String(text) | Value::Json(text) => text.len(),
            _ => 0,
        };
        size_of::<PendingPoint>() + self.key.len() + text
    }
}

fn has_room(load: &Shares, tenant: TenantId, bytes: usize) -> bool {
    load.is_first(tenant) || load.has_room(tenant, bytes)
}

impl Pending {
    pub fn push_point(
        &mut self,
        (tenant, entity): (TenantId, Uuid),
        key: &str,
        ts_ms: i64,
        value: Value,
        keeping: Keeping,
    ) {
        self.has_ttls |= keeping.ttl_s > 0;
        let start = self.keys.len();
        self.keys.push_str(key);
        self.points.push(PendingPoint {
            tenant,
            entity: entity.into(),
            key: start..self.keys.len(),
            ts_ms,
            value,
            keeping,
        });
    }

    /// For points of a chain. What a tenant has alone may be as large as it is.
    pub fn has_room_for_points(&mut self, tenant: TenantId, bytes: usize) -> bool {
        if has_room(&self.points_load, tenant, bytes) {
            return true;
        }
        // Messages that are tried again from the start while no batch is taken say the same again and again.
        if self.points.len() / 2 > self.distinct_points {
            self.forget_replaced();
        }
        has_room(&self.points_load, tenant, bytes)
    }

    pub fn points_take(&mut self, tenant: TenantId, bytes: usize) {
        self.points_load.add(tenant, bytes);
    }

    /// As [`Pending::has_room_for_points`], of attributes and alarms.
    pub fn has_room_for_changes(&self, tenant: TenantId, bytes: usize) -> bool {
        has_room(&self.changes_load, tenant, bytes)
    }

    pub fn changes_take(&mut self, tenant: TenantId, bytes: usize) {
        self.changes_load.add(tenant, bytes);
    }

    /// Of points of one time the last one counts.
    fn forget_replaced(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        let mut seen = HashSet::default();
        let mut left = Vec::new();
        for point in std::mem::take(&mut self.points).into_iter().rev() {
            let is_latest = point.keeping.kept == Kept::AsLatest;
            let is_history = point.keeping.kept == Kept::InHistory;
            let place = (point.entity, &keys[point.key.clone()], point.ts_ms);
            if seen.insert((place, is_latest, is_history)) {
                left.push(point);
            }
        }
        self.points_load.clear();
        for mut point in left.into_iter().rev() {
            let start = self.keys.len();
            self.keys.push_str(&keys[point.key.clone()]);
            point.key = start..self.keys.len();
            self.points_load.add(point.tenant, point.weight());
            self.points.push(point);
        }
        self.distinct_points = self.points.len();
        self.newest = RefCell::default();
    }

    pub fn has_ttls(&self) -> bool {
        self.has_ttls
    }

    /// Of each point of the history in its order: its own time to live, or 0.
    pub fn ttls(&self) -> impl Iterator<Item = (EntityId, &str, u32)> {
        let all = self.points.iter().filter(|point| point.keeping.is_history());
        all.map(|point| (point.entity, &self.keys[point.key.clone()], point.keeping.ttl_s))
    }

    pub fn points(&self) -> Vec<Point<'_>> {
        let points = self.points.iter().map(|point| Point {
            entity: point.entity,
            key: &self.keys[point.key.clone()],
            ts_ms: point.ts_ms,
            value: point.value.as_ref(),
            kept: point.keeping.kept,
        });
        points.collect()
    }

    pub fn point_count(&self) -> usize {
        self.points.len()
    }

    pub fn has_points(&self) -> bool {
        !self.points.is_empty()
    }

    pub fn clear_points(&mut self) {
        self.keys.clear();
        self.points.clear();
        self.has_ttls = false;
        self.newest = RefCell::default();
        self.points_load.clear();
        self.distinct_points = 0;
    }

    /// The newest of this batch; the last one of equal times.
    pub fn latest(&self, entity: Uuid, key: &str) -> Option<TimedValue> {
        let mut newest = self.newest.borrow_mut();
        let Newest { seen, of } = &mut *newest;
        for (place, point) in self.points.iter().enumerate().skip(*seen) {
            if point.keeping.kept == Kept::InHistory {
                continue;
            }
            let known = of.entry(point.entity).or_default();
            let known = known.entry_ref(&self.keys[point.key.clone()]).or_insert(place);
            if self.points[*known].ts_ms <= point.ts_ms {
                *known = place;
            }
        }
        *seen = self.points.len();
        let point = &self.points[*of.get(&EntityId::from(entity))?.get(key)?];
        Some(TimedValue {
            ts_ms: point.ts_ms,
            value: point.value.clone(),
        })
    }

    pub fn push_change(&mut self, change: Change) {
        let place = self.changes.len();
        match &change {
            Change::PutAttribute {
                entity,
                scope,
                attribute: Attribute { key, .. },
            }
            | Change::DeleteAttribute { entity, scope, key } => {
                let of_entity = self.attributes.entry((*entity, *scope)).or_default();
                of_entity.insert(key.clone(), place);
            }
            Change::PutAlarm { alarm, .. } => {
                self.alarms.insert(alarm.id.unwrap_or_default(), place);
                let of_originator = self.alarms_of.entry(alarm.originator.id).or_default();
                of_originator.insert(alarm.kind.clone(), place);
            }
            _ => {}
        }
        self.changes.push(change);
    }

    /// Replaces what the batch has of the same alarm already.
    pub fn push_alarm(&mut self, alarm: &Alarm, propagated_to: Vec<Uuid>) {
        let place = self.alarms.get(&alarm.id.unwrap_or_default());
        match place.and_then(|place| self.changes.get_mut(*place)) {
            Some(Change::PutAlarm {
                alarm: known,
                propagated_to: known_to,
            }) => {
                known.clone_from(alarm);
                for entity in propagated_to {
                    if !known_to.contains(&entity) {
                        known_to.push(entity);
                    }
                }
            }
            _ => self.push_change(Change::PutAlarm {
                alarm: alarm.clone(),
                propagated_to,
            }),
        }
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// They count until it is said that they are stored: what cannot be stored now comes back.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.attributes.clear();
        self.alarms.clear();
        self.alarms_of.clear();
        std::mem::take(&mut self.changes)
    }

    pub fn changes_are_stored(&mut self) {
        self.changes_load.clear();
    }

    /// That is not in the repository yet, or not as it is now.
    pub fn alarm(&self, id: AlarmId) -> Option<&Alarm> {
        self.alarm_at(*self.alarms.get(&id)?)
    }

    /// The last one that was made.
    pub fn alarm_of(&self, originator: Uuid, kind: &str) -> Option<&Alarm> {
        self.alarm_at(*self.alarms_of.get(&originator)?.get(kind)?)
    }

    fn alarm_at(&self, place: usize) -> Option<&Alarm> {
        match self.changes.get(place) {
            Some(Change::PutAlarm { alarm, .. }) => Some(alarm),
            _ => None,
        }
    }

    /// What the batch did to an attribute; the inner `None`: deleted.
    pub fn attribute(&self, of: Uuid, in_scope: Scope, key: &str) -> Option<Option<&Attribute>> {
        let place = *self.attributes.get(&(of, in_scope))?.get(key)?;
        match self.changes.get(place)? {
            Change::PutAttribute { attribute, .. } => Some(Some(attribute)),
            _ => Some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EntityType, TenantId};
    use crate::model::AlarmSeverity;

    const ENTITY: Uuid = Uuid([1; 16]);
    const OTHER: Uuid = Uuid([2; 16]);

    fn put(pending: &mut Pending, key: &str, value: i64) {
        pending.push_change(Change::PutAttribute {
            entity: ENTITY,
            scope: Scope::ClientScope,
            attribute: Attribute {
                key: key.to_owned(),
                value: Value::Long(value),
                last_update_ms: 1,
            },
        });
    }

    fn value_of(pending: &Pending, key: &str) -> Option<Option<Value>> {
        let found = pending.attribute(ENTITY, Scope::ClientScope, key);
        found.map(|known| known.map(|attribute| attribute.value.clone()))
    }

    #[test]
    fn the_last_change_of_an_attribute_counts_until_it_is_taken() {
        let mut pending = Pending::default();
        assert_eq!(value_of(&pending, "a"), None);
        put(&mut pending, "a", 1);
        put(&mut pending, "a", 2);
        put(&mut pending, "b", 3);
        assert_eq!(value_of(&pending, "a"), Some(Some(Value::Long(2))));
        pending.push_change(Change::DeleteAttribute {
            entity: ENTITY,
            scope: Scope::ClientScope,
            key: "a".to_owned(),
        });
        assert_eq!(value_of(&pending, "a"), Some(None));
        assert_eq!(value_of(&pending, "b"), Some(Some(Value::Long(3))));
        assert_eq!(pending.attribute(OTHER, Scope::ClientScope, "b"), None);
        assert_eq!(pending.attribute(ENTITY, Scope::SharedScope, "b"), None);
        assert_eq!(pending.take_changes().len(), 4);
        assert_eq!(value_of(&pending, "b"), None);
    }

    #[test]
    fn the_newest_point_is_found_whenever_it_came() {
        let mut pending = Pending::default();
        let mut push = |key: &str, ts_ms, value| {
            let of = (TenantId::NULL, ENTITY);
            pending.push_point(of, key, ts_ms, Value::Long(value), Keeping::default());
            pending.latest(ENTITY, "a").map(|newest| (newest.ts_ms, newest.value))
        };
        assert_eq!(push("b", 9, 0), None);
        assert_eq!(push("a", 5, 1), Some((5, Value::Long(1))));
        assert_eq!(push("a", 4, 2), Some((5, Value::Long(1))), "an older one");
        assert_eq!(push("a", 5, 3), Some((5, Value::Long(3))), "the last of equal times");
        assert_eq!(push("a", 6, 4), Some((6, Value::Long(4))));
        assert_eq!(pending.latest(OTHER, "a"), None);
        pending.clear_points();
        assert_eq!(pending.latest(ENTITY, "a"), None);
    }

    #[test]
    fn points_that_are_said_again_take_no_room() {
        let mut pending = Pending::default();
        let [tenant, other] = [3, 4].map(|n| TenantId(Uuid([n; 16])));
        let text: Box<str> = "x".repeat(1 << 20).into();
        let mut said = 0;
        let mut say = |pending: &mut Pending, ts_ms| {
            let value = Value::String(text.clone());
            said += 1;
            pending.push_point((tenant, ENTITY), "a", ts_ms, value, Keeping::default());
            pending.points_take(tenant, text.len());
        };
        for _ in 0..200 {
            assert!(pending.has_room_for_points(tenant, text.len()));
            say(&mut pending, 1);
        }
        assert!(pending.point_count() < 130, "looked through when it was full");
        pending.clear_points();
        (0..128).for_each(|ts_ms| say(&mut pending, ts_ms));
        assert!(!pending.has_room_for_points(tenant, text.len()));
        assert_eq!(pending.point_count(), 128, "all of them count");
        assert!(pending.has_room_for_points(other, text.len()));
        assert_eq!(pending.latest(ENTITY, "a").map(|newest| newest.ts_ms), Some(127));
        pending.clear_points();
        assert!(pending.has_room_for_points(tenant, text.len()));
    }

    #[test]
    fn changes_that_cannot_be_stored_take_room() {
        let mut pending = Pending::default();
        let [tenant, other] = [3, 4].map(|n| TenantId(Uuid([n; 16])));
        put(&mut pending, "a", 1);
        pending.changes_take(tenant, BYTES_MAX / 2);
        pending.changes_take(other, 1);
        assert!(!pending.has_room_for_changes(tenant, 1));
        pending
            .take_changes()
            .into_iter()
            .for_each(|change| pending.push_change(change));
        assert!(!pending.has_room_for_changes(tenant, 1), "they are back");
        pending.take_changes();
        pending.changes_are_stored();
        assert!(pending.has_room_for_changes(tenant, 1));
    }

    #[test]
    fn an_alarm_is_there_once_as_it_is_now() {
        let originator = crate::ids::EntityId::new(EntityType::Device, ENTITY);
        let alarm = |id: u8, cleared| Alarm {
            id: Some(AlarmId(Uuid([id; 16]))),
            cleared,
            ..Alarm::new(TenantId::NULL, originator, "hot", AlarmSeverity::Major)
        };
        let mut pending = Pending::default();
        pending.push_alarm(&alarm(7, false), Vec::new());
        pending.push_alarm(&alarm(7, true), Vec::new());
        assert!(pending.alarm_of(ENTITY, "hot").unwrap().cleared);
        pending.push_alarm(&alarm(8, false), Vec::new());
        assert!(!pending.alarm_of(ENTITY, "hot").unwrap().cleared, "the last one made");
        assert!(pending.alarm(AlarmId(Uuid([7; 16]))).unwrap().cleared);
        assert_eq!(pending.alarm_of(ENTITY, "cold"), None);
        assert_eq!(pending.take_changes().len(), 2);
        assert_eq!(pending.alarm_of(ENTITY, "hot"), None);
    }
}
