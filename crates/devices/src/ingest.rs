//! The thread that reads the log and gives it to the platform, record by record in order, in batches.
//!
//! A batch ends where the last one before a crash ended: what is replayed is never mixed with what is new. Requests of devices
//! are answered between batches, so that a device sees what it said before; those of the process before are nobody's any more, but for claims
//! and answers to calls, which are kept.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use journal::{Follower, Lsn};
use platform::decode::{GatewayKind, PayloadKind};
use platform::ids::DeviceId;
use platform::{Incoming, IngestError, Said};
use timeseries::Position;

use crate::entry::{Entry, Kind};
use crate::hub::{Hub, unix_ms};
use crate::log::{Found, begin, position};
use crate::requests::asks_for_limits;
use crate::stats::Counters;

/// Records and bytes that are processed together.
const RECORDS_MAX: usize = 4096;
const BYTES_MAX: usize = 2 << 20;

const TICK: Duration = Duration::from_secs(1);
/// Between looks for calls that ran out of time, while there are any.
const CALLS_TICK: Duration = Duration::from_millis(100);
/// Before a batch is tried again that the store did not take.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Every so many failures of one batch are told.
const FAILURES_TOLD: u64 = 100;
/// Between two places in the log from which a start may begin, at least.
const STEP_BYTES: u64 = 1 << 20;
/// So much may have to be read again after a crash; beyond it the store is told to flush.
const REPLAY_BYTES_MAX: u64 = 256 << 20;

pub struct Ingest {
    hub: Arc<Hub>,
    follower: Follower,
    /// Records before it are of the process before.
    begun_at: Lsn,
    /// The platform needs nothing before it.
    replay_from: Position,
    /// A batch ends here.
    applied: Position,
    last: Position,
    gathered: Gathered,
    /// Where blocks begin, some of them.
    steps: VecDeque<Lsn>,
    next_tick: Instant,
    next_usage: Instant,
    /// What the log was told to give back.
    released: Lsn,
    /// In a row, of the batch at hand.
    failures: u64,
    /// All that was processed can be read: the stores have taken it.
    is_written: bool,
    has_ended: bool,
}

#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    records: Vec<(Position, Range<usize>)>,
}

impl Ingest {
    pub fn new(hub: Arc<Hub>, found: Found) -> Ingest {
        let replay_from = hub.platform.replay_position();
        let found_from = found.follower.next();
        Ingest {
            steps: VecDeque::from([found_from]),
            follower: found.follower,
            begun_at: found.next,
            replay_from,
            applied: hub.platform.applied_position(),
            last: hub.platform.applied_position(),
            gathered: Gathered::default(),
            next_tick: Instant::now(),
            next_usage: Instant::now(),
            released: found_from,
            failures: 0,
            is_written: true,
            has_ended: false,
            hub,
        }
    }

    /// Until the hub is stopped and all that is in the log has been processed.
    pub fn run(mut self) {
        while !self.has_ended {
            let has_read = self.gather();
            if has_read {
                self.process();
            }
            if Instant::now() >= self.next_tick {
                self.next_tick = Instant::now() + TICK;
                self.tick();
            }
            self.hub.attend_to_calls();
            self.hub.expire_asked();
            if has_read {
                continue;
            }
            if self.hub.must_stop(self.follower.next()) {
                self.has_ended = true;
                continue;
            }
            let deadline = match self.hub.calls.count() + self.hub.asked.count() {
                0 => self.next_tick,
                _ => self.next_tick.min(Instant::now() + CALLS_TICK),
            };
            self.hub.log.wait_for_news(deadline);
        }
        let store = self.hub.platform.store();
        let kept = self.hub.platform.checkpoint().map_err(|error| error_chain(&error));
        let flushed = store.flush().map_err(|error| error_chain(&error));
        // What was tried again is forgotten once its points are on the disk.
        let forgotten = self.hub.platform.checkpoint().map_err(|error| error_chain(&error));
        if let Err(error) = kept.and(flushed).and(forgotten) {
            tracing::error!(
                error,
                "not all of the platform could be written at the stop; it is read from its log at the next start"
            );
        }
        self.release();
    }

    /// False: there is nothing new.
    fn gather(&mut self) -> bool {
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
                    // Records that came before it in this batch are processed; it is tried again.
                    tracing::error!(error = %error_chain(&error), "the log of devices cannot be read; trying again");
                    thread::sleep(TICK);
                    break;
                }
            }
        }
        !self.gathered.records.is_empty()
    }

    fn process(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        let has_transports = self.hub.look_at_profiles();
        let mut batch: Vec<Incoming<'_>> = Vec::with_capacity(gathered.records.len());
        let mut converted = Vec::new();
        if has_transports {
            converted = self.convert(&gathered);
        }
        let mut ends_at = self.last;
        for (index, (at, range)) in gathered.records.iter().enumerate() {
            if *at <= self.replay_from || self.has_ended {
                continue;
            }
            let Some(entry) = Entry::read(&gathered.bytes[range.clone()]) else {
                Counters::add(&self.hub.counters.refused_messages, 1);
                continue;
            };
            let own = converted.get(index).and_then(Option::as_ref);
            let entry = own.map_or(entry, |(kind, body)| Entry {
                kind: *kind,
                body,
                ..entry
            });
            match incoming(&entry, *at) {
                Some(one) => {
                    batch.push(one);
                    ends_at = *at;
                    if *at == self.applied {
                        self.give(&mut batch, ends_at);
                    }
                }
                None => {
                    self.give(&mut batch, ends_at);
                    ends_at = *at;
                    if at.0 > self.begun_at.0 && self.hub.asks_for_new(&entry) {
                        batch.push(said(&entry, *at, Said::GatewayConnect(entry.body)));
                        self.give(&mut batch, ends_at);
                    }
                    self.answer(&entry, *at);
                    if is_saved(entry.kind) {
                        // Whoever saved it waits for it, and not for the rest.
                        let next = gathered.records.get(index + 1);
                        self.reached(next.map_or(self.follower.next(), |(at, _)| begin(*at)));
                    }
                }
            }
            if matches!(entry.kind, Kind::GatewayConnect | Kind::GatewayDisconnect) {
                self.give(&mut batch, ends_at);
                if at.0 > self.begun_at.0 {
                    match entry.kind {
                        Kind::GatewayConnect => self.hub.gateway_connected(&entry),
                        _ => self.hub.gateway_disconnected(&entry),
                    }
                }
            }
            self.hub
                .counters
                .read_received_ms
                .store(entry.received_ms.max(0) as u64, Relaxed);
        }
        self.give(&mut batch, ends_at);
        Counters::add(&self.hub.counters.ingested, gathered.records.len() as u64);
        self.hub.counters.read_lsn.store(self.follower.next().0, Relaxed);
        self.reached(self.follower.next());
        self.gathered = gathered;
    }

    /// Whoever waits may read what is before it, if that is written.
    fn reached(&self, upto: Lsn) {
        if self.is_written && !self.has_ended {
            self.hub.processed.reached(upto);
        }
    }

    /// Payloads and topics as profiles have them, in the platform's form; by index of the record.
    fn convert(&self, gathered: &Gathered) -> Vec<Option<(Kind, Vec<u8>)>> {
        let of_record = |(_, range): &(Position, Range<usize>)| {
            let entry = Entry::read(&gathered.bytes[range.clone()])?;
            let transport = self.hub.platform.transport(DeviceId(entry.device))?;
            if let Some(kind) = gateway_kind(entry.kind) {
                let json = transport.gateway_to_json(kind, entry.body)?;
                return Some((entry.kind, json.unwrap_or_default()));
            }
            let (kind, payload) = match entry.kind {
                Kind::OwnTopic => {
                    let end = entry.body.iter().position(|byte| *byte == 0)?;
                    let topic = std::str::from_utf8(&entry.body[..end]).ok()?;
                    (transport.payload_kind(topic)?, &entry.body[end + 1..])
                }
                Kind::Telemetry if entry.has_profile_format() => (PayloadKind::Telemetry, entry.body),
                Kind::Attributes if entry.has_profile_format() => (PayloadKind::Attributes, entry.body),
                Kind::RpcResponse if entry.has_profile_format() => (PayloadKind::RpcResponse, entry.body),
                Kind::AttributesRequest if entry.has_profile_format() => (PayloadKind::AttributesRequest, entry.body),
                Kind::RpcRequest if entry.has_profile_format() => (PayloadKind::RpcRequest, entry.body),
                Kind::Claim if entry.has_profile_format() => (PayloadKind::Claim, entry.body),
                _ => return None,
            };
            let kind_of = match kind {
                PayloadKind::Telemetry => Kind::Telemetry,
                PayloadKind::Attributes => Kind::Attributes,
                PayloadKind::RpcResponse => Kind::RpcResponse,
                PayloadKind::AttributesRequest => Kind::AttributesRequest,
                PayloadKind::RpcRequest => Kind::RpcRequest,
                PayloadKind::Claim => Kind::Claim,
            };
            // What cannot be converted is refused where JSON is expected.
            let json = transport
                .to_json(kind, payload)
                .map_or_else(|_| Vec::new(), |json| json.into_owned());
            Some((kind_of, json))
        };
        gathered.records.iter().map(of_record).collect()
    }

    /// Gives a batch to the platform until it takes it.
    fn give(&mut self, batch: &mut Vec<Incoming<'_>>, at: Position) {
        if batch.is_empty() {
            return;
        }
        loop {
            let now_ms = unix_ms();
            let mut out = self.hub.out(now_ms);
            match self.hub.platform.ingest(batch, at, now_ms, &mut out) {
                Ok(ingested) => {
                    drop(out);
                    self.last = at;
                    self.is_written = ingested.is_written;
                    if self.hub.limits.are_set() {
                        self.hub.look_at_limits();
                    }
                    for (index, problem) in ingested.refused {
                        self.hub.refused(batch[index].device.0, &problem);
                    }
                    break;
                }
                Err(error) => {
                    drop(out);
                    if !self.may_try_again(&error) {
                        return batch.clear();
                    }
                }
            }
        }
        self.failures = 0;
        batch.clear();
        self.hub.go_on_with_chains();
    }

    /// False: the server stops, and the next start does what is left.
    fn may_try_again(&mut self, error: &IngestError) -> bool {
        Counters::add(&self.hub.counters.failed_batches, 1);
        if self.failures.is_multiple_of(FAILURES_TOLD) {
            tracing::warn!(error = %error_chain(error), "what devices said waits for its stores");
        }
        self.failures += 1;
        self.has_ended = self.hub.is_stopping.load(Relaxed);
        // What fills the platform may be what waits for an answer that has come: without this it would wait for ever.
        self.hub.attend_to_calls();
        self.hub.expire_asked();
        self.hub.expire_waiting_chains();
        thread::sleep(TRY_AGAIN);
        !self.has_ended
    }

    /// What is not for the platform's batches.
    fn answer(&mut self, entry: &Entry<'_>, at: Position) {
        match entry.kind {
            kind if is_saved(kind) => self.save(entry, at),
            Kind::Mark => self.mark(at),
            _ if at.0 <= self.begun_at.0 => self.hub.said_before(entry),
            _ => self.hub.answer(entry, unix_ms()),
        }
    }

    fn save(&mut self, entry: &Entry<'_>, at: Position) {
        let hub = Arc::clone(&self.hub);
        let save = || match entry.kind {
            Kind::SaveAttributes | Kind::DeleteAttributes => hub.change_attributes(entry, at),
            _ => hub.save(entry, at),
        };
        loop {
            match save() {
                // What cannot be read writes nothing that came before it either.
                Ok(is_done) => {
                    self.is_written |= is_done;
                    break;
                }
                Err(error) if !self.may_try_again(&error) => return,
                Err(_) => {}
            }
        }
        self.failures = 0;
        self.last = at;
        self.hub.go_on_with_chains();
    }

    /// Points that chains said by themselves get a position.
    fn mark(&mut self, at: Position) {
        loop {
            match self.hub.mark(at) {
                Ok(is_written) => {
                    self.is_written = is_written;
                    break;
                }
                Err(error) if !self.may_try_again(&error) => return,
                Err(_) => {}
            }
        }
        self.failures = 0;
        self.last = at;
    }

    fn tick(&mut self) {
        let now_ms = unix_ms();
        let hub = &self.hub;
        let heard = hub.take_heard();
        let mut out = hub.out(now_ms);
        let told = hub
            .platform
            .alive(&heard, now_ms, &mut out)
            .and_then(|()| hub.platform.tick(self.last, now_ms, &mut out));
        drop(out);
        match told {
            // With what was not written before.
            Ok(()) if !self.is_written => {
                self.is_written = true;
                self.reached(self.follower.next());
            }
            Ok(()) => {}
            Err(error) => {
                Counters::add(&hub.counters.failed_batches, 1);
                tracing::warn!(error = %error_chain(&error), "the platform's clock waits for its stores");
            }
        }
        hub.go_on_with_chains();
        if hub.platform.has_pending_points() {
            hub.append_mark(now_ms);
        }
        hub.look_at_profiles();
        hub.look_at_limits();
        hub.limits.forget_full(now_ms);
        hub.report_api_states(now_ms);
        if Instant::now() >= self.next_usage {
            let every = Duration::from_millis(hub.options.platform.usage_ms.unsigned_abs());
            self.next_usage = Instant::now() + every;
            hub.report_usage(now_ms);
            hub.report_queues(now_ms);
            if let Some(text) = transport_stats(hub.sessions.count()) {
                tracing::info!("{text}");
            }
        }
        self.release();
    }

    /// Gives back what the platform does not need after a crash.
    fn release(&mut self) {
        let needed = self.hub.platform.replay_position();
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
                self.hub.log.release(before);
            }
        }
        let unreleased = end.0.saturating_sub(self.hub.log.stats().replay_from.0);
        let allowed = REPLAY_BYTES_MAX.min(self.hub.options.log.max_bytes / 4);
        let is_wanted = unreleased > allowed || self.hub.platform.wants_flush();
        self.hub.is_flush_wanted.store(is_wanted, Relaxed);
    }
}

/// As ThingsBoard has it in its log, where scripts look for it.
fn transport_stats(connections: usize) -> Option<String> {
    (connections > 0).then(|| format!("Transport Stats: openConnections [{connections}]"))
}

impl Entry<'_> {
    fn has_profile_format(&self) -> bool {
        use platform::decode::{Form, Format};
        self.form != Form::Short(Format::Json)
    }
}

fn gateway_kind(kind: Kind) -> Option<GatewayKind> {
    Some(match kind {
        Kind::GatewayConnect => GatewayKind::Connect,
        Kind::GatewayDisconnect => GatewayKind::Disconnect,
        Kind::GatewayTelemetry => GatewayKind::Telemetry,
        Kind::GatewayAttributes => GatewayKind::Attributes,
        Kind::GatewayAttributesRequest => GatewayKind::AttributesRequest,
        Kind::GatewayRpc => GatewayKind::RpcResponse,
        Kind::GatewayClaim => GatewayKind::Claim,
        _ => return None,
    })
}

/// Of users, past the batches.
fn is_saved(kind: Kind) -> bool {
    use Kind::{DeleteAttributes, Save, SaveAttributes, SaveTexts, SaveWithTtl};
    matches!(kind, Save | SaveWithTtl | SaveTexts | SaveAttributes | DeleteAttributes)
}

/// What the platform takes in batches.
fn incoming<'a>(entry: &Entry<'a>, at: Position) -> Option<Incoming<'a>> {
    let body = entry.body;
    let said = match entry.kind {
        Kind::Telemetry => Said::Telemetry(body),
        Kind::Attributes => Said::Attributes(body),
        Kind::RpcRequest if !asks_for_limits(body) => Said::RpcRequest { id: entry.id, body },
        Kind::Connected => Said::Connected,
        Kind::Disconnected => Said::Disconnected,
        Kind::GatewayConnect => Said::GatewayConnect(body),
        Kind::GatewayDisconnect => Said::GatewayDisconnect(body),
        Kind::GatewayTelemetry => Said::GatewayTelemetry(body),
        Kind::GatewayAttributes => Said::GatewayAttributes(body),
        // The topic is none of the profile's any more.
        Kind::OwnTopic => Said::Alive,
        _ => return None,
    };
    Some(self::said(entry, at, said))
}

fn said<'a>(entry: &Entry<'a>, at: Position, said: Said<'a>) -> Incoming<'a> {
    Incoming {
        at,
        device: DeviceId(entry.device),
        received_ms: entry.received_ms,
        said,
    }
}

/// An error with its causes.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_log_is_thingsboards() {
        assert_eq!(transport_stats(0), None);
        let line = transport_stats(15_000);
        assert_eq!(line.as_deref(), Some("Transport Stats: openConnections [15000]"));
    }
}
