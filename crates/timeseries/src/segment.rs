//! Segments: immutable files of blocks with an index. Written sequentially, read by position.
//!
//! All integers are little-endian; varints are LEB128.
//!
//! ```text
//! file    header | payloads and pages, each page after the payloads that it describes | root | footer
//! header  magic "TWSERIES" | version u32 | crc32c u32 of the previous 12 bytes
//! page    offset of the first payload
//!         | for each series: difference to the previous series | blocks | entries (block.rs)
//! root    for each page: first series u32 | last series u32 | offset u64 | bytes u32 | crc32c u32
//! footer  root offset u64 | root bytes u32 | root crc32c u32 | points u64 | min_ts i64 | max_ts i64 | version u32
//!         | crc32c u32 of the previous 44 bytes | magic "TWSERIES"
//! ```
//!
//! Series are ordered by number. The blocks of a series do not overlap and are ordered by time. A series with many
//! blocks continues on the next page. Only the root is in memory; each query reads the pages that it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use storage::{Storage, StorageFile};

use crate::block::{self, BlockEntry};
use crate::bytes::{BytesReader, InvalidBytes, put_varint};
use crate::error::StoreError;
use crate::file_name::{FileName, read_exact, write_all};
use crate::index::SeriesIndex;
use crate::manifest::SegmentRecord;
use crate::rows::PointRows;
use crate::{FORMAT_VERSION, bytes};

const MAGIC: [u8; 8] = *b"TWSERIES";
const HEADER_BYTES: usize = 16;
const FOOTER_BYTES: usize = 56;
const ROOT_ENTRY_BYTES: usize = 24;
const PAGE_BYTES: usize = 8 << 10;
const WRITE_BYTES: usize = 64 << 10;

pub(crate) fn file_name(number: u64) -> String {
    format!("{number:016x}.segment")
}

pub(crate) fn is_file_name(name: &str) -> bool {
    name.ends_with(".segment")
}

/// Totals from the footer, for the manifest and for choosing files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTotals {
    pub bytes: u64,
    pub points: u64,
    pub min_ts: i64,
    pub max_ts: i64,
}

#[derive(Clone, Copy, Debug)]
struct IndexPage {
    first: SeriesIndex,
    last: SeriesIndex,
    offset: u64,
    bytes: u32,
    crc: u32,
}

/// An open segment. If it is retired, the file is removed with the last reference.
pub(crate) struct StoreSegment {
    disk: Arc<dyn Storage>,
    name: FileName,
    pub record: SegmentRecord,
    pub extent: SegmentTotals,
    root: Vec<IndexPage>,
    is_obsolete: AtomicBool,
    /// Version of the classes for which this segment was last checked.
    pub checked_classes_version: AtomicU64,
}

/// Class and time window of all points in a merged segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentGroup {
    pub class: u8,
    pub window: i64,
}

/// Manifest fields of a new segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentLabel {
    pub seq: u64,
    pub clean_seq: u64,
    pub group: Option<SegmentGroup>,
}

/// A block in a segment.
#[derive(Clone, Debug)]
pub(crate) struct LocatedBlock {
    pub entry: BlockEntry,
    pub offset: u64,
}

impl StoreSegment {
    pub fn open(disk: &Arc<dyn Storage>, record: SegmentRecord) -> Result<StoreSegment, StoreError> {
        let name = FileName::of(&**disk, &file_name(record.number));
        let file = disk.open(&name.name).map_err(name.io("open"))?;
        let bytes = file.len().map_err(name.io("read"))?;
        if bytes < (HEADER_BYTES + FOOTER_BYTES) as u64 || bytes != record.bytes {
            return Err(name.corrupt(bytes, "the length in the manifest"));
        }
        check_header(&*file, &name)?;
        let (mut extent, root) = read_root(&*file, &name, bytes)?;
        extent.bytes = bytes;
        Ok(StoreSegment {
            disk: disk.clone(),
            name,
            record,
            extent,
            root,
            is_obsolete: AtomicBool::new(false),
            checked_classes_version: AtomicU64::new(0),
        })
    }

    /// Marks the segment as replaced. The file is removed when the last reader drops it.
    pub fn retire(&self) {
        self.is_obsolete.store(true, Ordering::Release);
    }

    pub fn root_bytes(&self) -> usize {
        self.root.len() * size_of::<IndexPage>()
    }

    /// Returns whether the segment may have points of the series, without disk access. `false` is exact.
    pub fn may_have(&self, series: SeriesIndex) -> bool {
        self.pages_of(series).next().is_some()
    }

    pub fn reader(&self) -> Result<SegmentReader<'_>, StoreError> {
        let file = self.disk.open(&self.name.name).map_err(self.name.io("open"))?;
        Ok(SegmentReader { segment: self, file })
    }

    fn pages_of(&self, series: SeriesIndex) -> impl Iterator<Item = &IndexPage> {
        let first = self.root.partition_point(|page| page.last < series);
        self.root[first..].iter().take_while(move |page| page.first <= series)
    }
}

impl Drop for StoreSegment {
    fn drop(&mut self) {
        if self.is_obsolete.load(Ordering::Acquire) {
            // If removal fails, the next open removes the file.
            let _ = self.disk.remove(&self.name.name);
        }
    }
}

fn check_header(file: &dyn StorageFile, name: &FileName) -> Result<(), StoreError> {
    let mut header = [0; HEADER_BYTES];
    read_exact(file, name, 0, &mut header)?;
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if header[..8] != MAGIC || crc32c::crc32c(&header[..12]).to_le_bytes() != header[12..] {
        return Err(name.corrupt(0, "a valid header of a segment"));
    }
    if version > FORMAT_VERSION {
        return Err(StoreError::Version {
            file: name.path(),
            version,
        });
    }
    Ok(())
}

fn read_root(
    file: &dyn StorageFile,
    name: &FileName,
    file_bytes: u64,
) -> Result<(SegmentTotals, Vec<IndexPage>), StoreError> {
    let at = file_bytes - FOOTER_BYTES as u64;
    let mut footer = [0; FOOTER_BYTES];
    read_exact(file, name, at, &mut footer)?;
    let crc = crc32c::crc32c(&footer[..44]).to_le_bytes();
    if footer[48..] != MAGIC || footer[44..48] != crc {
        return Err(name.corrupt(at, "a valid footer of a segment"));
    }
    let invalid = |InvalidBytes(expected): InvalidBytes| name.corrupt(at, expected);
    let mut from = BytesReader::new(&footer);
    let (offset, bytes) = (from.u64().map_err(invalid)?, from.u32().map_err(invalid)?);
    let crc = from.u32().map_err(invalid)?;
    let extent = SegmentTotals {
        bytes: file_bytes,
        points: from.u64().map_err(invalid)?,
        min_ts: from.i64().map_err(invalid)?,
        max_ts: from.i64().map_err(invalid)?,
    };
    let mut root = vec![0; bytes as usize];
    read_exact(file, name, offset, &mut root)?;
    if crc32c::crc32c(&root) != crc || !root.len().is_multiple_of(ROOT_ENTRY_BYTES) {
        return Err(name.corrupt(offset, "a valid root of the index"));
    }
    let page = |bytes: &[u8]| -> bytes::ParseResult<IndexPage> {
        let mut from = BytesReader::new(bytes);
        Ok(IndexPage {
            first: SeriesIndex(from.u32()?),
            last: SeriesIndex(from.u32()?),
            offset: from.u64()?,
            bytes: from.u32()?,
            crc: from.u32()?,
        })
    };
    let root: bytes::ParseResult<Vec<IndexPage>> = root.chunks(ROOT_ENTRY_BYTES).map(page).collect();
    Ok((
        extent,
        root.map_err(|InvalidBytes(expected)| name.corrupt(offset, expected))?,
    ))
}

/// A segment with an open file handle.
pub(crate) struct SegmentReader<'a> {
    segment: &'a StoreSegment,
    file: Box<dyn StorageFile>,
}

impl SegmentReader<'_> {
    /// Returns the blocks of a series that overlap `min_ts..=max_ts`.
    pub fn find(&self, series: SeriesIndex, min_ts: i64, max_ts: i64) -> Result<Vec<LocatedBlock>, StoreError> {
        let mut found = Vec::new();
        for page in self.segment.pages_of(series) {
            self.read_page(page, |of, located| {
                if of == series && located.entry.min_ts <= max_ts && min_ts <= located.entry.max_ts {
                    found.push(located);
                }
            })?;
        }
        Ok(found)
    }

    fn read_page(&self, page: &IndexPage, mut each: impl FnMut(SeriesIndex, LocatedBlock)) -> Result<(), StoreError> {
        let name = &self.segment.name;
        let mut bytes = vec![0; page.bytes as usize];
        read_exact(&*self.file, name, page.offset, &mut bytes)?;
        if crc32c::crc32c(&bytes) != page.crc {
            return Err(name.corrupt(page.offset, "an index page with a valid checksum"));
        }
        decode_page(&bytes, &mut each).map_err(|InvalidBytes(expected)| name.corrupt(page.offset, expected))
    }

    pub fn payload(&self, located: &LocatedBlock) -> Result<Vec<u8>, StoreError> {
        let mut payload = vec![0; located.entry.payload_bytes as usize];
        read_exact(&*self.file, &self.segment.name, located.offset, &mut payload)?;
        if crc32c::crc32c(&payload) != located.entry.crc {
            return Err(self
                .segment
                .name
                .corrupt(located.offset, "a block with a valid checksum"));
        }
        Ok(payload)
    }

    pub fn rows(&self, located: &LocatedBlock) -> Result<PointRows, StoreError> {
        let payload = self.payload(located)?;
        block::decode(located.entry.rows(), &payload)
            .map_err(|InvalidBytes(expected)| self.segment.name.corrupt(located.offset, expected))
    }

    pub fn cursor(&self) -> SegmentCursor<'_> {
        SegmentCursor {
            reader: self,
            next_page: 0,
            pending: Vec::new().into_iter().peekable(),
        }
    }
}

fn decode_page(bytes: &[u8], each: &mut impl FnMut(SeriesIndex, LocatedBlock)) -> bytes::ParseResult<()> {
    let mut from = BytesReader::new(bytes);
    let mut offset = from.varint()?;
    let mut series = 0u64;
    while !from.is_empty() {
        series += from.varint()?;
        let number = u32::try_from(series).map_err(|_| InvalidBytes("a series number"))?;
        for _ in 0..from.varint()? {
            let entry = BlockEntry::decode(&mut from)?;
            let bytes = u64::from(entry.payload_bytes);
            each(SeriesIndex(number), LocatedBlock { entry, offset });
            offset += bytes;
        }
    }
    Ok(())
}

/// Iterates over all series of a segment in order, one page at a time.
pub(crate) struct SegmentCursor<'a> {
    reader: &'a SegmentReader<'a>,
    next_page: usize,
    pending: std::iter::Peekable<std::vec::IntoIter<(SeriesIndex, LocatedBlock)>>,
}

impl SegmentCursor<'_> {
    /// Returns the series of the next blocks.
    pub fn series(&mut self) -> Result<Option<SeriesIndex>, StoreError> {
        while self.pending.peek().is_none() {
            let Some(page) = self.reader.segment.root.get(self.next_page) else {
                return Ok(None);
            };
            self.next_page += 1;
            let mut blocks = Vec::new();
            self.reader
                .read_page(page, |series, located| blocks.push((series, located)))?;
            self.pending = blocks.into_iter().peekable();
        }
        Ok(self.pending.peek().map(|(series, _)| *series))
    }

    /// Takes all blocks of `series`.
    pub fn take(&mut self, series: SeriesIndex, into: &mut Vec<LocatedBlock>) -> Result<(), StoreError> {
        while self.series()? == Some(series) {
            into.extend(self.pending.next().map(|(_, located)| located));
        }
        Ok(())
    }
}

/// Writes one segment. Nothing refers to the file before [`SegmentWriter::finish`] returns.
pub(crate) struct SegmentWriter {
    disk: Arc<dyn Storage>,
    name: FileName,
    file: Box<dyn StorageFile>,
    number: u64,
    buffer: Vec<u8>,
    /// File offset of the buffer.
    buffer_offset: u64,
    page: PageWriter,
    root: Vec<u8>,
    extent: SegmentTotals,
}

#[derive(Default)]
struct PageWriter {
    bytes: Vec<u8>,
    first: SeriesIndex,
    /// Series, block count and entries of the series being written.
    series: Option<(SeriesIndex, u64, Vec<u8>)>,
    last_written: SeriesIndex,
}

impl SegmentWriter {
    pub fn create(disk: &Arc<dyn Storage>, number: u64) -> Result<SegmentWriter, StoreError> {
        let name = FileName::of(&**disk, &file_name(number));
        let file = disk.create(&name.name, 0).map_err(name.io("create"))?;
        let mut buffer = Vec::with_capacity(WRITE_BYTES * 2);
        buffer.extend_from_slice(&MAGIC);
        buffer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        buffer.extend_from_slice(&crc32c::crc32c(&buffer).to_le_bytes());
        Ok(SegmentWriter {
            disk: disk.clone(),
            name,
            file,
            number,
            buffer,
            buffer_offset: 0,
            page: PageWriter::default(),
            root: Vec::new(),
            extent: SegmentTotals {
                min_ts: i64::MAX,
                max_ts: i64::MIN,
                ..SegmentTotals::default()
            },
        })
    }

    /// Adds a block. Series must be added in order of their numbers, the blocks of a series in order of time.
    pub fn add(&mut self, series: SeriesIndex, entry: &BlockEntry, payload: &[u8]) -> Result<(), StoreError> {
        if self.page.series.as_ref().is_some_and(|(open, ..)| *open != series) {
            self.page.close_series();
        }
        if self.page.bytes.len() + self.page.open_bytes() >= PAGE_BYTES {
            self.close_page();
        }
        if self.page.bytes.is_empty() {
            let offset = self.offset();
            self.page.begin(offset, series);
        }
        let (_, count, entries) = self.page.series.get_or_insert_with(|| (series, 0, Vec::new()));
        *count += 1;
        entry.encode(entries);
        self.extent.points += entry.rows() as u64;
        self.extent.min_ts = self.extent.min_ts.min(entry.min_ts);
        self.extent.max_ts = self.extent.max_ts.max(entry.max_ts);
        self.buffer.extend_from_slice(payload);
        if self.buffer.len() >= WRITE_BYTES {
            self.write_buffer()?;
        }
        Ok(())
    }

    fn offset(&self) -> u64 {
        self.buffer_offset + self.buffer.len() as u64
    }

    fn write_buffer(&mut self) -> Result<(), StoreError> {
        write_all(&*self.file, &self.name, self.buffer_offset, &self.buffer)?;
        self.buffer_offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn close_page(&mut self) {
        self.page.close_series();
        let page = std::mem::take(&mut self.page);
        if page.bytes.is_empty() {
            return;
        }
        let offset = self.offset();
        self.root.extend_from_slice(&page.first.0.to_le_bytes());
        self.root.extend_from_slice(&page.last_written.0.to_le_bytes());
        self.root.extend_from_slice(&offset.to_le_bytes());
        self.root.extend_from_slice(&(page.bytes.len() as u32).to_le_bytes());
        self.root.extend_from_slice(&crc32c::crc32c(&page.bytes).to_le_bytes());
        self.buffer.extend_from_slice(&page.bytes);
    }

    /// Finishes the file. The contents are durable, but not the name. `None` if no block was added; then no file
    /// remains.
    pub fn finish(mut self, label: SegmentLabel) -> Result<Option<Arc<StoreSegment>>, StoreError> {
        if self.extent.points == 0 {
            self.discard();
            return Ok(None);
        }
        self.close_page();
        let root_offset = self.offset();
        let root = std::mem::take(&mut self.root);
        self.buffer.extend_from_slice(&root);
        let footer = self.footer(root_offset, &root);
        self.buffer.extend_from_slice(&footer);
        self.write_buffer()?;
        self.file.sync().map_err(self.name.io("sync"))?;
        let record = SegmentRecord {
            number: self.number,
            seq: label.seq,
            clean_seq: label.clean_seq,
            bytes: self.buffer_offset,
            group: label.group,
        };
        Ok(Some(Arc::new(StoreSegment::open(&self.disk, record)?)))
    }

    fn footer(&self, root_offset: u64, root: &[u8]) -> Vec<u8> {
        let mut footer = Vec::with_capacity(FOOTER_BYTES);
        footer.extend_from_slice(&root_offset.to_le_bytes());
        footer.extend_from_slice(&(root.len() as u32).to_le_bytes());
        footer.extend_from_slice(&crc32c::crc32c(root).to_le_bytes());
        footer.extend_from_slice(&self.extent.points.to_le_bytes());
        footer.extend_from_slice(&self.extent.min_ts.to_le_bytes());
        footer.extend_from_slice(&self.extent.max_ts.to_le_bytes());
        footer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        footer.extend_from_slice(&crc32c::crc32c(&footer).to_le_bytes());
        footer.extend_from_slice(&MAGIC);
        footer
    }

    /// Removes the file of a failed or empty segment.
    pub fn discard(self) {
        // If removal fails, the next open removes the file.
        let _ = self.disk.remove(&self.name.name);
    }
}

impl PageWriter {
    fn begin(&mut self, offset: u64, series: SeriesIndex) {
        put_varint(&mut self.bytes, offset);
        self.first = series;
        self.last_written = SeriesIndex(0);
    }

    fn open_bytes(&self) -> usize {
        self.series.as_ref().map_or(0, |(_, _, entries)| entries.len())
    }

    fn close_series(&mut self) {
        let Some((series, count, entries)) = self.series.take() else {
            return;
        };
        put_varint(&mut self.bytes, u64::from(series.0 - self.last_written.0));
        put_varint(&mut self.bytes, count);
        self.bytes.extend_from_slice(&entries);
        self.last_written = series;
    }
}
