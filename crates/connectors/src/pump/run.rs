//! The pump's task. It waits for nothing but its own events; everything that takes time is a task beside it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::lane::{Entry, Lane, Limits, Readiness};
use super::task::{self, Batch, Done, Turn};
use super::window::Window;
use super::{Control, Shared};
use crate::backoff::Backoff;
use crate::buffer::{BufferError, Place, Reader, Returned};
use crate::config::DeliveryConfig;
use crate::fallback::FellBack;
use crate::health::{HealthState, unix_ms};
use crate::record::Record;
use crate::sink::{Failure, Order, Sink};

/// Records in memory that are not done with, at least.
const WINDOW_RECORDS: usize = 64 << 10;
const WINDOW_BYTES: usize = 8 << 20;
/// When so much of what may be read, or of the buffer, was sent behind what is turned away, that is set aside.
const SET_ASIDE_PART: usize = 4;
/// How long it takes at most until the cursor is in the journal when nothing is appended, with which it goes there otherwise: what a crash
/// may have sent once more.
const SAVE_EVERY: Duration = Duration::from_millis(20);
/// Between tries to read a buffer that cannot be read.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Messages about failed records in the log are no more frequent.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long a sink may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// How long batches in flight may take to come back from a sink that has closed.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Pump {
    shared: Arc<Shared>,
    sink: Arc<dyn Sink>,
    config: DeliveryConfig,
    order: Order,
    limits: Limits,
    /// Of the last message that was turned away.
    busy_reason: Option<String>,
    window_records: usize,
    window_bytes: usize,
    /// Of what was sent behind what is turned away.
    set_aside_bytes: usize,
    /// `None` as long as somebody else reads the buffer.
    reader: Option<Reader>,
    window: Window,
    lanes: Vec<Lane>,
    /// Given up, and not yet with the fallback.
    given_up: Vec<Entry>,
    /// Batches on their way to the fallback.
    falling_back: usize,
    /// The fallback is being given what had no room in the buffer.
    is_diverting: bool,
    /// What stands before this in the buffer is dropped in favour of what came later.
    dropped_before: u64,
    tasks: JoinSet<Done>,
    control: watch::Receiver<Control>,
    purges: u64,
    /// What was on its way when the buffer was purged does not wait again.
    purged_before: u64,
    /// The target is away until it has been asked again, not before this.
    away_until: Option<Instant>,
    backoff: Backoff,
    is_checking: bool,
    next_check: Instant,
    read_again: Option<Instant>,
    /// Setting aside has failed.
    aside_again: Option<Instant>,
    save_at: Option<Instant>,
    stop_at: Option<Instant>,
    told_failed: Told,
    told_lost: Told,
}

/// What the log was told of records that failed.
#[derive(Default)]
struct Told {
    at: Option<Instant>,
    since: u64,
}

impl Told {
    /// These too. How many there were since the log was told, if it is to be told again.
    fn add(&mut self, messages: u64, now: Instant) -> Option<u64> {
        self.since += messages;
        if self.at.is_some_and(|at| now - at < TELL_EVERY) {
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

impl Pump {
    pub fn new(
        shared: Arc<Shared>,
        sink: Arc<dyn Sink>,
        config: DeliveryConfig,
        control: watch::Receiver<Control>,
    ) -> Pump {
        let now = Instant::now();
        let in_flight = config.in_flight.max(1);
        let order = sink.order();
        let (lanes, in_flight_max) = match order {
            Order::ByPump => (in_flight, 1),
            Order::BySink => (1, in_flight),
        };
        let limits = Limits {
            records_max: config.batch.records_max.max(1) as usize,
            bytes_max: config.batch.bytes_max.max(1) as usize,
            linger: Duration::from_millis(config.batch.linger_ms),
            in_flight_max,
        };
        let window_bytes = WINDOW_BYTES.max(2 * in_flight as usize * limits.bytes_max);
        Pump {
            order,
            busy_reason: None,
            window_records: WINDOW_RECORDS.max(2 * in_flight as usize * limits.records_max),
            window_bytes,
            set_aside_bytes: window_bytes.min(shared.buffer.quota_bytes() as usize / SET_ASIDE_PART),
            limits,
            reader: shared.buffer.take_reader(),
            window: Window::default(),
            lanes: (0..lanes).map(|_| Lane::new(&config, now)).collect(),
            given_up: Vec::new(),
            falling_back: 0,
            is_diverting: false,
            dropped_before: 0,
            tasks: JoinSet::new(),
            control,
            purges: 0,
            purged_before: 0,
            away_until: None,
            backoff: Backoff::new(&config.retry),
            is_checking: false,
            next_check: now,
            read_again: None,
            aside_again: None,
            save_at: None,
            stop_at: None,
            told_failed: Told::default(),
            told_lost: Told::default(),
            shared,
            sink,
            config,
        }
    }

    pub async fn run(mut self) {
        self.shared.health.connecting();
        self.take_returned();
        loop {
            let control = *self.control.borrow_and_update();
            let now = Instant::now();
            self.obey(&control, now);
            if self.is_at_end(&control, now) {
                break;
            }
            self.drop_oldest();
            self.fill(now);
            let due = self.dispatch(&control, now);
            self.fall_back();
            self.divert();
            let due = due.earlier(self.check_if_due(now)).earlier(self.save_if_due(now));
            self.publish();
            self.wait(due).await;
        }
        self.finish().await;
    }

    fn obey(&mut self, control: &Control, now: Instant) {
        if let (Some(within), None) = (control.stop_within, self.stop_at) {
            self.stop_at = Some(now + within);
        }
        if control.purges > self.purges {
            self.purges = control.purges;
            self.purge();
        }
    }

    fn is_at_end(&self, control: &Control, now: Instant) -> bool {
        let Some(stop_at) = self.stop_at else {
            return false;
        };
        let is_stuck = self.away_until.is_some() || control.is_paused;
        let is_idle = self.lanes.iter().all(Lane::is_idle) && self.given_up.is_empty() && self.falling_back == 0;
        let has_dropped = self.shared.fallback.is_some() && self.shared.buffer.has_dropped();
        let may_end = is_idle || (is_stuck && self.in_flight_batches() == 0);
        // What had no room in the buffer is in memory only.
        now >= stop_at || (may_end && !has_dropped)
    }

    fn in_flight_batches(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.in_flight).sum()
    }

    /// Records that an earlier pump had read.
    fn take_returned(&mut self) {
        let returned = self.reader.as_mut().map(|reader| std::mem::take(&mut reader.returned));
        let now = Instant::now();
        for Returned { record, place } in returned.unwrap_or_default() {
            self.admit(record, place, now);
        }
    }

    fn admit(&mut self, record: Record, place: Option<Place>, now: Instant) {
        let record_position = record.position();
        let sequence = self.window.push(record.clone(), place);
        let lane = (record.key_hash() % self.lanes.len() as u64) as usize;
        let entry = Entry {
            sequence,
            tries: 0,
            record,
        };
        if place.map_or(record_position, |place| place.base) < self.dropped_before {
            self.shared.buffer.count_given_up(1);
            return self.give_up(entry);
        }
        self.lanes[lane].push(entry, now);
    }

    /// What the buffer has given up in favour of what came later.
    fn drop_oldest(&mut self) {
        self.dropped_before = self.shared.buffer.given_up_before();
        let is_before = |record: &Record| record.position() < self.dropped_before;
        if !self.window.oldest().is_some_and(is_before) {
            return;
        }
        let before = self.dropped_before;
        let dropped: Vec<Entry> = self
            .lanes
            .iter_mut()
            .flat_map(|lane| lane.take_before(before))
            .collect();
        if !dropped.is_empty() {
            self.shared.buffer.count_given_up(dropped.len() as u64);
            dropped.into_iter().for_each(|entry| self.give_up(entry));
            self.moved();
        }
    }

    /// Reads as much as memory allows.
    fn fill(&mut self, now: Instant) {
        if self.stop_at.is_some() || self.read_again.is_some_and(|at| at > now) {
            return;
        }
        self.read_again = None;
        self.set_aside_if_due(now);
        let Some(mut reader) = self.reader.take() else {
            return;
        };
        while self.has_room() {
            match self.read_chunk(&mut reader, now) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.cannot_read(&error, now);
                    break;
                }
            }
        }
        self.reader = Some(reader);
    }

    fn has_room(&self) -> bool {
        self.window.len() < self.window_records && self.window.bytes() < self.window_bytes
    }

    /// What is turned away again and again neither stops what comes later nor keeps it in the buffer.
    fn set_aside_if_due(&mut self, now: Instant) {
        let (records, bytes) = self.window.done_behind();
        let is_due = records >= self.window_records / SET_ASIDE_PART || bytes >= self.set_aside_bytes;
        let is_wanted = is_due && self.lanes.iter().any(Lane::has_turned_away);
        if !is_wanted || self.aside_again.is_some_and(|at| at > now) {
            return;
        }
        self.aside_again = None;
        if let Err(error) = self.set_aside() {
            let text = format!("messages that are turned away cannot be set aside, and hold up others: {error}");
            tracing::error!(action = self.shared.name, error = text, "it is tried again");
            self.shared.health.error(text);
            self.aside_again = Some(now + READ_AGAIN);
        }
    }

    /// All that is not done with.
    fn set_aside(&mut self) -> io::Result<()> {
        if !self.shared.buffer.can_set_aside() {
            return Ok(());
        }
        let (sequences, records) = self.window.open_records();
        let buffer = &self.shared.buffer;
        let copies = tokio::task::block_in_place(|| buffer.set_aside(&records))?;
        let copies: HashMap<u64, Record> = sequences.into_iter().zip(copies).collect();
        self.lanes.iter_mut().for_each(|lane| lane.replace(&copies));
        self.window.set_aside(copies.into_iter());
        self.moved();
        Ok(())
    }

    fn read_chunk(&mut self, reader: &mut Reader, now: Instant) -> Result<bool, BufferError> {
        let buffer = self.shared.buffer.clone();
        let Some(chunk) = reader.next_chunk(&buffer)? else {
            return Ok(false);
        };
        reader.records(&chunk, &mut |record| self.admit(record, Some(chunk.place), now))?;
        Ok(true)
    }

    fn cannot_read(&mut self, error: &BufferError, now: Instant) {
        let source = std::error::Error::source(error).map_or(String::new(), |source| format!(": {source}"));
        let text = format!("{error}{source}");
        tracing::error!(
            action = self.shared.name,
            error = text,
            "the buffer cannot be read; nothing more is sent until it can"
        );
        self.shared.health.error(text);
        self.read_again = Some(now + READ_AGAIN);
    }

    /// Sends what can be sent. Returns when there will be more.
    fn dispatch(&mut self, control: &Control, now: Instant) -> Readiness {
        if control.is_paused || self.away_until.is_some() {
            return Readiness::Never;
        }
        let is_flushing = self.stop_at.is_some();
        let mut due = Readiness::Never;
        for index in 0..self.lanes.len() {
            loop {
                match self.lanes[index].readiness(&self.limits, is_flushing, now) {
                    Readiness::Now => self.send(index, now),
                    later => {
                        due = due.earlier(later);
                        break;
                    }
                }
            }
        }
        due
    }

    fn send(&mut self, index: usize, now: Instant) {
        let lane = &mut self.lanes[index];
        let mut entries = lane.cut(&self.limits, now);
        self.drop_expired(&mut entries);
        if entries.is_empty() {
            return;
        }
        let metrics = &self.shared.metrics;
        metrics.in_flight.fetch_add(entries.len() as u64, Relaxed);
        let retried = entries.iter().filter(|entry| entry.tries > 0).count();
        metrics.retried.fetch_add(retried as u64, Relaxed);
        let lane = &mut self.lanes[index];
        lane.in_flight += 1;
        let turn = (self.order == Order::BySink).then(|| {
            let (mine, after) = oneshot::channel();
            Turn {
                before: lane.turn.replace(after),
                mine,
            }
        });
        let time_limit = Duration::from_millis(self.config.request_timeout_ms);
        let time_limit = (!self.sink.limits_requests()).then_some(time_limit);
        self.tasks
            .spawn(task::send(Arc::clone(&self.sink), index, entries, time_limit, turn));
    }

    fn drop_expired(&mut self, entries: &mut Vec<Entry>) {
        let Some(ttl_ms) = self.config.request_ttl_ms else {
            return;
        };
        let oldest = unix_ms().saturating_sub(ttl_ms);
        let is_expired = |entry: &mut Entry| entry.record.unix_ms() < oldest;
        let expired: Vec<Entry> = entries.extract_if(.., is_expired).collect();
        if !expired.is_empty() {
            self.shared.metrics.expired.fetch_add(expired.len() as u64, Relaxed);
            expired.into_iter().for_each(|entry| self.give_up(entry));
            self.moved();
        }
    }

    /// It is done with, or will be when the fallback has it.
    fn give_up(&mut self, entry: Entry) {
        match self.shared.fallback {
            Some(_) => self.given_up.push(entry),
            None => self.window.done(entry.sequence),
        }
    }

    fn fall_back(&mut self) {
        if let (Some(fallback), false) = (&self.shared.fallback, self.given_up.is_empty()) {
            let entries = std::mem::take(&mut self.given_up);
            self.falling_back += 1;
            self.tasks.spawn(task::fall_back(Arc::clone(fallback), entries));
        }
    }

    /// One after the other, so that they keep their order.
    fn divert(&mut self) {
        if let (Some(fallback), false) = (&self.shared.fallback, self.is_diverting) {
            let chunks = self.shared.buffer.take_dropped();
            if !chunks.is_empty() {
                self.is_diverting = true;
                self.tasks.spawn(task::divert(Arc::clone(fallback), chunks));
            }
        }
    }

    fn fell_back(&mut self, entries: &[Entry], how: FellBack) {
        self.falling_back -= 1;
        self.count_fallback(how);
        entries.iter().for_each(|entry| self.window.done(entry.sequence));
        self.moved();
    }

    fn diverted(&mut self, how: FellBack) {
        self.is_diverting = false;
        self.count_fallback(how);
        self.shared.buffer.took_dropped();
    }

    fn count_fallback(&mut self, FellBack { taken, lost, reason }: FellBack) {
        self.shared.metrics.fallen_back.fetch_add(taken, Relaxed);
        self.shared.metrics.fallback_lost.fetch_add(lost, Relaxed);
        if lost > 0 {
            let action = &self.shared.name;
            if let Some(messages) = self.told_lost.add(lost, Instant::now()) {
                tracing::warn!(
                    action,
                    reason,
                    messages,
                    "messages that were given up are lost to a fallback action"
                );
            }
            self.shared.health.error(reason);
        }
    }

    /// Asks the target whether it is there: when it is away, and now and then while it confirms nothing.
    fn check_if_due(&mut self, now: Instant) -> Readiness {
        if self.is_checking || self.stop_at.is_some() {
            return Readiness::Never;
        }
        let at = self.away_until.unwrap_or(self.next_check);
        if at > now {
            return Readiness::At(at);
        }
        self.is_checking = true;
        self.next_check = now + self.check_interval();
        let time_limit = Duration::from_millis(self.config.request_timeout_ms);
        self.tasks.spawn(task::check(Arc::clone(&self.sink), time_limit));
        Readiness::Never
    }

    fn check_interval(&self) -> Duration {
        Duration::from_millis(self.config.health_check_interval_ms)
    }

    fn save_if_due(&mut self, now: Instant) -> Readiness {
        match self.save_at {
            None => Readiness::Never,
            Some(at) if at > now => Readiness::At(at),
            Some(_) => {
                self.save_at = None;
                if self.window.aside_bytes() == 0 {
                    self.shared.buffer.forget_aside();
                }
                self.shared.buffer.save_cursor();
                self.shared.buffer.release();
                Readiness::Never
            }
        }
    }

    fn publish(&self) {
        let metrics = &self.shared.metrics;
        metrics.held.store(self.window.open() as u64, Relaxed);
        self.shared.buffer.count_aside(self.window.aside_bytes());
        let oldest = self.window.oldest().map_or(0, Record::unix_ms);
        metrics.oldest_unix_ms.store(oldest, Relaxed);
    }

    async fn wait(&mut self, due: Readiness) {
        let due = match due {
            Readiness::Never => None,
            Readiness::Now => return,
            Readiness::At(at) => Some(at),
        };
        let due = due.into_iter().chain(self.stop_at).chain(self.read_again).min();
        let shared = Arc::clone(&self.shared);
        let is_reading = !self.is_gathering();
        let done = tokio::select! {
            Some(done) = self.tasks.join_next() => Some(done),
            () = shared.buffer.readable(), if is_reading => None,
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => None,
            _ = self.control.changed() => None,
        };
        let mut next = done;
        while let Some(done) = next {
            self.done(done);
            next = self.tasks.try_join_next();
        }
    }

    /// The one lane waits for its batch to grow: what is committed meanwhile is read when that goes, and wakes nobody before.
    fn is_gathering(&self) -> bool {
        matches!(&self.lanes[..], [lane] if lane.is_gathering(&self.limits))
    }

    fn done(&mut self, done: Result<Done, JoinError>) {
        match done {
            Ok(Done::Batch(batch)) => self.batch_done(batch),
            Ok(Done::Check(result)) => self.check_done(result),
            Ok(Done::FellBack(entries, how)) => self.fell_back(&entries, how),
            Ok(Done::Diverted(how)) => self.diverted(how),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {}
        }
    }

    fn check_done(&mut self, result: Result<(), String>) {
        self.is_checking = false;
        match result {
            Ok(()) => {
                if self.away_until.take().is_some() {
                    tracing::info!(action = self.shared.name, "the target is back");
                }
                match self.stuck().or_else(|| self.sink.turned_away()) {
                    Some(reason) => self.is_turned_away(reason),
                    None => self.shared.health.connected(),
                }
            }
            Err(reason) => {
                self.is_away(reason);
                self.away_until = Some(Instant::now() + self.backoff.pause());
            }
        }
    }

    /// Nothing more is read until some are taken that are turned away again and again.
    fn stuck(&self) -> Option<String> {
        let is_stuck = !self.has_room() && self.lanes.iter().any(Lane::has_turned_away);
        let reason = self.busy_reason.as_ref().filter(|_| is_stuck)?;
        let open = self.window.open();
        Some(format!(
            "{open} messages wait of which the target turns some away again and again; nothing more is read until it takes them: {reason}"
        ))
    }

    /// Nothing has been confirmed for a while, though the target is there, or it takes only a part of what there is.
    fn is_turned_away(&self, reason: String) {
        let health = &self.shared.health;
        if health.get().state != HealthState::Disconnected {
            tracing::warn!(
                action = self.shared.name,
                reason,
                "the target turns messages away; they wait"
            );
        }
        health.disconnected(reason);
    }

    fn is_away(&mut self, reason: String) {
        if self.away_until.is_none() {
            tracing::warn!(
                action = self.shared.name,
                reason,
                "the target is away; what is published for it waits"
            );
            self.away_until = Some(Instant::now() + self.backoff.pause());
        }
        self.shared.health.disconnected(reason);
    }

    fn batch_done(&mut self, batch: Batch) {
        let now = Instant::now();
        let count = batch.entries.len() as u64;
        self.shared.metrics.in_flight.fetch_sub(count, Relaxed);
        let mut sorted = Sorted::default();
        let mut results = batch.outcome.into_iter();
        for entry in batch.entries {
            let missing = || Err(Failure::Busy("the sink has given no result for the message".to_owned()));
            let result = results.next().unwrap_or_else(missing);
            self.sort(entry, result, &mut sorted);
        }
        let us = batch.took.as_micros() as u64;
        self.shared.metrics.add_latency(us, sorted.sent);
        self.settle(batch.lane, sorted, now);
    }

    fn sort(&mut self, mut entry: Entry, result: Result<(), Failure>, sorted: &mut Sorted) {
        entry.tries = entry.tries.saturating_add(1);
        let would_wait = matches!(result, Err(Failure::Busy(_) | Failure::Away(_) | Failure::Untried));
        if would_wait && entry.sequence < self.purged_before {
            self.window.done(entry.sequence);
            sorted.purged += 1;
            return;
        }
        match result {
            Ok(()) => {
                sorted.sent += 1;
                sorted.sent_bytes += entry.record.len() as u64;
                self.window.done(entry.sequence);
            }
            Err(Failure::Refused(reason)) => {
                sorted.refused += 1;
                self.failed(entry, &reason);
            }
            Err(Failure::Busy(reason)) if self.config.retry.tries_max.is_some_and(|max| entry.tries >= max) => {
                sorted.refused += 1;
                let reason = format!("given up after {} tries: {reason}", entry.tries);
                self.failed(entry, &reason);
            }
            Err(Failure::Busy(reason)) => {
                sorted.busy.push(entry);
                sorted.busy_reason = Some(reason);
            }
            Err(Failure::Away(reason)) => {
                // A try that the target never saw is none.
                entry.tries -= 1;
                sorted.away.push(entry);
                sorted.away_reason = Some(reason);
            }
            Err(Failure::Untried) => {
                entry.tries -= 1;
                sorted.untried.push(entry);
            }
        }
    }

    fn settle(&mut self, index: usize, sorted: Sorted, now: Instant) {
        let metrics = &self.shared.metrics;
        metrics.sent.fetch_add(sorted.sent, Relaxed);
        metrics.sent_bytes.fetch_add(sorted.sent_bytes, Relaxed);
        metrics.purged.fetch_add(sorted.purged, Relaxed);
        let took_any = sorted.sent + sorted.refused > 0;
        // Those that were turned away before say nothing of others, which go before them then.
        let is_retry = sorted.busy.iter().all(|entry| entry.tries > 1);
        let lane = &mut self.lanes[index];
        lane.put_back(sorted.away, false, now);
        match took_any || is_retry || sorted.away_reason.is_some() {
            _ if sorted.busy.is_empty() => {}
            true => lane.park(sorted.busy, now),
            false => lane.put_back(sorted.busy, true, now),
        }
        lane.put_back_untried(sorted.untried);
        if sorted.busy_reason.is_none() && took_any {
            lane.went_well();
        }
        lane.settle();
        if let Some(reason) = sorted.busy_reason {
            self.busy_reason = Some(reason.clone());
            self.shared.health.error(self.stuck().unwrap_or(reason));
        }
        if let Some(reason) = sorted.away_reason {
            self.is_away(reason);
        } else if took_any {
            self.backoff.reset();
            match self.sink.turned_away() {
                Some(reason) => self.is_turned_away(reason),
                None => self.shared.health.connected(),
            }
        }
        if took_any {
            self.next_check = now + self.check_interval();
        }
        if took_any || sorted.purged > 0 {
            self.moved();
        }
    }

    fn failed(&mut self, entry: Entry, reason: &str) {
        let position = entry.record.position();
        self.give_up(entry);
        self.shared.metrics.failed.fetch_add(1, Relaxed);
        self.shared.health.error(reason);
        let action = &self.shared.name;
        if let Some(messages) = self.told_failed.add(1, Instant::now()) {
            tracing::warn!(
                action,
                reason,
                position,
                messages,
                "messages failed: the target takes them never; this is the last one"
            );
        }
    }

    /// Something is done with: moves the cursor as far as it goes.
    fn moved(&mut self) {
        self.shared.buffer.confirm(self.window.cursor());
        self.save_at.get_or_insert_with(|| Instant::now() + SAVE_EVERY);
    }

    fn purge(&mut self) {
        self.purged_before = self.window.next();
        let mut purged = self.shared.buffer.purge();
        for lane in &mut self.lanes {
            for entry in lane.clear() {
                self.window.done(entry.sequence);
                purged += 1;
            }
        }
        self.shared.metrics.purged.fetch_add(purged, Relaxed);
        tracing::warn!(action = self.shared.name, messages = purged, "the buffer was purged");
        self.moved();
    }

    /// What is still in flight is given up, and sent again by the next pump.
    async fn finish(mut self) {
        if tokio::time::timeout(CLOSE_WITHIN, self.sink.close()).await.is_err() {
            tracing::warn!(action = self.shared.name, "the sink has not closed in time");
        }
        // What the sink gives back because it closes.
        let until = Instant::now() + GIVE_BACK_WITHIN;
        while let Ok(Some(done)) = tokio::time::timeout_at(until.into(), self.tasks.join_next()).await {
            self.done(done);
        }
        self.tasks.shutdown().await;
        self.shared.buffer.return_dropped();
        // What was sent behind them is not to be sent again.
        let (done, _) = self.window.done_behind();
        if (done > 0 || self.window.has_done_aside())
            && let Err(error) = self.set_aside()
        {
            tracing::warn!(action = self.shared.name, %error, "{done} messages that were sent will be sent once more");
        }
        let metrics = &self.shared.metrics;
        metrics.in_flight.store(0, Relaxed);
        self.publish();
        self.shared.buffer.confirm(self.window.cursor());
        self.shared.buffer.save_cursor();
        self.shared.health.disconnected_by_order();
        if let Some(mut reader) = self.reader.take() {
            reader.returned = std::mem::take(&mut self.window).into_open();
            self.shared.buffer.put_back(reader);
        }
    }
}

/// The records of a batch by how they went.
#[derive(Default)]
struct Sorted {
    sent: u64,
    sent_bytes: u64,
    refused: u64,
    busy: Vec<Entry>,
    busy_reason: Option<String>,
    away: Vec<Entry>,
    away_reason: Option<String>,
    untried: Vec<Entry>,
    purged: u64,
}
