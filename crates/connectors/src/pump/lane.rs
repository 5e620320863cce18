//! A lane: records that go one after the other. The ordering key of a record chooses its lane, so a key is never in two.
//!
//! A lane of [`crate::Order::ByPump`] has one batch in flight. What the target could not be given at all goes back to the
//! front, once nothing is in flight any more. What it turned away while it took others is *parked* with all later records
//! of the same key, and the others overtake it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::backoff::Backoff;
use crate::config::DeliveryConfig;
use crate::record::Record;

pub(super) struct Entry {
    pub sequence: u64,
    pub tries: u32,
    pub record: Record,
}

pub(super) struct Lane {
    queue: VecDeque<Entry>,
    bytes: usize,
    /// When the first of the queue came there.
    since: Instant,
    /// To be put back when nothing is in flight.
    back: Vec<Entry>,
    /// What is parked goes back as well.
    unparks: bool,
    parked: VecDeque<Entry>,
    parked_keys: HashSet<u64>,
    parked_until: Instant,
    hold_until: Option<Instant>,
    backoff: Backoff,
    pub in_flight: u32,
    /// Resolves when the batch before has been handed to the sink.
    pub turn: Option<oneshot::Receiver<()>>,
}

/// Limits of what goes at once.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub records_max: usize,
    pub bytes_max: usize,
    pub linger: Duration,
    /// Batches of one lane.
    pub in_flight_max: u32,
}

/// Whether a lane has something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Now,
    At(Instant),
    /// Not before something else happens.
    Never,
}

impl Lane {
    pub fn new(config: &DeliveryConfig, now: Instant) -> Lane {
        Lane {
            queue: VecDeque::new(),
            bytes: 0,
            since: now,
            back: Vec::new(),
            unparks: false,
            parked: VecDeque::new(),
            parked_keys: HashSet::new(),
            parked_until: now,
            hold_until: None,
            backoff: Backoff::new(&config.retry),
            in_flight: 0,
            turn: None,
        }
    }

    pub fn push(&mut self, entry: Entry, now: Instant) {
        if self.queue.is_empty() {
            self.since = now;
        }
        self.bytes += entry.record.len();
        self.queue.push_back(entry);
    }

    /// Nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty() && self.back.is_empty() && self.parked.is_empty()
    }

    /// Some that were turned away wait until they are tried again.
    pub fn has_turned_away(&self) -> bool {
        !self.parked.is_empty() || self.hold_until.is_some()
    }

    /// Of what waits, the records of `copies` take the place of those that have their sequence.
    pub fn replace(&mut self, copies: &HashMap<u64, Record>) {
        let waiting = self.queue.iter_mut().chain(&mut self.back).chain(&mut self.parked);
        for entry in waiting {
            if let Some(copy) = copies.get(&entry.sequence) {
                entry.record = copy.clone();
            }
        }
    }

    /// It will send what it has when that is old enough.
    pub fn is_gathering(&self, limits: &Limits) -> bool {
        self.in_flight < limits.in_flight_max && !self.queue.is_empty() && self.back.is_empty()
    }

    pub fn readiness(&self, limits: &Limits, is_flushing: bool, now: Instant) -> Readiness {
        if self.in_flight >= limits.in_flight_max || !self.back.is_empty() {
            return Readiness::Never;
        }
        if let Some(until) = self.hold_until.filter(|until| *until > now) {
            return Readiness::At(until);
        }
        let of_parked = match self.parked.is_empty() {
            true => Readiness::Never,
            false => Readiness::due(self.parked_until, now),
        };
        let of_queue = match self.queue.len() {
            0 => Readiness::Never,
            len if len >= limits.records_max || self.bytes >= limits.bytes_max || is_flushing => Readiness::Now,
            _ => Readiness::due(self.since + limits.linger, now),
        };
        of_parked.earlier(of_queue)
    }

    /// The next batch, in the order in which it was read. Empty: all that waits is parked.
    pub fn cut(&mut self, limits: &Limits, now: Instant) -> Vec<Entry> {
        self.hold_until = None;
        let mut cut = Cut::new(limits);
        if self.parked_until <= now && !self.parked.is_empty() {
            self.cut_parked(&mut cut);
        }
        while let Some(entry) = self.queue.pop_front_if(|entry| cut.has_room(entry)) {
            self.bytes -= entry.record.len();
            self.take_or_park(entry, &mut cut);
        }
        self.since = now;
        cut.entries
    }

    fn cut_parked(&mut self, cut: &mut Cut<'_>) {
        self.parked_keys.clear();
        for entry in std::mem::take(&mut self.parked) {
            self.take_or_park(entry, cut);
        }
    }

    /// A record that was turned away goes without those behind it that have its key: it may be turned away again.
    fn take_or_park(&mut self, entry: Entry, cut: &mut Cut<'_>) {
        let key = entry.record.key_hash();
        let is_behind = !self.parked_keys.is_empty() && self.parked_keys.contains(&key);
        if is_behind || !cut.has_room(&entry) {
            self.parked_keys.insert(key);
            self.parked.push_back(entry);
            return;
        }
        if entry.tries > 0 {
            self.parked_keys.insert(key);
        }
        cut.push(entry);
    }

    /// All of these could not be sent now; `pause` tells whether the lane itself has to wait, or somebody above it waits.
    pub fn put_back(&mut self, entries: impl IntoIterator<Item = Entry>, pauses: bool, now: Instant) {
        let before = self.back.len();
        self.back.extend(entries);
        self.unparks |= self.back.len() > before;
        if pauses {
            self.hold_until = Some(now + self.backoff.pause());
        }
    }

    /// These were not sent: those whose key is parked wait with it, the others go first the next time.
    pub fn put_back_untried(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            match self.parked_keys.contains(&entry.record.key_hash()) {
                true => self.parked.push_back(entry),
                false => self.back.push(entry),
            }
        }
        self.sort_parked();
    }

    fn sort_parked(&mut self) {
        let parked = self.parked.make_contiguous();
        parked.sort_unstable_by_key(|entry| entry.sequence);
    }

    /// These were turned away while others were taken.
    pub fn park(&mut self, entries: Vec<Entry>, now: Instant) {
        if entries.is_empty() {
            return;
        }
        self.parked_keys
            .extend(entries.iter().map(|entry| entry.record.key_hash()));
        self.parked.extend(entries);
        self.sort_parked();
        self.parked_until = now + self.backoff.pause();
    }

    pub fn went_well(&mut self) {
        if self.parked.is_empty() {
            self.backoff.reset();
        }
    }

    /// A batch has come back.
    pub fn settle(&mut self) {
        self.in_flight -= 1;
        if self.in_flight > 0 || self.back.is_empty() {
            return;
        }
        // All of it was read before what is in the queue.
        if std::mem::take(&mut self.unparks) {
            self.back.extend(self.parked.drain(..));
            self.parked_keys.clear();
        }
        self.back.sort_unstable_by_key(|entry| entry.sequence);
        while let Some(entry) = self.back.pop() {
            self.bytes += entry.record.len();
            self.queue.push_front(entry);
        }
    }

    /// Takes out what stands before this in the buffer and is not in flight.
    pub fn take_before(&mut self, position: u64) -> Vec<Entry> {
        let is_before = |entry: &Entry| entry.record.position() < position;
        let mut taken: Vec<Entry> = self.back.extract_if(.., |entry| is_before(entry)).collect();
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

    /// Takes out what is not in flight.
    pub fn clear(&mut self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.queue.drain(..).collect();
        entries.append(&mut self.back);
        self.unparks = false;
        entries.extend(self.parked.drain(..));
        self.parked_keys.clear();
        self.bytes = 0;
        entries
    }
}

impl Readiness {
    fn due(at: Instant, now: Instant) -> Readiness {
        if at <= now { Readiness::Now } else { Readiness::At(at) }
    }

    pub fn earlier(self, other: Readiness) -> Readiness {
        match (self, other) {
            (Readiness::Now, _) | (_, Readiness::Now) => Readiness::Now,
            (Readiness::Never, other) | (other, Readiness::Never) => other,
            (Readiness::At(one), Readiness::At(other)) => Readiness::At(one.min(other)),
        }
    }
}

struct Cut<'a> {
    limits: &'a Limits,
    entries: Vec<Entry>,
    bytes: usize,
}

impl Cut<'_> {
    fn new(limits: &Limits) -> Cut<'_> {
        Cut {
            limits,
            entries: Vec::new(),
            bytes: 0,
        }
    }

    fn has_room(&self, entry: &Entry) -> bool {
        let fits = self.bytes + entry.record.len() <= self.limits.bytes_max;
        self.entries.is_empty() || (fits && self.entries.len() < self.limits.records_max)
    }

    fn push(&mut self, entry: Entry) {
        self.bytes += entry.record.len();
        self.entries.push(entry);
    }
}
