//! Memory of the enhanced authentications of a node that are not complete. Each stores the CONNECT of a client that is
//! not authenticated, so all together have a limit, and each network a share of it. Small exchanges do not count:
//! otherwise the large ones of a few networks could lock out all clients.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fair_share::{client_network, has_fair_share};

/// Memory of all unfinished exchanges of a node that count.
pub(crate) const EXCHANGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Memory of an exchange that does not count. The connection itself uses more.
pub(crate) const SMALL_EXCHANGE_BYTES_MAX: usize = 2048;

/// Counts the memory of unfinished exchanges. Clones share the counters.
#[derive(Clone, Default)]
pub(crate) struct ExchangeMemory(Arc<Mutex<Reserved>>);

#[derive(Default)]
struct Reserved {
    bytes: usize,
    by_network: HashMap<IpAddr, usize>,
}

/// Memory of one exchange. It is released when this is dropped.
pub(crate) struct ReservedMemory {
    memory: ExchangeMemory,
    network: IpAddr,
    bytes: usize,
}

impl ExchangeMemory {
    /// Reserves memory for an exchange with an address. `None` if all exchanges or those of its network have too much.
    pub(crate) fn reserve(&self, address: IpAddr, bytes: usize, bytes_max: usize) -> Option<ReservedMemory> {
        let network = client_network(address);
        let mut reserved = self.lock();
        let all = reserved.bytes + bytes;
        let own = reserved.by_network.get(&network).copied().unwrap_or(0) + bytes;
        if !has_fair_share(all, own, bytes_max) {
            return None;
        }
        reserved.bytes = all;
        reserved.by_network.insert(network, own);
        Some(ReservedMemory {
            memory: self.clone(),
            network,
            bytes,
        })
    }

    // Every update leaves the counters valid, so a panic cannot leave them inconsistent.
    fn lock(&self) -> MutexGuard<'_, Reserved> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        let mut reserved = self.memory.lock();
        reserved.bytes -= self.bytes;
        match reserved.by_network.get_mut(&self.network) {
            Some(own) if *own > self.bytes => *own -= self.bytes,
            _ => drop(reserved.by_network.remove(&self.network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_has_a_share_and_releases_it() {
        let memory = ExchangeMemory::default();
        let reserve = |address: &str, bytes| memory.reserve(address.parse().unwrap(), bytes, 1000);
        let first = reserve("2001:db8::1", 400).unwrap();
        let second = reserve("2001:db8::2", 100).unwrap();
        assert!(reserve("2001:db8::3", 126).is_none(), "the same network");
        let other = reserve("10.0.0.1", 125).unwrap();
        assert!(reserve("10.0.0.1", 1).is_none(), "more than an eighth");
        drop(first);
        assert!(
            reserve("2001:db8::3", 126).is_some(),
            "released, and this one again at once"
        );
        drop((second, other));
        let reserved = memory.lock();
        assert_eq!((reserved.bytes, reserved.by_network.len()), (0, 0));
    }
}
