//! Limits the attribute keys of an entity. The store of time series limits the keys of telemetry in the same way.
//!
//! Counting must not slow down devices that update a few attributes. So the count is an upper bound until it reaches
//! the limit: each saved attribute counts as a new one. Then the attributes are counted in the database. An entity with
//! more than half of its keys has an exact count from then on, for which each saved key is looked up.

use std::borrow::Cow;
use std::fmt;

use timeseries::{RejectReason, RejectedPoints};

use super::HashMap;
use super::host::PlatformCall;
use super::{PlatformCore, PlatformOutlet};
use crate::chain::NodeError;
use crate::ids::{DeviceId, EntityId, Uuid};
use crate::model::{Attribute, AttributeScope};

/// Kind of refused keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Telemetry,
    Attribute,
}

/// New keys of an entity that were not stored, because it has too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedKeys {
    pub entity: EntityId,
    pub kind: KeyKind,
    /// The first of them.
    pub key: String,
    pub values: u64,
    /// Keys that the entity has.
    pub count: usize,
    pub limit: usize,
}

impl fmt::Display for RefusedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            KeyKind::Telemetry => "telemetry key",
            KeyKind::Attribute => "attribute",
        };
        match self.values {
            0 | 1 => write!(f, "the {what} '{}' was not stored", self.key)?,
            values => write!(f, "{values} {what}s, the first of them '{}', were not stored", self.key)?,
        }
        write!(
            f,
            ": the {} has {} {what}s, and the limit is {} (platform.max_keys)",
            self.entity.kind.name().to_lowercase(),
            self.count,
            self.limit
        )
    }
}

/// Attributes that may be stored, and the refused ones.
pub(super) struct AllowedAttributes<'k> {
    pub attributes: Cow<'k, [Attribute]>,
    pub refused: Option<RefusedKeys>,
}

impl<'k> AllowedAttributes<'k> {
    pub fn all(attributes: &'k [Attribute]) -> AllowedAttributes<'k> {
        AllowedAttributes {
            attributes: Cow::Borrowed(attributes),
            refused: None,
        }
    }
}

/// Counts by entity, of all scopes.
#[derive(Debug, Default)]
pub(super) struct AttributeCounts {
    /// The count of each entity, and its index in `entities`.
    by_entity: HashMap<Uuid, (AttributeCount, usize)>,
    entities: Vec<Uuid>,
    /// State of the generator that selects the evicted entity.
    random: u64,
}

#[derive(Clone, Copy, Debug)]
enum AttributeCount {
    AtMost(usize),
    Exactly(usize),
}

/// Largest number of counted entities. Beyond it, each new count evicts a random one. Devices often send in turns: if
/// the oldest were evicted, each would be evicted shortly before its next message. An evicted entity is counted again
/// with its next new attributes.
const COUNTED_MAX: usize = 200_000;

impl AttributeCounts {
    fn get(&self, entity: Uuid) -> Option<AttributeCount> {
        self.by_entity.get(&entity).map(|(count, _)| *count)
    }

    fn insert(&mut self, entity: Uuid, count: AttributeCount) {
        if let Some((known, _)) = self.by_entity.get_mut(&entity) {
            *known = count;
            return;
        }
        if self.entities.len() >= COUNTED_MAX {
            self.evict();
        }
        self.by_entity.insert(entity, (count, self.entities.len()));
        self.entities.push(entity);
    }

    /// Removes a random entity.
    fn evict(&mut self) {
        // A linear congruential generator, whose upper bits are random enough.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let index = (self.random >> 33) as usize % self.entities.len().max(1);
        if let Some(entity) = self.entities.get(index).copied() {
            self.remove(entity);
        }
    }

    pub fn remove(&mut self, entity: Uuid) {
        let Some((_, index)) = self.by_entity.remove(&entity) else {
            return;
        };
        self.entities.swap_remove(index);
        // The last entity took its place.
        if let Some(moved) = self.entities.get(index)
            && let Some((_, known)) = self.by_entity.get_mut(moved)
        {
            *known = index;
        }
    }

    /// Attributes were deleted. An upper bound stays one.
    pub fn deleted(&mut self, entity: Uuid) {
        if let Some(AttributeCount::Exactly(_)) = self.get(entity) {
            self.remove(entity);
        }
    }
}

impl PlatformCall<'_> {
    /// Returns the attributes that may be stored: those with known keys, and new ones up to the limit. Reports the
    /// others.
    pub fn within_key_limit<'k>(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        attributes: &'k [Attribute],
    ) -> Result<AllowedAttributes<'k>, NodeError> {
        let limit = self.platform.options.keys_max;
        let known = match self.core.attribute_counts.get(entity.id) {
            Some(AttributeCount::AtMost(count)) if count + attributes.len() > limit => None,
            known => known,
        };
        let known = match known {
            Some(known) => known,
            None => {
                let count = self.count_attributes(entity.id)?;
                match count <= limit / 2 && count + attributes.len() <= limit {
                    true => AttributeCount::AtMost(count),
                    false => AttributeCount::Exactly(count),
                }
            }
        };
        let counts = &mut self.core.attribute_counts;
        let count = match known {
            AttributeCount::AtMost(count) => {
                counts.insert(entity.id, AttributeCount::AtMost(count + attributes.len()));
                return Ok(AllowedAttributes::all(attributes));
            }
            AttributeCount::Exactly(count) => count,
        };
        let (allowed, count) = self.up_to_limit(entity, scope, attributes, count)?;
        let counts = &mut self.core.attribute_counts;
        counts.insert(entity.id, AttributeCount::Exactly(count));
        Ok(allowed)
    }

    /// Returns the allowed attributes and the new count.
    fn up_to_limit<'k>(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        attributes: &'k [Attribute],
        mut count: usize,
    ) -> Result<(AllowedAttributes<'k>, usize), NodeError> {
        let limit = self.platform.options.keys_max;
        let names: Vec<String> = attributes.iter().map(|attribute| attribute.key.clone()).collect();
        let mut known: std::collections::HashSet<String> = {
            let found = self.stored_or_pending(entity.id, scope, &names)?;
            found.into_iter().collect()
        };
        let mut allowed = Vec::with_capacity(attributes.len());
        let mut first_refused = None;
        for attribute in attributes {
            if !known.contains(&attribute.key) {
                if count >= limit {
                    first_refused.get_or_insert(&attribute.key);
                    continue;
                }
                known.insert(attribute.key.clone());
                count += 1;
            }
            allowed.push(attribute.clone());
        }
        let Some(key) = first_refused.cloned() else {
            return Ok((AllowedAttributes::all(attributes), count));
        };
        let refused = RefusedKeys {
            entity,
            kind: KeyKind::Attribute,
            key,
            values: (attributes.len() - allowed.len()) as u64,
            count,
            limit,
        };
        self.core.stats.refused_keys_total += refused.values;
        self.outlet.keys_refused(&refused);
        let allowed = AllowedAttributes {
            attributes: Cow::Owned(allowed),
            refused: Some(refused),
        };
        Ok((allowed, count))
    }

    /// Which of these keys the entity has, with the changes of this batch.
    fn stored_or_pending(
        &self,
        entity: Uuid,
        scope: AttributeScope,
        names: &[String],
    ) -> Result<Vec<String>, NodeError> {
        let mut found = Vec::new();
        let mut unchanged = Vec::new();
        for name in names {
            match self.core.pending.attribute(entity, scope, name) {
                Some(Some(_)) => found.push(name.clone()),
                Some(None) => {}
                None => unchanged.push(name.as_str()),
            }
        }
        let repository = self.platform.entities.repository();
        let stored = repository
            .attributes(entity, scope, Some(&unchanged))
            .map_err(Box::new)?;
        found.extend(stored.into_iter().map(|attribute| attribute.key));
        Ok(found)
    }

    /// Number of attributes with the changes of this batch.
    fn count_attributes(&self, entity: Uuid) -> Result<usize, NodeError> {
        let repository = self.platform.entities.repository();
        let mut count = repository.attribute_count(entity).map_err(Box::new)?;
        for scope in AttributeScope::ALL {
            let mut changed: Vec<(&str, bool)> = self.core.pending.attribute_keys(entity, scope).collect();
            if changed.is_empty() {
                continue;
            }
            changed.sort_unstable();
            let names: Vec<&str> = changed.iter().map(|(name, _)| *name).collect();
            let stored = repository.attributes(entity, scope, Some(&names)).map_err(Box::new)?;
            for (name, is_put) in changed {
                let is_stored = stored.binary_search_by(|known| known.key.as_str().cmp(name)).is_ok();
                match (is_put, is_stored) {
                    (true, false) => count += 1,
                    (false, true) => count -= 1,
                    _ => {}
                }
            }
        }
        Ok(count)
    }
}

impl PlatformCore {
    /// Reports points that the store rejected.
    pub fn report_rejected_points(
        &mut self,
        is_device: impl Fn(DeviceId) -> bool,
        limit: usize,
        outlet: &mut dyn PlatformOutlet,
    ) {
        for rejected in std::mem::take(&mut self.rejected_points) {
            let RejectedPoints {
                entity,
                key,
                reason,
                points,
            } = rejected;
            let device = DeviceId(Uuid(entity.0));
            let is_of_device = is_device(device);
            let problem = match reason {
                RejectReason::TooManyKeys => {
                    self.stats.refused_keys_total += points;
                    if is_of_device {
                        outlet.keys_refused(&RefusedKeys {
                            entity: device.entity(),
                            kind: KeyKind::Telemetry,
                            key: key.into(),
                            values: points,
                            count: limit,
                            limit,
                        });
                    }
                    continue;
                }
                RejectReason::TooManySeries => "the values were not stored: the store has too many series",
                RejectReason::TextTooLong => "a value was not stored: its text is too long",
            };
            if is_of_device {
                outlet.failed(device.entity(), "", problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(number: usize) -> Uuid {
        Uuid((number as u128).to_be_bytes())
    }

    fn assert_consistent(counts: &AttributeCounts) {
        assert_eq!(counts.by_entity.len(), counts.entities.len());
        for (index, entity) in counts.entities.iter().enumerate() {
            assert_eq!(counts.by_entity[entity].1, index);
        }
    }

    #[test]
    fn new_count_evicts_a_single_one() {
        const ACTIVE: usize = COUNTED_MAX + COUNTED_MAX / 20;
        let mut counts = AttributeCounts::default();
        let mut known = 0;
        // The entities send in turns.
        for number in (0..ACTIVE).chain(0..ACTIVE) {
            known += usize::from(counts.get(entity(number)).is_some());
            counts.insert(entity(number), AttributeCount::AtMost(1));
            assert!(counts.get(entity(number)).is_some());
        }
        assert!(known > ACTIVE / 4 * 3, "{known}");
        assert_eq!(counts.entities.len(), COUNTED_MAX);
        assert_consistent(&counts);
    }

    #[test]
    fn counts_of_removed_entities_are_removed() {
        let mut counts = AttributeCounts::default();
        for number in 0..4 {
            counts.insert(entity(number), AttributeCount::AtMost(number));
        }
        counts.insert(entity(3), AttributeCount::Exactly(5));
        for number in [1, 3, 1] {
            counts.remove(entity(number));
        }
        counts.deleted(entity(2));
        assert_eq!(counts.entities, [entity(0), entity(2)]);
        assert_consistent(&counts);
    }
}
