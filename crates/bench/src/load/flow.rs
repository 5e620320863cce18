//! What has come of each flow (a publisher's messages at one subscriber, or at one shared subscription), and what is missing.
//!
//! A flow that behaves costs eight bytes and one comparison per message. One that does not gets a list of holes, which is bounded:
//! when it is full the oldest hole is closed as lost for good.

use std::ops::Range;

/// Holes per flow that are remembered; more say no more.
const HOLES_MAX: usize = 10_000;
const FINDINGS_MAX: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// One more than the highest sequence number that came.
    pub next: u32,
    /// Index in `Ledger::holes` plus one; 0 without.
    holes: u32,
}

impl Flow {
    /// Nothing is missing before `sequence`.
    pub fn starting_at(sequence: u32) -> Flow {
        Flow {
            next: sequence,
            holes: 0,
        }
    }
}

#[derive(Debug, Default)]
struct Holes {
    /// What did not come though later ones did; ascending.
    missing: Vec<Range<u32>>,
    /// Below this nothing is known any more: holes here were given up.
    known_from: u32,
    given_up: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    First,
    /// The first time, but after a later one.
    Reordered,
    Duplicate,
}

/// Something wrong, for the examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    pub slot: u32,
    pub sender: u32,
    pub sequence: u32,
    pub kind: FindingKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    Duplicate,
    Reordered,
    CorruptPayload,
    WrongTopic,
    NotSubscribed,
    NoProof,
}

/// The flows of one worker that need more than eight bytes, and sums over all of them.
#[derive(Debug, Default)]
pub struct Ledger {
    holes: Vec<Holes>,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupt: u64,
    pub unverified: u64,
    /// Flows of other processes that are followed.
    pub followed: usize,
    /// Distinct messages of flows, for a quick look whether all can be there.
    pub distinct: u64,
    pub findings: Vec<Finding>,
}

impl Ledger {
    pub fn find(&mut self, finding: Finding) {
        let alike = self.findings.iter().filter(|known| known.kind == finding.kind);
        if alike.count() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    #[inline]
    pub fn arrive(&mut self, flow: &mut Flow, sequence: u32) -> Arrival {
        if sequence == flow.next {
            flow.next += 1;
            self.distinct += 1;
            return Arrival::First;
        }
        self.arrive_out_of_turn(flow, sequence)
    }

    #[cold]
    fn arrive_out_of_turn(&mut self, flow: &mut Flow, sequence: u32) -> Arrival {
        if sequence > flow.next {
            let gap = flow.next..sequence;
            flow.next = sequence.saturating_add(1);
            self.distinct += 1;
            self.holes_of(flow).push(gap);
            return Arrival::First;
        }
        if flow.holes != 0 && self.holes_of(flow).fill(sequence) {
            self.distinct += 1;
            self.reordered += 1;
            return Arrival::Reordered;
        }
        self.duplicated += 1;
        Arrival::Duplicate
    }

    fn holes_of(&mut self, flow: &mut Flow) -> &mut Holes {
        if flow.holes == 0 {
            self.holes.push(Holes::default());
            flow.holes = self.holes.len() as u32;
        }
        &mut self.holes[flow.holes as usize - 1]
    }

    /// What of `expected` has not come, ascending, and how many more of it were given up.
    pub fn missing(&self, flow: &Flow, expected: Range<u32>) -> (Vec<Range<u32>>, u64) {
        let mut missing = Vec::new();
        let mut given_up = 0;
        if let Some(holes) = (flow.holes as usize).checked_sub(1).map(|at| &self.holes[at]) {
            given_up = holes
                .given_up
                .min(u64::from(holes.known_from.saturating_sub(expected.start)));
            missing.extend(holes.missing.iter().filter_map(|hole| intersect(hole, &expected)));
        }
        let rest = flow.next.max(expected.start)..expected.end;
        if !rest.is_empty() {
            missing.push(rest);
        }
        (missing, given_up)
    }
}

impl Holes {
    fn push(&mut self, gap: Range<u32>) {
        if self.missing.len() >= HOLES_MAX {
            // Half at once, so that this is not done for every hole.
            for hole in self.missing.drain(..HOLES_MAX / 2) {
                self.given_up += hole.len() as u64;
                self.known_from = hole.end;
            }
        }
        self.missing.push(gap);
    }

    /// Whether the message was missing.
    fn fill(&mut self, sequence: u32) -> bool {
        if sequence < self.known_from && self.given_up > 0 {
            // It may be any of those; one that is late is likelier than one that comes twice.
            self.given_up -= 1;
            return true;
        }
        let at = self.missing.partition_point(|hole| hole.end <= sequence);
        let Some(hole) = self.missing.get_mut(at).filter(|hole| hole.contains(&sequence)) else {
            return false;
        };
        let after = sequence + 1..hole.end;
        hole.end = sequence;
        match (hole.start == hole.end, after.is_empty()) {
            (true, true) => drop(self.missing.remove(at)),
            (true, false) => *hole = after,
            (false, true) => {}
            (false, false) => self.missing.insert(at + 1, after),
        }
        true
    }
}

/// Ascending numbers as ranges.
fn ranges(sequences: impl Iterator<Item = u32>) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for sequence in sequences {
        match ranges.last_mut() {
            Some(last) if last.end == sequence => last.end += 1,
            _ => ranges.push(sequence..sequence + 1),
        }
    }
    ranges
}

pub fn intersect(one: &Range<u32>, other: &Range<u32>) -> Option<Range<u32>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}

/// `ranges` without `excluded`; both ascending.
pub fn subtract(ranges: Vec<Range<u32>>, excluded: &[Range<u32>]) -> Vec<Range<u32>> {
    if excluded.is_empty() {
        return ranges;
    }
    let mut left = Vec::new();
    for range in ranges {
        let mut start = range.start;
        for out in excluded.iter().filter_map(|out| intersect(out, &range)) {
            if start < out.start {
                left.push(start..out.start);
            }
            start = start.max(out.end);
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

/// Which messages of one publisher have come, where several connections share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    words: Vec<u64>,
}

impl Received {
    /// Whether it is new.
    pub fn insert(&mut self, sequence: u32) -> bool {
        let (word, bit) = (sequence as usize / 64, 1 << (sequence % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        is_new
    }

    /// Adds all of `other`; how many were in both.
    pub fn merge(&mut self, other: &Received) -> u64 {
        if other.words.len() > self.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        let mut in_both = 0;
        for (own, other) in self.words.iter_mut().zip(&other.words) {
            in_both += u64::from((*own & other).count_ones());
            *own |= other;
        }
        in_both
    }

    pub fn missing(&self, expected: Range<u32>) -> Vec<Range<u32>> {
        ranges(expected.filter(|sequence| !self.contains(*sequence)))
    }

    pub fn present(&self) -> Vec<Range<u32>> {
        let end = (self.words.len() * 64) as u32;
        ranges((0..end).filter(|sequence| self.contains(*sequence)))
    }

    fn contains(&self, sequence: u32) -> bool {
        let word = self.words.get(sequence as usize / 64).copied().unwrap_or(0);
        word & 1 << (sequence % 64) != 0
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is compared")]
mod tests {
    use super::*;

    fn run(sequences: &[u32]) -> (Ledger, Flow, Vec<Arrival>) {
        let (mut ledger, mut flow) = (Ledger::default(), Flow::default());
        let arrivals = sequences
            .iter()
            .map(|sequence| ledger.arrive(&mut flow, *sequence))
            .collect();
        (ledger, flow, arrivals)
    }

    #[test]
    fn an_orderly_flow_needs_no_list() {
        let (ledger, flow, _) = run(&[0, 1, 2, 3]);
        assert_eq!((ledger.holes.len(), ledger.missing(&flow, 0..4)), (0, (vec![], 0)));
        assert_eq!(ledger.missing(&flow, 0..6), (vec![4..6], 0));
        assert_eq!(ledger.missing(&flow, 7..9), (vec![7..9], 0));
    }

    #[test]
    fn loss_order_and_duplicates_are_told_apart() {
        use Arrival::{Duplicate, First, Reordered};
        let (ledger, flow, arrivals) = run(&[0, 5, 2, 2, 0, 4, 6, 1, 3, 3]);
        let expected = [
            First, First, Reordered, Duplicate, Duplicate, Reordered, First, Reordered, Reordered, Duplicate,
        ];
        assert_eq!(arrivals, expected);
        assert_eq!(ledger.missing(&flow, 0..7), (vec![], 0));
        let (ledger, flow, _) = run(&[1, 4, 9]);
        assert_eq!(ledger.missing(&flow, 0..11), (vec![0..1, 2..4, 5..9, 10..11], 0));
        assert_eq!(ledger.missing(&flow, 3..6), (vec![3..4, 5..6], 0));
        assert_eq!(ledger.distinct, 3);
    }

    #[test]
    fn holes_are_bounded_and_still_counted() {
        let every_other: Vec<u32> = (0..30_000).map(|n| 2 * n + 1).collect();
        let (ledger, flow, _) = run(&every_other);
        let (missing, given_up) = ledger.missing(&flow, 0..60_000);
        assert!(missing.len() <= HOLES_MAX);
        assert_eq!(missing.len() as u64 + given_up, 30_000);
    }

    #[test]
    fn excluded_ranges_are_cut_out() {
        assert_eq!(subtract(vec![0..10, 20..30], &[2..4, 8..25]), [0..2, 4..8, 25..30]);
        assert_eq!(subtract(vec![0..3], &[0..3]), Vec::<Range<u32>>::new());
    }

    #[test]
    fn sets_merge_and_say_what_is_missing() {
        let (mut one, mut other) = (Received::default(), Received::default());
        assert!([1, 2, 70].iter().all(|n| one.insert(*n)) && !one.insert(70));
        for n in [2, 200] {
            other.insert(n);
        }
        assert_eq!(one.merge(&other), 1);
        assert_eq!(one.missing(0..4), [0..1, 3..4]);
        assert_eq!(one.present(), [1..3, 70..71, 200..201]);
        assert_eq!(one.missing(198..203), [198..200, 201..203]);
    }
}
