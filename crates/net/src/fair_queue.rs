//! A bounded queue that serves addresses in turn, so that one address with many jobs does not delay the others.
//!
//! Its limits are a number of jobs and their memory. Up to half of each is for any address. The other half is for
//! addresses that use at most an eighth, so that one address cannot fill the queue.

use std::collections::VecDeque;
use std::collections::hash_map::HashMap;
use std::net::IpAddr;

use broker::has_fair_share;

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) jobs: usize,
    pub(crate) bytes: usize,
}

pub(crate) struct FairQueue<T> {
    by_address: HashMap<IpAddr, AddressJobs<T>>,
    /// The addresses of `by_address`, in the order in which they are served.
    turns: VecDeque<IpAddr>,
    len: usize,
    bytes: usize,
    limits: QueueLimits,
}

/// The jobs of an address that has any.
struct AddressJobs<T> {
    jobs: VecDeque<(usize, T)>,
    bytes: usize,
}

impl<T> FairQueue<T> {
    pub(crate) fn new(limits: QueueLimits) -> FairQueue<T> {
        FairQueue {
            by_address: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
            bytes: 0,
            limits,
        }
    }

    /// Adds a job that occupies `bytes` of memory. Returns it if the queue is full for this address.
    pub(crate) fn push(&mut self, address: IpAddr, bytes: usize, job: T) -> Result<(), T> {
        let own = self.by_address.get(&address);
        let (own_len, own_bytes) = own.map_or((0, 0), |own| (own.jobs.len(), own.bytes));
        let (len, all_bytes) = (self.len + 1, self.bytes + bytes);
        if !has_fair_share(len, own_len + 1, self.limits.jobs)
            || !has_fair_share(all_bytes, own_bytes + bytes, self.limits.bytes)
        {
            return Err(job);
        }
        let own = self.by_address.entry(address).or_insert_with(|| {
            self.turns.push_back(address);
            AddressJobs {
                jobs: VecDeque::new(),
                bytes: 0,
            }
        });
        own.jobs.push_back((bytes, job));
        own.bytes += bytes;
        (self.len, self.bytes) = (len, all_bytes);
        Ok(())
    }

    /// Returns the oldest job of the address whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let address = self.turns.pop_front()?;
        let own = self.by_address.get_mut(&address)?;
        let (bytes, job) = own.jobs.pop_front()?;
        own.bytes -= bytes;
        match own.jobs.is_empty() {
            true => drop(self.by_address.remove(&address)),
            false => self.turns.push_back(address),
        }
        self.len -= 1;
        self.bytes -= bytes;
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn limits(jobs: usize) -> QueueLimits {
        QueueLimits { jobs, bytes: 1000 }
    }

    #[test]
    fn addresses_are_served_in_turn() {
        let mut queue = FairQueue::new(limits(100));
        for job in ["a1", "a2", "a3"] {
            assert!(queue.push(address(1), 1, job).is_ok());
        }
        assert!(queue.push(address(2), 1, "b1").is_ok());
        assert!(queue.push(address(3), 1, "c1").is_ok());
        assert_eq!(queue.pop(), Some("a1"));
        assert!(queue.push(address(2), 1, "b2").is_ok());
        let rest: Vec<&str> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, ["b1", "c1", "a2", "b2", "a3"]);
        assert!(queue.by_address.is_empty() && queue.turns.is_empty() && (queue.len, queue.bytes) == (0, 0));
    }

    #[test]
    fn one_address_cannot_fill_the_queue() {
        let mut queue = FairQueue::new(limits(16));
        let accepted = (0..100).filter(|n| queue.push(address(1), 1, *n).is_ok()).count();
        assert_eq!(accepted, 8);
        for n in 2..6 {
            let accepted = (0..100).filter(|job| queue.push(address(n), 1, *job).is_ok()).count();
            assert_eq!(accepted, 2, "address {n}");
        }
        assert!(queue.push(address(9), 1, 0).is_err(), "the capacity is 16");
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 16);
    }

    #[test]
    fn memory_of_jobs_is_bounded() {
        let mut queue = FairQueue::new(limits(100));
        assert!(queue.push(address(1), 1001, 0).is_err(), "more than the queue may have");
        assert!(queue.push(address(1), 400, 1).is_ok());
        assert!(queue.push(address(1), 100, 2).is_ok());
        assert!(queue.push(address(1), 1, 3).is_err(), "half is for others");
        assert!(queue.push(address(2), 126, 4).is_err(), "more than an eighth");
        assert!(queue.push(address(2), 125, 5).is_ok());
        assert_eq!(queue.pop(), Some(1));
        assert!(queue.push(address(1), 1, 6).is_ok(), "the memory is free again");
        let rest: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!((rest, queue.bytes), (vec![5, 2, 6], 0));
    }
}
