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

    /// As [`MemoryShare::resize`], but a share grows to at most 1/`fraction` of the memory that is free without it. The
    /// more shares are large, the smaller this is, so the first ones leave memory for those that come later.
    #[cfg(any(test, feature = "quic"))]
    pub(crate) fn resize_fairly(&mut self, bytes: usize, fraction: usize) -> bool {
        let others = self.pool.used().saturating_sub(self.bytes);
        let free = self.pool.limit.saturating_sub(others);
        (bytes <= self.bytes || bytes <= free / fraction) && self.resize(bytes)
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
    fn large_shares_leave_memory_for_later_ones() {
        let pool = MemoryPool::new(1000);
        let mut first = MemoryShare::empty(&pool);
        assert!(!first.resize_fairly(126, 8));
        assert!(first.resize_fairly(125, 8));
        let mut later: Vec<_> = (0..100).map(|_| MemoryShare::empty(&pool)).collect();
        for share in &mut later {
            let free = 1000 - pool.used();
            assert!(!share.resize_fairly(free / 8 + 1, 8));
            assert!(share.resize_fairly(free / 8, 8));
        }
        assert!(first.resize_fairly(100, 8), "a share can always become smaller");
        assert!(pool.used() < 1000);
    }

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
