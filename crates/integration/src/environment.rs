//! What the functions of rules get from outside: time, chance, environment variables, and a small store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rules::{Environment, Store, Value};

/// Rules read environment variables with this prefix only: others may be secrets.
const VARIABLE_PREFIX: &str = "TIDEWIRE_VAR_";

/// Entries of `kv_store_put`, and the bytes of all.
const STORE_ENTRIES_MAX: usize = 100_000;
const STORE_BYTES_MAX: usize = 64 << 20;

/// One for each thread that evaluates.
pub struct Surroundings {
    pub unix_ms: u64,
    random: u64,
    store: SharedStore,
}

impl Surroundings {
    pub fn new(seed: u64, store: SharedStore) -> Surroundings {
        Surroundings {
            unix_ms: 0,
            random: seed | 1,
            store,
        }
    }

    /// For a question: the same, and nothing that a rule does there stays.
    pub fn trial(&self) -> Trial {
        Trial {
            unix_ms: self.unix_ms,
            random: self.random,
            store: TrialStore {
                below: self.store.clone(),
                written: BTreeMap::new(),
            },
        }
    }
}

impl Environment for Surroundings {
    fn unix_nanoseconds(&self) -> i128 {
        nanoseconds(self.unix_ms)
    }

    fn random(&mut self) -> u64 {
        next_random(&mut self.random)
    }

    fn variable(&self, name: &str) -> Option<String> {
        variable(name)
    }

    fn store(&mut self) -> Option<&mut dyn Store> {
        Some(&mut self.store)
    }
}

fn nanoseconds(unix_ms: u64) -> i128 {
    i128::from(unix_ms) * 1_000_000
}

/// xorshift64*: for sampling and names, not for secrets.
fn next_random(random: &mut u64) -> u64 {
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    random.wrapping_mul(0x2545_F491_4F6C_DD1D)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("{VARIABLE_PREFIX}{name}")).ok()
}

/// Surroundings that leave no trace.
pub struct Trial {
    unix_ms: u64,
    random: u64,
    store: TrialStore,
}

impl Environment for Trial {
    fn unix_nanoseconds(&self) -> i128 {
        nanoseconds(self.unix_ms)
    }

    fn random(&mut self) -> u64 {
        next_random(&mut self.random)
    }

    fn variable(&self, name: &str) -> Option<String> {
        variable(name)
    }

    fn store(&mut self) -> Option<&mut dyn Store> {
        Some(&mut self.store)
    }
}

/// What is written is seen by whoever wrote it, and by nobody else.
struct TrialStore {
    below: SharedStore,
    /// None: deleted.
    written: BTreeMap<Vec<u8>, Option<Value>>,
}

impl Store for TrialStore {
    fn get(&self, key: &[u8]) -> Option<Value> {
        match self.written.get(key) {
            Some(written) => written.clone(),
            None => self.below.get(key),
        }
    }

    fn put(&mut self, key: &[u8], value: Value) -> Result<(), &'static str> {
        self.written.insert(key.into(), Some(value));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) {
        self.written.insert(key.into(), None);
    }
}

/// The values of `kv_store_*`: of all rules and threads, until the process ends.
#[derive(Clone, Default)]
pub struct SharedStore(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    values: BTreeMap<Vec<u8>, Value>,
    bytes: usize,
}

impl Store for SharedStore {
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
            return Err("the store of rules is full");
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

pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_sees_what_it_writes_and_leaves_no_trace() {
        let mut real = Surroundings::new(7, SharedStore::default());
        real.store.put(b"a", Value::Int(1)).expect("room");
        let mut trial = real.trial();
        let chance = trial.random();
        let store = trial.store().expect("there is one");
        store.put(b"a", Value::Int(2)).expect("room");
        assert_eq!(store.get(b"a"), Some(Value::Int(2)));
        store.delete(b"a");
        assert_eq!(store.get(b"a"), None);
        assert_eq!(real.store.get(b"a"), Some(Value::Int(1)));
        assert_eq!(
            real.random(),
            chance,
            "what comes after the question is as if there had been none"
        );
    }
}
