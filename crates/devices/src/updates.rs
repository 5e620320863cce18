//! What changes, for those who watch: values, attributes, alarms. A queue per watcher, bounded; what does not fit is counted, and
//! the watcher can see that it missed something.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use platform::alarm_rules::Action;
use platform::ids::{EntityId, Uuid};
use platform::model::{Alarm, Attribute, Scope};
use timeseries::Value;
use tokio::sync::mpsc;

#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// New values of one time.
    Telemetry {
        entity: EntityId,
        ts_ms: i64,
        values: Vec<(Box<str>, Value)>,
    },
    Attributes {
        entity: EntityId,
        scope: Scope,
        updated: Vec<Attribute>,
        deleted: Vec<String>,
    },
    /// For those who watch the originator or the tenant.
    Alarm { action: Action, alarm: Box<Alarm> },
}

impl Update {
    /// Whose values these are.
    pub fn entity(&self) -> Option<EntityId> {
        match self {
            Update::Telemetry { entity, .. } | Update::Attributes { entity, .. } => Some(*entity),
            Update::Alarm { .. } => None,
        }
    }
}

/// A watcher that a subscription of the dashboard may ask for so much; what it does not take is not kept for it.
const QUEUE_MAX: usize = 4096;

#[derive(Default)]
pub struct Watchers {
    inner: Mutex<Inner>,
    /// Entities that somebody watches: without any, nothing is looked up.
    watched: AtomicUsize,
    made: AtomicU64,
    pub dropped_total: AtomicU64,
}

#[derive(Default)]
struct Inner {
    by_entity: HashMap<Uuid, Vec<Arc<Watcher>>, foldhash::fast::RandomState>,
}

struct Watcher {
    number: u64,
    sender: mpsc::Sender<Arc<Update>>,
    missed: AtomicU64,
}

/// What changes of the entities that it watches, in order. Watches nothing any more when it is dropped.
pub struct Updates {
    watchers: Arc<Watchers>,
    watcher: Arc<Watcher>,
    receiver: mpsc::Receiver<Arc<Update>>,
    entities: Vec<Uuid>,
}

impl Updates {
    pub fn new(watchers: &Arc<Watchers>, queue: usize) -> Updates {
        let (sender, receiver) = mpsc::channel(queue.clamp(1, QUEUE_MAX));
        let watcher = Watcher {
            number: watchers.made.fetch_add(1, Relaxed),
            sender,
            missed: AtomicU64::new(0),
        };
        Updates {
            watchers: Arc::clone(watchers),
            watcher: Arc::new(watcher),
            receiver,
            entities: Vec::new(),
        }
    }

    /// From now on. A tenant is watched for its alarms.
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
        self.receiver.recv().await
    }

    /// What came and was not taken yet.
    pub fn try_next(&mut self) -> Option<Arc<Update>> {
        self.receiver.try_recv().ok()
    }

    /// How many had no room since the last time: what it shows has to be read anew.
    pub fn take_missed(&self) -> u64 {
        self.watcher.missed.swap(0, Relaxed)
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
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, entity: Uuid, watcher: &Arc<Watcher>) {
        let mut inner = self.lock();
        inner.by_entity.entry(entity).or_default().push(Arc::clone(watcher));
        self.watched.store(inner.by_entity.len(), Relaxed);
    }

    fn remove(&self, entity: Uuid, number: u64) {
        let mut inner = self.lock();
        if let Some(watchers) = inner.by_entity.get_mut(&entity) {
            watchers.retain(|watcher| watcher.number != number);
            if watchers.is_empty() {
                inner.by_entity.remove(&entity);
            }
        }
        self.watched.store(inner.by_entity.len(), Relaxed);
    }

    /// `make` is called if somebody watches one of the entities. Never waits.
    pub fn tell(&self, entities: &[Uuid], make: impl FnOnce() -> Update) {
        if self.watched.load(Relaxed) == 0 {
            return;
        }
        let inner = self.lock();
        let mut watchers = entities
            .iter()
            .filter_map(|entity| inner.by_entity.get(entity))
            .flatten()
            .peekable();
        if watchers.peek().is_none() {
            return;
        }
        let update = Arc::new(make());
        let mut told: Vec<u64> = Vec::new();
        for watcher in watchers {
            if told.contains(&watcher.number) {
                continue;
            }
            told.push(watcher.number);
            if watcher.sender.try_send(Arc::clone(&update)).is_err() {
                watcher.missed.fetch_add(1, Relaxed);
                self.dropped_total.fetch_add(1, Relaxed);
            }
        }
    }

    pub fn count(&self) -> usize {
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
    fn watchers_get_what_they_watch_and_know_what_they_missed() {
        let (one, other) = (Uuid([1; 16]), Uuid([2; 16]));
        let watchers = Arc::new(Watchers::default());
        let mut updates = Updates::new(&watchers, 2);
        watchers.tell(&[one], || update(0));
        updates.watch(one);
        updates.watch(one);
        watchers.tell(&[other], || update(1));
        for ts_ms in 2..5 {
            watchers.tell(&[one, other], || update(ts_ms));
        }
        assert_eq!(updates.try_next().as_deref(), Some(&update(2)));
        assert_eq!(updates.try_next().as_deref(), Some(&update(3)));
        assert_eq!(updates.try_next(), None);
        assert_eq!((updates.take_missed(), updates.take_missed()), (1, 0));
        drop(updates);
        assert_eq!(watchers.count(), 0);
    }
}
