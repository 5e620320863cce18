//! The thread that reads the device log and passes the records to the platform, in order and in batches.
//!
//! A batch ends where the last batch before a crash ended, so replayed and new records are never mixed.
//!
//! Device requests are answered between batches, so that a device sees its own earlier messages. Requests of the
//! previous process are dropped, except claims and RPC responses, which have stored effects.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use journal::{BlockFollower, Lsn};
use platform::decode::{GatewayKind, PayloadKind};
use platform::ids::{DeviceId, Uuid};
use platform::{IngestError, IngestInput, IngestMessage};
use timeseries::LogPosition;

use crate::clock::unix_ms;
use crate::entry::{EntryKind, IngestEntry};
use crate::error_chain::error_chain;
use crate::hub::Hub;
use crate::log::{LogContents, begin, position};
use crate::requests::{RequestHandler, is_limits_request};
use crate::stats::DeviceCounters;
use crate::store_failures::StoreWork;
use crate::{usage, user_changes};

/// Largest batch, in records and bytes.
const RECORDS_MAX: usize = 4096;
const BYTES_MAX: usize = 2 << 20;

const TICK: Duration = Duration::from_secs(1);
/// Interval between searches for expired RPC requests, while there are any.
const CALLS_TICK: Duration = Duration::from_millis(100);
/// Pause before a batch is retried that the store did not accept.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Pause between marks while waiting messages are continued.
const MARK_PAUSE: Duration = Duration::from_millis(100);
/// If waiting messages took less time, the thread pauses before it looks for more.
const FULL_TURN: Duration = Duration::from_millis(2);
/// Only one in so many failures of a batch is logged.
const FAILURES_PER_LOG_LINE: u64 = 100;
/// Shortest distance between two log positions at which a replay can begin.
const STEP_BYTES: u64 = 1 << 20;
/// Largest amount of log to replay after a crash. Beyond it, the store is asked to flush.
const REPLAY_BYTES_MAX: u64 = 256 << 20;
/// Longest time that shutdown waits for the log to be processed.
const STOP_MAX: Duration = Duration::from_secs(20);

pub struct Ingest {
    hub: Arc<Hub>,
    requests: RequestHandler,
    /// Tells the upkeep thread to flush the time series.
    is_flush_wanted: Arc<AtomicBool>,
    follower: BlockFollower,
    /// Records before it were written by the previous process.
    started_at: Lsn,
    /// The platform needs no record up to here.
    replay_from: LogPosition,
    /// A batch must end at this position.
    applied: LogPosition,
    last: LogPosition,
    gathered: GatheredRecords,
    /// Positions at which some blocks begin.
    steps: VecDeque<Lsn>,
    next_tick: Instant,
    /// Earliest time of the next mark between ticks.
    next_mark: Instant,
    next_usage: Instant,
    /// The log was released up to here.
    released: Lsn,
    /// Failures in a row of the current batch.
    failures: u64,
    /// The stores have accepted everything processed, so it is readable.
    is_written: bool,
    has_ended: bool,
}

/// Messages that wait in rule chains for their turn or a retry.
enum WaitingMessages {
    /// Look again at this time.
    DueAt(Instant),
    More,
}

#[derive(Default)]
struct GatheredRecords {
    bytes: Vec<u8>,
    records: Vec<(LogPosition, Range<usize>)>,
}

impl Ingest {
    pub fn new(hub: Arc<Hub>, found: LogContents, is_flush_wanted: Arc<AtomicBool>) -> Ingest {
        let replay_from = hub.platform().replay_position();
        let found_from = found.follower.next();
        Ingest {
            steps: VecDeque::from([found_from]),
            follower: found.follower,
            started_at: found.next,
            replay_from,
            applied: hub.platform().applied_position(),
            last: hub.platform().applied_position(),
            gathered: GatheredRecords::default(),
            next_tick: Instant::now(),
            next_mark: Instant::now(),
            next_usage: Instant::now(),
            released: found_from,
            failures: 0,
            is_written: true,
            has_ended: false,
            requests: RequestHandler::new(Arc::clone(&hub)),
            is_flush_wanted,
            hub,
        }
    }

    /// Runs until the server stops and the log is processed.
    pub fn run(mut self) {
        while !self.has_ended {
            let has_read = self.read_batch();
            if has_read {
                self.process();
            }
            if Instant::now() >= self.next_tick {
                self.next_tick = Instant::now() + TICK;
                self.tick();
            }
            self.hub.handle_call_events();
            if has_read {
                continue;
            }
            if self.must_stop() {
                self.has_ended = true;
                continue;
            }
            let WaitingMessages::DueAt(next_turn) = self.continue_waiting() else {
                continue;
            };
            let mut deadline = self.next_tick.min(next_turn);
            if self.hub.rpcs().count() + self.hub.device_requests().count() > 0 {
                deadline = deadline.min(Instant::now() + CALLS_TICK);
            }
            self.hub.log().wait_for_records(deadline);
        }
        let store = self.hub.platform().store();
        let saved = self.hub.platform().checkpoint().map_err(|error| error_chain(&error));
        let flushed = store.flush().map_err(|error| error_chain(&error));
        // The state of retries can be removed once their points are on disk.
        let trimmed = self.hub.platform().checkpoint().map_err(|error| error_chain(&error));
        if let Err(error) = saved.and(flushed).and(trimmed) {
            tracing::error!(
                error,
                "writing the platform's state at shutdown failed; the next start replays the device log"
            );
        }
        self.release();
    }

    /// Continues messages that wait in rule chains for their turn, while no new ones arrive.
    fn continue_waiting(&mut self) -> WaitingMessages {
        let (now_ms, begun) = (unix_ms(), Instant::now());
        if !self.hub.platform().has_due_messages(now_ms) {
            return self.waiting_until(begun, now_ms);
        }
        let mut out = self.hub.outlet(now_ms);
        let continued = self.hub.platform().continue_waiting(now_ms, &mut out);
        drop(out);
        self.hub.resume_chains();
        // The next tick reports an error.
        let Ok(has_run) = continued else {
            return WaitingMessages::DueAt(begun + CALLS_TICK);
        };
        if begun >= self.next_mark && self.hub.platform().has_pending_points() {
            self.next_mark = begun + MARK_PAUSE;
            self.append_mark(now_ms);
        }
        match has_run && begun.elapsed() >= FULL_TURN {
            true => WaitingMessages::More,
            false => self.waiting_until(begun, now_ms),
        }
    }

    /// Messages that are due but did not run are tried again soon.
    fn waiting_until(&self, begun: Instant, now_ms: i64) -> WaitingMessages {
        let pause_ms = self.hub.platform().next_due_ms().saturating_sub(now_ms);
        let pause = match u64::try_from(pause_ms) {
            Ok(0) | Err(_) => CALLS_TICK,
            Ok(pause_ms) => Duration::from_millis(pause_ms).min(TICK),
        };
        WaitingMessages::DueAt(begun + pause)
    }

    /// Appends a record whose position stores points that chains created without a message. A full log takes it in a
    /// later tick.
    fn append_mark(&self, now_ms: i64) {
        let mark = IngestEntry::new(EntryKind::Mark, Uuid::NULL, now_ms, &[]);
        _ = self.hub.log().append_entry(&mark);
    }

    /// Returns true if everything has been read, or shutdown has taken too long.
    fn must_stop(&self) -> bool {
        let Some(waited) = self.hub.stop().elapsed() else {
            return false;
        };
        let read = self.follower.next();
        let log = self.hub.log().stats();
        // Waiting does not help a full log: it writes no more records.
        read >= log.next || (self.hub.log().is_full() && read >= log.committed) || waited > STOP_MAX
    }

    /// Reads the next records. Returns false if there are none.
    fn read_batch(&mut self) -> bool {
        self.gathered.bytes.clear();
        self.gathered.records.clear();
        while self.gathered.records.len() < RECORDS_MAX && self.gathered.bytes.len() < BYTES_MAX {
            let gathered = &mut self.gathered;
            let read = self.follower.read_block(|lsn, payload| {
                let start = gathered.bytes.len();
                gathered.bytes.extend_from_slice(payload);
                gathered.records.push((position(lsn), start..gathered.bytes.len()));
            });
            match read {
                Ok(Some(block)) => {
                    if self.steps.back().is_none_or(|last| block.end.0 - last.0 >= STEP_BYTES) {
                        self.steps.push_back(block.end);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    // Records read before the error are processed. Then reading is retried.
                    tracing::error!(error = %error_chain(&error), "device log read failed, retrying every second");
                    thread::sleep(TICK);
                    break;
                }
            }
        }
        !self.gathered.records.is_empty()
    }

    fn process(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        let has_transports = self.hub.transports().refresh();
        let mut batch: Vec<IngestInput<'_>> = Vec::with_capacity(gathered.records.len());
        let mut converted = Vec::new();
        if has_transports {
            converted = self.convert(&gathered);
        }
        let mut ends_at = self.last;
        for (index, (at, range)) in gathered.records.iter().enumerate() {
            if *at <= self.replay_from || self.has_ended {
                continue;
            }
            let Some(entry) = IngestEntry::read(&gathered.bytes[range.clone()]) else {
                DeviceCounters::add(&self.hub.counters().refused_messages, 1);
                continue;
            };
            let own = converted.get(index).and_then(Option::as_ref);
            let entry = own.map_or(entry, |(kind, body)| IngestEntry {
                kind: *kind,
                body,
                ..entry
            });
            match incoming(&entry, *at) {
                Some(one) => {
                    batch.push(one);
                    ends_at = *at;
                    if *at == self.applied {
                        self.submit(&mut batch, ends_at);
                    }
                }
                None => {
                    self.submit(&mut batch, ends_at);
                    ends_at = *at;
                    if at.0 > self.started_at.0 && self.requests.requests_unknown_device(&entry) {
                        batch.push(incoming_message(&entry, *at, IngestMessage::GatewayConnect(entry.body)));
                        self.submit(&mut batch, ends_at);
                    }
                    self.answer(&entry, *at);
                    if is_saved(entry.kind) {
                        // The client waits only for its own change, not for the rest of the batch.
                        let next = gathered.records.get(index + 1);
                        self.notify_readable(next.map_or(self.follower.next(), |(at, _)| begin(*at)));
                    }
                }
            }
            if matches!(entry.kind, EntryKind::GatewayConnect | EntryKind::GatewayDisconnect) {
                self.submit(&mut batch, ends_at);
                if at.0 > self.started_at.0 {
                    match entry.kind {
                        EntryKind::GatewayConnect => self.requests.gateway_connected(&entry),
                        _ => self.requests.gateway_disconnected(&entry),
                    }
                }
            }
            self.hub
                .counters()
                .read_received_ms
                .store(entry.received_ms.max(0) as u64, Relaxed);
        }
        self.submit(&mut batch, ends_at);
        DeviceCounters::add(&self.hub.counters().ingested, gathered.records.len() as u64);
        self.hub.counters().read_lsn.store(self.follower.next().0, Relaxed);
        self.notify_readable(self.follower.next());
        self.gathered = gathered;
    }

    /// Wakes clients that wait for records before `upto`, if those are readable.
    fn notify_readable(&self, upto: Lsn) {
        if self.is_written && !self.has_ended {
            self.hub.processed().set_processed(upto);
        }
    }

    /// Converts payloads and topics defined by profiles to the platform's format; by index of the record.
    fn convert(&self, gathered: &GatheredRecords) -> Vec<Option<(EntryKind, Vec<u8>)>> {
        let of_record = |(_, range): &(LogPosition, Range<usize>)| {
            let entry = IngestEntry::read(&gathered.bytes[range.clone()])?;
            let transport = self.hub.platform().transport(DeviceId(entry.device))?;
            if let Some(kind) = gateway_kind(entry.kind) {
                let json = transport.gateway_to_json(kind, entry.body)?;
                return Some((entry.kind, json.unwrap_or_default()));
            }
            let (kind, payload) = match entry.kind {
                EntryKind::OwnTopic => {
                    let end = entry.body.iter().position(|byte| *byte == 0)?;
                    let topic = std::str::from_utf8(&entry.body[..end]).ok()?;
                    (transport.payload_kind(topic)?, &entry.body[end + 1..])
                }
                EntryKind::Telemetry if entry.has_profile_format() => (PayloadKind::Telemetry, entry.body),
                EntryKind::Attributes if entry.has_profile_format() => (PayloadKind::Attributes, entry.body),
                EntryKind::RpcResponse if entry.has_profile_format() => (PayloadKind::RpcResponse, entry.body),
                EntryKind::AttributesRequest if entry.has_profile_format() => {
                    (PayloadKind::AttributesRequest, entry.body)
                }
                EntryKind::RpcRequest if entry.has_profile_format() => (PayloadKind::RpcRequest, entry.body),
                EntryKind::Claim if entry.has_profile_format() => (PayloadKind::Claim, entry.body),
                _ => return None,
            };
            let kind_of = match kind {
                PayloadKind::Telemetry => EntryKind::Telemetry,
                PayloadKind::Attributes => EntryKind::Attributes,
                PayloadKind::RpcResponse => EntryKind::RpcResponse,
                PayloadKind::AttributesRequest => EntryKind::AttributesRequest,
                PayloadKind::RpcRequest => EntryKind::RpcRequest,
                PayloadKind::Claim => EntryKind::Claim,
            };
            // An empty payload is rejected later, where JSON is expected.
            let json = transport
                .to_json(kind, payload)
                .map_or_else(|_| Vec::new(), |json| json.into_owned());
            Some((kind_of, json))
        };
        gathered.records.iter().map(of_record).collect()
    }

    /// Passes a batch to the platform until it is accepted.
    fn submit(&mut self, batch: &mut Vec<IngestInput<'_>>, at: LogPosition) {
        if batch.is_empty() {
            return;
        }
        loop {
            let now_ms = unix_ms();
            let mut out = self.hub.outlet(now_ms);
            match self.hub.platform().ingest(batch, at, now_ms, &mut out) {
                Ok(ingested) => {
                    drop(out);
                    self.last = at;
                    self.is_written = ingested.is_written;
                    if self.hub.limits().are_set() {
                        self.hub.limits().reload();
                    }
                    for (index, problem) in ingested.refused {
                        self.requests.refused(batch[index].device.0, &problem);
                    }
                    break;
                }
                Err(error) => {
                    drop(out);
                    if !self.may_retry(&error) {
                        return batch.clear();
                    }
                }
            }
        }
        self.stored();
        batch.clear();
        self.hub.resume_chains();
    }

    /// Notes that records were stored, possibly after retries.
    fn stored(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            self.hub.store_failures().succeeded(StoreWork::Messages);
        }
    }

    /// Returns false if the server is stopping. The next start processes the rest.
    fn may_retry(&mut self, error: &IngestError) -> bool {
        DeviceCounters::add(&self.hub.counters().failed_batches, 1);
        self.hub
            .store_failures()
            .failed(StoreWork::Messages, error_chain(error));
        if self.failures.is_multiple_of(FAILURES_PER_LOG_LINE) {
            tracing::warn!(error = %error_chain(error), "storing device messages failed, retrying");
        }
        self.failures += 1;
        self.has_ended = self.hub.stop().is_set();
        // The platform may be full because messages wait for responses that have arrived. Without this it would never
        // accept the batch.
        self.hub.handle_call_events();
        self.hub.expire_waiting_chains();
        let is_full = matches!(error, IngestError::RetriesFull);
        if !is_full || !self.hub.platform().has_due_messages(unix_ms()) {
            thread::sleep(RETRY_PAUSE);
        }
        !self.has_ended
    }

    /// Handles a record that does not belong into a platform batch.
    fn answer(&mut self, entry: &IngestEntry<'_>, at: LogPosition) {
        match entry.kind {
            kind if is_saved(kind) => self.save(entry, at),
            EntryKind::Mark => self.store_points_at(at),
            _ if at.0 <= self.started_at.0 => self.requests.replay(entry),
            _ => self.requests.answer(entry, unix_ms()),
        }
    }

    fn save(&mut self, entry: &IngestEntry<'_>, at: LogPosition) {
        let hub = Arc::clone(&self.hub);
        let save = || match entry.kind {
            EntryKind::SaveAttributes | EntryKind::DeleteAttributes => user_changes::change_attributes(&hub, entry, at),
            _ => user_changes::save(&hub, entry, at),
        };
        loop {
            match save() {
                // A change that cannot be decoded does not make earlier points readable.
                Ok(is_done) => {
                    self.is_written |= is_done;
                    break;
                }
                Err(error) if !self.may_retry(&error) => return,
                Err(_) => {}
            }
        }
        self.stored();
        self.last = at;
        self.hub.resume_chains();
    }

    /// Stores points that chains created without an incoming message at this log position.
    fn store_points_at(&mut self, at: LogPosition) {
        loop {
            let now_ms = unix_ms();
            let stored = (self.hub.platform()).ingest(&[], at, now_ms, &mut self.hub.outlet(now_ms));
            match stored {
                Ok(ingested) => {
                    self.is_written = ingested.is_written;
                    break;
                }
                Err(error) if !self.may_retry(&error) => return,
                Err(_) => {}
            }
        }
        self.stored();
        self.last = at;
    }

    fn tick(&mut self) {
        let now_ms = unix_ms();
        let hub = &self.hub;
        let active = hub.activity().take();
        let mut out = hub.outlet(now_ms);
        let done = hub
            .platform()
            .record_active(&active, now_ms, &mut out)
            .and_then(|()| hub.platform().tick(self.last, now_ms, &mut out));
        drop(out);
        match done {
            // The tick has also stored the pending results.
            Ok(()) => {
                hub.store_failures().succeeded(StoreWork::PeriodicWork);
                if !self.is_written {
                    self.is_written = true;
                    self.notify_readable(self.follower.next());
                }
            }
            Err(error) => {
                DeviceCounters::add(&hub.counters().failed_batches, 1);
                hub.store_failures()
                    .failed(StoreWork::PeriodicWork, error_chain(&error));
                tracing::warn!(error = %error_chain(&error), "periodic work of the platform failed, retrying");
            }
        }
        hub.resume_chains();
        if hub.platform().has_pending_points() {
            self.append_mark(now_ms);
        }
        hub.transports().refresh();
        hub.limits().reload();
        hub.limits().remove_full_buckets(now_ms);
        usage::report_api_states(hub, now_ms);
        if Instant::now() >= self.next_usage {
            let every = Duration::from_millis(hub.options().platform.usage_ms.unsigned_abs());
            self.next_usage = Instant::now() + every;
            usage::report_usage(hub, now_ms);
            usage::report_queues(hub, now_ms);
            if let Some(text) = transport_stats(hub.sessions().count()) {
                tracing::info!("{text}");
            }
        }
        self.release();
    }

    /// Releases the part of the log that the platform does not need after a crash.
    fn release(&mut self) {
        let needed = self.hub.platform().replay_position();
        let mut before = None;
        while self.steps.front().is_some_and(|step| step.0 <= needed.0) {
            before = self.steps.pop_front();
        }
        let end = self.follower.next();
        if needed >= self.last {
            before = Some(end);
            self.steps.clear();
        }
        if let Some(before) = before {
            self.steps.push_front(before);
            if before > self.released {
                self.released = before;
                self.hub.log().release(before);
            }
        }
        let unreleased = end.0.saturating_sub(self.hub.log().stats().replay_from.0);
        let allowed = REPLAY_BYTES_MAX.min(self.hub.options().log.max_bytes / 4);
        let is_wanted = unreleased > allowed || self.hub.platform().wants_flush();
        self.is_flush_wanted.store(is_wanted, Relaxed);
    }
}

/// ThingsBoard's log line, which scripts search for.
fn transport_stats(connections: usize) -> Option<String> {
    (connections > 0).then(|| format!("Transport Stats: openConnections [{connections}]"))
}

impl IngestEntry<'_> {
    fn has_profile_format(&self) -> bool {
        use platform::decode::{PayloadFormat, TopicForm};
        self.form != TopicForm::Short(PayloadFormat::Json)
    }
}

fn gateway_kind(kind: EntryKind) -> Option<GatewayKind> {
    Some(match kind {
        EntryKind::GatewayConnect => GatewayKind::Connect,
        EntryKind::GatewayDisconnect => GatewayKind::Disconnect,
        EntryKind::GatewayTelemetry => GatewayKind::Telemetry,
        EntryKind::GatewayAttributes => GatewayKind::Attributes,
        EntryKind::GatewayAttributesRequest => GatewayKind::AttributesRequest,
        EntryKind::GatewayRpc => GatewayKind::RpcResponse,
        EntryKind::GatewayClaim => GatewayKind::Claim,
        _ => return None,
    })
}

/// Records of users, which do not go through the batches.
fn is_saved(kind: EntryKind) -> bool {
    use EntryKind::{DeleteAttributes, Save, SaveAttributes, SaveTexts, SaveWithTtl};
    matches!(kind, Save | SaveWithTtl | SaveTexts | SaveAttributes | DeleteAttributes)
}

/// Returns the platform's form of a record, or `None` for records that are not batched.
fn incoming<'a>(entry: &IngestEntry<'a>, at: LogPosition) -> Option<IngestInput<'a>> {
    let body = entry.body;
    let message = match entry.kind {
        EntryKind::Telemetry => IngestMessage::Telemetry(body),
        EntryKind::Attributes => IngestMessage::Attributes(body),
        EntryKind::RpcRequest if !is_limits_request(body) => IngestMessage::RpcRequest { id: entry.id, body },
        EntryKind::Connected => IngestMessage::Connected,
        EntryKind::Disconnected => IngestMessage::Disconnected,
        EntryKind::GatewayConnect => IngestMessage::GatewayConnect(body),
        EntryKind::GatewayDisconnect => IngestMessage::GatewayDisconnect(body),
        EntryKind::GatewayTelemetry => IngestMessage::GatewayTelemetry(body),
        EntryKind::GatewayAttributes => IngestMessage::GatewayAttributes(body),
        // The profile no longer has this topic.
        EntryKind::OwnTopic => IngestMessage::Alive,
        _ => return None,
    };
    Some(incoming_message(entry, at, message))
}

fn incoming_message<'a>(entry: &IngestEntry<'a>, at: LogPosition, message: IngestMessage<'a>) -> IngestInput<'a> {
    IngestInput {
        at,
        device: DeviceId(entry.device),
        received_ms: entry.received_ms,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_stats_line_matches_thingsboard() {
        assert_eq!(transport_stats(0), None);
        let line = transport_stats(15_000);
        assert_eq!(line.as_deref(), Some("Transport Stats: openConnections [15000]"));
    }
}
