//! Memory that all connections share. It is counted before it is allocated, so that all connections together stay
//! within a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(crate) struct MemoryPool {
    limit: usize,
    used: AtomicUsize,
}

impl MemoryPool {
    pub(crate) fn new(limit: usize) -> Arc<MemoryPool> {
        Arc::new(MemoryPool {
            limit,
            used: AtomicUsize::new(0),
        })
    }

    /// Returns the bytes that connections have taken.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|used| *used <= self.limit)
        });
        taken.is_ok()
    }
}

/// Memory that one connection has taken from the pool. Dropping it returns the memory.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    pool: Arc<MemoryPool>,
    bytes: usize,
}

impl MemoryShare {
    pub(crate) fn empty(pool: &Arc<MemoryPool>) -> MemoryShare {
        MemoryShare {
            pool: pool.clone(),
            bytes: 0,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the share larger or smaller. Returns `false`, and changes nothing, if the pool has too little memory.
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes && !self.pool.take(bytes - self.bytes) {
            return false;
        }
        self.pool
            .used
            .fetch_sub(self.bytes.saturating_sub(bytes), Ordering::Relaxed);
        self.bytes = bytes;
        true
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.pool.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_within_the_limit_and_return_their_memory() {
        let pool = MemoryPool::new(100);
        let (mut first, mut second) = (MemoryShare::empty(&pool), MemoryShare::empty(&pool));
        assert!(first.resize(70));
        assert!(!second.resize(31));
        assert_eq!((second.bytes(), pool.used()), (0, 70));
        assert!(first.resize(40) && second.resize(60));
        assert_eq!(pool.used(), 100);
        drop(first);
        assert_eq!(pool.used(), 60);
        drop(second);
        assert_eq!(pool.used(), 0);
    }
}
