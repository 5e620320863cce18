//! The open model: when each message of a group is due, independent of the broker's answers.
//!
//! Message m of a group of n clients is due m periods after the start. It is message number m / n of client m mod n. A
//! worker steps through the part of this sequence that belongs to its clients, so no queue is needed, and a message
//! that cannot be sent yet is only a number.

/// The clients of one group that one worker has: `first`, `first + step`, …
#[derive(Clone, Debug)]
pub struct SendSchedule {
    start_ns: u64,
    pace: MessagePace,
    /// Clients of the group on all machines.
    clients: u64,
    first: u64,
    step: u64,
    own: u64,
    /// The next message: its round and the index among the worker's clients.
    round: u64,
    place: u64,
    rounds: u64,
}

/// The rate of the messages of a group.
#[derive(Clone, Copy, Debug)]
pub struct MessagePace {
    pub period_ns: f64,
    /// Messages due within one such time are all due at its beginning; 0: each message at its own time.
    pub burst_ns: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct ClientShare {
    pub clients: u32,
    pub first: u32,
    pub step: u32,
    pub own: u32,
}

impl SendSchedule {
    /// Creates a schedule of `messages` per client; 0 for no limit.
    pub fn new(start_ns: u64, pace: MessagePace, share: ClientShare, messages: u64) -> SendSchedule {
        SendSchedule {
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

    /// Returns when message `sequence` of the worker's client at `place` is due.
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

    /// Returns when the next message is due; `None` if there are no more.
    #[inline]
    pub fn next_due_ns(&self) -> Option<u64> {
        (self.own > 0 && self.round < self.rounds).then(|| self.at(self.round, self.place))
    }

    /// Returns the next message that is due by `now_ns`: the index of its client and when it was due.
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

    fn even(period_ns: f64) -> MessagePace {
        MessagePace { period_ns, burst_ns: 0 }
    }

    /// The clients of two workers together form one even sequence.
    #[test]
    fn schedules_of_two_workers_are_evenly_spread() {
        let share = |first, own| ClientShare {
            clients: 5,
            first,
            step: 2,
            own,
        };
        let mut workers = [share(0, 3), share(1, 2)].map(|share| SendSchedule::new(1_000, even(100.0), share, 2));
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
    fn message_of_burst_is_due_at_its_beginning() {
        let share = ClientShare {
            clients: 2,
            first: 0,
            step: 1,
            own: 2,
        };
        let pace = MessagePace {
            period_ns: 100.0,
            burst_ns: 300,
        };
        let mut schedule = SendSchedule::new(1_000, pace, share, 4);
        let due: Vec<u64> = std::iter::from_fn(|| schedule.pop(u64::MAX))
            .map(|(_, due_ns)| due_ns)
            .collect();
        assert_eq!(due, [1_000, 1_000, 1_000, 1_300, 1_300, 1_300, 1_600, 1_600]);
    }

    #[test]
    fn pop_before_due_time_is_none() {
        let mut schedule = SendSchedule::new(
            50,
            even(10.0),
            ClientShare {
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
