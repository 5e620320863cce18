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

    /// In memory, about.
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

fn weight(key: &str, value: &Value) -> usize {
    let text = match value {
        Value::String(text) | Value::Json(text) => text.len(),
        _ => 0,
    };
    64 + key.len() + text
}

/// A watcher that a subscription of the dashboard may ask for so much; what it does not take is not kept for it.
const QUEUE_MAX: usize = 4096;
/// Of what waits for one watcher.
const QUEUE_BYTES_MAX: usize = 8 << 20;

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

/// With its weight.
type Queued = (Arc<Update>, usize);

struct Watcher {
    number: u64,
    sender: mpsc::Sender<Queued>,
    queued_bytes: AtomicUsize,
    missed: AtomicU64,
}

/// What changes of the entities that it watches, in order. Watches nothing any more when it is dropped.
pub struct Updates {
    watchers: Arc<Watchers>,
    watcher: Arc<Watcher>,
    receiver: mpsc::Receiver<Queued>,
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
        let queued = self.receiver.recv().await?;
        Some(self.watcher.taken(queued))
    }

    /// What came and was not taken yet.
    pub fn try_next(&mut self) -> Option<Arc<Update>> {
        let queued = self.receiver.try_recv().ok()?;
        Some(self.watcher.taken(queued))
    }

    /// How many had no room since the last time: what it shows has to be read anew.
    pub fn take_missed(&self) -> u64 {
        self.watcher.missed.swap(0, Relaxed)
    }
}

impl Watcher {
    fn taken(&self, (update, bytes): Queued) -> Arc<Update> {
        self.queued_bytes.fetch_sub(bytes, Relaxed);
        update
    }

    /// False: there is no room for it. A single one that is larger than all of the room is taken.
    fn put(&self, update: &Arc<Update>, bytes: usize) -> bool {
        let before = self.queued_bytes.fetch_add(bytes, Relaxed);
        let has_room = before == 0 || before + bytes <= QUEUE_BYTES_MAX;
        let is_taken = has_room && self.sender.try_send((Arc::clone(update), bytes)).is_ok();
        if !is_taken {
            self.queued_bytes.fetch_sub(bytes, Relaxed);
        }
        is_taken
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
        let bytes = update.bytes();
        let mut told: Vec<u64> = Vec::new();
        for watcher in watchers {
            if told.contains(&watcher.number) {
                continue;
            }
            told.push(watcher.number);
            if !watcher.put(&update, bytes) {
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

    #[test]
    fn large_updates_wait_until_their_bytes_are_too_many() {
        let watched = Uuid([1; 16]);
        let watchers = Arc::new(Watchers::default());
        let mut updates = Updates::new(&watchers, QUEUE_MAX);
        updates.watch(watched);
        let large = |bytes: usize| Update::Telemetry {
            entity: EntityId::new(EntityType::Device, watched),
            ts_ms: 0,
            values: vec![("text".into(), Value::String("x".repeat(bytes).into()))],
        };
        for _ in 0..20 {
            watchers.tell(&[watched], || large(1 << 20));
        }
        let taken = std::iter::from_fn(|| updates.try_next()).count();
        assert_eq!((taken, updates.take_missed()), (7, 13));
        watchers.tell(&[watched], || large(QUEUE_BYTES_MAX));
        assert!(updates.try_next().is_some(), "one alone is taken whatever it weighs");
    }
}
