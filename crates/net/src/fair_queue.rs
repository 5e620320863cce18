//! A bounded queue that serves addresses in turn, so that one address with many jobs does not delay the others.
//!
//! Up to half of the capacity is for any address. The other half is for addresses that use less than an eighth of the
//! capacity, so that one address cannot fill the queue.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::net::IpAddr;

pub(crate) struct FairQueue<T> {
    /// The jobs of each address that has any.
    jobs: HashMap<IpAddr, VecDeque<T>>,
    /// The addresses of `jobs`, in the order in which they are served.
    turns: VecDeque<IpAddr>,
    len: usize,
    capacity: usize,
}

impl<T> FairQueue<T> {
    pub(crate) fn new(capacity: usize) -> FairQueue<T> {
        FairQueue {
            jobs: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
            capacity,
        }
    }

    /// Adds a job. Returns it if the queue is full for this address.
    pub(crate) fn push(&mut self, address: IpAddr, job: T) -> Result<(), T> {
        let own = self.jobs.get(&address).map_or(0, VecDeque::len);
        let has_space = self.len < self.capacity.div_ceil(2) || own < self.capacity.div_ceil(8);
        if self.len >= self.capacity || !has_space {
            return Err(job);
        }
        if own == 0 {
            self.turns.push_back(address);
        }
        self.jobs.entry(address).or_default().push_back(job);
        self.len += 1;
        Ok(())
    }

    /// Returns the oldest job of the address whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let address = self.turns.pop_front()?;
        let Entry::Occupied(mut jobs) = self.jobs.entry(address) else {
            return None;
        };
        let job = jobs.get_mut().pop_front()?;
        match jobs.get().is_empty() {
            true => drop(jobs.remove()),
            false => self.turns.push_back(address),
        }
        self.len -= 1;
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[test]
    fn addresses_are_served_in_turn() {
        let mut queue = FairQueue::new(100);
        for job in ["a1", "a2", "a3"] {
            assert!(queue.push(address(1), job).is_ok());
        }
        assert!(queue.push(address(2), "b1").is_ok());
        assert!(queue.push(address(3), "c1").is_ok());
        assert_eq!(queue.pop(), Some("a1"));
        assert!(queue.push(address(2), "b2").is_ok());
        let rest: Vec<&str> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, ["b1", "c1", "a2", "b2", "a3"]);
        assert!(queue.jobs.is_empty() && queue.turns.is_empty() && queue.len == 0);
    }

    #[test]
    fn one_address_cannot_fill_the_queue() {
        let mut queue = FairQueue::new(16);
        let accepted = (0..100).filter(|n| queue.push(address(1), *n).is_ok()).count();
        assert_eq!(accepted, 8);
        for n in 2..6 {
            let accepted = (0..100).filter(|job| queue.push(address(n), *job).is_ok()).count();
            assert_eq!(accepted, 2, "address {n}");
        }
        assert!(queue.push(address(9), 0).is_err(), "the capacity is 16");
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 16);
    }
}
