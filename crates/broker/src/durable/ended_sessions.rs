//! Client ids whose durable sessions have ended without the commit of that record. A crash would restore such a
//! session, so CONNACK with Session Present 0 must wait for the commit.

use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

#[derive(Default)]
pub struct EndedSessions {
    /// Ended in this tick.
    fresh: HashSet<Box<str>, RandomState>,
    /// Ended in earlier ticks, with the journal position that must be committed.
    appended: HashMap<Box<str>, u64, RandomState>,
    /// The highest of those positions.
    last: u64,
}

impl EndedSessions {
    pub fn add(&mut self, client_id: &str) {
        self.fresh.insert(client_id.into());
    }

    /// The records of the tick have been appended and end at `end`.
    pub fn appended(&mut self, end: u64) {
        if !self.fresh.is_empty() {
            self.appended
                .extend(self.fresh.drain().map(|client_id| (client_id, end)));
            self.last = end;
        }
    }

    pub fn committed(&mut self, committed: u64) {
        if committed >= self.last {
            self.appended.clear();
        }
    }

    pub fn is_pending(&self, client_id: &str, committed: u64) -> bool {
        self.fresh.contains(client_id) || self.appended.get(client_id).is_some_and(|end| *end > committed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_end_is_pending_until_committed_for_its_client() {
        let mut ends = EndedSessions::default();
        ends.add("a");
        assert!(ends.is_pending("a", 100) && !ends.is_pending("b", 100));
        ends.appended(200);
        ends.add("b");
        ends.appended(300);
        ends.committed(200);
        assert!(!ends.is_pending("a", 200) && ends.is_pending("b", 200));
        ends.committed(300);
        assert!(!ends.is_pending("b", 300));
        // The session ends a second time.
        ends.add("a");
        ends.appended(400);
        assert!(ends.is_pending("a", 300));
    }
}
