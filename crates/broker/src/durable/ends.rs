//! Clients whose sessions have ended and may come back with a crash: until that is kept, none of them is told that it has none.

use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

#[derive(Default)]
pub struct Ends {
    /// Of this tick.
    fresh: HashSet<Box<str>, RandomState>,
    /// With where the journal must be.
    appended: HashMap<Box<str>, u64, RandomState>,
    /// The latest of those.
    last: u64,
}

impl Ends {
    pub fn note(&mut self, client_id: &str) {
        self.fresh.insert(client_id.into());
    }

    /// What the tick has recorded is kept when the journal has come to `end`.
    pub fn appended(&mut self, end: u64) {
        if !self.fresh.is_empty() {
            self.appended
                .extend(self.fresh.drain().map(|client_id| (client_id, end)));
            self.last = end;
        }
    }

    pub fn kept(&mut self, committed: u64) {
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
    fn an_end_is_pending_until_it_is_kept_and_for_its_client_alone() {
        let mut ends = Ends::default();
        ends.note("a");
        assert!(ends.is_pending("a", 100) && !ends.is_pending("b", 100));
        ends.appended(200);
        ends.note("b");
        ends.appended(300);
        ends.kept(200);
        assert!(!ends.is_pending("a", 200) && ends.is_pending("b", 200));
        ends.kept(300);
        assert!(!ends.is_pending("b", 300));
        // A session that ends again.
        ends.note("a");
        ends.appended(400);
        assert!(ends.is_pending("a", 300));
    }
}
