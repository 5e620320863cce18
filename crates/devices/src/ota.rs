//! Chunks of firmware and software for devices, on a thread of their own: what one device fetches keeps nobody's telemetry waiting. Parts
//! of packages that were asked for of late are in memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use hashbrown::HashMap;
use platform::decode::{Downlink, OtaKind, Subscription};
use platform::entities::{EntityError, OTA_PART_BYTES};
use platform::ids::{DeviceId, OtaPackageId, Uuid};
use platform::model::OtaPackage;

use crate::entry::{Entry, Kind};
use crate::hub::{Hub, lock};
use crate::stats::Counters;

/// In memory, of all packages.
const PARTS_MAX: usize = 32;
/// Of one answer.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;
/// Requests that wait: of a device, and in all. What comes beyond that is dropped, and counted.
const OF_DEVICE_MAX: u32 = 64;
const REQUESTS_MAX: usize = 65_536;

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
    requests: VecDeque<ChunkRequest>,
    by_device: HashMap<Uuid, u32, foldhash::fast::RandomState>,
    has_ended: bool,
}

impl ChunkRequests {
    /// False: there are too many.
    fn put(&self, request: ChunkRequest) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.requests.len() >= REQUESTS_MAX {
            return false;
        }
        let of_device = waiting.by_device.entry(request.device.0).or_default();
        if *of_device >= OF_DEVICE_MAX {
            return false;
        }
        *of_device += 1;
        waiting.requests.push_back(request);
        self.news.notify_one();
        true
    }

    /// Waits for one; `None`: there will be no more.
    fn next(&self) -> Option<ChunkRequest> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.has_ended {
                return None;
            }
            if let Some(request) = waiting.requests.pop_front() {
                if let Some(of_device) = waiting.by_device.get_mut(&request.device.0) {
                    *of_device -= 1;
                    if *of_device == 0 {
                        waiting.by_device.remove(&request.device.0);
                    }
                }
                return Some(request);
            }
            waiting = self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What waits is answered by nobody: the devices ask again.
    pub fn end(&self) {
        lock(&self.waiting).has_ended = true;
        self.news.notify_all();
    }
}

/// The thread that answers, until the requests end.
pub fn run(hub: &Hub) {
    while let Some(request) = hub.chunk_requests.next() {
        hub.answer_chunk(&request);
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
        if !package.has_data {
            return Err(OtaError::Elsewhere);
        }
        let id = package.id.unwrap_or_default();
        let length = usize::try_from(package.data_size.unwrap_or_default()).unwrap_or(usize::MAX);
        let wanted = part(length, size, chunk);
        if wanted.len() > CHUNK_BYTES_MAX {
            return Err(OtaError::ChunkSize(size.to_string()));
        }
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

    fn answer_chunk(&self, asked: &ChunkRequest) {
        let kind = asked.kind;
        let (subscription, downlink, payload) = match self.chunk_for(asked) {
            Ok(bytes) => {
                let downlink = Downlink::Chunk {
                    kind,
                    request: asked.request,
                    chunk: asked.chunk,
                };
                (Subscription::Chunks(kind), downlink, bytes)
            }
            Err(error) => {
                tracing::info!(device = %asked.device, %error, "a device asked for a package that it does not get");
                let text = error.to_string().into_bytes();
                (Subscription::ChunkErrors(kind), Downlink::ChunkError(kind), text)
            }
        };
        if let Some(target) = self.sessions.target(asked.device.0, subscription) {
            self.out(asked.received_ms).send(target, downlink, payload);
        }
    }

    fn chunk_for(&self, asked: &ChunkRequest) -> Result<Vec<u8>, OtaError> {
        let size = asked.size.clone().map_err(OtaError::ChunkSize)?;
        let chunk = usize::try_from(asked.chunk).map_err(|_| OtaError::NotFound)?;
        self.ota_chunk(&self.ota_package(asked.device, asked.kind)?, size, chunk)
    }
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

    #[test]
    fn requests_wait_in_order_and_no_device_for_all() {
        let requests = ChunkRequests::default();
        let asked = |device: u8, chunk: i32| {
            let body = [&chunk.to_le_bytes()[..], b"512"].concat();
            let mut entry = Entry::new(Kind::FirmwareChunk, Uuid([device; 16]), 0, &body);
            entry.id = 5;
            ChunkRequest::of(&entry).unwrap()
        };
        assert!((0..OF_DEVICE_MAX as i32).all(|chunk| requests.put(asked(1, chunk))));
        assert!(!requests.put(asked(1, 99)) && requests.put(asked(2, 7)));
        let first = requests.next().unwrap();
        assert_eq!((first.chunk, first.request, &first.size), (0, 5, &Ok(512)));
        // One was taken: another one has room.
        assert!(requests.put(asked(1, 100)) && !requests.put(asked(1, 101)));
        let rest: Vec<i32> = (0..OF_DEVICE_MAX + 1).map(|_| requests.next().unwrap().chunk).collect();
        assert_eq!(rest[OF_DEVICE_MAX as usize - 2..], [OF_DEVICE_MAX as i32 - 1, 7, 100]);
        assert!(lock(&requests.waiting).by_device.is_empty());
        requests.put(asked(1, 1));
        requests.end();
        assert_eq!(requests.next(), None);
        let bad = Entry::new(Kind::SoftwareChunk, Uuid::NULL, 0, b"\0\0\0\x0099999999999");
        assert_eq!(ChunkRequest::of(&bad).unwrap().size, Err("99999999999".to_owned()));
    }
}
