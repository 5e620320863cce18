//! Sends firmware and software chunks to devices. Runs on a separate thread, so that a download does not delay
//! telemetry. Recently requested parts of packages are in memory.
//!
//! A device gets a chunk when it has accepted the previous ones. Requests of a slow device are held and answered one
//! by one.
//!
//! Devices take turns. A held device is checked at growing intervals. If it has accepted nothing for minutes, its
//! requests are dropped. Requests are also dropped if the shard is too busy. Drops are counted; the device asks
//! again.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use platform::decode::{DeviceSubscription, Downlink, OtaKind};
use platform::entities::{Entities, EntityError, OTA_PART_BYTES};
use platform::ids::{DeviceId, OtaPackageId, Uuid};
use platform::model::OtaPackage;

use crate::downlinks::Downlinks;
use crate::downloads::{Download, Downloads};
use crate::entry::{EntryKind, IngestEntry};
use crate::mutex::lock;
use crate::sessions::{DeviceSessions, SessionTarget};
use crate::stats::DeviceCounters;

/// Cached parts, over all packages.
const PARTS_MAX: usize = 32;
/// Largest chunk.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;
/// Waiting requests, per device and in all. Requests beyond that are dropped and counted.
pub(crate) const OF_DEVICE_MAX: usize = 64;
pub(crate) const REQUESTS_MAX: usize = 65_536;
/// Unsent data at which a device still gets another chunk. A larger chunk is sent alone.
const AHEAD_BYTES_MAX: usize = 256 << 10;
/// Unacknowledged data that a reading device may have. It is in memory.
const UNACKNOWLEDGED_BYTES_MAX: usize = 2 * CHUNK_BYTES_MAX;
/// Time before a device with too much unsent data is checked again: initial and longest.
const CHECK_PAUSE: Duration = Duration::from_millis(20);
const CHECK_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Requests of a device that has accepted no data for this long are dropped.
const DROPPED_AFTER: Duration = Duration::from_secs(300);

type PackagePart = Arc<Vec<u8>>;

/// Cached parts, the most recently used last.
#[derive(Default)]
struct OtaCache(Mutex<Vec<((OtaPackageId, u32), PackagePart)>>);

impl OtaCache {
    fn get(&self, id: (OtaPackageId, u32)) -> Option<PackagePart> {
        let mut held = lock(&self.0);
        let at = held.iter().position(|(known, _)| *known == id)?;
        let found = held.remove(at);
        let bytes = Arc::clone(&found.1);
        held.push(found);
        Some(bytes)
    }

    fn put(&self, id: (OtaPackageId, u32), bytes: &PackagePart) {
        let mut held = lock(&self.0);
        held.retain(|(known, _)| *known != id);
        if held.len() >= PARTS_MAX {
            held.remove(0);
        }
        held.push((id, Arc::clone(bytes)));
    }
}

/// A device's request for a chunk of its package.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChunkRequest {
    device: DeviceId,
    kind: OtaKind,
    request: i32,
    chunk: i32,
    /// Chunk size in bytes, 0 for the whole package; or the invalid text in its place.
    size: Result<usize, String>,
}

impl ChunkRequest {
    /// Decodes a record: chunk number, then the size as text.
    fn of(entry: &IngestEntry<'_>) -> Option<ChunkRequest> {
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
                EntryKind::FirmwareChunk => OtaKind::Firmware,
                _ => OtaKind::Software,
            },
            request: entry.id,
            chunk: i32::from_le_bytes(*chunk),
            size,
        })
    }
}

/// Waiting chunk requests, in order.
#[derive(Default)]
struct ChunkRequests {
    waiting: Mutex<PendingChunkRequests>,
    changed: Condvar,
}

#[derive(Default)]
struct PendingChunkRequests {
    count: usize,
    /// Per device, in order; no queue is empty.
    by_device: HashMap<Uuid, VecDeque<ChunkRequest>, foldhash::fast::RandomState>,
    /// Devices whose turn comes next. A device with requests is here, in `held`, or being answered.
    ready_devices: VecDeque<Uuid>,
    /// Devices that must accept data first, and when they are checked again.
    held: BTreeSet<(Instant, Uuid)>,
    /// Progress of devices whose first request was held.
    holds: HashMap<Uuid, Hold, foldhash::fast::RandomState>,
    has_ended: bool,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkOutcome {
    Answered,
    /// The device must accept data first. Its outstanding bytes, if the shard reported them.
    Held(Option<usize>),
}

struct Hold {
    pause: Duration,
    /// The device has accepted nothing since then.
    since: Instant,
    pending_bytes: usize,
}

impl Hold {
    fn new(now: Instant) -> Hold {
        Hold {
            pause: CHECK_PAUSE,
            since: now,
            pending_bytes: usize::MAX,
        }
    }

    fn update(&mut self, pending_bytes: Option<usize>, now: Instant) {
        if pending_bytes.is_some_and(|pending_bytes| pending_bytes < self.pending_bytes) {
            (self.pause, self.since) = (CHECK_PAUSE, now);
        } else {
            self.pause = (self.pause * 2).min(CHECK_PAUSE_MAX);
        }
        self.pending_bytes = pending_bytes.unwrap_or(self.pending_bytes);
    }
}

impl ChunkRequests {
    /// Returns false if too many requests wait.
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
            waiting.ready_devices.push_back(device);
        }
        of_device.push_back(request);
        waiting.count += 1;
        self.changed.notify_one();
        true
    }

    /// Waits for a request, which stays queued until [`ChunkRequests::done`]. Returns `None` after
    /// [`ChunkRequests::end`].
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
                waiting.ready_devices.push_back(device);
            }
            let first = waiting.ready_devices.pop_front();
            if let Some(request) = first.and_then(|device| waiting.by_device.get(&device)?.front().cloned()) {
                return Some(request);
            }
            let until = waiting.held.first().map(|(at, _)| at.saturating_duration_since(now));
            waiting = match until {
                Some(time) => {
                    let waited = self.changed.wait_timeout(waiting, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Records the result of the request last taken, which was of this device. Returns the number of dropped
    /// requests.
    fn done(&self, device: DeviceId, outcome: ChunkOutcome, now: Instant) -> usize {
        let waiting = &mut *lock(&self.waiting);
        match outcome {
            ChunkOutcome::Answered => {
                waiting.answered(device.0);
                0
            }
            ChunkOutcome::Held(pending_bytes) => waiting.hold(device.0, pending_bytes, now),
        }
    }

    /// Ends the thread. Waiting requests are dropped; the devices ask again.
    fn end(&self) {
        lock(&self.waiting).has_ended = true;
        self.changed.notify_all();
    }
}

impl PendingChunkRequests {
    fn answered(&mut self, device: Uuid) {
        self.holds.remove(&device);
        let Some(of_device) = self.by_device.get_mut(&device) else {
            return;
        };
        self.count -= usize::from(of_device.pop_front().is_some());
        if of_device.is_empty() {
            self.by_device.remove(&device);
        } else {
            self.ready_devices.push_back(device);
        }
    }

    fn hold(&mut self, device: Uuid, pending_bytes: Option<usize>, now: Instant) -> usize {
        let hold = self.holds.entry(device).or_insert_with(|| Hold::new(now));
        hold.update(pending_bytes, now);
        if now.saturating_duration_since(hold.since) < DROPPED_AFTER {
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

/// Why a chunk is not available. The text is sent to the device.
#[derive(Debug)]
pub enum OtaError {
    /// The device has no such package.
    NotFound,
    /// The package is stored at an external URL.
    AtUrl,
    ChunkSize(String),
    Entity(EntityError),
}

impl std::fmt::Display for OtaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OtaError::NotFound => f.write_str("NOT_FOUND"),
            OtaError::AtUrl => f.write_str("NOT_FOUND: the package is at the url in the device's attributes"),
            OtaError::ChunkSize(size) => write!(
                f,
                "chunk size {size:?}: expected 1 to {CHUNK_BYTES_MAX} bytes; without a size, packages up to {CHUNK_BYTES_MAX} bytes are sent whole"
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

/// Packages of devices, and the requests for their chunks.
pub struct OtaPackages {
    entities: Arc<Entities>,
    sessions: Arc<DeviceSessions>,
    downlinks: Arc<Downlinks>,
    counters: Arc<DeviceCounters>,
    cache: OtaCache,
    downloads: Downloads,
    requests: ChunkRequests,
}

impl OtaPackages {
    pub fn new(
        entities: Arc<Entities>,
        sessions: Arc<DeviceSessions>,
        downlinks: Arc<Downlinks>,
        counters: Arc<DeviceCounters>,
    ) -> OtaPackages {
        OtaPackages {
            entities,
            sessions,
            downlinks,
            counters,
            cache: OtaCache::default(),
            downloads: Downloads::default(),
            requests: ChunkRequests::default(),
        }
    }

    /// Answers requests until [`OtaPackages::end`].
    pub fn run(&self) {
        while let Some(request) = self.requests.next() {
            let outcome = self.answer(&request);
            let given_up = self.requests.done(request.device, outcome, Instant::now());
            if given_up > 0 {
                DeviceCounters::add(&self.counters.dropped_downlinks, given_up as u64);
                tracing::info!(device = %request.device, requests = given_up, "device accepts no data; its chunk requests were dropped");
            }
        }
    }

    /// Ends [`OtaPackages::run`]. Waiting requests are dropped; the devices ask again.
    pub fn end(&self) {
        self.requests.end();
    }

    pub fn package(&self, device: DeviceId, kind: OtaKind) -> Result<OtaPackage, OtaError> {
        let package = self.entities.ota_package_of(device, kind.into())?;
        package.ok_or(OtaError::NotFound)
    }

    /// Reads a chunk. A `size` of 0 means the whole package. Empty beyond the end.
    pub fn chunk(&self, package: &OtaPackage, size: usize, chunk: usize) -> Result<Vec<u8>, OtaError> {
        self.bytes(package.id.unwrap_or_default(), chunk_range(package, size, chunk)?)
    }

    fn bytes(&self, id: OtaPackageId, wanted: Range<usize>) -> Result<Vec<u8>, OtaError> {
        let mut bytes = Vec::with_capacity(wanted.len());
        let mut at = wanted.start;
        while at < wanted.end {
            let number = at / OTA_PART_BYTES;
            let begin = number * OTA_PART_BYTES;
            let held = self.part(id, u32::try_from(number).unwrap_or(u32::MAX))?;
            let end = wanted.end.min(begin + held.len());
            // The stored package is shorter than its recorded size.
            let part = held.get(at - begin..end - begin).filter(|part| !part.is_empty());
            bytes.extend_from_slice(part.ok_or(OtaError::NotFound)?);
            at = end;
        }
        Ok(bytes)
    }

    fn part(&self, id: OtaPackageId, number: u32) -> Result<PackagePart, OtaError> {
        if let Some(held) = self.cache.get((id, number)) {
            return Ok(held);
        }
        let read = Arc::new(self.entities.ota_part(id, number)?);
        self.cache.put((id, number), &read);
        Ok(read)
    }

    /// Queues a chunk request. Requests of a device are answered in order.
    pub fn request_chunk(&self, entry: &IngestEntry<'_>) {
        let is_queued = ChunkRequest::of(entry).is_none_or(|request| self.requests.put(request));
        if !is_queued {
            DeviceCounters::add(&self.counters.dropped_messages, 1);
            tracing::debug!(device = %entry.device, "chunk request dropped: too many are waiting");
        }
    }

    fn answer(&self, chunk_request: &ChunkRequest) -> ChunkOutcome {
        let kind = chunk_request.kind;
        let found = self.wanted_chunk(chunk_request);
        let subscription = match found {
            Ok(_) => DeviceSubscription::Chunks(kind),
            Err(_) => DeviceSubscription::ChunkErrors(kind),
        };
        let Some(target) = self.sessions.requester(chunk_request.device.0, subscription) else {
            DeviceCounters::add(&self.counters.dropped_downlinks, 1);
            tracing::debug!(device = %chunk_request.device, "chunk request dropped: the device has disconnected");
            return ChunkOutcome::Answered;
        };
        let bytes = found.as_ref().map_or(0, |(_, wanted)| wanted.len());
        if let Err(pending_bytes) = self.can_send(&target, bytes) {
            return ChunkOutcome::Held(pending_bytes);
        }
        let (downlink, payload) = match found.and_then(|(package, wanted)| self.bytes(package, wanted)) {
            Ok(bytes) => {
                let downlink = Downlink::Chunk {
                    kind,
                    request: chunk_request.request,
                    chunk: chunk_request.chunk,
                };
                (downlink, bytes)
            }
            Err(error) => {
                tracing::info!(device = %chunk_request.device, %error, "chunk request rejected");
                (Downlink::ChunkError(kind), error.to_string().into_bytes())
            }
        };
        self.downlinks.send_to(&target, &downlink, payload);
        ChunkOutcome::Answered
    }

    /// Whether the session may be sent that many bytes. If not, returns its outstanding bytes if known.
    fn can_send(&self, target: &SessionTarget, bytes: usize) -> Result<(), Option<usize>> {
        match self.downlinks.backlog(target) {
            Ok(Some(backlog)) => {
                let has_capacity = |held: usize, max: usize| held == 0 || held + bytes <= max;
                let may_send = has_capacity(backlog.unsent_bytes, AHEAD_BYTES_MAX)
                    && has_capacity(backlog.unacknowledged_bytes, UNACKNOWLEDGED_BYTES_MAX);
                let pending_bytes = backlog.unsent_bytes + backlog.unacknowledged_bytes;
                if may_send { Ok(()) } else { Err(Some(pending_bytes)) }
            }
            // The session is gone: messages to it are counted as dropped.
            Ok(None) => Ok(()),
            Err(_) => Err(None),
        }
    }

    fn wanted_chunk(&self, chunk_request: &ChunkRequest) -> Result<(OtaPackageId, Range<usize>), OtaError> {
        let requested = chunk_request.size.clone().map_err(OtaError::ChunkSize)?;
        let chunk = usize::try_from(chunk_request.chunk).map_err(|_| OtaError::NotFound)?;
        let of = (chunk_request.device.0, chunk_request.kind);
        let connection = self.sessions.connection_of(chunk_request.device.0).unwrap_or_default();
        let begun = self.downloads.find(of, connection, chunk_request.request);
        let size = match (requested, begun) {
            (0, Some(begun)) => begun.size,
            (requested, _) => requested,
        };
        let package = match begun.filter(|_| chunk > 0) {
            // Falls back to the device's current package if this one was deleted.
            Some(begun) => self.entities.find(begun.package.0)?,
            None => None,
        };
        let package = match package {
            Some(package) => package,
            None => self.package(chunk_request.device, chunk_request.kind)?,
        };
        let (id, range) = (package.id.unwrap_or_default(), chunk_range(&package, size, chunk)?);
        let download = Download {
            connection,
            request: chunk_request.request,
            size,
            package: id,
        };
        self.downloads.put(of, download);
        Ok((id, range))
    }
}

fn chunk_range(package: &OtaPackage, size: usize, chunk: usize) -> Result<Range<usize>, OtaError> {
    if !package.has_data {
        return Err(OtaError::AtUrl);
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
        // Zero was used last, so one is evicted.
        assert!(is_held(0));
        cache.put(id(99), &bytes);
        assert_eq!([0, 1, 2, 99].map(is_held), [true, false, true, true]);
        assert_eq!(lock(&cache.0).len(), PARTS_MAX);
    }

    fn chunk_request(device: u8, chunk: i32) -> ChunkRequest {
        let body = [&chunk.to_le_bytes()[..], b"512"].concat();
        let mut entry = IngestEntry::new(EntryKind::FirmwareChunk, Uuid([device; 16]), 0, &body);
        entry.id = 5;
        ChunkRequest::of(&entry).unwrap()
    }

    #[test]
    fn stalled_device_is_checked_rarely_and_then_dropped() {
        let requests = ChunkRequests::default();
        assert!(requests.put(chunk_request(1, 0)) && requests.put(chunk_request(1, 1)));
        let device = requests.next().unwrap().device;
        let begun = Instant::now();
        let look = |at: Duration, pending_bytes| {
            let given_up = requests.done(device, ChunkOutcome::Held(pending_bytes), begun + at);
            let again = lock(&requests.waiting).held.pop_first();
            (again.map(|(until, _)| (until - begun - at).as_millis()), given_up)
        };
        let at = Duration::from_secs;
        for pause in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            assert_eq!(look(at(0), Some(100)), (Some(pause), 0));
        }
        // First accepts data, then the shard does not answer, then more data is sent.
        assert_eq!(look(at(299), Some(99)), (Some(20), 0));
        assert_eq!(look(at(300), None), (Some(40), 0));
        assert_eq!(look(at(598), Some(120)), (Some(80), 0));
        assert_eq!(look(at(599), None), (None, 2));
        let left = lock(&requests.waiting);
        assert_eq!((left.count, left.by_device.len(), left.holds.len()), (0, 0, 0));
    }

    #[test]
    fn devices_take_turns_and_keep_their_order() {
        let requests = ChunkRequests::default();
        assert!((0..OF_DEVICE_MAX as i32).all(|chunk| requests.put(chunk_request(1, chunk))));
        assert!(!requests.put(chunk_request(1, 99)) && requests.put(chunk_request(2, 7)));
        let first = requests.next().unwrap();
        assert_eq!((first.chunk, first.request, &first.size), (0, 5, &Ok(512)));
        // One request was answered, so there is space for another.
        assert!(!requests.put(chunk_request(1, 100)));
        requests.done(first.device, ChunkOutcome::Answered, Instant::now());
        assert!(requests.put(chunk_request(1, 100)) && !requests.put(chunk_request(1, 101)));
        // Devices take turns. A held request is returned again, and other devices do not wait for it.
        let mut got = Vec::new();
        let mut held = 0;
        while !lock(&requests.waiting).by_device.is_empty() {
            let next = requests.next().unwrap();
            let is_answered = next.chunk != 3 || held == 2;
            held += usize::from(!is_answered);
            let outcome = if is_answered {
                ChunkOutcome::Answered
            } else {
                ChunkOutcome::Held(Some(1))
            };
            assert_eq!(requests.done(next.device, outcome, Instant::now()), 0);
            if is_answered {
                got.push((next.device.0.0[0], next.chunk));
            }
            if next.chunk == 3 && held == 1 {
                assert!(requests.put(chunk_request(3, 8)) && requests.put(chunk_request(3, 9)));
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
            (left.count, left.ready_devices.len(), left.held.len() + left.holds.len()),
            (0, 0, 0)
        );
        drop(left);
        requests.put(chunk_request(1, 1));
        requests.end();
        assert_eq!(requests.next(), None);
        let bad = IngestEntry::new(EntryKind::SoftwareChunk, Uuid::NULL, 0, b"\0\0\0\x0099999999999");
        assert_eq!(ChunkRequest::of(&bad).unwrap().size, Err("99999999999".to_owned()));
    }
}
