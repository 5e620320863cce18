//! The catalog of all series, in memory: entities, keys, the latest value of each series, and the slot of its head.
//!
//! Numbers are assigned in order and never reused, because segments refer to series by number. A series costs 48 bytes,
//! about 70 with its share of the tables and the entity. An idle series needs no other memory.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use hashbrown::{HashMap, HashTable};

use crate::config::StoreConfig;
use crate::index::{EntityIndex, HeadSlot, KeyIndex, SeriesIndex};
use crate::store::RejectReason;
use crate::value::{PointValue, TelemetryEntityId, TimedValue, ValueRef};

#[derive(Debug)]
pub(crate) struct SeriesEntry {
    pub entity: EntityIndex,
    pub key: KeyIndex,
    /// Next series of the same entity.
    next: SeriesIndex,
    pub slot: HeadSlot,
    latest_ts: i64,
    latest: Option<PointValue>,
}

#[derive(Debug)]
pub(crate) struct EntityEntry {
    pub id: TelemetryEntityId,
    pub class: u8,
    series_count: u16,
    first_series: SeriesIndex,
    last_series: SeriesIndex,
}

pub(crate) struct SeriesCatalog {
    pub entities: Vec<EntityEntry>,
    pub keys: Vec<Box<str>>,
    pub series: Vec<SeriesEntry>,
    entity_table: HashTable<EntityIndex>,
    key_table: HashTable<KeyIndex>,
    series_table: HashTable<SeriesIndex>,
    hasher: FixedState,
    text_bytes: usize,
    /// Classes of the few series that override the class of their entity.
    own_classes: HashMap<SeriesIndex, u8, FixedState>,
}

impl SeriesCatalog {
    /// Creates an empty catalog. The random seed prevents hash collisions chosen by clients.
    pub fn new(seed: u64) -> SeriesCatalog {
        SeriesCatalog {
            entities: Vec::new(),
            keys: Vec::new(),
            series: Vec::new(),
            entity_table: HashTable::new(),
            key_table: HashTable::new(),
            series_table: HashTable::new(),
            hasher: FixedState::with_seed(seed),
            text_bytes: 0,
            own_classes: HashMap::with_hasher(FixedState::with_seed(seed)),
        }
    }

    pub fn entity(&self, id: TelemetryEntityId) -> Option<EntityIndex> {
        let hash = self.hasher.hash_one(id);
        self.entity_table
            .find(hash, |&index| self.entities[index.index()].id == id)
            .copied()
    }

    pub fn key(&self, key: &str) -> Option<KeyIndex> {
        let hash = self.hasher.hash_one(key);
        self.key_table
            .find(hash, |&index| *self.keys[index.index()] == *key)
            .copied()
    }

    pub fn find(&self, id: TelemetryEntityId, key: &str) -> Option<SeriesIndex> {
        self.series_of(self.entity(id)?, key)
    }

    pub fn series_of(&self, entity: EntityIndex, key: &str) -> Option<SeriesIndex> {
        let key = self.key(key)?;
        let hash = self.hasher.hash_one((entity, key));
        let is_it = |&index: &SeriesIndex| {
            let series = &self.series[index.index()];
            series.entity == entity && series.key == key
        };
        self.series_table.find(hash, is_it).copied()
    }

    /// Returns the series after `series` in its entity, if it has this key. Fast, because devices usually send their
    /// keys in the same order.
    #[inline]
    pub fn follows(&self, series: SeriesIndex, key: &str) -> Option<SeriesIndex> {
        let entry = &self.series[series.index()];
        let next = match entry.next {
            SeriesIndex::NONE => self.entities[entry.entity.index()].first_series,
            next => next,
        };
        let is_it = *self.keys[self.series[next.index()].key.index()] == *key;
        is_it.then_some(next)
    }

    /// As [`SeriesCatalog::series_of`], with a fast path for the first key of an entity.
    #[inline]
    pub fn first_or_series_of(&self, entity: EntityIndex, key: &str) -> Option<SeriesIndex> {
        let first = self.entities[entity.index()].first_series;
        let is_first = |entry: &SeriesEntry| *self.keys[entry.key.index()] == *key;
        if self.series.get(first.index()).is_some_and(is_first) {
            return Some(first);
        }
        self.series_of(entity, key)
    }

    /// Checks whether the entity may get another series.
    pub fn check_capacity(&self, entity: Option<EntityIndex>, config: &StoreConfig) -> Result<(), RejectReason> {
        let of_entity = entity.map_or(0, |entity| self.entities[entity.index()].series_count);
        if of_entity >= config.keys_max {
            return Err(RejectReason::TooManyKeys);
        }
        match self.series.len() < config.series_max {
            true => Ok(()),
            false => Err(RejectReason::TooManySeries),
        }
    }

    pub fn add_entity(&mut self, id: TelemetryEntityId, class: u8) -> EntityIndex {
        let index = EntityIndex(self.entities.len() as u32);
        reserve(&mut self.entities);
        self.entities.push(EntityEntry {
            id,
            class,
            series_count: 0,
            first_series: SeriesIndex::NONE,
            last_series: SeriesIndex::NONE,
        });
        let SeriesCatalog {
            entities,
            entity_table,
            hasher,
            ..
        } = self;
        let hash = |&index: &EntityIndex| hasher.hash_one(entities[index.index()].id);
        entity_table.insert_unique(hasher.hash_one(id), index, hash);
        index
    }

    pub fn add_key(&mut self, key: &str) -> KeyIndex {
        let index = KeyIndex(self.keys.len() as u32);
        self.text_bytes += key.len() + 32;
        self.keys.push(key.into());
        let SeriesCatalog {
            keys,
            key_table,
            hasher,
            ..
        } = self;
        let hash = |&index: &KeyIndex| hasher.hash_one(&*keys[index.index()]);
        key_table.insert_unique(hasher.hash_one(key), index, hash);
        index
    }

    /// Adds a series. `entity` and `key` must exist, the pair must not.
    pub fn add_series(&mut self, entity: EntityIndex, key: KeyIndex) -> SeriesIndex {
        let index = SeriesIndex(self.series.len() as u32);
        reserve(&mut self.series);
        self.series.push(SeriesEntry {
            entity,
            key,
            next: SeriesIndex::NONE,
            slot: HeadSlot::NONE,
            latest_ts: i64::MIN,
            latest: None,
        });
        let owner = &mut self.entities[entity.index()];
        owner.series_count = owner.series_count.saturating_add(1);
        match std::mem::replace(&mut owner.last_series, index) {
            SeriesIndex::NONE => owner.first_series = index,
            last => self.series[last.index()].next = index,
        }
        let SeriesCatalog {
            series,
            series_table,
            hasher,
            ..
        } = self;
        let hash = |&index: &SeriesIndex| {
            let series = &series[index.index()];
            hasher.hash_one((series.entity, series.key))
        };
        series_table.insert_unique(hasher.hash_one((entity, key)), index, hash);
        index
    }

    /// Returns the series of an entity in order of their creation.
    pub fn series_of_entity(&self, entity: EntityIndex) -> impl Iterator<Item = SeriesIndex> {
        let mut next = self.entities[entity.index()].first_series;
        std::iter::from_fn(move || {
            let current = next;
            let entry = self.series.get(current.index())?;
            next = entry.next;
            Some(current)
        })
    }

    pub fn class_of(&self, series: SeriesIndex) -> u8 {
        let of_entity = || self.entities[self.series[series.index()].entity.index()].class;
        self.own_class(series).unwrap_or_else(of_entity)
    }

    pub fn own_class(&self, series: SeriesIndex) -> Option<u8> {
        self.own_classes.get(&series).copied()
    }

    pub fn set_own_class(&mut self, series: SeriesIndex, class: Option<u8>) {
        match class {
            Some(class) => self.own_classes.insert(series, class),
            None => self.own_classes.remove(&series),
        };
    }

    pub fn series_with_own_class(&self) -> impl Iterator<Item = SeriesIndex> {
        self.own_classes.keys().copied()
    }

    /// Returns all classes in use, without duplicates.
    pub fn used_classes(&self) -> Vec<u8> {
        let mut is_used = [false; 256];
        self.entities
            .iter()
            .for_each(|entity| is_used[usize::from(entity.class)] = true);
        self.own_classes
            .values()
            .for_each(|class| is_used[usize::from(*class)] = true);
        (0..=u8::MAX).filter(|class| is_used[usize::from(*class)]).collect()
    }

    pub fn key_of(&self, series: SeriesIndex) -> &str {
        &self.keys[self.series[series.index()].key.index()]
    }

    pub fn latest(&self, series: SeriesIndex) -> Option<(i64, &PointValue)> {
        let entry = &self.series[series.index()];
        entry.latest.as_ref().map(|value| (entry.latest_ts, value))
    }

    pub fn latest_owned(&self, series: SeriesIndex) -> Option<TimedValue> {
        let (ts_ms, value) = self.latest(series)?;
        Some(TimedValue {
            ts_ms,
            value: value.clone(),
        })
    }

    /// Sets the latest value, unless the current one is newer.
    #[inline]
    pub fn offer_latest(&mut self, series: SeriesIndex, ts_ms: i64, value: ValueRef<'_>) {
        let entry = &mut self.series[series.index()];
        if entry.latest.is_some() && ts_ms < entry.latest_ts {
            return;
        }
        entry.latest_ts = ts_ms;
        match (&mut entry.latest, value) {
            (Some(PointValue::Long(held)), ValueRef::Long(value)) => *held = value,
            (Some(PointValue::Double(held)), ValueRef::Double(value)) => *held = value,
            (Some(PointValue::Bool(held)), ValueRef::Bool(value)) => *held = value,
            (held, value) => {
                let value = value.to_owned();
                let freed = held.as_ref().map_or(0, PointValue::heap_bytes);
                self.text_bytes = (self.text_bytes + value.heap_bytes()).saturating_sub(freed);
                *held = Some(value);
            }
        }
    }

    pub fn set_latest(&mut self, series: SeriesIndex, latest: Option<TimedValue>) {
        let entry = &mut self.series[series.index()];
        let freed = entry.latest.as_ref().map_or(0, PointValue::heap_bytes);
        let added = latest.as_ref().map_or(0, |latest| latest.value.heap_bytes());
        self.text_bytes = (self.text_bytes + added).saturating_sub(freed);
        entry.latest_ts = latest.as_ref().map_or(i64::MIN, |latest| latest.ts_ms);
        entry.latest = latest.map(|latest| latest.value);
    }

    /// Returns the memory of the catalog, in bytes.
    pub fn bytes(&self) -> usize {
        self.entities.capacity() * size_of::<EntityEntry>()
            + self.series.capacity() * size_of::<SeriesEntry>()
            + self.keys.capacity() * size_of::<Box<str>>()
            + self.entity_table.allocation_size()
            + self.series_table.allocation_size()
            + self.key_table.allocation_size()
            + self.own_classes.allocation_size()
            + self.text_bytes
    }
}

/// Grows the vector by an eighth instead of doubling it. These vectors are most of the memory of an idle series.
fn reserve<T>(vec: &mut Vec<T>) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact((vec.len() / 8).max(64));
    }
}
