//! The received and the missing messages of each flow (the messages of a publisher at one subscriber, or at one shared
//! subscription).
//!
//! A flow whose messages arrive in order needs eight bytes and one comparison per message. Any other flow gets a list
//! of gaps. The list is bounded: when it is full, its older half is counted as lost.

use super::client::ClientSlot;
use super::truth::SenderNumber;
use std::ops::Range;

/// Most gaps per flow.
const HOLES_MAX: usize = 10_000;
const FINDINGS_MAX: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub struct MessageFlow {
    /// One more than the highest sequence number that arrived.
    pub next: u32,
    /// Index in `FlowGaps::holes` plus one; 0 if the flow has no gaps.
    holes: u32,
}

impl MessageFlow {
    /// Returns a flow in which nothing before `sequence` is expected.
    pub fn starting_at(sequence: u32) -> MessageFlow {
        MessageFlow {
            next: sequence,
            holes: 0,
        }
    }
}

#[derive(Debug, Default)]
struct FlowHoles {
    /// Ranges that did not arrive although later messages did; ascending.
    missing: Vec<Range<u32>>,
    /// Gaps below this number are no longer known; they were given up.
    known_from: u32,
    given_up: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    First,
    /// Arrived for the first time, but after a later message.
    Reordered,
    Duplicate,
}

/// A fault, for the examples of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    pub slot: ClientSlot,
    pub sender: SenderNumber,
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
    DamagedHeader,
}

/// The gaps of the flows of one worker, and sums over all its flows.
#[derive(Debug, Default)]
pub struct FlowGaps {
    holes: Vec<FlowHoles>,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupt: u64,
    pub unverified: u64,
    /// The number of flows of other runs that are compared.
    pub followed: usize,
    /// Distinct messages that arrived: unless this changes, a new comparison finds nothing new.
    pub distinct: u64,
    pub findings: Vec<Finding>,
}

impl FlowGaps {
    pub fn find(&mut self, finding: Finding) {
        let alike = self.findings.iter().filter(|known| known.kind == finding.kind);
        if alike.count() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    #[inline]
    /// Records the arrival of a message.
    pub fn arrive(&mut self, flow: &mut MessageFlow, sequence: u32) -> Arrival {
        if sequence == flow.next {
            flow.next += 1;
            self.distinct += 1;
            return Arrival::First;
        }
        self.arrive_out_of_turn(flow, sequence)
    }

    #[cold]
    fn arrive_out_of_turn(&mut self, flow: &mut MessageFlow, sequence: u32) -> Arrival {
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

    fn holes_of(&mut self, flow: &mut MessageFlow) -> &mut FlowHoles {
        if flow.holes == 0 {
            self.holes.push(FlowHoles::default());
            flow.holes = self.holes.len() as u32;
        }
        &mut self.holes[flow.holes as usize - 1]
    }

    /// Returns the ranges of `expected` that did not arrive, ascending, and how many more messages of it were given up.
    pub fn missing(&self, flow: &MessageFlow, expected: Range<u32>) -> (Vec<Range<u32>>, u64) {
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

impl FlowHoles {
    fn push(&mut self, gap: Range<u32>) {
        if self.missing.len() >= HOLES_MAX {
            // Half of them at once, so that this is rare.
            for hole in self.missing.drain(..HOLES_MAX / 2) {
                self.given_up += hole.len() as u64;
                self.known_from = hole.end;
            }
        }
        self.missing.push(gap);
    }

    /// Fills a gap; returns whether the message was missing.
    fn fill(&mut self, sequence: u32) -> bool {
        if sequence < self.known_from && self.given_up > 0 {
            // The message may be one of those given up: a late message is more likely than a duplicate.
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

/// Combines ascending numbers to ranges.
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

/// Returns `ranges` without `excluded`; both are ascending.
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

/// The set of messages of one publisher that arrived, for a subscription that several connections share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedSet {
    words: Vec<u64>,
}

impl ReceivedSet {
    /// Adds a message; returns whether it is new.
    pub fn insert(&mut self, sequence: u32) -> bool {
        let (word, bit) = (sequence as usize / 64, 1 << (sequence % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        is_new
    }

    /// Adds all of `other`; returns how many messages were in both.
    pub fn merge(&mut self, other: &ReceivedSet) -> u64 {
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
#[allow(clippy::single_range_in_vec_init, reason = "the tests compare lists of ranges")]
mod tests {
    use super::*;

    fn run(sequences: &[u32]) -> (FlowGaps, MessageFlow, Vec<Arrival>) {
        let (mut gaps, mut flow) = (FlowGaps::default(), MessageFlow::default());
        let arrivals = sequences
            .iter()
            .map(|sequence| gaps.arrive(&mut flow, *sequence))
            .collect();
        (gaps, flow, arrivals)
    }

    #[test]
    fn flow_in_order_has_no_holes() {
        let (gaps, flow, _) = run(&[0, 1, 2, 3]);
        assert_eq!((gaps.holes.len(), gaps.missing(&flow, 0..4)), (0, (vec![], 0)));
        assert_eq!(gaps.missing(&flow, 0..6), (vec![4..6], 0));
        assert_eq!(gaps.missing(&flow, 7..9), (vec![7..9], 0));
    }

    #[test]
    fn arrive_distinguishes_loss_order_and_duplicates() {
        use Arrival::{Duplicate, First, Reordered};
        let (gaps, flow, arrivals) = run(&[0, 5, 2, 2, 0, 4, 6, 1, 3, 3]);
        let expected = [
            First, First, Reordered, Duplicate, Duplicate, Reordered, First, Reordered, Reordered, Duplicate,
        ];
        assert_eq!(arrivals, expected);
        assert_eq!(gaps.missing(&flow, 0..7), (vec![], 0));
        let (gaps, flow, _) = run(&[1, 4, 9]);
        assert_eq!(gaps.missing(&flow, 0..11), (vec![0..1, 2..4, 5..9, 10..11], 0));
        assert_eq!(gaps.missing(&flow, 3..6), (vec![3..4, 5..6], 0));
        assert_eq!(gaps.distinct, 3);
    }

    #[test]
    fn holes_over_limit_are_counted_as_given_up() {
        let every_other: Vec<u32> = (0..30_000).map(|n| 2 * n + 1).collect();
        let (gaps, flow, _) = run(&every_other);
        let (missing, given_up) = gaps.missing(&flow, 0..60_000);
        assert!(missing.len() <= HOLES_MAX);
        assert_eq!(missing.len() as u64 + given_up, 30_000);
    }

    #[test]
    fn subtract_removes_excluded_ranges() {
        assert_eq!(subtract(vec![0..10, 20..30], &[2..4, 8..25]), [0..2, 4..8, 25..30]);
        assert_eq!(subtract(vec![0..3], &[0..3]), Vec::<Range<u32>>::new());
    }

    #[test]
    fn merge_counts_common_messages() {
        let (mut one, mut other) = (ReceivedSet::default(), ReceivedSet::default());
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
