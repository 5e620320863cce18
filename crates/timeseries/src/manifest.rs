//! The manifest: the valid files, and the log position up to which they contain all points. Replaced atomically:
//! written to a temporary file, synced, renamed.
//!
//! ```text
//! magic "TWMANIFE" | version u32 | bytes u32 of the body | crc32c u32 of version, bytes and body | body
//! body  durable position u64 | next sequence number | next file number | series log: number, bytes
//!       | times to live: count, (class, ms)
//!       | segments: count, (number, seq, clean_seq, bytes, group flag u8, class, window)
//!       | tombstones: count, (series, start, end, seq, position, latest u8)
//! ```
//!
//! Early manifests of version 1 have a checksum of the body only. Later versions must keep the header, so that a
//! damaged version is not taken for a later one.

use std::sync::Arc;

use storage::Storage;

use crate::FORMAT_VERSION;
use crate::bytes::{BytesReader, InvalidBytes, ParseResult, put_signed, put_varint};
use crate::error::StoreError;
use crate::file_name::{FileName, read_exact, write_all};
use crate::index::SeriesIndex;
use crate::segment::SegmentGroup;

/// Name of the manifest's file. A directory without it is no store.
pub const NAME: &str = "manifest";
pub(crate) const NEW_NAME: &str = "manifest.new";
const MAGIC: [u8; 8] = *b"TWMANIFE";
const HEADER_BYTES: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub durable_position: u64,
    pub next_seq: u64,
    pub next_file: u64,
    pub series_log: (u64, u64),
    pub ttl_ms: Vec<(u8, u64)>,
    pub segments: Vec<SegmentRecord>,
    pub tombstones: Vec<Tombstone>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRecord {
    pub number: u64,
    /// Sequence number. Points of a segment with a larger one win.
    pub seq: u64,
    /// Deletions up to this sequence number are already applied to the segment.
    pub clean_seq: u64,
    pub bytes: u64,
    /// `None` for a fresh segment, which has points of any class and time.
    pub group: Option<SegmentGroup>,
}

/// A deleted range `start..=end` of a series. Hides points in segments whose `clean_seq` is lower, and points that are
/// replayed up to `position`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub series: SeriesIndex,
    pub start: i64,
    pub end: i64,
    pub seq: u64,
    pub position: u64,
    /// The deletion also covers the latest value.
    pub has_latest: bool,
}

impl Tombstone {
    pub fn overlaps(&self, min_ts: i64, max_ts: i64) -> bool {
        self.start <= max_ts && min_ts <= self.end
    }
}

impl Manifest {
    /// Reads the manifest. `None` if the file does not exist.
    pub fn read(disk: &dyn Storage) -> Result<Option<Manifest>, StoreError> {
        let name = FileName::of(disk, NAME);
        let file = match disk.open(NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(name.io("open")(error)),
        };
        let mut header = [0; HEADER_BYTES];
        read_exact(&*file, &name, 0, &mut header)?;
        let mut from = BytesReader::new(&header[8..]);
        let mut word = || from.u32().unwrap_or_default();
        let (version, bytes, crc) = (word(), word(), word());
        if header[..8] != MAGIC {
            return Err(name.corrupt(0, "a valid header of a manifest"));
        }
        let length = file.len().map_err(name.io("read"))?;
        if length != HEADER_BYTES as u64 + u64::from(bytes) {
            return Err(name.corrupt(12, "the length of the manifest"));
        }
        let mut body = vec![0; bytes as usize];
        read_exact(&*file, &name, HEADER_BYTES as u64, &mut body)?;
        let is_early = version == 1 && crc32c::crc32c(&body) == crc;
        if !is_early && checksum(version, &body) != crc {
            return Err(name.corrupt(8, "a manifest with a valid checksum"));
        }
        if version > FORMAT_VERSION {
            let file = name.path();
            return Err(StoreError::Version { file, version });
        }
        let invalid = |InvalidBytes(expected)| name.corrupt(HEADER_BYTES as u64, expected);
        Manifest::decode(&mut BytesReader::new(&body))
            .map(Some)
            .map_err(invalid)
    }

    /// Replaces the manifest. After `ManifestReplaceError::Before` the old one is valid; after `Unknown` either may be.
    pub fn replace(&self, disk: &Arc<dyn Storage>) -> Result<(), ManifestReplaceError> {
        self.write_new(&**disk).map_err(ManifestReplaceError::Before)?;
        let name = FileName::of(&**disk, NAME);
        let renamed = disk.rename(NEW_NAME, NAME).map_err(name.io("rename"));
        let synced = renamed.and_then(|()| disk.sync_directory().map_err(name.io("sync the directory of")));
        synced.map_err(ManifestReplaceError::Unknown)
    }

    fn write_new(&self, disk: &dyn Storage) -> Result<(), StoreError> {
        // Names of new segments must be durable before the manifest refers to them.
        let name = FileName::of(disk, NEW_NAME);
        let file = disk.create(NEW_NAME, 0).map_err(name.io("create"))?;
        write_all(&*file, &name, 0, &self.encode())?;
        file.sync().map_err(name.io("sync"))?;
        disk.sync_directory().map_err(name.io("sync the directory of"))
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend_from_slice(&self.durable_position.to_le_bytes());
        for number in [self.next_seq, self.next_file, self.series_log.0, self.series_log.1] {
            put_varint(&mut body, number);
        }
        put_varint(&mut body, self.ttl_ms.len() as u64);
        for &(class, ttl_ms) in &self.ttl_ms {
            put_varint(&mut body, u64::from(class));
            put_varint(&mut body, ttl_ms);
        }
        put_varint(&mut body, self.segments.len() as u64);
        self.segments.iter().for_each(|segment| segment.encode(&mut body));
        put_varint(&mut body, self.tombstones.len() as u64);
        self.tombstones.iter().for_each(|tombstone| tombstone.encode(&mut body));
        let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&checksum(FORMAT_VERSION, &body).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }

    fn decode(from: &mut BytesReader<'_>) -> ParseResult<Manifest> {
        let mut manifest = Manifest {
            durable_position: from.u64()?,
            next_seq: from.varint()?,
            next_file: from.varint()?,
            series_log: (from.varint()?, from.varint()?),
            ..Manifest::default()
        };
        for _ in 0..from.varint()? {
            manifest.ttl_ms.push((class(from)?, from.varint()?));
        }
        for _ in 0..from.varint()? {
            manifest.segments.push(SegmentRecord::decode(from)?);
        }
        for _ in 0..from.varint()? {
            manifest.tombstones.push(Tombstone::decode(from)?);
        }
        Ok(manifest)
    }
}

fn checksum(version: u32, body: &[u8]) -> u32 {
    let header = [version.to_le_bytes(), (body.len() as u32).to_le_bytes()].concat();
    crc32c::crc32c_append(crc32c::crc32c(&header), body)
}

pub(crate) enum ManifestReplaceError {
    Before(StoreError),
    Unknown(StoreError),
}

fn class(from: &mut BytesReader<'_>) -> ParseResult<u8> {
    u8::try_from(from.varint()?).map_err(|_| InvalidBytes("a class"))
}

impl SegmentRecord {
    fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.number, self.seq, self.clean_seq, self.bytes] {
            put_varint(out, number);
        }
        out.push(u8::from(self.group.is_some()));
        if let Some(group) = self.group {
            put_varint(out, u64::from(group.class));
            put_signed(out, group.window);
        }
    }

    fn decode(from: &mut BytesReader<'_>) -> ParseResult<SegmentRecord> {
        let (number, seq) = (from.varint()?, from.varint()?);
        let (clean_seq, bytes) = (from.varint()?, from.varint()?);
        let group = match from.u8()? {
            0 => None,
            _ => Some(SegmentGroup {
                class: class(from)?,
                window: from.signed()?,
            }),
        };
        Ok(SegmentRecord {
            number,
            seq,
            clean_seq,
            bytes,
            group,
        })
    }
}

impl Tombstone {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.series.0));
        put_signed(out, self.start);
        put_signed(out, self.end);
        put_varint(out, self.seq);
        put_varint(out, self.position);
        out.push(u8::from(self.has_latest));
    }

    fn decode(from: &mut BytesReader<'_>) -> ParseResult<Tombstone> {
        Ok(Tombstone {
            series: SeriesIndex(u32::try_from(from.varint()?).map_err(|_| InvalidBytes("a series number"))?),
            start: from.signed()?,
            end: from.signed()?,
            seq: from.varint()?,
            position: from.varint()?,
            has_latest: from.u8()? != 0,
        })
    }
}
