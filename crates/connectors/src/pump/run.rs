//! The pump's task. It waits only for its own events; work that takes time runs in other tasks.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::lane::{LaneEntry, LaneLimits, LaneReadiness, PumpLane};
use super::task::{self, FinishedBatch, FinishedTask, SendTurn};
use super::window::RecordWindow;
use super::{ActionShared, PumpControl};
use crate::backoff::Backoff;
use crate::buffer::{BlockStart, BufferError, BufferReader, ReturnedRecord};
use crate::config::DeliveryConfig;
use crate::fallback::FallbackOutcome;
use crate::health::{HealthState, unix_ms};
use crate::record::Record;
use crate::sink::{DeliveryFailure, OrderGuarantee, Sink};

/// Maximum number of different reasons that are logged per outage of the target.
const LOGGED_REASONS_MAX: usize = 4;
/// Minimum limit of unfinished records in memory.
const WINDOW_RECORDS: usize = 64 << 10;
const WINDOW_BYTES: usize = 8 << 20;
/// Records are set aside when finished records behind them reach this fraction of the window or of the buffer.
const SET_ASIDE_PART: usize = 4;
/// Maximum delay until the cursor is written if nothing is appended. Records finished within it are sent again after a
/// crash.
const SAVE_EVERY: Duration = Duration::from_millis(20);
/// Pause between attempts to read a failing buffer or to write the side file.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Minimum interval of log lines about failed records.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Maximum time for a sink to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// Maximum time for batches in flight to return from a closed sink.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Pump {
    shared: Arc<ActionShared>,
    sink: Arc<dyn Sink>,
    config: DeliveryConfig,
    order: OrderGuarantee,
    limits: LaneLimits,
    /// Reason of the last rejection.
    rejection_reason: Option<String>,
    window_records: usize,
    window_bytes: usize,
    /// Limit of finished bytes behind unfinished records.
    set_aside_bytes: usize,
    /// `None` while another pump reads the buffer.
    reader: Option<BufferReader>,
    window: RecordWindow,
    lanes: Vec<PumpLane>,
    /// Records given up and not yet passed to the fallback.
    failed_entries: Vec<LaneEntry>,
    /// Number of batches that the fallback is processing.
    fallback_batches: usize,
    /// Whether the fallback is processing records that the buffer dropped.
    is_diverting: bool,
    /// Records before this position in the buffer are evicted.
    dropped_before: u64,
    tasks: JoinSet<FinishedTask>,
    control: watch::Receiver<PumpControl>,
    purges: u64,
    /// Records in flight during a purge, below this sequence, are not retried.
    purged_before: u64,
    /// The target is unreachable; it is checked at this time.
    unreachable_until: Option<Instant>,
    /// Reasons of this outage that are in the log, without their numbers.
    logged_reasons: Vec<String>,
    backoff: Backoff,
    is_checking: bool,
    next_check: Instant,
    read_retry_at: Option<Instant>,
    /// The failure of the last attempt to set records aside, and the time of the next attempt.
    set_aside_failure: Option<(String, Instant)>,
    save_at: Option<Instant>,
    stop_at: Option<Instant>,
    failed_log: FailureLogLimit,
    lost_log: FailureLogLimit,
}

/// Limits the log lines about failed records.
#[derive(Default)]
struct FailureLogLimit {
    at: Option<Instant>,
    since: u64,
}

impl FailureLogLimit {
    /// Counts messages. Returns their number since the last log line if another line is due.
    fn add(&mut self, messages: u64, now: Instant) -> Option<u64> {
        self.since += messages;
        if self.at.is_some_and(|at| now - at < LOG_EVERY) {
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

impl Pump {
    pub fn new(
        shared: Arc<ActionShared>,
        sink: Arc<dyn Sink>,
        config: DeliveryConfig,
        control: watch::Receiver<PumpControl>,
    ) -> Pump {
        let now = Instant::now();
        let in_flight = config.in_flight.max(1);
        let order = sink.order();
        let (lanes, in_flight_max) = match order {
            OrderGuarantee::ByPump => (in_flight, 1),
            OrderGuarantee::BySink => (1, in_flight),
        };
        let limits = LaneLimits {
            records_max: config.batch.records_max.max(1) as usize,
            bytes_max: config.batch.bytes_max.max(1) as usize,
            linger: Duration::from_millis(config.batch.linger_ms),
            in_flight_max,
        };
        let window_bytes = WINDOW_BYTES.max(2 * in_flight as usize * limits.bytes_max);
        Pump {
            order,
            rejection_reason: None,
            window_records: WINDOW_RECORDS.max(2 * in_flight as usize * limits.records_max),
            window_bytes,
            set_aside_bytes: window_bytes.min(shared.buffer.quota_bytes() as usize / SET_ASIDE_PART),
            limits,
            reader: shared.buffer.take_reader(),
            window: RecordWindow::default(),
            lanes: (0..lanes).map(|_| PumpLane::new(&config, now)).collect(),
            failed_entries: Vec::new(),
            fallback_batches: 0,
            is_diverting: false,
            dropped_before: 0,
            tasks: JoinSet::new(),
            control,
            purges: 0,
            purged_before: 0,
            unreachable_until: None,
            logged_reasons: Vec::new(),
            backoff: Backoff::new(&config.retry),
            is_checking: false,
            next_check: now,
            read_retry_at: None,
            set_aside_failure: None,
            save_at: None,
            stop_at: None,
            failed_log: FailureLogLimit::default(),
            lost_log: FailureLogLimit::default(),
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
            self.apply_control(&control, now);
            if self.is_at_end(&control, now) {
                break;
            }
            self.drop_oldest();
            self.fill(now);
            let due = self.dispatch(&control, now);
            self.start_fallback();
            self.divert();
            let due = due.earlier(self.check_if_due(now)).earlier(self.save_if_due(now));
            self.publish();
            self.wait(due).await;
        }
        self.finish().await;
    }

    fn apply_control(&mut self, control: &PumpControl, now: Instant) {
        if let (Some(within), None) = (control.stop_within, self.stop_at) {
            self.stop_at = Some(now + within);
        }
        if control.purges > self.purges {
            self.purges = control.purges;
            self.purge();
        }
    }

    fn is_at_end(&self, control: &PumpControl, now: Instant) -> bool {
        let Some(stop_at) = self.stop_at else {
            return false;
        };
        let is_stuck = self.unreachable_until.is_some() || control.is_paused;
        let is_idle =
            self.lanes.iter().all(PumpLane::is_idle) && self.failed_entries.is_empty() && self.fallback_batches == 0;
        let has_dropped = self.shared.fallback.is_some() && self.shared.buffer.has_dropped();
        let may_end = is_idle || (is_stuck && self.in_flight_batches() == 0);
        // Records that the buffer dropped are in memory only and must reach the fallback.
        now >= stop_at || (may_end && !has_dropped)
    }

    fn in_flight_batches(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.in_flight).sum()
    }

    /// Takes the records that the previous pump read and did not finish.
    fn take_returned(&mut self) {
        let returned = self.reader.as_mut().map(|reader| std::mem::take(&mut reader.returned));
        let now = Instant::now();
        for ReturnedRecord { record, block } in returned.unwrap_or_default() {
            self.admit(record, block, now);
        }
    }

    fn admit(&mut self, record: Record, block: Option<BlockStart>, now: Instant) {
        let record_position = record.position();
        let sequence = self.window.push(record.clone(), block);
        let lane = (record.key_hash() % self.lanes.len() as u64) as usize;
        let entry = LaneEntry {
            sequence,
            tries: 0,
            record,
        };
        if block.map_or(record_position, |block| block.base) < self.dropped_before {
            self.shared.buffer.count_evicted(1);
            return self.finish_failed(entry);
        }
        self.lanes[lane].push(entry, now);
    }

    /// Gives up the records that the buffer has evicted.
    fn drop_oldest(&mut self) {
        self.dropped_before = self.shared.buffer.evicted_before();
        let is_before = |record: &Record| record.position() < self.dropped_before;
        if !self.window.oldest().is_some_and(is_before) {
            return;
        }
        let before = self.dropped_before;
        let dropped: Vec<LaneEntry> = self
            .lanes
            .iter_mut()
            .flat_map(|lane| lane.take_before(before))
            .collect();
        if !dropped.is_empty() {
            self.shared.buffer.count_evicted(dropped.len() as u64);
            dropped.into_iter().for_each(|entry| self.finish_failed(entry));
            self.advance_cursor();
        }
    }

    /// Reads chunks up to the limits of the window.
    fn fill(&mut self, now: Instant) {
        if self.stop_at.is_some() || self.read_retry_at.is_some_and(|at| at > now) {
            return;
        }
        self.read_retry_at = None;
        self.set_aside_if_due(now);
        let Some(mut reader) = self.reader.take() else {
            return;
        };
        while self.has_space() {
            match self.read_chunk(&mut reader, now) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.read_failed(&error, now);
                    break;
                }
            }
        }
        self.reader = Some(reader);
    }

    fn has_space(&self) -> bool {
        self.window.len() < self.window_records && self.window.bytes() < self.window_bytes
    }

    /// Sets records aside that the target rejects repeatedly, so that they neither block later records nor occupy the
    /// buffer.
    fn set_aside_if_due(&mut self, now: Instant) {
        let (records, bytes) = self.window.finished_behind();
        let is_due = records >= self.window_records / SET_ASIDE_PART || bytes >= self.set_aside_bytes;
        let is_wanted = is_due && self.lanes.iter().any(PumpLane::is_retrying);
        if !is_wanted
            || self
                .set_aside_failure
                .as_ref()
                .is_some_and(|(_, retry_at)| *retry_at > now)
        {
            return;
        }
        self.set_aside_failure = None;
        if let Err(error) = self.set_aside() {
            let text = format!("cannot set aside rejected messages, which delays others: {error}");
            tracing::error!(
                action = self.shared.name,
                error = text,
                "setting rejected messages aside failed, retrying"
            );
            self.shared.health.error(text.clone());
            self.set_aside_failure = Some((text, now + RETRY_AFTER));
        }
    }

    /// Sets all unfinished records aside.
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
        self.advance_cursor();
        Ok(())
    }

    fn read_chunk(&mut self, reader: &mut BufferReader, now: Instant) -> Result<bool, BufferError> {
        let buffer = self.shared.buffer.clone();
        let Some(chunk) = reader.next_chunk(&buffer)? else {
            return Ok(false);
        };
        reader.records(&chunk, &mut |record| self.admit(record, Some(chunk.block), now))?;
        Ok(true)
    }

    fn read_failed(&mut self, error: &BufferError, now: Instant) {
        let source = std::error::Error::source(error).map_or(String::new(), |source| format!(": {source}"));
        let text = format!("{error}{source}");
        tracing::error!(
            action = self.shared.name,
            error = text,
            "reading the buffer failed, retrying"
        );
        self.shared.health.error(text);
        self.read_retry_at = Some(now + RETRY_AFTER);
    }

    /// Sends all batches that are ready. Returns when the next one will be.
    fn dispatch(&mut self, control: &PumpControl, now: Instant) -> LaneReadiness {
        if control.is_paused || self.unreachable_until.is_some() {
            return LaneReadiness::Never;
        }
        let is_flushing = self.stop_at.is_some();
        let mut due = LaneReadiness::Never;
        for index in 0..self.lanes.len() {
            loop {
                match self.lanes[index].readiness(&self.limits, is_flushing, now) {
                    LaneReadiness::Now => self.send(index, now),
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
        let mut entries = lane.take_batch(&self.limits, now);
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
        let turn = (self.order == OrderGuarantee::BySink).then(|| {
            let (mine, after) = oneshot::channel();
            SendTurn {
                previous: lane.turn.replace(after),
                passed: mine,
            }
        });
        let time_limit = Duration::from_millis(self.config.request_timeout_ms);
        let time_limit = (!self.sink.limits_requests()).then_some(time_limit);
        self.tasks
            .spawn(task::send(Arc::clone(&self.sink), index, entries, time_limit, turn));
    }

    fn drop_expired(&mut self, entries: &mut Vec<LaneEntry>) {
        let Some(ttl_ms) = self.config.request_ttl_ms else {
            return;
        };
        let oldest = unix_ms().saturating_sub(ttl_ms);
        let is_expired = |entry: &mut LaneEntry| entry.record.unix_ms() < oldest;
        let expired: Vec<LaneEntry> = entries.extract_if(.., is_expired).collect();
        if !expired.is_empty() {
            self.shared.metrics.expired.fetch_add(expired.len() as u64, Relaxed);
            expired.into_iter().for_each(|entry| self.finish_failed(entry));
            self.advance_cursor();
        }
    }

    /// Finishes a record, or passes it to the fallback first.
    fn finish_failed(&mut self, entry: LaneEntry) {
        match self.shared.fallback {
            Some(_) => self.failed_entries.push(entry),
            None => self.window.done(entry.sequence),
        }
    }

    fn start_fallback(&mut self) {
        if let (Some(fallback), false) = (&self.shared.fallback, self.failed_entries.is_empty()) {
            let entries = std::mem::take(&mut self.failed_entries);
            self.fallback_batches += 1;
            self.tasks.spawn(task::fall_back(Arc::clone(fallback), entries));
        }
    }

    /// Processes one set of chunks at a time, so that they keep their order.
    fn divert(&mut self) {
        if let (Some(fallback), false) = (&self.shared.fallback, self.is_diverting) {
            let chunks = self.shared.buffer.take_dropped();
            if !chunks.is_empty() {
                self.is_diverting = true;
                self.tasks.spawn(task::divert(Arc::clone(fallback), chunks));
            }
        }
    }

    fn finish_fallback(&mut self, entries: &[LaneEntry], how: FallbackOutcome) {
        self.fallback_batches -= 1;
        self.count_fallback(how);
        entries.iter().for_each(|entry| self.window.done(entry.sequence));
        self.advance_cursor();
    }

    fn finish_diversion(&mut self, how: FallbackOutcome) {
        self.is_diverting = false;
        self.count_fallback(how);
        self.shared.buffer.finish_dropped();
    }

    fn count_fallback(&mut self, FallbackOutcome { taken, lost, reason }: FallbackOutcome) {
        self.shared.metrics.fallback_stored.fetch_add(taken, Relaxed);
        self.shared.metrics.fallback_lost.fetch_add(lost, Relaxed);
        if lost > 0 {
            let action = &self.shared.name;
            if let Some(messages) = self.lost_log.add(lost, Instant::now()) {
                tracing::warn!(action, reason, messages, "a fallback action lost messages");
            }
            self.shared.health.error(reason);
        }
    }

    /// Checks the target: with back-off while it is unreachable, and periodically while it confirms nothing.
    fn check_if_due(&mut self, now: Instant) -> LaneReadiness {
        if self.is_checking || self.stop_at.is_some() {
            return LaneReadiness::Never;
        }
        let at = self.unreachable_until.unwrap_or(self.next_check);
        if at > now {
            return LaneReadiness::At(at);
        }
        self.is_checking = true;
        self.next_check = now + self.check_interval();
        let time_limit = Duration::from_millis(self.config.request_timeout_ms);
        self.tasks.spawn(task::check(Arc::clone(&self.sink), time_limit));
        LaneReadiness::Never
    }

    fn check_interval(&self) -> Duration {
        Duration::from_millis(self.config.health_check_interval_ms)
    }

    fn save_if_due(&mut self, now: Instant) -> LaneReadiness {
        match self.save_at {
            None => LaneReadiness::Never,
            Some(at) if at > now => LaneReadiness::At(at),
            Some(_) => {
                self.save_at = None;
                if self.window.aside_bytes() == 0 {
                    self.shared.buffer.clear_aside();
                }
                self.shared.buffer.save_cursor();
                self.shared.buffer.release();
                LaneReadiness::Never
            }
        }
    }

    fn publish(&self) {
        let metrics = &self.shared.metrics;
        if self.reader.is_some() {
            self.shared.buffer.count_held(self.window.open() as u64);
        }
        self.shared.buffer.count_aside(self.window.aside_bytes());
        let oldest = self.window.oldest().map_or(0, Record::unix_ms);
        metrics.oldest_unix_ms.store(oldest, Relaxed);
    }

    async fn wait(&mut self, due: LaneReadiness) {
        let due = match due {
            LaneReadiness::Never => None,
            LaneReadiness::Now => return,
            LaneReadiness::At(at) => Some(at),
        };
        let due = due.into_iter().chain(self.stop_at).chain(self.read_retry_at).min();
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

    /// A single lane waits for its batch to fill. New commits then need not wake the pump; they are read when the batch
    /// is sent.
    fn is_gathering(&self) -> bool {
        matches!(&self.lanes[..], [lane] if lane.is_gathering(&self.limits))
    }

    fn done(&mut self, done: Result<FinishedTask, JoinError>) {
        match done {
            Ok(FinishedTask::Batch(batch)) => self.batch_done(batch),
            Ok(FinishedTask::Check(result)) => self.check_done(result),
            Ok(FinishedTask::FallbackFinished(entries, how)) => self.finish_fallback(&entries, how),
            Ok(FinishedTask::DiversionFinished(how)) => self.finish_diversion(how),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {}
        }
    }

    fn check_done(&mut self, result: Result<(), String>) {
        self.is_checking = false;
        match result {
            Ok(()) => {
                self.logged_reasons.clear();
                if self.unreachable_until.take().is_some() {
                    tracing::info!(action = self.shared.name, "the target is reachable again");
                }
                match self.full_window_reason().or_else(|| self.sink.rejection()) {
                    Some(reason) => self.report_rejection(reason),
                    None => self.shared.health.connected(),
                }
            }
            Err(reason) => {
                self.target_unreachable(reason);
                self.unreachable_until = Some(Instant::now() + self.backoff.pause());
            }
        }
    }

    /// Returns the reason if rejected records fill the window, so that nothing more is read.
    fn full_window_reason(&self) -> Option<String> {
        let is_stuck = !self.has_space() && self.lanes.iter().any(PumpLane::is_retrying);
        let reason = self.rejection_reason.as_ref().filter(|_| is_stuck)?;
        let open = self.window.open();
        Some(format!(
            "reading the buffer is paused: {open} messages wait, some of which the target rejects repeatedly: {reason}"
        ))
    }

    /// Reports a reachable target that confirms nothing, or accepts only a part of the messages.
    fn report_rejection(&self, reason: String) {
        let health = &self.shared.health;
        if health.get().state != HealthState::Disconnected {
            tracing::warn!(
                action = self.shared.name,
                reason,
                "the target rejects messages, retrying"
            );
        }
        health.disconnected(reason);
    }

    fn target_unreachable(&mut self, reason: String) {
        if self.unreachable_until.is_none() {
            self.unreachable_until = Some(Instant::now() + self.backoff.pause());
        }
        if self.sink.is_replacing_connection() {
            self.shared.health.connecting();
            return;
        }
        // The first reason can be a mere consequence: a lost connection, and only the next attempt says why.
        let without_numbers = reason.replace(|c: char| c.is_ascii_digit(), "");
        if self.logged_reasons.len() < LOGGED_REASONS_MAX && !self.logged_reasons.contains(&without_numbers) {
            tracing::warn!(
                action = self.shared.name,
                reason,
                "the target is unreachable; messages wait in the buffer"
            );
            self.logged_reasons.push(without_numbers);
        }
        self.shared.health.disconnected(reason);
    }

    fn batch_done(&mut self, batch: FinishedBatch) {
        let now = Instant::now();
        let count = batch.entries.len() as u64;
        self.shared.metrics.in_flight.fetch_sub(count, Relaxed);
        let mut sorted = SortedResults::default();
        let mut results = batch.outcome.into_iter();
        for entry in batch.entries {
            let missing = || {
                Err(DeliveryFailure::Temporary(
                    "the sink returned no result for the message".to_owned(),
                ))
            };
            let result = results.next().unwrap_or_else(missing);
            self.sort(entry, result, &mut sorted);
        }
        let us = batch.duration.as_micros() as u64;
        self.shared.metrics.add_latency(us, sorted.sent);
        let echoes = self.sink.take_skipped_echoes();
        self.shared.metrics.skipped_echoes.fetch_add(echoes, Relaxed);
        self.settle(batch.lane, sorted, now);
    }

    fn sort(&mut self, mut entry: LaneEntry, result: Result<(), DeliveryFailure>, sorted: &mut SortedResults) {
        entry.tries = entry.tries.saturating_add(1);
        let would_wait = matches!(
            result,
            Err(DeliveryFailure::Temporary(_) | DeliveryFailure::Unreachable(_) | DeliveryFailure::NotSent)
        );
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
            Err(DeliveryFailure::Refused(reason)) => {
                sorted.refused += 1;
                self.failed(entry, &reason);
            }
            Err(DeliveryFailure::Temporary(reason))
                if self.config.retry.tries_max.is_some_and(|max| entry.tries >= max) =>
            {
                sorted.refused += 1;
                let reason = format!("given up after {} attempts: {reason}", entry.tries);
                self.failed(entry, &reason);
            }
            Err(DeliveryFailure::Temporary(reason)) => {
                sorted.temporary.push(entry);
                sorted.temporary_reason = Some(reason);
            }
            Err(DeliveryFailure::Unreachable(reason)) => {
                // Attempts that did not reach the target do not count.
                entry.tries -= 1;
                sorted.unreachable.push(entry);
                sorted.unreachable_reason = Some(reason);
            }
            Err(DeliveryFailure::NotSent) => {
                entry.tries -= 1;
                sorted.not_sent.push(entry);
            }
        }
    }

    fn settle(&mut self, index: usize, sorted: SortedResults, now: Instant) {
        let metrics = &self.shared.metrics;
        metrics.sent.fetch_add(sorted.sent, Relaxed);
        metrics.sent_bytes.fetch_add(sorted.sent_bytes, Relaxed);
        metrics.purged.fetch_add(sorted.purged, Relaxed);
        let has_progress = sorted.sent + sorted.refused > 0;
        // Repeated rejections say nothing about other records. Only the rejected records are parked then.
        let is_retry = sorted.temporary.iter().all(|entry| entry.tries > 1);
        let lane = &mut self.lanes[index];
        lane.put_back(sorted.unreachable, false, now);
        match has_progress || is_retry || sorted.unreachable_reason.is_some() {
            _ if sorted.temporary.is_empty() => {}
            true => lane.park(sorted.temporary, now),
            false => lane.put_back(sorted.temporary, true, now),
        }
        lane.put_back_not_sent(sorted.not_sent);
        if sorted.temporary_reason.is_none() && has_progress {
            lane.reset_backoff();
        }
        lane.settle();
        if let Some(reason) = sorted.temporary_reason {
            self.rejection_reason = Some(reason.clone());
            let set_aside_failure = self.set_aside_failure.as_ref().map(|(text, _)| text.clone());
            let consequence = set_aside_failure.or_else(|| self.full_window_reason());
            self.shared.health.error(consequence.unwrap_or(reason));
        }
        if let Some(reason) = sorted.unreachable_reason {
            self.target_unreachable(reason);
        } else if has_progress {
            self.backoff.reset();
            match self.sink.rejection() {
                Some(reason) => self.report_rejection(reason),
                None => self.shared.health.connected(),
            }
        }
        if has_progress {
            self.next_check = now + self.check_interval();
        }
        if has_progress || sorted.purged > 0 {
            self.advance_cursor();
        }
    }

    fn failed(&mut self, entry: LaneEntry, reason: &str) {
        let position = entry.record.position();
        self.finish_failed(entry);
        self.shared.metrics.failed.fetch_add(1, Relaxed);
        self.shared.health.error(reason);
        let action = &self.shared.name;
        if let Some(messages) = self.failed_log.add(1, Instant::now()) {
            tracing::warn!(
                action,
                reason,
                position,
                messages,
                "messages failed permanently; reason and position are those of the last one"
            );
        }
    }

    /// Moves the cursor to the oldest unfinished record.
    fn advance_cursor(&mut self) {
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
        self.advance_cursor();
    }

    /// Closes the sink. Batches that are still in flight are abandoned; the next pump sends their records again.
    async fn finish(mut self) {
        if tokio::time::timeout(CLOSE_WITHIN, self.sink.close()).await.is_err() {
            tracing::warn!(action = self.shared.name, "the sink did not close in time");
        }
        // Batches that return because the sink closes.
        let until = Instant::now() + DRAIN_WITHIN;
        while let Ok(Some(done)) = tokio::time::timeout_at(until.into(), self.tasks.join_next()).await {
            self.done(done);
        }
        self.tasks.shutdown().await;
        self.shared.buffer.return_dropped();
        // Records behind them were sent and must not be sent again.
        let (done, _) = self.window.finished_behind();
        if (done > 0 || self.window.has_finished_aside())
            && let Err(error) = self.set_aside()
        {
            tracing::warn!(action = self.shared.name, %error, "setting messages aside failed; {done} sent messages will be sent again");
        }
        let metrics = &self.shared.metrics;
        metrics.in_flight.store(0, Relaxed);
        self.publish();
        self.shared.buffer.confirm(self.window.cursor());
        self.shared.buffer.save_cursor();
        self.shared.health.disconnected_on_request();
        if let Some(mut reader) = self.reader.take() {
            reader.returned = std::mem::take(&mut self.window).into_open();
            self.shared.buffer.return_reader(reader);
        }
    }
}

/// The records of a batch by result.
#[derive(Default)]
struct SortedResults {
    sent: u64,
    sent_bytes: u64,
    refused: u64,
    temporary: Vec<LaneEntry>,
    temporary_reason: Option<String>,
    unreachable: Vec<LaneEntry>,
    unreachable_reason: Option<String>,
    not_sent: Vec<LaneEntry>,
    purged: u64,
}
