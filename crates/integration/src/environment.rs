//! The environment of rule functions: time, random numbers, environment variables, and a key-value store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rules::{Environment, TimeLimit, Value, ValueStore};

use crate::clock::cpu_time;

/// Rules can only read environment variables with this prefix, because others may contain secrets.
const VARIABLE_PREFIX: &str = "TIDEWIRE_VAR_";

/// Limits of `kv_store_put`: number of entries, and their total size.
pub(crate) const STORE_ENTRIES_MAX: usize = 100_000;
pub(crate) const STORE_BYTES_MAX: usize = 64 << 20;

/// Limit of processor time for the evaluation of a rule with one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleTime(pub Duration);

impl Default for RuleTime {
    /// A message that makes a rule slow delays other clients of the same worker by up to this time.
    fn default() -> RuleTime {
        RuleTime(Duration::from_millis(20))
    }
}

impl RuleTime {
    /// The limit counts processor time, so that waiting for a processor does not make a rule fail.
    fn limit(self) -> TimeLimit {
        TimeLimit {
            max: self.0,
            clock: cpu_time,
        }
    }
}

/// The environment of one evaluating thread.
pub struct LiveEnvironment<S = SharedStore> {
    pub unix_ms: u64,
    pub rule_time: RuleTime,
    random: u64,
    store: S,
}

impl LiveEnvironment {
    pub fn new(seed: u64, store: SharedStore) -> LiveEnvironment {
        LiveEnvironment {
            unix_ms: 0,
            rule_time: RuleTime::default(),
            random: seed | 1,
            store,
        }
    }

    /// Returns a copy whose changes have no effect, for `is_full`.
    pub fn trial(&self) -> LiveEnvironment<TrialStore> {
        LiveEnvironment {
            unix_ms: self.unix_ms,
            rule_time: self.rule_time,
            random: self.random,
            store: TrialStore {
                base: self.store.clone(),
                changes: BTreeMap::new(),
            },
        }
    }
}

impl<S: ValueStore> Environment for LiveEnvironment<S> {
    fn unix_nanoseconds(&self) -> i128 {
        i128::from(self.unix_ms) * 1_000_000
    }

    /// xorshift64*, for sampling and names. It is not secure enough for secrets.
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn time_limit(&self) -> Option<TimeLimit> {
        Some(self.rule_time.limit())
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(format!("{VARIABLE_PREFIX}{name}")).ok()
    }

    fn store(&mut self) -> Option<&mut dyn ValueStore> {
        Some(&mut self.store)
    }
}

/// A store whose changes are visible only in this store.
pub struct TrialStore {
    base: SharedStore,
    /// `None` marks a deleted key.
    changes: BTreeMap<Vec<u8>, Option<Value>>,
}

impl ValueStore for TrialStore {
    fn get(&self, key: &[u8]) -> Option<Value> {
        match self.changes.get(key) {
            Some(written) => written.clone(),
            None => self.base.get(key),
        }
    }

    fn put(&mut self, key: &[u8], value: Value) -> Result<(), &'static str> {
        self.changes.insert(key.into(), Some(value));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) {
        self.changes.insert(key.into(), None);
    }
}

/// The values of `kv_store_*`, shared by all rules and threads until the process ends.
#[derive(Clone, Default)]
pub struct SharedStore(Arc<Mutex<StoreEntries>>);

#[derive(Default)]
struct StoreEntries {
    values: BTreeMap<Vec<u8>, Value>,
    bytes: usize,
}

impl ValueStore for SharedStore {
    fn get(&self, key: &[u8]) -> Option<Value> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values
            .get(key)
            .cloned()
    }

    fn put(&mut self, key: &[u8], value: Value) -> Result<(), &'static str> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = entries.values.get(key).map(|old| key.len() + old.size());
        let bytes = entries.bytes - before.unwrap_or(0) + key.len() + value.size();
        if bytes > STORE_BYTES_MAX || before.is_none() && entries.values.len() >= STORE_ENTRIES_MAX {
            return Err("the key-value store is full (100,000 entries or 64 MiB)");
        }
        entries.bytes = bytes;
        entries.values.insert(key.into(), value);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = entries.values.remove(key) {
            entries.bytes -= key.len() + old.size();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_sees_its_changes_and_does_not_change_the_store() {
        let mut real = LiveEnvironment::new(7, SharedStore::default());
        real.store.put(b"a", Value::Int(1)).expect("space");
        let mut trial = real.trial();
        let chance = trial.random();
        let store = trial.store().expect("a store");
        store.put(b"a", Value::Int(2)).expect("space");
        assert_eq!(store.get(b"a"), Some(Value::Int(2)));
        store.delete(b"a");
        assert_eq!(store.get(b"a"), None);
        assert_eq!(real.store.get(b"a"), Some(Value::Int(1)));
        assert_eq!(real.random(), chance, "a trial does not advance the random numbers");
    }
}
