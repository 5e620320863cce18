//! A bounded pool of connections. A connection leaves the pool while it is used, and returns only if it is usable.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// The connections to one database.
pub(crate) struct Pool<C> {
    /// One permit per connection. It is never closed.
    permits: Semaphore,
    idle: Mutex<Vec<C>>,
}

/// A connection that is taken from the pool. Dropping it closes the connection.
pub(crate) struct Pooled<'a, C> {
    pub connection: C,
    pool: &'a Pool<C>,
    _permit: SemaphorePermit<'a>,
}

impl<C> Pool<C> {
    pub fn new(connections_max: u32) -> Pool<C> {
        Pool {
            permits: Semaphore::new(connections_max as usize),
            idle: Mutex::new(Vec::new()),
        }
    }

    /// Takes an idle connection that is usable, or opens one. Waits if all connections are in use.
    pub async fn take<E>(
        &self,
        is_usable: impl FnMut(&C) -> bool,
        open: impl Future<Output = Result<C, E>>,
    ) -> Result<Pooled<'_, C>, E> {
        let permit = self.permits.acquire().await;
        let permit = permit.expect("the semaphore is never closed while the pool lives");
        let idle = self.take_idle(is_usable);
        let connection = match idle {
            Some(connection) => connection,
            None => open.await?,
        };
        Ok(Pooled {
            connection,
            pool: self,
            _permit: permit,
        })
    }

    fn take_idle(&self, is_usable: impl FnMut(&C) -> bool) -> Option<C> {
        let mut idle = self.lock();
        idle.retain(is_usable);
        idle.pop()
    }

    /// Closes idle connections.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<C>> {
        // Every update leaves the list valid, so a panic cannot leave it inconsistent.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Pooled<'_, C> {
    /// Returns the connection to the pool.
    pub fn release(self) {
        self.pool.lock().push(self.connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_connections_are_used_again_while_they_are_usable() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let pool = Pool::new(1);
            let opened = |number: u32| std::future::ready(Ok::<u32, String>(number));
            pool.take(|_| true, opened(1)).await.unwrap().release();
            let taken = pool.take(|_| true, opened(2)).await.unwrap();
            assert_eq!(taken.connection, 1);
            tokio::select! {
                biased;
                _ = pool.take(|_| true, opened(3)) => panic!("the pool has one connection"),
                () = std::future::ready(()) => {}
            }
            taken.release();
            pool.take(|number| *number != 1, opened(4)).await.unwrap().release();
            pool.clear();
            assert_eq!(pool.take(|_| true, opened(5)).await.unwrap().connection, 5);
        });
    }
}
