//! The open model: when each message of a group is due, whoever waits for what.
//!
//! Message m of a group of n clients is due m periods after the start and belongs to client m mod n, as its message m / n. A worker walks
//! the part of this sequence that its clients have; no queue is needed, and a message that cannot leave is just a number.

/// The clients of one group that one worker has: `first`, `first + step`, …
#[derive(Clone, Debug)]
pub struct Schedule {
    start_ns: u64,
    pace: Pace,
    /// Of the group, on all machines.
    clients: u64,
    first: u64,
    step: u64,
    own: u64,
    /// The next message: round and place among the own clients.
    round: u64,
    place: u64,
    rounds: u64,
}

/// Of the messages of a group.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub period_ns: f64,
    /// What is due within this time is due at its beginning; 0: each message when it is due.
    pub burst_ns: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub clients: u32,
    pub first: u32,
    pub step: u32,
    pub own: u32,
}

impl Schedule {
    /// `messages` per client; 0 for no end.
    pub fn new(start_ns: u64, pace: Pace, share: Share, messages: u64) -> Schedule {
        Schedule {
            start_ns,
            pace,
            clients: u64::from(share.clients),
            first: u64::from(share.first),
            step: u64::from(share.step),
            own: u64::from(share.own),
            round: 0,
            place: 0,
            rounds: if messages == 0 { u64::MAX } else { messages },
        }
    }

    /// When message `sequence` of the own client at `place` is due.
    #[inline]
    pub fn due_ns(&self, place: u32, sequence: u32) -> u64 {
        self.at(u64::from(sequence), u64::from(place))
    }

    #[inline]
    fn at(&self, round: u64, place: u64) -> u64 {
        let message = round * self.clients + self.first + place * self.step;
        let after_ns = (message as f64 * self.pace.period_ns) as u64;
        self.start_ns + after_ns - after_ns.checked_rem(self.pace.burst_ns).unwrap_or(0)
    }

    /// When the next message is due; `None` when there is none any more.
    #[inline]
    pub fn next_due_ns(&self) -> Option<u64> {
        (self.own > 0 && self.round < self.rounds).then(|| self.at(self.round, self.place))
    }

    /// The place of the client whose message is due by `now_ns`, and when it was due.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<(u32, u64)> {
        let due_ns = self.next_due_ns().filter(|due_ns| *due_ns <= now_ns)?;
        let place = self.place as u32;
        self.place += 1;
        if self.place == self.own {
            (self.place, self.round) = (0, self.round + 1);
        }
        Some((place, due_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(period_ns: f64) -> Pace {
        Pace { period_ns, burst_ns: 0 }
    }

    /// Two workers and their clients together make one even sequence.
    #[test]
    fn messages_of_all_workers_are_evenly_spread() {
        let share = |first, own| Share {
            clients: 5,
            first,
            step: 2,
            own,
        };
        let mut workers = [share(0, 3), share(1, 2)].map(|share| Schedule::new(1_000, even(100.0), share, 2));
        let mut all = Vec::new();
        for (number, worker) in workers.iter_mut().enumerate() {
            let mut sequences = [0; 3];
            while let Some((place, due_ns)) = worker.pop(u64::MAX) {
                let sequence = &mut sequences[place as usize];
                assert_eq!(worker.due_ns(place, *sequence), due_ns);
                *sequence += 1;
                all.push((due_ns, number as u32 + 2 * place));
            }
        }
        all.sort_unstable();
        let expected: Vec<(u64, u32)> = (0..10).map(|m| (1_000 + 100 * m, m as u32 % 5)).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn a_burst_is_due_at_its_beginning() {
        let share = Share {
            clients: 2,
            first: 0,
            step: 1,
            own: 2,
        };
        let pace = Pace {
            period_ns: 100.0,
            burst_ns: 300,
        };
        let mut schedule = Schedule::new(1_000, pace, share, 4);
        let due: Vec<u64> = std::iter::from_fn(|| schedule.pop(u64::MAX))
            .map(|(_, due_ns)| due_ns)
            .collect();
        assert_eq!(due, [1_000, 1_000, 1_000, 1_300, 1_300, 1_300, 1_600, 1_600]);
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut schedule = Schedule::new(
            50,
            even(10.0),
            Share {
                clients: 1,
                first: 0,
                step: 1,
                own: 1,
            },
            0,
        );
        assert_eq!(schedule.pop(49), None);
        assert_eq!(schedule.pop(65), Some((0, 50)));
        assert_eq!(schedule.pop(65), Some((0, 60)));
        assert_eq!(schedule.pop(65), None);
    }
}
