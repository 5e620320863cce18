//! Results of a batch that are not written yet: points and entity changes. All keys of points are in one string. Later
//! messages of the batch find the results through indexes, without a scan.

use std::cell::RefCell;
use std::ops::Range;

use timeseries::{Point, PointDestination, PointValue, TelemetryEntityId, TimedValue};

use super::{HashMap, HashSet};
use crate::ids::{AlarmId, TenantId, Uuid};
use crate::model::{Alarm, Attribute, AttributeScope};
use crate::repository::RepositoryChange;
use crate::shares::{TenantLoad, TenantShares};

/// Largest size of pending points, and of pending changes. Many times the size of a batch. Tenants share it.
const BYTES_MAX: usize = 256 << 20;

#[derive(Debug)]
pub struct PendingWrites {
    /// All keys, concatenated.
    keys: String,
    points: Vec<PendingPoint>,
    /// True if a point has its own time to live.
    has_ttls: bool,
    newest: RefCell<NewestPoints>,
    points_load: TenantShares,
    /// Number of points after the last removal of replaced points.
    distinct_points: usize,
    changes: Vec<RepositoryChange>,
    changes_load: TenantShares,
    /// The last change of each attribute and alarm, by index in `changes`.
    attributes: HashMap<(Uuid, AttributeScope), HashMap<String, usize>>,
    alarms: HashMap<AlarmId, usize>,
    /// By originator and type.
    alarms_of: HashMap<Uuid, HashMap<String, usize>>,
}

impl Default for PendingWrites {
    fn default() -> PendingWrites {
        let most = TenantLoad {
            count: usize::MAX,
            bytes: BYTES_MAX,
        };
        PendingWrites {
            keys: String::new(),
            points: Vec::new(),
            has_ttls: false,
            newest: RefCell::default(),
            points_load: TenantShares::new(most),
            distinct_points: 0,
            changes: Vec::new(),
            changes_load: TenantShares::new(most),
            attributes: HashMap::default(),
            alarms: HashMap::default(),
            alarms_of: HashMap::default(),
        }
    }
}

/// The newest point of each series, by index, for the first `seen` points.
#[derive(Debug, Default)]
struct NewestPoints {
    seen: usize,
    indexes: HashMap<TelemetryEntityId, HashMap<String, usize>>,
}

/// Where a point is stored, and its time to live.
#[derive(Clone, Copy, Debug, Default)]
pub struct PointStorage {
    pub target: PointDestination,
    /// 0 uses the tenant's.
    pub ttl_s: u32,
}

impl PointStorage {
    /// A time to live of 0 uses the tenant's.
    pub fn with_ttl(ttl_s: u32) -> PointStorage {
        PointStorage {
            ttl_s,
            ..PointStorage::default()
        }
    }

    /// A point that is stored only as latest value has no time to live, and does not affect that of other points.
    fn is_history(self) -> bool {
        self.target != PointDestination::LatestOnly
    }
}

#[derive(Debug)]
struct PendingPoint {
    tenant: TenantId,
    entity: TelemetryEntityId,
    key: Range<usize>,
    ts_ms: i64,
    value: PointValue,
    storage: PointStorage,
}

impl PendingPoint {
    fn weight(&self) -> usize {
        let text = match &self.value {
            PointValue::String(text) | PointValue::Json(text) => text.len(),
            _ => 0,
        };
        size_of::<PendingPoint>() + self.key.len() + text
    }
}

fn has_capacity(load: &TenantShares, tenant: TenantId, bytes: usize) -> bool {
    load.uses_nothing(tenant) || load.has_capacity(tenant, bytes)
}

impl PendingWrites {
    pub fn push_point(
        &mut self,
        (tenant, entity): (TenantId, Uuid),
        key: &str,
        ts_ms: i64,
        value: PointValue,
        storage: PointStorage,
    ) {
        self.has_ttls |= storage.ttl_s > 0;
        let start = self.keys.len();
        self.keys.push_str(key);
        self.points.push(PendingPoint {
            tenant,
            entity: entity.into(),
            key: start..self.keys.len(),
            ts_ms,
            value,
            storage,
        });
    }

    /// For points of chains. A single tenant's data may have any size.
    pub fn has_capacity_for_points(&mut self, tenant: TenantId, bytes: usize) -> bool {
        if has_capacity(&self.points_load, tenant, bytes) {
            return true;
        }
        // Messages that are retried from the start while no batch is accepted create the same points repeatedly.
        if self.points.len() / 2 > self.distinct_points {
            self.remove_replaced();
        }
        has_capacity(&self.points_load, tenant, bytes)
    }

    pub fn reserve_point_bytes(&mut self, tenant: TenantId, bytes: usize) {
        self.points_load.add(tenant, bytes);
    }

    /// As [`PendingWrites::has_capacity_for_points`], for attributes and alarms.
    pub fn has_capacity_for_changes(&self, tenant: TenantId, bytes: usize) -> bool {
        has_capacity(&self.changes_load, tenant, bytes)
    }

    pub fn reserve_change_bytes(&mut self, tenant: TenantId, bytes: usize) {
        self.changes_load.add(tenant, bytes);
    }

    /// Removes points that a later point with the same series and time replaces.
    fn remove_replaced(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        let mut seen = HashSet::default();
        let mut left = Vec::new();
        for point in std::mem::take(&mut self.points).into_iter().rev() {
            let is_latest = point.storage.target == PointDestination::LatestOnly;
            let is_history = point.storage.target == PointDestination::HistoryOnly;
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

    /// Each point of the history in order, with its own time to live, or 0.
    pub fn ttls(&self) -> impl Iterator<Item = (TelemetryEntityId, &str, u32)> {
        let all = self.points.iter().filter(|point| point.storage.is_history());
        all.map(|point| (point.entity, &self.keys[point.key.clone()], point.storage.ttl_s))
    }

    pub fn points(&self) -> Vec<Point<'_>> {
        let points = self.points.iter().map(|point| Point {
            entity: point.entity,
            key: &self.keys[point.key.clone()],
            ts_ms: point.ts_ms,
            value: point.value.as_ref(),
            destination: point.storage.target,
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

    /// The newest point in this batch; of equal times the last one.
    pub fn latest(&self, entity: Uuid, key: &str) -> Option<TimedValue> {
        let mut newest = self.newest.borrow_mut();
        let NewestPoints { seen, indexes: of } = &mut *newest;
        for (place, point) in self.points.iter().enumerate().skip(*seen) {
            if point.storage.target == PointDestination::HistoryOnly {
                continue;
            }
            let known = of.entry(point.entity).or_default();
            let known = known.entry_ref(&self.keys[point.key.clone()]).or_insert(place);
            if self.points[*known].ts_ms <= point.ts_ms {
                *known = place;
            }
        }
        *seen = self.points.len();
        let point = &self.points[*of.get(&TelemetryEntityId::from(entity))?.get(key)?];
        Some(TimedValue {
            ts_ms: point.ts_ms,
            value: point.value.clone(),
        })
    }

    pub fn push_change(&mut self, change: RepositoryChange) {
        let place = self.changes.len();
        match &change {
            RepositoryChange::PutAttribute {
                entity,
                scope,
                attribute: Attribute { key, .. },
            }
            | RepositoryChange::DeleteAttribute { entity, scope, key } => {
                let of_entity = self.attributes.entry((*entity, *scope)).or_default();
                of_entity.insert(key.clone(), place);
            }
            RepositoryChange::PutAlarm { alarm, .. } => {
                self.alarms.insert(alarm.id.unwrap_or_default(), place);
                let of_originator = self.alarms_of.entry(alarm.originator.id).or_default();
                of_originator.insert(alarm.kind.clone(), place);
            }
            _ => {}
        }
        self.changes.push(change);
    }

    /// Replaces an earlier change of the same alarm in this batch.
    pub fn push_alarm(&mut self, alarm: &Alarm, propagated_to: Vec<Uuid>) {
        let place = self.alarms.get(&alarm.id.unwrap_or_default());
        match place.and_then(|place| self.changes.get_mut(*place)) {
            Some(RepositoryChange::PutAlarm {
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
            _ => self.push_change(RepositoryChange::PutAlarm {
                alarm: alarm.clone(),
                propagated_to,
            }),
        }
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Takes the changes. Their size counts until [`PendingWrites::changes_are_stored`], because changes that fail are
    /// pushed back.
    pub fn take_changes(&mut self) -> Vec<RepositoryChange> {
        self.attributes.clear();
        self.alarms.clear();
        self.alarms_of.clear();
        std::mem::take(&mut self.changes)
    }

    pub fn changes_are_stored(&mut self) {
        self.changes_load.clear();
    }

    /// A pending change of an alarm.
    pub fn alarm(&self, id: AlarmId) -> Option<&Alarm> {
        self.alarm_at(*self.alarms.get(&id)?)
    }

    /// The last pending alarm of this originator and type.
    pub fn alarm_of(&self, originator: Uuid, kind: &str) -> Option<&Alarm> {
        self.alarm_at(*self.alarms_of.get(&originator)?.get(kind)?)
    }

    fn alarm_at(&self, place: usize) -> Option<&Alarm> {
        match self.changes.get(place) {
            Some(RepositoryChange::PutAlarm { alarm, .. }) => Some(alarm),
            _ => None,
        }
    }

    /// Keys of an entity's changed attributes in a scope, and whether the last change stores the attribute.
    pub fn attribute_keys(&self, of: Uuid, in_scope: AttributeScope) -> impl Iterator<Item = (&str, bool)> {
        let all = self.attributes.get(&(of, in_scope)).into_iter().flatten();
        all.map(|(key, place)| {
            let is_put = matches!(self.changes.get(*place), Some(RepositoryChange::PutAttribute { .. }));
            (key.as_str(), is_put)
        })
    }

    /// The pending change of an attribute; the inner `None` is a deletion.
    pub fn attribute(&self, of: Uuid, in_scope: AttributeScope, key: &str) -> Option<Option<&Attribute>> {
        let place = *self.attributes.get(&(of, in_scope))?.get(key)?;
        match self.changes.get(place)? {
            RepositoryChange::PutAttribute { attribute, .. } => Some(Some(attribute)),
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

    fn put(pending: &mut PendingWrites, key: &str, value: i64) {
        pending.push_change(RepositoryChange::PutAttribute {
            entity: ENTITY,
            scope: AttributeScope::ClientScope,
            attribute: Attribute {
                key: key.to_owned(),
                value: PointValue::Long(value),
                last_update_ms: 1,
            },
        });
    }

    fn value_of(pending: &PendingWrites, key: &str) -> Option<Option<PointValue>> {
        let found = pending.attribute(ENTITY, AttributeScope::ClientScope, key);
        found.map(|known| known.map(|attribute| attribute.value.clone()))
    }

    #[test]
    fn last_attribute_change_counts_until_taken() {
        let mut pending = PendingWrites::default();
        assert_eq!(value_of(&pending, "a"), None);
        put(&mut pending, "a", 1);
        put(&mut pending, "a", 2);
        put(&mut pending, "b", 3);
        assert_eq!(value_of(&pending, "a"), Some(Some(PointValue::Long(2))));
        pending.push_change(RepositoryChange::DeleteAttribute {
            entity: ENTITY,
            scope: AttributeScope::ClientScope,
            key: "a".to_owned(),
        });
        assert_eq!(value_of(&pending, "a"), Some(None));
        assert_eq!(value_of(&pending, "b"), Some(Some(PointValue::Long(3))));
        assert_eq!(pending.attribute(OTHER, AttributeScope::ClientScope, "b"), None);
        assert_eq!(pending.attribute(ENTITY, AttributeScope::SharedScope, "b"), None);
        assert_eq!(pending.take_changes().len(), 4);
        assert_eq!(value_of(&pending, "b"), None);
    }

    #[test]
    fn newest_point_is_found_in_any_order() {
        let mut pending = PendingWrites::default();
        let mut push = |key: &str, ts_ms, value| {
            let of = (TenantId::NULL, ENTITY);
            pending.push_point(of, key, ts_ms, PointValue::Long(value), PointStorage::default());
            pending.latest(ENTITY, "a").map(|newest| (newest.ts_ms, newest.value))
        };
        assert_eq!(push("b", 9, 0), None);
        assert_eq!(push("a", 5, 1), Some((5, PointValue::Long(1))));
        assert_eq!(push("a", 4, 2), Some((5, PointValue::Long(1))), "an older point");
        assert_eq!(
            push("a", 5, 3),
            Some((5, PointValue::Long(3))),
            "the last of equal times"
        );
        assert_eq!(push("a", 6, 4), Some((6, PointValue::Long(4))));
        assert_eq!(pending.latest(OTHER, "a"), None);
        pending.clear_points();
        assert_eq!(pending.latest(ENTITY, "a"), None);
    }

    #[test]
    fn repeated_points_use_no_extra_space() {
        let mut pending = PendingWrites::default();
        let [tenant, other] = [3, 4].map(|n| TenantId(Uuid([n; 16])));
        let text: Box<str> = "x".repeat(1 << 20).into();
        let mut count = 0;
        let mut say = |pending: &mut PendingWrites, ts_ms| {
            let value = PointValue::String(text.clone());
            count += 1;
            pending.push_point((tenant, ENTITY), "a", ts_ms, value, PointStorage::default());
            pending.reserve_point_bytes(tenant, text.len());
        };
        for _ in 0..200 {
            assert!(pending.has_capacity_for_points(tenant, text.len()));
            say(&mut pending, 1);
        }
        assert!(
            pending.point_count() < 130,
            "replaced points are removed when it is full"
        );
        pending.clear_points();
        (0..128).for_each(|ts_ms| say(&mut pending, ts_ms));
        assert!(!pending.has_capacity_for_points(tenant, text.len()));
        assert_eq!(pending.point_count(), 128, "no point is replaced");
        assert!(pending.has_capacity_for_points(other, text.len()));
        assert_eq!(pending.latest(ENTITY, "a").map(|newest| newest.ts_ms), Some(127));
        pending.clear_points();
        assert!(pending.has_capacity_for_points(tenant, text.len()));
    }

    #[test]
    fn unstored_changes_count_against_the_limit() {
        let mut pending = PendingWrites::default();
        let [tenant, other] = [3, 4].map(|n| TenantId(Uuid([n; 16])));
        put(&mut pending, "a", 1);
        pending.reserve_change_bytes(tenant, BYTES_MAX / 2);
        pending.reserve_change_bytes(other, 1);
        assert!(!pending.has_capacity_for_changes(tenant, 1));
        pending
            .take_changes()
            .into_iter()
            .for_each(|change| pending.push_change(change));
        assert!(!pending.has_capacity_for_changes(tenant, 1), "they were pushed back");
        pending.take_changes();
        pending.changes_are_stored();
        assert!(pending.has_capacity_for_changes(tenant, 1));
    }

    #[test]
    fn pending_alarm_has_one_change_with_its_last_state() {
        let originator = crate::ids::EntityId::new(EntityType::Device, ENTITY);
        let alarm = |id: u8, cleared| Alarm {
            id: Some(AlarmId(Uuid([id; 16]))),
            cleared,
            ..Alarm::new(TenantId::NULL, originator, "hot", AlarmSeverity::Major)
        };
        let mut pending = PendingWrites::default();
        pending.push_alarm(&alarm(7, false), Vec::new());
        pending.push_alarm(&alarm(7, true), Vec::new());
        assert!(pending.alarm_of(ENTITY, "hot").unwrap().cleared);
        pending.push_alarm(&alarm(8, false), Vec::new());
        assert!(!pending.alarm_of(ENTITY, "hot").unwrap().cleared, "the last alarm");
        assert!(pending.alarm(AlarmId(Uuid([7; 16]))).unwrap().cleared);
        assert_eq!(pending.alarm_of(ENTITY, "cold"), None);
        assert_eq!(pending.take_changes().len(), 2);
        assert_eq!(pending.alarm_of(ENTITY, "hot"), None);
    }
}
