//! Export of points as a Parquet file, one series after another, for analysis with other tools.
//!
//! ```text
//! key STRING | ts TIMESTAMP (ms, UTC) | bool_v BOOLEAN | long_v INT64 | dbl_v DOUBLE | str_v STRING | json_v JSON
//! ```
//!
//! The last five columns are named as in ThingsBoard's table `ts_kv`. Each row sets one of them; the others are null.
//! LZ4_RAW.
//!
//! Memory holds one row group until it is full, and one or two kilobytes of metadata for each group that is written,
//! because the list of groups is at the end of the file. Apart from that list the memory of an export is bounded.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use crate::export::{ExportError, for_each_point};
use crate::store::TimeseriesStore;
use crate::value::{TelemetryEntityId, ValueRef};

/// Maximum number of points in a row group, about 6 MiB in memory.
pub const EXPORT_GROUP_ROWS: usize = 1 << 17;
/// A row group also ends when its texts reach this many bytes.
pub const EXPORT_GROUP_TEXT_BYTES: usize = 8 << 20;

/// Number of repeated keys passed to the Parquet writer at once.
const KEYS_AT_ONCE: usize = 1024;

const SCHEMA: &str = "message telemetry {
    REQUIRED BYTE_ARRAY key (STRING);
    REQUIRED INT64 ts (TIMESTAMP(MILLIS,true));
    OPTIONAL BOOLEAN bool_v;
    OPTIONAL INT64 long_v;
    OPTIONAL DOUBLE dbl_v;
    OPTIONAL BYTE_ARRAY str_v (STRING);
    OPTIONAL BYTE_ARRAY json_v (JSON);
}";

/// Writes the points of `keys` in `range` as a Parquet file. Returns the number of points.
pub fn export_parquet(
    store: &dyn TimeseriesStore,
    entity: TelemetryEntityId,
    keys: &[&str],
    range: Range<i64>,
    out: &mut (dyn Write + Send),
) -> Result<u64, ExportError> {
    let mut file = ParquetFile::new(out).map_err(|error| ExportError::Output(failure(error)))?;
    let points = for_each_point(store, entity, keys, range, &mut |key, ts_ms, value| {
        file.put(key, ts_ms, value).map_err(failure)
    })?;
    file.end().map_err(|error| ExportError::Output(failure(error)))?;
    Ok(points)
}

fn failure(error: ParquetError) -> io::Error {
    io::Error::other(error)
}

struct ParquetFile<'a> {
    writer: SerializedFileWriter<&'a mut (dyn Write + Send)>,
    group: RowGroup,
}

impl<'a> ParquetFile<'a> {
    fn new(out: &'a mut (dyn Write + Send)) -> Result<ParquetFile<'a>, ParquetError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        Ok(ParquetFile {
            writer: SerializedFileWriter::new(out, schema, Arc::new(properties()))?,
            group: RowGroup::default(),
        })
    }

    fn put(&mut self, key: &str, ts_ms: i64, value: ValueRef<'_>) -> Result<(), ParquetError> {
        self.group.put(key, ts_ms, value);
        if self.group.is_full() {
            self.write_group()
        } else {
            Ok(())
        }
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        self.group.write(self.writer.next_row_group()?)?;
        self.group.clear();
        Ok(())
    }

    fn end(mut self) -> Result<(), ParquetError> {
        if !self.group.times.is_empty() {
            self.write_group()?;
        }
        self.writer.close().map(drop)
    }
}

fn properties() -> WriterProperties {
    let column = |name: &str| ColumnPath::from(name);
    // Times and counters change in small steps, so a dictionary would be as long as the values. Minimum and maximum let
    // readers skip groups; for texts they would only be useless copies.
    WriterProperties::builder()
        .set_created_by(concat!("tidewire ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::LZ4_RAW)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_column_statistics_enabled(column("str_v"), EnabledStatistics::None)
        .set_column_statistics_enabled(column("json_v"), EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_column_dictionary_enabled(column("ts"), false)
        .set_column_encoding(column("ts"), Encoding::DELTA_BINARY_PACKED)
        .set_column_dictionary_enabled(column("long_v"), false)
        .set_column_encoding(column("long_v"), Encoding::DELTA_BINARY_PACKED)
        .build()
}

/// Rows of the current group, as columns.
#[derive(Default)]
struct RowGroup {
    /// Each key with the number of consecutive rows that have it.
    keys: Vec<(ByteArray, usize)>,
    times: Vec<i64>,
    bools: ParquetColumn<bool>,
    longs: ParquetColumn<i64>,
    doubles: ParquetColumn<f64>,
    strings: ParquetColumn<ByteArray>,
    jsons: ParquetColumn<ByteArray>,
    text_bytes: usize,
}

impl RowGroup {
    fn put(&mut self, key: &str, ts_ms: i64, value: ValueRef<'_>) {
        match self.keys.last_mut() {
            Some((last, rows)) if last.data() == key.as_bytes() => *rows += 1,
            _ => self.keys.push((ByteArray::from(key), 1)),
        }
        self.times.push(ts_ms);
        let (mut bool, mut long, mut double, mut string, mut json) = (None, None, None, None, None);
        match value {
            ValueRef::Bool(value) => bool = Some(value),
            ValueRef::Long(value) => long = Some(value),
            ValueRef::Double(value) => double = Some(value),
            ValueRef::String(text) => string = Some(self.text(text)),
            ValueRef::Json(text) => json = Some(self.text(text)),
        }
        self.bools.put(bool);
        self.longs.put(long);
        self.doubles.put(double);
        self.strings.put(string);
        self.jsons.put(json);
    }

    fn text(&mut self, text: &str) -> ByteArray {
        self.text_bytes += text.len();
        ByteArray::from(text)
    }

    fn is_full(&self) -> bool {
        self.times.len() >= EXPORT_GROUP_ROWS || self.text_bytes >= EXPORT_GROUP_TEXT_BYTES
    }

    /// Columns are written in the order of the schema.
    fn write<W: Write + Send>(&self, mut out: SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        self.write_keys(&mut out)?;
        write_column::<Int64Type, W>(&mut out, &self.times, None)?;
        self.bools.write::<BoolType, W>(&mut out)?;
        self.longs.write::<Int64Type, W>(&mut out)?;
        self.doubles.write::<DoubleType, W>(&mut out)?;
        self.strings.write::<ByteArrayType, W>(&mut out)?;
        self.jsons.write::<ByteArrayType, W>(&mut out)?;
        out.close().map(drop)
    }

    fn write_keys<W: Write + Send>(&self, out: &mut SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        let mut column = out.next_column()?.ok_or_else(no_column)?;
        for (key, rows) in &self.keys {
            let same = vec![key.clone(); KEYS_AT_ONCE.min(*rows)];
            let mut left = *rows;
            while left > 0 {
                let now = left.min(same.len());
                column.typed::<ByteArrayType>().write_batch(&same[..now], None, None)?;
                left -= now;
            }
        }
        column.close()
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.times.clear();
        self.bools.clear();
        self.longs.clear();
        self.doubles.clear();
        self.strings.clear();
        self.jsons.clear();
        self.text_bytes = 0;
    }
}

/// The non-null values, and for each row whether it has one (Parquet's definition levels).
struct ParquetColumn<T> {
    values: Vec<T>,
    levels: Vec<i16>,
}

impl<T> Default for ParquetColumn<T> {
    fn default() -> ParquetColumn<T> {
        ParquetColumn {
            values: Vec::new(),
            levels: Vec::new(),
        }
    }
}

impl<T> ParquetColumn<T> {
    fn put(&mut self, value: Option<T>) {
        self.levels.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    fn write<D: DataType<T = T>, W: Write + Send>(
        &self,
        out: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        write_column::<D, W>(out, &self.values, Some(&self.levels))
    }

    fn clear(&mut self) {
        self.values.clear();
        self.levels.clear();
    }
}

fn write_column<D: DataType, W: Write + Send>(
    out: &mut SerializedRowGroupWriter<'_, W>,
    values: &[D::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = out.next_column()?.ok_or_else(no_column)?;
    column.typed::<D>().write_batch(values, levels, None)?;
    column.close()
}

fn no_column() -> ParquetError {
    ParquetError::General("the schema has fewer columns than the exporter writes".to_owned())
}
