//! Chunks of firmware and software for devices. The bytes of packages that were asked for of late are in memory.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use platform::decode::{Downlink, OtaKind, Subscription};
use platform::entities::EntityError;
use platform::ids::{DeviceId, OtaPackageId};
use platform::model::OtaPackage;

use crate::entry::{Entry, Kind};
use crate::hub::{Hub, lock};

/// Of all packages in memory; one that is larger is there alone.
const CACHE_BYTES_MAX: usize = 128 << 20;
/// Of one answer.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;

type Bytes = Arc<Vec<u8>>;

/// The newest last.
#[derive(Default)]
pub struct OtaCache(Mutex<Vec<(OtaPackageId, Bytes)>>);

impl OtaCache {
    fn get(&self, id: OtaPackageId) -> Option<Bytes> {
        let mut held = lock(&self.0);
        let at = held.iter().position(|(known, _)| *known == id)?;
        let found = held.remove(at);
        let bytes = Arc::clone(&found.1);
        held.push(found);
        Some(bytes)
    }

    fn put(&self, id: OtaPackageId, bytes: &Bytes) {
        let mut held = lock(&self.0);
        held.retain(|(known, _)| *known != id);
        held.push((id, Arc::clone(bytes)));
        while held.len() > 1 && held.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > CACHE_BYTES_MAX {
            held.remove(0);
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
        if !package.has_data {
            return Err(OtaError::Elsewhere);
        }
        let id = package.id.unwrap_or_default();
        let bytes = match self.ota.get(id) {
            Some(bytes) => bytes,
            None => {
                let bytes = Arc::new(self.platform.entities().ota_data(id)?);
                self.ota.put(id, &bytes);
                bytes
            }
        };
        let wanted = part(bytes.len(), size, chunk);
        if wanted.len() > CHUNK_BYTES_MAX {
            return Err(OtaError::ChunkSize(size.to_string()));
        }
        Ok(bytes[wanted].to_vec())
    }

    /// The record: number of the chunk, then the size as text.
    pub fn answer_chunk(&self, entry: &Entry<'_>) {
        let kind = match entry.kind {
            Kind::FirmwareChunk => OtaKind::Firmware,
            _ => OtaKind::Software,
        };
        let Some((chunk, size)) = entry.body.split_first_chunk() else {
            return;
        };
        let chunk = i32::from_le_bytes(*chunk);
        let found = self.chunk_for(DeviceId(entry.device), kind, chunk, size);
        let (subscription, downlink, payload) = match found {
            Ok(bytes) => {
                let downlink = Downlink::Chunk {
                    kind,
                    request: entry.id,
                    chunk,
                };
                (Subscription::Chunks(kind), downlink, bytes)
            }
            Err(error) => {
                tracing::info!(device = %entry.device, %error, "a device asked for a package that it does not get");
                let text = error.to_string().into_bytes();
                (Subscription::ChunkErrors(kind), Downlink::ChunkError(kind), text)
            }
        };
        if let Some(target) = self.sessions.target(entry.device, subscription) {
            self.out(entry.received_ms).send(target, downlink, payload);
        }
    }

    fn chunk_for(&self, device: DeviceId, kind: OtaKind, chunk: i32, size: &[u8]) -> Result<Vec<u8>, OtaError> {
        let text = String::from_utf8_lossy(size);
        let size = match text.trim() {
            "" => 0,
            digits => digits
                .parse()
                .ok()
                .filter(|size| (1..=CHUNK_BYTES_MAX).contains(size))
                .ok_or_else(|| OtaError::ChunkSize(digits.chars().take(20).collect()))?,
        };
        let chunk = usize::try_from(chunk).map_err(|_| OtaError::NotFound)?;
        self.ota_chunk(&self.ota_package(device, kind)?, size, chunk)
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
        let id = |n| OtaPackageId(platform::ids::Uuid([n; 16]));
        let is_held = |n| cache.get(id(n)).is_some();
        let half = Arc::new(vec![0; CACHE_BYTES_MAX / 2]);
        (0..4).for_each(|n| cache.put(id(n), &half));
        assert_eq!([0, 1, 3, 2].map(is_held), [false, false, true, true]);
        // Two was asked for last: three makes room.
        cache.put(id(4), &half);
        assert_eq!([2, 3, 4].map(is_held), [true, false, true]);
        cache.put(id(9), &Arc::new(vec![0; CACHE_BYTES_MAX + 1]));
        assert_eq!([2, 4, 9].map(is_held), [false, false, true]);
    }
}
