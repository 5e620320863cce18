//! Change notifications for subscribers: values, attributes, alarms.
//!
//! Each subscriber has a bounded queue. Updates beyond it are dropped and counted, and the subscriber can see that it
//! missed some.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use platform::alarm_rules::AlarmTransition;
use platform::ids::{EntityId, Uuid};
use platform::model::{Alarm, Attribute, AttributeScope};
use timeseries::PointValue;
use tokio::sync::mpsc;

use crate::mutex::lock;

#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// New values with one timestamp.
    Telemetry {
        entity: EntityId,
        ts_ms: i64,
        values: Vec<(Box<str>, PointValue)>,
    },
    Attributes {
        entity: EntityId,
        scope: AttributeScope,
        updated: Vec<Attribute>,
        deleted: Vec<String>,
    },
    /// For subscribers to the originator or to the tenant.
    Alarm { action: AlarmTransition, alarm: Box<Alarm> },
}

impl Update {
    /// The entity whose values or attributes changed.
    pub fn entity(&self) -> Option<EntityId> {
        match self {
            Update::Telemetry { entity, .. } | Update::Attributes { entity, .. } => Some(*entity),
            Update::Alarm { .. } => None,
        }
    }

    /// Approximate size in memory.
    fn bytes(&self) -> usize {
        let values: usize = match self {
            Update::Telemetry { values, .. } => values.iter().map(|(key, value)| weight(key, value)).sum(),
            Update::Attributes { updated, deleted, .. } => {
                let updated = updated.iter().map(|attribute| weight(&attribute.key, &attribute.value));
                let deleted = deleted.iter().map(|key| key.len() + 32);
                updated.sum::<usize>() + deleted.sum::<usize>()
            }
            Update::Alarm { alarm, .. } => {
                512 + 3 * alarm.details.as_ref().map_or(0, |details| details.to_string().len())
            }
        };
        128 + values
    }
}

fn weight(key: &str, value: &PointValue) -> usize {
    let text = match value {
        PointValue::String(text) | PointValue::Json(text) => text.len(),
        _ => 0,
    };
    64 + key.len() + text
}

/// Largest queue of one subscriber, in updates. A dashboard subscription may ask for less.
const QUEUE_MAX: usize = 4096;
/// Largest queue of one subscriber, in bytes.
const QUEUE_BYTES_MAX: usize = 8 << 20;

#[derive(Default)]
pub struct Watchers {
    inner: Mutex<WatcherTable>,
    /// Number of entities with a subscriber. At zero, updates skip the lookup.
    watched: AtomicUsize,
    made: AtomicU64,
    pub dropped_total: AtomicU64,
}

#[derive(Default)]
struct WatcherTable {
    by_entity: HashMap<Uuid, Vec<Arc<Watcher>>, foldhash::fast::RandomState>,
}

/// An update and its size in bytes.
type QueuedUpdate = (Arc<Update>, usize);

struct Watcher {
    number: u64,
    sender: mpsc::Sender<QueuedUpdate>,
    queued_bytes: AtomicUsize,
    missed: AtomicU64,
}

/// Updates of the watched entities, in order. Dropping it ends all subscriptions.
pub struct Updates {
    watchers: Arc<Watchers>,
    watcher: Arc<Watcher>,
    receiver: mpsc::Receiver<QueuedUpdate>,
    entities: Vec<Uuid>,
}

impl Updates {
    pub fn new(watchers: &Arc<Watchers>, queue: usize) -> Updates {
        let (sender, receiver) = mpsc::channel(queue.clamp(1, QUEUE_MAX));
        let watcher = Watcher {
            number: watchers.made.fetch_add(1, Relaxed),
            sender,
            queued_bytes: AtomicUsize::new(0),
            missed: AtomicU64::new(0),
        };
        Updates {
            watchers: Arc::clone(watchers),
            watcher: Arc::new(watcher),
            receiver,
            entities: Vec::new(),
        }
    }

    /// Subscribes to changes from now on. A tenant's alarms come with the tenant's id.
    pub fn watch(&mut self, entity: Uuid) {
        if !self.entities.contains(&entity) {
            self.entities.push(entity);
            self.watchers.add(entity, &self.watcher);
        }
    }

    pub fn unwatch(&mut self, entity: Uuid) {
        if let Some(at) = self.entities.iter().position(|known| *known == entity) {
            self.entities.swap_remove(at);
            self.watchers.remove(entity, self.watcher.number);
        }
    }

    pub async fn next(&mut self) -> Option<Arc<Update>> {
        let queued = self.receiver.recv().await?;
        Some(self.watcher.received(queued))
    }

    /// Returns a queued update without waiting.
    pub fn try_next(&mut self) -> Option<Arc<Update>> {
        let queued = self.receiver.try_recv().ok()?;
        Some(self.watcher.received(queued))
    }

    /// Number of dropped updates since the last call. If it is not zero, the reader must load the current values.
    pub fn take_missed(&self) -> u64 {
        self.watcher.missed.swap(0, Relaxed)
    }
}

impl Watcher {
    fn received(&self, (update, bytes): QueuedUpdate) -> Arc<Update> {
        self.queued_bytes.fetch_sub(bytes, Relaxed);
        update
    }

    /// Returns false if the queue is full. An empty queue accepts an update of any size.
    fn put(&self, update: &Arc<Update>, bytes: usize) -> bool {
        let before = self.queued_bytes.fetch_add(bytes, Relaxed);
        let has_capacity = before == 0 || before + bytes <= QUEUE_BYTES_MAX;
        let is_queued = has_capacity && self.sender.try_send((Arc::clone(update), bytes)).is_ok();
        if !is_queued {
            self.queued_bytes.fetch_sub(bytes, Relaxed);
        }
        is_queued
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        for entity in std::mem::take(&mut self.entities) {
            self.watchers.remove(entity, self.watcher.number);
        }
    }
}

impl Watchers {
    fn add(&self, entity: Uuid, watcher: &Arc<Watcher>) {
        let mut inner = lock(&self.inner);
        inner.by_entity.entry(entity).or_default().push(Arc::clone(watcher));
        self.watched.store(inner.by_entity.len(), Relaxed);
    }

    fn remove(&self, entity: Uuid, number: u64) {
        let mut inner = lock(&self.inner);
        if let Some(watchers) = inner.by_entity.get_mut(&entity) {
            watchers.retain(|watcher| watcher.number != number);
            if watchers.is_empty() {
                inner.by_entity.remove(&entity);
            }
        }
        self.watched.store(inner.by_entity.len(), Relaxed);
    }

    /// Sends an update to the subscribers of `entities`. Calls `make` only if there is one. Never waits.
    pub fn notify(&self, entities: &[Uuid], make: impl FnOnce() -> Update) {
        if self.watched.load(Relaxed) == 0 {
            return;
        }
        let inner = lock(&self.inner);
        let mut watchers = entities
            .iter()
            .filter_map(|entity| inner.by_entity.get(entity))
            .flatten()
            .peekable();
        if watchers.peek().is_none() {
            return;
        }
        let update = Arc::new(make());
        let bytes = update.bytes();
        let mut sent_to: Vec<u64> = Vec::new();
        for watcher in watchers {
            if sent_to.contains(&watcher.number) {
                continue;
            }
            sent_to.push(watcher.number);
            if !watcher.put(&update, bytes) {
                watcher.missed.fetch_add(1, Relaxed);
                self.dropped_total.fetch_add(1, Relaxed);
            }
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.watched.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use platform::ids::EntityType;

    use super::*;

    fn update(ts_ms: i64) -> Update {
        Update::Telemetry {
            entity: EntityId::new(EntityType::Device, Uuid([1; 16])),
            ts_ms,
            values: Vec::new(),
        }
    }

    #[test]
    fn updates_beyond_the_queue_are_counted_as_missed() {
        let (one, other) = (Uuid([1; 16]), Uuid([2; 16]));
        let watchers = Arc::new(Watchers::default());
        let mut updates = Updates::new(&watchers, 2);
        watchers.notify(&[one], || update(0));
        updates.watch(one);
        updates.watch(one);
        watchers.notify(&[other], || update(1));
        for ts_ms in 2..5 {
            watchers.notify(&[one, other], || update(ts_ms));
        }
        assert_eq!(updates.try_next().as_deref(), Some(&update(2)));
        assert_eq!(updates.try_next().as_deref(), Some(&update(3)));
        assert_eq!(updates.try_next(), None);
        assert_eq!((updates.take_missed(), updates.take_missed()), (1, 0));
        drop(updates);
        assert_eq!(watchers.count(), 0);
    }

    #[test]
    fn large_updates_are_limited_by_bytes() {
        let watched = Uuid([1; 16]);
        let watchers = Arc::new(Watchers::default());
        let mut updates = Updates::new(&watchers, QUEUE_MAX);
        updates.watch(watched);
        let large = |bytes: usize| Update::Telemetry {
            entity: EntityId::new(EntityType::Device, watched),
            ts_ms: 0,
            values: vec![("text".into(), PointValue::String("x".repeat(bytes).into()))],
        };
        for _ in 0..20 {
            watchers.notify(&[watched], || large(1 << 20));
        }
        let taken = std::iter::from_fn(|| updates.try_next()).count();
        assert_eq!((taken, updates.take_missed()), (7, 13));
        watchers.notify(&[watched], || large(QUEUE_BYTES_MAX));
        assert!(updates.try_next().is_some(), "an empty queue accepts any size");
    }
}
