//! Deadlines with a common timeout, such as handshake timeouts: a plain queue is in order.

use std::collections::VecDeque;

use crate::slots::SlotRef;

pub(crate) struct Deadlines {
    after_ms: u64,
    queue: VecDeque<(u64, SlotRef)>,
}

impl Deadlines {
    pub(crate) fn new(after_ms: u64) -> Deadlines {
        Deadlines {
            after_ms,
            queue: VecDeque::new(),
        }
    }

    pub(crate) fn push(&mut self, now_ms: u64, conn: SlotRef) {
        self.queue.push_back((now_ms + self.after_ms, conn));
    }

    /// Returns the first deadline. Its connection may already be closed.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.queue.front().map(|(due_ms, _)| *due_ms)
    }

    /// Returns a connection whose deadline has passed.
    pub(crate) fn pop_due(&mut self, now_ms: u64) -> Option<SlotRef> {
        let conn = self
            .queue
            .pop_front_if(|(due_ms, _)| *due_ms <= now_ms)
            .map(|(_, conn)| conn);
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        conn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::ConnGeneration;
    use broker::ConnSlot;

    #[test]
    fn deadlines_come_due_in_order() {
        let mut deadlines = Deadlines::new(10);
        let conn = |number| SlotRef {
            slot: ConnSlot(number),
            generation: ConnGeneration(number),
        };
        deadlines.push(0, conn(1));
        deadlines.push(5, conn(2));
        assert_eq!((deadlines.next_ms(), deadlines.pop_due(9)), (Some(10), None));
        assert_eq!((deadlines.pop_due(12), deadlines.pop_due(12)), (Some(conn(1)), None));
        assert_eq!((deadlines.pop_due(15), deadlines.pop_due(15)), (Some(conn(2)), None));
        assert_eq!((deadlines.next_ms(), deadlines.queue.capacity()), (None, 0));
    }
}
