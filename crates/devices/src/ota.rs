//! Chunks of firmware and software for devices, on a thread of their own: what one device fetches keeps nobody's telemetry waiting. Parts
//! of packages that were asked for of late are in memory.
//!
//! A device gets a chunk when it has taken what it was sent before: a slow one that asks for many has its requests held, and answered one by
//! one. Devices take turns; one that is held is looked at more and more seldom, and given up when it has taken nothing for minutes. What
//! is given up, or what a shard that is too busy does not take, is counted: the device asks again.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use broker::ShardId;
use hashbrown::HashMap;
use net::CallError;
use platform::decode::{Downlink, OtaKind, Subscription};
use platform::entities::{EntityError, OTA_PART_BYTES};
use platform::ids::{DeviceId, OtaPackageId, Uuid};
use platform::model::OtaPackage;

use crate::downloads::Download;
use crate::entry::{Entry, Kind};
use crate::hub::{Hub, client_id, lock};
use crate::sessions::Target;
use crate::stats::Counters;

/// In memory, of all packages.
const PARTS_MAX: usize = 32;
/// Of one answer.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;
/// Requests that wait: of a device, and in all. What comes beyond that is dropped, and counted.
const OF_DEVICE_MAX: usize = 64;
const REQUESTS_MAX: usize = 65_536;
/// What a device may have been sent and not taken when it gets another chunk; one that is larger goes alone.
const AHEAD_BYTES_MAX: usize = 256 << 10;
/// What a device that reads may leave without an acknowledgement: it is in memory.
const UNACKNOWLEDGED_BYTES_MAX: usize = 2 * CHUNK_BYTES_MAX;
/// Before a device that has not taken enough is looked at again: at first, and at most when it takes nothing.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(1);
/// A device that takes nothing for so long gets nothing of what it has asked for.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(300);
/// For a shard's answer.
const SHARD_ANSWERS: Duration = Duration::from_secs(5);

type Part = Arc<Vec<u8>>;

/// The newest last.
#[derive(Default)]
pub struct OtaCache(Mutex<Vec<((OtaPackageId, u32), Part)>>);

impl OtaCache {
    fn get(&self, id: (OtaPackageId, u32)) -> Option<Part> {
        let mut held = lock(&self.0);
        let at = held.iter().position(|(known, _)| *known == id)?;
        let found = held.remove(at);
        let bytes = Arc::clone(&found.1);
        held.push(found);
        Some(bytes)
    }

    fn put(&self, id: (OtaPackageId, u32), bytes: &Part) {
        let mut held = lock(&self.0);
        held.retain(|(known, _)| *known != id);
        if held.len() >= PARTS_MAX {
            held.remove(0);
        }
        held.push((id, Arc::clone(bytes)));
    }
}

/// A device asks for a part of its package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRequest {
    device: DeviceId,
    kind: OtaKind,
    request: i32,
    chunk: i32,
    /// In bytes, 0 is all of it; or what was said in place of that.
    size: Result<usize, String>,
    received_ms: i64,
}

impl ChunkRequest {
    /// The record: number of the chunk, then the size as text.
    fn of(entry: &Entry<'_>) -> Option<ChunkRequest> {
        let (chunk, size) = entry.body.split_first_chunk()?;
        let text = String::from_utf8_lossy(&size[..size.len().min(64)]);
        let size = match text.trim() {
            "" => Ok(0),
            digits => digits
                .parse()
                .ok()
                .filter(|size| (1..=CHUNK_BYTES_MAX).contains(size))
                .ok_or_else(|| digits.chars().take(20).collect()),
        };
        Some(ChunkRequest {
            device: DeviceId(entry.device),
            kind: match entry.kind {
                Kind::FirmwareChunk => OtaKind::Firmware,
                _ => OtaKind::Software,
            },
            request: entry.id,
            chunk: i32::from_le_bytes(*chunk),
            size,
            received_ms: entry.received_ms,
        })
    }
}

/// What devices have asked for and not got yet, in order.
#[derive(Default)]
pub struct ChunkRequests {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

#[derive(Default)]
struct Waiting {
    count: usize,
    /// Of each device, in order; none is empty.
    by_device: HashMap<Uuid, VecDeque<ChunkRequest>, foldhash::fast::RandomState>,
    /// Whose turn it is. A device with requests is here, or held, or at work.
    turns: VecDeque<Uuid>,
    /// Devices that have to take something first, and when they are looked at again.
    held: BTreeSet<(Instant, Uuid)>,
    /// How it goes with those whose first request was held.
    holds: HashMap<Uuid, Hold, foldhash::fast::RandomState>,
    has_ended: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    /// The device has to take something first. What it has not taken, in bytes, if its shard says so.
    Held(Option<usize>),
}

struct Hold {
    pause: Duration,
    /// Nothing was taken since then.
    since: Instant,
    untaken: usize,
}

impl Hold {
    fn new(now: Instant) -> Hold {
        Hold {
            pause: LOOK_AGAIN,
            since: now,
            untaken: usize::MAX,
        }
    }

    fn look(&mut self, untaken: Option<usize>, now: Instant) {
        if untaken.is_some_and(|untaken| untaken < self.untaken) {
            (self.pause, self.since) = (LOOK_AGAIN, now);
        } else {
            self.pause = (self.pause * 2).min(LOOK_AGAIN_MAX);
        }
        self.untaken = untaken.unwrap_or(self.untaken);
    }
}

impl ChunkRequests {
    /// False: there are too many.
    fn put(&self, request: ChunkRequest) -> bool {
        let waiting = &mut *lock(&self.waiting);
        if waiting.count >= REQUESTS_MAX {
            return false;
        }
        let device = request.device.0;
        let of_device = waiting.by_device.entry(device).or_default();
        if of_device.len() >= OF_DEVICE_MAX {
            return false;
        }
        if of_device.is_empty() {
            waiting.turns.push_back(device);
        }
        of_device.push_back(request);
        waiting.count += 1;
        self.news.notify_one();
        true
    }

    /// Waits for one, which stays until [`ChunkRequests::done`]; `None`: there will be no more.
    fn next(&self) -> Option<ChunkRequest> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.has_ended {
                return None;
            }
            let now = Instant::now();
            while waiting.held.first().is_some_and(|(at, _)| *at <= now)
                && let Some((_, device)) = waiting.held.pop_first()
            {
                waiting.turns.push_back(device);
            }
            let first = waiting.turns.pop_front();
            if let Some(request) = first.and_then(|device| waiting.by_device.get(&device)?.front().cloned()) {
                return Some(request);
            }
            let until = waiting.held.first().map(|(at, _)| at.saturating_duration_since(now));
            waiting = match until {
                Some(time) => {
                    let waited = self.news.wait_timeout(waiting, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// What became of the last request, which was of this device. The answer: how many requests are given up.
    fn done(&self, device: DeviceId, outcome: Outcome, now: Instant) -> usize {
        let waiting = &mut *lock(&self.waiting);
        match outcome {
            Outcome::Answered => {
                waiting.answered(device.0);
                0
            }
            Outcome::Held(untaken) => waiting.hold(device.0, untaken, now),
        }
    }

    /// What waits is answered by nobody: the devices ask again.
    pub fn end(&self) {
        lock(&self.waiting).has_ended = true;
        self.news.notify_all();
    }
}

impl Waiting {
    fn answered(&mut self, device: Uuid) {
        self.holds.remove(&device);
        let Some(of_device) = self.by_device.get_mut(&device) else {
            return;
        };
        self.count -= usize::from(of_device.pop_front().is_some());
        if of_device.is_empty() {
            self.by_device.remove(&device);
        } else {
            self.turns.push_back(device);
        }
    }

    fn hold(&mut self, device: Uuid, untaken: Option<usize>, now: Instant) -> usize {
        let hold = self.holds.entry(device).or_insert_with(|| Hold::new(now));
        hold.look(untaken, now);
        if now.saturating_duration_since(hold.since) < GIVEN_UP_AFTER {
            let until = now + hold.pause;
            self.held.insert((until, device));
            return 0;
        }
        self.holds.remove(&device);
        let given_up = self.by_device.remove(&device).map_or(0, |requests| requests.len());
        self.count -= given_up;
        given_up
    }
}

/// The thread that answers, until the requests end.
pub fn run(hub: &Hub) {
    while let Some(request) = hub.chunk_requests.next() {
        let outcome = hub.answer_chunk(&request);
        let given_up = hub.chunk_requests.done(request.device, outcome, Instant::now());
        if given_up > 0 {
            Counters::add(&hub.counters.dropped_downlinks, given_up as u64);
            tracing::info!(device = %request.device, requests = given_up, "a device takes nothing of what it was sent: chunks that it asked for are given up");
        }
    }
}

/// Why there is nothing, as a device is told.
#[derive(Debug)]
pub enum OtaError {
    /// The device has no such package.
    NotFound,
    /// Its bytes are elsewhere.
    Elsewhere,
    ChunkSize(String),
    Entity(EntityError),
}

impl std::fmt::Display for OtaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OtaError::NotFound => f.write_str("NOT_FOUND"),
            OtaError::Elsewhere => f.write_str("NOT_FOUND: the package is at the url of its attributes"),
            OtaError::ChunkSize(size) => write!(
                f,
                "chunk size {size:?}: expected bytes, 1 to {CHUNK_BYTES_MAX}; without a size all of a package of so many at most is sent"
            ),
            OtaError::Entity(_) => f.write_str("FAILURE"),
        }
    }
}

impl From<EntityError> for OtaError {
    fn from(error: EntityError) -> OtaError {
        OtaError::Entity(error)
    }
}

impl Hub {
    pub fn ota_package(&self, device: DeviceId, kind: OtaKind) -> Result<OtaPackage, OtaError> {
        let package = self.platform.entities().ota_package_of(device, kind.into())?;
        package.ok_or(OtaError::NotFound)
    }

    /// `size`: 0 is all of it. Behind the end there is nothing.
    pub fn ota_chunk(&self, package: &OtaPackage, size: usize, chunk: usize) -> Result<Vec<u8>, OtaError> {
        self.ota_bytes(package.id.unwrap_or_default(), chunk_range(package, size, chunk)?)
    }

    fn ota_bytes(&self, id: OtaPackageId, wanted: Range<usize>) -> Result<Vec<u8>, OtaError> {
        let mut bytes = Vec::with_capacity(wanted.len());
        let mut at = wanted.start;
        while at < wanted.end {
            let number = at / OTA_PART_BYTES;
            let begin = number * OTA_PART_BYTES;
            let held = self.ota_part(id, u32::try_from(number).unwrap_or(u32::MAX))?;
            let end = wanted.end.min(begin + held.len());
            // Shorter than it was when it was uploaded: nothing else has it.
            let taken = held.get(at - begin..end - begin).filter(|taken| !taken.is_empty());
            bytes.extend_from_slice(taken.ok_or(OtaError::NotFound)?);
            at = end;
        }
        Ok(bytes)
    }

    fn ota_part(&self, id: OtaPackageId, number: u32) -> Result<Part, OtaError> {
        if let Some(held) = self.ota.get((id, number)) {
            return Ok(held);
        }
        let read = Arc::new(self.platform.entities().ota_part(id, number)?);
        self.ota.put((id, number), &read);
        Ok(read)
    }

    /// It is answered as soon as what was asked for before it is.
    pub fn ask_for_chunk(&self, entry: &Entry<'_>) {
        let taken = ChunkRequest::of(entry).is_none_or(|request| self.chunk_requests.put(request));
        if !taken {
            Counters::add(&self.counters.dropped_messages, 1);
            tracing::debug!(device = %entry.device, "a device asks for more chunks than it can be sent");
        }
    }

    fn answer_chunk(&self, asked: &ChunkRequest) -> Outcome {
        let kind = asked.kind;
        let found = self.wanted_chunk(asked);
        let subscription = match found {
            Ok(_) => Subscription::Chunks(kind),
            Err(_) => Subscription::ChunkErrors(kind),
        };
        let Some(target) = self.sessions.asker(asked.device.0, subscription) else {
            Counters::add(&self.counters.dropped_downlinks, 1);
            tracing::debug!(device = %asked.device, "a device that asked for a chunk is gone");
            return Outcome::Answered;
        };
        let bytes = found.as_ref().map_or(0, |(_, wanted)| wanted.len());
        if let Err(untaken) = self.has_taken_enough(&target, bytes) {
            return Outcome::Held(untaken);
        }
        let (downlink, payload) = match found.and_then(|(package, wanted)| self.ota_bytes(package, wanted)) {
            Ok(bytes) => {
                let downlink = Downlink::Chunk {
                    kind,
                    request: asked.request,
                    chunk: asked.chunk,
                };
                (downlink, bytes)
            }
            Err(error) => {
                tracing::info!(device = %asked.device, %error, "a device asked for a package that it does not get");
                (Downlink::ChunkError(kind), error.to_string().into_bytes())
            }
        };
        self.out(asked.received_ms).send(target, downlink, payload);
        Outcome::Answered
    }

    /// Whether so much more may be sent to a session; if not, how much it has not taken, as far as that is known.
    fn has_taken_enough(&self, target: &Target, bytes: usize) -> Result<(), Option<usize>> {
        let Some(net) = self.net.get() else { return Ok(()) };
        let client_id = client_id(target.session);
        let backlog = net.call(ShardId(target.shard), SHARD_ANSWERS, move |shard, _| {
            shard.device_backlog(&client_id)
        });
        match backlog {
            Ok(Some(backlog)) => {
                let has_room = |held: usize, max: usize| held == 0 || held + bytes <= max;
                let has_taken = has_room(backlog.unsent_bytes, AHEAD_BYTES_MAX)
                    && has_room(backlog.unacknowledged_bytes, UNACKNOWLEDGED_BYTES_MAX);
                let untaken = backlog.unsent_bytes + backlog.unacknowledged_bytes;
                if has_taken { Ok(()) } else { Err(Some(untaken)) }
            }
            // It has gone: what is sent to it is counted as lost.
            Ok(None) | Err(CallError::Stopped) => Ok(()),
            Err(_) => Err(None),
        }
    }

    fn wanted_chunk(&self, asked: &ChunkRequest) -> Result<(OtaPackageId, Range<usize>), OtaError> {
        let said = asked.size.clone().map_err(OtaError::ChunkSize)?;
        let chunk = usize::try_from(asked.chunk).map_err(|_| OtaError::NotFound)?;
        let of = (asked.device.0, asked.kind);
        let connection = self.sessions.connection_of(asked.device.0).unwrap_or_default();
        let begun = self.downloads.find(of, connection, asked.request);
        let size = match (said, begun) {
            (0, Some(begun)) => begun.size,
            (said, _) => said,
        };
        let package = match begun.filter(|_| chunk > 0) {
            // That of the device once it was deleted.
            Some(begun) => self.platform.entities().find(begun.package.0)?,
            None => None,
        };
        let package = match package {
            Some(package) => package,
            None => self.ota_package(asked.device, asked.kind)?,
        };
        let (id, range) = (package.id.unwrap_or_default(), chunk_range(&package, size, chunk)?);
        let download = Download {
            connection,
            request: asked.request,
            size,
            package: id,
        };
        self.downloads.put(of, download);
        Ok((id, range))
    }
}

fn chunk_range(package: &OtaPackage, size: usize, chunk: usize) -> Result<Range<usize>, OtaError> {
    if !package.has_data {
        return Err(OtaError::Elsewhere);
    }
    let length = usize::try_from(package.data_size.unwrap_or_default()).unwrap_or(usize::MAX);
    let wanted = part(length, size, chunk);
    if wanted.len() > CHUNK_BYTES_MAX {
        return Err(OtaError::ChunkSize(size.to_string()));
    }
    Ok(wanted)
}

fn part(len: usize, size: usize, chunk: usize) -> Range<usize> {
    if size == 0 {
        return 0..len;
    }
    let start = chunk.saturating_mul(size).min(len);
    start..start.saturating_add(size).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_with_the_package() {
        assert_eq!(part(10, 0, 7), 0..10);
        assert_eq!(
            [0, 1, 2, 3].map(|chunk| part(10, 4, chunk)),
            [0..4, 4..8, 8..10, 10..10]
        );
        assert!(part(10, usize::MAX, usize::MAX).is_empty());
    }

    #[test]
    fn memory_for_packages_is_bounded() {
        let cache = OtaCache::default();
        let id = |n| (OtaPackageId(Uuid([1; 16])), n);
        let is_held = |n| cache.get(id(n)).is_some();
        let bytes = Arc::new(vec![0]);
        (0..PARTS_MAX as u32).for_each(|n| cache.put(id(n), &bytes));
        // Zero was asked for last: one makes room.
        assert!(is_held(0));
        cache.put(id(99), &bytes);
        assert_eq!([0, 1, 2, 99].map(is_held), [true, false, true, true]);
        assert_eq!(lock(&cache.0).len(), PARTS_MAX);
    }

    fn asked(device: u8, chunk: i32) -> ChunkRequest {
        let body = [&chunk.to_le_bytes()[..], b"512"].concat();
        let mut entry = Entry::new(Kind::FirmwareChunk, Uuid([device; 16]), 0, &body);
        entry.id = 5;
        ChunkRequest::of(&entry).unwrap()
    }

    #[test]
    fn a_device_that_takes_nothing_is_looked_at_seldom_and_given_up() {
        let requests = ChunkRequests::default();
        assert!(requests.put(asked(1, 0)) && requests.put(asked(1, 1)));
        let device = requests.next().unwrap().device;
        let begun = Instant::now();
        let look = |at: Duration, untaken| {
            let given_up = requests.done(device, Outcome::Held(untaken), begun + at);
            let again = lock(&requests.waiting).held.pop_first();
            (again.map(|(until, _)| (until - begun - at).as_millis()), given_up)
        };
        let at = Duration::from_secs;
        for pause in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            assert_eq!(look(at(0), Some(100)), (Some(pause), 0));
        }
        // It takes something; its shard says nothing; more is sent to it.
        assert_eq!(look(at(299), Some(99)), (Some(20), 0));
        assert_eq!(look(at(300), None), (Some(40), 0));
        assert_eq!(look(at(598), Some(120)), (Some(80), 0));
        assert_eq!(look(at(599), None), (None, 2));
        let left = lock(&requests.waiting);
        assert_eq!((left.count, left.by_device.len(), left.holds.len()), (0, 0, 0));
    }

    #[test]
    fn requests_wait_in_order_and_no_device_for_all() {
        let requests = ChunkRequests::default();
        assert!((0..OF_DEVICE_MAX as i32).all(|chunk| requests.put(asked(1, chunk))));
        assert!(!requests.put(asked(1, 99)) && requests.put(asked(2, 7)));
        let first = requests.next().unwrap();
        assert_eq!((first.chunk, first.request, &first.size), (0, 5, &Ok(512)));
        // One was answered: another one has room.
        assert!(!requests.put(asked(1, 100)));
        requests.done(first.device, Outcome::Answered, Instant::now());
        assert!(requests.put(asked(1, 100)) && !requests.put(asked(1, 101)));
        // Devices take turns; one that has to take something first gets the same one again, and no other waits for it.
        let mut got = Vec::new();
        let mut held = 0;
        while !lock(&requests.waiting).by_device.is_empty() {
            let next = requests.next().unwrap();
            let is_answered = next.chunk != 3 || held == 2;
            held += usize::from(!is_answered);
            let outcome = if is_answered {
                Outcome::Answered
            } else {
                Outcome::Held(Some(1))
            };
            assert_eq!(requests.done(next.device, outcome, Instant::now()), 0);
            if is_answered {
                got.push((next.device.0.0[0], next.chunk));
            }
            if next.chunk == 3 && held == 1 {
                assert!(requests.put(asked(3, 8)) && requests.put(asked(3, 9)));
            }
        }
        let of = |device: u8| got.iter().filter(move |(of, _)| *of == device).map(|(_, chunk)| *chunk);
        let expected: Vec<i32> = (1..OF_DEVICE_MAX as i32).chain([100]).collect();
        assert_eq!(of(1).collect::<Vec<_>>(), expected);
        assert_eq!((got[0], of(3).collect::<Vec<_>>()), ((2, 7), vec![8, 9]));
        let place = |wanted| got.iter().position(|known| *known == wanted);
        assert!(place((3, 9)) < place((1, 3)));
        let left = lock(&requests.waiting);
        assert_eq!(
            (left.count, left.turns.len(), left.held.len() + left.holds.len()),
            (0, 0, 0)
        );
        drop(left);
        requests.put(asked(1, 1));
        requests.end();
        assert_eq!(requests.next(), None);
        let bad = Entry::new(Kind::SoftwareChunk, Uuid::NULL, 0, b"\0\0\0\x0099999999999");
        assert_eq!(ChunkRequest::of(&bad).unwrap().size, Err("99999999999".to_owned()));
    }
}
