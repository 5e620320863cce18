//! A lane: a queue of records that are sent one batch after another. A record's ordering key selects its lane, so that
//! each key is in one lane only.
//!
//! With [`crate::Order::ByPump`] a lane has one batch in flight. Records of a failed batch return to the front of the
//! queue when nothing is in flight. Records that the target rejects while it accepts others are *parked*, together with
//! all later records of the same key. Records of other keys overtake them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::backoff::Backoff;
use crate::config::DeliveryConfig;
use crate::record::Record;

pub(super) struct LaneEntry {
    pub sequence: u64,
    pub tries: u32,
    pub record: Record,
}

pub(super) struct PumpLane {
    queue: VecDeque<LaneEntry>,
    bytes: usize,
    /// When the queue last became non-empty.
    since: Instant,
    /// Records to put back in front of the queue when nothing is in flight.
    requeue: Vec<LaneEntry>,
    /// Whether parked records are put back as well.
    requeues_parked: bool,
    parked: VecDeque<LaneEntry>,
    parked_keys: HashSet<u64>,
    parked_until: Instant,
    hold_until: Option<Instant>,
    backoff: Backoff,
    pub in_flight: u32,
    /// Resolves when the previous batch has been passed to the sink.
    pub turn: Option<oneshot::Receiver<()>>,
}

/// Limits of a batch and of a lane.
#[derive(Clone, Copy)]
pub(super) struct LaneLimits {
    pub records_max: usize,
    pub bytes_max: usize,
    pub linger: Duration,
    /// Maximum number of batches in flight per lane.
    pub in_flight_max: u32,
}

/// When a lane has something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneReadiness {
    Now,
    At(Instant),
    /// Not before another event.
    Never,
}

impl PumpLane {
    pub fn new(config: &DeliveryConfig, now: Instant) -> PumpLane {
        PumpLane {
            queue: VecDeque::new(),
            bytes: 0,
            since: now,
            requeue: Vec::new(),
            requeues_parked: false,
            parked: VecDeque::new(),
            parked_keys: HashSet::new(),
            parked_until: now,
            hold_until: None,
            backoff: Backoff::new(&config.retry),
            in_flight: 0,
            turn: None,
        }
    }

    pub fn push(&mut self, entry: LaneEntry, now: Instant) {
        if self.queue.is_empty() {
            self.since = now;
        }
        self.bytes += entry.record.len();
        self.queue.push_back(entry);
    }

    /// Returns whether nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty() && self.requeue.is_empty() && self.parked.is_empty()
    }

    /// Returns whether rejected records wait for a retry.
    pub fn is_retrying(&self) -> bool {
        !self.parked.is_empty() || self.hold_until.is_some()
    }

    /// Replaces waiting records by their copies, which are given by sequence number.
    pub fn replace(&mut self, copies: &HashMap<u64, Record>) {
        let waiting = self.queue.iter_mut().chain(&mut self.requeue).chain(&mut self.parked);
        for entry in waiting {
            if let Some(copy) = copies.get(&entry.sequence) {
                entry.record = copy.clone();
            }
        }
    }

    /// Returns whether the lane waits for its batch to fill or its linger time to end.
    pub fn is_gathering(&self, limits: &LaneLimits) -> bool {
        self.in_flight < limits.in_flight_max && !self.queue.is_empty() && self.requeue.is_empty()
    }

    pub fn readiness(&self, limits: &LaneLimits, is_flushing: bool, now: Instant) -> LaneReadiness {
        if self.in_flight >= limits.in_flight_max || !self.requeue.is_empty() {
            return LaneReadiness::Never;
        }
        if let Some(until) = self.hold_until.filter(|until| *until > now) {
            return LaneReadiness::At(until);
        }
        let of_parked = match self.parked.is_empty() {
            true => LaneReadiness::Never,
            false => LaneReadiness::due(self.parked_until, now),
        };
        let of_queue = match self.queue.len() {
            0 => LaneReadiness::Never,
            len if len >= limits.records_max || self.bytes >= limits.bytes_max || is_flushing => LaneReadiness::Now,
            _ => LaneReadiness::due(self.since + limits.linger, now),
        };
        of_parked.earlier(of_queue)
    }

    /// Removes the next batch from the queue, in reading order. The batch is empty if all waiting records are parked.
    pub fn take_batch(&mut self, limits: &LaneLimits, now: Instant) -> Vec<LaneEntry> {
        self.hold_until = None;
        let mut cut = BatchBuilder::new(limits);
        if self.parked_until <= now && !self.parked.is_empty() {
            self.take_parked(&mut cut);
        }
        while let Some(entry) = self.queue.pop_front_if(|entry| cut.has_space(entry)) {
            self.bytes -= entry.record.len();
            self.take_or_park(entry, &mut cut);
        }
        self.since = now;
        cut.entries
    }

    fn take_parked(&mut self, cut: &mut BatchBuilder<'_>) {
        self.parked_keys.clear();
        for entry in std::mem::take(&mut self.parked) {
            self.take_or_park(entry, cut);
        }
    }

    /// Adds the record to the batch, or parks it. A retried record is sent without later records of its key, because
    /// the target may reject it again.
    fn take_or_park(&mut self, entry: LaneEntry, cut: &mut BatchBuilder<'_>) {
        let key = entry.record.key_hash();
        let is_behind = !self.parked_keys.is_empty() && self.parked_keys.contains(&key);
        if is_behind || !cut.has_space(&entry) {
            self.parked_keys.insert(key);
            self.parked.push_back(entry);
            return;
        }
        if entry.tries > 0 {
            self.parked_keys.insert(key);
        }
        cut.push(entry);
    }

    /// Puts back records that could not be sent now. With `pauses`, the lane waits for its back-off; otherwise the pump
    /// waits.
    pub fn put_back(&mut self, entries: impl IntoIterator<Item = LaneEntry>, pauses: bool, now: Instant) {
        let before = self.requeue.len();
        self.requeue.extend(entries);
        self.requeues_parked |= self.requeue.len() > before;
        if pauses {
            self.hold_until = Some(now + self.backoff.pause());
        }
    }

    /// Puts back records that were not sent. Records with a parked key are parked; the others are sent first.
    pub fn put_back_not_sent(&mut self, entries: Vec<LaneEntry>) {
        for entry in entries {
            match self.parked_keys.contains(&entry.record.key_hash()) {
                true => self.parked.push_back(entry),
                false => self.requeue.push(entry),
            }
        }
        self.sort_parked();
    }

    fn sort_parked(&mut self) {
        let parked = self.parked.make_contiguous();
        parked.sort_unstable_by_key(|entry| entry.sequence);
    }

    /// Parks records that the target rejected while it accepted others.
    pub fn park(&mut self, entries: Vec<LaneEntry>, now: Instant) {
        if entries.is_empty() {
            return;
        }
        self.parked_keys
            .extend(entries.iter().map(|entry| entry.record.key_hash()));
        self.parked.extend(entries);
        self.sort_parked();
        self.parked_until = now + self.backoff.pause();
    }

    pub fn reset_backoff(&mut self) {
        if self.parked.is_empty() {
            self.backoff.reset();
        }
    }

    /// Ends a batch in flight.
    pub fn settle(&mut self) {
        self.in_flight -= 1;
        if self.in_flight > 0 || self.requeue.is_empty() {
            return;
        }
        // All of these records were read before those in the queue.
        if std::mem::take(&mut self.requeues_parked) {
            self.requeue.extend(self.parked.drain(..));
            self.parked_keys.clear();
        }
        self.requeue.sort_unstable_by_key(|entry| entry.sequence);
        while let Some(entry) = self.requeue.pop() {
            self.bytes += entry.record.len();
            self.queue.push_front(entry);
        }
    }

    /// Removes the records before `position` that are not in flight.
    pub fn take_before(&mut self, position: u64) -> Vec<LaneEntry> {
        let is_before = |entry: &LaneEntry| entry.record.position() < position;
        let mut taken: Vec<LaneEntry> = self.requeue.extract_if(.., |entry| is_before(entry)).collect();
        let parked = self.parked.len();
        for entry in std::mem::take(&mut self.parked) {
            match is_before(&entry) {
                true => taken.push(entry),
                false => self.parked.push_back(entry),
            }
        }
        if self.parked.len() < parked {
            self.parked_keys = self.parked.iter().map(|entry| entry.record.key_hash()).collect();
        }
        while let Some(entry) = self.queue.pop_front_if(|entry| is_before(entry)) {
            self.bytes -= entry.record.len();
            taken.push(entry);
        }
        taken
    }

    /// Removes all records that are not in flight.
    pub fn clear(&mut self) -> Vec<LaneEntry> {
        let mut entries: Vec<LaneEntry> = self.queue.drain(..).collect();
        entries.append(&mut self.requeue);
        self.requeues_parked = false;
        entries.extend(self.parked.drain(..));
        self.parked_keys.clear();
        self.bytes = 0;
        entries
    }
}

impl LaneReadiness {
    fn due(at: Instant, now: Instant) -> LaneReadiness {
        if at <= now {
            LaneReadiness::Now
        } else {
            LaneReadiness::At(at)
        }
    }

    pub fn earlier(self, other: LaneReadiness) -> LaneReadiness {
        match (self, other) {
            (LaneReadiness::Now, _) | (_, LaneReadiness::Now) => LaneReadiness::Now,
            (LaneReadiness::Never, other) | (other, LaneReadiness::Never) => other,
            (LaneReadiness::At(one), LaneReadiness::At(other)) => LaneReadiness::At(one.min(other)),
        }
    }
}

struct BatchBuilder<'a> {
    limits: &'a LaneLimits,
    entries: Vec<LaneEntry>,
    bytes: usize,
}

impl BatchBuilder<'_> {
    fn new(limits: &LaneLimits) -> BatchBuilder<'_> {
        BatchBuilder {
            limits,
            entries: Vec::new(),
            bytes: 0,
        }
    }

    fn has_space(&self, entry: &LaneEntry) -> bool {
        let fits = self.bytes + entry.record.len() <= self.limits.bytes_max;
        self.entries.is_empty() || (fits && self.entries.len() < self.limits.records_max)
    }

    fn push(&mut self, entry: LaneEntry) {
        self.bytes += entry.record.len();
        self.entries.push(entry);
    }
}
