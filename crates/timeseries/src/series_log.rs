//! The catalog on disk: a file of batches. Each flush appends one. When the file has grown to several times its initial
//! size, a new file begins with the whole catalog.
//!
//! ```text
//! file    magic "TWSERLOG" | version u32 | crc32c u32 of the 12 bytes before | batches
//! batch   bytes u32 | crc32c u32 | records
//! record  1 key text | 2 entity 16 bytes, class | 3 series: entity, key | 4 class: entity, class
//!         | 5 latest: series, ts, kind u8, value | 6 no latest: series | 7 class of a series: series, class
//!         | 8 class override removed: series
//! ```
//!
//! Keys, entities and series are numbered in the order of their records. The manifest contains the valid length; bytes
//! after it belong to an unfinished flush.

use storage::Storage;

use crate::FORMAT_VERSION;
use crate::bytes::{BytesReader, InvalidBytes, ParseResult, put_signed, put_text, put_varint};
use crate::catalog::SeriesCatalog;
use crate::error::StoreError;
use crate::file_name::{FileName, read_exact};
use crate::index::{EntityIndex, KeyIndex, SeriesIndex};
use crate::value::{PointValue, PointValueKind, TelemetryEntityId, TimedValue, ValueRef};

const MAGIC: [u8; 8] = *b"TWSERLOG";
pub(crate) const HEADER_BYTES: usize = 16;
const BATCH_HEADER_BYTES: usize = 8;

const KEY: u8 = 1;
const ENTITY: u8 = 2;
const SERIES: u8 = 3;
const CLASS: u8 = 4;
const LATEST: u8 = 5;
const NO_LATEST: u8 = 6;
const SERIES_CLASS: u8 = 7;
const NO_SERIES_CLASS: u8 = 8;

pub(crate) fn file_name(number: u64) -> String {
    format!("{number:016x}.series")
}

pub(crate) fn is_file_name(name: &str) -> bool {
    name.ends_with(".series")
}

pub(crate) fn header() -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
    header
}

/// The part of the catalog that is in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedPart {
    pub keys: usize,
    pub entities: usize,
    pub series: usize,
}

impl SavedPart {
    pub fn all(catalog: &SeriesCatalog) -> SavedPart {
        SavedPart {
            keys: catalog.keys.len(),
            entities: catalog.entities.len(),
            series: catalog.series.len(),
        }
    }
}

/// Changed latest values of series, classes of entities, and class overrides of series.
#[derive(Default)]
pub(crate) struct SeriesChanges<'a> {
    pub latest: &'a [SeriesIndex],
    pub entities: &'a [EntityIndex],
    pub series: &'a [SeriesIndex],
}

/// Encodes a batch with its header: new entries since `saved`, and `changed` entries.
pub(crate) fn batch(catalog: &SeriesCatalog, saved: SavedPart, changed: &SeriesChanges<'_>) -> Vec<u8> {
    let mut out = vec![0; BATCH_HEADER_BYTES];
    for key in &catalog.keys[saved.keys..] {
        out.push(KEY);
        put_text(&mut out, key);
    }
    for entity in &catalog.entities[saved.entities..] {
        out.push(ENTITY);
        out.extend_from_slice(&entity.id.0);
        put_varint(&mut out, u64::from(entity.class));
    }
    for series in &catalog.series[saved.series..] {
        out.push(SERIES);
        put_varint(&mut out, u64::from(series.entity.0));
        put_varint(&mut out, u64::from(series.key.0));
    }
    for &entity in changed.entities {
        out.push(CLASS);
        put_varint(&mut out, u64::from(entity.0));
        put_varint(&mut out, u64::from(catalog.entities[entity.index()].class));
    }
    for &series in changed.series {
        let class = catalog.own_class(series);
        out.push(if class.is_some() { SERIES_CLASS } else { NO_SERIES_CLASS });
        put_varint(&mut out, u64::from(series.0));
        if let Some(class) = class {
            put_varint(&mut out, u64::from(class));
        }
    }
    changed
        .latest
        .iter()
        .for_each(|&series| put_latest(&mut out, catalog, series));
    let bytes = (out.len() - BATCH_HEADER_BYTES) as u32;
    let crc = crc32c::crc32c(&out[BATCH_HEADER_BYTES..]);
    out[..4].copy_from_slice(&bytes.to_le_bytes());
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Encodes the file header and the whole catalog.
pub(crate) fn snapshot(catalog: &SeriesCatalog) -> Vec<u8> {
    let with_latest = |series: &SeriesIndex| catalog.latest(*series).is_some();
    let all = (0..catalog.series.len() as u32).map(SeriesIndex);
    let all: Vec<SeriesIndex> = all.filter(with_latest).collect();
    let with_class: Vec<SeriesIndex> = catalog.series_with_own_class().collect();
    let changed = SeriesChanges {
        latest: &all,
        series: &with_class,
        ..SeriesChanges::default()
    };
    let mut out = header();
    out.extend_from_slice(&batch(catalog, SavedPart::default(), &changed));
    out
}

fn put_latest(out: &mut Vec<u8>, catalog: &SeriesCatalog, series: SeriesIndex) {
    let Some((ts_ms, value)) = catalog.latest(series) else {
        out.push(NO_LATEST);
        return put_varint(out, u64::from(series.0));
    };
    out.push(LATEST);
    put_varint(out, u64::from(series.0));
    put_signed(out, ts_ms);
    out.push(value.as_ref().kind() as u8);
    match value.as_ref() {
        ValueRef::Bool(value) => out.push(u8::from(value)),
        ValueRef::Long(value) => put_signed(out, value),
        ValueRef::Double(value) => out.extend_from_slice(&value.to_le_bytes()),
        ValueRef::String(text) | ValueRef::Json(text) => put_text(out, text),
    }
}

/// Reads the first `bytes` of the file into an empty catalog.
pub(crate) fn read(disk: &dyn Storage, number: u64, bytes: u64, catalog: &mut SeriesCatalog) -> Result<(), StoreError> {
    let name = FileName::of(disk, &file_name(number));
    let file = disk.open(&name.name).map_err(name.io("open"))?;
    let mut head = [0; HEADER_BYTES];
    read_exact(&*file, &name, 0, &mut head)?;
    if head[..8] != MAGIC || crc32c::crc32c(&head[..12]).to_le_bytes() != head[12..] {
        return Err(name.corrupt(0, "a valid header of a series log"));
    }
    let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if version > FORMAT_VERSION {
        let file = name.path();
        return Err(StoreError::Version { file, version });
    }
    let mut offset = HEADER_BYTES as u64;
    while offset < bytes {
        let mut head = [0; BATCH_HEADER_BYTES];
        read_exact(&*file, &name, offset, &mut head)?;
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        if offset + (BATCH_HEADER_BYTES as u64) + u64::from(len) > bytes {
            return Err(name.corrupt(offset, "a batch that ends within the length in the manifest"));
        }
        let mut records = vec![0; len as usize];
        read_exact(&*file, &name, offset + BATCH_HEADER_BYTES as u64, &mut records)?;
        if crc32c::crc32c(&records).to_le_bytes() != head[4..] {
            return Err(name.corrupt(offset, "a batch with a valid checksum"));
        }
        apply(&mut BytesReader::new(&records), catalog)
            .map_err(|InvalidBytes(expected)| name.corrupt(offset, expected))?;
        offset += BATCH_HEADER_BYTES as u64 + u64::from(len);
    }
    Ok(())
}

fn apply(from: &mut BytesReader<'_>, catalog: &mut SeriesCatalog) -> ParseResult<()> {
    while !from.is_empty() {
        match from.u8()? {
            KEY => {
                catalog.add_key(from.text()?);
            }
            ENTITY => {
                let id = TelemetryEntityId(from.array()?);
                catalog.add_entity(id, class(from)?);
            }
            SERIES => {
                let entity = EntityIndex(index(from, catalog.entities.len())?);
                let key = KeyIndex(index(from, catalog.keys.len())?);
                catalog.add_series(entity, key);
            }
            CLASS => {
                let entity = EntityIndex(index(from, catalog.entities.len())?);
                catalog.entities[entity.index()].class = class(from)?;
            }
            SERIES_CLASS => {
                let series = SeriesIndex(index(from, catalog.series.len())?);
                let own = class(from)?;
                catalog.set_own_class(series, Some(own));
            }
            NO_SERIES_CLASS => {
                let series = SeriesIndex(index(from, catalog.series.len())?);
                catalog.set_own_class(series, None);
            }
            LATEST => {
                let series = SeriesIndex(index(from, catalog.series.len())?);
                let ts_ms = from.signed()?;
                let value = read_value(from)?;
                catalog.set_latest(series, Some(TimedValue { ts_ms, value }));
            }
            NO_LATEST => {
                let series = SeriesIndex(index(from, catalog.series.len())?);
                catalog.set_latest(series, None);
            }
            _ => return Err(InvalidBytes("a known record")),
        }
    }
    Ok(())
}

fn read_value(from: &mut BytesReader<'_>) -> ParseResult<PointValue> {
    let kind = PointValueKind::from_tag(u64::from(from.u8()?)).ok_or(InvalidBytes("a known value type"))?;
    Ok(match kind {
        PointValueKind::Bool => PointValue::Bool(from.u8()? != 0),
        PointValueKind::Long => PointValue::Long(from.signed()?),
        PointValueKind::Double => PointValue::Double(from.f64()?),
        PointValueKind::String => PointValue::String(from.text()?.into()),
        PointValueKind::Json => PointValue::Json(from.text()?.into()),
    })
}

fn index(from: &mut BytesReader<'_>, len: usize) -> ParseResult<u32> {
    let index = from.varint()?;
    if index < len as u64 {
        Ok(index as u32)
    } else {
        Err(InvalidBytes("a known index"))
    }
}

fn class(from: &mut BytesReader<'_>) -> ParseResult<u8> {
    u8::try_from(from.varint()?).map_err(|_| InvalidBytes("a class"))
}
